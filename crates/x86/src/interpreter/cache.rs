//! Decoded code: blocks of instructions, by page of guest-physical memory.

use crate::cpuid::Model;
use crate::debugger;
use crate::decode::{self, CodeMode, Op};
use crate::exec::pair;
use crate::table;

/// The most instructions in a block.
pub(super) const BLOCK_LENGTH: usize = 64;
/// The most pages of decoded code, and the most instructions (64 MiB). Beyond them all code is dropped.
const MAX_PAGES: usize = 8192;
const MAX_OPS: usize = 2 << 20;
/// The number that means no page of decoded code.
pub(super) const NO_PAGE: u32 = u32::MAX;
/// The entry that means no block.
const NO_BLOCK: u32 = 0;

/// The starts of the blocks of one guest-physical page, in one mode: a hash table by offset in the page, with
/// linear probing. A slot holds the number of the block's first instruction plus one; the instruction itself
/// contains its offset.
#[derive(Debug)]
pub(super) struct CodePage(Box<[u32; START_SLOTS]>);

/// Slots for block starts in a page: one for every four bytes.
const START_SLOTS: usize = 1024;
/// The number of slots that are searched for one block.
const START_PROBES: usize = 8;

impl Default for CodePage {
    fn default() -> Self {
        CodePage(Box::new([NO_BLOCK; START_SLOTS]))
    }
}

impl CodePage {
    /// Returns the slots in which a block that starts at `offset` can be noted.
    fn slots(offset: usize) -> impl Iterator<Item = usize> {
        (offset / 4..offset / 4 + START_PROBES).map(|slot| slot % START_SLOTS)
    }

    /// Returns the number of the first instruction of the block that starts at `offset`.
    #[inline]
    pub(super) fn block_at(&self, ops: &[Op], offset: usize) -> Option<usize> {
        for slot in Self::slots(offset) {
            let first = match self.0[slot] {
                NO_BLOCK => return None,
                start => start as usize - 1,
            };
            if usize::from(ops[first].offset) == offset {
                return Some(first);
            }
        }
        None
    }

    /// Notes that the block at `offset` starts with instruction number `first`. There can be more blocks than
    /// slots, since blocks may start inside others; a new block then replaces an older one.
    pub(super) fn note(&mut self, offset: usize, first: usize) {
        let free = Self::slots(offset).find(|slot| self.0[*slot] == NO_BLOCK);
        self.0[free.unwrap_or(offset / 4)] = first as u32 + 1;
    }
}

/// All decoded code.
#[derive(Debug, Default)]
pub(super) struct Cache {
    /// The instructions of all blocks, with an entry that ends the block where no branch does. Dropped
    /// instructions stay until all are dropped.
    pub(super) ops: Vec<Op>,
    pub(super) pages: Vec<CodePage>,
    /// The free numbers in `pages`.
    free: Vec<u32>,
    /// By mode, then by page of memory: the number in `pages`.
    by_frame: [Vec<u32>; CodeMode::COUNT],
}

impl Cache {
    /// Returns whether there is so much code that all of it must be dropped.
    pub(super) fn is_full(&self) -> bool {
        self.pages.len() - self.free.len() >= MAX_PAGES || self.ops.len() >= MAX_OPS
    }

    /// Returns the number of the page of decoded code for page `frame` of memory.
    pub(super) fn page(&mut self, frame: usize, mode: CodeMode) -> u32 {
        let by_frame = &mut self.by_frame[mode.index()];
        if by_frame.len() <= frame {
            by_frame.resize(frame + 1, NO_PAGE);
        }
        if by_frame[frame] == NO_PAGE {
            by_frame[frame] = self.free.pop().unwrap_or_else(|| {
                self.pages.push(CodePage::default());
                self.pages.len() as u32 - 1
            });
        }
        by_frame[frame]
    }

    /// Drops the code that was decoded in page `frame` of memory.
    pub(super) fn drop_frame(&mut self, frame: usize) {
        for by_frame in &mut self.by_frame {
            let Some(slot) = by_frame.get_mut(frame).filter(|slot| **slot != NO_PAGE) else {
                continue;
            };
            self.pages[*slot as usize] = CodePage::default();
            self.free.push(*slot);
            *slot = NO_PAGE;
        }
    }
}

/// Where a block ends, besides at an instruction that ends it.
pub(super) struct Limits<F> {
    /// The most instructions.
    pub(super) most: usize,
    /// Whether the debugger has a breakpoint at an offset in the page. Such an instruction has a block of its
    /// own, which stops there.
    pub(super) is_planted: F,
}

/// Decodes instructions from the start of `bytes`, which is at `offset` of its page, until the block ends,
/// and appends them to `ops`. Returns the block's length in bytes, or 0 if even the
/// first instruction is incomplete.
pub(super) fn decode_block(
    ops: &mut Vec<Op>,
    bytes: &[u8],
    offset: usize,
    mode: CodeMode,
    model: Model,
    limits: &Limits<impl Fn(usize) -> bool>,
) -> usize {
    let first = ops.len();
    let mut length = 0;
    while ops.len() - first < limits.most {
        let Some(op) = decode::decode(&bytes[length..], mode, model) else {
            break;
        };
        let is_planted = (limits.is_planted)(offset + length);
        if (op.stands_alone() || is_planted) && length > 0 {
            break;
        }
        let mut op = op.at_offset((offset + length) as u16);
        if is_planted {
            op.exec = debugger::breakpoint;
        }
        length += usize::from(op.length);
        pair::join(ops.get_mut(first..).unwrap_or_default(), &op, mode);
        ops.push(op);
        if is_planted || op.ends_block() {
            break;
        }
    }
    let count = ops.len() - first;
    if let Some(op) = ops.get_mut(first) {
        op.block_ops = count as u8;
        op.block_end = (offset + length) as u16;
        match ops.last() {
            Some(last) if last.branches() => {}
            Some(last) if last.ends_block() => ops.push(Op::end_of_block(table::leave)),
            _ => ops.push(Op::end_of_block(table::next_block)),
        }
    }
    length
}
