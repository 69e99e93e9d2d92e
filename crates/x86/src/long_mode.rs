//! Long mode (SDM vol. 3, 11.8.5 and chapter 6 with the sections about 64-bit mode): IA32_EFER, the delivery of
//! events to 64-bit handlers, and the segments of fast system calls.
//!
//! Long mode has two submodes: 64-bit mode, and compatibility mode, in which 32-bit and 16-bit code runs as
//! outside long mode. What decoded code and accesses need to know of them is prepared when the mode changes:
//! [`CodeMode`](crate::decode::CodeMode), [`View`](crate::segment::View), and the masks of linear addresses
//! and of the stack pointer.

use ring3_core::memory::Memory;

use crate::access::{NewStack, is_canonical};
use crate::cpu::{Cpu, Cr0, Cr4, reg};
use crate::cpuid::Features;
use crate::exception::{Fault, Stopped, vector};
use crate::interrupt::{Event, Source};
use crate::segment::{Attributes, Descriptor, Segment, Selector, TableRegister, sreg, system};

/// Bits of IA32_EFER.
mod efer {
    pub(super) const SCE: u64 = 1 << 0;
    pub(super) const LME: u64 = 1 << 8;
    pub(super) const LMA: u64 = 1 << 10;
    pub(super) const NXE: u64 = 1 << 11;
}

/// Size of a gate in the IDT.
const GATE_BYTES: u64 = 16;
/// Offsets in the TSS of the stack pointers for privilege levels from 0 on, and of the interrupt stack table
/// (SDM vol. 3, figure 9-11).
const STACK_POINTERS: u32 = 0x04;
const STACK_TABLE: u32 = 0x24;

/// Code that a fast system call enters or leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlatCode {
    /// 32-bit code, which in long mode is in compatibility mode.
    Bits32,
    /// 64-bit code.
    Bits64,
}

impl FlatCode {
    /// Makes its segment at privilege level `cpl`.
    pub(crate) fn segment(self, selector: u16, cpl: u8) -> Segment {
        let size = match self {
            FlatCode::Bits32 => 0x4000,
            FlatCode::Bits64 => 0x2000,
        };
        Segment::new(selector, 0, u32::MAX, Attributes(0x809b | size | u16::from(cpl) << 5))
    }
}

/// The flags that SYSRET loads (SDM vol. 2, SYSRET): not RF and VM.
pub const RETURNED_FLAGS: u32 = 0x003c_7fd7;

/// Makes the stack segment of a fast system call, at privilege level `cpl`.
pub(crate) fn flat_stack(selector: u16, cpl: u8) -> Segment {
    Segment::new(selector, 0, u32::MAX, Attributes(0xc093 | u16::from(cpl) << 5))
}

impl Cpu {
    /// Returns IA32_EFER.
    pub fn efer(&self) -> u64 {
        let bits = [
            (self.msrs.long.system_calls, efer::SCE),
            (self.msrs.long.enabled, efer::LME),
            (self.is_in_long_mode(), efer::LMA),
            (self.msrs.no_execute, efer::NXE),
        ];
        bits.iter().filter(|(is_set, _)| *is_set).fold(0, |efer, (_, bit)| efer | bit)
    }

    /// Performs WRMSR to IA32_EFER. Raises #GP(0) for bits that the model has not got, and for a change of
    /// LME while paging is enabled. LMA cannot be written.
    pub(crate) fn write_efer(&mut self, value: u64) -> Result<(), Stopped> {
        let features = self.model.features();
        let mut known = efer::LMA;
        for (feature, bits) in
            [(Features::NX, efer::NXE), (Features::SYSCALL, efer::SCE), (Features::LM, efer::LME)]
        {
            if features.contains(feature) {
                known |= bits;
            }
        }
        if !self.model.has_long_mode() {
            known &= !efer::LMA;
        }
        let enables = value & efer::LME != 0;
        let changes_paging = enables != self.msrs.long.enabled && self.cr0.contains(Cr0::PG);
        if value & !known != 0 || changes_paging {
            return Err(self.general_protection(0));
        }
        self.msrs.no_execute = value & efer::NXE != 0;
        self.msrs.long.system_calls = value & efer::SCE != 0;
        self.msrs.long.enabled = enables;
        self.translation_changed();
        Ok(())
    }

    /// Raises #GP(0) unless MOV to CR0 may set `new`, with regard to long mode: it is activated with PAE and by
    /// code that is not 64-bit code, with a TSS that is not a 16-bit one; and 64-bit code cannot leave it (SDM
    /// vol. 3, 11.8.5).
    pub(crate) fn check_paging_change(&mut self, new: Cr0) -> Result<(), Stopped> {
        let changes = (new ^ self.cr0).contains(Cr0::PG);
        if !changes || !self.msrs.long.enabled {
            return Ok(());
        }
        let is_allowed = if new.contains(Cr0::PG) {
            let has_16_bit_tss =
                matches!(self.tr.attributes.kind(), system::TSS16_AVAILABLE | system::TSS16_BUSY);
            self.cr4.contains(Cr4::PAE)
                && !self.segment(sreg::CS).attributes.is_64_bit()
                && !has_16_bit_tss
        } else {
            !self.is_in_64_bit_mode()
        };
        if is_allowed { Ok(()) } else { Err(self.general_protection(0)) }
    }

    /// Sets the base address of FS or GS alone.
    pub(crate) fn set_base(&mut self, register: u8, base: u64) {
        let Segment { selector, limit, attributes, .. } = *self.segment(register);
        self.set_segment(register, Segment::new(selector, base, limit, attributes));
    }

    /// Loads CS and SS as SYSCALL does.
    pub fn enter_system(&mut self) {
        let selector = (self.msrs.long.star >> 32) as u16 & !3;
        self.set_code_segment(FlatCode::Bits64.segment(selector, 0), 0);
        self.set_segment(sreg::SS, flat_stack(selector.wrapping_add(8), 0));
    }

    /// Loads CS and SS as SYSRET to such `code` does.
    pub fn leave_system(&mut self, code: FlatCode) {
        let first = (self.msrs.long.star >> 48) as u16;
        let selector = if code == FlatCode::Bits64 { first.wrapping_add(16) } else { first };
        self.set_code_segment(code.segment(selector | 3, 3), 3);
        self.set_segment(sreg::SS, flat_stack(first.wrapping_add(8) | 3, 3));
    }

    /// Sets the base address of GS and IA32_KERNEL_GS_BASE, as SWAPGS does. Both must be canonical.
    pub fn set_gs_bases(&mut self, base: u64, other: u64) {
        self.set_base(sreg::GS, base);
        self.msrs.long.kernel_gs_base = other;
    }

    /// Raises #GP(0) unless `address` is canonical.
    pub(crate) fn require_canonical(&mut self, address: u64) -> Result<(), Stopped> {
        if is_canonical(address) { Ok(()) } else { Err(self.general_protection(0)) }
    }

    /// Delivers an event to its 64-bit handler (SDM vol. 3, 7.14). RIP is the value to be pushed.
    pub(crate) fn deliver_in_long_mode(
        &mut self,
        memory: &mut Memory,
        event: Event,
    ) -> Result<(), Stopped> {
        let external = u32::from(event.source != Source::Software);
        // The error code of faults about the IDT entry: its index, and the IDT bit.
        let gate_code = u32::from(event.vector) * 8 + 2 + external;
        let TableRegister { base, limit } = self.idtr;
        let offset = u64::from(event.vector) * GATE_BYTES;
        if offset + GATE_BYTES - 1 > u64::from(limit) {
            return Err(self.general_protection(gate_code));
        }
        let address = base.wrapping_add(offset);
        let gate: u64 = self.read_system(memory, address)?;
        let upper: u64 = self.read_system(memory, address.wrapping_add(8))?;
        let attributes = Descriptor(gate).attributes();
        let disables = match attributes.kind() {
            system::INTERRUPT_GATE32 if !attributes.is_code_or_data() => true,
            system::TRAP_GATE32 if !attributes.is_code_or_data() => false,
            _ => return Err(self.general_protection(gate_code)),
        };
        self.check_gate(event, attributes, gate_code)?;

        let selector = Selector((gate >> 16) as u16);
        let entry_point = gate & 0xffff | gate >> 32 & 0xffff_0000 | upper << 32;
        let (code, new_cpl) = self.handler_code(memory, selector, external)?;
        if !code.attributes().is_64_bit() || code.attributes().big() {
            return Err(self.general_protection(selector.error_code() | external));
        }
        let stack_number = (gate >> 32 & 7) as u8;
        let mut stack = if stack_number != 0 || new_cpl < self.cpl() {
            self.long_stack(memory, new_cpl, stack_number, external)?
        } else {
            let pointer = self.linear_after(self.gpr(reg::SP), 0);
            NewStack::long(*self.segment(sreg::SS), pointer, new_cpl, external)
        };
        stack.align();
        let frame = [
            self.segment(sreg::SS).selector.into(),
            self.linear_after(self.gpr(reg::SP), 0),
            self.eflags_image().into(),
            self.segment(sreg::CS).selector.into(),
            self.ip,
        ];
        for value in frame {
            stack.push(self, memory, value, 8)?;
        }
        if let Some(error_code) = event.error_code {
            stack.push(self, memory, error_code.into(), 8)?;
        }
        if !is_canonical(entry_point) {
            return Err(self.general_protection(external));
        }
        let code = self.mark_accessed(memory, selector, code)?;

        // Nothing fails from here on.
        self.clear_flags_for_handler(disables);
        self.set_code_segment(code.segment(selector.0), new_cpl);
        stack.commit(self);
        self.ip = entry_point;
        Ok(())
    }

    /// Returns the stack that the TSS holds for privilege level `cpl`, or stack `number` of the interrupt stack
    /// table if that is not 0 (SDM vol. 3, 7.14.4 and 7.14.5). A stack of an inner level has a null selector.
    pub(crate) fn long_stack(
        &mut self,
        memory: &mut Memory,
        cpl: u8,
        number: u8,
        external: u32,
    ) -> Result<NewStack, Stopped> {
        let offset = match number {
            0 => STACK_POINTERS + 8 * u32::from(cpl),
            _ => STACK_TABLE + 8 * (u32::from(number) - 1),
        };
        if offset + 7 > self.tr.limit {
            let code = Selector(self.tr.selector).error_code() | external;
            return Err(self.fault(Fault::with_code(vector::TS, code)));
        }
        let address = self.tr.base.wrapping_add(u64::from(offset));
        let pointer = self.read_system(memory, address)?;
        if !is_canonical(pointer) {
            return Err(self.fault(Fault::with_code(vector::SS, external)));
        }
        let segment =
            if cpl < self.cpl() { Segment::null_stack(cpl) } else { *self.segment(sreg::SS) };
        Ok(NewStack::long(segment, pointer, cpl, external))
    }
}
