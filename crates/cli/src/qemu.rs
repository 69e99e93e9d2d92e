//! `ring3 qemu`: translates QEMU's command lines into the arguments of `ring3 run`.
//!
//! [`options`] has the table of known options (QEMU, "Invocation"). All others are refused, everything in a
//! command line at once, since a machine that silently lacks a part helps nobody.
//!
//! * [`options`]: the table, and what happens to each option;
//! * [`properties`]: lists like `file=a,format=raw`;
//! * [`machine`], [`models`]: the machine, its processor and its time;
//! * [`drives`]: drives, and block nodes;
//! * [`characters`]: serial ports, monitors and their back-ends;
//! * [`fd_sets`]: files that are open already;
//! * [`devices`]: the devices of `-device`;
//! * [`network`]: network cards;
//! * [`served`]: disks behind servers;
//! * [`readconfig`]: options in a file;
//! * [`settings`]: settings that `ring3 run` has no options for;
//! * [`daemon`], [`pid_file`]: a process in the background;
//! * [`help`]: `-help` and the other questions.

pub(crate) mod characters;
pub(crate) mod daemon;
mod devices;
mod drives;
mod extra_memory;
mod fd_sets;
mod help;
pub(crate) mod machine;
mod models;
mod network;
mod options;
pub(crate) mod pid_file;
pub(crate) mod properties;
mod readconfig;
mod served;
pub(crate) mod settings;
#[cfg(test)]
mod tests;

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use ring3_vm::Model;
use thiserror::Error;

use crate::args::{DebugTarget, RunArguments, Vga};
use crate::board::GenerationId;
use crate::data_directories::data_directories;
use crate::display::DisplayTarget;
use crate::drives::DriveProperties;
use crate::nics::NetworkProperties;
use crate::serial::SerialTarget;
use crate::status::Status;
use options::{Kind, OPTIONS};
use properties::Properties;

/// The reasons why an option is refused.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub(crate) enum QemuError {
    #[error("{0} is unknown; \"ring3 qemu -help\" lists QEMU's options that ring3 knows")]
    Unknown(String),
    #[error("{0} needs a value")]
    NoValue(String),
    #[error("{option} {value}: {reason}")]
    Value { option: String, value: String, reason: String },
    #[error("{option}: {reason}")]
    Impossible { option: String, reason: String },
}

/// All reasons why a command line is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QemuErrors(Vec<QemuError>);

impl Display for QemuErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(f);
        }
        write!(f, "{} options cannot be met:", self.0.len())?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

/// The reason why one option is refused.
type Reason = String;

/// The result of a command line.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// A machine, and warnings to print before it runs.
    Run(Box<RunArguments>, Vec<String>),
    /// A text to print.
    Text(String),
}

/// The beginning of the names of QEMU's programs; the rest is the architecture.
pub(crate) const PROGRAM: &str = "qemu-system-";

/// By which name of QEMU's programs the machine is started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Program {
    /// By none.
    #[default]
    Unnamed,
    /// `qemu-system-i386`.
    For32Bits,
    /// `qemu-system-x86_64`.
    For64Bits,
}

/// The meaning of the options read so far.
#[derive(Debug, Default)]
struct Translation {
    run: RunArguments,
    /// The option that is being read, for messages.
    current: String,
    warnings: Vec<String>,
    program: Program,
    is_q35: bool,
    /// Whether an available accelerator was named.
    has_engine: bool,
    /// The option that named an accelerator of the host's processor.
    wants_host: Option<String>,
    cpu: Option<Model>,
    display: Option<DisplayTarget>,
    vga: Option<Vga>,
    /// None stands for a missing port.
    serial: Vec<Option<SerialTarget>>,
    debugcon: Option<DebugTarget>,
    debugcon_at_402: bool,
    debugcon_character: Option<usize>,
    /// Whether an option concerned monitors for people.
    has_monitor_option: bool,
    no_graphic: bool,
    no_defaults: bool,
    /// The directories in which firmware is searched first.
    data: Vec<PathBuf>,
    /// The drives with if=none, by id. The devices that use them may come later.
    loose_drives: Vec<(String, DriveProperties)>,
    nodes: Vec<drives::Node>,
    disks: Vec<drives::Disk>,
    served_disks: Vec<served::ServedDisk>,
    /// The ids and sizes of memory backends.
    memory_backends: Vec<(String, u64)>,
    memory_device: Option<extra_memory::Device>,
    /// Whether there is to be room for more memory.
    has_maxmem: bool,
    /// The ids of passwords, including those that were refused.
    secret_ids: Vec<String>,
    /// The networks, by id. The cards that use them may come later.
    netdevs: Vec<(String, NetworkProperties)>,
    cards: Vec<network::Card>,
    hubs: Vec<network::HubPort>,
    /// The numbers of the sets of descriptors.
    fd_sets: Vec<u32>,
    /// Whether the guest can say that its system has failed, and what happens then.
    has_pvpanic: bool,
    on_panic: Option<machine::PanicAction>,
}

/// Runs `ring3 qemu` with these arguments; the first one may be the name of one of QEMU's programs.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let has_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    match translate(arguments.iter().map(String::as_str), has_terminal) {
        Err(errors) => {
            crate::complain(&errors.to_string());
            Status::WrongCommandLine.into()
        }
        Ok(Wanted::Text(text)) => {
            // A reader that closes standard output does not want the rest.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Ok(Wanted::Run(run, warnings)) => {
            if run.qemu.daemonize && !run.qemu.is_daemon {
                return daemon::start(arguments);
            }
            if run.qemu.is_daemon {
                daemon::leave_terminal();
            }
            for warning in warnings {
                crate::complain(&format!("warning: {warning}"));
            }
            match crate::start(&run) {
                // QEMU ends with success in this case.
                Ok(Status::Signal(_)) => Status::Ended.into(),
                Ok(status) => status.into(),
                Err(error) => {
                    crate::complain(&error);
                    Status::HostError.into()
                }
            }
        }
    }
}

/// Translates a command line: QEMU's options, with or without the name of its program before them. With
/// `has_terminal`, the screen can be shown in a terminal.
pub(crate) fn translate<'a>(
    arguments: impl IntoIterator<Item = &'a str>,
    has_terminal: bool,
) -> Result<Wanted, QemuErrors> {
    let mut all = Translation::default();
    // QEMU's machines have the device only if it is asked for.
    all.run.board.generation_id = GenerationId::Off;
    all.run.board.vmcoreinfo = false;
    let mut arguments: Vec<_> = arguments.into_iter().collect();
    if let Some(architecture) = arguments.first().and_then(|first| architecture(first)) {
        all.program = match architecture {
            "i386" => Program::For32Bits,
            "x86_64" => Program::For64Bits,
            _ => {
                let option = format!("{PROGRAM}{architecture}");
                let reason = "the machine is a PC: i386 or x86_64".to_owned();
                return Err(QemuErrors(vec![QemuError::Impossible { option, reason }]));
            }
        };
        arguments.remove(0);
    }
    if let Some(text) = help::asked_for(&arguments, all.program) {
        return Ok(Wanted::Text(text));
    }
    let mut errors = Vec::new();
    let arguments = fd_sets::replaced(&arguments);
    let mut arguments = arguments.iter().map(String::as_str).peekable();
    while let Some(argument) = arguments.next() {
        let Some(name) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else {
            // QEMU takes a file without an option for the first hard disk.
            all.run.drives.hda = Some(argument.into());
            continue;
        };
        let Some(option) = OPTIONS.iter().find(|option| option.name == name) else {
            errors.push(QemuError::Unknown(argument.to_owned()));
            // A following word that is no option is most likely its value.
            arguments.next_if(|next| !next.starts_with('-'));
            continue;
        };
        let mut value = "";
        if option.value.is_some() {
            let Some(next) = arguments.next() else {
                errors.push(QemuError::NoValue(argument.to_owned()));
                continue;
            };
            value = next;
        }
        format!("{argument} {value}").trim_end().clone_into(&mut all.current);
        let done = match option.kind {
            Kind::Taken(handler) => handler(&mut all, value),
            Kind::Ignored => Ok(()),
            Kind::Warned(text) => {
                all.warn(text);
                Ok(())
            }
            Kind::Missing(text) => reason(text),
        };
        if let Err(reason) = done {
            errors.push(refused(argument, value, reason));
        }
    }
    all.finish(has_terminal, errors).map(|(run, warnings)| Wanted::Run(Box::new(run), warnings))
}

/// Returns the architecture in the name of one of QEMU's programs.
pub(crate) fn architecture(program: &str) -> Option<&str> {
    program.rsplit('/').next()?.strip_prefix(PROGRAM)
}

fn refused(option: &str, value: &str, reason: Reason) -> QemuError {
    let (option, value) = (option.to_owned(), value.to_owned());
    if value.is_empty() {
        QemuError::Impossible { option, reason }
    } else {
        QemuError::Value { option, value, reason }
    }
}

impl Translation {
    /// Adds a warning about the option that is being read.
    fn warn(&mut self, text: &str) {
        let warning = format!("{}: {text}", self.current);
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Adds a warning about another option.
    fn warn_of(&mut self, option: &str, text: &str) {
        option.clone_into(&mut self.current);
        self.warn(text);
    }

    /// Makes the decisions that depend on several options, as QEMU does. `errors` has the errors of the
    /// single options.
    fn finish(
        mut self,
        has_terminal: bool,
        mut errors: Vec<QemuError>,
    ) -> Result<(RunArguments, Vec<String>), QemuErrors> {
        let mut impossible = |option: &str, reason: &str| {
            let (option, reason) = (option.to_owned(), reason.to_owned());
            errors.push(QemuError::Impossible { option, reason });
        };
        if self.run.incoming.is_some() {
            self.run.qemu.incoming_memory = Some(self.run.memory.bytes);
        }
        // References to something that was refused itself are not reported again.
        for (option, reason) in drives::finish(&mut self) {
            impossible(&option, &reason);
        }
        if let Err(reason) = served::finish(&mut self) {
            impossible("-chardev and -device vhost-user-blk-pci", &reason);
        }
        if let Err(reason) = extra_memory::finish(&mut self) {
            impossible("-device virtio-mem-pci", &reason);
        }
        for (option, reason) in network::finish(&mut self) {
            impossible(&option, &reason);
        }
        if self.run.kernel.is_none() && !(self.run.initrd.is_empty() && self.run.append.is_empty())
        {
            impossible("-initrd and -append", "these need a kernel; name one with -kernel");
        }
        if self.run.paused && self.run.gdb.is_none() && !characters::has_monitor(&self) {
            impossible("-S", "without -qmp, -monitor or -gdb nobody could resume the machine");
        }
        if let Some(debugcon) = self.debugcon.take() {
            if self.debugcon_at_402 {
                self.run.debugcon = debugcon;
            } else {
                impossible(
                    "-debugcon",
                    "the debug console is at port 402h; add -global isa-debugcon.iobase=0x402",
                );
            }
        }
        if self.program == Program::For64Bits && self.cpu.is_some_and(|cpu| !cpu.has_long_mode()) {
            let text = "the processor has no 64-bit mode: only 32-bit systems run; see -cpu qemu64";
            self.warn_of("qemu-system-x86_64", text);
        }
        if let Some(option) = self.wants_host.take_if(|_| !self.has_engine) {
            self.warn_of(
                &option,
                "ring3 executes the guest's instructions itself, without KVM or the like",
            );
        }
        machine::finish_panic(&mut self);
        self.choose_firmware();
        let run = &mut self.run;
        let default_model = if self.program == Program::For64Bits { "qemu64" } else { "qemu32" };
        let default = models::model(default_model, self.program).ok();
        run.cpu = self.cpu.or(default.map(|(model, _)| model));
        // The order in which QEMU tries them: hard disk, diskette, CD.
        if run.drives.boot.order.is_empty() {
            run.drives.boot.order.push_str("cad");
        }
        run.vga = self.vga.unwrap_or(if self.no_defaults { Vga::None } else { Vga::Std });
        for (option, reason) in characters::finish(&mut self, has_terminal) {
            errors.push(QemuError::Impossible { option, reason });
        }
        if errors.is_empty() { Ok((self.run, self.warnings)) } else { Err(QemuErrors(errors)) }
    }

    /// Searches firmware in the directories of `-L`. A name without a directory is also searched where
    /// firmware is installed.
    fn choose_firmware(&mut self) {
        let run = &mut self.run;
        let in_data = |name: &str| {
            let (home, installed) = data_directories();
            let names = [name];
            let places = ring3_vm::firmware::places(&names, home.as_deref(), &installed);
            let first = self.data.iter().map(|directory| directory.join(name));
            first.chain(places).find(|path| path.is_file())
        };
        run.bios = match run.bios.take() {
            Some(name) if !name.exists() && !name.to_string_lossy().contains('/') => {
                let found = in_data(&name.to_string_lossy());
                Some(found.unwrap_or(name))
            }
            None if !self.data.is_empty() && run.kernel.is_none() => ring3_vm::firmware::NAMES
                .iter()
                .flat_map(|name| self.data.iter().map(move |directory| directory.join(name)))
                .find(|path| path.is_file()),
            given => given,
        };
    }
}

#[expect(clippy::unnecessary_wraps, reason = "what handlers return")]
fn set<T>(place: &mut T, value: T) -> Result<(), Reason> {
    *place = value;
    Ok(())
}

fn reason<T>(text: &str) -> Result<T, Reason> {
    Err(text.to_owned())
}
