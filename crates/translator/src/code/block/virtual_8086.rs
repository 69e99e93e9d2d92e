//! Instructions of virtual-8086 mode that lead to its monitor: INT n and INT3, and those that raise #GP, so
//! that the monitor executes them instead (SDM vol. 3, 21.2.2 and 21.3.3). IRET of the monitor leads back.

use iced_x86::{Code, Instruction, Register};
use ring3_x86::exception::vector;

use super::BlockBuilder;
use crate::code::emitter::{Emitter, in_window};
use crate::code::segments::selector;
use crate::context::at;
use crate::mode::{Loading, Segmented};
use crate::segmented::field;

/// Number of elements that IRET pops for virtual-8086 mode after EIP, CS and EFLAGS.
const MORE: u32 = 6;
/// Bytes in an element of the monitor's stack.
const DWORD: u32 = 4;

/// Returns whether `instruction` is one that this file translates.
pub(super) fn is_translated(instruction: &Instruction, segmented: &Segmented) -> bool {
    let Loading::Virtual8086 { is_privileged } = segmented.loading else { return false };
    match instruction.code() {
        Code::Int_imm8 | Code::Int3 | Code::Hlt => true,
        Code::Cli
        | Code::Sti
        | Code::Pushfw
        | Code::Pushfd
        | Code::Popfw
        | Code::Popfd
        | Code::Iretw
        | Code::Iretd => !is_privileged,
        _ => false,
    }
}

/// Writes the pops of IRET to the program that are left. `load` loads R10D with the element so many bytes
/// above the top of the stack.
pub(super) fn pop_program(emitter: &mut Emitter, load: impl Fn(&mut Emitter, u32)) {
    for element in 0..MORE {
        load(emitter, (3 + element) * DWORD);
        emitter.store(field(at::POPPED + element * DWORD), Register::R10D);
    }
    emitter.jump_through(at::ENTER_PROGRAM);
}

impl BlockBuilder<'_> {
    /// Translates an instruction of the program that leads to the monitor. The routine that reads the gate
    /// comes first.
    pub(super) fn call_monitor(&mut self, instruction: &Instruction, segmented: &Segmented) {
        let is_privileged = segmented.loading == Loading::Virtual8086 { is_privileged: true };
        let software = match instruction.code() {
            Code::Int3 => Some(vector::BP),
            Code::Int_imm8 if is_privileged => Some(instruction.immediate8()),
            _ => None,
        };
        let is_exception = software.is_none();
        let vector = software.unwrap_or(vector::GP);
        let emitter = &mut self.emitter;
        // A gate has 8 bytes.
        emitter.load_number(Register::R10D, u32::from(vector) * 8);
        emitter.call(at::INTERRUPT_PROGRAM[usize::from(is_exception)]);
        let mut bytes = 0;
        let mut element = || {
            bytes += DWORD;
            in_window(Register::R10D, -i64::from(bytes))
        };
        for register in [Register::GS, Register::FS, Register::DS, Register::ES, Register::SS] {
            emitter.load_word(Register::R8D, selector(register));
            emitter.store(element(), Register::R8D);
        }
        emitter.store(element(), Register::R15D);
        emitter.store(element(), Register::R9D);
        emitter.load_word(Register::R8D, selector(Register::CS));
        emitter.store(element(), Register::R8D);
        let eip = if is_exception { instruction.ip32() } else { instruction.next_ip32() & 0xffff };
        emitter.store_number(element(), eip);
        if is_exception {
            // #GP has the error code 0.
            emitter.store_number(element(), 0);
        }
        emitter.add(Register::R10D, Register::R10, -(bytes as i32));
        emitter.jump_through(at::ENTER_MONITOR);
    }
}
