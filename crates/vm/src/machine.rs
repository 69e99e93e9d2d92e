//! The machine: processor, engine, memory and board, and the loop that runs them.

mod saved;

use std::fmt::{self, Display, Formatter};
use std::io;
use std::time::Instant;

use ring3_core::bus::PortConflict;
use ring3_core::clock::{Clock, Time};
use ring3_core::device::{DeviceId, Output};
use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, DiskRequest};
use ring3_core::display::Picture;
use ring3_core::input::{DeviceInput, Input, StampedInput};
use ring3_core::memory::{Memory, MemoryError};
use ring3_core::state::RestoreError;
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::report::CpuReport;
use thiserror::Error;
use tracing::{info, trace, warn};

use crate::acpi;
use crate::board::{Board, FirmwareParts, VideoParts};
use crate::config::{Config, ConfigError, Software};
use crate::control::{Event, MediumHeld, Request};
use crate::door::Door;
use crate::drives::{Drive, Drives, Empty};
use crate::engines::{self, EngineChoice, EngineError};
use crate::firmware::{self, FirmwareError};
use crate::host_fpu;
use crate::kernel;
use crate::linux::{self, LinuxError};
use crate::multiboot::MultibootError;
use crate::pace::{INITIAL_PICOS, Pace, Slack};
use crate::stats::Stats;
use ring3_devices::vga::VIDEO_MEMORY_LEN;

pub use saved::SavedMachine;

/// Why a machine cannot be made or cannot go on.
#[derive(Debug, Error)]
pub enum VmError {
    /// There can be no machine of that shape.
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
    /// The kernel cannot be booted.
    #[error("the kernel {0}")]
    Linux(#[from] LinuxError),
    /// The kernel, which has a Multiboot header, cannot be booted.
    #[error("the kernel {0}")]
    Multiboot(#[from] MultibootError),
    /// Two devices want the same port: a mistake in the board.
    #[error(transparent)]
    Board(#[from] PortConflict),
    /// The guest's output cannot be written.
    #[error(transparent)]
    Console(#[from] io::Error),
    /// A saved state cannot be taken over.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// A replay does not do what was recorded: it is of another guest or another version.
    #[error("the replay has left the recording after {0} instructions")]
    Diverged(u64),
}

/// What stands behind the machine's outputs.
pub trait Console {
    /// The guest has sent `bytes` on serial port `port` (0 is COM1).
    fn serial(&mut self, port: u8, bytes: &[u8]) -> io::Result<()>;

    /// The guest's firmware has sent a byte for those who debug it.
    fn debug(&mut self, _byte: u8) -> io::Result<()> {
        Ok(())
    }

    /// The guest may be silent for a while: what was held back must go out.
    fn flush(&mut self) -> io::Result<()>;
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The guest has switched the machine off.
    PowerOff,
    /// The person outside has ended the run.
    Quit,
    /// The guest has ended the run and gives this status.
    Exit(u8),
    /// The guest has asked for a reset, and [`Config::reboots`] says that this is the end.
    Reset,
    /// The processor cannot go on.
    Stopped(Report),
    /// The guest has halted with interrupts disabled, and [`Config::ends_when_stuck`] says that this is the end.
    Stuck,
}

/// Why the processor cannot go on, and its state, for a person to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    reason: String,
    cpu: CpuReport,
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.reason, self.cpu)
    }
}

/// A virtual machine.
pub struct Vm {
    config: Config,
    /// What it starts with.
    software: Software,
    cpu: Cpu,
    engine: Box<dyn Engine>,
    memory: Memory,
    board: Board,
    drives: Drives,
    clock: Clock,
    stats: Stats,
    /// The guest has switched it off, and that is not the end.
    is_off: bool,
    /// Drives are not asked: their answers are in the recording.
    replays: bool,
    /// All inputs so far, if they are to be kept.
    recording: Option<Vec<StampedInput>>,
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
    /// Makes a machine of that shape which starts with `software`, executed by the interpreter.
    pub fn new(config: Config, software: Software) -> Result<Vm, VmError> {
        Vm::with_engine(config, software, EngineChoice::Interpreter)
    }

    /// The same with a choice of engine.
    pub fn with_engine(
        config: Config,
        software: Software,
        engine: EngineChoice,
    ) -> Result<Vm, VmError> {
        let mut vm = Vm::assemble(config, software, engine)?;
        vm.reset()?;
        Ok(vm)
    }

    /// Puts its parts together, before anything has a state.
    fn assemble(config: Config, software: Software, engine: EngineChoice) -> Result<Vm, VmError> {
        if config.serial_ports > 4 {
            return Err(ConfigError::SerialPorts(config.serial_ports).into());
        }
        let (engine, mut memory) = engines::make(engine, config.memory_bytes)?;
        let mut video_rom = None;
        let firmware = match &software {
            Software::Firmware { image, video } => {
                let rom = firmware::load(&mut memory, image)?;
                if let Some(image) = video.as_ref().filter(|_| config.display) {
                    video_rom = Some(firmware::load_video(&mut memory, image)?);
                }
                Some(FirmwareParts { rom, fw_cfg: firmware::describe(&config) })
            }
            Software::Kernel(_) => None,
        };
        let video = config
            .display
            .then(|| VideoParts { memory: memory.add_area(VIDEO_MEMORY_LEN), rom: video_rom });
        let mut cpu = Cpu::of_model(config.cpu);
        let clock = Clock::new(INITIAL_PICOS);
        cpu.transcendental = host_fpu::execute;
        cpu.clock = Some(clock.clone());
        Ok(Vm {
            cpu,
            engine,
            memory,
            board: Board::new(&config, firmware, video.as_ref())?,
            drives: Drives::default(),
            clock,
            stats: Stats::default(),
            is_off: false,
            replays: false,
            recording: None,
            config,
            software,
        })
    }

    /// The name of the engine.
    pub fn engine(&self) -> &'static str {
        self.engine.name()
    }

    /// What has been counted so far.
    pub fn stats(&self) -> Stats {
        Stats {
            instructions: self.cpu.instructions,
            virtual_time: self.now(),
            engine: self.engine.counters(),
            ..self.stats.clone()
        }
    }

    /// Puts `drive` behind drive `unit` of the device `device`.
    pub fn attach_drive(&mut self, device: &str, unit: u8, drive: Box<dyn Drive>) {
        self.drives.attach(device, unit, drive);
    }

    /// What the display adapter shows.
    pub fn picture(&self) -> Option<Picture> {
        self.board.picture(&self.memory)
    }

    /// Guest-physical memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Resets the whole machine and brings it into the state in which the guest starts. With firmware, memory keeps
    /// what is in it.
    fn reset(&mut self) -> Result<(), VmError> {
        self.is_off = false;
        self.cpu.reset();
        if self.software.kernel().is_some() {
            self.memory.clear();
        } else {
            self.memory.reset_map();
        }
        self.board.reset(&mut self.memory, self.clock.now(self.cpu.instructions));
        if let Some(kernel) = self.software.kernel() {
            let rsdp = acpi::install(&mut self.memory, &self.config)?;
            let seed = self.config.rng_seed;
            let seed = seed.map(|seed| linux::seed::after_resets(seed, self.stats.resets));
            let (seed, has_display) = (seed.as_ref(), self.config.display);
            kernel::start(&mut self.cpu, &mut self.memory, kernel, rsdp, seed, has_display)?;
        }
        Ok(())
    }

    /// Resets the processor alone. Without firmware nothing is at the reset vector, and everything is reset.
    fn reset_processor(&mut self) -> Result<(), VmError> {
        if self.software.kernel().is_some() {
            return self.reset();
        }
        self.cpu.init();
        let now = self.now();
        self.board.init_processor(&mut self.memory, now);
        Ok(())
    }

    /// Runs the machine until it ends. Inputs and requests come by `door`, which then is of no more use; outputs go to
    /// `console`.
    pub fn run(&mut self, door: &mut Door, console: &mut dyn Console) -> Result<Ending, VmError> {
        let ended = self.run_to_end(door, console);
        self.stats.host_time = door.host_time();
        door.end(&match &ended {
            Ok(ending) => Event::Ended(ending.clone()),
            Err(error) => Event::Failed(error.to_string()),
        });
        ended
    }

    fn run_to_end(
        &mut self,
        door: &mut Door,
        console: &mut dyn Console,
    ) -> Result<Ending, VmError> {
        // A machine that was restored goes on from its own time.
        door.advance_to(self.now());
        let mut pace = Pace::new(door.host_time(), self.cpu.instructions);
        let mut slack = Slack::default();
        // After how many resets it was told that the guest is stuck.
        let mut told_stuck = None;
        let ending = loop {
            self.answer_requests(door);
            let paused = door.is_paused();
            let look = if paused {
                self.stand_still()
            } else {
                let tick = self.board.next_tick();
                pace.look(&self.clock, door.host_time(), self.cpu.instructions, tick)
            };
            let mut ending = self.take_input(&look);
            let mut reset_by_guest = true;
            while let Some(input) = door.take(|input| accepts(&self.board, input)) {
                slack.input();
                match input {
                    Input::Reset => reset_by_guest = false,
                    Input::Device { input: DeviceInput::PowerButton, .. } => {
                        door.tell(&Event::PowerButton);
                    }
                    _ => {}
                }
                ending = ending.or(self.take_input(&input));
            }
            let slice = if paused { 0 } else { pace.interval() };
            let slice_end = self.cpu.instructions + slice;
            ending = ending.or_else(|| self.run_slice(slice_end));
            let resets = self.stats.resets;
            let ended = self.hand_out(console)?;
            if door.is_off() && !self.is_off {
                door.switch_on();
            }
            if self.stats.resets != resets {
                door.tell(&Event::Reset { by_guest: reset_by_guest });
            }
            if let Some(ending) = ended.or(ending) {
                break ending;
            }
            if self.is_off && !door.is_off() {
                door.switch_off();
            }
            if door.is_paused() {
                console.flush()?;
                door.wait(None, |input| accepts(&self.board, input));
            } else if self.is_idle() {
                console.flush()?;
                if self.is_stuck() {
                    if self.config.ends_when_stuck {
                        break Ending::Stuck;
                    }
                    if told_stuck != Some(self.stats.resets) {
                        warn!(
                            "the guest has halted with interrupts disabled: only a reset can wake it up"
                        );
                        told_stuck = Some(self.stats.resets);
                    }
                }
                self.sleep(door, slack.sleep(self.cpu.instructions));
                pace.woke(door.host_time(), self.cpu.instructions);
            }
        };
        console.flush()?;
        Ok(ending)
    }

    /// Answers what was asked of the machine, which does not change the guest.
    fn answer_requests(&mut self, door: &mut Door) {
        for request in door.take_requests() {
            match request {
                Request::Pause(reply) => {
                    door.pause();
                    reply.answer(());
                }
                Request::Resume(reply) => {
                    door.resume();
                    reply.answer(());
                }
                Request::Picture(reply) => reply.answer(self.picture()),
                Request::ChangeMedium { device, unit, drive, force, reply } => {
                    reply.answer(self.change_medium(device, unit, drive, force));
                }
                Request::Drives(reply) => {
                    let mut drives = self.drives.describe(&self.config);
                    for drive in &mut drives {
                        drive.locked = self.board.holds_medium(&drive.device, drive.unit);
                    }
                    reply.answer(drives);
                }
                Request::Stats(reply) => {
                    let stats = Stats { host_time: door.host_time(), ..self.stats() };
                    reply.answer(Box::new(stats));
                }
            }
        }
    }

    /// Changes the medium of a drive. One that the guest holds is changed by `force`; else the guest is asked for it.
    fn change_medium(
        &mut self,
        device: String,
        unit: u8,
        drive: Box<dyn Drive>,
        force: bool,
    ) -> Result<(), MediumHeld> {
        let held = !force && self.board.holds_medium(&device, unit);
        let input = if held {
            DeviceInput::EjectRequest { unit }
        } else {
            let medium = drive.medium();
            self.drives.attach(&device, unit, drive);
            DeviceInput::Medium { unit, medium }
        };
        // An input of a device never ends the run.
        self.take_input(&Input::Device { name: device, input });
        if held { Err(MediumHeld) } else { Ok(()) }
    }

    /// What a machine that is paused takes in the place of a look at the host's clock: that it is as late as it was. A
    /// replay then ends a slice where this run did.
    fn stand_still(&self) -> Input {
        let picos_per_instruction = self.clock.picos_per_instruction();
        Input::HostTime { time: self.now(), picos_per_instruction }
    }

    /// Keeps all inputs from now on, for [`Vm::replay`].
    pub fn record(&mut self) {
        self.recording = Some(Vec::new());
    }

    /// The inputs since [`Vm::record`], which are all that made this run what it is.
    pub fn recording(&self) -> &[StampedInput] {
        self.recording.as_deref().unwrap_or_default()
    }

    /// Repeats a run, from power-on or from where the machine was saved, with the inputs that were recorded; outputs go to
    /// `console` again. Host time plays no part; the host's x87 does (the last bits of its
    /// transcendental functions), so the host's processor is to be of the same design.
    pub fn replay(
        &mut self,
        recording: &[StampedInput],
        console: &mut dyn Console,
    ) -> Result<Ending, VmError> {
        self.replays = true;
        for (index, StampedInput { instructions, input }) in recording.iter().enumerate() {
            // The run looked at the host's clock at the end of each slice; drives answered there too.
            let at_slice_end = index > 0 && matches!(input, Input::HostTime { .. });
            if (at_slice_end || self.cpu.instructions < *instructions)
                && let Some(ending) = self.replay_until(*instructions, console)?
            {
                return Ok(ending);
            }
            if self.cpu.instructions != *instructions {
                return Err(VmError::Diverged(self.cpu.instructions));
            }
            if let Some(ending) = self.take_input(input) {
                return Ok(ending);
            }
        }
        self.replay_until(u64::MAX, console)?.ok_or(VmError::Diverged(self.cpu.instructions))
    }

    /// Runs until `instructions` instructions or until the guest is idle.
    fn replay_until(
        &mut self,
        instructions: u64,
        console: &mut dyn Console,
    ) -> Result<Option<Ending>, VmError> {
        loop {
            let before = self.cpu.instructions;
            let ended = self.run_slice(instructions);
            if let Some(ending) = self.hand_out(console)?.or(ended) {
                return Ok(Some(ending));
            }
            if self.cpu.instructions >= instructions || self.cpu.instructions == before {
                return Ok(None);
            }
        }
    }

    /// The virtual time of the instruction that is executed next.
    fn now(&self) -> Time {
        self.clock.now(self.cpu.instructions)
    }

    /// Takes an input in: all that is not determined passes here.
    fn take_input(&mut self, input: &Input) -> Option<Ending> {
        if let Some(recording) = &mut self.recording {
            let instructions = self.cpu.instructions;
            recording.push(StampedInput { instructions, input: input.clone() });
        }
        match input {
            Input::Device { name, input } => {
                self.board.input(
                    &mut self.memory,
                    self.clock.now(self.cpu.instructions),
                    name,
                    input,
                );
            }
            Input::HostTime { time, picos_per_instruction } => {
                self.clock.set(self.cpu.instructions, *time, *picos_per_instruction);
                self.cpu.clock = Some(self.clock.clone());
            }
            Input::Reset => self.board.press_reset(),
            Input::Quit => return Some(Ending::Quit),
        }
        None
    }

    /// Hands the outputs of the devices on.
    fn hand_out(&mut self, console: &mut dyn Console) -> Result<Option<Ending>, VmError> {
        let outputs = self.board.take_outputs();
        if outputs.is_empty() {
            return Ok(None);
        }
        let began = Instant::now();
        let mut ending = None;
        let mut serial: Vec<u8> = Vec::new();
        let mut serial_port = 0;
        for output in outputs {
            match output {
                Output::Serial { port, byte } => {
                    if port != serial_port && !serial.is_empty() {
                        console.serial(serial_port, &serial)?;
                        serial.clear();
                    }
                    serial_port = port;
                    serial.push(byte);
                }
                Output::DebugConsole(byte) => console.debug(byte)?,
                Output::Disk { device, unit, request } => self.ask_drive(device, unit, &request),
                Output::Exit(status) => {
                    info!("the guest has ended the run with status {status}");
                    ending = Some(Ending::Exit(status));
                }
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
                    info!("the guest has reset the machine");
                    self.stats.resets += 1;
                    self.reset()?;
                }
                Output::ProcessorReset => {
                    info!("the guest has reset the processor");
                    self.stats.resets += 1;
                    self.reset_processor()?;
                }
            }
        }
        if !serial.is_empty() {
            console.serial(serial_port, &serial)?;
        }
        self.stats.back_end_done(began);
        Ok(ending)
    }

    /// Has a drive do what its device asks, and gives it the answer.
    fn ask_drive(&mut self, device: DeviceId, unit: u8, request: &DiskRequest) {
        if self.replays {
            return;
        }
        let name = self.board.name(device).to_owned();
        let result = match self.drives.find(&name, unit) {
            Some(drive) => drive.execute(&request.operation),
            None => Err(DiskError::NoMedium),
        };
        if request.operation == DiskOperation::Eject && result.is_ok() {
            self.drives.attach(&name, unit, Box::new(Empty));
        }
        let answer = DiskAnswer { tag: request.tag, result };
        self.take_input(&Input::Device { name, input: DeviceInput::Disk(answer) });
    }

    /// True when nothing happens before an input or a timer.
    fn is_idle(&self) -> bool {
        self.cpu.is_halted() && !(self.cpu.interrupt_pin && self.cpu.is_interruptible())
    }

    /// True when the processor is halted and takes no interrupts. (An NMI would still wake it up; systems that wait for one
    /// are not known.)
    fn is_stuck(&self) -> bool {
        self.cpu.is_halted() && !self.cpu.eflags().contains(Eflags::IF)
    }

    /// Sleeps until the next timer is due, and up to `slack` nanoseconds longer, or
    /// until an input has come. Returns at once when that timer is late already.
    fn sleep(&mut self, door: &mut Door, slack: u64) {
        let until = self.board.next_timer();
        let slept_from = door.host_time();
        if until.is_some_and(|until| until <= slept_from) {
            return;
        }
        trace!(instructions = self.cpu.instructions, ?until, "idle");
        self.stats.sleeps += 1;
        let board = &self.board;
        door.wait(until.map(|at| at.plus_nanos(slack)), |input| accepts(board, input));
        self.stats.asleep_nanos += door.host_time().nanos_since(slept_from);
    }

    /// Runs the guest until `slice_end` instructions, until it is idle, or until it has
    /// something to tell the world that cannot wait.
    fn run_slice(&mut self, slice_end: u64) -> Option<Ending> {
        let mut slice_end = slice_end;
        // A slice begins between two instructions: what an OUT does to this line comes after the OUT.
        self.cpu.set_a20(self.board.a20());
        loop {
            let now = self.now();
            if self.board.next_timer().is_some_and(|at| at <= now) {
                let called = self.stats.device_called();
                self.board.fire_timers(&mut self.memory, now);
                self.stats.device_done(called);
            }
            if self.board.take_nmi() {
                self.cpu.raise_nmi();
            }
            self.cpu.interrupt_pin = self.board.interrupt_requested();
            let executed = self.cpu.instructions;
            let timer = self.board.next_timer();
            let timer = timer.map_or(u64::MAX, |at| self.clock.instructions_at(at, executed));
            let budget = slice_end.min(timer).saturating_sub(executed);
            if budget == 0 && executed >= slice_end {
                return None;
            }
            let exit = self.engine.run(&mut self.cpu, &mut self.memory, budget);
            self.stats.count(&exit);
            match exit {
                Exit::Deadline => {}
                Exit::Halt => return None,
                Exit::PortRead { port, width } => {
                    let now = self.now();
                    let called = self.stats.device_called();
                    let value = self.board.read_port(&mut self.memory, now, port, width);
                    self.stats.device_done(called);
                    self.cpu.answer(value.into());
                }
                Exit::PortWrite { port, width, value } => {
                    let now = self.now();
                    let called = self.stats.device_called();
                    self.board.write_port(&mut self.memory, now, port, width, value);
                    self.stats.device_done(called);
                    if self.board.take_ignne() {
                        self.cpu.ignore_numeric_error();
                    }
                    self.cpu.answer(0);
                }
                Exit::MmioRead { address, width } => {
                    let now = self.now();
                    let called = self.stats.device_called();
                    let value = self.board.read_memory(&mut self.memory, now, address, width);
                    self.stats.device_done(called);
                    self.cpu.answer(value.into());
                }
                Exit::MmioWrite { address, width, value } => {
                    let now = self.now();
                    let called = self.stats.device_called();
                    self.board.write_memory(&mut self.memory, now, address, width, value);
                    self.stats.device_done(called);
                    self.cpu.answer(0);
                }
                Exit::NumericError => {
                    let now = self.now();
                    self.board.assert_ferr(&mut self.memory, now);
                }
                Exit::TimeStamp => self.cpu.answer(self.now().as_nanos()),
                Exit::ApicBase { value } => {
                    let now = self.now();
                    self.board.set_apic_base(&mut self.memory, now, value);
                    self.cpu.answer(0);
                }
                Exit::InterruptWindow => {
                    let vector = self.board.acknowledge_interrupt();
                    self.cpu.inject(vector);
                }
                Exit::Shutdown if self.config.reboots => {
                    self.triple_fault();
                    self.board.reset_processor();
                    return None;
                }
                Exit::Shutdown => return Some(self.stopped("triple fault".to_owned())),
                Exit::Missing(missing) => {
                    let reason = format!("{missing} is not implemented");
                    return Some(self.stopped(reason));
                }
            }
            if self.board.has_urgent_outputs() || self.board.a20() != self.cpu.a20() {
                // Not at once: a slice ends between two instructions.
                slice_end = slice_end.min(self.cpu.instructions + 1);
            }
        }
    }

    /// Says that the processor has shut down, which the chipset answers by a reset of it. To some guests that is a way
    /// into real mode; a kernel that is started without firmware has failed.
    fn triple_fault(&self) {
        if self.software.kernel().is_some() {
            warn!("triple fault: the machine starts again");
        } else {
            info!("triple fault: the processor starts again");
        }
    }

    fn stopped(&mut self, reason: String) -> Ending {
        let cpu = self.cpu.report(&self.memory);
        Ending::Stopped(Report { reason, cpu })
    }
}

/// True when `input` can be taken now.
fn accepts(board: &Board, input: &Input) -> bool {
    match input {
        Input::Device { name, .. } => board.takes_input(name),
        Input::HostTime { .. } | Input::Reset | Input::Quit => true,
    }
}

#[cfg(test)]
mod tests;
