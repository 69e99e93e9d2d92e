//! Counters of executed instructions by their form, while somebody wants a
//! [histogram](ring3_x86::histogram).
//!
//! Where a block takes instructions from the budget, it then also adds 1 to a counter of its own; where it gives
//! instructions back, too. So there are few counters, and a block adds without flags: MOV, LEA, MOV. The counters
//! are behind the code cache, so that their addresses are close to the code. What the forms of a counter's
//! instructions are is known of the block ([`Counted`]).
//!
//! The engine corrects the counts wherever it corrects the budget: where it returns to an instruction that the
//! block has counted in advance, and where it goes on in the middle of a block
//! ([`Translator`](crate::Translator)).

use std::io;

use ring3_x86::histogram::Histogram;
use ring3_x86::hot_blocks::HotBlocks;
use ring3_x86::table::FormId;

use crate::code::block::Block;
use crate::code::cache::CodeCache;

/// Upper bound of the number of counters. All code is dropped before there are more.
pub(crate) const MOST: u32 = 1 << 20;
/// Bytes of a counter.
const SIZE: u32 = 8;
/// Bytes of all counters.
pub(crate) const BYTES: usize = MOST as usize * SIZE as usize;

/// The instructions of a block, and its counters.
#[derive(Debug)]
pub(crate) struct Counted {
    /// The forms of the block's instructions.
    pub(crate) forms: Vec<FormId>,
    /// The address of its first counter. The others follow.
    first: u32,
    /// What each counter counts.
    parts: Vec<Part>,
}

/// What a counter counts: some of its block's instructions.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// The number of the first instruction in the block.
    begin: u16,
    /// The number of the instruction after the last one.
    end: u16,
    /// Whether the instructions were counted elsewhere and are taken back here.
    takes_back: bool,
}

impl Counted {
    /// Returns an object for a block whose counters begin at address `first`.
    pub(crate) fn new(first: u32) -> Counted {
        Counted { forms: Vec::new(), first, parts: Vec::new() }
    }

    /// Adds a counter for the instructions from number `begin` on, up to before `end`. Returns its index.
    pub(crate) fn add(&mut self, begin: u16, end: u16, takes_back: bool) -> usize {
        self.parts.push(Part { begin, end, takes_back });
        self.parts.len() - 1
    }

    /// Returns the address of the counter with this index.
    pub(crate) fn address(&self, index: usize) -> u32 {
        self.first + SIZE * index as u32
    }

    /// Sets the end of the instructions of the counter with this index.
    pub(crate) fn set_end(&mut self, index: usize, end: u16) {
        self.parts[index].end = end;
    }

    /// Returns how many counters there are.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Removes all but the first `forms` instructions and `counters` counters.
    pub(crate) fn truncate(&mut self, forms: usize, counters: usize) {
        self.forms.truncate(forms);
        self.parts.truncate(counters);
    }

    /// Returns the forms of the instructions from number `begin` on, up to before `end`.
    pub(crate) fn forms(&self, begin: u16, end: u16) -> &[FormId] {
        self.forms.get(begin.into()..end.into()).unwrap_or_default()
    }
}

/// All counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Whether instructions are counted.
    is_on: bool,
    /// Number of counters in use.
    used: u32,
    /// What was counted and is no longer in the counters.
    counted: Option<Box<Histogram>>,
    /// The instructions that were executed in each block meanwhile.
    blocks: HotBlocks,
}

impl Counters {
    /// Returns whether instructions are counted.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Counts instructions from now on, or no longer. There must be no blocks.
    pub(crate) fn turn(&mut self, is_on: bool, cache: &CodeCache) -> io::Result<()> {
        *self = Counters::default();
        if is_on {
            cache.map_counters()?;
        }
        self.is_on = is_on;
        Ok(())
    }

    /// Returns whether there may be too few counters for one more block.
    pub(crate) fn are_used_up(&self, most_in_block: u32) -> bool {
        self.used + most_in_block > MOST
    }

    /// Returns the address of the first free counter, if instructions are counted.
    pub(crate) fn next(&self, cache: &CodeCache) -> Option<u32> {
        self.is_on.then(|| cache.counters() + SIZE * self.used)
    }

    /// Notes the counters of a block, which were free.
    pub(crate) fn take(&mut self, counted: &Counted) {
        self.used += counted.len() as u32;
    }

    /// Reads the counters of all `blocks`, and sets them to zero.
    pub(crate) fn collect<'a>(
        &mut self,
        blocks: impl Iterator<Item = &'a Block>,
        cache: &CodeCache,
    ) {
        if !self.is_on {
            return;
        }
        let all = self.counted.get_or_insert_default();
        for block in blocks {
            let Some(counted) = &block.counted else { continue };
            let mut executed = 0_u64;
            for (index, part) in counted.parts.iter().enumerate() {
                let count = cache.take_counter(counted.address(index));
                if count == 0 {
                    continue;
                }
                let instructions = count.wrapping_mul((part.end - part.begin).into());
                executed = if part.takes_back {
                    executed.wrapping_sub(instructions)
                } else {
                    executed.wrapping_add(instructions)
                };
                for form in counted.forms(part.begin, part.end) {
                    if part.takes_back {
                        all.take_back(*form, block.is_user, count);
                    } else {
                        all.add(*form, block.is_user, count);
                    }
                }
            }
            if executed != 0 {
                self.blocks.add(block.linear.into(), block.is_user, executed);
            }
        }
    }

    /// Makes all counters free, when all blocks are dropped.
    pub(crate) fn free(&mut self) {
        self.used = 0;
    }

    /// Returns what was [collected](Counters::collect) since the last call.
    pub(crate) fn take_counted(&mut self) -> Option<(Box<Histogram>, HotBlocks)> {
        Some((self.counted.take()?, std::mem::take(&mut self.blocks)))
    }
}
