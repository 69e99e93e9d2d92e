//! Interrupts that an access to a device in translated code asks for, such as those that a processor sends to
//! itself. Mostly they lead to the handler of the supervisor that made the access, and translated code continues there as
//! after a [quiet](super::quiet) instruction.

use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::{Devices, Exit};

use super::Translator;
use super::leaving::Next;
use super::quiet::Surroundings;

impl Translator {
    /// Delivers the interrupt that the processor takes after an access to a device in translated code. Returns how
    /// execution continues.
    pub(super) fn deliver_interrupt(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        deadline: &mut u64,
        devices: &mut dyn Devices,
    ) -> Next {
        self.store(cpu);
        let has_changed = memory.has_stale_code() || cpu.has_invalidations();
        if has_changed || !cpu.takes_interrupt() {
            return Next::Done;
        }
        let before = Surroundings::of(cpu);
        let Some(room) = devices.acknowledge_interrupt(cpu) else {
            return Next::Exit(Exit::Deadline);
        };
        *deadline = cpu.instructions.saturating_add(room);
        self.context.forget_device_reads();
        if let Some(exit) = self.interpreter.deliver_interrupt(cpu, memory) {
            return Next::Exit(exit);
        }
        let was_asked = self.context.interrupt_pin != 0;
        self.go_on_in(&before, cpu, memory, was_asked, *deadline)
    }
}
