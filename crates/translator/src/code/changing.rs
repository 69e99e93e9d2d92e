//! Pages whose code keeps changing: pages to which a compiler writes while the program runs, and pages in
//! which code and data lie side by side. A write to any other page with code faults and drops the blocks made
//! from it, which costs several microseconds each time.
//!
//! A page whose blocks were dropped again and again becomes writable like any other. Its blocks compare the
//! bytes they were made from with memory whenever they are entered, and end after each instruction that
//! writes to memory. Where the immediate operand of an instruction was seen to change, the instruction reads
//! it from memory.

use iced_x86::{Code, Instruction, InstructionInfoFactory, OpAccess, Register};
use ring3_core::memory::PAGE_SHIFT;
use ring3_x86::cpuid::Model;
use ring3_x86::decode::{self, CodeSize};

use crate::code::emitter::{Branch, Emitter};
use crate::map::{Map, Set};

/// Drops of a page after which it counts as one that keeps changing.
const DROPS: u8 = 16;
/// Instructions after which an earlier drop no longer counts.
const FORGOTTEN_AFTER: u64 = 1 << 20;
/// Bytes of an immediate operand that is read from memory; they are the last of its instruction.
const IMMEDIATE_LEN: usize = 4;

/// All that is known of pages whose code changes.
#[derive(Debug, Default)]
pub(crate) struct Changing {
    /// The numbers of the pages that keep changing.
    pages: Set<u32>,
    /// For each other page: how often it was dropped, and the count of instructions at the last time.
    drops: Map<u32, (u8, u64)>,
    /// The places of instructions with an immediate operand that has changed.
    immediates: Set<usize>,
    /// By page number: the instructions that are left to the interpreter because they write to this page.
    /// Each has its linear address and the number of the page that it is in.
    writers: Map<u32, Vec<(u64, u32)>>,
}

impl Changing {
    /// Returns whether code in page `page` of guest memory keeps changing.
    pub(crate) fn has(&self, page: u32) -> bool {
        self.pages.contains(&page)
    }

    /// Returns whether code in the page of `place` keeps changing.
    pub(crate) fn has_place(&self, place: usize) -> bool {
        self.has((place >> PAGE_SHIFT) as u32)
    }

    /// Notes that the blocks of `page` were dropped at the instruction count `instructions`. Returns true if
    /// the page counts as one that keeps changing from now on.
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

    /// Makes `page` count as one that keeps changing, because programs write to data beside its code.
    pub(crate) fn add(&mut self, page: u32) {
        self.drops.remove(&page);
        self.pages.insert(page);
    }

    /// Notes that the instruction at `linear`, in page `code`, is left to the interpreter because it has
    /// often written to `page`.
    pub(crate) fn note_writer(&mut self, page: u32, linear: u64, code: u32) {
        self.writers.entry(page).or_default().push((linear, code));
    }

    /// Takes the instructions that were left to the interpreter because they write to `page`.
    pub(crate) fn take_writers(&mut self, page: u32) -> Vec<(u64, u32)> {
        self.writers.remove(&page).unwrap_or_default()
    }

    /// Compares `contents`, which the block at `place` was made from, with the bytes `now`, and notes the
    /// immediate operands that have changed.
    pub(crate) fn note_change(
        &mut self,
        contents: &Contents,
        place: usize,
        now: &[u8],
        size: CodeSize,
    ) {
        for (before, after) in contents.instructions(now, size) {
            let has_immediate = before.code() == after.code() && has_immediate(&before);
            if has_immediate && before.immediate32() != after.immediate32() {
                self.immediates.insert(place + before.ip32() as usize);
            }
        }
    }

    /// Returns the places of instructions that read their immediate operand from memory.
    pub(crate) fn immediates(&self) -> &Set<usize> {
        &self.immediates
    }

    /// Forgets all pages and instructions.
    pub(crate) fn clear(&mut self) {
        *self = Changing::default();
    }
}

/// The bytes that a block in a changing page was made from.
#[derive(Debug)]
pub(crate) struct Contents {
    bytes: Box<[u8]>,
    /// The offsets of the ends of immediate operands that may differ.
    variable: Vec<usize>,
}

impl Contents {
    /// Returns contents of `bytes`, in which the immediate operands that end at the offsets `variable` may
    /// change.
    pub(crate) fn new(bytes: &[u8], variable: Vec<usize>) -> Contents {
        Contents { bytes: bytes.into(), variable }
    }

    /// Returns whether `now` still has these bytes.
    pub(crate) fn are(&self, now: &[u8]) -> bool {
        self.fixed().all(|(start, end)| now.get(start..end) == Some(&self.bytes[start..end]))
    }

    /// Writes jumps that are taken if the bytes at the address of this process in the first of `registers`
    /// differ. Uses RCX and the second one, and changes no flags.
    pub(crate) fn jump_if_changed(
        &self,
        emitter: &mut Emitter,
        registers: [Register; 2],
    ) -> Vec<Branch> {
        self.parts()
            .map(|(offset, size, value)| emitter.jump_unless(registers, offset as u32, size, value))
            .collect()
    }

    /// Returns the bytes that must not change in parts of 1, 2, 4 or 8 bytes: of each its offset, its size, and
    /// the bytes as a number.
    fn parts(&self) -> impl Iterator<Item = (usize, usize, u64)> {
        self.fixed().flat_map(move |(start, end)| {
            let mut next = start;
            std::iter::from_fn(move || {
                let size = 1 << (end - next).min(8).checked_ilog2()?;
                let mut bytes = [0; 8];
                bytes[..size].copy_from_slice(&self.bytes[next..next + size]);
                next += size;
                Some((next - size, size, u64::from_le_bytes(bytes)))
            })
        })
    }

    /// Returns start and end of each run of bytes that must not change.
    fn fixed(&self) -> impl Iterator<Item = (usize, usize)> {
        let starts = std::iter::once(0).chain(self.variable.iter().copied());
        let ends = self.variable.iter().map(|end| end - IMMEDIATE_LEN).chain([self.bytes.len()]);
        starts.zip(ends)
    }

    /// Returns the pairs of instructions that begin at the same offset, in these bytes and in `now`.
    fn instructions(&self, now: &[u8], size: CodeSize) -> Vec<(Instruction, Instruction)> {
        // MOV with an immediate operand is the same on all models, and so are the lengths of all instructions.
        let decoded = |bytes| decode::decoder(bytes, size, 0, Model::Max).into_iter();
        let (before, after) = (decoded(&self.bytes), decoded(now));
        before.zip(after).take_while(|(before, after)| before.ip32() == after.ip32()).collect()
    }

    /// Writes code that compares the bytes with those at address `host` of this process, and goes to `same`
    /// if they are equal. Where they differ, execution continues after this code. Uses R8 to R10, and changes
    /// no flags.
    pub(crate) fn check(&self, emitter: &mut Emitter, host: u64, same: u32) {
        emitter.save_rcx();
        emitter.load_address(host);
        let different = self.jump_if_changed(emitter, [Register::R8, Register::R9]);
        emitter.restore_rcx();
        let branch = emitter.jump();
        emitter.lead(branch, same);
        for branch in different {
            emitter.land(branch);
        }
        emitter.restore_rcx();
    }
}

/// Returns whether `instruction` can read its immediate operand, its last four bytes, from memory instead.
pub(crate) fn has_immediate(instruction: &Instruction) -> bool {
    instruction.code() == Code::Mov_r32_imm32
}

/// Returns whether `instruction` may write to memory.
pub(crate) fn writes(instruction: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    factory.info(instruction).used_memory().iter().any(|memory| {
        !matches!(memory.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
    })
}
