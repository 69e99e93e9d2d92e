//! 64-bit code, for which there is another translator ([`Long`]).

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::Devices;

use super::Translator;
use super::leaving::{Next, STEP};
use crate::long::counters::Counters;
use crate::long::{self, Lent, Long};

impl Translator {
    /// Makes 64-bit code of users be translated once so many `instructions` were interpreted in its page; with 0, when
    /// it is executed first. Other code is always translated then. Results are the same; tests of translated code need
    /// short programs to be translated. Call this before the first 64-bit code runs.
    pub fn translate_after(&mut self, instructions: u64) {
        self.cold = instructions;
    }

    /// Executes 64-bit code, up to `deadline`, in translated code where that is possible. An access to a device
    /// by `devices` sets another deadline. Returns how execution continues.
    pub(super) fn execute_long(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        deadline: &mut u64,
        devices: &mut Option<&mut dyn Devices>,
    ) -> io::Result<Next> {
        self.numeric.take(cpu, &self.blocks, &mut self.context);
        let Translator {
            file,
            long,
            budget,
            interpreter,
            times,
            spaces,
            blocks,
            cold,
            reveals_code,
            ..
        } = self;
        let Some(file) = file else { return Ok(STEP) };
        let long = if let Some(long) = long {
            long
        } else {
            let mut new = Box::new(Long::new(*cold)?);
            new.set_breakpoints(cpu.debugger().breakpoints());
            if *reveals_code {
                new.reveal_code()?;
            }
            long.insert(new)
        };
        let mut lent = Lent { file, budget, interpreter, times, others: (spaces, blocks) };
        Ok(match long.execute(cpu, memory, &mut lent, deadline, devices)? {
            long::Next::Step | long::Next::Cold(_) | long::Next::Sweep => STEP,
            long::Next::Interpret(count) => Next::Interpret(count),
            long::Next::LookAround => Next::Done,
            long::Next::Exit(exit) => Next::Exit(exit),
        })
    }

    /// Returns what the translator for 64-bit code counts.
    pub(super) fn long_counters(&self) -> Counters {
        self.long.as_ref().map(|long| long.counters()).unwrap_or_default()
    }
}
