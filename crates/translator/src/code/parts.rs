//! How a block subtracts its instructions from the budget.
//!
//! A block consists of *parts*: instructions that follow each other, up to a branch, or up to where branches
//! of the block join. At its entry, and where calls return to, a block checks that the budget
//! is sufficient for all that may follow, and subtracts the instructions that are executed if no later branch
//! is taken out of the block and no part is skipped. A part that may be skipped subtracts its own. So a branch
//! that is taken to a join costs nothing.
//!
//! At any place of a block the number of instructions that were subtracted, but not executed yet, is the
//! same on all ways there: they are those *ahead*.

use crate::code::emitter::{Count, Emitter};

/// A part: see the module.
#[derive(Debug)]
struct Part {
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
    /// The index of the counter of its instructions, if instructions are counted by their form.
    counter: Option<usize>,
    /// The instructions ahead at its beginning, and the most instructions from there up to a check, once they are known.
    ahead: u16,
    most: u16,
}

/// What follows a part.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Onward {
    /// Something for which nothing may be subtracted yet.
    Other,
    /// The next part.
    Join,
    /// The target of this branch forward, by its index, or the next part.
    Forward(usize),
}

/// The parts of a block that is being made.
#[derive(Debug, Default)]
pub(crate) struct Parts(Vec<Part>);

impl Parts {
    /// Begins a part with the instruction number `first`. `count` subtracts its instructions, and the counter with the
    /// index `counter` counts them.
    pub(crate) fn begin(&mut self, first: u16, count: Option<Count>, counter: Option<usize>) {
        let onward = Onward::Other;
        let (ahead, most) = (0, 0);
        self.0.push(Part { first, end: None, onward, count, check: None, counter, ahead, most });
    }

    /// Notes that `check` compares the budget with all instructions from the beginning of the last part on, up to the
    /// next check.
    pub(crate) fn note_check(&mut self, check: Count) {
        if let Some(part) = self.0.last_mut() {
            part.check = Some(check);
        }
    }

    /// Ends the last part before the instruction number `end`, unless it has ended. What comes then is `onward`. Returns
    /// the index of its counter.
    pub(crate) fn end(&mut self, end: u16, onward: Onward) -> Option<usize> {
        let part = self.0.last_mut().filter(|part| part.end.is_none())?;
        (part.end, part.onward) = (Some(end), onward);
        part.counter
    }

    /// Returns how many parts there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns how many parts there are, and whether the last one has not ended.
    pub(crate) fn so_far(&self) -> (usize, bool) {
        (self.0.len(), self.0.last().is_some_and(|part| part.end.is_none()))
    }

    /// Goes back to the parts that [`Parts::so_far`] returned.
    pub(crate) fn go_back(&mut self, (parts, is_open): (usize, bool)) {
        self.0.truncate(parts);
        if let Some(last) = self.0.last_mut().filter(|_| is_open) {
            last.end = None;
        }
    }

    /// Sets all counts of a block of so many `instructions`. `joins` returns the part at which a branch forward joins,
    /// if it does. `note` learns how many instructions are ahead at each of them; it is one of these.
    pub(crate) fn set(
        &mut self,
        instructions: u16,
        emitter: &mut Emitter,
        joins: impl Fn(usize) -> Option<usize>,
        mut note: impl FnMut(usize, u16),
    ) {
        // All branches between parts lead forward.
        for index in (0..self.0.len()).rev() {
            let (parts, later) = self.0.split_at_mut(index + 1);
            let part = &mut parts[index];
            let next = later.first();
            let target = match part.onward {
                Onward::Other => None,
                Onward::Join => next,
                Onward::Forward(branch) => {
                    joins(branch).and_then(|part| later.get(part - index - 1))
                }
            };
            let end = part.end.unwrap_or(instructions);
            let after = target.map_or(0, |target| target.ahead);
            part.ahead = end - part.first + after;
            let most_after = next.filter(|next| next.check.is_none()).map_or(0, |next| next.most);
            part.most = end - part.first + target.map_or(0, |target| target.most).max(most_after);
            for number in part.first..end {
                note(number.into(), end - number + after);
            }
            if let Some(next) = next
                && let Some(count) = next.count
            {
                emitter.set_count(count, next.ahead as i16 - after as i16);
            }
            if let Some(check) = part.check {
                emitter.set_count(check, part.most as i16 - part.ahead as i16);
            }
        }
        if let Some(first) = self.0.first()
            && let Some(count) = first.count
        {
            emitter.set_count(count, first.ahead as i16);
        }
    }
}
