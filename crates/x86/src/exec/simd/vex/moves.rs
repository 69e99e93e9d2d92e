//! Moves, broadcasts, and tests of whole vectors (SDM vol. 1, 14.2 and 14.7): between vectors, general registers and
//! memory.

use iced_x86::Code;
use ring3_core::memory::Memory;

use super::{Lanes, Source, Xmm, begin, combine, combine_low, either, handlers, lanes, pair};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exec::simd::shuffle::sign_mask;
use crate::exec::simd::transfer::{
    copy_low_quadword, extract, extract_word, insert, load_general, load_low, move_mask,
    store_half, store_low, store_masked, with_quadword,
};
use crate::exec::simd::{Lane, Vector, immediate, vector};
use crate::exec::{Done, Mem, Reg};
use crate::flags::{Eflags, Status};
use crate::table::{Rows, exec, plain, rm, rm_long};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    whole(rows);
    parts(rows);
    general(rows);
    broadcasts(rows);

    pair!(rows, [VEX_Vptest_xmm_xmmm128 VEX_Vptest_ymm_ymmm256], test, u128::MAX);
    pair!(rows, [VEX_Vtestps_xmm_xmmm128 VEX_Vtestps_ymm_ymmm256], test, signs::<u32>());
    pair!(rows, [VEX_Vtestpd_xmm_xmmm128 VEX_Vtestpd_ymm_ymmm256], test, signs::<u64>());
    plain!(rows, [VEX_Vzeroupper], zero_upper);
    plain!(rows, [VEX_Vzeroall], zero_all);
}

/// Adds loads and stores of whole vectors. Their parameter says whether they must be aligned.
fn whole(rows: &mut Rows) {
    pair!(rows, [VEX_Vmovaps_xmm_xmmm128 VEX_Vmovaps_ymm_ymmm256], copy, true);
    pair!(rows, [VEX_Vmovapd_xmm_xmmm128 VEX_Vmovapd_ymm_ymmm256], copy, true);
    pair!(rows, [VEX_Vmovdqa_xmm_xmmm128 VEX_Vmovdqa_ymm_ymmm256], copy, true);
    pair!(rows, [VEX_Vmovntdqa_xmm_m128 VEX_Vmovntdqa_ymm_m256], copy, true);
    pair!(rows, [VEX_Vmovups_xmm_xmmm128 VEX_Vmovups_ymm_ymmm256], copy, false);
    pair!(rows, [VEX_Vmovupd_xmm_xmmm128 VEX_Vmovupd_ymm_ymmm256], copy, false);
    pair!(rows, [VEX_Vmovdqu_xmm_xmmm128 VEX_Vmovdqu_ymm_ymmm256], copy, false);
    pair!(rows, [VEX_Vlddqu_xmm_m128 VEX_Vlddqu_ymm_m256], copy, false);
    pair!(rows, [VEX_Vmovaps_xmmm128_xmm VEX_Vmovaps_ymmm256_ymm], copy_back, true);
    pair!(rows, [VEX_Vmovapd_xmmm128_xmm VEX_Vmovapd_ymmm256_ymm], copy_back, true);
    pair!(rows, [VEX_Vmovdqa_xmmm128_xmm VEX_Vmovdqa_ymmm256_ymm], copy_back, true);
    pair!(rows, [VEX_Vmovntps_m128_xmm VEX_Vmovntps_m256_ymm], copy_back, true);
    pair!(rows, [VEX_Vmovntpd_m128_xmm VEX_Vmovntpd_m256_ymm], copy_back, true);
    pair!(rows, [VEX_Vmovntdq_m128_xmm VEX_Vmovntdq_m256_ymm], copy_back, true);
    pair!(rows, [VEX_Vmovups_xmmm128_xmm VEX_Vmovups_ymmm256_ymm], copy_back, false);
    pair!(rows, [VEX_Vmovupd_xmmm128_xmm VEX_Vmovupd_ymmm256_ymm], copy_back, false);
    pair!(rows, [VEX_Vmovdqu_xmmm128_xmm VEX_Vmovdqu_ymmm256_ymm], copy_back, false);
    plain!(rows, [VEX_Vmaskmovdqu_rDI_xmm_xmm], store_masked::<Xmm>);
}

/// Adds moves of parts of vectors.
fn parts(rows: &mut Rows) {
    plain!(rows, [VEX_Vmovss_xmm_m32], load_low::<Mem, u32, Xmm>);
    plain!(rows, [VEX_Vmovsd_xmm_m64], load_low::<Mem, u64, Xmm>);
    plain!(rows, [VEX_Vmovss_m32_xmm], store_low::<Xmm, u32>);
    plain!(rows, [VEX_Vmovsd_m64_xmm], store_low::<Xmm, u64>);
    plain!(rows, [VEX_Vmovss_xmm_xmm_xmm], merge_low::<u32, false>);
    plain!(rows, [VEX_Vmovsd_xmm_xmm_xmm], merge_low::<u64, false>);
    plain!(rows, [VEX_Vmovss_xmm_xmm_xmm_0F11], merge_low::<u32, true>);
    plain!(rows, [VEX_Vmovsd_xmm_xmm_xmm_0F11], merge_low::<u64, true>);
    either!(rows, [VEX_Vmovq_xmm_xmmm64], load_low, u64, Xmm);
    rows.add(
        Code::VEX_Vmovq_xmmm64_xmm,
        exec!(store_low::<Xmm, u64>),
        exec!(copy_low_quadword::<Xmm>),
    );
    plain!(rows, [VEX_Vmovlps_xmm_xmm_m64 VEX_Vmovlpd_xmm_xmm_m64], load_half::<0>);
    plain!(rows, [VEX_Vmovhps_xmm_xmm_m64 VEX_Vmovhpd_xmm_xmm_m64], load_half::<64>);
    plain!(rows, [VEX_Vmovlps_m64_xmm VEX_Vmovlpd_m64_xmm], store_half::<Xmm, 0>);
    plain!(rows, [VEX_Vmovhps_m64_xmm VEX_Vmovhpd_m64_xmm], store_half::<Xmm, 64>);
    plain!(rows, [VEX_Vmovhlps_xmm_xmm_xmm], |cpu, memory, op| {
        combine::<Reg, 1>(cpu, memory, op, |a, b| with_quadword(a, b.lane(1), 0))
    });
    plain!(rows, [VEX_Vmovlhps_xmm_xmm_xmm], |cpu, memory, op| {
        combine::<Reg, 1>(cpu, memory, op, |a, b| with_quadword(a, b as u64, 64))
    });
    either!(rows, [VEX_Vinsertf128_ymm_ymm_xmmm128_imm8 VEX_Vinserti128_ymm_ymm_xmmm128_imm8], insert_lane);
    either!(rows, [VEX_Vextractf128_xmmm128_ymm_imm8 VEX_Vextracti128_xmmm128_ymm_imm8], extract_lane);
}

/// Adds moves between vectors and general registers, or memory operands of their size.
fn general(rows: &mut Rows) {
    rm!(rows, u32, [VEX_Vmovd_xmm_rm32], load_general, Xmm);
    rm!(rows, u32, [VEX_Vmovd_rm32_xmm], extract, Xmm);
    rm_long!(rows, u64, [VEX_Vmovq_xmm_rm64], load_general, Xmm);
    rm_long!(rows, u64, [VEX_Vmovq_rm64_xmm VEX_Vpextrq_rm64_xmm_imm8], extract, Xmm);
    rm_long!(rows, u64, [VEX_Vpinsrq_xmm_xmm_rm64_imm8], insert, Xmm);
    rm_long!(rows, u16, [VEX_Vpinsrw_xmm_xmm_r64m16_imm8], insert, Xmm);
    rm_long!(rows, u8, [VEX_Vpinsrb_xmm_xmm_r64m8_imm8], insert, Xmm);
    rm_long!(rows, u8, [VEX_Vpextrb_r64m8_xmm_imm8], extract, Xmm);
    rm_long!(rows, u16, [VEX_Vpextrw_r64m16_xmm_imm8], extract, Xmm);
    rm_long!(rows, u32, [VEX_Vextractps_r64m32_xmm_imm8], extract, Xmm);
    rm!(rows, u16, [VEX_Vpinsrw_xmm_xmm_r32m16_imm8], insert, Xmm);
    rm!(rows, u8, [VEX_Vpinsrb_xmm_xmm_r32m8_imm8], insert, Xmm);
    rm!(rows, u32, [VEX_Vpinsrd_xmm_xmm_rm32_imm8], insert, Xmm);
    rm!(rows, u8, [VEX_Vpextrb_r32m8_xmm_imm8], extract, Xmm);
    rm!(rows, u16, [VEX_Vpextrw_r32m16_xmm_imm8], extract, Xmm);
    rm!(rows, u32, [VEX_Vpextrd_rm32_xmm_imm8 VEX_Vextractps_rm32_xmm_imm8], extract, Xmm);
    plain!(rows, [VEX_Vpextrw_r32_xmm_imm8 VEX_Vpextrw_r64_xmm_imm8], extract_word::<Xmm>);
    plain!(rows, [VEX_Vpmovmskb_r32_xmm VEX_Vpmovmskb_r64_xmm], move_mask::<Xmm, u8>);
    plain!(rows, [VEX_Vmovmskps_r32_xmm VEX_Vmovmskps_r64_xmm], move_mask::<Xmm, u32>);
    plain!(rows, [VEX_Vmovmskpd_r32_xmm VEX_Vmovmskpd_r64_xmm], move_mask::<Xmm, u64>);
    plain!(rows, [VEX_Vpmovmskb_r32_ymm VEX_Vpmovmskb_r64_ymm], move_wide_mask::<u8>);
    plain!(rows, [VEX_Vmovmskps_r32_ymm VEX_Vmovmskps_r64_ymm], move_wide_mask::<u32>);
    plain!(rows, [VEX_Vmovmskpd_r32_ymm VEX_Vmovmskpd_r64_ymm], move_wide_mask::<u64>);
}

fn broadcasts(rows: &mut Rows) {
    either!(rows, [VEX_Vpbroadcastb_xmm_xmmm8], broadcast, u8, 1);
    either!(rows, [VEX_Vpbroadcastb_ymm_xmmm8], broadcast, u8, 2);
    either!(rows, [VEX_Vpbroadcastw_xmm_xmmm16], broadcast, u16, 1);
    either!(rows, [VEX_Vpbroadcastw_ymm_xmmm16], broadcast, u16, 2);
    either!(rows, [VEX_Vpbroadcastd_xmm_xmmm32], broadcast, u32, 1);
    either!(rows, [VEX_Vpbroadcastd_ymm_xmmm32], broadcast, u32, 2);
    either!(rows, [VEX_Vpbroadcastq_xmm_xmmm64], broadcast, u64, 1);
    either!(rows, [VEX_Vpbroadcastq_ymm_xmmm64], broadcast, u64, 2);
    either!(rows, [VEX_Vbroadcastss_xmm_m32 VEX_Vbroadcastss_xmm_xmm], broadcast, u32, 1);
    either!(rows, [VEX_Vbroadcastss_ymm_m32 VEX_Vbroadcastss_ymm_xmm], broadcast, u32, 2);
    either!(rows, [VEX_Vbroadcastsd_ymm_m64 VEX_Vbroadcastsd_ymm_xmm], broadcast, u64, 2);
    either!(rows, [VEX_Vmovddup_xmm_xmmm64], broadcast, u64, 1);
    plain!(rows, [VEX_Vbroadcastf128_ymm_m128 VEX_Vbroadcasti128_ymm_m128], repeat);
}

fn copy<S: Source, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    aligned: bool,
) -> Done {
    begin(cpu)?;
    let source = S::lanes::<COUNT>(cpu, memory, op, aligned)?;
    cpu.sse.set_ymm(op.reg, lanes::<COUNT>(|lane| source[lane]));
    Ok(())
}

/// Performs a store, or its form with a register.
fn copy_back<S: Source, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    aligned: bool,
) -> Done {
    begin(cpu)?;
    S::set_lanes::<COUNT>(cpu, memory, op, cpu.sse.ymm(op.reg), aligned)
}

/// Moves the low part of one register into a copy of the register in VEX.vvvv; `TO_RM` is the direction of a store.
fn merge_low<W: Word, const TO_RM: bool>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let (to, from) = if TO_RM { (op.rm, op.reg) } else { (op.reg, op.rm) };
    let mask = u128::from(W::MASK);
    let value = cpu.sse.xmm(op.vvvv()) & !mask | cpu.sse.xmm(from) & mask;
    cpu.sse.set_ymm(to, [value, 0]);
    Ok(())
}

fn load_half<const SHIFT: u32>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    combine_low::<Mem, u64>(cpu, memory, op, |a, b| [with_quadword(a, b, SHIFT), 0])
}

/// Performs VINSERTx128: the second source as one lane of the first.
fn insert_lane<S: Source>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let [lane, _] = S::lanes::<1>(cpu, memory, op, false)?;
    let mut result = cpu.sse.ymm(op.vvvv());
    result[immediate(op) & 1] = lane;
    cpu.sse.set_ymm(op.reg, result);
    Ok(())
}

/// Performs VEXTRACTx128.
fn extract_lane<S: Source>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let lane = cpu.sse.ymm(op.reg)[immediate(op) & 1];
    S::set_lanes::<1>(cpu, memory, op, [lane, 0], false)
}

fn move_wide_mask<L: Lane>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let [low, high] = cpu.sse.ymm(op.rm).map(sign_mask::<u128, L>);
    cpu.set(op.reg, low | high << (128 / L::BITS));
    Ok(())
}

fn broadcast<S: Source, W: Word + Lane, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    combine_low::<S, W>(cpu, memory, op, |_, b| lanes::<COUNT>(|_| vector(|_| b)))
}

/// Performs VBROADCASTx128.
fn repeat(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let lane = u128::load(cpu, memory, op, false)?;
    cpu.sse.set_ymm(op.reg, [lane; 2]);
    Ok(())
}

/// Returns a vector with the sign bits of all lanes.
fn signs<L: Lane>() -> u128 {
    vector(|_| L::of(1 << (L::BITS - 1)))
}

/// Performs VPTEST and VTESTPx: ZF says whether no bit of the source is set in the destination, and CF whether all are.
/// Only those in `mask` count.
fn test<S: Source, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    mask: u128,
) -> Done {
    begin(cpu)?;
    let source = S::lanes::<COUNT>(cpu, memory, op, false)?;
    let destination = cpu.sse.ymm(op.reg);
    let none = |of: &dyn Fn(u128, u128) -> u128| {
        lanes::<COUNT>(|lane| of(source[lane], destination[lane]) & mask) == Lanes::default()
    };
    let mut flags = Eflags::empty();
    flags.set(Eflags::ZF, none(&|source, destination| source & destination));
    flags.set(Eflags::CF, none(&|source, destination| source & !destination));
    cpu.status = Status::from_eflags(flags);
    Ok(())
}

/// Returns the numbers of the vectors that the running code reaches.
fn reached(cpu: &Cpu) -> std::ops::Range<u8> {
    0..if cpu.is_in_64_bit_mode() { 16 } else { 8 }
}

fn zero_upper(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    begin(cpu)?;
    for number in reached(cpu) {
        cpu.sse.set_upper(number, 0);
    }
    Ok(())
}

fn zero_all(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    begin(cpu)?;
    for number in reached(cpu) {
        cpu.sse.set_ymm(number, [0; 2]);
    }
    Ok(())
}
