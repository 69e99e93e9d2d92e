//! Accesses to devices by instructions that do nothing else and are known since their translation. The engine
//! makes them while translated code waits, and the guest's state does not go to the processor and back for
//! them.

use std::mem;
use std::ptr;

use ring3_core::clock::Clock;
use ring3_core::device::Width;
use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::{Devices, Exit};
use ring3_x86::paging::Access;

use super::Translator;
use super::system::Running;
use crate::access::{DeviceAccess, To};
use crate::budget;
use crate::code::block::{DeferredOp, MAX_INSTRUCTIONS};
use crate::context::{Context, outcome};

/// Makes the access of the instruction with index `number` in [`Translator::ops`], and returns its
/// [`outcome`].
///
/// # Safety
/// Only [`access_device`](crate::routines::devices::access_device) may call it, for the [`Context`] with
/// which translated code runs. The general registers, the budget and RSP must be in `context`.
pub(crate) unsafe extern "sysv64" fn execute_access(context: *mut Context, number: u32) -> u32 {
    // SAFETY: `running` was set before translated code was entered. The function that entered it waits until
    // translated code is left, and uses none of these objects meanwhile.
    let running = unsafe {
        &mut *ptr::with_exposed_provenance_mut::<Running<'_>>((*context).running as usize)
    };
    let Running { translator, cpu, memory, deadline, devices, .. } = *running;
    // SAFETY: as above; there are no other references to them.
    unsafe {
        let devices = &mut *devices;
        let Some(devices) = devices.as_deref_mut() else { return outcome::STOPPED };
        let allowed = &mut running.allowed;
        let translator = &mut *translator;
        translator.access(
            &mut *cpu,
            &mut *memory,
            number as usize,
            allowed,
            &mut *deadline,
            devices,
        )
    }
}

/// The port that was read last among those whose value could not be known beforehand, and how often since.
#[derive(Debug, Default)]
pub(super) struct MissedPeeks {
    port: Option<u16>,
    reads: u8,
}

impl MissedPeeks {
    /// Most of these ports never let their values be known, and guests read them again and again; to look whether
    /// they do takes an eighth of such a read. So it is done for the first of this many reads.
    const READS: u8 = 16;

    /// Notes a read of `port`. Returns whether it is to be looked whether its value can be known.
    #[inline]
    fn is_worth_a_look(&mut self, port: u16) -> bool {
        let is_another = self.port.replace(port) != Some(port);
        self.reads = if is_another { 0 } else { (self.reads + 1) % MissedPeeks::READS };
        self.reads == 0
    }

    /// Notes that the value could be known.
    #[inline]
    fn forget(&mut self) {
        self.port = None;
    }
}

impl Translator {
    /// Makes an access by `devices` while translated code, which may execute `allowed` instructions, waits;
    /// see [`execute_access`].
    #[inline]
    fn access(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        number: usize,
        allowed: &mut u64,
        deadline: &mut u64,
        devices: &mut dyn Devices,
    ) -> u32 {
        // What is known of the instruction is read where it is, and the exit is made in one place: to move
        // them takes as long as a short access.
        let Some(access) = &self.ops[number].access else {
            return self.look_at_load(cpu, memory, number);
        };
        let Some(to) = access.to(&self.context.gpr) else { return outcome::STOPPED };
        let width = access.width;
        if let To::Port(port) = to
            && access.needs_permission()
        {
            match self.may_use_port(cpu, memory, port, width) {
                Some(true) => {}
                Some(false) => return outcome::FAULTS,
                None => return outcome::STOPPED,
            }
        }
        let Translator { ops, context, device_pages, missed_peeks, .. } = self;
        let DeferredOp { access: Some(access), reads_register, .. } = &ops[number] else {
            return outcome::STOPPED;
        };
        let exit = match to {
            To::Port(port) => {
                if access.reads_byte()
                    && missed_peeks.is_worth_a_look(port)
                    && let Some(value) = devices.peek_port(port)
                {
                    missed_peeks.forget();
                    if !access.needs_permission() {
                        context.note_port_read(port, value);
                    }
                    context.finish_access(access, value.into());
                    return outcome::DONE;
                }
                access.at_port(&context.gpr, port)
            }
            To::Linear(linear) => {
                let known =
                    if access.is_user { None } else { device_pages.find(linear, access.writes()) };
                let Some(address) = known else {
                    let access = *access;
                    return self.fault_at(cpu, memory, linear, access);
                };
                if *reads_register && devices.peek(address).is_some() {
                    // There is more to learn about the instruction.
                    return outcome::STOPPED;
                }
                access.at_address(&context.gpr, address)
            }
        };
        let was_asked = cpu.interrupt_pin;
        let clock = cpu.clock.as_ref().map(Clock::base);
        let entered_at = cpu.instructions;
        // The access counts when it is complete.
        let left = self.budget.remaining(self.context.budget);
        cpu.instructions = entered_at.wrapping_add_signed(*allowed as i64 - left - 1);
        let (value, room) = devices.transfer(cpu, memory, &exit);
        let executed = mem::replace(&mut cpu.instructions, entered_at);
        let Translator { ops, context, .. } = self;
        context.forget_device_reads();
        let reads = matches!(exit, Exit::PortRead { .. } | Exit::MmioRead { .. });
        if reads && let Some(access) = &ops[number].access {
            context.finish_access(access, value);
        }
        let Some(room) = room else {
            self.must_return = true;
            return outcome::DONE | outcome::LEAVES;
        };
        let end = executed.saturating_add(room);
        let has_same_end = mem::replace(deadline, end) == end;
        if !self.is_quiet(cpu, memory, was_asked) {
            return outcome::DONE | outcome::LEAVES;
        }
        if has_same_end && cpu.clock.as_ref().map(Clock::base) == clock {
            return outcome::DONE;
        }
        // The block has checked the budget for the instructions that follow in it, but this is another one.
        if room < u64::from(MAX_INSTRUCTIONS) {
            return outcome::DONE | outcome::LEAVES;
        }
        cpu.instructions = executed;
        *allowed = room.min(budget::LONGEST);
        self.context.budget = self.budget.of(*allowed);
        self.context.resumed = 0;
        self.load_time(cpu, *allowed);
        outcome::DONE
    }

    /// Returns whether the load of a segment register with index `number` is refused, as an [`outcome`].
    fn look_at_load(&mut self, cpu: &mut Cpu, memory: &mut Memory, number: usize) -> u32 {
        let Some(register) = self.ops[number].loads else { return outcome::STOPPED };
        if !self.has_stayed() {
            self.come_back(cpu);
        }
        let refused = cpu.refused_load(memory, register, self.context.selector as u16);
        // The read of the descriptor may have set an accessed bit beside code.
        if memory.has_stale_code() || memory.has_marked_code() {
            return outcome::STOPPED;
        }
        match refused {
            Some(code) => {
                self.context.error_code = code;
                outcome::FAULTS
            }
            None => outcome::DONE,
        }
    }

    /// Returns the outcome of `access`, which goes to no known page of a device but to `linear`.
    fn fault_at(
        &mut self,
        cpu: &mut Cpu,
        memory: &Memory,
        linear: u32,
        access: DeviceAccess,
    ) -> u32 {
        let kind = if access.writes() { Access::Write } else { Access::Read };
        match cpu.known_page_fault(memory, linear, kind, access.is_user) {
            Some(code) => {
                cpu.cr2 = linear.into();
                self.context.control[2] = linear;
                self.context.error_code = code;
                // An earlier fault is no longer the last one.
                self.page_fault = None;
                self.context.awaited = u64::MAX;
                outcome::FAULTS
            }
            None => outcome::STOPPED,
        }
    }

    /// Returns whether the user code that runs may use a port, if this can be found out.
    fn may_use_port(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        port: u16,
        width: Width,
    ) -> Option<bool> {
        if !self.has_stayed() {
            self.come_back(cpu);
        }
        cpu.may_use_port(memory, port, width)
    }
}
