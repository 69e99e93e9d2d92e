//! Addresses that wrap because a sum is beyond 4 GiB or below 0, and segments with bases.

use ring3_x86::segment::{Attributes, Segment, sreg};

use crate::machine::*;
use crate::pair::Pair;

/// The page table of the last 4 MiB, whose last page is mapped to the one at [`DATA`].
const LAST_TABLE: u32 = PAGE_TABLE + 0x1000;

#[rustfmt::skip]
const PROGRAM: &[&[u8]] = &[
    &[0xbd, 40, 0, 0, 0],                  // MOV EBP, 40
    // Each time:
    &[0xbb, 2, 0, 0, 0],                   // MOV EBX, 2
    &[0x8b, 0x43, 0xf8],                   // MOV EAX, [EBX-8]
    &[0x01, 0x43, 0xf0],                   // ADD [EBX-16], EAX
    &[0x01, 0xab, 0x00, 0xff, 0xff, 0xff], // ADD [EBX-256], EBP
    &[0xb9, 0xf0, 0xff, 0xff, 0xff],       // MOV ECX, -16
    &[0x03, 0x41, 0x20],                   // ADD EAX, [ECX+32]
    &[0x89, 0x81, 0x10, 0x01, 0, 0],       // MOV [ECX+272], EAX
    &[0xbc, 4, 0, 0, 0],                   // MOV ESP, 4
    &[0x50, 0x55, 0x51],                   // PUSH EAX; PUSH EBP; PUSH ECX
    &[0x59, 0x5a, 0x58],                   // POP ECX; POP EDX; POP EAX
    &[0x64, 0xa1, 0x10, 0, 0, 0],          // MOV EAX, FS:[16]
    &[0x64, 0x8b, 0x1d, 0xe0, 0xff, 0xff, 0xff], // MOV EBX, FS:[-32]
    &[0x65, 0xa3, 0xfc, 0xff, 0xff, 0xff], // MOV GS:[-4], EAX
    &[0x64, 0x8b, 0x51, 0x08],             // MOV EDX, FS:[ECX+8]
    &[0x4d],                               // DEC EBP
];

/// Runs the program with these bases and this limit of FS and GS, on both engines.
fn run_with(bases: [u32; 2], limit: u32) {
    let Some(mut pair) = Pair::new() else { return };
    let mut code = PROGRAM.concat();
    let back = (PROGRAM[0].len() as i32 - (code.len() + 6) as i32).to_le_bytes();
    code.extend([&[0x0f, 0x85][..], &back, &[0xf4]].concat());
    pair.each(|machine| {
        machine.enable_paging();
        machine.put_dword(PAGE_DIRECTORY + 4 * 1023, LAST_TABLE | P | RW | US);
        machine.put_dword(LAST_TABLE + 4 * 1023, DATA | P | RW | US);
        machine.put(DATA, &[0x5a; 0x1000]);
        machine.put(CODE, &code);
        for (register, base) in [sreg::FS, sreg::GS].into_iter().zip(bases) {
            let attributes = Attributes(0xc093);
            let segment = Segment::new(KERNEL_DATA, base.into(), limit, attributes);
            machine.cpu.set_segment(register, segment);
        }
    });
    pair.run_to_halt();
}

#[test]
fn sums_wrap_at_4_gib() {
    run_with([0x10, 0x20], u32::MAX);
    run_with([0xffff_fff0, 0], u32::MAX);
}

#[test]
fn segments_with_limits_are_checked() {
    run_with([0x2000, 0x3000], u32::MAX - 0xfff);
}
