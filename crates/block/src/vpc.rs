//! VHD, the format of Virtual PC and Hyper-V ("Virtual Hard Disk Image Format Specification", version 1.0).
//! QEMU calls it vpc.
//!
//! Numbers are big-endian. Fixed, dynamic and differencing images are read, written and made.

mod create;
mod parent;

use std::io;

pub(crate) use create::{Subformat, create};
pub(crate) use parent::Parent;

use crate::blocks::{Blocks, ENTRIES_MAX, Layout, Place};
use crate::bytes::{be32, be64};
use crate::error::{Fault, Result};
use crate::flat::Flat;
use crate::format::{BackingName, Driver, Identity};
use crate::storage::{Storage, read_padded};

/// Number of bytes in the footer ("Hard Disk Footer Format").
const FOOTER_LEN: usize = 512;
/// The first bytes of the footer.
const COOKIE: &[u8; 8] = b"conectix";
/// Number of bytes in the header of a dynamic disk ("Dynamic Disk Header Format").
const HEADER_LEN: usize = 1024;
/// The first bytes of this header.
const HEADER_COOKIE: &[u8; 8] = b"cxsparse";
/// The entry of a block that is not in the file.
const ABSENT: u32 = 0xffff_ffff;
/// Number of bytes in a block of new images, which is the default of the specification.
const BLOCK: u64 = 2 << 20;
/// Upper bound of the disk's size: 2040 GiB.
const SIZE_MAX: u64 = 2040 << 30;
/// Values of "Disk Type".
const FIXED: u32 = 2;
const DYNAMIC: u32 = 3;
const DIFFERENCING: u32 = 4;
/// The creators for whose images the size in bytes counts. For all others the geometry counts, as in QEMU.
const BY_SIZE: [&[u8; 4]; 5] = [b"win ", b"qem2", b"d2v ", b"tap\0", b"CXS\0"];
/// The size of the largest geometry in sectors. The disk may be larger.
const GEOMETRY_MAX: u64 = 65535 * 16 * 255;

/// The parts of an image: the footer, and offsets and sizes in bytes.
#[derive(Debug)]
pub(crate) struct Vpc {
    footer: Vec<u8>,
    table: u64,
    data: u64,
    bitmap: u64,
    /// The name of the backing image, and its identity.
    parent: Option<(String, Identity)>,
}

/// Returns whether `head` is the beginning of a dynamic image. A fixed one cannot be recognized at its
/// beginning, and its end may come from a guest.
pub(crate) fn is_one(head: &[u8]) -> bool {
    head.starts_with(COOKIE)
}

/// Returns the one's complement of the sum of all bytes except for those of the checksum at `at`.
fn checksum(bytes: &[u8], at: usize) -> u32 {
    let others = bytes.iter().enumerate().filter(|(index, _)| !(at..at + 4).contains(index));
    !others.fold(0_u32, |sum, (_, byte)| sum.wrapping_add(u32::from(*byte)))
}

fn read_footer(storage: &dyn Storage) -> Result<Vec<u8>> {
    let mut footer = vec![0; FOOTER_LEN];
    let size = storage.size()?;
    // All images except for fixed ones have a copy of the footer at the start, which is valid even if the
    // image was not closed.
    for at in [0, size.saturating_sub(FOOTER_LEN as u64)] {
        read_padded(storage, &mut footer, at)?;
        if footer.starts_with(COOKIE) {
            if be32(&footer, 64) != checksum(&footer, 64) {
                return Err(Fault::damaged("the footer has a wrong checksum"));
            }
            return Ok(footer);
        }
    }
    Err(Fault::refused("it is not a VHD image"))
}

/// Returns the "Unique Id" in the footer.
fn identity(footer: &[u8]) -> Identity {
    footer[68..84].try_into().expect("16 bytes")
}

/// Returns the size of the disk in bytes.
fn disk_size(footer: &[u8]) -> u64 {
    let geometry = be32(footer, 56);
    let sectors =
        u64::from(geometry >> 16) * u64::from(geometry >> 8 & 0xff) * u64::from(geometry & 0xff);
    let by_size = BY_SIZE.iter().any(|creator| footer[28..32] == **creator);
    let bytes = be64(footer, 48) / 512 * 512;
    if by_size || sectors == GEOMETRY_MAX || sectors == 0 { bytes } else { sectors * 512 }
}

/// Opens the image in `storage`.
pub(crate) fn open(storage: Box<dyn Storage>) -> Result<Box<dyn Driver>> {
    let footer = read_footer(&*storage)?;
    let size = disk_size(&footer);
    if size > SIZE_MAX {
        return Err(Fault::damaged(format!("its footer says that the disk has {size} bytes")));
    }
    let kind = be32(&footer, 60);
    if kind == FIXED {
        if storage.size()?.saturating_sub(FOOTER_LEN as u64) < size {
            return Err(Fault::damaged("the file is shorter than the disk"));
        }
        let specific = vec![("type", "fixed".to_owned())];
        return Ok(Box::new(Flat::new(storage, 0, size, specific).known_as(identity(&footer))));
    }
    if kind != DYNAMIC && kind != DIFFERENCING {
        return Err(Fault::unsupported(format!("type {kind} of VHD is not supported")));
    }
    let at = be64(&footer, 16);
    let mut header = vec![0; HEADER_LEN];
    match storage.read_at(&mut header, at) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(Fault::damaged("its header is not in the file"));
        }
        result => result?,
    }
    if !header.starts_with(HEADER_COOKIE) || be32(&header, 36) != checksum(&header, 36) {
        return Err(Fault::damaged("its header is not valid, or has a wrong checksum"));
    }
    let (table, entries, block) =
        (be64(&header, 16), u64::from(be32(&header, 28)), u64::from(be32(&header, 32)));
    if !block.is_power_of_two() || !(512 * 8..=256 << 20).contains(&block) {
        return Err(Fault::damaged(format!("its header says that a block has {block} bytes")));
    }
    let needed = size.div_ceil(block);
    let end = storage.size()?;
    let is_there = table.checked_add(entries * 4).is_some_and(|table_end| table_end <= end);
    if needed > entries || entries > ENTRIES_MAX || !is_there || table % 512 != 0 {
        return Err(Fault::damaged(format!(
            "a table of {entries} blocks at {table:#x} does not fit a disk of {size} bytes"
        )));
    }
    let mut bytes = vec![0; needed as usize * 4];
    storage.read_at(&mut bytes, table)?;
    let entries_there = (0..needed as usize).map(|index| be32(&bytes, index * 4)).collect();
    let parent = if kind == DIFFERENCING { Some(parent::named(&*storage, &header)?) } else { None };
    let data = (table + entries * 4).next_multiple_of(512);
    let bitmap = (block / 512 / 8).next_multiple_of(512);
    // The next new block replaces the footer after the last block.
    let mut last = vec![0; FOOTER_LEN];
    let footer_at = end.saturating_sub(FOOTER_LEN as u64).max(data);
    read_padded(&*storage, &mut last, footer_at)?;
    let end = if last.starts_with(COOKIE) { footer_at } else { end };
    let layout = Vpc { footer, table, data, bitmap, parent };
    Ok(Box::new(Blocks::new(storage, layout, size, block, entries_there, end)))
}

impl Layout for Vpc {
    fn place(&self, entry: u32) -> Place {
        if entry == ABSENT { Place::Absent } else { Place::At(u64::from(entry) * 512) }
    }

    fn entry(&self, at: u64) -> Option<u32> {
        u32::try_from(at / 512).ok().filter(|entry| *entry != ABSENT)
    }

    fn bitmap_len(&self) -> u64 {
        self.bitmap
    }

    fn bits_at(&self, _entry: u32, at: u64, _index: usize) -> Option<u64> {
        self.parent.as_ref().map(|_| at)
    }

    fn alignment(&self) -> u64 {
        512
    }

    fn data_start(&self) -> u64 {
        self.data
    }

    fn write_entries(&self, storage: &dyn Storage, first: usize, entries: &[u32]) -> Result<()> {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        Ok(storage.write_at(&bytes, self.table + first as u64 * 4)?)
    }

    fn finish(&self, storage: &dyn Storage, _allocated: u64, end: u64) -> Result<()> {
        Ok(storage.write_at(&self.footer, end)?)
    }

    fn specific(&self) -> Vec<(&'static str, String)> {
        vec![("type", if self.parent.is_some() { "differencing" } else { "dynamic" }.to_owned())]
    }

    fn backing(&self) -> Option<BackingName> {
        let name = self.parent.as_ref()?.0.clone();
        Some(BackingName { name, format: Some("vpc".to_owned()) })
    }

    fn identity(&self) -> Option<Identity> {
        Some(identity(&self.footer))
    }

    fn stands_on(&self) -> Vec<Identity> {
        let known = self.parent.iter().map(|(_, identity)| *identity);
        known.filter(|identity| *identity != [0; 16]).collect()
    }
}
