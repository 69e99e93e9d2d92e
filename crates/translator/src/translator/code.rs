//! Finds the block for an address, or makes it.

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::decode::MAX_LENGTH;
use tracing::debug;

use super::{LARGEST_BLOCK, Translator};
use crate::code::block::{self, ChangingSource, MAX_INSTRUCTIONS, Second, Source};
use crate::code::cache;
use crate::memory::host_memory::PAGE;

/// Upper bound of the counters of a block: an instruction has at most one for itself, one where the block is
/// left, and two for its iterations.
const MOST_COUNTERS_IN_BLOCK: u32 = 4 * (MAX_INSTRUCTIONS as u32 + 4);

impl Translator {
    /// Returns the number of the block for the address `eip` in CS, or None if the interpreter must execute
    /// the instruction there.
    pub(super) fn code_for(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        eip: u32,
    ) -> io::Result<Option<usize>> {
        let (mode_number, mode) = self.modes.current();
        let is_user = mode.is_user;
        let linear = mode.linear(eip);
        let Some(inside) = mode.limit().checked_sub(eip) else { return Ok(None) };
        // Number of bytes up to the limit of CS.
        let inside = (inside as usize).saturating_add(1);
        let Some(place) = self.spaces.current(is_user).fetch(cpu, memory, &self.blocks, linear)
        else {
            return Ok(None);
        };
        if let Some(number) = self.blocks.number(linear, place, mode_number) {
            self.blocks.set_slot(number, self.branch_slots[usize::from(is_user)].find(linear));
            let block = self.blocks.get(number);
            let now = memory.page_from(place).unwrap_or_default();
            match block.second {
                None => match &block.contents {
                    Some(contents) if !contents.are(now) => {
                        let (size, executed) = (mode.code_size(), cpu.instructions);
                        self.changing.note_change(contents, place, now, size, executed);
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
                    // The interpreter executes the first instructions of the block. So the second page is
                    // fetched in time, but not before the call that leads there.
                    if space.fetched(second.linear).is_none() {
                        return Ok(None);
                    }
                }
            }
        }
        if self.cache.len() + LARGEST_BLOCK > cache::SIZE
            || self.counts.are_used_up(MOST_COUNTERS_IN_BLOCK)
        {
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
            barred: &self.barred,
            breakpoints: &self.breakpoints,
            for_user: &self.for_user,
            device_reads: &self.device_reads,
            numeric_errors: &self.numeric_errors,
            refused_loads: &self.refused_loads,
            next_op: self.ops.len() as u32,
            known_code: &|linear| {
                if !self.breakpoints.is_empty() {
                    return None;
                }
                let place = self.spaces.get(is_user)?.fetched(linear)?;
                let bytes = memory.page_from(place)?;
                (!self.changing.has_place(place)).then_some((place, bytes))
            },
            changing: is_changing.then(|| ChangingSource {
                host: bytes.as_ptr().addr() as u64,
                immediates: self.changing.immediates(),
            }),
            counters: self.counts.next(&self.cache),
        };
        let in_page = |target: u32| {
            let target = mode.linear(target);
            let place = (place & !(PAGE - 1)) | (target & 0xfff) as usize;
            let block = self.blocks.find(target, place, mode_number);
            block.map(|block| block.linked_entry)
        };
        let branch_slots = &mut self.branch_slots[usize::from(is_user)];
        let (block, code, ops) = block::translate(&source, self.cache.end(), branch_slots, in_page);
        // The decoder may have looked at the bytes after the block's end to decide that it ends there.
        let len = usize::from(block.bytes) + MAX_LENGTH;
        let len = len.min(PAGE - (place & (PAGE - 1)));
        if !self.cache.add(&code) {
            return Ok(None);
        }
        if let Some(counted) = &block.counted {
            self.counts.take(counted);
        }
        self.ops.extend(ops);
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

    /// Returns the page after that of `linear`, for an instruction that crosses into it, or None if fetching
    /// from it faults.
    fn next_page(&mut self, cpu: &mut Cpu, memory: &mut Memory, linear: u32) -> Option<Second> {
        let linear = (linear | 0xfff).wrapping_add(1);
        let place = self.spaces.current(cpu.is_user()).fetch(cpu, memory, &self.blocks, linear)?;
        Some(Second { linear, place, is_crossed_into: true })
    }
}
