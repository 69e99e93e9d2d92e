//! Calls of guest tools, and the histogram of executed instructions.

use ring3_core::input::Input;
use ring3_core::state::SavedState;
use ring3_x86::guest_tools::Call;
use ring3_x86::histogram::Histogram;
use ring3_x86::hot_blocks::HotBlock;

use crate::host_clocks;
use crate::machine::Vm;
use crate::machine::replay::Replay;

impl Vm {
    /// Answers a call of a guest tool. Returns false if a replay has left its recording, so that there is no
    /// answer.
    pub(super) fn serve(&mut self, call: Call) -> bool {
        if matches!(call, Call::StartHistogram | Call::StopHistogram) {
            self.engine.complete_counts(&mut self.cpu);
        }
        match self.cpu.execute_histogram(call) {
            Some(registers) => {
                self.cpu.answer_guest_tool(registers);
                true
            }
            None => self.read_host_clocks(),
        }
    }

    /// Saves the processor, which contains what the guest has measured.
    pub(crate) fn save_processor(&mut self) -> SavedState {
        self.engine.complete_counts(&mut self.cpu);
        self.cpu.save()
    }

    /// Counts executed instructions by their form from now on, or no longer. This changes nothing for the
    /// guest.
    pub fn count_forms(&mut self, is_on: bool) {
        self.cpu.observe_forms(is_on);
    }

    /// Returns the `most` blocks in which most of these instructions were executed, the hottest first. The
    /// engines have different blocks.
    pub fn hot_blocks(&mut self, most: usize) -> Vec<HotBlock> {
        self.engine.complete_counts(&mut self.cpu);
        self.cpu.hot_blocks().map_or(Vec::new(), |blocks| blocks.hottest(most))
    }

    /// Returns the instructions that were executed since [`Vm::count_forms`].
    pub fn histogram(&mut self) -> Option<&Histogram> {
        self.engine.complete_counts(&mut self.cpu);
        self.cpu.histogram()
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
