//! Guest memory that is still in the file of a saved machine.
//!
//! The [`Memory`](ring3_core::memory::Memory) of a machine that was saved sees the pages of that file at
//! first, for reading only. All machines from one file share them, in the host's page cache. A *chunk* is
//! copied to the memory file before it is mapped in a window, and when the interpreter or a device first
//! writes to it, which raises a signal. From then on `Memory` sees the memory file there. So a window never
//! has an older page than `Memory`, and no other window must change when a page is written.
//!
//! What is only read by translated code is copied too. To share it as well, each window would have to be
//! told of the first write. Code is translated from the shared pages.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::thread;

use memmap2::MmapMut;

use super::host_memory::PAGE;

/// Smallest chunk in bytes.
const CHUNK_MIN: usize = 16 << 10;
/// Upper bound of the chunks, each of which may be a mapping of its own. The host allows a process some
/// 65,000, of which windows take 40,000 at most.
const CHUNKS_MAX: usize = 16_384;
/// Upper bound of the machines in one process whose memory is in files.
const MACHINES_MAX: usize = 64;

/// The memories for which the handler of signals looks.
static WATCHED: [AtomicPtr<Shared>; MACHINES_MAX] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MACHINES_MAX];

/// The threads in which the handler looks there.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// The chunks of a machine's memory that are still in the file of the saved machine.
#[derive(Debug)]
pub(crate) struct Absent {
    /// Made by `Box::into_raw`.
    shared: *mut Shared,
}

// SAFETY: all that changes in `Shared` is atomic.
unsafe impl Send for Absent {}
// SAFETY: as above.
unsafe impl Sync for Absent {}

/// What the handler of signals knows of an [`Absent`].
#[derive(Debug)]
struct Shared {
    /// The address at which `Memory` has its first byte.
    start: usize,
    len: usize,
    /// The memory file, which is open for as long as this is watched.
    file: RawFd,
    /// Bytes in a chunk, a multiple of [`CHUNK_MIN`].
    chunk: usize,
    /// The chunks that are in the memory file.
    here: Box<[AtomicBool]>,
}

impl Absent {
    /// Makes all of `bytes`, which are those of the memory file `file`, those of `source` from `offset` on.
    pub(crate) fn new(
        bytes: &mut MmapMut,
        file: &File,
        source: &File,
        offset: u64,
    ) -> io::Result<Absent> {
        let len = bytes.len();
        let chunk = len.div_ceil(CHUNKS_MAX).next_multiple_of(CHUNK_MIN);
        let here = (0..len.div_ceil(chunk)).map(|_| AtomicBool::new(false)).collect();
        let start = bytes.as_mut_ptr();
        let shared =
            Box::new(Shared { start: start.addr(), len, file: file.as_raw_fd(), chunk, here });
        let free = |place: &&AtomicPtr<Shared>| {
            let new = (&raw const *shared).cast_mut();
            place
                .compare_exchange(ptr::null_mut(), new, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        };
        if WATCHED.iter().find(free).is_none() {
            return Err(io::Error::other("too many machines from files in one process"));
        }
        let absent = Absent { shared: Box::into_raw(shared) };
        let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let from = source.as_raw_fd();
        // SAFETY: the call replaces the mapping of `bytes`, which is borrowed mutably, by another of the same
        // length. A write there faults, and `fetch_at` makes the page writable.
        let mapped = unsafe { libc::mmap(start.cast(), len, libc::PROT_READ, flags, from, offset) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(absent) }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: it lives until `self` is dropped, and nobody has a mutable reference to it.
        unsafe { &*self.shared }
    }

    /// Returns whether all of the `len` bytes at `place` are in the memory file.
    pub(crate) fn has(&self, place: usize, len: usize) -> bool {
        self.shared().chunks(place, len).all(|chunk| self.shared().has(chunk))
    }

    /// Copies the chunks of the `len` bytes at `place` to the memory file.
    ///
    /// # Errors
    /// Fails if the host has no room for them, or the file of the saved machine cannot be read any more.
    pub(crate) fn fetch(&self, place: usize, len: usize) -> io::Result<()> {
        self.shared().chunks(place, len).try_for_each(|chunk| self.shared().fetch(chunk))
    }

    /// Makes the handler of signals forget this memory, which nobody writes to any more.
    pub(crate) fn retire(&self) {
        for place in &WATCHED {
            let (old, none) = (self.shared, ptr::null_mut());
            // Another memory may be in this place, which is no error.
            let _ = place.compare_exchange(old, none, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
}

impl Drop for Absent {
    fn drop(&mut self) {
        self.retire();
        while LOOKING.load(Ordering::SeqCst) != 0 {
            thread::yield_now();
        }
        // SAFETY: `Box::into_raw` has made the pointer. The handler does not find it any more, and no handler
        // that has found it is still running.
        drop(unsafe { Box::from_raw(self.shared) });
    }
}

impl Shared {
    fn chunks(&self, place: usize, len: usize) -> std::ops::Range<usize> {
        place / self.chunk..(place + len).div_ceil(self.chunk).min(self.here.len())
    }

    fn has(&self, chunk: usize) -> bool {
        self.here[chunk].load(Ordering::Acquire)
    }

    /// Copies a chunk to the memory file, and lets `Memory` see it there. The handler of signals calls this,
    /// so it makes only system calls.
    fn fetch(&self, chunk: usize) -> io::Result<()> {
        if self.has(chunk) {
            return Ok(());
        }
        let place = chunk * self.chunk;
        let len = self.chunk.min(self.len - place);
        let start = ptr::with_exposed_provenance_mut::<u8>(self.start + place);
        // SAFETY: the bytes are mapped for reading, and nobody writes to them meanwhile: writes to them fault.
        self.copy(place, unsafe { slice::from_raw_parts(start, len) })?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the call replaces pages of `Memory` by others with the same contents.
        let mapped = unsafe {
            libc::mmap(start.cast(), len, protection, flags, self.file, place as libc::off_t)
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.here[chunk].store(true, Ordering::Release);
        Ok(())
    }

    /// Writes `bytes` at `place` of the memory file, but for pages of zeros, which are zero there already.
    fn copy(&self, place: usize, bytes: &[u8]) -> io::Result<()> {
        let is_zero = |page: &[u8]| page.chunks_exact(16).all(|part| part == [0; 16]);
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let mut pages = rest.chunks(PAGE);
            let len = pages.position(is_zero).map_or(rest.len(), |pages| pages * PAGE);
            if len == 0 {
                at += PAGE;
                continue;
            }
            let to = (place + at) as libc::off_t;
            // SAFETY: the kernel reads bytes of a slice.
            let written = unsafe { libc::pwrite(self.file, rest.as_ptr().cast(), len, to) };
            match usize::try_from(written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                // A part of a page is written again as a whole.
                Ok(written) if written >= PAGE => at += written / PAGE * PAGE,
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Fetches the chunk with the host address `address`, to which a write has faulted. Returns false if nothing
/// is to be fetched there.
///
/// This is for the handler of signals, in the thread that has written.
pub(crate) fn fetch_at(address: usize) -> bool {
    LOOKING.fetch_add(1, Ordering::SeqCst);
    let is_fetched = fetch_watched(address);
    LOOKING.fetch_sub(1, Ordering::SeqCst);
    is_fetched
}

fn fetch_watched(address: usize) -> bool {
    for place in &WATCHED {
        // SAFETY: what is watched lives for as long as a thread is `LOOKING`.
        let Some(shared) = (unsafe { place.load(Ordering::SeqCst).as_ref() }) else { continue };
        let at = address.wrapping_sub(shared.start);
        if at < shared.len {
            let chunk = at / shared.chunk;
            // SAFETY: the location is the thread's own.
            let errno = unsafe { *libc::__errno_location() };
            let is_fetched = !shared.has(chunk) && shared.fetch(chunk).is_ok();
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
            return is_fetched;
        }
    }
    false
}
