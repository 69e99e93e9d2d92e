//! Delivery of interrupts and exceptions (SDM vol. 3, chapter 7; vol. 2, INT n).

use ring3_core::memory::Memory;
use serde::{Deserialize, Serialize};

use crate::access::NewStack;
use crate::cpu::{Attention, Cpu, Cr0};
use crate::exception::{Fault, FaultClass, Stop, Stopped, vector};
use crate::flags::Eflags;
use crate::segment::{Attributes, Descriptor, Segment, Selector, TableRegister, sreg, system};

/// The origin of an interrupt or exception, on which checks and error codes depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The processor itself, or INT1: the gate's privilege is not checked.
    Exception,
    /// The INTR or NMI pin.
    External,
    /// INT n, INT3 or INTO: the gate's DPL is checked, and EXT is clear in the error codes of faults.
    Software,
}

/// An interrupt or exception on its way to its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number in the interrupt table.
    pub vector: u8,
    /// The error code that is pushed for the handler.
    pub error_code: Option<u32>,
    /// The origin of the event.
    pub source: Source,
}

impl From<Fault> for Event {
    fn from(Fault { vector, error_code }: Fault) -> Event {
        Event { vector, error_code, source: Source::Exception }
    }
}

/// The result of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The handler's first instruction is next.
    Done,
    /// The machine must act first; the event stays in [`Cpu::event`].
    Waits(Stop),
    /// The delivery has raised an exception, which is now in [`Cpu::event`].
    Raised,
    /// Triple fault.
    Shutdown,
}

impl Cpu {
    /// Returns whether an interrupt of the INTR pin would be taken now.
    pub fn is_interruptible(&self) -> bool {
        self.has_flag(Eflags::IF) && !self.attention.contains(Attention::SHADOW)
    }

    /// Returns whether the processor takes an interrupt now: INTR is high, interrupts are enabled, and nothing
    /// comes before them (SDM vol. 3, 7.9).
    pub fn takes_interrupt(&self) -> bool {
        self.interrupt_pin
            && self.is_interruptible()
            && self.event.is_none()
            && (self.attention - Attention::RESUME).is_empty()
    }

    /// Gives the processor the interrupt `vector` that the interrupt controller has acknowledged. Call this
    /// after [`Exit::InterruptWindow`](crate::engine::Exit::InterruptWindow).
    pub fn inject(&mut self, vector: u8) {
        self.halted = false;
        self.event = Some(Event { vector, error_code: None, source: Source::External });
    }

    /// Returns whether an interrupt that was [injected](Cpu::inject) is still to be delivered to its handler.
    /// The delivery does not count as an instruction.
    pub fn has_interrupt(&self) -> bool {
        self.event.is_some_and(|event| event.source == Source::External)
    }

    /// Delivers `event` to its handler. An exception during the delivery replaces the event, or both become a
    /// double fault (SDM vol. 3, 7.15, "Interrupt 8").
    ///
    /// This may repeat without end: an alignment check that cannot be delivered because the stack is not
    /// aligned raises itself for ever, on real processors too. So each delivery is a call of its own.
    pub(crate) fn deliver_event(&mut self, memory: &mut Memory, event: Event) -> Delivery {
        self.note_event_for_debugger(&event);
        self.halted = false;
        self.event = Some(event);
        if self.deliver(memory, event).is_ok() {
            self.event = None;
            self.forget_answers();
            return Delivery::Done;
        }
        let second = match &self.stop {
            Stop::Fault(fault) | Stop::TaskFault(fault) => *fault,
            stop => return Delivery::Waits(stop.clone()),
        };
        let first = match event.source {
            Source::Exception => Fault::new(event.vector).class(),
            Source::External | Source::Software => FaultClass::Benign,
        };
        if first == FaultClass::DoubleFault {
            self.event = None;
            return Delivery::Shutdown;
        }
        self.system_flags.insert(Eflags::RF);
        self.forget_answers();
        let doubles = first.doubles_with(second.class());
        let raised = if doubles { Fault::with_code(vector::DF, 0) } else { second };
        self.event = Some(raised.into());
        Delivery::Raised
    }

    /// Pulses the NMI pin. The nonmaskable interrupt stays pending while another one is handled (SDM vol. 3,
    /// 7.7).
    pub fn raise_nmi(&mut self) {
        self.nmi_pending = true;
        self.update_nmi();
    }

    /// Takes the pending NMI. No other one is taken before IRET (SDM vol. 3, 7.7.1).
    pub(crate) fn take_nmi(&mut self) -> Event {
        (self.nmi_pending, self.nmi_blocked) = (false, true);
        self.update_nmi();
        Event { vector: vector::NMI, error_code: None, source: Source::External }
    }

    /// Returns whether an NMI was taken, so that none is taken before the next IRET.
    pub fn nmi_is_blocked(&self) -> bool {
        self.nmi_blocked
    }

    /// Allows NMIs again, as IRET does even if it faults.
    pub(crate) fn unblock_nmi(&mut self) {
        self.nmi_blocked = false;
        self.update_nmi();
    }

    /// Updates whether an NMI must be taken.
    pub(crate) fn update_nmi(&mut self) {
        self.attention.set(Attention::NMI, self.nmi_pending && !self.nmi_blocked);
    }

    /// Delivers `event` to its handler. EIP is the value to be pushed.
    pub(crate) fn deliver(&mut self, memory: &mut Memory, event: Event) -> Result<(), Stopped> {
        if self.is_in_long_mode() {
            self.deliver_in_long_mode(memory, event)
        } else if self.cr0.contains(Cr0::PE) {
            self.deliver_protected(memory, event)
        } else {
            self.deliver_real(memory, event.vector)
        }
    }

    /// Delivers an event through the interrupt vector table of real mode (SDM vol. 3, 21.1.4).
    fn deliver_real(&mut self, memory: &mut Memory, vector: u8) -> Result<(), Stopped> {
        let TableRegister { base, limit } = self.idtr;
        let offset = u64::from(vector) * 4;
        if offset + 3 > u64::from(limit) {
            return Err(self.general_protection(0));
        }
        let entry: u32 = self.read_system(memory, base.wrapping_add(offset))?;
        let mut stack = NewStack::current(self, 0);
        let flags = self.eflags_image();
        let selector = u32::from(self.segment(sreg::CS).selector);
        for value in [flags, selector, self.ip as u32] {
            stack.push(self, memory, value.into(), 2)?;
        }
        stack.commit(self);
        self.set_real_code_segment((entry >> 16) as u16);
        self.ip = u64::from(entry & 0xffff);
        self.change_eflags(Eflags::empty(), Eflags::IF | Eflags::TF | Eflags::AC | Eflags::RF);
        Ok(())
    }

    /// Delivers an event through the gates of the IDT (SDM vol. 3, 7.12).
    fn deliver_protected(&mut self, memory: &mut Memory, event: Event) -> Result<(), Stopped> {
        let external = u32::from(event.source != Source::Software);
        // The error code of faults about the IDT entry: its index, and the IDT bit.
        let gate_code = u32::from(event.vector) * 8 + 2 + external;
        let TableRegister { base, limit } = self.idtr;
        let offset = u64::from(event.vector) * 8;
        if offset + 7 > u64::from(limit) {
            return Err(self.general_protection(gate_code));
        }
        let gate = Descriptor(self.read_system(memory, base.wrapping_add(offset))?);
        let attributes = gate.attributes();
        let (size, disables) = match attributes.kind() {
            _ if attributes.is_code_or_data() => return Err(self.general_protection(gate_code)),
            system::INTERRUPT_GATE32 => (4, true),
            system::TRAP_GATE32 | system::TASK_GATE => (4, false),
            system::INTERRUPT_GATE16 => (2, true),
            system::TRAP_GATE16 => (2, false),
            _ => return Err(self.general_protection(gate_code)),
        };
        self.check_gate(event, attributes, gate_code)?;
        if attributes.kind() == system::TASK_GATE {
            return self.deliver_to_task(memory, gate, event, external);
        }

        let selector = Selector((gate.0 >> 16) as u16);
        let entry_point =
            if size == 4 { gate.0 & 0xffff | gate.0 >> 32 & 0xffff_0000 } else { gate.0 & 0xffff };
        let (code, new_cpl) = self.handler_code(memory, selector, external)?;
        let selector_code = selector.error_code() | external;
        let from_virtual_8086 = self.in_virtual_8086_mode();
        if from_virtual_8086 && new_cpl != 0 {
            return Err(self.general_protection(selector_code));
        }
        let mut stack = if new_cpl < self.cpl() {
            self.inner_stack(memory, new_cpl, external)?
        } else {
            NewStack::current(self, external)
        };
        if from_virtual_8086 {
            for register in [sreg::GS, sreg::FS, sreg::DS, sreg::ES] {
                let selector = self.segment(register).selector;
                stack.push(self, memory, selector.into(), size)?;
            }
        }
        if new_cpl < self.cpl() {
            let selector = self.segment(sreg::SS).selector;
            stack.push(self, memory, selector.into(), size)?;
            let pointer: u32 = self.get(crate::cpu::reg::SP);
            stack.push(self, memory, pointer.into(), size)?;
        }
        let flags = self.eflags_image();
        let old_selector = u32::from(self.segment(sreg::CS).selector);
        for value in [flags, old_selector, self.ip as u32] {
            stack.push(self, memory, value.into(), size)?;
        }
        if let Some(error_code) = event.error_code {
            stack.push(self, memory, error_code.into(), size)?;
        }
        let entry_point_valid = entry_point <= u64::from(code.limit());
        if !entry_point_valid {
            return Err(self.general_protection(external));
        }
        let code = self.mark_accessed(memory, selector, code)?;

        // Nothing fails from here on.
        self.clear_flags_for_handler(disables);
        if from_virtual_8086 {
            for register in [sreg::ES, sreg::DS, sreg::FS, sreg::GS] {
                self.set_segment(register, Segment::null(0));
            }
        }
        self.set_code_segment(code.segment(selector.0), new_cpl);
        stack.commit(self);
        self.ip = entry_point;
        Ok(())
    }

    /// Checks that `event` may use the gate with these `attributes`. Faults have the error code `gate_code`.
    pub(crate) fn check_gate(
        &mut self,
        event: Event,
        attributes: Attributes,
        gate_code: u32,
    ) -> Result<(), Stopped> {
        if event.source == Source::Software && attributes.dpl() < self.cpl() {
            return Err(self.general_protection(gate_code));
        }
        if !attributes.present() {
            return Err(self.fault(Fault::with_code(vector::NP, gate_code)));
        }
        Ok(())
    }

    /// Clears the flags that are clear when a handler begins, IF among them if its gate `disables` interrupts (SDM
    /// vol. 3, 7.12.1.3).
    pub(crate) fn clear_flags_for_handler(&mut self, disables: bool) {
        let mut cleared = Eflags::TF | Eflags::NT | Eflags::RF | Eflags::VM;
        if disables {
            cleared |= Eflags::IF;
        }
        self.change_eflags(Eflags::empty(), cleared);
    }

    /// Returns the code segment of a handler, and its privilege level.
    pub(crate) fn handler_code(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
        external: u32,
    ) -> Result<(Descriptor, u8), Stopped> {
        if selector.is_null() {
            return Err(self.general_protection(external));
        }
        let code = self.read_descriptor(memory, selector, vector::GP, external)?;
        let attributes = code.attributes();
        let selector_code = selector.error_code() | external;
        if !attributes.is_code() || attributes.dpl() > self.cpl() {
            return Err(self.general_protection(selector_code));
        }
        if !attributes.present() {
            return Err(self.fault(Fault::with_code(vector::NP, selector_code)));
        }
        Ok((code, if attributes.is_conforming() { self.cpl() } else { attributes.dpl() }))
    }

    /// Returns the stack that the TSS holds for privilege level `cpl`, checked as in SDM vol. 2, INT n,
    /// "inter-privilege-level interrupt".
    pub(crate) fn inner_stack(
        &mut self,
        memory: &mut Memory,
        cpl: u8,
        external: u32,
    ) -> Result<NewStack, Stopped> {
        let (tss, level) = (self.tr, u32::from(cpl));
        let task_code = Selector(tss.selector).error_code() | external;
        let is_32_bit = tss.attributes.kind() & 8 != 0;
        let (offset, size) = if is_32_bit { (4 + 8 * level, 8) } else { (2 + 4 * level, 4) };
        if offset + size - 1 > tss.limit {
            return Err(self.fault(Fault::with_code(vector::TS, task_code)));
        }
        let address = tss.base.wrapping_add(u64::from(offset));
        let (pointer, selector): (u32, u16) = if is_32_bit {
            let pointer = self.read_system(memory, address)?;
            (pointer, self.read_system(memory, address.wrapping_add(4))?)
        } else {
            let pointer: u16 = self.read_system(memory, address)?;
            (u32::from(pointer), self.read_system(memory, address.wrapping_add(2))?)
        };
        let selector = Selector(selector);
        if selector.is_null() {
            return Err(self.fault(Fault::with_code(vector::TS, external)));
        }
        let descriptor = self.read_descriptor(memory, selector, vector::TS, external)?;
        let attributes = descriptor.attributes();
        let code = selector.error_code() | external;
        if selector.rpl() != cpl || attributes.dpl() != cpl || !attributes.is_writable() {
            return Err(self.fault(Fault::with_code(vector::TS, code)));
        }
        if !attributes.present() {
            return Err(self.fault(Fault::with_code(vector::SS, code)));
        }
        let descriptor = self.mark_accessed(memory, selector, descriptor)?;
        Ok(NewStack::new(descriptor.segment(selector.0), u64::from(pointer), cpl, code))
    }

    /// Loads CS in real mode or virtual-8086 mode, as far transfers do.
    pub fn load_code_without_descriptor(&mut self, selector: u16) {
        if self.in_virtual_8086_mode() {
            self.set_segment(sreg::CS, Segment::real(selector, 3));
        } else {
            self.set_real_code_segment(selector);
        }
    }

    /// Loads CS in real mode: base, limit 64 KiB unless it was left larger, and the rights of real-mode code,
    /// which may write through CS.
    pub(crate) fn set_real_code_segment(&mut self, selector: u16) {
        let old = *self.segment(sreg::CS);
        let attributes = Attributes(old.attributes.0 & 0x4000 | 0x93);
        let base = u64::from(selector) << 4;
        self.set_segment(sreg::CS, Segment::new(selector, base, old.limit, attributes));
    }
}
