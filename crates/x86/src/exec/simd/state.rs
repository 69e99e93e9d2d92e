//! The state as a whole (SDM vol. 1, 9.6.3, 10.5, 11.6.6): EMMS, FXSAVE, FXRSTOR, LDMXCSR, STMXCSR; and the
//! instructions for the order and caching of accesses, which are always in order and never cached here.

use ring3_core::memory::Memory;

use super::Vector;
use super::vex::Xmm;
use crate::cpu::{Cpu, Cr0, Cr4};
use crate::decode::Op;
use crate::exception::{Fault, Stopped, vector};
use crate::exec::x87::{read_bytes, write_bytes};
use crate::exec::{Done, Mem, Place};
use crate::fpu::{Environment, Fpu};
use crate::softfloat::F80;
use crate::sse::MXCSR_MASK;
use crate::table::{Rows, plain};

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [Emms], emms);
    plain!(rows, [Fxsave_m512byte], fxsave::<false>);
    plain!(rows, [Fxsave64_m512byte], fxsave::<true>);
    plain!(rows, [Fxrstor_m512byte], fxrstor::<false>);
    plain!(rows, [Fxrstor64_m512byte], fxrstor::<true>);
    plain!(rows, [Ldmxcsr_m32], ldmxcsr::<u128>);
    plain!(rows, [VEX_Vldmxcsr_m32], ldmxcsr::<Xmm>);
    plain!(rows, [Stmxcsr_m32], stmxcsr::<u128>);
    plain!(rows, [VEX_Vstmxcsr_m32], stmxcsr::<Xmm>);
    plain!(rows, [Clflush_m8], clflush);
    plain!(rows, [Prefetchnta_m8 Prefetcht0_m8 Prefetcht1_m8 Prefetcht2_m8], nothing);
    plain!(rows, [Lfence Lfence_E9 Lfence_EA Lfence_EB Lfence_EC Lfence_ED Lfence_EE Lfence_EF],
        nothing);
    plain!(rows, [Mfence Mfence_F1 Mfence_F2 Mfence_F3 Mfence_F4 Mfence_F5 Mfence_F6 Mfence_F7],
        nothing);
    plain!(rows, [Sfence Sfence_F9 Sfence_FA Sfence_FB Sfence_FC Sfence_FD Sfence_FE Sfence_FF],
        nothing);
}

/// Does nothing, for prefetches and fences: there is no cache, and accesses happen in order.
fn nothing(_: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    Ok(())
}

fn emms(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    u64::begin(cpu)?;
    cpu.fpu.leave_mmx();
    Ok(())
}

fn ldmxcsr<V: Vector>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    V::begin(cpu)?;
    let value = Mem::read(cpu, memory, op)?;
    require_valid_mxcsr(cpu, value)?;
    cpu.sse.set_mxcsr(value);
    Ok(())
}

fn stmxcsr<V: Vector>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    V::begin(cpu)?;
    Mem::write(cpu, memory, op, cpu.sse.mxcsr())
}

/// Raises #GP(0) if a reserved bit of MXCSR would be set.
pub(super) fn require_valid_mxcsr(cpu: &mut Cpu, value: u32) -> Done {
    if value & !MXCSR_MASK == 0 { Ok(()) } else { Err(cpu.general_protection(0)) }
}

/// Performs CLFLUSH, which faults in the same way as the read of a byte.
fn clflush(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    Mem::read::<u8>(cpu, memory, op).map(|_| ())
}

/// The image of FXSAVE (SDM vol. 1, table 10-2).
pub(super) mod image {
    use std::ops::Range;

    /// Size of the whole image.
    pub(in crate::exec::simd) const BYTES: usize = 512;
    /// The environment of the x87: FCW, FSW, FTW (one byte), FOP, FIP, FCS, FDP, FDS.
    pub(in crate::exec::simd) const ENVIRONMENT: Range<usize> = 0..24;
    /// FIP and FDP of 64 bits, in the places of FIP and FCS, and of FDP and FDS.
    pub(in crate::exec::simd) const LONG_IP: Range<usize> = 8..16;
    pub(in crate::exec::simd) const LONG_DP: Range<usize> = 16..24;
    pub(in crate::exec::simd) const MXCSR: Range<usize> = 24..28;
    pub(in crate::exec::simd) const MXCSR_MASK: Range<usize> = 28..32;
    /// ST(0) to ST(7), each in 16 bytes.
    pub(in crate::exec::simd) const ST: Range<usize> = 32..160;
    /// XMM0 to XMM7.
    pub(in crate::exec::simd) const XMM: Range<usize> = 160..288;
    /// XMM8 to XMM15, in 64-bit mode.
    pub(in crate::exec::simd) const HIGH_XMM: Range<usize> = 288..416;
    /// Number of bytes that are written. The rest is reserved, or belongs to software.
    pub(in crate::exec::simd) const WRITTEN: usize = 288;
    /// Number of bytes that are written in 64-bit mode.
    pub(in crate::exec::simd) const WRITTEN_IN_64_BIT_MODE: usize = 416;
    /// Number of bytes that are written without SSE.
    pub(in crate::exec::simd) const WRITTEN_WITHOUT_SSE: usize = 160;
}

/// Converts a tag word, with two bits for each register, to the abridged form, with one bit: not empty.
fn abridged(tags: u32) -> u8 {
    (0..8).fold(0, |in_use, number| in_use | u8::from(tags >> (2 * number) & 3 != 3) << number)
}

/// Converts an abridged tag word to a full one, as far as it says which registers are empty.
fn unabridged(in_use: u8) -> u32 {
    (0..8)
        .filter(|number| in_use >> number & 1 == 0)
        .fold(0, |tags, number| tags | 3 << (2 * number))
}

/// Checks for #NM and #GP of FXSAVE and FXRSTOR. Returns the offset of the image in its segment.
fn begin(cpu: &mut Cpu, op: &Op) -> Result<u64, Stopped> {
    if cpu.cr0().intersects(Cr0::EM | Cr0::TS) {
        return Err(cpu.fault(Fault::new(vector::NM)));
    }
    let offset = op.effective_address(cpu);
    if cpu.linear(cpu.view(op.segment), offset) & 15 != 0 {
        return Err(cpu.general_protection(0));
    }
    Ok(offset)
}

/// Performs FXSAVE, or FXSAVE64, whose addresses have 64 bits. Without CR4.OSFXSR the SSE registers are left
/// out; the manual leaves this to the processor.
fn fxsave<const LONG: bool>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let offset = begin(cpu, op)?;
    cpu.check_writable(memory, op.segment, offset, image::BYTES)?;
    let image = whole_image::<LONG>(cpu);
    if cpu.cr4().contains(Cr4::OSFXSR) && cpu.is_in_64_bit_mode() {
        write_bytes(cpu, memory, op, image)
    } else if cpu.cr4().contains(Cr4::OSFXSR) {
        let mut written = [0; image::WRITTEN];
        written.copy_from_slice(&image[..image::WRITTEN]);
        write_bytes(cpu, memory, op, written)
    } else {
        let mut without_sse = [0; image::WRITTEN_WITHOUT_SSE];
        without_sse.copy_from_slice(&image[..image::WRITTEN_WITHOUT_SSE]);
        without_sse[image::MXCSR.start..image::MXCSR_MASK.end].fill(0);
        write_bytes(cpu, memory, op, without_sse)
    }
}

fn fxrstor<const LONG: bool>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu, op)?;
    let image: [u8; image::BYTES] = read_bytes(cpu, memory, op)?;
    if cpu.cr4().contains(Cr4::OSFXSR) {
        require_valid_mxcsr(cpu, word(&image, image::MXCSR.start))?;
        cpu.set_sse_image(&image);
        if cpu.is_in_64_bit_mode() {
            set_xmm(cpu, 8, &image[image::HIGH_XMM]);
        }
    }
    restore_x87::<LONG>(cpu, &image);
    Ok(())
}

/// Returns the image with all registers, and with addresses of 64 bits if `LONG`.
pub(super) fn whole_image<const LONG: bool>(cpu: &Cpu) -> [u8; image::WRITTEN_IN_64_BIT_MODE] {
    let mut image = [0; image::WRITTEN_IN_64_BIT_MODE];
    image[..image::WRITTEN].copy_from_slice(&cpu.numeric_image());
    if LONG {
        let (ip, dp) = cpu.numeric_offsets();
        image[image::LONG_IP].copy_from_slice(&ip.to_le_bytes());
        image[image::LONG_DP].copy_from_slice(&dp.to_le_bytes());
    }
    for (place, number) in image[image::HIGH_XMM].chunks_mut(16).zip(8..) {
        place.copy_from_slice(&cpu.sse.xmm(number).to_le_bytes());
    }
    image
}

/// Sets the x87 registers to those of an image, in which addresses have 64 bits if `LONG`.
pub(super) fn restore_x87<const LONG: bool>(cpu: &mut Cpu, image: &[u8; image::BYTES]) {
    cpu.set_x87_image(image);
    if LONG {
        let long = |at| u64::from(word(image, at)) | u64::from(word(image, at + 4)) << 32;
        cpu.fpu.forget_selectors();
        cpu.fpu.set_offsets(long(image::LONG_IP.start), long(image::LONG_DP.start));
    }
}

/// Sets the XMM registers from number `first` on to those in a part of an image.
pub(super) fn set_xmm(cpu: &mut Cpu, first: u8, part: &[u8]) {
    for (place, number) in part.chunks_exact(16).zip(first..) {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(place);
        cpu.sse.set_xmm(number, u128::from_le_bytes(bytes));
    }
}

/// Returns the doubleword at `at` of an image.
pub(super) fn word(image: &[u8; image::BYTES], at: usize) -> u32 {
    u32::from_le_bytes([image[at], image[at + 1], image[at + 2], image[at + 3]])
}

impl Cpu {
    /// Returns the state of the x87 as instructions store it and as it is saved: see [`Vendor::Amd`](crate::undefined::Vendor::Amd).
    pub(crate) fn stored_fpu(&self) -> Fpu {
        let mut fpu = self.fpu.clone();
        fpu.forget_access();
        if self.vendor.is_amd() && !fpu.has_pending_exception() {
            fpu.forget_instruction();
        }
        fpu
    }

    /// Returns the x87 and SSE registers as FXSAVE writes them outside 64-bit mode (SDM vol. 1, table 10-2).
    pub fn numeric_image(&self) -> [u8; image::WRITTEN] {
        let mut image = [0; image::WRITTEN];
        let [control, status, tags, ip, code, dp, data] = self.stored_fpu().environment(true);
        let words = [
            control & 0xffff | status << 16,
            u32::from(abridged(tags)) | code & 0xffff_0000,
            ip,
            code & 0xffff,
            dp,
            data & 0xffff,
        ];
        for (place, word) in image[image::ENVIRONMENT].chunks_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        image[image::MXCSR].copy_from_slice(&self.sse.mxcsr().to_le_bytes());
        image[image::MXCSR_MASK].copy_from_slice(&MXCSR_MASK.to_le_bytes());
        for (place, i) in image[image::ST].chunks_mut(16).zip(0..) {
            place[..10].copy_from_slice(&self.fpu.content(i).to_bytes());
        }
        for (place, number) in image[image::XMM].chunks_mut(16).zip(0..) {
            place.copy_from_slice(&self.sse.xmm(number).to_le_bytes());
        }
        image
    }

    /// Returns the offsets of the last x87 instruction and of its operand. [`Cpu::numeric_image`] has only the
    /// lower halves of those that 64-bit code has left.
    pub fn numeric_offsets(&self) -> (u64, u64) {
        self.stored_fpu().offsets()
    }

    /// Sets these offsets, and leaves their selectors alone.
    pub fn set_numeric_offsets(&mut self, instruction: u64, operand: u64) {
        self.fpu.set_offsets(instruction, operand);
    }

    /// Sets the SSE registers to those of an FXSAVE image. Bits of MXCSR that do not exist stay clear.
    pub fn set_sse_image(&mut self, image: &[u8; image::BYTES]) {
        self.sse.set_mxcsr(word(image, image::MXCSR.start));
        set_xmm(self, 0, &image[image::XMM]);
    }

    /// Sets the x87 registers to those of an FXSAVE image.
    pub fn set_x87_image(&mut self, image: &[u8; image::BYTES]) {
        let word = |at| word(image, at);
        let tags = unabridged(image[4]);
        let environment: Environment = [
            word(0) & 0xffff,
            word(0) >> 16,
            tags,
            word(8),
            word(12) & 0xffff | word(4) & 0xffff_0000,
            word(16),
            word(20) & 0xffff,
        ];
        self.fpu.set_environment(environment, true);
        for (place, i) in image[image::ST].chunks(16).zip(0..) {
            let mut bytes = [0; 10];
            bytes.copy_from_slice(&place[..10]);
            self.fpu.set_st(i, F80::from_bytes(bytes));
        }
        // Setting a register marks it as not empty, so the tags are set last.
        self.fpu.set_tag_word(tags as u16);
    }
}
