//! The translator for 64-bit code.
//!
//! It works as that for other code does, with the same signals, budget, emitter and code cache, but for two
//! things. A guest can compute any 64-bit address, so no prefix keeps its accesses in a window: each access is
//! preceded by a [check](low) of whether its address lies in [units] of its address
//! space, unless [facts] say so. A [checker](verify) proves that of all code before it is executed. And the
//! guest has as many registers as the host, so four of them are in the [context].
//!
//! Accesses of users to low units, which most programs at fixed addresses have beside their stacks, load another
//! distance ([`distances`]); those of the supervisor to memory of users, and some others, take theirs from a table
//! ([`far_sites`]). Near calls and returns are the host's ([`landings`]). A page fault
//! that the guest handles costs one signal, and none if another one came soon before ([`page_faults`]).
//!
//! CLI, STI, CLAC, STAC, PUSHF, POPF, SWAPGS, RDTSC, reads of selectors and control registers, and SYSCALL and
//! SYSRET stay in translated code ([`system`], [`calls`]), and so do string instructions ([`strings`]). All other
//! system instructions, far transfers and a few others are left to the interpreter, one at a time; translated code mostly
//! continues at once ([`stepping`]). Code of users is interpreted until it is likely to be worth its translation
//! ([`cold`]), and code that keeps changing compares itself with memory ([`changing`]). Instructions with breakpoints of
//! a debugger are blocks of their own, which the interpreter executes. All code while memory is watched or forms are
//! counted, and that at privilege levels 1 and 2 is left to it. Code of users in compatibility mode is 32-bit or 16-bit
//! code like any other; the interpreter executes what leads there and back.

mod barred;
pub(crate) mod block;
pub(crate) mod block_store;
pub(crate) mod calls;
mod changing;
mod code;
pub(crate) mod cold;
pub(crate) mod context;
mod copy;
pub(crate) mod counters;
pub(crate) mod distances;
mod facts;
pub(crate) mod far_sites;
mod faults;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod hostile;
mod jump_table;
mod landings;
pub(crate) mod low;
pub(crate) mod numeric;
mod page_faults;
mod registers;
mod routines;
mod shared;
mod space;
mod spaces;
mod state;
mod stepping;
mod strings;
mod system;
mod tables;
mod verify;
mod writer;

use std::io;

use ring3_core::memory::{Memory, PAGE_SHIFT};
use ring3_x86::cpu::invalidations::Invalidations;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::{self, HostCode};
use ring3_x86::interpreter::Interpreter;

use crate::budget::{self, Budget};
use crate::code::block_store::BlockStore as OtherBlocks;
use crate::code::cache::CodeCache;
use crate::code::changing::Changing;
use crate::context::TimeStamp;
use crate::long::barred::Barred;
use crate::long::block::{Exit, Site};
use crate::long::block_store::{BlockStore, Slots};
use crate::long::cold::{CodePage, Cold};
use crate::long::context::{LongContext, reason};
use crate::long::counters::Counters;
use crate::long::far_sites::FarSites;
use crate::long::faults::Crowd;
use crate::long::low::LowMemory;
use crate::long::numeric::Operand;
use crate::long::page_faults::{PageFault, Sweep};
use crate::long::spaces::LongSpaces;
use crate::long::strings::Resumption;
use crate::long::verify::Checker;
use crate::map::Set;
use crate::memory::host_memory::GuestFile;
use crate::memory::spaces::Spaces;
use crate::memory::units;
use crate::numeric::Numeric;
use crate::translator::times::Times;

/// Upper bound of the host's mappings for all code. Linux allows 65530.
pub(crate) const MAX_MAPPINGS: usize = 55_000;
/// Bit of the error code of a page fault (SDM vol. 3, figure 5-12).
const WRITE_FAULT: u64 = 1 << 1;

/// How execution continues after translated code was left.
#[derive(Debug)]
pub(crate) enum Next {
    /// The interpreter executes one instruction.
    Step,
    /// The interpreter executes so many instructions.
    Interpret(u64),
    /// The interpreter executes the code of this page, which is cold.
    Cold(CodePage),
    /// The interpreter goes on after the last page fault of a program.
    Sweep,
    /// The engine looks around, and translated code continues.
    LookAround,
    /// The machine must act.
    Exit(engine::Exit),
}

/// What translated code has led to.
enum Left {
    /// The interpreter must execute the instruction of the exit with this number.
    Op(usize),
    For(Next),
}

/// What the engine lends to the translator for 64-bit code.
pub(crate) struct Lent<'a> {
    pub(crate) file: &'a GuestFile,
    pub(crate) budget: &'a Budget,
    pub(crate) interpreter: &'a mut Interpreter,
    pub(crate) times: &'a mut Times,
    /// The spaces of code in compatibility mode, and its blocks.
    pub(crate) others: (&'a mut Spaces, &'a OtherBlocks),
}

/// What a signal or an exit has led to.
enum Outcome {
    /// Translated code is entered again at [`Resumed::target`].
    Again(Resumed),
    Leave(Left),
}

/// Where translated code is entered.
#[derive(Debug, Clone, Copy)]
struct Resumed {
    target: u32,
    /// Number of instructions that were subtracted from the budget already.
    counted: u16,
    /// The guest's RSP less R8 there.
    stack_offset: i16,
    /// Number of iterations of the repeated string instruction there that are executed, if not all are.
    part: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Long {
    low: LowMemory,
    cache: CodeCache,
    /// Bytes at the beginning of the cache that are never dropped: those of [shared] code.
    stubs: usize,
    /// The checkers of code of the supervisor and of users.
    checkers: [Checker; 2],
    blocks: BlockStore,
    exits: Vec<Exit>,
    slots: Slots,
    /// IA32_LSTAR and its slot, once SYSCALL was prepared.
    system_slot: Option<(u64, u32)>,
    spaces: LongSpaces,
    barred: Barred,
    crowd: Crowd,
    changing: Changing,
    /// The linear addresses with breakpoints of the debugger, in order.
    breakpoints: Vec<u64>,
    cold: Cold,
    page_fault: Option<PageFault>,
    sweep: Sweep,
    far: FarSites,
    /// The addresses of loops that check nothing before their heads, since that has failed.
    plain_loops: Set<u64>,
    numeric: numeric::Numeric,
    /// The count of instructions after the last STI that has set IF in translated code.
    sti: Option<u64>,
    /// The iterations that the repeated string instruction that runs executes later.
    put_off: u64,
    resumption: Option<Resumption>,
    counters: Counters,
}

impl Long {
    /// Returns a translator, which translates code of users once `cold` instructions were interpreted in its page.
    pub(crate) fn new(cold: u64) -> io::Result<Long> {
        let mut low = LowMemory::new()?;
        let mut cache = CodeCache::new(low.context_pointer().addr())?;
        if cache.start().abs_diff(low.addresses().context) > 1 << 30 {
            return Err(io::Error::other("no room for code near its context"));
        }
        let stubs = shared::write(&mut cache, &mut low);
        let checkers = [false, true].map(|is_user| Checker::new(low.addresses(), is_user));
        Ok(Long {
            low,
            stubs: cache.len(),
            cache,
            checkers,
            blocks: BlockStore::default(),
            exits: Vec::new(),
            slots: Slots::default(),
            system_slot: None,
            spaces: LongSpaces::new(stubs)?,
            barred: Barred::default(),
            crowd: Crowd::default(),
            changing: Changing::default(),
            breakpoints: Vec::new(),
            cold: Cold::until(cold),
            page_fault: None,
            sweep: Sweep::default(),
            far: FarSites::default(),
            plain_loops: Set::default(),
            numeric: numeric::Numeric::default(),
            sti: None,
            put_off: 0,
            resumption: None,
            counters: Counters::default(),
        })
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters { blocks: self.blocks.count(), ..self.counters }
    }

    /// Shows its code to profilers of the host.
    pub(crate) fn reveal_code(&mut self) -> io::Result<()> {
        self.cache.leave_file()
    }

    /// Returns all code that it has made.
    pub(crate) fn host_code(&self) -> impl Iterator<Item = HostCode> {
        self.blocks.host_code(self.cache.end())
    }

    /// Returns whether code of the processor's mode is translated.
    pub(crate) fn translates(cpu: &Cpu) -> bool {
        let debugger = cpu.debugger();
        cpu.is_in_64_bit_mode()
            && matches!(cpu.cpl(), 0 | 3)
            && !cpu.alignment_is_checked()
            && !cpu.counts_forms()
            && debugger.watchpoints().is_empty()
    }

    /// Executes translated code from `at` on, with the guest's state in the context.
    fn run(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &Lent,
        mut at: Resumed,
        deadline: u64,
    ) -> io::Result<Left> {
        loop {
            if memory.has_stale_code() || memory.has_marked_code() {
                return Ok(Left::For(Next::LookAround));
            }
            let is_user = cpu.is_user();
            if !is_user && self.spaces.knows_user(cpu) {
                self.spaces.find_user(cpu, memory)?;
            }
            let space = self.spaces.find(cpu, memory)?;
            self.low.show(&space.units)?;
            let (distance, table) = (space.units.near().distance(), space.table.address());
            self.allow_calls(cpu)?;
            let (kernel, user) = self.spaces.known();
            let is_open = !cpu.supervisor_is_kept_from_users();
            self.low.number_distances(&kernel.units, user.map(|user| &user.units), is_open);
            let space = self.spaces.find(cpu, memory)?;
            let (returns, no_returns) = (space.returns.lend(), space.no_returns());
            let losses = units::losses();
            let allowed = (deadline - cpu.instructions).min(budget::LONGEST);
            let is_enabled = Numeric::are_enabled(cpu);
            let has_x87 = is_enabled && self.numeric.has_x87();
            let has_sse = is_enabled && self.numeric.has_vectors() && Numeric::is_sse_enabled(cpu);
            let context = self.low.context();
            if has_x87 {
                self.numeric.note_selectors(is_user, &self.blocks, context);
            }
            (context.distance, context.table) = (distance, table);
            (context.returns, context.no_returns) = (returns, no_returns);
            context.target = at.target.into();
            move_stack(context, -i64::from(at.stack_offset));
            context.set_time(TimeStamp::of(cpu, lent.budget, allowed));
            context.tsc_aux = cpu.msrs.tsc_aux.into();
            context.budget = lent.budget.of(allowed) - u64::from(at.counted);
            context.set_numeric(has_sse, has_x87, cpu.is_avx_enabled(), at.counted > 0);
            if let Some(part) = at.part {
                let count = &mut context.gpr[usize::from(reg::CX)];
                self.put_off = *count - part;
                *count = part;
            }
            context.after_repeating = lent.budget.end(self.put_off == 0);
            self.counters.entries += 1;
            // SAFETY: the target is the entry of a block or of an instruction in one, the tables show only units
            // of this space, at whose distance it is entered, nobody refers to the context, and the handler is
            // installed for as long as there is a cache.
            unsafe { context::enter(self.low.context_pointer()) };
            self.come_back(cpu);
            self.note_sti(cpu, lent.budget, allowed);
            match self.next(cpu, memory, lent, allowed, deadline)? {
                // In the middle of a block, facts may no longer hold.
                Outcome::Again(resumed) if resumed.counted > 0 && units::losses() != losses => {
                    return Ok(Left::For(Next::Step));
                }
                Outcome::Again(resumed) => at = resumed,
                Outcome::Leave(left) => return Ok(left),
            }
        }
    }

    /// Finds out why translated code was left, and how execution continues.
    fn next(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &Lent,
        allowed: u64,
        deadline: u64,
    ) -> io::Result<Outcome> {
        let remaining = lent.budget.remaining(self.low.context().budget);
        let executed = (allowed as i64 - remaining) as u64;
        let exit = self.low.context().exit;
        let (rip, link) = match exit {
            reason::SIGNAL => {
                return self.signalled(cpu, memory, lent, executed, deadline);
            }
            reason::CALLED => {
                let (rest, _) = self.return_from_routine(cpu, executed);
                let call = self.low.context().fault.rip - 1;
                return Ok(match self.blocks.walk_at(call as u32) {
                    Some(walk) => self.walk_on(cpu, &walk, rest, deadline),
                    None => leave(Next::Step),
                });
            }
            reason::VECTORS => {
                let (rest, _) = self.return_from_routine(cpu, executed);
                let is_enabled = Numeric::are_enabled(cpu) && Numeric::is_sse_enabled(cpu);
                if self.numeric.has_vectors() || !is_enabled {
                    return Ok(leave(Next::Step));
                }
                self.load_vectors(cpu);
                return Ok(go_on(rest, cpu, deadline));
            }
            reason::X87 => {
                let (rest, _) = self.return_from_routine(cpu, executed);
                if self.numeric.has_x87() || !Numeric::are_enabled(cpu) {
                    return Ok(leave(Next::Step));
                }
                self.load_x87(cpu);
                return Ok(go_on(rest, cpu, deadline));
            }
            reason::LOOK_UP => (self.low.context().rip, None),
            number => match &self.exits[(number - reason::EXITS) as usize] {
                Exit::Link { branch, rip } => (*rip, Some(*branch)),
                Exit::Breakpoint { rip } => {
                    self.low.context().rip = *rip;
                    cpu.instructions += executed;
                    let is_over = cpu.instructions >= deadline;
                    return Ok(leave(if is_over { Next::Interpret(0) } else { Next::Step }));
                }
                Exit::Step { rip, .. } => {
                    let rip = *rip;
                    cpu.instructions += executed;
                    self.low.context().rip = rip;
                    if cpu.instructions >= deadline {
                        return Ok(leave(Next::Interpret(0)));
                    }
                    if self.barred.count(rip) {
                        self.drop_block_of(cpu, memory, rip);
                    }
                    return Ok(Outcome::Leave(Left::Op((number - reason::EXITS) as usize)));
                }
                Exit::Missed { site, popped } => {
                    let (host, target) = (*site, self.low.context().rip);
                    self.counters.look_ups += 1;
                    move_stack(self.low.context(), -popped);
                    let (rest, ..) = self.return_to_site(cpu, host, executed);
                    // The branch itself may still fault. So the interpreter executes it if the fetch from its
                    // target would set accessed bits.
                    let flushes = self.counters.flushes;
                    let space = self.spaces.find(cpu, memory)?;
                    if cpu.instructions >= deadline || !space.has_fetched(cpu, memory, target) {
                        return Ok(leave(Next::Step));
                    }
                    let entry = match self.code_for(cpu, memory, target)? {
                        Ok(entry) => entry,
                        Err(next) => return Ok(leave(next)),
                    };
                    self.note_target(cpu, memory, target, entry)?;
                    if self.counters.flushes != flushes {
                        return Ok(leave(Next::LookAround));
                    }
                    return Ok(go_on(rest, cpu, deadline));
                }
            },
        };
        cpu.instructions += executed;
        self.low.context().rip = rip;
        if cpu.instructions >= deadline {
            return Ok(leave(Next::Interpret(0)));
        }
        let flushes = self.counters.flushes;
        let (entry, to) = match self.block_for(cpu, memory, rip)? {
            Ok(block) => (block.entry, block.link),
            Err(next) => return Ok(leave(next)),
        };
        match link {
            Some(branch) if self.counters.flushes == flushes => {
                self.counters.links += 1;
                self.cache.link(branch.end(), to);
            }
            Some(_) => {}
            None => {
                self.counters.look_ups += 1;
                self.note_target(cpu, memory, rip, entry)?;
            }
        }
        Ok(Outcome::Again(Resumed { target: entry, counted: 0, stack_offset: 0, part: None }))
    }

    /// Restores the guest's state to that before the instruction whose host code was left at `left_at`, when
    /// `executed` instructions had been subtracted from the budget. Returns where translated code goes on there,
    /// with the number of instructions of the block that follow, and whether the block had begun.
    fn return_to_site(
        &mut self,
        cpu: &mut Cpu,
        left_at: u32,
        executed: u64,
    ) -> ((Resumed, u16), bool) {
        let Some((block, site)) = self.blocks.at(left_at) else {
            unreachable!("translated code is in blocks");
        };
        assert_eq!(block.is_user, cpu.is_user(), "no return leads to the other privilege");
        let ahead = block.sites.first().map_or(0, |first| first.ahead);
        let operand = Operand::None;
        let first =
            Site { host: block.entry, offset: 0, before: 0, ahead, stack_offset: 0, operand };
        let Site { host, offset, before, ahead, stack_offset, .. } = site.unwrap_or(first);
        let rest = block.instructions - before;
        let subtracted = if left_at < block.begin { 0 } else { ahead };
        cpu.instructions += executed.wrapping_sub(subtracted.into());
        let context = self.low.context();
        context.rip = block.linear.wrapping_add(offset.into());
        move_stack(context, stack_offset.into());
        let has_begun = site.is_some();
        let counted = if has_begun { ahead } else { 0 };
        if let Some(walk) = self.blocks.walk_at(left_at) {
            self.turn_back(cpu, &walk, left_at);
        }
        ((Resumed { target: host, counted, stack_offset, part: None }, rest), has_begun)
    }

    /// Restores the guest's state to that before the instruction whose host code has called a routine that has
    /// left translated code, like [`Long::return_to_site`].
    fn return_from_routine(&mut self, cpu: &mut Cpu, executed: u64) -> ((Resumed, u16), bool) {
        let call = self.low.context().fault.rip - 1;
        self.return_to_site(cpu, call as u32, executed)
    }

    /// Drops what software has invalidated and changed.
    pub(crate) fn invalidate(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        invalidations: &Invalidations,
    ) -> io::Result<()> {
        self.spaces.invalidate(cpu, memory, invalidations)
    }

    /// Drops what guest-physical memory has at another place now. Blocks contain no guest-physical addresses.
    pub(crate) fn check_places(&mut self, memory: &Memory) -> io::Result<()> {
        self.spaces.check_places(memory)
    }

    /// Makes writes to `pages` that have come to hold code fault.
    pub(crate) fn protect(&mut self, pages: &[u32]) -> io::Result<()> {
        pages.iter().try_for_each(|page| self.spaces.protect_place((*page as usize) << PAGE_SHIFT))
    }

    /// Returns about how many mappings of the host there are for 64-bit code.
    pub(crate) fn mappings(&self) -> usize {
        self.spaces.mappings()
    }

    /// Forgets what is mapped.
    pub(crate) fn clear_spaces(&mut self) {
        self.spaces.clear();
    }
}

/// Adds `bytes` to RSP in `context`.
fn move_stack(context: &mut LongContext, bytes: i64) {
    let rsp = &mut context.gpr[usize::from(reg::SP)];
    *rsp = rsp.wrapping_add_signed(bytes);
}

/// Returns that translated code is left for `next`.
fn leave(next: Next) -> Outcome {
    Outcome::Leave(Left::For(next))
}

/// Returns whether translated code goes on at a place, which it does unless fewer instructions may be executed
/// than follow there in the block.
fn go_on((at, rest): (Resumed, u16), cpu: &Cpu, deadline: u64) -> Outcome {
    let allowed = deadline - cpu.instructions;
    if u64::from(rest) > allowed { leave(Next::Interpret(allowed)) } else { Outcome::Again(at) }
}
