//! REP INS without the engine: a guest that reads a sector word by word asks the machine for each of them, and leaves the
//! engine each time. Where nothing else is to be looked at between two iterations, the machine has the processor do one
//! with what was read, and takes it as asked for the next one.

use ring3_core::memory::Memory;

use crate::cpu::{Attention, Cpu, reg};
use crate::decode::Op;
use crate::flags::Eflags;
use crate::segment::sreg;
use crate::word::Word;

/// An INS with a repeat prefix that has asked for what is at its port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RepeatedInput {
    /// Bytes of an element.
    bytes: usize,
    /// The bits of DI and CX that count.
    address_mask: u32,
}

impl Cpu {
    /// `op`, a repeated INS of elements of size `W`, has asked for the next one.
    pub(crate) fn note_repeated_input<W: Word>(&mut self, op: &Op) {
        let address_mask = op.address_mask();
        self.repeated_input = Some(RepeatedInput { bytes: W::BYTES, address_mask });
    }

    /// Does an iteration of the INS for which the engine came back with
    /// [`Exit::PortRead`](crate::engine::Exit::PortRead), with the `value` that was read. False, and nothing was done, where
    /// that is not a repeated INS, or where it is the last iteration or one that needs the engine: the value is to be given as
    /// an [answer](Cpu::answer) then. The machine must not have changed the map of memory since the exit.
    pub fn input_iteration(&mut self, memory: &mut Memory, value: u32) -> bool {
        let Some(RepeatedInput { bytes, address_mask }) = self.repeated_input.take() else {
            return false;
        };
        let mask = u64::from(address_mask);
        let count = self.gpr(reg::CX) & mask;
        let needs_rights = self.cpl() > self.iopl() || self.in_virtual_8086_mode();
        let is_plain = (self.attention - Attention::RESUME).is_empty();
        if count <= 1 || needs_rights || !is_plain || memory.has_stale_code() {
            return false;
        }
        let offset = self.gpr(reg::DI) & mask;
        let segment = self.segment(sreg::ES);
        let attributes = segment.attributes;
        let is_inside = attributes.is_writable()
            && attributes.present()
            && segment.contains(offset as u32, bytes as u32);
        let linear = segment.base.wrapping_add(offset) & 0xffff_ffff;
        let Some(place) = self.tlb.current(linear).for_write(linear, bytes) else { return false };
        if !is_inside {
            return false;
        }
        match bytes {
            1 => (value as u8).store(memory, place),
            2 => (value as u16).store(memory, place),
            _ => value.store(memory, place),
        }
        let step = bytes as u64;
        let next = if self.has_flag(Eflags::DF) {
            offset.wrapping_sub(step)
        } else {
            offset.wrapping_add(step)
        };
        for (register, value) in [(reg::DI, next), (reg::CX, count - 1)] {
            self.set_gpr(register, self.gpr(register) & !mask & 0xffff_ffff | value & mask);
        }
        self.instructions += 1;
        // As after any iteration but the last one.
        self.set_resume_flag();
        self.repeated_input = Some(RepeatedInput { bytes, address_mask });
        true
    }

    /// After [`Cpu::input_iteration`]: true if the processor asks for the next element at once, and the engine need not look at it.
    /// Otherwise, and where there are no instructions left to execute, the engine is to go on.
    pub fn asks_for_input_again(&mut self) -> bool {
        let is_interrupted = self.interrupt_pin && self.is_interruptible();
        self.repeated_input.is_some() && !is_interrupted && self.begins_to_run_plainly()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, Exit};
    use crate::interpreter::Interpreter;
    use crate::segment::{Attributes, Segment};

    const PORT: u16 = 0x1f0;

    /// Runs REP INS until the HLT after it, or until something else ends it: by iterations where that is possible and wanted. Gives how many
    /// those were.
    fn run(code: &[u8], prepare: impl Fn(&mut Cpu), quick: bool) -> (Cpu, Memory, Exit, u32) {
        let mut memory = Memory::new(1 << 20).unwrap();
        memory.load_image(0x7c00, code).unwrap();
        let mut cpu = Cpu::new();
        cpu.set_real_mode_entry(0, 0x7c00);
        cpu.set_gpr(reg::DX, PORT.into());
        prepare(&mut cpu);
        let mut engine = Interpreter::new();
        let (mut next, mut iterations) = (0x1234_5678_u32, 0);
        loop {
            let exit = engine.run(&mut cpu, &mut memory, 1);
            let Exit::PortRead { port: PORT, .. } = exit else {
                // An exception leads to zeros.
                if exit == Exit::Deadline && cpu.instructions < 100 {
                    continue;
                }
                return (cpu, memory, exit, iterations);
            };
            next = next.wrapping_mul(0x9e37_79b1).rotate_left(7);
            while quick && cpu.input_iteration(&mut memory, next) {
                iterations += 1;
                assert!(cpu.asks_for_input_again());
                next = next.wrapping_mul(0x9e37_79b1).rotate_left(7);
            }
            cpu.answer(next.into());
        }
    }

    #[test]
    fn iterations_do_what_the_engine_does() {
        // INSB, INSW, and with prefixes INSD and 32-bit addresses; then HLT.
        let codes: [&[u8]; 4] = [
            &[0xf3, 0x6c, 0xf4],
            &[0xf3, 0x6d, 0xf4],
            &[0xf3, 0x66, 0x6d, 0xf4],
            &[0xf3, 0x67, 0x6d, 0xf4],
        ];
        for code in codes {
            for (di, backward) in
                [(0x4000, false), (0xfff0, false), (0x0006, true), (0x1ffd, false)]
            {
                let prepare = |cpu: &mut Cpu| {
                    cpu.set_segment(
                        sreg::ES,
                        Segment::new(0x1000, 0x1_0000, 0xffff, Attributes(0x93)),
                    );
                    cpu.set_gpr(reg::CX, 40);
                    cpu.set_gpr(reg::DI, di);
                    cpu.set_eflags(if backward { Eflags::DF } else { Eflags::empty() });
                };
                let (cpu, memory, exit, iterations) = run(code, prepare, true);
                let (cpu_then, memory_then, exit_then, _) = run(code, prepare, false);
                assert_eq!((exit, cpu.save()), (exit_then, cpu_then.save()), "{code:x?} {di:x}");
                assert!(memory.contents() == memory_then.contents(), "{code:x?} {di:x}");
                assert!(iterations > 0, "{code:x?} {di:x}");
            }
        }
    }

    #[test]
    fn an_ordinary_in_is_none() {
        let (.., iterations) = run(&[0xed, 0x6d, 0xf4], |_| {}, true);
        assert_eq!(iterations, 0);
    }
}
