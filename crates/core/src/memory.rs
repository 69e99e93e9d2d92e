//! Guest-physical memory.
//!
//! RAM is one contiguous array of bytes; guest-physical address *n* is byte *n*
//! of it, and per page it says who answers there: RAM, ROM (reads only), or a
//! device (the page's bytes of the array are then out of use). Addresses past
//! the end of RAM belong to devices as well. Everybody reads and writes through
//! the methods here and nobody keeps a reference into the array, so that one
//! day it can be a memory file that the host maps in many places.
//!
//! Memory also knows which 64-byte lines hold instructions that an engine has
//! decoded. A write to such a line, by the processor or by a device (DMA), puts
//! the page on a list that the engine reads before it executes anything else.

use thiserror::Error;

/// Bytes in a page (SDM vol. 3, 5.2: the smallest unit that paging maps).
pub const PAGE_SIZE: u64 = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a line, the grain in which code is tracked: a page has 64 of them,
/// one for each bit of a `u64`.
const LINE_SHIFT: u32 = 6;

/// A page that lacks RAM reads as a bus that nobody drives.
const OPEN_BUS: u8 = 0xff;

/// Who answers at a guest-physical page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// RAM: reads and writes go to the array.
    Ram,
    /// Read-only memory: reads go to the array, writes are dropped.
    Rom,
    /// A device, or nothing: every access leaves the engine.
    Device,
}

/// Why guest memory cannot be made.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MemoryError {
    /// The size is not a positive multiple of a page, or is too large.
    #[error("guest memory must be a multiple of 4 KiB between 1 MiB and 3 GiB, not {0} bytes")]
    BadSize(u64),
    /// The range given leaves RAM.
    #[error("{len} bytes at {start:#x} do not fit into guest memory")]
    OutOfRange {
        /// First guest-physical address of the range.
        start: u64,
        /// Its length in bytes.
        len: u64,
    },
}

/// The guest's physical memory.
pub struct Memory {
    ram: Vec<u8>,
    kinds: Vec<PageKind>,
    /// Per page: the lines that hold decoded code.
    code: Vec<u64>,
    /// Pages whose code was written to, since [`Memory::take_stale_code`].
    stale: Vec<u32>,
    /// Grows whenever a page changes its kind; engines that cache the kind of
    /// a page (in a TLB) drop what they have when it has changed.
    layout: u64,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("ram", &self.ram.len()).finish_non_exhaustive()
    }
}

impl Memory {
    /// Memory of `size` bytes, all RAM, all zero. The host gives it pages only
    /// as they are first touched.
    pub fn new(size: u64) -> Result<Memory, MemoryError> {
        if !size.is_multiple_of(PAGE_SIZE) || !(1 << 20..=3 << 30).contains(&size) {
            return Err(MemoryError::BadSize(size));
        }
        let pages = (size >> PAGE_SHIFT) as usize;
        Ok(Memory {
            ram: vec![0; size as usize],
            kinds: vec![PageKind::Ram; pages],
            code: vec![0; pages],
            stale: Vec::new(),
            layout: 0,
        })
    }

    /// Makes everything RAM and zero again, as at power-on.
    pub fn clear(&mut self) {
        for page in 0..self.kinds.len() {
            self.forget_code(page as u32);
        }
        self.kinds.fill(PageKind::Ram);
        self.layout += 1;
        // A new allocation has its zero pages from the host, for nothing.
        self.ram = vec![0; self.ram.len()];
    }

    /// Size of RAM in bytes, with the parts that ROM and devices cover.
    pub fn size(&self) -> u64 {
        self.ram.len() as u64
    }

    /// Makes the pages that `start..start + len` touches `kind`.
    pub fn set_kind(&mut self, start: u64, len: u64, kind: PageKind) -> Result<(), MemoryError> {
        self.check(start, len)?;
        let pages = (start >> PAGE_SHIFT) as usize..(start + len).div_ceil(PAGE_SIZE) as usize;
        for page in pages {
            self.forget_code(page as u32);
            self.kinds[page] = kind;
        }
        self.layout += 1;
        Ok(())
    }

    /// Who answers at guest-physical address `address`.
    #[inline]
    pub fn kind(&self, address: u64) -> PageKind {
        usize::try_from(address >> PAGE_SHIFT)
            .ok()
            .and_then(|page| self.kinds.get(page))
            .copied()
            .unwrap_or(PageKind::Device)
    }

    /// Changes whenever some page's kind changes.
    pub fn layout_generation(&self) -> u64 {
        self.layout
    }

    /// Loads `N` bytes at `address`, which must be RAM or ROM: engines call
    /// it with addresses that they have looked up with [`Memory::kind`].
    ///
    /// # Panics
    /// When the bytes leave RAM, which is a bug of the caller and never the guest's doing.
    #[inline(always)]
    pub fn load<const N: usize>(&self, address: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.ram[address..address + N]);
        bytes
    }

    /// Stores `N` bytes at `address`, which must be RAM that holds no code: engines
    /// call it with addresses that [`Memory::is_plain_ram`] holds for.
    ///
    /// # Panics
    /// When the bytes leave RAM, which is a bug of the caller and never the guest's doing.
    #[inline(always)]
    pub fn store<const N: usize>(&mut self, address: usize, bytes: [u8; N]) {
        self.ram[address..address + N].copy_from_slice(&bytes);
    }

    /// True when writes to the page of `address` need no care: it is RAM and
    /// no engine has decoded code in it.
    pub fn is_plain_ram(&self, address: u64) -> bool {
        self.kind(address) == PageKind::Ram && self.code[(address >> PAGE_SHIFT) as usize] == 0
    }

    /// The bytes from `address` to the end of its page, where that is RAM or
    /// ROM; for decoding and for block moves.
    pub fn page_from(&self, address: u64) -> Option<&[u8]> {
        if self.kind(address) == PageKind::Device {
            return None;
        }
        let end = (address | (PAGE_SIZE - 1)) + 1;
        self.ram.get(address as usize..end as usize)
    }

    /// The bytes from `address` to the end of its page for writing, where
    /// [`Memory::is_plain_ram`] holds; for block moves.
    pub fn plain_page_from(&mut self, address: u64) -> Option<&mut [u8]> {
        if !self.is_plain_ram(address) {
            return None;
        }
        let end = (address | (PAGE_SIZE - 1)) + 1;
        self.ram.get_mut(address as usize..end as usize)
    }

    /// Copies `len` bytes from `from` to `to`, ascending, where neither leaves its
    /// page, the target is plain RAM and the two do not overlap so that a byte
    /// would be read after it was written. False, and nothing done, otherwise.
    pub fn copy_within_page(&mut self, from: u64, to: u64, len: usize) -> bool {
        let fits = |address: u64| (address & (PAGE_SIZE - 1)) as usize + len <= PAGE_SIZE as usize;
        let (source, target) = (from as usize, to as usize);
        let overlaps = target > source && target < source + len;
        if !fits(from)
            || !fits(to)
            || overlaps
            || self.kind(from) == PageKind::Device
            || !self.is_plain_ram(to)
        {
            return false;
        }
        self.ram.copy_within(source..source + len, target);
        true
    }

    /// Reads `bytes.len()` bytes at `address` as a device does (DMA). What is
    /// not RAM or ROM reads as FFh.
    pub fn read(&self, address: u64, bytes: &mut [u8]) {
        for_each_page(address, bytes.len(), |at, range| {
            let target = &mut bytes[range];
            match self.page_from(at) {
                Some(source) => target.copy_from_slice(&source[..target.len()]),
                None => target.fill(OPEN_BUS),
            }
        });
    }

    /// Writes `bytes` at `address` as a device does (DMA). What is not RAM
    /// swallows them; code that was decoded from there becomes stale.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        for_each_page(address, bytes.len(), |at, range| {
            if self.kind(at) != PageKind::Ram {
                return;
            }
            let source = &bytes[range];
            if self.holds_code(at, source.len()) {
                self.forget_code((at >> PAGE_SHIFT) as u32);
            }
            self.ram[at as usize..at as usize + source.len()].copy_from_slice(source);
        });
    }

    /// Fills RAM or ROM from outside, as a loader does before the guest runs.
    /// In contrast to [`Memory::write`] it also fills ROM and fails when
    /// the bytes do not fit.
    pub fn load_image(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        self.check(address, bytes.len() as u64)?;
        for page in address >> PAGE_SHIFT..(address + bytes.len() as u64).div_ceil(PAGE_SIZE) {
            self.forget_code(page as u32);
        }
        self.ram[address as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// The whole array, for saving a machine, hashing or searching it.
    pub fn contents(&self) -> &[u8] {
        &self.ram
    }

    /// Notes that an engine decoded the `len` bytes at `address`, which stay in
    /// one page. True when the page held no code before: engines
    /// must then send their own writes to it through the slow path.
    pub fn mark_code(&mut self, address: u64, len: usize) -> bool {
        let Some(lines) = self.code.get_mut((address >> PAGE_SHIFT) as usize) else {
            return false;
        };
        let first = *lines == 0;
        *lines |= line_mask(address, len);
        first
    }

    /// True when one of the `len` bytes at `address`, which stay in one page, is in a
    /// line that was decoded.
    pub fn holds_code(&self, address: u64, len: usize) -> bool {
        self.code
            .get((address >> PAGE_SHIFT) as usize)
            .is_some_and(|lines| lines & line_mask(address, len) != 0)
    }

    /// Drops what is known of code in page number `page` and puts it on the stale list.
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

    /// The page numbers whose decoded code is no longer what is in memory.
    pub fn take_stale_code(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.stale)
    }

    fn check(&self, start: u64, len: u64) -> Result<(), MemoryError> {
        match start.checked_add(len) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(MemoryError::OutOfRange { start, len }),
        }
    }
}

/// The lines of its page that `len` bytes at `address` touch.
fn line_mask(address: u64, len: usize) -> u64 {
    let offset = address & (PAGE_SIZE - 1);
    let first = offset >> LINE_SHIFT;
    let last = (offset + len.max(1) as u64 - 1).min(PAGE_SIZE - 1) >> LINE_SHIFT;
    (u64::MAX >> (63 - (last - first))) << first
}

/// Splits `len` bytes at `address` at page boundaries: calls `each` with the
/// address and the range of the buffer that lies in each page. Addresses wrap
/// round at the end of the 64-bit space.
fn for_each_page(address: u64, len: usize, mut each: impl FnMut(u64, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = address.wrapping_add(done as u64);
        let in_page = (PAGE_SIZE - (at & (PAGE_SIZE - 1))) as usize;
        let part = in_page.min(len - done);
        each(at, done..done + part);
        done += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        Memory::new(1 << 20).unwrap()
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(Memory::new(0).unwrap_err(), MemoryError::BadSize(0));
        assert_eq!(Memory::new(4097).unwrap_err(), MemoryError::BadSize(4097));
        assert!(Memory::new(4 << 30).is_err());
    }

    #[test]
    fn dma_crosses_pages_and_leaves_rom_and_holes_alone() {
        let mut memory = memory();
        memory.set_kind(0x2000, 0x1000, PageKind::Rom).unwrap();
        memory.set_kind(0x3000, 0x1000, PageKind::Device).unwrap();
        memory.load_image(0x2000, &[7; 0x1000]).unwrap();
        memory.write(0x1ffe, &[1; 0x2004]);
        let mut read = [0; 6];
        memory.read(0x1ffc, &mut read);
        assert_eq!(read, [0, 0, 1, 1, 7, 7]);
        memory.read(0x2ffe, &mut read);
        assert_eq!(read, [7, 7, 0xff, 0xff, 0xff, 0xff]);
        memory.read(0x3ffe, &mut read);
        assert_eq!(read, [0xff, 0xff, 1, 1, 0, 0]);
    }

    #[test]
    fn addresses_past_ram_and_past_the_end_of_space_are_open_bus() {
        let mut memory = memory();
        let mut read = [0; 4];
        memory.read(0xffff_ffff_ffff_fffe, &mut read);
        assert_eq!(read, [0xff, 0xff, 0, 0]);
        memory.write(1 << 40, &[1, 2, 3]);
        assert!(memory.load_image((1 << 20) - 2, &[1, 2, 3]).is_err());
        assert!(memory.load_image(u64::MAX, &[1, 2, 3]).is_err());
    }

    #[test]
    fn writes_to_decoded_lines_are_reported_once() {
        let mut memory = memory();
        assert!(memory.mark_code(0x5010, 100));
        assert!(!memory.mark_code(0x5200, 2));
        assert!(!memory.is_plain_ram(0x5000));
        memory.write(0x5100, &[0; 4]);
        assert!(!memory.has_stale_code(), "a line without code");
        memory.write(0x5073, &[0; 1]);
        memory.write(0x5073, &[0; 1]);
        assert_eq!(memory.take_stale_code(), [5]);
        assert!(memory.is_plain_ram(0x5000));
    }

    #[test]
    fn line_masks() {
        assert_eq!(line_mask(0, 1), 1);
        assert_eq!(line_mask(63, 2), 0b11);
        assert_eq!(line_mask(0, 4096), u64::MAX);
        assert_eq!(line_mask(4095, 1), 1 << 63);
    }

    #[test]
    fn block_copies_refuse_what_needs_care() {
        let mut memory = memory();
        memory.load_image(0x1000, &[1, 2, 3, 4]).unwrap();
        assert!(memory.copy_within_page(0x1000, 0x2000, 4));
        assert_eq!(memory.load::<4>(0x2000), [1, 2, 3, 4]);
        assert!(!memory.copy_within_page(0x1000, 0x1002, 4), "overlap upwards");
        assert!(memory.copy_within_page(0x1002, 0x1000, 4));
        assert!(!memory.copy_within_page(0x1ffe, 0x2000, 4), "crosses a page");
        memory.mark_code(0x2000, 1);
        assert!(!memory.copy_within_page(0x1000, 0x2000, 4), "holds code");
    }
}
