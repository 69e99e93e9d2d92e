//! What holds the bytes of an image: a file or block device of the host, or memory.
//!
//! Formats know nothing but this trait, so that a test can put storage beneath them that loses
//! whatever was not flushed.

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

/// How a file of the host is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Access {
    /// For writing too.
    pub writes: bool,
    /// Without locks: another process may be writing to it. Only for reading.
    pub shares: bool,
    /// Past the host's cache (`O_DIRECT`).
    pub direct: bool,
    /// A flush does nothing: what there is after a crash of the host is anything.
    pub no_flush: bool,
}

/// Bytes that are read and written at offsets, by several threads.
pub trait Storage: Debug + Send + Sync {
    /// Reads all of `bytes` from `offset` on; an error of kind `UnexpectedEof` where the storage ends before.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` from `offset` on; the storage grows where it ends before. It is not kept for certain
    /// before the next [`Storage::flush`].
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Reads all of `bytes`, if that needs no waiting for the host. False if it did not; `bytes` then are anything.
    fn read_at_once(&self, _bytes: &mut [u8], _offset: u64) -> bool {
        false
    }

    /// Writes all of `bytes`, if that needs no waiting for the host. False if it did not, but perhaps a part of it.
    fn write_at_once(&self, _bytes: &[u8], _offset: u64) -> bool {
        false
    }

    /// Comes back when all that was written before is kept, whatever happens to the host.
    fn flush(&self) -> io::Result<()>;

    /// Its size in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Makes it that many bytes long; new ones are zeros.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Makes zeros of that range, which may end behind the storage: it then grows.
    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()>;

    /// The same, and room is kept for that range, or made where the storage can.
    fn write_zeroes_in_place(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write_zeroes(offset, len)
    }

    /// Takes room on the host for a range that reads as zeros, and may end behind the storage: it then grows. By writing them where
    /// `writes` is set, or where there is no other way.
    fn take_room(&self, offset: u64, len: u64, _writes: bool) -> io::Result<()> {
        write_zero_bytes(self, offset, len)
    }

    /// A hint that the bytes there are not needed any more. What is read there afterwards is zeros or what was there.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Whether there are data at `offset` or a hole, and where that ends (at most `end`).
    fn run_at(&self, offset: u64, end: u64) -> io::Result<(bool, u64)>;

    /// The file, where it is one.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Where it is a file of the host, that to read from and write to by offset.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Bytes that it takes on the host, where that is known.
    fn allocated(&self) -> Option<u64> {
        None
    }
}

/// Storage that is used from elsewhere too.
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

/// Bytes of zeros that are written at once.
const ZEROS: u64 = 1 << 20;

/// Writes zeros to a range.
fn write_zero_bytes(storage: &(impl Storage + ?Sized), offset: u64, len: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS.min(len) as usize];
    let end = offset.checked_add(len).ok_or(ErrorKind::FileTooLarge)?;
    for at in (offset..end).step_by(ZEROS as usize) {
        storage.write_at(&zeros[..(end - at).min(ZEROS) as usize], at)?;
    }
    Ok(())
}

/// Reads `bytes` at `offset`; what lies behind the end of the storage is zeros.
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
