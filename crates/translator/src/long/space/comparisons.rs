//! Whether comparing what is mapped with the page tables is worth it.
//!
//! Most systems rarely invalidate everything, and most of what they invalidate stays as it was; then a comparison of
//! each page is cheaper than a signal at its next access. But a hypervisor that runs a guest's kernel beside users
//! (Xen) invalidates everything after some thousand instructions, in which few of many pages are accessed.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr0, Cr4};
use ring3_x86::paging::PageEntries;

use super::LARGE;

/// The state that decides what entries of page tables mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rights {
    write_protection: bool,
    extensions: Cr4,
    no_execute: bool,
}

impl Rights {
    /// Returns the present state.
    pub(super) fn of(cpu: &Cpu) -> Rights {
        Rights {
            write_protection: cpu.cr0().contains(Cr0::WP),
            extensions: cpu.cr4(),
            no_execute: cpu.msrs.no_execute,
        }
    }
}

/// The present contents of the page tables.
pub(super) struct Now<'a> {
    cpu: &'a Cpu,
    memory: &'a Memory,
    /// The last [directory entry](PageEntries::directory), and the address of what it maps.
    directory: Option<(u64, u64)>,
}

impl<'a> Now<'a> {
    pub(super) fn new(cpu: &'a Cpu, memory: &'a Memory) -> Now<'a> {
        Now { cpu, memory, directory: None }
    }

    /// Returns whether `entries` still map the page at `linear`. It is cheap for one page after the other.
    pub(super) fn has(&mut self, linear: u64, entries: &PageEntries) -> bool {
        let start = linear & !(LARGE - 1);
        let known = self.directory.filter(|(known, _)| *known == start);
        let directory = known.map_or_else(
            || self.cpu.directory_entry(self.memory, start),
            |(_, directory)| directory,
        );
        self.directory = Some((start, directory));
        directory == entries.directory && entries.leaf_is_unchanged(self.memory)
    }
}

/// Comparisons of a page that take as long as the signal by which it is mapped again, about.
const OF_A_SIGNAL: u64 = 64;
/// Instructions among which the time for one comparison does not matter.
const PER_COMPARISON: u64 = 1024;
/// Instructions after which comparisons in vain are forgotten.
const REMEMBERED: u64 = 1 << 28;
/// As many pages are always compared.
const FEW: u64 = 128;

/// How many pages were compared in vain.
#[derive(Debug, Default)]
pub(super) struct Comparisons {
    /// Those since all were dropped, without those whose time did not matter.
    compared: u64,
    /// The count of instructions at the last comparisons.
    instructions: u64,
    /// The count of instructions when all were dropped the last time.
    dropped: Option<u64>,
}

impl Comparisons {
    /// Notes that after so many `instructions`, since the start, so many `pages` are to be compared. Returns whether
    /// they are to be dropped instead: if each was compared so often that its signals would have taken no longer.
    pub(super) fn are_in_vain(&mut self, pages: usize, instructions: u64) -> bool {
        let (pages, executed) = (pages as u64, instructions.wrapping_sub(self.instructions));
        self.instructions = instructions;
        self.compared = (self.compared + pages).saturating_sub(executed / PER_COMPARISON);
        let is_enough = pages > FEW && self.compared > OF_A_SIGNAL * pages;
        if is_enough {
            (self.compared, self.dropped) = (0, Some(instructions));
        }
        is_enough
    }

    /// Returns whether pages were dropped a short time before so many `instructions`, since the start.
    pub(super) fn were_in_vain(&self, instructions: u64) -> bool {
        self.dropped.is_some_and(|dropped| instructions.wrapping_sub(dropped) < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how often `pages` are compared before they are dropped, if that is done after each `step` of
    /// instructions.
    fn compared(pages: usize, step: u64) -> Option<usize> {
        let mut comparisons = Comparisons::default();
        (0..1000).find(|count| comparisons.are_in_vain(pages, *count as u64 * step))
    }

    #[test]
    fn many_pages_are_dropped_if_they_are_compared_all_the_time() {
        assert_eq!(compared(1000, 1000), Some(64));
        assert_eq!(compared(1000, 500 << 10), Some(127));
        assert_eq!(compared(1000, 1000 << 10), None);
        assert_eq!(compared(FEW as usize, 1000), None);
    }

    #[test]
    fn comparisons_in_vain_are_remembered_for_a_time() {
        let mut comparisons = Comparisons::default();
        assert!(!comparisons.were_in_vain(0));
        let dropped = (0..1000).find(|count| comparisons.are_in_vain(1000, *count)).unwrap();
        assert!(comparisons.were_in_vain(dropped + REMEMBERED - 1));
        assert!(!comparisons.were_in_vain(dropped + REMEMBERED));
    }
}
