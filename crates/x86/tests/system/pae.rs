//! PAE paging, execute-disable, and physical addresses of 36 bits (SDM vol. 3, 5.3 to 5.7).

use iced_x86::{Code, Instruction};
use ring3_x86::cpu::{Cpu, Cr0, Cr4};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;

use crate::common::assembler::*;
use crate::machine::*;

// Bits of entries.
const ACCESSED: u64 = 0x20;
const DIRTY: u64 = 0x40;
const LARGE: u64 = 0x80;
/// All rights for user and supervisor.
const ALL: u64 = 7;
const NO_EXECUTE: u64 = 1 << 63;

// Bits of error codes (SDM vol. 3, figure 5-12).
const PROTECTION: u32 = 1;
const WRITE: u32 = 2;
const USER: u32 = 4;
const RESERVED: u32 = 8;
const FETCH: u32 = 16;

/// The page-directory-pointer table, the page directories of the first and the third GiB, and the page table
/// of the first 2 MiB.
const POINTERS: u32 = 0xa000;
const LOW_DIRECTORY: u32 = 0xb000;
const HIGH_DIRECTORY: u32 = 0xc000;
const TABLE: u32 = 0xd000;

/// The page whose entry is changed.
const PAGE: u32 = DATA;
const PTE: u32 = TABLE + (PAGE >> 12) * 8;
/// The mapping of 2 MiB at linear 80200000h to physical 400000h.
const HIGH: u32 = 0x8020_0000;
const HIGH_PDE: u32 = HIGH_DIRECTORY + 8;
/// The pointer-table entry of the third GiB.
const HIGH_POINTER: u32 = POINTERS + 2 * 8;

fn put_entry(machine: &mut Machine, address: u32, entry: u64) {
    machine.put(address, &entry.to_le_bytes());
}

fn entry(machine: &Machine, address: u32) -> u64 {
    u64::from(machine.dword(address)) | u64::from(machine.dword(address + 4)) << 32
}

/// Returns code that turns PAE paging on.
fn turning_on() -> [Instruction; 6] {
    [
        mov(EAX, POINTERS),
        to_control(CR3, EAX),
        mov(EAX, Cr4::PAE.bits()),
        to_control(CR4, EAX),
        mov(EAX, (Cr0::PE | Cr0::PG | Cr0::WP).bits()),
        to_control(CR0, EAX),
    ]
}

/// Makes a machine with tables that map the first 2 MiB to themselves, and code that turns paging on and
/// continues with `code`.
fn with_tables(model: Model, code: &[Instruction]) -> Machine {
    let mut machine = Machine::with_code(&[&turning_on()[..], code].concat());
    machine.cpu.model = model;
    put_entry(&mut machine, POINTERS, u64::from(LOW_DIRECTORY) | 1);
    put_entry(&mut machine, HIGH_POINTER, u64::from(HIGH_DIRECTORY) | 1);
    put_entry(&mut machine, LOW_DIRECTORY, u64::from(TABLE) | ALL);
    put_entry(&mut machine, HIGH_PDE, 0x40_0000 | LARGE | ALL);
    for page in 0..512 {
        put_entry(&mut machine, TABLE + 8 * page, u64::from(page) << 12 | ALL);
    }
    machine
}

/// Makes a machine with these tables and with paging on already.
fn with_pae(code: &[Instruction]) -> Machine {
    let mut machine = with_tables(Model::Max, code);
    assert_eq!(machine.run_for(turning_on().len() as u64), Exit::Deadline);
    machine
}

/// Runs to a page fault at `address`, and returns its error code.
fn page_fault(machine: &mut Machine, address: u32) -> u32 {
    let exception = machine.run_to_exception();
    assert_eq!(exception.vector, vector::PF);
    assert_eq!(machine.cpu.cr2, u64::from(address));
    exception.error_code.unwrap()
}

#[test]
fn small_and_large_pages() {
    let code = [
        mov(EAX, 0x1122_3344),
        store(PAGE + 8, EAX),
        store(HIGH + 0x12_3456, EAX),
        load(EBX, HIGH + 0x1f_fffc),
        hlt(),
    ];
    let mut machine = with_pae(&code);
    put_entry(&mut machine, PTE, 0x5_0000 | ALL);
    machine.put_dword(0x5f_fffc, 77);
    machine.run_to_halt();
    assert_eq!(machine.dword(0x5_0008), 0x1122_3344);
    assert_eq!(machine.dword(0x52_3456), 0x1122_3344);
    assert_eq!(machine.get(3), 77);
    let noted = ACCESSED | DIRTY;
    assert_eq!(entry(&machine, PTE) & noted, noted);
    assert_eq!(entry(&machine, HIGH_PDE) & noted, noted);
    assert_eq!(entry(&machine, LOW_DIRECTORY) & noted, ACCESSED);
    // The entries of the first level have no such bits.
    assert_eq!(entry(&machine, POINTERS) & noted, 0);
}

#[test]
fn missing_entries_of_each_level() {
    let code = |address| [load(EAX, address), hlt()];
    let mut machine = with_pae(&code(0xc000_0000));
    assert_eq!(page_fault(&mut machine, 0xc000_0000), 0);
    let mut machine = with_pae(&code(HIGH + 0x20_0000));
    assert_eq!(page_fault(&mut machine, HIGH + 0x20_0000), 0);
    let mut machine = with_pae(&[store(PAGE, EAX)]);
    put_entry(&mut machine, PTE, 0);
    assert_eq!(page_fault(&mut machine, PAGE), WRITE);
}

#[test]
fn reserved_bits() {
    let reserved = |entry_address, address, value| {
        let mut machine = with_pae(&[store(address, EAX), hlt()]);
        put_entry(&mut machine, entry_address, value);
        assert_eq!(page_fault(&mut machine, address), PROTECTION | RESERVED | WRITE);
    };
    let (pde, pte) = (0x40_0000 | LARGE | ALL, u64::from(PAGE) | ALL);
    for bit in (13..=20).chain(36..=63) {
        reserved(HIGH_PDE, HIGH, pde | 1 << bit);
    }
    for bit in 36..=63 {
        reserved(PTE, PAGE, pte | 1 << bit);
        reserved(LOW_DIRECTORY + 8, 0x20_0000, u64::from(TABLE) | ALL | 1 << bit);
    }
}

/// A reserved bit in the page directory has priority over a page-table entry that is not present.
#[test]
fn reserved_bits_are_met_on_the_way() {
    let mut machine = with_pae(&[load(EAX, 0x20_0000)]);
    put_entry(&mut machine, LOW_DIRECTORY + 8, 0x6_0000 | ALL | 1 << 40);
    assert_eq!(page_fault(&mut machine, 0x20_0000), PROTECTION | RESERVED);
}

/// Without a page attribute table its bits are reserved; `max` has such a table.
#[test]
fn memory_types_are_not_reserved() {
    let mut machine = with_pae(&[load(EAX, PAGE), load(EBX, HIGH), hlt()]);
    put_entry(&mut machine, PTE, u64::from(PAGE) | ALL | 1 << 7);
    put_entry(&mut machine, HIGH_PDE, 0x40_0000 | LARGE | ALL | 1 << 12);
    machine.run_to_halt();
}

#[test]
fn reserved_bits_of_pointers_are_general_protection() {
    for bit in [1, 2, 5, 6, 7, 8, 36, 62, 63] {
        // The check at the MOV to CR0 that turns paging on.
        let mut machine = with_tables(Model::Max, &[hlt()]);
        put_entry(&mut machine, HIGH_POINTER, u64::from(HIGH_DIRECTORY) | 1 | 1 << bit);
        let exception = machine.run_to_exception();
        assert_eq!((exception.vector, exception.error_code), (vector::GP, Some(0)));
        assert!(!machine.cpu.cr0().contains(Cr0::PG));
        // The check at a MOV to CR3, which keeps the old pointers.
        let mut machine = with_pae(&[to_control(CR3, EBX)]);
        put_entry(&mut machine, HIGH_POINTER, u64::from(HIGH_DIRECTORY) | 1 | 1 << bit);
        machine.cpu.set_gpr(3, u64::from(POINTERS) | 8);
        assert_eq!(machine.run_to_exception().vector, vector::GP);
        assert_eq!(machine.cpu.cr3(), u64::from(POINTERS));
        // Bits in an entry that is not present have no meaning.
        let mut machine = with_pae(&[to_control(CR3, EBX), hlt()]);
        put_entry(&mut machine, HIGH_POINTER, 1 << bit);
        machine.cpu.set_gpr(3, POINTERS.into());
        machine.run_to_halt();
    }
}

/// The first level is in registers: a change in memory takes effect at the next load.
#[test]
fn pointers_are_loaded_with_the_control_registers() {
    let change = [mov(EAX, 0), store(HIGH_POINTER, EAX), invlpg(HIGH), load(EBX, HIGH)];
    let mut machine = with_pae(&[&change[..], &[hlt()]].concat());
    machine.run_to_halt();
    let pge = (Cr4::PAE | Cr4::PGE).bits();
    let uncached = (Cr0::PE | Cr0::PG | Cr0::CD).bits();
    for load_again in [
        [from_control(EAX, CR3), to_control(CR3, EAX)],
        [mov(EAX, pge), to_control(CR4, EAX)],
        [mov(EAX, uncached), to_control(CR0, EAX)],
    ] {
        let mut machine = with_pae(&[&change[..], &load_again, &[load(EBX, HIGH)]].concat());
        assert_eq!(page_fault(&mut machine, HIGH), 0);
    }
}

#[test]
fn the_pointers_are_saved() {
    let mut machine = with_pae(&[load(EBX, HIGH), hlt()]);
    put_entry(&mut machine, HIGH_POINTER, 0);
    let saved = machine.cpu.save();
    machine.cpu = Cpu::new();
    machine.cpu.restore(&saved).unwrap();
    machine.run_to_halt();
}

/// Makes a machine with a RET at [`PAGE`], called at privilege 0, or jumped to at privilege 3. The page and
/// its directory have the bits `page` and `directory`.
fn fetch_from(user: bool, page: u64, directory: u64) -> Machine {
    let mut machine = with_pae(&[load(EBX, PAGE), call(PAGE), hlt()]);
    machine.code(PAGE, &[plain(Code::Retnd)]);
    machine.cpu.msrs.no_execute = true;
    if user {
        // The user can still read the page, so that the TLB already contains it.
        machine.code(USER_CODE, &[load(EBX, PAGE), jmp(PAGE)]);
        machine.enter_user();
    }
    put_entry(&mut machine, PTE, u64::from(PAGE) | ALL | page);
    put_entry(&mut machine, LOW_DIRECTORY, u64::from(TABLE) | ALL | directory);
    machine
}

#[test]
fn execute_disable() {
    fetch_from(false, 0, 0).run_to_halt();
    let mut machine = fetch_from(false, NO_EXECUTE, 0);
    assert_eq!(page_fault(&mut machine, PAGE), PROTECTION | FETCH);
    let mut machine = fetch_from(true, NO_EXECUTE, 0);
    assert_eq!(page_fault(&mut machine, PAGE), PROTECTION | FETCH | USER);
    // The bit in the directory affects all its pages, here including the handlers.
    let mut machine = fetch_from(false, 0, NO_EXECUTE);
    assert_eq!(machine.run(), Exit::Shutdown);
}

/// For any kind of fault of a fetch, the error code says that it is one.
#[test]
fn fetches_are_told_in_all_error_codes() {
    let mut machine = fetch_from(false, 0, 0);
    machine.code(CODE, &[jmp(PAGE)]);
    machine.cpu.ip = CODE.into();
    put_entry(&mut machine, PTE, 0);
    assert_eq!(page_fault(&mut machine, PAGE), FETCH);
    // Without NXE it does not say so.
    let mut machine = fetch_from(false, 0, 0);
    machine.cpu.msrs.no_execute = false;
    machine.code(CODE, &[jmp(PAGE)]);
    machine.cpu.ip = CODE.into();
    put_entry(&mut machine, PTE, 0);
    assert_eq!(page_fault(&mut machine, PAGE), 0);
}

#[test]
fn an_instruction_may_not_run_into_a_page_without_execution() {
    let mut machine = with_pae(&[jmp(PAGE - 2), hlt()]);
    machine.cpu.msrs.no_execute = true;
    machine.code(PAGE - 2, &[mov(EBX, 1)]);
    put_entry(&mut machine, PTE, u64::from(PAGE) | ALL | NO_EXECUTE);
    assert_eq!(page_fault(&mut machine, PAGE), PROTECTION | FETCH);
}

/// EFER.NXE decides whether bit 63 is reserved.
#[test]
fn nxe_is_written_by_wrmsr() {
    let wrmsr = |value| [mov(ECX, 0xc000_0080), mov(EDX, 0), mov(EAX, value), plain(Code::Wrmsr)];
    let read = [load(EBX, PAGE), hlt()];
    let on = [&wrmsr(0x800)[..], &read].concat();
    let mut machine = with_pae(&on);
    put_entry(&mut machine, PTE, u64::from(PAGE) | ALL | NO_EXECUTE);
    machine.run_to_halt();
    let on_and_off = [&on[..1], &wrmsr(0x800), &read[..1], &wrmsr(0), &read].concat();
    let mut machine = with_pae(&on_and_off);
    put_entry(&mut machine, PTE, u64::from(PAGE) | ALL | NO_EXECUTE);
    assert_eq!(page_fault(&mut machine, PAGE), PROTECTION | RESERVED);
    // Nothing else can be set: there is no 64-bit mode.
    for value in [1, 0x100, 0x900] {
        assert_eq!(with_pae(&wrmsr(value)).run_to_exception().vector, vector::GP);
    }
}

/// There is no memory at physical addresses past 4 GiB.
#[test]
fn there_is_nothing_past_4_gib() {
    let mut machine = with_pae(&[load(EBX, PAGE + 4), store(HIGH, EBX), hlt()]);
    put_entry(&mut machine, PTE, 0xf_0000_5000 | ALL);
    put_entry(&mut machine, HIGH_PDE, 0x1_0040_0000 | LARGE | ALL);
    machine.put_dword(0x5004, 1);
    machine.answers.push_back(0xffff_ffff);
    machine.run_to_halt();
    assert_eq!(machine.get(3), 0xffff_ffff);
    assert_eq!(machine.dword(0x40_0000), 0);
    let addresses: Vec<u64> = machine
        .accesses
        .iter()
        .map(|access| match access {
            Exit::MmioRead { address, .. } | Exit::MmioWrite { address, .. } => *address,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(addresses, [0xf_0000_5004, 0x1_0040_0000]);
}

#[test]
fn models_without_pae_refuse_it() {
    let set = [mov(EAX, Cr4::PAE.bits()), to_control(CR4, EAX)];
    let mut machine = Machine::with_code(&set);
    machine.cpu.model = Model::Pentium;
    assert_eq!(machine.run_to_exception().vector, vector::GP);
    let mut machine = Machine::with_code(&set);
    machine.cpu.model = Model::I486;
    assert!(matches!(machine.run_to_exception().vector, vector::GP | vector::UD));
}
