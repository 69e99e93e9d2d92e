//! Finds the block for an address, or makes it, and drops blocks.

use std::{io, mem};

use ring3_core::memory::{Memory, PAGE_SHIFT};
use ring3_x86::cpu::Cpu;
use ring3_x86::decode::{CodeSize, MAX_LENGTH};
use tracing::{debug, warn};

use super::{Long, Next};
use crate::code::block::ChangingSource;
use crate::code::cache;
use crate::long::block::{self, Block, Source};
use crate::long::cold::CodePage;
use crate::memory::host_memory::PAGE;
use crate::translator::changes::differing;

/// Upper bound of the bytes that a block's code needs.
const LARGEST_BLOCK: usize = 16 << 10;

impl Long {
    /// Returns the entry of the block for `rip`, or how execution continues there if there is none.
    pub(super) fn known_code_for(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        rip: u64,
    ) -> io::Result<Result<u32, Next>> {
        if let Some(entry) = self.spaces.find(cpu, memory)?.table.find(rip) {
            return Ok(Ok(entry));
        }
        let entry = self.code_for(cpu, memory, rip)?;
        if let Ok(entry) = entry {
            self.note_target(cpu, memory, rip, entry)?;
        }
        Ok(entry)
    }

    /// Returns the entry of the block for `rip`, or how execution continues there if there is none.
    pub(super) fn code_for(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        rip: u64,
    ) -> io::Result<Result<u32, Next>> {
        Ok(self.block_for(cpu, memory, rip)?.map(|block| block.entry))
    }

    /// Returns the block for `rip`, or how execution continues there if there is none: the interpreter executes the
    /// instruction, or cold code.
    pub(super) fn block_for(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        rip: u64,
    ) -> io::Result<Result<&Block, Next>> {
        let is_user = cpu.is_user();
        let space = self.spaces.find(cpu, memory)?;
        let Some(place) = space.fetch(cpu, memory, rip) else { return Ok(Err(Next::Step)) };
        if let Some(number) = self.known_block_for(cpu, memory, rip, place)? {
            return Ok(Ok(self.blocks.get(number)));
        }
        let page = CodePage::of(rip, place);
        if is_user && !self.changing.has_place(place) && self.cold.has(page) {
            return Ok(Err(Next::Cold(page)));
        }
        if self.cache.len() + LARGEST_BLOCK > cache::SIZE {
            debug!("the code cache is full");
            self.forget_code();
        }
        let mut next = None;
        if place & (PAGE - 1) > PAGE - MAX_LENGTH {
            next = self.spaces.find(cpu, memory)?.next_page(cpu, memory, rip);
        }
        let is_changing = self.changing.has_place(place);
        let next = next.filter(|next| !is_changing && !self.changing.has_place(*next));
        let Some(bytes) = memory.page_from(place) else { return Ok(Err(Next::Step)) };
        let mut source = Source {
            bytes,
            linear: rip,
            place,
            crosses_to: None,
            is_user,
            model: cpu.model,
            barred: self.barred.now(),
            breakpoints: &self.breakpoints,
            far: &self.far,
            checks_before_loop: !is_changing && !self.plain_loops.contains(&rip),
            first_exit: self.exits.len(),
            changing: is_changing.then(|| ChangingSource {
                host: bytes.as_ptr().addr() as u64,
                immediates: self.changing.immediates(),
            }),
        };
        let Long { blocks, slots, .. } = self;
        let entry_of = |target: u64| {
            let place = (place & !(PAGE - 1)) | (target & 0xfff) as usize;
            blocks.find(target, place, is_user).map(|block| block.link)
        };
        let addresses = self.low.addresses();
        if is_user {
            // Recursive functions took up to a fifth longer, depending on where they happened to lie. Most code of the
            // supervisor is rarely executed, and had better be close together.
            self.cache.align();
        }
        let host = self.cache.end();
        let mut made = block::translate(&source, host, addresses, slots, entry_of);
        let both;
        if made.is_none() {
            let Some(next) = next else { return Ok(Err(Next::Step)) };
            let Some(behind) = memory.page_from(next) else { return Ok(Err(Next::Step)) };
            both = [source.bytes, &behind[..MAX_LENGTH]].concat();
            (source.bytes, source.crosses_to) = (&both, Some(next));
            made = block::translate(&source, host, addresses, slots, entry_of);
        }
        let Some((block, code, exits)) = made else { return Ok(Err(Next::Step)) };
        let may_read = source
            .changing
            .as_ref()
            .map_or(0..0, |code| code.host..code.host + u64::from(block.bytes));
        let checker = self.checkers[usize::from(is_user)].reading(may_read);
        if !checker.proves(&code, host, &[block.entry, block.link]) {
            warn!(
                "the translation at {rip:#x} is without proof: {:02x?}",
                &source.bytes[..usize::from(block.bytes)]
            );
            self.counters.unproven += 1;
            return Ok(Err(Next::Step));
        }
        if !self.cache.add(&code) {
            return Ok(Err(Next::Step));
        }
        // The decoder may have looked at the bytes after the block's end to decide that it ends there.
        let len = usize::from(block.bytes) + MAX_LENGTH;
        let len = len.min(PAGE - (place & (PAGE - 1)));
        self.exits.extend(exits);
        let crosses_to = block.crosses_to.map(|place| (place, MAX_LENGTH));
        let first = block.contents.is_none().then_some((place, len));
        let block = self.blocks.add(block);
        for (place, len) in [first, crosses_to].into_iter().flatten() {
            if memory.mark_code(place, len) {
                cpu.protect_code(place & !(PAGE - 1));
            }
        }
        Ok(Ok(block))
    }

    /// Returns the number of the block for `rip`, at `place`, if there is one that was made from what is there now.
    fn known_block_for(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        rip: u64,
        place: usize,
    ) -> io::Result<Option<usize>> {
        let is_user = cpu.is_user();
        let Some(number) = self.blocks.number_of(rip, place, is_user) else { return Ok(None) };
        let block = self.blocks.get(number);
        if let Some(contents) = &block.contents {
            let now = memory.page_from(place).unwrap_or_default();
            if contents.are(now) {
                return Ok(Some(number));
            }
            let Long { changing, .. } = self;
            changing.note_change(contents, place, now, CodeSize::Bits64, cpu.instructions);
            return Ok(self.blocks.use_version(rip, place, is_user, now));
        }
        let crosses_to = block.crosses_to;
        let is_current = crosses_to.is_none()
            || self.spaces.find(cpu, memory)?.next_page(cpu, memory, rip) == crosses_to;
        Ok(is_current.then_some(number))
    }

    /// Makes branches by the jump table to `rip` go to its code, at `entry`.
    pub(super) fn note_target(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        rip: u64,
        entry: u32,
    ) -> io::Result<()> {
        let slot = self.slots.find(rip, cpu.is_user());
        self.spaces.find(cpu, memory)?.table.note(rip, slot, entry);
        Ok(())
    }

    /// Drops the blocks of the page of the instruction at `rip`. Returns that page.
    pub(super) fn drop_block_of(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        rip: u64,
    ) -> Option<u32> {
        let space = self.spaces.find(cpu, memory).ok()?;
        let page = (space.fetch(cpu, memory, rip)? >> PAGE_SHIFT) as u32;
        self.drop_page(page);
        Some(page)
    }

    /// Drops the blocks of `page`, which was written to at the instruction count `instructions`, unless it is one that
    /// keeps changing.
    pub(crate) fn drop_changed(&mut self, page: u32, instructions: u64) {
        if self.changing.has(page) {
            return;
        }
        self.drop_page(page);
        if self.changing.note_drop(page, instructions) {
            for (linear, code) in self.changing.take_writers(page) {
                self.barred.allow(linear);
                self.drop_page(code);
            }
        }
    }

    /// Translates code anew, at the instruction count `instructions`, of pages that have not changed for long.
    pub(crate) fn calm_code(&mut self, instructions: u64) {
        for page in self.changing.calm(instructions) {
            self.drop_page(page);
        }
    }

    /// Takes over the debugger's breakpoints, which are linear addresses in order. Only the code of pages is dropped
    /// where they differ from those before.
    pub(crate) fn set_breakpoints(&mut self, breakpoints: &[u64]) {
        let before = mem::replace(&mut self.breakpoints, breakpoints.to_vec());
        for page in self.blocks.pages_with(&differing(&before, breakpoints)) {
            self.drop_page(page);
        }
    }

    /// Drops all blocks of a page of guest memory.
    fn drop_page(&mut self, page: u32) {
        let dropped = self.blocks.drop_page(page);
        if !dropped.is_empty() {
            self.spaces.forget_returns();
        }
        for (linear, is_user) in dropped {
            let slot = self.slots.find(linear, is_user);
            self.spaces.forget_target(linear, is_user, slot);
        }
    }

    /// Forgets all code.
    pub(crate) fn forget_code(&mut self) {
        self.counters.flushes += 1;
        self.note_pointers();
        self.blocks.clear();
        self.exits.clear();
        self.slots.clear();
        self.system_slot = None;
        self.barred.clear();
        self.changing.clear();
        self.plain_loops.clear();
        self.cache.truncate(self.stubs);
        self.spaces.forget_targets();
    }
}
