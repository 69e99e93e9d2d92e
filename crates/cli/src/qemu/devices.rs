//! The options whose values are lists of properties, or are like those of another program.

use crate::args::RepetitionArguments;
use crate::args::{self, Engine, MemorySize, QmpTarget, Vga};
use crate::display::DisplayTarget;
use crate::drives::{DriveProperties, Interface, KNOWN, VirtioProperties};
use crate::rtc::RtcBase;
use crate::serial::SerialTarget;

use super::properties::{switch, unknown};
use super::{Properties, Reason, Translation, add_drive, network, no_kvm, reason, served, set};

/// `-drive`.
pub(super) fn drive(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut drive = DriveProperties::default();
    let (mut bus, mut unit) = (None, None);
    let mut is_loose = false;
    let number = |key: &str, value: &str| {
        value.parse::<u8>().map_err(|_| format!("{key} is a number from 0"))
    };
    Properties::parse(value, None).for_each(|key, value| match (key, value) {
        ("file", file) => set(&mut drive.file, Some(file.into())),
        ("if", "ide") => set(&mut drive.interface, Interface::Ide),
        ("if", "floppy") => set(&mut drive.interface, Interface::Floppy),
        ("if", "virtio") => set(&mut drive.interface, Interface::Virtio),
        ("if", "none") => set(&mut is_loose, true),
        ("if", _) => reason("drives are attached by if=ide, if=floppy, if=virtio or if=none"),
        ("id", value) => set(&mut drive.id, Some(value.to_owned())),
        ("index", value) => set(&mut drive.index, Some(number(key, value)?)),
        ("bus", value) => set(&mut bus, Some(number(key, value)?)),
        ("unit", value) => set(&mut unit, Some(number(key, value)?)),
        ("media", "disk") => set(&mut drive.is_cdrom, false),
        ("media", "cdrom") => set(&mut drive.is_cdrom, true),
        ("media", _) => reason("media is disk or cdrom"),
        // That of a disk behind a vhost-user-blk server, and how QEMU uses the host.
        ("driver", "virtio-blk-vhost-user") | ("aio", _) => Ok(()),
        ("path", socket) => set(&mut drive.vblock, Some(socket.into())),
        ("format" | "driver", value) => {
            let format = value.parse().map_err(|error| format!("{error}"))?;
            set(&mut drive.format, Some(format))
        }
        ("readonly" | "read-only", value) => set(&mut drive.read_only, switch(key, value)?),
        ("snapshot", value) => set(&mut drive.snapshot, switch(key, value)?),
        (key, value) => match drive.set(key, value) {
            Some(set) => set.map_err(|error| error.to_string()),
            None => unknown(key, &format!("bus, unit, {KNOWN}")),
        },
    })?;
    match (drive.index, bus, unit) {
        (_, None, None) => {}
        (Some(_), ..) => return reason("give either index, or bus and unit"),
        (None, bus, unit) => {
            // Two drives for each bus, and both diskette drives on the one.
            let index = bus.unwrap_or(0).saturating_mul(2).saturating_add(unit.unwrap_or(0));
            drive.index = Some(index);
        }
    }
    match drive.id.clone() {
        Some(id) if is_loose => all.loose_drives.push((id, drive)),
        None if is_loose => return reason("a device finds the drive by its id; add id=NAME"),
        _ => add_drive(all, drive),
    }
    Ok(())
}

/// `-boot`.
pub(super) fn boot(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let letters = |value: &str| match value.find(|letter| !"abcdn".contains(letter)) {
        Some(_) => reason("the letters are a, b, c, d and n"),
        None => Ok(value.to_owned()),
    };
    let boot = &mut all.run.drives.boot;
    Properties::parse(value, Some("order")).for_each(|key, value| match key {
        "order" => set(&mut boot.order, letters(value)?),
        "once" => set(&mut boot.once, letters(value)?),
        "menu" => set(&mut boot.menu, switch(key, value)?),
        "strict" if value == "off" => Ok(()),
        _ => unknown(key, "order, once and menu"),
    })
}

/// `-m`.
pub(super) fn memory(all: &mut Translation, value: &str) -> Result<(), Reason> {
    Properties::parse(value, Some("size")).for_each(|key, value| match key {
        "size" => {
            let size = value.parse::<MemorySize>().map_err(|error| error.to_string())?;
            set(&mut all.run.memory, size)
        }
        _ => unknown(key, "only size"),
    })
}

/// `-machine`.
pub(super) fn machine(all: &mut Translation, value: &str) -> Result<(), Reason> {
    Properties::parse(value, Some("type")).for_each(|key, value| match (key, value) {
        // The memory of -object is no other.
        ("type", "pc")
        | ("usb" | "smm" | "vmport", "off")
        | ("acpi", "on")
        | ("memory-backend", _) => Ok(()),
        ("type", name) if name.starts_with("pc-i440fx-") => Ok(()),
        ("type", _) => reason("the machine is a pc, with the 440FX chipset"),
        ("accel", value) => accelerator(all, value),
        ("hpet", value) => set(&mut all.run.board.hpet, switch(key, value)?),
        _ => unknown(key, "type, accel and hpet"),
    })
}

/// `-accel`, and the machine's property: QEMU's name for what executes instructions by software, or those of the engines.
pub(super) fn accelerator(all: &mut Translation, value: &str) -> Result<(), Reason> {
    // Of several, with colons between, QEMU takes the first one that works.
    let mut names = value.split(',').next().unwrap_or_default().split(':');
    let engine = names.find_map(|name| match name {
        "tcg" => Some(Engine::Auto),
        "translator" => Some(Engine::Translator),
        "interpreter" => Some(Engine::Interpreter),
        _ => None,
    });
    engine.map_or_else(no_kvm, |engine| set(&mut all.run.engine, engine))
}

/// `-smp`.
pub(super) fn processors(value: &str) -> Result<(), Reason> {
    Properties::parse(value, Some("cpus")).for_each(|key, value| match (key, value) {
        ("cpus" | "sockets" | "dies" | "cores" | "threads" | "maxcpus", "1") => Ok(()),
        ("cpus" | "sockets" | "dies" | "cores" | "threads" | "maxcpus", _) => {
            reason("the machine has one processor")
        }
        _ => unknown(key, "cpus, maxcpus, sockets, dies, cores and threads"),
    })
}

/// `-device`.
pub(super) fn device(all: &mut Translation, value: &str) -> Result<(), Reason> {
    /// Where QEMU has the exit if it is not told.
    const DEBUG_EXIT: u16 = 0x501;
    let properties = Properties::parse(value, Some("driver"));
    let mut driver = String::new();
    let mut port = None;
    let mut other = None;
    properties.for_each(|key, value| match key {
        "driver" => set(&mut driver, value.to_owned()),
        _ => Ok(()),
    })?;
    if matches!(driver.as_str(), "virtio-blk-pci" | "virtio-blk") {
        return virtio_disk(all, &properties);
    }
    if matches!(driver.as_str(), "vhost-user-blk-pci" | "vhost-user-blk") {
        return served::device(all, &properties);
    }
    if network::is_card(&driver) {
        return network::card(all, value);
    }
    properties.for_each(|key, value| match key {
        "iobase" => set(&mut port, Some(args::port(value).map_err(|error| error.to_string())?)),
        // It answers at four ports, and programs only write to the first.
        "driver" | "iosize" => Ok(()),
        _ => set(&mut other, Some(key.to_owned())),
    })?;
    match (driver.as_str(), other) {
        ("pc-testdev", None) if port.is_none() => set(&mut all.run.board.test_device, true),
        ("isa-debug-exit", None) => set(&mut all.run.debug_exit, Some(port.unwrap_or(DEBUG_EXIT))),
        ("VGA", None) if port.is_none() => set(&mut all.vga, Some(Vga::Std)),
        ("isa-debug-exit" | "VGA" | "pc-testdev", Some(key)) => {
            unknown(&key, "iobase and iosize, for isa-debug-exit")
        }
        _ => reason(
            "the only devices that can be added are virtio-blk-pci, vhost-user-blk-pci, virtio-net-pci, e1000, ne2k_pci, \
                 ne2k_isa, isa-debug-exit, pc-testdev and VGA",
        ),
    }
}

/// `-device virtio-blk-pci`. The drive that it names may come later.
fn virtio_disk(all: &mut Translation, properties: &Properties) -> Result<(), Reason> {
    let mut disk = VirtioProperties::default();
    let mut drive = String::new();
    properties.for_each(|key, value| match key {
        "driver" => Ok(()),
        "id" => set(&mut disk.id, Some(value.to_owned())),
        "drive" => set(&mut drive, value.to_owned()),
        // A transitional device is what it is.
        "disable-legacy" if value == "auto" => Ok(()),
        _ => match disk.set(key, value) {
            Some(result) => result.map_err(|error| error.to_string()),
            None => {
                unknown(key, "id, drive, serial, num-queues, disable-legacy and disable-modern")
            }
        },
    })?;
    if drive.is_empty() {
        return reason("which drive it is, is missing: add drive=ID");
    }
    all.virtio_disks.push((drive, disk));
    Ok(())
}

/// `-name`.
pub(super) fn name(all: &mut Translation, value: &str) -> Result<(), Reason> {
    Properties::parse(value, Some("guest")).for_each(|key, value| match key {
        "guest" => set(&mut all.run.name, Some(value.to_owned())),
        // What the host's tools are shown.
        "process" | "debug-threads" => Ok(()),
        _ => unknown(key, "guest, process and debug-threads"),
    })
}

/// `-display`.
pub(super) fn display(value: &str) -> Result<DisplayTarget, Reason> {
    match value.split_once('=') {
        None if value == "none" => Ok(DisplayTarget::None),
        None if value == "curses" => Ok(DisplayTarget::Terminal),
        Some(("vnc", address)) => vnc(address),
        _ => reason("there is no window; give curses for the terminal, vnc=:N or none"),
    }
}

/// `-vnc`.
pub(super) fn vnc(value: &str) -> Result<DisplayTarget, Reason> {
    match value {
        "none" => Ok(DisplayTarget::None),
        _ if value.contains(',') => reason("VNC has no options here; give the address alone"),
        _ => Ok(DisplayTarget::Vnc(value.parse().map_err(|error| format!("{error}"))?)),
    }
}

/// `-serial`: none where there is to be no port.
pub(super) fn serial(value: &str) -> Result<Option<SerialTarget>, Reason> {
    Ok(Some(match value {
        "none" => return Ok(None),
        // There is no monitor that could share it, and Ctrl-A is the escape key anyway.
        "stdio" | "mon:stdio" => SerialTarget::Stdio,
        // QEMU's window has it.
        "vc" | "null" => SerialTarget::Null,
        _ if value.starts_with("unix:") => SerialTarget::Socket(server(value)?.into()),
        _ => value.parse().map_err(|_| {
            "give stdio, null, none, file:PATH, pty or unix:PATH,server=on,wait=off".to_owned()
        })?,
    }))
}

/// `-qmp`.
pub(super) fn qmp(value: &str) -> Result<QmpTarget, Reason> {
    match value {
        "stdio" => Ok(QmpTarget::Stdio),
        _ if value.starts_with("unix:") => Ok(QmpTarget::Socket(server(value)?.into())),
        _ => reason("give stdio or unix:PATH,server=on,wait=off"),
    }
}

/// The path in `unix:PATH,server=on,wait=off`. Nothing waits for a client, which misses nothing by that.
fn server(value: &str) -> Result<String, Reason> {
    let (mut path, mut is_server) = (String::new(), false);
    let value = value.strip_prefix("unix:").unwrap_or(value);
    Properties::parse(value, Some("path")).for_each(|key, value| match key {
        "path" => set(&mut path, value.to_owned()),
        "server" => set(&mut is_server, switch(key, value)?),
        "wait" => switch(key, value).map(|_| ()),
        "nowait" => Ok(()),
        _ => unknown(key, "server and wait"),
    })?;
    match (path.is_empty(), is_server) {
        (false, true) => Ok(path),
        (true, _) => reason("the socket's path is missing"),
        (_, false) => {
            reason("ring3 makes the socket and does not connect to one: add server=on,wait=off")
        }
    }
}

/// `-rtc`.
pub(super) fn rtc(all: &mut Translation, value: &str) -> Result<(), Reason> {
    Properties::parse(value, Some("base")).for_each(|key, value| match (key, value) {
        ("base", base) => {
            let base = base.parse::<RtcBase>().map_err(|error| error.to_string())?;
            set(&mut all.run.rtc, Some(base))
        }
        // The clock follows the host's, and no tick is lost.
        ("clock", "host") | ("driftfix", _) => Ok(()),
        ("clock", _) => reason("the clock follows the host's: clock=host"),
        _ => unknown(key, "base and clock"),
    })
}

/// `-icount`: virtual time by the instructions executed. How long one takes is fixed here.
pub(super) fn icount(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut repetition = RepetitionArguments { deterministic: true, ..Default::default() };
    let mut file = None;
    let mut records = false;
    Properties::parse(value, Some("shift")).for_each(|key, value| match (key, value) {
        ("shift", "auto") | ("sleep", "on") | ("align", "off") => Ok(()),
        ("shift", shift) => match shift.parse() {
            Ok(0..=10_u8) => Ok(()),
            _ => reason("shift is auto or a number from 0 to 10"),
        },
        ("sleep", _) => reason("the host sleeps while the guest waits: sleep=on"),
        ("align", _) => reason("time does not follow the host's: align=off"),
        ("rr", "record") => set(&mut records, true),
        ("rr", "replay") => reason("\"ring3 run --replay FILE\" repeats a recording of ring3"),
        ("rr", _) => reason("give rr=record"),
        ("rrfile", path) => set(&mut file, Some(path.into())),
        _ => unknown(key, "shift, sleep, align, rr and rrfile"),
    })?;
    repetition.record = file;
    if records != repetition.record.is_some() {
        return reason("a recording needs both rr=record and rrfile=FILE");
    }
    set(&mut all.run.repetition, repetition)
}
