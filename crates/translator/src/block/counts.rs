//! What a block takes from the budget. That there is enough is checked at its entry and where calls return to; what comes up to the next branch is
//! taken there, and more after each branch that is not taken.

use super::Maker;

impl Maker<'_> {
    /// What comes now is taken from the budget here.
    pub(super) fn begin_part(&mut self) {
        self.part = Some((self.emitter.count(), self.instructions));
    }

    /// No more of it comes.
    pub(super) fn end_part(&mut self) {
        if let Some((count, before)) = self.part.take() {
            let counted = self.instructions;
            self.emitter.set_count(count, counted - before);
            for site in self.sites.iter_mut().rev().take_while(|site| site.before >= before) {
                site.counted = counted;
            }
        }
    }

    /// What comes now, up to the end or to the next call, is what the budget must be enough for here.
    pub(super) fn begin_check(&mut self) {
        self.check = Some((self.emitter.check_budget(), self.instructions));
    }

    /// No more of it comes. Its first part was taken from the budget before the check.
    pub(super) fn end_check(&mut self) {
        if let Some((check, before)) = self.check.take() {
            let first = self.sites.iter().rev().take_while(|site| site.before >= before).last();
            let counted = first.map_or(before, |first| first.counted);
            self.emitter.set_count(check, self.instructions - counted);
        }
    }
}
