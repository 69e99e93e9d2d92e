//! An access to guest memory for which the host has no page.
//!
//! Guest memory is a file, in which the host puts a page at the first access. If it has none, since a file system is
//! full for example, the access raises SIGBUS. Translated code is left then, like at any other fault, and the
//! interpreter executes the instruction. Its access, or that of a device, waits in the handler of signals until the
//! host has a page. The instruction goes on then as if nothing had happened, so nothing is lost.
//!
//! This is the last resort: a machine looks often enough at what the host can still give, and stands still before it
//! comes to this. Nobody can talk to a machine that waits here.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::host_memory::PAGE;

/// Upper bound of the memories in one process for which accesses wait.
const MEMORIES_MAX: usize = 64;
/// The time between two attempts to get a page, in nanoseconds.
const PAUSE_NANOS: i64 = 10_000_000;
/// What is said when a machine cannot be made for lack of memory.
const NO_MEMORY: &str = "ring3: the host has no memory for this machine: free some, give the machine less (--memory), \
                         or memory from elsewhere (--memory-path)\n";

/// The file of an [`Entry`] that is free.
const NONE: RawFd = -1;

/// What the handler of signals knows of a memory.
#[derive(Debug)]
struct Entry {
    /// The address of the first byte, or 0 if no accesses wait.
    start: AtomicUsize,
    len: AtomicUsize,
    /// The file, which is open for as long as this is not [`NONE`].
    file: AtomicI32,
    /// The threads in which the handler looks here.
    looking: AtomicUsize,
}

static MEMORIES: [Entry; MEMORIES_MAX] = [const {
    Entry {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        file: AtomicI32::new(NONE),
        looking: AtomicUsize::new(0),
    }
}; MEMORIES_MAX];

/// Whether accesses wait. Until then they end the process.
static MAY_WAIT: AtomicBool = AtomicBool::new(false);

/// How often an access has waited.
#[cfg(test)]
static PAUSES: AtomicUsize = AtomicUsize::new(0);

/// Lets accesses to guest memory wait for which the host has no page, from now on. Before, they end the process with a
/// message, since a machine that is not complete is worth nothing.
pub fn let_accesses_wait() {
    MAY_WAIT.store(true, Ordering::Relaxed);
}

/// A memory for whose pages the handler of signals waits, for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Watched(&'static Entry);

impl Watched {
    /// Watches the `len` bytes at `start`, which are all of `file`. None if too many are watched already.
    pub(crate) fn new(start: *mut u8, len: usize, file: &File) -> Option<Watched> {
        static CHOICE: Mutex<()> = Mutex::new(());
        // Under the lock nobody else takes the same entry.
        let _choice = CHOICE.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = MEMORIES.iter().find(|entry| entry.file.load(Ordering::SeqCst) == NONE)?;
        entry.file.store(file.as_raw_fd(), Ordering::SeqCst);
        entry.len.store(len, Ordering::SeqCst);
        entry.start.store(start.addr(), Ordering::SeqCst);
        Some(Watched(entry))
    }

    /// Makes the handler forget these addresses.
    pub(crate) fn retire(&self) {
        self.0.start.store(0, Ordering::SeqCst);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.retire();
        while self.0.looking.load(Ordering::SeqCst) != 0 {
            thread::yield_now();
        }
        self.0.file.store(NONE, Ordering::SeqCst);
    }
}

/// Makes the host put a page into `file` at `place`, a multiple of a page within it.
pub(super) fn allocate(file: RawFd, place: usize) -> io::Result<()> {
    let (place, len) = (place as libc::off_t, PAGE as libc::off_t);
    // SAFETY: the call changes no bytes and accesses no memory.
    if unsafe { libc::fallocate(file, libc::FALLOC_FL_KEEP_SIZE, place, len) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Calls `attempt` until it does not fail for lack of memory. Returns whether it has succeeded.
///
/// This is for the handler of signals.
pub(super) fn wait_until_done(attempt: impl Fn() -> io::Result<()>) -> bool {
    loop {
        match attempt().map_err(|error| error.raw_os_error()) {
            Ok(()) => return true,
            Err(Some(libc::ENOSPC | libc::ENOMEM | libc::EDQUOT))
                if MAY_WAIT.load(Ordering::Relaxed) =>
            {
                #[cfg(test)]
                PAUSES.fetch_add(1, Ordering::SeqCst);
                let pause = libc::timespec { tv_sec: 0, tv_nsec: PAUSE_NANOS };
                // SAFETY: the call reads the structure, and has nowhere to write to.
                unsafe { libc::nanosleep(&raw const pause, std::ptr::null_mut()) };
            }
            Err(Some(libc::ENOSPC | libc::ENOMEM | libc::EDQUOT)) => {
                // SAFETY: the kernel reads bytes of a string; and a handler may end the process.
                unsafe {
                    libc::write(libc::STDERR_FILENO, NO_MEMORY.as_ptr().cast(), NO_MEMORY.len());
                    libc::_exit(1);
                }
            }
            Err(Some(libc::EINTR)) => {}
            Err(_) => return false,
        }
    }
}

/// Calls `call`, which makes system calls, and leaves the thread's error number as it was.
pub(super) fn keep_errno<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: the location is the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    let result = call();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    result
}

/// Waits until the host has put a page at `address`, if it belongs to a memory. Returns false if the access that has
/// failed there is none that can wait.
///
/// This is for the handler of signals, in the thread that has made the access.
pub(crate) fn wait_at(address: usize) -> bool {
    MEMORIES.iter().any(|entry| {
        entry.looking.fetch_add(1, Ordering::SeqCst);
        let start = entry.start.load(Ordering::SeqCst);
        let at = address.wrapping_sub(start);
        let is_here = start != 0 && at < entry.len.load(Ordering::SeqCst);
        let file = entry.file.load(Ordering::SeqCst);
        let is_done = is_here && keep_errno(|| wait_until_done(|| allocate(file, at - at % PAGE)));
        entry.looking.fetch_sub(1, Ordering::SeqCst);
        is_done
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use ring3_core::memory::HostPages;

    use super::*;
    use crate::memory::absent::CHUNK;
    use crate::memory::host_memory::{GuestMemory, memory_file};
    use crate::signals;

    /// Pages of the file system.
    const PAGES: usize = 64;

    /// Lets this thread see a file system of [`PAGES`] at `place`. Returns false if the host does not allow it.
    fn mount(place: &Path) -> bool {
        use std::os::unix::ffi::OsStrExt;
        let place = std::ffi::CString::new(place.as_os_str().as_bytes()).unwrap();
        let options = std::ffi::CString::new(format!("size={}", PAGES * PAGE)).unwrap();
        let none = std::ptr::null();
        // SAFETY: the calls read strings, and change only what this thread sees.
        unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    none,
                    c"/".as_ptr(),
                    none,
                    libc::MS_REC | libc::MS_PRIVATE,
                    none.cast(),
                ) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    place.as_ptr(),
                    c"tmpfs".as_ptr(),
                    0,
                    options.as_ptr().cast(),
                ) == 0
        }
    }

    /// Fills the file system of `memory` by `write`, which waits in the middle until a file is gone.
    fn wait_for_room(ballast: &File, write: impl FnOnce() + Send) {
        thread::scope(|scope| {
            let before = PAUSES.load(Ordering::SeqCst);
            let writer = scope.spawn(write);
            while PAUSES.load(Ordering::SeqCst) == before {
                assert!(!writer.is_finished(), "there was room for all");
                thread::yield_now();
            }
            ballast.set_len(0).unwrap();
            writer.join().unwrap();
        });
    }

    fn accesses_wait_in(directory: &Path) {
        signals::install().unwrap();
        let_accesses_wait();
        let len = 2 * PAGES * PAGE;
        let memory = GuestMemory::in_directory(Some(directory)).unwrap();
        let mut bytes = memory.zeroed(len).unwrap();
        let ballast = File::create_new(directory.join("ballast")).unwrap();
        ballast.write_all_at(&vec![1; PAGES / 2 * PAGE], 0).unwrap();
        assert_eq!(memory.room(), Some((PAGES / 2 * PAGE) as u64));
        let held = PAGES - 8;
        wait_for_room(&ballast, || {
            bytes
                .chunks_mut(PAGE)
                .take(held)
                .enumerate()
                .for_each(|(page, bytes)| bytes.fill(page as u8));
        });
        assert_eq!(memory.held(), Some((held * PAGE) as u64));
        let is_right = |(page, bytes): (usize, &[u8])| bytes.iter().all(|byte| *byte == page as u8);
        assert!(bytes.chunks(PAGE).take(held).enumerate().all(is_right));
        assert!(
            bytes[held * PAGE..(held + 4) * PAGE].iter().all(|byte| *byte == 0),
            "reads need pages, too"
        );

        // What comes from the file of a saved machine waits in the same way.
        memory.release(&mut bytes, 0..len);
        let saved = memory_file(c"saved", len).unwrap();
        saved.write_all_at(&vec![7; len], 0).unwrap();
        let mut bytes = memory.copy_of(&saved, 0, len).unwrap();
        ballast.write_all_at(&vec![1; PAGES / 2 * PAGE], 0).unwrap();
        wait_for_room(&ballast, || {
            bytes.chunks_mut(CHUNK).take(held * PAGE / CHUNK).for_each(|bytes| bytes[5] = 9);
        });
        assert_eq!((bytes[5], bytes[6], bytes[len - 1]), (9, 7, 7));
    }

    #[test]
    fn accesses_wait_for_room_in_the_file_system() {
        let directory = std::env::temp_dir().join(format!("ring3-room-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let place = &directory;
        let is_mounted = thread::scope(|scope| {
            let tried = scope.spawn(|| mount(place).then(|| accesses_wait_in(place)).is_some());
            tried.join().unwrap()
        });
        fs::remove_dir(&directory).unwrap();
        if !is_mounted {
            ring3_skipped::host("this user may not mount file systems");
        }
    }

    #[test]
    fn unfit_directories_are_refused() {
        let refused = |path: &str| GuestMemory::in_directory(Some(Path::new(path))).unwrap_err();
        assert_eq!(refused("/nowhere").kind(), io::ErrorKind::NotFound);
        assert_eq!(refused("/dev/null").kind(), io::ErrorKind::NotADirectory);
        assert_eq!(refused("/proc").kind(), io::ErrorKind::Unsupported);
    }
}
