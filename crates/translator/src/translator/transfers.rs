//! Accesses to devices of instructions that do nothing else and that are known by their translation: nothing of the
//! guest's state goes to the processor and back for them.

use ring3_core::clock::Clock;
use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::{Devices, Exit};

use super::{Left, Translator};
use crate::access::{Access, To};
use crate::block::LeftOp;
use crate::context::{info, reason};

/// What has come of the instruction for which translated code was left.
pub(super) enum Transferred {
    /// Nothing: it is another one.
    Not,
    /// Translated code goes on, with what it was given last.
    GoesOn,
    /// It goes on when it was given anew what it is to have.
    GoesOnAnew,
    /// Something is to be done before.
    Left(Left),
}

impl Translator {
    /// Translated code, which may execute `allowed` instructions, was left: if that is for a known access to a device,
    /// `devices` does it.
    pub(super) fn transfer(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        allowed: &mut u64,
        deadline: &mut u64,
        devices: &mut Option<&mut dyn Devices>,
    ) -> Transferred {
        let Some(devices) = devices else { return Transferred::Not };
        let context = &*self.context;
        if context.reason != reason::STEP
            || context.info & (info::QUIET | info::AFTER_STI) != info::QUIET
        {
            return Transferred::Not;
        }
        let number = (context.info >> info::OP_SHIFT) as usize;
        let left = self.budget.left(context.budget);
        let before = cpu.instructions + (*allowed as i64 - left) as u64;
        let Some((access, exit)) = self.known_access(number, &**devices) else {
            return Transferred::Not;
        };
        if before >= *deadline {
            return Transferred::Not;
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
            self.leave_after_transfer(cpu);
            self.numeric.take(cpu, &self.blocks, &mut self.context);
            return Transferred::Left(Left::Exit(Exit::Deadline));
        };
        let end = cpu.instructions.saturating_add(room);
        let is_anew = std::mem::replace(deadline, end) != end
            || !has_stayed
            || self.context.numeric_was_live != 0
            || cpu.clock.as_ref().map(Clock::base) != clock;
        if !self.is_quiet(cpu, memory, was_asked) {
            self.leave_after_transfer(cpu);
            return Transferred::Left(Left::Done);
        }
        if is_anew {
            self.come_back(cpu);
            self.context.go_on_at_eip();
            return Transferred::GoesOnAnew;
        }
        let context = &mut *self.context;
        context.go_on_at_eip();
        // The access is one instruction of it.
        context.budget -= 1;
        *allowed = (left - 1) as u64;
        Transferred::GoesOn
    }

    /// The access that the instruction of that number, which is at CS:EIP, asks for. None if the interpreter is to be
    /// asked, or there may be more to learn of the instruction.
    fn known_access(&self, number: usize, devices: &dyn Devices) -> Option<(Access, Exit)> {
        let LeftOp { access, reads_register, .. } = &self.ops[number];
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

    /// Gives the processor what translated code has left.
    fn leave_after_transfer(&mut self, cpu: &mut Cpu) {
        self.come_back(cpu);
        self.store(cpu);
    }
}
