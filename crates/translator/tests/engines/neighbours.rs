//! Pages beside one that is accessed, which the translator maps with it, or also fetches from. Software must
//! not be able to tell the result from a processor that has such pages in its TLB (SDM vol. 3, 5.10.2.3): a
//! page whose accessed bit is clear is not mapped, a write to a page whose dirty bit is clear sets it, and
//! software never sees a page again that it has invalidated.

use ring3_x86::cpu::{Cr4, reg};
use ring3_x86::engine::Exit;

use crate::machine::*;
use crate::pair::Pair;

/// Address of pages in a row, both linear and physical.
const ROW: u32 = 0x10_0000;
const PAGES: u32 = 12;
/// The numbers of a page in the middle of the row, and of one beside it.
const AMID: u32 = 5;
const BESIDE: u32 = 6;
/// Physical address of a page outside of the row.
const ELSEWHERE: u32 = 0x20_0000;
/// A page directory with the same page table.
const OTHER_DIRECTORY: u32 = 0xb000;

// Bits of page-table entries in addition to those of `machine`.
const ACCESSED: u32 = 0x20;
const DIRTY: u32 = 0x40;
const GLOBAL: u32 = 0x100;
/// Bits of a page that was written to.
const USED: u32 = P | RW | US | ACCESSED | DIRTY;

/// IN AL, DX, at which the engine returns or, at privilege 3, #GP is raised. All handlers are this
/// instruction too.
const END: u8 = 0xec;
/// More instructions than a run executes.
const LIMIT: u64 = 100;

// Code, at the same offsets for the supervisor and for users.
/// MOV EAX, [EBX].
const READ: (u32, &[u8]) = (0, &[0x8b, 0x03]);
/// MOV [EBX], ECX.
const WRITE: (u32, &[u8]) = (0x10, &[0x89, 0x0b]);
/// XCHG [EBX], ECX, XADD [EBX], ECX, CMPXCHG [EBX], ECX, and CMPXCHG [EBX], CX.
const EXCHANGES: [(u32, &[u8]); 4] = [
    (0x50, &[0x87, 0x0b]),
    (0x60, &[0x0f, 0xc1, 0x0b]),
    (0x70, &[0x0f, 0xb1, 0x0b]),
    (0x80, &[0x66, 0x0f, 0xb1, 0x0b]),
];
/// INVLPG [EBX].
const INVLPG: (u32, &[u8]) = (0x20, &[0x0f, 0x01, 0x3b]);
/// MOV CR3, EAX.
const LOAD_CR3: (u32, &[u8]) = (0x30, &[0x0f, 0x22, 0xd8]);
/// MOV CR4, EAX.
const LOAD_CR4: (u32, &[u8]) = (0x40, &[0x0f, 0x22, 0xe0]);

/// How software invalidates a page.
#[derive(Debug, Clone, Copy)]
enum Way {
    Invlpg,
    Cr3,
}

/// The outcome of an access.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// EAX.
    Done(u32),
    PageFault,
}

struct World {
    pair: Pair,
}

impl World {
    /// Makes machines with pages in a row, each of which contains its number. Their entries have the bits
    /// `bits`.
    fn new(bits: u32) -> Option<World> {
        let mut pair = Pair::new()?;
        pair.each(|machine| {
            machine.enable_paging();
            machine.put_dword(OTHER_DIRECTORY, PAGE_TABLE | P | RW | US);
            for start in [CODE, USER_CODE] {
                let single = [READ, WRITE, INVLPG, LOAD_CR3, LOAD_CR4];
                for (offset, code) in single.into_iter().chain(EXCHANGES) {
                    machine.put(start + offset, &[code, &[END]].concat());
                }
            }
            for vector in 0..32 {
                machine.put(handler(vector), &[END]);
            }
            for page in 0..PAGES {
                machine.map(linear(page), linear(page), bits);
                machine.put_dword(linear(page), page);
            }
            machine.put_dword(ELSEWHERE, 99);
        });
        Some(World { pair })
    }

    /// Runs the code at `eip` with these registers to its end, and returns the outcome.
    fn go(&mut self, eip: u32, is_user: bool, registers: &[(u8, u32)]) -> Outcome {
        self.pair.enter(eip, is_user, registers);
        let exit = self
            .pair
            .each(|machine| machine.engine.run(&mut machine.cpu, &mut machine.memory, LIMIT));
        assert!(matches!(exit, Exit::PortRead { .. }), "{exit:?} {}", self.pair.reports());
        self.pair.compare();
        let machine = &self.pair.right;
        let is_page_fault = machine.cpu.ip == u64::from(handler(14));
        if is_page_fault { Outcome::PageFault } else { Outcome::Done(machine.get(reg::AX)) }
    }

    fn user_reads(&mut self, page: u32) -> Outcome {
        self.go(USER_CODE + READ.0, true, &[(reg::BX, linear(page))])
    }

    fn user_writes(&mut self, page: u32, value: u32) -> Outcome {
        self.go(
            USER_CODE + WRITE.0,
            true,
            &[(reg::BX, linear(page)), (reg::CX, value), (reg::AX, 0)],
        )
    }

    fn supervisor_does(&mut self, what: (u32, &[u8]), value: u32, address: u32) -> Outcome {
        self.go(CODE + what.0, false, &[(reg::AX, value), (reg::BX, address)])
    }

    /// Changes the page-table entry of a page, and invalidates it.
    fn change(&mut self, page: u32, frame: u32, bits: u32, way: Way) {
        self.pair.each(|machine| machine.map(linear(page), frame, bits));
        match way {
            Way::Invlpg => self.supervisor_does(INVLPG, 0, linear(page)),
            Way::Cr3 => self.supervisor_does(LOAD_CR3, PAGE_DIRECTORY, 0),
        };
    }

    fn entry(&self, page: u32) -> u32 {
        self.pair.tested.dword(Machine::pte(linear(page)))
    }

    fn fills(&self) -> u64 {
        self.pair.counted("pages filled")
    }
}

fn linear(page: u32) -> u32 {
    ROW + page * 0x1000
}

#[test]
fn pages_in_a_row_are_mapped_at_once() {
    let Some(mut world) = World::new(USED) else { return };
    assert_eq!(world.user_reads(AMID), Outcome::Done(AMID));
    let fills = world.fills();
    for page in 0..PAGES {
        assert_eq!(world.user_reads(page), Outcome::Done(page));
        world.user_writes(page, page + 100);
        assert_eq!(world.user_reads(page), Outcome::Done(page + 100));
    }
    assert_eq!(world.fills(), fills);
}

#[test]
fn neighbours_that_are_invalidated_are_seen_no_longer() {
    for way in [Way::Invlpg, Way::Cr3] {
        let Some(mut world) = World::new(USED) else { return };
        assert_eq!(world.user_reads(AMID), Outcome::Done(AMID));
        world.change(BESIDE, ELSEWHERE, USED, way);
        world.change(AMID - 1, 0, 0, way);
        assert_eq!(world.user_reads(BESIDE), Outcome::Done(99), "{way:?}");
        assert_eq!(world.user_reads(AMID - 1), Outcome::PageFault, "{way:?}");
        assert_eq!(world.user_reads(AMID), Outcome::Done(AMID), "{way:?}");
        assert_eq!(world.user_reads(BESIDE + 1), Outcome::Done(BESIDE + 1), "{way:?}");
    }
}

/// The interpreter, with which memory is compared after each access, maps no neighbours.
#[test]
fn accessed_bits_are_set_by_accesses_alone() {
    let Some(mut world) = World::new(P | RW | US) else { return };
    for page in [AMID, BESIDE, AMID - 1] {
        let fills = world.fills();
        assert_eq!(world.user_reads(page), Outcome::Done(page));
        assert_eq!(world.fills(), fills + 1);
        assert_eq!(world.entry(page) & (ACCESSED | DIRTY), ACCESSED);
    }
    assert_eq!(world.entry(BESIDE + 1) & ACCESSED, 0);
}

#[test]
fn dirty_bits_are_set_by_writes_alone() {
    let Some(mut world) = World::new(P | RW | US | ACCESSED) else { return };
    world.user_reads(AMID);
    world.user_writes(BESIDE, 1);
    for page in 0..PAGES {
        assert_eq!(world.entry(page) & DIRTY != 0, page == BESIDE, "of {page}");
    }
    assert_eq!(world.user_reads(BESIDE), Outcome::Done(1));
}

/// XCHG, XADD and CMPXCHG, which load before they store, are writes from the beginning: one that may not write
/// leaves no accessed bit, and one that may takes no more signals than MOV.
#[test]
fn exchanges_are_writes() {
    for (offset, code) in EXCHANGES {
        // CMPXCHG leaves the page's number, which is not that in EAX, in EAX.
        let (ax, cx) = if code.contains(&0xb1) { (AMID, 7) } else { (0, AMID) };
        let exchange = |world: &mut World, page| {
            let registers = [(reg::BX, linear(page)), (reg::CX, 7), (reg::AX, 0)];
            world.go(USER_CODE + offset, true, &registers)
        };
        let Some(mut world) = World::new(P | US) else { return };
        assert_eq!(exchange(&mut world, AMID), Outcome::PageFault);
        assert_eq!(world.entry(AMID) & ACCESSED, 0);
        let Some(mut world) = World::new(P | RW | US | ACCESSED) else { return };
        let fills = world.fills();
        assert_eq!(exchange(&mut world, AMID), Outcome::Done(ax));
        assert_eq!(world.fills(), fills + 1);
        assert_ne!(world.entry(AMID) & DIRTY, 0);
        assert_eq!(world.pair.right.get(reg::CX), cx);
    }
}

#[test]
fn neighbours_have_rights_of_their_own() {
    for bits in [USED - US, USED - RW, USED - P] {
        let Some(mut world) = World::new(USED) else { return };
        world.pair.each(|machine| machine.map(linear(BESIDE), linear(BESIDE), bits));
        world.user_writes(AMID, 7);
        assert_eq!(world.user_writes(BESIDE, 7), Outcome::PageFault, "{bits:#x}");
        let reads = world.user_reads(BESIDE);
        let expected = if bits == USED - RW { Outcome::Done(BESIDE) } else { Outcome::PageFault };
        assert_eq!(reads, expected, "{bits:#x}");
    }
}

/// As fork does it: no page can be written to any more, all can be read, and later they can be written to
/// again.
#[test]
fn pages_that_lose_their_right_to_be_written() {
    let Some(mut world) = World::new(USED) else { return };
    for page in 0..PAGES {
        world.user_writes(page, page + 100);
    }
    let fills = world.fills();
    for page in 0..PAGES {
        world.pair.each(|machine| machine.map(linear(page), linear(page), USED - RW));
    }
    world.supervisor_does(LOAD_CR3, PAGE_DIRECTORY, 0);
    for page in 0..PAGES {
        assert_eq!(world.user_reads(page), Outcome::Done(page + 100));
    }
    assert_eq!(world.fills(), fills, "they stay mapped");
    for page in 0..PAGES {
        assert_eq!(world.user_writes(page, 0), Outcome::PageFault);
    }
    world.change(AMID, linear(AMID), USED - DIRTY, Way::Cr3);
    assert_eq!(world.user_writes(AMID, 7), Outcome::Done(0));
    assert_ne!(world.entry(AMID) & DIRTY, 0);
    // Only the supervisor may access the page.
    world.change(AMID, linear(AMID), USED - US, Way::Cr3);
    assert_eq!(world.user_reads(AMID), Outcome::PageFault);
}

/// While CR4.PGE is clear, a load of CR3 also invalidates pages that were global (SDM vol. 3, 5.10.4.1).
#[test]
fn global_pages_that_are_global_no_longer() {
    let Some(mut world) = World::new(USED - US + GLOBAL) else { return };
    world.supervisor_does(LOAD_CR4, Cr4::PGE.bits(), 0);
    assert_eq!(world.supervisor_does(READ, 0, linear(AMID)), Outcome::Done(AMID));
    world.supervisor_does(LOAD_CR4, 0, 0);
    world.change(AMID, ELSEWHERE, USED - US + GLOBAL, Way::Cr3);
    assert_eq!(world.supervisor_does(READ, 0, linear(AMID)), Outcome::Done(99));
}

/// A block that is made from two pages, of which the second one changes, is not found again through the
/// first.
#[test]
fn code_of_two_pages_that_was_dropped() {
    const FIRST: u32 = USER_CODE + 0x200;
    const JUMP: u32 = USER_CODE + 0x300;
    const SECOND: u32 = USER_CODE + 0x1000;
    const READS_ITS_ADDRESS: u32 = SECOND + 0x10;
    let Some(mut world) = World::new(USED) else { return };
    world.pair.each(|machine| {
        let distance = (READS_ITS_ADDRESS - FIRST - 5).to_le_bytes();
        // CALL; JMP EDX; MOV EBX, [ESP] and RET.
        machine.put(FIRST, &[&[0xe8][..], &distance, &[END]].concat());
        machine.put(JUMP, &[0xff, 0xe2]);
        machine.put(READS_ITS_ADDRESS, &[0x8b, 0x1c, 0x24, 0xc3]);
        machine.put(SECOND, &[END]);
    });
    let registers = [(reg::BX, 0), (reg::CX, 0), (reg::DX, FIRST)];
    // The second page must have been fetched from before, so that both make one block.
    world.go(SECOND, true, &registers);
    world.go(FIRST, true, &registers);
    assert_eq!(world.pair.tested.get(reg::BX), FIRST + 5);
    // MOV ECX, [ESP].
    world.pair.each(|machine| machine.put(READS_ITS_ADDRESS, &[0x8b, 0x0c, 0x24]));
    world.supervisor_does(LOAD_CR3, OTHER_DIRECTORY, 0);
    world.go(SECOND, true, &registers);
    world.go(JUMP, true, &registers);
    assert_eq!([reg::BX, reg::CX].map(|register| world.pair.tested.get(register)), [0, FIRST + 5]);
}
