//! Memory in the host's address space: reserved ranges of addresses, and guest memory as a file that can be
//! mapped in many places.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use libc::{c_int, c_void, off_t};
use memmap2::{MmapMut, MmapOptions, UncheckedAdvice};
use ring3_core::memory::{HostPages, Private, zero};

use super::absent::{Absent, CHUNK};
use super::shortage::{Watched, allocate};
use crate::signals;

/// Upper bound of the bytes that are made accessible at once when they are mapped.
const MOST_POPULATED: usize = 64 * PAGE;
/// Bytes in a page of the host.
pub(crate) const PAGE: usize = 4096;
/// Bytes in a large page of the host.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// Returns a file without a name whose contents are in memory.
pub(crate) fn memory_file(name: &std::ffi::CStr, len: usize) -> io::Result<File> {
    // SAFETY: the name is a C string, and the call accesses nothing else.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and nobody else has it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64)?;
    Ok(file)
}

/// HUGETLBFS_MAGIC of statfs(2).
const HUGE_PAGES: u64 = 0x958458f6;

/// Returns a file of `len` zeros without a name in `directory`, from whose file system its pages come.
///
/// # Errors
/// Fails also if the pages of such a file cannot be had, and given back, one by one.
fn file_in(directory: &Path, len: usize) -> io::Result<File> {
    let unfit = |what| io::Error::new(io::ErrorKind::Unsupported, what);
    let flags = libc::O_TMPFILE | libc::O_CLOEXEC;
    let file =
        OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(directory);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EISDIR) => {
            unfit("its file system has no files without a name")
        }
        _ => error,
    })?;
    if status_of_file_system(&file)?.f_type as u64 == HUGE_PAGES {
        return Err(unfit("its file system has huge pages, which guest memory cannot use"));
    }
    file.set_len(len as u64)?;
    match allocate(file.as_raw_fd(), 0).and_then(|()| punch(&file, 0, PAGE)) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Err(unfit("its file system cannot reserve and free parts of a file"))
        }
        done => done.map(|()| file),
    }
}

/// Returns what the file system of `file` says of itself.
fn status_of_file_system(file: &File) -> io::Result<libc::statfs> {
    let mut status = MaybeUninit::uninit();
    // SAFETY: the call only writes to the structure.
    if unsafe { libc::fstatfs(file.as_raw_fd(), status.as_mut_ptr()) } == 0 {
        // SAFETY: the call has filled it.
        Ok(unsafe { status.assume_init() })
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives the `len` bytes of `file` at `place`, which are pages, back to the host.
fn punch(file: &File, place: usize, len: usize) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the call changes bytes of the file, as a write to guest memory does: no reference to them lives, and
    // translated code waits.
    if unsafe { libc::fallocate(file.as_raw_fd(), mode, place as off_t, len as off_t) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns a source of guest memory whose pages come from the file system of `directory`, for an engine that needs no
/// other addresses for it.
///
/// # Errors
/// Fails if there can be no such file, or no handler for signals.
pub fn memory_in(directory: &Path) -> io::Result<Arc<dyn HostPages>> {
    signals::install()?;
    Ok(Arc::new(GuestMemory::in_directory(Some(directory))?))
}

/// Guest memory as a file. The [`Memory`](ring3_core::memory::Memory) that is made with a translator gets its bytes
/// from here, and so does any other whose pages come from a file system of the user's choice.
#[derive(Debug, Default)]
pub(crate) struct GuestMemory {
    current: Mutex<Option<Arc<GuestFile>>>,
    /// The directory in whose file system its pages are. None for those of memory files, which no file system limits.
    directory: Option<PathBuf>,
}

impl GuestMemory {
    /// Returns guest memory whose pages come from the file system of `directory`, if one is given.
    ///
    /// # Errors
    /// Fails if there can be no such file.
    pub(crate) fn in_directory(directory: Option<&Path>) -> io::Result<GuestMemory> {
        directory.map_or(Ok(()), |directory| file_in(directory, PAGE).map(drop))?;
        Ok(GuestMemory { directory: directory.map(Path::to_owned), ..GuestMemory::default() })
    }

    /// Makes a file of `len` zeros.
    fn new_file(&self, len: usize) -> io::Result<File> {
        match &self.directory {
            None => memory_file(c"guest memory", len),
            Some(directory) => file_in(directory, len),
        }
    }

    /// Returns the file that holds guest memory now.
    pub(crate) fn file(&self) -> Option<Arc<GuestFile>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, file: GuestFile) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let old = current.replace(Arc::new(file));
        // Its addresses may soon be those of something else.
        if let Some(old) = old {
            old.absent.as_ref().inspect(|absent| absent.retire());
            old.watched.as_ref().inspect(|watched| watched.retire());
        }
    }
}

/// The file that holds guest memory.
#[derive(Debug)]
pub(crate) struct GuestFile {
    /// Lets accesses wait for which the host has no page. It must be dropped before the file.
    watched: Option<Watched>,
    file: File,
    /// What is still to be copied there, if the machine was saved in a file.
    absent: Option<Absent>,
}

impl GuestFile {
    /// Returns whether all of the `len` bytes at `place` are here already.
    pub(crate) fn has(&self, place: usize, len: usize) -> bool {
        self.absent.as_ref().is_none_or(|absent| absent.has(place, len))
    }

    /// Returns whether the page at `place` is here already, or comes with the one at `other`.
    pub(crate) fn comes_with(&self, place: usize, other: usize) -> bool {
        let comes = |absent: &Absent| place / CHUNK == other / CHUNK || absent.has(place, PAGE);
        self.absent.as_ref().is_none_or(comes)
    }

    /// Returns the file, in which the `len` bytes at `place` are now.
    pub(crate) fn with(&self, place: usize, len: usize) -> io::Result<&File> {
        self.absent.as_ref().map_or(Ok(()), |absent| absent.fetch(place, len))?;
        Ok(&self.file)
    }

    /// Gives the `len` bytes at `place`, which are pages, back to the host. From then on they are zero in all mappings, as
    /// holes of the file are; the host gives them a page again at the next access.
    fn release(&self, place: usize, len: usize) -> io::Result<()> {
        self.absent.as_ref().map_or(Ok(()), |absent| absent.give_up(place, len))?;
        // The caller has `Memory` mutably, so no reference to these bytes lives.
        punch(&self.file, place, len)
    }
}

/// Maps `len` bytes of `file`, which holds guest memory.
fn map_guest_memory(file: &File, len: usize) -> io::Result<MmapMut> {
    // SAFETY: the file has no name, and only this process has its descriptor. The process also maps it
    // elsewhere for translated code, which runs only inside of `Engine::run`. There the `Memory` that has
    // these bytes is borrowed mutably, as `Translator::check_memory` makes sure, so no reference into them
    // lives while translated code writes to them.
    unsafe { MmapOptions::new().len(len).map_mut(file) }
}

impl HostPages for GuestMemory {
    fn zeroed(&self, len: usize) -> Option<MmapMut> {
        let file = self.new_file(len).ok()?;
        let mut bytes = map_guest_memory(&file, len).ok()?;
        let watched = Watched::new(bytes.as_mut_ptr(), len, &file);
        self.set(GuestFile { watched, file, absent: None });
        Some(bytes)
    }

    fn copy_of(&self, source: &File, offset: u64, len: usize) -> Option<MmapMut> {
        let file = self.new_file(len).ok()?;
        let mut bytes = map_guest_memory(&file, len).ok()?;
        let absent = Absent::new(&mut bytes, &file, source, offset).ok()?;
        let watched = Watched::new(bytes.as_mut_ptr(), len, &file);
        self.set(GuestFile { watched, file, absent: Some(absent) });
        Some(bytes)
    }

    fn data_from(&self, place: usize, len: usize) -> std::ops::Range<usize> {
        let Some(file) = self.file() else { return place..len };
        let here = next_data(&file.file, place, len);
        match file.absent.as_ref().map(|absent| absent.next_data(place, len)) {
            // A part begins where one of both files has the next data. It may end before the other's do.
            Some(there) if there.start < here.start => there.start..there.end.min(here.start),
            Some(there) if there.start == here.start => here.start..here.end.max(there.end),
            _ => here,
        }
    }

    fn held(&self) -> Option<u64> {
        let file = self.file()?;
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the call only writes to the structure.
        let result = unsafe { libc::fstat(file.file.as_raw_fd(), status.as_mut_ptr()) };
        // SAFETY: a call that succeeds has filled it.
        (result == 0).then(|| unsafe { status.assume_init() }.st_blocks as u64 * 512)
    }

    fn room(&self) -> Option<u64> {
        self.directory.as_ref()?;
        let status = status_of_file_system(&self.file()?.file).ok()?;
        // The number of blocks is 0 for a tmpfs without a limit.
        (status.f_blocks != 0).then(|| status.f_bavail.saturating_mul(status.f_bsize as u64))
    }

    fn release(&self, bytes: &mut MmapMut, pages: std::ops::Range<usize>) {
        let is_released =
            self.file().is_some_and(|file| file.release(pages.start, pages.len()).is_ok());
        if !is_released {
            zero(&mut bytes[pages]);
        }
    }
}

/// Returns the first part of the first `len` bytes of `file`, from `place` on, for which the host has pages.
pub(super) fn next_data(file: &File, place: usize, len: usize) -> std::ops::Range<usize> {
    let seek = |from: usize, whence| {
        // SAFETY: the call accesses no memory.
        let found = unsafe { libc::lseek(file.as_raw_fd(), from as off_t, whence) };
        usize::try_from(found).map_err(|_| io::Error::last_os_error().raw_os_error())
    };
    match seek(place, libc::SEEK_DATA) {
        Ok(start) => start.min(len)..seek(start, libc::SEEK_HOLE).map_or(len, |end| end.min(len)),
        // There is nothing more.
        Err(Some(libc::ENXIO)) => len..len,
        // The host cannot tell.
        Err(_) => place..len,
    }
}

/// Takes memory that is private to the process, for an engine that needs no other addresses for it.
#[derive(Debug, Clone, Copy)]
pub struct PrivateMemory;

impl HostPages for PrivateMemory {
    fn zeroed(&self, len: usize) -> Option<MmapMut> {
        Private.zeroed(len)
    }

    fn copy_of(&self, file: &File, offset: u64, len: usize) -> Option<MmapMut> {
        // SAFETY: this process does not write to the file of a saved machine, which gets its name when it is
        // complete. Guest memory is bytes of which nothing else is assumed, so another process that changes
        // the file changes what the guest sees. If it cuts the file, a signal ends this process.
        unsafe { MmapOptions::new().offset(offset).len(len).map_copy(file) }.ok()
    }

    fn release(&self, bytes: &mut MmapMut, pages: std::ops::Range<usize>) {
        // SAFETY: the bytes are borrowed mutably, and both zeros and what the file of a saved machine has there
        // are bytes. If the host refuses, they stay as they are.
        let _ = unsafe {
            bytes.unchecked_advise_range(UncheckedAdvice::DontNeed, pages.start, pages.len())
        };
        // A page of such a file has its old contents again.
        zero(&mut bytes[pages]);
    }
}

/// A range of addresses of this process that nothing else uses.
#[derive(Debug)]
pub(crate) struct Range {
    start: *mut u8,
    len: usize,
}

// SAFETY: a range is only addresses; its owner decides what is mapped there and who accesses it.
unsafe impl Send for Range {}

impl Range {
    /// Reserves `len` bytes at any address, where every access faults.
    pub(crate) fn reserve(len: usize) -> io::Result<Range> {
        Range::reserve_at(0, len)
    }

    /// Reserves `len` bytes at `address`, or at any address if that is 0. Returns an error if something is
    /// mapped there already.
    pub(crate) fn reserve_at(address: usize, len: usize) -> io::Result<Range> {
        let fixed = if address == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
        // SAFETY: the flags let the call replace no mapping.
        let start = unsafe {
            libc::mmap(ptr::without_provenance_mut(address), len, libc::PROT_NONE, flags, -1, 0)
        };
        let range = Range { start: check(start)?, len };
        if address != 0 && range.address() != address {
            // A kernel older than 4.17 treats the address as a hint.
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(range)
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.start.addr()
    }

    /// Returns the address at `offset`, which may be the end of the range.
    ///
    /// # Panics
    /// When `offset` is beyond the end.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len, "inside of the range");
        // SAFETY: the result is in the range or at its end.
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
        // SAFETY: the call only replaces mappings in this range, into which there are no references.
        let start = unsafe {
            libc::mmap(self.at(offset).cast(), len, protection, flags, fd, from as off_t)
        };
        check(start).map(|_| ())
    }

    /// Maps `len` bytes of `file`, from offset `from` on, at `offset`.
    pub(crate) fn map_file(
        &self,
        offset: usize,
        len: usize,
        protection: c_int,
        file: &File,
        from: usize,
    ) -> io::Result<()> {
        // The guest will soon access the small pages that it has asked for, but perhaps only a part of a
        // large one.
        let populate = if len <= MOST_POPULATED { libc::MAP_POPULATE } else { 0 };
        self.map(offset, len, protection, libc::MAP_SHARED | populate, file.as_raw_fd(), from)
    }

    /// Maps `len` bytes of zeros at `offset`.
    pub(crate) fn map_zeros(&self, offset: usize, len: usize, protection: c_int) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.map(offset, len, protection, flags, -1, 0)
    }

    /// Maps the shared memory of `len` bytes at `from` a second time, at `offset`.
    pub(crate) fn map_again(
        &self,
        offset: usize,
        len: usize,
        protection: c_int,
        from: &mut [u8],
    ) -> io::Result<()> {
        if !self.contains(offset, len) || from.len() != len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (there, flags) = (self.at(offset).cast(), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        // SAFETY: an old length of 0 lets `from` be mapped where it is, too (mremap(2)), and the call only replaces
        // mappings in this range, into which there are no references.
        let start = unsafe { libc::mremap(from.as_mut_ptr().cast(), 0, len, flags, there) };
        check(start)?;
        // SAFETY: the bytes are in this range.
        if unsafe { libc::mprotect(there, len, protection) } == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Forbids the host to use large pages for the `len` bytes at `offset`: such pages may take memory even
    /// if they contain only zeros.
    pub(crate) fn keep_small_pages(&self, offset: usize, len: usize) -> io::Result<()> {
        if !self.contains(offset, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the bytes are in this range, which nothing else uses.
        let result = unsafe { libc::madvise(self.at(offset).cast(), len, libc::MADV_NOHUGEPAGE) };
        // EINVAL means that this kernel has no large pages.
        let error = io::Error::last_os_error();
        if result == 0 || error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) }
    }

    /// Lets the host use large pages for the `len` bytes at `offset`, if it has any.
    ///
    /// This is for zeros that are only read, at addresses that change all the time. As small pages they would
    /// be a single frame at many addresses. AMD's processors guess from the address in which way of the cache
    /// a line is, and would fetch the line anew for each address.
    pub(crate) fn prefer_large_pages(&self, offset: usize, len: usize) {
        if self.contains(offset, len) {
            // This is a hint; without it everything works, but slower.
            // SAFETY: the bytes are in this range, which nothing else uses.
            unsafe { libc::madvise(self.at(offset).cast(), len, libc::MADV_HUGEPAGE) };
        }
    }

    /// Returns the first offset, from `offset` on, at which a large page can begin.
    pub(crate) fn large_page_from(&self, offset: usize) -> usize {
        (self.address() + offset).next_multiple_of(LARGE_PAGE) - self.address()
    }

    /// Makes every access to the `len` bytes at `offset` fault.
    pub(crate) fn unmap(&self, offset: usize, len: usize) -> io::Result<()> {
        self.map_zeros(offset, len, libc::PROT_NONE)
    }

    /// Writes `value` at `offset`, where writable memory must be mapped.
    ///
    /// # Panics
    /// When `offset` is outside of the range.
    pub(crate) fn write(&self, offset: usize, value: u64) {
        assert!(offset + size_of::<u64>() <= self.len, "inside of the range");
        // SAFETY: nothing else uses the range or refers into it, and a fault would end the process.
        unsafe { self.at(offset).cast::<u64>().write_unaligned(value) };
    }

    /// Writes `byte` to the `len` bytes at `offset`, where writable memory must be mapped.
    ///
    /// # Panics
    /// When the bytes are not pages of the range.
    pub(crate) fn fill(&self, offset: usize, len: usize, byte: u8) {
        assert!(self.contains(offset, len), "inside of the range");
        // SAFETY: nothing else uses the range or refers into it, and a fault would end the process.
        unsafe { self.at(offset).write_bytes(byte, len) };
    }

    /// Replaces the value at `offset`, where writable memory must be mapped, by `value`, and returns the old
    /// one.
    ///
    /// # Panics
    /// When `offset` is outside of the range.
    pub(crate) fn replace(&self, offset: usize, value: u64) -> u64 {
        assert!(offset + size_of::<u64>() <= self.len, "inside of the range");
        // SAFETY: nothing else uses the range or refers into it, and a fault would end the process.
        let old = unsafe { self.at(offset).cast::<u64>().read_unaligned() };
        self.write(offset, value);
        old
    }

    /// Changes the protection of the `len` bytes at `offset`.
    pub(crate) fn protect(&self, offset: usize, len: usize, protection: c_int) -> io::Result<()> {
        if !self.contains(offset, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the bytes are in this range, which nothing else uses.
        let result = unsafe { libc::mprotect(self.at(offset).cast(), len, protection) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: nothing else uses the range, and its owner is gone.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

fn check(start: *mut c_void) -> io::Result<*mut u8> {
    if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start.cast()) }
}
