//! Far jumps, calls and returns, and IRET (SDM vol. 3, 6.8; vol. 2, CALL, JMP, RET, IRET).

use ring3_core::memory::Memory;

use crate::access::NewStack;
use crate::cpu::{Cpu, reg};
use crate::exception::{Fault, Stopped, vector};
use crate::flags::Eflags;
use crate::segment::{Descriptor, Segment, Selector, sreg, system};
use crate::task::Cause;
use crate::virtual_8086::InterruptFlag;

/// The values that a far return has popped.
struct Return {
    ip: u64,
    selector: Selector,
    /// EFLAGS, for IRET.
    flags: Option<Eflags>,
    /// Number of bytes popped so far, and of bytes of parameters to be dropped.
    popped: u64,
    parameters: u64,
}

/// The target that the selector of a far jump or call refers to.
enum Target {
    Code(Descriptor),
    CallGate(CallGate),
    Task,
}

/// A call gate (SDM vol. 3, figure 6-8).
#[derive(Clone, Copy)]
struct CallGate {
    descriptor: Descriptor,
    /// Whether it is a 32-bit gate.
    wide: bool,
}

impl CallGate {
    /// Returns the selector of the code segment.
    fn selector(self) -> Selector {
        Selector((self.descriptor.0 >> 16) as u16)
    }

    /// Returns the offset of the entry point.
    fn offset(self) -> u64 {
        let low = self.descriptor.0 & 0xffff;
        if self.wide { low | self.descriptor.0 >> 32 & 0xffff_0000 } else { low }
    }

    /// Returns the number of words or doublewords to be copied to an inner stack.
    fn parameters(self) -> u64 {
        self.descriptor.0 >> 32 & 0x1f
    }
}

impl Cpu {
    /// Performs JMP ptr16:16/32 or m16:16/32.
    pub(crate) fn far_jump(
        &mut self,
        memory: &mut Memory,
        selector: u16,
        offset: u64,
    ) -> Result<(), Stopped> {
        if !self.in_protected_mode() {
            return self.real_far_transfer(selector, offset);
        }
        match self.far_target(memory, Selector(selector))? {
            Target::Code(descriptor) => {
                self.direct_target(Selector(selector), descriptor)?;
                let code = self.present_code(memory, Selector(selector), descriptor, offset)?;
                self.set_code_segment(code, self.cpl());
                self.ip = offset;
                Ok(())
            }
            Target::CallGate(gate) => self.jump_through_gate(memory, gate),
            Target::Task => self.far_task_switch(memory, Selector(selector), Cause::Jump),
        }
    }

    /// Performs CALL ptr16:16/32 or m16:16/32; `wide` is the operand size.
    pub(crate) fn far_call(
        &mut self,
        memory: &mut Memory,
        selector: u16,
        offset: u64,
        wide: bool,
    ) -> Result<(), Stopped> {
        let code = if self.in_protected_mode() {
            match self.far_target(memory, Selector(selector))? {
                Target::Code(descriptor) => {
                    self.direct_target(Selector(selector), descriptor)?;
                    Some(self.present_code(memory, Selector(selector), descriptor, offset)?)
                }
                Target::CallGate(gate) => return self.call_through_gate(memory, gate),
                Target::Task => {
                    return self.far_task_switch(memory, Selector(selector), Cause::Call);
                }
            }
        } else {
            None
        };
        let mut stack = NewStack::current(self, 0);
        let old_selector = u32::from(self.segment(sreg::CS).selector);
        stack.push(self, memory, old_selector, wide)?;
        stack.push(self, memory, self.ip as u32, wide)?;
        match code {
            Some(code) => {
                self.set_code_segment(code, self.cpl());
                self.ip = offset;
            }
            None => self.real_far_transfer(selector, offset)?,
        }
        stack.commit(self);
        Ok(())
    }

    /// Performs a far transfer in real or virtual-8086 mode.
    fn real_far_transfer(&mut self, selector: u16, offset: u64) -> Result<(), Stopped> {
        if offset > u64::from(self.segment(sreg::CS).limit) {
            return Err(self.general_protection(0));
        }
        self.load_code_without_descriptor(selector);
        self.ip = offset;
        Ok(())
    }

    /// Returns the target that the selector of a far jump or call in protected mode refers to, with the
    /// checks for gates and tasks.
    fn far_target(&mut self, memory: &mut Memory, selector: Selector) -> Result<Target, Stopped> {
        if selector.is_null() {
            return Err(self.general_protection(0));
        }
        let descriptor = self.read_descriptor(memory, selector, vector::GP, 0)?;
        let attributes = descriptor.attributes();
        if attributes.is_code_or_data() {
            return Ok(Target::Code(descriptor));
        }
        let target = match attributes.kind() {
            system::CALL_GATE16 => Target::CallGate(CallGate { descriptor, wide: false }),
            system::CALL_GATE32 => Target::CallGate(CallGate { descriptor, wide: true }),
            system::TASK_GATE | system::TSS16_AVAILABLE | system::TSS32_AVAILABLE => Target::Task,
            _ => return Err(self.general_protection(selector.error_code())),
        };
        if attributes.dpl() < self.cpl() || attributes.dpl() < selector.rpl() {
            return Err(self.general_protection(selector.error_code()));
        }
        if !attributes.present() {
            return Err(self.fault(Fault::with_code(vector::NP, selector.error_code())));
        }
        Ok(target)
    }

    /// Checks that a far jump or call may go to a code segment without a gate, which does not change the
    /// privilege.
    fn direct_target(&mut self, selector: Selector, descriptor: Descriptor) -> Result<(), Stopped> {
        let attributes = descriptor.attributes();
        let cpl = self.cpl();
        let allowed = attributes.is_code()
            && if attributes.is_conforming() {
                attributes.dpl() <= cpl
            } else {
                attributes.dpl() == cpl && selector.rpl() <= cpl
            };
        if allowed { Ok(()) } else { Err(self.general_protection(selector.error_code())) }
    }

    /// Returns the code segment of a call gate: at the same privilege or, for CALL, at an inner one.
    fn gate_target(
        &mut self,
        memory: &mut Memory,
        gate: CallGate,
        inward: bool,
    ) -> Result<Descriptor, Stopped> {
        let selector = gate.selector();
        if selector.is_null() {
            return Err(self.general_protection(0));
        }
        let descriptor = self.read_descriptor(memory, selector, vector::GP, 0)?;
        let attributes = descriptor.attributes();
        let allowed = attributes.is_code()
            && if inward || attributes.is_conforming() {
                attributes.dpl() <= self.cpl()
            } else {
                attributes.dpl() == self.cpl()
            };
        if !allowed {
            return Err(self.general_protection(selector.error_code()));
        }
        if !attributes.present() {
            return Err(self.fault(Fault::with_code(vector::NP, selector.error_code())));
        }
        Ok(descriptor)
    }

    /// Performs JMP through a call gate, which does not change the privilege (SDM vol. 2, JMP).
    fn jump_through_gate(&mut self, memory: &mut Memory, gate: CallGate) -> Result<(), Stopped> {
        let descriptor = self.gate_target(memory, gate, false)?;
        let code = self.present_code(memory, gate.selector(), descriptor, gate.offset())?;
        self.set_code_segment(code, self.cpl());
        self.ip = gate.offset();
        Ok(())
    }

    /// Performs CALL through a call gate (SDM vol. 3, 6.8.4 and 6.8.5). The gate determines the size of the
    /// values pushed. A call to an inner privilege uses the stack in the TSS, to which it copies the
    /// parameters.
    fn call_through_gate(&mut self, memory: &mut Memory, gate: CallGate) -> Result<(), Stopped> {
        let descriptor = self.gate_target(memory, gate, true)?;
        let attributes = descriptor.attributes();
        let inward = !attributes.is_conforming() && attributes.dpl() < self.cpl();
        let cpl = if inward { attributes.dpl() } else { self.cpl() };
        let mut stack = if inward {
            let mut stack = self.inner_stack(memory, cpl, 0)?;
            let old_selector = u32::from(self.segment(sreg::SS).selector);
            stack.push(self, memory, old_selector, gate.wide)?;
            let old_pointer = self.get(reg::SP);
            stack.push(self, memory, old_pointer, gate.wide)?;
            for slot in (0..gate.parameters()).rev() {
                let parameter = self.peek_slot(memory, slot, gate.wide)?;
                stack.push(self, memory, parameter, gate.wide)?;
            }
            stack
        } else {
            NewStack::current(self, 0)
        };
        let old_selector = u32::from(self.segment(sreg::CS).selector);
        stack.push(self, memory, old_selector, gate.wide)?;
        stack.push(self, memory, self.ip as u32, gate.wide)?;
        let code = self.present_code(memory, gate.selector(), descriptor, gate.offset())?;
        self.set_code_segment(code, cpl);
        stack.commit(self);
        self.ip = gate.offset();
        Ok(())
    }

    /// Makes the last checks on a code segment: it must be present and contain `offset`.
    fn present_code(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
        descriptor: Descriptor,
        offset: u64,
    ) -> Result<Segment, Stopped> {
        if !descriptor.attributes().present() {
            return Err(self.fault(Fault::with_code(vector::NP, selector.error_code())));
        }
        if offset > u64::from(descriptor.limit()) {
            return Err(self.general_protection(0));
        }
        Ok(self.mark_accessed(memory, selector, descriptor)?.segment(selector.0))
    }

    /// Performs RETF, dropping `parameters` bytes of parameters.
    pub(crate) fn far_return(
        &mut self,
        memory: &mut Memory,
        wide: bool,
        parameters: u64,
    ) -> Result<(), Stopped> {
        let ip = self.peek_slot(memory, 0, wide)?;
        let selector = self.peek_slot(memory, 1, wide)? as u16;
        let popped = if wide { 8 } else { 4 };
        if !self.in_protected_mode() {
            self.real_far_transfer(selector, u64::from(ip))?;
            self.set_stack_pointer(self.stack_pointer() + popped + parameters);
            return Ok(());
        }
        let selector = Selector(selector);
        let target = Return { ip: u64::from(ip), selector, flags: None, popped, parameters };
        self.return_to(memory, &target, wide)
    }

    /// Performs IRET and IRETD.
    pub(crate) fn interrupt_return(
        &mut self,
        memory: &mut Memory,
        wide: bool,
    ) -> Result<(), Stopped> {
        self.unblock_nmi();
        let interrupt_flag = self.flag_of_popf(wide);
        if interrupt_flag == InterruptFlag::Forbidden {
            return Err(self.general_protection(0));
        }
        if self.in_protected_mode() && self.has_flag(Eflags::NT) {
            return self.return_to_task(memory);
        }
        let ip = u64::from(self.peek_slot(memory, 0, wide)?);
        let selector = self.peek_slot(memory, 1, wide)? as u16;
        let flags = Eflags::from_bits_truncate(self.peek_slot(memory, 2, wide)?);
        let popped = if wide { 12 } else { 6 };
        if !self.in_protected_mode() {
            if interrupt_flag == InterruptFlag::Virtual {
                self.check_virtual_flags(flags)?;
            }
            let mut mask = self.flags_mask(wide);
            mask.set(Eflags::RF, wide);
            self.real_far_transfer(selector, ip)?;
            self.set_stack_pointer(self.stack_pointer() + popped);
            if interrupt_flag == InterruptFlag::Virtual {
                self.load_virtual_flags(flags);
            } else {
                self.change_eflags(flags, mask);
            }
            return Ok(());
        }
        if wide && flags.contains(Eflags::VM) && self.cpl() == 0 {
            return self.return_to_virtual_8086(memory, ip, selector, flags);
        }
        let selector = Selector(selector);
        let target = Return { ip, selector, flags: Some(flags), popped, parameters: 0 };
        self.return_to(memory, &target, wide)
    }

    /// Performs the protected-mode part of RETF and IRET, to the same or an outer privilege.
    fn return_to(
        &mut self,
        memory: &mut Memory,
        target: &Return,
        wide: bool,
    ) -> Result<(), Stopped> {
        let selector = target.selector;
        if selector.is_null() {
            return Err(self.general_protection(0));
        }
        let descriptor = self.read_descriptor(memory, selector, vector::GP, 0)?;
        let attributes = descriptor.attributes();
        let (cpl, rpl) = (self.cpl(), selector.rpl());
        let allowed = attributes.is_code()
            && rpl >= cpl
            && if attributes.is_conforming() {
                attributes.dpl() <= rpl
            } else {
                attributes.dpl() == rpl
            };
        if !allowed {
            return Err(self.general_protection(selector.error_code()));
        }
        let code = self.present_code(memory, selector, descriptor, target.ip)?;
        let flags_mask = self.return_flags_mask(wide);
        if rpl == cpl {
            self.set_code_segment(code, cpl);
            self.set_stack_pointer(self.stack_pointer() + target.popped + target.parameters);
        } else {
            let slots = (target.popped + target.parameters) / if wide { 4 } else { 2 };
            let pointer = self.peek_slot(memory, slots, wide)?;
            let stack_selector = Selector(self.peek_slot(memory, slots + 1, wide)? as u16);
            let stack = self.outer_stack(memory, stack_selector, rpl)?;
            self.set_code_segment(code, rpl);
            self.set_segment(sreg::SS, stack);
            if !wide {
                // IRET and RETF with 16-bit operands load SP and leave the upper half alone.
                self.set(reg::SP, pointer as u16);
            }
            if wide {
                self.set_stack_pointer(u64::from(pointer));
            }
            self.set_stack_pointer(self.stack_pointer() + target.parameters);
            self.drop_inner_segments(rpl);
        }
        self.ip = target.ip;
        if let Some(flags) = target.flags {
            self.change_eflags(flags, flags_mask);
        }
        Ok(())
    }

    /// Returns the stack segment of the outer privilege level `cpl` to which a return goes.
    fn outer_stack(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
        cpl: u8,
    ) -> Result<Segment, Stopped> {
        if selector.is_null() {
            return Err(self.general_protection(0));
        }
        let descriptor = self.read_descriptor(memory, selector, vector::GP, 0)?;
        let attributes = descriptor.attributes();
        if selector.rpl() != cpl || attributes.dpl() != cpl || !attributes.is_writable() {
            return Err(self.general_protection(selector.error_code()));
        }
        if !attributes.present() {
            return Err(self.fault(Fault::with_code(vector::SS, selector.error_code())));
        }
        Ok(self.mark_accessed(memory, selector, descriptor)?.segment(selector.0))
    }

    /// Clears segment registers after a return to privilege `cpl`: those that hold segments of an inner level
    /// become null (SDM vol. 2, RET).
    fn drop_inner_segments(&mut self, cpl: u8) {
        for register in [sreg::ES, sreg::DS, sreg::FS, sreg::GS] {
            let attributes = self.segment(register).attributes;
            let keeps = attributes.is_conforming() || attributes.dpl() >= cpl;
            if !keeps {
                self.set_segment(register, Segment::null(0));
            }
        }
    }

    /// Performs IRETD with VM set in the popped flags (SDM vol. 3, 21.2.5).
    fn return_to_virtual_8086(
        &mut self,
        memory: &mut Memory,
        ip: u64,
        selector: u16,
        flags: Eflags,
    ) -> Result<(), Stopped> {
        let pointer = self.peek_slot(memory, 3, true)?;
        let stack = self.peek_slot(memory, 4, true)? as u16;
        let mut data = [0; 4];
        for (slot, selector) in (5..).zip(&mut data) {
            *selector = self.peek_slot(memory, slot, true)? as u16;
        }
        self.change_eflags(flags, self.return_flags_mask(true) | Eflags::VM);
        self.set_segment(sreg::CS, Segment::real(selector, 3));
        self.set_segment(sreg::SS, Segment::real(stack, 3));
        for (register, selector) in [sreg::ES, sreg::DS, sreg::FS, sreg::GS].into_iter().zip(data) {
            self.set_segment(register, Segment::real(selector, 3));
        }
        self.set(reg::SP, pointer);
        self.ip = ip & 0xffff;
        Ok(())
    }

    /// Returns the word or doubleword `slot` slots below the top of the stack.
    fn peek_slot(&mut self, memory: &mut Memory, slot: u64, wide: bool) -> Result<u32, Stopped> {
        if wide { self.peek(memory, slot) } else { self.peek::<u16>(memory, slot).map(u32::from) }
    }

    /// Returns the flags that POPF may change at the current privilege (SDM vol. 2, POPF, table 4-16).
    pub(crate) fn flags_mask(&self, wide: bool) -> Eflags {
        let mut mask = Eflags::STATUS | Eflags::TF | Eflags::DF | Eflags::NT;
        if wide {
            mask |= Eflags::AC | Eflags::ID;
        }
        if self.cpl() <= self.iopl() {
            mask |= Eflags::IF;
        }
        if self.cpl() == 0 {
            mask |= Eflags::IOPL;
        }
        mask
    }

    /// Returns the flags that IRET may change: those of POPF, and RF; at privilege 0 also the virtual
    /// interrupt flags.
    fn return_flags_mask(&self, wide: bool) -> Eflags {
        let mut mask = self.flags_mask(wide);
        if wide {
            mask |= Eflags::RF;
            if self.cpl() == 0 {
                mask |= Eflags::VIF | Eflags::VIP;
            }
        }
        mask
    }
}
