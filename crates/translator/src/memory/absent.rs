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
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::thread;

use memmap2::MmapMut;

use super::host_memory::{PAGE, next_data};
use super::shortage::{keep_errno, wait_until_done};

/// Bytes in a chunk.
pub(crate) const CHUNK: usize = 16 << 10;
/// The number of chunks that are copied one by one, since a machine that has just started needs few of them
/// soon.
const SINGLE: usize = 4096;
/// Upper bound of the groups of chunks that are copied together later. Each single chunk and each group may
/// be a mapping of its own. The host allows a process some 65,000, of which windows take 40,000 at most.
const GROUPS_MAX: usize = 8192;
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
    /// The file of the saved machine, and where memory begins in it.
    source: File,
    offset: usize,
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
    /// The chunks that are in the memory file, and their number.
    here: Box<[AtomicBool]>,
    fetched: AtomicUsize,
    /// Chunks in a group.
    group: usize,
}

impl Absent {
    /// Makes all of `bytes`, which are those of the memory file `file`, those of `source` from `offset` on.
    pub(crate) fn new(
        bytes: &mut MmapMut,
        file: &File,
        source: &File,
        offset: u64,
    ) -> io::Result<Absent> {
        let kept = source.try_clone()?;
        let len = bytes.len();
        let here: Box<[_]> = (0..len.div_ceil(CHUNK)).map(|_| AtomicBool::new(false)).collect();
        let group = here.len().div_ceil(GROUPS_MAX);
        let start = bytes.as_mut_ptr();
        let shared = Box::new(Shared {
            start: start.addr(),
            len,
            file: file.as_raw_fd(),
            here,
            fetched: AtomicUsize::new(0),
            group,
        });
        let free = |place: &&AtomicPtr<Shared>| {
            let new = (&raw const *shared).cast_mut();
            place
                .compare_exchange(ptr::null_mut(), new, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        };
        if WATCHED.iter().find(free).is_none() {
            return Err(io::Error::other("too many machines from files in one process"));
        }
        let absent =
            Absent { shared: Box::into_raw(shared), source: kept, offset: offset as usize };
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

    /// Lets `Memory` see the chunks of the `len` bytes at `place` in the memory file. Those that are whole in there are
    /// not copied: their contents are to be dropped.
    ///
    /// # Errors
    /// As [`Absent::fetch`].
    pub(crate) fn give_up(&self, place: usize, len: usize) -> io::Result<()> {
        let shared = self.shared();
        let mut chunks = shared.chunks(place, len);
        while let Some(chunk) = chunks.next() {
            let group = shared.group_of(chunk);
            let bytes = group.start * CHUNK..(group.end * CHUNK).min(shared.len);
            if place <= bytes.start && bytes.end <= place + len {
                shared.show(group.clone())?;
            } else {
                shared.fetch(chunk)?;
            }
            chunks.start = group.end;
        }
        Ok(())
    }

    /// Returns the first part of the first `len` bytes of memory, from `place` on, that may not be zero in the
    /// file of the saved machine.
    pub(crate) fn next_data(&self, place: usize, len: usize) -> Range<usize> {
        let data = next_data(&self.source, self.offset + place, self.offset + len);
        data.start - self.offset..data.end - self.offset
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
    fn chunks(&self, place: usize, len: usize) -> Range<usize> {
        place / CHUNK..(place + len).div_ceil(CHUNK).min(self.here.len())
    }

    fn has(&self, chunk: usize) -> bool {
        self.here[chunk].load(Ordering::Acquire)
    }

    /// Copies a chunk, and others with it once many have been copied, to the memory file, and lets `Memory`
    /// see them there. The handler of signals calls this, so it makes only system calls.
    fn fetch(&self, chunk: usize) -> io::Result<()> {
        if self.has(chunk) {
            return Ok(());
        }
        self.group_of(chunk).try_for_each(|chunk| self.fetch_one(chunk))
    }

    /// Returns the chunks that come together with a chunk.
    fn group_of(&self, chunk: usize) -> Range<usize> {
        let group = if self.fetched.load(Ordering::Relaxed) < SINGLE { 1 } else { self.group };
        let first = chunk - chunk % group;
        first..(first + group).min(self.here.len())
    }

    fn fetch_one(&self, chunk: usize) -> io::Result<()> {
        if self.has(chunk) {
            return Ok(());
        }
        let place = chunk * CHUNK;
        let len = CHUNK.min(self.len - place);
        let start = ptr::with_exposed_provenance_mut::<u8>(self.start + place);
        // SAFETY: the bytes are mapped for reading, and nobody writes to them meanwhile: that would fault.
        self.copy(place, unsafe { slice::from_raw_parts(start, len) })?;
        self.show(chunk..chunk + 1)
    }

    /// Lets `Memory` see these chunks in the memory file.
    fn show(&self, chunks: Range<usize>) -> io::Result<()> {
        let place = chunks.start * CHUNK;
        let len = (chunks.end * CHUNK).min(self.len) - place;
        let start = ptr::with_exposed_provenance_mut::<u8>(self.start + place);
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the call replaces pages of `Memory` by others with the same contents, or by zeros where
        // nobody refers to them.
        let mapped = unsafe {
            libc::mmap(start.cast(), len, protection, flags, self.file, place as libc::off_t)
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        for here in &self.here[chunks] {
            let was_here = here.swap(true, Ordering::AcqRel);
            self.fetched.fetch_add((!was_here).into(), Ordering::Relaxed);
        }
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
    watched_at(address).is_some_and(|(shared, chunk)| {
        keep_errno(|| !shared.has(chunk) && wait_until_done(|| shared.fetch(chunk)))
    })
}

/// Returns whether the byte with the host address `address` is still in the file of a saved machine.
///
/// This is for the handler of signals.
pub(crate) fn is_absent(address: usize) -> bool {
    LOOKING.fetch_add(1, Ordering::SeqCst);
    let is_absent = watched_at(address).is_some_and(|(shared, chunk)| !shared.has(chunk));
    LOOKING.fetch_sub(1, Ordering::SeqCst);
    is_absent
}

/// Returns the memory with the host address `address`, and the chunk of it. The caller is one of the threads that are
/// [`LOOKING`], until it needs the memory no more.
fn watched_at<'a>(address: usize) -> Option<(&'a Shared, usize)> {
    WATCHED.iter().find_map(|place| {
        // SAFETY: what is watched lives for as long as a thread is `LOOKING`.
        let shared = unsafe { place.load(Ordering::SeqCst).as_ref() }?;
        let at = address.wrapping_sub(shared.start);
        (at < shared.len).then_some((shared, at / CHUNK))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use ring3_core::memory::HostPages;

    use super::*;
    use crate::memory::host_memory::{GuestMemory, memory_file};
    use crate::signals::Watch;

    /// Whoever reads all of memory need not read the holes of the file.
    #[test]
    fn what_is_in_neither_file_is_known_to_be_zero() {
        const LEN: usize = 1024 * CHUNK;
        let _handler = Watch::new(1, 0).unwrap();
        let source = memory_file(c"saved", PAGE + LEN).unwrap();
        source.write_at(&[1], (PAGE + 300 * CHUNK) as u64).unwrap();
        let memory = GuestMemory::default();
        let mut bytes = memory.copy_of(&source, PAGE as u64, LEN).unwrap();
        for place in [900 * CHUNK, 301 * CHUNK] {
            bytes[place] = 1;
        }
        let (mut place, mut data) = (0, 0);
        let mut found: Vec<usize> = vec![];
        while place < LEN {
            let range = memory.data_from(place, LEN);
            assert!(range.start >= place && range.start <= range.end, "{range:?}");
            found.extend([300, 301, 900].iter().filter(|chunk| range.contains(&(*chunk * CHUNK))));
            data += range.len();
            place = range.end;
        }
        assert_eq!(found, [300, 301, 900]);
        assert!(data < LEN / 2, "{data} of {LEN} bytes");
        drop(bytes);
    }

    /// What is given back is zero in both mappings, and what was not copied yet is not copied for that.
    #[test]
    fn released_pages_are_zero_and_their_neighbours_stay() {
        const LEN: usize = 64 * CHUNK;
        let _handler = Watch::new(1, 0).unwrap();
        let source = memory_file(c"saved", LEN).unwrap();
        source.write_at(&vec![0xa5; LEN], 0).unwrap();
        let memory = GuestMemory::default();
        let mut bytes = memory.copy_of(&source, 0, LEN).unwrap();
        bytes[9 * CHUNK] = 1;
        // From the second page of a chunk to the first one of another.
        let (start, end) = (4 * CHUNK + PAGE, 40 * CHUNK + PAGE);
        memory.release(&mut bytes, start..end);
        let file = memory.file().unwrap();
        assert!(file.has(4 * CHUNK, 37 * CHUNK) && !file.has(41 * CHUNK, 1));
        // What is left of the two chunks at the ends, in units of 512 bytes.
        let kept = file.with(0, 0).unwrap().metadata().unwrap().blocks();
        assert_eq!(kept, ((CHUNK / PAGE) * PAGE / 512) as u64);
        for (page, found) in bytes.chunks(PAGE).enumerate() {
            let value = if (start..end).contains(&(page * PAGE)) { 0 } else { 0xa5 };
            assert!(found.iter().all(|byte| *byte == value), "page {page}");
        }
        bytes[20 * CHUNK] = 5;
        let mut read = [0];
        file.with(20 * CHUNK, 1).unwrap().read_exact_at(&mut read, 20 * CHUNK as u64).unwrap();
        assert_eq!(read, [5]);
    }

    /// More chunks than are copied one by one, in groups of two.
    const LEN: usize = 2 * GROUPS_MAX * CHUNK - PAGE;

    #[test]
    fn chunks_are_fetched_by_writers_and_for_windows() {
        let _handler = Watch::new(1, 0).unwrap();
        let source = memory_file(c"saved", PAGE + LEN).unwrap();
        for place in [0, 5 * CHUNK + 7, LEN - 1] {
            source.write_at(&[0xa5], (PAGE + place) as u64).unwrap();
        }
        let memory = GuestMemory::default();
        let mut bytes = memory.copy_of(&source, PAGE as u64, LEN).unwrap();
        let file = memory.file().unwrap();
        assert_eq!((bytes[0], bytes[1], bytes[LEN - 1]), (0xa5, 0, 0xa5));
        assert!(!file.has(0, 1));
        bytes[1] = 0x5a;
        assert!(file.has(0, CHUNK) && !file.has(0, CHUNK + 1));
        let mut read = [0; 2];
        let windows = file.with(5 * CHUNK, CHUNK).unwrap();
        windows.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, [0xa5, 0x5a]);
        windows.read_exact_at(&mut read, 5 * CHUNK as u64 + 7).unwrap();
        assert_eq!(read, [0xa5, 0]);
        windows.write_at(&[0x77], 5 * CHUNK as u64).unwrap();
        assert_eq!(bytes[5 * CHUNK], 0x77);
        // From now on, others of its group come with a chunk.
        file.with(0, SINGLE * CHUNK).unwrap();
        assert!(!file.has(SINGLE * CHUNK, CHUNK));
        bytes[LEN - 1] += 1;
        assert!(file.has(LEN + PAGE - 2 * CHUNK, 2 * CHUNK - PAGE));
        let mut written = [0];
        let windows = file.with(LEN - 1, 1).unwrap();
        windows.read_exact_at(&mut written, LEN as u64 - 1).unwrap();
        assert_eq!(written, [0xa6]);
        source.read_exact_at(&mut written, (PAGE + LEN) as u64 - 1).unwrap();
        assert_eq!(written, [0xa5], "the file of the saved machine stays as it is");
    }
}
