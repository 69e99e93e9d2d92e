//! The machine: processor, engine, memory and board, and the loop that runs them.

mod accesses;
pub(crate) mod back;
mod cards;
mod checkpoints;
pub(crate) mod cpu_limit;
mod deterministic;
mod flash;
pub(crate) mod flight;
mod giving_up;
mod guest_tools;
pub(crate) mod host_memory;
pub(crate) mod loading;
mod moving;
mod paced;
mod replay;
mod saved;
mod session;
mod slice;
pub(crate) mod verify;

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use ring3_core::bus::PortConflict;
use ring3_core::channel::ChannelEvent;
use ring3_core::clock::{Clock, Time};
use ring3_core::device::{DeviceId, GuestFailure, Output};
use ring3_core::disk::{DiskRequest, DriveId};
use ring3_core::display::Picture;
use ring3_core::input::{DeviceInput, HostClocks, Input, StampedInput};
use ring3_core::memory::{Area, Memory, MemoryError, RamLayout};
use ring3_core::state::RestoreError;
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::Engine;
use ring3_x86::report::CpuReport;
use ring3_x86::undefined::Vendor;
use thiserror::Error;
use tracing::info;

use crate::acpi;
use crate::board::{Board, VideoParts};
use crate::config::{Config, ConfigError, Software};
use crate::debug::Debugging;
use crate::drives::{Attachment, Drives, LimitError, Limits};
use crate::engines::{EngineChoice, EngineError, EngineMaker};
use crate::event_log::{Checkpoint, EventLog, LoggedEvent};
use crate::extra_memory;
use crate::facts;
use crate::file_bytes::UnreadableFile;
use crate::firmware::{self, FirmwareError};
use crate::host_fpu;
use crate::kernel;
use crate::kernel_file::{self, NoKernel};
use crate::linux::{self, LinuxError};
use crate::multiboot::MultibootError;
use crate::multiboot2::Multiboot2Error;
use crate::networks::{Network, Networks};
use crate::pace::INITIAL_PICOS;
use crate::profile::Profile;
use crate::pvh::PvhError;
use crate::recording::{RecordingError, RecordingWriter};
use crate::serial_lines::{SerialLine, SerialLines};
use crate::set_up;
use crate::smbios;
use crate::stats::Stats;
use crate::system_calls::SystemCallTrace;
use crate::taps::Taps;
use ring3_devices::vga::VIDEO_MEMORY_LEN;

use cpu_limit::CpuLimit;
use deterministic::PICOS_PER_INSTRUCTION;
use flight::Flight;
use giving_up::GivingUp;
use host_memory::Frugality;
use replay::Replay;

pub use back::ReplayOptions;
pub use saved::{Identity, SavedMachine};

/// The reasons why a machine cannot be made or cannot continue.
#[derive(Debug, Error)]
pub enum VmError {
    /// There can be no machine with this configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The firmware cannot be started.
    #[error("the firmware {0}")]
    Firmware(#[from] FirmwareError),
    /// There can be no such engine, or no memory for it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The size of memory is wrong.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The file is no kernel for this machine.
    #[error("the kernel {0}")]
    NoKernel(#[from] NoKernel),
    /// The kernel cannot be booted.
    #[error("the kernel {0}")]
    Linux(#[from] LinuxError),
    /// The kernel, which has a Multiboot header, cannot be booted.
    #[error("the kernel {0}")]
    Multiboot(#[from] MultibootError),
    /// The kernel, which has a Multiboot2 header, cannot be booted.
    #[error("the kernel {0}")]
    Multiboot2(#[from] Multiboot2Error),
    /// The kernel, which is an ELF file, cannot be booted.
    #[error("the kernel {0}")]
    Pvh(#[from] PvhError),
    /// The kernel, or a file for it, cannot be read from the file of a saved machine.
    #[error(transparent)]
    UnreadableFile(#[from] UnreadableFile),
    /// Two devices claim the same port: a mistake in the board.
    #[error(transparent)]
    Board(#[from] PortConflict),
    /// The guest's output cannot be written.
    #[error(transparent)]
    Console(#[from] io::Error),
    /// A saved state cannot be taken over.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The event log cannot be written.
    #[error("cannot write the event log: {0}")]
    EventLog(#[source] io::Error),
    /// The trace of system calls cannot be written.
    #[error("cannot write the trace of system calls: {0}")]
    SystemCalls(#[source] io::Error),
    /// The inputs cannot be recorded, or no more of them can be read for a replay.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// A replay differs from its recording: it is of another guest or another version.
    #[error(
        "the replay differs from the recording after {0} instructions; the versions of ring3 or the files may differ"
    )]
    Diverged(u64),
}

/// The destination of the machine's outputs.
pub trait Console {
    /// Takes `bytes` that the guest has sent on serial port `port` (0 is COM1).
    fn serial(&mut self, port: u8, bytes: &[u8]) -> io::Result<()>;

    /// Takes a byte that the guest's firmware has sent for those who debug it.
    fn debug(&mut self, _byte: u8) -> io::Result<()> {
        Ok(())
    }

    /// Takes what the guest's end of channel `channel` does.
    fn channel(&mut self, _channel: u8, _event: ChannelEvent) -> io::Result<()> {
        Ok(())
    }

    /// Writes what is still buffered, since the guest may be silent for a while.
    fn flush(&mut self) -> io::Result<()>;
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The guest has switched the machine off.
    PowerOff,
    /// A person outside has ended the run.
    Quit,
    /// The guest has ended the run with this status.
    Exit(u8),
    /// The guest has asked for a reset, and [`Config::reboots`] says that this ends the run.
    Reset,
    /// The guest has said that its system has failed, and [`Config::on_panic`] says that this ends the run.
    Panicked,
    /// The processor cannot continue.
    Stopped(Report),
    /// The guest has halted with interrupts disabled, and [`Config::ends_when_stuck`] says that this ends the
    /// run.
    Stuck(Report),
    /// The guest has halted like this soon after it has looked for long mode: it is for 64-bit processors.
    For64Bits,
    /// Firmware has found nothing to boot, and [`Config::ends_when_stuck`] says that this ends the run.
    NothingToBoot,
}

/// The reason why the processor cannot continue, and its state as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    reason: String,
    cpu: CpuReport,
}

impl Report {
    /// Returns the reason, in one line.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.reason, self.cpu)
    }
}

/// A virtual machine.
pub struct Vm {
    pub(crate) config: Config,
    /// The software that it starts with.
    software: Arc<Software>,
    pub(crate) cpu: Cpu,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) memory: Memory,
    pub(crate) board: Board,
    /// The image of its firmware, and the memory of its display adapter.
    rom: Option<Area>,
    video: Option<VideoParts>,
    drives: Drives,
    pub(crate) networks: Networks,
    pub(crate) serial_lines: SerialLines,
    pub(crate) taps: Taps,
    /// The ids by which people know the cards.
    pub(crate) ids: BTreeMap<DeviceId, String>,
    /// The cards that were removed while their drives still had work.
    leaving: Vec<DeviceId>,
    clock: Clock,
    stats: Stats,
    /// Whether the guest has switched it off, and that does not end the run.
    is_off: bool,
    giving_up: GivingUp,
    frugality: Frugality,
    /// The limit of the host's processor time, if there is one.
    cpu_limit: Option<CpuLimit>,
    /// How often the machine had to rest because of it.
    cpu_rests: u64,
    /// What the guest has said of its system's failure, until it is told outside.
    failure: Option<GuestFailure>,
    /// The bytes of the memory that comes and goes, if there are others and nobody outside was told.
    pub(crate) told_extra_memory: Option<u64>,
    /// The pages of the memory balloon, if it has changed and nobody outside was told.
    pub(crate) told_balloon: Option<u32>,
    pub(crate) debugging: Debugging,
    /// A run that is being repeated: its inputs, including the answers of the drives.
    replay: Option<Replay>,
    /// Whether a debugger can go back in it.
    goes_back: bool,
    /// All inputs so far, if they are kept.
    recording: Option<Vec<StampedInput>>,
    /// The file of inputs, if they are kept in a file.
    recorder: Option<RecordingWriter>,
    /// The last seconds of the run, if they are kept.
    flight: Option<Flight>,
    /// Requests to drives that were made before, and whose answers a replay brings; by device and tag.
    asked: Vec<(DeviceId, u64)>,
    /// The event log.
    event_log: Option<EventLog>,
    /// Samples of what it executes, if they are taken.
    pub(crate) profile: Option<Box<Profile>>,
    /// The trace of system calls.
    pub(crate) system_calls: Option<SystemCallTrace>,
}

impl fmt::Debug for Vm {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vm")
            .field("engine", &self.engine.name())
            .field("memory", &self.memory)
            .field("board", &self.board)
            .finish_non_exhaustive()
    }
}

impl Vm {
    /// Makes a machine with this configuration that starts with `software`, executed by the interpreter.
    pub fn new(config: Config, software: Software) -> Result<Vm, VmError> {
        Vm::with_engine(config, software, EngineChoice::Interpreter)
    }

    /// Makes a machine with an engine of choice.
    pub fn with_engine(
        config: Config,
        software: Software,
        engine: impl EngineMaker,
    ) -> Result<Vm, VmError> {
        let mut vm = Vm::assemble(config, Arc::new(software), engine)?;
        vm.reset()?;
        Ok(vm)
    }

    /// Puts the parts together, before anything has a state.
    fn assemble(
        config: Config,
        software: Arc<Software>,
        engine: impl EngineMaker,
    ) -> Result<Vm, VmError> {
        let ram = RamLayout::of(config.memory_bytes);
        if ram.high() > 0 && ram.end() > 1 << config.cpu.physical_address_bits() {
            return Err(ConfigError::Memory { model: config.cpu, most: ram.low() }.into());
        }
        if config.serial_ports > 4 {
            return Err(ConfigError::SerialPorts(config.serial_ports).into());
        }
        if config.virtio_disks.len() > DeviceId::VIRTIO_BLK.len() {
            return Err(ConfigError::VirtioDisks(config.virtio_disks.len()).into());
        }
        config.channels.check().map_err(ConfigError::from)?;
        config.check_extra_memory()?;
        if config.nics.len() > DeviceId::NIC.len() {
            return Err(ConfigError::Nics(config.nics.len()).into());
        }
        if let Some(kernel) = software.any_kernel() {
            kernel_file::check(&kernel.image.start()?, config.cpu)?;
        }
        let (engine, mut memory) = engine.make(config.memory_bytes)?;
        let mut video_rom = None;
        let fw_cfg = facts::describe(&config, &software)?;
        let rom = match &*software {
            Software::Firmware { image, video, .. } => {
                let rom = firmware::load(&mut memory, image)?;
                firmware::check_flash(&config.flash, image.len())?;
                if let Some(image) = video.as_ref().filter(|_| config.display) {
                    video_rom = Some(firmware::load_video(&mut memory, image)?);
                }
                Some(rom)
            }
            Software::Kernel(_) => None,
        };
        let video = config
            .display
            .then(|| memory.add_area(VIDEO_MEMORY_LEN))
            .transpose()?
            .map(|memory| VideoParts { memory, rom: video_rom });
        if let Some(region) = extra_memory::region(&config) {
            memory.add_later_ram(region.start, region.end - region.start)?;
        }
        let mut cpu = Cpu::of_model(config.cpu);
        let clock =
            Clock::new(if config.deterministic { PICOS_PER_INSTRUCTION } else { INITIAL_PICOS });
        cpu.transcendental = host_fpu::execute;
        cpu.vendor = Vendor::of_host();
        cpu.guest_tools = config.guest_tools;
        let mut vm = Vm {
            cpu,
            engine,
            memory,
            board: Board::new(&config, rom, fw_cfg, video.as_ref())?,
            rom,
            video,
            drives: Drives::default(),
            networks: Networks::default(),
            serial_lines: SerialLines::default(),
            taps: Taps::default(),
            ids: BTreeMap::new(),
            leaving: Vec::new(),
            clock,
            stats: Stats::default(),
            is_off: false,
            giving_up: GivingUp::default(),
            frugality: Frugality::default(),
            cpu_limit: None,
            cpu_rests: 0,
            failure: None,
            told_balloon: None,
            told_extra_memory: None,
            debugging: Debugging::default(),
            replay: None,
            goes_back: false,
            recording: None,
            recorder: None,
            flight: None,
            asked: Vec::new(),
            event_log: None,
            profile: None,
            system_calls: None,
            config,
            software,
        };
        vm.show_clock();
        Ok(vm)
    }

    /// Returns its configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the name of the engine.
    pub fn engine(&self) -> &'static str {
        self.engine.name()
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> Stats {
        Stats {
            instructions: self.cpu.instructions,
            virtual_time: self.now(),
            kept: self.kept_last(),
            engine: self.engine.counters(),
            engine_nanos: self.engine.times(),
            drives: self
                .describe_drives()
                .iter()
                .map(|drive| (drive.name(), drive.counts))
                .collect(),
            cards: self
                .describe()
                .nics
                .iter()
                .map(|nic| (nic.name().to_owned(), nic.counts))
                .collect(),
            ..self.stats.clone()
        }
    }

    /// Attaches a drive as drive `at`, in the place of the present one.
    pub fn attach_drive(&mut self, at: DriveId, attachment: Attachment) -> Result<(), LimitError> {
        self.check_limits(&attachment.limits)?;
        self.drives.attach(at, attachment);
        Ok(())
    }

    /// Checks that a drive of this machine can have `limits`.
    fn check_limits(&self, limits: &Limits) -> Result<(), LimitError> {
        if self.config.deterministic && !limits.is_none() {
            return Err(LimitError::Deterministic);
        }
        Ok(limits.check()?)
    }

    /// Sets the id by which people know the card `card`.
    pub fn name_card(&mut self, card: DeviceId, id: String) {
        self.ids.insert(card, id);
    }

    /// Attaches `network`, which people know by `id`, to the network card `card`. Packets for the card come
    /// by the machine's door.
    pub fn attach_network(
        &mut self,
        card: DeviceId,
        id: Option<String>,
        network: Box<dyn Network>,
    ) {
        self.networks.attach(card, id, network);
    }

    /// Attaches `line`, of which people know the other end as `character`, to the serial card `card`. Bytes for the card
    /// come by the machine's door.
    pub fn attach_serial(
        &mut self,
        card: DeviceId,
        character: Option<String>,
        line: Box<dyn SerialLine>,
    ) {
        self.serial_lines.attach(card, character, line);
    }

    /// Returns the picture that the display adapter shows.
    pub fn picture(&self) -> Option<Picture> {
        self.board.picture(&self.memory)
    }

    /// Returns guest-physical memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Resets the whole machine and brings it into the state in which the guest starts. With firmware, memory
    /// keeps its contents.
    fn reset(&mut self) -> Result<(), VmError> {
        self.is_off = false;
        // The system that has sent these requests is gone.
        self.drives.give_up();
        self.cpu.reset();
        if self.software.kernel().is_some() {
            self.memory.clear();
        } else {
            self.memory.reset_map();
        }
        self.board.reset(&mut self.memory, self.clock.now(self.cpu.instructions));
        if let Some(kernel) = self.software.kernel() {
            let rsdp = acpi::install(&mut self.memory, &self.config)?;
            smbios::install(&mut self.memory, &self.config)?;
            let seed = self.config.rng_seed;
            let seed = seed.map(|seed| linux::seed::after_resets(seed, self.stats.resets));
            let now = self.now();
            let video_memory = set_up::video_memory(&mut self.board, &mut self.memory, now);
            let (cpu, memory) = (&mut self.cpu, &mut self.memory);
            let mode = kernel::start(cpu, memory, kernel, rsdp, seed.as_ref(), video_memory)?;
            if let Some(mode) = mode {
                set_up::enter_mode(&mut self.board, &mut self.memory, now, mode);
            }
        }
        Ok(())
    }

    /// Resets the processor alone. Without firmware there is nothing at the reset vector, so everything is
    /// reset.
    fn reset_processor(&mut self) -> Result<(), VmError> {
        if self.software.kernel().is_some() {
            return self.reset();
        }
        self.cpu.init();
        let now = self.now();
        self.board.init_processor(&mut self.memory, now);
        Ok(())
    }

    /// Keeps all inputs from now on, for [`Vm::replay`].
    pub fn record(&mut self) {
        self.recording = Some(Vec::new());
    }

    /// Returns the inputs since [`Vm::record`]. They alone determine this run.
    pub fn recording(&self) -> &[StampedInput] {
        self.recording.as_deref().unwrap_or_default()
    }

    /// Writes all inputs from now on to `recorder`, which is finished when the run ends.
    pub fn record_to(&mut self, recorder: RecordingWriter) {
        self.recorder = Some(recorder);
    }

    /// Returns whether inputs are kept, so that the run can be repeated from them.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recording.is_some() || self.recorder.is_some() || self.flight.is_some()
    }

    /// Returns whether the run is recorded or its events are logged.
    pub(crate) fn is_logged(&self) -> bool {
        self.is_recorded() || self.event_log.is_some()
    }

    /// Returns whether the run is repeated from a recording.
    pub(crate) fn is_replayed(&self) -> bool {
        self.replay.is_some()
    }

    /// Returns whether a debugger can go back in this run.
    pub(crate) fn goes_back(&self) -> bool {
        self.goes_back
    }

    /// Logs all events from now on to `log`.
    pub fn log_events(&mut self, log: EventLog) {
        self.event_log = Some(log);
    }

    fn tell_log(&mut self, event: &LoggedEvent<'_>) {
        if let Some(log) = &mut self.event_log {
            let time = self.clock.now(self.cpu.instructions);
            log.tell(self.cpu.instructions, time, event);
        }
    }

    /// Returns an error if the event log, the trace or the recording could not be written, or if a replay has left its
    /// recording in the middle of a slice.
    fn check_files(&mut self) -> Result<(), VmError> {
        if let Some(error) = self.event_log.as_mut().and_then(EventLog::take_error) {
            return Err(VmError::EventLog(error));
        }
        if let Some(error) = self.system_calls.as_ref().and_then(SystemCallTrace::take_error) {
            return Err(VmError::SystemCalls(error));
        }
        if let Some(error) = self.recorder.as_mut().and_then(RecordingWriter::take_error) {
            return Err(error.into());
        }
        self.replay.as_mut().and_then(Replay::take_error).map_or(Ok(()), Err)
    }

    /// Ends the run: buffered output is written, and the event log and the recording are completed with the
    /// ending.
    fn finish(&mut self, ending: &Ending, console: &mut dyn Console) -> Result<(), VmError> {
        console.flush()?;
        self.tell_log(&LoggedEvent::End(ending));
        if let Some(mut log) = self.event_log.take() {
            log.finish().map_err(VmError::EventLog)?;
        }
        if let Some(trace) = self.system_calls.take() {
            trace.finish().map_err(VmError::SystemCalls)?;
        }
        if let Some(recorder) = self.recorder.take() {
            recorder.finish()?;
        }
        Ok(())
    }

    /// Returns the hashes of memory and of everything else.
    pub fn checkpoint(&mut self) -> Checkpoint {
        let parts = (self.save_processor(), self.board.save(), &self.clock, self.memory.save_map());
        Checkpoint::of(&self.memory, &parts)
    }

    /// Returns the virtual time of the next instruction.
    pub(crate) fn now(&self) -> Time {
        self.clock.now(self.cpu.instructions)
    }

    /// Accepts an input. Everything that is not determined passes here.
    pub(crate) fn take_input(&mut self, input: Input) -> Option<Ending> {
        let (instructions, time) = (self.cpu.instructions, self.now());
        let stamped = StampedInput { instructions, time, input };
        if let Some(recorder) = &mut self.recorder {
            recorder.write(&stamped);
        }
        if let Some(flight) = &mut self.flight {
            flight.note(&stamped);
        }
        if let Some(recording) = &mut self.recording {
            recording.push(stamped.clone());
        }
        let StampedInput { input, .. } = stamped;
        self.tell_log(&LoggedEvent::Input(&input));
        match input {
            Input::Device { device, input } => {
                let packet = match &input {
                    DeviceInput::Packet(packet) => Some((packet.bytes.len(), Instant::now())),
                    _ => None,
                };
                if let DeviceInput::Packet(packet) = &input {
                    self.taps.show(time, device, false, packet);
                }
                if let DeviceInput::Medium { medium: Some(medium), .. } = &input {
                    self.config.note_size(device, medium.sectors);
                }
                if let DeviceInput::Disk(answer) = &input {
                    self.drives.note_answer(device, answer);
                }
                self.board.input(
                    &mut self.memory,
                    self.clock.now(self.cpu.instructions),
                    device,
                    input,
                );
                if let Some((bytes, began)) = packet {
                    self.networks.note_packet(device, bytes, began);
                }
            }
            Input::Plug { device, card } => self.put_in(device, &card),
            Input::HostTime { time, picos_per_instruction } => {
                self.clock.set(self.cpu.instructions, time, picos_per_instruction);
                self.show_clock();
            }
            Input::HostClocks(HostClocks { time_stamp, seconds, microseconds }) => {
                let (low, high) = (time_stamp as u32, (time_stamp >> 32) as u32);
                self.cpu.answer_guest_tool([low, microseconds, seconds, high]);
            }
            Input::Reset => self.board.press_reset(),
            Input::Nmi => self.board.press_nmi(),
            Input::Checkpoint => self.cpu.translation_changed(),
            Input::Quit => return Some(Ending::Quit),
        }
        None
    }

    /// Shows the processor the clock, which was set: its time-stamp counter follows it.
    fn show_clock(&mut self) {
        self.cpu.clock = Some(self.clock.clone());
    }

    /// Hands on the outputs of the devices. Returns how they end the run, if they do.
    fn hand_out(&mut self, console: &mut dyn Console) -> Result<Option<Ending>, VmError> {
        self.check_files()?;
        let outputs = self.board.take_outputs();
        if outputs.is_empty() {
            return Ok(None);
        }
        let began = Instant::now();
        let mut ending = None;
        let mut serial: Vec<u8> = Vec::new();
        let mut serial_port = 0;
        let mut sent = false;
        for output in outputs {
            match output {
                Output::Serial { port, byte } => {
                    if port != serial_port && !serial.is_empty() {
                        self.send_serial(console, serial_port, &serial)?;
                        serial.clear();
                    }
                    serial_port = port;
                    serial.push(byte);
                }
                Output::DebugConsole(byte) => {
                    console.debug(byte)?;
                    ending = ending.or(self.listen_to_firmware(byte));
                }
                Output::Disk { drive, request } => self.ask_drive(drive, request)?,
                Output::Packet { device, packet } => {
                    self.taps.show(self.now(), device, true, &packet);
                    // In a replay packets need not be sent again.
                    if self.replay.is_none() {
                        self.networks.send(device, packet);
                        sent = true;
                    }
                }
                Output::Eject { slot } => self.take_out(slot),
                Output::Exit(status) => {
                    info!("the guest has ended the run with status {status}");
                    ending = Some(Ending::Exit(status));
                }
                Output::Channel { channel, event } => console.channel(channel, event)?,
                Output::ExtraMemory { bytes } => self.told_extra_memory = Some(bytes),
                Output::Balloon { pages } => self.told_balloon = Some(pages),
                Output::Failed(failure) => ending = self.hear_of(failure).or(ending),
                Output::PowerOff => {
                    info!("the guest has switched the machine off");
                    if self.config.stays_when_off {
                        self.is_off = true;
                    } else {
                        ending = Some(Ending::PowerOff);
                    }
                }
                Output::Reset | Output::ProcessorReset if !self.config.reboots => {
                    info!("the guest has asked for a reset");
                    ending = Some(Ending::Reset);
                }
                Output::Reset => {
                    self.note_reset("machine");
                    self.tell_log(&LoggedEvent::Reset);
                    self.reset()?;
                }
                Output::ProcessorReset => {
                    self.note_reset("processor");
                    self.tell_log(&LoggedEvent::ProcessorReset);
                    self.reset_processor()?;
                }
            }
        }
        if !serial.is_empty() {
            self.send_serial(console, serial_port, &serial)?;
        }
        if sent {
            for device in self.networks.flush() {
                self.take_input(Input::Device { device, input: DeviceInput::Congestion(true) });
            }
        }
        self.stats.back_end_done(began);
        Ok(ending)
    }

    /// Passes bytes of a serial port on: those of a card to its line, and those of the PC's own ports to `console`.
    fn send_serial(
        &mut self,
        console: &mut dyn Console,
        port: u8,
        bytes: &[u8],
    ) -> Result<(), VmError> {
        match self.serial_lines.get(port) {
            Some(line) => line.write(bytes)?,
            None => console.serial(port, bytes)?,
        }
        Ok(())
    }

    /// Passes a request of a device to its drive, and gives the device the answer, if that is there at once.
    fn ask_drive(&mut self, drive: DriveId, request: DiskRequest) -> Result<(), VmError> {
        let device = drive.device;
        // A card that is gone needs no answer any more.
        if !self.board.has(device) {
            return Ok(());
        }
        if let Some(replay) = &mut self.replay {
            if let Some(answer) = replay.take_answer(self.cpu.instructions, device, request.tag)? {
                self.take_input(answer);
            }
            return Ok(());
        }
        self.note_request(drive, &request);
        if let Some(answer) = self.drives.ask(drive, request) {
            self.take_input(Input::Device { device, input: DeviceInput::Disk(answer) });
        }
        Ok(())
    }

    /// Returns whether a timer is due now.
    fn has_due_timer(&self) -> bool {
        self.board.next_timer().is_some_and(|at| at <= self.now())
    }
}

#[cfg(test)]
mod tests;
