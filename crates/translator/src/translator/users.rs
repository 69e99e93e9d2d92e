//! Supervisor code that accesses pages of the user.
//!
//! A kernel has one window for all address spaces, in which such a page would have to be dropped whenever CR3 is loaded. So where a kernel copies from
//! and to memory of its programs, that is accessed in the window of user code: instructions that have met such pages choose the window by the
//! [region](crate::context::Context::regions) of the address.
//!
//! That is not all that there is. Small systems, tests of processors, boot loaders and DOS extenders have page tables in which everything is the
//! user's, their own code and stack too; supervisor code in segments has no regions, nor have pushes, numeric instructions and some others; and a
//! region may have pages of both. In all these cases the page comes into the window of supervisor code after all. Its rights are those of the supervisor
//! there, so that CR0.WP holds; and it stays over a load of CR3 if it is the same page in the new address space.

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr4, reg};
use ring3_x86::paging;

use super::faults::{At, WRITE_FAULT};
use super::{Left, Translator};
use crate::context::REGION_SHIFT;
use crate::space::{Access, Fill};

/// Regions, by number.
#[derive(Debug, Default)]
pub(super) struct Regions {
    /// Those that are the user's, as far as is known.
    of_user: Vec<usize>,
    /// Those that have pages of the supervisor too.
    mixed: Vec<usize>,
}

impl Regions {
    /// The number of that of `linear`.
    fn number(linear: u32) -> usize {
        (linear >> REGION_SHIFT) as usize
    }
}

impl Translator {
    /// From now on, supervisor code that accesses memory of the user finds it at `base`.
    pub(super) fn set_user_window(&mut self, cpu: &Cpu, base: u64) {
        self.context.set_user_window(base, cpu.cr4().contains(Cr4::SMAP));
    }

    /// All regions are the supervisor's, as far as is known.
    pub(super) fn forget_regions(&mut self) {
        if !self.regions.of_user.is_empty() {
            self.context.forget_regions();
        }
        self.regions = Regions::default();
    }

    /// Supervisor code has met a fault in its own window, at a page of the user.
    pub(super) fn users_page_faulted(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        at: At,
        linear: u32,
        deadline: u64,
    ) -> io::Result<Left> {
        let instruction = self.linear_of_instruction();
        let region = Regions::number(linear);
        let is_flat = self.modes.current().1.segmented.is_none();
        let chooses = is_flat && self.for_user.contains(&instruction);
        let comes_in = !is_flat
            || self.regions.mixed.contains(&region)
            // It does not choose by this access.
            || chooses && self.regions.of_user.contains(&region)
            || self.lives_with_user(cpu, memory, linear);
        if comes_in {
            return self.bring_in(cpu, memory, at, linear, deadline);
        }
        if chooses {
            self.regions.of_user.push(region);
            self.context.set_region(region, true);
            return Ok(at.go_on(cpu, deadline));
        }
        self.for_user.insert(instruction);
        self.drop_block(cpu, memory);
        Ok(Left::Step { is_numeric: at.site.is_numeric })
    }

    /// The code of the supervisor at EIP or its stack are in pages of the user, as `linear` is: then most of its data will be too.
    fn lives_with_user(&self, cpu: &Cpu, memory: &Memory, linear: u32) -> bool {
        let stack = self.context.gpr[usize::from(reg::SP)];
        [self.context.eip, stack, stack.wrapping_sub(4)].into_iter().any(|own| {
            let mapping = cpu.page_in_advance(memory, own, paging::Access::Read, false);
            (own ^ linear) & !0xfff == 0 || mapping.is_some_and(|(mapping, _)| mapping.user)
        })
    }

    /// Maps the page at `linear`, of the user or not, in the window of supervisor code, where the instruction at EIP has faulted. With SMAP
    /// it is the interpreter that accesses pages of the user: they would have to go when AC is cleared.
    pub(super) fn bring_in(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        at: At,
        linear: u32,
        deadline: u64,
    ) -> io::Result<Left> {
        let writes = self.context.fault_code & WRITE_FAULT != 0;
        let to_users = !cpu.cr4().contains(Cr4::SMAP);
        let access = Access { linear, writes, to_users };
        let filled = self.fill_with(cpu, memory, false, access)?;
        match filled {
            Fill::Done => return Ok(at.go_on(cpu, deadline)),
            Fill::Leave | Fill::WritesCode(_) | Fill::OfUser => {
                self.leave_if_often(cpu, memory, filled.written());
            }
            Fill::Faults | Fill::Zeros | Fill::OfSupervisor => {}
        }
        Ok(Left::Step { is_numeric: at.site.is_numeric })
    }

    /// Supervisor code that chooses between windows has met a fault in that of user code.
    pub(super) fn user_faulted(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        at: At,
        deadline: u64,
    ) -> io::Result<Left> {
        let again = Ok(at.go_on(cpu, deadline));
        let step = Ok(Left::Step { is_numeric: at.site.is_numeric });
        let address = self.context.fault_address;
        if self.spaces.is_nowhere(address) {
            self.spaces.find_user(cpu, memory, &self.blocks)?;
            self.spaces.current(true).settle()?;
            let window = self.spaces.user_window(cpu, memory, &self.blocks)?.base();
            self.set_user_window(cpu, window);
            return again;
        }
        let Some(linear) = self.spaces.linear_of_user(address) else {
            if self.modes.current().1.segmented.is_some() {
                // Beyond the limit of a segment, or in one that grows down.
                self.leave_if_often(cpu, memory, None);
            }
            return step;
        };
        let writes = self.context.fault_code & WRITE_FAULT != 0;
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
            Fill::Leave | Fill::WritesCode(_) => {
                self.leave_if_often(cpu, memory, filled.written());
                step
            }
        }
    }
}
