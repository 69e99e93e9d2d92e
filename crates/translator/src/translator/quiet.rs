//! Instructions that the interpreter executes and after which translated code continues at once, since they
//! change nothing that it depends on. Above all these are accesses to devices, and instructions that only
//! read the processor's state.

use ring3_core::device::Width;
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::engine::{Devices, Exit};

use super::leaving::{Middle, Next};
use super::system::known_msrs;
use super::times::Work;
use super::{INTERPRETED_BESIDE_DATA, Translator};
use crate::access::To;
use crate::context::{HOST_FLAGS, STATUS_AND_DIRECTION};

/// The state on which translated code depends, besides general registers, flags, and what
/// [`Translator::is_quiet`] asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Surroundings {
    segment_loads: u64,
    control: (Cr0, u64, Cr4),
    msrs: (u32, u64, u64, u64, u32),
}

impl Surroundings {
    #[inline]
    pub(super) fn of(cpu: &Cpu) -> Surroundings {
        Surroundings {
            segment_loads: cpu.segment_loads(),
            control: (cpu.cr0(), cpu.cr3(), cpu.cr4()),
            msrs: known_msrs(&cpu.msrs),
        }
    }
}

/// An instruction that the interpreter executes while translated code waits.
struct QuietOp {
    /// Its index in [`Translator::ops`].
    number: usize,
    /// Whether the interpreter has had to execute it again and again.
    is_barred: bool,
    /// The linear address of a device register that it reads and whose value is not known.
    read: Option<u32>,
}

impl Translator {
    /// Executes the instruction at which translated code was left, and returns how execution continues.
    pub(super) fn execute_deferred(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        next: &Next,
        deadline: &mut u64,
        devices: &mut Option<&mut dyn Devices>,
    ) -> Next {
        let (number, is_barred, read) = match *next {
            Next::Quiet { number, is_barred } => (number, is_barred, None),
            Next::DeviceRead { point, number } => {
                let linear = self.context.device_address;
                let address =
                    self.device_pages.find(linear, false).filter(|_| linear.is_multiple_of(4));
                let value =
                    address.zip(devices.as_ref()).and_then(|(address, all)| all.peek(address));
                if let Some(value) = value {
                    self.context.note_device_read(linear, value);
                    return match point.go_on(cpu, *deadline) {
                        Next::Interpret(count) => {
                            self.store(cpu);
                            Next::Interpret(count)
                        }
                        next => next,
                    };
                }
                (number, false, Some(linear))
            }
            _ => unreachable!("translated code waits for nothing else"),
        };
        if cpu.instructions >= *deadline {
            self.store(cpu);
            return Next::Interpret(0);
        }
        self.execute_quiet(cpu, memory, &QuietOp { number, is_barred, read }, deadline, devices)
    }

    /// Returns whether nothing has changed that translated code depends on. The interrupt pin must still be
    /// as it was before, `was_asked`.
    pub(super) fn is_quiet(&self, cpu: &mut Cpu, memory: &Memory, was_asked: bool) -> bool {
        cpu.begins_to_run_plainly()
            && cpu.interrupt_pin == was_asked
            && !memory.has_stale_code()
            && !memory.has_marked_code()
            && !cpu.has_invalidations()
            && self.layout == Some(memory.layout_generation())
            && self.a20 == cpu.a20()
    }

    /// Lets translated code continue where the interpreter has led, if nothing else has changed since `before`.
    pub(super) fn go_on_in(
        &mut self,
        before: &Surroundings,
        cpu: &mut Cpu,
        memory: &mut Memory,
        was_asked: bool,
        deadline: u64,
    ) -> Next {
        let flags = self.context.flags_without_if;
        self.context.set_system_flags(cpu);
        let goes_on = cpu.instructions < deadline
            && self.is_quiet(cpu, memory, was_asked)
            && self.context.flags_without_if == flags
            && Surroundings::of(cpu) == *before
            && self.descriptors.are_those_of(cpu);
        if !goes_on {
            return Next::Done;
        }
        self.load_system(cpu);
        self.context.forget_device_reads();
        self.load_after_quiet(cpu);
        Next::Again(Middle::default())
    }

    /// Executes the instruction at CS:EIP by the interpreter, and the access to a device that it demands by
    /// `devices`. Translated code can continue if nothing else has happened.
    fn execute_quiet(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        quiet: &QuietOp,
        deadline: &mut u64,
        devices: &mut Option<&mut dyn Devices>,
    ) -> Next {
        let QuietOp { number, is_barred, read } = *quiet;
        self.store(cpu);
        self.counters.steps += 1;
        self.counters.interpreted += 1;
        let events = self.interpreter.events();
        let was_asked = cpu.interrupt_pin;
        let began = self.times.begin(Work::Interpreting);
        let mut exit = self.interpreter.execute(cpu, memory, &self.ops[number].op, 1);
        self.times.end(Work::Interpreting, began);
        let is_access = exit.as_ref().is_some_and(Exit::is_access);
        if let (Some(access), Some(devices), true) = (&exit, devices, is_access) {
            self.note_access(number, access);
            if let Exit::MmioRead { address, width: Width::Dword } = *access
                && devices.peek(address).is_some()
            {
                self.note_device_read(cpu, memory, quiet, address);
            }
            self.context.forget_device_reads();
            exit = match devices.access(cpu, memory, access) {
                Some(rest) => {
                    *deadline = cpu.instructions.saturating_add(rest);
                    None
                }
                None => Some(Exit::Deadline),
            };
        }
        let is_needed = is_barred && !is_access && self.count_barred(cpu, memory);
        if read.is_some() && !is_access && self.device_reads.remove(&self.context.eip) {
            // The instruction reads ordinary memory, too.
            self.drop_block(cpu, memory);
        }
        if let Some(exit) = exit {
            return Next::Exit(exit);
        }
        if self.interpreter.events() != events || !self.is_quiet(cpu, memory, was_asked) {
            if self.ops[number].access.is_some_and(|access| access.may_fault()) {
                // Perhaps it has faulted. Then translated code raises the next exception by what is known of
                // this one.
                let Translator { descriptors, limits, context, .. } = self;
                descriptors.note_transfer(cpu, memory, limits, context);
            }
            if is_needed && self.modes.current().1.segmented.is_some() {
                // Mostly a write to data beside code.
                return Next::Interpret(INTERPRETED_BESIDE_DATA);
            }
            return Next::Done;
        }
        if cpu.instructions >= *deadline {
            return Next::Done;
        }
        self.load_after_quiet(cpu);
        Next::Again(Middle::default())
    }

    /// Notes the page of a device that the instruction with index `number` has accessed by `exit`.
    fn note_access(&mut self, number: usize, exit: &Exit) {
        if let (Exit::MmioRead { address, .. } | Exit::MmioWrite { address, .. }, Some(access)) =
            (exit, &self.ops[number].access)
            && let Some(To::Linear(linear)) = access.to(&self.context.gpr)
            && !access.is_user
        {
            self.device_pages.note(linear, *address, access.writes());
        }
    }

    /// Notes that the instruction at CS:EIP has read the device register at `address`, whose value does not
    /// change when it is read.
    fn note_device_read(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        quiet: &QuietOp,
        address: u64,
    ) {
        if let Some(linear) = quiet.read {
            self.device_pages.note(linear, address, false);
        } else if quiet.is_barred && self.ops[quiet.number].reads_register {
            self.device_reads.insert(self.context.eip);
            self.barred.remove(&self.context.eip);
            self.drop_block(cpu, memory);
        }
    }

    /// Forgets what is known of devices, since it may be different now.
    pub(super) fn forget_devices(&mut self) {
        self.device_pages.clear();
        self.context.forget_device_reads();
    }

    /// Copies the state that a quiet instruction may have changed to the context.
    pub(super) fn load_after_quiet(&mut self, cpu: &Cpu) {
        let context = &mut self.context;
        for register in reg::AX..=reg::DI {
            context.gpr[usize::from(register)] = cpu.gpr(register) as u32;
        }
        context.eip = cpu.ip as u32;
        context.flags = u64::from(cpu.pushed_flags() & STATUS_AND_DIRECTION | HOST_FLAGS);
        context.control[2] = cpu.cr2 as u32;
        context.go_on_at_eip();
    }
}
