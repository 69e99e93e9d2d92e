//! Far jumps, calls and returns, and IRET (SDM vol. 3, 6.8; vol. 2, CALL, JMP, RET, IRET).

use ring3_core::memory::Memory;

use crate::access::{NewStack, is_canonical};
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

/// A call gate (SDM vol. 3, figures 6-8 and 6-9).
#[derive(Clone, Copy)]
struct CallGate {
    /// The selector of the code segment.
    selector: Selector,
    /// The offset of the entry point.
    offset: u64,
    /// The size in bytes of the values pushed: 2, 4, or 8 in long mode.
    size: usize,
    /// The number of values to be copied to an inner stack.
    parameters: u64,
}

impl CallGate {
    /// The gate that `descriptor` is outside long mode, of 16 or 32 bits by `size`.
    fn of(descriptor: Descriptor, size: usize) -> CallGate {
        let low = descriptor.0 & 0xffff;
        let high = if size == 4 { descriptor.0 >> 32 & 0xffff_0000 } else { 0 };
        CallGate {
            selector: Selector((descriptor.0 >> 16) as u16),
            offset: low | high,
            size,
            parameters: descriptor.0 >> 32 & 0x1f,
        }
    }

    /// The gate that `descriptor` is in long mode, with `upper`, the eight bytes behind it.
    fn long(descriptor: Descriptor, upper: u64) -> CallGate {
        let CallGate { selector, offset, .. } = CallGate::of(descriptor, 4);
        CallGate { selector, offset: upper << 32 | offset, size: 8, parameters: 0 }
    }
}

impl Cpu {
    /// Performs JMP ptr16:16/32 or m16:16/32/64.
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

    /// Performs CALL ptr16:16/32 or m16:16/32/64; `size` is the operand size in bytes.
    pub(crate) fn far_call(
        &mut self,
        memory: &mut Memory,
        selector: u16,
        offset: u64,
        size: usize,
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
        let old_selector = self.segment(sreg::CS).selector;
        stack.push(self, memory, old_selector.into(), size)?;
        stack.push(self, memory, self.ip, size)?;
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
            system::CALL_GATE32 if self.is_in_long_mode() => {
                let upper = self.read_upper_half(memory, selector)?;
                Target::CallGate(CallGate::long(descriptor, upper))
            }
            _ if self.is_in_long_mode() => {
                return Err(self.general_protection(selector.error_code()));
            }
            system::CALL_GATE16 => Target::CallGate(CallGate::of(descriptor, 2)),
            system::CALL_GATE32 => Target::CallGate(CallGate::of(descriptor, 4)),
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
        let selector = gate.selector;
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
        // In long mode, gates lead to 64-bit code only (SDM vol. 3, 6.8.3.1).
        let is_long = self.is_in_long_mode();
        if !allowed || is_long && (!attributes.is_64_bit() || attributes.big()) {
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
        let code = self.present_code(memory, gate.selector, descriptor, gate.offset)?;
        self.set_code_segment(code, self.cpl());
        self.ip = gate.offset;
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
        let is_long = gate.size == 8;
        let mut stack = if inward {
            let mut stack = if is_long {
                self.long_stack(memory, cpl, 0, 0)?
            } else {
                self.inner_stack(memory, cpl, 0)?
            };
            let old_selector = self.segment(sreg::SS).selector;
            stack.push(self, memory, old_selector.into(), gate.size)?;
            let old_pointer = self.linear_after(self.gpr(reg::SP), 0);
            stack.push(self, memory, old_pointer, gate.size)?;
            for slot in (0..gate.parameters).rev() {
                let parameter = self.peek_slot(memory, slot, gate.size)?;
                stack.push(self, memory, parameter, gate.size)?;
            }
            stack
        } else if is_long {
            NewStack::long(*self.segment(sreg::SS), self.gpr(reg::SP), cpl, 0)
        } else {
            NewStack::current(self, 0)
        };
        let old_selector = self.segment(sreg::CS).selector;
        stack.push(self, memory, old_selector.into(), gate.size)?;
        stack.push(self, memory, self.ip, gate.size)?;
        let code = self.present_code(memory, gate.selector, descriptor, gate.offset)?;
        self.set_code_segment(code, cpl);
        stack.commit(self);
        self.ip = gate.offset;
        Ok(())
    }

    /// Makes the last checks on a code segment: it must be present and contain `offset`, which for 64-bit code
    /// must be canonical instead.
    pub(crate) fn present_code(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
        descriptor: Descriptor,
        offset: u64,
    ) -> Result<Segment, Stopped> {
        let attributes = descriptor.attributes();
        let is_long = self.is_in_long_mode() && attributes.is_64_bit();
        if is_long && attributes.big() {
            return Err(self.general_protection(selector.error_code()));
        }
        if !attributes.present() {
            return Err(self.fault(Fault::with_code(vector::NP, selector.error_code())));
        }
        let is_inside =
            if is_long { is_canonical(offset) } else { offset <= u64::from(descriptor.limit()) };
        if !is_inside {
            return Err(self.general_protection(0));
        }
        Ok(self.mark_accessed(memory, selector, descriptor)?.segment(selector.0))
    }

    /// Performs RETF with an operand size of `size` bytes, dropping `parameters` bytes of parameters.
    pub(crate) fn far_return(
        &mut self,
        memory: &mut Memory,
        size: usize,
        parameters: u64,
    ) -> Result<(), Stopped> {
        let ip = self.peek_slot(memory, 0, size)?;
        let selector = self.peek_slot(memory, 1, size)? as u16;
        let popped = 2 * size as u64;
        if !self.in_protected_mode() {
            self.real_far_transfer(selector, ip)?;
            self.set_stack_pointer(self.stack_pointer() + popped + parameters);
            return Ok(());
        }
        let selector = Selector(selector);
        let target = Return { ip, selector, flags: None, popped, parameters };
        self.return_to(memory, &target, size)
    }

    /// Performs IRET, IRETD and IRETQ, which have an operand size of `size` bytes.
    pub(crate) fn interrupt_return(
        &mut self,
        memory: &mut Memory,
        size: usize,
    ) -> Result<(), Stopped> {
        self.unblock_nmi();
        let wide = size >= 4;
        let interrupt_flag = self.flag_of_popf(wide);
        if interrupt_flag == InterruptFlag::Forbidden {
            return Err(self.general_protection(0));
        }
        if self.in_protected_mode() && self.has_flag(Eflags::NT) {
            if self.is_in_long_mode() {
                return Err(self.general_protection(0));
            }
            return self.return_to_task(memory);
        }
        let ip = self.peek_slot(memory, 0, size)?;
        let selector = self.peek_slot(memory, 1, size)? as u16;
        let flags = Eflags::from_bits_truncate(self.peek_slot(memory, 2, size)? as u32);
        let popped = 3 * size as u64;
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
        let enters_virtual_8086 = wide && flags.contains(Eflags::VM) && self.cpl() == 0;
        if enters_virtual_8086 && !self.is_in_long_mode() {
            return self.return_to_virtual_8086(memory, ip, selector, flags);
        }
        let selector = Selector(selector);
        let target = Return { ip, selector, flags: Some(flags), popped, parameters: 0 };
        self.return_to(memory, &target, size)
    }

    /// Performs the protected-mode part of RETF and IRET, to the same or an outer privilege.
    fn return_to(
        &mut self,
        memory: &mut Memory,
        target: &Return,
        size: usize,
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
        let flags_mask = self.return_flags_mask(size >= 4);
        // In 64-bit mode, IRET pops the stack at any privilege (SDM vol. 3, 7.14.3).
        let pops_stack = rpl != cpl || self.is_in_64_bit_mode() && target.flags.is_some();
        let released = target.popped + target.parameters;
        if pops_stack {
            let behind = self.stack_pointer().wrapping_add(released);
            let pointer = self.read_stack(memory, behind, size)?;
            let selector_at = behind.wrapping_add(size as u64);
            let stack_selector = Selector(self.read_stack(memory, selector_at, size)? as u16);
            let goes_to_64_bit = self.is_in_long_mode() && code.attributes.is_64_bit();
            let stack = self.outer_stack(memory, stack_selector, rpl, goes_to_64_bit)?;
            self.set_code_segment(code, rpl);
            self.set_segment(sreg::SS, stack);
            match size {
                // IRET and RETF with 16-bit operands load SP and leave the upper half alone.
                2 => self.set(reg::SP, pointer as u16),
                4 => self.set_stack_pointer(pointer),
                _ => self.set_gpr(reg::SP, pointer),
            }
            if !self.is_in_64_bit_mode() {
                self.drop_upper_half(reg::SP);
            }
            self.set_stack_pointer(self.stack_pointer().wrapping_add(target.parameters));
            if rpl != cpl {
                self.drop_inner_segments(rpl);
            }
        } else {
            self.set_stack_pointer(self.stack_pointer().wrapping_add(released));
            self.set_code_segment(code, cpl);
        }
        self.ip = target.ip;
        if let Some(flags) = target.flags {
            self.change_eflags(flags, flags_mask);
        }
        Ok(())
    }

    /// Returns the stack segment of the outer privilege level `cpl` to which a return goes, to 64-bit code if
    /// `to_64_bit` is true, which needs none at privilege levels 0 to 2.
    fn outer_stack(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
        cpl: u8,
        to_64_bit: bool,
    ) -> Result<Segment, Stopped> {
        if selector.is_null() {
            if to_64_bit && cpl != 3 && selector.rpl() == cpl {
                return Ok(Segment::null_stack(cpl));
            }
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
            // In long mode FS and GS have bases also where their selectors are null.
            let is_null = self.is_in_long_mode() && !attributes.present();
            let keeps = is_null || attributes.is_conforming() || attributes.dpl() >= cpl;
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
        let pointer = self.peek_slot(memory, 3, 4)?;
        let stack = self.peek_slot(memory, 4, 4)? as u16;
        let mut data = [0; 4];
        for (slot, selector) in (5..).zip(&mut data) {
            *selector = self.peek_slot(memory, slot, 4)? as u16;
        }
        self.change_eflags(flags, self.return_flags_mask(true) | Eflags::VM);
        self.set_segment(sreg::CS, Segment::real(selector, 3));
        self.set_segment(sreg::SS, Segment::real(stack, 3));
        for (register, selector) in [sreg::ES, sreg::DS, sreg::FS, sreg::GS].into_iter().zip(data) {
            self.set_segment(register, Segment::real(selector, 3));
        }
        self.set(reg::SP, pointer as u32);
        self.ip = ip & 0xffff;
        Ok(())
    }

    /// Returns the word of `size` bytes that is `slot` such words below the top of the stack.
    fn peek_slot(&mut self, memory: &mut Memory, slot: u64, size: usize) -> Result<u64, Stopped> {
        let offset = self.stack_pointer().wrapping_add(slot * size as u64);
        self.read_stack(memory, offset, size)
    }

    /// Returns the word of `size` bytes at `offset` of the stack.
    fn read_stack(
        &mut self,
        memory: &mut Memory,
        offset: u64,
        size: usize,
    ) -> Result<u64, Stopped> {
        let offset = offset & self.stack_mask();
        match size {
            2 => self.read::<u16>(memory, sreg::SS, offset).map(u64::from),
            4 => self.read::<u32>(memory, sreg::SS, offset).map(u64::from),
            _ => self.read(memory, sreg::SS, offset),
        }
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
