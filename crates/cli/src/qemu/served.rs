//! Disks behind vhost-user-blk servers, as QEMU has them: a socket (`-chardev`), a disk on it (`-device
//! vhost-user-blk-pci`), and memory that QEMU shares with the server (`-object memory-backend-memfd`), for
//! which ring3 has no need ([`ring3_disk::Served`]). This module also handles the other objects of `-object`.

use crate::drives::{DriveProperties, Interface, VirtioProperties};
use crate::secrets::SecretObject;

use super::properties::{Properties, unknown};
use super::settings::{Address, Place, SocketPlace};
use super::{Reason, Translation, extra_memory, reason};

/// A disk of `-device`.
#[derive(Debug)]
pub(super) struct ServedDisk {
    chardev: String,
    disk: VirtioProperties,
}

/// `-object`: memory of the guest, whose size `-m` gives already; passwords; and objects for QEMU's own use.
pub(super) fn object(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse_either(value, Some("qom-type"))?;
    match properties.take("qom-type").unwrap_or_default().as_str() {
        kind if kind.starts_with("memory-backend-") => extra_memory::backend(all, &mut properties),
        // Objects for devices that report themselves that they are missing.
        "rng-random" | "rng-builtin" | "rng-egd" | "iothread" | "throttle-group"
        | "thread-context" => Ok(()),
        "secret" => {
            all.secret_ids.extend(
                properties.iter().find(|(key, _)| *key == "id").map(|(_, id)| id.to_owned()),
            );
            let secret = SecretObject::of(&properties).map_err(|error| error.to_string())?;
            let secrets = &mut all.run.drives.secrets;
            if secrets.iter().any(|other| other.id == secret.id) {
                return Err(format!("there is already a secret with the id {}", secret.id));
            }
            secrets.push(secret);
            Ok(())
        }
        "filter-dump" => reason("give pcap=FILE with -netdev to write packets to a file"),
        kind if kind.starts_with("filter-") => reason("there are no packet filters: leave it out"),
        kind if kind.starts_with("tls-creds") => reason("there is no TLS: leave it out"),
        kind if kind.starts_with("sev-") || kind.starts_with("tdx") => {
            reason("there is no memory encryption: leave it out")
        }
        kind => {
            all.warn(&format!("there is no object {kind}"));
            Ok(())
        }
    }
}

/// `-device vhost-user-blk-pci`.
pub(super) fn device(all: &mut Translation, properties: &Properties) -> Result<(), Reason> {
    let mut disk = VirtioProperties::default();
    let mut chardev = String::new();
    properties.for_each(|key, value| match key {
        // The server decides about its cache, and the card about the number of its interrupts.
        "config-wce" | "vectors" | "addr" | "bus" | "queue-size" => Ok(()),
        "id" => super::set(&mut disk.id, Some(value.to_owned())),
        "chardev" => super::set(&mut chardev, value.to_owned()),
        "disable-legacy" if value == "auto" => Ok(()),
        _ => match disk.set(key, value) {
            Some(result) => result.map_err(|error| error.to_string()),
            None => unknown(key, "id, chardev, num-queues, disable-legacy and disable-modern"),
        },
    })?;
    if chardev.is_empty() {
        return reason("the server's character device is missing: add chardev=ID");
    }
    all.served_disks.push(ServedDisk { chardev, disk });
    Ok(())
}

/// Gives the disks their sockets.
pub(super) fn finish(all: &mut Translation) -> Result<(), Reason> {
    for ServedDisk { chardev, disk } in std::mem::take(&mut all.served_disks) {
        let characters = &mut all.run.qemu.characters;
        let found = characters.iter().position(|other| other.id.as_ref() == Some(&chardev));
        let Some(index) = found else {
            return Err(format!(
                "there is no such socket: give -chardev socket,id={chardev},path=SOCKET once for each disk"
            ));
        };
        // No other option can name it from now on.
        characters[index].id = None;
        let Place::Socket(SocketPlace { address: Address::Unix(socket), is_server: false, .. }) =
            characters[index].place.clone()
        else {
            return Err(format!(
                "ring3 is the client of a disk server: give -chardev socket,id={chardev},path=SOCKET,server=off"
            ));
        };
        let drive = DriveProperties {
            vblock: Some(socket),
            interface: Interface::Virtio,
            virtio: disk,
            ..DriveProperties::default()
        };
        drive.check().map_err(|error| error.to_string())?;
        all.run.drives.drive.push(drive);
    }
    Ok(())
}
