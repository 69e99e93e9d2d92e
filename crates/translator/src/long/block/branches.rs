//! Branches of 64-bit code, and where they lead.

use iced_x86::{Code, Instruction, OpKind, Register};
use ring3_x86::access::is_canonical;

use super::{Builder, Exit, Step};
use crate::code::block::branches::condition;
use crate::code::emitter::Branch;
use crate::code::parts::Onward;
use crate::long::context::at;
use crate::long::copy::{self, Needs};
use crate::long::facts::Facts;
use crate::long::far_sites::Reach;
use crate::long::strings::Walk;
use crate::long::system;
use crate::long::writer::{Scratch, Writer};

/// Where a branch leads.
#[derive(Clone, Copy)]
pub(super) enum Later {
    /// To this address.
    To(u64),
    /// Out, since the jump table has no code for the target of the branch at this site.
    Missed(u32),
    /// By the jump table, since the return at this site, which takes so many bytes from the stack, does not return to
    /// the last call.
    Elsewhere(u32, i64),
}

impl<F: Fn(u64) -> Option<u32>> Builder<'_, F> {
    /// Translates a branch, or another instruction that ends a block. Returns None if it is left to the interpreter;
    /// the caller then throws away what was written.
    pub(super) fn branch(&mut self, branch: &Instruction) -> Option<Step> {
        let is_near = branch.op0_kind() == OpKind::NearBranch64;
        if is_near && !is_canonical(branch.near_branch_target()) {
            return None;
        }
        let (target, next) = (branch.near_branch_target(), branch.next_ip());
        match branch.code() {
            _ if is_near && branch.is_jcc_short_or_near() && self.may_go_on() && target >= next => {
                self.branch_forward(branch);
                return Some(Step::Next);
            }
            _ if is_near && branch.is_jcc_short_or_near() && self.goes_round(target) => {
                self.begin_site(branch);
                self.end_part(Onward::Other);
                let taken = self.writer.emitter.jump_if(condition(branch));
                self.lead(taken, target);
                self.begin_count();
                return Some(Step::Next);
            }
            Code::Jmp_rel8_64 | Code::Jmp_rel32_64
                if self.may_go_on() && self.jumps_forward(branch) =>
            {
                return Some(Step::Next);
            }
            Code::Call_rel32_64 | Code::Call_rm64 => return self.call(branch),
            _ => {}
        }
        self.ending(branch).then_some(Step::End)
    }

    /// Returns whether the block may go on after a branch. The check where it begins does not include the iterations
    /// that a repeated instruction takes from the budget.
    fn may_go_on(&self) -> bool {
        self.source.crosses_to.is_none()
            && self.source.changing.is_none()
            && !self.walks.iter().any(Walk::is_repeated)
    }

    /// Returns whether a conditional branch to `target` goes back to the beginning of the block, which goes on after it.
    fn goes_round(&self, target: u64) -> bool {
        self.may_go_on() && target == self.source.linear
    }

    /// Ends the block with a branch. Returns false if it is left to the interpreter.
    fn ending(&mut self, branch: &Instruction) -> bool {
        let (target, next) = (branch.near_branch_target(), branch.next_ip());
        let is_near = branch.op0_kind() == OpKind::NearBranch64;
        let site = self.begin_site(branch);
        match branch.code() {
            Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => self.go_to(target),
            Code::Jmp_rm64 => {
                if !copy::load_target(&mut self.writer, branch) {
                    return false;
                }
                self.look_up(site);
                self.writer.jump_to_found();
            }
            Code::Retnq | Code::Retnq_imm16 => {
                let more = if branch.code() == Code::Retnq { 0 } else { branch.immediate16() };
                let bytes = 8 + i64::from(more);
                let top = self.writer.checked_stack(0, Scratch::Both);
                self.writer.load(Register::R10, top);
                let bytes = bytes + i64::from(std::mem::take(&mut self.writer.stack_offset));
                let differs = self.writer.return_to_landing(bytes);
                self.later.push((differs, Later::Elsewhere(site, bytes)));
            }
            _ if system::ends_block(branch) => {
                if !system::translate(&mut self.writer, branch) {
                    return false;
                }
                self.go_to(next);
            }
            Code::Syscall | Code::Sysretq => {
                return system::translate_call(&mut self.writer, branch);
            }
            code => {
                let taken = match code {
                    Code::Loopne_rel8_64_RCX => self.writer.loop_if(0xe0),
                    Code::Loope_rel8_64_RCX => self.writer.loop_if(0xe1),
                    Code::Loop_rel8_64_RCX => self.writer.loop_if(0xe2),
                    Code::Jrcxz_rel8_64 => self.writer.loop_if(0xe3),
                    _ if branch.is_jcc_short_or_near() && is_near => {
                        self.writer.emitter.jump_if(condition(branch))
                    }
                    _ => return false,
                };
                self.follow(branch);
                self.lead(taken, target);
                self.go_to(next);
            }
        }
        true
    }

    /// Translates a call. Returns None if it is left to the interpreter.
    fn call(&mut self, call: &Instruction) -> Option<Step> {
        let next = call.next_ip();
        let site = self.begin_site(call);
        self.end_part(Onward::Other);
        let returns = if call.code() == Code::Call_rel32_64 {
            self.call_target(call.near_branch_target(), next)
        } else {
            if !copy::load_target(&mut self.writer, call) {
                return None;
            }
            self.look_up(site);
            self.call_found(next);
            true
        };
        if !returns {
            return Some(Step::End);
        }
        if !self.may_go_on() {
            self.go_to(next);
            return Some(Step::End);
        }
        // The function may have executed any number of instructions, and the numeric registers may have been saved.
        self.is_landing = true;
        self.has = Needs::default();
        self.writer.facts = Facts::after_call();
        Some(Step::Next)
    }

    /// Calls `target`, to return to `next`. Returns whether the function returns to the code that follows.
    fn call_target(&mut self, target: u64, next: u64) -> bool {
        let slot = if self.is_in_page(target) {
            None
        } else {
            self.slots.find_or_add(target, self.source.is_user)
        };
        // A call of the next instruction only pushes its address, and no RET returns there.
        let is_call = target != next && (slot.is_some() || self.is_in_page(target));
        if is_call {
            self.writer.check_room(Register::R10);
        }
        let below = self.writer.checked_stack(-8, Scratch::Both);
        self.writer.store_number(below, next, Register::R10);
        self.writer.move_stack(-8);
        if !is_call {
            self.go_to(target);
            return false;
        }
        self.writer.push_return(next, Register::R10);
        if let Some(slot) = slot {
            self.writer.call_by_slot(target, slot);
        } else {
            let call = self.writer.emitter.plain_call();
            self.link(call, target);
        }
        true
    }

    /// Calls the code in the entry of the jump table at R11, to return to `next`.
    fn call_found(&mut self, next: u64) {
        let writer = &mut self.writer;
        // Of other stacks, the operand below contains R10.
        let is_near = writer.reach == Reach::Near;
        writer.check_room(Register::R10);
        if !is_near {
            writer.load(Register::R11, Writer::found_code());
            writer.store(writer.field(at::CALLEE), Register::R11);
        }
        let below = writer.checked(Register::R8, -8, Scratch::R10);
        let number = if is_near { Register::R10 } else { Register::R11 };
        writer.store_number(below, next, number);
        writer.move_stack(-8);
        writer.push_return(next, number);
        let code = if is_near { Writer::found_code() } else { writer.field(at::CALLEE) };
        writer.emitter.instruction(Instruction::with1(Code::Call_rm64, code));
    }

    /// Loads R11 with the entry of the jump table for the target in R10 of the branch at `site`.
    fn look_up(&mut self, site: u32) {
        let missed = self.writer.look_up();
        self.later.push((missed, Later::Missed(site)));
    }

    /// Returns whether `target` is in the page of the block.
    fn is_in_page(&self, target: u64) -> bool {
        target & !0xfff == self.source.linear & !0xfff
    }

    /// Makes `branch` lead to `target`, where what is known here may be of use.
    pub(super) fn lead(&mut self, branch: Branch, target: u64) {
        if self.is_head(target) {
            let facts = &self.writer.facts;
            let is_known = facts.still_at_head(self.at_head).len() == self.at_head.len();
            let to = if is_known { self.begin } else { self.host };
            match &mut self.at_end {
                Some(at_end) => at_end.meet(facts),
                None => self.at_end = Some(facts.clone()),
            }
            self.writer.emitter.lead(branch, to);
        } else {
            self.link(branch, target);
        }
    }

    /// Makes `branch` lead to `target`, where nothing needs to be known.
    fn link(&mut self, branch: Branch, target: u64) {
        let entry = if self.is_head(target) {
            Some(self.host)
        } else {
            self.is_in_page(target).then(|| (self.entry_of)(target)).flatten()
        };
        match entry {
            Some(entry) => self.writer.emitter.lead(branch, entry),
            None => self.later.push((branch, Later::To(target))),
        }
    }

    /// Returns whether the block begins at `target`, and branches within it may lead there.
    fn is_head(&self, target: u64) -> bool {
        target == self.source.linear
            && self.source.crosses_to.is_none()
            && self.source.changing.is_none()
    }

    /// Continues at `target`.
    pub(super) fn go_to(&mut self, target: u64) {
        self.writer.settle_stack();
        if self.is_in_page(target) {
            let branch = self.writer.emitter.jump();
            self.lead(branch, target);
        } else {
            self.go_to_other_page(target);
        }
    }

    /// Continues at `target`, in another page.
    fn go_to_other_page(&mut self, target: u64) {
        if let Some(slot) = self.slots.find_or_add(target, self.source.is_user) {
            self.writer.jump_by_slot(target, slot);
        } else {
            self.writer.load_number(Register::R10, target);
            self.writer.leave_to_look_up();
        }
    }

    /// Writes what branches lead to that have no target yet.
    pub(super) fn finish_later(&mut self) {
        self.lead_forward();
        while !self.later.is_empty() {
            for (branch, later) in std::mem::take(&mut self.later) {
                self.finish(branch, later);
            }
        }
    }

    /// Writes what `branch` leads to.
    fn finish(&mut self, branch: Branch, later: Later) {
        self.writer.emitter.land(branch);
        match later {
            Later::Elsewhere(site, bytes) => {
                let number = self.exit(Exit::Missed { site, popped: bytes });
                self.writer.return_elsewhere(bytes, number);
            }
            Later::To(rip) if self.is_in_page(rip) => self.leave(Exit::Link { branch, rip }),
            Later::To(rip) => self.go_to_other_page(rip),
            Later::Missed(site) => {
                let number = self.exit(Exit::Missed { site, popped: 0 });
                self.writer.leave_missed(number);
            }
        }
    }
}
