//! Which lines of memory hold code that an engine has decoded.

use super::{Memory, PAGE_SHIFT, PAGE_SIZE};

/// Bytes in a line, the grain in which code is tracked: a page has 64 of them,
/// one for each bit of a `u64`.
const LINE_SHIFT: u32 = 6;

/// Pages in [`Memory::take_marked_code`]'s list at most.
const MARKED_PAGES: usize = 256;

/// The pages in which an engine has decoded code where there was none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkedCode {
    /// These, as pages of the array.
    Pages(Vec<u32>),
    /// More than were counted.
    Many,
}

impl MarkedCode {
    fn note(&mut self, page: u32) {
        match self {
            MarkedCode::Pages(pages) if pages.len() < MARKED_PAGES => pages.push(page),
            _ => *self = MarkedCode::Many,
        }
    }
}

impl Memory {
    /// Notes that an engine decoded the `len` bytes at `place`, which stay in
    /// one page. True when the page held no code before: engines
    /// must then send their own writes to it through the slow path.
    pub fn mark_code(&mut self, place: usize, len: usize) -> bool {
        let Some(lines) = self.code.get_mut(place >> PAGE_SHIFT) else {
            return false;
        };
        let first = *lines == 0;
        *lines |= line_mask(place, len);
        if first {
            self.marked.note((place >> PAGE_SHIFT) as u32);
        }
        first
    }

    /// True when [`Memory::take_marked_code`] would return something.
    #[inline(always)]
    pub fn has_marked_code(&self) -> bool {
        !matches!(&self.marked, MarkedCode::Pages(pages) if pages.is_empty())
    }

    /// The pages that came to hold code: whoever writes to memory without asking it must not write there at once.
    pub fn take_marked_code(&mut self) -> MarkedCode {
        std::mem::replace(&mut self.marked, MarkedCode::Pages(Vec::new()))
    }

    /// True when one of the `len` bytes at `place`, which stay in one page, is in a
    /// line that was decoded.
    pub fn holds_code(&self, place: usize, len: usize) -> bool {
        self.code.get(place >> PAGE_SHIFT).is_some_and(|lines| lines & line_mask(place, len) != 0)
    }

    /// Drops what is known of code in page `page` of the array and puts it on the stale list.
    pub fn forget_code(&mut self, page: u32) {
        if let Some(lines) = self.code.get_mut(page as usize)
            && *lines != 0
        {
            *lines = 0;
            self.stale.push(page);
        }
    }

    /// True when [`Memory::take_stale_code`] would return something.
    #[inline(always)]
    pub fn has_stale_code(&self) -> bool {
        !self.stale.is_empty()
    }

    /// The pages of the array whose decoded code is no longer what is in memory.
    pub fn take_stale_code(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.stale)
    }
}

/// The lines of its page that `len` bytes at `place` touch.
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
