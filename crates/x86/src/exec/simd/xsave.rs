//! XSAVE and XRSTOR, which save and restore the state components that XCR0 enables (SDM vol. 1, chapter 13): the
//! x87, SSE, and the upper halves of the vectors of AVX.
//!
//! The processor does not track which components are in their initial configuration, so XSAVE always saves those
//! that it is asked for.

use std::ops::Range;

use ring3_core::memory::Memory;

use super::state::{image, require_valid_mxcsr, restore_x87, set_xmm, whole_image, word};
use crate::cpu::{Cpu, Cr0, Cr4, reg};
use crate::cpuid::{STATE_OFFSET, STATE_SIZE};
use crate::decode::Op;
use crate::exception::{Fault, Stopped, vector};
use crate::exec::Done;
use crate::exec::x87::read_bytes_at;
use crate::fpu::Fpu;
use crate::table::{Rows, plain};

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [Xsave_mem], xsave::<false>);
    plain!(rows, [Xsave64_mem], xsave::<true>);
    plain!(rows, [Xrstor_mem], xrstor::<false>);
    plain!(rows, [Xrstor64_mem], xrstor::<true>);
    plain!(rows, [Xgetbv], xgetbv);
    plain!(rows, [Xsetbv], xsetbv);
}

/// Bits of the state components in XCR0 and in XSTATE_BV.
const X87: u64 = 1 << 0;
const SSE: u64 = 1 << 1;
const AVX: u64 = 1 << 2;

/// The areas in memory: the image of FXSAVE, and a header (SDM vol. 1, 13.4).
const HEADER: u64 = image::BYTES as u64;
const HEADER_BYTES: usize = 64;
const BYTES: usize = image::BYTES + HEADER_BYTES;
/// The upper halves of YMM0 to YMM15 behind them, of which 32-bit code reaches the first eight.
const UPPER: u64 = STATE_OFFSET as u64;
/// The bytes of the header behind XSTATE_BV that XRSTOR wants to be zero.
const ZERO: Range<usize> = 8..24;

impl Cpu {
    /// Returns whether the operating system has enabled instructions of AVX (SDM vol. 1, 14.3).
    pub fn is_avx_enabled(&self) -> bool {
        let components = SSE | AVX;
        self.cr4().contains(Cr4::OSXSAVE) && self.msrs.xcr0 & components == components
    }
}

/// Raises #UD unless the operating system has enabled these instructions.
fn require_enabled(cpu: &mut Cpu) -> Done {
    if cpu.cr4().contains(Cr4::OSXSAVE) { Ok(()) } else { Err(cpu.undefined_opcode()) }
}

/// Makes the checks before memory is accessed. Returns the offset of the area in its segment, and the components
/// that are asked for.
fn begin(cpu: &mut Cpu, op: &Op) -> Result<(u64, u64), Stopped> {
    require_enabled(cpu)?;
    if cpu.cr0().contains(Cr0::TS) {
        return Err(cpu.fault(Fault::new(vector::NM)));
    }
    let offset = op.effective_address(cpu);
    if cpu.linear(cpu.view(op.segment), offset) & 63 != 0 {
        return Err(cpu.general_protection(0));
    }
    Ok((offset, cpu.msrs.xcr0 & cpu.requested_components()))
}

/// Returns where the vectors are in the image that the running code reaches.
fn vectors(cpu: &Cpu) -> Range<usize> {
    if cpu.is_in_64_bit_mode() { image::XMM.start..image::HIGH_XMM.end } else { image::XMM }
}

/// Returns the numbers of the vectors that the running code reaches.
fn reached(cpu: &Cpu) -> Range<u8> {
    0..if cpu.is_in_64_bit_mode() { 16 } else { 8 }
}

/// Performs XSAVE, or XSAVE64, whose addresses have 64 bits.
fn xsave<const LONG: bool>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let (offset, components) = begin(cpu, op)?;
    let first = if components == 0 { HEADER } else { 0 };
    let size = BYTES - first as usize;
    cpu.check_writable(memory, op.segment, offset.wrapping_add(first), size)?;
    let upper = offset.wrapping_add(UPPER);
    if components & AVX != 0 {
        // All of the component must be writable, whatever of it is written.
        cpu.check_writable(memory, op.segment, upper, STATE_SIZE as usize)?;
    }
    let image = whole_image::<LONG>(cpu);
    let parts = [
        (X87, image::ENVIRONMENT),
        (SSE | AVX, image::MXCSR.start..image::MXCSR_MASK.end),
        (X87, image::ST),
        (SSE, vectors(cpu)),
    ];
    for (_, part) in parts.into_iter().filter(|(component, _)| components & component != 0) {
        for (at, word) in (part.start as u64..).step_by(8).zip(image[part].chunks_exact(8)) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            let offset = offset.wrapping_add(at);
            cpu.write(memory, op.segment, offset, u64::from_le_bytes(bytes))?;
        }
    }
    for number in reached(cpu).filter(|_| components & AVX != 0) {
        let value = cpu.sse.upper(number);
        let at = upper.wrapping_add(16 * u64::from(number));
        cpu.write_16_bytes(memory, op.segment, at, value, false)?;
    }
    let header = offset.wrapping_add(HEADER);
    let before: u64 = cpu.read(memory, op.segment, header)?;
    cpu.write(memory, op.segment, header, before | components)
}

/// Performs XRSTOR, or XRSTOR64, whose addresses have 64 bits. Raises #GP(0) for components that XCR0 does not
/// enable, for a compacted area, and for reserved bits of MXCSR.
fn xrstor<const LONG: bool>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let (offset, components) = begin(cpu, op)?;
    let header: [u8; HEADER_BYTES] =
        read_bytes_at(cpu, memory, op.segment, offset.wrapping_add(HEADER))?;
    let mut saved = [0; 8];
    saved.copy_from_slice(&header[..8]);
    let saved = u64::from_le_bytes(saved);
    if saved & !cpu.msrs.xcr0 != 0 || header[ZERO] != [0; 16] {
        return Err(cpu.general_protection(0));
    }
    if components == 0 {
        return Ok(());
    }
    let image: [u8; image::BYTES] = read_bytes_at(cpu, memory, op.segment, offset)?;
    let mut upper = [0; 16];
    for number in reached(cpu).filter(|_| components & saved & AVX != 0) {
        let at = offset.wrapping_add(UPPER + 16 * u64::from(number));
        upper[usize::from(number)] = cpu.read_16_bytes(memory, op.segment, at, false)?;
    }
    if components & (SSE | AVX) != 0 {
        // MXCSR is loaded whether the component was saved or not (SDM vol. 1, 13.8.1).
        let mxcsr = word(&image, image::MXCSR.start);
        require_valid_mxcsr(cpu, mxcsr)?;
        cpu.sse.set_mxcsr(mxcsr);
    }
    if components & AVX != 0 {
        reached(cpu).zip(upper).for_each(|(number, value)| cpu.sse.set_upper(number, value));
    }
    if components & SSE != 0 {
        let vectors = vectors(cpu);
        let initial = [0; image::HIGH_XMM.end - image::XMM.start];
        let len = vectors.len();
        set_xmm(cpu, 0, if saved & SSE != 0 { &image[vectors] } else { &initial[..len] });
    }
    if components & saved & X87 != 0 {
        restore_x87::<LONG>(cpu, &image);
    } else if components & X87 != 0 {
        cpu.fpu = Fpu::default();
    }
    Ok(())
}

/// Performs XGETBV. There is no register besides XCR0.
fn xgetbv(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    require_enabled(cpu)?;
    if cpu.get::<u32>(reg::CX) != 0 {
        return Err(cpu.general_protection(0));
    }
    let value = cpu.msrs.xcr0;
    cpu.set(reg::AX, value as u32);
    cpu.set(reg::DX, (value >> 32) as u32);
    Ok(())
}

/// Performs XSETBV. The x87 is always enabled.
fn xsetbv(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    require_enabled(cpu)?;
    cpu.require_cpl0()?;
    let value = cpu.requested_components();
    let lacks_sse = value & AVX != 0 && value & SSE == 0;
    let unknown = value & !cpu.model.state_components();
    if cpu.get::<u32>(reg::CX) != 0 || value & X87 == 0 || lacks_sse || unknown != 0 {
        return Err(cpu.general_protection(0));
    }
    cpu.msrs.xcr0 = value;
    Ok(())
}

impl Cpu {
    /// Returns EDX:EAX.
    fn requested_components(&self) -> u64 {
        u64::from(self.get::<u32>(reg::DX)) << 32 | u64::from(self.get::<u32>(reg::AX))
    }
}
