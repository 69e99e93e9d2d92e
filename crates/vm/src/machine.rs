//! The machine: processor, engine, memory and board, and the loop that runs them.

use std::fmt::{self, Display, Formatter};
use std::io;

use ring3_core::bus::PortConflict;
use ring3_core::clock::{Clock, Time};
use ring3_core::device::Output;
use ring3_core::input::Input;
use ring3_core::memory::{Memory, MemoryError, PageKind};
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::interpreter::Interpreter;
use ring3_x86::report::CpuReport;
use ring3_x86::segment::TableRegister;
use thiserror::Error;
use tracing::{debug, info, trace};

use crate::acpi;
use crate::board::Board;
use crate::door::Door;
use crate::linux::{self, LinuxError, LinuxImage};
use crate::pace::{INITIAL_PICOS, Pace, Slack};
use crate::stats::Stats;

/// What a machine is made of.
#[derive(Debug, Clone)]
pub struct Config {
    /// Size of RAM in bytes, a multiple of 4 KiB from 1 MiB to 3 GiB.
    pub memory_bytes: u64,
    /// The contents of a Linux kernel file (bzImage).
    pub kernel: Vec<u8>,
    /// The contents of an initial RAM disk.
    pub initrd: Option<Vec<u8>>,
    /// The kernel's command line.
    pub command_line: String,
    /// What the machine's clock says at power-on, in seconds since 1970.
    pub rtc_base: u64,
}

/// Why a machine cannot be made or cannot go on.
#[derive(Debug, Error)]
pub enum VmError {
    /// The size of memory is wrong.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The kernel cannot be booted.
    #[error("the kernel {0}")]
    Linux(#[from] LinuxError),
    /// Two devices want the same port: a mistake in the board.
    #[error(transparent)]
    Board(#[from] PortConflict),
    /// The guest's output cannot be written.
    #[error(transparent)]
    Console(#[from] io::Error),
}

/// What stands behind the machine's outputs.
pub trait Console {
    /// The guest has sent `bytes` on serial port `port` (0 is COM1).
    fn serial(&mut self, port: u8, bytes: &[u8]) -> io::Result<()>;

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
    /// The processor cannot go on.
    Stopped(Report),
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

/// Memory between 640 KiB and 768 KiB is the display adapter's.
const DISPLAY_MEMORY: std::ops::Range<u64> = 0xa0000..0xc0000;

/// Where nothing answers, reads give ones.
const OPEN_BUS: u64 = u64::MAX;

/// A virtual machine.
pub struct Vm {
    config: Config,
    cpu: Cpu,
    engine: Box<dyn Engine>,
    memory: Memory,
    board: Board,
    clock: Clock,
    stats: Stats,
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
    /// Makes a machine and loads its kernel.
    pub fn new(config: Config) -> Result<Vm, VmError> {
        let mut vm = Vm {
            cpu: Cpu::new(),
            engine: Box::new(Interpreter::new()),
            memory: Memory::new(config.memory_bytes)?,
            board: Board::new(config.memory_bytes, config.rtc_base)?,
            clock: Clock::new(INITIAL_PICOS),
            stats: Stats::default(),
            config,
        };
        vm.power_on()?;
        Ok(vm)
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

    /// Guest-physical memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Brings everything into the state in which the kernel starts.
    fn power_on(&mut self) -> Result<(), VmError> {
        let instructions = self.cpu.instructions;
        self.cpu = Cpu::new();
        self.cpu.instructions = instructions;
        self.memory.clear();
        let display_bytes = DISPLAY_MEMORY.end - DISPLAY_MEMORY.start;
        self.memory.set_kind(DISPLAY_MEMORY.start, display_bytes, PageKind::Device)?;
        self.board.reset(&mut self.memory, self.clock.now(instructions));
        let rsdp = acpi::install(&mut self.memory)?;
        let image = LinuxImage {
            kernel: &self.config.kernel,
            initrd: self.config.initrd.as_deref(),
            command_line: &self.config.command_line,
        };
        let entry = linux::load(&mut self.memory, &image, Some(rsdp))?;
        self.cpu.set_flat_entry(entry.code_selector, entry.data_selector, entry.eip);
        for register in reg::AX..=reg::DI {
            self.cpu.set_gpr(register, 0);
        }
        self.cpu.set_gpr(reg::SI, entry.esi.into());
        self.cpu.gdtr = TableRegister { base: entry.gdt_base.into(), limit: entry.gdt_limit };
        Ok(())
    }

    /// Runs the machine until it ends. Inputs come by `door`, outputs go to `console`.
    pub fn run(&mut self, door: &mut Door, console: &mut dyn Console) -> Result<Ending, VmError> {
        let mut pace = Pace::new(door.host_time(), self.cpu.instructions);
        let mut slack = Slack::default();
        let ending = loop {
            let tick = self.board.next_tick();
            let look = pace.look(&self.clock, door.host_time(), self.cpu.instructions, tick);
            let mut ending = self.take_input(&look);
            while let Some(input) = door.take(|input| accepts(&self.board, input)) {
                slack.input();
                ending = ending.or(self.take_input(&input));
            }
            let slice_end = self.cpu.instructions + pace.interval();
            ending = ending.or_else(|| self.run_slice(slice_end));
            if let Some(ending) = self.hand_out(console)?.or(ending) {
                break ending;
            }
            if self.is_idle() {
                console.flush()?;
                self.sleep(door, slack.sleep(self.cpu.instructions));
                pace.woke(door.host_time(), self.cpu.instructions);
            }
        };
        console.flush()?;
        self.stats.host_time = door.host_time();
        Ok(ending)
    }

    /// The virtual time of the instruction that is executed next.
    fn now(&self) -> Time {
        self.clock.now(self.cpu.instructions)
    }

    /// Takes an input in: all that is not determined passes here.
    fn take_input(&mut self, input: &Input) -> Option<Ending> {
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
            }
            Input::Quit => return Some(Ending::Quit),
        }
        None
    }

    /// Hands the outputs of the devices on.
    fn hand_out(&mut self, console: &mut dyn Console) -> Result<Option<Ending>, VmError> {
        let mut ending = None;
        let mut serial: Vec<u8> = Vec::new();
        let mut serial_port = 0;
        for output in self.board.take_outputs() {
            match output {
                Output::Serial { port, byte } => {
                    if port != serial_port && !serial.is_empty() {
                        console.serial(serial_port, &serial)?;
                        serial.clear();
                    }
                    serial_port = port;
                    serial.push(byte);
                }
                Output::PowerOff => {
                    info!("the guest has switched the machine off");
                    ending = Some(Ending::PowerOff);
                }
                Output::Reset => {
                    info!("the guest has reset the machine");
                    self.stats.resets += 1;
                    self.power_on()?;
                }
            }
        }
        if !serial.is_empty() {
            console.serial(serial_port, &serial)?;
        }
        Ok(ending)
    }

    /// True when nothing happens before an input or a timer.
    fn is_idle(&self) -> bool {
        self.cpu.is_halted() && !(self.cpu.interrupt_pin && self.cpu.is_interruptible())
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
        loop {
            let now = self.now();
            if self.board.next_timer().is_some_and(|at| at <= now) {
                self.board.fire_timers(&mut self.memory, now);
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
                    let value = self.board.read_port(&mut self.memory, now, port, width);
                    self.cpu.answer(value.into());
                }
                Exit::PortWrite { port, width, value } => {
                    let now = self.now();
                    self.board.write_port(&mut self.memory, now, port, width, value);
                    self.cpu.answer(0);
                }
                Exit::MmioRead { address, width } => {
                    debug!("a read of {width:?} at {address:#x}, where nothing is");
                    self.cpu.answer(OPEN_BUS);
                }
                Exit::MmioWrite { address, width, .. } => {
                    debug!("a write of {width:?} at {address:#x}, where nothing is");
                    self.cpu.answer(0);
                }
                Exit::TimeStamp => self.cpu.answer(time_stamp(self.now())),
                Exit::InterruptWindow => {
                    let vector = self.board.acknowledge_interrupt();
                    self.cpu.inject(vector);
                }
                Exit::Shutdown => return Some(self.stopped("triple fault".to_owned())),
                Exit::Missing(missing) => {
                    let reason = format!("{missing} is not implemented");
                    return Some(self.stopped(reason));
                }
            }
            if self.board.has_urgent_outputs() {
                return None;
            }
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
        Input::HostTime { .. } | Input::Quit => true,
    }
}

/// The time-stamp counter counts at 1 GHz of virtual time from power-on.
fn time_stamp(now: Time) -> u64 {
    now.as_nanos()
}
