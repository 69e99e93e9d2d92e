//! All spaces: that of supervisor code, and those of user code, one for each CR3.

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::cpu::invalidations::Invalidations;

use crate::code::block_store::{BlockStore, JumpTarget};
use crate::memory::space::Space;
use crate::memory::window::Window;

/// Upper bound of the spaces of user code.
const MOST_USERS: usize = 64;

/// A space of user code.
#[derive(Debug)]
struct User {
    space: Space,
    cr3: u64,
    /// Whether CR0.PG was set when it was made.
    is_paged: bool,
    /// Whether its contents were compared with the page tables since these were last invalidated.
    is_checked: bool,
    /// The count of instructions when it was last entered.
    used: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Spaces {
    kernel: Space,
    /// The space of supervisor code for the other value of CR0.PG, if that was ever current.
    other_kernel: Option<Space>,
    /// Whether CR0.PG is set.
    is_paged: bool,
    users: Vec<User>,
    /// An empty window, which stands for that of user code while there is none.
    nowhere: Window,
    /// The index in `users` of the space that belongs to CR3, if it is known.
    current: Option<usize>,
    /// Upper bound of `users`: it falls when no more of them fit into the process.
    most_users: usize,
    miss: u32,
}

impl Spaces {
    /// Returns spaces whose jump tables have `miss` in all entries without code.
    pub(crate) fn new(miss: u32) -> io::Result<Spaces> {
        let kernel = Space::new(miss, false)?;
        let (users, nowhere) = (Vec::new(), Window::new()?);
        Ok(Spaces {
            kernel,
            other_kernel: None,
            is_paged: false,
            users,
            nowhere,
            current: None,
            most_users: MOST_USERS,
            miss,
        })
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Space> {
        let kernels = std::iter::once(&mut self.kernel).chain(&mut self.other_kernel);
        kernels.chain(self.users.iter_mut().map(|user| &mut user.space))
    }

    /// Returns whether CR0.PG is set.
    pub(crate) fn is_paged(&self) -> bool {
        self.is_paged
    }

    /// Switches to the other value of CR0.PG. The spaces with and without paging are kept beside each other,
    /// since loaders and 16-bit systems go to real mode and back again and again. When CR0.PG is set, the
    /// caller must [invalidate](Spaces::invalidate) what it concerns.
    pub(crate) fn change_paging(&mut self) -> io::Result<()> {
        self.is_paged = !self.is_paged;
        self.current = None;
        match self.other_kernel.take().map_or_else(|| Space::new(self.miss, false), Ok) {
            Ok(other) => {
                self.other_kernel = Some(std::mem::replace(&mut self.kernel, other));
                Ok(())
            }
            // The process has no room for two spaces of supervisor code.
            Err(_) => self.kernel.clear(),
        }
    }

    /// Returns the space of the code that runs. For user code, [`Spaces::find_user`] must have found it.
    pub(crate) fn current(&mut self, is_user: bool) -> &mut Space {
        if is_user {
            let index = self.current.expect("it was found before user code was entered");
            &mut self.users[index].space
        } else {
            &mut self.kernel
        }
    }

    /// Returns the space of the code that runs, if it is known.
    pub(crate) fn get(&self, is_user: bool) -> Option<&Space> {
        if is_user { Some(&self.users[self.current?].space) } else { Some(&self.kernel) }
    }

    /// Returns the window of user code for accesses by supervisor code: that of CR3 if there is one and
    /// nothing in it is stale, and otherwise one in which every access faults.
    pub(crate) fn user_window(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        blocks: &BlockStore,
    ) -> io::Result<&Window> {
        if self.current.is_none() && self.number_of(cpu).is_some() {
            self.find_user(cpu, memory, blocks)?;
        }
        let space = self.current.map(|index| &self.users[index].space);
        let space = space.filter(|space| !space.has_stale());
        Ok(space.map_or(&self.nowhere, Space::window))
    }

    /// Returns whether pages of the user space of CR3 are to be settled first.
    pub(crate) fn has_stale_user(&self) -> bool {
        self.current.is_some_and(|index| self.users[index].space.has_stale())
    }

    /// Returns a number that changes when code of the supervisor, or of the user space of CR3, is forgotten.
    pub(crate) fn forgotten(&self) -> u64 {
        let user = self.current.map_or(0, |index| self.users[index].space.forgotten());
        self.kernel.forgotten() + user
    }

    /// Returns whether user code can be entered with CR3 without looking at anything else.
    pub(crate) fn is_ready_for_user(&self) -> bool {
        self.current.is_some_and(|index| !self.users[index].space.has_stale())
    }

    /// Returns the linear address for the host address `address` in the window of user code, if it is there.
    pub(crate) fn linear_of_user(&self, address: u64) -> Option<u32> {
        self.users[self.current?].space.window().linear(address)
    }

    /// Returns whether the host address `address` is in the empty window, where every access faults.
    pub(crate) fn is_nowhere(&self, address: u64) -> bool {
        self.nowhere.linear(address).is_some()
    }

    /// Finds the space of the user code that runs with CR3, or makes one.
    pub(crate) fn find_user(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        blocks: &BlockStore,
    ) -> io::Result<()> {
        if self.current.is_some() {
            return Ok(());
        }
        let index = match self.number_of(cpu) {
            Some(index) => index,
            None => self.add_user(cpu.cr3())?,
        };
        let user = &mut self.users[index];
        user.used = cpu.instructions;
        if !user.is_checked {
            user.space.invalidate_all(cpu, memory, blocks, true)?;
            user.is_checked = true;
        }
        self.current = Some(index);
        Ok(())
    }

    /// Returns the index of the space of user code with CR3.
    fn number_of(&self, cpu: &Cpu) -> Option<usize> {
        let is_paged = self.is_paged;
        self.users.iter().position(|user| user.cr3 == cpu.cr3() && user.is_paged == is_paged)
    }

    /// Adds an empty space for `cr3`, or empties the one that was used least recently if there can be no
    /// more. Returns its index.
    fn add_user(&mut self, cr3: u64) -> io::Result<usize> {
        let is_paged = self.is_paged;
        if self.users.len() < self.most_users {
            match Space::new(self.miss, true) {
                Ok(space) => {
                    self.users.push(User { space, cr3, is_paged, is_checked: true, used: 0 });
                    return Ok(self.users.len() - 1);
                }
                Err(error) if self.users.is_empty() => return Err(error),
                Err(_) => self.most_users = self.users.len(),
            }
        }
        let oldest = (0..self.users.len()).min_by_key(|index| self.users[*index].used);
        let index = oldest.expect("there are some");
        let user = &mut self.users[index];
        user.space.clear()?;
        (user.cr3, user.is_paged, user.is_checked) = (cr3, is_paged, true);
        Ok(index)
    }

    /// Drops what software has invalidated and changed.
    pub(crate) fn invalidate(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        blocks: &BlockStore,
        invalidations: &Invalidations,
    ) -> io::Result<()> {
        if invalidations.all || invalidations.non_global {
            self.kernel.invalidate_all(cpu, memory, blocks, invalidations.all)?;
            self.current = None;
            for user in &mut self.users {
                user.is_checked = false;
            }
        }
        // In long mode, other pages are not in windows of 4 GiB.
        for linear in invalidations.pages.iter().filter_map(|page| u32::try_from(*page).ok()) {
            self.kernel.invalidate(cpu, memory, blocks, linear)?;
            if let Some(index) = self.current {
                self.users[index].space.invalidate(cpu, memory, blocks, linear)?;
            }
        }
        Ok(())
    }

    /// Makes writes to the page at `place`, which holds code, fault.
    pub(crate) fn protect_place(&mut self, place: usize) -> io::Result<()> {
        self.all().try_for_each(|space| space.protect_place(place))
    }

    /// Reacts to a change of CR0.WP, which decides whether supervisor code may write to read-only pages. If
    /// it was set, such pages are protected. If it was cleared, nothing need be done: a page becomes writable
    /// when supervisor code writes to it.
    pub(crate) fn protect_from_supervisor(&mut self, is_set: bool) -> io::Result<()> {
        if is_set { self.kernel.protect_read_only() } else { Ok(()) }
    }

    /// Empties the jump tables.
    pub(crate) fn forget_targets(&mut self) {
        self.all().for_each(Space::forget_targets);
    }

    /// Forgets blocks that were dropped, of which `targets` are those that the jump tables may lead to.
    pub(crate) fn forget_blocks(&mut self, targets: &[JumpTarget]) {
        self.all().for_each(|space| space.forget_blocks(targets));
    }

    /// Forgets everything that depends on the numbers of modes.
    pub(crate) fn forget_modes(&mut self) {
        self.all().for_each(Space::forget_modes);
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.all().try_for_each(Space::clear)
    }

    /// Returns about how many mappings of the host there are.
    pub(crate) fn mappings(&self) -> usize {
        let kernels = std::iter::once(&self.kernel).chain(&self.other_kernel);
        let all = kernels.chain(self.users.iter().map(|user| &user.space));
        all.map(Space::mappings).sum()
    }
}
