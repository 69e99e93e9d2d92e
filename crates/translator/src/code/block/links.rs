//! Where branches lead: within a page to code that they are linked with, and to other pages by the jump
//! table.

use super::{BlockBuilder, PAGE_MASK};
use crate::code::emitter::Branch;
use crate::context::{index, index_mask, slot_index};
use crate::mode::SEGMENTED_INDEX_MASK;

/// A branch whose way out is written after the block's own code.
pub(super) enum Later {
    /// `branch` leads to `target` in the same page, for which there is no block yet.
    Link { branch: Branch, target: u32 },
    /// `branch` leads to `target` in another page.
    Far { branch: Branch, target: u32 },
}

impl BlockBuilder<'_> {
    /// Goes on at `target`.
    pub(super) fn go_to(&mut self, target: u32, entry_of: &impl Fn(u32) -> Option<u32>) {
        if self.is_in_page(target) {
            let branch = self.emitter.jump();
            self.lead(branch, target, entry_of);
        } else {
            self.jump_to_other_page(target);
        }
    }

    /// Calls `target`.
    pub(super) fn call(&mut self, target: u32, entry_of: &impl Fn(u32) -> Option<u32>) {
        if self.is_in_page(target) {
            let call = self.emitter.call_near();
            self.lead(call, target, entry_of);
        } else {
            let index = self.index_of(target);
            self.emitter.call_by_table_to(target, index);
        }
    }

    /// Returns the index in the jump table of `target`, which is in another page.
    pub(super) fn index_of(&mut self, target: u32) -> u32 {
        if self.mode.segmented.is_some() {
            return index(target, SEGMENTED_INDEX_MASK);
        }
        let is_user = self.mode.is_user;
        let slot = self.branch_slots.find_or_add(target, is_user);
        // An index that is shared with other targets leads to code that checks which target is meant.
        slot.map_or(index(target, index_mask(is_user)), |slot| slot_index(is_user, slot))
    }

    /// Jumps to `target`, which is in another page, by the jump table.
    pub(super) fn jump_to_other_page(&mut self, target: u32) {
        let index = self.index_of(target);
        self.emitter.jump_by_table_to(target, index);
    }

    /// Makes `branch` lead to `target`.
    pub(super) fn lead(
        &mut self,
        branch: Branch,
        target: u32,
        entry_of: &impl Fn(u32) -> Option<u32>,
    ) {
        if !self.is_in_page(target) {
            self.later.push(Later::Far { branch, target });
        } else if target == self.eip && !self.is_changing {
            self.emitter.lead(branch, self.entry);
        } else if let Some(entry) = entry_of(target) {
            self.emitter.lead(branch, entry);
        } else {
            self.later.push(Later::Link { branch, target });
        }
    }

    /// Writes the code of all branches that have yet to be told where they lead.
    pub(super) fn finish_later(&mut self, entry_of: &impl Fn(u32) -> Option<u32>) {
        self.lead_forward(entry_of);
        for (branch, target, site) in std::mem::take(&mut self.leaving) {
            let site = self.sites[site];
            self.emitter.land(branch);
            self.count_up(site.before + 1, site.before + site.ahead, true);
            self.emitter.give_back(site.ahead - 1);
            self.go_to(target, entry_of);
        }
        for later in std::mem::take(&mut self.later) {
            match later {
                Later::Link { branch, target } => {
                    self.emitter.land(branch);
                    self.emitter.leave_to_link(branch, target);
                }
                Later::Far { branch, target } => {
                    self.emitter.land(branch);
                    self.jump_to_other_page(target);
                }
            }
        }
    }

    /// Returns whether `target` is in the same page as the block. A branch within the page leads to the bytes
    /// that were in memory when this block was made; both blocks are dropped together.
    pub(super) fn is_in_page(&self, target: u32) -> bool {
        (self.mode.linear(target) ^ self.mode.linear(self.eip)) & PAGE_MASK == 0
    }
}
