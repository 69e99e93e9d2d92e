//! Repeated string instructions, which the end of a slice may stop after any iteration.

use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;

use crate::machine::*;
use crate::pair::Pair;

const SOURCE: u32 = 0x6_0000;
const TARGET: u32 = 0x7_0000;
/// Iterations, many more than are worth the translator's while.
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
        // All but the last bytes come before the code, which is translated by then.
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
