//! Records the translations that software has invalidated in the TLB (SDM vol. 3, 5.10.4), for engines that
//! keep more than a TLB.

/// The most pages that are recorded individually. Beyond them everything counts as invalidated, which is
/// always allowed (SDM vol. 3, 5.10.2).
const MAX_PAGES: usize = 32;

/// The translations that may be out of date.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invalidations {
    /// All translations: paging itself has changed, or global pages were flushed.
    pub all: bool,
    /// All translations that are not global: CR3 was loaded.
    pub non_global: bool,
    /// The pages of these linear addresses, including large pages as a whole.
    pub pages: Vec<u64>,
}

impl Invalidations {
    /// Returns whether nothing was invalidated.
    pub fn is_empty(&self) -> bool {
        !self.all && !self.non_global && self.pages.is_empty()
    }

    pub(super) fn everything() -> Invalidations {
        Invalidations { all: true, ..Invalidations::default() }
    }

    pub(super) fn note_all(&mut self) {
        *self = Invalidations::everything();
    }

    pub(super) fn note_non_global(&mut self) {
        self.non_global = true;
    }

    pub(super) fn note_page(&mut self, linear: u64) {
        if self.all {
            return;
        }
        if self.pages.len() == MAX_PAGES {
            return self.note_all();
        }
        self.pages.push(linear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_pages_are_everything() {
        let mut invalidations = Invalidations::default();
        assert!(invalidations.is_empty());
        for page in 0..32 {
            invalidations.note_page(page << 12);
        }
        assert_eq!((invalidations.all, invalidations.pages.len()), (false, 32));
        invalidations.note_page(0);
        assert_eq!((invalidations.all, invalidations.pages.len()), (true, 0));
        invalidations.note_page(0);
        assert!(invalidations.pages.is_empty());
    }
}
