//! Far transfers from flat code to flat code of the same privilege, mostly to its own segment. They change
//! the selector of CS and nothing else of it. A far call may lead there by a call gate.

use iced_x86::{Code, Instruction, MemoryOperand, OpKind, Register};

use super::BlockBuilder;
use crate::code::copy::{address, address_behind, is_translated_address};
use crate::code::emitter::Emitter;
use crate::code::segments::selector;
use crate::context::at;

/// Returns whether `instruction` is one that this file translates.
pub(super) fn is_translated(instruction: &Instruction) -> bool {
    match instruction.code() {
        Code::Jmp_ptr1632 | Code::Call_ptr1632 | Code::Retfd | Code::Retfd_imm16 => true,
        Code::Jmp_m1632 | Code::Call_m1632 => is_translated_address(instruction),
        _ => false,
    }
}

/// Returns the field of the context that holds the target while a routine checks the transfer.
fn waiting() -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::R14, at::BRANCH_TARGET.into())
}

/// Loads a doubleword of memory into R10D, and stores it in the field [`waiting`].
fn keep_offset(emitter: &mut Emitter, from: MemoryOperand) {
    emitter.load(Register::R10D, from);
    emitter.store(waiting(), Register::R10D);
}

impl BlockBuilder<'_> {
    /// Translates `transfer`, which ends a block.
    pub(super) fn far_flat(
        &mut self,
        transfer: &Instruction,
        entry_of: &impl Fn(u32) -> Option<u32>,
    ) {
        let next = transfer.next_ip32();
        let target =
            matches!(transfer.op0_kind(), OpKind::FarBranch32).then(|| transfer.far_branch32());
        let is_call = matches!(transfer.code(), Code::Call_ptr1632 | Code::Call_m1632);
        let is_return = matches!(transfer.code(), Code::Retfd | Code::Retfd_imm16);
        let checks = if is_call { at::FAR_CHECK_CALL } else { at::FAR_CHECK_FLAT };
        let emitter = &mut self.emitter;
        if is_call {
            emitter.check_room();
        }
        if let Some(target) = target {
            if is_call {
                emitter.store_number(waiting(), target);
            }
            emitter.load_number(Register::R8D, transfer.far_branch_selector().into());
        } else if is_return {
            keep_offset(emitter, emitter.top_of_stack(0));
            emitter.load_word(Register::R8D, emitter.top_of_stack(4));
        } else {
            let from = address(emitter, transfer).expect("was asked before");
            keep_offset(emitter, from);
            let from = address_behind(emitter, transfer, 4).expect("was asked before");
            emitter.load_word(Register::R8D, from);
        }
        emitter.call(checks[usize::from(self.mode.is_user)]);
        if is_call {
            emitter.load_word(Register::R10D, selector(Register::CS));
            emitter.push(Register::R10D);
            emitter.push_number(next);
        }
        if is_return {
            let has_immediate = transfer.op_count() > 0;
            let more = if has_immediate { transfer.immediate16() } else { 0 };
            emitter.move_stack(8 + i32::from(more));
        }
        emitter.settle_stack();
        if is_call {
            let field = MemoryOperand::with_base_displ(Register::R14, at::FAR_SELECTOR.into());
            emitter.load_word(Register::R8D, field);
        }
        emitter.call(at::FAR_LOAD_FLAT);
        match target {
            Some(target) if !is_call => return self.go_to(target, entry_of),
            _ => emitter.load(Register::R8D, waiting()),
        }
        if is_return {
            emitter.ret();
        } else if is_call {
            emitter.call_by_table();
            emitter.check_return(next);
            self.go_to(next, entry_of);
        } else {
            emitter.jump_by_table();
        }
    }
}
