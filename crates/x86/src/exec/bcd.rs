//! Decimal arithmetic (SDM vol. 1, 7.3.3; the algorithms of vol. 2).

use ring3_core::memory::Memory;

use crate::cpu::{Cpu, reg};
use crate::decode::Op;
use crate::exception::{Fault, vector};
use crate::exec::Done;
use crate::flags::Status;
use crate::table::{Rows, plain};

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [Daa], daa);
    plain!(rows, [Das], das);
    plain!(rows, [Aaa], aaa);
    plain!(rows, [Aas], aas);
    plain!(rows, [Aam_imm8], aam);
    plain!(rows, [Aad_imm8], aad);
}

const AH: u8 = reg::AX | reg::HIGH_BYTE;

fn daa(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    adjust_packed(cpu, u8::wrapping_add);
    Ok(())
}

fn das(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    let old: u8 = cpu.get(reg::AX);
    let borrows =
        cpu.status.carry() || old > 0x99 || (old & 15 > 9 || cpu.status.half_carry()) && old < 6;
    adjust_packed(cpu, u8::wrapping_sub);
    cpu.status = cpu.status.with_carry_overflow(borrows, false);
    Ok(())
}

/// Performs DAA and DAS, which correct the low digit by 6 and the high digit by 60h.
fn adjust_packed(cpu: &mut Cpu, correct: fn(u8, u8) -> u8) {
    let old: u8 = cpu.get(reg::AX);
    let half_carry = old & 15 > 9 || cpu.status.half_carry();
    let carry = old > 0x99 || cpu.status.carry();
    let mut new = old;
    if half_carry {
        new = correct(new, 6);
    }
    if carry {
        new = correct(new, 0x60);
    }
    cpu.set(reg::AX, new);
    cpu.status = Status::new(new, carry, false, half_carry);
}

fn aaa(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    adjust_unpacked(cpu, |ax| ax.wrapping_add(0x106));
    Ok(())
}

fn aas(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    adjust_unpacked(cpu, |ax| ax.wrapping_sub(0x106));
    Ok(())
}

/// Performs AAA and AAS, in which carries out of a decimal digit go to AH.
fn adjust_unpacked(cpu: &mut Cpu, correct: fn(u16) -> u16) {
    let old: u16 = cpu.get(reg::AX);
    let carry = old & 15 > 9 || cpu.status.half_carry();
    let new = if carry { correct(old) } else { old } & 0xff0f;
    cpu.set(reg::AX, new);
    cpu.status = Status::new(new as u8, carry, false, carry);
}

fn aam(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    let base = op.immediate::<u8>();
    let old: u8 = cpu.get(reg::AX);
    let Some(tens) = old.checked_div(base) else {
        return Err(cpu.fault(Fault::new(vector::DE)));
    };
    let ones = old % base;
    cpu.set(AH, tens);
    cpu.set(reg::AX, ones);
    cpu.status = Status::logic(ones);
    Ok(())
}

fn aad(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    let tens = cpu.get::<u8>(AH).wrapping_mul(op.immediate());
    let sum = cpu.get::<u8>(reg::AX).wrapping_add(tens);
    cpu.set(reg::AX, u16::from(sum));
    cpu.status = Status::logic(sum);
    Ok(())
}
