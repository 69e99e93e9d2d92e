//! The common part of VDI, VHD, VMDK and images of Bochs: the disk is divided into blocks of one size, and a
//! table tells the place of each block.
//!
//! The whole table is in memory. A new block goes to the end of the file. Its entry is written to the file by
//! the next flush, after the storage has flushed the block.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::bytes::pieces;
use crate::check::{Repair, Report};
use crate::error::{Fault, Result};
use crate::format::{BackingName, Below, Details, Driver, Extent, Identity, Kind};
use crate::storage::{Storage, read_padded};

/// Upper bound of the entries in a table: 64 MiB.
pub(crate) const ENTRIES_MAX: u64 = 16 << 20;
/// Number of entries that are written together if one of them has changed: a sector of the table.
const GROUP: usize = 128;
/// Zeros are written in pieces of this number of bytes.
const ZEROS: u64 = 64 << 10;

/// The place of a block, according to its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The block is not in the image.
    Absent,
    /// The block reads as zeros.
    Zero,
    /// The block begins at this byte of the file.
    At(u64),
    /// The block is compressed, and begins at this byte of the file.
    Packed(u64),
}

/// The way in which a format arranges its table and its blocks. Methods that are needed only for writing fail
/// by default, since some formats are only read.
pub(crate) trait Layout: Debug + Send + Sync {
    /// Returns the meaning of an entry.
    fn place(&self, entry: u32) -> Place;

    /// Returns the entry of a block at byte `at` of the file, or None if no entry can tell this place.
    fn entry(&self, _at: u64) -> Option<u32> {
        None
    }

    /// Returns the number of bytes before the data of a block. They have a bit for each sector, which new
    /// blocks set.
    fn bitmap_len(&self) -> u64 {
        0
    }

    /// Returns the offset in the file of the bits that tell which sectors of a block are in this image. The
    /// others are in the image below. Returns None if the whole block is in this image. The block is the
    /// `index`th one of the disk, has this `entry`, and begins at byte `at` of the file.
    fn bits_at(&self, _entry: u32, _at: u64, _index: usize) -> Option<u64> {
        None
    }

    /// Returns the number of bytes for which a bit stands.
    fn sector(&self) -> u64 {
        512
    }

    /// Returns the bit of a sector. The order by default is that of VHD.
    fn is_here(&self, bits: &[u8], sector: u64) -> bool {
        bits.get((sector / 8) as usize).is_some_and(|byte| byte >> (7 - sector % 8) & 1 != 0)
    }

    /// Returns the alignment of blocks in bytes, from [`Layout::data_start`] on.
    fn alignment(&self) -> u64;

    /// Returns the first offset at which a block can be, after the header and the table.
    fn data_start(&self) -> u64;

    /// Writes `entries` to their places in the table, from entry `first` on.
    fn write_entries(&self, _storage: &dyn Storage, _first: usize, _entries: &[u32]) -> Result<()> {
        Err(Fault::ReadOnly)
    }

    /// Writes the fields that follow from a change of the table: the number of blocks, or the data after the
    /// last one.
    fn finish(&self, _storage: &dyn Storage, _allocated: u64, _end: u64) -> Result<()> {
        Err(Fault::ReadOnly)
    }

    /// Reads the compressed block at byte `at` of the file into `block`.
    fn unpack(&self, _storage: &dyn Storage, _at: u64, _block: &mut [u8]) -> Result<()> {
        Err(Fault::unsupported("compressed blocks"))
    }

    /// Returns whether the image was not closed properly.
    fn is_dirty(&self) -> bool {
        false
    }

    /// Returns names and values of properties that only this format has, for people.
    fn specific(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Returns the name of the backing image.
    fn backing(&self) -> Option<BackingName> {
        None
    }

    /// Returns the image's own identity, as [`Driver::identity`] does.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Returns the identities that the backing image may have, as [`Driver::stands_on`] does.
    fn stands_on(&self) -> Vec<Identity> {
        Vec::new()
    }
}

/// An image with a table of blocks.
#[derive(Debug)]
pub(crate) struct Blocks<L> {
    storage: Box<dyn Storage>,
    layout: L,
    /// Size of the disk in bytes.
    size: u64,
    /// Number of bytes in a block.
    block: u64,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    entries: Vec<u32>,
    /// The groups of entries that differ from the file.
    dirty: BTreeSet<usize>,
    /// The offset in the file for the next new block.
    end: u64,
}

impl<L: Layout> Blocks<L> {
    /// Returns the image with these entries in its table. New blocks go to byte `end` of the file, or after
    /// it.
    pub(crate) fn new(
        storage: Box<dyn Storage>,
        layout: L,
        size: u64,
        block: u64,
        entries: Vec<u32>,
        end: u64,
    ) -> Blocks<L> {
        let start = layout.data_start();
        let end = start + end.saturating_sub(start).next_multiple_of(layout.alignment());
        Blocks {
            storage,
            layout,
            size,
            block,
            state: RwLock::new(State { entries, dirty: BTreeSet::new(), end }),
        }
    }

    fn shared(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the place of the block that contains byte `offset` of the disk.
    fn place(&self, state: &State, offset: u64) -> Place {
        let entry = state.entries.get((offset / self.block) as usize);
        entry.map_or(Place::Absent, |entry| self.layout.place(*entry))
    }

    /// Returns whether the bytes from `offset` of the disk on are in this image or below, and the number of
    /// bytes, at most `max` and within the block, for which this is so. `at` is the offset of the block in
    /// the file.
    fn part(&self, state: &State, offset: u64, at: u64, max: u64) -> Result<(bool, u64)> {
        let (index, inside) = ((offset / self.block) as usize, offset % self.block);
        let entry = state.entries.get(index).copied().unwrap_or_default();
        let Some(bits_at) = self.layout.bits_at(entry, at, index) else { return Ok((true, max)) };
        let sector = self.layout.sector();
        let (first, last) = (inside / sector, (inside + max - 1) / sector);
        // The bits are read in whole bytes, which contain those asked for.
        let (start, end) = (first / 8, last / 8 + 1);
        let mut bits = vec![0; (end - start) as usize];
        let bits_at = bits_at.checked_add(start);
        let bits_at = bits_at.ok_or_else(|| Fault::damaged("bits behind all files"))?;
        read_padded(&*self.storage, &mut bits, bits_at)?;
        let is_here = |sector: u64| self.layout.is_here(&bits, sector - start * 8);
        let here = is_here(first);
        let other = (first..=last).find(|sector| is_here(*sector) != here);
        Ok((here, other.map_or(max, |other| other * sector - inside)))
    }

    /// Refuses a place at which no data of a block can be.
    fn check_place(&self, state: &State, at: u64) -> Result<()> {
        let end = at.checked_add(self.layout.bitmap_len() + self.block);
        if at < self.layout.data_start() || end.is_none_or(|end| end > state.end) {
            return Err(Fault::damaged(format!(
                "a block at {at:#x}, which is not where blocks are"
            )));
        }
        Ok(())
    }

    /// Copies the sectors of a block that are below into this image, so that all of it can be written in
    /// place.
    fn complete(&self, state: &State, at: u64, start: u64, below: &dyn Below) -> Result<()> {
        let mut inside = 0;
        let mut is_whole = true;
        while inside < self.block {
            let (here, len) = self.part(state, start + inside, at, self.block - inside)?;
            if !here {
                let mut bytes = vec![0; len as usize];
                below.read(&mut bytes, start + inside)?;
                self.storage.write_at(&bytes, at + self.layout.bitmap_len() + inside)?;
                is_whole = false;
            }
            inside += len;
        }
        if !is_whole {
            self.storage.flush()?;
            self.storage.write_at(&vec![0xff; self.layout.bitmap_len() as usize], at)?;
        }
        Ok(())
    }

    /// Writes `bytes`, which must lie within one block.
    fn write_piece(&self, bytes: &[u8], offset: u64, below: &dyn Below) -> Result<()> {
        let inside = offset % self.block;
        {
            let state = self.shared();
            if let Place::At(at) = self.place(&state, offset)
                && self.part(&state, offset, at, bytes.len() as u64)? == (true, bytes.len() as u64)
            {
                self.check_place(&state, at)?;
                return Ok(self.storage.write_at(bytes, at + self.layout.bitmap_len() + inside)?);
            }
        }
        let mut state = self.alone();
        let start = offset - inside;
        match self.place(&state, offset) {
            Place::At(at) => {
                self.check_place(&state, at)?;
                self.complete(&state, at, start, below)?;
                return Ok(self.storage.write_at(bytes, at + self.layout.bitmap_len() + inside)?);
            }
            Place::Packed(_) => {
                return Err(Fault::unsupported(
                    "images with compressed blocks can only be read; convert it to write to it",
                ));
            }
            Place::Absent | Place::Zero => {}
        }
        let at = state.end;
        let index = (offset / self.block) as usize;
        let too_large = || Fault::refused("the file is as large as the format allows");
        let entry = self.layout.entry(at).ok_or_else(too_large)?;
        if index >= state.entries.len() {
            return Err(Fault::damaged("the table is too short"));
        }
        let data = at + self.layout.bitmap_len();
        self.storage.write_at(&vec![0xff; self.layout.bitmap_len() as usize], at)?;
        if self.place(&state, offset) == Place::Absent && below.size() > start {
            let mut all = vec![0; self.block as usize];
            below.read(&mut all, start)?;
            all[inside as usize..][..bytes.len()].copy_from_slice(bytes);
            self.storage.write_at(&all, data)?;
        } else {
            // Bytes after the end of the file read as zeros, and so does the rest of the block.
            self.storage.write_at(bytes, data + inside)?;
        }
        let end = data + self.block;
        if self.storage.size()? < end {
            self.storage.set_size(end)?;
        }
        state.end = self.layout.data_start()
            + (end - self.layout.data_start()).next_multiple_of(self.layout.alignment());
        state.entries[index] = entry;
        state.dirty.insert(index / GROUP);
        Ok(())
    }

    fn count(&self, state: &State) -> u64 {
        state
            .entries
            .iter()
            .filter(|entry| matches!(self.layout.place(**entry), Place::At(_) | Place::Packed(_)))
            .count() as u64
    }
}

impl<L: Layout> Driver for Blocks<L> {
    fn size(&self) -> u64 {
        self.size
    }

    fn extent(&self, offset: u64, max: u64) -> Result<Extent> {
        let state = self.shared();
        let piece = |offset: u64| -> Result<Extent> {
            let inside = offset % self.block;
            let left = self.block - inside;
            Ok(match self.place(&state, offset) {
                Place::Absent => Extent { kind: Kind::Absent, len: left },
                Place::Zero => Extent { kind: Kind::Zero { at: None }, len: left },
                Place::Packed(_) => Extent { kind: Kind::Data { at: None }, len: left },
                Place::At(at) => match self.part(&state, offset, at, left)? {
                    (true, len) => Extent {
                        kind: Kind::Data {
                            at: Some(at.saturating_add(self.layout.bitmap_len() + inside)),
                        },
                        len,
                    },
                    (false, len) => Extent { kind: Kind::Absent, len },
                },
            })
        };
        let mut whole = piece(offset)?;
        while whole.len < max {
            let next = piece(offset + whole.len)?;
            let goes_on = match (whole.kind, next.kind) {
                (Kind::Data { at: Some(first) }, Kind::Data { at: Some(second) }) => {
                    first.checked_add(whole.len) == Some(second)
                }
                (Kind::Data { .. }, _) => false,
                (first, second) => first == second,
            };
            if !goes_on {
                break;
            }
            whole.len += next.len;
        }
        Ok(whole)
    }

    fn read(&self, bytes: &mut [u8], offset: u64, below: &dyn Below) -> Result<()> {
        let (mut offset, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let inside = offset % self.block;
            let len = (self.block - inside).min(rest.len() as u64);
            let state = self.shared();
            let place = self.place(&state, offset);
            let (here, len) = match place {
                Place::At(at) => self.part(&state, offset, at, len)?,
                _ => (true, len),
            };
            let (piece, after) = rest.split_at_mut(len as usize);
            match place {
                Place::At(at) if here => {
                    let at = at.checked_add(self.layout.bitmap_len() + inside);
                    let at = at.ok_or_else(|| Fault::damaged("a block behind all files"))?;
                    read_padded(&*self.storage, piece, at)?;
                }
                Place::At(_) | Place::Absent => below.read(piece, offset)?,
                Place::Zero => piece.fill(0),
                Place::Packed(at) => {
                    let mut block = vec![0; self.block as usize];
                    self.layout.unpack(&*self.storage, at, &mut block)?;
                    piece.copy_from_slice(&block[inside as usize..][..piece.len()]);
                }
            }
            (offset, rest) = (offset + len, after);
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64, below: &dyn Below) -> Result<()> {
        for (start, len) in pieces(offset, bytes.len() as u64, self.block) {
            let piece = &bytes[(start - offset) as usize..][..len as usize];
            self.write_piece(piece, start, below)?;
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, below: &dyn Below) -> Result<()> {
        for (offset, len) in pieces(offset, len, self.block) {
            let inside = offset % self.block;
            let state = self.shared();
            let place = self.place(&state, offset);
            match place {
                Place::Zero => {}
                Place::Absent if below.size() <= offset => {}
                Place::At(at) if self.part(&state, offset, at, len)? == (true, len) => {
                    self.check_place(&state, at)?;
                    self.storage.write_zeroes(at + self.layout.bitmap_len() + inside, len)?;
                }
                _ => {
                    drop(state);
                    let zeros = vec![0; len.min(ZEROS) as usize];
                    for start in (0..len).step_by(ZEROS as usize) {
                        let len = (len - start).min(ZEROS);
                        self.write_piece(&zeros[..len as usize], offset + start, below)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64, _below: &dyn Below) -> Result<()> {
        for (offset, len) in pieces(offset, len, self.block) {
            let inside = offset % self.block;
            let state = self.shared();
            if let Place::At(at) = self.place(&state, offset)
                && self.part(&state, offset, at, len)? == (true, len)
            {
                self.check_place(&state, at)?;
                self.storage.discard(at + self.layout.bitmap_len() + inside, len)?;
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if self.shared().dirty.is_empty() {
            return Ok(self.storage.flush()?);
        }
        let mut state = self.alone();
        self.storage.flush()?;
        for group in &state.dirty {
            let first = group * GROUP;
            let end = (first + GROUP).min(state.entries.len());
            self.layout.write_entries(&*self.storage, first, &state.entries[first..end])?;
        }
        self.layout.finish(&*self.storage, self.count(&state), state.end)?;
        self.storage.flush()?;
        state.dirty.clear();
        Ok(())
    }

    fn is_behind(&self) -> bool {
        !self.shared().dirty.is_empty()
    }

    fn check(&self, repair: Repair) -> Result<Report> {
        if repair != Repair::Nothing {
            return Err(Fault::unsupported(
                "images of this format are checked, but not repaired; convert it to keep what can be read",
            ));
        }
        let state = self.shared();
        let mut report =
            Report { total_clusters: self.size.div_ceil(self.block), ..Report::default() };
        let file = self.storage.size()?;
        let mut seen = Vec::new();
        for (index, entry) in state.entries.iter().enumerate() {
            match self.layout.place(*entry) {
                Place::At(at) => {
                    let data = at.saturating_add(self.layout.bitmap_len());
                    // The last block of the file may be cut short.
                    if at < self.layout.data_start() || data >= file.max(state.end) {
                        report.corruption(format!(
                            "block {index} is at {at:#x}, which is not where blocks are"
                        ));
                    }
                    report.end = report.end.max(data.saturating_add(self.block));
                    seen.push(at);
                }
                Place::Packed(at) => {
                    report.compressed_clusters += 1;
                    seen.push(at);
                }
                Place::Absent | Place::Zero => {}
            }
        }
        report.allocated_clusters = seen.len() as u64;
        seen.sort_unstable();
        for pair in seen.windows(2).filter(|pair| pair[0] == pair[1]) {
            report.corruption(format!("two blocks are at {:#x}", pair[0]));
        }
        Ok(report)
    }

    fn details(&self) -> Details {
        Details {
            cluster_size: Some(self.block),
            specific: self.layout.specific(),
            dirty: self.layout.is_dirty(),
            ..Details::default()
        }
    }

    fn backing(&self) -> Option<BackingName> {
        self.layout.backing()
    }

    fn identity(&self) -> Option<Identity> {
        self.layout.identity()
    }

    fn stands_on(&self) -> Vec<Identity> {
        self.layout.stands_on()
    }

    fn allocated(&self) -> Option<u64> {
        self.storage.allocated()
    }
}
