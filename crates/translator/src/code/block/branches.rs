//! Near branches: those of flat code, which need no check of a limit, and the parts that flat and segmented
//! code share.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use super::{BlockBuilder, far_flat, segmented_branches};
use crate::code::copy::{self, address};
use crate::mode::Mode;

/// Upper bound of the instructions in a block that contains a loop several times.
const MAX_UNROLLED: u16 = 24;

/// Returns whether `instruction` is a near branch, or a far transfer, that is translated and ends its block.
pub(super) fn is_ending(instruction: &Instruction, mode: &Mode) -> bool {
    if let Some(segmented) = &mode.segmented {
        return segmented_branches::is_ending(instruction, mode, segmented);
    }
    match instruction.code() {
        Code::Jmp_rel8_32
        | Code::Jmp_rel32_32
        | Code::Call_rel32_32
        | Code::Retnd
        | Code::Retnd_imm16
        | Code::Loop_rel8_32_ECX
        | Code::Loope_rel8_32_ECX
        | Code::Loopne_rel8_32_ECX
        | Code::Jecxz_rel8_32 => true,
        Code::Jmp_rm32 | Code::Call_rm32 => {
            instruction.op0_kind() == OpKind::Register || copy::is_translated_address(instruction)
        }
        _ if far_flat::is_translated(instruction) => true,
        _ => instruction.is_jcc_short_or_near() && instruction.op0_kind() == OpKind::NearBranch32,
    }
}

/// Returns whether `instruction` is a conditional branch forward, after which a block continues. Most
/// conditional branches backward end the block, since they are mostly taken.
pub(super) fn goes_on_after(instruction: &Instruction, mode: &Mode) -> bool {
    instruction.is_jcc_short_or_near()
        && is_ending(instruction, mode)
        && target(instruction) > instruction.ip32()
}

/// Returns whether the processor may fuse `instruction` with a conditional jump that follows it (Intel's
/// optimization manual, "Macro-Fusion").
pub(super) fn fuses(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Cmp
            | Mnemonic::Test
            | Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::And
            | Mnemonic::Inc
            | Mnemonic::Dec
    )
}

/// Returns the target of a relative branch, an address in CS.
pub(super) fn target(branch: &Instruction) -> u32 {
    branch.near_branch_target() as u32
}

/// Returns the low four bits of a conditional jump's opcode.
pub(crate) fn condition(branch: &Instruction) -> u8 {
    use iced_x86::ConditionCode as C;
    match branch.condition_code() {
        C::o => 0,
        C::no => 1,
        C::b => 2,
        C::ae => 3,
        C::e => 4,
        C::ne => 5,
        C::be => 6,
        C::a => 7,
        C::s => 8,
        C::ns => 9,
        C::p => 10,
        C::np => 11,
        C::l => 12,
        C::ge => 13,
        C::le => 14,
        C::g | C::None => 15,
    }
}

impl BlockBuilder<'_> {
    /// Translates the branch at the end of a block of flat code.
    pub(super) fn ending(&mut self, branch: &Instruction, entry_of: &impl Fn(u32) -> Option<u32>) {
        if far_flat::is_translated(branch) {
            return self.far_flat(branch, entry_of);
        }
        let next = branch.next_ip32();
        match branch.code() {
            Code::Call_rel32_32 if branch.near_branch32() == next => {
                // This CALL only pushes its own return address, and no RET returns there.
                self.emitter.push_number(next);
                self.emitter.settle_stack();
                self.go_to(next, entry_of);
            }
            Code::Call_rel32_32 | Code::Call_rm32 => {
                self.make_call(branch, entry_of);
                self.go_to(next, entry_of);
            }
            Code::Jmp_rel8_32 | Code::Jmp_rel32_32 => self.go_to(branch.near_branch32(), entry_of),
            Code::Retnd | Code::Retnd_imm16 => {
                let bytes = if branch.code() == Code::Retnd { 0 } else { branch.immediate16() };
                self.emitter.pop();
                self.emitter.move_stack(bytes.into());
                self.emitter.settle_stack();
                self.emitter.ret();
            }
            Code::Jmp_rm32 => {
                self.load_flat_target(branch);
                self.emitter.jump_by_table();
            }
            code => {
                let taken = match code {
                    Code::Loopne_rel8_32_ECX => self.emitter.loop_if(0xe0),
                    Code::Loope_rel8_32_ECX => self.emitter.loop_if(0xe1),
                    Code::Loop_rel8_32_ECX => self.emitter.loop_if(0xe2),
                    Code::Jecxz_rel8_32 => self.emitter.loop_if(0xe3),
                    _ => self.emitter.jump_if(condition(branch)),
                };
                self.lead(taken, branch.near_branch32(), entry_of);
                self.go_to(next, entry_of);
            }
        }
    }

    /// Returns whether `branch` goes back to the beginning of the block and the block has room for another
    /// copy of its instructions. A short loop is unrolled so that it checks the budget once for several
    /// rounds.
    pub(super) fn comes_again(&self, branch: &Instruction) -> bool {
        let is_jump = branch.is_jcc_short_or_near() || branch.is_jmp_short_or_near();
        let round = self.round.unwrap_or(self.instructions + 1);
        is_jump
            && self.mode.segmented.is_none()
            && !self.is_changing
            && is_ending(branch, &self.mode)
            && target(branch) == self.eip
            && self.instructions + 1 + round <= MAX_UNROLLED
    }

    /// Translates `branch`, after which the block's instructions follow once more.
    pub(super) fn go_round(&mut self, branch: &Instruction) {
        self.emitter.settle_stack();
        self.begin_site(branch);
        self.round.get_or_insert(self.instructions);
        if branch.is_jcc_short_or_near() {
            let leaves = self.emitter.jump_if(condition(branch) ^ 1);
            self.leaving.push((leaves, branch.next_ip32(), self.sites.len() - 1));
        }
    }

    /// Returns whether `branch` goes back to the beginning of the block under a condition, and the block
    /// continues after it, so that leaving the loop needs no jump to another block.
    pub(super) fn goes_on_after_loop(&self, branch: &Instruction) -> bool {
        branch.is_jcc_short_or_near()
            && self.round.is_none()
            && !self.is_changing
            && is_ending(branch, &self.mode)
            && target(branch) == self.eip
    }

    /// Translates such a branch.
    pub(super) fn branch_back(&mut self, branch: &Instruction) {
        self.emitter.settle_stack();
        self.begin_site(branch);
        self.end_count();
        let taken = self.emitter.jump_if(condition(branch));
        self.emitter.lead(taken, self.entry);
        self.begin_count();
    }

    /// Settles R15D before `branch`, unless `branch` is a near call or return, which adds the deferred offset
    /// itself when it changes ESP.
    pub(super) fn settle_for_branch(&mut self, branch: &Instruction) {
        let is_far = self.is_far(branch);
        if is_far || !branch.is_stack_instruction() || copy::needs_stack_pointer(branch) {
            self.emitter.settle_stack();
        }
    }

    /// Returns whether `instruction` is a near call of flat code after which the block continues. It does if
    /// there is no block yet at the return address. A block of code that keeps changing ends at a call, since
    /// its bytes are compared where it is entered.
    pub(super) fn goes_on_after_call(
        &self,
        instruction: &Instruction,
        entry_of: &impl Fn(u32) -> Option<u32>,
    ) -> bool {
        let next = instruction.next_ip32();
        let is_call = match instruction.code() {
            Code::Call_rel32_32 => instruction.near_branch32() != next,
            code => code == Code::Call_rm32,
        };
        is_call
            && self.mode.segmented.is_none()
            && !self.is_changing
            && is_ending(instruction, &self.mode)
            && entry_of(next).is_none()
    }

    /// Translates a near call of flat code, up to the landing to which it returns.
    pub(super) fn make_call(&mut self, call: &Instruction, entry_of: &impl Fn(u32) -> Option<u32>) {
        let next = call.next_ip32();
        self.emitter.check_room();
        if call.code() == Code::Call_rel32_32 {
            self.emitter.push_number(next);
            self.emitter.settle_stack();
            self.call(call.near_branch32(), entry_of);
        } else {
            self.load_flat_target(call);
            self.emitter.push_number(next);
            self.emitter.settle_stack();
            self.emitter.call_by_table();
        }
        self.emitter.check_return(next);
    }

    /// Loads R8D with the target of an indirect branch.
    fn load_flat_target(&mut self, branch: &Instruction) {
        if branch.op0_kind() == OpKind::Register {
            self.emitter.copy(Register::R8D, copy::rename(branch.op0_register()));
        } else {
            let from = address(&mut self.emitter, branch).expect("was asked before");
            self.emitter.load(Register::R8D, from);
        }
    }
}
