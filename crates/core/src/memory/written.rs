//! Finds out which pages are written to, for those who copy memory while the guest runs.
//!
//! A page is *watched* until it is first written to. To the engines it looks as if each of its lines held code,
//! so they let no write to it through at once, and ask before they write; the lines that really hold code are
//! kept aside meanwhile. The first write makes the page one like all others. So only the first write to a page
//! costs anything.

use std::mem;

use super::{MarkedCode, Memory, PAGE_SHIFT};

/// The pages that are watched, and those that were written to.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// For each page of the array, the lines with code that it has while it is watched, or None.
    kept: Vec<Option<u64>>,
    /// The pages that were written to since they were watched.
    written: Vec<u32>,
}

impl Memory {
    /// Begins to watch all pages, of RAM and of areas, as if none had been written to.
    ///
    /// The TLB of the processor must lose its rights to write after this, as after [`Memory::take_written`]
    /// (`Cpu::protect_all_code`).
    pub fn watch(&mut self) {
        self.stop_watching();
        let kept = self.code.iter_mut().map(|lines| Some(mem::replace(lines, u64::MAX)));
        self.watch = Some(Watch { kept: kept.collect(), written: Vec::new() });
        self.marked = MarkedCode::Many;
    }

    /// Ends watching.
    pub fn stop_watching(&mut self) {
        let Some(watch) = self.watch.take() else { return };
        for (lines, kept) in self.code.iter_mut().zip(watch.kept) {
            *lines = kept.unwrap_or(*lines);
        }
    }

    /// Returns whether written pages are noted. Engines then map pages one by one.
    pub fn is_watching(&self) -> bool {
        self.watch.is_some()
    }

    /// Returns the number of the pages that [`Memory::take_written`] would return.
    pub fn written_count(&self) -> usize {
        self.watch.as_ref().map_or(0, |watch| watch.written.len())
    }

    /// Returns the numbers of the pages of the array that were written to since they were last watched, and
    /// watches them again. Returns None if nothing is watched.
    pub fn take_written(&mut self) -> Option<Vec<u32>> {
        let watch = self.watch.as_mut()?;
        let written = mem::take(&mut watch.written);
        for page in &written {
            let lines = &mut self.code[*page as usize];
            watch.kept[*page as usize] = Some(mem::replace(lines, u64::MAX));
            self.marked.note(*page);
        }
        Some(written)
    }

    /// Notes that bytes in the page of `place` are about to be written. It is an ordinary page from now on.
    #[inline]
    pub fn note_write(&mut self, place: usize) {
        if self.watch.is_some() {
            self.unwatch(place >> PAGE_SHIFT);
        }
    }

    /// Notes that all pages were written to.
    pub(super) fn note_all_written(&mut self) {
        if self.watch.is_some() {
            (0..self.code.len()).for_each(|page| self.unwatch(page));
        }
    }

    fn unwatch(&mut self, page: usize) {
        if let Some(watch) = &mut self.watch
            && let Some(kept) = watch.kept.get_mut(page)
            && let Some(lines) = kept.take()
        {
            self.code[page] = lines;
            watch.written.push(page as u32);
        }
    }

    /// Returns the lines of page `page` that really hold code.
    pub(super) fn lines(&mut self, page: usize) -> Option<&mut u64> {
        let kept = self.watch.as_mut().and_then(|watch| watch.kept.get_mut(page)?.as_mut());
        kept.or_else(|| self.code.get_mut(page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        let mut memory = Memory::new(1 << 20).unwrap();
        memory.write(0x3000, &[1, 2, 3, 4]);
        memory
    }

    #[test]
    fn each_page_is_noted_once_until_it_is_watched_again() {
        let mut memory = memory();
        let area = memory.add_area(0x2000).unwrap();
        assert_eq!(memory.take_written(), None);
        memory.watch();
        assert!(!memory.is_plain(0x5000) && memory.plain_page_from(0x5000).is_none());
        assert!(!memory.copy_within_page(0x3000, 0x5000, 4));
        memory.write(0x5ffe, &[1; 4]);
        memory.write(0x5000, &[1; 4]);
        memory.write_area(area, 0x1fff, &[1]);
        assert!(memory.is_plain(0x5000));
        assert_eq!(memory.written_count(), 3);
        assert_eq!(memory.take_written(), Some(vec![5, 6, 257]));
        assert_eq!(memory.take_written(), Some(vec![]));
        assert!(!memory.is_plain(0x5000));
        memory.load_image(0x5000, &[2]).unwrap();
        memory.read(0x6000, &mut [0; 4]);
        assert_eq!(memory.take_written(), Some(vec![5]));
        memory.stop_watching();
        memory.write(0x5000, &[1]);
        assert!(memory.is_plain(0x6000) && !memory.is_watching());
        assert_eq!(memory.take_written(), None);
    }

    #[test]
    fn code_stays_where_it_was() {
        let mut memory = memory();
        memory.mark_code(0x5000, 1);
        memory.watch();
        assert_eq!(memory.take_marked_code(), MarkedCode::Many);
        assert!(!memory.mark_code(0x5000, 1), "it held code before");
        assert!(memory.mark_code(0x6000, 1));
        assert!(memory.mark_code(0x7000, 1));
        // A write beside the code, one into it, and none.
        memory.write(0x5800, &[1]);
        memory.write(0x6000, &[1]);
        assert_eq!(memory.take_stale_code(), [6]);
        assert_eq!(memory.take_written(), Some(vec![5, 6]));
        memory.forget_code(7);
        assert_eq!(memory.take_stale_code(), [7]);
        memory.stop_watching();
        assert!(!memory.is_plain(0x5000) && memory.is_plain(0x6000) && memory.is_plain(0x7000));
        memory.write(0x5800, &[1]);
        assert!(!memory.has_stale_code());
    }

    #[test]
    fn other_contents_count_as_written() {
        let mut memory = memory();
        let saved = memory.save();
        let changes: [fn(&mut Memory); 2] = [Memory::clear, |memory| {
            memory.change_contents(|bytes| bytes[0] = 1);
        }];
        for change in changes {
            memory.watch();
            change(&mut memory);
            assert_eq!(memory.written_count(), 256);
        }
        memory.watch();
        memory.restore(&saved).unwrap();
        assert_eq!(memory.take_written().unwrap().len(), 256);
    }
}
