//! Page tables that change all the time, as systems change them: pages that are mapped elsewhere, with other
//! rights, global or not, large pages that become small ones and back, two address spaces, tables that map
//! themselves, aliases with code in them, and accessed and dirty bits. The guest invalidates whatever it must
//! invalidate, unless it was not present before, in one of the ways that there are. Then both engines must
//! see the same.

use ring3_x86::cpu::{Cr0, Cr4, reg};
use ring3_x86::engine::Exit;

use crate::common::random::Random;
use crate::common::series::Series;
use crate::machine::*;
use crate::pair::Pair;

const CASES: u64 = if cfg!(debug_assertions) { 3 } else { 12 };
/// Steps of a case.
const STEPS: u32 = 300;
/// Number of steps after which memory is compared too.
const LOOKS: u32 = 25;

// Physical addresses of the tables of the address spaces, of small pages, and of large ones.
const TABLES: u32 = 0x10_0000;
/// Distance from the tables of one space to those of the other.
const SPACE: u32 = 0x1_0000;
/// The page table of the region that both spaces share.
const SHARED_TABLE: u32 = 0x13_0000;
const FRAMES: u32 = 0x18_0000;
const LARGE_FRAMES: [u32; 2] = [0x40_0000, 0x80_0000];

// Offsets in a page: of the function that is called, and of data. An operand may go on in the next page, but
// not as far as the function there.
const CALLED: u32 = 0x200;
const DATA_START: u32 = 0x800;
const DATA_END: u32 = 0x1000;

/// More instructions than a probe executes.
const LIMIT: u64 = 1000;

/// Linear addresses whose mapping changes: a region of each space's own, then a shared one. Each region has
/// one directory entry.
const REGIONS: u32 = 0x8000_0000;
/// Pages of each region that are used.
const PAGES: u32 = 4;
const SMALL_FRAMES: u32 = 6;

// Bits of page-table entries in addition to those of `machine`.
const DIRTY: u64 = 0x40;
const ACCESSED: u64 = 0x20;
const LARGE: u64 = 0x80;
const GLOBAL: u64 = 0x100;
const NO_EXECUTE: u64 = 1 << 63;

/// What a probe does with a page whose address is in EBX. [`END`] follows each of these. The supervisor
/// executes them, or user code, where [`END`] raises #GP.
#[rustfmt::skip]
const PROBES: [&[u8]; 9] = [
    &[0x8b, 0x03],                         // MOV EAX, [EBX]
    &[0x89, 0x0b],                         // MOV [EBX], ECX
    &[0x01, 0x0b],                         // ADD [EBX], ECX
    &[0xff, 0xd3],                         // CALL EBX
    &[0xff, 0xd3, 0xff, 0xd6],             // CALL EBX; CALL ESI
    &[0x89, 0x4b, 0x01, 0xff, 0xd6],       // MOV [EBX+1], ECX; CALL ESI
    &[0xf3, 0xa4],                         // REP MOVSB
    &[0xff, 0x33, 0x8f, 0x43, 0x04],       // PUSH DWORD [EBX]; POP DWORD [EBX+4]
    &[0xdd, 0x03, 0xdd, 0x5b, 0x08],       // FLD QWORD [EBX]; FSTP QWORD [EBX+8]
];
/// Instructions of the supervisor: INVLPG [EBX]; MOV CR3, EAX; MOV CR4, EAX; MOV CR0, EAX; MOV [EBX], EAX
/// with [EBX+4] = EDX.
const SYSTEM: [&[u8]; 6] = [
    &[0x0f, 0x01, 0x3b],
    &[0x0f, 0x22, 0xd8],
    &[0x0f, 0x22, 0xe0],
    &[0x0f, 0x22, 0xc0],
    &[0x89, 0x03],
    &[0x89, 0x03, 0x89, 0x53, 0x04],
];
const INVLPG: usize = 0;
const LOAD_CR3: usize = 1;
const LOAD_CR4: usize = 2;
const LOAD_CR0: usize = 3;
const STORE: usize = 4;
const STORE_LONG: usize = 5;

/// IN AL, DX, at which the engine returns. All handlers are this instruction too.
const END: u8 = 0xec;
/// Bytes from the code of one probe to that of the next.
const PROBE_SIZE: u32 = 16;
/// The address of the instructions in [`SYSTEM`].
const SYSTEM_CODE: u32 = CODE + 0x800;

/// The machines, and the state of their paging.
struct World {
    pair: Pair,
    /// Physical address extension: entries of 8 bytes, large pages of 2 MiB, and execute-disable.
    pae: bool,
    /// The space to whose tables CR3 points.
    space: u32,
}

/// Returns the value of CR3 for a space: the address of its page-directory-pointer table or page directory.
fn top(space: u32) -> u32 {
    TABLES + space * SPACE
}

/// Returns the address of the page table of a region.
fn table_of(space: u32, region: u32) -> u32 {
    if region == 0 { top(space) + 0x8000 } else { SHARED_TABLE }
}

/// A page of a region.
#[derive(Clone, Copy)]
struct Page {
    region: u32,
    number: u32,
}

impl World {
    fn new(pae: bool) -> Option<World> {
        let mut pair = Pair::with_more_memory()?;
        pair.each(|machine| {
            for (place, probes) in
                [(CODE, &PROBES[..]), (USER_CODE, &PROBES), (SYSTEM_CODE, &SYSTEM)]
            {
                for (at, probe) in (place..).step_by(PROBE_SIZE as usize).zip(probes) {
                    machine.put(at, &[probe, &[END][..]].concat());
                }
            }
            for vector in 0..32 {
                machine.put(handler(vector), &[END]);
            }
            let frames = (0..SMALL_FRAMES).map(|frame| FRAMES + frame * 0x1000);
            let large = LARGE_FRAMES
                .iter()
                .flat_map(|start| (0..PAGES).map(move |page| start + page * 0x1000));
            for frame in frames.chain(large) {
                // MOV EAX, a number; RET
                machine.put(frame + CALLED, &[0xb8]);
                machine.put_dword(frame + CALLED + 1, frame | 7);
                machine.put(frame + CALLED + 5, &[0xc3]);
            }
            machine.cpu.msrs.no_execute = pae;
        });
        let mut world = World { pair, pae, space: 0 };
        world.make_tables();
        let cr3 = top(0);
        world.pair.each(|machine| {
            let cpu = &mut machine.cpu;
            let pae = if pae { Cr4::PAE } else { Cr4::empty() };
            cpu.set_cr4(Cr4::PSE | Cr4::PGE | Cr4::OSFXSR | pae);
        });
        // Software loads CR3, so that PAE's pointers are loaded too.
        world.system(LOAD_CR3, cr3.into(), 0);
        world.system(LOAD_CR0, (Cr0::PE | Cr0::PG | Cr0::WP).bits().into(), 0);
        Some(world)
    }

    /// Returns the page directory for linear addresses from `gib` GiB on. Without PAE there is one for all.
    fn directory(&self, space: u32, gib: u32) -> u32 {
        top(space) + if self.pae { 0x1000 * (1 + gib) } else { 0 }
    }

    fn entry_size(&self) -> u32 {
        if self.pae { 8 } else { 4 }
    }

    /// Returns the number of linear addresses that a directory entry covers.
    fn region_size(&self) -> u32 {
        if self.pae { 2 << 20 } else { 4 << 20 }
    }

    fn directory_entry(&self, space: u32, linear: u32) -> u32 {
        let index = (linear & if self.pae { 0x3fff_ffff } else { u32::MAX }) / self.region_size();
        self.directory(space, linear >> 30) + index * self.entry_size()
    }

    fn linear(&self, page: Page) -> u32 {
        REGIONS + page.region * self.region_size() + page.number * 0x1000
    }

    fn put_entry(&mut self, at: u32, entry: u64) {
        let bytes = entry.to_le_bytes();
        let size = self.entry_size() as usize;
        self.pair.each(|machine| machine.put(at, &bytes[..size]));
    }

    fn entry(&self, at: u32) -> u64 {
        let high = if self.pae { self.pair.right.dword(at + 4) } else { 0 };
        u64::from(high) << 32 | u64::from(self.pair.right.dword(at))
    }

    /// Makes the tables of both spaces. They map the lowest 2 MiB to themselves for the supervisor, the
    /// regions, and, at the end of the linear addresses, the tables themselves.
    fn make_tables(&mut self) {
        let all = u64::from(P | RW | US);
        for space in 0..2 {
            let low_table = top(space) + 0x9000;
            for page in 0..512 {
                let linear = page * 0x1000;
                let is_users = matches!(linear, USER_CODE) || linear == USER_STACK - 0x1000;
                let bits = P | RW | if is_users { US } else { 0 };
                let at = low_table + page * self.entry_size();
                self.put_entry(at, u64::from(linear | bits));
            }
            self.put_entry(self.directory_entry(space, 0), u64::from(low_table) | all);
            for region in 0..2 {
                let linear = REGIONS + region * self.region_size();
                let table = u64::from(table_of(space, region));
                self.put_entry(self.directory_entry(space, linear), table | all | ACCESSED | DIRTY);
            }
            let itself = u64::from(P | RW);
            if self.pae {
                for gib in 0..4 {
                    let directory = u64::from(self.directory(space, gib));
                    let own = self.directory(space, 3) + (508 + gib) * 8;
                    self.put_entry(own, directory | itself);
                    self.put_entry(top(space) + gib * 8, directory | u64::from(P));
                }
            } else {
                self.put_entry(top(space) + 1023 * 4, u64::from(top(space)) | itself);
            }
        }
    }

    /// Returns the linear address of the table entry of `linear`, in the tables that map themselves.
    fn mapped_entry(&self, linear: u32) -> u32 {
        if self.pae { 0xff80_0000 + (linear >> 12) * 8 } else { 0xffc0_0000 + (linear >> 12) * 4 }
    }

    // What the guest does -------------------------------------------------

    /// Runs the code at `eip` until it has ended or raised an exception.
    fn go(&mut self, eip: u32, is_user: bool, registers: &[(u8, u32)]) {
        self.pair.enter(eip, is_user, registers);
        self.pair.each(|machine| {
            let Machine { cpu, memory, engine, .. } = machine;
            let exit = engine.run(cpu, memory, LIMIT);
            assert!(matches!(exit, Exit::PortRead { .. }), "{exit:?} {}", cpu.report(memory));
        });
        self.pair.compare_processors();
    }

    /// Runs one of [`SYSTEM`] with `value` in EDX:EAX and `address` in EBX.
    fn system(&mut self, which: usize, value: u64, address: u32) {
        let eip = SYSTEM_CODE + which as u32 * PROBE_SIZE;
        let registers =
            [(reg::AX, value as u32), (reg::DX, (value >> 32) as u32), (reg::BX, address)];
        self.go(eip, false, &registers);
    }

    /// Writes an entry for `linear`, at its physical address, which is mapped to itself, or at its address in
    /// the tables that map themselves.
    fn store_entry(&mut self, random: &mut Random, physical: u32, mapped: u32, entry: u64) {
        let at = if random.percent(50) { physical } else { mapped };
        self.system(if self.pae { STORE_LONG } else { STORE }, entry, at);
    }

    fn flush_global(&mut self) {
        let cr4 = self.pair.right.cpu.cr4();
        self.system(LOAD_CR4, (cr4 - Cr4::PGE).bits().into(), 0);
        self.system(LOAD_CR4, cr4.bits().into(), 0);
    }

    /// Makes the processor forget a page whose entry was `old`, in a random way.
    fn invalidate(&mut self, random: &mut Random, linear: u32, old: u64) {
        match random.below(4) {
            _ if old & u64::from(P) == 0 && random.percent(60) => {}
            0 if old & GLOBAL == 0 => self.system(LOAD_CR3, top(self.space).into(), 0),
            1 => self.flush_global(),
            _ => self.system(INVLPG, 0, linear + random.below(0x1000)),
        }
    }

    fn random_page(random: &mut Random) -> Page {
        Page { region: random.below(2), number: random.below(PAGES) }
    }

    /// Returns bits of an entry for a page of that region.
    fn random_bits(&self, random: &mut Random, region: u32) -> u64 {
        let mut bits = u64::from(random.pick(&[P | RW | US, P | RW | US, P | US, P | RW, P, 0]));
        // Only mappings that are the same in both spaces can be global.
        if region == 1 && random.percent(50) {
            bits |= GLOBAL;
        }
        if random.percent(30) {
            bits |= random.pick(&[ACCESSED, ACCESSED | DIRTY]);
        }
        if self.pae && random.percent(20) {
            bits |= NO_EXECUTE;
        }
        bits
    }

    // Steps ---------------------------------------------------------------

    /// Gives a page another mapping, if its region has a table.
    fn change_page(&mut self, random: &mut Random) {
        let page = World::random_page(random);
        let linear = self.linear(page);
        if self.entry(self.directory_entry(self.space, linear)) & LARGE != 0 {
            return;
        }
        let at = table_of(self.space, page.region) + page.number * self.entry_size();
        let old = self.entry(at);
        let entry = if random.percent(33) {
            // The same entry without the bits that the processor has set.
            old & !(ACCESSED | DIRTY)
        } else {
            let frame = FRAMES + random.below(SMALL_FRAMES) * 0x1000;
            u64::from(frame) | self.random_bits(random, page.region)
        };
        self.store_entry(random, at, self.mapped_entry(linear), entry);
        self.invalidate(random, linear, old);
    }

    /// Changes a mapping of the space to which CR3 does not point. The next load of CR3 will invalidate it.
    fn change_other_space(&mut self, random: &mut Random) {
        let at = table_of(1 - self.space, 0) + random.below(PAGES) * self.entry_size();
        let frame = FRAMES + random.below(SMALL_FRAMES) * 0x1000;
        let entry = u64::from(frame) | self.random_bits(random, 0);
        self.store_entry(random, at, at, entry);
    }

    /// Gives a region a table, or makes it a large page.
    fn change_region(&mut self, random: &mut Random) {
        let region = random.below(2);
        let linear = REGIONS + region * self.region_size();
        let entry = if random.percent(50) {
            u64::from(table_of(self.space, region) | P | RW | US)
        } else {
            let bits = self.random_bits(random, region) & !(ACCESSED | DIRTY);
            u64::from(random.pick(&LARGE_FRAMES)) | bits | LARGE
        };
        // For global pages it depends on the processor in which space's entry it notes an access.
        let entry = entry | if region == 1 { ACCESSED | DIRTY } else { 0 };
        // The shared region is the same in both spaces.
        let spaces = if region == 1 { 0..2 } else { self.space..self.space + 1 };
        for space in spaces {
            let at = self.directory_entry(space, linear);
            let is_current = space == self.space;
            let mapped = if is_current { self.mapped_entry(self.mapped_entry(linear)) } else { at };
            self.store_entry(random, at, mapped, entry);
        }
        self.flush_global();
    }

    fn switch_space(&mut self) {
        self.space = 1 - self.space;
        self.system(LOAD_CR3, top(self.space).into(), 0);
    }

    fn toggle_write_protection(&mut self) {
        let cr0 = self.pair.right.cpu.cr0() ^ Cr0::WP;
        self.system(LOAD_CR0, cr0.bits().into(), 0);
    }

    /// A device writes to a page, either code or data.
    fn write_as_device(&mut self, random: &mut Random) {
        let frame = FRAMES + random.below(SMALL_FRAMES) * 0x1000;
        let (offset, value) = (random.pick(&[CALLED + 1, DATA_START]), random.bits());
        self.pair.each(|machine| machine.put_dword(frame + offset, value));
    }

    fn probe(&mut self, random: &mut Random) {
        let is_user = random.percent(60);
        let number = random.below(PROBES.len() as u32);
        let mut address = || {
            let linear = self.linear(World::random_page(random));
            (linear, random.pick(&[DATA_START, DATA_START, DATA_END - 2]))
        };
        let ((first, offset), (second, other_offset)) = (address(), address());
        let calls = (3..6).contains(&number);
        let (first_offset, second_offset) =
            if calls { (CALLED, CALLED) } else { (offset, other_offset) };
        let registers = [
            (reg::BX, first + first_offset),
            (reg::SI, second + second_offset),
            (reg::DI, first + first_offset),
            (reg::CX, if number == 6 { random.below(80) } else { random.bits() }),
        ];
        let start = if is_user { USER_CODE } else { CODE };
        self.go(start + number * PROBE_SIZE, is_user, &registers);
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(100) {
            0..22 => self.change_page(random),
            22..26 => self.change_other_space(random),
            26..31 => self.change_region(random),
            31..39 => self.switch_space(),
            39..42 => self.toggle_write_protection(),
            42..48 => self.write_as_device(random),
            _ => self.probe(random),
        }
    }
}

fn page_tables_that_change(pae: bool) {
    let series = Series::from_environment(CASES);
    for case in series.cases.clone() {
        println!("RING3_FUZZ_SEED={} RING3_FUZZ_CASE={case}", series.seed);
        let Some(mut world) = World::new(pae) else { return };
        let mut random = series.random(case);
        for step in 0..STEPS {
            world.step(&mut random);
            if step % LOOKS == 0 {
                world.pair.compare();
            }
        }
        world.pair.compare();
    }
}

#[test]
fn page_tables_that_change_are_seen() {
    page_tables_that_change(false);
}

#[test]
fn page_tables_of_pae_that_change_are_seen() {
    page_tables_that_change(true);
}
