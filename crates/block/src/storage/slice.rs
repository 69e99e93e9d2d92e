//! A part of other storage.

use std::io::{self, ErrorKind};
use std::path::Path;

use super::Storage;
use crate::error::{Fault, Result};

/// The bytes of other storage from `start` on. The size is fixed.
#[derive(Debug)]
pub(crate) struct Slice {
    storage: Box<dyn Storage>,
    start: u64,
    len: u64,
}

impl Slice {
    /// Returns the part with `len` bytes from `start` on, or with all bytes from there on.
    pub(crate) fn of(storage: Box<dyn Storage>, start: u64, len: Option<u64>) -> Result<Slice> {
        let there = storage.size()?;
        let left = there.checked_sub(start);
        match left.map(|left| (left, len.unwrap_or(left))) {
            Some((left, len)) if len <= left => Ok(Slice { storage, start, len }),
            _ => Err(Fault::refused(format!(
                "the part from byte {start} on does not fit into its {there} bytes"
            ))),
        }
    }

    /// Returns the offset of `len` bytes in the other storage. Fails if they are not in this part.
    fn at(&self, offset: u64, len: u64) -> io::Result<u64> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if is_inside { Ok(self.start + offset) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }
}

impl Storage for Slice {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.storage.read_at(bytes, self.at(offset, bytes.len() as u64)?)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.storage.write_at(bytes, self.at(offset, bytes.len() as u64)?)
    }

    fn flush(&self) -> io::Result<()> {
        self.storage.flush()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let message = format!("a part of a file has {} bytes, and {size} are needed", self.len);
        if size <= self.len { Ok(()) } else { Err(io::Error::other(message)) }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.storage.write_zeroes(self.at(offset, len)?, len)
    }

    fn write_zeroes_in_place(&self, offset: u64, len: u64) -> io::Result<()> {
        self.storage.write_zeroes_in_place(self.at(offset, len)?, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.storage.discard(self.at(offset, len)?, len)
    }

    fn run_at(&self, offset: u64, end: u64) -> io::Result<(bool, u64)> {
        let (is_data, to) =
            self.storage.run_at(self.start + offset, self.start.saturating_add(end))?;
        Ok((is_data, to - self.start))
    }

    fn path(&self) -> Option<&Path> {
        self.storage.path()
    }

    fn allocated(&self) -> Option<u64> {
        self.storage.allocated()
    }
}
