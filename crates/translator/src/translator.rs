//! The engine.

mod barred;
pub(crate) mod changes;
mod code;
mod counting;
mod device_access;
mod far;
mod faults;
mod interrupts;
mod leaving;
mod long;
mod privileges;
mod quiet;
mod single_step;
mod state;
mod system;
pub(crate) mod times;
mod users;
mod virtual_8086;

use std::io;
use std::path::Path;
use std::sync::Arc;

use ring3_core::memory::{Memory, MemoryError};
use ring3_x86::cpu::Cpu;
use ring3_x86::debugger::Watchpoint;
use ring3_x86::engine::{Devices, Engine, Exit, HostCode};
use ring3_x86::interpreter::Interpreter;
use ring3_x86::segment::Selector;
use thiserror::Error;
use tracing::debug;

use crate::access::DevicePages;
use crate::budget::{self, Budget};
use crate::code::block::DeferredOp;
use crate::code::block_store::BlockStore;
use crate::code::branch_slots::BranchSlots;
use crate::code::cache::CodeCache;
use crate::code::changing::Changing;
use crate::code::counters::Counters as FormCounters;
use crate::code::emitter::Emitter;
use crate::context::{self, Context, NumericEntry, info, reason};
use crate::descriptors::Descriptors;
use crate::long::Long;
use crate::long::cold::COLD;
use crate::map::{Map, Set};
use crate::memory::host_memory::{GuestFile, GuestMemory, PAGE, Range};
use crate::memory::spaces::Spaces;
use crate::mode::{Mode, Modes};
use crate::numeric::{self, Numeric};
use crate::patience::Signals;
use crate::segmented::limits::Limits;
use barred::Barred;
use changes::Paging;
use device_access::MissedPeeks;
pub(crate) use device_access::execute_access;
use faults::{PageFault, Sweep};
use leaving::{Middle, Next};
use system::Running;
pub(crate) use system::execute_system;
use times::{Times, Work};
use users::Regions;

/// Instructions that the interpreter executes at a time where nothing is translated.
const INTERPRETED: u64 = 512;
/// Instructions that the interpreter executes at a time in segmented code, from one on that it has had to
/// execute again and again. In such code this is mostly a write to data beside code, and more such writes
/// follow.
const INTERPRETED_BESIDE_DATA: u64 = 64;
/// Iterations that the interpreter executes at a time of an instruction whose count is beyond the deadline.
const INTERPRETED_ITERATIONS: u64 = 128;
/// Least number of iterations before the deadline that are worth their faults in translated code.
const LEAST_ITERATIONS: u64 = 2048;
/// Upper bound of the iterations of a repeated instruction that the interpreter executes at a time.
const MOST_ITERATIONS: u32 = 4096;
/// Upper bound of the bytes that a block's code needs.
const LARGEST_BLOCK: usize = 16 << 10;

/// The reasons why a host cannot have a translator.
#[derive(Debug, Error)]
pub enum Unavailable {
    /// The processor lacks a feature.
    #[error("the processor has no {0}")]
    Processor(&'static str),
    /// The system refuses memory.
    #[error("the system gives no memory for it: {0}")]
    System(#[from] io::Error),
    /// Guest memory cannot have this size.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// The engine's counters.
#[derive(Debug, Default)]
struct Counters {
    entries: u64,
    steps: u64,
    interpreted: u64,
    links: u64,
    look_ups: u64,
    fills: u64,
    signals: u64,
    flushes: u64,
    refusals: u64,
}

/// The engine that translates.
#[derive(Debug)]
pub struct Translator {
    interpreter: Interpreter,
    guest_memory: Arc<GuestMemory>,
    file: Option<Arc<GuestFile>>,
    context: Box<Context>,
    /// An address that faults, for [`Context::base_of`].
    _faulting: Range,
    budget: Budget,
    limits: Limits,
    modes: Modes,
    cache: CodeCache,
    /// The counters of executed instructions, while somebody wants a histogram.
    counts: FormCounters,
    /// Bytes at the beginning of the cache that are never dropped.
    stubs: usize,
    /// Whether profilers of the host find the names of its code.
    reveals_code: bool,
    blocks: BlockStore,
    spaces: Spaces,
    /// Whether the host has refused memory that the engine cannot do without. Then everything is left to the
    /// interpreter.
    is_broken: bool,
    /// The state of address line 20 for which everything was made.
    a20: bool,
    /// The state that decides what page tables mean; None while there is no paging.
    paging: Option<Paging>,
    /// That state when there was paging last.
    last_paging: Option<Paging>,
    /// The [`Memory::layout_generation`] for which everything was made.
    layout: Option<u64>,
    numeric: Numeric,
    /// The linear addresses of barred instructions: they are left to the interpreter, since it has had to
    /// execute them again and again.
    barred: Set<u32>,
    /// How long each of them stays with the interpreter.
    patience: Map<u32, Barred>,
    /// The debugger's breakpoints in the translated code, in order.
    breakpoints: Vec<u32>,
    /// The debugger's watchpoints for which windows were made.
    watchpoints: Vec<Watchpoint>,
    /// The [generation](ring3_x86::debugger::Debugger::generation) of both.
    debugger: u64,
    /// The linear addresses of instructions of supervisor code that also access memory of users.
    for_user: Set<u32>,
    /// The regions of linear addresses by which these instructions choose a window.
    regions: Regions,
    /// The signals of each instruction, by its linear address.
    signals: Map<u32, Signals>,
    /// The instructions that blocks leave to the interpreter.
    ops: Vec<DeferredOp>,
    device_pages: DevicePages,
    missed_peeks: MissedPeeks,
    /// The linear addresses of instructions that have read device registers for which a read has no effect on
    /// the device.
    device_reads: Set<u32>,
    /// The linear addresses of numeric instructions that have met pending exceptions.
    numeric_errors: Set<u32>,
    /// The linear addresses of loads of segment registers that have raised exceptions again and again.
    refused_loads: Set<u32>,
    changing: Changing,
    /// The slots for direct branches of supervisor code, and of user code.
    branch_slots: [BranchSlots; 2],
    descriptors: Descriptors,
    /// The last page fault of user code.
    page_fault: Option<PageFault>,
    sweep: Sweep,
    /// The segments to which far transfers of segmented code can go.
    far: far::Far,
    /// Iterations of the present instruction that were subtracted from ECX, since they come after the
    /// deadline.
    put_off: u32,
    /// Whether the engine must return after an access to a device, since the machine is to look around.
    must_return: bool,
    counters: Counters,
    times: Times,
    /// The translator for 64-bit code, once there is any.
    long: Option<Box<Long>>,
    /// Instructions that are interpreted in a page of 64-bit code of users before it is translated.
    cold: u64,
}

impl Translator {
    /// Returns a translator, and `size` bytes of guest memory. The translator runs with no other memory:
    /// translated code reaches it at addresses of its own, so nobody may have a reference to it meanwhile.
    ///
    /// # Errors
    /// When the host lacks what a translator needs, or when `size` is not one that [`Memory`] can have.
    pub fn with_memory(size: u64) -> Result<(Translator, Memory), Unavailable> {
        Translator::with_memory_in(size, None)
    }

    /// As [`Translator::with_memory`], with memory from the file system of `directory` if one is given.
    ///
    /// # Errors
    /// As there, and when there can be no such file.
    pub fn with_memory_in(
        size: u64,
        directory: Option<&Path>,
    ) -> Result<(Translator, Memory), Unavailable> {
        let guest_memory = Arc::new(GuestMemory::in_directory(directory)?);
        let translator = Translator::new(Arc::clone(&guest_memory))?;
        Ok((translator, Memory::with_pages(size, guest_memory)?))
    }

    fn new(guest_memory: Arc<GuestMemory>) -> Result<Translator, Unavailable> {
        if !std::arch::is_x86_feature_detected!("bmi2") {
            return Err(Unavailable::Processor("BMI2"));
        }
        // SAFETY: the call only reads the auxiliary vector.
        let has_fsgsbase = unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FSGSBASE != 0;
        if !has_fsgsbase {
            return Err(Unavailable::Processor("FSGSBASE that the system lets processes use"));
        }
        let mut context = Context::new();
        let mut cache = CodeCache::new(0)?;
        let miss = cache.end();
        let mut stub = Emitter::new(miss);
        stub.jump_through(context::at::MISS);
        cache.add(&stub.finish());
        let budget = Budget::new()?;
        context.after_repeating = budget.end(true);
        let limits = Limits::new()?;
        context.closed_limit = limits.none();
        context.open_limit = limits.up_to(u32::MAX);
        context.word_limit = limits.up_to(u16::MAX.into());
        context.forward_check = limits.up_to(0);
        let faulting = Range::reserve(PAGE)?;
        let mut spaces = Spaces::new(miss)?;
        context.own_window = spaces.current(false).window().base();
        context.forget_regions();
        context.faulting = faulting.address() as u64;
        context.base_of = [context.faulting; 2];
        Ok(Translator {
            interpreter: Interpreter::beside_another_engine(),
            guest_memory,
            file: None,
            context,
            _faulting: faulting,
            budget,
            limits,
            modes: Modes::default(),
            stubs: cache.len(),
            reveals_code: false,
            cache,
            counts: FormCounters::default(),
            blocks: BlockStore::default(),
            spaces,
            is_broken: false,
            a20: true,
            paging: None,
            last_paging: None,
            layout: None,
            numeric: Numeric::new(),
            barred: Set::default(),
            breakpoints: Vec::new(),
            watchpoints: Vec::new(),
            debugger: 0,
            patience: Map::default(),
            for_user: Set::default(),
            regions: Regions::default(),
            signals: Map::default(),
            ops: Vec::new(),
            device_pages: DevicePages::default(),
            missed_peeks: MissedPeeks::default(),
            device_reads: Set::default(),
            numeric_errors: Set::default(),
            refused_loads: Set::default(),
            changing: Changing::default(),
            branch_slots: Default::default(),
            descriptors: Descriptors::new(),
            page_fault: None,
            sweep: Sweep::default(),
            far: far::Far::new(),
            put_off: 0,
            must_return: false,
            counters: Counters::default(),
            times: Times::default(),
            long: None,
            cold: COLD,
        })
    }

    /// Makes the mode of the processor the current one. Returns false if code in this mode is not translated.
    fn enter_mode(&mut self, cpu: &Cpu) -> bool {
        let Some(mode) = Mode::of(cpu) else { return false };
        if !self.modes.enter(mode) {
            debug!("there are too many segments of code");
            self.counters.flushes += 1;
            self.forget_code();
            self.spaces.forget_modes();
            self.modes = Modes::default();
            return self.modes.enter(mode);
        }
        true
    }

    /// Executes translated code, up to `deadline`. Returns how execution continues.
    fn execute(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        deadline: &mut u64,
        devices: &mut Option<&mut dyn Devices>,
    ) -> io::Result<Next> {
        self.load(cpu);
        let began = self.times.begin(Work::Changes);
        let has_entered = self.enter_space(cpu, memory)?;
        self.times.end(Work::Changes, began);
        if !has_entered {
            return Ok(Next::ToPageFault);
        }
        let mut middle = Middle::default();
        loop {
            // An entry in the middle of a block does not ask for the numeric registers again.
            let was_live = self.context.numeric_was_live != 0;
            let entry = match self.numeric.location() {
                numeric::Location::Image if middle.counted > 0 && was_live => NumericEntry::Loaded,
                numeric::Location::Image if Numeric::are_enabled(cpu) => NumericEntry::Load,
                _ => NumericEntry::Ask,
            };
            self.context.set_numeric_entry(entry, Numeric::is_sse_enabled(cpu));
            let mut allowed = (*deadline - cpu.instructions).min(budget::LONGEST);
            self.context.budget = self.budget.of(allowed) - u64::from(middle.counted);
            self.load_time(cpu, allowed);
            self.context.resumed = 0;
            self.move_stack(-middle.stack_offset);
            self.load_returns(cpu);
            self.count_rest(cpu, middle);
            self.counters.entries += 1;
            let mut running = Running {
                translator: &raw mut *self,
                cpu: &raw mut *cpu,
                memory: &raw mut *memory,
                allowed,
                deadline: &raw mut *deadline,
                devices: &raw mut *devices,
            };
            self.context.running = (&raw mut running).expose_provenance() as u64;
            // SAFETY: the target is an entry of the jump table, of a block, or an instruction in a block, or
            // code that looks one up; the rest is as the context says; and the handler is installed for as
            // long as there is a cache.
            unsafe { context::enter(&raw mut *self.context) };
            allowed = running.allowed;
            self.come_back(cpu);
            let resumed_at = self.resumed_at(cpu, allowed);
            let next = match self.timed_next(cpu, memory, allowed, *deadline) {
                Ok(next @ (Next::Quiet { .. } | Next::DeviceRead { .. })) => {
                    match self.execute_deferred(cpu, memory, &next, deadline, devices) {
                        Next::Again(point) => {
                            middle = point;
                            continue;
                        }
                        next => return Ok(next),
                    }
                }
                Ok(Next::Op { number, transfers, .. })
                    if self.may_set_trap_flag(number) && cpu.instructions < *deadline =>
                {
                    match self.execute_to_trap(cpu, memory, number, transfers, *deadline) {
                        Next::Again(point) => {
                            middle = point;
                            continue;
                        }
                        next => return Ok(next),
                    }
                }
                Ok(Next::TrapFlag) => match self.set_trap_flag(cpu, memory, *deadline) {
                    Next::Again(point) => {
                        middle = point;
                        continue;
                    }
                    next => return Ok(next),
                },
                Ok(Next::Done) if self.context.reason == reason::ACCESSED => {
                    let Some(devices) = devices.as_deref_mut() else {
                        unreachable!("they have made the access");
                    };
                    match self.deliver_interrupt(cpu, memory, deadline, devices) {
                        Next::Again(point) => {
                            middle = point;
                            continue;
                        }
                        next => return Ok(next),
                    }
                }
                Ok(Next::Again(point)) if !memory.has_stale_code() => {
                    middle = point;
                    continue;
                }
                // Accessed and dirty bits were set in bytes that are also code.
                Ok(Next::Again(_)) => Ok(Next::Interpret(0)),
                next => next,
            };
            self.store(cpu);
            if resumed_at == Some(cpu.instructions) {
                cpu.set_resume_flag();
            }
            if self.context.reason == reason::STEP {
                match self.context.info & info::AFTER_HOLDING {
                    info::AFTER_STI => cpu.hold_interrupts(),
                    info::AFTER_SS => cpu.hold_interrupts_back(),
                    _ => {}
                }
            }
            return next;
        }
    }

    /// Finds out how execution continues, like [`Translator::next`], and takes the time for it.
    fn timed_next(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        allowed: u64,
        deadline: u64,
    ) -> io::Result<Next> {
        let work = match self.context.reason {
            reason::LINK | reason::LOOK_UP => Work::Finding,
            reason::SIGNAL => Work::Faults,
            _ => return self.next(cpu, memory, allowed, deadline),
        };
        let (began, blocks) = (self.times.begin(work), self.blocks.count());
        let next = self.next(cpu, memory, allowed, deadline);
        let work = if self.blocks.count() == blocks { work } else { Work::Translating };
        self.times.end(work, began);
        next
    }

    /// Returns the count of instructions after the last IRET in translated code that has set RF, if there was
    /// one since it was entered to execute `allowed` instructions. There are no breakpoints, so RF counts
    /// only until the next instruction begins.
    fn resumed_at(&self, cpu: &Cpu, allowed: u64) -> Option<u64> {
        let resumed = self.context.resumed;
        let executed = || allowed as i64 - self.budget.remaining(resumed);
        (resumed != 0).then(|| cpu.instructions + executed() as u64)
    }

    /// Prepares to run translated code at EIP in its address space. Returns false if the instruction there
    /// reads a page of zeros that cannot be written, which the interpreter must execute.
    fn enter_space(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> io::Result<bool> {
        let is_user = cpu.is_user();
        if is_user {
            self.spaces.find_user(cpu, memory, &self.blocks)?;
            if self.fill_after_page_fault(cpu, memory)? {
                return Ok(false);
            }
            self.spaces.current(true).settle()?;
        }
        let window = self.spaces.user_window(cpu, memory, &self.blocks)?.base();
        self.set_user_window(cpu, window);
        self.numeric.note_selectors(is_user, &self.blocks, &mut self.context);
        let space = self.spaces.current(is_user);
        let context = &mut self.context;
        let (mode, _) = self.modes.current();
        context.window = space.window().base();
        (context.table, context.index_mask) = space.enter(mode);
        context.target = space.target(mode, context.eip).into();
        self.allow_transfers(cpu);
        let table = self.context.table;
        self.allow_far_transfers(cpu, memory, table);
        self.allow_virtual_8086_mode(cpu);
        Ok(true)
    }

    /// Executes `instructions` instructions, unless the engine must return before.
    fn run_until(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        instructions: u64,
        mut devices: Option<&mut dyn Devices>,
    ) -> Exit {
        self.check_memory(memory);
        let mut deadline = cpu.instructions.saturating_add(instructions);
        self.context.forget_device_reads();
        loop {
            let began = self.times.begin(Work::Changes);
            self.keep_up(cpu, memory);
            self.times.end(Work::Changes, began);
            if cpu.takes_interrupt() {
                let room = devices.as_deref_mut().map(|all| all.acknowledge_interrupt(cpu));
                let Some(Some(room)) = room else {
                    self.numeric.take(cpu, &self.blocks, &mut self.context);
                    return room.map_or(Exit::InterruptWindow, |_| Exit::Deadline);
                };
                self.context.forget_device_reads();
                deadline = cpu.instructions.saturating_add(room);
            }
            let rest = deadline.saturating_sub(cpu.instructions);
            // The interpreter delivers an interrupt even if it may execute no instruction.
            let mut interpreted = if cpu.has_interrupt() { 0 } else { rest.min(1) };
            let mut uses_numeric = true;
            let is_long = Long::translates(cpu);
            let runs_plainly = |cpu: &mut Cpu| {
                if is_long {
                    cpu.runs_plainly_but_for_resume_flag()
                } else {
                    cpu.begins_to_run_plainly()
                }
            };
            let (resumes, began_at) = (cpu.has_resume_flag(), cpu.instructions);
            if rest > 0 && runs_plainly(cpu) {
                if !self.is_broken && (is_long || self.enter_mode(cpu)) {
                    let next = if is_long {
                        self.execute_long(cpu, memory, &mut deadline, &mut devices)
                    } else {
                        self.execute(cpu, memory, &mut deadline, &mut devices)
                    };
                    if resumes && cpu.instructions == began_at {
                        // The next instruction has not begun yet.
                        cpu.set_resume_flag();
                    }
                    match next {
                        Ok(Next::Step { is_numeric }) => {
                            self.counters.steps += 1;
                            uses_numeric = is_numeric;
                        }
                        Ok(Next::Op { number, is_numeric, transfers, loads })
                            if cpu.instructions < deadline =>
                        {
                            let by_user = cpu.is_user();
                            let events = self.interpreter.events();
                            if let Some(exit) = self.execute_op(cpu, memory, number, is_numeric) {
                                return exit;
                            }
                            if transfers {
                                self.note_transfer(cpu, memory, by_user);
                            }
                            if loads.is_some() && self.interpreter.events() != events {
                                self.note_refused_load(by_user);
                            } else if let Some(register) = loads {
                                let Translator { descriptors, limits, context, .. } = self;
                                descriptors.note(cpu, memory, limits, register, context);
                            }
                            continue;
                        }
                        Ok(Next::Op { .. }) => {}
                        Ok(Next::Exit(exit)) => {
                            self.numeric.take(cpu, &self.blocks, &mut self.context);
                            return exit;
                        }
                        Ok(Next::Done) => continue,
                        Ok(Next::Interpret(count)) => interpreted = count,
                        Ok(Next::ToPageFault) => {
                            let began = self.times.begin(Work::Interpreting);
                            let exit = self.interpret_to_page_fault(cpu, memory, deadline);
                            self.times.end(Work::Interpreting, began);
                            if exit != Exit::Deadline || cpu.instructions >= deadline {
                                return exit;
                            }
                            continue;
                        }
                        Ok(
                            Next::Again(_)
                            | Next::TrapFlag
                            | Next::Quiet { .. }
                            | Next::DeviceRead { .. },
                        ) => {
                            unreachable!("it goes on by itself")
                        }
                        Err(error) => {
                            debug!(%error, "the host has no memory for translated code");
                            self.counters.refusals += 1;
                            interpreted = rest.min(INTERPRETED);
                        }
                    }
                    interpreted = interpreted.min(deadline - cpu.instructions);
                    if memory.has_stale_code() {
                        self.keep_up(cpu, memory);
                    }
                } else {
                    interpreted = rest.min(INTERPRETED);
                }
            }
            if uses_numeric {
                self.numeric.take(cpu, &self.blocks, &mut self.context);
            }
            let before = cpu.instructions;
            let began = self.times.begin(Work::Interpreting);
            let exit = self.interpreter.run(cpu, memory, interpreted);
            self.times.end(Work::Interpreting, began);
            self.counters.interpreted += cpu.instructions - before;
            if exit != Exit::Deadline || cpu.instructions >= deadline {
                self.numeric.take(cpu, &self.blocks, &mut self.context);
                return exit;
            }
        }
    }

    /// Notes the descriptors by which code of users (`by_user`) or of the supervisor has just been left.
    fn note_transfer(&mut self, cpu: &mut Cpu, memory: &mut Memory, by_user: bool) {
        let Translator { descriptors, limits, context, .. } = self;
        descriptors.note_transfer(cpu, memory, limits, context);
        let called = Selector(std::mem::take(&mut context.far_selector));
        descriptors.note_gate(cpu, memory, called, by_user, context);
    }

    /// Executes, by the interpreter, the instruction with index `number` in [`Translator::ops`], which is at
    /// CS:EIP.
    fn execute_op(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        number: usize,
        is_numeric: bool,
    ) -> Option<Exit> {
        self.counters.steps += 1;
        self.counters.interpreted += 1;
        if is_numeric {
            self.numeric.take(cpu, &self.blocks, &mut self.context);
        }
        let began = self.times.begin(Work::Interpreting);
        let exit = self.interpreter.execute(cpu, memory, &self.ops[number].op, 1);
        self.times.end(Work::Interpreting, began);
        if exit.is_some() {
            self.numeric.take(cpu, &self.blocks, &mut self.context);
        }
        exit
    }
}

/// The bit of AT_HWCAP2 that says that FSGSBASE is enabled.
const HWCAP2_FSGSBASE: u64 = 1 << 1;

impl Engine for Translator {
    fn name(&self) -> &'static str {
        "translator"
    }

    fn run(&mut self, cpu: &mut Cpu, memory: &mut Memory, instructions: u64) -> Exit {
        self.run_until(cpu, memory, instructions, None)
    }

    fn run_with(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        instructions: u64,
        devices: &mut dyn Devices,
    ) -> Exit {
        self.run_until(cpu, memory, instructions, Some(devices))
    }

    fn complete_counts(&mut self, cpu: &mut Cpu) {
        self.collect_counts(cpu);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let long = self.long_counters();
        let Counters {
            entries,
            steps,
            interpreted,
            links,
            look_ups,
            fills,
            signals,
            flushes,
            refusals,
        } = self.counters;
        let mut counters = vec![
            ("blocks translated", (self.blocks.count() + long.blocks) as u64),
            ("entries to translated code", entries + long.entries),
            ("instructions left to the interpreter", steps + long.steps),
            ("instructions interpreted", interpreted + long.all_interpreted()),
            ("instructions of cold code interpreted", long.cold),
            ("branches linked", links + long.links),
            ("branches looked up", look_ups + long.look_ups),
            ("signals", signals + long.signals),
            ("pages filled", fills + long.fills),
            ("flushes", flushes + long.flushes),
            ("translations without proof", long.unproven),
            ("refusals of the host", refusals),
            ("pieces of work between", self.times.count()),
        ];
        counters.extend(self.interpreter.counters());
        counters
    }

    fn reveal_code(&mut self) -> io::Result<()> {
        self.reveals_code = true;
        if let Some(long) = &mut self.long {
            long.reveal_code()?;
        }
        self.cache.leave_file()
    }

    fn host_code(&self) -> Vec<HostCode> {
        let mut code = self.blocks.host_code(self.cache.end());
        code.extend(self.long.iter().flat_map(|long| long.host_code()));
        code
    }

    fn times(&self) -> Vec<(&'static str, u64)> {
        self.times.all()
    }
}
