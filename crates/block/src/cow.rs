//! The "cow" format of QEMU before version 2.2, which came from User Mode Linux (block/cow.c there).
//!
//! Numbers are big-endian. The header is followed by a bit for each sector of the disk. If it is set, the
//! sector is in this file, at its offset on the disk. Otherwise the sector is in the image below. A sector's
//! bit is written to the file by the next flush, after the storage has flushed the sector.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

use crate::bytes::{be32, be64};
use crate::error::{Fault, Result};
use crate::format::{BackingName, Below, Details, Driver, Extent, Kind};
use crate::storage::{Storage, read_padded};

/// "OOOM", and version 2.
const MAGIC: &[u8; 8] = b"OOOM\0\0\0\x02";
/// Number of bytes for the name of the image below.
const NAME_LEN: usize = 1024;
/// The layouts of the header by compilers for 64-bit and for 32-bit machines: the offset of the disk's size,
/// and the header's length.
const LAYOUTS: [(usize, usize); 2] = [(1040, 1056), (1036, 1048)];
/// Number of bytes in a sector.
const SECTOR: u64 = 512;
/// Upper bound of the bytes for the bits: a disk of 256 GiB.
const BITS_MAX: u64 = 64 << 20;

/// An image of this format.
#[derive(Debug)]
pub(crate) struct Cow {
    storage: Box<dyn Storage>,
    size: u64,
    /// Offset of the bits in the file.
    bits_at: u64,
    /// Offset of the first sector in the file.
    data: u64,
    backing: Option<BackingName>,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    bits: Vec<u8>,
    /// Pieces of 512 bytes of the bits that differ from the file.
    dirty: BTreeSet<usize>,
}

impl State {
    /// Returns whether the sectors from `offset` on are in this image, and for how many bytes, at most `max`,
    /// this is so.
    fn run(&self, offset: u64, max: u64) -> (bool, u64) {
        let is_here = |sector: u64| {
            self.bits.get((sector / 8) as usize).is_some_and(|byte| byte >> (sector % 8) & 1 != 0)
        };
        let (first, last) = (offset / SECTOR, (offset + max - 1) / SECTOR);
        let here = is_here(first);
        let other = (first + 1..=last).find(|sector| is_here(*sector) != here);
        (here, other.map_or(max, |sector| sector * SECTOR - offset))
    }
}

/// Returns whether `head` is the beginning of an image of this format.
pub(crate) fn is_one(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

impl Cow {
    /// Opens the image in `storage`.
    pub(crate) fn open(storage: Box<dyn Storage>) -> Result<Cow> {
        let mut head = vec![0; LAYOUTS[0].1];
        read_padded(&*storage, &mut head, 0)?;
        if !is_one(&head) {
            return Err(Fault::refused("it is not a cow image"));
        }
        let layout =
            LAYOUTS.into_iter().find(|(size_at, _)| u64::from(be32(&head, size_at + 8)) == SECTOR);
        let (size_at, header) =
            layout.ok_or_else(|| Fault::damaged("its sectors do not have 512 bytes"))?;
        let size = be64(&head, size_at) / SECTOR * SECTOR;
        let len = (size / SECTOR).div_ceil(8);
        if len > BITS_MAX {
            return Err(Fault::damaged(format!("its header says that the disk has {size} bytes")));
        }
        let bits_at = header as u64;
        if storage.size()? < bits_at + len {
            return Err(Fault::damaged("the file ends within the bitmap of its sectors"));
        }
        let mut bits = vec![0; len as usize];
        storage.read_at(&mut bits, bits_at)?;
        let name = head[8..8 + NAME_LEN].split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8(name.to_vec())
            .map_err(|_| Fault::unsupported("the name of its backing file is not in UTF-8"))?;
        let backing = (!name.is_empty()).then_some(BackingName { name, format: None });
        let data = (bits_at + len).next_multiple_of(SECTOR);
        Ok(Cow {
            storage,
            size,
            bits_at,
            data,
            backing,
            state: RwLock::new(State { bits, dirty: BTreeSet::new() }),
        })
    }

    /// Makes an image of `size` bytes.
    pub(crate) fn create(
        storage: &dyn Storage,
        size: u64,
        backing: Option<&BackingName>,
    ) -> Result<()> {
        let size = size.next_multiple_of(SECTOR);
        let len = (size / SECTOR).div_ceil(8);
        if len > BITS_MAX {
            return Err(Fault::refused(format!(
                "a cow image has at most {} bytes",
                BITS_MAX * 8 * SECTOR
            )));
        }
        let (size_at, header) = LAYOUTS[0];
        let mut head = vec![0; header];
        head[..8].copy_from_slice(MAGIC);
        if let Some(BackingName { name, .. }) = backing {
            // The name ends with a zero byte.
            if name.len() >= NAME_LEN {
                return Err(Fault::refused(
                    "the name of the backing file does not fit into the header",
                ));
            }
            head[8..8 + name.len()].copy_from_slice(name.as_bytes());
        }
        head[size_at..size_at + 8].copy_from_slice(&size.to_be_bytes());
        head[size_at + 8..size_at + 12].copy_from_slice(&(SECTOR as u32).to_be_bytes());
        storage.set_size((header as u64 + len).next_multiple_of(SECTOR))?;
        storage.flush()?;
        storage.write_at(&head, 0)?;
        Ok(storage.flush()?)
    }

    /// Copies the sector that contains `offset` from the image below, unless this image has it.
    fn complete(&self, state: &State, offset: u64, below: &dyn Below) -> Result<()> {
        let start = offset / SECTOR * SECTOR;
        if !state.run(start, 1).0 {
            let mut bytes = [0; SECTOR as usize];
            below.read(&mut bytes, start)?;
            self.storage.write_at(&bytes, self.data + start)?;
        }
        Ok(())
    }
}

impl Driver for Cow {
    fn size(&self) -> u64 {
        self.size
    }

    fn extent(&self, offset: u64, max: u64) -> Result<Extent> {
        let (here, len) =
            self.state.read().unwrap_or_else(PoisonError::into_inner).run(offset, max);
        Ok(Extent {
            kind: if here { Kind::Data { at: Some(self.data + offset) } } else { Kind::Absent },
            len,
        })
    }

    fn read(&self, bytes: &mut [u8], offset: u64, below: &dyn Below) -> Result<()> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let (mut offset, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (here, len) = state.run(offset, rest.len() as u64);
            let (part, after) = rest.split_at_mut(len as usize);
            if here {
                read_padded(&*self.storage, part, self.data + offset)?;
            } else {
                below.read(part, offset)?;
            }
            (offset, rest) = (offset + len, after);
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64, below: &dyn Below) -> Result<()> {
        let end = offset + bytes.len() as u64;
        {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            if state.run(offset, bytes.len() as u64) == (true, bytes.len() as u64) {
                return Ok(self.storage.write_at(bytes, self.data + offset)?);
            }
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        // The first and the last sector may be written only in part.
        if !offset.is_multiple_of(SECTOR) {
            self.complete(&state, offset, below)?;
        }
        if !end.is_multiple_of(SECTOR) {
            self.complete(&state, end, below)?;
        }
        self.storage.write_at(bytes, self.data + offset)?;
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            let byte = (sector / 8) as usize;
            state.bits[byte] |= 1 << (sector % 8);
            state.dirty.insert(byte / SECTOR as usize);
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, below: &dyn Below) -> Result<()> {
        let mut offset = offset;
        let end = offset + len;
        let zeros = vec![0; len.min(64 << 10) as usize];
        while offset < end {
            let (here, len) =
                self.state.read().unwrap_or_else(PoisonError::into_inner).run(offset, end - offset);
            let mut done = len;
            if here {
                self.storage.write_zeroes(self.data + offset, len)?;
            } else if below.size() > offset {
                done = len.min(zeros.len() as u64);
                self.write(&zeros[..done as usize], offset, below)?;
            }
            offset += done;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.storage.flush()?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.dirty.is_empty() {
            return Ok(());
        }
        // Data that were written after the first flush must be flushed before their bits are written.
        self.storage.flush()?;
        for piece in &state.dirty {
            let start = piece * SECTOR as usize;
            let end = (start + SECTOR as usize).min(state.bits.len());
            self.storage.write_at(&state.bits[start..end], self.bits_at + start as u64)?;
        }
        self.storage.flush()?;
        state.dirty.clear();
        Ok(())
    }

    fn is_behind(&self) -> bool {
        !self.state.read().unwrap_or_else(PoisonError::into_inner).dirty.is_empty()
    }

    fn details(&self) -> Details {
        Details { cluster_size: Some(SECTOR), ..Details::default() }
    }

    fn backing(&self) -> Option<BackingName> {
        self.backing.clone()
    }

    fn allocated(&self) -> Option<u64> {
        self.storage.allocated()
    }
}
