//! Segment registers that are loaded again and again: the kernel's at each entry, the user's at each exit.
//!
//! For each of some selectors it is known where in memory its descriptor is and what that was when the interpreter last
//! loaded it. Where the descriptor is still the same, a load does what it did then, so translated code needs but
//! compare the two. The registers are the processor's when translated code is left. Gates of the IDT and the stack in the TSS
//! are read where they are, so of those tables no more is known than that.

use ring3_core::memory::{Memory, Target};
use ring3_x86::cpu::invalidations::Invalidations;
use ring3_x86::cpu::{Cpu, Cr0, Cr4};
use ring3_x86::paging::Access;
use ring3_x86::segment::{Descriptor, Segment, Selector, TableRegister, sreg};

use crate::context::{Context, Tables};
use crate::mode::Mode;

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

/// Where ESP0 and SS0 are in a 32-bit TSS (SDM vol. 3, figure 9-2), and their bytes.
const INNER_STACK: u32 = 4;
const INNER_STACK_LEN: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Descriptors {
    gdtr: TableRegister,
    idtr: TableRegister,
    tr: Segment,
    /// What is loaded from each slot.
    segments: [Segment; SLOTS],
    /// All of it is in pages that stay over loads of CR3.
    is_global: bool,
}

impl Descriptors {
    pub(crate) fn new() -> Descriptors {
        let nothing = Segment::null(0);
        let nowhere = TableRegister::default();
        Descriptors {
            gdtr: nowhere,
            idtr: nowhere,
            tr: nothing,
            segments: [nothing; SLOTS],
            is_global: true,
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self, context: &mut Context) {
        context.slots = [Slot::default(); SLOTS];
        context.tables = Tables::default();
        self.is_global = true;
    }

    /// Forgets what GDTR, IDTR or TR leads to where one of them has changed.
    pub(crate) fn look_at_registers(&mut self, cpu: &Cpu, context: &mut Context) {
        if self.gdtr != cpu.gdtr {
            self.clear(context);
        } else if self.idtr != cpu.idtr || self.tr != cpu.tr {
            // Loaders go to real mode and back with an IDT for each, and the same GDT.
            context.tables = Tables::default();
        }
        (self.gdtr, self.idtr, self.tr) = (cpu.gdtr, cpu.idtr, cpu.tr);
    }

    /// Forgets what may be elsewhere now.
    pub(crate) fn invalidate(&mut self, invalidations: &Invalidations, context: &mut Context) {
        let tables = [
            (self.gdtr.base, self.gdtr.limit.into()),
            (self.idtr.base, self.idtr.limit.into()),
            (self.tr.base, INNER_STACK + INNER_STACK_LEN as u32),
        ];
        let is_in_table = |page: &u32| {
            tables.iter().any(|(base, limit)| {
                // It may be a large page, and tables may go on at address 0.
                let (first, inside) = (*base as u32 >> 22, *base as u32 & 0x3f_ffff);
                (page >> 22).wrapping_sub(first) & 0x3ff <= (inside + limit) >> 22
            })
        };
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
        self.look_at_registers(cpu, context);
        let segment = *cpu.segment(register);
        if cpu.cpl() == 0 && segment.is_free() {
            let with_base = 1 << sreg::FS | 1 << sreg::GS;
            let flat = if segment.base == 0 { 1 << sreg::DS | 1 << sreg::ES } else { 0 };
            self.note_segment(cpu, memory, segment, with_base | flat, context);
        }
    }

    /// Takes in what INT n or IRET has just loaded, where flat code comes after it, and by what.
    pub(crate) fn note_transfer(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        context: &mut Context,
    ) {
        self.look_at_registers(cpu, context);
        if Mode::of(cpu) != Some(Mode::flat(cpu.is_user())) {
            return;
        }
        for register in [sreg::CS, sreg::SS] {
            let segment = *cpu.segment(register);
            // Conforming code has the privilege of whoever calls it.
            if !segment.attributes.is_conforming() {
                self.note_segment(cpu, memory, segment, 1 << register, context);
            }
        }
        let known = &mut context.tables;
        if known.idt_limit == 0 {
            let TableRegister { base, limit } = self.idtr;
            let inside = usize::from(limit) + 1;
            if let Some(bytes) = self.find(cpu, memory, base as u32, 1) {
                known.idt = bytes.as_ptr().addr() as u64;
                known.idt_limit = inside.min(bytes.len()) as u32 - 1;
            }
        }
        let tss = self.tr;
        let is_32_bit = tss.attributes.kind() & 8 != 0;
        if known.inner_stack == 0
            && is_32_bit
            && tss.limit >= INNER_STACK + INNER_STACK_LEN as u32 - 1
        {
            let linear = (tss.base as u32).wrapping_add(INNER_STACK);
            if let Some(bytes) = self.find(cpu, memory, linear, INNER_STACK_LEN) {
                known.inner_stack = bytes.as_ptr().addr() as u64;
            }
        }
    }

    /// Takes in that `segment`, which was just loaded, can be loaded so into those registers that have a bit in `registers`.
    fn note_segment(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        segment: Segment,
        registers: u32,
        context: &mut Context,
    ) {
        let selector = Selector(segment.selector);
        if selector.is_null() || selector.is_local() {
            return;
        }
        let slot = slot(selector);
        let known = &mut context.slots[slot];
        let is_known = known.selector == selector.0.into() && self.segments[slot] == segment;
        if is_known && known.registers & registers == registers {
            return;
        }
        let linear = (self.gdtr.base as u32).wrapping_add(u32::from(selector.0 & !7));
        let Some(bytes) = self.find(cpu, memory, linear, size_of::<u64>()) else { return };
        let Some(bytes) = bytes.first_chunk() else { return };
        let descriptor = u64::from_le_bytes(*bytes);
        // The page tables may be ahead of the TLB.
        if Descriptor(descriptor).segment(selector.0) != segment {
            return;
        }
        self.segments[slot] = segment;
        *known = Slot {
            selector: selector.0.into(),
            registers: if is_known { known.registers | registers } else { registers },
            host: bytes.as_ptr().addr() as u64,
            descriptor,
            base: segment.base as u32,
        };
    }

    /// The bytes of a table from `linear` to the end of the page; none where there are less than `len`, they are not in memory, or nothing has accessed the
    /// page yet.
    fn find<'a>(
        &mut self,
        cpu: &mut Cpu,
        memory: &'a mut Memory,
        linear: u32,
        len: usize,
    ) -> Option<&'a [u8]> {
        let mapping = if cpu.cr0().contains(Cr0::PG) {
            cpu.page_in_advance(memory, linear, Access::Read, false)?.0
        } else {
            cpu.map_page(memory, linear, Access::Read, false)?
        };
        if mapping.user && cpu.cr4().contains(Cr4::SMAP) {
            // No access to a table, whatever AC is.
            return None;
        }
        let Target::Place(page) = memory.read_target(mapping.address) else { return None };
        let bytes = memory.page_from(page + (linear & 0xfff) as usize)?;
        self.is_global &= mapping.global;
        (bytes.len() >= len).then_some(bytes)
    }

    /// Gives the registers that translated code has loaded to the processor.
    pub(crate) fn store(&self, cpu: &mut Cpu, context: &mut Context) {
        for register in sreg::ES..=sreg::GS {
            if context.loaded & 1 << register != 0 {
                cpu.set_segment(register, self.loaded(register, context));
            }
        }
        context.loaded = 0;
    }

    /// Gives CS and SS to it where INT n or IRET has loaded them, and with SS the privilege.
    pub(crate) fn store_transferred(&self, cpu: &mut Cpu, context: &mut Context) {
        let transferred = std::mem::take(&mut context.transferred);
        for (register, is_loaded) in [sreg::CS, sreg::SS].into_iter().zip(transferred) {
            if is_loaded {
                cpu.set_segment(register, self.loaded(register, context));
            }
        }
    }

    /// What translated code has loaded `register` with.
    fn loaded(&self, register: u8, context: &Context) -> Segment {
        let selector = Selector(context.selectors[usize::from(register)]);
        if selector.is_null() { Segment::null(selector.0) } else { self.segments[slot(selector)] }
    }
}

/// The number of the slot of `selector`: the low bits of its index.
fn slot(selector: Selector) -> usize {
    usize::from(selector.0 >> 3) % SLOTS
}
