//! Guest-physical memory.
//!
//! All bytes are in one array: first RAM, and behind it the areas that were added for ROM and display memory. Byte
//! *n* of RAM is at guest-physical address *n*, or if there are more than 3 GiB 1 GiB higher from there on: the last
//! GiB below 4 GiB is for devices. An index into the array is called a *place*. For each
//! guest-physical page a map says where reads and where writes go: to a place, to a device, or (writes)
//! nowhere. One map thus serves ROM, its shadow in RAM, two addresses for the same bytes, and display memory
//! that moves with a PCI base address register. Everybody reads and writes through the methods here, and
//! nobody keeps a reference into the array. So it can be a memory file that the host maps in many places
//! ([`HostPages`]).
//!
//! Memory also knows which 64-byte lines hold instructions that an engine has decoded. A write to such a
//! line, by the processor or by a device (DMA), puts the page on a list that the engine reads before it
//! executes anything else. Lines are identified by their places, not by guest-physical addresses. In the same
//! way memory finds out to which pages anything is written ([`Memory::watch`]).

mod code;
mod copies;
mod full;
mod map;
mod ram;
mod released;
mod saved;
mod written;

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use memmap2::MmapMut;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use code::MarkedCode;
pub use copies::MemoryCopy;
pub use full::FullPages;
use map::Map;
pub use ram::{RAM_MAX, RamLayout};
pub use released::Released;
use written::Watch;

/// Bytes in a page (SDM vol. 3, 5.2: the smallest unit that paging maps).
pub const PAGE_SIZE: u64 = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// The byte that reads return where there is no RAM: that of a bus which nothing drives.
const OPEN_BUS: u8 = 0xff;

/// Memory beside RAM: a ROM, or the memory of a display adapter. It is at no guest-physical address
/// until [`Memory::map`] puts it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    first_page: u32,
    pages: u32,
}

impl Area {
    /// Returns its size in bytes, a multiple of [`PAGE_SIZE`].
    pub fn size(self) -> u64 {
        u64::from(self.pages) << PAGE_SHIFT
    }

    fn start(self) -> usize {
        (self.first_page as usize) << PAGE_SHIFT
    }

    fn range(self) -> Range<usize> {
        self.start()..self.start() + self.size() as usize
    }
}

/// What [`Memory::map`] puts behind guest-physical addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// RAM, the part of it that belongs to the address.
    Ram,
    /// An area from this offset on, a multiple of [`PAGE_SIZE`].
    Area(Area, u64),
    /// Nothing: writes are dropped, and reads go to a device, of which there is none.
    Nothing,
    /// A device: every access leaves the engine.
    Device,
}

/// Where an access goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// To this place in the array.
    Place(usize),
    /// Nowhere.
    Nothing,
    /// To a device.
    Device,
}

/// Why guest memory cannot be made.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MemoryError {
    /// The size is not a positive multiple of a page, or it is too large.
    #[error("guest memory must be a multiple of 4 KiB between 1 MiB and 32 GiB, not {0} bytes")]
    BadSize(u64),
    /// The host has no memory of this size, in bytes.
    #[error("the host has no {0} bytes for guest memory: choose a smaller size")]
    NoHostMemory(u64),
    /// The range is not within RAM, the area or the addresses that can be mapped.
    #[error("{len} bytes at {start:#x} do not fit into guest memory")]
    OutOfRange {
        /// First guest-physical address of the range.
        start: u64,
        /// Its length in bytes.
        len: u64,
    },
}

/// The source of the bytes of guest memory.
pub trait HostPages: Send + Sync {
    /// Returns `len` zero bytes, to which the host gives pages only as they are first touched, or None if it
    /// cannot. They replace the bytes that were returned before, which are dropped soon after.
    fn zeroed(&self, len: usize) -> Option<MmapMut>;

    /// Returns a copy of the `len` bytes of `file` from `offset` on, which replaces the bytes that were
    /// returned before. The host reads each part of it from the file when it is first touched. None if it
    /// cannot do so; the bytes that were returned before are still in use then.
    fn copy_of(&self, file: &File, offset: u64, len: usize) -> Option<MmapMut>;

    /// Returns the first part of the `len` bytes that were returned last, from `place` on, that may not be zero.
    /// Until its start there are only zeros. For bytes that take no room of the host when they are merely read,
    /// it is all of them.
    fn data_from(&self, place: usize, len: usize) -> Range<usize> {
        place..len
    }

    /// Returns how many bytes the host holds for those that were returned last, if it tells.
    fn held(&self) -> Option<u64> {
        None
    }

    /// Returns how many more bytes the file system has room for that they are in. None if it has no limit of its own.
    fn room(&self) -> Option<u64> {
        None
    }

    /// Makes `pages` of `bytes`, which are those that were returned last, zero, and gives back to the host what it
    /// holds for them, if it can.
    fn release(&self, bytes: &mut MmapMut, pages: Range<usize>) {
        zero(&mut bytes[pages]);
    }
}

/// Makes `bytes` zero, and writes to no page that is zero already.
pub fn zero(bytes: &mut [u8]) {
    for page in bytes.chunks_mut(PAGE_SIZE as usize) {
        if page.iter().any(|byte| *byte != 0) {
            page.fill(0);
        }
    }
}

/// Takes memory that is private to the process.
#[derive(Debug, Clone, Copy)]
pub struct Private;

impl HostPages for Private {
    /// Uses large pages where the host has them, since the guest's accesses are spread over far more small
    /// pages than the host's TLB has entries.
    fn zeroed(&self, len: usize) -> Option<MmapMut> {
        let bytes = MmapMut::map_anon(len).ok()?;
        // This is a hint: without large pages everything is slower and otherwise the same.
        #[cfg(target_os = "linux")]
        let _ = bytes.advise(memmap2::Advice::HugePage);
        Some(bytes)
    }

    /// A file that is mapped needs unsafe code, which this crate has not.
    fn copy_of(&self, _file: &File, _offset: u64, _len: usize) -> Option<MmapMut> {
        None
    }
}

/// The guest's physical memory.
pub struct Memory {
    /// The source of `bytes`.
    pages: Arc<dyn HostPages>,
    /// RAM, followed by the areas.
    bytes: MmapMut,
    ram_size: usize,
    /// The area of memory that comes and goes, if there is one.
    later: Option<Area>,
    /// The end of the guest-physical addresses that can be mapped.
    end: u64,
    reads: Map,
    writes: Map,
    /// For each page of the array, the lines that hold decoded code.
    code: Vec<u64>,
    /// Whether any page has held code since all code was forgotten. If not, nobody need look at them all, which a
    /// large memory would show.
    has_code: bool,
    /// Pages of the array whose code was written to since [`Memory::take_stale_code`].
    stale: Vec<u32>,
    /// Pages of the array that have come to hold code since [`Memory::take_marked_code`].
    marked: MarkedCode,
    /// The pages that are watched, while there are any.
    watch: Option<Watch>,
    /// Grows whenever the map changes. An engine that caches the map (in a TLB) drops its cache when this has
    /// changed.
    layout: u64,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("ram", &self.ram_size).finish_non_exhaustive()
    }
}

impl Memory {
    /// Makes `size` bytes of memory, all of it RAM and zero. The host provides pages only as they are first
    /// touched.
    pub fn new(size: u64) -> Result<Memory, MemoryError> {
        Memory::with_pages(size, Arc::new(Private))
    }

    /// Makes memory as [`Memory::new`] does, with bytes from `host_pages`.
    pub fn with_pages(size: u64, host_pages: Arc<dyn HostPages>) -> Result<Memory, MemoryError> {
        if !size.is_multiple_of(PAGE_SIZE) || !(1 << 20..=RAM_MAX).contains(&size) {
            return Err(MemoryError::BadSize(size));
        }
        let pages = (size >> PAGE_SHIFT) as usize;
        let ram = RamLayout::of(size);
        Ok(Memory {
            bytes: host_pages.zeroed(size as usize).ok_or(MemoryError::NoHostMemory(size))?,
            pages: host_pages,
            ram_size: size as usize,
            later: None,
            end: ram.end(),
            reads: Map::new(ram),
            writes: Map::new(ram),
            code: vec![0; pages],
            has_code: false,
            stale: Vec::new(),
            marked: MarkedCode::Pages(Vec::new()),
            watch: None,
            layout: 0,
        })
    }

    /// Returns whether the bytes come from `host_pages`.
    pub fn is_from(&self, host_pages: &Arc<impl HostPages>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.pages), Arc::as_ptr(host_pages))
    }

    /// Adds an area of at least `size` bytes, all of them zero and mapped nowhere. Call this only while a
    /// machine is put together and RAM is still zero: it moves the array without the contents of RAM.
    ///
    /// # Errors
    /// Fails if the host has no memory for it.
    pub fn add_area(&mut self, size: u64) -> Result<Area, MemoryError> {
        let pages = size.div_ceil(PAGE_SIZE) as usize;
        let first_page = self.code.len();
        let len = (first_page + pages) << PAGE_SHIFT;
        let mut bytes = self.pages.zeroed(len).ok_or(MemoryError::NoHostMemory(len as u64))?;
        // No page has code yet. A large list of zeros takes no room of the host before it is written.
        self.code = vec![0; first_page + pages];
        bytes[self.ram_size..self.bytes.len()].copy_from_slice(&self.bytes[self.ram_size..]);
        self.bytes = bytes;
        self.layout += 1;
        Ok(Area { first_page: first_page as u32, pages: pages as u32 })
    }

    /// Adds an area for RAM that comes and goes at the guest-physical addresses from `start` on, where nothing is mapped
    /// yet. As [`Memory::add_area`], which must not be called after this: it would touch all of the area.
    ///
    /// # Errors
    /// Fails if the host has no memory for it.
    pub fn add_later_ram(&mut self, start: u64, size: u64) -> Result<Area, MemoryError> {
        let area = self.add_area(size)?;
        self.later = Some(area);
        self.end = self.end.max(start.saturating_add(area.size()));
        self.reads.extend(self.end);
        self.writes.extend(self.end);
        Ok(area)
    }

    /// Returns the area of RAM that comes and goes, if one was [added](Memory::add_later_ram).
    pub fn later_ram(&self) -> Option<Area> {
        self.later
    }

    /// Clears RAM and areas to zero and maps RAM alone, as at power-on.
    pub fn clear(&mut self) {
        self.note_all_written();
        self.forget_all_code();
        self.reset_map();
        // A new mapping gets its zero pages from the host at no cost.
        match self.pages.zeroed(self.bytes.len()) {
            Some(bytes) => self.bytes = bytes,
            None => self.bytes.fill(0),
        }
    }

    /// Maps RAM alone, as at power-on, and leaves all contents as they are. A reset does this.
    pub fn reset_map(&mut self) {
        self.reads.reset();
        self.writes.reset();
        self.layout += 1;
    }

    /// Returns the size of RAM in bytes, including the parts that ROM and devices cover.
    pub fn size(&self) -> u64 {
        self.ram_size as u64
    }

    /// Returns where RAM is.
    pub fn ram(&self) -> RamLayout {
        RamLayout::of(self.size())
    }

    /// Returns the end of the guest-physical addresses that can be mapped: at least 4 GiB.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Sets what reads and what writes reach in the pages that `start..start + len` touches.
    pub fn map(
        &mut self,
        start: u64,
        len: u64,
        reads: Backing,
        writes: Backing,
    ) -> Result<(), MemoryError> {
        let error = MemoryError::OutOfRange { start, len };
        if start.checked_add(len).is_none_or(|end| end > self.end) {
            return Err(error);
        }
        let pages = (start >> PAGE_SHIFT) as usize..(start + len).div_ceil(PAGE_SIZE) as usize;
        let size = (pages.len() as u64) << PAGE_SHIFT;
        let fits = |backing| match backing {
            Backing::Ram => {
                let end = (pages.end as u64) << PAGE_SHIFT;
                pages.is_empty() || self.ram().holds(start, end)
            }
            Backing::Area(area, offset) => {
                offset.is_multiple_of(PAGE_SIZE)
                    && offset.checked_add(size).is_some_and(|end| end <= area.size())
            }
            Backing::Nothing | Backing::Device => true,
        };
        if !fits(reads) || !fits(writes) {
            return Err(error);
        }
        for (index, page) in pages.enumerate() {
            self.reads.set(page, index, reads);
            self.writes.set(page, index, writes);
        }
        self.layout += 1;
        Ok(())
    }

    /// Returns where a read at guest-physical address `address` goes.
    #[inline]
    pub fn read_target(&self, address: u64) -> Target {
        self.reads.target(address)
    }

    /// Returns where a write at guest-physical address `address` goes.
    #[inline]
    pub fn write_target(&self, address: u64) -> Target {
        self.writes.target(address)
    }

    /// Returns the place of guest-physical address `start`, if the `len` bytes from there are at consecutive
    /// places, the same for reads and for writes. Both arguments are multiples of [`PAGE_SIZE`].
    pub fn run_of_places(&self, start: u64, len: u64) -> Option<usize> {
        let Target::Place(first) = self.read_target(start) else { return None };
        let is_in_row = |offset: u64| {
            let place = Target::Place(first + offset as usize);
            self.read_target(start + offset) == place && self.write_target(start + offset) == place
        };
        (0..len).step_by(PAGE_SIZE as usize).all(is_in_row).then_some(first)
    }

    /// Returns whether all of the `len` bytes at guest-physical address `start` are at places, for reads and
    /// for writes, so that no device, no ROM and no gap is among them.
    pub fn holds(&self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len).filter(|end| *end <= self.end) else {
            return false;
        };
        let is_place = |target| matches!(target, Target::Place(_));
        (start >> PAGE_SHIFT..end.div_ceil(PAGE_SIZE)).all(|page| {
            let address = page << PAGE_SHIFT;
            is_place(self.read_target(address)) && is_place(self.write_target(address))
        })
    }

    /// Returns a number that changes whenever the map changes.
    pub fn layout_generation(&self) -> u64 {
        self.layout
    }

    /// Loads `N` bytes from `place`.
    ///
    /// # Panics
    /// Panics if the bytes leave the array, which is a bug of the caller and never the guest's doing.
    #[inline(always)]
    pub fn load<const N: usize>(&self, place: usize) -> [u8; N] {
        let Some(bytes) = self.bytes.get(place..) else { beyond_memory() };
        let Some(bytes) = bytes.first_chunk() else { beyond_memory() };
        *bytes
    }

    /// Stores `N` bytes at `place`, which must be in a page that holds no code: engines call this for places
    /// of which [`Memory::is_plain`] is true.
    ///
    /// # Panics
    /// Panics if the bytes leave the array, which is a bug of the caller and never the guest's doing.
    #[inline(always)]
    pub fn store<const N: usize>(&mut self, place: usize, bytes: [u8; N]) {
        let Some(there) = self.bytes.get_mut(place..) else { beyond_memory() };
        let Some(there) = there.first_chunk_mut() else { beyond_memory() };
        *there = bytes;
    }

    /// Returns whether no engine has decoded code in the page of `place`, and it is not watched, so that writes
    /// to it need no checks.
    pub fn is_plain(&self, place: usize) -> bool {
        self.code.get(place >> PAGE_SHIFT) == Some(&0)
    }

    /// Returns the bytes from `place` to the end of its page, for decoding and for block moves.
    pub fn page_from(&self, place: usize) -> Option<&[u8]> {
        let end = (place | (PAGE_SIZE as usize - 1)) + 1;
        self.bytes.get(place..end)
    }

    /// Returns the bytes from `place` to the end of its page for block moves to them, if [`Memory::is_plain`]
    /// is true of the page.
    pub fn plain_page_from(&mut self, place: usize) -> Option<&mut [u8]> {
        if !self.is_plain(place) {
            return None;
        }
        let end = (place | (PAGE_SIZE as usize - 1)) + 1;
        self.bytes.get_mut(place..end)
    }

    /// Copies `len` bytes from place `from` to place `to` in ascending order. Returns false and does nothing
    /// if either leaves its page, the target's page holds code, or the two overlap so that a byte would be
    /// read after it was written.
    pub fn copy_within_page(&mut self, from: usize, to: usize, len: usize) -> bool {
        let fits = |place: usize| (place & (PAGE_SIZE as usize - 1)) + len <= PAGE_SIZE as usize;
        let overlaps = to > from && to < from + len;
        if !fits(from) || !fits(to) || overlaps || !self.is_plain(to) {
            return false;
        }
        self.bytes.copy_within(from..from + len, to);
        true
    }

    /// Reads `bytes.len()` bytes at guest-physical address `address` as a device does (DMA). Addresses
    /// without a place read as FFh.
    pub fn read(&self, address: u64, bytes: &mut [u8]) {
        for_each_page(address, bytes.len(), |at, range| {
            let target = &mut bytes[range];
            match self.read_target(at) {
                Target::Place(place) => {
                    target.copy_from_slice(&self.bytes[place..place + target.len()]);
                }
                Target::Nothing | Target::Device => target.fill(OPEN_BUS),
            }
        });
    }

    /// Reads `N` bytes at guest-physical address `address`, a multiple of `N`, as [`Memory::read`] does.
    #[inline]
    pub fn read_aligned<const N: usize>(&self, address: u64) -> [u8; N] {
        debug_assert!(N.is_power_of_two() && address.is_multiple_of(N as u64));
        match self.read_target(address) {
            Target::Place(place) => self.load(place),
            Target::Nothing | Target::Device => [OPEN_BUS; N],
        }
    }

    /// Writes `bytes` at guest-physical address `address` as a device does (DMA). Writes to addresses without
    /// a place are dropped, and code that was decoded from the written lines becomes stale.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        for_each_page(address, bytes.len(), |at, range| {
            if let Target::Place(place) = self.write_target(at) {
                self.write_place(place, &bytes[range]);
            }
        });
    }

    /// Writes `bytes` at `place`, all in one page.
    fn write_place(&mut self, place: usize, bytes: &[u8]) {
        self.note_write(place);
        if self.holds_code(place, bytes.len()) {
            self.forget_code((place >> PAGE_SHIFT) as u32);
        }
        self.bytes[place..place + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes `bytes` to RAM at `address`, whatever is mapped there, as a loader does before the guest runs.
    /// Unlike [`Memory::write`] it fails if the bytes do not fit.
    pub fn load_image(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        self.check(address, bytes.len() as u64)?;
        for_each_page(address, bytes.len(), |at, range| {
            self.write_place(RamLayout::place_of(at) as usize, &bytes[range]);
        });
        Ok(())
    }

    /// Returns the bytes of `area`.
    pub fn area(&self, area: Area) -> &[u8] {
        &self.bytes[area.range()]
    }

    /// Writes `bytes` at `offset` of `area`, wherever the area is mapped. Bytes that do not fit are dropped.
    pub fn write_area(&mut self, area: Area, offset: u64, bytes: &[u8]) {
        let len = area.size().saturating_sub(offset).min(bytes.len() as u64) as usize;
        for_each_page(offset, len, |at, range| {
            self.write_place(area.start() + at as usize, &bytes[range]);
        });
    }

    /// Returns how many bytes the host holds for RAM and all areas, if it tells.
    pub fn held(&self) -> Option<u64> {
        self.pages.held()
    }

    /// Returns how many more bytes the file system has room for that all this is in. None if it has no limit of its own.
    pub fn room(&self) -> Option<u64> {
        self.pages.room()
    }

    /// Returns the bytes of RAM, to save, hash or search them.
    pub fn contents(&self) -> &[u8] {
        &self.bytes[..self.ram_size]
    }

    /// Returns the bytes of RAM, followed by those of all areas.
    pub fn all_contents(&self) -> &[u8] {
        &self.bytes
    }

    /// Lets `change` change the bytes of RAM and, behind them, those of all areas, and forgets all decoded
    /// code.
    pub fn change_contents<T>(&mut self, change: impl FnOnce(&mut [u8]) -> T) -> T {
        self.note_all_written();
        self.forget_all_code();
        change(&mut self.bytes)
    }

    /// Replaces the bytes of RAM and, behind them, those of all areas by those of `file` from `offset` on, a
    /// multiple of [`PAGE_SIZE`], and forgets all decoded code. The host reads them when they are first
    /// touched, so the file must stay as it is. Returns false and changes nothing if the host cannot do so.
    pub fn take_contents_of(&mut self, file: &File, offset: u64) -> bool {
        let Some(bytes) = self.pages.copy_of(file, offset, self.bytes.len()) else { return false };
        self.note_all_written();
        self.forget_all_code();
        self.bytes = bytes;
        self.layout += 1;
        true
    }

    fn check(&self, start: u64, len: u64) -> Result<(), MemoryError> {
        match start.checked_add(len) {
            Some(end) if self.ram().holds(start, end) => Ok(()),
            _ => Err(MemoryError::OutOfRange { start, len }),
        }
    }
}

/// Splits `len` bytes at `address` at page boundaries, and calls `each` with the address and the range of the
/// buffer that lies in each page. Addresses wrap round at the end of the 64-bit space.
fn for_each_page(address: u64, len: usize, mut each: impl FnMut(u64, Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = address.wrapping_add(done as u64);
        let in_page = (PAGE_SIZE - (at & (PAGE_SIZE - 1))) as usize;
        let part = in_page.min(len - done);
        each(at, done..done + part);
        done += part;
    }
}

/// Panics because a place is not in the array. The message gives no details, so that the checks need not keep
/// the values for it.
#[cold]
fn beyond_memory() -> ! {
    panic!("a place beyond memory")
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
        assert!(Memory::new(RAM_MAX + PAGE_SIZE).is_err());
    }

    #[test]
    fn dma_crosses_pages_and_leaves_rom_and_holes_alone() {
        let mut memory = memory();
        memory.map(0x2000, 0x1000, Backing::Ram, Backing::Nothing).unwrap();
        memory.map(0x3000, 0x1000, Backing::Device, Backing::Device).unwrap();
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
    fn ram_beyond_3_gib_is_above_4_gib() {
        let mut memory = Memory::new(5 << 30).unwrap();
        let (last_low, first_high) = ((3 << 30) - 1, 1 << 32);
        memory.write(last_low, &[1, 2]);
        memory.write(first_high - 1, &[3, 4]);
        memory.load_image((6 << 30) - 2, &[5, 6]).unwrap();
        assert!(memory.load_image((6 << 30) - 1, &[5, 6]).is_err());
        assert!(memory.load_image(last_low, &[1, 2]).is_err());
        let read = |address| u16::from_le_bytes(memory.read_aligned(address));
        assert_eq!(
            [last_low - 1, last_low + 1, first_high - 2].map(read),
            [0x0100, 0xffff, 0xffff]
        );
        assert_eq!([first_high, (6 << 30) - 2, 6 << 30].map(read), [0x0004, 0x0605, 0xffff]);
        assert_eq!(memory.contents()[3 << 30], 4);
        assert!(memory.holds(first_high, 2 << 30) && !memory.holds(first_high, (2 << 30) + 1));
        assert!(!memory.holds(last_low, 2));
        memory.map(first_high, 0x1000, Backing::Ram, Backing::Nothing).unwrap();
        assert_eq!(memory.read_target(first_high), Target::Place(3 << 30));
        assert!(memory.map(last_low, 0x2000, Backing::Ram, Backing::Ram).is_err());
        let layout = memory.save_without_contents();
        memory.reset_map();
        assert_eq!(memory.write_target(first_high), Target::Place(3 << 30));
        memory.restore_layout(&layout).unwrap();
        assert_eq!(memory.save_without_contents(), layout);
        assert_eq!(memory.write_target(first_high), Target::Nothing);
        assert_eq!(memory.write_target(first_high + 0x1000), Target::Place((3 << 30) + 0x1000));
    }

    #[test]
    fn memory_is_held_where_it_can_be_read_and_written() {
        let mut memory = memory();
        memory.map(0x2000, 0x1000, Backing::Ram, Backing::Nothing).unwrap();
        assert!(memory.holds(0x1000, 0x1000) && memory.holds(0x3000, (1 << 20) - 0x3000));
        for (start, len) in [
            (0x1fff, 2),
            (0x2000, 1),
            (1 << 20, 1),
            ((1 << 20) - 1, 2),
            (u64::MAX, 1),
            (u64::MAX, 2),
            (1 << 32, 1),
            (0, u64::MAX),
        ] {
            assert!(!memory.holds(start, len), "{start:#x} {len:#x}");
        }
    }

    #[test]
    fn an_area_is_where_it_is_mapped() {
        let mut memory = memory();
        let rom = memory.add_area(0x1800).unwrap();
        assert_eq!(rom.size(), 0x2000);
        memory.write_area(rom, 0xfff, &[1, 2]);
        memory.map(0xffff_e000, 0x2000, Backing::Area(rom, 0), Backing::Nothing).unwrap();
        // Reads see the ROM, writes go to the RAM that it hides.
        memory.map(0xf000, 0x1000, Backing::Area(rom, 0x1000), Backing::Ram).unwrap();
        let mut read = [0; 2];
        memory.read(0xffff_efff, &mut read);
        assert_eq!(read, [1, 2]);
        memory.write(0xf000, &[9]);
        memory.read(0xf000, &mut read);
        assert_eq!(read, [2, 0]);
        assert_eq!(memory.contents()[0xf000], 9);
        assert_eq!(memory.area(rom)[0xffe..0x1001], [0, 1, 2]);
        assert!(memory.map(0, 0x3000, Backing::Area(rom, 0), Backing::Ram).is_err());
        assert!(memory.map(1 << 32, 1, Backing::Device, Backing::Device).is_err());
        memory.write_area(rom, 0x1fff, &[1, 2, 3]);
        memory.write_area(rom, u64::MAX, &[1]);
    }

    #[test]
    fn a_reset_maps_ram_alone_and_keeps_it() {
        let mut memory = memory();
        let rom = memory.add_area(0x1000).unwrap();
        memory.write(0x5000, &[7]);
        memory.write_area(rom, 0, &[9]);
        memory.map(0x5000, 0x1000, Backing::Area(rom, 0), Backing::Nothing).unwrap();
        let before = memory.layout_generation();
        memory.reset_map();
        assert_ne!(memory.layout_generation(), before);
        let mut read = [0];
        memory.read(0x5000, &mut read);
        assert_eq!((read, memory.area(rom)[0]), ([7], 9));
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
    fn block_copies_refuse_overlaps_other_pages_and_code() {
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
