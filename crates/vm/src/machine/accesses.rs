//! Accesses of the guest to devices: made by the engine while it runs, or after it has returned for one.

use ring3_core::clock::Clock;
use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::{Devices, Exit};

use crate::board::Board;
use crate::machine::deterministic::charge_accesses;
use crate::stats::Stats;

/// The parts of a machine that accesses need, besides its processor and memory.
pub(super) struct Accesses<'a> {
    pub(super) board: &'a mut Board,
    pub(super) stats: &'a mut Stats,
    pub(super) clock: &'a mut Clock,
    /// The count of instructions at which the slice ends.
    pub(super) slice_end: &'a mut u64,
    pub(super) is_deterministic: bool,
}

impl Accesses<'_> {
    /// Makes the access that `exit` demands, charges its time, and completes the instruction.
    pub(super) fn finish(&mut self, cpu: &mut Cpu, memory: &mut Memory, exit: &Exit) {
        let layout = memory.layout_generation();
        let now = self.clock.now(cpu.instructions);
        let called = self.stats.device_called();
        let mut value = 0;
        match *exit {
            Exit::PortRead { port, width } => {
                value = self.board.read_port(memory, now, port, width);
            }
            Exit::PortWrite { port, width, value } => {
                self.board.write_port(memory, now, port, width, value);
                if self.board.take_ignne() {
                    cpu.ignore_numeric_error();
                }
            }
            Exit::MmioRead { address, width } => {
                value = self.board.read_memory(memory, now, address, width);
            }
            Exit::MmioWrite { address, width, value } => {
                self.board.write_memory(memory, now, address, width, value);
            }
            _ => unreachable!("{exit:?} is no access"),
        }
        self.stats.device_done(called);
        if self.is_deterministic {
            charge_accesses(self.clock, cpu, cpu.instructions, now, 1);
        }
        let is_same = memory.layout_generation() == layout;
        if !is_same || !cpu.finish_access(memory, value) {
            cpu.answer(value.into());
        }
    }
}

/// Returns the count of instructions at which a slice ends that should end at `slice_end`: at once if the
/// guest must not run on.
pub(super) fn end_of_slice(board: &Board, cpu: &Cpu, slice_end: u64) -> u64 {
    if board.has_urgent_outputs() || board.a20() != cpu.a20() {
        // A slice ends between two instructions, and not in one that is still to get its answer.
        let rest = u64::from(cpu.has_answers());
        return slice_end.min(cpu.instructions + rest);
    }
    slice_end
}

impl Devices for Accesses<'_> {
    /// Does what the machine does between two runs of the engine, if that is only to see that there is
    /// nothing else to do.
    fn access(&mut self, cpu: &mut Cpu, memory: &mut Memory, exit: &Exit) -> Option<u64> {
        self.stats.count(exit);
        self.finish(cpu, memory, exit);
        *self.slice_end = end_of_slice(self.board, cpu, *self.slice_end);
        let executed = cpu.instructions;
        let timer = self.board.next_timer();
        let is_due = timer.is_some_and(|at| at <= self.clock.now(executed));
        if cpu.has_answers()
            || cpu.is_repeating_access()
            || is_due
            || self.board.has_nmi()
            || *self.slice_end <= executed
        {
            return None;
        }
        cpu.interrupt_pin = self.board.interrupt_requested();
        let timer = timer.map_or(u64::MAX, |at| self.clock.instructions_at(at, executed));
        let budget = (*self.slice_end).min(timer).saturating_sub(executed);
        (budget > 0).then_some(budget)
    }

    fn peek(&self, address: u64) -> Option<u32> {
        // In a deterministic run each access takes its time.
        if self.is_deterministic { None } else { self.board.peek(address) }
    }
}
