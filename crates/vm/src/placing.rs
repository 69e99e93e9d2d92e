//! Puts kernels into memory: their parts where they belong, and everything that they get from the page after
//! them on.
//!
//! A kernel file may contain anything: each part is compared with the size of memory before it is used.

use ring3_core::memory::{Memory, MemoryError, PAGE_SIZE};
use thiserror::Error;

use crate::memory_map::LOW_RAM_END;

const MIB: u64 = 1 << 20;

/// The GDT with which kernels start: two empty descriptors, flat code and flat data (SDM vol. 3, 3.4.5), so that
/// the selectors are those of Linux.
const GDT: [u64; 4] = [0, 0, 0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
/// Its length in bytes.
pub(crate) const GDT_LEN: u32 = size_of_val(&GDT) as u32;

/// Where a kernel starts: protected mode without paging, flat segments, interrupts off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The address where execution starts.
    pub eip: u32,
    /// The address of what the kernel is told.
    pub information: u32,
    /// Linear address of the GDT, which no specification promises to kernels.
    pub gdt_base: u32,
}

/// The reasons why a kernel cannot be put into memory.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlacingError {
    /// A segment overlaps the display adapter or the firmware, or is beyond the end of memory.
    #[error("must be loaded from {start:#x} to {end:#x}, where the machine has no free memory")]
    NoMemory {
        /// The first address of the segment.
        start: u64,
        /// The first address after it.
        end: u64,
    },
    /// The machine has too little memory for the kernel and its modules.
    #[error("needs at least {} MiB of memory with its modules, but the machine has {} MiB",
        .needed.div_ceil(MIB), .available / MIB)]
    TooLittleMemory {
        /// The memory that is needed, in bytes.
        needed: u64,
        /// The memory that there is.
        available: u64,
    },
    /// Memory refuses a write. All sizes were checked, so this is not expected.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A part of memory that a kernel occupies: bytes of the file, and zeros after them.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(crate) start: u64,
    pub(crate) bytes: &'a [u8],
    /// Its length, with the zeros.
    pub(crate) len: u64,
}

impl Part<'_> {
    /// Returns the first address after it. One that no address can have stands for all that are too high.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Returns whether a machine with `ram` bytes below 4 GiB has memory there.
    pub(crate) fn fits(&self, ram: u64) -> bool {
        self.end() <= LOW_RAM_END || self.start >= MIB && self.end() <= ram
    }
}

/// Puts a kernel, and what it gets, into memory.
#[derive(Debug)]
pub(crate) struct Placer<'a> {
    memory: &'a mut Memory,
    /// The end of what is there.
    end: u64,
}

impl Placer<'_> {
    /// Puts the parts of a kernel where they belong.
    pub(crate) fn load<'a>(
        memory: &'a mut Memory,
        parts: &[Part<'_>],
    ) -> Result<Placer<'a>, PlacingError> {
        let ram = memory.ram().low();
        if let Some(part) = parts.iter().find(|part| !part.fits(ram)) {
            return Err(PlacingError::NoMemory { start: part.start, end: part.end() });
        }
        for part in parts {
            memory.load_image(part.start, part.bytes)?;
        }
        let end = parts.iter().map(Part::end).fold(MIB, u64::max);
        Ok(Placer { memory, end })
    }

    /// Returns the memory.
    pub(crate) fn memory(&self) -> &Memory {
        self.memory
    }

    /// Returns the address at which [`Placer::put`] puts the next bytes.
    pub(crate) fn next(&self) -> u32 {
        self.end.next_multiple_of(PAGE_SIZE) as u32
    }

    /// Puts bytes at the start of the next page. Returns their address and the first one after them.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(u32, u32), PlacingError> {
        let start = self.end.next_multiple_of(PAGE_SIZE);
        let end = start + bytes.len() as u64;
        let available = self.memory.ram().low();
        let too_little = PlacingError::TooLittleMemory { needed: end, available };
        self.memory.load_image(start, bytes).map_err(|_| too_little)?;
        self.end = end;
        Ok((start as u32, end as u32))
    }

    /// Puts the GDT and what the kernel is told, which begins [`GDT_LEN`] bytes after [`Placer::next`], and
    /// returns where a kernel starts whose first instruction is at `eip`.
    pub(crate) fn finish(mut self, information: &[u8], eip: u32) -> Result<Entry, PlacingError> {
        let block = [GDT.map(u64::to_le_bytes).as_flattened(), information].concat();
        let (gdt_base, _) = self.put(&block)?;
        Ok(Entry { eip, information: gdt_base + GDT_LEN, gdt_base })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_in_free_memory() {
        let fits = |start, len| Part { start, bytes: &[], len }.fits(4 * MIB);
        assert!(fits(0, LOW_RAM_END) && fits(MIB, 3 * MIB) && fits(4 * MIB, 0));
        assert!(!fits(0, LOW_RAM_END + 1) && !fits(0xb_0000, 1) && !fits(MIB, 3 * MIB + 1));
        assert!(!fits(u64::MAX, 2) && !fits(u64::MAX - 1, u64::MAX));
    }

    #[test]
    fn what_a_kernel_gets_follows_it_by_pages() {
        let mut memory = Memory::new(2 * MIB).unwrap();
        let part = Part { start: MIB, bytes: &[7; 10], len: 5000 };
        let mut placer = Placer::load(&mut memory, &[part]).unwrap();
        assert_eq!(placer.put(&[1; 5]), Ok((0x10_2000, 0x10_2005)));
        let needed = 0x10_3000 + 2 * MIB;
        let too_little = PlacingError::TooLittleMemory { needed, available: 2 * MIB };
        assert_eq!(placer.put(&vec![0; 2 << 20]), Err(too_little));
        let entry = placer.finish(&[9; 8], 0x10_0004).unwrap();
        assert_eq!(
            (entry.eip, entry.gdt_base, entry.information),
            (0x10_0004, 0x10_3000, 0x10_3020)
        );
        assert_eq!(memory.load::<2>(0x10_0009), [7, 0]);
        assert_eq!(memory.load::<2>(0x10_301f), [0, 9]);
    }
}
