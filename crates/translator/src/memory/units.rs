//! Units: how a 64-bit guest's linear addresses lie in the host's.
//!
//! Both canonical halves have 2^48 bytes, of which the process has less than 2^47. So linear addresses are
//! cut into *units* of 64 GiB. An address space has one *distance*, a multiple of a unit, which is added to a
//! linear address for the host's. It *owns* the units that it uses: the host's unit at this distance is
//! reserved for it, and so are the two units beside it, its *guards*, in which nothing of anybody else is ever
//! mapped. A unit is reserved as a whole before anything is mapped there, so nothing of this process, which
//! gets its memory from the same host, is in it or will be.
//!
//! An access that begins in a unit that is owned, at a distance of less than a unit from an address that was
//! [checked](crate::long::low), so reaches pages of this address space or none. All other linear addresses
//! reach host addresses that are anybody's, so they must be refused before.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::map::Set;
use crate::memory::host_memory::{GuestFile, Range};

/// log2 of the bytes in a unit.
pub(crate) const SHIFT: u32 = 36;
/// Bytes in a unit.
const SIZE: usize = 1 << SHIFT;
/// The host's units in which a guest's may lie: not the lowest ones, where addresses below 4 GiB are, nor the
/// highest one, whose last page no process has. Guards lie beside them.
const PLACES: RangeInclusive<i64> = 2..=2045;
/// The distances at which all units fit that Linux uses: in the upper half from 0xffff_8880_0000_0000 on, and
/// in the lower half from a position-independent program to the stack.
const USUAL: [RangeInclusive<i64>; 2] = [1914..=2045, -0x540..=-2];

/// Returns the unit of `linear`, as a number with a sign: the upper half has negative ones.
pub(crate) fn unit_of(linear: u64) -> i64 {
    linear as i64 >> SHIFT
}

/// Returns the first address in `unit`.
pub(crate) fn first_of(unit: i64) -> u64 {
    (unit << SHIFT) as u64
}

/// Returns whether addresses of `unit` are canonical.
fn is_canonical(unit: i64) -> bool {
    (-2048..2048).contains(&unit)
}

/// What has become of a wish for a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owning {
    /// The unit is owned, beside those that were owned before.
    Done,
    /// The unit is owned, but the distance is another one, and nothing is mapped any more.
    Moved,
    /// The unit cannot be owned together with the others.
    Refused,
    /// There is no room for the unit beside what else the process has. Nothing is mapped any more.
    NoRoom,
}

/// The last [`Units::generation`] of any address space.
static LAST_GENERATION: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Number of times that an address space has lost a unit on this thread.
    static LOSSES: Cell<u64> = const { Cell::new(0) };
}

/// Returns a number that is another one once an address space has given back a unit on this thread that it owned, and
/// does not own it again.
pub(crate) fn losses() -> u64 {
    LOSSES.get()
}

/// Notes that an address space has lost units.
fn note_loss() {
    LOSSES.set(LOSSES.get() + 1);
}

/// The units of an address space. See the module.
#[derive(Debug, Default)]
pub(crate) struct Units {
    /// The number of a host's unit less that of the guest's there.
    distance: i64,
    /// Whether the distance becomes the base of GS, which must be canonical (SDM vol. 2, WRGSBASE).
    is_base: bool,
    owned: Set<i64>,
    /// See [`Units::generation`].
    generation: u64,
    /// The host's units that are owned or guards.
    reserved: BTreeMap<i64, Range>,
    /// Units that cannot be owned together with the others.
    refused: Set<i64>,
}

impl Units {
    /// Returns units whose distance can be the base of GS.
    pub(crate) fn at_base() -> Units {
        Units { is_base: true, ..Units::default() }
    }

    /// Returns what is added to a linear address for the host's address.
    pub(crate) fn distance(&self) -> u64 {
        (self.distance << SHIFT) as u64
    }

    /// Returns the units that are owned.
    pub(crate) fn owned(&self) -> &Set<i64> {
        &self.owned
    }

    /// Returns a number that is another one whenever other units are owned. Units of another address space have
    /// it only if none are owned there either.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Notes that other units are owned now.
    fn has_changed(&mut self) {
        self.generation = LAST_GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
    }

    /// Returns the linear address for the host address `address`, if it is in a unit that is owned or in a
    /// guard.
    pub(crate) fn linear(&self, address: u64) -> Option<u64> {
        let is_reserved = self.reserved.contains_key(&unit_of(address));
        is_reserved.then(|| address.wrapping_sub(self.distance()))
    }

    /// Makes `unit` one that is owned.
    pub(crate) fn own(&mut self, unit: i64) -> Owning {
        if self.owned.contains(&unit) {
            return Owning::Done;
        }
        if !is_canonical(unit) || self.refused.contains(&unit) {
            return Owning::Refused;
        }
        if !self.owned.is_empty() && self.reserve(unit, self.distance) {
            self.owned.insert(unit);
            self.has_changed();
            return Owning::Done;
        }
        self.move_with(unit)
    }

    /// Makes `unit`, for which there was no room, one that is owned.
    pub(crate) fn own_again(&mut self, unit: i64) -> Owning {
        self.refused.remove(&unit);
        self.own(unit)
    }

    /// Looks for a distance at which `unit` can be owned together with the others.
    fn move_with(&mut self, unit: i64) -> Owning {
        let all = || self.owned.iter().copied().chain([unit]);
        let first = all().map(|unit| PLACES.start() - unit).max().unwrap_or(0);
        let mut last = all().map(|unit| PLACES.end() - unit).min().unwrap_or(-1);
        if self.is_base {
            // No distance of a unit in the lower half is too low.
            last = last.min(unit_of((1 << 47) - 1));
        }
        if first > last {
            self.refused.insert(unit);
            return Owning::Refused;
        }
        let mut others: Vec<_> = all().collect();
        let before = self.distance;
        self.forget();
        // The usual distances come first, from the highest down.
        let usual = &USUAL[usize::from(unit >= 0)];
        let is_usual = |distance: &i64| usual.contains(distance);
        let distances = (first..=last).rev().filter(is_usual);
        let distances = distances.chain((first..=last).rev().filter(|other| !is_usual(other)));
        for distance in distances {
            if self.reserve_all(&others, distance) {
                return Owning::Moved;
            }
        }
        others.pop();
        self.refused.insert(unit);
        // Without a place even for these, each is asked for again.
        if !self.reserve_all(&others, before) {
            note_loss();
        }
        Owning::NoRoom
    }

    /// Makes `units` those that are owned, at `distance`. Returns false, and then owns none, if the host has
    /// something there.
    fn reserve_all(&mut self, units: &[i64], distance: i64) -> bool {
        if units.iter().all(|unit| self.reserve(*unit, distance)) {
            self.distance = distance;
            self.owned.extend(units);
            self.has_changed();
            return true;
        }
        self.reserved.clear();
        false
    }

    /// Reserves the host's unit for `unit`, and its guards. Returns false, and then changes nothing, if the
    /// host has something there.
    fn reserve(&mut self, unit: i64, distance: i64) -> bool {
        let place = unit + distance;
        if !PLACES.contains(&place) {
            return false;
        }
        let mut new = Vec::new();
        for place in [place, place - 1, place + 1] {
            if self.reserved.contains_key(&place) {
                continue;
            }
            match Range::reserve_at((place as usize) << SHIFT, SIZE) {
                Ok(range) => new.push((place, range)),
                Err(_) => return false,
            }
        }
        self.reserved.extend(new);
        true
    }

    /// Ceases to own `unit`. The host's unit stays reserved.
    pub(crate) fn disown(&mut self, unit: i64) {
        if self.owned.remove(&unit) {
            note_loss();
            self.has_changed();
        }
    }

    /// Gives everything back.
    fn forget(&mut self) {
        self.owned.clear();
        self.has_changed();
        self.reserved.clear();
    }

    /// Unmaps everything, and gives all units back.
    pub(crate) fn clear(&mut self) {
        note_loss();
        self.forget();
        self.refused.clear();
    }

    /// Returns the range of the unit of `linear`, which must be owned, and the offset there.
    fn at(&self, linear: u64) -> io::Result<(&Range, usize)> {
        let unit = unit_of(linear);
        let range = self.reserved.get(&(unit + self.distance));
        let range = range.filter(|_| self.owned.contains(&unit));
        let range = range.ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok((range, linear as usize & (SIZE - 1)))
    }

    /// Maps `len` bytes of `file`, from offset `from` on, at `linear`, in a unit that is owned.
    pub(crate) fn map(
        &self,
        linear: u64,
        len: usize,
        file: &GuestFile,
        from: usize,
        writable: bool,
    ) -> io::Result<()> {
        let (range, offset) = self.at(linear)?;
        range.map_file(offset, len, protection(writable), file.with(from, len)?, from)
    }

    /// Changes `len` mapped bytes at `linear` to be writable, or only readable.
    pub(crate) fn protect(&self, linear: u64, len: usize, writable: bool) -> io::Result<()> {
        let (range, offset) = self.at(linear)?;
        range.protect(offset, len, protection(writable))
    }

    /// Makes accesses to the `len` bytes at `linear` fault.
    pub(crate) fn unmap(&self, linear: u64, len: usize) -> io::Result<()> {
        let (range, offset) = self.at(linear)?;
        range.unmap(offset, len)
    }
}

fn protection(writable: bool) -> c_int {
    if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The units of Linux's direct map, vmalloc area, page descriptors and text.
    const KERNEL: [i64; 4] = [
        unit_of_const(0xffff_8880_0000_0000),
        unit_of_const(0xffff_c900_0000_0000),
        unit_of_const(0xffff_ea00_0000_0000),
        unit_of_const(0xffff_ffff_8100_0000),
    ];
    /// Those of a program, its libraries and its stack.
    const PROGRAM: [i64; 3] = [
        unit_of_const(0x5555_5555_4000),
        unit_of_const(0x7f1a_f7c0_0000),
        unit_of_const(0x7fff_ffff_e000),
    ];

    const fn unit_of_const(linear: u64) -> i64 {
        linear as i64 >> SHIFT
    }

    #[test]
    fn the_units_of_linux_fit_beside_each_other() {
        let mut kernel = Units::default();
        assert_eq!(KERNEL.map(|unit| kernel.own(unit) != Owning::Refused), [true; 4]);
        assert_eq!(kernel.owned().len(), KERNEL.len());
        let mut programs: Vec<_> = (0..24).map(|_| Units::default()).collect();
        for units in &mut programs {
            assert_eq!(PROGRAM.map(|unit| units.own(unit) != Owning::Refused), [true; 3]);
            assert_eq!(units.owned().len(), PROGRAM.len());
        }
        let mut places: Vec<_> =
            programs.iter().chain([&kernel]).flat_map(|units| units.reserved.keys()).collect();
        let count = places.len();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), count, "no unit is shared");
    }

    #[test]
    fn a_base_is_canonical() {
        let lowest = unit_of_const(0xffff_8000_0000_0000);
        let mut units = Units::at_base();
        assert_eq!(units.own(lowest), Owning::Refused);
        assert_eq!(units.own(unit_of_const(0xffff_8880_0000_0000)), Owning::Moved);
        assert!(units.distance() < 1 << 47);
        assert_eq!(Units::default().own(lowest), Owning::Moved, "it is no base");
    }

    #[test]
    fn units_that_do_not_fit_are_refused_and_the_others_stay() {
        let mut units = Units::default();
        assert_eq!(units.own(unit_of(0x40_0000)), Owning::Moved);
        let distance = units.distance();
        assert_eq!(units.own(unit_of(0x7fff_ffff_e000)), Owning::Refused);
        assert_eq!(units.own(unit_of(0x0000_8000_0000_0000)), Owning::Refused, "not canonical");
        assert_eq!((units.owned().len(), units.distance()), (1, distance));
        let at = units.distance() + 0x40_0000;
        assert_eq!(units.linear(at), Some(0x40_0000));
        let before = 0x40_0000_u64.wrapping_sub(SIZE as u64);
        assert_eq!(units.linear(at - SIZE as u64), Some(before), "a guard");
        assert_eq!(units.linear(at + 2 * SIZE as u64), None);
        units.clear();
        assert_eq!(units.linear(at), None);
    }
}
