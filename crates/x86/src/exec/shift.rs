//! Shifts and rotates (SDM vol. 1, 7.3.6).
//!
//! OF is defined only for counts of 1, and AF is undefined after shifts. Processors differ in these flags
//! ([`Vendor`]).

use ring3_core::memory::Memory;

use crate::cpu::{Cpu, reg};
use crate::decode::Op;
use crate::exec::{Done, Place};
use crate::flags::Status;
use crate::table::{Rows, rm_sizes, rm_wide};
use crate::undefined::Vendor;
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    rm_sizes!(rows, [Rol_rm8_imm8 Rol_rm16_imm8 Rol_rm32_imm8 Rol_rm64_imm8], by_immediate, Rol);
    rm_sizes!(rows, [Rol_rm8_1 Rol_rm16_1 Rol_rm32_1 Rol_rm64_1], by_immediate, Rol);
    rm_sizes!(rows, [Rol_rm8_CL Rol_rm16_CL Rol_rm32_CL Rol_rm64_CL], by_cl, Rol);
    rm_sizes!(rows, [Ror_rm8_imm8 Ror_rm16_imm8 Ror_rm32_imm8 Ror_rm64_imm8], by_immediate, Ror);
    rm_sizes!(rows, [Ror_rm8_1 Ror_rm16_1 Ror_rm32_1 Ror_rm64_1], by_immediate, Ror);
    rm_sizes!(rows, [Ror_rm8_CL Ror_rm16_CL Ror_rm32_CL Ror_rm64_CL], by_cl, Ror);
    rm_sizes!(rows, [Rcl_rm8_imm8 Rcl_rm16_imm8 Rcl_rm32_imm8 Rcl_rm64_imm8], by_immediate, Rcl);
    rm_sizes!(rows, [Rcl_rm8_1 Rcl_rm16_1 Rcl_rm32_1 Rcl_rm64_1], by_immediate, Rcl);
    rm_sizes!(rows, [Rcl_rm8_CL Rcl_rm16_CL Rcl_rm32_CL Rcl_rm64_CL], by_cl, Rcl);
    rm_sizes!(rows, [Rcr_rm8_imm8 Rcr_rm16_imm8 Rcr_rm32_imm8 Rcr_rm64_imm8], by_immediate, Rcr);
    rm_sizes!(rows, [Rcr_rm8_1 Rcr_rm16_1 Rcr_rm32_1 Rcr_rm64_1], by_immediate, Rcr);
    rm_sizes!(rows, [Rcr_rm8_CL Rcr_rm16_CL Rcr_rm32_CL Rcr_rm64_CL], by_cl, Rcr);
    rm_sizes!(rows, [Shl_rm8_imm8 Shl_rm16_imm8 Shl_rm32_imm8 Shl_rm64_imm8], by_immediate, Shl);
    rm_sizes!(rows, [Shl_rm8_1 Shl_rm16_1 Shl_rm32_1 Shl_rm64_1], by_immediate, Shl);
    rm_sizes!(rows, [Shl_rm8_CL Shl_rm16_CL Shl_rm32_CL Shl_rm64_CL], by_cl, Shl);
    // SAL is SHL under another encoding (reg field 6).
    rm_sizes!(rows, [Sal_rm8_imm8 Sal_rm16_imm8 Sal_rm32_imm8 Sal_rm64_imm8], by_immediate, Shl);
    rm_sizes!(rows, [Sal_rm8_1 Sal_rm16_1 Sal_rm32_1 Sal_rm64_1], by_immediate, Shl);
    rm_sizes!(rows, [Sal_rm8_CL Sal_rm16_CL Sal_rm32_CL Sal_rm64_CL], by_cl, Shl);
    rm_sizes!(rows, [Shr_rm8_imm8 Shr_rm16_imm8 Shr_rm32_imm8 Shr_rm64_imm8], by_immediate, Shr);
    rm_sizes!(rows, [Shr_rm8_1 Shr_rm16_1 Shr_rm32_1 Shr_rm64_1], by_immediate, Shr);
    rm_sizes!(rows, [Shr_rm8_CL Shr_rm16_CL Shr_rm32_CL Shr_rm64_CL], by_cl, Shr);
    rm_sizes!(rows, [Sar_rm8_imm8 Sar_rm16_imm8 Sar_rm32_imm8 Sar_rm64_imm8], by_immediate, Sar);
    rm_sizes!(rows, [Sar_rm8_1 Sar_rm16_1 Sar_rm32_1 Sar_rm64_1], by_immediate, Sar);
    rm_sizes!(rows, [Sar_rm8_CL Sar_rm16_CL Sar_rm32_CL Sar_rm64_CL], by_cl, Sar);
    rm_wide!(rows, [Shld_rm16_r16_imm8 Shld_rm32_r32_imm8 Shld_rm64_r64_imm8], double_by_immediate, Shld);
    rm_wide!(rows, [Shld_rm16_r16_CL Shld_rm32_r32_CL Shld_rm64_r64_CL], double_by_cl, Shld);
    rm_wide!(rows, [Shrd_rm16_r16_imm8 Shrd_rm32_r32_imm8 Shrd_rm64_r64_imm8], double_by_immediate, Shrd);
    rm_wide!(rows, [Shrd_rm16_r16_CL Shrd_rm32_r32_CL Shrd_rm64_r64_CL], double_by_cl, Shrd);
}

/// Returns the mask of the bits of a count that are used: counts are taken modulo 32, and for quadwords modulo
/// 64 (SDM vol. 2, SAL and others).
const fn count_mask<W: Word>() -> u32 {
    if W::BITS == 64 { 63 } else { 31 }
}

/// A shift or rotate by `count`, 1 to 31 or, of a quadword, 1 to 63.
trait Shift {
    /// Whether it is a shift. A rotate leaves AF unchanged.
    const SHIFTS: bool = false;
    /// Whether it rotates CF too, which is one bit more.
    const HAS_CARRY: bool = false;

    /// Returns the result and the flags.
    fn apply<W: Word>(status: Status, value: W, count: u32) -> (W, Status);

    /// Returns OF as Intel's processors leave it after more than one bit, which is its value after the first
    /// bit. It does not change if all bits return to their places, and if ROL or ROR rotates a register by an
    /// immediate count.
    #[inline(always)]
    fn overflow_of_first<W: Word>(
        status: Status,
        value: W,
        count: u32,
        keeps_overflow: bool,
    ) -> bool {
        let comes_back = Self::HAS_CARRY && count.is_multiple_of(W::BITS + 1);
        let rotates_itself = !Self::SHIFTS && !Self::HAS_CARRY;
        if comes_back || rotates_itself && keeps_overflow {
            return status.overflow();
        }
        Self::apply(status, value, 1).1.overflow()
    }
}

/// A double-precision shift by `count`, 1 to 31 or, of a quadword, 1 to 63.
trait DoubleShift {
    /// Returns the result and the flags.
    fn apply<W: Word>(status: Status, value: W, filler: W, count: u32) -> (W, Status);

    /// Returns OF as AMD's processors leave it, by the result and CF.
    fn overflows<W: Word>(result: W, carry: bool) -> bool;
}

struct Rol;
struct Ror;
struct Rcl;
struct Rcr;
struct Shl;
struct Shr;
struct Sar;
struct Shld;
struct Shrd;

/// Returns the highest bit.
fn top<W: Word>(value: W) -> bool {
    value.zero_extend() & W::SIGN != 0
}

/// Returns whether the highest two bits differ.
fn top_two_differ<W: Word>(value: W) -> bool {
    top(W::truncate(value.zero_extend() ^ value.zero_extend() << 1))
}

/// Returns bit `number` of `value`.
fn bit(value: u64, number: u32) -> bool {
    value >> number & 1 != 0
}

/// Returns the operand with CF as one more bit on top of it.
fn with_carry_on_top<W: Word>(status: Status, value: W) -> u128 {
    u128::from(status.carry()) << W::BITS | u128::from(value.zero_extend())
}

impl Shift for Rol {
    #[inline(always)]
    fn apply<W: Word>(status: Status, value: W, count: u32) -> (W, Status) {
        let (old, count) = (value.zero_extend(), count % W::BITS);
        let result =
            if count == 0 { value } else { W::truncate(old << count | old >> (W::BITS - count)) };
        let carry = bit(result.zero_extend(), 0);
        (result, status.with_carry_overflow(carry, carry != top(result)))
    }
}

impl Shift for Ror {
    #[inline(always)]
    fn apply<W: Word>(status: Status, value: W, count: u32) -> (W, Status) {
        let (old, count) = (value.zero_extend(), count % W::BITS);
        let result =
            if count == 0 { value } else { W::truncate(old >> count | old << (W::BITS - count)) };
        (result, status.with_carry_overflow(top(result), top_two_differ(result)))
    }
}

impl Shift for Rcl {
    const HAS_CARRY: bool = true;

    fn apply<W: Word>(status: Status, value: W, count: u32) -> (W, Status) {
        // This rotates one bit more than the operand has, with CF on top of it.
        let bits = W::BITS + 1;
        let count = count % bits;
        if count == 0 {
            let carry = status.carry();
            return (value, status.with_carry_overflow(carry, carry != top(value)));
        }
        let old = with_carry_on_top(status, value);
        let new = old << count | old >> (bits - count);
        let (result, carry) = (W::truncate(new as u64), new >> W::BITS & 1 != 0);
        (result, status.with_carry_overflow(carry, carry != top(result)))
    }
}

impl Shift for Rcr {
    const HAS_CARRY: bool = true;

    fn apply<W: Word>(status: Status, value: W, count: u32) -> (W, Status) {
        let bits = W::BITS + 1;
        let count = count % bits;
        if count == 0 {
            return (value, status.with_carry_overflow(status.carry(), top_two_differ(value)));
        }
        let old = with_carry_on_top(status, value);
        let new = old >> count | old << (bits - count);
        let (result, carry) = (W::truncate(new as u64), new >> W::BITS & 1 != 0);
        (result, status.with_carry_overflow(carry, top_two_differ(result)))
    }
}

impl Shift for Shl {
    const SHIFTS: bool = true;

    #[inline(always)]
    fn apply<W: Word>(_: Status, value: W, count: u32) -> (W, Status) {
        let old = value.zero_extend();
        let result = W::truncate(old << count);
        let carry = if W::BITS == 64 { bit(old, 64 - count) } else { bit(old << count, W::BITS) };
        (result, Status::new(result, carry, carry != top(result), false))
    }
}

impl Shift for Shr {
    const SHIFTS: bool = true;

    #[inline(always)]
    fn apply<W: Word>(_: Status, value: W, count: u32) -> (W, Status) {
        let old = value.zero_extend();
        let result = W::truncate(old >> count);
        let carry = bit(old, count - 1);
        (result, Status::new(result, carry, top_two_differ(result), false))
    }
}

impl Shift for Sar {
    const SHIFTS: bool = true;

    #[inline(always)]
    fn apply<W: Word>(_: Status, value: W, count: u32) -> (W, Status) {
        let old = value.sign_extend() as i64;
        let result = W::truncate((old >> count) as u64);
        (result, Status::new(result, bit(old as u64, count - 1), false, false))
    }
}

impl DoubleShift for Shld {
    fn apply<W: Word>(_: Status, value: W, filler: W, count: u32) -> (W, Status) {
        // With 16 bits and counts over 16 the filler is shifted through. The bits that follow it are
        // undefined, and are those of the operand here.
        let (old, filler) = (value.zero_extend(), filler.zero_extend());
        let (result, carry) = if W::BITS == 64 {
            (W::truncate(old << count | filler >> (64 - count)), bit(old, 64 - count))
        } else {
            let wide =
                u128::from(old) << (2 * W::BITS) | u128::from(filler) << W::BITS | u128::from(old);
            let shifted = wide << count;
            let result = W::truncate((shifted >> (2 * W::BITS)) as u64);
            (result, shifted >> (3 * W::BITS) & 1 != 0)
        };
        (result, Status::new(result, carry, top(result) != top(value), false))
    }

    fn overflows<W: Word>(result: W, carry: bool) -> bool {
        carry != top(result)
    }
}

impl DoubleShift for Shrd {
    fn apply<W: Word>(_: Status, value: W, filler: W, count: u32) -> (W, Status) {
        let (old, filler) = (value.zero_extend(), filler.zero_extend());
        // Above a quadword and its filler, no more bits are shifted in.
        let above = if W::BITS == 64 { 0 } else { u128::from(old) << (2 * W::BITS % 128) };
        let wide = above | u128::from(filler) << W::BITS | u128::from(old);
        let result = W::truncate((wide >> count) as u64);
        let carry = wide >> (count - 1) & 1 != 0;
        (result, Status::new(result, carry, top(result) != top(value), false))
    }

    fn overflows<W: Word>(result: W, _: bool) -> bool {
        top_two_differ(result)
    }
}

fn by_immediate<P: Place, W: Word, S: Shift>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    shift::<P, W, S>(cpu, memory, op, op.imm & count_mask::<W>(), P::IS_REGISTER)
}

fn by_cl<P: Place, W: Word, S: Shift>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let count = u32::from(cpu.get::<u8>(reg::CX)) & count_mask::<W>();
    shift::<P, W, S>(cpu, memory, op, count, false)
}

/// Performs a shift or rotate. A count of zero changes no flags.
#[inline(always)]
fn shift<P: Place, W: Word, S: Shift>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    count: u32,
    keeps_overflow: bool,
) -> Done {
    let vendor = cpu.vendor;
    P::modify::<W>(cpu, memory, op, |before, value| {
        if count == 0 {
            return (value, before);
        }
        let (result, status) = S::apply(before, value, count);
        let status = match vendor {
            Vendor::Intel if count > 1 => {
                let overflow = S::overflow_of_first(before, value, count, keeps_overflow);
                status.with_carry_overflow(status.carry(), overflow)
            }
            Vendor::Amd | Vendor::AmdZen4 if S::SHIFTS => status.with_half_carry(true),
            _ => status,
        };
        (result, status)
    })
}

fn double_by_immediate<P: Place, W: Word, S: DoubleShift>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    double_shift::<P, W, S>(cpu, memory, op, op.imm & count_mask::<W>())
}

fn double_by_cl<P: Place, W: Word, S: DoubleShift>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    let count = u32::from(cpu.get::<u8>(reg::CX)) & count_mask::<W>();
    double_shift::<P, W, S>(cpu, memory, op, count)
}

fn double_shift<P: Place, W: Word, S: DoubleShift>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    count: u32,
) -> Done {
    let filler = cpu.get::<W>(op.reg);
    let vendor = cpu.vendor;
    P::modify::<W>(cpu, memory, op, |before, value| {
        if count == 0 {
            return (value, before);
        }
        let (result, status) = S::apply(before, value, filler, count);
        let carry = status.carry();
        let status = match vendor {
            Vendor::Intel => {
                let (_, first) = S::apply(before, value, filler, 1);
                status.with_carry_overflow(carry, first.overflow())
            }
            Vendor::Amd | Vendor::AmdZen4 => {
                let overflow = S::overflows(result, carry);
                status.with_carry_overflow(carry, overflow).with_half_carry(true)
            }
        };
        (result, status)
    })
}
