//! Drives and their media: `-drive`, `-blockdev`, `-hda` and the like, and the devices that use them.

use std::path::PathBuf;

use crate::args::RunArguments;
use crate::drives::{DriveProperties, IdeProperties, Interface, KNOWN, VirtioProperties};

use super::properties::{switch, unknown};
use super::{Properties, Reason, Translation, reason, set};

/// A device of `-device` that uses a drive.
#[derive(Debug)]
pub(super) struct Disk {
    /// The option, for messages.
    option: String,
    /// The id of the drive or the name of the node, or None for an empty drive.
    drive: Option<String>,
    interface: Interface,
    is_cdrom: bool,
    /// The device's number on its bus, and the number of the bus.
    unit: Option<u8>,
    bus: Option<u8>,
    virtio: VirtioProperties,
    ide: IdeProperties,
    boot_index: Option<u32>,
    writeback: Option<bool>,
    /// Other properties of the drive, as `-drive` would have them.
    others: Vec<(String, String)>,
}

impl Disk {
    fn new(all: &Translation, interface: Interface, is_cdrom: bool) -> Disk {
        Disk {
            option: all.current.clone(),
            drive: None,
            interface,
            is_cdrom,
            unit: None,
            bus: None,
            virtio: VirtioProperties::default(),
            ide: IdeProperties::default(),
            boot_index: None,
            writeback: None,
            others: Vec::new(),
        }
    }
}

/// A node of `-blockdev`: the contents of a file, or a format in another node.
#[derive(Debug)]
pub(super) struct Node {
    name: String,
    drive: DriveProperties,
    /// Whether another node contains it.
    is_below: bool,
}

/// Files for which QEMU has drivers and ring3 does not: the beginnings of their names, and what to use
/// instead.
const FOREIGN: [(&str, &str); 12] = [
    ("fat:", "a directory cannot be a disk (vvfat): make an image of it with mkfs.fat and mcopy"),
    ("http:", "there is no driver for http: fetch the file"),
    ("https:", "there is no driver for https: fetch the file"),
    ("ftp:", "there is no driver for ftp: fetch the file"),
    ("ftps:", "there is no driver for ftps: fetch the file"),
    ("tftp:", "there is no driver for tftp: fetch the file"),
    ("rbd:", "there is no driver for rbd: serve the disk by NBD"),
    ("ssh:", "there is no driver for ssh: serve the disk by NBD (nbdkit ssh)"),
    ("iscsi:", "there is no driver for iscsi: serve the disk by NBD"),
    ("gluster", "there is no driver for gluster: serve the disk by NBD"),
    ("nfs:", "there is no driver for nfs: mount it"),
    ("blkdebug:", "there is no driver for blkdebug: leave it out"),
];

/// Refuses a file that only QEMU can open, with the reason.
fn check_file(name: &str) -> Result<(), Reason> {
    match FOREIGN.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        Some((_, why)) => reason(why),
        None => Ok(()),
    }
}

/// Reads the name of a file, which may begin with QEMU's default driver.
fn file(name: &str) -> Result<PathBuf, Reason> {
    check_file(name)?;
    Ok(name
        .strip_prefix("file:")
        .map_or(name, |path| path.strip_prefix("//").unwrap_or(path))
        .into())
}

/// `-hda` and the like.
pub(super) fn short(
    all: &mut Translation,
    value: &str,
    place: fn(&mut RunArguments) -> &mut Option<PathBuf>,
) -> Result<(), Reason> {
    let file = file(value)?;
    set(place(&mut all.run), Some(file))
}

/// Returns whether this is one of QEMU's drivers for the plain contents of a file.
fn is_protocol(driver: &str) -> bool {
    ["file", "host_device", "host_cdrom"].contains(&driver)
}

/// Sets a property that `-drive` and `-blockdev` share. Returns whether it is known.
fn common(drive: &mut DriveProperties, key: &str, value: &str) -> Result<bool, Reason> {
    match key {
        "file" | "filename" | "file.filename" => drive.file = Some(file(value)?),
        "driver" | "file.driver" if is_protocol(value) => {}
        "driver" | "file.driver" if value == "virtio-blk-vhost-user" => {}
        "driver" | "file.driver" if value == "vvfat" || value == "fat" => {
            return check_file("fat:").map(|()| true);
        }
        "driver" if value == "null-co" || value == "null-aio" => {
            return Err("there is no driver for empty disks: make a sparse file".to_owned());
        }
        "path" => drive.vblock = Some(value.into()),
        "format" | "driver" => {
            drive.format = Some(value.parse().map_err(|error| format!("{error}"))?);
        }
        "readonly" | "read-only" | "file.read-only" | "ro" => drive.read_only = switch(key, value)?,
        "file.cache.direct" => drive.cache.direct = switch(key, value)?,
        "file.cache.no-flush" => drive.cache.no_flush = switch(key, value)?,
        "key-secret" | "encrypt.key-secret" => drive.key_secret = Some(value.to_owned()),
        // These say how QEMU uses the host, or what an image itself says.
        "aio"
        | "file.aio"
        | "auto-read-only"
        | "file.auto-read-only"
        | "file.locking"
        | "locking"
        | "backing"
        | "file.discard"
        | "copy-on-read"
        | "force-share"
        | "l2-cache-size"
        | "cache-size"
        | "l2-cache-entry-size"
        | "refcount-cache-size"
        | "lazy-refcounts"
        | "overlap-check"
        | "file.node-name"
        | "drop-cache"
        | "file.drop-cache"
        | "x-check-cache-dropped"
        | "pass-discard-request"
        | "cache.writeback"
        | "encrypt.format"
        | "preallocation-size"
        | "boot" => {}
        _ => match drive.set(key, value) {
            Some(set) => set.map_err(|error| error.to_string())?,
            None => return Ok(false),
        },
    }
    Ok(true)
}

/// `-pflash`: the next flash memory.
pub(super) fn pflash(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let file = Some(file(value)?);
    let (interface, format) = (Interface::Flash, Some(ring3_block::Format::Raw));
    all.run.drives.drive.push(DriveProperties { file, interface, format, ..Default::default() });
    Ok(())
}

/// `-drive`.
pub(super) fn drive(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut drive = DriveProperties::default();
    let (mut bus, mut unit) = (None, None);
    let mut is_loose = false;
    let number = |key: &str, value: &str| {
        value.parse::<u8>().map_err(|_| format!("{key} must be a number from 0"))
    };
    let mut serial = None;
    Properties::parse(value, None).for_each(|key, value| match (key, value) {
        ("if", "ide") => set(&mut drive.interface, Interface::Ide),
        ("if", "floppy") => set(&mut drive.interface, Interface::Floppy),
        ("if", "virtio") => set(&mut drive.interface, Interface::Virtio),
        ("if", "none") => set(&mut is_loose, true),
        ("if", "pflash") => set(&mut drive.interface, Interface::Flash),
        ("if", "scsi") => reason("there is no SCSI: give if=ide, if=floppy, if=virtio or if=none"),
        ("if", _) => reason("give if=ide, if=floppy, if=virtio, if=pflash or if=none"),
        ("id" | "node-name", value) => set(&mut drive.id, Some(value.to_owned())),
        ("index", value) => set(&mut drive.index, Some(number(key, value)?)),
        ("bus", value) => set(&mut bus, Some(number(key, value)?)),
        ("unit", value) => set(&mut unit, Some(number(key, value)?)),
        ("media", "disk") => set(&mut drive.is_cdrom, false),
        ("media", "cdrom") => set(&mut drive.is_cdrom, true),
        ("media", _) => reason("media must be disk or cdrom"),
        ("snapshot", value) => set(&mut drive.snapshot, switch(key, value)?),
        ("serial", value) => set(&mut serial, Some(value.to_owned())),
        // The geometry for the BIOS of a PC of 1990.
        ("cyls" | "heads" | "secs" | "trans" | "addr", _) => Ok(()),
        (key, value) if common(&mut drive, key, value)? => Ok(()),
        (key, _) => unknown(key, &format!("bus, unit, {KNOWN}")),
    })?;
    match drive.interface {
        Interface::Virtio => drive.virtio.serial = serial,
        _ => drive.ide.serial = serial,
    }
    match (drive.index, bus, unit) {
        (_, None, None) => {}
        (Some(_), ..) => return reason("give either index, or bus and unit"),
        (None, bus, unit) => {
            // There are two drives on each IDE bus, and both diskette drives are on one bus.
            let index = bus.unwrap_or(0).saturating_mul(2).saturating_add(unit.unwrap_or(0));
            drive.index = Some(index);
        }
    }
    match drive.id.clone() {
        Some(id) if is_loose => all.loose_drives.push((id, drive)),
        None if is_loose => return reason("a device names its drive by id; add id=NAME"),
        _ => all.run.drives.drive.push(drive),
    }
    Ok(())
}

/// `-blockdev`: a node, which contains a file or another node.
pub(super) fn blockdev(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse_either(value, Some("driver"))?;
    let Some(name) = properties.take("node-name") else {
        return reason("a device names its node; add node-name=NAME");
    };
    let driver = properties.take("driver").unwrap_or_default();
    let mut drive =
        if is_protocol(&driver) || ["nbd", "virtio-blk-vhost-user"].contains(&driver.as_str()) {
            protocol(&driver, &mut properties)?
        } else {
            let below = properties.take("file");
            let mut inner = properties.take_group("file");
            let mut drive = match below {
                Some(below) => {
                    let node = all.nodes.iter_mut().find(|node| node.name == below);
                    let node =
                        node.ok_or_else(|| format!("there is no node {below}: define it first"))?;
                    node.is_below = true;
                    node.drive.clone()
                }
                None if !inner.is_empty() => {
                    let driver = inner.take("driver").unwrap_or_default();
                    inner.take("node-name");
                    let drive = protocol(&driver, &mut inner)?;
                    inner.finish("filename, server, cache and the like")?;
                    drive
                }
                None => {
                    return reason(
                        "the image's node or file is missing: add file=NODE or file.filename=FILE",
                    );
                }
            };
            common(&mut drive, "driver", &driver)?;
            drive
        };
    drive.id = Some(name.clone());
    drive.is_node = true;
    properties.for_each(|key, value| {
        if common(&mut drive, key, value)? {
            return Ok(());
        }
        unknown(key, &format!("driver, node-name, filename, {KNOWN}"))
    })?;
    all.nodes.push(Node { name, drive, is_below: false });
    Ok(())
}

/// Reads the source of a node's bytes.
fn protocol(driver: &str, properties: &mut Properties) -> Result<DriveProperties, Reason> {
    let mut drive = DriveProperties::default();
    match driver {
        "nbd" => {
            let mut server = properties.take_group("server");
            let mut take = |key: &str| server.take(key).or_else(|| properties.take(key));
            let export = take("export").unwrap_or_default();
            let uri = match (take("path"), take("host"), take("port")) {
                (Some(path), ..) => format!("nbd+unix:///{export}?socket={path}"),
                (None, Some(host), port) => {
                    format!("nbd://{host}:{}/{export}", port.as_deref().unwrap_or("10809"))
                }
                _ => {
                    return reason(
                        "the server's address is missing: add server.type, server.path or server.host",
                    );
                }
            };
            drive.file = Some(uri.into());
        }
        "virtio-blk-vhost-user" => drive.vblock = properties.take("path").map(Into::into),
        _ if is_protocol(driver) => {
            let Some(name) = properties.take("filename") else {
                return reason("the file is missing: add filename=FILE");
            };
            drive.file = Some(name.into());
            drive.format = Some(ring3_block::Format::Raw);
        }
        _ => {
            return Err(format!(
                "there is no driver {driver}; the drivers are file, host_device, nbd and virtio-blk-vhost-user"
            ));
        }
    }
    for (key, value) in std::mem::replace(properties, Properties::parse("", None)).iter() {
        if !common(&mut drive, key, value)? {
            properties.add(key, value);
        }
    }
    Ok(drive)
}

/// Properties of a disk that make no difference to a guest: its place, and how QEMU works.
const HARMLESS: [&str; 26] = [
    "driver",
    "addr",
    "iothread",
    "ioeventfd",
    "event_idx",
    "indirect_desc",
    "config-wce",
    "queue-size",
    "vectors",
    "request-merging",
    "share-rw",
    "seg-max-adjust",
    "ats",
    "page-per-vq",
    "multifunction",
    "acpi-index",
    "failover",
    "class",
    "x-disable-pcie",
    "max-discard-sectors",
    "max-write-zeroes-sectors",
    "discard",
    "write-zeroes",
    "ver",
    "min_io_size",
    "opt_io_size",
];

/// The names of a disk's properties.
const DISK_PROPERTIES: &str = "id, drive, bus, unit, serial, bootindex, write-cache, rerror and werror, for IDE model, and for virtio num-queues, \
     disable-legacy and disable-modern";

/// `-device ide-hd`, `ide-cd`, `virtio-blk-pci` and `floppy`. The drive may be defined later.
pub(super) fn device(
    all: &mut Translation,
    driver: &str,
    properties: &Properties,
) -> Result<(), Reason> {
    let (interface, is_cdrom) = match driver {
        "ide-cd" => (Interface::Ide, true),
        "ide-hd" | "ide-drive" => (Interface::Ide, false),
        "floppy" => (Interface::Floppy, false),
        _ => (Interface::Virtio, false),
    };
    let mut disk = Disk::new(all, interface, is_cdrom);
    let is_virtio = interface == Interface::Virtio;
    properties.for_each(|key, value| match key {
        "drive" => set(&mut disk.drive, Some(value.to_owned())),
        "id" => {
            disk.ide.id = Some(value.to_owned());
            set(&mut disk.virtio.id, Some(value.to_owned()))
        }
        "unit" => {
            let unit = value.parse::<u8>().ok().filter(|unit| *unit < 2);
            set(&mut disk.unit, Some(unit.ok_or("unit must be 0 or 1")?))
        }
        "bus" if is_virtio => Ok(()),
        "bus" => {
            let number = value.rsplit_once('.').and_then(|(_, number)| number.parse::<u8>().ok());
            let is_there = value.starts_with("ide.") || value.starts_with("floppy-bus.");
            let number = number.filter(|_| is_there);
            set(
                &mut disk.bus,
                Some(number.ok_or_else(|| {
                    format!("there is no bus {value}; the buses are ide.0 and ide.1")
                })?),
            )
        }
        "bootindex" => {
            let place = value.parse().map_err(|_| "bootindex is a number from 0")?;
            set(&mut disk.boot_index, Some(place))
        }
        "write-cache" => match value {
            "auto" => Ok(()),
            _ => set(&mut disk.writeback, Some(switch(key, value)?)),
        },
        "logical_block_size" | "physical_block_size" if value == "512" => Ok(()),
        // These describe the medium, of which the guest learns by its sectors.
        "physical_block_size" | "discard_granularity" | "rotation_rate" | "wwn" | "port_wwn" => {
            Ok(())
        }
        "logical_block_size" => {
            reason("sectors always have 512 bytes: leave logical_block_size out")
        }
        "scsi" | "iommu_platform" | "packed" | "in-order" if value == "off" || value == "false" => {
            Ok(())
        }
        "drive-type" | "fallback" => Ok(()),
        "model" if !is_virtio => set(&mut disk.ide.model, Some(value.to_owned())),
        "serial" if !is_virtio => set(&mut disk.ide.serial, Some(value.to_owned())),
        "rerror" | "werror" => {
            if value != "auto" {
                disk.others.push((key.to_owned(), value.to_owned()));
            }
            Ok(())
        }
        // This is the default, a transitional device.
        "disable-legacy" if value == "auto" => Ok(()),
        _ if HARMLESS.contains(&key) => Ok(()),
        _ if is_virtio => match disk.virtio.set(key, value) {
            Some(result) => result.map_err(|error| error.to_string()),
            None => unknown(key, DISK_PROPERTIES),
        },
        _ => unknown(key, DISK_PROPERTIES),
    })?;
    if disk.drive.is_none() && !(is_cdrom || interface == Interface::Floppy) {
        return reason("the drive is missing: add drive=ID");
    }
    all.disks.push(disk);
    Ok(())
}

/// Puts a drive into drive A or B of the controller that every machine has.
pub(super) fn floppy(all: &mut Translation, id: &str, unit: u8) {
    let mut disk = Disk::new(all, Interface::Floppy, false);
    disk.drive = Some(id.to_owned());
    disk.unit = Some(unit);
    all.disks.push(disk);
}

/// Makes the drive or node `id` flash memory `unit`.
pub(super) fn flash(all: &mut Translation, id: &str, unit: u8) {
    let mut disk = Disk::new(all, Interface::Flash, false);
    disk.drive = Some(id.to_owned());
    disk.unit = Some(unit);
    all.disks.push(disk);
}

/// Gives the devices their drives. Returns the options that cannot be met, with the reasons.
pub(super) fn finish(all: &mut Translation) -> Vec<(String, Reason)> {
    let mut errors = Vec::new();
    let mut taken: Vec<u8> = Vec::new();
    for disk in std::mem::take(&mut all.disks) {
        let option = disk.option.clone();
        match attach(all, disk, &mut taken) {
            Ok(drive) => all.run.drives.drive.push(drive),
            Err(reason) => errors.push((option, reason)),
        }
    }
    for id in all.run.drives.drive.iter().filter_map(|drive| drive.key_secret.as_ref()) {
        if !all.secret_ids.contains(id) {
            let reason = format!("there is no such secret: give -object secret,id={id},file=FILE");
            errors.push((format!("key-secret={id}"), reason));
        }
    }
    errors
}

/// Gives a device its drive. `taken` has the places on IDE that are in use.
fn attach(
    all: &mut Translation,
    disk: Disk,
    taken: &mut Vec<u8>,
) -> Result<DriveProperties, Reason> {
    let mut drive = match &disk.drive {
        None => DriveProperties::default(),
        Some(id) => take_drive(all, id)?,
    };
    drive.interface = disk.interface;
    drive.is_cdrom |= disk.is_cdrom;
    if disk.interface == Interface::Virtio {
        drive.virtio = disk.virtio;
    } else {
        let serial = drive.ide.serial.take();
        drive.ide = disk.ide;
        drive.ide.serial = drive.ide.serial.or(serial);
    }
    drive.boot_index = disk.boot_index.or(drive.boot_index);
    if let Some(writeback) = disk.writeback {
        drive.cache.writeback = writeback;
    }
    for (key, value) in &disk.others {
        if let Some(set) = drive.set(key, value) {
            set.map_err(|error| error.to_string())?;
        }
    }
    drive.index = match (disk.interface, disk.bus, disk.unit) {
        (Interface::Virtio, ..) | (_, None, None) => None,
        (Interface::Floppy | Interface::Flash, _, unit) => unit,
        // Each port of a q35's controller is a bus of its own.
        (Interface::Ide, Some(bus), _) if all.is_q35 => Some(bus),
        (Interface::Ide, bus, unit) => {
            let bus = bus.unwrap_or(0).saturating_mul(2);
            let free = || (bus..bus + 2).find(|place| !taken.contains(place)).unwrap_or(bus);
            Some(unit.map_or_else(free, |unit| bus + unit))
        }
    };
    if disk.interface == Interface::Ide {
        taken.extend(drive.index);
    }
    drive.check().map_err(|error| error.to_string())?;
    Ok(drive)
}

/// Takes the drive or node with the id `id`.
fn take_drive(all: &mut Translation, id: &str) -> Result<DriveProperties, Reason> {
    if let Some(index) = all.loose_drives.iter().position(|(name, _)| name == id) {
        return Ok(all.loose_drives.remove(index).1);
    }
    if let Some(index) = all.nodes.iter().position(|node| node.name == id) {
        if all.nodes[index].is_below {
            return Err(format!("another node contains the node {id}"));
        }
        return Ok(all.nodes.remove(index).drive);
    }
    Err(format!(
        "there is no such drive: give -drive if=none,id={id},file=FILE, or -blockdev with node-name={id}, once for each device"
    ))
}
