//! Options of the machine itself: its kind, its memory, its time, and its reaction to what the guest does.

use ring3_gdb::{BadPlace, Place};
use ring3_snapshot::moving;

use crate::args::{Engine, MemorySize, RepetitionArguments};
use crate::board::OnPanic;
use crate::rtc::RtcBase;
use crate::sandbox::Mode;
use crate::smbios::SmbiosProperties;
use crate::status::Status;

use super::properties::{switch, unknown};
use super::{Properties, Reason, Translation, drives, reason, set};

/// Properties of QEMU's `pc` that make no difference here.
const HARMLESS: [&str; 25] = [
    "memory-backend",
    "dump-guest-core",
    "mem-merge",
    "kernel-irqchip",
    "kernel_irqchip",
    "vmport",
    "smm",
    "nvdimm",
    "usb",
    "graphics",
    "pcspk-audiodev",
    "x-south-bridge",
    "i8042",
    "sata",
    "pit",
    "rtc",
    "phandle-start",
    "firmware",
    "suppress-vmdesc",
    "vmcoreinfo",
    "hmat",
    "max-ram-below-4g",
    "default-bus-bypass-iommu",
    "kvm_shadow_mem",
    "igd-passthru",
];

/// `-machine`.
pub(super) fn machine(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let properties = Properties::parse_either(value, Some("type"))?;
    // The first value, which is read as the type, may be a property without a value.
    properties.for_each(|key, value| match (key, value) {
        ("type", "pc" | "none" | "default") => Ok(()),
        ("type", name) if name.starts_with("pc-i440fx-") || name.starts_with("pc-1.") || name.starts_with("pc-0.") => Ok(()),
        ("type", name) if name == "q35" || name.starts_with("pc-q35-") => {
            all.is_q35 = true;
            all.warn(
                "the machine is a pc with the 440FX chipset: disks are on IDE, and there is no PCI Express",
            );
            Ok(())
        }
        ("type", "isapc") => reason("the machine is a pc with PCI: give -M pc"),
        ("type", "microvm") => reason("the machine is a pc: give -M pc, and virtio-blk-pci and virtio-net-pci"),
        ("type", _) => reason("the machine is a pc with the 440FX chipset: give -M pc"),
        ("accel", value) => accelerator(all, value),
        ("acpi", value) => {
            let is_on = value == "auto" || switch("acpi", value)?;
            acpi(all, is_on);
            Ok(())
        }
        ("hpet", value) => set(&mut all.run.board.hpet, switch(key, value)?),
        ("pflash0", id) => {
            drives::flash(all, id, 0);
            Ok(())
        }
        ("pflash1", id) => {
            drives::flash(all, id, 1);
            Ok(())
        }
        ("usb" | "nvdimm", "on") => {
            all.warn(&format!("there is no {key}"));
            Ok(())
        }
        (key, _) if HARMLESS.contains(&key) || key.starts_with("hmat") => Ok(()),
        (key, _) if key.starts_with("smp.") || key.starts_with("boot.") || key.starts_with("memory.") => Ok(()),
        _ => unknown(key, "type, accel, acpi and others without effect"),
    })
}

/// `-accel`, and the property of the machine: QEMU's name for execution by software, or ring3's names of
/// engines. Of several, separated by colons or in several options, the first available one counts.
pub(super) fn accelerator(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let names = value.split(',').next().unwrap_or_default();
    let names = names.strip_prefix("accel=").unwrap_or(names);
    let mut is_known = false;
    for name in names.split(':') {
        let engine = match name {
            "tcg" => Engine::Auto,
            "translator" => Engine::Translator,
            "interpreter" => Engine::Interpreter,
            "kvm" | "hax" | "hvf" | "whpx" | "nvmm" | "xen" | "mshv" | "nitro" | "qtest" => {
                is_known = true;
                continue;
            }
            _ => {
                return Err(format!(
                    "there is no accelerator {name}: give tcg, translator or interpreter"
                ));
            }
        };
        // The names before it are what the user preferred; this is the first that ring3 has.
        if !all.has_engine {
            all.run.engine = engine;
            all.has_engine = true;
        }
        return Ok(());
    }
    if !is_known {
        return reason("give tcg, translator or interpreter");
    }
    // Whether an available one follows is known only at the end.
    all.wants_host.get_or_insert_with(|| all.current.clone());
    Ok(())
}

/// `-no-acpi` and the property of the machine. The tables are always there, but systems can be told not to
/// use them.
pub(super) fn acpi(all: &mut Translation, is_on: bool) {
    if !is_on {
        all.warn("ACPI is part of the machine; Linux ignores it with acpi=off on its command line");
    }
}

/// `-smp`.
pub(super) fn processors(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut wanted = 1_u64;
    Properties::parse(value, Some("cpus")).for_each(|key, value| match key {
        "cpus" | "sockets" | "dies" | "clusters" | "cores" | "threads" | "maxcpus" | "modules"
        | "drawers" | "books" => {
            let number: u64 = value.parse().map_err(|_| format!("{key} must be a number"))?;
            if key != "maxcpus" {
                wanted = wanted.max(number);
            }
            Ok(())
        }
        _ => unknown(key, "cpus, maxcpus, sockets, dies, cores and threads"),
    })?;
    if wanted > 1 {
        all.warn("the machine has only one processor");
    }
    Ok(())
}

/// `-incoming`. The machine that comes brings its devices along; only its memory is compared.
pub(super) fn incoming(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let place = value.parse().map_err(|error: moving::BadPlace| error.to_string())?;
    set(&mut all.run.incoming, Some(place))
}

/// `-m`.
pub(super) fn memory(all: &mut Translation, value: &str) -> Result<(), Reason> {
    Properties::parse(value, Some("size")).for_each(|key, value| match key {
        "size" => {
            let size = value.trim_end_matches(['b', 'B']);
            let size = size.parse::<MemorySize>().or_else(|error| kib(size).ok_or(error));
            let size = size.map_err(|error| format!("{error}: give at most -m 32G"))?;
            set(&mut all.run.memory, size)
        }
        // Room for memory that would be added later.
        "slots" => Ok(()),
        "maxmem" => {
            all.has_maxmem = true;
            Ok(())
        }
        _ => unknown(key, "size, slots and maxmem"),
    })
}

/// Reads a size in KiB, as libvirt writes it.
fn kib(text: &str) -> Option<MemorySize> {
    let kib: u64 = text.strip_suffix(['k', 'K'])?.parse().ok()?;
    kib.is_multiple_of(1024).then(|| (kib / 1024).to_string().parse().ok())?
}

/// `-name`.
pub(super) fn name(all: &mut Translation, value: &str) -> Result<(), Reason> {
    Properties::parse(value, Some("guest")).for_each(|key, value| match key {
        "guest" => set(&mut all.run.name, Some(value.to_owned())),
        // Names for the host's tools.
        "process" | "debug-threads" => Ok(()),
        _ => unknown(key, "guest, process and debug-threads"),
    })
}

/// `-uuid`.
pub(super) fn uuid(all: &mut Translation, value: &str) -> Result<(), Reason> {
    all.run.board.smbios.push(SmbiosProperties::of_uuid(parse_uuid(value)?));
    Ok(())
}

/// `-smbios`.
pub(super) fn smbios(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse(value, None);
    // Processors, slots, connectors, memory and further devices, and structures as bytes.
    if let Some(kind @ ("4" | "8" | "9" | "17" | "41")) = properties.take("type").as_deref() {
        all.warn(&format!("structures of type {kind} have the machine's own values or none"));
        return Ok(());
    }
    if properties.take("file").is_some() {
        all.warn(
            "structures cannot be given as bytes: give their texts with type=0, 1, 2, 3 or 11",
        );
        return Ok(());
    }
    all.run.board.smbios.push(value.parse().map_err(|error| format!("{error}"))?);
    Ok(())
}

/// Returns the bytes of a UUID in the order of its digits.
pub(crate) fn parse_uuid(value: &str) -> Result<[u8; 16], Reason> {
    let groups: Vec<_> = value.split('-').map(str::len).collect();
    let digits: String = value.chars().filter(|digit| *digit != '-').collect();
    let wrong = || "a UUID looks like 550e8400-e29b-41d4-a716-446655440000".to_owned();
    let number = u128::from_str_radix(&digits, 16);
    if groups != [8, 4, 4, 4, 12] || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    Ok(number.map_err(|_| wrong())?.to_be_bytes())
}

/// `-boot`.
pub(super) fn boot(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let letters = |value: &str| match value.find(|letter| !('a'..='p').contains(&letter)) {
        Some(_) => reason("the letters are a, b, c, d and n"),
        // QEMU has letters for more disks and cards than firmware can boot from.
        None => Ok(value.chars().filter(|letter| "abcdn".contains(*letter)).collect()),
    };
    let mut splash = false;
    let boot = &mut all.run.drives.boot;
    Properties::parse(value, Some("order")).for_each(|key, value| match key {
        "order" => set(&mut boot.order, letters(value)?),
        "once" => set(&mut boot.once, letters(value)?),
        "menu" => set(&mut boot.menu, switch(key, value)?),
        // Firmware tries the first device first, and decides itself what to do if nothing starts.
        "strict" => switch(key, value).map(|_| ()),
        "reboot-timeout" => Ok(()),
        "splash" | "splash-time" => set(&mut splash, true),
        _ => unknown(key, "order, once, menu, strict, splash, splash-time and reboot-timeout"),
    })?;
    if splash {
        all.warn("the firmware shows no splash picture");
    }
    Ok(())
}

/// `-initrd`: one file, or the modules of a Multiboot kernel separated by commas, each with its arguments.
pub(super) fn initrd(all: &mut Translation, value: &str) -> Result<(), Reason> {
    if std::path::Path::new(value).exists() {
        return set(&mut all.run.initrd, vec![value.into()]);
    }
    let modules = value.replace(",,", "\0");
    let modules = modules.split(',').map(|module| module.replace('\0', ",").into());
    set(&mut all.run.initrd, modules.collect())
}

/// `-action`: the machine's reactions to the guest.
pub(super) fn action(all: &mut Translation, value: &str) -> Result<(), Reason> {
    Properties::parse(value, None).for_each(|key, value| match (key, value) {
        ("reboot", "shutdown") => set(&mut all.run.no_reboot, true),
        ("reboot", "reset") => set(&mut all.run.no_reboot, false),
        ("shutdown", "pause") => set(&mut all.run.no_shutdown, true),
        ("shutdown", "poweroff") => set(&mut all.run.no_shutdown, false),
        ("panic", action) => set(&mut all.on_panic, Some(panic_action(action)?)),
        ("watchdog", _) => Ok(()),
        _ => unknown(key, "reboot=reset|shutdown, shutdown=poweroff|pause, panic and watchdog"),
    })
}

/// What QEMU does when the guest says that its system has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PanicAction {
    None,
    Pause,
    Shutdown,
    ExitFailure,
}

fn panic_action(name: &str) -> Result<PanicAction, Reason> {
    Ok(match name {
        "none" => PanicAction::None,
        "pause" => PanicAction::Pause,
        "shutdown" => PanicAction::Shutdown,
        "exit-failure" => PanicAction::ExitFailure,
        _ => return reason("panic must be none, pause, shutdown or exit-failure"),
    })
}

/// `-device pvpanic`.
pub(super) fn pvpanic(
    all: &mut Translation,
    _: &str,
    properties: &mut Properties,
) -> Result<(), Reason> {
    properties.for_each(|key, value| match key {
        "ioport" if !matches!(value, "0x505" | "1285") => {
            reason("the port is 0x505: leave ioport out")
        }
        "ioport" | "events" | "id" => Ok(()),
        _ => unknown(key, "ioport and events"),
    })?;
    set(&mut all.has_pvpanic, true)
}

/// Decides what happens when the guest's system fails, which depends on several options.
pub(super) fn finish_panic(all: &mut Translation) {
    if !all.has_pvpanic {
        return;
    }
    let action = all.on_panic.unwrap_or(PanicAction::Shutdown);
    all.run.board.on_panic = Some(match action {
        PanicAction::None => OnPanic::Continue,
        PanicAction::Pause => OnPanic::Pause,
        PanicAction::Shutdown | PanicAction::ExitFailure => OnPanic::End,
    });
    let is_failure = action == PanicAction::ExitFailure;
    all.run.qemu.status_of_panic = Some(if is_failure { Status::HostError } else { Status::Ended });
}

/// `-overcommit`.
pub(super) fn overcommit(all: &mut Translation, value: &str) -> Result<(), Reason> {
    Properties::parse(value, None).for_each(|key, value| match key {
        "mem-lock" | "cpu-pm" => {
            if value != "on-fault" && switch(key, value)? {
                all.warn(&format!("{key} has no effect"));
            }
            Ok(())
        }
        _ => unknown(key, "mem-lock and cpu-pm"),
    })
}

/// `-run-with`.
pub(super) fn run_with(_: &mut Translation, value: &str) -> Result<(), Reason> {
    Properties::parse(value, None).for_each(|key, _| match key {
        "async-teardown" => Ok(()),
        _ => Err(format!("{key}: start ring3 itself with the intended rights")),
    })
}

/// `-sandbox`. QEMU leaves the host's calls alone without it; here it is the default, and `on` adds nothing, so that it
/// fails on no host.
pub(super) fn sandbox(all: &mut Translation, value: &str) -> Result<(), Reason> {
    Properties::parse(value, Some("enable")).for_each(|key, value| match key {
        "enable" => {
            let is_on = switch("enable", value)?;
            all.run.sandbox.mode = if is_on { Mode::Auto } else { Mode::Off };
            Ok(())
        }
        // These are denied in any case.
        "obsolete" | "elevateprivileges" | "spawn" | "resourcecontrol" => Ok(()),
        _ => Err(format!("there is no property {key}")),
    })
}

/// `-gdb`.
pub(super) fn gdb(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let (place, options) = value.split_once(',').unwrap_or((value, ""));
    let is_known = |option: &str| {
        let name = option.split('=').next();
        matches!(name, Some("" | "server" | "nowait" | "wait" | "nodelay"))
    };
    if let Some(option) = options.split(',').find(|option| !is_known(option)) {
        return Err(format!("there is no option {option} here"));
    }
    all.run.gdb = match place {
        "none" => None,
        place => Some(place.parse::<Place>().map_err(|error: BadPlace| error.to_string())?),
    };
    Ok(())
}

/// `-global`: a property of a device that every machine has.
pub(super) fn global(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut long = Properties::parse(value, None);
    let short = value.split_once('=').and_then(|(name, value)| {
        let (driver, property) = name.split_once('.')?;
        Some((driver.to_owned(), property.to_owned(), value.to_owned()))
    });
    let parts = match (long.take("driver"), long.take("property"), long.take("value")) {
        (Some(driver), Some(property), Some(value)) => Some((driver, property, value)),
        _ => short,
    };
    let Some((driver, property, value)) = parts else {
        return reason("give DRIVER.PROPERTY=VALUE");
    };
    match (driver.as_str(), property.as_str(), value.as_str()) {
        ("isa-debugcon", "iobase", "0x402" | "1026") => set(&mut all.debugcon_at_402, true),
        ("isa-fdc", "driveA" | "driveB", id) => {
            super::drives::floppy(all, id, u8::from(property == "driveB"));
            Ok(())
        }
        // Sleep states, which the ACPI tables do not offer, and how KVM treats lost ticks.
        ("PIIX4_PM" | "ICH9-LPC", "disable_s3" | "disable_s4", _)
        | ("kvm-pit" | "mc146818rtc", "lost_tick_policy", _)
        | ("VGA" | "qxl-vga" | "cirrus-vga", "vgamem_mb" | "vram_size", _)
        | ("kvm-apic" | "apic-common", ..) => Ok(()),
        _ => {
            all.warn("no device here has this property");
            Ok(())
        }
    }
}

/// `-rtc`.
pub(super) fn rtc(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut follows = None;
    Properties::parse(value, Some("base")).for_each(|key, value| match (key, value) {
        ("base", base) => {
            let base = base.parse::<RtcBase>().map_err(|error| error.to_string())?;
            set(&mut all.run.rtc, Some(base))
        }
        // The clock follows the host's, and no tick is lost.
        ("clock", "host") | ("driftfix", _) => Ok(()),
        ("clock", "vm" | "rt") => set(&mut follows, Some(())),
        ("clock", _) => reason("clock must be host"),
        _ => unknown(key, "base, clock and driftfix"),
    })?;
    if follows.is_some() {
        all.warn("the clock follows the host's clock, or with -icount the instructions executed");
    }
    Ok(())
}

/// `-icount`: virtual time by the instructions executed. The time of an instruction is fixed here.
pub(super) fn icount(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut repetition = RepetitionArguments { deterministic: true, ..Default::default() };
    let mut file = None;
    let mut records = false;
    let mut sleeps = true;
    Properties::parse(value, Some("shift")).for_each(|key, value| match (key, value) {
        ("shift", "auto") | ("sleep", "on") | ("align", "off") => Ok(()),
        ("shift", shift) => match shift.parse() {
            Ok(0..=10_u8) => Ok(()),
            _ => reason("shift must be auto or a number from 0 to 10"),
        },
        ("sleep", "off") => set(&mut sleeps, false),
        ("align", _) => reason("virtual time does not follow the host's: give align=off"),
        ("rr", "record") => set(&mut records, true),
        ("rr", "replay") => reason("\"ring3 run --replay FILE\" repeats a recording of ring3"),
        ("rr", _) => reason("give rr=record"),
        ("rrfile", path) => set(&mut file, Some(path.into())),
        _ => unknown(key, "shift, sleep, align, rr and rrfile"),
    })?;
    if !sleeps {
        all.warn("the host sleeps while the guest waits");
    }
    repetition.record = file;
    if records != repetition.record.is_some() {
        return reason("a recording needs both rr=record and rrfile=FILE");
    }
    set(&mut all.run.repetition, repetition)
}
