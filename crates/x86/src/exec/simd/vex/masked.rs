//! Moves of those elements alone whose element in a mask has its highest bit set (SDM vol. 1, 14.2.3 and 14.7.2; vol. 2,
//! VMASKMOV, VPMASKMOV, VGATHERxx, VPGATHERxx).

use ring3_core::memory::Memory;

use super::{Lanes, begin};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exec::Done;
use crate::exec::simd::{Lane, Vector, vector};
use crate::table::{Rows, plain};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [VEX_Vmaskmovps_xmm_xmm_m128 VEX_Vpmaskmovd_xmm_xmm_m128], load::<u32, 4>);
    plain!(rows, [VEX_Vmaskmovps_ymm_ymm_m256 VEX_Vpmaskmovd_ymm_ymm_m256], load::<u32, 8>);
    plain!(rows, [VEX_Vmaskmovpd_xmm_xmm_m128 VEX_Vpmaskmovq_xmm_xmm_m128], load::<u64, 2>);
    plain!(rows, [VEX_Vmaskmovpd_ymm_ymm_m256 VEX_Vpmaskmovq_ymm_ymm_m256], load::<u64, 4>);
    plain!(rows, [VEX_Vmaskmovps_m128_xmm_xmm VEX_Vpmaskmovd_m128_xmm_xmm], store::<u32, 4>);
    plain!(rows, [VEX_Vmaskmovps_m256_ymm_ymm VEX_Vpmaskmovd_m256_ymm_ymm], store::<u32, 8>);
    plain!(rows, [VEX_Vmaskmovpd_m128_xmm_xmm VEX_Vpmaskmovq_m128_xmm_xmm], store::<u64, 2>);
    plain!(rows, [VEX_Vmaskmovpd_m256_ymm_ymm VEX_Vpmaskmovq_m256_ymm_ymm], store::<u64, 4>);

    plain!(rows, [VEX_Vpgatherdd_xmm_vm32x_xmm VEX_Vgatherdps_xmm_vm32x_xmm], gather::<u32, u32, 4>);
    plain!(rows, [VEX_Vpgatherdd_ymm_vm32y_ymm VEX_Vgatherdps_ymm_vm32y_ymm], gather::<u32, u32, 8>);
    plain!(rows, [VEX_Vpgatherdq_xmm_vm32x_xmm VEX_Vgatherdpd_xmm_vm32x_xmm], gather::<u64, u32, 2>);
    plain!(rows, [VEX_Vpgatherdq_ymm_vm32x_ymm VEX_Vgatherdpd_ymm_vm32x_ymm], gather::<u64, u32, 4>);
    plain!(rows, [VEX_Vpgatherqd_xmm_vm64x_xmm VEX_Vgatherqps_xmm_vm64x_xmm], gather::<u32, u64, 2>);
    plain!(rows, [VEX_Vpgatherqd_xmm_vm64y_xmm VEX_Vgatherqps_xmm_vm64y_xmm], gather::<u32, u64, 4>);
    plain!(rows, [VEX_Vpgatherqq_xmm_vm64x_xmm VEX_Vgatherqpd_xmm_vm64x_xmm], gather::<u64, u64, 2>);
    plain!(rows, [VEX_Vpgatherqq_ymm_vm64y_ymm VEX_Vgatherqpd_ymm_vm64y_ymm], gather::<u64, u64, 4>);
}

/// Returns element `index` of a vector of 128 or 256 bits.
fn element<L: Lane>(vector: Lanes, index: usize) -> L {
    let each = 128 / L::BITS;
    vector[index / each].lane(index % each)
}

/// Returns whether element `index` of `mask` has its highest bit set.
fn is_chosen<L: Lane>(mask: Lanes, index: usize) -> bool {
    element::<L>(mask, index).bits() >> (L::BITS - 1) & 1 != 0
}

/// Makes a vector of these elements, the rest of which is 0.
fn joined<L: Lane, const COUNT: usize>(elements: [L; COUNT]) -> Lanes {
    let each = 128 / L::BITS;
    let element = |index: usize| elements.get(index).copied().unwrap_or(L::of(0));
    [0, each].map(|first| vector(|index| element(first + index)))
}

/// Loads the chosen elements; the others become 0.
fn load<W: Word + Lane, const COUNT: usize>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let mask = cpu.sse.ymm(op.vvvv());
    let offset = op.effective_address(cpu);
    let mut elements = [W::of(0); COUNT];
    for (index, place) in elements.iter_mut().enumerate() {
        if is_chosen::<W>(mask, index) {
            let at = offset.wrapping_add((index * W::BYTES) as u64);
            *place = cpu.read(memory, op.segment, at)?;
        }
    }
    cpu.sse.set_ymm(op.reg, joined(elements));
    Ok(())
}

/// Stores the chosen elements. A fault of any of them comes before all writes.
fn store<W: Word + Lane, const COUNT: usize>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let mask = cpu.sse.ymm(op.vvvv());
    let value = cpu.sse.ymm(op.reg);
    let offset = op.effective_address(cpu);
    let at = |index: usize| offset.wrapping_add((index * W::BYTES) as u64);
    let chosen = || (0..COUNT).filter(|index| is_chosen::<W>(mask, *index));
    for index in chosen() {
        cpu.check_writable(memory, op.segment, at(index), W::BYTES)?;
    }
    for index in chosen() {
        cpu.write(memory, op.segment, at(index), element::<W>(value, index))?;
    }
    Ok(())
}

/// Loads the chosen elements, each from the sum of base, displacement and its own scaled index; the others stay. All of
/// the mask is cleared. If an element faults nothing has changed, as if that element were the first to be loaded.
fn gather<W: Word + Lane, I: Word + Lane, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    begin(cpu)?;
    let (mask, indices) = (cpu.sse.ymm(op.vvvv()), cpu.sse.ymm(op.index));
    let before = cpu.sse.ymm(op.reg);
    let first = cpu.gpr(op.base).wrapping_add(i64::from(op.disp as i32) as u64);
    let mut elements = [W::of(0); COUNT];
    for (number, place) in elements.iter_mut().enumerate() {
        *place = element(before, number);
        if is_chosen::<W>(mask, number) {
            let index = element::<I>(indices, number).sign_extend();
            let offset = first.wrapping_add(index << (op.scale & 3)) & op.address_mask();
            *place = cpu.read(memory, op.segment, offset)?;
        }
    }
    cpu.sse.set_ymm(op.reg, joined(elements));
    cpu.sse.set_ymm(op.vvvv(), Lanes::default());
    Ok(())
}
