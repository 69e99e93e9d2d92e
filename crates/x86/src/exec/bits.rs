//! Bit and byte instructions (SDM vol. 1, 7.3.7): BT, BTS, BTR and BTC, BSF, BSR, SETcc; BSWAP.

use iced_x86::Code;
use ring3_core::memory::Memory;

use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exec::{Done, Mem, Place, Reg};
use crate::flags::Status;
use crate::table::{Rows, exec, rm_wide, wide};
use crate::undefined::Vendor;
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    rm_wide!(rows, [Bt_rm16_imm8 Bt_rm32_imm8 Bt_rm64_imm8], test_immediate);
    rm_wide!(rows, [Bts_rm16_imm8 Bts_rm32_imm8 Bts_rm64_imm8], change_immediate, Set);
    rm_wide!(rows, [Btr_rm16_imm8 Btr_rm32_imm8 Btr_rm64_imm8], change_immediate, Reset);
    rm_wide!(rows, [Btc_rm16_imm8 Btc_rm32_imm8 Btc_rm64_imm8], change_immediate, Complement);
    rows.add(Code::Bt_rm64_r64, exec!(test_string::<u64>), exec!(test_register::<u64>));
    rows.add(
        Code::Bts_rm64_r64,
        exec!(change_string::<u64, Set>),
        exec!(change_register::<u64, Set>),
    );
    rows.add(
        Code::Btr_rm64_r64,
        exec!(change_string::<u64, Reset>),
        exec!(change_register::<u64, Reset>),
    );
    rows.add(
        Code::Btc_rm64_r64,
        exec!(change_string::<u64, Complement>),
        exec!(change_register::<u64, Complement>),
    );
    rows.add(Code::Bt_rm16_r16, exec!(test_string::<u16>), exec!(test_register::<u16>));
    rows.add(Code::Bt_rm32_r32, exec!(test_string::<u32>), exec!(test_register::<u32>));
    rows.add(
        Code::Bts_rm16_r16,
        exec!(change_string::<u16, Set>),
        exec!(change_register::<u16, Set>),
    );
    rows.add(
        Code::Bts_rm32_r32,
        exec!(change_string::<u32, Set>),
        exec!(change_register::<u32, Set>),
    );
    rows.add(
        Code::Btr_rm16_r16,
        exec!(change_string::<u16, Reset>),
        exec!(change_register::<u16, Reset>),
    );
    rows.add(
        Code::Btr_rm32_r32,
        exec!(change_string::<u32, Reset>),
        exec!(change_register::<u32, Reset>),
    );
    rows.add(
        Code::Btc_rm16_r16,
        exec!(change_string::<u16, Complement>),
        exec!(change_register::<u16, Complement>),
    );
    rows.add(
        Code::Btc_rm32_r32,
        exec!(change_string::<u32, Complement>),
        exec!(change_register::<u32, Complement>),
    );
    rm_wide!(rows, [Bsf_r16_rm16 Bsf_r32_rm32 Bsf_r64_rm64], scan_forward);
    rm_wide!(rows, [Bsr_r16_rm16 Bsr_r32_rm32 Bsr_r64_rm64], scan_reverse);
    wide!(rows, [Bswap_r16 Bswap_r32 Bswap_r64], byte_swap);
}

/// The change to the bit that is tested.
trait Change {
    /// Returns the operand with the bits of `mask` changed.
    fn apply(value: u64, mask: u64) -> u64;
}

struct Set;
struct Reset;
struct Complement;

impl Change for Set {
    fn apply(value: u64, mask: u64) -> u64 {
        value | mask
    }
}

impl Change for Reset {
    fn apply(value: u64, mask: u64) -> u64 {
        value & !mask
    }
}

impl Change for Complement {
    fn apply(value: u64, mask: u64) -> u64 {
        value ^ mask
    }
}

/// Sets CF to bit `number` of `value`, and leaves the other flags unchanged.
fn test<W: Word>(cpu: &mut Cpu, value: W, number: u64) {
    let bit = value.zero_extend() >> (number & u64::from(W::BITS - 1)) & 1 != 0;
    cpu.status = cpu.status.with_carry(bit);
}

fn change<P: Place, W: Word, C: Change>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    number: u64,
) -> Done {
    let mask = 1 << (number & u64::from(W::BITS - 1));
    P::modify::<W>(cpu, memory, op, |status, value| {
        let value = value.zero_extend();
        (W::truncate(C::apply(value, mask)), status.with_carry(value & mask != 0))
    })
}

fn test_immediate<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let value = P::read::<W>(cpu, memory, op)?;
    test(cpu, value, u64::from(op.imm));
    Ok(())
}

fn change_immediate<P: Place, W: Word, C: Change>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    change::<P, W, C>(cpu, memory, op, u64::from(op.imm))
}

fn test_register<W: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    test(cpu, cpu.get::<W>(op.rm), cpu.get::<W>(op.reg).zero_extend());
    Ok(())
}

fn change_register<W: Word, C: Change>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let number = cpu.get::<W>(op.reg).zero_extend();
    change::<Reg, W, C>(cpu, memory, op, number)
}

/// Finds the word and the bit of a bit string. With a register as bit number and an operand in memory, the
/// operand is a bit string that extends beyond the word on both sides (SDM vol. 2, 3.1.1.9, "Bit(BitBase,
/// BitOffset)").
fn bit_string<W: Word>(cpu: &mut Cpu, op: &Op) -> (Op, u64) {
    let number = cpu.get::<W>(op.reg).sign_extend() as i64;
    let words = number.div_euclid(i64::from(W::BITS));
    (op.displaced(cpu, (words * W::BYTES as i64) as u64), number as u64)
}

fn test_string<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let (op, number) = bit_string::<W>(cpu, op);
    let value = Mem::read::<W>(cpu, memory, &op)?;
    test(cpu, value, number);
    Ok(())
}

fn change_string<W: Word, C: Change>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let (op, number) = bit_string::<W>(cpu, op);
    change::<Mem, W, C>(cpu, memory, &op, number)
}

fn scan_forward<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let source = P::read::<W>(cpu, memory, op)?;
    scan(cpu, op, source, source.zero_extend().trailing_zeros());
    Ok(())
}

fn scan_reverse<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let source = P::read::<W>(cpu, memory, op)?;
    scan(cpu, op, source, 63u32.wrapping_sub(source.zero_extend().leading_zeros()));
    Ok(())
}

/// Stores the result of BSF or BSR. ZF says that no bit is set; the destination then does not change, as on
/// all real processors. The other flags are undefined ([`Vendor`]).
fn scan<W: Word>(cpu: &mut Cpu, op: &Op, source: W, number: u32) {
    let none = source.zero_extend() == 0;
    let number = if none { 0 } else { number };
    if !none {
        cpu.set(op.reg, W::truncate(number.into()));
    }
    let status = match cpu.vendor {
        Vendor::Intel | Vendor::AmdZen4 => Status::logic(W::truncate(number.into())),
        Vendor::Amd => cpu.status,
    };
    cpu.status = status.with_zero(none);
}

/// Performs BSWAP. With a 16-bit operand the result is undefined; processors clear it.
fn byte_swap<W: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    let swapped = match W::BITS {
        16 => 0,
        bits => cpu.get::<W>(op.rm).zero_extend().swap_bytes() >> (64 - bits),
    };
    cpu.set(op.rm, W::truncate(swapped));
    Ok(())
}
