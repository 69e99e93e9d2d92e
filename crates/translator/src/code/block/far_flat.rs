//! Far transfers from flat code to flat code, mostly to its own segment. They change the selector of CS and
//! nothing else of it. A far call may lead there by a call gate. In user code the gate may lead to code of
//! the supervisor, on another stack, from where a far return leads back (SDM vol. 3, 6.8.5 and 6.8.6).

use iced_x86::{Code, Instruction, MemoryOperand, OpKind, Register};

use super::BlockBuilder;
use crate::code::copy::{address, address_behind, is_translated_address};
use crate::code::emitter::{Emitter, in_window};
use crate::code::segments::selector;
use crate::context::{at, info};

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
        let is_user = self.mode.is_user;
        let checks = match (is_call, is_return) {
            (true, _) => at::FAR_CHECK_CALL,
            (_, true) => at::FAR_CHECK_RETURN,
            _ => at::FAR_CHECK_FLAT,
        };
        let has_immediate = is_return && transfer.op_count() > 0;
        let parameters = if has_immediate { i32::from(transfer.immediate16()) } else { 0 };
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
        emitter.call(checks[usize::from(is_user)]);
        if is_call && is_user {
            self.call_inward(next);
        }
        if is_return && !is_user {
            self.return_outward(transfer, parameters);
        }
        let emitter = &mut self.emitter;
        if is_call {
            emitter.load_word(Register::R10D, selector(Register::CS));
            emitter.push(Register::R10D);
            emitter.push_number(next);
        }
        if is_return {
            emitter.move_stack(8 + parameters);
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

    /// Translates the part of a far call that leads to the supervisor's code, after its check. Otherwise the
    /// code after it goes on.
    fn call_inward(&mut self, next: u32) {
        let emitter = &mut self.emitter;
        let stays = emitter.jump_if_zero();
        let element = |number: i64| in_window(Register::R10D, -4 * number);
        let pointer = MemoryOperand::with_base_displ(Register::R14, at::POINTER.into());
        emitter.load(Register::R10D, pointer);
        emitter.load_word(Register::R8D, selector(Register::SS));
        emitter.store(element(1), Register::R8D);
        emitter.store(element(2), Register::R15D);
        emitter.load_word(Register::R8D, selector(Register::CS));
        emitter.store(element(3), Register::R8D);
        emitter.store_number(element(4), next);
        // INT n pushes five elements.
        emitter.add(Register::R10D, Register::R10, 4);
        emitter.jump_through(at::ENTER_HANDLER[1]);
        emitter.land(stays);
    }

    /// Translates the part of a far return that leads to user code, after its check. Otherwise the code after
    /// it goes on.
    fn return_outward(&mut self, transfer: &Instruction, parameters: i32) {
        let number = self.sites.last().and_then(|site| site.transfer).unwrap_or_default();
        let emitter = &mut self.emitter;
        let stays = emitter.jump_if_zero();
        emitter.load(Register::R10D, emitter.top_of_stack(8 + parameters));
        // The parameters are on both stacks.
        emitter.add(Register::R10D, Register::R10, parameters);
        emitter.load(Register::R9D, emitter.top_of_stack(12 + parameters));
        let info = info::TRANSFERS | number << info::OP_SHIFT;
        emitter.leave(at::INTERRUPT_RETURN[1], transfer.ip32(), info);
        emitter.land(stays);
    }
}
