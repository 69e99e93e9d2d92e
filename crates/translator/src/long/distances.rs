//! The distances of an address space whose units do not all fit one.
//!
//! An address space has a few groups of [`Units`], each with a distance of its own. Most accesses go to the
//! first group, the *near* one, whose distance is the base of GS while code of the space runs. A unit that
//! cannot be owned there, such as that of a program below 4 GiB whose stack is at the top of the lower half,
//! is owned in another group. Such units are *far*.
//!
//! Users' units below those of position-independent programs are in the *second* group, always: whether a unit is near
//! must not depend on which one was touched first, since code is translated for all processes alike. Its distance
//! is in a field of the context, and it has a table of checks of its own.
//!
//! A [far site](crate::long::far_sites) can access all: it finds the distance of an address in a table,
//! which has one for each unit that is owned, and for all others one that leads nowhere ([`NOWHERE`]).

use std::io;
use std::ops::Range;

use crate::long::context::numbers;
use crate::long::far_sites::Reach;
use crate::long::low::{LowMemory, Table};
use crate::map::Map;
use crate::memory::host_memory::GuestFile;
use crate::memory::units::{Owning, Units, unit_of};

/// Number of groups.
pub(crate) const GROUPS: usize = 4;
/// The number of the near group.
const NEAR: usize = 0;
/// The number of the second group.
pub(crate) const SECOND: usize = 1;
/// The units of users in the second group: those below the lowest that can be near together with the highest.
const LOW: Range<i64> = 0..0x542;

/// A distance at which nothing of this process is for any canonical address: in the lower half, the sum is
/// below 0, and in the upper half it is not canonical. The [tables](crate::long::low) contain all other
/// addresses that it leads into this process.
pub(crate) const NOWHERE: u64 = (-3_i64 << 46) as u64;

/// Returns whether `unit` of users is in the second group.
pub(crate) fn is_low(unit: i64) -> bool {
    LOW.contains(&unit)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Distances {
    groups: [Units; GROUPS],
    /// Whether the units are those of users.
    is_user: bool,
}

impl Distances {
    /// Returns those of an address space of users (`is_user`) or of the supervisor, without units.
    pub(crate) fn new(is_user: bool) -> Distances {
        let mut groups: [Units; GROUPS] = Default::default();
        groups[NEAR] = Units::at_base();
        Distances { groups, is_user }
    }

    /// Returns the units that are near.
    pub(crate) fn near(&self) -> &Units {
        &self.groups[NEAR]
    }

    /// Returns the distances of all groups.
    #[cfg(test)]
    pub(crate) fn all(&self) -> [u64; GROUPS] {
        std::array::from_fn(|group| self.groups[group].distance())
    }

    /// Returns all units that are owned, with their groups.
    pub(crate) fn owned(&self) -> impl Iterator<Item = (i64, usize)> {
        let groups = self.groups.iter().enumerate();
        groups.flat_map(|(group, units)| units.owned().iter().map(move |unit| (*unit, group)))
    }

    /// Returns a number that is another one whenever other units are owned. Another address space has it only
    /// if no units are owned there either.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.groups.iter().map(Units::generation).max().unwrap_or(0)
    }

    /// Returns the group in which `unit` is owned.
    fn group_of(&self, unit: i64) -> Option<usize> {
        self.groups.iter().position(|units| units.owned().contains(&unit))
    }

    /// Returns whether `unit` is owned.
    pub(crate) fn owns(&self, unit: i64) -> bool {
        self.group_of(unit).is_some()
    }

    /// Returns how sites access `unit`, which is owned: a site that accesses one of the first two groups alone need not
    /// be far.
    pub(crate) fn reach(&self, unit: i64) -> Reach {
        match self.group_of(unit) {
            Some(NEAR) => Reach::Near,
            Some(SECOND) if self.is_user => Reach::Second,
            _ => Reach::All,
        }
    }

    /// Returns whether `unit` may be in `group`.
    fn may_be_in(&self, unit: i64, group: usize) -> bool {
        !self.is_user
            || match group {
                NEAR => !is_low(unit),
                SECOND => is_low(unit),
                _ => true,
            }
    }

    /// Returns the linear address for the host address `address`, if that is in a unit that is owned, or in a
    /// guard where no other group has the unit.
    pub(crate) fn linear(&self, address: u64) -> Option<u64> {
        self.groups.iter().enumerate().find_map(|(number, units)| {
            let linear = units.linear(address)?;
            let group = self.group_of(unit_of(linear));
            group.is_none_or(|group| group == number).then_some(linear)
        })
    }

    /// Makes `unit` one that is owned, as [`Units::own`] does, in the first group that can. `drops` is called
    /// for each unit in which nothing is mapped any more: those of a group that has moved.
    pub(crate) fn own(&mut self, unit: i64, again: bool, mut drops: impl FnMut(i64)) -> Owning {
        if self.owns(unit) {
            return Owning::Done;
        }
        for group in 0..GROUPS {
            if !self.may_be_in(unit, group) {
                continue;
            }
            let units = &mut self.groups[group];
            let before: Vec<_> = units.owned().iter().copied().collect();
            let owning = if again { units.own_again(unit) } else { units.own(unit) };
            match owning {
                Owning::Refused => continue,
                Owning::Done => {}
                Owning::Moved | Owning::NoRoom => before.into_iter().for_each(&mut drops),
            }
            return owning;
        }
        Owning::Refused
    }

    /// Ceases to own `unit`.
    pub(crate) fn disown(&mut self, unit: i64) {
        self.groups.iter_mut().for_each(|units| units.disown(unit));
    }

    /// Unmaps everything, and gives all units back.
    pub(crate) fn clear(&mut self) {
        self.groups.iter_mut().for_each(Units::clear);
    }

    /// Returns the group of the unit of `linear`, which must be owned.
    fn at(&self, linear: u64) -> io::Result<&Units> {
        let group = self.group_of(unit_of(linear)).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(&self.groups[group])
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
        self.at(linear)?.map(linear, len, file, from, writable)
    }

    /// Changes `len` mapped bytes at `linear` to be writable, or only readable.
    pub(crate) fn protect(&self, linear: u64, len: usize, writable: bool) -> io::Result<()> {
        self.at(linear)?.protect(linear, len, writable)
    }

    /// Makes accesses to the `len` bytes at `linear` fault.
    pub(crate) fn unmap(&self, linear: u64, len: usize) -> io::Result<()> {
        self.at(linear)?.unmap(linear, len)
    }
}

impl LowMemory {
    /// Makes the tables of checks of code that runs in `space` show the units that it owns, and no others.
    ///
    /// # Errors
    /// Fails if the host refuses to change a mapping. Then nothing may run that does not own all units shown
    /// before.
    #[inline]
    pub(crate) fn show(&mut self, space: &Distances) -> io::Result<()> {
        self.show_in(Table::near(space.is_user), &space.groups[NEAR])?;
        if space.is_user {
            self.show_in(Table::Second, &space.groups[SECOND])?;
        }
        Ok(())
    }

    /// Makes the tables of far sites have the distances of all units that the spaces of the supervisor and of
    /// users own. The supervisor's accesses to those of users lead nowhere unless they are `open`. Without a
    /// space of users, no code of theirs may run.
    #[inline]
    pub(crate) fn number_distances(
        &mut self,
        kernel: &Distances,
        user: Option<&Distances>,
        open: bool,
    ) {
        // No units have the last generation.
        let now = [kernel.generation(), user.map_or(u64::MAX, Distances::generation)];
        if self.numbered != (now, open) {
            self.number_anew(kernel, user, now, open);
        }
    }

    /// Does so for units of the generations `now`.
    #[inline(never)]
    fn number_anew(
        &mut self,
        kernel: &Distances,
        user: Option<&Distances>,
        now: [u64; 2],
        open: bool,
    ) {
        if self.numbered.0 != now {
            let numbered = |units: &Distances, first: usize, groups: usize| -> Vec<(i64, u8)> {
                let owned = units.owned().filter(|(_, group)| *group < groups);
                owned.map(|(unit, group)| (unit, (first + group) as u8)).collect()
            };
            let mut of_supervisor = Map::default();
            if let Some(user) = user {
                of_supervisor.extend(numbered(user, numbers::OF_USERS, numbers::ACCESSED));
                let of_user = numbered(user, numbers::USER, GROUPS).into_iter().collect();
                self.number(of_user, true);
            }
            of_supervisor.extend(numbered(kernel, numbers::SUPERVISOR, GROUPS));
            self.number(of_supervisor, false);
        }
        self.numbered = (now, open);
        let distances = &mut self.context().distances;
        for group in 0..GROUPS {
            let of_users = user.map_or(NOWHERE, |user| user.groups[group].distance());
            distances[numbers::SUPERVISOR + group] = kernel.groups[group].distance();
            distances[numbers::USER + group] = of_users;
            if group < numbers::ACCESSED {
                distances[numbers::OF_USERS + group] = if open { of_users } else { NOWHERE };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_that_do_not_fit_are_far() {
        let (low, high) = (unit_of(0x40_0000), unit_of(0x7fff_ffff_e000));
        for (is_user, first, last) in [(false, high, low), (true, low, high)] {
            let mut distances = Distances::new(is_user);
            let mut dropped = Vec::new();
            for unit in [first, last, first, last] {
                let owning = distances.own(unit, false, |unit| dropped.push(unit));
                assert!(matches!(owning, Owning::Done | Owning::Moved));
            }
            assert_eq!(dropped, [], "a new group moves none");
            assert_eq!(distances.reach(high), Reach::Near);
            let reach = if is_user { Reach::Second } else { Reach::All };
            assert_eq!(distances.reach(low), reach);
        }
        let mut distances = Distances::new(true);
        for unit in [low, high] {
            distances.own(unit, false, |_| {});
        }
        let [near, far, ..] = distances.all();
        assert_ne!(near, far);
        assert_eq!(distances.linear(far.wrapping_add(0x40_1000)), Some(0x40_1000));
        assert_eq!(distances.linear(near.wrapping_add(0x7fff_ffff_e000)), Some(0x7fff_ffff_e000));
        let before = distances.generation();
        distances.disown(low);
        assert_ne!(distances.generation(), before);
        assert!(!distances.owns(low));
        assert_eq!(distances.own(2048, false, |_| {}), Owning::Refused, "not canonical");
    }
}
