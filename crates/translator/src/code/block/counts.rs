//! How a block counts its instructions: all of them by the [budget](crate::code::parts), and, if instructions are counted
//! by their form, [counters] in the same places. Then there are no joins.
//!
//! [counters]: crate::code::counters

use iced_x86::{Code, Instruction};
use ring3_x86::table;

use super::{BlockBuilder, repeats};
use crate::code::parts::Onward;

impl BlockBuilder<'_> {
    /// Begins a part, and subtracts its instructions from the budget here.
    pub(super) fn begin_count(&mut self) {
        let before = self.instructions;
        let counter = self.count_up(before, before, false);
        let count = self.emitter.count();
        self.parts.begin(before, Some(count), counter);
    }

    /// Begins a part where branches join.
    pub(super) fn begin_joined_part(&mut self) {
        self.parts.begin(self.instructions, None, None);
    }

    /// Adds 1, here, to a counter of the instructions from number `begin` on, up to before `end`. Returns the
    /// counter's index, if instructions are counted.
    pub(super) fn count_up(&mut self, begin: u16, end: u16, takes_back: bool) -> Option<usize> {
        let counted = self.counted.as_mut()?;
        let counter = counted.add(begin, end, takes_back);
        self.emitter.count_up(counted.address(counter));
        Some(counter)
    }

    /// Notes the form of the next instruction of the block, if instructions are counted.
    pub(super) fn note_form(&mut self, code: Code) {
        if let Some(counted) = &mut self.counted {
            counted.forms.extend(table::find(code).map(|(form, _)| form));
        }
    }

    /// Prepares counters for the iterations of `instruction`, the last one of which the form was noted, if it
    /// repeats. One of them was counted already.
    pub(super) fn prepare_repeat_counters(&mut self, instruction: &Instruction) {
        self.emitter.repeat_counters = None;
        if let Some(counted) = self.counted.as_mut().filter(|_| repeats(instruction)) {
            let (begin, end) = (self.instructions - 1, self.instructions);
            let counters = [false, true].map(|takes_back| counted.add(begin, end, takes_back));
            self.emitter.repeat_counters = Some(counters.map(|index| counted.address(index)));
        }
    }

    /// Ends a part. What follows may only be executed when nothing more has been subtracted from the budget
    /// than was executed.
    pub(super) fn end_count(&mut self) {
        self.end_part(Onward::Other);
    }

    /// Ends a part, if one has begun, after which comes `onward`.
    pub(super) fn end_part(&mut self, onward: Onward) {
        let counter = self.parts.end(self.instructions, onward);
        if let (Some(all), Some(counter)) = (&mut self.counted, counter) {
            all.set_end(counter, self.instructions);
        }
    }

    /// Checks here that the budget is sufficient for all instructions from the beginning of the last part on,
    /// up to the next check.
    pub(super) fn begin_check(&mut self) {
        let check = self.emitter.check_budget();
        self.parts.note_check(check);
    }

    /// Sets all counts, when the block has ended.
    pub(super) fn set_counts(&mut self) {
        self.end_count();
        let joins = |branch: usize| self.forward[branch].joins;
        let mut all = vec![0; self.instructions.into()];
        self.parts.set(self.instructions, &mut self.emitter, joins, |number, ahead| {
            all[number] = ahead;
        });
        for site in &mut self.sites {
            site.ahead = all[usize::from(site.before)];
        }
    }
}
