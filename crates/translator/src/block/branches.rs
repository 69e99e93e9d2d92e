//! Near branches: those of flat code, which has no limits, and what is common to all.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use super::{Maker, segmented_branches};
use crate::copy::{self, address};
use crate::mode::Mode;

/// A near branch that is translated.
pub(super) fn is_ending(instruction: &Instruction, mode: &Mode) -> bool {
    if let Some(segmented) = &mode.segmented {
        return segmented_branches::is_ending(instruction, segmented);
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
        _ => instruction.is_jcc_short_or_near() && instruction.op0_kind() == OpKind::NearBranch32,
    }
}

/// A conditional branch forward, after which a block goes on: one back is mostly taken.
pub(super) fn goes_on_after(instruction: &Instruction, mode: &Mode) -> bool {
    instruction.is_jcc_short_or_near()
        && is_ending(instruction, mode)
        && target(instruction) > instruction.ip32()
}

/// The processor may execute the instruction together with a conditional jump after it (Intel's optimization manual, "Macro-Fusion").
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

/// Where a relative branch leads.
pub(super) fn target(branch: &Instruction) -> u32 {
    branch.near_branch_target() as u32
}

/// The low four bits of a conditional jump's opcode.
pub(super) fn condition(branch: &Instruction) -> u8 {
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

impl Maker<'_> {
    /// The branch at the end.
    pub(super) fn ending(&mut self, branch: &Instruction, entry_of: &impl Fn(u32) -> Option<u32>) {
        let next = branch.next_ip32();
        match branch.code() {
            Code::Call_rel32_32 if branch.near_branch32() == next => {
                // It is after its own address, and nothing returns there.
                self.emitter.push_number(next);
                self.emitter.settle_stack();
                self.go_to(next, entry_of);
            }
            Code::Call_rel32_32 => {
                self.emitter.check_room();
                self.emitter.push_number(next);
                self.emitter.settle_stack();
                self.call(branch.near_branch32(), entry_of);
                self.landing(next, entry_of);
            }
            Code::Jmp_rel8_32 | Code::Jmp_rel32_32 => self.go_to(branch.near_branch32(), entry_of),
            Code::Retnd | Code::Retnd_imm16 => {
                let bytes = if branch.code() == Code::Retnd { 0 } else { branch.immediate16() };
                self.emitter.pop();
                self.emitter.move_stack(bytes.into());
                self.emitter.settle_stack();
                self.emitter.ret();
            }
            Code::Jmp_rm32 | Code::Call_rm32 => {
                let is_call = branch.code() == Code::Call_rm32;
                if is_call {
                    self.emitter.check_room();
                }
                if branch.op0_kind() == OpKind::Register {
                    self.emitter.copy(Register::R8D, copy::rename(branch.op0_register()));
                } else {
                    let from = address(&mut self.emitter, branch).expect("was asked before");
                    self.emitter.load(Register::R8D, from);
                }
                if is_call {
                    self.emitter.push_number(next);
                    self.emitter.settle_stack();
                    self.emitter.call_by_table();
                    self.landing(next, entry_of);
                } else {
                    self.emitter.jump_by_table();
                }
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

    /// What comes after a call, which pushed `next` for the guest.
    pub(super) fn landing(&mut self, next: u32, entry_of: &impl Fn(u32) -> Option<u32>) {
        self.emitter.check_return(next);
        self.go_to(next, entry_of);
    }
}
