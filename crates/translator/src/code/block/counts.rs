//! How a block subtracts its instructions from the budget.
//!
//! A block consists of *parts*: instructions that follow each other, up to a branch, or up to where branches
//! of the block [join](super::joins). At its entry, and where calls return to, a block checks that the budget
//! is sufficient for all that may follow, and subtracts the instructions that are executed if no later branch
//! is taken out of the block and no part is skipped. A part that may be skipped subtracts its own. So a branch
//! that is taken to a join costs nothing.
//!
//! At any place of a block the number of instructions that were subtracted, but not executed yet, is the
//! same on all ways there: they are those *ahead*. If instructions are counted by their form, [counters]
//! count the same instructions in the same places, and there are no joins.
//!
//! [counters]: crate::code::counters

use iced_x86::{Code, Instruction};
use ring3_x86::table;

use super::{BlockBuilder, repeats};
use crate::code::emitter::Count;

/// See the module.
#[derive(Debug)]
pub(super) struct Part {
    /// The number of the block's instructions before it.
    first: u16,
    /// The number of the block's instructions up to its end, if it has ended.
    end: Option<u16>,
    /// What follows it.
    onward: Onward,
    /// What it subtracts from the budget at its beginning. A part that begins at a join subtracts nothing,
    /// since all branches there have subtracted it.
    count: Option<Count>,
    /// What is compared with the budget, if it begins with a check.
    check: Option<Count>,
    /// The index of the counter of its instructions, if instructions are counted.
    counter: Option<usize>,
}

/// What follows a part.
#[derive(Debug, Clone, Copy)]
pub(super) enum Onward {
    /// Something for which nothing may be subtracted yet.
    Other,
    /// The next part.
    Join,
    /// The target of this branch forward, by its index, or the next part.
    Forward(usize),
}

impl BlockBuilder<'_> {
    /// Begins a part, and subtracts its instructions from the budget here.
    pub(super) fn begin_count(&mut self) {
        let before = self.instructions;
        let counter = self.count_up(before, before, false);
        let count = Some(self.emitter.count());
        self.begin_part(count, counter);
    }

    /// Begins a part where branches join.
    pub(super) fn begin_joined_part(&mut self) {
        self.begin_part(None, None);
    }

    fn begin_part(&mut self, count: Option<Count>, counter: Option<usize>) {
        let (first, onward) = (self.instructions, Onward::Other);
        self.parts.push(Part { first, end: None, onward, count, check: None, counter });
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
        if let Some(part) = self.parts.last_mut().filter(|part| part.end.is_none()) {
            part.end = Some(self.instructions);
            part.onward = onward;
            if let (Some(all), Some(counter)) = (&mut self.counted, part.counter) {
                all.set_end(counter, self.instructions);
            }
        }
    }

    /// Checks here that the budget is sufficient for all instructions from the beginning of the last part on,
    /// up to the next check.
    pub(super) fn begin_check(&mut self) {
        let check = self.emitter.check_budget();
        if let Some(part) = self.parts.last_mut() {
            part.check = Some(check);
        }
    }

    /// Returns how many parts there are, and whether the last one has not ended.
    pub(super) fn parts_so_far(&self) -> (usize, bool) {
        (self.parts.len(), self.parts.last().is_some_and(|part| part.end.is_none()))
    }

    /// Goes back to the parts that [`BlockBuilder::parts_so_far`] returned.
    pub(super) fn go_back_to_parts(&mut self, (parts, is_open): (usize, bool)) {
        self.parts.truncate(parts);
        if let Some(last) = self.parts.last_mut().filter(|_| is_open) {
            last.end = None;
        }
    }

    /// Sets all counts, when the block has ended.
    pub(super) fn set_counts(&mut self) {
        self.end_count();
        // For each part: the instructions ahead at its beginning, and the most instructions from there up to a
        // check. All branches between parts lead forward.
        let mut ahead = vec![0; self.parts.len() + 1];
        let mut most = ahead.clone();
        let mut sites = self.sites.as_mut_slice();
        for (index, part) in self.parts.iter().enumerate().rev() {
            let next = index + 1;
            let target = match part.onward {
                Onward::Other => None,
                Onward::Join => Some(next),
                Onward::Forward(branch) => self.forward[branch].joins,
            };
            let end = part.end.unwrap_or(self.instructions);
            let after = target.map_or(0, |target| ahead[target]);
            ahead[index] = end - part.first + after;
            let checks = self.parts.get(next).is_some_and(|next| next.check.is_some());
            let most_after = if checks { 0 } else { most[next] };
            most[index] =
                end - part.first + target.map_or(0, |target| most[target]).max(most_after);
            let begin = sites.partition_point(|site| site.before < part.first);
            for site in &mut sites[begin..] {
                site.ahead = end - site.before + after;
            }
            sites = &mut std::mem::take(&mut sites)[..begin];
            if let Some(following) = self.parts.get(next)
                && let Some(count) = following.count
            {
                self.emitter.set_count(count, ahead[next] as i16 - after as i16);
            }
            if let Some(check) = part.check {
                self.emitter.set_count(check, most[index] as i16 - ahead[index] as i16);
            }
        }
        if let Some(count) = self.parts.first().and_then(|first| first.count) {
            self.emitter.set_count(count, ahead[0] as i16);
        }
    }
}
