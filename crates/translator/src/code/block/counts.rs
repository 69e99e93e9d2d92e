//! How a block takes its instructions from the budget.
//!
//! A block checks at its entry, and where calls return to, that the budget is sufficient. There it also
//! subtracts the instructions up to the next branch. After each branch that is not taken it subtracts those
//! up to the next one.

use super::BlockBuilder;

impl BlockBuilder<'_> {
    /// Subtracts from the budget, here, the instructions that follow up to [`BlockBuilder::end_count`].
    pub(super) fn begin_count(&mut self) {
        self.count = Some((self.emitter.count(), self.instructions));
    }

    /// Ends the count that [`BlockBuilder::begin_count`] began, and sets it.
    pub(super) fn end_count(&mut self) {
        if let Some((count, before)) = self.count.take() {
            let counted = self.instructions;
            self.emitter.set_count(count, counted - before);
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
