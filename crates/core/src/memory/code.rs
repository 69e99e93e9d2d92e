//! Tracks which lines of memory hold code that an engine has decoded.

use std::mem;

use super::{Memory, PAGE_SHIFT, PAGE_SIZE};

/// log2 of the bytes in a line, the unit in which code is tracked. A page has 64 lines, one for each bit of a
/// `u64`.
const LINE_SHIFT: u32 = 6;

/// The largest number of pages in the list of [`Memory::take_marked_code`].
const MARKED_PAGES: usize = 256;

/// The pages in which an engine has decoded code where there was none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkedCode {
    /// The numbers of these pages in the array.
    Pages(Vec<u32>),
    /// More pages than the list holds.
    Many,
}

impl MarkedCode {
    pub(super) fn note(&mut self, page: u32) {
        match self {
            MarkedCode::Pages(pages) if pages.len() < MARKED_PAGES => pages.push(page),
            _ => *self = MarkedCode::Many,
        }
    }
}

impl Memory {
    /// Notes that an engine has decoded the `len` bytes at `place`, which do not leave one page. Returns
    /// whether the page held no code before; engines must then send their own writes to it through the slow
    /// path.
    pub fn mark_code(&mut self, place: usize, len: usize) -> bool {
        let Some(lines) = self.lines(place >> PAGE_SHIFT) else {
            return false;
        };
        let first = *lines == 0;
        *lines |= line_mask(place, len);
        if first {
            self.has_code = true;
            self.marked.note((place >> PAGE_SHIFT) as u32);
        }
        first
    }

    /// Returns whether [`Memory::take_marked_code`] would return something.
    #[inline(always)]
    pub fn has_marked_code(&self) -> bool {
        !matches!(&self.marked, MarkedCode::Pages(pages) if pages.is_empty())
    }

    /// Returns the pages that have come to hold code. An engine that writes to memory directly must no longer
    /// do so there.
    pub fn take_marked_code(&mut self) -> MarkedCode {
        mem::replace(&mut self.marked, MarkedCode::Pages(Vec::new()))
    }

    /// Returns whether one of the `len` bytes at `place`, which do not leave one page, is in a line that was
    /// decoded. The page must not be watched: see [`Memory::note_write`].
    pub fn holds_code(&self, place: usize, len: usize) -> bool {
        self.code.get(place >> PAGE_SHIFT).is_some_and(|lines| lines & line_mask(place, len) != 0)
    }

    /// Forgets all code in page `page` of the array and puts the page on the stale list.
    pub fn forget_code(&mut self, page: u32) {
        if let Some(lines) = self.lines(page as usize)
            && *lines != 0
        {
            *lines = 0;
            self.stale.push(page);
        }
    }

    /// Notes that the code in all pages is stale.
    pub(super) fn forget_all_code(&mut self) {
        if mem::take(&mut self.has_code) {
            for page in 0..self.code.len() {
                self.forget_code(page as u32);
            }
        }
    }

    /// Returns whether [`Memory::take_stale_code`] would return something.
    #[inline(always)]
    pub fn has_stale_code(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Returns the pages of the array whose decoded code may no longer match the memory.
    pub fn take_stale_code(&mut self) -> Vec<u32> {
        mem::take(&mut self.stale)
    }
}

/// Returns the lines of the page that `len` bytes at `place` touch.
fn line_mask(place: usize, len: usize) -> u64 {
    let offset = place as u64 & (PAGE_SIZE - 1);
    let first = offset >> LINE_SHIFT;
    let last = (offset + len.max(1) as u64 - 1).min(PAGE_SIZE - 1) >> LINE_SHIFT;
    (u64::MAX >> (63 - (last - first))) << first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_to_decoded_lines_are_reported_once() {
        let mut memory = Memory::new(1 << 20).unwrap();
        assert!(memory.mark_code(0x5010, 100));
        assert!(!memory.mark_code(0x5200, 2));
        assert!(!memory.is_plain(0x5000));
        memory.write(0x5100, &[0; 4]);
        assert!(!memory.has_stale_code(), "a line without code");
        memory.write(0x5073, &[0; 1]);
        memory.write(0x5073, &[0; 1]);
        assert_eq!(memory.take_stale_code(), [5]);
        assert!(memory.is_plain(0x5000));
    }

    #[test]
    fn line_masks() {
        assert_eq!(line_mask(0, 1), 1);
        assert_eq!(line_mask(63, 2), 0b11);
        assert_eq!(line_mask(0, 4096), u64::MAX);
        assert_eq!(line_mask(4095, 1), 1 << 63);
    }
}
