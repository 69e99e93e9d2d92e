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
        self.0.push(Part { first, end: None, onward, count, check: None, counter });
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
    /// if it does. Returns how many instructions are ahead at each of them; it is one of these.
    pub(crate) fn set(
        &self,
        instructions: u16,
        emitter: &mut Emitter,
        joins: impl Fn(usize) -> Option<usize>,
    ) -> Vec<u16> {
        let mut all = vec![0; instructions.into()];
        // For each part: the instructions ahead at its beginning, and the most instructions from there up to a
        // check. All branches between parts lead forward.
        let mut ahead = vec![0; self.0.len() + 1];
        let mut most = ahead.clone();
        for (index, part) in self.0.iter().enumerate().rev() {
            let next = index + 1;
            let target = match part.onward {
                Onward::Other => None,
                Onward::Join => Some(next),
                Onward::Forward(branch) => joins(branch),
            };
            let end = part.end.unwrap_or(instructions);
            let after = target.map_or(0, |target| ahead[target]);
            ahead[index] = end - part.first + after;
            let checks = self.0.get(next).is_some_and(|next| next.check.is_some());
            let most_after = if checks { 0 } else { most[next] };
            most[index] =
                end - part.first + target.map_or(0, |target| most[target]).max(most_after);
            for number in part.first..end {
                all[usize::from(number)] = end - number + after;
            }
            if let Some(following) = self.0.get(next)
                && let Some(count) = following.count
            {
                emitter.set_count(count, ahead[next] as i16 - after as i16);
            }
            if let Some(check) = part.check {
                emitter.set_count(check, most[index] as i16 - ahead[index] as i16);
            }
        }
        if let Some(count) = self.0.first().and_then(|first| first.count) {
            emitter.set_count(count, ahead[0] as i16);
        }
        all
    }
}
