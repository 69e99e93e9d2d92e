//! FMA: multiplication and addition with one rounding (SDM vol. 1, 14.5).
//!
//! The opcode says what is done: its high digit in which order the operands are multiplied and added, and its low digit
//! which signs there are, and whether all elements are computed or the first one alone.

use iced_x86::{Code, CpuidFeature};
use ring3_core::memory::Memory;

use super::{Lanes, Source, begin, lanes};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exec::simd::float::{compute, elements, first, join, with_first};
use crate::exec::{Done, Mem, Reg};
use crate::sse_float::{Context, F32, F64, Float, Signs};
use crate::table::{Handlers, Rows, exec};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    let is_of_fma = |code: &Code| *code.cpuid_features() == [CpuidFeature::FMA];
    for code in Code::values().filter(is_of_fma) {
        let form = code.op_code();
        let is_double = form.w() == 1;
        let (memory, register): Handlers = match (is_scalar(form.op_code()), is_double) {
            (true, false) => (exec!(scalar::<Mem, u32, F32>), exec!(scalar::<Reg, u32, F32>)),
            (true, true) => (exec!(scalar::<Mem, u64, F64>), exec!(scalar::<Reg, u64, F64>)),
            (false, false) if form.l() == 0 => {
                (exec!(packed::<Mem, F32, 4, 1>), exec!(packed::<Reg, F32, 4, 1>))
            }
            (false, false) => (exec!(packed::<Mem, F32, 4, 2>), exec!(packed::<Reg, F32, 4, 2>)),
            (false, true) if form.l() == 0 => {
                (exec!(packed::<Mem, F64, 2, 1>), exec!(packed::<Reg, F64, 2, 1>))
            }
            (false, true) => (exec!(packed::<Mem, F64, 2, 2>), exec!(packed::<Reg, F64, 2, 2>)),
        };
        rows.add(code, memory, register);
    }
}

/// Returns whether an instruction with this opcode computes the first element alone.
fn is_scalar(opcode: u32) -> bool {
    matches!(opcode & 15, 9 | 11 | 13 | 15)
}

/// Returns the opcode.
fn opcode(op: &Op) -> u32 {
    op.form.form().map_or(0, |form| form.code.op_code().op_code())
}

/// Returns the signs of product and addend for the element with this index.
fn signs(opcode: u32, index: usize) -> Signs {
    let is_odd = index % 2 == 1;
    let (product, addend) = match opcode & 15 {
        6 => (false, !is_odd),
        7 => (false, is_odd),
        8 | 9 => (false, false),
        10 | 11 => (false, true),
        12 | 13 => (true, false),
        _ => (true, true),
    };
    Signs { product, addend }
}

/// Returns the destination and both other sources in the order in which they are two factors and an addend.
fn ordered<T>(opcode: u32, destination: T, second: T, third: T) -> [T; 3] {
    match opcode >> 4 {
        0x9 => [destination, third, second],
        0xa => [second, destination, third],
        _ => [second, third, destination],
    }
}

fn packed<S: Source, F: Float, const N: usize, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    begin(cpu)?;
    let third = S::lanes::<COUNT>(cpu, memory, op, false)?;
    let (destination, second) = (cpu.sse.ymm(op.reg), cpu.sse.ymm(op.vvvv()));
    let opcode = opcode(op);
    let operands: [Lanes; 3] = ordered(opcode, destination, second, third);
    let result = compute(cpu, |c: &mut Context| {
        lanes::<COUNT>(|lane| {
            let [a, b, addend] = operands.map(|operand| elements::<F, N>(operand[lane]));
            join::<F, N>(std::array::from_fn(|index| {
                c.fused(a[index], b[index], addend[index], signs(opcode, index))
            }))
        })
    })?;
    cpu.sse.set_ymm(op.reg, result);
    Ok(())
}

fn scalar<S: Source, W: Word, F: Float>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let third = S::low::<W>(cpu, memory, op)?;
    let third = F::from_bits(third.zero_extend());
    let destination = cpu.sse.xmm(op.reg);
    let second = first(cpu.sse.xmm(op.vvvv()));
    let opcode = opcode(op);
    let [a, b, addend] = ordered(opcode, first(destination), second, third);
    let result = compute(cpu, |c| c.fused(a, b, addend, signs(opcode, 0)))?;
    cpu.sse.set_ymm(op.reg, [with_first(destination, result), 0]);
    Ok(())
}
