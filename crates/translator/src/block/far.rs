//! Far transfers of real mode and virtual-8086 mode, and INT n of real mode and IRET where IF may be changed. A segment of code begins there at 16 times its selector, and nothing
//! else of CS changes (SDM vol. 3, 21.1.1 and 21.2.1), so all that is to be found is the jump table of the mode with that base: by
//! [`far_find`](crate::routines::far::far_find), before anything changes.

use iced_x86::{Code, Instruction, MemoryOperand, OpKind, Register};

use super::Maker;
use crate::context::at;
use crate::emitter::Emitter;
use crate::flags;
use crate::mode::{Loading, Segmented};
use crate::segmented::{
    Access, access, check_target, field, load_offset, load_stack_above, release, store_above,
};
use crate::segments::selector;

/// The bytes of a word: all of these have 16-bit operands.
const WORD: u32 = 2;

/// `instruction` is one of this file.
pub(super) fn is_translated(instruction: &Instruction, segmented: &Segmented) -> bool {
    let is_privileged = Loading::Virtual8086 { is_privileged: true };
    match instruction.code() {
        Code::Jmp_ptr1616
        | Code::Call_ptr1616
        | Code::Jmp_m1616
        | Code::Call_m1616
        | Code::Retfw
        | Code::Retfw_imm16 => segmented.loading != Loading::Protected,
        Code::Int_imm8 => segmented.loading == Loading::Real,
        Code::Iretw => segmented.loading == Loading::Real || segmented.loading == is_privileged,
        _ => false,
    }
}

/// Stores R10W in a field of the context.
fn keep(emitter: &mut Emitter, to: u32) {
    emitter.instruction(Instruction::with2(Code::Mov_rm16_r16, field(to), Register::R10W));
}

/// Finds where code with the selector that was kept goes on, by a routine in a field of the context: R10 is its jump table.
fn find(emitter: &mut Emitter, routine: u32) {
    emitter.load_word(Register::R9D, field(at::FAR_SELECTOR));
    emitter.call(routine);
}

/// Goes there.
fn go(emitter: &mut Emitter) {
    emitter.load_word(Register::R8D, field(at::FAR_OFFSET));
    emitter.load_word(Register::R9D, field(at::FAR_SELECTOR));
    emitter.jump_through(at::FAR_GO);
}

impl Maker<'_> {
    /// Translates `transfer`, which ends a block.
    pub(super) fn far(&mut self, transfer: &Instruction, segmented: &Segmented) {
        match transfer.code() {
            Code::Int_imm8 => self.interrupt(transfer, segmented),
            Code::Iretw => self.interrupt_return(segmented),
            Code::Retfw | Code::Retfw_imm16 => {
                let has_number = transfer.op_count() > 0;
                let more = if has_number { transfer.immediate16() } else { 0 };
                self.keep_from_stack(segmented);
                find(&mut self.emitter, at::FAR_FIND);
                release(&mut self.emitter, segmented, 2 * WORD + u32::from(more));
                go(&mut self.emitter);
            }
            code => {
                self.keep_target(transfer, segmented);
                let is_call = matches!(code, Code::Call_ptr1616 | Code::Call_m1616);
                if is_call {
                    // What is left to the interpreter may not come to its pushes.
                    find(&mut self.emitter, at::FAR_FIND);
                    self.store_return(transfer, segmented, 0);
                }
                find(&mut self.emitter, at::FAR_FIND);
                if is_call {
                    release(&mut self.emitter, segmented, (2 * WORD).wrapping_neg());
                }
                go(&mut self.emitter);
            }
        }
    }

    /// Keeps where a jump or a call goes.
    fn keep_target(&mut self, transfer: &Instruction, segmented: &Segmented) {
        let emitter = &mut self.emitter;
        if transfer.op0_kind() == OpKind::Memory {
            let segment = transfer.memory_segment();
            for (more, to) in [(0, at::FAR_OFFSET), (WORD, at::FAR_SELECTOR)] {
                load_offset(emitter, transfer, more);
                let from = access(emitter, segment, Access::Read, WORD);
                emitter.load_word(Register::R10D, from);
                keep(emitter, to);
            }
            emitter.load_word(Register::R10D, field(at::FAR_OFFSET));
        } else {
            emitter.load_number(Register::R10D, transfer.far_branch_selector().into());
            keep(emitter, at::FAR_SELECTOR);
            emitter.load_number(Register::R10D, transfer.far_branch16().into());
            keep(emitter, at::FAR_OFFSET);
        }
        check_target(emitter, segmented, WORD);
    }

    /// Keeps the offset and the selector that are on top of the stack.
    fn keep_from_stack(&mut self, segmented: &Segmented) {
        let emitter = &mut self.emitter;
        load_stack_above(emitter, segmented, WORD as i32);
        keep(emitter, at::FAR_SELECTOR);
        load_stack_above(emitter, segmented, 0);
        keep(emitter, at::FAR_OFFSET);
        check_target(emitter, segmented, WORD);
    }

    /// Stores CS and the address of the next instruction where a push would have them after others of `bytes` bytes. ESP stays: what is below it is nobody's.
    fn store_return(&mut self, transfer: &Instruction, segmented: &Segmented, bytes: u32) {
        let emitter = &mut self.emitter;
        emitter.load_word(Register::R10D, selector(Register::CS));
        store_above(emitter, segmented, Register::R10W, -((bytes + WORD) as i32));
        emitter.load_number(Register::R10D, transfer.next_ip32() & 0xffff);
        store_above(emitter, segmented, Register::R10W, -((bytes + 2 * WORD) as i32));
    }

    /// INT n: the vector is in memory, and TF, which is clear, and AC are not pushed or stay clear where this is not left to the interpreter.
    fn interrupt(&mut self, transfer: &Instruction, segmented: &Segmented) {
        let emitter = &mut self.emitter;
        let vector = u32::from(transfer.immediate8());
        for (more, to) in [(WORD, at::FAR_SELECTOR), (0, at::FAR_OFFSET)] {
            emitter.load(Register::R8D, field(at::REAL_VECTORS));
            let entry = i64::from(4 * vector + more);
            let from =
                MemoryOperand::new(Register::R8D, Register::None, 1, entry, 4, false, Register::GS);
            emitter.load_word(Register::R10D, from);
            keep(emitter, to);
        }
        check_target(emitter, segmented, WORD);
        find(emitter, at::FAR_FIND_VECTOR);
        flags::load(emitter, Register::R10);
        store_above(emitter, segmented, Register::R10W, -(WORD as i32));
        self.store_return(transfer, segmented, WORD);
        let emitter = &mut self.emitter;
        find(emitter, at::FAR_FIND_VECTOR);
        release(emitter, segmented, (3 * WORD).wrapping_neg());
        emitter.copy_field(at::SYSTEM_FLAGS, at::FLAGS_WITHOUT_IF);
        go(emitter);
    }

    /// IRET: POPF is the last thing that may be left to the interpreter.
    fn interrupt_return(&mut self, segmented: &Segmented) {
        self.keep_from_stack(segmented);
        let emitter = &mut self.emitter;
        load_stack_above(emitter, segmented, 2 * WORD as i32);
        keep(emitter, at::FAR_FLAGS);
        find(emitter, at::FAR_FIND_RETURN);
        emitter.load(Register::R8D, field(at::SYSTEM_FLAGS));
        let popped = Instruction::with2(Code::Mov_r16_rm16, Register::R8W, field(at::FAR_FLAGS));
        emitter.instruction(popped);
        emitter.call(at::POPF);
        release(emitter, segmented, 3 * WORD);
        go(emitter);
    }
}
