//! Breakpoints and watchpoints of a debugger outside the guest.
//!
//! They are no part of the processor: the guest's debug registers ([`crate::debug`]) stay its own, and memory
//! reads as before. Engines leave with [`Exit::Debugger`](crate::engine::Exit::Debugger), before an
//! instruction with a breakpoint and after one that touches watched memory.
//!
//! * **Breakpoints** are planted in decoded or translated code, so that everything else runs at full speed.
//! * **Pages with watched memory** stay out of the TLB's quick path and out of the translator's windows, as
//!   pages with the guest's own breakpoints on data do. An instruction in the middle of a block that touches
//!   watched memory stops and is executed again, alone.

use std::mem;

use crate::cpu::{Attention, Cpu, reg};
use crate::decode::Op;
use crate::exception::{Stop, Stopped};
use crate::interrupt::{Event, Source};
use ring3_core::memory::Memory;

/// The accesses for which a watchpoint waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watched {
    /// Writes.
    Writes,
    /// Reads.
    Reads,
    /// Both.
    Accesses,
}

/// Memory whose accesses stop the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watchpoint {
    /// The linear address of its first byte.
    pub linear: u64,
    /// Number of bytes, at least one.
    pub len: u32,
    /// The accesses that count.
    pub watched: Watched,
}

impl Watchpoint {
    /// Returns whether it covers any of the `size` bytes at `linear`.
    fn covers(&self, linear: u64, size: u64) -> bool {
        // Addresses go round at the end of the address space.
        self.linear.wrapping_sub(linear) < size
            || linear.wrapping_sub(self.linear) < u64::from(self.len)
    }
}

/// Why the guest was stopped for the debugger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hit {
    /// There is a breakpoint at CS:EIP.
    Breakpoint,
    /// The last instruction, or the delivery of the last event, has touched watched memory.
    Watchpoint(Watchpoint),
}

/// What a debugger has set.
#[derive(Debug, Clone, Default)]
pub struct Debugger {
    /// Linear addresses, in order.
    breakpoints: Vec<u64>,
    watchpoints: Vec<Watchpoint>,
    /// Grows with each change.
    generation: u64,
    pass: Option<Pass>,
    /// The count of instructions at which an interrupt was delivered last.
    interrupted_at: Option<u64>,
    /// Whether NMIs wait.
    pub(crate) holds_nmi: bool,
    hit: Option<Hit>,
}

/// The instruction whose breakpoint does not count, since the guest continues from it.
#[derive(Debug, Clone, Copy)]
struct Pass {
    linear: u64,
    /// RSP, by which the instruction is told from the same one in another task or a deeper call.
    stack: u64,
    /// The count of instructions before it.
    instructions: u64,
    /// Whether an event came first, after whose handler it begins again. The processor has RF for the same
    /// purpose (SDM vol. 3, 19.3.1.1).
    begins_again: bool,
}

impl Debugger {
    /// Returns the linear addresses with breakpoints, in order.
    pub fn breakpoints(&self) -> &[u64] {
        &self.breakpoints
    }

    /// Returns the watchpoints.
    pub fn watchpoints(&self) -> &[Watchpoint] {
        &self.watchpoints
    }

    /// Returns a number that grows with each change of the breakpoints and watchpoints.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the points alone, for a processor whose state was replaced.
    pub(crate) fn at_another_moment(&self) -> Debugger {
        Debugger {
            breakpoints: self.breakpoints.clone(),
            watchpoints: self.watchpoints.clone(),
            generation: self.generation,
            ..Debugger::default()
        }
    }

    /// Returns whether there is a breakpoint at `offset` of any page.
    pub(crate) fn is_planted(&self, offset: usize) -> bool {
        self.breakpoints.iter().any(|linear| (linear & 0xfff) as usize == offset)
    }

    /// Returns whether any of the `size` bytes at `linear` is watched.
    pub fn watches(&self, linear: u64, size: u64) -> bool {
        self.watchpoints.iter().any(|point| point.covers(linear, size))
    }

    /// Returns the watchpoint for an access to `size` bytes at `linear`.
    fn watchpoint(&self, linear: u64, size: usize, is_write: bool) -> Option<Watchpoint> {
        let counts = |watched| match watched {
            Watched::Writes => is_write,
            Watched::Reads => !is_write,
            Watched::Accesses => true,
        };
        let mut points = self.watchpoints.iter();
        points.find(|point| counts(point.watched) && point.covers(linear, size as u64)).copied()
    }
}

impl Cpu {
    /// Returns what the debugger has set.
    pub fn debugger(&self) -> &Debugger {
        &self.debugger
    }

    /// Replaces all breakpoints, which are linear addresses, and all watchpoints of the debugger.
    pub fn set_debugger_points(&mut self, mut breakpoints: Vec<u64>, watchpoints: Vec<Watchpoint>) {
        breakpoints.sort_unstable();
        breakpoints.dedup();
        let debugger = &mut self.debugger;
        if debugger.breakpoints == breakpoints && debugger.watchpoints == watchpoints {
            return;
        }
        debugger.generation += 1;
        debugger.breakpoints = breakpoints;
        let watched = mem::replace(&mut debugger.watchpoints, watchpoints);
        if watched != self.debugger.watchpoints {
            self.translation_changed();
        }
    }

    /// Lets the next instruction be executed even if it has a breakpoint of the debugger.
    pub fn pass_breakpoint(&mut self) {
        let linear = self.linear_ip();
        if self.debugger.breakpoints.binary_search(&linear).is_ok() {
            let (stack, instructions) = (self.gpr(reg::SP), self.instructions);
            self.debugger.pass = Some(Pass { linear, stack, instructions, begins_again: false });
        }
    }

    /// Lets NMIs wait, or no longer.
    pub fn hold_nmi(&mut self, holds: bool) {
        self.debugger.holds_nmi = holds;
    }

    /// Returns whether an interrupt was delivered, and no instruction executed since.
    pub fn has_just_interrupted(&self) -> bool {
        self.debugger.interrupted_at == Some(self.instructions)
    }

    /// Notes that `event` is delivered before the next instruction or because of it.
    pub(crate) fn note_event_for_debugger(&mut self, event: &Event) {
        if event.source == Source::External {
            self.debugger.interrupted_at = Some(self.instructions);
        }
        if let Some(mut pass) = self.debugger.pass
            && pass.linear == self.linear_ip()
            // An instruction that faults counts.
            && self.instructions - pass.instructions <= 1
        {
            pass.begins_again = true;
            self.debugger.pass = Some(pass);
        }
    }

    /// Returns why the guest was stopped for the debugger, once.
    pub fn take_debugger_hit(&mut self) -> Option<Hit> {
        self.attention -= Attention::DEBUGGER;
        self.debugger.hit.take()
    }

    /// Returns whether the next instruction has a breakpoint of the debugger that counts. One that has begun
    /// and waits for a device goes on.
    pub(crate) fn is_at_debugger_breakpoint(&mut self) -> bool {
        if self.debugger.breakpoints.is_empty() || self.has_answers() {
            return false;
        }
        let linear = self.linear_ip();
        if self.debugger.breakpoints.binary_search(&linear).is_err() {
            return false;
        }
        let (stack, instructions) = (self.gpr(reg::SP), self.instructions);
        match &mut self.debugger.pass {
            Some(pass)
                if pass.linear == linear
                    && pass.stack == stack
                    && (pass.begins_again || pass.instructions == instructions) =>
            {
                (pass.instructions, pass.begins_again) = (instructions, false);
                false
            }
            _ => true,
        }
    }

    /// Makes the engine return for the debugger.
    pub(crate) fn note_debugger_hit(&mut self, hit: Hit) {
        self.debugger.hit.get_or_insert(hit);
        self.attention |= Attention::DEBUGGER;
    }

    /// Notes the watchpoint on `size` bytes at `linear`, which are about to be read or written. In the middle
    /// of a block, the instruction stops, to be executed alone.
    pub(crate) fn watch_for_debugger(
        &mut self,
        linear: u64,
        size: usize,
        is_write: bool,
    ) -> Result<(), Stopped> {
        if self.debugger.watchpoints.is_empty() {
            return Ok(());
        }
        match self.debugger.watchpoint(linear, size, is_write) {
            Some(_) if self.guard_code => Err(self.stop_for(Stop::WritesCode)),
            Some(point) => {
                self.note_debugger_hit(Hit::Watchpoint(point));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// The handler of an instruction with a breakpoint: it stops, and the engine looks at what is there.
pub(crate) fn breakpoint(
    cpu: &mut Cpu,
    _: &mut Memory,
    _: &Op,
    _: &[Op],
    at: usize,
) -> Result<(), Stopped> {
    cpu.stopped_at = at;
    Err(cpu.stop_for(Stop::Breakpoint))
}
