//! Storage for the bytes of an image: a file or block device of the host, or memory.
//!
//! Formats know nothing but this trait, so a test can give them storage that loses everything that was not
//! flushed.

mod direct;
mod host;
mod locks;
mod memory;
mod slice;

use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

pub use host::HostFile;
pub use memory::Memory;
pub(crate) use slice::Slice;

/// The options for opening a file of the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Access {
    /// Whether to open it for writing too.
    pub writes: bool,
    /// Whether to open it without locks, although another process may be writing to it. Only for reading.
    pub shares: bool,
    /// Whether to bypass the host's cache (`O_DIRECT`).
    pub direct: bool,
    /// Whether a flush does nothing, so that after a failure of the host the file may contain anything.
    pub no_flush: bool,
}

/// Bytes that several threads can read and write at offsets.
pub trait Storage: Debug + Send + Sync {
    /// Reads all of `bytes` from `offset` on. Fails with an error of kind `UnexpectedEof` if the storage ends
    /// before.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` from `offset` on. The storage grows if needed. The bytes survive a failure of
    /// the host only after the next [`Storage::flush`].
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Reads all of `bytes`, if this needs no waiting for the host. Otherwise returns false, and `bytes` may
    /// contain anything.
    fn read_at_once(&self, _bytes: &mut [u8], _offset: u64) -> bool {
        false
    }

    /// Writes all of `bytes`, if this needs no waiting for the host. Otherwise returns false, and a part may
    /// have been written.
    fn write_at_once(&self, _bytes: &[u8], _offset: u64) -> bool {
        false
    }

    /// Returns once all that was written before would survive a failure of the host.
    fn flush(&self) -> io::Result<()>;

    /// Returns the size in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Changes the size to `size` bytes. New bytes are zeros.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Fills a range with zeros. The storage grows if the range ends after it.
    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Fills a range with zeros as [`Storage::write_zeroes`] does, but keeps its room, or takes room if the
    /// storage can.
    fn write_zeroes_in_place(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write_zeroes(offset, len)
    }

    /// Takes room on the host for a range that reads as zeros. The storage grows if the range ends after it.
    /// Writes the zeros if `writes` is set, or if there is no other way.
    fn take_room(&self, offset: u64, len: u64, _writes: bool) -> io::Result<()> {
        write_zero_bytes(self, offset, len)
    }

    /// Tells the storage that a range is not needed any more. It reads as zeros or as before afterwards.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Returns whether there are data at `offset` or a hole, and where these end, at most `end`.
    fn run_at(&self, offset: u64, end: u64) -> io::Result<(bool, u64)>;

    /// Returns the path, if the storage is a file.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Returns the file, if all bytes can be read and written there at the same offsets.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the number of bytes that the storage takes on the host, if this is known.
    fn allocated(&self) -> Option<u64> {
        None
    }
}

/// Storage that has other users too.
impl<S: Storage> Storage for Arc<S> {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        (**self).write_at(bytes, offset)
    }

    fn read_at_once(&self, bytes: &mut [u8], offset: u64) -> bool {
        (**self).read_at_once(bytes, offset)
    }

    fn write_at_once(&self, bytes: &[u8], offset: u64) -> bool {
        (**self).write_at_once(bytes, offset)
    }

    fn flush(&self) -> io::Result<()> {
        (**self).flush()
    }

    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        (**self).set_size(size)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).write_zeroes(offset, len)
    }

    fn write_zeroes_in_place(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).write_zeroes_in_place(offset, len)
    }

    fn take_room(&self, offset: u64, len: u64, writes: bool) -> io::Result<()> {
        (**self).take_room(offset, len, writes)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).discard(offset, len)
    }

    fn run_at(&self, offset: u64, end: u64) -> io::Result<(bool, u64)> {
        (**self).run_at(offset, end)
    }

    fn path(&self) -> Option<&Path> {
        (**self).path()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        (**self).file()
    }

    fn allocated(&self) -> Option<u64> {
        (**self).allocated()
    }
}

/// Number of bytes of zeros that are written at once.
const ZEROS: u64 = 1 << 20;

/// Fills a range with zeros by writing them.
fn write_zero_bytes(storage: &(impl Storage + ?Sized), offset: u64, len: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS.min(len) as usize];
    let end = offset.checked_add(len).ok_or(ErrorKind::FileTooLarge)?;
    for at in (offset..end).step_by(ZEROS as usize) {
        storage.write_at(&zeros[..(end - at).min(ZEROS) as usize], at)?;
    }
    Ok(())
}

/// Reads `bytes` from `offset` on. Bytes after the end of the storage are zeros.
pub(crate) fn read_padded(storage: &dyn Storage, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    match storage.read_at(bytes, offset) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            let there = storage.size()?.saturating_sub(offset).min(bytes.len() as u64) as usize;
            let (inside, behind) = bytes.split_at_mut(there);
            behind.fill(0);
            if inside.is_empty() { Ok(()) } else { storage.read_at(inside, offset) }
        }
        result => result,
    }
}
