//! Completes accesses to devices without the engine. An instruction that accesses a port, or memory that
//! belongs to a device, leaves the engine, which would then begin the instruction anew to give it the answer.
//! If the instruction does nothing else (IN, OUT and MOV) and there are no special conditions, the machine
//! lets the processor finish it directly. For a repeated INS, OUTS or STOS, by which disks, networks and
//! screens are read and written word by word, the next element then counts as requested, or the device moves
//! many of them at once.

use ring3_core::device::Width;
use ring3_core::memory::{Memory, PAGE_SIZE};

use crate::cpu::{Attention, Cpu, reg, width_of};
use crate::decode::{Op, Repeat};
use crate::engine::Exit;
use crate::exception::Stop;
use crate::flags::Eflags;
use crate::segment::sreg;
use crate::table::FormId;
use crate::word::Word;

/// An instruction that has asked for an access to a device and then only has to complete this work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceAccess {
    width: Width,
    /// Length of the instruction in bytes.
    length: u8,
    /// The form of the instruction.
    form: FormId,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    In,
    Out,
    /// A register of this width is loaded from memory, with zeros above the value read.
    Load(u8, Width),
    /// A value is written to memory.
    Store,
    /// A repeated STOS, whose present element is at this guest-physical address.
    Fill(Element, u64),
    /// A repeated INS or OUTS.
    String(Element),
}

impl Kind {
    /// Returns whether this is one element of many, for which memory must be checked further.
    fn repeats(self) -> bool {
        matches!(self, Kind::Fill(..) | Kind::String(_))
    }
}

/// The place of the elements of a repeated instruction.
#[derive(Debug, Clone, Copy)]
struct Element {
    /// Whether elements are written there, by INS or STOS.
    is_input: bool,
    segment: u8,
    /// The mask of the bits of SI, DI and CX that are used.
    address_mask: u64,
}

impl Element {
    /// Returns the register with its offset.
    fn index(self) -> u8 {
        if self.is_input { reg::DI } else { reg::SI }
    }
}

/// Consecutive elements in memory of a repeated instruction, which a device may move at once.
#[derive(Debug)]
pub enum PortString<'a> {
    /// INS: they are read from a port into this memory.
    Read(&'a mut [u8]),
    /// OUTS: they are written from this memory to a port.
    Write(&'a [u8]),
}

impl DeviceAccess {
    fn of(op: &Op, width: Width, kind: Kind) -> DeviceAccess {
        DeviceAccess { width, length: op.length, form: op.form, kind }
    }
}

impl Cpu {
    /// Notes that `op`, an IN, has asked for the value of its port.
    pub(crate) fn note_input(&mut self, op: &Op, width: Width) {
        self.device_access = Some(DeviceAccess::of(op, width, Kind::In));
    }

    /// Notes that `op`, an OUT, has asked for its access.
    pub(crate) fn note_output(&mut self, op: &Op, width: Width) {
        self.device_access = Some(DeviceAccess::of(op, width, Kind::Out));
    }

    /// Notes that `op`, an INS or OUTS, has asked for the access of one element.
    pub(crate) fn note_string_access(&mut self, op: &Op, width: Width, is_input: bool) {
        if op.repeat == Repeat::None {
            return;
        }
        let segment = if is_input { sreg::ES } else { op.segment };
        let element = Element { is_input, segment, address_mask: op.address_mask() };
        let kind = Kind::String(element);
        self.device_access = Some(DeviceAccess::of(op, width, kind));
    }

    /// Notes that `op`, which loads its register of size `To` with a value of size `W` and zeros above it, has
    /// asked for some of the value.
    pub(crate) fn note_load<W: Word, To: Word>(&mut self, op: &Op) {
        let (width, register) = (width_of::<W>(), width_of::<To>());
        // This is the whole value, unless it is spread over two pages or is a quadword.
        if matches!(self.stop(), Stop::Restart(Exit::MmioRead { width: asked, .. }) if *asked == width)
            && W::BITS < 64
        {
            let kind = Kind::Load(op.reg, register);
            self.device_access = Some(DeviceAccess::of(op, width, kind));
        }
    }

    /// Notes that `op`, which only writes a value of size `W` to memory, has asked for some of the access.
    pub(crate) fn note_store<W: Word>(&mut self, op: &Op) {
        let width = width_of::<W>();
        if matches!(self.stop(), Stop::Restart(Exit::MmioWrite { width: asked, .. }) if *asked == width)
            && W::BITS < 64
        {
            let kind = Kind::Store;
            self.device_access = Some(DeviceAccess::of(op, width, kind));
        }
    }

    /// Notes that `op`, a STOS of elements of size `W`, has asked for some of the access of one element.
    pub(crate) fn note_fill<W: Word>(&mut self, op: &Op) {
        let width = width_of::<W>();
        if op.repeat == Repeat::None || W::BITS == 64 {
            return;
        }
        if let Stop::Restart(Exit::MmioWrite { address, width: asked, .. }) = *self.stop()
            && asked == width
        {
            let address_mask = op.address_mask();
            let element = Element { is_input: true, segment: sreg::ES, address_mask };
            let kind = Kind::Fill(element, address);
            self.device_access = Some(DeviceAccess::of(op, width, kind));
        }
    }

    /// Finishes the instruction, or the iteration of a repeated one, for whose access to a port or to a
    /// device's memory the engine returned. `value` is the value read, and `has_changed_map` says that the
    /// machine has changed the map of memory since the exit. If this needs the engine, nothing is done and
    /// the result is false; the value must then be given as an [answer](Cpu::answer).
    pub fn finish_access(
        &mut self,
        memory: &mut Memory,
        value: u32,
        has_changed_map: bool,
    ) -> bool {
        let Some(access) = self.device_access.take() else { return false };
        let DeviceAccess { width, length, form, kind } = access;
        let is_plain = (self.attention - Attention::RESUME).is_empty();
        let has_changed_memory = has_changed_map || memory.has_stale_code();
        if !is_plain || has_changed_memory && kind.repeats() {
            return false;
        }
        let is_over = match kind {
            Kind::In => {
                self.load_register(reg::AX, width, value);
                true
            }
            Kind::Load(register, to) => {
                let all = match width {
                    Width::Byte => value & 0xff,
                    Width::Word => value & 0xffff,
                    Width::Dword => value,
                };
                self.load_register(register, to, all);
                true
            }
            Kind::Out | Kind::Store => true,
            Kind::Fill(element, _) => {
                let count = self.gpr(reg::CX) & element.address_mask;
                if count == 0 {
                    return false;
                }
                self.step_over(element, width, 1);
                count == 1
            }
            Kind::String(element) => {
                let Some(rest) = self.finish_iteration(memory, element, width, value) else {
                    return false;
                };
                rest == 0
            }
        };
        self.count(form, self.is_user());
        if is_over {
            self.ip = self.next_ip(self.ip, length.into());
            if self.attention.contains(Attention::RESUME) {
                self.use_resume_flag();
            }
        } else {
            // RF is set as after any iteration but the last one.
            self.set_resume_flag();
            self.device_access = Some(access);
        }
        true
    }

    fn load_register(&mut self, register: u8, width: Width, value: u32) {
        match width {
            Width::Byte => self.set(register, value as u8),
            Width::Word => self.set(register, value as u16),
            Width::Dword => self.set(register, value),
        }
    }

    /// Completes an iteration of a repeated instruction whose access is done. Returns how many iterations are
    /// left, or None if this needs the engine.
    fn finish_iteration(
        &mut self,
        memory: &mut Memory,
        element: Element,
        width: Width,
        value: u32,
    ) -> Option<u64> {
        let mask = element.address_mask;
        let count = self.gpr(reg::CX) & mask;
        if count == 0 {
            return None;
        }
        if element.is_input {
            let place = self.place_of(element, width)?;
            match width {
                Width::Byte => memory.store(place, [value as u8]),
                Width::Word => memory.store(place, (value as u16).to_le_bytes()),
                Width::Dword => memory.store(place, value.to_le_bytes()),
            }
        }
        self.step_over(element, width, 1);
        Some(count - 1)
    }

    /// Changes the registers as `count` iterations do. So many must be left.
    fn step_over(&mut self, element: Element, width: Width, count: u64) {
        let mask = element.address_mask;
        let distance = count * u64::from(width.bytes());
        let offset = self.gpr(element.index()) & mask;
        let next = if self.has_flag(Eflags::DF) {
            offset.wrapping_sub(distance)
        } else {
            offset.wrapping_add(distance)
        };
        let left = (self.gpr(reg::CX) & mask) - count;
        for (register, value) in [(element.index(), next), (reg::CX, left)] {
            let kept = if mask == 0xffff { self.gpr(register) & !mask } else { 0 };
            self.set_gpr(register, kept | value & mask);
        }
    }

    /// Returns the place in memory of the present element, if the processor can access it without further
    /// checks.
    fn place_of(&self, element: Element, width: Width) -> Option<usize> {
        self.place_of_bytes(element, width.bytes().into())
    }

    /// Returns the place of `bytes` bytes from the present element on, 1 to a page, under the same condition.
    fn place_of_bytes(&self, element: Element, bytes: usize) -> Option<usize> {
        let offset = self.gpr(element.index()) & element.address_mask;
        if !self.segment_allows(element, offset, bytes) {
            return None;
        }
        let linear = self.linear(self.view(element.segment), offset);
        let entry = self.tlb.current(linear);
        if element.is_input {
            entry.for_write(linear, bytes)
        } else {
            entry.for_read(linear, bytes)
        }
    }

    /// Returns whether the segment of `element` allows the access to `bytes` bytes at `offset`.
    fn segment_allows(&self, element: Element, offset: u64, bytes: usize) -> bool {
        if self.is_in_64_bit_mode() {
            return true;
        }
        let segment = self.segment(element.segment);
        let attributes = segment.attributes;
        let allows =
            if element.is_input { attributes.is_writable() } else { attributes.is_readable() };
        allows && attributes.present() && segment.contains(offset as u32, bytes as u32)
    }

    /// Called after [`Cpu::finish_access`], when `instructions` more may be executed. Returns the processor's
    /// next request, if it comes from the same repeated instruction and the engine need not check anything
    /// before it. Otherwise the engine must continue, and the earlier request is void: the engine may deliver
    /// an interrupt, even if no instruction is left to execute.
    pub fn next_access(&mut self, memory: &mut Memory, instructions: u64) -> Option<Exit> {
        let access = self.device_access.take().filter(|_| instructions > 0)?;
        if !access.kind.repeats() || !self.goes_on_plainly(memory) {
            return None;
        }
        let (exit, kind) = match access.kind {
            Kind::Fill(element, address) => self.next_of_fill(element, access.width, address)?,
            Kind::String(element) => {
                (self.next_of_string(memory, element, access.width)?, access.kind)
            }
            _ => return None,
        };
        self.device_access = Some(DeviceAccess { kind, ..access });
        Some(exit)
    }

    /// Returns the access for the present element of an INS or OUTS.
    fn next_of_string(
        &mut self,
        memory: &mut Memory,
        element: Element,
        width: Width,
    ) -> Option<Exit> {
        let port = self.get(reg::DX);
        // Each iteration asks for the rights to its port. The engine raises the exception.
        if self.may_use_port(memory, port, width) != Some(true) {
            return None;
        }
        if element.is_input {
            return Some(Exit::PortRead { port, width });
        }
        let place = self.place_of(element, width)?;
        let value = match width {
            Width::Byte => memory.load::<1>(place)[0].into(),
            Width::Word => u16::from_le_bytes(memory.load(place)).into(),
            Width::Dword => u32::from_le_bytes(memory.load(place)),
        };
        Some(Exit::PortWrite { port, width, value })
    }

    /// Returns the access for the present element of a STOS, if it is in the same page as the last one at
    /// `address`.
    fn next_of_fill(&self, element: Element, width: Width, address: u64) -> Option<(Exit, Kind)> {
        let size = u64::from(width.bytes());
        let next =
            if self.has_flag(Eflags::DF) { address.checked_sub(size)? } else { address + size };
        let offset = self.gpr(reg::DI) & element.address_mask;
        let linear = self.linear(self.view(sreg::ES), offset);
        let page = |address: u64| address / PAGE_SIZE;
        // The elements are adjacent in the segment, too.
        let is_beside = page(next) == page(address)
            && page(next + size - 1) == page(address)
            && (linear ^ next) & (PAGE_SIZE - 1) == 0
            && self.segment_allows(element, offset, size as usize);
        let value = match width {
            Width::Byte => self.get::<u8>(reg::AX).into(),
            Width::Word => self.get::<u16>(reg::AX).into(),
            Width::Dword => self.get::<u32>(reg::AX),
        };
        is_beside
            .then_some((Exit::MmioWrite { address: next, width, value }, Kind::Fill(element, next)))
    }

    /// Returns whether [`Cpu::next_access`] may ask for another element of an INS or OUTS.
    pub fn is_in_port_string(&self) -> bool {
        matches!(self.device_access, Some(DeviceAccess { kind: Kind::String(_), .. }))
    }

    /// Returns whether [`Cpu::next_access`] may ask for another element of a repeated INS, OUTS or STOS.
    pub fn is_repeating_access(&self) -> bool {
        self.device_access.is_some()
    }

    /// Moves several elements at once where [`Cpu::next_access`] would ask for another one. `transfer` moves
    /// as many as it can of the elements that are consecutive in memory, at most `most` and never the last
    /// one, at this port and by accesses of this width. It returns how many it has moved, from the first one
    /// on. This completes their iterations and returns the same number. No interrupt may come between them.
    pub fn move_port_string(
        &mut self,
        memory: &mut Memory,
        most: u64,
        transfer: impl FnOnce(u16, Width, PortString<'_>) -> usize,
    ) -> u64 {
        let Some(DeviceAccess { width, form, kind: Kind::String(element), .. }) =
            self.device_access
        else {
            return 0;
        };
        if most == 0 || self.has_flag(Eflags::DF) || !self.goes_on_plainly(memory) {
            return 0;
        }
        let size = usize::from(width.bytes());
        let mask = element.address_mask;
        let left = (self.gpr(reg::CX) & mask).saturating_sub(1).min(most);
        let Some(place) = self.place_of(element, width) else { return 0 };
        // The rest of the page, and of the offsets within the address size.
        let in_page = PAGE_SIZE - (place as u64 & (PAGE_SIZE - 1));
        let in_segment = (mask - (self.gpr(element.index()) & mask)).saturating_add(1);
        let room = in_page.min(in_segment) as usize / size;
        let count = usize::try_from(left).map_or(room, |left| left.min(room));
        let bytes = count * size;
        if count == 0 || self.place_of_bytes(element, bytes) != Some(place) {
            return 0;
        }
        let port = self.get(reg::DX);
        // This is asked once for all of them, so none of them may change the answer.
        if self.may_use_port(memory, port, width) != Some(true)
            || element.is_input && !self.keeps_port_rights(memory, port, place)
        {
            return 0;
        }
        let moved = if element.is_input {
            let Some(page) = memory.plain_page_from(place) else { return 0 };
            transfer(port, width, PortString::Read(&mut page[..bytes]))
        } else {
            let Some(page) = memory.page_from(place) else { return 0 };
            transfer(port, width, PortString::Write(&page[..bytes]))
        };
        let moved = moved.min(count) as u64;
        if moved > 0 {
            self.step_over(element, width, moved);
            self.count_several(form, self.is_user(), moved);
            // RF is set as after any iteration but the last one.
            self.set_resume_flag();
        }
        moved
    }

    /// Returns whether the engine need not check anything before the next iteration.
    fn goes_on_plainly(&mut self, memory: &Memory) -> bool {
        let is_interrupted = self.interrupt_pin && self.is_interruptible();
        !is_interrupted && !memory.has_stale_code() && self.begins_to_run_plainly()
    }
}
