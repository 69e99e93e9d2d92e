//! The host's address space: reserved ranges, and guest memory as a file that can be mapped in many places.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use libc::{c_int, c_void, off_t};
use memmap2::{MmapMut, MmapOptions};
use ring3_core::memory::HostPages;

/// Bytes that are accessible at once when they are mapped, at most.
const MOST_POPULATED: usize = 64 * PAGE;
/// Bytes in a page of the host.
pub(crate) const PAGE: usize = 4096;
/// The same of a large page.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// A file without a name that holds memory.
pub(crate) fn memory_file(name: &std::ffi::CStr, len: usize) -> io::Result<File> {
    // SAFETY: the name is a C string; the call touches nothing else.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and nobody else has it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64)?;
    Ok(file)
}

/// Guest memory as a file, which only the [`Memory`](ring3_core::memory::Memory) that is made with a translator gets its bytes from.
#[derive(Debug, Default)]
pub(crate) struct GuestMemory {
    current: Mutex<Option<Arc<File>>>,
}

impl GuestMemory {
    /// The file that guest memory is in now.
    pub(crate) fn file(&self) -> Option<Arc<File>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl HostPages for GuestMemory {
    fn zeroed(&self, len: usize) -> Option<MmapMut> {
        let file = Arc::new(memory_file(c"guest memory", len).ok()?);
        // SAFETY: the file has no name, and this process alone has its descriptor. It maps it elsewhere too, for
        // translated code, which runs only inside of `Engine::run`: there the `Memory` that has these bytes is borrowed
        // mutably, as `Translator::check_memory` makes sure, so no reference into them lives while it writes.
        let bytes = unsafe { MmapOptions::new().len(len).map_mut(&*file) }.ok()?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Some(bytes)
    }
}

/// A range of addresses of this process that nothing else uses.
#[derive(Debug)]
pub(crate) struct Range {
    start: *mut u8,
    len: usize,
}

// SAFETY: it is a range of addresses; what is mapped there is for its owner to say.
unsafe impl Send for Range {}

impl Range {
    /// `len` bytes anywhere, in which every access faults.
    pub(crate) fn reserve(len: usize) -> io::Result<Range> {
        Range::reserve_at(0, len)
    }

    /// The same, at `address` unless that is 0; an error where something is there already.
    pub(crate) fn reserve_at(address: usize, len: usize) -> io::Result<Range> {
        let fixed = if address == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
        // SAFETY: nothing that is mapped is replaced.
        let start = unsafe {
            libc::mmap(ptr::without_provenance_mut(address), len, libc::PROT_NONE, flags, -1, 0)
        };
        let range = Range { start: check(start)?, len };
        if address != 0 && range.address() != address {
            // A kernel before 4.17 takes the address for a hint.
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(range)
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> usize {
        self.start.addr()
    }

    /// Where offset `offset` is, which may be that of its end.
    ///
    /// # Panics
    /// When that is outside.
    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len, "inside of the range");
        // SAFETY: it stays in the range, or at its end.
        unsafe { self.start.add(offset) }
    }

    fn contains(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
            && offset.is_multiple_of(PAGE)
            && len.is_multiple_of(PAGE)
    }

    fn map(
        &self,
        offset: usize,
        len: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        from: usize,
    ) -> io::Result<()> {
        if !self.contains(offset, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = flags | libc::MAP_FIXED;
        // SAFETY: what is replaced is in the range, which is ours, and into which there are no references.
        let start = unsafe {
            libc::mmap(self.at(offset).cast(), len, protection, flags, fd, from as off_t)
        };
        check(start).map(|_| ())
    }

    /// Maps `len` bytes of `file` from `from` on at `offset`.
    pub(crate) fn map_file(
        &self,
        offset: usize,
        len: usize,
        protection: c_int,
        file: &File,
        from: usize,
    ) -> io::Result<()> {
        // Pages that are asked for are accessed soon; of large ones only a part may be.
        let populate = if len <= MOST_POPULATED { libc::MAP_POPULATE } else { 0 };
        self.map(offset, len, protection, libc::MAP_SHARED | populate, file.as_raw_fd(), from)
    }

    /// Maps `len` bytes of zero at `offset`.
    pub(crate) fn map_zeros(&self, offset: usize, len: usize, protection: c_int) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.map(offset, len, protection, flags, -1, 0)
    }

    /// Lets the host give the `len` bytes at `offset` no large pages, which may take memory even if they are zero.
    pub(crate) fn keep_small_pages(&self, offset: usize, len: usize) -> io::Result<()> {
        if !self.contains(offset, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the bytes are in the range, which is ours.
        let result = unsafe { libc::madvise(self.at(offset).cast(), len, libc::MADV_NOHUGEPAGE) };
        // EINVAL: this kernel has no large pages.
        let error = io::Error::last_os_error();
        if result == 0 || error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) }
    }

    /// Lets the host give the `len` bytes at `offset` large pages, where it has any.
    ///
    /// It is for zeros that are only read, at addresses that change all the time. In small pages they are one page of the host at many addresses, and
    /// processors of AMD, which guess by the address which way of their cache has a line, fetch it anew for each of them.
    pub(crate) fn prefer_large_pages(&self, offset: usize, len: usize) {
        if self.contains(offset, len) {
            // It is a hint, without which all is the same but slower.
            // SAFETY: the bytes are in the range, which is ours.
            unsafe { libc::madvise(self.at(offset).cast(), len, libc::MADV_HUGEPAGE) };
        }
    }

    /// The first offset from `offset` on at which a large page can begin.
    pub(crate) fn large_page_from(&self, offset: usize) -> usize {
        (self.address() + offset).next_multiple_of(LARGE_PAGE) - self.address()
    }

    /// Makes every access to the `len` bytes at `offset` fault.
    pub(crate) fn unmap(&self, offset: usize, len: usize) -> io::Result<()> {
        self.map_zeros(offset, len, libc::PROT_NONE)
    }

    /// Writes `value` at `offset`, where memory is mapped that can be written.
    ///
    /// # Panics
    /// When that is outside.
    pub(crate) fn write(&self, offset: usize, value: u64) {
        assert!(offset + size_of::<u64>() <= self.len, "inside of the range");
        // SAFETY: the range is ours, nothing refers into it, and a fault ends the process.
        unsafe { self.at(offset).cast::<u64>().write_unaligned(value) };
    }

    /// Changes what may be done with `len` bytes at `offset`.
    pub(crate) fn protect(&self, offset: usize, len: usize, protection: c_int) -> io::Result<()> {
        if !self.contains(offset, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the bytes are in the range, which is ours.
        let result = unsafe { libc::mprotect(self.at(offset).cast(), len, protection) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and its owner is gone.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

fn check(start: *mut c_void) -> io::Result<*mut u8> {
    if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start.cast()) }
}
