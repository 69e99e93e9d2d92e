//! The engine.

mod fast_calls;
mod faults;

use std::fs::File;
use std::io;
use std::sync::Arc;

use ring3_core::memory::{MarkedCode, Memory, PAGE_SHIFT};
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::decode::{MAX_LENGTH, Op};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::segment::{Segment, sreg};
use thiserror::Error;
use tracing::{debug, warn};

use crate::block::{self, Block, ChangingSource, Second, Source};
use crate::blocks::Blocks;
use crate::budget::{self, Budget};
use crate::changing::Changing;
use crate::code_cache::{self, CodeCache};
use crate::context::{
    self, Context, HOST_FLAGS, NO_BASE, NumericEntry, STATUS_AND_DIRECTION, TimeStamp, View, info,
    reason,
};
use crate::descriptors::Descriptors;
use crate::emitter::Emitter;
use crate::host_memory::{GuestMemory, PAGE, Range};
use crate::limits::Limits;
use crate::map::{Map, Set};
use crate::mode::{Loading, Mode, Modes};
use crate::numeric::{self, Numeric};
use crate::slots::Slots;
use crate::spaces::Spaces;
use faults::{PageFault, Patience};

/// Instructions that the interpreter executes at a time where nothing is translated.
const INTERPRETED: u64 = 512;
/// The same from an instruction of segmented code on that it has had to execute again and again. There that mostly writes to data
/// beside code, and does not come alone.
const INTERPRETED_BESIDE: u64 = 64;
/// Iterations that it executes at a time of an instruction whose count is beyond the deadline.
const INTERPRETED_ITERATIONS: u64 = 128;
/// Iterations of one that it always executes.
const MOST_ITERATIONS: u32 = 4096;
/// Bytes that a block's code needs at most.
const LARGEST_BLOCK: usize = 16 << 10;

/// Why there cannot be a translator on this host.
#[derive(Debug, Error)]
pub enum Unavailable {
    /// The processor lacks something.
    #[error("the processor has no {0}")]
    Processor(&'static str),
    /// The system does not allow something.
    #[error("the system gives no memory for it: {0}")]
    System(#[from] io::Error),
}

/// What was counted.
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
    file: Option<Arc<File>>,
    context: Box<Context>,
    /// An address that faults, for [`Context::base_of`].
    _nothing: Range,
    budget: Budget,
    limits: Limits,
    modes: Modes,
    cache: CodeCache,
    /// The bytes of the cache that are never dropped.
    stubs: usize,
    blocks: Blocks,
    spaces: Spaces,
    /// The host refuses what must not be refused: all is left to the interpreter.
    is_broken: bool,
    /// What address line 20 was when it was made.
    a20: bool,
    /// What page tables meant then.
    paging: Option<Paging>,
    /// [`Memory::layout_generation`] that all was made with.
    layout: Option<u64>,
    numeric: Numeric,
    /// The linear addresses of instructions that are left to the interpreter, as it had to execute them again and again.
    left: Set<u32>,
    /// How long each of them stays so.
    patience: Map<u32, Patience>,
    /// Those of supervisor code that access memory of the user too.
    for_user: Set<u32>,
    /// The regions of linear addresses that are the user's, as far as is known, for them.
    user_regions: Vec<usize>,
    /// The base of the window that they have.
    user_window: u64,
    /// How often it had to, by the address of the instruction.
    leavings: Map<u32, u8>,
    /// The instructions that blocks leave to the interpreter.
    ops: Vec<Op>,
    changing: Changing,
    /// The slots for branches of supervisor code, and of user code.
    slots: [Slots; 2],
    descriptors: Descriptors,
    /// The last page fault of user code.
    page_fault: Option<PageFault>,
    counters: Counters,
}

/// What decides on what page tables mean: while it stays, pages whose entries have not changed have not either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Paging {
    write_protection: bool,
    extensions: Cr4,
    no_execute: bool,
}

impl Paging {
    /// None while there is no paging.
    fn of(cpu: &Cpu) -> Option<Paging> {
        cpu.cr0().contains(Cr0::PG).then(|| Paging {
            write_protection: cpu.cr0().contains(Cr0::WP),
            extensions: cpu.cr4() & (Cr4::PSE | Cr4::PAE),
            no_execute: cpu.msrs.no_execute,
        })
    }
}

/// How translated code was left.
enum Left {
    /// The interpreter executes one instruction, which may use numeric registers.
    Step {
        /// It may.
        is_numeric: bool,
    },
    /// The interpreter executes this one, which may use numeric registers.
    Op {
        /// Its number.
        number: usize,
        /// It may.
        is_numeric: bool,
    },
    /// The interpreter executes one instruction, which loads this segment register.
    Segment(u8),
    /// The interpreter executes so many instructions at most.
    Interpret(u64),
    /// It can go on.
    Again(Middle),
}

/// What is different in the middle of a block, where it is entered again, from its beginning.
#[derive(Debug, Clone, Copy, Default)]
struct Middle {
    /// So many instructions were counted already.
    counted: u16,
    /// The guest's ESP is so far above R15D.
    stack_offset: i32,
}

impl Translator {
    /// An engine for a machine whose memory is `guest_memory`.
    pub fn new(guest_memory: Arc<GuestMemory>) -> Result<Translator, Unavailable> {
        if !std::arch::is_x86_feature_detected!("bmi2") {
            return Err(Unavailable::Processor("BMI2"));
        }
        // SAFETY: it reads the auxiliary vector.
        let has_fsgsbase = unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FSGSBASE != 0;
        if !has_fsgsbase {
            return Err(Unavailable::Processor("FSGSBASE that the system lets processes use"));
        }
        let mut context = Context::new();
        let mut cache = CodeCache::new()?;
        let miss = cache.end();
        let mut stub = Emitter::new(miss);
        stub.jump_through(context::at::MISS);
        cache.add(&stub.finish());
        let nothing = Range::reserve(PAGE)?;
        let mut spaces = Spaces::new(miss)?;
        context.regions.fill(spaces.current(false).window().base());
        context.nothing = nothing.address() as u64;
        context.base_of = [context.nothing; 2];
        Ok(Translator {
            interpreter: Interpreter::beside_another_engine(),
            guest_memory,
            file: None,
            context,
            _nothing: nothing,
            budget: Budget::new()?,
            limits: Limits::new()?,
            modes: Modes::default(),
            stubs: cache.len(),
            cache,
            blocks: Blocks::default(),
            spaces,
            is_broken: false,
            a20: true,
            paging: None,
            layout: None,
            numeric: Numeric::new(),
            left: Set::default(),
            patience: Map::default(),
            for_user: Set::default(),
            user_regions: Vec::new(),
            user_window: 0,
            leavings: Map::default(),
            ops: Vec::new(),
            changing: Changing::default(),
            slots: Default::default(),
            descriptors: Descriptors::new(),
            page_fault: None,
            counters: Counters::default(),
        })
    }

    // What has changed --------------------------------------------------

    /// Takes in what the interpreter, devices and the machine have changed.
    fn catch_up(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> io::Result<()> {
        if self.layout != Some(memory.layout_generation()) {
            self.layout = Some(memory.layout_generation());
            self.file = self.guest_memory.file();
            self.forget_code();
            self.clear_spaces()?;
        }
        if self.a20 != cpu.a20() {
            self.a20 = cpu.a20();
            self.clear_spaces()?;
        }
        let paging = Paging::of(cpu);
        if self.paging != paging {
            self.paging = paging;
            self.clear_spaces()?;
        }
        if memory.has_stale_code() {
            let pages = memory.take_stale_code();
            self.interpreter.drop_code(cpu, &pages);
            self.drop_changed(&pages, cpu.instructions);
        }
        let pages = self.interpreter.take_dropped_code();
        self.drop_changed(&pages, cpu.instructions);
        if memory.has_marked_code() {
            self.protect_marked(memory)?;
        }
        let invalidations = cpu.take_invalidations();
        if invalidations.is_empty() {
            return Ok(());
        }
        self.descriptors.invalidate(&invalidations, &mut self.context);
        self.spaces.invalidate(cpu, memory, &self.blocks, &invalidations)
    }

    /// The same. Where the host refuses what that needs, everything is forgotten, which needs less.
    fn keep_up(&mut self, cpu: &mut Cpu, memory: &mut Memory) {
        let Err(error) = self.catch_up(cpu, memory) else { return };
        self.counters.refusals += 1;
        debug!(%error, "the host refuses to change a mapping");
        if let Err(error) = self.clear_spaces()
            && !self.is_broken
        {
            warn!("the interpreter goes on alone, as the host refuses to unmap memory: {error}");
            self.is_broken = true;
        }
    }

    /// Drops the code of pages that were written to. That of pages which keep changing notices it.
    fn drop_changed(&mut self, pages: &[u32], instructions: u64) {
        for page in pages.iter().copied() {
            if self.changing.has(page) {
                continue;
            }
            self.drop_page(page);
            if self.changing.note_drop(page, instructions) {
                self.translate_writers(page);
            }
        }
    }

    /// Has the instructions translated again that were left to the interpreter as they write to `page`, which can be written to as any other
    /// now.
    fn translate_writers(&mut self, page: u32) {
        for (linear, code) in self.changing.take_writers(page) {
            self.left.remove(&linear);
            self.leavings.remove(&linear);
            self.drop_page(code);
        }
    }

    /// Drops all blocks of a page.
    fn drop_page(&mut self, page: u32) {
        if let Some(targets) = self.blocks.drop_page(page) {
            self.spaces.forget_blocks(&targets);
        }
    }

    /// Lets all writes to pages that came to hold code fault.
    fn protect_marked(&mut self, memory: &mut Memory) -> io::Result<()> {
        let MarkedCode::Pages(pages) = memory.take_marked_code() else {
            return self.clear_spaces();
        };
        for page in pages {
            let place = (page as usize) << PAGE_SHIFT;
            self.spaces.protect_place(place)?;
        }
        Ok(())
    }

    fn clear_spaces(&mut self) -> io::Result<()> {
        self.counters.flushes += 1;
        self.descriptors.clear(&mut self.context);
        self.spaces.clear()
    }

    fn forget_code(&mut self) {
        self.numeric.note_pointers(&self.blocks, &mut self.context.image);
        self.blocks.clear();
        self.left.clear();
        self.patience.clear();
        self.for_user.clear();
        self.leavings.clear();
        self.ops.clear();
        self.slots.iter_mut().for_each(Slots::clear);
        self.changing.clear();
        self.cache.truncate(self.stubs);
        self.spaces.forget_targets();
    }

    // Execution ---------------------------------------------------------

    /// Code in the mode that the processor is in is translated, and that mode is the current one now.
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

    /// The number of the block for the address `eip` in CS; none where the interpreter is to execute it.
    fn code_for(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        eip: u32,
    ) -> io::Result<Option<usize>> {
        let (mode_number, mode) = self.modes.current();
        let is_user = mode.is_user;
        let linear = mode.linear(eip);
        let Some(inside) = mode.limit().checked_sub(eip) else { return Ok(None) };
        // Bytes up to the limit of CS.
        let inside = (inside as usize).saturating_add(1);
        let Some(place) = self.spaces.current(is_user).fetch(cpu, memory, &self.blocks, linear)
        else {
            return Ok(None);
        };
        if let Some(number) = self.blocks.number(linear, place, mode_number) {
            self.blocks.set_slot(number, self.slots[usize::from(is_user)].find(linear));
            let block = self.blocks.get(number);
            let now = memory.page_from(place).unwrap_or_default();
            match block.second {
                None => match &block.contents {
                    Some(contents) if !contents.are(now) => {
                        self.changing.note_change(contents, place, now, mode.is_32_bit());
                    }
                    _ => return Ok(Some(number)),
                },
                Some(second) if second.is_crossed_into => {
                    if self.next_page(cpu, memory, linear) == Some(second) {
                        return Ok(Some(number));
                    }
                }
                Some(second) => {
                    let space = self.spaces.current(is_user);
                    if space.has_fetched(&second) {
                        return Ok(Some(number));
                    }
                    // The interpreter begins with it, so that in time the second page is fetched, but not before its turn.
                    if space.fetched(second.linear).is_none() {
                        return Ok(None);
                    }
                }
            }
        }
        if self.cache.len() + LARGEST_BLOCK > code_cache::SIZE {
            debug!("the code cache is full");
            self.counters.flushes += 1;
            self.forget_code();
        }
        let is_changing = self.changing.has_place(place);
        let mut crossing = None;
        if memory.page_from(place).is_some_and(|bytes| block::crosses(bytes, &mode)) {
            crossing = self.next_page(cpu, memory, linear);
            if is_changing || crossing.is_none_or(|second| self.changing.has_place(second.place)) {
                return Ok(None);
            }
        }
        let both;
        let Some(mut bytes) = memory.page_from(place) else { return Ok(None) };
        if let Some(rest) = crossing.and_then(|second| memory.page_from(second.place)) {
            both = [bytes, &rest[..MAX_LENGTH]].concat();
            bytes = &both;
        }
        if inside < bytes.len() {
            bytes = &bytes[..inside];
            if block::crosses(bytes, &mode) {
                return Ok(None);
            }
        }
        let source = Source {
            bytes,
            crossing,
            eip,
            place,
            model: cpu.model,
            mode: (mode_number, mode),
            left: &self.left,
            for_user: &self.for_user,
            next_op: self.ops.len() as u32,
            known_code: &|linear| {
                let place = self.spaces.get(is_user)?.fetched(linear)?;
                let bytes = memory.page_from(place)?;
                (!self.changing.has_place(place)).then_some((place, bytes))
            },
            changing: is_changing.then(|| ChangingSource {
                host: bytes.as_ptr().addr() as u64,
                numbers: self.changing.numbers(),
            }),
        };
        let in_page = |target: u32| {
            let target = mode.linear(target);
            let place = (place & !(PAGE - 1)) | (target & 0xfff) as usize;
            let block = self.blocks.find(target, place, mode_number);
            block.map(|block| block.linked_entry)
        };
        let slots = &mut self.slots[usize::from(is_user)];
        let (block, code, op) = block::translate(&source, self.cache.end(), slots, in_page);
        // What was looked at beyond the block's end decided that it ends.
        let len = usize::from(block.bytes) + MAX_LENGTH;
        let len = len.min(PAGE - (place & (PAGE - 1)));
        if !self.cache.add(&code) {
            return Ok(None);
        }
        self.ops.extend(op);
        let first = block.contents.is_none().then_some((place, len));
        let second = block.second.map(|second| (second.place, second.len()));
        for (place, len) in first.into_iter().chain(second) {
            if memory.mark_code(place, len) {
                cpu.protect_code(place & !(PAGE - 1));
                self.protect_marked(memory)?;
            }
        }
        Ok(Some(self.blocks.add(block)))
    }

    /// The page after that of `linear`, for an instruction that crosses into it; none where fetching from it faults.
    fn next_page(&mut self, cpu: &mut Cpu, memory: &mut Memory, linear: u32) -> Option<Second> {
        let linear = (linear | 0xfff).wrapping_add(1);
        let place = self.spaces.current(cpu.is_user()).fetch(cpu, memory, &self.blocks, linear)?;
        Some(Second { linear, place, is_crossed_into: true })
    }

    /// Gives the guest's state to translated code.
    fn load(&mut self, cpu: &Cpu) {
        self.descriptors.look_at_gdtr(cpu, &mut self.context);
        let context = &mut self.context;
        for register in reg::AX..=reg::DI {
            context.gpr[usize::from(register)] = cpu.gpr(register) as u32;
        }
        context.eip = cpu.ip as u32;
        context.flags = u64::from(cpu.pushed_flags() & STATUS_AND_DIRECTION | HOST_FLAGS);
        context.set_system_flags(cpu);
        context.control = [cpu.cr0().bits(), 0, cpu.cr2 as u32, cpu.cr3() as u32];
        context.interrupt_pin = cpu.interrupt_pin.into();
        for register in sreg::ES..=sreg::GS {
            context.selectors[usize::from(register)] = cpu.segment(register).selector;
        }
        if self.modes.current().1.segmented.is_some() {
            return self.load_views(cpu);
        }
        for (index, register) in [sreg::FS, sreg::GS].into_iter().enumerate() {
            let segment = cpu.segment(register);
            context.bases[index] = segment.base as u32;
            (context.base_of[index], context.near_bases[index]) = if segment.is_free() {
                ((&raw const context.bases[index]).addr() as u64, segment.base)
            } else {
                (context.nothing, NO_BASE)
            };
        }
    }

    /// Gives the segments to segmented code.
    fn load_views(&mut self, cpu: &Cpu) {
        for register in sreg::ES..=sreg::GS {
            let segment = cpu.segment(register);
            self.context.views[usize::from(register)] = View {
                reads: self.limits.for_reading(segment),
                writes: self.limits.for_writing(segment),
                base: segment.base as u32,
            };
        }
        self.context.targets = self.limits.up_to(cpu.segment(sreg::CS).limit);
    }

    /// Gives the clock to translated code that may execute so many instructions.
    fn load_time(&mut self, cpu: &Cpu, allowed: u64) {
        let clock = cpu.clock.as_ref().filter(|_| !cpu.cr4().contains(Cr4::TSD));
        let time = clock.and_then(|clock| {
            let (instructions, base) = clock.base();
            let executed = cpu.instructions.checked_sub(instructions)?;
            let picos_per_instruction = clock.picos_per_instruction();
            let most = (executed + allowed).checked_mul(picos_per_instruction)?;
            base.as_nanos().checked_add(most)?;
            Some(TimeStamp {
                origin: self.budget.of(allowed).wrapping_add(executed),
                picos_per_instruction,
                base: base.as_nanos().wrapping_sub(cpu.msrs.time_stamp_offset),
            })
        });
        self.context.set_time(time);
    }

    /// Takes back the segments that segmented code has loaded without a descriptor, which changes selector and base alone.
    fn store_views(&mut self, cpu: &mut Cpu) {
        for register in [sreg::ES, sreg::DS, sreg::FS, sreg::GS] {
            let selector = self.context.selectors[usize::from(register)];
            let base = u64::from(self.context.views[usize::from(register)].base);
            let old = *cpu.segment(register);
            if (old.selector, old.base) != (selector, base) {
                cpu.set_segment(register, Segment::new(selector, base, old.limit, old.attributes));
            }
        }
    }

    /// Takes it back.
    fn store(&mut self, cpu: &mut Cpu) {
        self.store_system(cpu);
        let segmented = self.modes.current().1.segmented;
        if segmented.is_some_and(|segmented| segmented.loading != Loading::Protected) {
            self.store_views(cpu);
        }
        for register in reg::AX..=reg::DI {
            cpu.set_gpr(register, self.context.gpr[usize::from(register)].into());
        }
        cpu.ip = self.context.eip.into();
        cpu.set_status_and_direction(Eflags::from_bits_truncate(self.context.flags as u32));
    }

    /// Takes back what only supervisor code changes.
    fn store_system(&mut self, cpu: &mut Cpu) {
        if self.context.loaded != 0 {
            self.descriptors.store(cpu, &mut self.context);
        }
        cpu.set_interrupt_flag(self.context.system_flags & Eflags::IF.bits() != 0);
    }

    /// Executes translated code, up to `deadline`.
    fn execute(&mut self, cpu: &mut Cpu, memory: &mut Memory, deadline: u64) -> io::Result<Left> {
        self.load(cpu);
        if !self.enter_space(cpu, memory)? {
            return Ok(STEP);
        }
        let mut middle = Middle::default();
        loop {
            // In the middle of a block nothing asks for them again.
            let was_live = self.context.numeric_was_live != 0;
            self.context.set_numeric_entry(match self.numeric.place() {
                numeric::Place::Image if middle.counted > 0 && was_live => NumericEntry::Loaded,
                numeric::Place::Image if Numeric::are_enabled(cpu) => NumericEntry::Load,
                _ => NumericEntry::Ask,
            });
            let allowed = (deadline - cpu.instructions).min(budget::LONGEST);
            self.context.budget = self.budget.of(allowed) - u64::from(middle.counted);
            self.load_time(cpu, allowed);
            self.counters.entries += 1;
            self.move_stack(-middle.stack_offset);
            self.load_returns(cpu);
            // SAFETY: the target is an entry of the jump table, of a block or of an instruction in it; the rest is what the
            // context says, and the handler is installed for as long as there is a cache.
            unsafe { context::enter(&raw mut *self.context) };
            self.come_back(cpu);
            let left = match self.left(cpu, memory, allowed, deadline) {
                Ok(Left::Again(at)) if !memory.has_stale_code() => {
                    middle = at;
                    continue;
                }
                // Accessed and dirty bits were set in what is also code.
                Ok(Left::Again(_)) => Ok(Left::Interpret(0)),
                left => left,
            };
            self.store(cpu);
            if self.context.reason == reason::STEP && self.context.info & info::AFTER_STI != 0 {
                cpu.hold_interrupts();
            }
            return left;
        }
    }

    /// Has translated code run at EIP with what is known of its address space. False where the interpreter is to execute the
    /// instruction there.
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
        self.set_user_window(window);
        self.numeric.note_selectors(cpu, &self.blocks, &mut self.context.image);
        let space = self.spaces.current(is_user);
        let context = &mut self.context;
        let (mode, _) = self.modes.current();
        context.window = space.window().base();
        (context.table, context.index_mask) = space.enter(mode);
        context.target = space.target(mode, context.eip).into();
        self.allow_fast_calls(cpu);
        Ok(true)
    }

    /// Adds `bytes` to ESP, or to what translated code has instead.
    fn move_stack(&mut self, bytes: i32) {
        let stack = &mut self.context.gpr[usize::from(reg::SP)];
        *stack = stack.wrapping_add_signed(bytes);
    }

    /// Looks at why translated code was left, and whether it can go on at once.
    fn left(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        allowed: u64,
        deadline: u64,
    ) -> io::Result<Left> {
        let executed = |translator: &Translator| {
            (allowed as i64 - translator.budget.left(translator.context.budget)) as u64
        };
        match self.context.reason {
            reason::LINK => {
                self.counters.links += 1;
                cpu.instructions += executed(self);
                if cpu.instructions >= deadline {
                    return Ok(NOTHING);
                }
                let (site, target) = (self.context.info, self.context.eip);
                let before = self.counters.flushes;
                let Some(number) = self.code_for(cpu, memory, target)? else {
                    return Ok(STEP);
                };
                let Block { entry, linked_entry, .. } = *self.blocks.get(number);
                if self.counters.flushes == before {
                    self.cache.link(site, linked_entry);
                }
                self.context.target = entry.into();
                Ok(Left::Again(Middle::default()))
            }
            reason::LOOK_UP => {
                self.counters.look_ups += 1;
                cpu.instructions += executed(self);
                if cpu.instructions >= deadline {
                    return Ok(NOTHING);
                }
                let target = self.context.eip;
                let Some(number) = self.code_for(cpu, memory, target)? else {
                    return Ok(STEP);
                };
                let block = self.blocks.note_look_up(number);
                self.spaces.current(cpu.is_user()).note_target(&block);
                self.context.target = block.entry.into();
                Ok(Left::Again(Middle::default()))
            }
            reason::SIGNAL => self.signalled(cpu, memory, allowed, deadline),
            reason::CALLED => {
                // What was left is the call, and the address after it.
                let at = self.return_to_site(cpu, self.context.fault_rip - 1, allowed);
                if at.site.repeats {
                    let rest = deadline - cpu.instructions;
                    return Ok(Left::Interpret(rest.min(INTERPRETED_ITERATIONS)));
                }
                Ok(at.site.loads.map_or(STEP, Left::Segment))
            }
            reason::NUMERIC => Ok(self.numeric_asked(cpu, allowed, deadline)),
            _ => {
                cpu.instructions += executed(self);
                if self.context.info & info::REPEATS != 0 {
                    // All its iterations, and if it ends before them, some of what comes after it.
                    let iterations =
                        self.context.gpr[usize::from(reg::CX)].clamp(1, MOST_ITERATIONS);
                    return Ok(Left::Interpret(iterations.into()));
                }
                if self.context.info & info::LEFT != 0 {
                    self.count_left(cpu, memory);
                    if self.modes.current().1.segmented.is_some() {
                        return Ok(Left::Interpret(INTERPRETED_BESIDE));
                    }
                }
                Ok(Left::Op {
                    number: (self.context.info >> info::OP_SHIFT) as usize,
                    is_numeric: self.context.info & info::NUMERIC != 0,
                })
            }
        }
    }

    /// Has the interpreter execute the instruction of that number, which is at CS:EIP.
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
            self.numeric.take(cpu, &self.blocks, &mut self.context.image);
        }
        let exit = self.interpreter.execute(cpu, memory, &self.ops[number]);
        if exit.is_some() {
            self.numeric.take(cpu, &self.blocks, &mut self.context.image);
        }
        exit
    }

    /// A numeric instruction needs the registers in the image.
    fn numeric_asked(&mut self, cpu: &mut Cpu, allowed: u64, deadline: u64) -> Left {
        // What was left is the call, and the address after it.
        let at = self.return_to_site(cpu, self.context.fault_rip - 1, allowed);
        if !Numeric::are_enabled(cpu) {
            return STEP;
        }
        if self.numeric.place() == numeric::Place::Cpu {
            self.numeric.give(cpu, &mut self.context.image);
        }
        self.context.numeric_was_live = 1;
        at.go_on(cpu, deadline)
    }
}

/// The deadline has come. What is next is not even looked for, which would set accessed bits.
const NOTHING: Left = Left::Interpret(0);
/// What the interpreter executes is not known.
const STEP: Left = Left::Step { is_numeric: true };
/// Bit of AT_HWCAP2: FSGSBASE is enabled.
const HWCAP2_FSGSBASE: u64 = 1 << 1;
impl Engine for Translator {
    fn name(&self) -> &'static str {
        "translator"
    }

    fn run(&mut self, cpu: &mut Cpu, memory: &mut Memory, instructions: u64) -> Exit {
        let deadline = cpu.instructions.saturating_add(instructions);
        loop {
            self.keep_up(cpu, memory);
            let rest = deadline.saturating_sub(cpu.instructions);
            let is_asked = cpu.interrupt_pin && cpu.is_interruptible();
            let mut interpreted = rest.min(1);
            let mut uses_numeric = true;
            let mut loads = None;
            if rest > 0 && !is_asked && cpu.begins_to_run_plainly() {
                if !self.is_broken && self.enter_mode(cpu) {
                    match self.execute(cpu, memory, deadline) {
                        Ok(Left::Step { is_numeric }) => {
                            self.counters.steps += 1;
                            uses_numeric = is_numeric;
                        }
                        Ok(Left::Op { number, is_numeric }) if cpu.instructions < deadline => {
                            match self.execute_op(cpu, memory, number, is_numeric) {
                                Some(exit) => return exit,
                                None => continue,
                            }
                        }
                        Ok(Left::Op { .. }) => {}
                        Ok(Left::Segment(register)) => {
                            self.counters.steps += 1;
                            uses_numeric = false;
                            loads = Some(register);
                        }
                        Ok(Left::Interpret(count)) => interpreted = count,
                        Ok(Left::Again(_)) => unreachable!("it goes on by itself"),
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
                self.numeric.take(cpu, &self.blocks, &mut self.context.image);
            }
            let before = cpu.instructions;
            let exit = self.interpreter.run(cpu, memory, interpreted);
            self.counters.interpreted += cpu.instructions - before;
            if let Some(register) = loads {
                self.descriptors.note(cpu, memory, register, &mut self.context);
            }
            if exit != Exit::Deadline || cpu.instructions >= deadline {
                self.numeric.take(cpu, &self.blocks, &mut self.context.image);
                return exit;
            }
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
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
            ("blocks translated", self.blocks.count() as u64),
            ("entries to translated code", entries),
            ("instructions left to the interpreter", steps),
            ("instructions interpreted", interpreted),
            ("branches linked", links),
            ("branches looked up", look_ups),
            ("signals", signals),
            ("pages filled", fills),
            ("flushes", flushes),
            ("refusals of the host", refusals),
        ];
        counters.extend(self.interpreter.counters());
        counters
    }
}
