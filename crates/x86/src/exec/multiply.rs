//! Multiplication and division (SDM vol. 1, 7.3.2.3 and 7.3.2.4).

use ring3_core::memory::Memory;

use crate::cpu::{Cpu, reg};
use crate::decode::Op;
use crate::exception::{Fault, vector};
use crate::exec::{Done, Place};
use crate::flags::Status;
use crate::table::{Rows, rm_sizes, rm_wide};
use crate::undefined::Vendor;
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    rm_sizes!(rows, [Mul_rm8 Mul_rm16 Mul_rm32 Mul_rm64], multiply_unsigned);
    rm_sizes!(rows, [Imul_rm8 Imul_rm16 Imul_rm32 Imul_rm64], multiply_signed);
    rm_wide!(rows, [Imul_r16_rm16 Imul_r32_rm32 Imul_r64_rm64], multiply_register);
    rm_wide!(rows, [Imul_r16_rm16_imm16 Imul_r32_rm32_imm32 Imul_r64_rm64_imm32], multiply_immediate);
    rm_wide!(rows, [Imul_r16_rm16_imm8 Imul_r32_rm32_imm8 Imul_r64_rm64_imm8], multiply_immediate);
    rm_sizes!(rows, [Div_rm8 Div_rm16 Div_rm32 Div_rm64], divide_unsigned);
    rm_sizes!(rows, [Idiv_rm8 Idiv_rm16 Idiv_rm32 Idiv_rm64], divide_signed);
}

/// Returns the halves of the double-width accumulator: AH and AL, or DX and AX, EDX and EAX, RDX and RAX.
fn accumulator<W: Word>(cpu: &Cpu) -> (u64, u64) {
    let high = if W::BITS == 8 { reg::AX | reg::HIGH_BYTE } else { reg::DX };
    (cpu.get::<W>(high).zero_extend(), cpu.get::<W>(reg::AX).zero_extend())
}

/// Sets these halves.
fn set_accumulator<W: Word>(cpu: &mut Cpu, high: u64, low: u64) {
    cpu.set(reg::AX, W::truncate(low));
    let high_register = if W::BITS == 8 { reg::AX | reg::HIGH_BYTE } else { reg::DX };
    cpu.set(high_register, W::truncate(high));
}

/// Sets the flags after a multiplication. CF and OF say that the product does not fit into the low half. The
/// other flags are undefined ([`Vendor`]).
fn set_product_status<W: Word>(cpu: &mut Cpu, low: W, overflow: bool) {
    cpu.status = match cpu.vendor {
        Vendor::Intel => Status::new(low, overflow, overflow, false).with_zero(false),
        Vendor::Amd | Vendor::AmdZen4 => cpu.status.with_carry_overflow(overflow, overflow),
    };
}

/// Sets the flags after a division, all of which are undefined.
fn set_quotient_status(cpu: &mut Cpu) {
    if cpu.vendor.is_amd() {
        let (carry, overflow) = (cpu.status.carry(), cpu.status.overflow());
        // A result for which ZF, SF and PF are clear.
        cpu.status = Status::new(1_u32, carry, overflow, true);
    }
}

fn multiply_unsigned<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let factor = P::read::<W>(cpu, memory, op)?;
    let (high, low) = unsigned_product(cpu.get::<W>(reg::AX), factor);
    set_accumulator::<W>(cpu, high, low);
    set_product_status(cpu, W::truncate(low), high != 0);
    Ok(())
}

fn multiply_signed<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let factor = P::read::<W>(cpu, memory, op)?;
    let (high, low, overflow) = signed_product(cpu.get::<W>(reg::AX), factor);
    set_accumulator::<W>(cpu, high, low);
    set_product_status(cpu, W::truncate(low), overflow);
    Ok(())
}

fn multiply_register<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let factor = P::read::<W>(cpu, memory, op)?;
    let (_, product, overflow) = signed_product(cpu.get::<W>(op.reg), factor);
    cpu.set(op.reg, W::truncate(product));
    set_product_status(cpu, W::truncate(product), overflow);
    Ok(())
}

fn multiply_immediate<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let factor = P::read::<W>(cpu, memory, op)?;
    let (_, product, overflow) = signed_product(factor, op.immediate::<W>());
    cpu.set(op.reg, W::truncate(product));
    set_product_status(cpu, W::truncate(product), overflow);
    Ok(())
}

/// Returns the halves of the product.
#[inline(always)]
fn unsigned_product<W: Word>(a: W, b: W) -> (u64, u64) {
    let (a, b) = (a.zero_extend(), b.zero_extend());
    if W::BITS == 64 {
        let product = u128::from(a) * u128::from(b);
        ((product >> 64) as u64, product as u64)
    } else {
        let product = a * b;
        (product >> W::BITS, product)
    }
}

/// Returns the halves of the product, and whether its low half alone has another value. The lower one may
/// have more bits than a `W`.
#[inline(always)]
fn signed_product<W: Word>(a: W, b: W) -> (u64, u64, bool) {
    let (a, b) = (a.sign_extend(), b.sign_extend());
    if W::BITS == 64 {
        let product = i128::from(a as i64) * i128::from(b as i64);
        let low = product as i64;
        ((product >> 64) as u64, low as u64, i128::from(low) != product)
    } else {
        let product = a.wrapping_mul(b);
        (product >> W::BITS, product, W::truncate(product).sign_extend() != product)
    }
}

/// Returns the quotient and the remainder, if the quotient fits into a `W`. The dividend has the halves
/// `high` and `low`.
#[inline(always)]
fn unsigned_quotient<W: Word>(high: u64, low: u64, divisor: W) -> Option<(u64, u64)> {
    let divisor = divisor.zero_extend();
    if W::BITS == 64 {
        let dividend = u128::from(high) << 64 | u128::from(low);
        let quotient = dividend.checked_div(divisor.into())?;
        let remainder = dividend % u128::from(divisor);
        Some((u64::try_from(quotient).ok()?, remainder as u64))
    } else {
        let dividend = high << W::BITS | low;
        let quotient = dividend.checked_div(divisor)?;
        (quotient <= W::MASK).then_some((quotient, dividend % divisor))
    }
}

/// Returns the same for numbers with signs.
#[inline(always)]
fn signed_quotient<W: Word>(high: u64, low: u64, divisor: W) -> Option<(u64, u64)> {
    let divisor = divisor.sign_extend() as i64;
    if W::BITS == 64 {
        let dividend = i128::from(high as i64) << 64 | i128::from(low);
        let quotient = dividend.checked_div(divisor.into())?;
        let remainder = dividend % i128::from(divisor);
        Some((i64::try_from(quotient).ok()? as u64, remainder as u64))
    } else {
        let unused = 64 - 2 * W::BITS;
        let dividend = ((high << W::BITS | low) << unused) as i64 >> unused;
        let quotient = dividend.checked_div(divisor)?;
        let fits = W::truncate(quotient as u64).sign_extend() == quotient as u64;
        fits.then_some((quotient as u64, (dividend % divisor) as u64))
    }
}

fn divide_unsigned<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let divisor = P::read::<W>(cpu, memory, op)?;
    let (high, low) = accumulator::<W>(cpu);
    set_quotient::<W>(cpu, unsigned_quotient(high, low, divisor))
}

fn divide_signed<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let divisor = P::read::<W>(cpu, memory, op)?;
    let (high, low) = accumulator::<W>(cpu);
    set_quotient::<W>(cpu, signed_quotient(high, low, divisor))
}

/// Sets the results of a division, or raises #DE if there are none.
#[inline(always)]
fn set_quotient<W: Word>(cpu: &mut Cpu, results: Option<(u64, u64)>) -> Done {
    let Some((quotient, remainder)) = results else {
        return Err(cpu.fault(Fault::new(vector::DE)));
    };
    set_accumulator::<W>(cpu, remainder, quotient);
    set_quotient_status(cpu);
    Ok(())
}
