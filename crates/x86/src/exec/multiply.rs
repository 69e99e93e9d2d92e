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
    rm_sizes!(rows, [Mul_rm8 Mul_rm16 Mul_rm32], multiply_unsigned);
    rm_sizes!(rows, [Imul_rm8 Imul_rm16 Imul_rm32], multiply_signed);
    rm_wide!(rows, [Imul_r16_rm16 Imul_r32_rm32], multiply_register);
    rm_wide!(rows, [Imul_r16_rm16_imm16 Imul_r32_rm32_imm32], multiply_immediate);
    rm_wide!(rows, [Imul_r16_rm16_imm8 Imul_r32_rm32_imm8], multiply_immediate);
    rm_sizes!(rows, [Div_rm8 Div_rm16 Div_rm32], divide_unsigned);
    rm_sizes!(rows, [Idiv_rm8 Idiv_rm16 Idiv_rm32], divide_signed);
}

/// Returns the double-width accumulator: AX, DX:AX or EDX:EAX.
fn accumulator<W: Word>(cpu: &Cpu) -> u64 {
    if W::BITS == 8 {
        cpu.get::<u16>(reg::AX).into()
    } else {
        cpu.get::<W>(reg::DX).zero_extend() << W::BITS | cpu.get::<W>(reg::AX).zero_extend()
    }
}

/// Sets the halves of the double-width accumulator: AH and AL, DX and AX, or EDX and EAX.
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
        Vendor::Amd => cpu.status.with_carry_overflow(overflow, overflow),
    };
}

/// Sets the flags after a division, all of which are undefined.
fn set_quotient_status(cpu: &mut Cpu) {
    if cpu.vendor == Vendor::Amd {
        let (carry, overflow) = (cpu.status.carry(), cpu.status.overflow());
        // A result for which ZF, SF and PF are clear.
        cpu.status = Status::new(1_u32, carry, overflow, true);
    }
}

fn multiply_unsigned<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let factor = P::read::<W>(cpu, memory, op)?;
    let product = cpu.get::<W>(reg::AX).zero_extend() * factor.zero_extend();
    let high = product >> W::BITS;
    set_accumulator::<W>(cpu, high, product);
    set_product_status(cpu, W::truncate(product), high != 0);
    Ok(())
}

fn multiply_signed<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let factor = P::read::<W>(cpu, memory, op)?;
    let (product, overflow) = signed_product(cpu.get::<W>(reg::AX), factor);
    set_accumulator::<W>(cpu, product >> W::BITS, product);
    set_product_status(cpu, W::truncate(product), overflow);
    Ok(())
}

fn multiply_register<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let factor = P::read::<W>(cpu, memory, op)?;
    let (product, overflow) = signed_product(cpu.get::<W>(op.reg), factor);
    cpu.set(op.reg, W::truncate(product));
    set_product_status(cpu, W::truncate(product), overflow);
    Ok(())
}

fn multiply_immediate<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let factor = P::read::<W>(cpu, memory, op)?;
    let (product, overflow) = signed_product(factor, op.immediate::<W>());
    cpu.set(op.reg, W::truncate(product));
    set_product_status(cpu, W::truncate(product), overflow);
    Ok(())
}

/// Returns the whole product, and whether its low half alone has another value.
fn signed_product<W: Word>(a: W, b: W) -> (u64, bool) {
    let product = a.sign_extend().wrapping_mul(b.sign_extend());
    (product, W::truncate(product).sign_extend() != product)
}

fn divide_unsigned<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let divisor = P::read::<W>(cpu, memory, op)?.zero_extend();
    let dividend = accumulator::<W>(cpu);
    match dividend.checked_div(divisor) {
        Some(quotient) if quotient <= W::MASK => {
            set_accumulator::<W>(cpu, dividend % divisor, quotient);
            set_quotient_status(cpu);
            Ok(())
        }
        _ => Err(cpu.fault(Fault::new(vector::DE))),
    }
}

fn divide_signed<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let divisor = P::read::<W>(cpu, memory, op)?.sign_extend() as i64;
    let unused = 64 - 2 * W::BITS;
    let dividend = (accumulator::<W>(cpu) << unused) as i64 >> unused;
    match dividend.checked_div(divisor) {
        Some(quotient) if W::truncate(quotient as u64).sign_extend() == quotient as u64 => {
            set_accumulator::<W>(cpu, (dividend % divisor) as u64, quotient as u64);
            set_quotient_status(cpu);
            Ok(())
        }
        _ => Err(cpu.fault(Fault::new(vector::DE))),
    }
}
