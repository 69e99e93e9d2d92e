//! Segment registers that are loaded again and again: the kernel's at each entry, the user's at each exit, and those of code with 16 bits all the time.
//!
//! For each of some selectors it is known where in memory its descriptor is and what that was when the interpreter last
//! loaded it. Where the descriptor is still the same, a load does what it did then, so translated code needs but
//! compare the two. The registers are the processor's when translated code is left. Gates of the IDT and the stack in the TSS
//! are read where they are, so of those tables no more is known than that.

use ring3_core::memory::{Memory, Target};
use ring3_x86::cpu::invalidations::Invalidations;
use ring3_x86::cpu::{Cpu, Cr0, Cr4};
use ring3_x86::paging::Access;
use ring3_x86::segment::{Descriptor, Segment, Selector, TableRegister, sreg, system};

use crate::context::{Context, FAR_MODES, FarMode, NO_BASE, Tables, View};
use crate::limits::Limits;
use crate::routines::descriptors::SLOT_NUMBER_SHIFT;

/// Selectors that are known at once; a power of two. Those of the LDT have every other one.
pub(crate) const SLOTS: usize = 64;

/// A descriptor as translated code sees it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Slot {
    /// What segmented code knows of the segment.
    pub(crate) view: View,
    /// Where the host has the descriptor.
    pub(crate) host: u64,
    /// What it was.
    pub(crate) descriptor: u64,
    /// The base address, or [`NO_BASE`] where the segment is to be checked.
    pub(crate) near: u64,
    /// The selector; 0 for none.
    pub(crate) selector: u32,
    /// For each segment register, by which code it may be loaded; and two more.
    pub(crate) allowed: [u8; 8],
}

/// Bits of [`Slot::allowed`].
pub(crate) mod allowed {
    /// By flat code of the supervisor, which goes on as such.
    pub(crate) const FLAT: u8 = 1;
    /// By segmented code of the supervisor with a stack of 16 bits, which has one then, too.
    pub(crate) const STACK_16: u8 = 2;
    /// The same with 32 bits.
    pub(crate) const STACK_32: u8 = 4;
    /// By some of them.
    pub(crate) const ANY: u8 = FLAT | STACK_16 | STACK_32;
    /// The same code of the user.
    pub(crate) const fn of_user(by_supervisor: u8) -> u8 {
        by_supervisor << 4
    }
}

/// The place in [`Slot::allowed`] of calls through a gate. Its slot has the offset to which it leads as the base address, and the selector of the code near that.
pub(crate) const CALL: usize = 6;

/// Where ESP0 and SS0 are in a 32-bit TSS (SDM vol. 3, figure 9-2), and their bytes.
const INNER_STACK: u32 = 4;
const INNER_STACK_LEN: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Descriptors {
    gdtr: TableRegister,
    ldtr: Segment,
    idtr: TableRegister,
    tr: Segment,
    /// What is loaded from each slot.
    segments: [Segment; SLOTS],
    /// All of it is in pages that stay over loads of CR3.
    is_global: bool,
    /// No segment is known: to forget them all takes longer than all else that INVLPG does.
    is_empty: bool,
}

impl Descriptors {
    pub(crate) fn new() -> Descriptors {
        let nothing = Segment::null(0);
        let nowhere = TableRegister::default();
        Descriptors {
            gdtr: nowhere,
            ldtr: nothing,
            idtr: nowhere,
            tr: nothing,
            segments: [nothing; SLOTS],
            is_global: true,
            is_empty: true,
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self, context: &mut Context) {
        if !self.is_empty {
            context.slots = [Slot::default(); SLOTS];
        }
        context.far_modes[FarMode::BY_DESCRIPTOR] = [FarMode::NONE; FAR_MODES];
        context.tables = Tables::default();
        (self.is_global, self.is_empty) = (true, true);
    }

    /// GDTR, LDTR, IDTR and TR are what they were.
    pub(crate) fn are_those_of(&self, cpu: &Cpu) -> bool {
        self.gdtr == cpu.gdtr && self.ldtr == cpu.ldtr && self.idtr == cpu.idtr && self.tr == cpu.tr
    }

    /// Forgets what GDTR, LDTR, IDTR or TR leads to where one of them has changed.
    pub(crate) fn look_at_registers(&mut self, cpu: &Cpu, context: &mut Context) {
        if self.gdtr != cpu.gdtr {
            self.clear(context);
        }
        if self.idtr != cpu.idtr || self.tr != cpu.tr {
            // Loaders go to real mode and back with an IDT for each, and the same GDT.
            context.tables = Tables::default();
        }
        if self.ldtr != cpu.ldtr {
            let is_local = |slot: &&mut Slot| Selector(slot.selector as u16).is_local();
            context.slots.iter_mut().filter(is_local).for_each(|slot| *slot = Slot::default());
            context.far_modes[FarMode::BY_DESCRIPTOR] = [FarMode::NONE; FAR_MODES];
        }
        (self.gdtr, self.ldtr, self.idtr, self.tr) = (cpu.gdtr, cpu.ldtr, cpu.idtr, cpu.tr);
        let as_loaded = |register: TableRegister| (register.base as u32, register.limit);
        context.set_table_registers(as_loaded(cpu.gdtr), as_loaded(cpu.idtr));
    }

    /// Forgets what may be elsewhere now.
    pub(crate) fn invalidate(&mut self, invalidations: &Invalidations, context: &mut Context) {
        let tables = [
            (self.gdtr.base, self.gdtr.limit.into()),
            (self.ldtr.base, self.ldtr.limit),
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

    /// Takes in what was just loaded into the data segment register `register`, or SS.
    pub(crate) fn note(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        limits: &Limits,
        register: u8,
        context: &mut Context,
    ) {
        self.look_at_registers(cpu, context);
        if cpu.in_protected_mode() && matches!(cpu.cpl(), 0 | 3) {
            self.note_segment(cpu, memory, limits, register, context);
        }
    }

    /// Takes in what CS has, and gives what is known of it then.
    pub(crate) fn note_code(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        limits: &Limits,
        context: &mut Context,
    ) -> Option<Slot> {
        self.note_segment(cpu, memory, limits, sreg::CS, context);
        let code = cpu.segment(sreg::CS);
        let number = slot(Selector(code.selector));
        let known = context.slots[number];
        let is_known = known.selector == code.selector.into() && self.segments[number] == *code;
        let loads_code = known.allowed[usize::from(sreg::CS)] != 0;
        (is_known && loads_code).then_some(known)
    }

    /// Takes in what a far transfer, INT n or IRET has just loaded, and by what.
    pub(crate) fn note_transfer(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        limits: &Limits,
        context: &mut Context,
    ) {
        self.look_at_registers(cpu, context);
        if !cpu.in_protected_mode() || !matches!(cpu.cpl(), 0 | 3) {
            return;
        }
        for register in [sreg::CS, sreg::SS] {
            self.note_segment(cpu, memory, limits, register, context);
        }
        self.note_tables(cpu, memory, context);
    }

    /// Takes in what `selector`, with which code was about to call, refers to, if that is a gate to flat code of the privilege that there is now (SDM vol. 3, 6.8.4).
    pub(crate) fn note_gate(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        selector: Selector,
        context: &mut Context,
    ) {
        if selector.is_null() || !cpu.in_protected_mode() {
            return;
        }
        let Some((host, descriptor)) = self.read(cpu, memory, selector) else { return };
        let attributes = Descriptor(descriptor).attributes();
        let (cpl, dpl) = (cpu.cpl(), attributes.dpl());
        let is_gate = !attributes.is_code_or_data()
            && attributes.kind() == system::CALL_GATE32
            && attributes.present()
            && dpl >= cpl
            && dpl >= selector.rpl();
        let code = Selector((descriptor >> 16) as u16 & !3 | u16::from(cpl));
        let flat = if cpu.is_user() { allowed::of_user(allowed::FLAT) } else { allowed::FLAT };
        let leads_to = &context.slots[slot(code)];
        let is_flat = leads_to.selector == code.0.into()
            && leads_to.allowed[usize::from(sreg::CS)] & flat != 0;
        let number = slot(selector);
        if !is_gate || !is_flat || slot(code) == number {
            return;
        }
        let offset = (descriptor & 0xffff | descriptor >> 32 & 0xffff_0000) as u32;
        let mut allowed = [0; 8];
        allowed[CALL] = flat;
        self.segments[number] = Segment::null(0);
        context.slots[number] = Slot {
            view: View { base: offset, ..View::default() },
            host,
            descriptor,
            near: code.0.into(),
            selector: selector.0.into(),
            allowed,
        };
    }

    /// The descriptor of `selector`, and where the host has it; none where it is beyond its table, or that is not [known](Descriptors::find).
    fn read(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        selector: Selector,
    ) -> Option<(u64, u64)> {
        let (table, limit) = if selector.is_local() {
            (self.ldtr.base, self.ldtr.limit)
        } else {
            (self.gdtr.base, self.gdtr.limit.into())
        };
        let offset = u32::from(selector.0 & !7);
        // What is in a register may be from another table.
        if offset + 7 > limit {
            return None;
        }
        let linear = (table as u32).wrapping_add(offset);
        let bytes = self.find(cpu, memory, linear, size_of::<u64>())?;
        let descriptor = u64::from_le_bytes(*bytes.first_chunk()?);
        Some((bytes.as_ptr().addr() as u64, descriptor))
    }

    /// Takes in where the IDT is, and the stack in the TSS.
    fn note_tables(&mut self, cpu: &mut Cpu, memory: &mut Memory, context: &mut Context) {
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

    /// Takes in what `register` has, which was just loaded.
    fn note_segment(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        limits: &Limits,
        register: u8,
        context: &mut Context,
    ) {
        let segment = *cpu.segment(register);
        let selector = Selector(segment.selector);
        if selector.is_null() {
            return;
        }
        let number = slot(selector);
        let known = &context.slots[number];
        let is_known = known.selector == selector.0.into() && self.segments[number] == segment;
        let here = if cpu.is_user() { allowed::of_user(allowed::ANY) } else { allowed::ANY };
        if is_known && known.allowed[usize::from(register)] & here != 0 {
            return;
        }
        let mut allowed = [0; 8];
        for register in sreg::ES..=sreg::GS {
            if is_loaded(&segment, register, cpu.cpl()) {
                let by_supervisor = loads_into(&segment, register);
                let by_user = allowed::of_user(by_supervisor);
                allowed[usize::from(register)] =
                    if cpu.is_user() { by_user } else { by_supervisor };
            }
        }
        if is_known {
            for (new, known) in allowed.iter_mut().zip(known.allowed) {
                *new |= known;
            }
        }
        let Some((host, descriptor)) = self.read(cpu, memory, selector) else { return };
        // The page tables may be ahead of the TLB.
        if Descriptor(descriptor).segment(selector.0) != segment {
            return;
        }
        self.segments[number] = segment;
        self.is_empty = false;
        context.slots[number] = Slot {
            view: View::of(&segment, limits),
            host,
            descriptor,
            near: if segment.is_free() { segment.base } else { NO_BASE },
            selector: selector.0.into(),
            allowed,
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
        let loaded = std::mem::take(&mut context.loaded);
        for (register, _) in (sreg::ES..=sreg::GS).zip(loaded).filter(|(_, loaded)| *loaded) {
            cpu.set_segment(register, self.loaded(register, context));
        }
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

/// A load of `register` at privilege `cpl` with the selector of `segment` has nothing to complain of, nor an accessed bit to set (SDM vol. 2, MOV and RET). Conforming
/// code, which has the privilege of whoever calls it, is not looked at.
fn is_loaded(segment: &Segment, register: u8, cpl: u8) -> bool {
    let attributes = segment.attributes;
    let (rpl, dpl) = (Selector(segment.selector).rpl(), attributes.dpl());
    let is_right = match register {
        sreg::CS => attributes.is_code() && rpl == cpl && dpl == cpl,
        sreg::SS => attributes.is_writable() && rpl == cpl && dpl == cpl,
        _ => attributes.is_readable() && dpl >= cpl && dpl >= rpl,
    };
    let is_accessed = attributes.kind() & 1 != 0;
    is_right && is_accessed && attributes.present() && !attributes.is_conforming()
}

/// By which code `segment` may be loaded into `register`, as far as code of the supervisor, so that the mode stays what it is.
fn loads_into(segment: &Segment, register: u8) -> u8 {
    let is_large = segment.attributes.big();
    let begins_at_0 = segment.base == 0;
    let is_flat = match register {
        sreg::CS => begins_at_0 && segment.limit == u32::MAX && is_large,
        sreg::SS => begins_at_0 && segment.is_free() && is_large,
        sreg::ES | sreg::DS => begins_at_0 && segment.is_free(),
        _ => true,
    };
    let stacks = match register {
        sreg::SS if is_large => allowed::STACK_32,
        sreg::SS => allowed::STACK_16,
        _ => allowed::STACK_16 | allowed::STACK_32,
    };
    stacks | if is_flat { allowed::FLAT } else { 0 }
}

/// The number of the slot of `selector`: the low bits of its index and that of its table.
fn slot(selector: Selector) -> usize {
    usize::from(selector.0 >> SLOT_NUMBER_SHIFT) % SLOTS
}
