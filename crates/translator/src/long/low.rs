//! The memory below 2 GiB that translated 64-bit code uses, which it addresses by 32-bit numbers: the
//! [context](crate::long::context), and the tables of *checks*, by which it makes sure that an address is in
//! a unit that its address space owns ([`units`](crate::memory::units)).
//!
//! There are three tables, for code of the supervisor, for that of users, and for its accesses to the
//! [second group](crate::long::distances) of units, with a byte for each 16 MiB of linear
//! addresses: a page for each unit. Only the pages of *shown* units can be read, and all of these are owned
//! by the address space that runs. A check rotates the address to the right by 24 bits and reads the byte at
//! the lower 32 bits of the result, by 32-bit addressing. It needs no compare and changes no flag, and
//! nothing waits for its result.
//!
//! These 32 bits are bits 24 to 55 of the address. A linear address whose other bits are not those of a
//! canonical address is still not canonical when the distance has been added to it, so its access faults. And
//! of all values, only those within 2^24 of 0, in both directions, belong to addresses that the distance
//! can move to addresses of a process, since it is between -2^47 and 2^47. So a table needs 32 MiB, and it
//! does not matter what a check reads elsewhere.
//!
//! # Far sites
//! Two more tables are for [far sites](crate::long::far_sites) of the supervisor and of users. Their bytes are
//! numbers of distances in the context ([`LongContext::distances`]), of which there are 256, so that any byte
//! is one. The byte is found in the same way, and can be read for all canonical addresses: where the address
//! space owns no unit it is 0, and the distance with this number leads nowhere.
//!
//! Here the distances are between -2^48 and 2^48, so addresses within 2^49 of 0 may be led into this process,
//! and these tables are twice as large: for addresses that are not canonical nothing can be read in them. Any
//! distance leads addresses beyond the table out of this process, so that it does not matter which byte is
//! read elsewhere.

use std::io;
use std::ops::RangeInclusive;

use crate::long::context::LongContext;
use crate::long::far_sites::Reach;
use crate::map::{Map, Set};
use crate::memory::host_memory::{PAGE, Range};
use crate::memory::units::Units;

/// log2 of the bytes of linear addresses for which there is a byte.
pub(crate) const CHECK_SHIFT: u32 = 24;
/// Bytes before and behind the byte for linear address 0.
const HALF: usize = 1 << CHECK_SHIFT;
/// The units of canonical addresses, which have bytes in the tables of far sites.
const CANONICAL: std::ops::Range<i64> = -2048..2048;
/// Bytes of the context, in whole pages.
const CONTEXT: usize = size_of::<LongContext>().next_multiple_of(PAGE);
/// All bytes.
const SIZE: usize = CONTEXT + 14 * HALF;
/// The addresses between which a free range is looked for. All addresses in it must fit into a displacement
/// without a sign.
const PLACES: RangeInclusive<usize> = 0x1000_0000..=0x7000_0000;

/// The offsets of the bytes for linear address 0 in the tables of checks, which begin [`HALF`] before it, and in those
/// of far sites of the supervisor and of users, which begin two [`HALF`]s before it.
const CHECKS: [usize; 3] = [CONTEXT + HALF, CONTEXT + 3 * HALF, CONTEXT + 5 * HALF];
const FAR: [usize; 2] = [CONTEXT + 8 * HALF, CONTEXT + 12 * HALF];

/// A table of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// Of the supervisor's units that are near, and of the users'.
    Supervisor,
    User,
    /// Of users' units of the second group.
    Second,
}

impl Table {
    /// Returns that of the units that are near in code of users (`is_user`) or of the supervisor.
    pub(crate) fn near(is_user: bool) -> Table {
        if is_user { Table::User } else { Table::Supervisor }
    }
}

/// The generation of no units: what a table shows is not known.
const UNKNOWN: u64 = u64::MAX;

/// See the module.
#[derive(Debug)]
pub(crate) struct LowMemory {
    range: Range,
    /// The units that the tables of checks show.
    shown: [Set<i64>; 3],
    /// The [generations](Units::generation) of the units for which they were changed last.
    generations: [u64; 3],
    /// The bytes other than 0, by unit, in the tables of far sites of the supervisor and of users.
    numbers: [Map<i64, u8>; 2],
    /// The generations of the units of the supervisor and of users for which they were changed last, and whether the
    /// supervisor could access those of users then.
    pub(super) numbered: ([u64; 2], bool),
}

/// The addresses that translated code contains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    /// Of the context.
    pub(crate) context: u32,
    /// Of the byte for linear address 0 in each [`Table`].
    pub(crate) tables: [u32; 3],
    /// The same in those of far sites of the supervisor and of users.
    pub(crate) far_tables: [u32; 2],
}

impl LowMemory {
    pub(crate) fn new() -> io::Result<LowMemory> {
        let range = PLACES
            .step_by(HALF)
            .find_map(|place| Range::reserve_at(place, SIZE).ok())
            .ok_or_else(|| io::Error::other("no room for tables below 2 GiB"))?;
        range.map_zeros(0, CONTEXT, libc::PROT_READ | libc::PROT_WRITE)?;
        let memory = LowMemory {
            range,
            shown: Default::default(),
            generations: [0; 3],
            numbers: Default::default(),
            numbered: ([0; 2], false),
        };
        for table in FAR {
            let start = LowMemory::offset(CANONICAL.start, table);
            let len = CANONICAL.count() * PAGE;
            memory.range.map_zeros(start, len, libc::PROT_READ | libc::PROT_WRITE)?;
            memory.range.keep_small_pages(start, len)?;
        }
        // SAFETY: the bytes are mapped, in pages of their own, and nobody refers to them yet.
        unsafe { memory.context_pointer().write(LongContext::new()) };
        Ok(memory)
    }

    pub(crate) fn addresses(&self) -> Addresses {
        let start = self.range.address() as u32;
        let address = |table| start + LowMemory::offset(0, table) as u32;
        Addresses { context: start, tables: CHECKS.map(address), far_tables: FAR.map(address) }
    }

    /// Returns the address of the context, for code that runs while nobody refers to it.
    pub(crate) fn context_pointer(&self) -> *mut LongContext {
        self.range.at(0).cast()
    }

    #[inline]
    pub(crate) fn context(&mut self) -> &mut LongContext {
        // SAFETY: it was made by `new`, and only through `self` are there references to it.
        unsafe { &mut *self.context_pointer() }
    }

    /// Returns the unit for whose check the host address `address` was read in a table of users (`is_user`) or of
    /// the supervisor, and the units among which it is looked for there.
    pub(crate) fn unit_at(&self, address: u64, is_user: bool) -> Option<(i64, Reach)> {
        let of_users = [(Table::User, Reach::Near), (Table::Second, Reach::Second)];
        let tables = if is_user { &of_users[..] } else { &[(Table::Supervisor, Reach::Near)] };
        tables.iter().find_map(|(table, reach)| {
            let table = u64::from(self.addresses().tables[*table as usize]);
            let index = address.wrapping_sub(table) as i64;
            let is_inside = (-(HALF as i64)..HALF as i64).contains(&index);
            is_inside.then_some((index >> PAGE.ilog2(), *reach))
        })
    }

    /// Returns the offset of the bytes for `unit` in a table, one of [`CHECKS`] or [`FAR`].
    fn offset(unit: i64, table: usize) -> usize {
        (table as i64 + unit * PAGE as i64) as usize
    }

    /// Returns the address behind it.
    #[cfg(test)]
    pub(crate) fn end(&self) -> usize {
        self.range.address() + SIZE
    }

    /// Makes `table` show the units that `units` owns, and no others. Fails as [`LowMemory::show`] does.
    #[inline]
    pub(super) fn show_in(&mut self, table: Table, units: &Units) -> io::Result<()> {
        if self.generations[table as usize] == units.generation() {
            return Ok(());
        }
        self.show_anew(table, units)
    }

    /// Does so for units that are others now.
    #[inline(never)]
    fn show_anew(&mut self, table: Table, units: &Units) -> io::Result<()> {
        let table = table as usize;
        let LowMemory { range, shown, generations, .. } = self;
        generations[table] = UNKNOWN;
        let shown = &mut shown[table];
        let units_now = units.owned();
        for unit in shown.clone().difference(units_now) {
            range.unmap(LowMemory::offset(*unit, CHECKS[table]), PAGE)?;
            shown.remove(unit);
        }
        for unit in units_now {
            if !shown.contains(unit) {
                range.map_zeros(LowMemory::offset(*unit, CHECKS[table]), PAGE, libc::PROT_READ)?;
                shown.insert(*unit);
            }
        }
        generations[table] = units.generation();
        Ok(())
    }

    /// Makes the table of far sites of users (`is_user`) or of the supervisor have the `numbers` of distances
    /// of these units, and of no others.
    pub(crate) fn number(&mut self, numbers: Map<i64, u8>, is_user: bool) {
        let table = usize::from(is_user);
        let fill = |unit: i64, number: u8| {
            assert!(CANONICAL.contains(&unit), "it is owned");
            self.range.fill(LowMemory::offset(unit, FAR[table]), PAGE, number);
        };
        let before = &self.numbers[table];
        before.keys().filter(|unit| !numbers.contains_key(unit)).for_each(|unit| fill(*unit, 0));
        for (unit, number) in &numbers {
            if before.get(unit) != Some(number) {
                fill(*unit, *number);
            }
        }
        self.numbers[table] = numbers;
    }
}
