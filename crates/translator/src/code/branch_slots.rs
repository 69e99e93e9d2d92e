//! Direct branches into other pages. The code at an address of another page differs between address spaces,
//! and changes. So such a branch goes by a *slot*: an entry of the jump table for its target alone, so the
//! code there need not check the address.

use crate::context::BRANCH_SLOTS;
use crate::map::Map;

/// The numbers of the slots for code of one privilege, by the linear addresses of their targets.
#[derive(Debug, Default)]
pub(crate) struct BranchSlots(Map<u32, u32>);

impl BranchSlots {
    /// Returns the slot for branches to `target`, if there is one.
    pub(crate) fn find(&self, target: u32) -> Option<u32> {
        self.0.get(&target).copied()
    }

    /// Returns the slot for branches to `target`, or a new one. Returns None if all slots are in use.
    pub(crate) fn find_or_add(&mut self, target: u32, is_user: bool) -> Option<u32> {
        let next = self.0.len() as u32;
        if next == BRANCH_SLOTS[usize::from(is_user)] {
            return self.find(target);
        }
        Some(*self.0.entry(target).or_insert(next))
    }

    /// Forgets all slots.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
