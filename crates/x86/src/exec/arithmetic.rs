//! Binary arithmetic and logic (SDM vol. 1, 7.3.2 and 7.3.4): ADD to CMP, INC, DEC, NEG, NOT, TEST,
//! and the exchanges that add or compare: XADD, CMPXCHG, CMPXCHG8B.

use ring3_core::memory::Memory;

use crate::cpu::{Cpu, reg};
use crate::decode::Op;
use crate::exec::pair::{long_pairs, pairs};
use crate::exec::{Done, Mem, Place};
use crate::flags::Status;
use crate::table::{Rows, plain, rm_sizes, rm_wide};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    rm_sizes!(rows, [Add_rm8_r8 Add_rm16_r16 Add_rm32_r32 Add_rm64_r64], to_rm, Add);
    rm_sizes!(rows, [Add_r8_rm8 Add_r16_rm16 Add_r32_rm32 Add_r64_rm64], to_register, Add);
    rm_sizes!(rows, [Add_rm8_imm8 Add_rm16_imm16 Add_rm32_imm32 Add_rm64_imm32], immediate_to_rm, Add);
    rm_sizes!(rows, [Add_AL_imm8 Add_AX_imm16 Add_EAX_imm32 Add_RAX_imm32], immediate_to_rm, Add);
    rm_sizes!(rows, [Add_rm8_imm8_82 Add_rm16_imm8 Add_rm32_imm8 Add_rm64_imm8], immediate_to_rm, Add);

    rm_sizes!(rows, [Or_rm8_r8 Or_rm16_r16 Or_rm32_r32 Or_rm64_r64], to_rm, Or);
    rm_sizes!(rows, [Or_r8_rm8 Or_r16_rm16 Or_r32_rm32 Or_r64_rm64], to_register, Or);
    rm_sizes!(rows, [Or_rm8_imm8 Or_rm16_imm16 Or_rm32_imm32 Or_rm64_imm32], immediate_to_rm, Or);
    rm_sizes!(rows, [Or_AL_imm8 Or_AX_imm16 Or_EAX_imm32 Or_RAX_imm32], immediate_to_rm, Or);
    rm_sizes!(rows, [Or_rm8_imm8_82 Or_rm16_imm8 Or_rm32_imm8 Or_rm64_imm8], immediate_to_rm, Or);

    rm_sizes!(rows, [Adc_rm8_r8 Adc_rm16_r16 Adc_rm32_r32 Adc_rm64_r64], to_rm, Adc);
    rm_sizes!(rows, [Adc_r8_rm8 Adc_r16_rm16 Adc_r32_rm32 Adc_r64_rm64], to_register, Adc);
    rm_sizes!(rows, [Adc_rm8_imm8 Adc_rm16_imm16 Adc_rm32_imm32 Adc_rm64_imm32], immediate_to_rm, Adc);
    rm_sizes!(rows, [Adc_AL_imm8 Adc_AX_imm16 Adc_EAX_imm32 Adc_RAX_imm32], immediate_to_rm, Adc);
    rm_sizes!(rows, [Adc_rm8_imm8_82 Adc_rm16_imm8 Adc_rm32_imm8 Adc_rm64_imm8], immediate_to_rm, Adc);

    rm_sizes!(rows, [Sbb_rm8_r8 Sbb_rm16_r16 Sbb_rm32_r32 Sbb_rm64_r64], to_rm, Sbb);
    rm_sizes!(rows, [Sbb_r8_rm8 Sbb_r16_rm16 Sbb_r32_rm32 Sbb_r64_rm64], to_register, Sbb);
    rm_sizes!(rows, [Sbb_rm8_imm8 Sbb_rm16_imm16 Sbb_rm32_imm32 Sbb_rm64_imm32], immediate_to_rm, Sbb);
    rm_sizes!(rows, [Sbb_AL_imm8 Sbb_AX_imm16 Sbb_EAX_imm32 Sbb_RAX_imm32], immediate_to_rm, Sbb);
    rm_sizes!(rows, [Sbb_rm8_imm8_82 Sbb_rm16_imm8 Sbb_rm32_imm8 Sbb_rm64_imm8], immediate_to_rm, Sbb);

    rm_sizes!(rows, [And_rm8_r8 And_rm16_r16 And_rm32_r32 And_rm64_r64], to_rm, And);
    rm_sizes!(rows, [And_r8_rm8 And_r16_rm16 And_r32_rm32 And_r64_rm64], to_register, And);
    rm_sizes!(rows, [And_rm8_imm8 And_rm16_imm16 And_rm32_imm32 And_rm64_imm32], immediate_to_rm, And);
    rm_sizes!(rows, [And_AL_imm8 And_AX_imm16 And_EAX_imm32 And_RAX_imm32], immediate_to_rm, And);
    rm_sizes!(rows, [And_rm8_imm8_82 And_rm16_imm8 And_rm32_imm8 And_rm64_imm8], immediate_to_rm, And);

    rm_sizes!(rows, [Sub_rm8_r8 Sub_rm16_r16 Sub_rm32_r32 Sub_rm64_r64], to_rm, Sub);
    rm_sizes!(rows, [Sub_r8_rm8 Sub_r16_rm16 Sub_r32_rm32 Sub_r64_rm64], to_register, Sub);
    rm_sizes!(rows, [Sub_rm8_imm8 Sub_rm16_imm16 Sub_rm32_imm32 Sub_rm64_imm32], immediate_to_rm, Sub);
    rm_sizes!(rows, [Sub_AL_imm8 Sub_AX_imm16 Sub_EAX_imm32 Sub_RAX_imm32], immediate_to_rm, Sub);
    rm_sizes!(rows, [Sub_rm8_imm8_82 Sub_rm16_imm8 Sub_rm32_imm8 Sub_rm64_imm8], immediate_to_rm, Sub);

    rm_sizes!(rows, [Xor_rm8_r8 Xor_rm16_r16 Xor_rm32_r32 Xor_rm64_r64], to_rm, Xor);
    rm_sizes!(rows, [Xor_r8_rm8 Xor_r16_rm16 Xor_r32_rm32 Xor_r64_rm64], to_register, Xor);
    rm_sizes!(rows, [Xor_rm8_imm8 Xor_rm16_imm16 Xor_rm32_imm32 Xor_rm64_imm32], immediate_to_rm, Xor);
    rm_sizes!(rows, [Xor_AL_imm8 Xor_AX_imm16 Xor_EAX_imm32 Xor_RAX_imm32], immediate_to_rm, Xor);
    rm_sizes!(rows, [Xor_rm8_imm8_82 Xor_rm16_imm8 Xor_rm32_imm8 Xor_rm64_imm8], immediate_to_rm, Xor);

    rm_sizes!(rows, [Cmp_rm8_r8 Cmp_rm16_r16 Cmp_rm32_r32 Cmp_rm64_r64], compare_rm, Sub);
    rm_sizes!(rows, [Cmp_r8_rm8 Cmp_r16_rm16 Cmp_r32_rm32 Cmp_r64_rm64], compare_register, Sub);
    rm_sizes!(rows, [Cmp_rm8_imm8 Cmp_rm16_imm16 Cmp_rm32_imm32 Cmp_rm64_imm32], compare_immediate, Sub);
    rm_sizes!(rows, [Cmp_AL_imm8 Cmp_AX_imm16 Cmp_EAX_imm32 Cmp_RAX_imm32], compare_immediate, Sub);
    rm_sizes!(rows, [Cmp_rm8_imm8_82 Cmp_rm16_imm8 Cmp_rm32_imm8 Cmp_rm64_imm8], compare_immediate, Sub);

    rm_sizes!(rows, [Test_rm8_r8 Test_rm16_r16 Test_rm32_r32 Test_rm64_r64], compare_rm, And);
    rm_sizes!(rows, [Test_rm8_imm8 Test_rm16_imm16 Test_rm32_imm32 Test_rm64_imm32], compare_immediate, And);
    rm_sizes!(rows, [Test_rm8_imm8_F6r1 Test_rm16_imm16_F7r1 Test_rm32_imm32_F7r1 Test_rm64_imm32_F7r1],
        compare_immediate, And);
    rm_sizes!(rows, [Test_AL_imm8 Test_AX_imm16 Test_EAX_imm32 Test_RAX_imm32], compare_immediate, And);

    pairs!(rows, u8, [Cmp_rm8_r8], compare_rm, Sub);
    pairs!(rows, u8, [Cmp_r8_rm8], compare_register, Sub);
    pairs!(rows, u8, [Cmp_rm8_imm8 Cmp_AL_imm8], compare_immediate, Sub);
    pairs!(rows, u8, [Test_rm8_r8], compare_rm, And);
    pairs!(rows, u8, [Test_rm8_imm8 Test_AL_imm8], compare_immediate, And);
    pairs!(rows, u32, [Cmp_rm32_r32], compare_rm, Sub);
    pairs!(rows, u32, [Cmp_r32_rm32], compare_register, Sub);
    pairs!(rows, u32, [Cmp_rm32_imm32 Cmp_rm32_imm8 Cmp_EAX_imm32], compare_immediate, Sub);
    pairs!(rows, u32, [Test_rm32_r32], compare_rm, And);
    pairs!(rows, u32, [Test_rm32_imm32 Test_EAX_imm32], compare_immediate, And);
    pairs!(rows, u32, [Add_rm32_r32], to_rm, Add);
    pairs!(rows, u32, [Add_rm32_imm32 Add_rm32_imm8 Add_EAX_imm32], immediate_to_rm, Add);
    pairs!(rows, u32, [Sub_rm32_r32], to_rm, Sub);
    pairs!(rows, u32, [Sub_rm32_imm32 Sub_rm32_imm8 Sub_EAX_imm32], immediate_to_rm, Sub);
    pairs!(rows, u32, [And_rm32_r32], to_rm, And);
    pairs!(rows, u32, [And_rm32_imm32 And_rm32_imm8 And_EAX_imm32], immediate_to_rm, And);
    pairs!(rows, u32, [Or_rm32_r32], to_rm, Or);
    long_pairs!(rows, [Cmp_rm64_r64], compare_rm, Sub);
    long_pairs!(rows, [Cmp_r64_rm64], compare_register, Sub);
    long_pairs!(rows, [Cmp_rm64_imm32 Cmp_rm64_imm8 Cmp_RAX_imm32], compare_immediate, Sub);
    long_pairs!(rows, [Test_rm64_r64], compare_rm, And);
    long_pairs!(rows, [Add_rm64_imm32 Add_rm64_imm8 Add_RAX_imm32], immediate_to_rm, Add);
    long_pairs!(rows, [Sub_rm64_imm32 Sub_rm64_imm8 Sub_RAX_imm32], immediate_to_rm, Sub);

    rm_sizes!(rows, [Inc_rm8 Inc_rm16 Inc_rm32 Inc_rm64], unary, Inc);
    rm_sizes!(rows, [Dec_rm8 Dec_rm16 Dec_rm32 Dec_rm64], unary, Dec);
    rm_wide!(rows, [Inc_r16 Inc_r32], unary, Inc);
    rm_wide!(rows, [Dec_r16 Dec_r32], unary, Dec);
    pairs!(rows, u32, [Inc_r32 Inc_rm32], unary, Inc);
    pairs!(rows, u32, [Dec_r32 Dec_rm32], unary, Dec);
    rm_sizes!(rows, [Neg_rm8 Neg_rm16 Neg_rm32 Neg_rm64], unary, Neg);
    rm_sizes!(rows, [Not_rm8 Not_rm16 Not_rm32 Not_rm64], unary, Not);

    rm_sizes!(rows, [Xadd_rm8_r8 Xadd_rm16_r16 Xadd_rm32_r32 Xadd_rm64_r64], exchange_add);
    rm_sizes!(rows, [Cmpxchg_rm8_r8 Cmpxchg_rm16_r16 Cmpxchg_rm32_r32 Cmpxchg_rm64_r64], compare_exchange);
    plain!(rows, [Cmpxchg8b_m64], compare_exchange_8_bytes);
    plain!(rows, [Cmpxchg16b_m128], compare_exchange_16_bytes);
}

/// An operation of two operands.
trait Binary {
    /// Returns the result and the flags.
    fn apply<W: Word>(status: Status, a: W, b: W) -> (W, Status);
}

/// An operation of one operand.
trait Unary {
    /// Returns the result and the flags.
    fn apply<W: Word>(status: Status, a: W) -> (W, Status);
}

struct Add;
struct Or;
struct Adc;
struct Sbb;
struct And;
struct Sub;
struct Xor;
struct Inc;
struct Dec;
struct Neg;
struct Not;

impl Binary for Add {
    #[inline(always)]
    fn apply<W: Word>(_: Status, a: W, b: W) -> (W, Status) {
        let sum = W::truncate(a.zero_extend().wrapping_add(b.zero_extend()));
        (sum, Status::add(a, b, sum))
    }
}

impl Binary for Adc {
    #[inline(always)]
    fn apply<W: Word>(status: Status, a: W, b: W) -> (W, Status) {
        let carry = u64::from(status.carry());
        let sum = W::truncate(a.zero_extend().wrapping_add(b.zero_extend()).wrapping_add(carry));
        (sum, Status::add(a, b, sum))
    }
}

impl Binary for Sub {
    #[inline(always)]
    fn apply<W: Word>(_: Status, a: W, b: W) -> (W, Status) {
        let difference = W::truncate(a.zero_extend().wrapping_sub(b.zero_extend()));
        (difference, Status::sub(a, b, difference))
    }
}

impl Binary for Sbb {
    #[inline(always)]
    fn apply<W: Word>(status: Status, a: W, b: W) -> (W, Status) {
        let borrow = u64::from(status.carry());
        let difference =
            W::truncate(a.zero_extend().wrapping_sub(b.zero_extend()).wrapping_sub(borrow));
        (difference, Status::sub(a, b, difference))
    }
}

impl Binary for And {
    #[inline(always)]
    fn apply<W: Word>(_: Status, a: W, b: W) -> (W, Status) {
        let result = W::truncate(a.zero_extend() & b.zero_extend());
        (result, Status::logic(result))
    }
}

impl Binary for Or {
    #[inline(always)]
    fn apply<W: Word>(_: Status, a: W, b: W) -> (W, Status) {
        let result = W::truncate(a.zero_extend() | b.zero_extend());
        (result, Status::logic(result))
    }
}

impl Binary for Xor {
    #[inline(always)]
    fn apply<W: Word>(_: Status, a: W, b: W) -> (W, Status) {
        let result = W::truncate(a.zero_extend() ^ b.zero_extend());
        (result, Status::logic(result))
    }
}

impl Unary for Inc {
    #[inline(always)]
    fn apply<W: Word>(status: Status, a: W) -> (W, Status) {
        let (sum, new) = Add::apply(status, a, W::truncate(1));
        (sum, new.with_carry(status.carry()))
    }
}

impl Unary for Dec {
    #[inline(always)]
    fn apply<W: Word>(status: Status, a: W) -> (W, Status) {
        let (difference, new) = Sub::apply(status, a, W::truncate(1));
        (difference, new.with_carry(status.carry()))
    }
}

impl Unary for Neg {
    #[inline(always)]
    fn apply<W: Word>(status: Status, a: W) -> (W, Status) {
        Sub::apply(status, W::truncate(0), a)
    }
}

impl Unary for Not {
    #[inline(always)]
    fn apply<W: Word>(status: Status, a: W) -> (W, Status) {
        (W::truncate(!a.zero_extend()), status)
    }
}

fn to_rm<P: Place, W: Word, O: Binary>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let source = cpu.get::<W>(op.reg);
    P::modify(cpu, memory, op, |status, old| O::apply(status, old, source))
}

fn to_register<P: Place, W: Word, O: Binary>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let source = P::read::<W>(cpu, memory, op)?;
    let (result, status) = O::apply(cpu.status, cpu.get(op.reg), source);
    cpu.set(op.reg, result);
    cpu.status = status;
    Ok(())
}

fn immediate_to_rm<P: Place, W: Word, O: Binary>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    P::modify(cpu, memory, op, |status, old| O::apply(status, old, op.immediate::<W>()))
}

fn compare_rm<P: Place, W: Word, O: Binary>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let value = P::read::<W>(cpu, memory, op)?;
    cpu.status = O::apply(cpu.status, value, cpu.get(op.reg)).1;
    Ok(())
}

/// Performs TEST, whose result does not depend on the order of its operands.
pub(super) fn test<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    compare_rm::<P, W, And>(cpu, memory, op)
}

fn compare_register<P: Place, W: Word, O: Binary>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    let value = P::read::<W>(cpu, memory, op)?;
    cpu.status = O::apply(cpu.status, cpu.get(op.reg), value).1;
    Ok(())
}

fn compare_immediate<P: Place, W: Word, O: Binary>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    let value = P::read::<W>(cpu, memory, op)?;
    cpu.status = O::apply(cpu.status, value, op.immediate()).1;
    Ok(())
}

fn unary<P: Place, W: Word, O: Unary>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    P::modify::<W>(cpu, memory, op, O::apply)
}

fn exchange_add<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let addend = cpu.get::<W>(op.reg);
    let mut old = addend;
    let mut sum = addend;
    P::modify::<W>(cpu, memory, op, |status, value| {
        old = value;
        let (result, status) = Add::apply(status, value, addend);
        sum = result;
        (result, status)
    })?;
    cpu.set(op.reg, old);
    if P::IS_REGISTER {
        // XADD of a register with itself leaves the sum in it (SDM vol. 2, XADD).
        cpu.set(op.rm, sum);
    }
    Ok(())
}

fn compare_exchange<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let expected = cpu.get::<W>(reg::AX);
    let new = cpu.get::<W>(op.reg);
    let mut found = expected;
    if P::IS_REGISTER {
        // A register is written only if they are equal, which matters for its upper half.
        let value = cpu.get::<W>(op.rm);
        cpu.status = Sub::apply(cpu.status, expected, value).1;
        if value == expected {
            cpu.set(op.rm, new);
        } else {
            cpu.set(reg::AX, value);
        }
        return Ok(());
    }
    // The processor writes in both cases, and writes the old value if they differ (SDM vol. 2, CMPXCHG).
    P::modify::<W>(cpu, memory, op, |status, value| {
        found = value;
        let status = Sub::apply(status, expected, value).1;
        (if status.zero() { new } else { value }, status)
    })?;
    if found != expected {
        cpu.set(reg::AX, found);
    }
    Ok(())
}

fn compare_exchange_8_bytes(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let half = |cpu: &Cpu, register| u64::from(cpu.get::<u32>(register));
    let pair = |cpu: &Cpu, high, low| half(cpu, high) << 32 | half(cpu, low);
    let expected = pair(cpu, reg::DX, reg::AX);
    let new = pair(cpu, reg::CX, reg::BX);
    let mut found = expected;
    Mem::modify::<u64>(cpu, memory, op, |status, value| {
        found = value;
        let equal = value == expected;
        (if equal { new } else { value }, status.with_zero(equal))
    })?;
    if found != expected {
        cpu.set(reg::AX, found as u32);
        cpu.set(reg::DX, (found >> 32) as u32);
    }
    Ok(())
}

/// Performs CMPXCHG16B, whose operand must be aligned (SDM vol. 2, CMPXCHG8B).
fn compare_exchange_16_bytes(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let pair = |cpu: &Cpu, high, low| u128::from(cpu.gpr(high)) << 64 | u128::from(cpu.gpr(low));
    let expected = pair(cpu, reg::DX, reg::AX);
    let new = pair(cpu, reg::CX, reg::BX);
    let offset = op.effective_address(cpu);
    let linear = cpu.linear_for_write(op.segment, offset, 16)?;
    if linear & 15 != 0 {
        return Err(cpu.general_protection(0));
    }
    // The processor writes in both cases, as for CMPXCHG.
    let low: u64 = cpu.read_linear_for_write(memory, linear)?;
    let high: u64 = cpu.read_linear_for_write(memory, linear + 8)?;
    let found = u128::from(high) << 64 | u128::from(low);
    let equal = found == expected;
    cpu.write_16_bytes(memory, op.segment, offset, if equal { new } else { found }, true)?;
    cpu.status = cpu.status.with_zero(equal);
    if !equal {
        cpu.set_gpr(reg::AX, low);
        cpu.set_gpr(reg::DX, high);
    }
    Ok(())
}
