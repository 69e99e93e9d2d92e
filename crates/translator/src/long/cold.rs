//! Cold code of users, which the interpreter executes, since it takes less time than to translate it.
//!
//! To translate a block takes as long as to interpret some hundred instructions, and translated code then costs signals
//! and mappings, one for each page that it accesses, in each address space anew. A program that is started
//! executes most of its code a few times only. Most programs are position-independent and at new addresses each
//! time, so that blocks of the same program, which are for one linear address, are of no use. So a page of code is
//! translated only once so many instructions were interpreted in it that it is likely to be worth it.
//!
//! Pages are told apart by their linear addresses and their places, since a page of a library must become warm at each
//! address anew. A page stays warm when it changes: a program that writes code mostly executes it at the
//! same addresses for long. Code of the supervisor is mostly always the same, at the same addresses, and is translated
//! at once.

use ring3_core::memory::PAGE_SHIFT;

use crate::map::Map;

/// Instructions that the interpreter executes in a page before its code is translated, unless another number was
/// chosen. For a compilation in many short processes, all from 1,024 to 8,192 took the same time. To start a program 300
/// times, 2,048 translated 27,000 blocks more than 8,192, for which only 137 interpreted instructions each were saved, and
/// 8,000 signals more; that took twice the time.
pub(crate) const COLD: u64 = 8192;
/// Upper bound of the instructions that the interpreter executes at a time, all of which count for the page of the
/// first one.
const AT_A_TIME: u64 = 1024;
/// Upper bound of the pages of which something is known. Beyond that, all are cold again; code that was
/// translated stays.
const MOST_PAGES: usize = 1 << 16;

/// A page of code at a linear address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CodePage {
    linear: u64,
    place: u64,
}

impl CodePage {
    /// Returns the page of the instruction at `linear`, at `place` in memory.
    pub(crate) fn of(linear: u64, place: usize) -> CodePage {
        CodePage { linear: linear >> PAGE_SHIFT, place: place as u64 >> PAGE_SHIFT }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Cold {
    /// Instructions after which a page is warm.
    most: u64,
    /// The instructions that were executed in each page.
    executed: Map<CodePage, u64>,
}

impl Cold {
    /// Makes pages cold until so many instructions were interpreted in them.
    pub(crate) fn until(instructions: u64) -> Cold {
        Cold { most: instructions, executed: Map::default() }
    }

    /// Returns whether the interpreter executes the code of `page`.
    pub(crate) fn has(&self, page: CodePage) -> bool {
        self.rest(page) > 0
    }

    /// Returns how many instructions the interpreter may execute at a time in `page`.
    pub(crate) fn at_a_time(&self, page: CodePage) -> u64 {
        self.rest(page).min(AT_A_TIME)
    }

    /// Returns how many more instructions the interpreter executes in `page`.
    fn rest(&self, page: CodePage) -> u64 {
        let executed = self.executed.get(&page).copied().unwrap_or(0);
        self.most.saturating_sub(executed)
    }

    /// Notes that the interpreter has executed so many instructions in `page`.
    pub(crate) fn note(&mut self, page: CodePage, instructions: u64) {
        if self.executed.len() >= MOST_PAGES && !self.executed.contains_key(&page) {
            self.executed.clear();
        }
        let executed = self.executed.entry(page).or_default();
        *executed = executed.saturating_add(instructions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_warm_after_so_many_instructions() {
        let mut cold = Cold::until(COLD);
        let page = CodePage::of(0x5555_5555_5678, 0x1_2678);
        let others =
            [CodePage::of(0x5555_5555_6678, 0x1_2678), CodePage::of(0x5555_5555_5678, 0x1_3678)];
        for _ in 0..COLD / AT_A_TIME {
            assert!(cold.has(page));
            assert_eq!(cold.at_a_time(page), AT_A_TIME);
            cold.note(page, AT_A_TIME - 1);
        }
        assert_eq!(cold.at_a_time(page), COLD / AT_A_TIME);
        cold.note(CodePage::of(0x5555_5555_5fff, 0x1_2fff), u64::MAX);
        assert!(!cold.has(page));
        assert!(others.into_iter().all(|page| cold.has(page)));
        assert!(!Cold::until(0).has(page));
    }

    #[test]
    fn a_guest_that_executes_ever_new_pages_needs_no_more_memory() {
        let mut cold = Cold::until(COLD);
        for number in 0..3 * MOST_PAGES + 10 {
            cold.note(CodePage::of((number as u64) << PAGE_SHIFT, number), COLD);
            assert!(cold.executed.len() <= MOST_PAGES);
        }
        assert_eq!(cold.executed.len(), 10);
    }
}
