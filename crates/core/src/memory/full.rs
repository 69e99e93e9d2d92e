//! Memory read page by page, in such a way that pages which nobody has touched take no room of the host
//! afterwards either.

use std::ops::Range;

use super::{Memory, PAGE_SIZE};

/// The pages of [`Memory::all_contents`] that are not all zero. They are looked at in ascending order.
#[derive(Debug)]
pub struct FullPages<'a> {
    memory: &'a Memory,
    /// Places that may not be zero. Between the last look and its start there are only zeros.
    data: Range<usize>,
}

impl Memory {
    /// Returns the pages that are not all zero.
    pub fn full_pages(&self) -> FullPages<'_> {
        FullPages { memory: self, data: 0..0 }
    }
}

impl<'a> FullPages<'a> {
    /// Returns the page at `place`, which is a multiple of the size of a page and not less than before. None if
    /// it has only zeros.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn at(&mut self, place: usize) -> Option<&'a [u8]> {
        let end = place + PAGE_SIZE as usize;
        if self.data.end <= place {
            self.data = self.memory.pages.data_from(place, self.memory.bytes.len());
        }
        if end <= self.data.start {
            return None;
        }
        let page = &self.memory.bytes[place..end];
        page.chunks_exact(size_of::<u128>())
            .any(|part| part != [0; size_of::<u128>()])
            .then_some(page)
    }

    /// Returns the number of bytes of memory.
    #[allow(clippy::len_without_is_empty)] // Memory is never empty.
    pub fn len(&self) -> usize {
        self.memory.bytes.len()
    }
}
