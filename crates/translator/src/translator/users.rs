//! Supervisor code that accesses pages of users.
//!
//! The supervisor has one window for all address spaces, and a page of users there would have to be dropped
//! whenever CR3 is loaded. So where a kernel copies from and to memory of its programs, translated code
//! accesses it in the window of user code. An instruction that has met such pages chooses the window by the
//! [region](crate::context::Context::regions) of the address.
//!
//! This does not cover everything. Small systems, tests of processors, boot loaders and DOS extenders have
//! page tables in which everything belongs to users, also their own code and stack. Segmented code of the
//! supervisor has no regions, nor have pushes, numeric instructions and some others. And a region may have
//! pages of both. In all these cases the page comes into the window of supervisor code after all. It has the
//! rights of the supervisor there, so that CR0.WP holds, and it stays over a load of CR3 if it is the same
//! page in the new address space.

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr4, reg};
use ring3_x86::paging;

use super::Translator;
use super::faults::Point;
use super::leaving::Next;
use crate::context::REGION_SHIFT;
use crate::memory::space::{Fill, PageAccess};

/// Regions that are not only the supervisor's, by number.
#[derive(Debug, Default)]
pub(super) struct Regions {
    /// Regions that belong to users, as far as is known.
    of_user: Vec<usize>,
    /// Regions with pages of users that also have pages of the supervisor.
    mixed: Vec<usize>,
}

impl Regions {
    /// Returns the number of the region of `linear`.
    fn number(linear: u32) -> usize {
        (linear >> REGION_SHIFT) as usize
    }
}

impl Translator {
    /// Sets the base address of the window in which supervisor code accesses memory of users.
    pub(super) fn set_user_window(&mut self, cpu: &Cpu, base: u64) {
        self.context.set_user_window(base, cpu.cr4().contains(Cr4::SMAP));
    }

    /// Makes all regions the supervisor's, as far as is known.
    pub(super) fn forget_regions(&mut self) {
        if !self.regions.of_user.is_empty() {
            self.context.forget_regions();
        }
        self.regions = Regions::default();
    }

    /// Handles a fault of supervisor code in its own window, at a page of users.
    pub(super) fn users_page_faulted(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        point: Point,
        linear: u32,
        deadline: u64,
    ) -> io::Result<Next> {
        let instruction = self.linear_of_instruction();
        let region = Regions::number(linear);
        let is_flat = self.modes.current().1.segmented.is_none();
        let chooses = is_flat && self.for_user.contains(&instruction);
        let comes_in = !is_flat
            || self.regions.mixed.contains(&region)
            // The region belongs to users already, so this is an access of the instruction that does not
            // choose a window.
            || chooses && self.regions.of_user.contains(&region)
            || self.lives_with_user(cpu, memory, linear);
        if comes_in {
            return self.bring_in(cpu, memory, point, linear, deadline);
        }
        if chooses {
            self.regions.of_user.push(region);
            self.context.set_region(region, true);
            return Ok(point.go_on(cpu, deadline));
        }
        self.for_user.insert(instruction);
        self.drop_block(cpu, memory);
        Ok(Next::Step { is_numeric: point.site.is_numeric })
    }

    /// Returns whether the supervisor's code at EIP or its stack are in pages of users, as `linear` is. If
    /// so, most of its data will be too.
    fn lives_with_user(&self, cpu: &Cpu, memory: &Memory, linear: u32) -> bool {
        let stack = self.context.gpr[usize::from(reg::SP)];
        [self.context.eip, stack, stack.wrapping_sub(4)].into_iter().any(|own| {
            let mapping = cpu.page_in_advance(memory, own.into(), paging::Access::Read, false);
            (own ^ linear) & !0xfff == 0 || mapping.is_some_and(|(mapping, _)| mapping.user)
        })
    }

    /// Maps the page at `linear`, of users or not, in the window of supervisor code, where the instruction at
    /// EIP has faulted. With SMAP the interpreter executes accesses to pages of users, since these pages
    /// would have to be dropped when AC is cleared.
    pub(super) fn bring_in(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        point: Point,
        linear: u32,
        deadline: u64,
    ) -> io::Result<Next> {
        let writes = self.access_writes(&point.site);
        let to_users = !cpu.cr4().contains(Cr4::SMAP);
        let access = PageAccess { linear, writes, to_users };
        let filled = self.fill_with(cpu, memory, false, access)?;
        match filled {
            Fill::Done => return Ok(point.go_on(cpu, deadline)),
            Fill::Interpret | Fill::WritesCode(_) | Fill::OfUser => {
                self.bar_if_often(cpu, memory, filled.written());
            }
            Fill::Faults | Fill::Zeros | Fill::OfSupervisor => {}
        }
        Ok(Next::Step { is_numeric: point.site.is_numeric })
    }

    /// Handles a fault, in the window of user code, of supervisor code that chooses between windows.
    pub(super) fn user_faulted(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        point: Point,
        deadline: u64,
    ) -> io::Result<Next> {
        let again = Ok(point.go_on(cpu, deadline));
        let step = Ok(Next::Step { is_numeric: point.site.is_numeric });
        let address = self.context.fault.address;
        if self.spaces.is_nowhere(address) {
            self.spaces.find_user(cpu, memory, &self.blocks)?;
            self.spaces.current(true).settle()?;
            let window = self.spaces.user_window(cpu, memory, &self.blocks)?.base();
            self.set_user_window(cpu, window);
            return again;
        }
        let Some(linear) = self.spaces.linear_of_user(address) else {
            if self.modes.current().1.segmented.is_some() {
                // The access is beyond the limit of a segment, or in a segment that grows down.
                self.bar_if_often(cpu, memory, None);
            }
            return step;
        };
        let writes = self.access_writes(&point.site);
        let filled = self.fill(cpu, memory, true, linear, writes)?;
        match filled {
            Fill::Done => again,
            Fill::OfSupervisor => {
                let region = Regions::number(linear);
                self.regions.of_user.retain(|known| *known != region);
                self.regions.mixed.push(region);
                self.context.set_region(region, false);
                again
            }
            Fill::Faults | Fill::Zeros | Fill::OfUser => step,
            Fill::Interpret | Fill::WritesCode(_) => {
                self.bar_if_often(cpu, memory, filled.written());
                step
            }
        }
    }
}
