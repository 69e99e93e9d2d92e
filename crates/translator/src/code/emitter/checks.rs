//! Checks whether an indirect branch or a return has come to the right place: R8D must be the guest address
//! of this place. No flags change: LOOP and JRCXZ are the only conditional jumps that do not read flags.
//!
//! A LOOP that is mostly not taken costs next to nothing on AMD's processors. On Intel's it takes seven
//! operations, so there a JRCXZ that is mostly taken checks the address. It costs an entry in the branch
//! history by which the processor predicts other branches (Agner Fog, "Instruction tables", and "The
//! microarchitecture of Intel, AMD and VIA CPUs", branch prediction).

use std::sync::LazyLock;

use iced_x86::{Code, Instruction, Register};
use ring3_x86::undefined::Vendor;

use super::Emitter;
use crate::context::at;

/// Whether LOOP is fast on this processor. Tests of this crate expect the code for Intel's processors unless
/// they choose.
pub(super) static HAS_FAST_LOOP: LazyLock<bool> =
    LazyLock::new(|| !cfg!(test) && Vendor::of_host().is_amd());

/// Bytes of MOV RCX, R10 and of JMP [R14 + 8-bit displacement].
const WAY_OUT_SIZE: usize = 7;

/// Returns MOV RCX, R10 and JMP [R14 + `field`].
fn way_out(field: u32) -> [u8; WAY_OUT_SIZE] {
    let field = i8::try_from(field).expect("it is among the first fields");
    [0x4c, 0x89, 0xd1, 0x41, 0xff, 0x66, field as u8]
}

impl Emitter {
    /// Writes the check that precedes a block for indirect branches: an address other than `linear` is not
    /// for this block, and goes to [`miss`](crate::routines::miss). Returns the address at which indirect
    /// branches enter.
    pub(crate) fn check_target(&mut self, linear: u32) -> u32 {
        if self.has_fast_loop {
            let way_out_at = self.len();
            self.bytes(&way_out(at::MISS));
            let entry = self.here();
            self.check_by_loop(linear, way_out_at);
            entry
        } else {
            let entry = self.here();
            self.check_by_jrcxz(linear, at::MISS);
            entry
        }
    }

    /// Writes the instructions that precede each call. Uses R10.
    pub(super) fn prepare_return(&mut self) {
        if self.has_fast_loop {
            // The check is at the return address, and its jump out must be short. So the way out lies here,
            // in an immediate operand that is loaded into R10 and never used.
            let mut number = [0; size_of::<u64>()];
            number[..WAY_OUT_SIZE].copy_from_slice(&way_out(at::JUMP_BY_TABLE));
            let load =
                Instruction::with2(Code::Mov_r64_imm64, Register::R10, u64::from_le_bytes(number));
            self.instruction(load);
            self.way_out = self.len() - number.len() as u32;
        }
    }

    /// Writes the check at the return address `linear` of a call. Any return may come here; one to another
    /// address goes on by the jump table.
    pub(crate) fn check_return(&mut self, linear: u32) {
        if self.has_fast_loop {
            self.check_by_loop(linear, self.way_out);
        } else {
            self.check_by_jrcxz(linear, at::JUMP_BY_TABLE);
        }
    }

    /// Continues if R8D is `linear`. Otherwise jumps to the [way out](way_out) at the offset `way_out` in the
    /// code. Uses R10.
    fn check_by_loop(&mut self, linear: u32, way_out: u32) {
        self.save_rcx();
        // LOOP decrements RCX before it compares it with 0.
        let difference = linear.wrapping_neg().wrapping_add(1);
        self.bytes_and(&[0x41, 0x8d, 0x88], difference); // lea ecx, [r8 - linear + 1]
        self.align_branch(2);
        let distance = i64::from(way_out) - i64::from(self.len() + 2);
        let distance = i8::try_from(distance).expect("it is near");
        self.bytes(&[0xe2, distance as u8]); // loop
        self.restore_rcx();
    }

    /// Continues if R8D is `linear`. Otherwise jumps to the address in the field `otherwise` of the context.
    /// Uses R10.
    fn check_by_jrcxz(&mut self, linear: u32, otherwise: u32) {
        self.save_rcx();
        self.bytes_and(&[0x41, 0x8d, 0x88], linear.wrapping_neg()); // lea ecx, [r8 - linear]
        self.align_branch(2);
        self.bytes(&[0xe3, WAY_OUT_SIZE as u8]); // jrcxz over the way out
        self.bytes(&way_out(otherwise));
        self.restore_rcx();
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    use super::*;

    const START: u32 = 0x1000_0000;
    const LINEAR: u32 = 0x0804_b524;

    fn decode(code: &[u8], address: u32) -> Instruction {
        let code = &code[(address - START) as usize..];
        Decoder::with_ip(64, code, address.into(), DecoderOptions::NONE).decode()
    }

    /// Checks the code from `address` on, up to the check's jump, and that its way out goes by `field`.
    fn assert_checks(code: &[u8], address: u32, has_fast_loop: bool, field: u32) {
        let save = decode(code, address);
        assert_eq!(save.to_string(), "mov r10,rcx");
        let difference = decode(code, save.next_ip() as u32);
        assert_eq!(difference.mnemonic(), Mnemonic::Lea);
        let wanted = u32::from(has_fast_loop);
        let rcx = LINEAR.wrapping_add(difference.memory_displacement32());
        assert_eq!(rcx, wanted, "which is where it goes on");
        let mut jump = decode(code, difference.next_ip() as u32);
        while jump.mnemonic() == Mnemonic::Nop {
            jump = decode(code, jump.next_ip() as u32);
        }
        let (goes_on, leaves) = if has_fast_loop {
            assert_eq!(jump.code(), Code::Loop_rel8_64_RCX);
            (jump.next_ip() as u32, jump.near_branch_target() as u32)
        } else {
            assert_eq!(jump.code(), Code::Jrcxz_rel8_64);
            (jump.near_branch_target() as u32, jump.next_ip() as u32)
        };
        for restored in [goes_on, leaves] {
            assert_eq!(decode(code, restored).to_string(), "mov rcx,r10");
        }
        let out = decode(code, decode(code, leaves).next_ip() as u32);
        assert_eq!(out.code(), Code::Jmp_rm64);
        assert_eq!(out.memory_displacement32(), field);
    }

    #[test]
    fn both_ways_to_check_lead_out_where_it_is_another_address() {
        for has_fast_loop in [true, false] {
            // For all distances from the boundaries that branches must not cross.
            for before in 0..64 {
                let mut emitter = Emitter::new(START);
                emitter.has_fast_loop = has_fast_loop;
                emitter.bytes(&vec![0x90; before]);
                let target = emitter.check_target(LINEAR);
                emitter.call_by_table_to(LINEAR, u32::MAX >> 2);
                let returned = emitter.here();
                emitter.check_return(LINEAR);
                let code = emitter.finish();
                assert_checks(&code, target, has_fast_loop, at::MISS);
                assert_checks(&code, returned, has_fast_loop, at::JUMP_BY_TABLE);
            }
        }
    }
}
