//! The command line.

use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{ArgGroup, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use ring3_bench::BenchArguments;
use ring3_core::memory::RAM_MAX;
use ring3_devices::virtio::memory::ExtraMemoryModel;
use ring3_display::escape;
use ring3_gdb::Place;
use ring3_snapshot::moving::Place as MovingPlace;
use ring3_vm::control::CPU_PERCENT_MAX;
use ring3_vm::{EngineChoice, Model};
use thiserror::Error;

use crate::board::BoardArguments;
use crate::capture::CaptureArguments;
use crate::console::ConsoleArguments;
use crate::diff_log::DiffLogArguments;
use crate::display::DisplayTarget;
use crate::doctor::DoctorArguments;
use crate::drives::DriveArguments;
use crate::dump::DumpArguments;
use crate::img::ImgArguments;
use crate::inspect::InspectArguments;
use crate::last::LastProperties;
use crate::log::LogFilter;
use crate::nat::NatArguments;
use crate::netmodel::NetmodelArguments;
use crate::nics::{NICS_MAX, NicArguments};
use crate::observe::ObserveArguments;
use crate::qemu::settings::ExtraMemory;
use crate::qemu::settings::QemuSettings;
use crate::rtc::RtcBase;
use crate::sandbox::SandboxProperties;
use crate::serial::cards::SerialCardTarget;
use crate::serial::{self, SerialTarget};
use crate::shipped::{CompletionsArguments, ManArguments};
use crate::snapshot::SnapshotArguments;
use crate::starter::StarterArguments;
use crate::supervisor::SupervisorArguments;
use crate::supervisor::ctl::CtlArguments;
use crate::switch::SwitchArguments;
use crate::top::TopArguments;
use crate::trace::TraceArguments;
use crate::vblock::VblockArguments;

/// Runs PC operating systems in ordinary unprivileged processes
#[derive(Debug, Parser)]
#[command(name = "ring3", version = env!("RING3_VERSION"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a machine until it is switched off
    Run(Box<RunArguments>),

    /// Measure whole systems, beside other emulators that are installed
    Bench(BenchArguments),

    /// Create, convert, check and change disk images, with the options of qemu-img
    #[command(version)]
    Img(ImgArguments),

    /// Serve disk images to machines (vhost-user-blk) and other programs (NBD), with separate rights for each
    Vblock(VblockArguments),

    /// Run a NAT, a network for machines that needs no rights on the host; "ring3 run --nic user" starts one
    Nat(NatArguments),

    /// Start a NAT or a switch whenever the machine at the other end of standard input asks for it
    #[command(hide = true)]
    Starter(StarterArguments),

    /// Start machines and servers, watch them, and replace those that die or hang
    Supervisor(SupervisorArguments),

    /// Send a command to the supervisor
    Ctl(CtlArguments),

    /// Show the consoles of the supervisor's machines in this terminal or in browsers, and type at them
    Console(ConsoleArguments),

    /// Show what the supervisor's machines and servers use of the host, and start and end them
    Top(TopArguments),

    /// Run a network switch between machines; "ring3 run --nic switch" starts one
    Switch(SwitchArguments),

    /// Predict the performance of a network between machines from its design and the host's costs
    Netmodel(NetmodelArguments),

    /// Save running machines in files, and show, check and delete such files; "ring3 img snapshot" is for disk
    /// images alone
    Snapshot(SnapshotArguments),

    /// Write the memory and the registers of a running machine into an ELF core, which gdb and crash open
    Dump(DumpArguments),

    /// Show what is in a running machine: processor, devices with all registers, queues, timers and drives
    Inspect(InspectArguments),

    /// Show packets as text: those that the cards of a running machine send and receive, or those in a file
    Capture(CaptureArguments),

    /// Show where two event logs begin to differ; the exit status is 5 if they do
    DiffLog(DiffLogArguments),

    /// Report what this host permits, and which engine it can run
    Doctor(DoctorArguments),

    /// Print the script by which a shell completes ring3's command lines
    Completions(CompletionsArguments),

    /// Write the manual pages of ring3 and its commands to a directory
    Man(ManArguments),

    /// Run a machine, as "ring3 run" does, from QEMU's command line; "ring3 qemu -help" lists the options it
    /// knows
    #[command(disable_help_flag = true)]
    Qemu {
        /// QEMU's options, with or without QEMU's program name before them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
        arguments: Vec<String>,
    },
}

/// Returns the text that `ring3 run --help` shows below the options.
fn run_help() -> String {
    let keys = escape::HELP;
    format!(
        "\
Examples:
  ring3 run
  ring3 run disk.img
  ring3 run disc.iso --hda disk.img -m 512M --display terminal
  ring3 run --kernel vmlinuz --initrd initramfs.cpio.gz --append console=ttyS0 -m 256M
  ring3 run --debugcon stdio

Keys, when standard input is a terminal and the serial port is on stdio:
{keys}From a pipe or a file every byte goes to the guest unchanged; the end of the
input does not end the run.

Environment:
  RING3_LOG      which messages to log: error, warn (the default), info, debug
                 or trace; also by part: ring3_vm=debug, or ring3::firmware=debug
                 for the messages of the firmware

Exit status:
  0  the guest has switched the machine off, or reset it under --no-reboot, or
     Ctrl-A x was pressed
  1  an error on the host: a file cannot be read or written, is not a kernel, ...
  2  the command line is wrong, or gives the machine nothing to boot
  3  the processor has stopped (a triple fault with --no-reboot), or the guest's
     system has failed (a panic with --on-panic end); a report is on standard
     error
  4  nothing will ever happen again, and nobody can act on the machine
     (no terminal, no display and no tool): the guest has halted with
     interrupts disabled, or the firmware has found nothing to boot
  5  with --verify: the engines differ; a report is on standard error
  odd, with --debug-exit: twice the number that the guest wrote, plus 1; for 1, 3
     and 5, a line on standard error says that the guest chose them

SIGTERM, SIGINT and SIGHUP end the machine in good order, and then the program
by that signal."
    )
}

/// The options of `ring3 run`.
#[derive(Debug, Args)]
#[command(after_help = run_help())]
#[command(group(ArgGroup::new("driver").args(["qmp", "gdb"]).multiple(true)))]
pub(crate) struct RunArguments {
    /// Files to boot: disks, discs, diskettes, or a kernel and its initial RAM disk. ring3 recognizes each by
    /// its contents; options such as --hda say it instead, and how the file is used
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// The kernel to start without firmware: a Linux bzImage or vmlinux, or a kernel with a header of Multiboot or Multiboot2. Firmware
    /// starts kernels that begin in real mode (old kernels, zImages, memdisk), and with --bios any Linux
    /// kernel. Without a kernel, firmware boots from the drives
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: Option<PathBuf>,

    /// Boot Tern, a small system that is part of ring3, whatever drives and cards the machine has. Without
    /// anything else to boot, "ring3 run" does this by itself
    #[arg(long, conflicts_with_all = ["kernel", "initrd", "bios"])]
    pub(crate) tern: bool,

    /// The kernel's initial RAM disk, or a module of a Multiboot kernel; may be given several times
    #[arg(long, value_name = "FILE")]
    pub(crate) initrd: Vec<PathBuf>,

    /// The kernel's command line
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) append: String,

    /// The firmware: SeaBIOS or another one for PCs; by default the installed SeaBIOS
    #[arg(long, value_name = "FILE")]
    pub(crate) bios: Option<PathBuf>,

    /// Continue the machine in this file, which "ring3 snapshot save" or QMP has made, with its drives. Its
    /// disks return to their state at that moment, unless --snapshot is given, too; its networks, serial
    /// ports and screen are those of this command line
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["files", "kernel", "tern", "initrd", "append", "bios", "flash", "no_reboot", "no_shutdown", "cpu", "memory", "max_memory", "hda", "hdb",
        "hdc", "hdd", "cdrom", "fda", "fdb", "drive", "boot", "vga", "rtc", "seed", "deterministic", "verify", "record",
        "replay", "debug_exit", "hpet", "balloon", "on_panic", "fw_cfg", "smbios", "test_device", "guest_tools", "generation_id", "vmcoreinfo"])]
    pub(crate) restore: Option<PathBuf>,

    /// Wait for a machine that runs in another process and moves here ("migrate", by QMP): at unix:PATH,
    /// tcp:PORT or tcp:HOST:PORT of this host, or in file:PATH. Its disks are handed over; its networks, serial
    /// ports and screen are those of this command line
    #[arg(long, value_name = "WHERE")]
    #[arg(conflicts_with_all = ["files", "kernel", "tern", "initrd", "append", "bios", "flash", "restore", "no_reboot", "no_shutdown", "cpu", "memory", "max_memory", "hda",
        "hdb", "hdc", "hdd", "cdrom", "fda", "fdb", "drive", "snapshot", "boot", "vga", "rtc", "seed", "deterministic", "verify",
        "record", "replay", "debug_exit", "hpet", "balloon", "fw_cfg", "smbios", "test_device", "guest_tools", "generation_id", "vmcoreinfo"])]
    pub(crate) incoming: Option<MovingPlace>,

    /// With --restore: continue as a machine of its own, beside others from the same file: its network cards
    /// get other addresses, which drivers read when they start, its next start another random seed, and the
    /// guest learns by the generation ID that it must take new random numbers
    #[arg(long, requires = "restore")]
    pub(crate) new_identity: bool,

    /// End the run when the guest resets the machine, or at a triple fault
    #[arg(long)]
    pub(crate) no_reboot: bool,

    /// When the guest switches the machine off, keep it standing still until a tool resets or ends it
    #[arg(long)]
    pub(crate) no_shutdown: bool,

    /// The processor: 486, pentium, pentium3, pentium4, max with every feature of 32-bit processors that ring3
    /// has, qemu64 with long mode, x86-64-v2 with XSAVE too, or x86-64-v3 with AVX2. Without this it is x86-64-v2, or
    /// max for a kernel of 32 bits
    #[arg(long, value_name = "MODEL")]
    pub(crate) cpu: Option<Model>,

    /// The machine's memory: 512M, 2G, or a number of MiB, from 1M to 32G
    #[arg(short, long, value_name = "SIZE", default_value = "128M")]
    pub(crate) memory: MemorySize,

    /// How much memory the machine may come to have while it runs, in pieces of 128M beyond --memory: "ring3 ctl memory", or
    /// the memory device of QMP, gives it to the guest and takes it back. The guest must be a 64-bit system with a driver
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_memory: Option<MemorySize>,

    /// Take the machine's memory from the file system of this directory, a tmpfs for example, and not from the host's
    /// memory at large
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) memory_path: Option<PathBuf>,

    /// The most processor time of the host that the machine uses, in hundredths of the time of one processor
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=i64::from(CPU_PERCENT_MAX)))]
    pub(crate) cpu_limit: Option<u32>,

    #[command(flatten)]
    pub(crate) drives: DriveArguments,

    #[command(flatten)]
    pub(crate) nics: NicArguments,

    #[command(flatten)]
    pub(crate) board: BoardArguments,

    #[command(flatten)]
    pub(crate) observed: ObserveArguments,

    #[command(flatten)]
    pub(crate) trace: TraceArguments,

    /// The target of a serial port: stdio, null, none (no port at all), file:PATH for output only, unix:PATH
    /// (a socket to create, for one client after another), or pty (a pseudoterminal, whose name is shown).
    /// Given up to four times, for COM1 to COM4; by default COM1 uses stdio
    #[arg(long, value_name = "WHERE")]
    pub(crate) serial: Vec<SerialTarget>,

    /// The target of a serial card on PCI, a 16550A: null, file:PATH, unix:PATH or pty, as of --serial. Given up to twice
    #[arg(long, value_name = "WHERE")]
    pub(crate) serial_card: Vec<SerialCardTarget>,

    /// Where the firmware's messages (port 402h) go: log, stdio, or file:PATH
    #[arg(long, value_name = "WHERE", default_value = "log")]
    pub(crate) debugcon: DebugTarget,

    /// Where the screen is shown: none, terminal (this one; the serial port then gets no input), or vnc:WHERE
    /// with unix:PATH or :N
    #[arg(long, value_name = "WHERE", default_value = "none")]
    pub(crate) display: DisplayTarget,

    /// Let tools drive the machine by the QEMU Machine Protocol: at unix:PATH, a socket to create, or by
    /// stdio
    #[arg(long, value_name = "WHERE")]
    pub(crate) qmp: Option<QmpTarget>,

    /// Let GDB debug the guest, by its "target remote": at unix:PATH, a socket to create, tcp:HOST:PORT or
    /// tcp::PORT on this host, or by stdio
    #[arg(long, value_name = "WHERE")]
    pub(crate) gdb: Option<Place>,

    /// Wait before the first instruction until a tool sends "cont", or a debugger "continue"
    #[arg(long, requires = "driver")]
    pub(crate) paused: bool,

    /// The display adapter: std, or none
    #[arg(long, value_name = "ADAPTER", default_value = "std")]
    pub(crate) vga: Vga,

    /// The machine's name, as tools are told
    #[arg(long, value_name = "TEXT")]
    pub(crate) name: Option<String>,

    /// The time of the machine's clock at power-on: base=utc (the default), base=localtime, or base=DATE,
    /// such as 2024-12-31T23:59:59
    #[arg(long, value_name = "BASE")]
    pub(crate) rtc: Option<RtcBase>,

    /// The random seed that a Linux kernel gets with --kernel; by default a new one each time
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) repetition: RepetitionArguments,

    /// The engine, which executes the guest's instructions
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub(crate) engine: Engine,

    /// Add a port by which the guest ends the run with a status of its choice: writing V gives 2V + 1
    #[arg(long, value_name = "PORT", value_parser = port)]
    pub(crate) debug_exit: Option<u16>,

    /// The messages to log: error, warn, info, debug, trace or off, also by part, as in warn,ring3_vm=debug.
    /// Overrides RING3_LOG, which takes the same words
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<LogFilter>,

    /// Write the log to this file, which is emptied first, instead of to standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,

    /// Whether the machine's process gives up, before the guest's first instruction, all rights that it does not need: on,
    /// off, or auto (as far as the host allows it). Clients of --qmp and --gdb may name any of this user's files, unless
    /// ,files=DIRECTORY says where they may; it may be given several times
    #[arg(
        long,
        value_name = "MODE[,files=DIRECTORY]",
        default_value = "auto",
        hide_default_value = true
    )]
    pub(crate) sandbox: SandboxProperties,

    /// Print counters to standard error when the run has ended
    #[arg(long)]
    pub(crate) stats: bool,

    /// The settings that only `ring3 qemu` can make.
    #[arg(skip)]
    pub(crate) qemu: QemuSettings,
}

/// The options for runs that are repeated and compared.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Repetition")]
pub(crate) struct RepetitionArguments {
    /// Make time a function of the instructions that the guest has executed, start the clock at 2000-01-01
    /// and use seed 0 (unless --rtc or --seed says otherwise), so that the same inputs lead to the same run
    #[arg(long)]
    pub(crate) deterministic: bool,

    /// Run the translator and the interpreter in lock-step, deterministically or from a recording, and report
    /// the first instruction that they execute differently
    #[arg(long, conflicts_with = "engine")]
    pub(crate) verify: bool,

    /// Write the machine, and all its inputs from outside, to this file
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub(crate) record: Option<PathBuf>,

    /// Keep the last seconds of the run in memory, and write them as a recording when the guest's system fails
    /// (a panic or a triple fault), at signal SIGUSR2, or when a tool asks by QMP: a time as 30s, 2m or 1h, and
    /// ,file=FILE (by default ring3-PID.recording) and ,inputs=SIZE for the most inputs to keep (256M)
    #[arg(long, value_name = "TIME[,PROPERTIES]", conflicts_with_all = ["record", "replay", "verify"])]
    pub(crate) record_last: Option<LastProperties>,

    /// Repeat the run that this file has recorded, with its machine and inputs
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["files", "kernel", "tern", "initrd", "append", "bios", "flash", "no_reboot", "no_shutdown", "cpu", "memory", "max_memory", "hda", "hdb",
        "hdc", "hdd", "cdrom", "fda", "fdb", "drive", "nic", "snapshot", "boot", "display", "qmp", "vga", "rtc", "seed",
        "deterministic", "debug_exit", "hpet", "balloon", "channel", "on_panic", "fw_cfg", "smbios", "test_device", "guest_tools"])]
    pub(crate) replay: Option<PathBuf>,

    /// With --replay: stop after this number of instructions, and print the registers; with --gdb, let the
    /// debugger begin there instead of at the first instruction
    #[arg(long, value_name = "INSTRUCTION", requires = "replay", conflicts_with = "verify")]
    pub(crate) to: Option<u64>,

    /// With --replay and --gdb: the number of instructions between two checkpoints, to which the machine
    /// returns when the debugger goes back
    #[arg(long, value_name = "COUNT", requires_all = ["replay", "gdb"])]
    pub(crate) checkpoints: Option<NonZero<u64>>,

    /// Write a line to this file for each input, interrupt and reset, with the number of instructions
    /// executed before it
    #[arg(long, value_name = "FILE")]
    pub(crate) event_log: Option<PathBuf>,

    /// The number of instructions between two lines of the event log with hashes of the whole machine; 0 for
    /// no such lines
    #[arg(long, value_name = "COUNT", default_value_t = 100_000_000, requires = "event_log")]
    pub(crate) checkpoint: u64,
}

/// The display adapter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Vga {
    /// A VGA with the linear modes of Bochs.
    #[default]
    Std,
    /// No display adapter.
    None,
}

/// The engine, which executes the guest's instructions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// The translator where the host allows it, or else the interpreter
    #[default]
    Auto,
    /// Copy guest code into the host's own instructions
    Translator,
    /// Execute one instruction after the other
    Interpreter,
}

impl From<Engine> for EngineChoice {
    fn from(engine: Engine) -> EngineChoice {
        match engine {
            Engine::Auto => EngineChoice::Auto,
            Engine::Translator => EngineChoice::Translator,
            Engine::Interpreter => EngineChoice::Interpreter,
        }
    }
}

/// The port cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("give an I/O port from 0 to 0xfffc, such as 0xf4 or 0x501")]
pub(crate) struct BadPort;

/// Reads the I/O port, decimal or hexadecimal after 0x, at which a device with four ports begins.
pub(crate) fn port(text: &str) -> Result<u16, BadPort> {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let port = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hexadecimal) if digits(hexadecimal) => u16::from_str_radix(hexadecimal, 16),
        _ if digits(text) => text.parse(),
        _ => return Err(BadPort),
    };
    port.ok().filter(|port| *port <= 0xfffc).ok_or(BadPort)
}

/// The target of the firmware's messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DebugTarget {
    /// To the log.
    Log,
    /// To standard output.
    Stdio,
    /// To this file.
    File(PathBuf),
}

/// The reason why a `--debugcon` is refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("give \"log\", \"stdio\" or \"file:PATH\"")]
pub(crate) struct BadDebugTarget;

impl FromStr for DebugTarget {
    type Err = BadDebugTarget;

    fn from_str(text: &str) -> Result<DebugTarget, BadDebugTarget> {
        match text.split_once(':') {
            None if text == "log" => Ok(DebugTarget::Log),
            None if text == "stdio" => Ok(DebugTarget::Stdio),
            Some(("file", path)) if !path.is_empty() => Ok(DebugTarget::File(path.into())),
            _ => Err(BadDebugTarget),
        }
    }
}

/// The way by which tools drive the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QmpTarget {
    /// By a Unix socket with this path.
    Socket(PathBuf),
    /// By standard input and output.
    Stdio,
}

/// The reason why a `--qmp` is refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("give \"unix:PATH\" or \"stdio\"")]
pub(crate) struct BadQmpTarget;

impl FromStr for QmpTarget {
    type Err = BadQmpTarget;

    fn from_str(text: &str) -> Result<QmpTarget, BadQmpTarget> {
        match text.split_once(':') {
            None if text == "stdio" => Ok(QmpTarget::Stdio),
            Some(("unix", path)) if !path.is_empty() => Ok(QmpTarget::Socket(path.into())),
            _ => Err(BadQmpTarget),
        }
    }
}

impl RepetitionArguments {
    /// Returns whether virtual time is a function of the instructions executed.
    pub(crate) fn is_deterministic(&self) -> bool {
        self.deterministic || self.verify
    }
}

impl Default for RunArguments {
    /// The arguments of `ring3 run` without any option.
    fn default() -> RunArguments {
        let command = RunArguments::augment_args(clap::Command::new("run"));
        RunArguments::from_arg_matches(&command.get_matches_from(["run"]))
            .expect("no argument is required")
    }
}

impl RunArguments {
    /// Returns whether the machine can be driven from outside.
    pub(crate) fn has_monitor(&self) -> bool {
        self.qmp.is_some() || !self.qemu.monitors.is_empty()
    }

    /// Returns whether somebody was given a way to drive the machine from outside. The standard input that
    /// `-nographic` implies does not count, since nobody may be there.
    pub(crate) fn is_driven(&self) -> bool {
        self.qmp.is_some() || self.qemu.monitors.len() > usize::from(self.qemu.has_implied_monitor)
    }

    /// Returns the target of each serial port.
    pub(crate) fn serial_targets(&self) -> Vec<SerialTarget> {
        match (&self.display, self.serial.as_slice()) {
            (_, [SerialTarget::None]) => vec![],
            // The screen takes the terminal.
            (DisplayTarget::Terminal, []) => vec![SerialTarget::Null],
            (_, []) => vec![SerialTarget::Stdio],
            (_, targets) => targets.to_vec(),
        }
    }

    /// Returns the memory that comes and goes, if there is to be such.
    pub(crate) fn extra_memory(&self) -> Option<ExtraMemory> {
        let region = self.max_memory.map(|most| most.bytes.saturating_sub(self.memory.bytes));
        let of_run = region.map(|region| ExtraMemory {
            model: ExtraMemoryModel { region, requested: 0 },
            id: None,
        });
        of_run.or_else(|| self.qemu.extra_memory.clone())
    }

    /// Returns the targets of all serial ports and cards that are given.
    pub(crate) fn serial_lines(&self) -> impl Iterator<Item = &SerialTarget> {
        self.serial.iter().chain(self.serial_card.iter().map(|card| &card.target))
    }

    /// Refuses options that contradict each other.
    pub(crate) fn check(&self) -> Result<(), clap::Error> {
        let conflict =
            |reason: &str| Err(Arguments::command().error(ErrorKind::ArgumentConflict, reason));
        if self.kernel.is_none() && self.repetition.replay.is_none() {
            let for_any = !self.append.is_empty() && !self.tern;
            let without = [("--initrd", !self.initrd.is_empty()), ("--append", for_any)];
            if let Some((option, _)) = without.iter().find(|(_, is_given)| *is_given) {
                let reason = format!(
                    "{option} is for a kernel that starts without firmware: add --kernel FILE"
                );
                return Err(Arguments::command().error(ErrorKind::MissingRequiredArgument, reason));
            }
        }
        let serial = self.serial_targets();
        if serial.len() > serial::PORTS_MAX {
            return conflict(
                "a machine has at most four serial ports: give --serial up to four times",
            );
        }
        if let Some(most) = self.max_memory
            && !(most.bytes > self.memory.bytes
                && (most.bytes - self.memory.bytes).is_multiple_of(PIECE))
        {
            return conflict(
                "--max-memory must be more than --memory, by a multiple of 128M, since systems add memory in such pieces",
            );
        }
        if self.serial_card.len() > serial::cards::CARDS_MAX {
            return conflict(
                "a machine has at most two serial cards: give --serial-card up to twice",
            );
        }
        if serial.contains(&SerialTarget::None) {
            return conflict("--serial none is for a machine without serial ports: give it alone");
        }
        let ports_on_stdio = serial.iter().filter(|target| **target == SerialTarget::Stdio).count();
        let taken = ports_on_stdio > 0 || self.debugcon == DebugTarget::Stdio;
        if ports_on_stdio > 1 {
            return conflict(
                "only one serial port can use standard input and output: --serial stdio is given twice",
            );
        }
        if self.gdb == Some(Place::Stdio) && (taken || self.qmp == Some(QmpTarget::Stdio)) {
            return conflict(
                "--gdb stdio needs standard input and output for itself; \
                send the serial port elsewhere with --serial, and --debugcon and --qmp",
            );
        }
        if self.gdb.is_some() && self.repetition.verify {
            return conflict("--verify compares engines and cannot stop for --gdb: leave one out");
        }
        let repetition = &self.repetition;
        if self.gdb.is_some() && repetition.replay.is_some() && repetition.event_log.is_some() {
            return conflict(
                "a debugger repeats parts of a replay several times, which no --event-log can show: \
                leave it or --gdb out",
            );
        }
        if let Some(option) = self.observed.first()
            && self.gdb.is_some()
            && repetition.replay.is_some()
        {
            return conflict(&format!(
                "a debugger repeats parts of a replay several times, which no {option} can count: \
                leave it or --gdb out",
            ));
        }
        if self.observed.has_profile() && repetition.verify {
            return conflict("--verify executes everything twice: leave it or --profile out");
        }
        if self.gdb.is_some() && repetition.replay.is_some() && self.trace.trace.is_some() {
            return conflict(
                "a debugger repeats parts of a replay several times, which no --trace can show: \
                leave it or --gdb out",
            );
        }
        if self.qmp == Some(QmpTarget::Stdio) && taken {
            return conflict(
                "--qmp stdio needs standard input and output for itself; \
                send the serial port elsewhere with --serial, and the firmware's messages with --debugcon",
            );
        }
        let (nics, cards) = (self.nics.nic.len(), self.nics.cards().len());
        if nics > NICS_MAX {
            return conflict(
                "a machine has at most eight network cards: give --nic up to eight times",
            );
        }
        if cards < nics && nics > 1 {
            return conflict("--nic none is for a machine without network cards: give it alone");
        }
        let is_kept =
            repetition.record.is_some() || repetition.record_last.is_some() || repetition.verify;
        if cards > 0 && repetition.deterministic && !is_kept {
            return conflict(
                "a network's packets come at times that nothing determines: with --deterministic, \
                add --record FILE, and repeat the run with --replay FILE",
            );
        }
        let stdio = self.qmp == Some(QmpTarget::Stdio) || self.gdb == Some(Place::Stdio);
        if self.display == DisplayTarget::Terminal && (taken || stdio) {
            return conflict(
                "--display terminal needs the terminal for itself; \
                send the serial port, --debugcon and --qmp elsewhere",
            );
        }
        Ok(())
    }
}

/// The pieces in which 64-bit Linux adds memory, in bytes.
const PIECE: u64 = 128 << 20;

/// A size of memory that a machine can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemorySize {
    pub(crate) bytes: u64,
}

/// The reason why a `--memory` is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum BadMemorySize {
    #[error("give a size as 512M, 2G, or a number of MiB")]
    Unreadable,
    #[error("a machine has from 1M to 32G of memory; a number without a unit is in MiB")]
    OutOfBounds,
}

impl FromStr for MemorySize {
    type Err = BadMemorySize;

    fn from_str(text: &str) -> Result<MemorySize, BadMemorySize> {
        /// The size of the processor's pages.
        const PAGE: u64 = 4 << 10;
        let bytes = bytes_of(text).ok_or(BadMemorySize::Unreadable)?;
        if (1 << 20..=RAM_MAX).contains(&bytes) && bytes.is_multiple_of(PAGE) {
            Ok(MemorySize { bytes })
        } else {
            Err(BadMemorySize::OutOfBounds)
        }
    }
}

/// Reads a number of bytes a second.
pub(crate) fn rate(text: &str) -> Result<NonZero<u64>, String> {
    let rate = ring3_block::parse_size(text).and_then(NonZero::new);
    rate.ok_or_else(|| format!("\"{text}\" is not a number of bytes a second, such as 100M"))
}

/// Reads a number of bytes with a unit; a number alone is one of MiB. One that is too large is as large as possible.
pub(crate) fn bytes_of(text: &str) -> Option<u64> {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, unit) = text.split_at(end);
    let unit = match unit.to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => 1 << 10,
        "" | "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return None,
    };
    // There are only digits, so a number that cannot be parsed or multiplied is too large.
    let bytes = digits.parse().ok().and_then(|number: u64| number.checked_mul(unit));
    (!digits.is_empty()).then(|| bytes.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
