//! Far transfers of segmented code that change CS and no other segment register; INT n of real mode and of
//! the supervisor; and IRET where it may change IF.
//!
//! Each of them finds the jump table of the mode with the new CS by
//! [`far_find`](crate::routines::far::far_find), before it changes anything. In real mode and virtual-8086
//! mode the segment begins at 16 times its selector, and a transfer changes nothing else of CS (SDM vol. 3,
//! 21.1.1 and 21.2.1). In protected mode its descriptor must be the one that CS was last loaded from.

use iced_x86::{Code, Instruction, MemoryOperand, OpKind, Register};

use super::{BlockBuilder, virtual_8086};
use crate::code::emitter::Emitter;
use crate::code::flags;
use crate::code::segments::selector;
use crate::context::{FarMode, at};
use crate::mode::{Loading, Mode, Segmented};
use crate::segmented::{
    Access, access, field, load_offset, load_stack_above, release, sized, store_above, touch,
};

/// Bytes in a word and in a doubleword.
const WORD: u32 = 2;
const DWORD: u32 = 4;

/// Returns whether `instruction` is one that this file translates.
pub(super) fn is_translated(instruction: &Instruction, mode: &Mode, segmented: &Segmented) -> bool {
    let is_protected = segmented.loading == Loading::Protected;
    match instruction.code() {
        Code::Jmp_ptr1616
        | Code::Call_ptr1616
        | Code::Jmp_m1616
        | Code::Call_m1616
        | Code::Retfw
        | Code::Retfw_imm16
        | Code::Jmp_ptr1632
        | Code::Call_ptr1632
        | Code::Jmp_m1632
        | Code::Call_m1632
        | Code::Retfd
        | Code::Retfd_imm16 => true,
        Code::Int_imm8 if segmented.loading == Loading::Real => true,
        Code::Int_imm8 if is_protected => !mode.is_user,
        Code::Iretw if mode.changes_interrupt_flag() => true,
        Code::Iretd if is_protected && !mode.is_user => true,
        _ => virtual_8086::is_translated(instruction, segmented),
    }
}

/// Returns the field of the context with the routine that finds the code segment of a far transfer.
fn find_routine(segmented: &Segmented) -> u32 {
    match segmented.loading {
        Loading::Protected => at::FAR_FIND_DESCRIPTOR,
        Loading::Real | Loading::Virtual8086 { .. } => at::FAR_FIND,
    }
}

/// Returns the operand size of `transfer`, in bytes: the size of the offsets that it loads and pushes.
fn size(transfer: &Instruction) -> u32 {
    match transfer.code() {
        Code::Jmp_ptr1632
        | Code::Call_ptr1632
        | Code::Jmp_m1632
        | Code::Call_m1632
        | Code::Retfd
        | Code::Retfd_imm16
        | Code::Iretd => DWORD,
        _ => WORD,
    }
}

/// Stores R10 in field `to` of the context.
fn keep(emitter: &mut Emitter, to: u32) {
    if to == at::FAR_SELECTOR {
        emitter.instruction(Instruction::with2(Code::Mov_rm16_r16, field(to), Register::R10W));
    } else {
        emitter.store(field(to), Register::R10D);
    }
}

/// Loads R10 with the address of the [`FarMode`] of the selector in the context's
/// `far_selector`. `routine` is the field of the context with the address of the routine that finds it.
fn find(emitter: &mut Emitter, routine: u32) {
    emitter.load_word(Register::R9D, field(at::FAR_SELECTOR));
    emitter.call(routine);
}

/// Keeps in the context what [`find`] has found, for [`find_again`].
fn keep_found(emitter: &mut Emitter) {
    emitter.instruction(Instruction::with2(
        Code::Mov_rm64_r64,
        field(at::FAR_FOUND),
        Register::R10,
    ));
}

/// Loads R10 with what [`find`] has found. The descriptor is not compared once more, since the pushes may have
/// changed it.
fn find_again(emitter: &mut Emitter) {
    emitter.load_field(Register::R10, at::FAR_FOUND);
}

/// Goes on at the offset in the context's `far_offset`, in the [`FarMode`] at R10.
fn go(emitter: &mut Emitter) {
    emitter.load(Register::R8D, field(at::FAR_OFFSET));
    emitter.jump_through(at::FAR_GO);
}

/// Faults if the offset in the context's `far_offset`, which has `size` bytes, is beyond the limit of the
/// segment that [`find`] has found. Uses R8 and R9.
fn check_limit(emitter: &mut Emitter, segmented: &Segmented, size: u32) {
    let largest = if size == WORD { 0xffff } else { u32::MAX };
    // In real mode and virtual-8086 mode all code segments have the same limit.
    if segmented.loading == Loading::Protected || segmented.limit < largest {
        let limit = MemoryOperand::with_base_displ(Register::R10, at::FAR_CODE_LIMIT.into());
        emitter.instruction(Instruction::with2(Code::Mov_r64_rm64, Register::R9, limit));
        emitter.load(Register::R8D, field(at::FAR_OFFSET));
        touch(emitter, Register::R8, 0);
    }
}

/// Returns the selector and the offset to which `transfer` leads if it is a jump of real mode or virtual-8086
/// mode to a constant address. There all code segments have the same limit, which the offset is not beyond.
fn constant_target(transfer: &Instruction, segmented: &Segmented) -> Option<(u16, u32)> {
    let offset = match transfer.code() {
        Code::Jmp_ptr1616 => transfer.far_branch16().into(),
        Code::Jmp_ptr1632 => transfer.far_branch32(),
        _ => return None,
    };
    let has_descriptor = segmented.loading == Loading::Protected;
    let selector = transfer.far_branch_selector();
    (!has_descriptor && offset <= segmented.limit).then_some((selector, offset))
}

/// Loads R10D with `size` bytes from memory.
fn load(emitter: &mut Emitter, from: MemoryOperand, size: u32) {
    if size == WORD {
        emitter.load_word(Register::R10D, from);
    } else {
        emitter.load(Register::R10D, from);
    }
}

impl BlockBuilder<'_> {
    /// Translates `transfer`, which ends a block.
    pub(super) fn far(
        &mut self,
        transfer: &Instruction,
        segmented: &Segmented,
        entry_of: &impl Fn(u32) -> Option<u32>,
    ) {
        let size = size(transfer);
        if virtual_8086::is_translated(transfer, segmented) {
            return self.call_monitor(transfer, segmented);
        }
        if let Some(target) = constant_target(transfer, segmented) {
            return self.jump_to(target, segmented, entry_of);
        }
        let routine = find_routine(segmented);
        match transfer.code() {
            Code::Int_imm8 if segmented.loading == Loading::Protected => {
                self.interrupt_by_gate(transfer, segmented);
            }
            Code::Int_imm8 => self.interrupt(transfer, segmented),
            Code::Iretw | Code::Iretd => self.interrupt_return(segmented, size),
            Code::Retfw | Code::Retfw_imm16 | Code::Retfd | Code::Retfd_imm16 => {
                let has_immediate = transfer.op_count() > 0;
                let more = if has_immediate { transfer.immediate16() } else { 0 };
                self.keep_from_stack(segmented, size);
                find(&mut self.emitter, routine);
                check_limit(&mut self.emitter, segmented, size);
                release(&mut self.emitter, segmented, 2 * size + u32::from(more));
                go(&mut self.emitter);
            }
            code => {
                self.keep_target(transfer, size);
                find(&mut self.emitter, routine);
                check_limit(&mut self.emitter, segmented, size);
                let is_jump = matches!(
                    code,
                    Code::Jmp_ptr1616 | Code::Jmp_m1616 | Code::Jmp_ptr1632 | Code::Jmp_m1632
                );
                if !is_jump {
                    // Where `find` leaves the transfer to the interpreter, nothing has been pushed yet.
                    keep_found(&mut self.emitter);
                    self.store_return(transfer, segmented, 0, size);
                    find_again(&mut self.emitter);
                    release(&mut self.emitter, segmented, (2 * size).wrapping_neg());
                }
                go(&mut self.emitter);
            }
        }
    }

    /// Translates a far jump to `target`, its [constant target](constant_target).
    fn jump_to(
        &mut self,
        target: (u16, u32),
        segmented: &Segmented,
        entry_of: &impl Fn(u32) -> Option<u32>,
    ) {
        let (new, offset) = target;
        // While CS has this selector, the jump is like a near one if the segment has the same base, too.
        let is_near = (segmented.base == u32::from(new) << 4).then(|| {
            self.emitter.load_word(Register::R9D, selector(Register::CS));
            self.emitter.add(Register::R9D, Register::R9, -i32::from(new));
            self.emitter.jump_if_zero()
        });
        let entry = FarMode::place(new) * size_of::<FarMode>();
        let emitter = &mut self.emitter;
        emitter.load_number(Register::R9D, new.into());
        let entry =
            MemoryOperand::with_base_displ(Register::R14, i64::from(at::FAR_MODES) + entry as i64);
        emitter.instruction(Instruction::with2(Code::Lea_r64_m, Register::R10, entry));
        emitter.call(at::FAR_CHECK);
        emitter.load_number(Register::R8D, offset);
        emitter.jump_through(at::FAR_GO);
        if let Some(is_near) = is_near {
            self.emitter.land(is_near);
            self.go_to(offset, entry_of);
        }
    }

    /// Stores the offset and the selector to which a far jump or call goes in the context.
    fn keep_target(&mut self, transfer: &Instruction, size: u32) {
        let emitter = &mut self.emitter;
        if transfer.op0_kind() == OpKind::Memory {
            let segment = transfer.memory_segment();
            for (more, size, to) in [(0, size, at::FAR_OFFSET), (size, WORD, at::FAR_SELECTOR)] {
                load_offset(emitter, transfer, more);
                let from = access(emitter, segment, Access::Read, size);
                load(emitter, from, size);
                keep(emitter, to);
            }
        } else {
            let offset =
                if size == WORD { transfer.far_branch16().into() } else { transfer.far_branch32() };
            emitter.load_number(Register::R10D, transfer.far_branch_selector().into());
            keep(emitter, at::FAR_SELECTOR);
            emitter.load_number(Register::R10D, offset);
            keep(emitter, at::FAR_OFFSET);
        }
    }

    /// Stores the offset and the selector on top of the stack in the context.
    fn keep_from_stack(&mut self, segmented: &Segmented, size: u32) {
        let emitter = &mut self.emitter;
        load_stack_above(emitter, segmented, size as i32, WORD);
        keep(emitter, at::FAR_SELECTOR);
        load_stack_above(emitter, segmented, 0, size);
        keep(emitter, at::FAR_OFFSET);
    }

    /// Stores CS and the address of the next instruction where pushes would put them, below `bytes` bytes
    /// that were pushed before. ESP stays as it is: the memory below it belongs to nobody, so the stores can
    /// be repeated.
    fn store_return(
        &mut self,
        transfer: &Instruction,
        segmented: &Segmented,
        bytes: u32,
        size: u32,
    ) {
        let emitter = &mut self.emitter;
        let value = sized(Register::R10D, size);
        emitter.load_word(Register::R10D, selector(Register::CS));
        store_above(emitter, segmented, value, -((bytes + size) as i32));
        let next = transfer.next_ip32();
        emitter
            .load_number(Register::R10D, if self.mode.is_32_bit() { next } else { next & 0xffff });
        store_above(emitter, segmented, value, -((bytes + 2 * size) as i32));
    }

    /// Translates INT n of real mode, whose vector is in memory. Translated code executes it only while TF
    /// and AC are clear, so IF is the only flag that it must clear.
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
        find(emitter, at::FAR_FIND_VECTOR);
        check_limit(emitter, segmented, WORD);
        keep_found(emitter);
        flags::load(emitter, Register::R10);
        store_above(emitter, segmented, Register::R10W, -(WORD as i32));
        self.store_return(transfer, segmented, WORD, WORD);
        let emitter = &mut self.emitter;
        find_again(emitter);
        release(emitter, segmented, (3 * WORD).wrapping_neg());
        emitter.copy_field(at::SYSTEM_FLAGS, at::FLAGS_WITHOUT_IF);
        go(emitter);
    }

    /// Translates INT n of the supervisor in protected mode, by a 32-bit gate to code of the supervisor.
    fn interrupt_by_gate(&mut self, transfer: &Instruction, segmented: &Segmented) {
        let emitter = &mut self.emitter;
        // A gate has 8 bytes.
        emitter.load_number(Register::R10D, u32::from(transfer.immediate8()) * 8);
        emitter.call(at::FAR_GATE);
        find(emitter, at::FAR_FIND_DESCRIPTOR);
        check_limit(emitter, segmented, DWORD);
        keep_found(emitter);
        flags::load(emitter, Register::R10);
        store_above(emitter, segmented, Register::R10D, -(DWORD as i32));
        self.store_return(transfer, segmented, DWORD, DWORD);
        let emitter = &mut self.emitter;
        find_again(emitter);
        release(emitter, segmented, (3 * DWORD).wrapping_neg());
        emitter.copy_field(at::SYSTEM_FLAGS, at::FAR_FLAGS);
        go(emitter);
    }

    /// Translates IRET. The routine for POPF is the last step that may leave the instruction to the
    /// interpreter, so nothing has changed before it. With 32-bit operands IRET may lead to virtual-8086
    /// mode.
    fn interrupt_return(&mut self, segmented: &Segmented, size: u32) {
        self.keep_from_stack(segmented, size);
        let emitter = &mut self.emitter;
        load_stack_above(emitter, segmented, 2 * size as i32, size);
        keep(emitter, at::FAR_FLAGS);
        let is_protected = segmented.loading == Loading::Protected;
        if is_protected && size == DWORD {
            emitter.call(at::CHECK_RETURN_TO_PROGRAM);
            let stays = emitter.jump_if_zero();
            virtual_8086::pop_program(emitter, |emitter, above| {
                load_stack_above(emitter, segmented, above as i32, DWORD);
            });
            emitter.land(stays);
        }
        let routine =
            if is_protected { at::FAR_FIND_RETURN_DESCRIPTOR } else { at::FAR_FIND_RETURN };
        find(emitter, routine);
        check_limit(emitter, segmented, size);
        if size == WORD {
            emitter.load(Register::R8D, field(at::SYSTEM_FLAGS));
            let popped =
                Instruction::with2(Code::Mov_r16_rm16, Register::R8W, field(at::FAR_FLAGS));
            emitter.instruction(popped);
            emitter.call(at::POPF);
        } else {
            emitter.load(Register::R8D, field(at::FAR_FLAGS));
            emitter.call(at::POPF_OF_IRET);
        }
        release(emitter, segmented, 3 * size);
        go(emitter);
    }
}
