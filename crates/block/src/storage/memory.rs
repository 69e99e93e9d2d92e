//! Storage in memory.

use std::io::{self, ErrorKind};
use std::sync::{PoisonError, RwLock};

use super::Storage;

/// Storage in memory, for tests and for images that nobody keeps.
#[derive(Debug, Default)]
pub struct Memory(RwLock<Vec<u8>>);

impl Memory {
    /// Upper bound of the size: 1 GiB.
    pub const SIZE_MAX: u64 = 1 << 30;

    /// Returns storage with these bytes.
    pub fn new(bytes: Vec<u8>) -> Memory {
        Memory(RwLock::new(bytes))
    }

    /// Returns a copy of the bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn end(offset: u64, len: u64) -> io::Result<usize> {
        let end = offset.checked_add(len).filter(|end| *end <= Memory::SIZE_MAX);
        end.map(|end| end as usize).ok_or_else(|| ErrorKind::FileTooLarge.into())
    }

    fn change<T>(&self, end: usize, act: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() < end {
            all.resize(end, 0);
        }
        act(&mut all)
    }
}

impl Storage for Memory {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let end = Memory::end(offset, bytes.len() as u64).ok();
        let there = end.and_then(|end| all.get(offset as usize..end));
        bytes.copy_from_slice(there.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = Memory::end(offset, bytes.len() as u64)?;
        self.change(end, |all| all[offset as usize..end].copy_from_slice(bytes));
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.read().unwrap_or_else(PoisonError::into_inner).len() as u64)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let size = Memory::end(0, size)?;
        self.change(0, |all| all.resize(size, 0));
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = Memory::end(offset, len)?;
        self.change(end, |all| all[offset as usize..end].fill(0));
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn run_at(&self, _offset: u64, end: u64) -> io::Result<(bool, u64)> {
        Ok((true, end))
    }
}
