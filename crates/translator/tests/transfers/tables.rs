//! Descriptors and gates of all kinds, in a GDT, an LDT, an IDT and two task-state segments.

use ring3_core::memory::Memory;

use super::common::random::Random;

/// Bytes of memory.
pub(crate) const MEMORY: u64 = 1 << 20;
pub(crate) const GDT: u32 = 0x1000;
pub(crate) const LDT: u32 = 0x1800;
pub(crate) const IDT: u32 = 0x2000;
pub(crate) const TSS: u32 = 0x3000;
/// The base of segments that do not begin at 0.
pub(crate) const BASE: u32 = 0x1_0000;
/// The linear addresses of 32-bit code and of 16-bit code.
pub(crate) const CODE: [u32; 2] = [0x1_4000, 0x1_8000];
/// The linear address of far pointers.
pub(crate) const POINTERS: u32 = 0x1_2000;
/// The top of the stack, as a linear address.
pub(crate) const STACK: u32 = 0x1_f000;
pub(crate) const INNER_STACK: u32 = 0x1_e000;

const CODE_KIND: u8 = 0x9b;
const DATA_KIND: u8 = 0x93;
const LARGE: u32 = 0xc;
const BIG: u32 = 0x4;

/// Returns the bytes of a descriptor.
fn descriptor(base: u32, limit: u32, access: u8, flags: u32) -> u64 {
    let low = u64::from(limit & 0xffff) | u64::from(base & 0xff_ffff) << 16;
    let high = u64::from(access) | u64::from(limit >> 16 & 15 | flags << 4) << 8;
    low | high << 40 | u64::from(base >> 24) << 56
}

/// Returns the bytes of a gate.
fn gate(selector: u16, offset: u32, access: u8, parameters: u8) -> u64 {
    let high = offset & 0xffff_0000 | u32::from(access) << 8 | u32::from(parameters);
    u64::from(high) << 32 | u64::from(selector) << 16 | u64::from(offset & 0xffff)
}

/// The selector of a code segment, and its base.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CodeSegment {
    pub(crate) selector: u16,
    pub(crate) base: u32,
    pub(crate) is_32_bit: bool,
}

const fn code(selector: u16, base: u32, is_32_bit: bool) -> CodeSegment {
    CodeSegment { selector, base, is_32_bit }
}

/// Code segments of the supervisor and of users.
pub(crate) const CODE_SEGMENTS: [[CodeSegment; 4]; 2] = [
    [code(0x08, 0, true), code(0x28, BASE, false), code(0x48, BASE, true), code(0x14, BASE, false)],
    [code(0x1b, 0, true), code(0x3b, BASE, false), code(0x0f, BASE, false), code(0x1f, 0, true)],
];
/// A conforming code segment, and one that cannot be read.
pub(crate) const OTHER_CODE: [CodeSegment; 2] = [code(0x58, 0, true), code(0x70, BASE, false)];
/// Data segments that can be a stack, of the supervisor and of users: flat, 16-bit, 32-bit with a base, in
/// the LDT, and flat but 16-bit.
pub(crate) const STACKS: [[u16; 5]; 2] =
    [[0x10, 0x30, 0x50, 0x2c, 0xa0], [0x23, 0x43, 0xab, 0x27, 0x23]];
/// Other selectors: a read-only segment, one that grows down, one that is not present, code, system segments,
/// one beyond the table, and null selectors.
pub(crate) const OTHER_DATA: [u16; 12] =
    [0x60, 0x68, 0xb0, 0x08, 0x1b, 0x70, 0x78, 0x80, 0xb8, 0x200, 0, 3];
/// Selectors of call gates.
pub(crate) const GATES: [u16; 5] = [0x88, 0x8b, 0x93, 0x9b, 0xc3];
/// Vectors of software interrupts with gates of their own.
pub(crate) const VECTORS: [u8; 6] = [0x30, 0x31, 0x32, 0x33, 0x34, 0x35];
/// Number of descriptors of the GDT that may change.
pub(crate) const CHANGING: u32 = 25;

/// Fills the tables. `target` returns random addresses in 32-bit code or in 16-bit code.
pub(crate) fn fill(
    random: &mut Random,
    memory: &mut Memory,
    target: impl Fn(&mut Random, bool) -> u32,
) {
    let user = 0x60;
    let small = random.pick(&[0xffff, 0xffff, 0xefff]);
    let at = |random: &mut Random, segment: CodeSegment| {
        target(random, segment.is_32_bit).wrapping_sub(segment.base)
    };
    let [supervisors, users] = CODE_SEGMENTS;
    let gates = [
        gate(0x08, at(random, supervisors[0]), 0x8c, 0),
        gate(0x08, at(random, supervisors[0]), 0xec, random.below(4) as u8),
        gate(0x28, at(random, supervisors[1]), 0xe4, random.below(3) as u8),
        gate(0x1b, at(random, users[0]), 0xec, 0),
    ];
    let gdt = [
        0,
        descriptor(0, 0xfffff, CODE_KIND, LARGE),
        descriptor(0, 0xfffff, DATA_KIND, LARGE),
        descriptor(0, 0xfffff, CODE_KIND | user, LARGE),
        descriptor(0, 0xfffff, DATA_KIND | user, LARGE),
        descriptor(BASE, small, CODE_KIND, 0),
        descriptor(BASE, 0xffff, DATA_KIND, 0),
        descriptor(BASE, small, CODE_KIND | user, 0),
        descriptor(BASE, 0xffff, DATA_KIND | user, 0),
        descriptor(BASE, 0xffff, CODE_KIND, BIG),
        descriptor(BASE, 0xffff, DATA_KIND, BIG),
        descriptor(0, 0xfffff, CODE_KIND | 4, LARGE),
        descriptor(0, 0xfffff, 0x91, LARGE),
        descriptor(BASE, 0x8000, 0x97, BIG),
        descriptor(BASE, 0xffff, 0x99, 0),
        descriptor(TSS, 0x2000, 0x8b, 0),
        descriptor(LDT, 0x3f, 0x82, 0),
        gates[0],
        gates[1],
        gates[2],
        descriptor(0, 0xfffff, DATA_KIND, 0x8),
        descriptor(BASE, 0xffff, DATA_KIND | user, BIG),
        descriptor(0, 0xfffff, 0x13, LARGE),
        gate(0x08, 0, 0x0c, 0),
        gates[3],
    ];
    let ldt = [
        descriptor(0, 0xfffff, DATA_KIND | user, LARGE),
        descriptor(BASE, 0xffff, CODE_KIND | user, 0),
        descriptor(BASE, 0xffff, CODE_KIND, 0),
        descriptor(0, 0xfffff, CODE_KIND | user, LARGE),
        descriptor(0, 0xfffff, DATA_KIND | user, LARGE),
        descriptor(BASE, 0xffff, DATA_KIND, 0),
        0,
        0,
    ];
    for (table, entries) in [(GDT, &gdt[..]), (LDT, &ldt)] {
        for (address, entry) in (table..).step_by(8).zip(entries) {
            memory.write(address.into(), &entry.to_le_bytes());
        }
    }
    // Exceptions halt: their handlers are at the beginning of the 32-bit code. #GP may do more.
    let of_protection = if random.percent(60) { at(random, supervisors[0]) } else { CODE[0] };
    for vector in 0..0x20 {
        let handler = if vector == 13 { of_protection } else { CODE[0] };
        let entry = gate(0x08, handler, 0x8e, 0);
        memory.write(u64::from(IDT + vector * 8), &entry.to_le_bytes());
    }
    let kinds = [
        (supervisors[0], 0xee),
        (supervisors[0], 0xef),
        (supervisors[1], 0xe6),
        (supervisors[1], 0xee),
        (supervisors[2], 0x8f),
        (OTHER_CODE[0], 0xee),
    ];
    for (vector, (segment, access)) in VECTORS.into_iter().zip(kinds) {
        let entry = gate(segment.selector, at(random, segment), access, 0);
        memory.write(u64::from(IDT + u32::from(vector) * 8), &entry.to_le_bytes());
    }
    let inner = random.pick(&[(INNER_STACK, 0x10), (INNER_STACK - BASE, 0x30)]);
    let inner = if random.percent(70) { (INNER_STACK, 0x10) } else { inner };
    memory.write((TSS + 4).into(), &inner.0.to_le_bytes());
    memory.write((TSS + 8).into(), &u32::to_le_bytes(inner.1));
}
