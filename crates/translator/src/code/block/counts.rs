//! How a block takes its instructions from the budget.
//!
//! A block checks at its entry, and where calls return to, that the budget is sufficient. There it also
//! subtracts the instructions up to the next branch. After each branch that is not taken it subtracts those
//! up to the next one. If instructions are counted by their form, [counters] count the same instructions in
//! the same places.
//!
//! [counters]: crate::code::counters

use iced_x86::{Code, Instruction};
use ring3_x86::table;

use super::{BlockBuilder, repeats};
use crate::code::emitter::Count;

/// A count that will be set to the instructions translated since, and is then subtracted from the budget.
#[derive(Clone, Copy)]
pub(super) struct Counting {
    count: Count,
    /// The number of instructions in the block before it.
    before: u16,
    /// The index of the counter of the same instructions, if instructions are counted.
    counter: Option<usize>,
}

impl BlockBuilder<'_> {
    /// Subtracts from the budget, here, the instructions that follow up to [`BlockBuilder::end_count`].
    pub(super) fn begin_count(&mut self) {
        let before = self.instructions;
        let counter = self.count_up(before, before, false);
        self.count = Some(Counting { count: self.emitter.count(), before, counter });
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

    /// Ends the count that [`BlockBuilder::begin_count`] began, and sets it.
    pub(super) fn end_count(&mut self) {
        if let Some(Counting { count, before, counter }) = self.count.take() {
            let counted = self.instructions;
            self.emitter.set_count(count, counted - before);
            if let (Some(all), Some(counter)) = (&mut self.counted, counter) {
                all.set_end(counter, counted);
            }
            for site in self.sites.iter_mut().rev().take_while(|site| site.before >= before) {
                site.counted = counted;
            }
        }
    }

    /// Checks here that the budget is sufficient for the instructions that follow, up to
    /// [`BlockBuilder::end_check`]: those up to the end of the block or to the next call.
    pub(super) fn begin_check(&mut self) {
        self.check = Some((self.emitter.check_budget(), self.instructions));
    }

    /// Ends the instructions that [`BlockBuilder::begin_check`] checks the budget for. The first part of them
    /// was subtracted from the budget before the check, so the check is for the rest.
    pub(super) fn end_check(&mut self) {
        if let Some((check, before)) = self.check.take() {
            let first = self.sites.iter().rev().take_while(|site| site.before >= before).last();
            let counted = first.map_or(before, |first| first.counted);
            self.emitter.set_count(check, self.instructions - counted);
        }
    }
}
