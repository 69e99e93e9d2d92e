//! Virtual interrupts, which CR4.VME adds to virtual-8086 mode, and CR4.PVI to protected mode at privilege 3
//! (SDM vol. 3, 21.3 and 21.4).
//!
//! With IOPL below 3, the instructions that use IF use VIF instead, and INT n may go directly to the 8086
//! program's own vector table.

use ring3_core::memory::Memory;

use crate::access::NewStack;
use crate::cpu::{Cpu, Cr4};
use crate::exception::Stopped;
use crate::flags::Eflags;
use crate::segment::{Segment, sreg};

/// Offset in a 32-bit TSS of the field with the offset of its I/O permission bit map (SDM vol. 3, figure
/// 9-2). The interrupt redirection bit map is directly before that bit map.
const BIT_MAP_OFFSET: u64 = 0x66;
const REDIRECTION_BYTES: u64 = 32;

/// The interrupt flag that an instruction uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptFlag {
    /// IF itself.
    Real,
    /// VIF instead of IF.
    Virtual,
    /// None: the instruction raises #GP(0).
    Forbidden,
}

impl Cpu {
    /// Returns the flag for CLI and STI (SDM vol. 2, CLI, table 3-6).
    pub(crate) fn flag_of_cli(&self) -> InterruptFlag {
        let virtualized = if self.in_virtual_8086_mode() {
            self.cr4.contains(Cr4::VME)
        } else {
            self.cr4.contains(Cr4::PVI) && self.cpl() == 3
        };
        match (self.cpl() <= self.iopl(), virtualized) {
            (true, _) => InterruptFlag::Real,
            (false, true) => InterruptFlag::Virtual,
            (false, false) => InterruptFlag::Forbidden,
        }
    }

    /// Returns the flag for PUSHF, POPF and IRET, of doublewords if `wide`. Outside virtual-8086 mode they
    /// may always be used.
    pub(crate) fn flag_of_popf(&self, wide: bool) -> InterruptFlag {
        if !self.in_virtual_8086_mode() || self.iopl() == 3 {
            InterruptFlag::Real
        } else if self.cr4.contains(Cr4::VME) && !wide {
            InterruptFlag::Virtual
        } else {
            InterruptFlag::Forbidden
        }
    }

    /// Returns FLAGS as PUSHF and INT n push them when VIF replaces IF: with VIF in the place of IF, and IOPL
    /// 3.
    pub(crate) fn virtual_flags_image(&self) -> u16 {
        let mut image = Eflags::from_bits_retain(self.eflags_image()) | Eflags::IOPL;
        image.set(Eflags::IF, self.has_flag(Eflags::VIF));
        image.bits() as u16
    }

    /// Raises #GP(0) unless POPF or IRET may load `flags` when VIF replaces IF: TF must stay clear, and the
    /// monitor must deliver a pending virtual interrupt.
    pub(crate) fn check_virtual_flags(&mut self, flags: Eflags) -> Result<(), Stopped> {
        let delivers = flags.contains(Eflags::IF) && self.has_flag(Eflags::VIP);
        if delivers || flags.contains(Eflags::TF) {
            return Err(self.general_protection(0));
        }
        Ok(())
    }

    /// Loads FLAGS, which were checked, with VIF in the place of IF.
    pub(crate) fn load_virtual_flags(&mut self, flags: Eflags) {
        let mut flags = flags;
        flags.set(Eflags::VIF, flags.contains(Eflags::IF));
        let mask = Eflags::STATUS | Eflags::TF | Eflags::DF | Eflags::NT | Eflags::VIF;
        self.change_eflags(flags, mask);
    }

    /// Performs INT n in virtual-8086 mode with VME. Returns whether the redirection bit map has sent it to
    /// the program's own handler (SDM vol. 3, 21.3.3, methods 5 and 6).
    pub(crate) fn redirect_interrupt(
        &mut self,
        memory: &mut Memory,
        vector: u8,
    ) -> Result<bool, Stopped> {
        if !self.in_virtual_8086_mode() || !self.cr4.contains(Cr4::VME) {
            return Ok(false);
        }
        let tss = self.tr;
        if u64::from(tss.limit) < BIT_MAP_OFFSET + 1 {
            return Err(self.general_protection(0));
        }
        let bit_map: u16 = self.read_system(memory, tss.base.wrapping_add(BIT_MAP_OFFSET))?;
        let offset = u64::from(bit_map).wrapping_sub(REDIRECTION_BYTES) + u64::from(vector / 8);
        if offset > u64::from(tss.limit) {
            return Err(self.general_protection(0));
        }
        let bits: u8 = self.read_system(memory, tss.base.wrapping_add(offset))?;
        if bits >> (vector & 7) & 1 != 0 {
            return Ok(false);
        }
        let entry: u32 = self.read_linear(memory, u64::from(vector) * 4, true)?;
        let is_virtual = self.iopl() < 3;
        let flags = if is_virtual {
            self.virtual_flags_image()
        } else {
            self.eflags_image() as u16 & !(Eflags::NT.bits() as u16)
        };
        let selector = self.segment(sreg::CS).selector;
        let mut stack = NewStack::current(self, 0);
        for value in [flags, selector, self.ip as u16] {
            stack.push(self, memory, value.into(), 2)?;
        }
        stack.commit(self);
        self.set_segment(sreg::CS, Segment::real((entry >> 16) as u16, 3));
        self.ip = u64::from(entry & 0xffff);
        let disabled = if is_virtual { Eflags::VIF } else { Eflags::IF };
        self.change_eflags(Eflags::empty(), disabled | Eflags::TF | Eflags::NT);
        Ok(true)
    }
}
