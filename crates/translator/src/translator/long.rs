//! 64-bit code, for which there is another translator ([`Long`]).

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};

use super::leaving::{Next, STEP};
use super::times::Work;
use super::{MOST_ITERATIONS, Translator};
use crate::long::{self, Counters, Long};

impl Translator {
    /// Executes translated 64-bit code, up to `deadline`, and the instruction after it that is left to the
    /// interpreter. Returns how execution continues.
    pub(super) fn execute_long(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        deadline: u64,
    ) -> io::Result<Next> {
        self.numeric.take(cpu, &self.blocks, &mut self.context);
        let Some(file) = &self.file else { return Ok(STEP) };
        if self.long.is_none() {
            self.long = Some(Box::new(Long::new()?));
        }
        let Some(long) = &mut self.long else { return Ok(STEP) };
        let op = match long.execute(cpu, memory, file, &self.budget, deadline)? {
            long::Next::Step => return Ok(STEP),
            long::Next::Interpret(count) => return Ok(Next::Interpret(count)),
            long::Next::LookAround => return Ok(Next::Done),
            long::Next::Op(op) => op,
        };
        self.counters.steps += 1;
        if op.stands_alone() {
            // The interpreter executes all iterations and, if the instruction ends before its count does, some
            // instructions after it.
            let iterations =
                (cpu.gpr(reg::CX) & op.address_mask()).clamp(1, MOST_ITERATIONS.into());
            return Ok(Next::Interpret(iterations));
        }
        self.counters.interpreted += 1;
        let began = self.times.begin(Work::Interpreting);
        let exit = self.interpreter.execute(cpu, memory, &op);
        self.times.end(Work::Interpreting, began);
        Ok(exit.map_or(Next::Done, Next::Exit))
    }

    /// Returns what the translator for 64-bit code counts.
    pub(super) fn long_counters(&self) -> Counters {
        self.long.as_ref().map(|long| long.counters()).unwrap_or_default()
    }
}
