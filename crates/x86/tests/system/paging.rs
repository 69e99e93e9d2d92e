//! The rights in page tables, and the bits that the processor sets in them (SDM vol. 3, 5.6 to 5.8).

use iced_x86::{Code, Instruction, MemoryOperand};
use ring3_x86::cpu::{Cr0, Cr4};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;

use crate::common::assembler::*;
use crate::machine::*;

// Bits of entries.
const ACCESSED: u32 = 0x20;
const DIRTY: u32 = 0x40;
/// A 4 MiB page.
const LARGE: u32 = 0x80;

// Bits of error codes (SDM vol. 3, figure 5-12).
const PROTECTION: u32 = 1;
const WRITE: u32 = 2;
const USER: u32 = 4;
const RESERVED: u32 = 8;

/// The page whose entry is changed.
const PAGE: u32 = DATA;
/// The same page through the second entry of the page directory, which nothing else uses.
const HIGH: u32 = 0x40_0000 + PAGE;

fn read() -> Instruction {
    load(EAX, PAGE + 8)
}

fn write() -> Instruction {
    store(PAGE + 8, EAX)
}

/// Returns the error code of the fault, if any, that `instruction` raises at privilege 0 or 3 when the page's
/// entry has the bits `bits`.
fn access(user: bool, instruction: Instruction, bits: u32, wp: bool) -> Option<u32> {
    let code = [instruction, plain(Code::Ud2)];
    let mut machine = if user { Machine::with_user_code(&code) } else { Machine::with_code(&code) };
    machine.enable_paging();
    machine.map(PAGE, PAGE, bits);
    machine.cpu.set_cr0(Cr0::PE | Cr0::PG | if wp { Cr0::WP } else { Cr0::empty() });
    let exception = machine.run_to_exception();
    if exception.vector == vector::UD {
        return None;
    }
    assert_eq!(exception.vector, vector::PF);
    assert_eq!(machine.cpu.cr2, u64::from(PAGE + 8));
    exception.error_code
}

#[test]
fn error_codes() {
    for wp in [false, true] {
        for bits in [0, RW, US, RW | US] {
            assert_eq!(access(false, read(), bits, wp), Some(0));
            assert_eq!(access(false, write(), bits, wp), Some(WRITE));
            assert_eq!(access(true, read(), bits, wp), Some(USER));
            assert_eq!(access(true, write(), bits, wp), Some(USER | WRITE));
        }
        let forbidden = Some(PROTECTION | USER);
        let forbidden_write = Some(PROTECTION | USER | WRITE);
        assert_eq!(access(true, read(), P, wp), forbidden);
        assert_eq!(access(true, read(), P | RW, wp), forbidden);
        assert_eq!(access(true, write(), P | RW, wp), forbidden_write);
        assert_eq!(access(true, write(), P | US, wp), forbidden_write);
        assert_eq!(access(true, read(), P | US, wp), None);
        assert_eq!(access(true, write(), P | US | RW, wp), None);
        // Only WP prevents the supervisor from writing.
        let read_only = wp.then_some(PROTECTION | WRITE);
        for bits in [P, P | US] {
            assert_eq!(access(false, read(), bits, wp), None);
            assert_eq!(access(false, write(), bits, wp), read_only);
        }
    }
}

/// A value that is read to be written back must be writable.
#[test]
fn a_read_to_be_written_back_is_a_write() {
    let add = add_to_memory(PAGE + 8, EAX);
    assert_eq!(access(true, add, 0, true), Some(USER | WRITE));
    assert_eq!(access(true, add, P | US, true), Some(PROTECTION | USER | WRITE));
}

/// The rights of both levels are combined.
#[test]
fn the_directory_limits_the_table() {
    for (bits, instruction, expected) in [
        (P | RW, load(EAX, HIGH), Some(PROTECTION | USER)),
        (P | US, store(HIGH, EAX), Some(PROTECTION | USER | WRITE)),
        (RW | US, load(EAX, HIGH), Some(USER)),
        (P | US, load(EAX, HIGH), None),
    ] {
        let mut machine = Machine::with_user_code(&[instruction, plain(Code::Ud2)]);
        machine.enable_paging();
        machine.put_dword(PAGE_DIRECTORY + 4, PAGE_TABLE | bits);
        let exception = machine.run_to_exception();
        let found = (exception.vector == vector::PF).then(|| exception.error_code.unwrap());
        assert_eq!(found, expected);
    }
}

#[test]
fn fetches_fault_as_reads_do() {
    for (bits, expected) in [(0, USER), (P | RW, PROTECTION | USER)] {
        let mut machine = Machine::with_user_code(&[jmp(PAGE)]);
        machine.enable_paging();
        machine.map(PAGE, PAGE, bits);
        let exception = machine.run_to_exception();
        assert_eq!((exception.vector, exception.error_code), (vector::PF, Some(expected)));
        assert_eq!(exception.eip, PAGE, "the jump has completed");
        assert_eq!(machine.cpu.cr2, u64::from(PAGE));
    }
}

/// The processor reads its tables as a supervisor at any privilege.
#[test]
fn the_user_needs_no_right_to_the_idt() {
    let mut machine = Machine::with_user_code(&[plain(Code::Ud2)]);
    machine.enable_paging();
    for page in [GDT, IDT, TSS, HANDLERS, INNER_STACK - 4] {
        machine.map(page, page, P | RW);
    }
    assert_eq!(machine.run_to_exception().vector, vector::UD);
}

/// Returns the bits of PAGE's entry and of its directory entry after `code`; the entry had `bits` before.
fn noted(code: &[Instruction], bits: u32) -> (u32, u32) {
    let mut machine = Machine::with_code(code);
    machine.enable_paging();
    machine.cpu.set_cr0(Cr0::PE | Cr0::PG);
    machine.put_dword(PAGE_DIRECTORY + 4, PAGE_TABLE | P | RW | US);
    machine.map(PAGE, PAGE, bits);
    machine.put(PAGE, &[0xf4]); // HLT
    assert_eq!(machine.run(), Exit::Halt);
    (machine.dword(Machine::pte(PAGE)) & 0xfff, machine.dword(PAGE_DIRECTORY + 4) & 0xfff)
}

#[test]
fn accessed_and_dirty() {
    let bits = P | US;
    let directory = P | RW | US;
    let accessed = directory | ACCESSED;
    assert_eq!(noted(&[hlt()], bits), (bits, directory), "not touched");
    let read = [load(EAX, HIGH), hlt()];
    assert_eq!(noted(&read, bits), (bits | ACCESSED, accessed));
    let write = [store(HIGH, EAX), hlt()];
    assert_eq!(noted(&write, bits), (bits | ACCESSED | DIRTY, accessed));
    // The write uses the TLB entry of the read, and sets the dirty bit all the same.
    let both = [load(EAX, HIGH), store(HIGH, EAX), hlt()];
    assert_eq!(noted(&both, bits), (bits | ACCESSED | DIRTY, accessed));
    // A repeated instruction without iterations reads nothing.
    let nothing =
        [mov(EDI, STACK), store(STACK, EAX), mov(ESI, HIGH), mov(ECX, 0), rep_movsb(), hlt()];
    assert_eq!(noted(&nothing, bits), (bits, directory));
    // A fetch reads code.
    let fetch = [jmp(HIGH)];
    assert_eq!(noted(&fetch, bits), (bits | ACCESSED, accessed));
    // A comparison that fails writes back the value that it has read (SDM vol. 2, CMPXCHG).
    let at = MemoryOperand::with_displ(HIGH.into(), 4);
    let exchange = Instruction::with2(Code::Cmpxchg_rm32_r32, at, EBX).unwrap();
    let compare = [mov(EAX, 0xbad), exchange, hlt()];
    assert_eq!(noted(&compare, bits), (bits | ACCESSED | DIRTY, accessed));
    // BT only reads.
    let test = Instruction::with2(Code::Bt_rm32_imm8, at, 3).unwrap();
    assert_eq!(noted(&[test, hlt()], bits), (bits | ACCESSED, accessed));
    // Bits that are already set stay set.
    assert_eq!(noted(&read, bits | DIRTY), (bits | ACCESSED | DIRTY, accessed));
    assert_eq!(noted(&read, RW), (RW, directory), "an access that faults");
}

/// If an access to two pages faults in the second one, nothing is written to the first one, which stays
/// clean.
#[test]
fn nothing_is_written_when_the_second_page_faults() {
    let mut machine = Machine::with_code(&[mov(EAX, 0xffff_ffff), store(PAGE + 0xffe, EAX)]);
    machine.enable_paging();
    machine.map(PAGE + 0x1000, 0, 0);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.error_code), (vector::PF, Some(WRITE)));
    assert_eq!(machine.cpu.cr2, u64::from(PAGE + 0x1000));
    assert_eq!(machine.dword(PAGE + 0xffc), 0);
}

/// Makes a machine with a 4 MiB page at linear C0000000h to physical 400000h, with further bits in its entry.
fn with_large_page(code: &[Instruction], bits: u32) -> Machine {
    let mut machine = Machine::with_code(code);
    machine.enable_paging();
    machine.cpu.set_cr4(Cr4::PSE);
    machine.put_dword(LARGE_ENTRY, 0x40_0000 | P | RW | LARGE | bits);
    machine
}

const LARGE_START: u32 = 0xc000_0000;
const LARGE_ENTRY: u32 = PAGE_DIRECTORY + (LARGE_START >> 22) * 4;

#[test]
fn large_pages() {
    let code = [
        mov(EAX, 0x1122_3344),
        store(LARGE_START + 0x12_3456, EAX),
        load(EBX, LARGE_START + 0x3f_fffc),
        hlt(),
    ];
    let mut machine = with_large_page(&code, 0);
    machine.put_dword(0x7f_fffc, 0x5566_7788);
    machine.run_to_halt();
    assert_eq!(machine.dword(0x52_3456), 0x1122_3344);
    assert_eq!(machine.get(3), 0x5566_7788);
    let noted = machine.dword(LARGE_ENTRY) & (ACCESSED | DIRTY);
    assert_eq!(noted, ACCESSED | DIRTY);
}

#[test]
fn a_large_page_that_is_only_read_stays_clean() {
    let mut machine = with_large_page(&[load(EAX, LARGE_START), hlt()], 0);
    machine.run_to_halt();
    assert_eq!(machine.dword(LARGE_ENTRY) & (ACCESSED | DIRTY), ACCESSED);
}

/// Returns which of the bits 12 to 21 in a 4 MiB page's entry are reserved on `model`.
fn reserved_in_large_page(model: Model) -> Vec<u32> {
    let is_reserved = |bit: &u32| {
        let faults = [(load(EAX, LARGE_START), 0), (store(LARGE_START, EAX), WRITE)];
        faults.map(|(code, write)| {
            let mut machine = with_large_page(&[code, hlt()], 1 << *bit);
            machine.cpu.model = model;
            assert_eq!(machine.run(), Exit::Halt);
            machine.exception().is_some_and(|exception| {
                let expected = Some(PROTECTION | RESERVED | write);
                assert_eq!((exception.vector, exception.error_code), (vector::PF, expected));
                true
            })
        }) == [true; 2]
    };
    (12..22).filter(is_reserved).collect()
}

/// Address bits that do not exist are reserved, and so is the bit of a page attribute table that does not
/// exist.
#[test]
fn reserved_bits() {
    assert_eq!(reserved_in_large_page(Model::Pentium), (12..22).collect::<Vec<_>>());
    // PSE-36 makes four of them address bits 35 to 32.
    assert_eq!(reserved_in_large_page(Model::Pentium3), (17..22).collect::<Vec<_>>());
}

/// Bit 7 of a page-table entry belongs to the page attribute table; without one it is reserved while CR4.PSE
/// is set.
#[test]
fn the_attribute_bit_without_a_table_is_reserved() {
    for (model, cr4, expected) in [
        (Model::Pentium, Cr4::PSE, Some(PROTECTION | RESERVED)),
        (Model::Pentium, Cr4::empty(), None),
        (Model::Pentium3, Cr4::PSE, None),
    ] {
        let mut machine = Machine::with_code(&[read(), hlt()]);
        machine.enable_paging();
        machine.cpu.model = model;
        machine.cpu.set_cr4(cr4);
        machine.map(PAGE, PAGE, P | RW | LARGE);
        assert_eq!(machine.run(), Exit::Halt);
        assert_eq!(machine.exception().and_then(|exception| exception.error_code), expected);
    }
}

/// PSE-36: bits 16 to 13 of a 4 MiB page's entry are bits 35 to 32 of its address.
#[test]
fn large_pages_past_4_gib() {
    let mut machine = with_large_page(&[load(EAX, LARGE_START + 0x10_0004), hlt()], 0xa << 13);
    machine.run_to_halt();
    let address = 0xa_0050_0004;
    assert!(matches!(machine.accesses[..], [Exit::MmioRead { address: at, .. }] if at == address));
}

/// Without CR4.PSE the bit has no meaning: the entry is that of a page table.
#[test]
fn without_pse_all_pages_are_small() {
    let mut machine = Machine::with_code(&[load(EAX, LARGE_START + DATA), hlt()]);
    machine.enable_paging();
    machine.put_dword(LARGE_ENTRY, PAGE_TABLE | P | RW | LARGE);
    machine.put_dword(DATA, 77);
    machine.run_to_halt();
    assert_eq!(machine.get(0), 77);
}
