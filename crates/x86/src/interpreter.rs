//! The interpreter: the engine that runs anywhere, counts everything and is the specification of all other
//! engines.
//!
//! Instructions are decoded once, into blocks that end where control may be transferred. Blocks are kept by
//! guest-physical page and dropped when the page is written to. Inside a block each instruction continues
//! with the next one unless it stops; interrupts, deadlines and all other events are handled between blocks.
//!
//! # Speed
//!
//! An interpreter spends its time on mispredicted branches and cache misses, so these decide its structure.
//!
//! * **Each handler calls the next one** ([`crate::table`]) as its last act, which compiles to a jump. A loop
//!   with one indirect call for all instructions would be mispredicted nearly every time. Where the call does
//!   not become a jump (debug builds), its depth is bounded by 1024 instructions. A near branch calls the
//!   first handler of its target: by a link within a page, and otherwise by a table of linear addresses
//!   ([`crate::jumps`]).
//! * **First quick, then slow.** A handler with a memory operand exists twice. The quick one asks only the
//!   TLB, calls nothing and so saves no registers. It stops without an effect where the TLB does not answer,
//!   and the slow one (`table::slow!`, never inlined) starts again.
//! * **Pairs** ([`crate::exec`]'s `pair`): frequent sequences share a handler, and still count separately.
//! * **Flat segments are a mode of decoding.** While DS, ES and SS are flat and the stack pointer is ESP,
//!   operands decode to handlers without segment checks. Loading one of these registers ends a block.
//! * **Decoded code is small.** A miss of the second-level cache costs as much as fifty instructions. An
//!   [`Op`] has 32 bytes, and all of them are in one array in the order of decoding. Dropped code stays there
//!   until the array is full; then everything is decoded anew. Boxes of 40-byte `Op`s with a header for each
//!   block were a third slower.
//! * **The TLB** ([`crate::tlb`]) stores a page's address separately for each kind of access, or none: one
//!   compare checks rights, accessed and dirty bits, RAM or device, and decoded code. The entries of the two
//!   privileges are swapped when the privilege changes.
//! * **Code that changes**: `ring3_core::memory` knows the 64-byte lines that were decoded. The TLB lets no
//!   write to their page through at once, so each write takes the slow path, which drops the code; DMA takes
//!   that path, too.

mod cache;
mod fetch;

use ring3_core::memory::Memory;

use crate::cpu::{Attention, Cpu};
use crate::debug;
use crate::debugger::Hit;
use crate::decode::Op;
use crate::engine::{Engine, Exit};
use crate::exception::{Fault, Stop, Stopped, vector};
use crate::histogram::Counted;
use crate::interpreter::cache::Cache;
use crate::interpreter::fetch::{CROSSINGS, Crossing, FetchPage, NOWHERE, Next};
use crate::interrupt::{Delivery, Event, Source};
use crate::observer::Observer;
use crate::segment::sreg;
use crate::table::{FormId, Unlinked};

/// The most instructions that are executed before the handlers return, so that the stack does not overflow
/// where calls do not become jumps (debug builds).
const CHAIN_LENGTH: u64 = 1024;
/// The interpreter.
#[derive(Debug)]
pub struct Interpreter {
    cache: Cache,
    fetch: FetchPage,
    crossings: Vec<Option<Crossing>>,
    /// The [`Memory::layout_generation`] for which the TLB was filled.
    layout: u64,
    counters: Counters,
    observer: Option<Box<dyn Observer>>,
    /// Whether the next instruction begins a block, for the observer.
    at_block: bool,
    /// If another engine executes too: the pages whose code has changed, to be passed to it.
    dropped: Option<Vec<u32>>,
    /// The last page fault that an instruction has raised, for the other engine.
    page_fault: Option<PageFault>,
    /// The [generation](crate::debugger::Debugger::generation) of the breakpoints in the decoded code.
    planted: u64,
}

/// A page fault that an instruction has raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFault {
    /// The error code (SDM vol. 3, figure 5-12).
    pub error_code: u32,
    /// RIP of the instruction.
    pub ip: u64,
}

#[derive(Debug, Default)]
struct Counters {
    blocks_decoded: u64,
    code_pages_dropped: u64,
    single_steps: u64,
    crossings_decoded: u64,
    events: u64,
    page_walks: u64,
}

impl Default for Interpreter {
    fn default() -> Self {
        Interpreter {
            cache: Cache::default(),
            fetch: NOWHERE,
            crossings: vec![None; CROSSINGS],
            layout: 0,
            counters: Counters::default(),
            observer: None,
            at_block: true,
            dropped: None,
            page_fault: None,
            planted: 0,
        }
    }
}

impl Interpreter {
    /// Makes an interpreter that has decoded nothing yet.
    pub fn new() -> Interpreter {
        Interpreter::default()
    }

    /// Makes an interpreter that executes the instructions that another engine leaves to it, on the same
    /// memory.
    pub fn beside_another_engine() -> Interpreter {
        Interpreter { dropped: Some(Vec::new()), ..Interpreter::default() }
    }

    /// Drops the code of `pages`, which the other engine has found changed.
    pub fn drop_code(&mut self, cpu: &mut Cpu, pages: &[u32]) {
        for page in pages {
            self.cache.drop_frame(*page as usize);
            cpu.forget_jumps();
            self.counters.code_pages_dropped += 1;
        }
        self.fetch = NOWHERE;
    }

    /// Returns the pages whose code this engine has found changed since the last call, for the other engine.
    pub fn take_dropped_code(&mut self) -> Vec<u32> {
        self.dropped.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns whether [`Interpreter::take_dropped_code`] would return any pages.
    pub fn has_dropped_code(&self) -> bool {
        self.dropped.as_ref().is_some_and(|pages| !pages.is_empty())
    }

    /// Returns the last page fault that an instruction has raised since the last call.
    pub fn take_page_fault(&mut self) -> Option<PageFault> {
        self.page_fault.take()
    }

    /// Returns how many exceptions and interrupts it has delivered.
    pub fn events(&self) -> u64 {
        self.counters.events
    }

    /// Makes `observer` see the execution from the next run on, instead of the present observer.
    pub fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) {
        self.observer = observer;
        self.at_block = true;
    }

    /// Shows the observer the instruction that is about to be executed.
    fn show_instruction(&mut self, cpu: &mut Cpu, op: &Op) {
        if let Some(observer) = &mut self.observer {
            cpu.accesses.clear();
            if std::mem::replace(&mut self.at_block, op.ends_block()) {
                observer.block(cpu);
            }
            observer.instruction(cpu, op);
        }
    }

    /// Shows the observer an event that is about to be delivered.
    fn show_event(&mut self, cpu: &mut Cpu, event: &Event) {
        if let Some(observer) = &mut self.observer {
            self.at_block = true;
            observer.event(cpu, event);
        }
    }

    /// Shows the observer the accesses of the instruction or delivery that is complete.
    fn show_accesses(&mut self, cpu: &mut Cpu) {
        if let Some(observer) = &mut self.observer {
            for access in std::mem::take(&mut cpu.accesses) {
                observer.access(cpu, access);
            }
        }
    }

    /// Forgets the code of pages that were written to.
    fn drop_stale_code(&mut self, cpu: &mut Cpu, memory: &mut Memory) {
        let pages = memory.take_stale_code();
        self.drop_code(cpu, &pages);
        if let Some(dropped) = &mut self.dropped {
            dropped.extend(pages);
        }
    }

    /// Executes one instruction and handles all special conditions before and after it.
    #[inline(never)]
    fn step(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> Option<Exit> {
        if cpu.is_at_debugger_breakpoint() {
            cpu.note_debugger_hit(Hit::Breakpoint);
            return Some(Exit::Debugger);
        }
        self.counters.single_steps += 1;
        let before = begin_alone(cpu);
        let start = cpu.ip;
        if before.contains(Attention::RESUME) {
            cpu.use_resume_flag();
        } else if before.contains(Attention::BREAKPOINTS)
            && !before.contains(Attention::SS_LOADED)
            && let hits @ 1.. = cpu.instruction_breakpoints()
        {
            // This counts as an instruction, or a handler whose IRET restores no RF would repeat for ever.
            cpu.count(FormId::NONE, cpu.is_user());
            cpu.forget_answers();
            let fault = cpu.debug_event(hits);
            return self.deliver(cpu, memory, fault);
        }
        match self.find_alone(cpu, memory) {
            Ok(Next::Crossing(op)) => self.execute_alone(cpu, memory, &op, before),
            Ok(Next::Block(first)) => {
                let op = self.cache.ops[first];
                self.execute_alone(cpu, memory, &op, before)
            }
            Err(Stopped) => {
                let counted = Counted::nothing(cpu);
                self.stopped(cpu, memory, start, before, counted)
            }
        }
    }

    /// Executes `op`, which is at CS:EIP, for another engine that has decoded it: `iterations` iterations at most
    /// if it is repeated. Nothing [but RF](Cpu::runs_plainly_but_for_resume_flag) must be special.
    pub fn execute(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        iterations: u64,
    ) -> Option<Exit> {
        self.counters.single_steps += 1;
        cpu.deadline = cpu.instructions + iterations;
        self.look_at_layout(cpu, memory);
        let before = begin_alone(cpu);
        if before.contains(Attention::RESUME) {
            cpu.use_resume_flag();
        }
        self.execute_alone(cpu, memory, op, before)
    }

    /// Executes the instruction at CS:EIP for another engine, and the single-step trap after it. The processor
    /// must [begin a single step](Cpu::begins_single_step).
    pub fn execute_single_step(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> Option<Exit> {
        self.execute_next(cpu, memory, 1)
    }

    /// Executes the instruction at CS:EIP for another engine: `iterations` iterations at most if it is repeated.
    /// Nothing [but RF](Cpu::runs_plainly_but_for_resume_flag) must be special, and no code stale.
    pub fn execute_next(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        iterations: u64,
    ) -> Option<Exit> {
        cpu.deadline = cpu.instructions + iterations;
        self.look_at_layout(cpu, memory);
        // Decoded code may have breakpoints that were removed meanwhile.
        self.plant_breakpoints(cpu);
        self.step(cpu, memory)
    }

    /// Delivers the interrupt that was [injected](Cpu::inject) last, for another engine. Does nothing if there is
    /// none.
    pub fn deliver_interrupt(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> Option<Exit> {
        self.look_at_layout(cpu, memory);
        let event = cpu.event.filter(|event| event.source == Source::External)?;
        self.deliver(cpu, memory, event)
    }

    /// Executes `op` for another engine, if it completes. Otherwise returns false; then it has had no effect
    /// and must be executed in another way. EIP and the count of instructions do not change. `op` must not
    /// access a debug register while these [are guarded](Cpu::guards_debug_registers), and must not use EIP.
    pub fn execute_if_plain(&mut self, cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> bool {
        self.look_at_layout(cpu, memory);
        cpu.guard_code = false;
        cpu.left = 0;
        let executed = (op.exec)(cpu, memory, op, &[], 0);
        cpu.unlinked = None;
        if executed.is_err() {
            cpu.stop = Stop::Unfinished;
        }
        executed.is_ok()
    }

    /// Executes `op`, which is at CS:EIP, and nothing after it.
    fn execute_alone(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        before: Attention,
    ) -> Option<Exit> {
        let start = cpu.ip;
        let counted = Counted { form: op.form, is_user: cpu.is_user() };
        self.show_instruction(cpu, op);
        cpu.ip = cpu.next_ip(start, u64::from(op.length));
        cpu.set_code_base(start.wrapping_sub(u64::from(op.offset)));
        // The instruction runs alone: no block follows, by number or by link.
        cpu.left = 0;
        let executed = (op.exec)(cpu, memory, op, &[], 0);
        cpu.unlinked = None;
        match executed {
            Ok(()) => {
                counted.count(cpu);
                self.completed_step(cpu, memory, before)
            }
            Err(Stopped) => self.stopped(cpu, memory, start, before, counted),
        }
    }

    /// Drops translations that were made with another map of memory.
    fn look_at_layout(&mut self, cpu: &mut Cpu, memory: &Memory) {
        if self.layout != memory.layout_generation() {
            self.layout = memory.layout_generation();
            cpu.translation_changed();
        }
    }

    /// Drops decoded code if the debugger's breakpoints are others now.
    fn plant_breakpoints(&mut self, cpu: &mut Cpu) {
        if self.planted != cpu.debugger.generation() {
            self.planted = cpu.debugger.generation();
            self.cache = Cache::default();
            self.fetch = NOWHERE;
            cpu.forget_jumps();
        }
    }

    /// Handles the single-step trap after an instruction that was executed alone.
    fn completed_step(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        before: Attention,
    ) -> Option<Exit> {
        cpu.forget_answers();
        self.show_accesses(cpu);
        let held_back = cpu.attention.contains(Attention::NO_TRAP);
        cpu.attention -= Attention::WRITES_CODE | Attention::NO_TRAP;
        if before.contains(Attention::SINGLE_STEP) && !held_back {
            if !cpu.attention.intersects(Attention::DEBUG_TRAP | Attention::SS_LOADED) {
                let trap = cpu.debug_event(debug::SINGLE_STEP);
                return self.deliver(cpu, memory, trap);
            }
            cpu.note_debug_conditions(debug::SINGLE_STEP);
        }
        self.debug_trap(cpu, memory)
    }

    /// Delivers the trap for the debug conditions of the last instruction, but not directly after one that
    /// loads SS.
    fn debug_trap(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> Option<Exit> {
        let traps = cpu.attention.contains(Attention::DEBUG_TRAP)
            && !cpu.attention.contains(Attention::SS_LOADED);
        if !traps {
            return None;
        }
        let conditions = cpu.take_debug_conditions();
        let trap = cpu.debug_event(conditions);
        self.deliver(cpu, memory, trap)
    }

    /// Delivers a fault. It sets RF, in the saved flags too, so that the instruction can start again without
    /// triggering its breakpoint (SDM vol. 3, 19.3.1.1).
    fn raise(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        fault: Fault,
        counted: Counted,
    ) -> Option<Exit> {
        cpu.forget_answers();
        cpu.attention -= Attention::WRITES_CODE | ONE_INSTRUCTION;
        cpu.take_debug_conditions();
        cpu.take_debugger_hit();
        cpu.set_resume_flag();
        // This counts as an instruction, or a handler that faults at once would repeat for ever.
        counted.count(cpu);
        self.deliver(cpu, memory, fault.into())
    }

    /// Handles the reason why the instruction at `start` stopped, which counts as `counted`.
    #[inline(never)]
    fn stopped(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        start: u64,
        before: Attention,
        counted: Counted,
    ) -> Option<Exit> {
        match std::mem::replace(&mut cpu.stop, Stop::Unfinished) {
            Stop::Fault(fault) => {
                cpu.ip = start;
                if fault.vector == vector::PF {
                    let error_code = fault.error_code.unwrap_or_default();
                    self.page_fault = Some(PageFault { error_code, ip: start });
                }
                self.raise(cpu, memory, fault, counted)
            }
            Stop::TaskFault(fault) => self.raise(cpu, memory, fault, counted),
            Stop::Restart(exit) => {
                cpu.ip = start;
                begin_again(cpu, before);
                if exit == Exit::TimeStamp
                    && let Some(clock) = &cpu.clock
                {
                    let now = clock.now(cpu.instructions);
                    cpu.answer(now.as_nanos());
                    return None;
                }
                Some(exit)
            }
            Stop::Completed(exit) => {
                counted.count(cpu);
                // The single-step trap wakes a processor that has just halted.
                self.completed_step(cpu, memory, before).or(cpu.halted.then_some(exit))
            }
            Stop::Waits(exit) => {
                cpu.ip = start;
                // Interrupts that were held back for one instruction are no longer held back.
                begin_again(cpu, before - ONE_INSTRUCTION);
                cpu.halted = true;
                Some(exit)
            }
            Stop::WritesCode => {
                cpu.ip = start;
                begin_again(cpu, before);
                cpu.attention |= Attention::WRITES_CODE;
                None
            }
            Stop::Breakpoint => {
                cpu.ip = start;
                begin_again(cpu, before);
                self.step(cpu, memory)
            }
            Stop::Unfinished => {
                cpu.ip = start;
                cpu.set_resume_flag();
                self.completed_step(cpu, memory, before)
            }
        }
    }

    /// Delivers an exception or interrupt.
    fn deliver(&mut self, cpu: &mut Cpu, memory: &mut Memory, event: Event) -> Option<Exit> {
        self.counters.events += 1;
        self.show_event(cpu, &event);
        cpu.guard_code = false;
        cpu.rewind_answers();
        match cpu.deliver_event(memory, event) {
            Delivery::Done | Delivery::Raised => {
                self.show_accesses(cpu);
                None
            }
            Delivery::Waits(Stop::Restart(exit)) => Some(exit),
            Delivery::Waits(stop) => unreachable!("delivery cannot stop for {stop:?}"),
            Delivery::Shutdown => Some(Exit::Shutdown),
        }
    }

    /// Handles every event that is possible between blocks. Returns an exit, or None to continue.
    #[inline(never)]
    fn attend(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> Option<Exit> {
        if memory.has_stale_code() {
            self.drop_stale_code(cpu, memory);
        }
        if let Some(event) = cpu.event {
            // An exception raised by a delivery counts like any other exception, or this could repeat for
            // ever.
            if event.source == Source::Exception && !cpu.attention.contains(Attention::ANSWERED) {
                if cpu.instructions >= cpu.deadline {
                    return Some(Exit::Deadline);
                }
                cpu.count(FormId::NONE, cpu.is_user());
            }
            return self.deliver(cpu, memory, event);
        }
        if !cpu.attention.contains(Attention::ANSWERED) {
            if cpu.attention.contains(Attention::DEBUGGER) {
                return Some(Exit::Debugger);
            }
            if cpu.attention.contains(Attention::DEBUG_TRAP)
                && !cpu.attention.intersects(Attention::SS_LOADED | Attention::WRITES_CODE)
            {
                return self.debug_trap(cpu, memory);
            }
            if cpu.attention.contains(Attention::NMI)
                && !cpu.attention.contains(Attention::SHADOW)
                && !cpu.debugger.holds_nmi
            {
                let event = cpu.take_nmi();
                return self.deliver(cpu, memory, event);
            }
            if cpu.interrupt_pin && cpu.is_interruptible() {
                return Some(Exit::InterruptWindow);
            }
            if cpu.halted {
                return Some(Exit::Halt);
            }
            if cpu.instructions >= cpu.deadline {
                return Some(Exit::Deadline);
            }
        }
        if cpu.attention.is_empty() { None } else { self.step(cpu, memory) }
    }

    /// Runs like [`Engine::run`], but for another engine and only while 64-bit code of users runs: returns None
    /// once other code is about to run.
    pub fn run_long_users(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        instructions: u64,
    ) -> Option<Exit> {
        self.begin(cpu, memory, instructions);
        while is_long_user(cpu) {
            let exit = self.go_on::<true>(cpu, memory);
            if exit.is_some() {
                return exit;
            }
        }
        None
    }

    /// Prepares to run for `instructions` instructions.
    fn begin(&mut self, cpu: &mut Cpu, memory: &Memory, instructions: u64) {
        cpu.deadline = cpu.instructions.saturating_add(instructions);
        cpu.set_observed(self.observer.as_deref());
        self.look_at_layout(cpu, memory);
        self.plant_breakpoints(cpu);
    }

    /// Handles an event, or executes blocks until one must be handled, and only 64-bit code of users if
    /// `IN_USERS`. Returns an exit, or None to continue.
    #[inline(always)]
    fn go_on<const IN_USERS: bool>(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> Option<Exit> {
        let mut exit = self.attend(cpu, memory);
        if exit.is_none() && cpu.event.is_none() {
            exit = self.run_blocks::<IN_USERS>(cpu, memory);
        }
        if exit.is_some() {
            self.counters.page_walks = cpu.page_walks;
        }
        exit
    }

    /// Executes blocks until an event must be handled, and while 64-bit code of users runs if `IN_USERS`.
    /// Returns an exit, or None to continue.
    fn run_blocks<const IN_USERS: bool>(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
    ) -> Option<Exit> {
        let mut branch: Option<Branch> = None;
        loop {
            if IN_USERS && !is_long_user(cpu) {
                return None;
            }
            if !cpu.attention.is_empty()
                || cpu.instructions >= cpu.deadline
                || cpu.interrupt_pin && cpu.is_interruptible()
                || memory.has_stale_code()
                || cpu.halted
            {
                return None;
            }
            let start = cpu.ip;
            let first = match self.find(cpu, memory) {
                Ok(Next::Block(first)) => first,
                Ok(Next::Crossing(_)) => return self.step(cpu, memory),
                Err(Stopped) => {
                    let counted = Counted::nothing(cpu);
                    return self.stopped(cpu, memory, start, Attention::empty(), counted);
                }
            };
            let Op { block_ops, block_end, offset, .. } = self.cache.ops[first];
            let code_base = start.wrapping_sub(u64::from(offset));
            if let Some(branch) = branch.take()
                && branch.code_base == code_base
                && branch.generation == cpu.fetch_generation
                && !self.cache.ops[first].stands_alone()
            {
                let Unlinked { at, way } = branch.unlinked;
                self.cache.ops[at].set_link(way, at, first);
            }
            // Links do not check the limit of CS, and blocks that they lead to are not counted.
            let follows_links =
                !cpu.counts_forms() && code_base.saturating_add(0xfff) <= cpu.code_limit();
            let budget = cpu.deadline - cpu.instructions;
            let (ops, count, end) = if budget >= u64::from(block_ops) {
                (&self.cache.ops[..], u64::from(block_ops), block_end)
            } else {
                let count = budget as usize;
                (&self.cache.ops[..first + count], budget, self.cache.ops[first + count].offset)
            };
            let total = if follows_links { budget.min(CHAIN_LENGTH).max(count) } else { count };
            cpu.guard_code = total > 1;
            cpu.set_code_base(code_base);
            cpu.ip = cpu.next_ip(code_base, u64::from(end));
            cpu.block = first;
            cpu.left = total - count;
            let op = &ops[first];
            let is_user = cpu.is_user();
            let counted_before = cpu.instructions;
            let linear = cpu.linear(cpu.view(sreg::CS), start);
            let result = (op.exec)(cpu, memory, op, ops, first);
            let stopped_at = cpu.stopped_at;
            if let Some(counts) = cpu.histogram_mut() {
                let end = if result.is_ok() { first + count as usize } else { stopped_at };
                ops[first..end].iter().for_each(|op| counts.add(op.form, is_user, 1));
                let iterations = cpu.instructions - counted_before;
                if let Some(blocks) = cpu.hot_blocks_mut() {
                    blocks.add(linear, is_user, (end - first) as u64 + iterations);
                }
            }
            if result.is_err() {
                let block_ops = u64::from(ops[cpu.block].block_ops).min(budget);
                let in_block = (cpu.stopped_at - cpu.block) as u64;
                cpu.instructions += total - cpu.left - block_ops + in_block;
                let at = cpu.instruction_address(&ops[cpu.stopped_at]);
                let counted = Counted { form: ops[cpu.stopped_at].form, is_user };
                cpu.unlinked = None;
                return self.stopped(cpu, memory, at, Attention::empty(), counted);
            }
            cpu.instructions += total - cpu.left;
            branch = cpu.unlinked.take().map(|unlinked| Branch {
                unlinked,
                code_base: cpu.code_base(),
                generation: cpu.fetch_generation,
            });
        }
    }
}

/// A branch by which a block was left, to an address in the same page.
#[derive(Clone, Copy)]
struct Branch {
    unlinked: Unlinked,
    /// The offset in CS at which the page begins.
    code_base: u64,
    /// The value of [`Cpu::fetch_generation`] at that time.
    generation: u64,
}

impl Engine for Interpreter {
    fn name(&self) -> &'static str {
        "interpreter"
    }

    fn run(&mut self, cpu: &mut Cpu, memory: &mut Memory, instructions: u64) -> Exit {
        self.begin(cpu, memory, instructions);
        loop {
            if let Some(exit) = self.go_on::<false>(cpu, memory) {
                return exit;
            }
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let Counters {
            blocks_decoded,
            code_pages_dropped,
            single_steps,
            crossings_decoded,
            events,
            page_walks,
        } = self.counters;
        vec![
            ("blocks decoded", blocks_decoded),
            ("code pages dropped", code_pages_dropped),
            ("instructions stepped", single_steps),
            ("page-crossing instructions decoded", crossings_decoded),
            ("exceptions and interrupts", events),
            ("page walks", page_walks),
        ]
    }
}

/// Returns whether 64-bit code of users is about to run.
fn is_long_user(cpu: &Cpu) -> bool {
    cpu.is_user() && cpu.is_in_64_bit_mode()
}

/// Conditions that last for one instruction only.
const ONE_INSTRUCTION: Attention = Attention::SHADOW.union(Attention::SS_LOADED);

/// Prepares the execution of one instruction alone. Returns the conditions before it.
fn begin_alone(cpu: &mut Cpu) -> Attention {
    let before = cpu.attention;
    cpu.attention -= ONE_INSTRUCTION;
    cpu.guard_code = false;
    cpu.rewind_answers();
    before
}

/// Prepares an instruction to start again, under the conditions `before` it.
fn begin_again(cpu: &mut Cpu, before: Attention) {
    cpu.attention |= before & ONE_INSTRUCTION;
    if before.contains(Attention::RESUME) {
        cpu.set_resume_flag();
    }
}
