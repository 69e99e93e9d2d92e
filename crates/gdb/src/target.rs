//! What a debugger asks of the machine, as `gdbstub` passes it on.

use std::sync::mpsc::Sender;

use gdbstub::common::Signal;
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::reverse_exec::{
    ReverseCont, ReverseContOps, ReverseStep, ReverseStepOps,
};
use gdbstub::target::ext::base::singlethread::{
    SingleThreadBase, SingleThreadResume, SingleThreadResumeOps, SingleThreadSingleStep,
    SingleThreadSingleStepOps,
};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, HwWatchpoint, HwWatchpointOps,
    SwBreakpoint, SwBreakpointOps, WatchKind,
};
use gdbstub::target::ext::monitor_cmd::{ConsoleOutput, MonitorCmd, MonitorCmdOps};
use gdbstub::target::ext::target_description_xml_override::{
    TargetDescriptionXmlOverride, TargetDescriptionXmlOverrideOps,
};
use gdbstub::target::{Target, TargetError, TargetResult};
use ring3_vm::control::Ended;
use ring3_vm::debug::{DebugError, Run, Stop, Waiter, Watched, Watchpoint};
use ring3_vm::inspect::MemoryRange;

use crate::machine::Machine;
use crate::packets::Settings;
use crate::registers::{self, File, X86};
use crate::server::Monitor;
use crate::session::Event;

/// The most breakpoints, and the most watchpoints, at a time.
const POINTS_MAX: usize = 256;
/// The most bytes that one watchpoint covers.
const WATCHED_MAX: u64 = 1 << 20;

/// ENOENT, EFAULT, EINVAL and EROFS, as the protocol numbers errors.
const NO_SUCH_FILE: u8 = 2;
const NOT_MAPPED: u8 = 14;
const REFUSED: u8 = 22;
const RECORDED: u8 = 30;

/// The machine with what the debugger has set.
pub(crate) struct Debugged<M> {
    pub(crate) machine: M,
    pub(crate) settings: Settings,
    /// Whether the machine can go back.
    pub(crate) goes_back: bool,
    /// How the registers are described.
    description: &'static str,
    monitor: Monitor,
    /// Linear addresses of breakpoints, each once for each time it was set.
    software: Vec<u64>,
    hardware: Vec<u64>,
    watchpoints: Vec<Watchpoint>,
    events: Sender<Event>,
    /// The number of the present run.
    pub(crate) run: u64,
}

impl<M: Machine> Debugged<M> {
    pub(crate) fn new(
        mut machine: M,
        monitor: Monitor,
        events: Sender<Event>,
    ) -> Result<Debugged<M>, Ended> {
        Ok(Debugged {
            goes_back: machine.goes_back(),
            description: registers::description(machine.registers()?.has_long_mode),
            machine,
            settings: Settings::default(),
            monitor,
            software: Vec::new(),
            hardware: Vec::new(),
            watchpoints: Vec::new(),
            events,
            run: 0,
        })
    }

    /// Returns whether the next instruction has a hardware breakpoint, rather than a software one.
    pub(crate) fn is_at_hardware_breakpoint(&mut self) -> Result<bool, Ended> {
        let ip = self.machine.registers()?.ip;
        Ok(self.hardware.contains(&ip) && !self.software.contains(&ip))
    }

    /// Returns all breakpoints and all watchpoints.
    fn points(&self) -> (Vec<u64>, Vec<Watchpoint>) {
        ([&self.software[..], &self.hardware].concat(), self.watchpoints.clone())
    }

    fn start(&mut self, run: Run) -> Result<(), Ended> {
        self.run += 1;
        let mut teller = Teller { run: self.run, events: Some(self.events.clone()) };
        self.machine.debug(run, Waiter::new(move |stop| teller.tell(stop)))
    }

    fn range(&self, address: u64, len: usize) -> MemoryRange {
        MemoryRange { address, len, is_linear: !self.settings.is_physical }
    }
}

/// Tells the session that the machine stands still, or that it will never say so.
struct Teller {
    run: u64,
    events: Option<Sender<Event>>,
}

impl Teller {
    fn tell(&mut self, stop: Stop) {
        if let Some(events) = self.events.take() {
            // A session that is over needs to know nothing.
            let _ = events.send(Event::Stopped(self.run, stop));
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        if let Some(events) = self.events.take() {
            let _ = events.send(Event::Gone(self.run));
        }
    }
}

/// Turns a refusal into an error that the debugger shows.
fn refusal(error: DebugError) -> TargetError<Ended> {
    match error {
        DebugError::Ended(ended) => TargetError::Fatal(ended),
        DebugError::Register => TargetError::Errno(REFUSED),
        DebugError::NotMapped => TargetError::Errno(NOT_MAPPED),
        DebugError::Recorded => TargetError::Errno(RECORDED),
    }
}

impl<M: Machine> Target for Debugged<M> {
    type Arch = X86;
    type Error = Ended;

    fn base_ops(&mut self) -> BaseOps<'_, X86, Ended> {
        BaseOps::SingleThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_monitor_cmd(&mut self) -> Option<MonitorCmdOps<'_, Self>> {
        Some(self)
    }

    fn support_target_description_xml_override(
        &mut self,
    ) -> Option<TargetDescriptionXmlOverrideOps<'_, Self>> {
        Some(self)
    }
}

impl<M: Machine> TargetDescriptionXmlOverride for Debugged<M> {
    fn target_description_xml(
        &self,
        annex: &[u8],
        offset: u64,
        length: usize,
        buffer: &mut [u8],
    ) -> TargetResult<usize, Self> {
        if annex != b"target.xml" {
            return Err(TargetError::Errno(NO_SUCH_FILE));
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = self.description.as_bytes().get(start..).unwrap_or_default();
        let part = &rest[..rest.len().min(length).min(buffer.len())];
        buffer[..part.len()].copy_from_slice(part);
        Ok(part.len())
    }
}

impl<M: Machine> SingleThreadBase for Debugged<M> {
    fn read_registers(&mut self, registers: &mut File) -> TargetResult<(), Self> {
        registers.0 = self.machine.registers().map_err(TargetError::Fatal)?;
        Ok(())
    }

    fn write_registers(&mut self, registers: &File) -> TargetResult<(), Self> {
        self.machine.set_registers(registers.0.clone()).map_err(refusal)
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8]) -> TargetResult<usize, Self> {
        let mut done = 0;
        while done < data.len() {
            let at = start.wrapping_add(done as u64);
            let count = (data.len() - done).min(0x1000 - (at & 0xfff) as usize);
            let range = self.range(at, count);
            let Some(bytes) = self.machine.read(range).map_err(TargetError::Fatal)? else { break };
            data[done..done + count].copy_from_slice(&bytes);
            done += count;
        }
        if done == 0 && !data.is_empty() { Err(TargetError::Errno(NOT_MAPPED)) } else { Ok(done) }
    }

    fn write_addrs(&mut self, start: u64, data: &[u8]) -> TargetResult<(), Self> {
        let range = self.range(start, data.len());
        self.machine.write(range, data.to_vec()).map_err(refusal)
    }

    fn support_resume(&mut self) -> Option<SingleThreadResumeOps<'_, Self>> {
        Some(self)
    }
}

impl<M: Machine> SingleThreadResume for Debugged<M> {
    fn resume(&mut self, _signal: Option<Signal>) -> Result<(), Ended> {
        let (breakpoints, watchpoints) = self.points();
        self.start(Run::Until { breakpoints, watchpoints })
    }

    fn support_single_step(&mut self) -> Option<SingleThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_reverse_cont(&mut self) -> Option<ReverseContOps<'_, (), Self>> {
        if self.goes_back { Some(self) } else { None }
    }

    fn support_reverse_step(&mut self) -> Option<ReverseStepOps<'_, (), Self>> {
        if self.goes_back { Some(self) } else { None }
    }
}

impl<M: Machine> ReverseCont<()> for Debugged<M> {
    fn reverse_cont(&mut self) -> Result<(), Ended> {
        let (breakpoints, watchpoints) = self.points();
        self.start(Run::Back { breakpoints, watchpoints })
    }
}

impl<M: Machine> ReverseStep<()> for Debugged<M> {
    fn reverse_step(&mut self, (): ()) -> Result<(), Ended> {
        self.start(Run::StepBack)
    }
}

impl<M: Machine> SingleThreadSingleStep for Debugged<M> {
    fn step(&mut self, _signal: Option<Signal>) -> Result<(), Ended> {
        self.start(Run::Step(self.settings.interrupts()))
    }
}

impl<M: Machine> Breakpoints for Debugged<M> {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

/// Adds `point` to `points`, if there is room.
fn add<T>(points: &mut Vec<T>, point: T) -> bool {
    let has_room = points.len() < POINTS_MAX;
    if has_room {
        points.push(point);
    }
    has_room
}

/// Removes `point` once, and returns whether it was there.
fn remove<T: PartialEq>(points: &mut Vec<T>, point: &T) -> bool {
    let found = points.iter().position(|other| other == point);
    found.map(|index| points.remove(index)).is_some()
}

// No breakpoint changes memory, so the two kinds differ only in what the debugger is told.
impl<M: Machine> SwBreakpoint for Debugged<M> {
    fn add_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        Ok(add(&mut self.software, address))
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        Ok(remove(&mut self.software, &address))
    }
}

impl<M: Machine> HwBreakpoint for Debugged<M> {
    fn add_hw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        Ok(add(&mut self.hardware, address))
    }

    fn remove_hw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        Ok(remove(&mut self.hardware, &address))
    }
}

fn watchpoint(linear: u64, len: u64, kind: WatchKind) -> Watchpoint {
    let watched = match kind {
        WatchKind::Write => Watched::Writes,
        WatchKind::Read => Watched::Reads,
        WatchKind::ReadWrite => Watched::Accesses,
    };
    Watchpoint { linear, len: len as u32, watched }
}

impl<M: Machine> HwWatchpoint for Debugged<M> {
    fn add_hw_watchpoint(
        &mut self,
        address: u64,
        len: u64,
        kind: WatchKind,
    ) -> TargetResult<bool, Self> {
        let is_possible = (1..=WATCHED_MAX).contains(&len);
        Ok(is_possible && add(&mut self.watchpoints, watchpoint(address, len, kind)))
    }

    fn remove_hw_watchpoint(
        &mut self,
        address: u64,
        len: u64,
        kind: WatchKind,
    ) -> TargetResult<bool, Self> {
        let is_possible = (1..=WATCHED_MAX).contains(&len);
        Ok(is_possible && remove(&mut self.watchpoints, &watchpoint(address, len, kind)))
    }
}

impl<M: Machine> MonitorCmd for Debugged<M> {
    fn handle_monitor_cmd(
        &mut self,
        command: &[u8],
        mut out: ConsoleOutput<'_>,
    ) -> Result<(), Ended> {
        let answer = match std::str::from_utf8(command) {
            Ok(command) => (self.monitor)(command),
            Err(_) => "this is no text\n".to_owned(),
        };
        out.write_raw(answer.as_bytes());
        Ok(())
    }
}
