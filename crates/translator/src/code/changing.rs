//! Pages whose code keeps changing: pages to which a compiler writes while the program runs, and pages in
//! which code and data lie side by side. A write to any other page with code faults and drops the blocks made
//! from it, which costs several microseconds each time.
//!
//! A page whose blocks were dropped again and again becomes writable like any other. Its blocks compare the
//! bytes they were made from with memory whenever they are entered, and end after each instruction that
//! writes to memory. Where the immediate operand of an instruction was seen to change, the instruction reads
//! it from memory.
//!
//! A page whose code has not changed for long becomes one like any other again. Kernels write to the pages of their
//! busiest functions when they start, to choose instructions that the processor has. Since only changes of code that is
//! executed are noticed, the next time takes twice as long, so that a page in which data changes does not matter.

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
/// Instructions after which a page that keeps changing becomes one like any other, if no change was noticed. The number
/// doubles each time.
const CALM_AFTER: u64 = 1 << 26;
/// Instructions from one look for such pages to the next.
const LOOK_AFTER: u64 = 1 << 24;
/// Bytes of an immediate operand that is read from memory; they are the last of its instruction.
const IMMEDIATE_LEN: usize = 4;

/// A page that keeps changing, or did so.
#[derive(Debug)]
struct Page {
    /// Whether it does so now.
    is_changing: bool,
    /// The count of instructions when it last changed, as far as was noticed.
    last: u64,
    /// Instructions after which it becomes one like any other.
    calm_after: u64,
}

/// All that is known of pages whose code changes.
#[derive(Debug, Default)]
pub(crate) struct Changing {
    /// The pages that keep changing, or did so, by number.
    pages: Map<u32, Page>,
    /// The count of instructions at the last look for pages that change no longer.
    looked: u64,
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
        self.pages.get(&page).is_some_and(|page| page.is_changing)
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
        self.add(page, instructions);
        true
    }

    /// Makes `page` count as one that keeps changing, at the instruction count `instructions`.
    pub(crate) fn add(&mut self, page: u32, instructions: u64) {
        self.drops.remove(&page);
        let calm_after = |known: &Page| known.calm_after.saturating_mul(2);
        let calm_after = self.pages.get(&page).map_or(CALM_AFTER, calm_after);
        self.pages.insert(page, Page { is_changing: true, last: instructions, calm_after });
    }

    /// Makes pages that have not changed for long, at the instruction count `instructions`, ones like any others.
    /// Returns them.
    pub(crate) fn calm(&mut self, instructions: u64) -> Vec<u32> {
        // The processor's count may have been set back by a saved machine.
        if instructions.wrapping_sub(self.looked) < LOOK_AFTER {
            return Vec::new();
        }
        self.looked = instructions;
        let mut calm = Vec::new();
        for (number, page) in &mut self.pages {
            if page.is_changing && instructions.wrapping_sub(page.last) >= page.calm_after {
                page.is_changing = false;
                calm.push(*number);
            }
        }
        calm
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

    /// Compares `contents`, which the block at `place` was made from, with the bytes `now`, at the instruction count
    /// `instructions`, and notes the immediate operands that have changed.
    pub(crate) fn note_change(
        &mut self,
        contents: &Contents,
        place: usize,
        now: &[u8],
        size: CodeSize,
        instructions: u64,
    ) {
        if let Some(page) = self.pages.get_mut(&((place >> PAGE_SHIFT) as u32)) {
            page.last = instructions;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_changes_no_longer_becomes_calm_after_ever_longer_times() {
        let mut changing = Changing::default();
        let mut now = LOOK_AFTER;
        for calm_after in [CALM_AFTER, 2 * CALM_AFTER, 4 * CALM_AFTER] {
            for drop in 1..=DROPS {
                assert!(!changing.has(7));
                assert_eq!(changing.note_drop(7, now), drop == DROPS);
            }
            now += calm_after - 1;
            assert!(changing.calm(now).is_empty() && changing.has(7));
            // A change is noticed.
            let contents = Contents::new(&[0x90], Vec::new());
            changing.note_change(&contents, 7 << PAGE_SHIFT, &[0x91], CodeSize::Bits64, now);
            now += calm_after - 1;
            assert!(changing.calm(now).is_empty() && changing.has(7));
            now += LOOK_AFTER;
            assert_eq!(changing.calm(now), [7]);
            assert!(!changing.has(7) && changing.calm(now + LOOK_AFTER).is_empty());
        }
    }
}
