//! What the engine forgets when the interpreter, devices or the machine change something.

use std::sync::Arc;
use std::{io, mem};

use ring3_core::memory::{MarkedCode, Memory, PAGE_SHIFT};
use ring3_x86::cpu::{Cpu, Cr0, Cr4};
use tracing::{debug, warn};

use super::Translator;
use crate::code::branch_slots::BranchSlots;

/// The state that decides what page tables mean. While it stays the same, a page changes only if its entries
/// do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Paging {
    write_protection: bool,
    extensions: Cr4,
    no_execute: bool,
    is_long: bool,
}

/// Returns the addresses that only one of these lists has, both of which are in order.
pub(crate) fn differing<T: Ord + Copy>(some: &[T], others: &[T]) -> Vec<T> {
    let only_in = |these: &[T], those: &[T]| {
        let is_new = |linear: &T| those.binary_search(linear).is_err();
        these.iter().copied().filter(is_new).collect::<Vec<T>>()
    };
    [only_in(some, others), only_in(others, some)].concat()
}

impl Paging {
    /// Returns the present state, or None while there is no paging.
    fn of(cpu: &Cpu) -> Option<Paging> {
        cpu.cr0().contains(Cr0::PG).then(|| Paging {
            write_protection: cpu.cr0().contains(Cr0::WP),
            extensions: cpu.cr4() & (Cr4::PSE | Cr4::PAE | Cr4::SMEP | Cr4::SMAP),
            no_execute: cpu.msrs.no_execute,
            is_long: cpu.is_in_long_mode(),
        })
    }

    /// Returns whether this is the same state as `other`, apart from CR0.WP.
    fn is_but_for_protection(self, other: Paging) -> bool {
        self == Paging { write_protection: self.write_protection, ..other }
    }
}

impl Translator {
    /// Makes sure that `memory` is the memory that this translator was made with.
    ///
    /// # Panics
    /// When it is not.
    pub(super) fn check_memory(&self, memory: &Memory) {
        assert!(
            memory.is_from(&self.guest_memory),
            "a translator runs with the memory that it was made with"
        );
    }

    /// Takes over what the interpreter, devices and the machine have changed.
    fn catch_up(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> io::Result<()> {
        if self.layout != Some(memory.layout_generation()) {
            self.layout = Some(memory.layout_generation());
            let before = self.file.take();
            self.file = self.guest_memory.file();
            self.forget_code();
            self.clear_other_spaces()?;
            let files = before.as_ref().zip(self.file.as_ref());
            if let Some(long) = &mut self.long {
                if files.is_some_and(|(before, now)| Arc::ptr_eq(before, now)) {
                    long.check_places(memory)?;
                } else {
                    long.forget_code();
                    long.clear_spaces();
                }
            }
        }
        if self.a20 != cpu.a20() {
            self.a20 = cpu.a20();
            self.clear_spaces()?;
        }
        self.change_points(cpu)?;
        self.change_counting(cpu)?;
        let paging = Paging::of(cpu);
        if self.paging != paging {
            self.paging = paging;
            self.change_paging(paging)?;
        }
        if memory.has_stale_code() {
            let pages = memory.take_stale_code();
            self.interpreter.drop_code(cpu, &pages);
            self.drop_changed(&pages, cpu.instructions);
        }
        let pages = self.interpreter.take_dropped_code();
        self.drop_changed(&pages, cpu.instructions);
        self.calm_code(cpu.instructions);
        if memory.has_marked_code() {
            self.protect_marked(memory)?;
        }
        self.invalidate(cpu, memory)
    }

    /// Takes over the debugger's breakpoints and watchpoints. Only the code of pages with breakpoints is
    /// dropped; other watched memory needs windows without its pages.
    fn change_points(&mut self, cpu: &Cpu) -> io::Result<()> {
        let debugger = cpu.debugger();
        if self.debugger == debugger.generation() {
            return Ok(());
        }
        self.debugger = debugger.generation();
        if let Some(long) = &mut self.long {
            long.set_breakpoints(debugger.breakpoints());
        }
        // The others have no code beyond 4 GiB.
        let points = debugger.breakpoints().iter();
        let breakpoints = points.filter_map(|linear| u32::try_from(*linear).ok()).collect();
        let before = mem::replace(&mut self.breakpoints, breakpoints);
        let linears = differing(&before, &self.breakpoints);
        for page in self.blocks.pages_with(&linears) {
            self.drop_page(page);
        }
        if self.watchpoints != debugger.watchpoints() {
            self.watchpoints = debugger.watchpoints().to_vec();
            self.clear_spaces()?;
        }
        Ok(())
    }

    /// Continues with paging or without it. Forgets what was made while page tables meant something else.
    fn change_paging(&mut self, paging: Option<Paging>) -> io::Result<()> {
        if self.spaces.is_paged() != paging.is_some() {
            self.spaces.change_paging()?;
            self.context.own_window = self.spaces.current(false).window().base();
            self.forget_devices();
            self.descriptors.clear(&mut self.context);
            self.forget_regions();
        }
        let Some(paging) = paging else { return Ok(()) };
        match self.last_paging.replace(paging) {
            Some(before) if before == paging => Ok(()),
            Some(before) if before.is_but_for_protection(paging) => {
                self.context.forget_task();
                self.spaces.protect_from_supervisor(paging.write_protection)
            }
            _ => self.clear_spaces(),
        }
    }

    /// Drops what software has invalidated and changed.
    pub(super) fn invalidate(&mut self, cpu: &mut Cpu, memory: &Memory) -> io::Result<()> {
        let invalidations = cpu.take_invalidations();
        if invalidations.is_empty() {
            return Ok(());
        }
        if cpu.is_in_long_mode() {
            if let Some(long) = &mut self.long {
                long.invalidate(cpu, memory, &invalidations)?;
            }
            // These are the spaces of code in compatibility mode.
            return self.spaces.invalidate(cpu, memory, &self.blocks, &invalidations);
        }
        self.forget_devices();
        self.descriptors.invalidate(&invalidations, &mut self.context);
        self.spaces.invalidate(cpu, memory, &self.blocks, &invalidations)
    }

    /// Takes over all changes. If the host refuses memory for that, everything is forgotten, which needs
    /// less.
    pub(super) fn keep_up(&mut self, cpu: &mut Cpu, memory: &mut Memory) {
        if let Err(error) = self.catch_up(cpu, memory) {
            self.refused(&error);
        }
    }

    /// Forgets everything after the host has refused memory.
    pub(super) fn refused(&mut self, error: &io::Error) {
        self.counters.refusals += 1;
        debug!(%error, "the host refuses to change a mapping");
        if let Err(error) = self.clear_spaces()
            && !self.is_broken
        {
            warn!("the interpreter goes on alone, as the host refuses to unmap memory: {error}");
            self.is_broken = true;
        }
    }

    /// Drops the code of pages that were written to. Code of pages that keep changing is not dropped, since
    /// it checks itself. The translator for 64-bit code has such pages of its own.
    fn drop_changed(&mut self, pages: &[u32], instructions: u64) {
        for page in pages.iter().copied() {
            if let Some(long) = &mut self.long {
                long.drop_changed(page, instructions);
            }
            if self.changing.has(page) {
                continue;
            }
            self.drop_page(page);
            if self.changing.note_drop(page, instructions) {
                self.translate_writers(page);
            }
        }
    }

    /// Translates code anew, at the instruction count `instructions`, of pages that have not changed for long.
    fn calm_code(&mut self, instructions: u64) {
        if let Some(long) = &mut self.long {
            long.calm_code(instructions);
        }
        for page in self.changing.calm(instructions) {
            self.drop_page(page);
        }
    }

    /// Lets the instructions be translated again that were left to the interpreter because they write to
    /// `page`, which has become writable like any other.
    pub(super) fn translate_writers(&mut self, page: u32) {
        for (linear, code) in self.changing.take_writers(page) {
            let linear = linear as u32;
            self.barred.remove(&linear);
            self.signals.remove(&linear);
            self.drop_page(code);
        }
    }

    /// Drops all blocks of a page.
    pub(super) fn drop_page(&mut self, page: u32) {
        if let Some(targets) = self.blocks.drop_page(page) {
            self.spaces.forget_blocks(&targets);
        }
    }

    /// Makes all writes to pages that have come to hold code fault.
    pub(super) fn protect_marked(&mut self, memory: &mut Memory) -> io::Result<()> {
        self.context.forget_task();
        let MarkedCode::Pages(pages) = memory.take_marked_code() else {
            return self.clear_spaces();
        };
        if let Some(long) = &mut self.long {
            long.protect(&pages)?;
        }
        for page in pages {
            let place = (page as usize) << PAGE_SHIFT;
            self.spaces.protect_place(place)?;
        }
        Ok(())
    }

    pub(super) fn clear_spaces(&mut self) -> io::Result<()> {
        if let Some(long) = &mut self.long {
            long.clear_spaces();
        }
        self.clear_other_spaces()
    }

    /// Does what [`Translator::clear_spaces`] does, but not for 64-bit code.
    fn clear_other_spaces(&mut self) -> io::Result<()> {
        self.counters.flushes += 1;
        self.forget_devices();
        self.forget_far_transfers();
        self.descriptors.clear(&mut self.context);
        self.forget_regions();
        self.spaces.clear()
    }

    pub(super) fn forget_code(&mut self) {
        self.counts.collect(self.blocks.iter(), &self.cache);
        self.counts.free();
        self.numeric.note_pointers(&self.blocks, &mut self.context);
        self.blocks.clear();
        self.barred.clear();
        self.patience.clear();
        self.for_user.clear();
        self.signals.clear();
        self.device_reads.clear();
        self.numeric_errors.clear();
        self.refused_loads.clear();
        self.ops.clear();
        self.branch_slots.iter_mut().for_each(BranchSlots::clear);
        self.changing.clear();
        self.cache.truncate(self.stubs);
        self.spaces.forget_targets();
    }
}
