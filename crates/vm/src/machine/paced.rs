//! The loop of a normal run: virtual time follows the host's.

use ring3_core::input::{DeviceInput, Input};

use crate::door::Door;
use crate::machine::session::Session;
use crate::machine::{Console, Ending, Vm, VmError};
use crate::pace::Pace;

impl Vm {
    /// Runs the machine until it ends, in time with the host.
    pub(super) fn run_paced(
        &mut self,
        door: &mut Door,
        console: &mut dyn Console,
    ) -> Result<Ending, VmError> {
        // A restored machine continues from its own time.
        door.advance_to(self.now());
        let mut pace = Pace::new(door.host_time(), self.cpu.instructions);
        let mut session = Session::default();
        loop {
            self.keep_checkpoint();
            if self.answer_requests(door) {
                pace = Pace::new(door.host_time(), self.cpu.instructions);
                session = Session::default();
            }
            let paused = door.is_paused() || self.lacks_memory(door);
            let mut ending = None;
            if self.takes_inputs() {
                let look = if paused {
                    self.look_again()
                } else {
                    let tick = self.board.next_tick();
                    pace.look(&self.clock, door.host_time(), self.cpu.instructions, tick)
                };
                ending = self.take_input(look);
            }
            door.fetch();
            while let Some(input) = door.take(|input| self.accepts(input)) {
                session.note(door, &input);
                ending = ending.or(self.take_input(input));
            }
            while self.takes_inputs()
                && let Some((device, answer)) = self.drives.take_answer()
            {
                let input = Input::Device { device, input: DeviceInput::Disk(answer) };
                ending = ending.or(self.take_input(input));
            }
            let rest = if paused { None } else { self.rests_until(door) };
            let slice = if paused || rest.is_some() {
                0
            } else if self.drives.are_waiting() | self.networks.are_busy() {
                pace.short_interval()
            } else {
                pace.interval()
            };
            let slice_end = self.cpu.instructions + slice;
            ending = ending.or_else(|| self.run_slice(slice_end));
            let ended = self.finish_slice(&mut session, door, console)?;
            if let Some(ending) = ended.or(ending) {
                return Ok(ending);
            }
            if door.is_paused() {
                console.flush()?;
                self.stand_still(door);
            } else if let Some(until) = rest {
                console.flush()?;
                self.sleep(door, Some(until));
                pace.woke(door.host_time(), self.cpu.instructions);
            } else if self.is_idle() {
                self.drives.guest_waits();
                console.flush()?;
                if let Some(ending) = self.notice_stuck(&mut session) {
                    return Ok(ending);
                }
                let until = self.board.next_timer();
                let slack = self.slack(&mut session, until);
                // A timer that is late already is no reason to sleep.
                if until.is_none_or(|until| until > door.host_time()) {
                    self.sleep(door, until.map(|at| at.plus_nanos(slack)));
                }
                pace.woke(door.host_time(), self.cpu.instructions);
            }
        }
    }

    /// Returns the input that replaces a look at the host's clock while the machine is paused: it says that
    /// the machine is as late as it was. A replay then ends a slice where this run did.
    fn look_again(&self) -> Input {
        let picos_per_instruction = self.clock.picos_per_instruction();
        Input::HostTime { time: self.now(), picos_per_instruction }
    }
}
