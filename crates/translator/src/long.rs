//! The translator for 64-bit code.
//!
//! It works as that for other code does, with the same signals, budget, emitter and code cache, but for two
//! things. A guest can compute any 64-bit address, so no prefix keeps its accesses in a window: each access is
//! preceded by a [check](low) of whether its address lies in [units](crate::memory::units) of its address
//! space. And the guest has as many registers as the host, so four of them are in the
//! [context].
//!
//! All system instructions, string instructions, far transfers, x87 and MMX instructions are left to the
//! interpreter, one at a time, as are accesses of the supervisor to memory of users. Code in compatibility mode,
//! code that is debugged or counted by form, and code at privilege levels 1 and 2 is left to it altogether.

mod barred;
pub(crate) mod block;
pub(crate) mod block_store;
pub(crate) mod context;
mod copy;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod hostile;
mod jump_table;
pub(crate) mod low;
mod space;
mod spaces;
mod writer;

use std::io;

use ring3_core::memory::{Memory, PAGE_SHIFT};
use ring3_x86::cpu::Cpu;
use ring3_x86::cpu::invalidations::Invalidations;
use ring3_x86::decode::{MAX_LENGTH, Op};
use ring3_x86::flags::Eflags;
use ring3_x86::segment::sreg;
use tracing::debug;

use crate::budget::{self, Budget};
use crate::code::cache::{self, CodeCache};
use crate::context::{HOST_FLAGS, STATUS_AND_DIRECTION};
use crate::long::barred::Barred;
use crate::long::block::{Block, Exit, Site, Source};
use crate::long::block_store::{BlockStore, Slots};
use crate::long::context::reason;
use crate::long::low::LowMemory;
use crate::long::spaces::LongSpaces;
use crate::long::writer::Writer;
use crate::memory::host_memory::{GuestFile, PAGE};
use crate::memory::space::Fill;
use crate::memory::units::{Owning, unit_of};
use crate::numeric::Numeric;

/// Upper bound of the bytes that a block's code needs.
const LARGEST_BLOCK: usize = 16 << 10;
/// Upper bound of the host's mappings. Linux allows 65530.
const MAX_MAPPINGS: usize = 20_000;
/// Bit of the error code of a page fault (SDM vol. 3, figure 5-12).
const WRITE_FAULT: u64 = 1 << 1;

/// How execution continues after translated code was left.
#[derive(Debug)]
pub(crate) enum Next {
    /// The interpreter executes one instruction.
    Step,
    /// The interpreter executes this one, which is known.
    Op(Op),
    /// The interpreter executes so many instructions.
    Interpret(u64),
    /// The engine looks around, and translated code continues.
    LookAround,
}

/// What a signal or an exit has led to.
enum Outcome {
    /// Translated code is entered again at [`Resumed::target`].
    Again(Resumed),
    Leave(Next),
}

/// Where translated code is entered.
#[derive(Debug, Clone, Copy)]
struct Resumed {
    target: u32,
    /// Number of instructions that were subtracted from the budget already.
    counted: u16,
}

/// What the engine counts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    /// Blocks that were made since all were dropped.
    pub(crate) blocks: usize,
    pub(crate) entries: u64,
    pub(crate) links: u64,
    pub(crate) look_ups: u64,
    pub(crate) fills: u64,
    pub(crate) signals: u64,
    pub(crate) flushes: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Long {
    low: LowMemory,
    cache: CodeCache,
    /// Bytes at the beginning of the cache that are never dropped.
    stubs: usize,
    blocks: BlockStore,
    exits: Vec<Exit>,
    slots: Slots,
    spaces: LongSpaces,
    barred: Barred,
    counters: Counters,
}

impl Long {
    pub(crate) fn new() -> io::Result<Long> {
        let low = LowMemory::new()?;
        let mut cache = CodeCache::new(low.context_pointer().addr())?;
        if cache.start().abs_diff(low.addresses().context) > 1 << 30 {
            return Err(io::Error::other("no room for code near its context"));
        }
        let miss = cache.end();
        let mut stub = Writer::new(miss, low.addresses(), false);
        stub.leave_to_look_up();
        cache.add(&stub.emitter.finish());
        Ok(Long {
            low,
            stubs: cache.len(),
            cache,
            blocks: BlockStore::default(),
            exits: Vec::new(),
            slots: Slots::default(),
            spaces: LongSpaces::new(miss),
            barred: Barred::default(),
            counters: Counters::default(),
        })
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters { blocks: self.blocks.count(), ..self.counters }
    }

    /// Returns whether code of the processor's mode is translated.
    pub(crate) fn translates(cpu: &Cpu) -> bool {
        let debugger = cpu.debugger();
        cpu.is_in_64_bit_mode()
            && matches!(cpu.cpl(), 0 | 3)
            && !cpu.alignment_is_checked()
            && !cpu.counts_forms()
            && debugger.breakpoints().is_empty()
            && debugger.watchpoints().is_empty()
    }

    /// Executes translated code, up to `deadline`. Returns how execution continues.
    pub(crate) fn execute(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        file: &GuestFile,
        budget: &Budget,
        deadline: u64,
    ) -> io::Result<Next> {
        let Some(target) = self.code_for(cpu, memory, cpu.ip)? else { return Ok(Next::Step) };
        self.load(cpu);
        let at = Resumed { target, counted: 0 };
        let next = self.run(cpu, memory, file, budget, at, deadline);
        self.store(cpu);
        next
    }

    /// Executes translated code from `at` on, with the guest's state in the context.
    fn run(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        file: &GuestFile,
        budget: &Budget,
        mut at: Resumed,
        deadline: u64,
    ) -> io::Result<Next> {
        loop {
            if memory.has_stale_code() || memory.has_marked_code() {
                return Ok(Next::LookAround);
            }
            let is_user = cpu.is_user();
            let space = self.spaces.find(cpu, memory)?;
            self.low.show(space.units.owned(), is_user)?;
            let (distance, table) = (space.units.distance(), space.table.address());
            let allowed = (deadline - cpu.instructions).min(budget::LONGEST);
            let has_sse = Numeric::are_enabled(cpu) && Numeric::is_sse_enabled(cpu);
            let context = self.low.context();
            (context.distance, context.table) = (distance, table);
            context.target = at.target.into();
            context.budget = budget.of(allowed) - u64::from(at.counted);
            context.set_vectors(has_sse, at.counted > 0);
            self.counters.entries += 1;
            // SAFETY: the target is the entry of a block or of an instruction in one, the tables show only units
            // of this space, at whose distance it is entered, nobody refers to the context, and the handler is
            // installed for as long as there is a cache.
            unsafe { context::enter(self.low.context_pointer()) };
            match self.next(cpu, memory, file, budget, allowed, deadline)? {
                Outcome::Again(resumed) => at = resumed,
                Outcome::Leave(next) => return Ok(next),
            }
        }
    }

    /// Finds out why translated code was left, and how execution continues.
    fn next(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        file: &GuestFile,
        budget: &Budget,
        allowed: u64,
        deadline: u64,
    ) -> io::Result<Outcome> {
        let remaining = budget.remaining(self.low.context().budget);
        let executed = (allowed as i64 - remaining) as u64;
        let exit = self.low.context().exit;
        let (rip, link) = match exit {
            reason::SIGNAL => {
                return self.signalled(cpu, memory, file, budget, executed, deadline);
            }
            reason::CALLED => {
                let call = self.low.context().fault.rip - 1;
                self.return_to_site(cpu, call as u32, executed);
                return Ok(Outcome::Leave(Next::Step));
            }
            reason::LOOK_UP => (self.low.context().rip, None),
            number => match &self.exits[(number - reason::EXITS) as usize] {
                Exit::Link { branch, rip } => (*rip, Some(*branch)),
                Exit::Step { rip, op } => {
                    let (rip, op) = (*rip, **op);
                    cpu.instructions += executed;
                    self.low.context().rip = rip;
                    if cpu.instructions >= deadline {
                        return Ok(Outcome::Leave(Next::Interpret(0)));
                    }
                    if self.barred.count(rip) {
                        self.drop_block_of(cpu, memory, rip);
                    }
                    return Ok(Outcome::Leave(Next::Op(op)));
                }
                Exit::Missed { site } => {
                    let (host, target) = (*site, self.low.context().rip);
                    self.counters.look_ups += 1;
                    let (rest, ..) = self.return_to_site(cpu, host, executed);
                    // The branch itself may still fault. So the interpreter executes it if the fetch from its
                    // target would set accessed bits.
                    let flushes = self.counters.flushes;
                    let space = self.spaces.find(cpu, memory)?;
                    if cpu.instructions >= deadline || !space.has_fetched(cpu, memory, target) {
                        return Ok(Outcome::Leave(Next::Step));
                    }
                    let Some(entry) = self.code_for(cpu, memory, target)? else {
                        return Ok(Outcome::Leave(Next::Step));
                    };
                    self.note_target(cpu, memory, target, entry)?;
                    if self.counters.flushes != flushes {
                        return Ok(Outcome::Leave(Next::LookAround));
                    }
                    return Ok(go_on(rest, cpu, deadline));
                }
            },
        };
        cpu.instructions += executed;
        self.low.context().rip = rip;
        if cpu.instructions >= deadline {
            return Ok(Outcome::Leave(Next::Interpret(0)));
        }
        let flushes = self.counters.flushes;
        let Some(entry) = self.code_for(cpu, memory, rip)? else {
            return Ok(Outcome::Leave(Next::Step));
        };
        match link {
            Some(branch) if self.counters.flushes == flushes => {
                self.counters.links += 1;
                self.cache.link(branch.end(), entry);
            }
            Some(_) => {}
            None => {
                self.counters.look_ups += 1;
                self.note_target(cpu, memory, rip, entry)?;
            }
        }
        Ok(Outcome::Again(Resumed { target: entry, counted: 0 }))
    }

    /// Makes branches by the jump table to `rip` go to its code, at `entry`.
    fn note_target(&mut self, cpu: &Cpu, memory: &Memory, rip: u64, entry: u32) -> io::Result<()> {
        let slot = self.slots.find(rip, cpu.is_user());
        self.spaces.find(cpu, memory)?.table.note(rip, slot, entry);
        Ok(())
    }

    /// Handles the signal for which translated code was left, when `executed` instructions had been subtracted
    /// from the budget.
    fn signalled(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        file: &GuestFile,
        budget: &Budget,
        executed: u64,
        deadline: u64,
    ) -> io::Result<Outcome> {
        self.counters.signals += 1;
        let fault = self.low.context().fault;
        let (rest, has_begun) = self.return_to_site(cpu, fault.rip as u32, executed);
        let is_page_fault = fault.signal == libc::SIGSEGV as u64 && fault.code != 0;
        if is_page_fault && budget.is_used_up_at(fault.address) {
            debug_assert!(!has_begun, "the budget is checked where a block begins");
            return Ok(go_on(rest, cpu, deadline));
        }
        let is_user = cpu.is_user();
        let rip = self.low.context().rip;
        if self.barred.note_signal(rip, cpu.instructions) {
            self.drop_block_of(cpu, memory, rip);
            return Ok(Outcome::Leave(Next::Step));
        }
        if !is_page_fault {
            return Ok(self.step_after_signal(cpu, memory, rip));
        }
        if let Some(unit) = self.low.unit_at(fault.address, is_user) {
            let is_owned = self.own(cpu, memory, unit)?;
            if is_owned {
                return Ok(go_on(rest, cpu, deadline));
            }
            return Ok(self.step_after_signal(cpu, memory, rip));
        }
        let Some(linear) = self.spaces.find(cpu, memory)?.units.linear(fault.address) else {
            return Ok(self.step_after_signal(cpu, memory, rip));
        };
        if !self.own(cpu, memory, unit_of(linear))? {
            return Ok(self.step_after_signal(cpu, memory, rip));
        }
        if self.spaces.mappings() > MAX_MAPPINGS {
            debug!("there are too many mappings");
            self.counters.flushes += 1;
            self.spaces.clear();
            return Ok(Outcome::Leave(Next::LookAround));
        }
        let writes = fault.code & WRITE_FAULT != 0;
        let space = self.spaces.find(cpu, memory)?;
        match space.fill(cpu, memory, file, linear, writes)? {
            Fill::Done => {
                self.counters.fills += 1;
                Ok(go_on(rest, cpu, deadline))
            }
            Fill::Faults => Ok(Outcome::Leave(Next::Step)),
            _ => Ok(self.step_after_signal(cpu, memory, rip)),
        }
    }

    /// Makes `unit` one that the present space owns. Returns false if it cannot.
    fn own(&mut self, cpu: &Cpu, memory: &Memory, unit: i64) -> io::Result<bool> {
        let space = self.spaces.find(cpu, memory)?;
        let mut owning = space.units.own(unit);
        if owning == Owning::NoRoom {
            space.has_moved();
            self.spaces.clear_other_users();
            owning = self.spaces.find(cpu, memory)?.units.own_again(unit);
        }
        if matches!(owning, Owning::Moved | Owning::NoRoom) {
            self.spaces.find(cpu, memory)?.has_moved();
        }
        Ok(matches!(owning, Owning::Done | Owning::Moved))
    }

    /// Leaves the instruction at `rip` to the interpreter after a signal, and from now on if that is often so.
    fn step_after_signal(&mut self, cpu: &mut Cpu, memory: &mut Memory, rip: u64) -> Outcome {
        if self.barred.note_leaving(rip) {
            self.drop_block_of(cpu, memory, rip);
        }
        Outcome::Leave(Next::Step)
    }

    /// Drops the blocks of the page of the instruction at `rip`.
    fn drop_block_of(&mut self, cpu: &mut Cpu, memory: &mut Memory, rip: u64) {
        let Ok(space) = self.spaces.find(cpu, memory) else { return };
        if let Some(place) = space.fetch(cpu, memory, rip) {
            self.drop_page((place >> PAGE_SHIFT) as u32);
        }
    }

    /// Restores the guest's state to that before the instruction whose host code was left at `host`, when
    /// `executed` instructions had been subtracted from the budget. Returns where translated code goes on there,
    /// with the number of instructions of the block that follow, and whether the block had begun.
    fn return_to_site(
        &mut self,
        cpu: &mut Cpu,
        host: u32,
        executed: u64,
    ) -> ((Resumed, u16), bool) {
        let Some((block, site)) = self.blocks.at(host) else {
            unreachable!("translated code is in blocks");
        };
        let first = Site { host: block.entry, offset: 0, before: 0 };
        let Site { host, offset, before } = site.unwrap_or(first);
        let rest = block.instructions - before;
        cpu.instructions += executed.wrapping_sub(rest.into());
        self.low.context().rip = block.linear.wrapping_add(offset.into());
        let counted = if site.is_some() { rest } else { 0 };
        ((Resumed { target: host, counted }, rest), site.is_some())
    }

    /// Returns the entry of the block for `rip`, or None if the interpreter must execute the instruction there.
    fn code_for(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        rip: u64,
    ) -> io::Result<Option<u32>> {
        let is_user = cpu.is_user();
        let Some(place) = self.spaces.find(cpu, memory)?.fetch(cpu, memory, rip) else {
            return Ok(None);
        };
        if let Some(block) = self.blocks.find(rip, place, is_user) {
            return Ok(Some(block.entry));
        }
        if self.cache.len() + LARGEST_BLOCK > cache::SIZE {
            debug!("the code cache is full");
            self.forget_code();
        }
        let Some(bytes) = memory.page_from(place) else { return Ok(None) };
        let source = Source {
            bytes,
            linear: rip,
            place,
            is_user,
            model: cpu.model,
            barred: self.barred.now(),
            first_exit: self.exits.len(),
        };
        let Long { blocks, slots, .. } = self;
        let entry_of = |target: u64| {
            let place = (place & !(PAGE - 1)) | (target & 0xfff) as usize;
            blocks.find(target, place, is_user).map(|block| block.entry)
        };
        let addresses = self.low.addresses();
        let made = block::translate(&source, self.cache.end(), addresses, slots, entry_of);
        let Some((block, code, exits)) = made else { return Ok(None) };
        if !self.cache.add(&code) {
            return Ok(None);
        }
        // The decoder may have looked at the bytes after the block's end to decide that it ends there.
        let len = usize::from(block.bytes) + MAX_LENGTH;
        let len = len.min(PAGE - (place & (PAGE - 1)));
        let Block { entry, .. } = block;
        self.exits.extend(exits);
        self.blocks.add(block);
        if memory.mark_code(place, len) {
            cpu.protect_code(place & !(PAGE - 1));
        }
        Ok(Some(entry))
    }

    /// Copies the guest's state to the context.
    fn load(&mut self, cpu: &Cpu) {
        let context = self.low.context();
        for (number, register) in (0..).zip(&mut context.gpr) {
            *register = cpu.gpr(number);
        }
        context.rip = cpu.ip;
        context.flags = u64::from(cpu.pushed_flags() & STATUS_AND_DIRECTION | HOST_FLAGS);
        context.bases = [sreg::FS, sreg::GS].map(|register| cpu.segment(register).base);
        for (number, vector) in (0..).zip(&mut context.vectors) {
            *vector = cpu.sse.xmm(number);
        }
        context.mxcsr = cpu.sse.mxcsr();
    }

    /// Copies the guest's state back to the processor.
    fn store(&mut self, cpu: &mut Cpu) {
        let context = self.low.context();
        for (number, register) in (0..).zip(context.gpr) {
            cpu.set_gpr(number, register);
        }
        cpu.ip = context.rip;
        cpu.set_status_and_direction(Eflags::from_bits_truncate(context.flags as u32));
        for (number, vector) in (0..).zip(context.vectors) {
            cpu.sse.set_xmm(number, vector);
        }
        cpu.sse.set_mxcsr(context.mxcsr);
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

    /// Makes writes to `pages` that have come to hold code fault.
    pub(crate) fn protect(&mut self, pages: &[u32]) -> io::Result<()> {
        pages.iter().try_for_each(|page| self.spaces.protect_place((*page as usize) << PAGE_SHIFT))
    }

    /// Drops all blocks of a page of guest memory.
    pub(crate) fn drop_page(&mut self, page: u32) {
        if self.blocks.drop_page(page) {
            self.spaces.forget_targets();
        }
    }

    /// Forgets all code.
    pub(crate) fn forget_code(&mut self) {
        self.counters.flushes += 1;
        self.blocks.clear();
        self.exits.clear();
        self.slots.clear();
        self.barred.clear();
        self.cache.truncate(self.stubs);
        self.spaces.forget_targets();
    }

    /// Forgets what is mapped.
    pub(crate) fn clear_spaces(&mut self) {
        self.spaces.clear();
    }
}

/// Returns whether translated code goes on at a place, which it does unless fewer instructions may be executed
/// than follow there in the block.
fn go_on((at, rest): (Resumed, u16), cpu: &Cpu, deadline: u64) -> Outcome {
    let allowed = deadline - cpu.instructions;
    if u64::from(rest) > allowed {
        Outcome::Leave(Next::Interpret(allowed))
    } else {
        Outcome::Again(at)
    }
}
