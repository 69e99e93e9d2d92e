//! The command `info`, which describes the machine.

use std::fmt::Write;

use serde_json::json;

use ring3_core::memory::RamLayout;
use ring3_vm::NicModel;

use super::{moving, paging, qmp};
use crate::commands::Machine;
use crate::protocol::Failure;
use crate::{balloon, block_stats, extra_memory, media, uuid};

/// A function that describes a subject.
type Teller = fn(&Machine) -> Result<String, Failure>;

const SUBJECTS: &[(&str, &str, Teller)] = &[
    ("balloon", "the memory that the guest has", |machine| {
        Ok(format!("balloon: actual={}", balloon::guest_bytes(machine)? >> 20))
    }),
    ("block", "the drives", block),
    ("blockstats", "what the drives have done", block_stats::lines),
    ("chardev", "where serial ports and monitors go", |machine| Ok(chardev(machine))),
    ("cpus", "the processor", |machine| {
        let halted = if machine.control.processor()?.halted { " (halted)" } else { "" };
        Ok(format!("* CPU #0: thread_id={}{halted}", std::process::id()))
    }),
    ("irq", "how often there were interrupts", |machine| {
        let counters = machine.control.stats()?.counters();
        let interrupts = counters.iter().find(|(name, _)| *name == "exits-interrupt");
        let interrupts = interrupts.map_or(0, |(_, count)| *count);
        Ok(format!("all together: {interrupts}; lines are not counted one by one"))
    }),
    ("jit", "what the machine counts", stats),
    ("kvm", "the host's processor", |_| Ok("kvm support: not compiled".to_owned())),
    ("memory-devices", "memory that comes and goes", memory_devices),
    ("memory_size_summary", "the size of memory", |machine| {
        let (base, plugged) = extra_memory::sizes(machine)?;
        Ok(format!("base memory: {base}\nplugged memory: {plugged}"))
    }),
    ("mice", "the mouse", |_| Ok("* Mouse #0: PS/2 mouse".to_owned())),
    ("migrate", "how far the machine has moved", moving::progress),
    ("migrate_capabilities", "how machines move", moving::capabilities),
    ("migrate_parameters", "the limits of a move", moving::parameters),
    ("mtree", "what is where in memory", mtree),
    ("name", "what the machine is called", |machine| {
        Ok(machine.facts().name.clone().unwrap_or_default())
    }),
    ("network", "network cards, and what is behind them", network),
    ("pci", "the cards on PCI", pci),
    ("qtree", "the devices", qtree),
    ("registers", "the processor's registers", |machine| Ok(machine.control.processor()?.report)),
    ("roms", "the images of firmware", |machine| {
        let description = machine.control.describe()?;
        let roms = description.nics.iter().filter(|card| card.nic.rom.is_some());
        let lines = roms.map(|card| format!("{}: with a ROM to boot by", card.device));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }),
    // The first line is QEMU's, for programs.
    ("snapshots", "where saved machines are", |_| {
        let here = "Saved machines are files: \"ring3 snapshot info FILE\" shows one.";
        Ok(format!("There is no snapshot available.\n{here}"))
    }),
    ("stats", "what the machine counts", stats),
    ("status", "whether the machine runs", |machine| {
        let status = qmp(machine, "query-status", json!({}))?;
        let status = status["status"].as_str().unwrap_or_default();
        Ok(match status {
            "running" => "VM status: running".to_owned(),
            "paused" => "VM status: paused".to_owned(),
            other => format!("VM status: paused ({other})"),
        })
    }),
    ("tlb", "the pages that page tables map", paging::pages),
    ("tpm", "the TPM", |_| Ok("TPM device: none".to_owned())),
    ("usb", "USB", |_| Ok("USB support not enabled".to_owned())),
    ("uuid", "the machine's identity", |machine| Ok(uuid::text(machine.facts().uuid))),
    ("version", "the version", |_| {
        let version = crate::protocol::version();
        let qemu = &version["qemu"];
        Ok(format!(
            "{}.{}.{} ({})",
            qemu["major"],
            qemu["minor"],
            qemu["micro"],
            version["package"].as_str().unwrap_or_default()
        ))
    }),
    ("vnc", "the screen for others", |machine| {
        Ok(match &machine.facts().screen {
            Some(place) => format!("Server: {place}"),
            None => "none".to_owned(),
        })
    }),
];

/// Executes `info`.
pub(super) fn execute(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let Some(subject) = arguments.first() else { return Ok(help()) };
    match SUBJECTS.iter().find(|(name, ..)| name == subject) {
        Some((.., tell)) => tell(machine),
        None => Ok(format!("unknown command: 'info {subject}'; \"info\" lists what there is")),
    }
}

/// Lists the subjects.
pub(super) fn help() -> String {
    let lines = SUBJECTS.iter().map(|(name, help, _)| format!("info {name} -- {help}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Lists drives as QEMU does: `ide0-hd0: disk.img (raw)`.
fn block(machine: &Machine) -> Result<String, Failure> {
    let mut text = String::new();
    for drive in machine.control.drives()? {
        let name = media::name(&drive);
        // Writing to a string cannot fail.
        let _ = match (&drive.file, drive.medium) {
            (Some(file), Some(medium)) => {
                let read_only = if medium.read_only { ", read-only" } else { "" };
                let node = media::node_name(&drive);
                writeln!(
                    text,
                    "{name} ({node}): {} ({}{read_only})",
                    file.display(),
                    drive.format.unwrap_or("raw")
                )
            }
            _ => writeln!(text, "{name}: [not inserted]"),
        };
        let attached = drive.device();
        let _ = writeln!(text, "    Attached to:      {attached}");
        if drive.removable {
            let locked = if drive.locked { "locked" } else { "not locked" };
            let tray = if drive.medium.is_some() { "closed" } else { "open" };
            let _ = writeln!(text, "    Removable device: {locked}, tray {tray}");
        }
        let mode = if drive.cache.writeback { "writeback" } else { "writethrough" };
        let direct = if drive.cache.direct { ", direct" } else { "" };
        let _ = writeln!(text, "    Cache mode:       {mode}{direct}\n");
    }
    Ok(text)
}

fn chardev(machine: &Machine) -> String {
    let all = machine.all_characters().into_iter();
    let lines = all.map(|(label, place)| format!("{label}: filename={place}"));
    lines.collect::<Vec<_>>().join(
        "
",
    )
}

fn stats(machine: &Machine) -> Result<String, Failure> {
    Ok(machine.control.stats()?.to_string())
}

/// Returns the name of a network card as a device.
pub(crate) fn nic_driver(model: NicModel) -> &'static str {
    match model {
        NicModel::Virtio(_) => "virtio-net-pci",
        NicModel::E1000 => "e1000",
        NicModel::Rtl8029 => "ne2k_pci",
        NicModel::Ne2000Isa { .. } => "ne2k_isa",
    }
}

fn memory_devices(machine: &Machine) -> Result<String, Failure> {
    let Some(info) = machine.control.extra_memory()? else { return Ok(String::new()) };
    let (name, status) = (extra_memory::name(info.id.as_deref()), info.status);
    Ok(format!(
        "Memory device [virtio-mem]: \"{name}\"\n  memaddr: {:#x}\n  requested-size: {}\n  size: {}\n  max-size: {}\n",
        status.start, status.requested, status.plugged, status.region
    ))
}

fn network(machine: &Machine) -> Result<String, Failure> {
    let description = machine.control.describe()?;
    let mut text = String::new();
    for card in &description.nics {
        let (name, nic) = (card.name(), &card.nic);
        let network = card.network.as_deref().unwrap_or("#net");
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{name}: index=0,type=nic,model={},macaddr={}\n \\ {network}",
            nic_driver(nic.model),
            nic.mac
        );
    }
    Ok(text)
}

fn mtree(machine: &Machine) -> Result<String, Failure> {
    let description = machine.control.describe()?;
    let mut text = String::from("address-space: memory\n");
    let mut part = |first: u64, end: u64, what: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {first:016x}-{:016x} {what}", end - 1);
    };
    for range in RamLayout::of(description.config.memory_bytes).ranges() {
        if !range.is_empty() {
            part(range.start, range.end, "ram");
        }
    }
    if let Some(info) = &description.extra_memory {
        let status = info.status;
        let what = format!("memory that comes and goes, {} MiB of it now", status.plugged >> 20);
        part(status.start, status.start + status.region, &what);
    }
    part(0xa_0000, 0xc_0000, "display memory");
    part(0xc_0000, 0x10_0000, "firmware and ROMs, or ram, as the host bridge says");
    for function in machine.control.pci_functions()? {
        for (bar, address) in memory_bars(&function.header) {
            part(
                address,
                address + 1,
                &format!("pci {:02x}.{} BAR {bar} from there", function.slot, function.function),
            );
        }
    }
    part(0xfec0_0000, 0xfec0_1000, "io-apic");
    part(0xfee0_0000, 0xfee0_1000, "local apic");
    Ok(text)
}

/// Returns the base addresses in memory that are set (PCI Local Bus Specification 2.1, 6.2.5.1).
fn memory_bars(header: &[u8; 64]) -> Vec<(usize, u64)> {
    let bars = header[0x10..0x28].chunks_exact(4).map(dword).enumerate();
    bars.filter(|(_, bar)| bar & 1 == 0 && bar & !0xf != 0)
        .map(|(index, bar)| (index, u64::from(bar & !0xf)))
        .collect()
}

fn dword(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// Returns the name of a class of cards (PCI Local Bus Specification 2.1, appendix D).
pub(crate) fn class_name(class: u16) -> &'static str {
    match class {
        0x0100 => "SCSI controller",
        0x0101 => "IDE controller",
        0x0180 => "Mass storage controller",
        0x0200 => "Ethernet controller",
        0x0300 => "VGA controller",
        0x0380 => "Display controller",
        0x0600 => "Host bridge",
        0x0601 => "ISA bridge",
        0x0604 => "PCI bridge",
        0x0680 => "Bridge",
        0x0700 => "Serial port",
        _ => "Device",
    }
}

fn pci(machine: &Machine) -> Result<String, Failure> {
    let mut text = String::new();
    for function in machine.control.pci_functions()? {
        let header = &function.header;
        let word = |offset: usize| u16::from_le_bytes([header[offset], header[offset + 1]]);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  Bus  0, device {:3}, function {}:\n    {}: PCI device {:04x}:{:04x}",
            function.slot,
            function.function,
            class_name(word(0x0a)),
            word(0),
            word(2)
        );
        if header[0x3d] != 0 {
            let pin = char::from(b'A' + (header[0x3d] - 1) % 4);
            let _ = writeln!(text, "      IRQ {}, pin {pin}", header[0x3c]);
        }
        for (index, bar) in header[0x10..0x28].chunks_exact(4).map(dword).enumerate() {
            let _ = match bar {
                0 => continue,
                bar if bar & 1 != 0 => writeln!(text, "      BAR{index}: I/O at {:#06x}", bar & !3),
                bar => writeln!(text, "      BAR{index}: 32 bit memory at {:#010x}", bar & !0xf),
            };
        }
    }
    Ok(text)
}

/// Lists the devices approximately: PCI devices by their classes, and the others of a PC.
fn qtree(machine: &Machine) -> Result<String, Failure> {
    let description = machine.control.describe()?;
    let mut text = String::from(
        "bus: main-system-bus\n  type System\n  dev: i440FX-pcihost\n    bus: pci.0\n      type PCI\n",
    );
    for function in machine.control.pci_functions()? {
        let class = u16::from_le_bytes([function.header[0x0a], function.header[0x0b]]);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "      dev: {}, addr = {:02x}.{}",
            class_name(class),
            function.slot,
            function.function
        );
    }
    for card in &description.nics {
        let (id, driver) = (card.id.as_deref().unwrap_or_default(), nic_driver(card.nic.model));
        let _ = writeln!(text, "      dev: {driver}, id \"{id}\", mac = {}", card.nic.mac);
    }
    for card in &description.serial {
        let id = card.id.as_deref().unwrap_or_default();
        let character = card.character.as_deref().unwrap_or_default();
        let _ = writeln!(text, "      dev: pci-serial, id \"{id}\", chardev = \"{character}\"");
    }
    text += "    bus: isa.0\n      type ISA\n";
    for device in ["i8042", "mc146818rtc", "isa-pit", "isa-pcspk", "isa-fdc"] {
        let _ = writeln!(text, "      dev: {device}");
    }
    for index in 0..description.config.serial_ports {
        let _ = writeln!(text, "      dev: isa-serial, index = {index}");
    }
    for drive in machine.control.drives()? {
        let id = drive.id.as_deref().unwrap_or_default();
        let _ = writeln!(
            text,
            "        dev: {}, id \"{id}\", unit = {}, drive = \"{}\"",
            drive.drive.device,
            drive.drive.unit,
            media::name(&drive)
        );
    }
    Ok(text)
}
