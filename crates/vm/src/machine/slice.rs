//! A slice: the guest runs, and the board serves its exits, until somebody must look around.

use std::time::Instant;

use ring3_x86::engine::Exit;

use crate::event_log::{EventLog, LoggedEvent};
use crate::machine::accesses::{Accesses, earlier, end_of_slice};
use crate::machine::deterministic::charge_accesses;
use crate::machine::{Ending, Vm};

impl Vm {
    /// Runs the guest until `slice_end` instructions, until it is idle, or until it has urgent outputs. It
    /// may end before, where the event log wants a checkpoint.
    pub(super) fn run_slice(&mut self, slice_end: u64) -> Option<Ending> {
        let checkpoint = self.event_log.as_ref().and_then(EventLog::next_checkpoint);
        let step = self.debugging.end().unwrap_or(u64::MAX);
        let began = Instant::now();
        let ending = self.run_guest(slice_end.min(checkpoint.unwrap_or(u64::MAX)).min(step));
        self.stats.slice_done(began);
        self.note_step();
        if checkpoint.is_some_and(|at| at <= self.cpu.instructions) {
            let checkpoint = self.checkpoint();
            self.tell_log(&LoggedEvent::Checkpoint(checkpoint));
        }
        ending
    }

    /// Runs the guest without regard to the event log.
    fn run_guest(&mut self, slice_end: u64) -> Option<Ending> {
        let mut slice_end = slice_end;
        // A slice begins between two instructions: an OUT that changes this line takes effect after the OUT.
        self.cpu.set_a20(self.board.a20());
        loop {
            let now = self.now();
            self.sample(now);
            if self.board.next_timer().is_some_and(|at| at <= now) {
                let called = self.stats.device_called();
                let fired = self.board.fire_timers(&mut self.memory, now);
                self.stats.device_done(called, || fired);
            }
            // A processor that waits for an interrupt gets it.
            let holds = self.debugging.holds_interrupts() && !self.cpu.is_halted();
            self.cpu.hold_nmi(holds);
            if self.board.take_nmi() {
                self.cpu.raise_nmi();
                self.tell_log(&LoggedEvent::Nmi);
            }
            // Wherever slices end, the outputs of a timer go out between the same two instructions.
            if self.board.has_urgent_outputs() && !self.cpu.has_answers() {
                return None;
            }
            self.cpu.interrupt_pin = self.board.interrupt_requested() && !holds;
            let executed = self.cpu.instructions;
            let sample = self.profile.as_ref().map(|profile| profile.next());
            let timer = earlier(self.board.next_timer(), sample);
            let timer = timer.map_or(u64::MAX, |at| self.clock.instructions_at(at, executed));
            let budget = slice_end.min(timer).saturating_sub(executed);
            if self.move_port_string(budget) {
                continue;
            }
            let next = self.cpu.next_access(&mut self.memory, budget);
            if budget == 0 && executed >= slice_end {
                return None;
            }
            let mut devices = Accesses {
                board: &mut self.board,
                stats: &mut self.stats,
                clock: &mut self.clock,
                log: self.event_log.as_mut(),
                slice_end: &mut slice_end,
                is_deterministic: self.config.deterministic,
                sample,
                timer: None,
            };
            let (cpu, memory) = (&mut self.cpu, &mut self.memory);
            let exit = match next {
                Some(exit) => exit,
                None => self.engine.run_with(cpu, memory, budget, &mut devices),
            };
            devices.stats.count(&exit);
            if exit.is_access() {
                devices.finish(cpu, memory, &exit);
            } else if exit == Exit::InterruptWindow {
                devices.acknowledge(cpu);
            }
            match exit {
                Exit::Deadline
                | Exit::InterruptWindow
                | Exit::PortRead { .. }
                | Exit::PortWrite { .. }
                | Exit::MmioRead { .. }
                | Exit::MmioWrite { .. } => {}
                Exit::Halt => return None,
                Exit::Debugger => {
                    self.note_hit();
                    return None;
                }
                Exit::NumericError => {
                    let now = self.now();
                    self.board.assert_ferr(&mut self.memory, now);
                }
                Exit::GuestTool(call) => {
                    if !self.serve(call) {
                        return None;
                    }
                }
                Exit::TimeStamp => self.cpu.answer(self.now().as_nanos()),
                Exit::ApicBase { value } => {
                    let now = self.now();
                    self.board.set_apic_base(&mut self.memory, now, value);
                    self.cpu.answer(0);
                }
                Exit::Shutdown if self.config.reboots => {
                    self.note_triple_fault();
                    self.board.reset_processor();
                    return None;
                }
                Exit::Shutdown => {
                    let report = self.report(self.triple_fault_reason());
                    return Some(Ending::Stopped(report));
                }
                Exit::Missing(missing) => {
                    let reason = format!("{missing} is not implemented");
                    return Some(Ending::Stopped(self.report(reason)));
                }
            }
            slice_end = end_of_slice(&self.board, &self.cpu, slice_end);
        }
    }

    /// In the middle of a repeated INS or OUTS, makes the board execute as many of its accesses at once as
    /// `budget` and the next timer allow. Returns whether it has executed any.
    fn move_port_string(&mut self, budget: u64) -> bool {
        if !self.cpu.is_in_port_string() {
            return false;
        }
        let (before, now) = (self.cpu.instructions, self.now());
        let most = budget.min(self.accesses_before_timer(now));
        let (board, stats) = (&mut self.board, &mut self.stats);
        let moved = self.cpu.move_port_string(&mut self.memory, most, |port, width, string| {
            let called = stats.device_called();
            let moved = board.move_port_string(port, width, string);
            stats.device_done(called, || board.port_owner(port));
            moved
        });
        if moved > 0 && self.config.deterministic {
            charge_accesses(&mut self.clock, &mut self.cpu, before, now, moved);
        }
        moved > 0
    }
}
