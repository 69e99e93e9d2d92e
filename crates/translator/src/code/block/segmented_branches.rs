//! Near branches of segmented code. Their targets are addresses in CS, which must not be beyond its limit and
//! which have 16 bits with 16-bit operands (SDM vol. 2, JMP, CALL, RET, Jcc, LOOP).

use iced_x86::{Code, Instruction, MemoryOperand, Mnemonic, OpKind, Register};

use super::branches::{condition, target};
use super::{BlockBuilder, far};
use crate::code::copy::rename;
use crate::context::at;
use crate::mode::{Mode, Segmented};
use crate::segmented::{address, check_target, peek, push_number, release};

/// Returns whether `branch` is translated and ends its block.
pub(super) fn is_ending(branch: &Instruction, mode: &Mode, segmented: &Segmented) -> bool {
    if far::is_translated(branch, mode, segmented) {
        return true;
    }
    let is_relative = matches!(branch.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32);
    match branch.mnemonic() {
        // The interpreter executes a branch to a target beyond the limit, and raises the exception.
        Mnemonic::Jmp | Mnemonic::Call if is_relative => target(branch) <= segmented.limit,
        // A call through ESP would have to keep its target over the push, which changes ESP.
        Mnemonic::Jmp | Mnemonic::Call => match branch.code() {
            Code::Jmp_rm16 | Code::Jmp_rm32 | Code::Call_rm16 | Code::Call_rm32 => {
                !matches!(branch.op0_register(), Register::SP | Register::ESP)
            }
            _ => false,
        },
        Mnemonic::Ret => true,
        _ => is_relative && target(branch) <= segmented.limit,
    }
}

/// Returns the operand size of `branch`, in bytes: the size of the addresses that it loads and pushes.
fn size(branch: &Instruction) -> u32 {
    match branch.code() {
        Code::Retnw | Code::Retnw_imm16 | Code::Jmp_rm16 | Code::Call_rm16 => 2,
        _ if branch.op0_kind() == OpKind::NearBranch16 => 2,
        _ => 4,
    }
}

impl BlockBuilder<'_> {
    /// Translates the branch at the end of a block of segmented code.
    pub(super) fn segmented_ending(
        &mut self,
        branch: &Instruction,
        segmented: &Segmented,
        entry_of: &impl Fn(u32) -> Option<u32>,
    ) {
        if far::is_translated(branch, &self.mode, segmented) {
            return self.far(branch, segmented, entry_of);
        }
        let size = size(branch);
        let next = branch.next_ip32();
        // The address that a call pushes.
        let pushed = if size == 2 { next & 0xffff } else { next };
        let is_relative = matches!(branch.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32);
        match branch.mnemonic() {
            Mnemonic::Jmp if is_relative => self.go_to(target(branch), entry_of),
            Mnemonic::Call if is_relative && target(branch) == pushed => {
                // This CALL only pushes its own return address, and no RET returns there.
                push_number(&mut self.emitter, segmented, pushed, size);
                self.go_to(pushed, entry_of);
            }
            Mnemonic::Call if is_relative => {
                self.emitter.check_room();
                push_number(&mut self.emitter, segmented, pushed, size);
                self.call(target(branch), entry_of);
                self.emitter.check_return(pushed);
                self.go_to(pushed, entry_of);
            }
            Mnemonic::Jmp => {
                self.load_target(branch, size);
                check_target(&mut self.emitter, segmented, size);
                self.emitter.copy(Register::R8D, Register::R10D);
                self.emitter.jump_by_table();
            }
            Mnemonic::Call => {
                self.emitter.check_room();
                self.load_target(branch, size);
                check_target(&mut self.emitter, segmented, size);
                let branch_field =
                    MemoryOperand::with_base_displ(Register::R14, at::BRANCH_TARGET.into());
                self.emitter.store(branch_field, Register::R10D);
                push_number(&mut self.emitter, segmented, pushed, size);
                self.emitter.load(Register::R8D, branch_field);
                self.emitter.call_by_table();
                self.emitter.check_return(pushed);
                self.go_to(pushed, entry_of);
            }
            Mnemonic::Ret => {
                peek(&mut self.emitter, segmented, size);
                check_target(&mut self.emitter, segmented, size);
                let has_immediate = branch.op_count() > 0;
                let more = if has_immediate { branch.immediate16() } else { 0 };
                release(&mut self.emitter, segmented, size + u32::from(more));
                self.emitter.copy(Register::R8D, Register::R10D);
                self.emitter.ret();
            }
            mnemonic => {
                let by_cx = matches!(
                    branch.code(),
                    Code::Loop_rel8_16_CX
                        | Code::Loop_rel8_32_CX
                        | Code::Loope_rel8_16_CX
                        | Code::Loope_rel8_32_CX
                        | Code::Loopne_rel8_16_CX
                        | Code::Loopne_rel8_32_CX
                        | Code::Jcxz_rel8_16
                        | Code::Jcxz_rel8_32
                );
                let taken = match mnemonic {
                    Mnemonic::Loopne if !by_cx => self.emitter.loop_if(0xe0),
                    Mnemonic::Loope if !by_cx => self.emitter.loop_if(0xe1),
                    Mnemonic::Loop if !by_cx => self.emitter.loop_if(0xe2),
                    Mnemonic::Jecxz => self.emitter.loop_if(0xe3),
                    Mnemonic::Jcxz => self.emitter.jump_if_cx_zero(),
                    Mnemonic::Loopne => self.emitter.loop_by_cx(Some(JNE)),
                    Mnemonic::Loope => self.emitter.loop_by_cx(Some(JE)),
                    Mnemonic::Loop => self.emitter.loop_by_cx(None),
                    _ => self.emitter.jump_if(condition(branch)),
                };
                self.lead(taken, target(branch), entry_of);
                self.go_to(next, entry_of);
            }
        }
    }

    /// Loads R10D with the target of the indirect `branch`.
    fn load_target(&mut self, branch: &Instruction, size: u32) {
        let emitter = &mut self.emitter;
        let code = if size == 2 { Code::Movzx_r32_rm16 } else { Code::Mov_r32_rm32 };
        let load = if branch.op0_kind() == OpKind::Register {
            Instruction::with2(code, Register::R10D, rename(branch.op0_register()))
        } else {
            let from = address(emitter, branch).expect("it has a plain operand");
            Instruction::with2(code, Register::R10D, from)
        };
        emitter.instruction(load);
    }
}

/// The low four bits of the opcodes of JE and JNE.
const JE: u8 = 4;
const JNE: u8 = 5;
