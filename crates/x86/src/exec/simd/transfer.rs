//! Moves (SDM vol. 1, 9.4.1, 10.4.1, 11.4.1, 12.3, 12.10): between vectors, general registers and memory.

use iced_x86::Code;
use ring3_core::memory::Memory;

use super::shuffle::sign_mask;
use super::{Lane, Source, Vector, combine, combine_low, immediate, row};
use crate::cpu::{Cpu, reg};
use crate::decode::Op;
use crate::exception::Stopped;
use crate::exec::{Done, Mem, Place, Reg};
use crate::table::{Rows, exec, plain, rm, rm_long};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    // Whole vectors.
    row!(rows, u64, [Movq_mm_mmm64], combine, |_, b| b);
    row!(rows, { u128 }, [Movdqa_xmm_xmmm128], combine, |_, b| b);
    row!(rows, { u128 }, [Movaps_xmm_xmmm128], combine, |_, b| b);
    row!(rows, { u128 }, [Movapd_xmm_xmmm128], combine, |_, b| b);
    plain!(rows, [Movntdqa_xmm_m128], |cpu, memory, op| {
        combine::<Mem, u128>(cpu, memory, op, |_, b| b)
    });
    for code in [Code::Movups_xmm_xmmm128, Code::Movupd_xmm_xmmm128, Code::Movdqu_xmm_xmmm128] {
        rows.add(
            code,
            exec!(load_unaligned),
            exec!(|cpu, memory, op| { combine::<Reg, u128>(cpu, memory, op, |_, b| b) }),
        );
    }
    plain!(rows, [Lddqu_xmm_m128], load_unaligned);
    rows.add(Code::Movq_mmm64_mm, exec!(store::<u64, true>), exec!(copy::<u64>));
    for code in [Code::Movaps_xmmm128_xmm, Code::Movapd_xmmm128_xmm, Code::Movdqa_xmmm128_xmm] {
        rows.add(code, exec!(store::<u128, true>), exec!(copy::<u128>));
    }
    for code in [Code::Movups_xmmm128_xmm, Code::Movupd_xmmm128_xmm, Code::Movdqu_xmmm128_xmm] {
        rows.add(code, exec!(store::<u128, false>), exec!(copy::<u128>));
    }
    plain!(rows, [Movntq_m64_mm], store::<u64, true>);
    plain!(rows, [Movntps_m128_xmm Movntpd_m128_xmm Movntdq_m128_xmm], store::<u128, true>);
    plain!(rows, [Maskmovq_rDI_mm_mm], store_masked::<u64>);
    plain!(rows, [Maskmovdqu_rDI_xmm_xmm], store_masked::<u128>);

    // Low parts of vectors: loads clear the rest, and moves between registers keep it, except for MOVQ.
    rows.add(
        Code::Movss_xmm_xmmm32,
        exec!(load_low::<Mem, u32, u128>),
        exec!(merge_low::<u32, false>),
    );
    rows.add(
        Code::Movsd_xmm_xmmm64,
        exec!(load_low::<Mem, u64, u128>),
        exec!(merge_low::<u64, false>),
    );
    rows.add(
        Code::Movq_xmm_xmmm64,
        exec!(load_low::<Mem, u64, u128>),
        exec!(load_low::<Reg, u64, u128>),
    );
    rows.add(Code::Movss_xmmm32_xmm, exec!(store_low::<u128, u32>), exec!(merge_low::<u32, true>));
    rows.add(Code::Movsd_xmmm64_xmm, exec!(store_low::<u128, u64>), exec!(merge_low::<u64, true>));
    rows.add(
        Code::Movq_xmmm64_xmm,
        exec!(store_low::<u128, u64>),
        exec!(copy_low_quadword::<u128>),
    );

    // Halves of XMM registers.
    plain!(rows, [Movlps_xmm_m64 Movlpd_xmm_m64], load_half::<0>);
    plain!(rows, [Movhps_xmm_m64 Movhpd_xmm_m64], load_half::<64>);
    plain!(rows, [Movlps_m64_xmm Movlpd_m64_xmm], store_half::<u128, 0>);
    plain!(rows, [Movhps_m64_xmm Movhpd_m64_xmm], store_half::<u128, 64>);
    plain!(rows, [Movhlps_xmm_xmm], |cpu, memory, op| {
        combine::<Reg, u128>(cpu, memory, op, |a, b| with_quadword(a, b.lane(1), 0))
    });
    plain!(rows, [Movlhps_xmm_xmm], |cpu, memory, op| {
        combine::<Reg, u128>(cpu, memory, op, |a, b| with_quadword(a, b.lane(0), 64))
    });

    // General registers, and memory operands of their size.
    rm!(rows, u32, [Movd_mm_rm32], load_general, u64);
    rm!(rows, u32, [Movd_xmm_rm32], load_general, u128);
    rm!(rows, u32, [Movd_rm32_mm], extract, u64);
    rm!(rows, u32, [Movd_rm32_xmm], extract, u128);
    rm_long!(rows, u64, [Movq_mm_rm64], load_general, u64);
    rm_long!(rows, u64, [Movq_xmm_rm64], load_general, u128);
    rm_long!(rows, u64, [Movq_rm64_mm], extract, u64);
    rm_long!(rows, u64, [Movq_rm64_xmm Pextrq_rm64_xmm_imm8], extract, u128);
    rm_long!(rows, u64, [Pinsrq_xmm_rm64_imm8], insert, u128);
    // With REX.W, these write or read the same parts of a register.
    rm_long!(rows, u16, [Pinsrw_mm_r64m16_imm8], insert, u64);
    rm_long!(rows, u16, [Pinsrw_xmm_r64m16_imm8], insert, u128);
    rm_long!(rows, u8, [Pinsrb_xmm_r64m8_imm8], insert, u128);
    rm_long!(rows, u8, [Pextrb_r64m8_xmm_imm8], extract, u128);
    rm_long!(rows, u16, [Pextrw_r64m16_xmm_imm8], extract, u128);
    rm_long!(rows, u32, [Extractps_r64m32_xmm_imm8], extract, u128);
    rm!(rows, u16, [Pinsrw_mm_r32m16_imm8], insert, u64);
    rm!(rows, u16, [Pinsrw_xmm_r32m16_imm8], insert, u128);
    rm!(rows, u8, [Pinsrb_xmm_r32m8_imm8], insert, u128);
    rm!(rows, u32, [Pinsrd_xmm_rm32_imm8], insert, u128);
    rm!(rows, u8, [Pextrb_r32m8_xmm_imm8], extract, u128);
    rm!(rows, u16, [Pextrw_r32m16_xmm_imm8], extract, u128);
    rm!(rows, u32, [Pextrd_rm32_xmm_imm8 Extractps_rm32_xmm_imm8], extract, u128);
    plain!(rows, [Pextrw_r32_mm_imm8 Pextrw_r64_mm_imm8], extract_word::<u64>);
    plain!(rows, [Pextrw_r32_xmm_imm8 Pextrw_r64_xmm_imm8], extract_word::<u128>);
    plain!(rows, [Pmovmskb_r32_mm Pmovmskb_r64_mm], move_mask::<u64, u8>);
    plain!(rows, [Pmovmskb_r32_xmm Pmovmskb_r64_xmm], move_mask::<u128, u8>);
    plain!(rows, [Movmskps_r32_xmm Movmskps_r64_xmm], move_mask::<u128, u32>);
    plain!(rows, [Movmskpd_r32_xmm Movmskpd_r64_xmm], move_mask::<u128, u64>);

    // MMX and XMM registers.
    plain!(rows, [Movq2dq_xmm_mm], mm_to_xmm);
    plain!(rows, [Movdq2q_mm_xmm], xmm_to_mm);
}

fn load_unaligned(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    u128::begin(cpu)?;
    let value = u128::load(cpu, memory, op, false)?;
    cpu.sse.set_xmm(op.reg, value);
    Ok(())
}

fn store<V: Vector, const ALIGNED: bool>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    V::begin(cpu)?;
    V::get(cpu, op.reg).store(cpu, memory, op, ALIGNED)?;
    Ok(())
}

/// Performs the register form of a store.
fn copy<V: Vector>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    V::begin(cpu)?;
    V::set(cpu, op.rm, V::get(cpu, op.reg));
    Ok(())
}

/// Stores at rDI those bytes whose byte in the mask has its highest bit set. A fault of any byte comes before
/// all writes.
pub(super) fn store_masked<V: Vector>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    V::begin(cpu)?;
    let value = V::get(cpu, op.reg);
    let mask = sign_mask::<V, u8>(V::get(cpu, op.rm));
    let offset = cpu.gpr(reg::DI) & op.address_mask();
    if mask != 0 {
        cpu.check_writable(memory, op.segment, offset, V::BITS / 8)?;
    }
    for index in (0..V::BITS / 8).filter(|index| mask >> index & 1 != 0) {
        cpu.write(memory, op.segment, offset + index as u64, value.lane::<u8>(index))?;
    }
    Ok(())
}

pub(super) fn load_low<S: Source, W: Word, V: Vector>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    combine_low::<S, V, W>(cpu, memory, op, |_, b| V::of(b.zero_extend().into()))
}

pub(super) fn store_low<V: Vector, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    V::begin(cpu)?;
    Mem::write(cpu, memory, op, W::truncate(V::get(cpu, op.reg).lane(0)))
}

/// Moves between registers; `TO_RM` is the direction of a store.
fn merge_low<W: Word, const TO_RM: bool>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    u128::begin(cpu)?;
    let (to, from) = if TO_RM { (op.rm, op.reg) } else { (op.reg, op.rm) };
    let mask = u128::from(W::MASK);
    let value = cpu.sse.xmm(to) & !mask | cpu.sse.xmm(from) & mask;
    cpu.sse.set_xmm(to, value);
    Ok(())
}

pub(super) fn copy_low_quadword<V: Vector>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    V::begin(cpu)?;
    V::set(cpu, op.rm, V::of(u128::from(cpu.sse.xmm(op.reg) as u64)));
    Ok(())
}

/// Returns `a` with the quadword from bit `shift` on replaced.
pub(super) fn with_quadword(a: u128, quadword: u64, shift: u32) -> u128 {
    a & !(u128::from(u64::MAX) << shift) | u128::from(quadword) << shift
}

fn load_half<const SHIFT: u32>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    combine_low::<Mem, u128, u64>(cpu, memory, op, |a, b| with_quadword(a, b, SHIFT))
}

pub(super) fn store_half<V: Vector, const SHIFT: u32>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    V::begin(cpu)?;
    Mem::write(cpu, memory, op, (cpu.sse.xmm(op.reg) >> SHIFT) as u64)
}

pub(super) fn load_general<P: Place, W: Word, V: Vector>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    V::begin(cpu)?;
    let value: W = P::read(cpu, memory, op)?;
    V::set(cpu, op.reg, V::of(value.zero_extend().into()));
    Ok(())
}

/// Returns the lowest bit in `V` of the word of size `W` that the immediate selects.
fn chosen<W: Word, V: Vector>(op: &Op) -> usize {
    (immediate(op) * W::BITS as usize) % V::BITS
}

pub(super) fn insert<P: Place, W: Word, V: Vector>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    V::begin(cpu)?;
    let value: W = P::read(cpu, memory, op)?;
    let shift = chosen::<W, V>(op);
    let others = V::get(cpu, V::first(op)).wide() & !(u128::from(W::MASK) << shift);
    V::set(cpu, op.reg, V::of(others | u128::from(value.zero_extend()) << shift));
    Ok(())
}

/// Returns the word of size `W` that the immediate selects. MOVD has no immediate and takes the first word.
fn extracted<W: Word, V: Vector>(cpu: &Cpu, op: &Op, register: u8) -> W {
    W::truncate((V::get(cpu, register).wide() >> chosen::<W, V>(op)) as u64)
}

/// Stores a word into memory of its size, or zero-extended into a register.
pub(super) fn extract<P: Place, W: Word, V: Vector>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    V::begin(cpu)?;
    let value = extracted::<W, V>(cpu, op, op.reg);
    if P::IS_REGISTER {
        cpu.set_gpr(op.rm, value.zero_extend());
    } else {
        P::write(cpu, memory, op, value)?;
    }
    Ok(())
}

pub(super) fn extract_word<V: Vector>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    V::begin(cpu)?;
    let value = extracted::<u16, V>(cpu, op, op.rm);
    cpu.set(op.reg, u32::from(value));
    Ok(())
}

pub(super) fn move_mask<V: Vector, L: Lane>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    V::begin(cpu)?;
    cpu.set(op.reg, sign_mask::<V, L>(V::get(cpu, op.rm)));
    Ok(())
}

/// Checks for the exceptions of instructions on both kinds of registers.
fn begin_both(cpu: &mut Cpu) -> Result<(), Stopped> {
    u128::begin(cpu)?;
    u64::begin(cpu)
}

fn mm_to_xmm(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin_both(cpu)?;
    cpu.sse.set_xmm(op.reg, cpu.fpu.mm(op.rm).into());
    Ok(())
}

fn xmm_to_mm(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin_both(cpu)?;
    cpu.fpu.set_mm(op.reg, cpu.sse.xmm(op.rm) as u64);
    Ok(())
}
