//! Instructions for bits and byte order that came with AVX2 (SDM vol. 1, 5.1.16.1 and 5.1.1): those of BMI1 and BMI2,
//! LZCNT, and MOVBE. Most of them have a VEX prefix, and so up to three operands.

use ring3_core::memory::Memory;

use crate::cpu::{Cpu, reg};
use crate::decode::Op;
use crate::exec::{Done, Place};
use crate::flags::{Eflags, Status};
use crate::table::{Rows, rm, rm_long, rm_wide};
use crate::word::Word;

/// Rows for a form of a doubleword and one of a quadword, both with VEX.
macro_rules! vex {
    ($rows:ident, [$dword:ident $qword:ident], $handler:ident $(, $parameter:ty)*) => {
        rm!($rows, u32, [$dword], $handler $(, $parameter)*);
        rm_long!($rows, u64, [$qword], $handler $(, $parameter)*);
    };
}

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    rm_wide!(rows, [Tzcnt_r16_rm16 Tzcnt_r32_rm32 Tzcnt_r64_rm64], count_low_zeros);
    rm_wide!(rows, [Lzcnt_r16_rm16 Lzcnt_r32_rm32 Lzcnt_r64_rm64], count_high_zeros);
    rm_wide!(rows, [Movbe_r16_m16 Movbe_r32_m32 Movbe_r64_m64], load_swapped);
    rm_wide!(rows, [Movbe_m16_r16 Movbe_m32_r32 Movbe_m64_r64], store_swapped);

    vex!(rows, [VEX_Andn_r32_r32_rm32 VEX_Andn_r64_r64_rm64], and_not);
    vex!(rows, [VEX_Blsr_r32_rm32 VEX_Blsr_r64_rm64], lowest, Reset);
    vex!(rows, [VEX_Blsmsk_r32_rm32 VEX_Blsmsk_r64_rm64], lowest, Mask);
    vex!(rows, [VEX_Blsi_r32_rm32 VEX_Blsi_r64_rm64], lowest, Isolate);
    vex!(rows, [VEX_Bextr_r32_rm32_r32 VEX_Bextr_r64_rm64_r64], extract);
    vex!(rows, [VEX_Bzhi_r32_rm32_r32 VEX_Bzhi_r64_rm64_r64], zero_high);
    vex!(rows, [VEX_Pdep_r32_r32_rm32 VEX_Pdep_r64_r64_rm64], deposit);
    vex!(rows, [VEX_Pext_r32_r32_rm32 VEX_Pext_r64_r64_rm64], gather);
    vex!(rows, [VEX_Mulx_r32_r32_rm32 VEX_Mulx_r64_r64_rm64], multiply);
    vex!(rows, [VEX_Rorx_r32_rm32_imm8 VEX_Rorx_r64_rm64_imm8], rotate);
    vex!(rows, [VEX_Sarx_r32_rm32_r32 VEX_Sarx_r64_rm64_r64], shift, Arithmetic);
    vex!(rows, [VEX_Shlx_r32_rm32_r32 VEX_Shlx_r64_rm64_r64], shift, Left);
    vex!(rows, [VEX_Shrx_r32_rm32_r32 VEX_Shrx_r64_rm64_r64], shift, Right);
}

/// Raises #UD in real mode and virtual-8086 mode, where no instruction has a VEX prefix (SDM vol. 2, 2.3.1).
pub(crate) fn require_vex(cpu: &mut Cpu) -> Done {
    if cpu.in_protected_mode() { Ok(()) } else { Err(cpu.undefined_opcode()) }
}

/// Returns the mask of the `count` lowest bits.
fn low_bits(count: u64) -> u64 {
    if count < 64 { (1 << count) - 1 } else { u64::MAX }
}

/// Sets the flags after `result`: CF as given, ZF, and SF if `is_signed`. OF, which is defined where SF is, is clear, and
/// so is AF. [`Vendor`](crate::undefined::Vendor) tells of those that are not defined.
fn set_status<W: Word>(cpu: &mut Cpu, result: W, carry: bool, is_signed: bool) {
    let by_result = Status::new(result, carry, false, false).to_eflags();
    let mut known = Eflags::CF | Eflags::ZF;
    known.set(Eflags::SF, is_signed);
    known.set(Eflags::PF, cpu.vendor.is_amd());
    cpu.status = Status::from_eflags(by_result & known);
}

/// Stores a count of TZCNT or LZCNT. CF says that no bit is set, and ZF that the count is 0.
fn set_count<W: Word>(cpu: &mut Cpu, op: &Op, count: u32) {
    cpu.set(op.reg, W::truncate(count.into()));
    let mut flags = Eflags::empty();
    flags.set(Eflags::CF, count == W::BITS);
    flags.set(Eflags::ZF, count == 0);
    flags.set(Eflags::OF, cpu.vendor.is_amd() && cpu.status.overflow());
    cpu.status = Status::from_eflags(flags);
}

fn count_low_zeros<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let source = P::read::<W>(cpu, memory, op)?;
    set_count::<W>(cpu, op, source.zero_extend().trailing_zeros().min(W::BITS));
    Ok(())
}

fn count_high_zeros<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let source = P::read::<W>(cpu, memory, op)?;
    set_count::<W>(cpu, op, source.zero_extend().leading_zeros() - (64 - W::BITS));
    Ok(())
}

/// Returns the bytes of `value` in the opposite order.
fn swapped<W: Word>(value: W) -> W {
    W::truncate(value.zero_extend().swap_bytes() >> (64 - W::BITS))
}

fn load_swapped<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let value = P::read::<W>(cpu, memory, op)?;
    cpu.set(op.reg, swapped(value));
    Ok(())
}

fn store_swapped<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    P::write(cpu, memory, op, swapped(cpu.get::<W>(op.reg)))
}

fn and_not<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_vex(cpu)?;
    let source = P::read::<W>(cpu, memory, op)?;
    let result = W::truncate(!cpu.get::<W>(op.vvvv()).zero_extend() & source.zero_extend());
    cpu.set(op.reg, result);
    set_status(cpu, result, false, true);
    Ok(())
}

/// What is done with the lowest bit that is set.
trait Lowest {
    /// Whether CF says that there is such a bit, and not that there is none.
    const CARRY_IF_FOUND: bool;
    /// Returns the result for `source`.
    fn of(source: u64) -> u64;
}

/// It is cleared.
struct Reset;
/// It and all bits below it are set, and no others.
struct Mask;
/// All others are cleared.
struct Isolate;

impl Lowest for Reset {
    const CARRY_IF_FOUND: bool = false;

    fn of(source: u64) -> u64 {
        source.wrapping_sub(1) & source
    }
}

impl Lowest for Mask {
    const CARRY_IF_FOUND: bool = false;

    fn of(source: u64) -> u64 {
        source.wrapping_sub(1) ^ source
    }
}

impl Lowest for Isolate {
    const CARRY_IF_FOUND: bool = true;

    fn of(source: u64) -> u64 {
        source.wrapping_neg() & source
    }
}

/// Performs BLSR, BLSMSK and BLSI, whose destination is in VEX.vvvv.
fn lowest<P: Place, W: Word, L: Lowest>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_vex(cpu)?;
    let source = P::read::<W>(cpu, memory, op)?.zero_extend();
    let result = W::truncate(L::of(source));
    cpu.set(op.vvvv(), result);
    set_status(cpu, result, (source != 0) == L::CARRY_IF_FOUND, true);
    Ok(())
}

/// Performs BEXTR: as many bits as bits 15 to 8 of the other register say, from the bit on that its bits 7 to 0
/// say.
fn extract<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_vex(cpu)?;
    let source = P::read::<W>(cpu, memory, op)?.zero_extend();
    let control = cpu.get::<W>(op.vvvv()).zero_extend();
    let (start, count) = (control & 0xff, control >> 8 & 0xff);
    let rest = if start < 64 { source >> start } else { 0 };
    let result = W::truncate(rest & low_bits(count));
    cpu.set(op.reg, result);
    set_status(cpu, result, false, false);
    if cpu.vendor.is_amd() {
        cpu.status = cpu.status.with_half_carry(true);
    }
    Ok(())
}

/// Performs BZHI: clears the bits from that number on that bits 7 to 0 of the other register say.
fn zero_high<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_vex(cpu)?;
    let source = P::read::<W>(cpu, memory, op)?.zero_extend();
    let first = cpu.get::<W>(op.vvvv()).zero_extend() & 0xff;
    let result = W::truncate(source & low_bits(first));
    cpu.set(op.reg, result);
    set_status(cpu, result, first >= W::BITS.into(), true);
    Ok(())
}

/// Returns the numbers of the bits that are set in `mask`, the lowest first, each with its index.
fn chosen(mask: u64) -> impl Iterator<Item = (u32, u32)> {
    (0..64).filter(move |number| mask >> number & 1 != 0).zip(0..)
}

/// Performs PDEP: the low bits of the first source at the places of the bits that are set in the second.
fn deposit<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_vex(cpu)?;
    let mask = P::read::<W>(cpu, memory, op)?.zero_extend();
    let bits = cpu.get::<W>(op.vvvv()).zero_extend();
    let result = chosen(mask).fold(0, |result, (to, from)| result | (bits >> from & 1) << to);
    cpu.set(op.reg, W::truncate(result));
    Ok(())
}

/// Performs PEXT: the bits of the first source that are set in the second, side by side.
fn gather<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_vex(cpu)?;
    let mask = P::read::<W>(cpu, memory, op)?.zero_extend();
    let bits = cpu.get::<W>(op.vvvv()).zero_extend();
    let result = chosen(mask).fold(0, |result, (from, to)| result | (bits >> from & 1) << to);
    cpu.set(op.reg, W::truncate(result));
    Ok(())
}

/// Performs MULX: the product with EDX or RDX. Its upper half is left if both have the same destination.
fn multiply<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_vex(cpu)?;
    let factor = P::read::<W>(cpu, memory, op)?.zero_extend();
    let product = u128::from(factor) * u128::from(cpu.get::<W>(reg::DX).zero_extend());
    cpu.set(op.vvvv(), W::truncate(product as u64));
    cpu.set(op.reg, W::truncate((product >> W::BITS) as u64));
    Ok(())
}

fn rotate<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_vex(cpu)?;
    let source = P::read::<W>(cpu, memory, op)?.zero_extend();
    let count = u32::from(op.immediate::<u8>()) & (W::BITS - 1);
    let left = if count == 0 { 0 } else { source << (W::BITS - count) };
    cpu.set(op.reg, W::truncate(source >> count | left));
    Ok(())
}

/// A shift that changes no flags, by less than the operand's number of bits.
trait Shift {
    /// Returns the result for `source`.
    fn of<W: Word>(source: W, count: u32) -> u64;
}

struct Left;
struct Right;
struct Arithmetic;

impl Shift for Left {
    fn of<W: Word>(source: W, count: u32) -> u64 {
        source.zero_extend() << count
    }
}

impl Shift for Right {
    fn of<W: Word>(source: W, count: u32) -> u64 {
        source.zero_extend() >> count
    }
}

impl Shift for Arithmetic {
    fn of<W: Word>(source: W, count: u32) -> u64 {
        (source.sign_extend() as i64 >> count) as u64
    }
}

/// Performs SHLX, SHRX and SARX.
fn shift<P: Place, W: Word, S: Shift>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_vex(cpu)?;
    let source = P::read::<W>(cpu, memory, op)?;
    let count = cpu.get::<W>(op.vvvv()).zero_extend() as u32 & (W::BITS - 1);
    cpu.set(op.reg, W::truncate(S::of(source, count)));
    Ok(())
}
