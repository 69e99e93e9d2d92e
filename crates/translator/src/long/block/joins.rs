//! Branches forward within a block, and where they join: a block goes on with the instruction that branches over others
//! lead to, so that nothing needs to be done where they are taken.

use iced_x86::{Instruction, Register};

use super::Builder;
use crate::code::block::branches::condition;
use crate::code::emitter::Branch;
use crate::code::parts::Onward;
use crate::long::copy::Needs;
use crate::long::facts::Facts;

/// A branch forward, after which the block goes on.
#[derive(Debug)]
pub(super) struct Forward {
    branch: Branch,
    target: u64,
    /// Which numeric registers are the guest's there, and what is known.
    has: Needs,
    facts: Facts,
    /// The register that is [kept](crate::code::emitter::Emitter::kept) there.
    kept: Option<Register>,
    /// The part of the block that begins at its target, if there is one.
    pub(super) joins: Option<usize>,
}

impl Forward {
    fn is_waiting_for(&self, rip: u64) -> bool {
        self.joins.is_none() && self.target == rip
    }
}

impl<F: Fn(u64) -> Option<u32>> Builder<'_, F> {
    /// Translates a conditional branch forward, after which the block continues.
    pub(super) fn branch_forward(&mut self, branch: &Instruction) {
        self.begin_site(branch);
        let taken = self.writer.emitter.jump_if(condition(branch));
        self.note_forward(taken, branch.near_branch_target());
        self.begin_count();
    }

    /// Translates a jump forward over instructions to which another branch of the block leads. Returns false for all
    /// other jumps, and then writes nothing.
    pub(super) fn jumps_forward(&mut self, jump: &Instruction) -> bool {
        let is_one = jump.near_branch_target() > jump.ip() && self.leads_to(jump.next_ip());
        if is_one {
            self.begin_site(jump);
            let taken = self.writer.emitter.jump();
            self.note_forward(taken, jump.near_branch_target());
            self.is_skipped = true;
        }
        is_one
    }

    fn note_forward(&mut self, branch: Branch, target: u64) {
        self.end_part(Onward::Forward(self.forward.len()));
        let (facts, kept) = (self.writer.facts.clone(), self.writer.emitter.kept());
        self.forward.push(Forward { branch, target, has: self.has, facts, kept, joins: None });
    }

    /// Returns whether branches of the block lead to `rip`, and may join where the block comes there.
    pub(super) fn leads_to(&self, rip: u64) -> bool {
        self.forward.iter().any(|forward| forward.is_waiting_for(rip))
    }

    /// Lets all branches to `rip` lead here, if there are any.
    pub(super) fn join(&mut self, rip: u64) {
        if !self.leads_to(rip) {
            return;
        }
        self.end_part(Onward::Join);
        let part = self.parts.len();
        for forward in self.forward.iter_mut().filter(|forward| forward.is_waiting_for(rip)) {
            self.writer.emitter.land(forward.branch);
            if std::mem::take(&mut self.is_skipped) {
                (self.has, self.writer.facts) = (forward.has, forward.facts.clone());
                self.writer.emitter.keep(forward.kept);
            } else {
                self.has = self.has.and(forward.has);
                self.writer.facts.meet(&forward.facts);
                let kept = self.writer.emitter.kept();
                self.writer.emitter.keep(kept.filter(|_| kept == forward.kept));
            }
            forward.joins = Some(part);
        }
        self.parts.begin(self.sites.len() as u16, None, None);
    }

    /// Goes back to the first `branches` branches, and to `parts`.
    pub(super) fn go_back_to_branches(&mut self, branches: usize, parts: (usize, bool)) {
        self.parts.go_back(parts);
        self.forward.truncate(branches);
        for forward in &mut self.forward {
            forward.joins.take_if(|part| *part >= parts.0);
        }
    }

    /// Lets the branches that join nowhere lead to other blocks.
    pub(super) fn lead_forward(&mut self) {
        for forward in std::mem::take(&mut self.forward) {
            if forward.joins.is_none() {
                self.lead(forward.branch, forward.target);
            }
        }
    }
}
