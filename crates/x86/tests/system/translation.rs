//! How long the processor keeps a translation (SDM vol. 3, 5.10).
//!
//! A processor may drop a translation at any time. So the tests check that it is dropped where software
//! relies on that. They check that it is kept only for global pages, because nothing else shows that these
//! differ from other pages.

use iced_x86::{Code, Instruction};
use ring3_x86::cpu::{Cr0, Cr4, reg};

use crate::common::assembler::*;
use crate::machine::*;

/// The page that is mapped first to [`OLD`] and then to [`NEW`].
const PAGE: u32 = DATA;
const OLD: u32 = 0x5_0000;
const NEW: u32 = 0x6_0000;
/// A page-table entry's G bit.
const GLOBAL: u32 = 0x100;
const LARGE: u32 = 0x80;

/// Returns EBX after `code`: 1 if it was read through the old mapping, 2 if through the new one.
fn read_by(bits: u32, cr4: Cr4, code: &[Instruction]) -> u32 {
    let mut machine = Machine::with_code(code);
    machine.enable_paging();
    machine.cpu.set_cr4(cr4);
    machine.put_dword(OLD, 1);
    machine.put_dword(NEW, 2);
    machine.map(PAGE, OLD, P | RW | bits);
    machine.run_to_halt();
    machine.get(reg::BX)
}

/// Returns code that reads the page, maps it anew, executes `then`, and reads it again.
fn remapped(bits: u32, then: &[Instruction]) -> Vec<Instruction> {
    let mut code =
        vec![load(EBX, PAGE), mov(EAX, NEW | P | RW | bits), store(Machine::pte(PAGE), EAX)];
    code.extend(then);
    code.extend([load(EBX, PAGE), hlt()]);
    code
}

#[test]
fn invlpg_forgets_the_page() {
    for bits in [0, GLOBAL] {
        assert_eq!(read_by(bits, Cr4::PGE, &remapped(bits, &[invlpg(PAGE + 0xabc)])), 2);
    }
}

#[test]
fn a_load_of_cr3_forgets_all_but_global_pages() {
    let reload = [from_control(ECX, CR3), to_control(CR3, ECX)];
    assert_eq!(read_by(0, Cr4::PGE, &remapped(0, &reload)), 2);
    assert_eq!(read_by(GLOBAL, Cr4::empty(), &remapped(GLOBAL, &reload)), 2, "without PGE");
    assert_eq!(read_by(GLOBAL, Cr4::PGE, &remapped(GLOBAL, &reload)), 1);
}

/// Linux drops global pages in this way.
#[test]
fn changing_pge_forgets_everything() {
    let pge = Cr4::PGE.bits();
    let off_and_on = [mov(ECX, 0), to_control(CR4, ECX), mov(ECX, pge), to_control(CR4, ECX)];
    assert_eq!(read_by(GLOBAL, Cr4::PGE, &remapped(GLOBAL, &off_and_on)), 2);
}

#[test]
fn turning_paging_off_and_on_forgets_everything() {
    let (on, off) = (Cr0::PE | Cr0::PG, Cr0::PE);
    let off_and_on =
        [mov(ECX, off.bits()), to_control(CR0, ECX), mov(ECX, on.bits()), to_control(CR0, ECX)];
    assert_eq!(read_by(0, Cr4::empty(), &remapped(0, &off_and_on)), 2);
}

/// INVLPG drops all of a large page, by whatever addresses it was accessed.
#[test]
fn invlpg_forgets_a_large_page() {
    let large = 0xc000_0000;
    let entry = PAGE_DIRECTORY + (large >> 22) * 4;
    let code = [
        load(EBX, large + 0x5000),
        mov(EAX, 0x80_0000 | P | RW | LARGE),
        store(entry, EAX),
        invlpg(large + 0x20_0000),
        load(EBX, large + 0x5000),
        hlt(),
    ];
    let mut machine = Machine::with_code(&code);
    machine.enable_paging();
    machine.cpu.set_cr4(Cr4::PSE);
    machine.put_dword(entry, 0x40_0000 | P | RW | LARGE);
    machine.put_dword(0x40_5000, 1);
    machine.put_dword(0x80_5000, 2);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::BX), 2);
}

/// Code that was decoded at the old place is not executed.
#[test]
fn invlpg_forgets_code() {
    let code = [
        call(PAGE),
        mov(EAX, NEW | P | RW),
        store(Machine::pte(PAGE), EAX),
        invlpg(PAGE),
        call(PAGE),
        hlt(),
    ];
    let mut machine = Machine::with_code(&code);
    machine.enable_paging();
    let ret = plain(Code::Retnd);
    machine.code(OLD, &[mov(EBX, 1), ret]);
    machine.code(NEW, &[mov(EBX, 2), ret]);
    machine.map(PAGE, OLD, P | RW);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::BX), 2);
}
