//! Disks whose sectors follow each other in a file: fixed VHD images, and parts of VMDK images.

use crate::error::{Fault, Result};
use crate::format::{Below, Details, Driver, Extent, Identity, Kind};
use crate::storage::{Storage, read_padded};

/// The disk in a file, from byte `start` on.
#[derive(Debug)]
pub(crate) struct Flat {
    storage: Box<dyn Storage>,
    start: u64,
    size: u64,
    specific: Vec<(&'static str, String)>,
    identity: Option<Identity>,
}

impl Flat {
    /// Returns the disk of `size` bytes from byte `start` of `storage` on. The sum of both must not overflow.
    pub(crate) fn new(
        storage: Box<dyn Storage>,
        start: u64,
        size: u64,
        specific: Vec<(&'static str, String)>,
    ) -> Flat {
        Flat { storage, start, size, specific, identity: None }
    }

    /// Returns the disk with this identity.
    pub(crate) fn known_as(self, identity: Identity) -> Flat {
        Flat { identity: Some(identity), ..self }
    }
}

impl Driver for Flat {
    fn size(&self) -> u64 {
        self.size
    }

    fn extent(&self, offset: u64, max: u64) -> Result<Extent> {
        let at = self.start + offset;
        let (is_data, end) = self.storage.run_at(at, at + max)?;
        let kind = if is_data { Kind::Data { at: Some(at) } } else { Kind::Zero { at: Some(at) } };
        Ok(Extent { kind, len: end - at })
    }

    fn read(&self, bytes: &mut [u8], offset: u64, _below: &dyn Below) -> Result<()> {
        Ok(read_padded(&*self.storage, bytes, self.start + offset)?)
    }

    fn write(&self, bytes: &[u8], offset: u64, _below: &dyn Below) -> Result<()> {
        Ok(self.storage.write_at(bytes, self.start + offset)?)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _below: &dyn Below) -> Result<()> {
        Ok(self.storage.write_zeroes(self.start + offset, len)?)
    }

    fn write_zeroes_in_place(&self, offset: u64, len: u64, _below: &dyn Below) -> Result<()> {
        Ok(self.storage.write_zeroes_in_place(self.start + offset, len)?)
    }

    fn discard(&self, offset: u64, len: u64, _below: &dyn Below) -> Result<()> {
        Ok(self.storage.discard(self.start + offset, len)?)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.storage.flush()?)
    }

    fn resize(&self, _size: u64) -> Result<()> {
        Err(Fault::unsupported("the size of fixed images cannot be changed; convert it to qcow2"))
    }

    fn details(&self) -> Details {
        Details { specific: self.specific.clone(), ..Details::default() }
    }

    fn identity(&self) -> Option<Identity> {
        self.identity
    }

    fn allocated(&self) -> Option<u64> {
        self.storage.allocated()
    }
}
