//! Where translated code is: one range below 4 GiB, so that addresses in it have 32 bits.
//!
//! The range is mapped twice: at one address it can be written, at the other it can be executed, and nowhere
//! both. Behind it there are addresses for [`counters`].

use std::io;

use memmap2::{MmapMut, MmapOptions};

use crate::code::counters;
use crate::memory::host_memory::{Range, memory_file};
use crate::signals::Watch;

/// Upper bound of the bytes of translated code; when it is reached, all of it is dropped.
pub(crate) const SIZE: usize = 32 << 20;

/// Bytes of a line of the processor's caches.
const LINE: usize = 64;

/// The addresses between which a free range below 4 GiB is looked for.
const FIRST_PLACE: usize = 0x1000_0000;
const LAST_PLACE: usize = 0xf000_0000;

/// See the module.
#[derive(Debug)]
pub(crate) struct CodeCache {
    /// This is dropped first: once the range is given back, another thread may have a cache there.
    _watch: Watch,
    writable: MmapMut,
    executable: Range,
    used: usize,
}

impl CodeCache {
    /// Returns an empty cache. For 64-bit code, `long_context` is as in [`Watch::new`].
    pub(crate) fn new(long_context: usize) -> io::Result<CodeCache> {
        let file = memory_file(c"translated code", SIZE)?;
        // SAFETY: the file has no name, so only this process maps it. Code in the other mapping is executed
        // only while nobody holds a reference into this one.
        let writable = unsafe { MmapOptions::new().len(SIZE).map_mut(&file)? };
        let executable = (FIRST_PLACE..LAST_PLACE)
            .step_by(SIZE)
            .find_map(|place| Range::reserve_at(place, SIZE + counters::BYTES).ok())
            .ok_or_else(|| io::Error::other("no room for code below 4 GiB"))?;
        executable.map_file(0, SIZE, libc::PROT_READ | libc::PROT_EXEC, &file, 0)?;
        let watch = Watch::new(executable.address(), long_context)?;
        Ok(CodeCache { _watch: watch, writable, executable, used: 0 })
    }

    /// Moves the code from a file to shared memory without one, at the same addresses: of code in files, profilers of
    /// the host look for the names there.
    pub(crate) fn leave_file(&mut self) -> io::Result<()> {
        let code = self.writable[..self.used].to_vec();
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let (start, protection) = (self.writable.as_mut_ptr(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the call replaces the mapping that `writable` owns, into which there are no references.
        let mapped = unsafe { libc::mmap(start.cast(), SIZE, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.writable[..code.len()].copy_from_slice(&code);
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        self.executable.map_again(0, SIZE, protection, &mut self.writable)
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> u32 {
        self.executable.address() as u32
    }

    /// Returns the address of the first counter.
    pub(crate) fn counters(&self) -> u32 {
        self.start() + SIZE as u32
    }

    /// Makes memory for counters, which are zero.
    pub(crate) fn map_counters(&self) -> io::Result<()> {
        self.executable.map_zeros(SIZE, counters::BYTES, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Returns the value of the counter at address `counter`, and sets it to zero.
    pub(crate) fn take_counter(&self, counter: u32) -> u64 {
        self.executable.replace((counter - self.start()) as usize, 0)
    }

    /// Returns the address of the next code that is added.
    pub(crate) fn end(&self) -> u32 {
        self.start() + self.used as u32
    }

    /// Lets the next code begin where a line of the processor's caches does.
    pub(crate) fn align(&mut self) {
        self.used = self.used.next_multiple_of(LINE);
    }

    /// Adds `code`, which was made for the address [`CodeCache::end`]. Returns false if there is no room.
    pub(crate) fn add(&mut self, code: &[u8]) -> bool {
        let Some(there) = self.writable.get_mut(self.used..self.used + code.len()) else {
            return false;
        };
        there.copy_from_slice(code);
        self.used += code.len();
        true
    }

    /// Drops all but the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.used = len;
    }

    /// Returns the number of bytes in use.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Makes the branch whose 32-bit distance ends at address `end` go to address `to`.
    pub(crate) fn link(&mut self, end: u32, to: u32) {
        let offset = (end - self.start()) as usize;
        let distance = to.wrapping_sub(end).to_le_bytes();
        self.writable[offset - 4..offset].copy_from_slice(&distance);
    }
}
