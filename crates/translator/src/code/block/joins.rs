//! Branches forward within a block, and where they join: a block goes on with the instruction that branches
//! over others lead to, so that nothing needs to be done where they are taken.

use iced_x86::Instruction;

use super::walk::MAX_INSTRUCTIONS;
use super::{BlockBuilder, branches};
use crate::code::emitter::Branch;
use crate::code::parts::Onward;
use crate::numeric::Checked;

/// A branch forward, after which the block goes on.
#[derive(Debug)]
pub(super) struct Forward {
    branch: Branch,
    target: u32,
    /// The checks of the numeric registers before it.
    checked: Checked,
    /// The part of the block that begins at its target, if there is one.
    pub(super) joins: Option<usize>,
}

impl BlockBuilder<'_> {
    /// Translates a conditional branch forward, after which the block continues.
    pub(super) fn branch_forward(&mut self, branch: &Instruction) {
        self.emitter.settle_stack();
        self.begin_site(branch);
        let taken = self.emitter.jump_if(branches::condition(branch));
        self.note_forward(taken, branch);
        self.begin_count();
    }

    /// Translates a jump over instructions to which another branch of the block leads. Returns false for all
    /// other instructions, and then writes nothing.
    pub(super) fn jumps_forward(&mut self, jump: &Instruction) -> bool {
        let is_one = jump.is_jmp_short_or_near()
            && branches::is_ending(jump, &self.mode)
            && branches::target(jump) > jump.ip32()
            && self.instructions + 1 < MAX_INSTRUCTIONS
            && self.leads_to(jump.next_ip32());
        if is_one {
            self.emitter.settle_stack();
            self.begin_site(jump);
            let taken = self.emitter.jump();
            self.note_forward(taken, jump);
        }
        is_one
    }

    fn note_forward(&mut self, taken: Branch, branch: &Instruction) {
        self.end_part(Onward::Forward(self.forward.len()));
        let (target, checked) = (branches::target(branch), self.checked);
        self.forward.push(Forward { branch: taken, target, checked, joins: None });
    }

    /// Returns whether branches of the block lead to `eip`, and may join where the block comes there.
    pub(super) fn leads_to(&self, eip: u32) -> bool {
        self.counted.is_none() && self.forward.iter().any(|forward| forward.is_waiting_for(eip))
    }

    /// Lets all branches to `eip` lead here.
    pub(super) fn join(&mut self, eip: u32) {
        self.end_part(Onward::Join);
        let part = self.parts.len();
        for forward in self.forward.iter_mut().filter(|forward| forward.is_waiting_for(eip)) {
            self.emitter.land(forward.branch);
            self.checked = self.checked.min(forward.checked);
            forward.joins = Some(part);
        }
        self.begin_joined_part();
    }

    /// Goes back to the first `branches` branches, when there were `parts` parts.
    pub(super) fn go_back_to_branches(&mut self, branches: usize, parts: usize) {
        self.forward.truncate(branches);
        for forward in &mut self.forward {
            forward.joins.take_if(|part| *part >= parts);
        }
    }

    /// Lets the branches that join nowhere lead to other blocks.
    pub(super) fn lead_forward(&mut self, entry_of: &impl Fn(u32) -> Option<u32>) {
        for forward in std::mem::take(&mut self.forward) {
            if forward.joins.is_none() {
                self.lead(forward.branch, forward.target, entry_of);
            }
        }
    }
}

impl Forward {
    fn is_waiting_for(&self, eip: u32) -> bool {
        self.joins.is_none() && self.target == eip
    }
}
