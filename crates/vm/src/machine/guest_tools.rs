//! Calls of guest tools.

use ring3_core::input::Input;
use ring3_x86::guest_tools::Call;

use crate::host_clocks;
use crate::machine::Vm;
use crate::machine::replay::Replay;

impl Vm {
    /// Answers a call of a guest tool. Returns false if a replay has left its recording, so that there is no
    /// answer.
    pub(super) fn serve(&mut self, call: Call) -> bool {
        match call {
            Call::HostTime => self.read_host_clocks(),
        }
    }

    /// Answers with the host's clocks, which are an input: a replay finds those of its recording.
    fn read_host_clocks(&mut self) -> bool {
        let instructions = self.cpu.instructions;
        let input = match &mut self.replay {
            Some(replay) => Replay::take_host_clocks(replay, instructions),
            None => Some(Input::HostClocks(host_clocks::read())),
        };
        let Some(input) = input else { return false };
        self.take_input(input);
        true
    }
}
