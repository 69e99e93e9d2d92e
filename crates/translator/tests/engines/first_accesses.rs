//! Memory that a program accesses for the first time, page after page. Some pages are not present yet. Others
//! read as zeros before the program writes to them: systems map a single page for all such memory, and give
//! each page a frame of its own at the first write. The interpreter executes some instructions after such an
//! access.

use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;

use crate::common::assembler::jmp;
use crate::machine::*;
use crate::pair::Pair;

/// Address of pages in a row, which are all mapped to the page of zeros at first.
const ROW: u32 = 0x10_0000;
const PAGES: u32 = 16;
const ZEROS: u32 = 0x5_0000;
/// Distance from the pages in the row to the frames that replace the page of zeros.
const DISTANCE: u32 = 0x10_0000;
/// Numbers of instructions between the read and the write. With some of them the interpreter comes to the
/// write, with some it does so only while one page follows the other, and with some it does not.
const BETWEEN: [u32; 14] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 20, 42, 47, 48, 90];
/// Page-table entries of the pages in the row: the page of zeros, and not present.
const ENTRIES: [(u32, u32); 2] = [(ZEROS, P | US), (0, 0)];

/// MOV EAX, [EBX]; INC ECX, `between` times; MOV [EBX], ECX; MOV EDX, [EBX]; ADD EBX, 1000h; DEC ESI; JNZ to
/// the first; HLT, which raises #GP in user code.
fn user_code(between: u32) -> Vec<u8> {
    let body = [
        &[0x8b, 0x03][..],
        &vec![0x41; between as usize],
        &[0x89, 0x0b, 0x8b, 0x13, 0x81, 0xc3, 0, 0x10, 0, 0, 0x4e],
    ]
    .concat();
    let back = -(body.len() as i8 + 2);
    [&body[..], &[0x75, back as u8, 0xf4]].concat()
}

/// About the number of instructions in the handler where signals are counted; a system's handler takes as
/// many.
const HANDLER: u32 = 2000;

/// The handler of page faults: PUSHAD; MOV ECX, `delay`; LOOP to itself; MOV EAX, CR2; AND EAX, FFFFF000h;
/// LEA ECX, [EAX+DISTANCE+7]; SHR EAX, 10; MOV [EAX+PAGE_TABLE], ECX; MOV EAX, CR2; INVLPG [EAX]; POPAD; ADD
/// ESP, 4; IRETD.
fn handler_code(delay: u32) -> Vec<u8> {
    [
        &[0x60, 0xb9][..],
        &delay.to_le_bytes(),
        &[0xe2, 0xfe, 0x0f, 0x20, 0xd0, 0x25, 0, 0xf0, 0xff, 0xff, 0x8d, 0x88],
        &(DISTANCE | P | RW | US).to_le_bytes(),
        &[0xc1, 0xe8, 10, 0x89, 0x88],
        &PAGE_TABLE.to_le_bytes(),
        &[0x0f, 0x20, 0xd0, 0x0f, 0x01, 0x38, 0x61, 0x83, 0xc4, 0x04, 0xcf],
    ]
    .concat()
}

fn begin(machine: &mut Machine, between: u32, (frame, bits): (u32, u32), delay: u32) {
    machine.reset_processor();
    machine.enable_paging();
    for page in 0..PAGES {
        machine.map(ROW + page * 0x1000, frame, bits);
        machine.put(ROW + DISTANCE + page * 0x1000, &[0; 4]);
    }
    machine.put(CODE, &handler_code(delay));
    machine.code(handler(14), &[jmp(CODE)]);
    machine.put(USER_CODE, &user_code(between));
    machine.enter_user();
    for (register, value) in [(reg::BX, ROW), (reg::CX, 1), (reg::SI, PAGES)] {
        machine.cpu.set_gpr(register, value.into());
    }
}

#[test]
fn memory_is_accessed_for_the_first_time() {
    let Some(mut pair) = Pair::new() else { return };
    let cases = ENTRIES.into_iter().flat_map(|entry| BETWEEN.map(|between| (entry, between)));
    for (entry, between) in cases {
        for slice in [1, 2, 3, 5, 7, 1000] {
            pair.each(|machine| begin(machine, between, entry, 1));
            while pair.each(|machine| machine.run_for(slice)) == Exit::Deadline {
                pair.compare_processors();
            }
            pair.compare();
            assert_eq!(pair.tested.exception().map(|exception| exception.vector), Some(13));
            let last = ROW + DISTANCE + (PAGES - 1) * 0x1000;
            assert_eq!(pair.tested.dword(last), 1 + between * PAGES);
        }
    }
}

/// Returns the number of signals that the program takes.
fn signals(pair: &mut Pair, between: u32, entry: (u32, u32)) -> u64 {
    // The code is translated by then.
    [(); 2].map(|()| {
        pair.each(|machine| begin(machine, between, entry, HANDLER));
        let before = pair.counted("signals");
        pair.run_to_halt();
        pair.counted("signals") - before
    })[1]
}

#[test]
fn a_write_soon_after_the_read_raises_no_signal_of_its_own() {
    let Some(mut pair) = Pair::new() else { return };
    let [soon, late] = [2, 90].map(|between| signals(&mut pair, between, ENTRIES[0]));
    assert!(soon + u64::from(PAGES / 2) < late, "{soon} signals, {late} where it writes later");
}

#[test]
fn page_after_page_is_accessed_without_signals() {
    let Some(mut pair) = Pair::new() else { return };
    let [soon, late] = [2, 90].map(|between| signals(&mut pair, between, ENTRIES[1]));
    assert!(soon + u64::from(PAGES / 2) < late, "{soon} signals, {late} where pages come later");
}
