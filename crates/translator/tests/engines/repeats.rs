//! Repeated string instructions, which the end of a slice may stop after any iteration.

use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::segment::{Attributes, Segment, sreg};

use crate::machine::*;
use crate::pair::Pair;

const SOURCE: u32 = 0x6_0000;
const TARGET: u32 = 0x7_0000;
/// Iterations: many more than are worth executing in translated code near the end of a slice.
const COUNT: u32 = 0x5003;

/// INC EAX; the instruction; INC EAX; INC EBX; HLT
fn around(repeated: &[u8]) -> Vec<u8> {
    [&[0x40], repeated, &[0x40, 0x43, 0xf4]].concat()
}

const MOVSB: [u8; 2] = [0xf3, 0xa4];
const MOVSW: [u8; 3] = [0x66, 0xf3, 0xa5];
const STOSB: [u8; 2] = [0xf3, 0xaa];
const LODSB: [u8; 2] = [0xf3, 0xac];
const REPE_CMPSB: [u8; 2] = [0xf3, 0xa6];

fn begin(machine: &mut Machine, code: &[u8], to: u32) {
    machine.reset_processor();
    machine.enable_paging();
    for page in (SOURCE..TARGET + 0x1_0000).step_by(0x1000) {
        machine.map(page, page, P | RW | US);
    }
    for number in 0..0x4000 {
        machine.put_dword(SOURCE + number * 4, number.wrapping_mul(0x0103_0507));
    }
    machine.put(USER_CODE, code);
    machine.enter_user();
    let cpu = &mut machine.cpu;
    cpu.ip = USER_CODE.into();
    for (register, value) in
        [(reg::AX, 7), (reg::BX, 0), (reg::CX, COUNT), (reg::SI, SOURCE), (reg::DI, to)]
    {
        cpu.set_gpr(register, value.into());
    }
}

#[test]
fn slices_of_any_size() {
    let Some(mut pair) = Pair::new() else { return };
    for code in [&MOVSB[..], &MOVSW, &STOSB, &LODSB, &REPE_CMPSB] {
        for slice in [1999, 2048, 2050, 2051, 2052, 2053, 2054, 4096, 5000, COUNT.into(), 100_000] {
            pair.each(|machine| begin(machine, &around(code), TARGET));
            while pair.each(|machine| machine.run_for(slice)) == Exit::Deadline {
                pair.compare_processors();
            }
            pair.compare();
            assert_eq!(pair.tested.get(reg::BX), 1, "{code:x?} in slices of {slice}");
        }
    }
}

#[test]
fn a_fault_in_any_slice() {
    let Some(mut pair) = Pair::new() else { return };
    for (code, page) in [(&MOVSB[..], SOURCE), (&MOVSB, TARGET), (&STOSB, TARGET), (&LODSB, SOURCE)]
    {
        for (slice, missing) in [3000, 100_000].into_iter().flat_map(|s| [1, 2, 4].map(|m| (s, m)))
        {
            pair.each(|machine| {
                begin(machine, &around(code), TARGET);
                machine.map(page + missing * 0x1000, 0, 0);
            });
            while pair.each(|machine| machine.run_for(slice)) == Exit::Deadline {
                pair.compare_processors();
            }
            pair.compare();
            let exception = pair.tested.exception().expect("a page is not present");
            assert_eq!(exception.vector, 14);
            assert_eq!(pair.tested.get(reg::CX), COUNT - missing * 0x1000);
        }
    }
}

#[test]
fn code_is_written_in_any_slice() {
    let Some(mut pair) = Pair::new() else { return };
    for slice in [3000, 100_000] {
        // All but the last bytes precede the code, which is translated by then.
        let to = USER_CODE + 1 - (COUNT - 1);
        pair.each(|machine| {
            begin(machine, &around(&STOSB), TARGET);
            machine.cpu.set_gpr(reg::CX, 0);
        });
        pair.each(|machine| while machine.run_for(slice) == Exit::Deadline {});
        pair.each(|machine| {
            machine.enter_user();
            let cpu = &mut machine.cpu;
            cpu.ip = USER_CODE.into();
            for (register, value) in [(reg::AX, 0x90), (reg::CX, COUNT), (reg::DI, to)] {
                cpu.set_gpr(register, value.into());
            }
            for page in (to..USER_CODE).step_by(0x1000) {
                machine.map(page, page, P | RW | US);
            }
        });
        while pair.each(|machine| machine.run_for(slice)) == Exit::Deadline {
            pair.compare();
        }
        pair.compare();
    }
}

/// The upper halves of the count and the index registers in 16-bit code, which must not change.
const UPPER_HALVES: [(u8, u32); 3] =
    [(reg::CX, 0xffff_0000), (reg::SI, 0x1234_0000), (reg::DI, 0xfedc_0000)];

/// Begins `code` as 16-bit code, with source and destination at `offset` in their segments.
fn begin_16_bit(machine: &mut Machine, code: &[u8], offset: u32) {
    begin(machine, code, TARGET);
    enter_16_bit(machine, offset, COUNT);
}

fn enter_16_bit(machine: &mut Machine, offset: u32, count: u32) {
    machine.enter_user();
    let cpu = &mut machine.cpu;
    for (register, selector, base, access) in [
        (sreg::CS, USER_CS, USER_CODE, 0xfb),
        (sreg::SS, USER_DS, 0, 0xf3),
        (sreg::DS, USER_DS, SOURCE, 0xf3),
        (sreg::ES, USER_DS, TARGET, 0xf3),
    ] {
        let segment = Segment::new(selector, base.into(), 0xffff, Attributes(access));
        cpu.set_segment(register, segment);
    }
    cpu.ip = 0;
    for ((register, upper), value) in UPPER_HALVES.into_iter().zip([count, offset, offset]) {
        cpu.set_gpr(register, (upper | value).into());
    }
}

/// The repeated instructions of 16-bit code, with the sizes of their elements.
const IN_16_BIT: [(&[u8], u32); 7] = [
    (&[0xf3, 0xa4], 1),
    (&[0xf3, 0xa5], 2),
    (&[0xf3, 0x66, 0xa5], 4),
    (&[0xf3, 0xaa], 1),
    (&[0xf3, 0xad], 2),
    (&[0xf3, 0xa6], 1),
    (&[0xf2, 0xaf], 2),
];

#[test]
fn slices_of_any_size_in_16_bit_code() {
    let Some(mut pair) = Pair::new() else { return };
    for (code, size) in IN_16_BIT {
        // In the middle of the segments, up to their ends, and beyond them, where the offsets wrap.
        let to_end = 0x1_0000_u32.saturating_sub(COUNT * size);
        for offset in [0x24, to_end, to_end + 4] {
            for slice in [1999, 2048, 2053, 4096, 5000, COUNT.into(), 100_000] {
                pair.each(|machine| begin_16_bit(machine, &around(code), offset));
                while pair.each(|machine| machine.run_for(slice)) == Exit::Deadline {
                    pair.compare_processors();
                }
                pair.compare();
                assert_eq!(pair.tested.get(reg::BX), 1, "{code:x?} in slices of {slice}");
            }
        }
    }
}

#[test]
fn a_fault_in_16_bit_code() {
    let Some(mut pair) = Pair::new() else { return };
    let cases = [
        (&[0xf3, 0xa4][..], SOURCE),
        (&[0xf3, 0xa4], TARGET),
        (&[0xf3, 0xaa], TARGET),
        (&[0xf3, 0xac], SOURCE),
        (&[0xf3, 0xa6], TARGET),
    ];
    for (code, page) in cases {
        for (slice, missing) in [3000, 100_000].into_iter().flat_map(|s| [1, 2, 4].map(|m| (s, m)))
        {
            pair.each(|machine| {
                begin_16_bit(machine, &around(code), 0x21);
                if code[1] == 0xa6 {
                    for number in 0..0x4000 {
                        machine.put_dword(TARGET + number * 4, number.wrapping_mul(0x0103_0507));
                    }
                }
                machine.map(page + missing * 0x1000, 0, 0);
            });
            while pair.each(|machine| machine.run_for(slice)) == Exit::Deadline {
                pair.compare_processors();
            }
            pair.compare();
            let exception = pair.tested.exception().expect("a page is not present");
            assert_eq!(exception.vector, 14, "{code:x?}");
            let left = COUNT - (missing * 0x1000 - 0x21);
            assert_eq!(pair.tested.get(reg::CX), 0xffff_0000 | left, "{code:x?}");
        }
    }
}

#[test]
fn repetitions_in_16_bit_code_are_translated() {
    let Some(mut pair) = Pair::new() else { return };
    for (code, _) in IN_16_BIT {
        pair.each(|machine| begin(machine, &around(code), TARGET));
        let before = pair.counted("instructions interpreted");
        for _ in 0..100 {
            pair.each(|machine| enter_16_bit(machine, 0x40, 0x100));
            while pair.each(|machine| machine.run_for(100_000)) == Exit::Deadline {}
            pair.compare();
        }
        let interpreted = pair.counted("instructions interpreted") - before;
        assert!(interpreted < 100 * 0x100 / 4, "{interpreted} for {code:x?}");
    }
}
