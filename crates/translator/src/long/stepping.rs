//! Instructions that the interpreter executes one at a time, after which translated code continues at once,
//! unless something has changed that it depends on.

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr0, Cr4};
use ring3_x86::engine::{self, Devices, Engine};

use super::{Left, Lent, Long, Next, Resumed};
use crate::long::block::Exit;
use crate::long::cold::CodePage;
use crate::long::context::UNKNOWN_DISTANCE;
use crate::long::strings::Resumption;
use crate::translator::times::Work;

/// The state on which translated code depends, besides what [`Long::goes_on`] asks for.
#[derive(Debug, PartialEq, Eq)]
struct Surroundings {
    control: (Cr0, Cr4),
    no_execute: bool,
    layout: u64,
    a20: bool,
}

impl Surroundings {
    fn of(cpu: &Cpu, memory: &Memory) -> Surroundings {
        Surroundings {
            // The next numeric instruction asks for TS.
            control: (cpu.cr0() - Cr0::TS, cpu.cr4()),
            no_execute: cpu.msrs.no_execute,
            layout: memory.layout_generation(),
            a20: cpu.a20(),
        }
    }
}

impl Long {
    /// Executes the guest from RIP on, in translated code where that is possible, up to `deadline`. An access to
    /// a device by `devices` sets another one. Returns how execution continues.
    pub(crate) fn execute(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &mut Lent,
        deadline: &mut u64,
        devices: &mut Option<&mut dyn Devices>,
    ) -> io::Result<Next> {
        let next = self.execute_plainly(cpu, memory, lent, deadline, devices);
        self.store_numeric(cpu);
        next
    }

    /// Like [`Long::execute`], but may leave the numeric registers in the context.
    fn execute_plainly(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &mut Lent,
        deadline: &mut u64,
        devices: &mut Option<&mut dyn Devices>,
    ) -> io::Result<Next> {
        let before = Surroundings::of(cpu, memory);
        // The thread may be another one, and other code may have changed the base of GS.
        self.low.context().set_distance = UNKNOWN_DISTANCE;
        loop {
            let left = self.translate_and_run(cpu, memory, lent, *deadline)?;
            let exit = match left {
                Left::Op(number) => self.interpret(cpu, memory, lent, number, *deadline),
                // A page fault of the fetch comes before the breakpoint.
                Left::For(Next::Step) if !self.breakpoints.is_empty() => {
                    return Ok(Next::Interpret((*deadline - cpu.instructions).min(1)));
                }
                Left::For(Next::Step) => self.step(cpu, memory, lent, *deadline),
                Left::For(Next::Cold(page)) => {
                    self.execute_cold(cpu, memory, lent, page, *deadline)
                }
                Left::For(Next::Sweep) => self.sweep(cpu, memory, lent, *deadline)?,
                Left::For(next) => return Ok(next),
            };
            let is_access = exit.as_ref().is_some_and(engine::Exit::is_access);
            match (exit, devices.as_deref_mut()) {
                (Some(access), Some(devices)) if is_access => {
                    match devices.access(cpu, memory, &access) {
                        Some(rest) => *deadline = cpu.instructions.saturating_add(rest),
                        None => return Ok(Next::Exit(engine::Exit::Deadline)),
                    }
                }
                (Some(exit), _) => return Ok(Next::Exit(exit)),
                (None, _) => {}
            }
            if cpu.has_invalidations() && cpu.is_in_long_mode() {
                let invalidations = cpu.take_invalidations();
                self.invalidate(cpu, memory, &invalidations)?;
                let (spaces, blocks) = &mut lent.others;
                spaces.invalidate(cpu, memory, blocks, &invalidations)?;
            }
            let goes_on = cpu.instructions < *deadline
                && Long::goes_on(cpu, memory, lent)
                && Surroundings::of(cpu, memory) == before;
            if !goes_on {
                return Ok(Next::LookAround);
            }
        }
    }

    /// Executes translated code from RIP on, unless the interpreter must execute the instruction there.
    fn translate_and_run(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &Lent,
        deadline: u64,
    ) -> io::Result<Left> {
        if let Some(next) = self.after_page_fault(cpu, memory, lent)? {
            return Ok(Left::For(next));
        }
        // After an IRET that has set RF, or before the rest of a repeated instruction, RF lasts until the instruction
        // completes. Translated code does not see it.
        let resumes = cpu.has_resume_flag();
        let target = match self.known_code_for(cpu, memory, cpu.ip)? {
            Ok(target) => target,
            Err(_) if resumes => return Ok(Left::For(Next::Step)),
            Err(next) => return Ok(Left::For(next)),
        };
        if resumes {
            self.resumption = Some(Resumption::of(cpu));
            cpu.use_resume_flag();
        }
        self.load(cpu);
        let at = Resumed { target, counted: 0, stack_offset: 0, part: None };
        let left = self.run(cpu, memory, lent, at, deadline);
        self.store(cpu);
        if self.resumption.take().is_some_and(|resumption| resumption.lasts(cpu)) {
            cpu.set_resume_flag();
            return left.map(|left| match left {
                Left::Op(_) | Left::For(Next::Cold(_) | Next::Sweep) => Left::For(Next::Step),
                left @ Left::For(_) => left,
            });
        }
        left
    }

    /// Returns whether translated code can continue at RIP at once.
    fn goes_on(cpu: &mut Cpu, memory: &Memory, lent: &Lent) -> bool {
        cpu.runs_plainly_but_for_resume_flag()
            && !cpu.takes_interrupt()
            && !memory.has_stale_code()
            && !memory.has_marked_code()
            && !lent.interpreter.has_dropped_code()
            && Long::translates(cpu)
    }

    /// Executes the instruction of the exit with index `number`, which is at RIP, by the interpreter.
    fn interpret(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &mut Lent,
        number: usize,
        deadline: u64,
    ) -> Option<engine::Exit> {
        let Exit::Step { op, is_numeric, element, .. } = &self.exits[number] else {
            unreachable!("only these are left to the interpreter");
        };
        let (op, element) = (**op, *element);
        if *is_numeric {
            self.store_numeric(cpu);
        }
        let before = cpu.instructions;
        let began = lent.times.begin(Work::Interpreting);
        // A repeated instruction counts its iterations.
        let mut most = if op.stands_alone() { deadline - before } else { 1 };
        if let Some(element) = element {
            most = most.min(self.iterations_beside_code(cpu, memory, element));
        }
        let exit = lent.interpreter.execute(cpu, memory, &op, most);
        lent.times.end(Work::Interpreting, began);
        self.counters.steps += 1;
        self.counters.interpreted += cpu.instructions - before;
        exit
    }

    /// Executes code from RIP on by the interpreter, since that of `page` is cold, while it is 64-bit code of users.
    fn execute_cold(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &mut Lent,
        page: CodePage,
        deadline: u64,
    ) -> Option<engine::Exit> {
        self.store_numeric(cpu);
        let before = cpu.instructions;
        let began = lent.times.begin(Work::Interpreting);
        let most = self.cold.at_a_time(page).min(deadline - before);
        let exit = lent.interpreter.run_long_users(cpu, memory, most);
        lent.times.end(Work::Interpreting, began);
        let executed = cpu.instructions - before;
        self.cold.note(page, executed);
        self.counters.cold += executed;
        exit.filter(|exit| *exit != engine::Exit::Deadline)
    }

    /// Executes the instruction at RIP by the interpreter.
    fn step(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &mut Lent,
        deadline: u64,
    ) -> Option<engine::Exit> {
        self.store_numeric(cpu);
        let before = cpu.instructions;
        let began = lent.times.begin(Work::Interpreting);
        let exit = if memory.has_stale_code() {
            let exit = lent.interpreter.run(cpu, memory, 1);
            (exit != engine::Exit::Deadline).then_some(exit)
        } else {
            lent.interpreter.execute_next(cpu, memory, deadline - before)
        };
        lent.times.end(Work::Interpreting, began);
        self.counters.steps += 1;
        self.counters.interpreted += cpu.instructions - before;
        exit
    }
}
