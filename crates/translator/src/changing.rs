//! Pages whose code keeps changing: those that compilers write to while the program runs, and those where code and data are side by
//! side. Writes to other pages with code fault, and drop what was made from them; that costs several microseconds each time.
//!
//! A page that was dropped again and again can be written to as any other. Its blocks compare the bytes that they are made from with
//! what is in memory whenever they are entered, and end after each instruction that writes to memory. Where a number in
//! an instruction is seen to change, the instruction reads it from there.

use iced_x86::{Code, Instruction, InstructionInfoFactory, OpAccess};
use ring3_core::memory::PAGE_SHIFT;
use ring3_x86::decode;

use crate::emitter::Emitter;
use crate::map::{Map, Set};

/// So many times a page is dropped, until it counts as one that changes.
const DROPS: u8 = 16;
/// Instructions after which an earlier time does not count any more.
const FORGOTTEN_AFTER: u64 = 1 << 20;
/// Bytes of a number that is read from memory, which are the last of its instruction.
const NUMBER: usize = 4;

/// What is known of pages that change.
#[derive(Debug, Default)]
pub(crate) struct Changing {
    /// They, by number.
    pages: Set<u32>,
    /// How often others were dropped, and the count of instructions at the last time.
    drops: Map<u32, (u8, u64)>,
    /// The places of instructions with a number that has changed.
    numbers: Set<usize>,
    /// By page: instructions that are left to the interpreter because they write there, with their linear addresses and the pages that
    /// they are in.
    writers: Map<u32, Vec<(u32, u32)>>,
}

impl Changing {
    /// Code in page `page` of memory keeps changing.
    pub(crate) fn has(&self, page: u32) -> bool {
        self.pages.contains(&page)
    }

    /// The same of the page that `place` is in.
    pub(crate) fn has_place(&self, place: usize) -> bool {
        self.has((place >> PAGE_SHIFT) as u32)
    }

    /// Blocks of a page were dropped after so many instructions. True when it is one that changes from now on.
    pub(crate) fn note_drop(&mut self, page: u32, instructions: u64) -> bool {
        let (times, last) = self.drops.entry(page).or_insert((0, instructions));
        if instructions.saturating_sub(*last) > FORGOTTEN_AFTER {
            *times = 0;
        }
        (*times, *last) = (*times + 1, instructions);
        if *times < DROPS {
            return false;
        }
        self.drops.remove(&page);
        self.pages.insert(page)
    }

    /// Page `page` is one that changes: programs write to data in it, beside the code.
    pub(crate) fn add(&mut self, page: u32) {
        self.drops.remove(&page);
        self.pages.insert(page);
    }

    /// The interpreter executes what is at `linear`, in page `code`, as it has often written to `page`.
    pub(crate) fn note_writer(&mut self, page: u32, linear: u32, code: u32) {
        self.writers.entry(page).or_default().push((linear, code));
    }

    /// The instructions that need not be left to it any more.
    pub(crate) fn take_writers(&mut self, page: u32) -> Vec<(u32, u32)> {
        self.writers.remove(&page).unwrap_or_default()
    }

    /// The block at `place` was made from `contents`, and now there is `now`. Notes which numbers have changed.
    pub(crate) fn note_change(
        &mut self,
        contents: &Contents,
        place: usize,
        now: &[u8],
        is_32_bit: bool,
    ) {
        for (before, after) in contents.instructions(now, is_32_bit) {
            let is_other = before.immediate(1) != after.immediate(1);
            if before.code() == after.code() && has_number(&before) && is_other {
                self.numbers.insert(place + before.ip32() as usize);
            }
        }
    }

    /// The places of instructions that read their number from memory.
    pub(crate) fn numbers(&self) -> &Set<usize> {
        &self.numbers
    }

    /// Forgets all of it.
    pub(crate) fn clear(&mut self) {
        *self = Changing::default();
    }
}

/// What a block in such a page is made from.
#[derive(Debug)]
pub(crate) struct Contents {
    bytes: Box<[u8]>,
    /// The offsets of instructions whose numbers do not count.
    free: Vec<usize>,
}

impl Contents {
    /// `bytes`, of which the numbers that end at `free` may change.
    pub(crate) fn new(bytes: &[u8], free: Vec<usize>) -> Contents {
        Contents { bytes: bytes.into(), free }
    }

    /// The block is still what `now` has.
    pub(crate) fn are(&self, now: &[u8]) -> bool {
        self.fixed().all(|(start, end)| now.get(start..end) == Some(&self.bytes[start..end]))
    }

    /// Start and end of what must not change.
    fn fixed(&self) -> impl Iterator<Item = (usize, usize)> {
        let starts = std::iter::once(0).chain(self.free.iter().copied());
        let ends = self.free.iter().map(|end| end - NUMBER).chain([self.bytes.len()]);
        starts.zip(ends)
    }

    /// The instructions that begin at the same offsets as in `now`, in both.
    fn instructions(&self, now: &[u8], is_32_bit: bool) -> Vec<(Instruction, Instruction)> {
        let before = decode::decoder(&self.bytes, is_32_bit, 0).into_iter();
        let after = decode::decoder(now, is_32_bit, 0).into_iter();
        before.zip(after).take_while(|(before, after)| before.ip32() == after.ip32()).collect()
    }

    /// Writes code that compares them with what is at address `host` of this process, and goes to `same`. It ends
    /// where they differ. R8 to R10 are used, and no flags.
    pub(crate) fn check(&self, emitter: &mut Emitter, host: u64, same: u32) {
        emitter.save_rcx();
        emitter.load_address(host);
        let mut different = Vec::new();
        for (mut start, end) in self.fixed() {
            while start < end {
                let size = 1 << (end - start).min(8).ilog2();
                let mut bytes = [0; 8];
                bytes[..size].copy_from_slice(&self.bytes[start..start + size]);
                different.push(emitter.jump_unless(start as u32, size, u64::from_le_bytes(bytes)));
                start += size;
            }
        }
        emitter.restore_rcx();
        let branch = emitter.jump();
        emitter.lead(branch, same);
        for branch in different {
            emitter.land(branch);
        }
        emitter.restore_rcx();
    }
}

/// The last four bytes of `instruction` can be read from memory instead.
pub(crate) fn has_number(instruction: &Instruction) -> bool {
    instruction.code() == Code::Mov_r32_imm32
}

/// `instruction` may write to memory.
pub(crate) fn writes(instruction: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    factory.info(instruction).used_memory().iter().any(|memory| {
        !matches!(memory.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
    })
}
