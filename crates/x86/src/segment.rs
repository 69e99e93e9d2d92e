//! Segments: descriptors, selectors and the segment registers with their
//! hidden parts (SDM vol. 3, chapter 3).

use ring3_core::memory::Memory;
use serde::{Deserialize, Serialize};

use crate::cpu::Cpu;
use crate::exception::{Fault, Stop, Stopped, vector};

/// Segment registers by their number in instructions.
pub mod sreg {
    /// Extra segment.
    pub const ES: u8 = 0;
    /// Code segment.
    pub const CS: u8 = 1;
    /// Stack segment.
    pub const SS: u8 = 2;
    /// Data segment.
    pub const DS: u8 = 3;
    /// The 386's first additional segment.
    pub const FS: u8 = 4;
    /// The 386's second additional segment.
    pub const GS: u8 = 5;
}

/// The attribute bits of a descriptor's second doubleword, shifted right by 8: type, S, DPL, P, and from bit
/// 12 on AVL, L, D/B, G.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes(pub u16);

impl Attributes {
    const ACCESSED: u16 = 1;

    /// Returns the four type bits (SDM vol. 3, tables 3-1 and 3-2).
    pub const fn kind(self) -> u8 {
        (self.0 & 15) as u8
    }

    /// Returns whether this is a code or data segment, not a system segment or gate (S flag).
    pub const fn is_code_or_data(self) -> bool {
        self.0 & 1 << 4 != 0
    }

    /// Returns the descriptor privilege level.
    pub const fn dpl(self) -> u8 {
        (self.0 >> 5 & 3) as u8
    }

    /// Returns the present flag.
    pub const fn present(self) -> bool {
        self.0 & 1 << 7 != 0
    }

    /// Returns the L flag of a code segment: in long mode it contains 64-bit code.
    pub const fn is_64_bit(self) -> bool {
        self.0 & 1 << 13 != 0
    }

    /// Returns the D/B flag: 32-bit code, or a 32-bit stack.
    pub const fn big(self) -> bool {
        self.0 & 1 << 14 != 0
    }

    /// Returns whether this is a code segment.
    pub const fn is_code(self) -> bool {
        self.is_code_or_data() && self.0 & 8 != 0
    }

    /// Returns whether this is a data segment.
    pub const fn is_data(self) -> bool {
        self.is_code_or_data() && self.0 & 8 == 0
    }

    /// Returns whether this is a conforming code segment.
    pub const fn is_conforming(self) -> bool {
        self.is_code() && self.0 & 4 != 0
    }

    /// Returns whether this is a data segment, or a readable code segment.
    pub const fn is_readable(self) -> bool {
        self.is_data() || self.is_code() && self.0 & 2 != 0
    }

    /// Returns whether this is a writable data segment.
    pub const fn is_writable(self) -> bool {
        self.is_data() && self.0 & 2 != 0
    }

    /// Returns whether this is an expand-down data segment, in which offsets up to the limit are outside.
    pub const fn expands_down(self) -> bool {
        self.is_data() && self.0 & 4 != 0
    }
}

/// System descriptor types (SDM vol. 3, table 3-2).
pub mod system {
    /// 16-bit TSS, available.
    pub const TSS16_AVAILABLE: u8 = 1;
    /// LDT.
    pub const LDT: u8 = 2;
    /// 16-bit TSS, busy.
    pub const TSS16_BUSY: u8 = 3;
    /// 16-bit call gate.
    pub const CALL_GATE16: u8 = 4;
    /// Task gate.
    pub const TASK_GATE: u8 = 5;
    /// 16-bit interrupt gate.
    pub const INTERRUPT_GATE16: u8 = 6;
    /// 16-bit trap gate.
    pub const TRAP_GATE16: u8 = 7;
    /// 32-bit TSS, available.
    pub const TSS32_AVAILABLE: u8 = 9;
    /// 32-bit TSS, busy.
    pub const TSS32_BUSY: u8 = 11;
    /// 32-bit call gate.
    pub const CALL_GATE32: u8 = 12;
    /// 32-bit interrupt gate.
    pub const INTERRUPT_GATE32: u8 = 14;
    /// 32-bit trap gate.
    pub const TRAP_GATE32: u8 = 15;
}

/// The eight bytes of a descriptor (SDM vol. 3, figure 3-8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor(pub u64);

impl Descriptor {
    /// Returns type, privilege and other attributes.
    pub const fn attributes(self) -> Attributes {
        Attributes((self.0 >> 40 & 0xf0ff) as u16)
    }

    /// Base address.
    pub const fn base(self) -> u64 {
        self.0 >> 16 & 0xff_ffff | (self.0 >> 56) << 24
    }

    /// Limit in bytes: the last offset inside.
    pub const fn limit(self) -> u32 {
        let limit = (self.0 & 0xffff | self.0 >> 32 & 0xf_0000) as u32;
        if self.0 & 1 << 55 != 0 { limit << 12 | 0xfff } else { limit }
    }

    /// Returns the contents of a segment register that holds this descriptor under `selector`.
    pub const fn segment(self, selector: u16) -> Segment {
        Segment::new(selector, self.base(), self.limit(), self.attributes())
    }
}

/// A selector (SDM vol. 3, 3.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selector(pub u16);

impl Selector {
    /// Requested privilege level.
    pub const fn rpl(self) -> u8 {
        (self.0 & 3) as u8
    }

    /// Returns whether it refers to the LDT.
    pub const fn is_local(self) -> bool {
        self.0 & 4 != 0
    }

    /// Returns whether it is a null selector: entry 0 of the GDT with any RPL.
    pub const fn is_null(self) -> bool {
        self.0 & !3 == 0
    }

    /// Returns its form in error codes, without the RPL.
    pub const fn error_code(self) -> u32 {
        (self.0 & !3) as u32
    }
}

/// A segment register: the selector and the hidden part.
#[derive(Debug, Clone, Copy, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Visible part.
    pub selector: u16,
    /// Base address.
    pub base: u64,
    /// Limit in bytes.
    pub limit: u32,
    /// Type and privilege. They are all zero for a null selector, so that nothing is allowed.
    pub attributes: Attributes,
    /// Whether every offset may be read.
    pub(crate) reads_freely: bool,
    /// Whether every offset may be written.
    pub(crate) writes_freely: bool,
}

impl PartialEq for Segment {
    /// Compares everything at once, without branches: engines compare all segment registers again and again,
    /// and mostly they are equal. What may be accessed freely follows from the other fields.
    #[inline]
    #[expect(clippy::needless_bitwise_bool, reason = "branches take longer")]
    fn eq(&self, other: &Segment) -> bool {
        (self.base == other.base)
            & (self.limit == other.limit)
            & (self.selector == other.selector)
            & (self.attributes == other.attributes)
    }
}

impl Segment {
    /// Returns whether it can be read and written at every offset, from 0 to FFFFFFFFh.
    pub fn is_free(&self) -> bool {
        self.reads_freely && self.writes_freely
    }

    /// Makes a segment register with these contents.
    pub const fn new(selector: u16, base: u64, limit: u32, attributes: Attributes) -> Segment {
        let whole = limit == u32::MAX && !attributes.expands_down() && attributes.present();
        Segment {
            selector,
            base,
            limit,
            attributes,
            reads_freely: whole && attributes.is_readable(),
            writes_freely: whole && attributes.is_writable(),
        }
    }

    /// Makes the contents after a null selector was loaded.
    pub const fn null(selector: u16) -> Segment {
        Segment::new(selector, 0, 0, Attributes(0))
    }

    /// Makes the contents of SS after a null selector was loaded at privilege level `cpl`, as 64-bit code may
    /// do at levels below 3.
    pub const fn null_stack(cpl: u8) -> Segment {
        Segment::new(cpl as u16, 0, 0, Attributes((cpl as u16) << 5))
    }

    /// Makes the contents that real mode (privilege 0) and virtual-8086 mode (privilege 3) load: base 16
    /// times the selector, 64 KiB.
    pub const fn real(selector: u16, dpl: u8) -> Segment {
        Segment::new(selector, (selector as u64) << 4, 0xffff, Attributes(0x93 | (dpl as u16) << 5))
    }

    /// Returns whether `size` bytes at `offset` are inside the limit.
    pub const fn contains(&self, offset: u32, size: u32) -> bool {
        let Some(last) = offset.checked_add(size - 1) else {
            return false;
        };
        if self.attributes.expands_down() {
            let highest = if self.attributes.big() { u32::MAX } else { 0xffff };
            offset > self.limit && last <= highest
        } else {
            last <= self.limit
        }
    }

    /// Returns how many bytes from `offset` on are inside the limit, for a segment that is present and does
    /// not expand down, or 0 for others.
    pub(crate) fn room(&self, offset: u64) -> usize {
        if !self.attributes.present() || self.attributes.expands_down() {
            return 0;
        }
        (u64::from(self.limit) + 1).saturating_sub(offset) as usize
    }
}

/// What an access through a segment register needs of it, prepared when the register is loaded or the mode
/// changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    /// The base address that counts.
    pub(crate) base: u64,
    /// Whether every offset may be read if the TLB allows it.
    pub(crate) reads_at_once: bool,
    /// Whether every offset may be written if the TLB allows it.
    pub(crate) writes_at_once: bool,
    /// Whether every offset may be read without further checks before paging.
    pub(crate) reads_freely: bool,
    /// Whether every offset may be written without further checks before paging.
    pub(crate) writes_freely: bool,
}

impl View {
    /// Makes the view of `segment` outside 64-bit mode.
    pub(crate) const fn of(segment: &Segment) -> View {
        let Segment { base, reads_freely, writes_freely, .. } = *segment;
        View {
            base,
            reads_at_once: reads_freely,
            writes_at_once: writes_freely,
            reads_freely,
            writes_freely,
        }
    }

    /// Makes the view of `segment`, in segment register `register`, in 64-bit mode: only FS and GS have a base
    /// address, and nothing is checked but that linear addresses are canonical (SDM vol. 3, 3.4.4 and 6.3.1).
    /// The TLB has no entry for one that is not.
    pub(crate) const fn in_64_bit_mode(register: u8, segment: &Segment) -> View {
        View {
            base: if matches!(register, sreg::FS | sreg::GS) { segment.base } else { 0 },
            reads_at_once: true,
            writes_at_once: true,
            reads_freely: false,
            writes_freely: false,
        }
    }
}

/// GDTR or IDTR.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRegister {
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes.
    pub limit: u16,
}

impl Cpu {
    /// Returns the linear address of a selector's descriptor, or None if it is outside its table or refers to
    /// an LDT that does not exist.
    pub(crate) fn descriptor_address(&self, selector: Selector) -> Option<u64> {
        let (base, limit) = if selector.is_local() {
            if !self.ldtr.attributes.present() {
                return None;
            }
            (self.ldtr.base, self.ldtr.limit)
        } else {
            (self.gdtr.base, u32::from(self.gdtr.limit))
        };
        let offset = u32::from(selector.0 & !7);
        (offset + 7 <= limit).then(|| self.table_linear(base.wrapping_add(u64::from(offset))))
    }

    /// Reads the upper eight bytes of the descriptor of a selector, as those of system segments and gates have
    /// in long mode. Raises #GP with the selector if they are outside the table, or have a type (SDM vol. 3,
    /// 9.7.3).
    pub(crate) fn read_upper_half(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
    ) -> Result<u64, Stopped> {
        let next = Selector(selector.0.wrapping_add(8));
        let address = self.descriptor_address(next).filter(|_| next.0 > selector.0);
        let Some(address) = address else {
            return Err(self.general_protection(selector.error_code()));
        };
        let upper: u64 = self.read_system(memory, address)?;
        if upper >> 40 & 0x1f != 0 {
            return Err(self.general_protection(selector.error_code()));
        }
        Ok(upper)
    }

    /// Reads a selector's descriptor. If it is outside its table, this raises exception `vector` with the
    /// selector (and `external`, the EXT bit) as error code.
    pub(crate) fn read_descriptor(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
        vector: u8,
        external: u32,
    ) -> Result<Descriptor, Stopped> {
        match self.descriptor_address(selector) {
            Some(address) => Ok(Descriptor(self.read_system(memory, address)?)),
            None => Err(self.fault(Fault::with_code(vector, selector.error_code() | external))),
        }
    }

    /// Sets the accessed bit of a code or data descriptor, as loading it does.
    pub(crate) fn mark_accessed(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
        descriptor: Descriptor,
    ) -> Result<Descriptor, Stopped> {
        let accessed = u64::from(Attributes::ACCESSED) << 40;
        if descriptor.0 & accessed == 0
            && let Some(address) = self.descriptor_address(selector)
        {
            let byte = (descriptor.0 >> 40) as u8 | Attributes::ACCESSED as u8;
            self.write_system(memory, address + 5, byte)?;
        }
        Ok(Descriptor(descriptor.0 | accessed))
    }

    /// Loads segment register `register` other than CS, for MOV, POP, LDS and similar instructions, with all
    /// checks of SDM vol. 2, MOV, "Loading a segment register".
    pub(crate) fn load_segment(
        &mut self,
        memory: &mut Memory,
        register: u8,
        selector: u16,
    ) -> Result<(), Stopped> {
        let segment = if self.in_protected_mode() {
            self.checked_data_segment(memory, register, Selector(selector))?
        } else if self.in_virtual_8086_mode() {
            Segment::real(selector, 3)
        } else {
            // Real mode changes base and selector only; limit and attributes stay as protected mode left them
            // ("unreal mode").
            let old = self.segment(register);
            Segment::new(selector, u64::from(selector) << 4, old.limit, old.attributes)
        };
        self.set_segment(register, segment);
        Ok(())
    }

    /// Returns the error code of the #GP that a load of segment register `register` other than CS with
    /// `selector` raises in protected mode. Returns None if it raises another exception, or none.
    pub fn refused_load(
        &mut self,
        memory: &mut Memory,
        register: u8,
        selector: u16,
    ) -> Option<u32> {
        self.allowed_descriptor(memory, register, Selector(selector)).err()?;
        match *self.stop() {
            Stop::Fault(Fault { vector: vector::GP, error_code, .. }) => error_code,
            _ => None,
        }
    }

    fn checked_data_segment(
        &mut self,
        memory: &mut Memory,
        register: u8,
        selector: Selector,
    ) -> Result<Segment, Stopped> {
        match self.allowed_descriptor(memory, register, selector)? {
            Some(descriptor) => {
                Ok(self.mark_accessed(memory, selector, descriptor)?.segment(selector.0))
            }
            None if register == sreg::SS => Ok(Segment::null_stack(self.cpl())),
            None => Ok(Segment::null(selector.0)),
        }
    }

    /// Returns the descriptor by which `register` may be loaded, or None for a null selector.
    fn allowed_descriptor(
        &mut self,
        memory: &mut Memory,
        register: u8,
        selector: Selector,
    ) -> Result<Option<Descriptor>, Stopped> {
        let is_stack = register == sreg::SS;
        let cpl = self.cpl();
        if selector.is_null() {
            let may_be_null =
                !is_stack || self.is_in_64_bit_mode() && cpl != 3 && selector.rpl() == cpl;
            return if may_be_null { Ok(None) } else { Err(self.general_protection(0)) };
        }
        let descriptor = self.read_descriptor(memory, selector, vector::GP, 0)?;
        let attributes = descriptor.attributes();
        let allowed = if is_stack {
            selector.rpl() == cpl && attributes.is_writable() && attributes.dpl() == cpl
        } else {
            attributes.is_readable()
                && (attributes.is_conforming()
                    || attributes.dpl() >= cpl && attributes.dpl() >= selector.rpl())
        };
        if !allowed {
            return Err(self.general_protection(selector.error_code()));
        }
        if !attributes.present() {
            let vector = if is_stack { vector::SS } else { vector::NP };
            return Err(self.fault(Fault::with_code(vector, selector.error_code())));
        }
        Ok(Some(descriptor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_taken_apart() {
        let flat = Descriptor(0x00cf_9b00_0000_ffff);
        assert_eq!((flat.base(), flat.limit()), (0, u32::MAX));
        assert!(flat.attributes().is_code() && flat.attributes().big());
        let other = Descriptor(0x1240_f234_5678_9abc);
        assert_eq!((other.base(), other.limit()), (0x1234_5678, 0x9abc));
        assert!(other.attributes().is_writable());
        assert_eq!(other.attributes().dpl(), 3);
    }

    #[test]
    fn limits() {
        let up = Segment::new(8, 0, 0xfff, Attributes(0x4093));
        assert!(up.contains(0xffc, 4) && !up.contains(0xffd, 4));
        assert!(!up.contains(u32::MAX, 2));
        let down = Segment::new(8, 0, 0xfff, Attributes(0x4097));
        assert!(!down.contains(0xfff, 1) && down.contains(0x1000, 4));
        assert!(down.contains(0xffff_fffc, 4));
        let small_down = Segment::new(8, 0, 0xfff, Attributes(0x0097));
        assert!(small_down.contains(0xffff, 1) && !small_down.contains(0xffff, 2));
    }
}
