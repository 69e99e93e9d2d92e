//! Page tables as somebody outside the guest reads them: nothing changes, and no rights are checked.

use std::iter;
use std::ops::Range;

use ring3_core::memory::Memory;

use super::{LEVELS, entry, read_u64};
use crate::access::is_canonical;
use crate::cpu::{Cpu, Cr0};
use crate::tlb::PageSize;

/// The most entries of page tables at which [`Cpu::mapped`] looks. Tables that lead to themselves have no end.
const ENTRIES_MAX: usize = 1 << 22;

/// The ends of the lower half of canonical addresses, and the beginning of the upper one.
const LOWER_HALF_END: u64 = 1 << 47;
const UPPER_HALF: u64 = 0xffff_8000_0000_0000;

impl Cpu {
    /// Returns the guest-physical address of `linear`, if it is mapped. Outside long mode, only the lower 32 bits
    /// count.
    pub fn probe(&self, memory: &Memory, linear: u64) -> Option<u64> {
        let linear = self.table_linear(linear);
        if !self.cr0.contains(Cr0::PG) {
            return Some(linear & self.address_mask);
        }
        if !is_canonical(linear) {
            return None;
        }
        let found = self.find(memory, linear).ok()?;
        Some(found.page & self.address_mask | linear & 0xfff)
    }

    /// Returns the mapped pages in the order of their linear addresses, each with the guest-physical addresses of
    /// its bytes. Guests whose page tables are endless have only the first of them.
    pub fn mapped<'a>(
        &'a self,
        memory: &'a Memory,
    ) -> impl Iterator<Item = (u64, Range<u64>)> + use<'a> {
        let mut next = Some(0);
        let mut entries = ENTRIES_MAX;
        iter::from_fn(move || {
            loop {
                let linear = next?;
                entries = entries.checked_sub(1)?;
                let (start, size) = self.span(memory, linear);
                next = self.next_linear(linear, size);
                if let Some(start) = start {
                    return Some((linear, start..start + size));
                }
            }
        })
    }

    /// Returns the beginning of the page that begins at `linear`, if there is one, and the size of the page or of
    /// the hole.
    fn span(&self, memory: &Memory, linear: u64) -> (Option<u64>, u64) {
        if !self.is_in_long_mode() {
            return (self.probe(memory, linear), 4 << 10);
        }
        match self.find(memory, linear) {
            // While address line 20 is masked, a large page is not contiguous.
            Ok(found) => {
                let size = match found.size {
                    PageSize::Large if self.a20() => 2 << 20,
                    PageSize::Huge if self.a20() => 1 << 30,
                    _ => 4 << 10,
                };
                (Some(found.page & self.address_mask), size)
            }
            Err(_) => (None, self.hole(memory, linear)),
        }
    }

    /// Returns how many bytes from `linear` on are not mapped by 4-level paging, because of one entry.
    fn hole(&self, memory: &Memory, linear: u64) -> u64 {
        let mut table = self.cr3 & entry::ADDRESS;
        for level in &LEVELS {
            let address = (table | (linear >> level.shift & 0x1ff) << 3) & self.address_mask;
            let content = read_u64(memory, address);
            let is_last = level.size == Some(PageSize::Small) || content & entry::LARGE != 0;
            if content & entry::PRESENT == 0 || is_last {
                return 1 << level.shift;
            }
            table = content & entry::ADDRESS;
        }
        4 << 10
    }

    /// Returns the next address `size` bytes after `linear`.
    fn next_linear(&self, linear: u64, size: u64) -> Option<u64> {
        let end = linear.wrapping_add(size);
        let is_end = if self.is_in_long_mode() { end == 0 } else { end > 0xffff_ffff };
        match end {
            _ if is_end => None,
            LOWER_HALF_END => Some(UPPER_HALF),
            _ => Some(end),
        }
    }
}
