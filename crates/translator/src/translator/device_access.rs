//! Accesses to devices by instructions that do nothing else and are known since their translation. The
//! guest's state need not go to the processor and back for them.

use ring3_core::clock::Clock;
use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::{Devices, Exit};

use super::Translator;
use super::leaving::Next;
use crate::access::{DeviceAccess, To};
use crate::code::block::DeferredOp;
use crate::context::{info, reason};

/// The outcome of looking at the instruction for which translated code was left.
pub(super) enum Accessed {
    /// It is another instruction, and nothing was done.
    Not,
    /// The access is complete. Translated code continues with its present context.
    GoesOn,
    /// The access is complete. Translated code continues after its context was set up anew.
    GoesOnAnew,
    /// The access is complete, but something else must be done first.
    Next(Next),
}

impl Translator {
    /// After translated code, which may execute `allowed` instructions, was left: if it was left for a known
    /// access to a device, makes the access by `devices`.
    pub(super) fn access_device(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        allowed: &mut u64,
        deadline: &mut u64,
        devices: &mut Option<&mut dyn Devices>,
    ) -> Accessed {
        let Some(devices) = devices else { return Accessed::Not };
        let context = &*self.context;
        if context.reason != reason::STEP
            || context.info & (info::QUIET | info::AFTER_HOLDING) != info::QUIET
        {
            return Accessed::Not;
        }
        let number = (context.info >> info::OP_SHIFT) as usize;
        let remaining = self.budget.remaining(context.budget);
        let before = cpu.instructions + (*allowed as i64 - remaining) as u64;
        let Some((access, exit)) = self.known_access(number, &**devices) else {
            return Accessed::Not;
        };
        if before >= *deadline {
            return Accessed::Not;
        }
        let has_stayed = self.has_stayed();
        if !has_stayed {
            self.come_back(cpu);
        }
        let was_asked = cpu.interrupt_pin;
        let clock = cpu.clock.as_ref().map(Clock::base);
        cpu.instructions = before;
        let (value, room) = devices.transfer(cpu, memory, &exit);
        let context = &mut *self.context;
        context.forget_device_reads();
        access.finish(&mut context.gpr, value);
        context.eip = context.eip.wrapping_add(access.length.into());
        let Some(room) = room else {
            self.leave_after_access(cpu);
            self.numeric.take(cpu, &self.blocks, &mut self.context);
            return Accessed::Next(Next::Exit(Exit::Deadline));
        };
        let end = cpu.instructions.saturating_add(room);
        let is_anew = std::mem::replace(deadline, end) != end
            || !has_stayed
            || self.context.numeric_was_live != 0
            || cpu.clock.as_ref().map(Clock::base) != clock;
        if !self.is_quiet(cpu, memory, was_asked) {
            self.leave_after_access(cpu);
            return Accessed::Next(Next::Done);
        }
        if is_anew {
            self.come_back(cpu);
            self.context.go_on_at_eip();
            return Accessed::GoesOnAnew;
        }
        let context = &mut *self.context;
        context.go_on_at_eip();
        // The access counts as one instruction.
        context.budget -= 1;
        *allowed = (remaining - 1) as u64;
        Accessed::GoesOn
    }

    /// Returns the access that the instruction at CS:EIP, with index `number`, demands. Returns None if the
    /// interpreter must execute the instruction, or if there may be more to learn about it.
    fn known_access(&self, number: usize, devices: &dyn Devices) -> Option<(DeviceAccess, Exit)> {
        let DeferredOp { access, reads_register, .. } = &self.ops[number];
        let access = (*access)?;
        let registers = &self.context.gpr;
        match access.to(registers)? {
            To::Port(port) => Some((access, access.at_port(registers, port))),
            To::Linear(linear) => {
                let address = self.device_pages.find(linear, access.writes())?;
                let is_one = *reads_register && devices.peek(address).is_some();
                (!is_one).then(|| (access, access.at_address(registers, address)))
            }
        }
    }

    /// Copies the guest's state from translated code to the processor.
    fn leave_after_access(&mut self, cpu: &mut Cpu) {
        self.come_back(cpu);
        self.store(cpu);
    }
}
