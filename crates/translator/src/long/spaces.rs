//! All spaces of 64-bit code: that of the supervisor, and those of users, one for each CR3.

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::cpu::invalidations::Invalidations;

use crate::long::space::{LongSpace, Stubs};

/// Upper bound of the spaces of users.
const MOST_USERS: usize = 32;

/// A space of users.
#[derive(Debug)]
struct User {
    space: LongSpace,
    cr3: u64,
    /// Whether its contents were compared with the page tables since these were last invalidated.
    is_checked: bool,
    /// The count of instructions when it was last entered.
    used: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LongSpaces {
    kernel: LongSpace,
    users: Vec<User>,
    /// The index in `users` of the space that belongs to CR3, if it is known.
    current: Option<usize>,
    stubs: Stubs,
}

impl LongSpaces {
    /// Returns spaces that are empty.
    pub(crate) fn new(stubs: Stubs) -> io::Result<LongSpaces> {
        let kernel = LongSpace::new(false, stubs)?;
        Ok(LongSpaces { kernel, users: Vec::new(), current: None, stubs })
    }

    fn all(&mut self) -> impl Iterator<Item = &mut LongSpace> {
        std::iter::once(&mut self.kernel).chain(self.users.iter_mut().map(|user| &mut user.space))
    }

    /// Returns the space of the code that runs, with all that differs from the page tables dropped.
    pub(crate) fn find(&mut self, cpu: &Cpu, memory: &Memory) -> io::Result<&mut LongSpace> {
        if cpu.is_user() { self.find_user(cpu, memory) } else { Ok(&mut self.kernel) }
    }

    /// Returns the space of users if `of_user`, and otherwise that of the code that runs.
    pub(crate) fn find_for(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        of_user: bool,
    ) -> io::Result<&mut LongSpace> {
        if of_user { self.find_user(cpu, memory) } else { self.find(cpu, memory) }
    }

    /// Returns the space of the users that belong to CR3, with all that differs from the page tables dropped.
    pub(crate) fn find_user(&mut self, cpu: &Cpu, memory: &Memory) -> io::Result<&mut LongSpace> {
        if let Some(index) = self.current {
            return Ok(&mut self.users[index].space);
        }
        let known = self.users.iter().position(|user| user.cr3 == cpu.cr3());
        let index = match known {
            Some(index) => index,
            None => self.add_user(cpu.cr3())?,
        };
        let user = &mut self.users[index];
        user.used = cpu.instructions;
        if !user.is_checked {
            user.space.invalidate_all(cpu, memory, true)?;
            user.is_checked = true;
        }
        self.current = Some(index);
        Ok(&mut user.space)
    }

    /// Returns the space of the supervisor, and that of the users that belong to CR3 if that is known and
    /// nothing in it differs from the page tables.
    pub(crate) fn known(&self) -> (&LongSpace, Option<&LongSpace>) {
        (&self.kernel, self.current.map(|index| &self.users[index].space))
    }

    /// Like [`LongSpaces::known`].
    pub(crate) fn known_mut(&mut self) -> (&mut LongSpace, Option<&mut LongSpace>) {
        let user = self.current.map(|index| &mut self.users[index].space);
        (&mut self.kernel, user)
    }

    /// Empties the stacks of returns.
    pub(crate) fn forget_returns(&mut self) {
        self.all().for_each(|space| space.returns.clear());
    }

    /// Returns whether there is a space of users for CR3.
    pub(crate) fn knows_user(&self, cpu: &Cpu) -> bool {
        self.current.is_some() || self.users.iter().any(|user| user.cr3 == cpu.cr3())
    }

    /// Adds an empty space for `cr3`, or empties the one that was used least recently if there are many.
    /// Returns its index.
    fn add_user(&mut self, cr3: u64) -> io::Result<usize> {
        if self.users.len() < MOST_USERS {
            let space = LongSpace::new(true, self.stubs)?;
            self.users.push(User { space, cr3, is_checked: true, used: 0 });
            return Ok(self.users.len() - 1);
        }
        let oldest = (0..self.users.len()).min_by_key(|index| self.users[*index].used);
        let index = oldest.unwrap_or(0);
        let user = &mut self.users[index];
        user.space.clear();
        (user.cr3, user.is_checked) = (cr3, true);
        Ok(index)
    }

    /// Drops what software has invalidated and changed.
    pub(crate) fn invalidate(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        invalidations: &Invalidations,
    ) -> io::Result<()> {
        if invalidations.all || invalidations.non_global {
            self.kernel.invalidate_all(cpu, memory, invalidations.all)?;
            self.current = None;
            for user in &mut self.users {
                user.is_checked = false;
            }
        }
        for linear in &invalidations.pages {
            self.kernel.invalidate(cpu, memory, *linear)?;
            if let Some(index) = self.current {
                self.users[index].space.invalidate(cpu, memory, *linear)?;
            }
        }
        Ok(())
    }

    /// Makes writes to the page at `place`, which holds code, fault.
    pub(crate) fn protect_place(&mut self, place: usize) -> io::Result<()> {
        self.all().try_for_each(|space| space.protect_place(place))
    }

    /// Drops what guest-physical memory has at another place now.
    pub(crate) fn check_places(&mut self, memory: &Memory) -> io::Result<()> {
        self.all().try_for_each(|space| space.check_places(memory))
    }

    /// Forgets the code for branches to `linear` in code of users (`is_user`) or of the supervisor, and for
    /// those by `slot`.
    pub(crate) fn forget_target(&mut self, linear: u64, is_user: bool, slot: Option<u32>) {
        if !is_user {
            return self.kernel.table.forget(linear, slot);
        }
        for user in &mut self.users {
            user.space.table.forget(linear, slot);
        }
    }

    /// Empties the jump tables.
    pub(crate) fn forget_targets(&mut self) {
        self.all().for_each(LongSpace::forget_targets);
    }

    /// Gives all units of users back, since no room is left for those of another one.
    pub(crate) fn clear_other_users(&mut self) {
        let current = self.current;
        let others = self.users.iter_mut().enumerate().filter(|(index, _)| Some(*index) != current);
        others.for_each(|(_, user)| user.space.clear_windows());
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.all().for_each(LongSpace::clear);
        self.users.clear();
        self.current = None;
    }

    /// Returns about how many mappings of the host there are.
    pub(crate) fn mappings(&self) -> usize {
        let users: usize = self.users.iter().map(|user| user.space.mappings()).sum();
        self.kernel.mappings() + users
    }
}
