//! VHD, the format of Virtual PC and Hyper-V ("Virtual Hard Disk Image Format Specification", version 1.0); QEMU calls it vpc.
//!
//! Numbers are big-endian. Fixed and dynamic images are read, written and made, and differencing ones, which stand on another
//! one.

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

/// Bytes of the footer ("Hard Disk Footer Format").
const FOOTER_LEN: usize = 512;
/// What the footer begins with.
const COOKIE: &[u8; 8] = b"conectix";
/// Bytes of the header of a dynamic disk ("Dynamic Disk Header Format").
const HEADER_LEN: usize = 1024;
/// What that begins with.
const HEADER_COOKIE: &[u8; 8] = b"cxsparse";
/// An entry of the table for a block that is not there.
const ABSENT: u32 = 0xffff_ffff;
/// Bytes of a block of images that are made here: the default of the specification.
const BLOCK: u64 = 2 << 20;
/// The largest disk: 2040 GiB.
const SIZE_MAX: u64 = 2040 << 30;
/// "Disk Type".
const FIXED: u32 = 2;
const DYNAMIC: u32 = 3;
const DIFFERENCING: u32 = 4;
/// Who made the image, of those that mean the size in bytes; others mean the geometry (as QEMU has found).
const BY_SIZE: [&[u8; 4]; 5] = [b"win ", b"qem2", b"d2v ", b"tap\0", b"CXS\0"];
/// The largest geometry: the disk is perhaps larger.
const GEOMETRY_MAX: u64 = 65535 * 16 * 255;

/// Where things are in an image.
#[derive(Debug)]
pub(crate) struct Vpc {
    footer: Vec<u8>,
    table: u64,
    data: u64,
    bitmap: u64,
    /// The image below, and what tells it from others.
    parent: Option<(String, Identity)>,
}

/// The image begins as a dynamic one of this format. A fixed one has nothing at its beginning that would tell, and what
/// is at its end may come from a guest.
pub(crate) fn is_one(head: &[u8]) -> bool {
    head.starts_with(COOKIE)
}

/// The one's complement of the sum of all bytes but those of the checksum at `at`.
fn checksum(bytes: &[u8], at: usize) -> u32 {
    let others = bytes.iter().enumerate().filter(|(index, _)| !(at..at + 4).contains(index));
    !others.fold(0_u32, |sum, (_, byte)| sum.wrapping_add(u32::from(*byte)))
}

fn read_footer(storage: &dyn Storage) -> Result<Vec<u8>> {
    let mut footer = vec![0; FOOTER_LEN];
    let size = storage.size()?;
    // The copy at the start of all but fixed images is whole even if the image was not closed.
    for at in [0, size.saturating_sub(FOOTER_LEN as u64)] {
        read_padded(storage, &mut footer, at)?;
        if footer.starts_with(COOKIE) {
            if be32(&footer, 64) != checksum(&footer, 64) {
                return Err(Fault::damaged("the footer has a wrong checksum"));
            }
            return Ok(footer);
        }
    }
    Err(Fault::refused("it is no VHD image"))
}

/// The "Unique Id" of the footer.
fn identity(footer: &[u8]) -> Identity {
    footer[68..84].try_into().expect("16 bytes")
}

/// Bytes of the disk.
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
        return Err(Fault::damaged(format!("a disk of {size} bytes")));
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
        return Err(Fault::unsupported(format!("VHD of type {kind} is not known")));
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
        return Err(Fault::damaged("its header is none, or has a wrong checksum"));
    }
    let (table, entries, block) =
        (be64(&header, 16), u64::from(be32(&header, 28)), u64::from(be32(&header, 32)));
    if !block.is_power_of_two() || !(512 * 8..=256 << 20).contains(&block) {
        return Err(Fault::damaged(format!("blocks of {block} bytes")));
    }
    let needed = size.div_ceil(block);
    let end = storage.size()?;
    let is_there = table.checked_add(entries * 4).is_some_and(|table_end| table_end <= end);
    if needed > entries || entries > ENTRIES_MAX || !is_there || table % 512 != 0 {
        return Err(Fault::damaged(format!(
            "a table of {entries} blocks at {table:#x} for {size} bytes"
        )));
    }
    let mut bytes = vec![0; needed as usize * 4];
    storage.read_at(&mut bytes, table)?;
    let entries_there = (0..needed as usize).map(|index| be32(&bytes, index * 4)).collect();
    let parent = if kind == DIFFERENCING { Some(parent::named(&*storage, &header)?) } else { None };
    let data = (table + entries * 4).next_multiple_of(512);
    let bitmap = (block / 512 / 8).next_multiple_of(512);
    // The footer behind the last block makes room for the next one.
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
