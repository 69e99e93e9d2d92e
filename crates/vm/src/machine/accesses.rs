//! Accesses of the guest to devices: made by the engine while it runs, or after it has returned for one.

use ring3_core::clock::{Clock, Time};
use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::{Devices, Exit};

use crate::board::Board;
use crate::event_log::{EventLog, LoggedEvent};
use crate::machine::deterministic::charge_accesses;
use crate::stats::Stats;

/// The parts of a machine that accesses and interrupts need, besides its processor and memory.
pub(super) struct Accesses<'a> {
    pub(super) board: &'a mut Board,
    pub(super) stats: &'a mut Stats,
    pub(super) clock: &'a mut Clock,
    pub(super) log: Option<&'a mut EventLog>,
    /// The count of instructions at which the slice ends.
    pub(super) slice_end: &'a mut u64,
    pub(super) is_deterministic: bool,
    /// When the next sample of a profile is due.
    pub(super) sample: Option<Time>,
    /// The last timer or sample that was looked at, and the number of instructions at which it is due.
    pub(super) timer: Option<(Time, u64)>,
}

impl Accesses<'_> {
    /// Makes the access that `exit` demands, charges its time, and completes the instruction.
    pub(super) fn finish(&mut self, cpu: &mut Cpu, memory: &mut Memory, exit: &Exit) {
        let layout = memory.layout_generation();
        let value = self.perform(cpu, memory, exit);
        let has_changed_map = memory.layout_generation() != layout;
        if !cpu.finish_access(memory, value, has_changed_map) {
            cpu.answer(value.into());
        }
    }

    /// Does the access for which `exit` asks, and takes the time for it. Gives what was read.
    fn perform(&mut self, cpu: &mut Cpu, memory: &mut Memory, exit: &Exit) -> u32 {
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
        self.stats.device_done(called, || self.board.accessed(exit));
        if self.is_deterministic {
            charge_accesses(self.clock, cpu, cpu.instructions, now, 1);
            self.timer = None;
        }
        value
    }

    /// Acknowledges the interrupt that the processor takes, and injects it.
    pub(super) fn acknowledge(&mut self, cpu: &mut Cpu) {
        let vector = self.board.acknowledge_interrupt();
        if let Some(log) = &mut self.log {
            let time = self.clock.now(cpu.instructions);
            log.tell(cpu.instructions, time, &LoggedEvent::Interrupt(vector));
        }
        cpu.inject(vector);
    }

    /// After an access or an interrupt: how many instructions may be executed before the machine is to look
    /// around; none if it is to do so now.
    fn room(&mut self, cpu: &mut Cpu) -> Option<u64> {
        *self.slice_end = end_of_slice(self.board, cpu, *self.slice_end);
        let end = (*self.slice_end).min(self.timer_end());
        let room = end.saturating_sub(cpu.instructions);
        if room == 0 || self.board.has_nmi() {
            return None;
        }
        cpu.interrupt_pin = self.board.interrupt_requested();
        Some(room)
    }

    /// The number of instructions at which the next timer or sample is due.
    fn timer_end(&mut self) -> u64 {
        let Some(at) = earlier(self.board.next_timer(), self.sample) else { return u64::MAX };
        match self.timer {
            // It mostly is the one that it was, and to divide takes its time.
            Some((known, end)) if known == at => end,
            _ => {
                let end = self.clock.instructions_at(at, 0);
                self.timer = Some((at, end));
                end
            }
        }
    }
}

/// Returns the earlier one of two times, if there are any.
pub(super) fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
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
        let room = self.room(cpu);
        if cpu.has_answers() || cpu.is_repeating_access() { None } else { room }
    }

    fn transfer(&mut self, cpu: &mut Cpu, memory: &mut Memory, exit: &Exit) -> (u32, Option<u64>) {
        self.stats.count(exit);
        let value = self.perform(cpu, memory, exit);
        cpu.instructions += 1;
        (value, self.room(cpu))
    }

    fn acknowledge_interrupt(&mut self, cpu: &mut Cpu) -> Option<u64> {
        self.stats.count(&Exit::InterruptWindow);
        self.acknowledge(cpu);
        self.room(cpu)
    }

    fn peek(&self, address: u64) -> Option<u32> {
        // In a deterministic run each access takes its time.
        if self.is_deterministic { None } else { self.board.peek(address) }
    }

    fn peek_port(&self, port: u16) -> Option<u8> {
        if self.is_deterministic { None } else { self.board.peek_port(port) }
    }
}
