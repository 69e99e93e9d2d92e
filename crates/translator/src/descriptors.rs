//! Loads of segment registers in translated code. Kernels load them at each entry and at each exit, and
//! 16-bit code loads them all the time.
//!
//! For some selectors, a [`KnownDescriptor`] of the context notes where in memory the descriptor is, and
//! which value it had when the interpreter last loaded it. While the descriptor has that value, a load has
//! the same result as before, so translated code need only compare the two. When translated code is left,
//! [`Descriptors::store`] gives the segment registers to the processor.
//!
//! Gates of the IDT and the stack in the TSS are read where they are, so of those tables only the addresses
//! are noted. The descriptors in LDTR and TR are noted like those of segments.

use ring3_core::memory::{Memory, Target};
use ring3_x86::cpu::invalidations::Invalidations;
use ring3_x86::cpu::{Cpu, Cr0, Cr4};
use ring3_x86::paging::{Access, PageMapping};
use ring3_x86::segment::{Descriptor, Segment, Selector, TableRegister, sreg, system};

use crate::context::{Context, FAR_MODES, FarMode, Loaded, NO_BASE, Tables, View};
use crate::routines::descriptors::DESCRIPTOR_NUMBER_SHIFT;
use crate::segmented::limits::Limits;

/// Number of selectors that are known at once; a power of two. Selectors of the LDT use every other entry.
pub(crate) const KNOWN_DESCRIPTORS: usize = 64;

/// A descriptor as translated code sees it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct KnownDescriptor {
    /// The segment, as segmented code sees it.
    pub(crate) view: View,
    /// The host address of the descriptor.
    pub(crate) host: u64,
    /// The descriptor's value when it was last loaded.
    pub(crate) descriptor: u64,
    /// The base address, or [`NO_BASE`] if the segment must be checked at each access.
    pub(crate) near: u64,
    /// The selector; 0 in an empty entry.
    pub(crate) selector: u32,
    /// For each segment register, the kinds of code that may load it from this entry; then [`CALL`] and
    /// [`CALL_INWARD`].
    pub(crate) allowed: [u8; 8],
}

/// Bits of [`KnownDescriptor::allowed`].
pub(crate) mod allowed {
    /// Flat code of the supervisor, which remains flat after the load.
    pub(crate) const FLAT: u8 = 1;
    /// Segmented code of the supervisor with a 16-bit stack, which remains 16-bit after the load.
    pub(crate) const STACK_16: u8 = 2;
    /// Segmented code of the supervisor with a 32-bit stack, which remains 32-bit after the load.
    pub(crate) const STACK_32: u8 = 4;
    /// Any code of the supervisor.
    pub(crate) const ANY: u8 = FLAT | STACK_16 | STACK_32;
    /// Returns the bits for the same kinds of code of users.
    pub(crate) const fn of_user(by_supervisor: u8) -> u8 {
        by_supervisor << 4
    }
}

/// Index in [`KnownDescriptor::allowed`] of far calls through a call gate. The entry of a gate has the gate's
/// offset as its base address, and the selector of the gate's code segment in `near`.
pub(crate) const CALL: usize = 6;
/// Index in [`KnownDescriptor::allowed`] of far calls by users through a call gate to code of the supervisor.
pub(crate) const CALL_INWARD: usize = 7;

/// The bit of a TSS descriptor that says that the task is busy (SDM vol. 3, figure 9-3).
const BUSY: u64 = 1 << 41;

/// Offset of ESP0 and SS0 in a 32-bit TSS (SDM vol. 3, figure 9-2), and their bytes.
const INNER_STACK: u32 = 4;
const INNER_STACK_LEN: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Descriptors {
    gdtr: TableRegister,
    ldtr: Segment,
    idtr: TableRegister,
    tr: Segment,
    /// The contents of a segment register after a load from each entry.
    segments: [Segment; KNOWN_DESCRIPTORS],
    /// Whether all that is known is in global pages, which survive loads of CR3.
    is_global: bool,
    /// Whether no entry is in use. Clearing all entries takes longer than everything else that INVLPG does.
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
            segments: [nothing; KNOWN_DESCRIPTORS],
            is_global: true,
            is_empty: true,
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self, context: &mut Context) {
        if !self.is_empty {
            context.known_descriptors = [KnownDescriptor::default(); KNOWN_DESCRIPTORS];
        }
        context.far_modes[FarMode::BY_DESCRIPTOR] = [FarMode::NONE; FAR_MODES];
        context.tables = Tables::default();
        (self.is_global, self.is_empty) = (true, true);
    }

    /// Returns whether GDTR, LDTR, IDTR and TR are what they were at the last call of
    /// [`Descriptors::look_at_registers`].
    pub(crate) fn are_those_of(&self, cpu: &Cpu) -> bool {
        self.gdtr == cpu.gdtr && self.ldtr == cpu.ldtr && self.idtr == cpu.idtr && self.tr == cpu.tr
    }

    /// Forgets what was found through GDTR, LDTR, IDTR or TR if that register has changed.
    pub(crate) fn look_at_registers(&mut self, cpu: &Cpu, context: &mut Context) {
        if self.gdtr != cpu.gdtr {
            self.clear(context);
        }
        if self.idtr != cpu.idtr || self.tr != cpu.tr {
            // Loaders switch between real and protected mode with an IDT for each, and with one GDT.
            context.tables = Tables::default();
        }
        if self.ldtr != cpu.ldtr {
            let is_local =
                |known: &&mut KnownDescriptor| Selector(known.selector as u16).is_local();
            context
                .known_descriptors
                .iter_mut()
                .filter(is_local)
                .for_each(|known| *known = KnownDescriptor::default());
            context.tables.local = Loaded::default();
            context.far_modes[FarMode::BY_DESCRIPTOR] = [FarMode::NONE; FAR_MODES];
        }
        (self.gdtr, self.ldtr, self.idtr, self.tr) = (cpu.gdtr, cpu.ldtr, cpu.idtr, cpu.tr);
        let as_loaded = |register: TableRegister| (register.base as u32, register.limit);
        context.set_table_registers(as_loaded(cpu.gdtr), as_loaded(cpu.idtr));
    }

    /// Forgets what software has invalidated, since it may be elsewhere now.
    pub(crate) fn invalidate(&mut self, invalidations: &Invalidations, context: &mut Context) {
        let tables = [
            (self.gdtr.base, self.gdtr.limit.into()),
            (self.ldtr.base, self.ldtr.limit),
            (self.idtr.base, self.idtr.limit.into()),
            (self.tr.base, INNER_STACK + INNER_STACK_LEN as u32),
        ];
        let is_in_table = |page: &u64| {
            tables.iter().any(|(base, limit)| {
                // The page may be a large one, and a table may wrap to address 0.
                let (first, inside) = (*base as u32 >> 22, *base as u32 & 0x3f_ffff);
                (*page as u32 >> 22).wrapping_sub(first) & 0x3ff <= (inside + limit) >> 22
            })
        };
        if invalidations.all
            || invalidations.non_global && !self.is_global
            || invalidations.pages.iter().any(is_in_table)
        {
            self.clear(context);
        }
    }

    /// Notes the segment that was just loaded into the data segment register `register`, or into SS.
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

    /// Notes the segment in CS, and returns its entry if CS may be loaded from it.
    pub(crate) fn note_code(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        limits: &Limits,
        context: &mut Context,
    ) -> Option<KnownDescriptor> {
        self.note_segment(cpu, memory, limits, sreg::CS, context);
        let code = cpu.segment(sreg::CS);
        let number = number_of(Selector(code.selector));
        let known = context.known_descriptors[number];
        let is_known = known.selector == code.selector.into() && self.segments[number] == *code;
        let loads_code = known.allowed[usize::from(sreg::CS)] != 0;
        (is_known && loads_code).then_some(known)
    }

    /// Notes the segments that a far transfer, INT n or IRET has just loaded, and the tables that it used.
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

    /// Notes the descriptor of `selector`, with which code of users (`by_user`) or of the supervisor has just
    /// executed a far call, if it is a call gate to flat code of the current privilege (SDM vol. 3, 6.8.4). A
    /// gate to an inner privilege must have no parameters.
    pub(crate) fn note_gate(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        selector: Selector,
        by_user: bool,
        context: &mut Context,
    ) {
        if selector.is_null() || !cpu.in_protected_mode() {
            return;
        }
        let Some((host, descriptor)) = self.read(cpu, memory, selector) else { return };
        let attributes = Descriptor(descriptor).attributes();
        let (cpl, dpl) = (cpu.cpl(), attributes.dpl());
        let is_inward = by_user && !cpu.is_user();
        let has_parameters = descriptor >> 32 & 0x1f != 0;
        let is_gate = !attributes.is_code_or_data()
            && attributes.kind() == system::CALL_GATE32
            && attributes.present()
            && dpl >= if by_user { 3 } else { cpl }
            && dpl >= selector.rpl()
            && !(is_inward && has_parameters);
        let code = Selector((descriptor >> 16) as u16 & !3 | u16::from(cpl));
        let flat = if cpu.is_user() { allowed::of_user(allowed::FLAT) } else { allowed::FLAT };
        let leads_to = &context.known_descriptors[number_of(code)];
        let is_flat = leads_to.selector == code.0.into()
            && leads_to.allowed[usize::from(sreg::CS)] & flat != 0;
        let number = number_of(selector);
        if !is_gate || !is_flat || number_of(code) == number {
            return;
        }
        let offset = (descriptor & 0xffff | descriptor >> 32 & 0xffff_0000) as u32;
        let known = &context.known_descriptors[number];
        let is_known = known.selector == selector.0.into() && known.descriptor == descriptor;
        let mut allowed = if is_known { known.allowed } else { [0; 8] };
        if is_inward {
            allowed[CALL_INWARD] = allowed::of_user(allowed::FLAT);
        } else {
            allowed[CALL] |= flat;
        }
        self.segments[number] = Segment::null(0);
        context.known_descriptors[number] = KnownDescriptor {
            view: View { base: offset, ..View::default() },
            host,
            descriptor,
            near: code.0.into(),
            selector: selector.0.into(),
            allowed,
        };
    }

    /// Returns the descriptor of `selector` and its host address. Returns None if it is beyond its table or
    /// [`Descriptors::find`] does not find it.
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
        // A segment register may have a selector of another table, loaded before GDTR or LDTR changed.
        if offset + 7 > limit {
            return None;
        }
        let linear = (table as u32).wrapping_add(offset);
        let bytes = self.find(cpu, memory, linear, size_of::<u64>())?;
        let descriptor = u64::from_le_bytes(*bytes.first_chunk()?);
        Some((bytes.as_ptr().addr() as u64, descriptor))
    }

    /// Notes the address of the IDT, and that of the stack pointer in the TSS.
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

    /// Notes the descriptors in LDTR and TR after LLDT or LTR.
    pub(crate) fn note_system_registers(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        context: &mut Context,
    ) {
        let tables = context.tables;
        for (register, known) in [(self.ldtr, tables.local), (self.tr, tables.task)] {
            let selector = Selector(register.selector);
            if known.selector == selector.0.into() || selector.is_null() || selector.is_local() {
                continue;
            }
            let Some((host, descriptor)) = self.read(cpu, memory, selector) else { continue };
            if Descriptor(descriptor).segment(selector.0) != register {
                continue;
            }
            let loaded = Loaded { host, descriptor, selector: selector.0.into() };
            if register.attributes.kind() == system::LDT {
                context.tables.local = loaded;
            } else if self.is_plain(cpu, memory, selector) {
                context.tables.task = Loaded { descriptor: descriptor & !BUSY, ..loaded };
            }
        }
    }

    /// Returns whether the descriptor of `selector` in the GDT can be written to as ordinary memory.
    fn is_plain(&self, cpu: &mut Cpu, memory: &mut Memory, selector: Selector) -> bool {
        let linear = (self.gdtr.base as u32).wrapping_add(u32::from(selector.0 & !7));
        let page = page(cpu, memory, linear).filter(|mapping| mapping.writable);
        page.is_some_and(|mapping| {
            let target = memory.write_target(mapping.address);
            target == memory.read_target(mapping.address)
                && matches!(target, Target::Place(place) if memory.is_plain(place))
        })
    }

    /// Notes the segment in `register`, which was just loaded.
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
        let number = number_of(selector);
        let known = &context.known_descriptors[number];
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
        // The page tables may be ahead of the TLB, by which the interpreter has read the descriptor.
        if Descriptor(descriptor).segment(selector.0) != segment {
            return;
        }
        self.segments[number] = segment;
        self.is_empty = false;
        context.known_descriptors[number] = KnownDescriptor {
            view: View::of(&segment, limits),
            host,
            descriptor,
            near: if segment.is_free() { segment.base } else { NO_BASE },
            selector: selector.0.into(),
            allowed,
        };
    }

    /// Returns the bytes of a table from `linear` to the end of the page. Returns None if there are fewer
    /// than `len`, if they are not in guest memory, or if nothing has accessed the page yet. In long mode tables
    /// have 64-bit addresses, and nothing is known of them.
    fn find<'a>(
        &mut self,
        cpu: &mut Cpu,
        memory: &'a mut Memory,
        linear: u32,
        len: usize,
    ) -> Option<&'a [u8]> {
        if cpu.is_in_long_mode() {
            return None;
        }
        let mapping = page(cpu, memory, linear)?;
        if mapping.user && cpu.cr4().contains(Cr4::SMAP) {
            // SMAP lets no implicit access to a table through, whatever AC is.
            return None;
        }
        let Target::Place(page) = memory.read_target(mapping.address) else { return None };
        let bytes = memory.page_from(page + (linear & 0xfff) as usize)?;
        self.is_global &= mapping.global;
        (bytes.len() >= len).then_some(bytes)
    }

    /// Gives the segment registers that translated code has loaded to the processor.
    pub(crate) fn store(&self, cpu: &mut Cpu, context: &mut Context) {
        let loaded = std::mem::take(&mut context.loaded);
        for (register, _) in (sreg::ES..=sreg::GS).zip(loaded).filter(|(_, loaded)| *loaded) {
            cpu.set_segment(register, self.loaded(register, context));
        }
    }

    /// Gives CS and SS to the processor if INT n, IRET or a far transfer has loaded them. SS brings the
    /// privilege level with it.
    pub(crate) fn store_transferred(&self, cpu: &mut Cpu, context: &mut Context) {
        let transferred = std::mem::take(&mut context.transferred);
        for (register, is_loaded) in [sreg::CS, sreg::SS].into_iter().zip(transferred) {
            if is_loaded {
                cpu.set_segment(register, self.loaded(register, context));
            }
        }
    }

    /// Returns the segment that translated code has loaded into `register`.
    fn loaded(&self, register: u8, context: &Context) -> Segment {
        let selector = Selector(context.selectors[usize::from(register)]);
        if selector.is_null() {
            Segment::null(selector.0)
        } else {
            self.segments[number_of(selector)]
        }
    }
}

/// Returns the page of `linear`, or None if nothing has accessed it yet.
fn page(cpu: &mut Cpu, memory: &mut Memory, linear: u32) -> Option<PageMapping> {
    if cpu.cr0().contains(Cr0::PG) {
        cpu.page_in_advance(memory, linear.into(), Access::Read, false).map(|(mapping, _)| mapping)
    } else {
        cpu.map_page(memory, linear.into(), Access::Read, false)
    }
}

/// Returns whether a load of `register` at privilege `cpl` with the selector of `segment` raises no exception
/// and sets no accessed bit (SDM vol. 2, MOV and RET). It is false for conforming code, whose privilege is
/// that of its caller.
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

/// Returns the kinds of supervisor code that may load `segment` into `register` without changing their mode.
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

/// Returns the index of the entry for `selector`: the low bits of its index, and its table indicator.
fn number_of(selector: Selector) -> usize {
    usize::from(selector.0 >> DESCRIPTOR_NUMBER_SHIFT) % KNOWN_DESCRIPTORS
}
