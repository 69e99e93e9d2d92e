//! Segment registers that supervisor code loads again and again: the kernel's at each entry, the user's at each exit.
//!
//! For each of some selectors it is known where in memory its descriptor is and what that was when the interpreter last
//! loaded it. Where the descriptor is still the same, a load does what it did then, so translated code needs but
//! compare the two. The registers are the processor's when translated code is left.

use ring3_core::memory::{Memory, Target};
use ring3_x86::cpu::Cpu;
use ring3_x86::cpu::invalidations::Invalidations;
use ring3_x86::paging::Access;
use ring3_x86::segment::{Descriptor, Segment, Selector, TableRegister, sreg};

use crate::context::Context;

/// Selectors that are known at once; a power of two.
pub(crate) const SLOTS: usize = 16;

/// A descriptor as translated code sees it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Slot {
    /// The selector; 0 for none.
    pub(crate) selector: u32,
    /// A bit for each segment register that can be loaded with it.
    pub(crate) registers: u32,
    /// Where the host has the descriptor.
    pub(crate) host: u64,
    /// What it was.
    pub(crate) descriptor: u64,
    /// The base address that it gives.
    pub(crate) base: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Descriptors {
    gdtr: TableRegister,
    /// What is loaded from each slot.
    segments: [Segment; SLOTS],
    /// All of it is in pages that stay over loads of CR3.
    is_global: bool,
}

impl Descriptors {
    pub(crate) fn new() -> Descriptors {
        let nothing = Segment::null(0);
        Descriptors { gdtr: TableRegister::default(), segments: [nothing; SLOTS], is_global: true }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self, context: &mut Context) {
        context.slots = [Slot::default(); SLOTS];
        self.is_global = true;
    }

    /// Forgets all where GDTR has changed.
    pub(crate) fn look_at_gdtr(&mut self, cpu: &Cpu, context: &mut Context) {
        if self.gdtr != cpu.gdtr {
            self.gdtr = cpu.gdtr;
            self.clear(context);
        }
    }

    /// Forgets what may be elsewhere now.
    pub(crate) fn invalidate(&mut self, invalidations: &Invalidations, context: &mut Context) {
        // It may be a large page.
        let large_page = |linear: u64| linear >> 22;
        let first = large_page(self.gdtr.base);
        let last = large_page(self.gdtr.base + u64::from(self.gdtr.limit));
        let is_in_table = |page: &u32| (first..=last).contains(&large_page((*page).into()));
        if invalidations.all
            || invalidations.non_global && !self.is_global
            || invalidations.pages.iter().any(is_in_table)
        {
            self.clear(context);
        }
    }

    /// Takes in what supervisor code has just loaded `register` with.
    pub(crate) fn note(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        register: u8,
        context: &mut Context,
    ) {
        self.look_at_gdtr(cpu, context);
        let segment = *cpu.segment(register);
        let selector = Selector(segment.selector);
        if selector.is_null() || selector.is_local() || !segment.is_free() || cpu.cpl() != 0 {
            return;
        }
        let linear = self.gdtr.base as u32 + u32::from(selector.0 & !7);
        let Some(mapping) = cpu.map_page(memory, linear, Access::Read) else { return };
        let Target::Place(page) = memory.read_target(mapping.address) else { return };
        let Some(bytes) = memory.page_from(page + (linear & 0xfff) as usize) else { return };
        let Some(bytes) = bytes.first_chunk() else { return };
        let descriptor = u64::from_le_bytes(*bytes);
        // The page tables may be ahead of the TLB.
        if Descriptor(descriptor).segment(selector.0) != segment {
            return;
        }
        self.is_global &= mapping.global;
        let with_base = 1 << sreg::FS | 1 << sreg::GS;
        let flat = if segment.base == 0 { 1 << sreg::DS | 1 << sreg::ES } else { 0 };
        let slot = slot(selector);
        self.segments[slot] = segment;
        context.slots[slot] = Slot {
            selector: selector.0.into(),
            registers: with_base | flat,
            host: bytes.as_ptr().addr() as u64,
            descriptor,
            base: segment.base as u32,
        };
    }

    /// Gives the registers that translated code has loaded to the processor.
    pub(crate) fn store(&self, cpu: &mut Cpu, context: &mut Context) {
        for register in sreg::ES..=sreg::GS {
            if context.loaded & 1 << register == 0 {
                continue;
            }
            let selector = Selector(context.selectors[usize::from(register)]);
            let segment = if selector.is_null() {
                Segment::null(selector.0)
            } else {
                self.segments[slot(selector)]
            };
            cpu.set_segment(register, segment);
        }
        context.loaded = 0;
    }
}

/// The number of the slot of `selector`: the low bits of its index.
fn slot(selector: Selector) -> usize {
    usize::from(selector.0 >> 3) % SLOTS
}
