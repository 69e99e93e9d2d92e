//! Calls and returns of 64-bit code, which are the host's, so that its processor predicts where they return
//! to.
//!
//! A CALL pushes the complement of the guest's return address on the [host's stack](crate::returns), so that its sum
//! with that address is -1, and then calls its target.
//! Behind the host's call is the *landing*, which continues with the instruction after the guest's call. A
//! RET compares the address on the guest's stack with that on the host's. If they are equal, the host returns
//! to the landing, which removes the address. Otherwise the guest returns elsewhere than to its last call,
//! and the RET goes by the jump table. That takes the last call from the host's stack, too, since it is
//! mostly over, as after a RET that is used as a jump.
//!
//! So a RET that the host executes changes nothing else: code is known at its target, which is canonical. An
//! empty stack has 0 in the place of the last return address's complement, and its landing looks for the code there.
//!
//! Each [space](crate::long::space) has a host's stack of its own: its landings are code of that space.
//! SYSCALL and SYSRET change to that of the other side. It is emptied when any block is dropped, and when the
//! space fetches instructions from another page.

use iced_x86::{Code, Instruction, MemoryOperand, Register};

use crate::code::emitter::Branch;
use crate::long::context::at;
use crate::long::writer::{JRCXZ, JUMP, Writer, as_signed};
use crate::returns::ROOM_CHECK;

/// Bytes of a call on the host's stack.
const CALL: i64 = 16;
/// RET that removes the guest's return address, too.
const RETURN: [u8; 3] = [0xc2, 8, 0];
/// LEA RSP, [RSP + CALL].
const REMOVE: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, CALL as u8];

impl Writer {
    /// Reads an address that faults if the host's stack has no room for one more call. Uses `scratch`.
    pub(crate) fn check_room(&mut self, scratch: Register) {
        let below = -(ROOM_CHECK as i64);
        let room = MemoryOperand::with_base_displ(Register::RSP, below);
        let read = Instruction::with2(Code::Movzx_r32_rm8, scratch.full_register32(), room);
        self.emitter.instruction(read);
    }

    /// Pushes the complement of `next`, where a call returns to, on the host's stack. If it does not fit into 32 bits,
    /// `next` is in `register`, which is changed.
    pub(crate) fn push_return(&mut self, next: u64, register: Register) {
        let push = if let Some(complement) = as_signed(!next) {
            Instruction::with1(Code::Pushq_imm32, complement)
        } else {
            self.emitter.instruction(Instruction::with1(Code::Not_rm64, register));
            Instruction::with1(Code::Push_r64, register)
        };
        self.emitter.instruction(push);
    }

    /// Calls the code for the target of `slot` of the jump table, which is the guest address `target`.
    pub(crate) fn call_by_slot(&mut self, target: u64, slot: u32) {
        let entry = self.slot_entry(target, slot);
        self.emitter.instruction(Instruction::with1(Code::Call_rm64, entry));
    }

    /// Returns to the landing of the last call if it is that for the guest address in R10, with `bytes` taken
    /// from the guest's stack. Otherwise a branch is taken, which is returned, with the guest's RCX in R11.
    pub(crate) fn return_to_landing(&mut self, bytes: i64) -> Branch {
        self.copy(Register::R11, Register::RCX);
        self.load(Register::RCX, MemoryOperand::with_base_displ(Register::RSP, 8));
        let difference =
            MemoryOperand::with_base_index_scale_displ_size(Register::RCX, Register::R10, 1, 1, 1);
        self.emitter.instruction(Instruction::with2(Code::Lea_r64_m, Register::RCX, difference));
        self.emitter.bytes(&[JRCXZ, JUMP]);
        let differs = self.emitter.unaligned_jump();
        self.copy(Register::RCX, Register::R11);
        self.move_stack(bytes);
        self.emitter.bytes(&RETURN);
        differs
    }

    /// Returns elsewhere, to the guest address in R10, with `bytes` taken from the guest's stack, where
    /// [`Writer::return_to_landing`] does not return. If there is no code, translated code is left for the reason
    /// `missed`.
    pub(crate) fn return_elsewhere(&mut self, bytes: i64, missed: u32) {
        self.move_stack(bytes);
        self.emitter.load_number(Register::ECX, missed);
        self.jump_by(at::RETURN_ELSEWHERE);
    }

    /// Takes the last call from the host's stack, if there is one, and restores RCX from R11.
    pub(crate) fn forget_call(&mut self) {
        self.load(Register::RCX, self.field(at::NO_RETURNS));
        let height = MemoryOperand::with_base_index(Register::RSP, Register::RCX);
        self.emitter.instruction(Instruction::with2(Code::Lea_r64_m, Register::RCX, height));
        self.emitter.bytes(&[JRCXZ, REMOVE.len() as u8]);
        self.emitter.bytes(&REMOVE);
        self.copy(Register::RCX, Register::R11);
    }

    /// Writes the landing of an empty stack, which is for the highest guest address, in R10.
    pub(crate) fn land_on_empty_stack(&mut self) {
        // The host's RET has taken its landing and what is in the place of a return address.
        self.add(Register::RSP, Register::RSP, -CALL);
        self.leave_to_look_up();
    }

    /// `mov r64, r64`.
    fn copy(&mut self, to: Register, from: Register) {
        self.emitter.copy_64(to, from);
    }
}
