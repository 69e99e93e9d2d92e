//! `ring3 qemu`: a QEMU command line as the arguments of `ring3 run`.
//!
//! [`OPTIONS`] is the table of what is understood (QEMU, "Invocation"); all else is refused by its name,
//! since a machine that silently lacks what was asked for helps nobody. What would make no
//! difference here, such as `cache=`, is taken and has no effect.
//!
//! * [`properties`]: lists like `file=a,format=raw`;
//! * [`devices`]: drives, serial ports and the like, from such lists;
//! * [`network`]: network cards;
//! * [`served`]: disks behind servers.

mod devices;
mod network;
pub(crate) mod properties;
mod served;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::path::PathBuf;

use ring3_vm::Model;
use thiserror::Error;

use crate::args::{DebugTarget, QmpTarget, RunArguments, Vga};
use crate::display::DisplayTarget;
use crate::drives::{DriveProperties, Interface, VirtioProperties};
use crate::nics::NetworkProperties;
use crate::serial::SerialTarget;
use properties::Properties;

/// Why a command line is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum QemuError {
    #[error("{0} is not known; \"ring3 qemu -help\" lists the options of QEMU that are")]
    Unknown(String),
    #[error("{0} needs a value")]
    NoValue(String),
    #[error("{option} {value}: {reason}")]
    Value { option: String, value: String, reason: String },
    #[error("{option}: {reason}")]
    Impossible { option: String, reason: String },
}

/// Why one option is refused.
type Reason = String;

/// What is done with an option and its value, which is empty where it takes none.
type Handler = fn(&mut Translation, &str) -> Result<(), Reason>;

/// An option of QEMU: its name without the hyphen, what its value is called if it has one, and what it means.
struct QemuOption {
    name: &'static str,
    value: Option<&'static str>,
    handler: Handler,
}

const fn flag(name: &'static str, handler: Handler) -> QemuOption {
    QemuOption { name, value: None, handler }
}

const fn option(name: &'static str, value: &'static str, handler: Handler) -> QemuOption {
    QemuOption { name, value: Some(value), handler }
}

/// The options that are understood, some of them only to be refused with a reason.
const OPTIONS: &[QemuOption] = &[
    option("accel", "tcg|translator|interpreter", devices::accelerator),
    option("append", "TEXT", |all, value| set(&mut all.run.append, value.to_owned())),
    option("bios", "FILE", |all, value| set(&mut all.run.bios, Some(value.into()))),
    option("boot", "[order=LETTERS][,once=LETTERS][,menu=on]", devices::boot),
    option("cdrom", "FILE", |all, value| set(&mut all.run.drives.cdrom, Some(value.into()))),
    option("chardev", "socket,id=ID,path=SOCKET", served::chardev),
    option("cpu", "MODEL", |all, value| set(&mut all.cpu, Some(model(value)?))),
    flag("curses", |all, _| set(&mut all.display, Some(DisplayTarget::Terminal))),
    option("debugcon", "stdio|file:PATH", |all, value| set(&mut all.debugcon, Some(debug(value)?))),
    option(
        "device",
        "virtio-blk-pci,drive=ID|vhost-user-blk-pci,chardev=ID|virtio-net-pci|ne2k_pci|ne2k_isa,netdev=ID[,mac=ADDRESS][,romfile=FILE][,bootindex=N]|isa-debug-exit,iobase=PORT|pc-testdev|VGA",
        devices::device,
    ),
    option("display", "none|curses|vnc=WHERE", |all, value| {
        set(&mut all.display, Some(devices::display(value)?))
    }),
    option(
        "drive",
        "file=FILE[,if=ide|floppy|virtio|none][,index=N][,media=disk|cdrom]...",
        devices::drive,
    ),
    flag("enable-kvm", |_, _| no_kvm()),
    option("fda", "FILE", |all, value| set(&mut all.run.drives.fda, Some(value.into()))),
    option("fdb", "FILE", |all, value| set(&mut all.run.drives.fdb, Some(value.into()))),
    option("global", "isa-debugcon.iobase=0x402", |all, value| match value {
        "isa-debugcon.iobase=0x402" => set(&mut all.debugcon_at_402, true),
        _ => reason("only isa-debugcon.iobase=0x402 is known"),
    }),
    option("fw_cfg", "[name=]NAME,file=FILE|string=TEXT", |all, value| {
        all.run.board.fw_cfg.push(value.parse().map_err(|error| format!("{error}"))?);
        Ok(())
    }),
    option("hda", "FILE", |all, value| set(&mut all.run.drives.hda, Some(value.into()))),
    option("hdb", "FILE", |all, value| set(&mut all.run.drives.hdb, Some(value.into()))),
    option("hdc", "FILE", |all, value| set(&mut all.run.drives.hdc, Some(value.into()))),
    option("hdd", "FILE", |all, value| set(&mut all.run.drives.hdd, Some(value.into()))),
    option("icount", "shift=auto|N[,rr=record,rrfile=FILE]", devices::icount),
    option("initrd", "FILE", |all, value| set(&mut all.run.initrd, vec![value.into()])),
    option("kernel", "FILE", |all, value| set(&mut all.run.kernel, Some(value.into()))),
    option("m", "SIZE", devices::memory),
    option("M", "pc", devices::machine),
    option("machine", "pc", devices::machine),
    option("monitor", "none", |_, value| match value {
        "none" | "null" => Ok(()),
        _ => reason("there is no monitor; tools drive the machine by -qmp"),
    }),
    option("name", "TEXT", devices::name),
    option("net", "none", network::net),
    option("netdev", "user|stream|dgram|socket|tap,id=ID[,…]", network::netdev),
    option(
        "nic",
        "user|stream|dgram|socket|tap|none[,model=virtio|ne2k_pci|ne2k_isa][,mac=ADDRESS][,…]",
        network::nic,
    ),
    flag("no-acpi", |_, _| {
        reason("ACPI is part of the machine; give the kernel acpi=off with -append")
    }),
    flag("no-hpet", |all, _| set(&mut all.run.board.hpet, false)),
    flag("no-reboot", |all, _| set(&mut all.run.no_reboot, true)),
    flag("no-shutdown", |all, _| set(&mut all.run.no_shutdown, true)),
    flag("nodefaults", |all, _| set(&mut all.no_defaults, true)),
    flag("nographic", |all, _| set(&mut all.no_graphic, true)),
    option("object", "memory-backend-memfd,id=ID,size=SIZE,share=on", |_, value| {
        served::object(value)
    }),
    option("parallel", "none", |_, value| match value {
        "none" | "null" => Ok(()),
        _ => reason("there is no parallel port"),
    }),
    option("qmp", "unix:PATH,server=on,wait=off|stdio", |all, value| {
        set(&mut all.run.qmp, Some(devices::qmp(value)?))
    }),
    option("rtc", "base=utc|localtime|DATE", devices::rtc),
    flag("S", |all, _| set(&mut all.run.paused, true)),
    option("serial", "stdio|null|none|file:PATH|pty|unix:PATH,server=on,wait=off", |all, value| {
        all.serial.push(devices::serial(value)?);
        Ok(())
    }),
    option("smp", "1", |_, value| devices::processors(value)),
    flag("snapshot", |all, _| set(&mut all.run.drives.snapshot, true)),
    option("vga", "std|none", |all, value| match value {
        "std" => set(&mut all.vga, Some(Vga::Std)),
        "none" => set(&mut all.vga, Some(Vga::None)),
        _ => reason("the display adapter is std, or there is none"),
    }),
    option("vnc", "WHERE", |all, value| set(&mut all.display, Some(devices::vnc(value)?))),
];

/// Processor models of QEMU, and what is like them here. Those of 64 bits have no 64-bit mode here.
const MODELS: &[(&str, Model)] = &[
    ("486", Model::I486),
    ("pentium", Model::Pentium),
    ("pentium2", Model::Pentium3),
    ("pentium3", Model::Pentium3),
    ("qemu32", Model::Pentium4),
    ("kvm32", Model::Pentium4),
    ("coreduo", Model::Pentium4),
    ("n270", Model::Max),
    ("qemu64", Model::Max),
    ("kvm64", Model::Max),
    ("core2duo", Model::Max),
    ("Nehalem", Model::Max),
    ("host", Model::Max),
    ("max", Model::Max),
];

/// The name that QEMU's programs begin with; the rest is the architecture.
const PROGRAM: &str = "qemu-system-";

/// What the options have said so far.
#[derive(Debug, Default)]
struct Translation {
    run: RunArguments,
    cpu: Option<Model>,
    display: Option<DisplayTarget>,
    vga: Option<Vga>,
    /// `none` where there is no port.
    serial: Vec<Option<SerialTarget>>,
    debugcon: Option<DebugTarget>,
    debugcon_at_402: bool,
    no_graphic: bool,
    no_defaults: bool,
    /// Drives with if=none, by their id, and the disks that are to have them.
    loose_drives: Vec<(String, DriveProperties)>,
    virtio_disks: Vec<(String, VirtioProperties)>,
    /// Sockets of servers by their id, and the disks that they are to have.
    chardevs: Vec<(String, PathBuf)>,
    served_disks: Vec<served::ServedDisk>,
    /// What is to be behind network cards, by its id, and the cards that are to have it.
    netdevs: Vec<(String, NetworkProperties)>,
    cards: Vec<network::Card>,
}

/// Translates a command line: QEMU's options, with or without the name of its program before them. With `has_terminal` there is one to
/// show the screen in.
pub(crate) fn translate<'a>(
    arguments: impl IntoIterator<Item = &'a str>,
    has_terminal: bool,
) -> Result<RunArguments, QemuError> {
    let mut all = Translation::default();
    let mut arguments = arguments.into_iter().peekable();
    let architecture = arguments
        .peek()
        .and_then(|first| first.rsplit('/').next()?.strip_prefix(PROGRAM))
        .map(str::to_owned);
    if let Some(architecture) = &architecture {
        arguments.next();
        if !["i386", "x86_64"].contains(&architecture.as_str()) {
            let reason = "the machine is a PC: i386".to_owned();
            return Err(QemuError::Impossible {
                option: format!("{PROGRAM}{architecture}"),
                reason,
            });
        }
    }
    while let Some(argument) = arguments.next() {
        let Some(name) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else {
            // QEMU takes a file alone for the first hard disk.
            all.run.drives.hda = Some(argument.into());
            continue;
        };
        let known = OPTIONS.iter().find(|option| option.name == name);
        let option = known.ok_or_else(|| QemuError::Unknown(argument.to_owned()))?;
        let value = match option.value {
            None => "",
            Some(_) => arguments.next().ok_or_else(|| QemuError::NoValue(argument.to_owned()))?,
        };
        (option.handler)(&mut all, value).map_err(|reason| {
            let (option, value) = (argument.to_owned(), value.to_owned());
            if value.is_empty() {
                QemuError::Impossible { option, reason }
            } else {
                QemuError::Value { option, value, reason }
            }
        })?;
    }
    let default_model = match architecture.as_deref() {
        Some("x86_64") => "qemu64",
        _ => "qemu32",
    };
    all.finish(default_model, has_terminal)
}

impl Translation {
    /// Decides what depends on several options, as QEMU does.
    fn finish(
        mut self,
        default_model: &str,
        has_terminal: bool,
    ) -> Result<RunArguments, QemuError> {
        let impossible = |option: &str, reason: &str| {
            Err(QemuError::Impossible { option: option.to_owned(), reason: reason.to_owned() })
        };
        for (id, disk) in std::mem::take(&mut self.virtio_disks) {
            let is_it = |(name, _): &(String, DriveProperties)| *name == id;
            let Some(index) = self.loose_drives.iter().position(is_it) else {
                return impossible(
                    "-device virtio-blk-pci",
                    "there is no such drive: give -drive if=none,id=ID,file=FILE once for each",
                );
            };
            let (_, drive) = self.loose_drives.remove(index);
            let drive = DriveProperties { interface: Interface::Virtio, virtio: disk, ..drive };
            if let Err(error) = drive.check() {
                return impossible("-device virtio-blk-pci", &error.to_string());
            }
            self.run.drives.drive.push(drive);
        }
        if let Err(reason) = served::finish(&mut self) {
            return impossible("-chardev and -device vhost-user-blk-pci", &reason);
        }
        if let Err(reason) = network::finish(&mut self) {
            return impossible("-netdev", &reason);
        }
        let run = &mut self.run;
        if run.kernel.is_none() && !(run.initrd.is_empty() && run.append.is_empty()) {
            return impossible(
                "-initrd and -append",
                "they are for a kernel; name one with -kernel",
            );
        }
        if run.paused && run.qmp.is_none() {
            return impossible("-S", "without -qmp nobody could let the machine go on");
        }
        if let Some(debugcon) = self.debugcon {
            if !self.debugcon_at_402 {
                return impossible(
                    "-debugcon",
                    "the debug console is at port 402h; add -global isa-debugcon.iobase=0x402",
                );
            }
            run.debugcon = debugcon;
        }
        if let Some(model) = self.cpu {
            run.cpu = model;
        } else if let Ok(model) = model(default_model) {
            run.cpu = model;
        }
        // The order in which QEMU tries them: hard disk, diskette, CD.
        if run.drives.boot.order.is_empty() {
            run.drives.boot.order.push_str("cad");
        }
        run.vga = self.vga.unwrap_or(if self.no_defaults { Vga::None } else { Vga::Std });
        if self.serial.is_empty() && !self.no_defaults {
            // On QEMU's window otherwise, which there is not.
            let target = if self.no_graphic { SerialTarget::Stdio } else { SerialTarget::Null };
            self.serial.push(Some(target));
        }
        run.serial = match self.serial.iter().rposition(Option::is_some) {
            None => vec![SerialTarget::None],
            Some(last) => {
                let ports = self.serial.into_iter().take(last + 1);
                ports.map(|target| target.unwrap_or(SerialTarget::Null)).collect()
            }
        };
        let stdio_is_taken = run.serial.contains(&SerialTarget::Stdio)
            || run.debugcon == DebugTarget::Stdio
            || run.qmp == Some(QmpTarget::Stdio);
        run.display = match self.display {
            Some(display) => display,
            // Where QEMU would open a window.
            None if has_terminal && !stdio_is_taken && !self.no_graphic && run.vga == Vga::Std => {
                DisplayTarget::Terminal
            }
            None => DisplayTarget::None,
        };
        Ok(self.run)
    }
}

/// What `ring3 qemu -help` shows.
pub(crate) fn help() -> String {
    let mut text = "\
Usage: ring3 qemu [qemu-system-i386] [OPTION]... [DISK]

Runs the machine of a QEMU command line as \"ring3 run\" does. Known are:

"
    .to_owned();
    for option in OPTIONS {
        let value = option.value.unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", format!("  -{} {value}", option.name).trim_end());
    }
    let models: Vec<_> = MODELS.iter().map(|(name, _)| *name).collect();
    let _ = write!(text, "\nProcessor models: {}.\n", models.join(", "));
    text
}

/// The model here that is like QEMU's `name`.
fn model(name: &str) -> Result<Model, Reason> {
    if name.contains(',') {
        return reason("single features cannot be chosen; give a model alone");
    }
    let found = MODELS.iter().find(|(known, _)| *known == name);
    found.map(|(_, model)| *model).ok_or_else(|| {
        let known: Vec<_> = MODELS.iter().map(|(name, _)| *name).collect();
        format!("there are the models {}", known.join(", "))
    })
}

fn debug(value: &str) -> Result<DebugTarget, Reason> {
    match value.parse() {
        Ok(DebugTarget::Log) | Err(_) => reason("give stdio or file:PATH"),
        Ok(target) => Ok(target),
    }
}

fn no_kvm() -> Result<(), Reason> {
    reason("there is no KVM: ring3 executes the guest's instructions itself; leave it out")
}

/// Adds a drive.
fn add_drive(all: &mut Translation, drive: DriveProperties) {
    all.run.drives.drive.push(drive);
}

#[expect(clippy::unnecessary_wraps, reason = "what handlers return")]
fn set<T>(place: &mut T, value: T) -> Result<(), Reason> {
    *place = value;
    Ok(())
}

fn reason<T>(text: &str) -> Result<T, Reason> {
    Err(text.to_owned())
}
