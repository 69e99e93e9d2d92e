//! Disks behind vhost-user-blk servers, as QEMU has them: a socket (`-chardev`), a disk on it (`-device vhost-user-blk-pci`), and memory that QEMU shares
//! with the server (`-object memory-backend-memfd`), which this program need not ([`ring3_vblock::client`]).

use std::path::PathBuf;

use crate::drives::{DriveProperties, Interface, VirtioProperties};

use super::properties::{Properties, switch, unknown};
use super::{Reason, Translation, add_drive, reason};

/// A disk of `-device`.
#[derive(Debug)]
pub(super) struct ServedDisk {
    chardev: String,
    disk: VirtioProperties,
}

/// `-chardev socket`. The device that names it may come later.
pub(super) fn chardev(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse(value, Some("backend"));
    if properties.take("backend").as_deref() != Some("socket") {
        return reason("the only one that is known is socket, for vhost-user-blk-pci");
    }
    // A server that goes is always waited for.
    properties.take("reconnect");
    let is_server =
        properties.take("server").map_or(Ok(false), |value| switch("server", &value))?;
    if is_server {
        return reason("ring3 connects to a server of disks: add server=off");
    }
    let (Some(id), Some(path)) = (properties.take("id"), properties.take("path")) else {
        return reason("give the server's socket and a name for it: path=SOCKET,id=ID");
    };
    properties.finish("id, path, server and reconnect")?;
    if all.chardevs.iter().any(|(name, _)| *name == id) {
        return Err(format!("there are two of the id {id}"));
    }
    all.chardevs.push((id, path.into()));
    Ok(())
}

/// `-object`: memory for the guest, which is no other than that of `-m`.
pub(super) fn object(value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse(value, Some("qom-type"));
    let kind = properties.take("qom-type").unwrap_or_default();
    if !["memory-backend-memfd", "memory-backend-file", "memory-backend-ram"]
        .contains(&kind.as_str())
    {
        return reason("the only ones that are known are memory-backend-memfd, -file and -ram");
    }
    for key in ["id", "size", "share", "mem-path", "prealloc"] {
        properties.take(key);
    }
    properties.finish("id, size, share, mem-path and prealloc")
}

/// `-device vhost-user-blk-pci`.
pub(super) fn device(all: &mut Translation, properties: &Properties) -> Result<(), Reason> {
    let mut disk = VirtioProperties::default();
    let mut chardev = String::new();
    properties.for_each(|key, value| match key {
        // The server says what its cache is, and the card how many interrupts it has.
        "driver" | "config-wce" | "vectors" => Ok(()),
        "id" => super::set(&mut disk.id, Some(value.to_owned())),
        "chardev" => super::set(&mut chardev, value.to_owned()),
        "disable-legacy" if value == "auto" => Ok(()),
        _ => match disk.set(key, value) {
            Some(result) => result.map_err(|error| error.to_string()),
            None => unknown(key, "id, chardev, num-queues, disable-legacy and disable-modern"),
        },
    })?;
    if chardev.is_empty() {
        return reason("which server has it, is missing: add chardev=ID");
    }
    all.served_disks.push(ServedDisk { chardev, disk });
    Ok(())
}

/// Brings disks and sockets together.
pub(super) fn finish(all: &mut Translation) -> Result<(), Reason> {
    for ServedDisk { chardev, disk } in std::mem::take(&mut all.served_disks) {
        let Some(index) = all.chardevs.iter().position(|(name, _)| *name == chardev) else {
            return Err(format!(
                "there is no such socket: give -chardev socket,id={chardev},path=SOCKET once for each disk"
            ));
        };
        let (_, socket): (String, PathBuf) = all.chardevs.remove(index);
        let drive = DriveProperties {
            vblock: Some(socket),
            interface: Interface::Virtio,
            virtio: disk,
            ..DriveProperties::default()
        };
        drive.check().map_err(|error| error.to_string())?;
        add_drive(all, drive);
    }
    match all.chardevs.first() {
        Some((id, _)) => {
            Err(format!("no disk is on {id}: add -device vhost-user-blk-pci,chardev={id}"))
        }
        None => Ok(()),
    }
}
