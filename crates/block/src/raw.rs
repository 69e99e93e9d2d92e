//! Raw images: the sectors of the disk in order, and nothing else.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Fault, Result};
use crate::format::{Below, Details, Driver, Extent, Kind};
use crate::preallocation::Preallocation;
use crate::storage::{Storage, read_padded};

/// Number of bytes in a sector.
const SECTOR: u64 = 512;

/// A raw image. The disk has the size of its file, rounded up to a whole sector as in QEMU.
#[derive(Debug)]
pub(crate) struct Raw {
    storage: Box<dyn Storage>,
    size: AtomicU64,
}

impl Raw {
    pub(crate) fn open(storage: Box<dyn Storage>) -> io::Result<Raw> {
        let size = AtomicU64::new(storage.size()?.next_multiple_of(SECTOR));
        Ok(Raw { storage, size })
    }
}

impl Driver for Raw {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn extent(&self, offset: u64, max: u64) -> Result<Extent> {
        let (is_data, end) = self.storage.run_at(offset, offset + max)?;
        let kind =
            if is_data { Kind::Data { at: Some(offset) } } else { Kind::Zero { at: Some(offset) } };
        Ok(Extent { kind, len: end - offset })
    }

    fn read(&self, bytes: &mut [u8], offset: u64, _below: &dyn Below) -> Result<()> {
        Ok(read_padded(&*self.storage, bytes, offset)?)
    }

    fn write(&self, bytes: &[u8], offset: u64, _below: &dyn Below) -> Result<()> {
        Ok(self.storage.write_at(bytes, offset)?)
    }

    fn read_at_once(&self, bytes: &mut [u8], offset: u64) -> bool {
        self.storage.read_at_once(bytes, offset)
    }

    fn write_at_once(&self, bytes: &[u8], offset: u64) -> bool {
        self.storage.write_at_once(bytes, offset)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _below: &dyn Below) -> Result<()> {
        Ok(self.storage.write_zeroes(offset, len)?)
    }

    fn write_zeroes_in_place(&self, offset: u64, len: u64, _below: &dyn Below) -> Result<()> {
        Ok(self.storage.write_zeroes_in_place(offset, len)?)
    }

    fn discard(&self, offset: u64, len: u64, _below: &dyn Below) -> Result<()> {
        Ok(self.storage.discard(offset, len)?)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.storage.flush()?)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.storage.file()
    }

    fn preallocate(&self, offset: u64, mode: Preallocation) -> Result<()> {
        let len = self.size().saturating_sub(offset);
        match mode {
            Preallocation::Off => Ok(()),
            Preallocation::Metadata => {
                Err(Fault::refused("Unsupported preallocation mode: metadata"))
            }
            Preallocation::Falloc | Preallocation::Full => {
                Ok(self.storage.take_room(offset, len, mode == Preallocation::Full)?)
            }
        }
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.storage.set_size(size)?;
        self.size.store(size.next_multiple_of(SECTOR), Ordering::Relaxed);
        Ok(())
    }

    fn details(&self) -> Details {
        Details::default()
    }

    fn allocated(&self) -> Option<u64> {
        self.storage.allocated()
    }
}
