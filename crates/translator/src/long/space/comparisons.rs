//! Whether comparing what is mapped with the page tables is worth it.
//!
//! Most systems rarely invalidate everything, and most of what they invalidate stays as it was; then a comparison of
//! each page is cheaper than a signal at its next access. But a hypervisor that runs a guest's kernel beside users
//! (Xen) invalidates everything after some thousand instructions, in which few of many pages are accessed.

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
