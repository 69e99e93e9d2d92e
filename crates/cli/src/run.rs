//! `ring3 run`: runs one machine from the command line to its end.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ring3_core::channel::ChannelEvent;
use ring3_core::device::DeviceId;
use ring3_core::input::Input;
use ring3_display::tty::Stderr;
use ring3_host::listener::ListenError;
use ring3_host::memory::HostMemory;
use ring3_qmp::Server;
use ring3_snapshot::moving::MoveError;
use ring3_snapshot::{OpenError, RestoreDriveError, Snapshot, attach_drives};
use ring3_tern::{System, TERN};
use ring3_vm::control::{Event, Status as ControlStatus};
use ring3_vm::firmware::{self, FirmwareError};
use ring3_vm::kernel_file::{self, FOR_64_BITS, NoKernel};
use ring3_vm::linux::{self, LinuxError};
use ring3_vm::multiboot::MultibootError;
use ring3_vm::multiboot2::Multiboot2Error;
use ring3_vm::pvh::PvhError;
use ring3_vm::{
    Config, Console, Control, Ending, EngineChoice, EngineIn, Engines, Kernel, Model, Module,
    OnPanic, Software, Verified, Vm, VmError, door,
};
use thiserror::Error;
use tracing::{info, warn};

use crate::args::{DebugTarget, QmpTarget, RunArguments, Vga};
use crate::boot::medium_in;
use crate::channels::{ChannelError, Channels};
use crate::characters::{self, CharacterError, Characters};
use crate::data_directories::data_directories;
use crate::debug_console::DebugOutput;
use crate::display::{Display, DisplayError, DisplayTarget};
use crate::drives::{DriveError, Drives};
use crate::identity::{self, rng_seed};
use crate::incoming;
use crate::limits::{self, TooLow};
use crate::log::{self, LogError};
use crate::nics::{LaterNetworks, NicError};
use crate::observe::ObserveError;
use crate::output::{Output, stdout};
use crate::qemu::daemon;
use crate::qemu::pid_file::{PidFile, PidFileError};
use crate::repetition::RepetitionError;
use crate::replay;
use crate::rtc::RtcBase;
use crate::sandbox::{self, SandboxError};
use crate::serial::cards::{self, LaterCharacters, SerialCards};
use crate::serial::terminals::Terminals;
use crate::serial::{SerialError, SerialPorts};
use crate::signals::{self, Signals};
use crate::status::Status;
use crate::trace::TraceError;

/// The reasons why a run does not start, or ends early. Each message says what to do about it, or names the
/// file or facility that failed.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    #[error("cannot read the {what} {path}: {source}")]
    Read { what: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Limits(#[from] TooLow),
    #[error("{path} is {what}, not a kernel: give it with {option}", path = .path.display())]
    NotKernel { path: PathBuf, what: &'static str, option: &'static str },
    #[error("cannot start a thread for the drives: {0}")]
    Thread(#[source] io::Error),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Serial(#[from] SerialError),
    #[error("the system provides no random seed: {0}; give one with --seed")]
    Seed(#[source] io::Error),
    #[error("the system provides no random numbers for a new identity: {0}")]
    Identity(#[source] io::Error),
    #[error("cannot write the firmware's messages to {path}: {source}")]
    DebugFile { path: PathBuf, source: io::Error },
    #[error(
        "there is no firmware: install SeaBIOS (Debian and Ubuntu: seabios, Fedora: seabios-bin), \
         or name a file with --bios, or a kernel with --kernel"
    )]
    NoFirmware,
    #[error("Tern is not part of this ring3: build it where make and gcc are installed")]
    NoTern,
    #[error(
        "{path} starts in real mode and needs firmware: install SeaBIOS (Debian and Ubuntu: seabios, Fedora: seabios-bin), \
         or name a file with --bios", path = .0.display()
    )]
    NoFirmwareForKernel(PathBuf),
    #[error("{path} starts without firmware, as its header says: leave --bios out", path = .0.display())]
    ByFirmware(PathBuf),
    #[error("{path} {source}", path = .path.display())]
    NoKernel { path: PathBuf, source: NoKernel },
    #[error("{path} {source}", path = .path.display())]
    Multiboot { path: PathBuf, source: MultibootError },
    #[error("{path} {source}", path = .path.display())]
    Multiboot2 { path: PathBuf, source: Multiboot2Error },
    #[error("{path} {source}", path = .path.display())]
    Pvh { path: PathBuf, source: PvhError },
    #[error("{path} {source}", path = .path.display())]
    Firmware { path: PathBuf, source: FirmwareError },
    #[error(transparent)]
    Drives(#[from] DriveError),
    #[error(transparent)]
    Nics(#[from] NicError),
    #[error(transparent)]
    Display(#[from] DisplayError),
    #[error(transparent)]
    QmpSocket(ListenError),
    #[error(transparent)]
    Gdb(ListenError),
    #[error(transparent)]
    Characters(#[from] CharacterError),
    #[error(transparent)]
    Channels(#[from] ChannelError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    PidFile(#[from] PidFileError),
    #[error("cannot tell the parent process that the machine runs: {0}")]
    Parent(#[source] io::Error),
    #[error("cannot use standard input and output for QMP: {0}")]
    QmpStreams(#[source] io::Error),
    #[error("cannot use the terminal: {0}")]
    Terminal(#[source] io::Error),
    #[error("{path} {source}; give it more with --memory", path = .kernel.display())]
    TooLittleMemory { kernel: PathBuf, source: LinuxError },
    #[error("{path} {source}", path = .kernel.display())]
    Kernel { kernel: PathBuf, source: LinuxError },
    #[error("cannot handle signals: {0}")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Repetition(#[from] RepetitionError),
    #[error("cannot repeat {path}: {source}", path = .path.display())]
    Replay { path: PathBuf, source: VmError },
    #[error("cannot go to instruction {to} of {path}: the run ends after {ended}", path = .path.display())]
    EndedBefore { path: PathBuf, to: u64, ended: u64 },
    #[error("cannot go to instruction {to} of {path}: the recording begins after {begin}", path = .path.display())]
    BeginsAfter { path: PathBuf, to: u64, begin: u64 },
    #[error("cannot print the registers: {0}")]
    Print(#[source] io::Error),
    #[error(transparent)]
    Snapshot(#[from] OpenError),
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("cannot continue the machine in {path}: {source}", path = .path.display())]
    Restore { path: PathBuf, source: VmError },
    #[error(transparent)]
    Incoming(#[from] MoveError),
    #[error("{machine} has {has} {what}, but {option} is given {given} times")]
    TooMany { machine: String, has: usize, what: &'static str, option: &'static str, given: usize },
    #[error(transparent)]
    RestoreDrive(#[from] RestoreDriveError),
    #[error(transparent)]
    Machine(VmError),
}

/// Runs the machine that `arguments` describe until it ends.
pub(crate) fn run(arguments: &RunArguments) -> Result<Status, RunError> {
    log::start(arguments.log.as_ref(), arguments.log_file.as_deref())?;
    arguments.sandbox.check()?;
    let repetition = &arguments.repetition;
    let mut signals = Signals::default();
    let verified = match &repetition.replay {
        Some(path) => match replay::replay(arguments, path, &mut signals) {
            // It stands where it should, and that was shown.
            Ok(None) => return Ok(Status::Ended),
            Ok(Some(verified)) => Ok(verified),
            Err(error) => Err(error),
        },
        None => run_anew(arguments, &mut signals),
    };
    if let Some(signal) = signals.come() {
        if let Err(error) = verified {
            let _ = writeln!(Stderr, "ring3: {error}");
        }
        return Ok(Status::Signal(signal));
    }
    let verified = verified?;
    let ending = match verified {
        Verified::Same(ending) => ending,
        Verified::Differs(difference) => {
            let again = repetition.how_to_see_again();
            let _ = writeln!(Stderr, "ring3: {difference}\n{again}");
            return Ok(Status::Different);
        }
    };
    match ending {
        Ending::PowerOff | Ending::Quit | Ending::Reset => Ok(Status::Ended),
        Ending::Panicked => {
            let _ = writeln!(Stderr, "ring3: the guest's system has failed (panic)");
            Ok(arguments.qemu.status_of_panic.unwrap_or(Status::Stopped))
        }
        Ending::Exit(status) => {
            if Status::OF_OTHERS.contains(&status) {
                let _ = writeln!(
                    Stderr,
                    "ring3: the guest has ended the run with status {status}, by the debug exit"
                );
            }
            Ok(Status::Guest(status))
        }
        Ending::Stopped(report) => {
            let _ = writeln!(Stderr, "ring3: the processor has stopped: {report}");
            Ok(Status::Stopped)
        }
        Ending::Stuck(report) => {
            let _ = writeln!(Stderr, "ring3: {report}");
            Ok(Status::Stuck)
        }
        Ending::For64Bits => {
            let _ = writeln!(Stderr, "ring3: the guest has given up: it {FOR_64_BITS}");
            Ok(Status::Stuck)
        }
        Ending::NothingToBoot => {
            let _ = writeln!(Stderr, "ring3: {}", arguments.nothing_was_found());
            Ok(Status::Stuck)
        }
    }
}

/// Runs a new machine, as the command line describes it.
fn run_anew(arguments: &RunArguments, signals: &mut Signals) -> Result<Verified, RunError> {
    engine(arguments).check().map_err(VmError::from).map_err(RunError::Machine)?;
    let repetition = &arguments.repetition;
    let _pid_file = arguments.qemu.pid_file.as_deref().map(PidFile::create).transpose()?;
    let made = match (&arguments.incoming, &arguments.restore) {
        (Some(_), _) => None,
        (None, Some(path)) => Some(restore(arguments, path)?),
        (None, None) => Some(new_machine(arguments)?),
    };
    let debug = debug_output(&arguments.debugcon)?;
    let serial_targets = arguments.serial_targets();
    let event_log = repetition.event_log()?;
    let (sender, mut door) = door();
    *signals = Signals::end(sender.control()).map_err(RunError::Signals)?;
    if repetition.record_last.is_some() {
        signals::write_last(sender.control()).map_err(RunError::Signals)?;
    }
    if arguments.paused {
        door.pause();
    }
    let wait_at = |place| incoming::wait_at(place, &sender.control(), &mut door);
    let coming = arguments.incoming.as_ref().map(wait_at).transpose()?;
    let mut terminals = Terminals::open(arguments)?;
    let qmp = serve_qmp(&sender.control(), arguments, &terminals)?;
    if let Some(server) = &qmp {
        server.make_networks_by(LaterNetworks::new(sender.clone(), arguments.sandbox.mode));
        server.make_characters_by(LaterCharacters::new(sender.clone(), arguments.sandbox.mode));
    }
    let slots = cards::slots(arguments, &sender);
    let characters = Characters::open(arguments, &sender, qmp.as_ref(), &mut terminals, &slots)?;
    let cards = SerialCards::open(arguments, slots, &characters, &mut terminals)?;
    let serial = SerialPorts::open(&serial_targets, &sender, &characters, &mut terminals)?;
    if arguments.qemu.dry_run {
        sender.send(Input::Quit);
    }
    let (mut vm, arrived) = match (made, coming) {
        (Some(mut vm), _) => {
            arguments.nics.attach(&mut vm, &sender)?;
            arguments.board.name_devices(&mut vm);
            if let Some(id) = arguments.extra_memory().and_then(|extra| extra.id) {
                vm.name_card(DeviceId::EXTRA_MEMORY, id);
            }
            (vm, None)
        }
        (None, Some(coming)) => match incoming::receive(coming, arguments, &sender)? {
            Some((vm, arrived)) => (vm, Some(arrived)),
            None => return Ok(Verified::Same(Ending::Quit)),
        },
        (None, None) => return Ok(Verified::Same(Ending::Quit)),
    };
    cards.attach(&mut vm);
    if let Some(last) = &repetition.record_last {
        vm.keep_last(last.options(), Box::new(last.archive()?));
    }
    let observations = arguments.observed.begin(&mut vm)?;
    if let Some(log) = event_log {
        vm.log_events(log);
    }
    arguments.trace.begin(&mut vm)?;
    let (targets, places) = (&arguments.board.channel, &arguments.qemu.characters);
    let channels = Channels::open(targets, places, &vm, &sender)?;
    let mut output = Outputs { serial, debug, channels };

    if !arguments.has_monitor() {
        try_again(sender.control()).map_err(RunError::Thread)?;
    }
    let display = Display::start(&arguments.display, &sender.control())?;

    let script = repetition.is_deterministic().then_some(&mut door);
    let raw_mode = output.serial.read_stdin(script)?;
    if arguments.qemu.is_daemon {
        daemon::tell_parent().map_err(RunError::Parent)?;
    }
    if let Some(arrived) = arrived
        && incoming::take(arrived, arguments.paused, &sender, &mut door)?.is_none()
    {
        return Ok(Verified::Same(Ending::Quit));
    }
    vm.limit_cpu(arguments.cpu_limit.map(f64::from));
    vm.save_host_memory(HostMemory::open(), arguments.memory_path.clone());
    sandbox::enter(arguments, &vm)?;
    let ended = if repetition.verify {
        vm.verify(COMPARED, &mut door, &mut output)
    } else {
        vm.run(&mut door, &mut output).map(Verified::Same)
    };
    output.finish();
    drop(raw_mode);
    // Tells everybody who still sends requests to the machine that it has ended.
    drop(door);
    display.finish();
    if let Some(qmp) = qmp {
        qmp.finish();
    }
    show_stats(arguments, &vm);
    let written = observations.finish(&mut vm);
    sandbox::report();
    let ended = ended.map_err(RunError::Machine)?;
    written?;
    Ok(ended)
}

/// Makes a new machine.
fn new_machine(arguments: &RunArguments) -> Result<Vm, RunError> {
    let extra = arguments.extra_memory().map_or(0, |extra| extra.model.region);
    limits::check_for_machine(arguments.memory.bytes + extra)?;
    let drives = Drives::open(&arguments.drives)?;
    let (path, software) = software(arguments, drives.firmware()?)?;
    let config = config(arguments, &drives, &software)?;
    let recorder = arguments.repetition.recorder(&config, &software)?;
    let made = Vm::with_engine(config, software, engine(arguments));
    let mut vm = made.map_err(|error| match (&error, &arguments.bios) {
        // With a kernel, `path` is the kernel's; the error is about the firmware's file.
        (VmError::Firmware(_), Some(bios)) => explain(error, bios.clone()),
        _ => explain(error, path),
    })?;
    drives.attach(&mut vm)?;
    if let Some(recorder) = recorder {
        vm.record_to(recorder);
    }
    Ok(vm)
}

/// Makes the machine that is saved in the file at `path`.
fn restore(arguments: &RunArguments, path: &Path) -> Result<Vm, RunError> {
    let snapshot = Snapshot::open(path)?;
    let config = snapshot.machine().config();
    limits::check_for_machine(config.most_memory())?;
    check_for_machine(arguments, config, &format!("the machine in {}", path.display()))?;
    let explain = |source| RunError::Restore { path: path.to_owned(), source };
    let (machine, engine) = (snapshot.machine(), engine(arguments));
    let mut vm = if arguments.new_identity {
        let identity =
            identity::new_identity(arguments, machine.config()).map_err(RunError::Identity)?;
        Vm::restore_with_identity(machine, &identity, engine)
    } else {
        Vm::restore(machine, engine)
    }
    .map_err(explain)?;
    snapshot.give_memory(&mut vm)?;
    attach_drives(&snapshot, arguments.drives.snapshot, &mut vm)?;
    Ok(vm)
}

/// Checks that `machine`, which was made elsewhere, has what the command line connects.
pub(crate) fn check_for_machine(
    arguments: &RunArguments,
    config: &Config,
    machine: &str,
) -> Result<(), RunError> {
    // A port is connected even if nobody has asked for it.
    let ports = if arguments.serial.is_empty() { 0 } else { arguments.serial_targets().len() };
    let serial_cards = config.serial_cards.iter().filter(|is_there| **is_there).count();
    for (what, has, option, given) in [
        ("network cards", config.cards().count(), "--nic", arguments.nics.cards().len()),
        ("serial ports", config.serial_ports.into(), "--serial", ports),
        ("serial cards", serial_cards, "--serial-card", arguments.serial_card.len()),
    ] {
        if given > has {
            return Err(RunError::TooMany {
                machine: machine.to_owned(),
                has,
                what,
                option,
                given,
            });
        }
    }
    Ok(())
}

/// How long the machine waits before it repeats a drive's request that the host could not execute.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Resumes the machine after a drive has stopped it. Without QMP, nobody else could.
fn try_again(control: Control) -> io::Result<()> {
    let events = control.subscribe();
    thread::Builder::new().name("try-again".into()).spawn(move || {
        for event in events {
            if event != Event::Paused {
                continue;
            }
            thread::sleep(TRY_AGAIN);
            if control.status() == ControlStatus::Stopped && control.resume().is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// The engines that `--verify` compares.
pub(crate) const COMPARED: Engines<'_> =
    Engines { tested: &EngineChoice::EagerTranslator, reference: &EngineChoice::Interpreter };

/// Returns the engine that executes the guest's instructions; with `--verify`, the one that is tested.
pub(crate) fn engine(arguments: &RunArguments) -> EngineIn {
    let choice = if arguments.repetition.verify {
        EngineChoice::EagerTranslator
    } else {
        arguments.engine.into()
    };
    EngineIn { choice, directory: arguments.memory_path.clone() }
}

/// Returns the processor of a machine that starts `software`, if none is asked for: one for 64-bit systems, unless the
/// system is known to be none. Debuggers would see such a system's registers as those of 64-bit code.
fn processor(software: &Software) -> Model {
    // A file that cannot be read is refused later.
    let head = software.any_kernel().and_then(|kernel| kernel.image.start().ok());
    let is_for_32_bits = head.is_some_and(|head| kernel_file::is_for_32_bits(&head));
    if is_for_32_bits { Model::Max } else { Model::X86_64_V2 }
}

/// Returns the configuration of the machine.
fn config(
    arguments: &RunArguments,
    drives: &Drives,
    software: &Software,
) -> Result<Config, RunError> {
    let deterministic = arguments.repetition.is_deterministic();
    // Somebody may be there who can reset a guest that does nothing any more, or wants to see its last
    // screen.
    let somebody_watches = arguments.is_driven()
        || arguments.display != DisplayTarget::None
        || io::stdin().is_terminal();
    let rtc = if deterministic { RtcBase::FIXED } else { RtcBase::Utc };
    let seed = arguments.seed.or(deterministic.then_some(0));
    let mut config = Config {
        cpu: arguments.cpu.unwrap_or_else(|| processor(software)),
        memory_bytes: arguments.memory.bytes,
        extra_memory: arguments.extra_memory().map(|extra| extra.model),
        rtc_base: arguments.rtc.unwrap_or(rtc).seconds(),
        deterministic,
        rng_seed: Some(rng_seed(seed).map_err(RunError::Seed)?),
        serial_ports: arguments.serial_targets().len() as u8,
        serial_cards: std::array::from_fn(|index| index < arguments.serial_card.len()),
        generation: identity::generation(arguments.board.generation_id, seed)
            .map_err(RunError::Identity)?,
        debug_exit_port: arguments.debug_exit,
        reboots: !arguments.no_reboot,
        stays_when_off: arguments.no_shutdown,
        ends_when_stuck: !somebody_watches,
        display: arguments.vga == Vga::Std,
        ..Config::default()
    };
    let first = arguments.nics.describe(&mut config, software.kernel().is_none())?;
    drives.describe(&arguments.drives, first, &mut config);
    arguments.board.describe(&mut config)?;
    if arguments.repetition.record_last.is_some() {
        // Without the device the guest could not say that it has failed.
        config.on_panic.get_or_insert(OnPanic::Continue);
    }
    let wants_network = arguments.drives.boot.has_letter('n');
    if wants_network && config.cards().all(|(_, nic)| nic.rom.is_none()) {
        warn!("no network card has a boot ROM: add --nic, and install ipxe-qemu");
    }
    Ok(config)
}

/// Returns the back-end of the port for the firmware's messages.
pub(crate) fn debug_output(target: &DebugTarget) -> Result<DebugOutput, RunError> {
    Ok(match target {
        DebugTarget::Log => DebugOutput::log(),
        DebugTarget::Stdio => DebugOutput::Output(Output::stdout().map_err(RunError::Terminal)?),
        DebugTarget::File(path) => DebugOutput::Output(
            Output::create(path)
                .map_err(|source| RunError::DebugFile { path: path.clone(), source })?,
        ),
    })
}

/// Prints the counters if the command line asks for them.
pub(crate) fn show_stats(arguments: &RunArguments, vm: &Vm) {
    if arguments.stats {
        // A failure is ignored: if standard error is closed, nobody reads the counters.
        let _ = writeln!(Stderr, "{}", vm.stats());
    }
}

/// The back-ends of the machine's outputs.
pub(crate) struct Outputs {
    pub(crate) serial: SerialPorts,
    pub(crate) debug: DebugOutput,
    pub(crate) channels: Channels,
}

impl Outputs {
    /// Waits until all back-ends have received the last bytes of the guest.
    pub(crate) fn finish(self) {
        self.serial.finish();
        self.debug.finish();
    }
}

impl Console for Outputs {
    fn serial(&mut self, port: u8, bytes: &[u8]) -> io::Result<()> {
        self.serial.write(port, bytes)
    }

    fn channel(&mut self, channel: u8, event: ChannelEvent) -> io::Result<()> {
        self.channels.take(channel, event);
        Ok(())
    }

    fn debug(&mut self, byte: u8) -> io::Result<()> {
        self.debug.write(byte)
    }

    fn flush(&mut self) -> io::Result<()> {
        // No bytes are held back.
        Ok(())
    }
}

/// Returns the software that the machine starts, and the name of its file. `flash` is firmware in flash memory, if
/// there is any.
fn software(
    arguments: &RunArguments,
    flash: Option<Vec<u8>>,
) -> Result<(PathBuf, Software), RunError> {
    if arguments.tern {
        return tern(arguments);
    }
    let Some(path) = &arguments.kernel else {
        return firmware(arguments.bios.as_deref(), flash, None, || RunError::NoFirmware);
    };
    let image = read("kernel", path)?;
    let module = |path: &PathBuf| -> Result<Module, RunError> {
        let name = path.display().to_string();
        // A module of a Multiboot kernel may have arguments behind its file.
        let file = match name.split_once(' ') {
            Some((file, _)) if !path.exists() => Path::new(file),
            _ => path,
        };
        let contents = read("initial RAM disk", file)?.into();
        Ok(Module { name, contents })
    };
    let modules = arguments.initrd.iter().map(module).collect::<Result<_, RunError>>()?;
    let has_firmware = arguments.bios.is_some() || flash.is_some();
    if has_firmware && kernel_file::starts_without_firmware(&image) {
        return Err(RunError::ByFirmware(path.clone()));
    }
    let needs_firmware = linux::needs_firmware(&image);
    let (image, command_line) = (image.into(), arguments.append.clone());
    let kernel = Kernel { image, modules, command_line };
    if has_firmware || needs_firmware {
        let missing = || RunError::NoFirmwareForKernel(path.clone());
        let (_, software) = firmware(arguments.bios.as_deref(), flash, Some(kernel), missing)?;
        return Ok((path.clone(), software));
    }
    Ok((path.clone(), Software::Kernel(kernel)))
}

/// Returns Tern, and its name for messages.
fn tern(arguments: &RunArguments) -> Result<(PathBuf, Software), RunError> {
    let System { kernel, archive } = TERN.ok_or(RunError::NoTern)?;
    let module = Module { name: "tern.img".to_owned(), contents: archive.to_vec().into() };
    let kernel = Kernel {
        image: kernel.to_vec().into(),
        modules: vec![module],
        command_line: arguments.append.clone(),
    };
    Ok((PathBuf::from("Tern"), Software::Kernel(kernel)))
}

/// Returns the firmware, and `kernel` for it to start. The firmware is the file `asked_for`, or that in flash memory, or
/// the installed one; `missing` makes the error if none is installed.
fn firmware(
    asked_for: Option<&Path>,
    flash: Option<Vec<u8>>,
    kernel: Option<Kernel>,
    missing: impl FnOnce() -> RunError,
) -> Result<(PathBuf, Software), RunError> {
    let (path, image) = match (asked_for, flash) {
        (Some(path), _) => (path.to_owned(), read("firmware", path)?),
        (None, Some(image)) => (PathBuf::from("the firmware in flash memory"), image),
        (None, None) => installed(&firmware::NAMES)?.ok_or_else(missing)?,
    };
    Ok((path, Software::Firmware { image, video: video_firmware()?, kernel }))
}

/// Returns the installed firmware of the display adapter. Without it the screen stays dark until the system
/// sets up the adapter itself.
fn video_firmware() -> Result<Option<Vec<u8>>, RunError> {
    let found = installed(&firmware::VIDEO_NAMES)?;
    if found.is_none() {
        warn!("no firmware for the display adapter: install seabios for a picture from the start");
    }
    Ok(found.map(|(_, image)| image))
}

/// Returns the first installed file among `names`, with its contents.
fn installed(names: &[&str]) -> Result<Option<(PathBuf, Vec<u8>)>, RunError> {
    let (data_home, data_dirs) = data_directories();
    let places = firmware::places(names, data_home.as_deref(), &data_dirs);
    let Some((path, image)) = firmware::read_first(&places) else { return Ok(None) };
    let image =
        image.map_err(|source| RunError::Read { what: "firmware", path: path.clone(), source })?;
    info!("found {}", path.display());
    Ok(Some((path, image)))
}

/// Opens the ways by which people, tools and debuggers drive the machine. The monitors of `ring3 qemu` are opened later.
pub(crate) fn serve_qmp(
    control: &Control,
    arguments: &RunArguments,
    terminals: &Terminals,
) -> Result<Option<Server>, RunError> {
    if !arguments.has_monitor() && arguments.gdb.is_none() {
        return Ok(None);
    }
    let facts = characters::facts(arguments, terminals);
    let server = match &arguments.qmp {
        Some(QmpTarget::Socket(path)) => {
            Server::on_socket(control, path, facts).map_err(RunError::QmpSocket)?
        }
        Some(QmpTarget::Stdio) => stdout()
            .and_then(|output| Server::on_streams(control, io::stdin(), output, facts))
            .map_err(RunError::QmpStreams)?,
        None => Server::new(control, facts).map_err(RunError::QmpStreams)?,
    };
    if let Some(place) = &arguments.gdb {
        server.debug_at(control, place).map_err(RunError::Gdb)?;
    }
    Ok(Some(server))
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, RunError> {
    fs::read(path).map_err(|source| RunError::Read { what, path: path.to_owned(), source })
}

/// Adds the name of the kernel or firmware file to errors about it.
pub(crate) fn explain(error: VmError, path: PathBuf) -> RunError {
    match error {
        VmError::Linux(source @ LinuxError::TooLittleMemory { .. }) => {
            RunError::TooLittleMemory { kernel: path, source }
        }
        VmError::Linux(source) => match medium_in(&path) {
            Some((what, option)) => RunError::NotKernel { path, what, option },
            None => RunError::Kernel { kernel: path, source },
        },
        VmError::NoKernel(source) => RunError::NoKernel { path, source },
        VmError::Multiboot(source) => RunError::Multiboot { path, source },
        VmError::Multiboot2(source) => RunError::Multiboot2 { path, source },
        VmError::Pvh(source) => RunError::Pvh { path, source },
        VmError::Firmware(source) => RunError::Firmware { path, source },
        error => RunError::Machine(error),
    }
}
