//! Direct branches into other pages. What a page has at an address differs between address spaces, and changes; so such
//! a branch goes by a *slot* of the jump table, which is for its target alone: what is there needs no check.

use crate::context::BRANCH_SLOTS;
use crate::map::Map;

/// The numbers of the slots of one privilege's code, by the linear addresses that they are for.
#[derive(Debug, Default)]
pub(crate) struct Slots(Map<u32, u32>);

impl Slots {
    /// The slot for branches to `target`, if there is one.
    pub(crate) fn find(&self, target: u32) -> Option<u32> {
        self.0.get(&target).copied()
    }

    /// The same, or a new one; none where all of them are used.
    pub(crate) fn find_or_add(&mut self, target: u32, is_user: bool) -> Option<u32> {
        let next = self.0.len() as u32;
        if next == BRANCH_SLOTS[usize::from(is_user)] {
            return self.find(target);
        }
        Some(*self.0.entry(target).or_insert(next))
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
