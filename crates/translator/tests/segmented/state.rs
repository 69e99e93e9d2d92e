//! Processors in the modes of segmented code.

use ring3_hostcpu::FxImage;
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};
use ring3_x86::softfloat::F80;
use ring3_x86::undefined::Vendor;

use super::common::guest::registers;
use super::common::host_fpu;
use super::common::random::Random;

/// Bytes of memory.
pub(crate) const MEMORY: u64 = 1 << 20;

/// The state after a run, apart from memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    exits: Vec<Exit>,
    registers: Vec<u64>,
    numeric: FxImage,
    eip: u64,
    flags: Eflags,
    segments: Vec<Segment>,
    control: (Cr0, u64),
    instructions: u64,
}

impl Seen {
    /// Returns the state after `exits`, with only the flags `defined`.
    pub(crate) fn new(exits: &[Exit], cpu: &Cpu, defined: Eflags) -> Seen {
        Seen {
            exits: exits.to_vec(),
            registers: (reg::AX..=reg::DI).map(|number| cpu.gpr(number)).collect(),
            numeric: registers(cpu),
            eip: cpu.ip,
            flags: cpu.eflags() & defined,
            segments: (sreg::ES..=sreg::GS).map(|number| *cpu.segment(number)).collect(),
            control: (cpu.cr0(), cpu.cr2),
            instructions: cpu.instructions,
        }
    }
}

/// Returns the linear address of `offset` in CS, where there is memory.
pub(crate) fn linear(cpu: &Cpu, offset: u32) -> u32 {
    (cpu.segment(sreg::CS).base as u32).wrapping_add(offset)
}

/// How often segments and registers are such that accesses fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edges {
    Rarely,
    Often,
}

/// Returns a processor in a random mode of segmented code, with registers that are mostly offsets in its
/// segments. At EIP there is memory with room for some code.
pub(crate) fn random_cpu(random: &mut Random, edges: Edges) -> Cpu {
    let mut cpu = Cpu::new();
    cpu.vendor = Vendor::of_host();
    let mode = random.below(4);
    let is_user = mode == 1 || mode > 1 && random.percent(40);
    let privilege = if is_user { 3 } else { 0 };
    if mode > 0 {
        cpu.set_cr0(Cr0::PE);
    }
    // With IOPL 0 only privilege 0 may change IF; with IOPL 3 all code may.
    let mut flags = Eflags::from_bits_truncate(random.bits()) & (Eflags::STATUS | Eflags::IF);
    flags.set(Eflags::DF, random.percent(20));
    flags.set(Eflags::IOPL, random.percent(30));
    flags.set(Eflags::VM, mode == 1);
    cpu.set_eflags(flags);
    for register in sreg::ES..=sreg::GS {
        let segment = match mode {
            0 => real_segment(random, register, edges),
            1 => Segment::real(random.below(0xf000) as u16, 3),
            _ => protected_segment(random, register, privilege, edges),
        };
        cpu.set_segment(register, segment);
    }
    cpu.idtr = TableRegister { base: 0, limit: random.pick(&[0, 0x3ff]) };
    set_registers(random, &mut cpu, edges);
    set_numeric(random, &mut cpu, edges);
    let limit = cpu.segment(sreg::CS).limit;
    cpu.ip = random.below(limit.min(0xffff) - 0x200).into();
    if edges == Edges::Often && random.percent(10) {
        // Up to the limit, or beyond it.
        cpu.ip = (limit.min(0xffff) - random.below(4)).into();
    }
    cpu
}

/// Sets the general registers to random numbers.
pub(crate) fn set_registers(random: &mut Random, cpu: &mut Cpu, edges: Edges) {
    for register in reg::AX..=reg::DI {
        let value = if edges == Edges::Often { offset(random) } else { random.below(0x3000) };
        cpu.set_gpr(register, value.into());
    }
    if random.percent(90) {
        // A count, of which 16-bit code uses the lower half.
        let upper = if random.percent(30) { random.bits() & 0xffff_0000 } else { 0 };
        cpu.set_gpr(reg::CX, (upper | random.below(40)).into());
    }
}

/// Sets the x87, MMX and SSE registers to random numbers, and enables them at random.
fn set_numeric(random: &mut Random, cpu: &mut Cpu, edges: Edges) {
    let is_plain = edges == Edges::Rarely;
    cpu.transcendental = host_fpu::execute;
    let mut cr0 = cpu.cr0();
    cr0.set(Cr0::NE, random.percent(50));
    cr0.set(Cr0::EM, !is_plain && random.percent(5));
    cr0.set(Cr0::TS, !is_plain && random.percent(5));
    cpu.set_cr0(cr0);
    let mut cr4 = Cr4::empty();
    cr4.set(Cr4::OSFXSR, random.percent(70));
    cr4.set(Cr4::OSXMMEXCPT, random.percent(50));
    cpu.set_cr4(cr4);
    let masks = if is_plain || random.percent(60) { 0x3f } else { random.bits() as u16 & 0x3f };
    cpu.fpu.set_control(random.bits() as u16 & 0xf00 | masks);
    let exceptions = if random.percent(90) { 0 } else { 0x7f };
    cpu.fpu.set_status(random.bits() as u16 & (0x7f00 | exceptions));
    for i in 0..8 {
        let exponent = match random.below(8) {
            0 => random.bits() as u16,
            _ => 0x3ff0 + random.below(32) as u16,
        };
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&(random.next() | 1 << 63).to_le_bytes());
        bytes[8..].copy_from_slice(&exponent.to_le_bytes());
        cpu.fpu.set_st(i, F80::from_bytes(bytes));
        cpu.sse.set_xmm(i, u128::from(random.next()) << 64 | u128::from(random.next()));
    }
    let tags = random.bits() as u16;
    cpu.fpu.set_tag_word(random.pick(&[0, 0xffff, tags]));
    let masks = if is_plain || random.percent(60) { 0x1f80 } else { random.bits() & 0x1f80 };
    cpu.sse.set_mxcsr(masks | random.bits() & 0xe07f);
}

/// Returns the value of a register: mostly an offset in 64 KiB, often at the edges of it.
pub(crate) fn offset(random: &mut Random) -> u32 {
    match random.below(10) {
        0 => random.number(),
        1 => 0xfff8 + random.below(16),
        2 => random.below(8),
        3 => random.bits() & 0xffff_0000 | random.below(0x1_0000),
        4 => random.below(0x1_0000),
        _ => random.below(0x3000),
    }
}

/// Returns the contents of a segment register in real mode, which may have been loaded in protected mode
/// before.
fn real_segment(random: &mut Random, register: u8, edges: Edges) -> Segment {
    let selector = random.below(0xf000) as u16;
    let segment = Segment::real(selector, 0);
    if edges == Edges::Rarely || random.percent(75) {
        return segment;
    }
    let big = if random.percent(50) { 0x4000 } else { 0 };
    let limit = random.pick(&[0xffff, u32::MAX, 0x1_ffff, 0x2fff]);
    let writable = if register == sreg::CS || random.percent(90) { 0x93 } else { 0x91 };
    Segment::new(selector, segment.base, limit, Attributes(big | writable))
}

/// Returns the contents of a segment register in protected mode.
fn protected_segment(random: &mut Random, register: u8, privilege: u16, edges: Edges) -> Segment {
    let selector = (random.below(64) as u16) << 3 | privilege;
    let is_plain = edges == Edges::Rarely;
    let data = [0x93, 0x93, 0x93, 0x93, 0x91, 0x97];
    let kind = match register {
        sreg::CS => random.pick(&[0x9b, 0x9b, 0x99]),
        _ if is_plain || register == sreg::SS => 0x93,
        _ if random.percent(5) => return Segment::null(selector & 3),
        _ if random.percent(5) => 0x9b,
        _ => random.pick(&data),
    };
    let big = if random.percent(50) { 0x4000 } else { 0 };
    let base = if random.percent(30) { 0 } else { random.below(0xe_0000) };
    let limits = [0xffff, u32::MAX, 0xf_ffff, 0x3fff, 0x8123];
    let limit = random.pick(if is_plain { &limits[..3] } else { &limits });
    Segment::new(selector, base.into(), limit, Attributes(big | kind | privilege << 5))
}
