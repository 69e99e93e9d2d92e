//! VHDX, the format of Hyper-V ("[MS-VHDX]: Virtual Hard Disk v2 (VHDX) File Format"), for reading: fixed,
//! dynamic and differencing images.
//!
//! Numbers are little-endian. Two headers lead to a log, and two region tables to the table of blocks (BAT)
//! and the metadata. Changes in the log that were not applied are applied in memory.
//!
//! * [`log`]: the log, and the file with its changes;
//! * [`parent`]: the name of the backing image.

mod log;
mod parent;

use crate::blocks::{Blocks, ENTRIES_MAX, Layout, Place};
use crate::bytes::{le16, le32, le64};
use crate::error::{Fault, Result};
use crate::format::{BackingName, Driver, Identity};
use crate::storage::{Storage, read_padded};
use log::Replayed;
use parent::Parent;

/// The first bytes of the file (2.2.1).
const MAGIC: &[u8; 8] = b"vhdxfile";
/// Offsets of the two headers (2.2), and the number of bytes that the checksum covers.
const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
const HEADER_LEN: usize = 4096;
/// Offsets of the two region tables, and their length.
const REGIONS: [u64; 2] = [192 << 10, 256 << 10];
const REGIONS_LEN: usize = 64 << 10;
/// Upper bound of the entries in a region table, and in the metadata table (2.2.3, 2.6.1).
const ENTRIES_IN_TABLE: usize = 2047;
/// Number of bytes in the metadata table.
const METADATA_LEN: usize = 64 << 10;
/// Objects begin at multiples of 1 MiB.
const MIB: u64 = 1 << 20;
/// Upper bound of the bytes in a metadata item (2.6.1.2).
const ITEM_MAX: usize = 1 << 20;
/// Number of sectors for which a block of bits has bits (2.4).
const BITS: u64 = 1 << 23;
/// Upper bound of the disk's size (2.6.2.2): 64 TiB.
const SIZE_MAX: u64 = 64 << 40;

/// A GUID, as in the file.
type Guid = [u8; 16];

/// Returns the GUID `a-b-c-d`, whose first three parts are numbers.
const fn guid(a: u32, b: u16, c: u16, d: [u8; 8]) -> Guid {
    let (a, b, c) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]
}

/// Regions (2.2.3.2).
const BAT: Guid =
    guid(0x2dc27766, 0xf623, 0x4200, [0x9d, 0x64, 0x11, 0x5e, 0x9b, 0xfd, 0x4a, 0x08]);
const METADATA: Guid =
    guid(0x8b7ca206, 0x4790, 0x4b9a, [0xb8, 0xfe, 0x57, 0x5f, 0x05, 0x0f, 0x88, 0x6e]);
/// Metadata items (2.6.2).
const FILE_PARAMETERS: Guid =
    guid(0xcaa16737, 0xfa36, 0x4d43, [0xb3, 0xb6, 0x33, 0xf0, 0xaa, 0x44, 0xe7, 0x6b]);
const DISK_SIZE: Guid =
    guid(0x2fa54224, 0xcd1b, 0x4876, [0xb2, 0x11, 0x5d, 0xbe, 0xd8, 0x3b, 0xf4, 0xb8]);
const DISK_ID: Guid =
    guid(0xbeca12ab, 0xb2e6, 0x4523, [0x93, 0xef, 0xc3, 0x09, 0xe0, 0x00, 0xc7, 0x46]);
const LOGICAL_SECTOR: Guid =
    guid(0x8141bf1d, 0xa96f, 0x4709, [0xba, 0x47, 0xf2, 0x33, 0xa8, 0xfa, 0xab, 0x5f]);
const PHYSICAL_SECTOR: Guid =
    guid(0xcda348c7, 0x445d, 0x4471, [0x9c, 0xc9, 0xe9, 0x88, 0x52, 0x51, 0xc5, 0x56]);
const PARENT_LOCATOR: Guid =
    guid(0xa8d35f2d, 0xb30b, 0x454d, [0xab, 0xf7, 0xd3, 0xd8, 0x48, 0x34, 0xab, 0x0c]);
const KNOWN_ITEMS: [Guid; 6] =
    [FILE_PARAMETERS, DISK_SIZE, DISK_ID, LOGICAL_SECTOR, PHYSICAL_SECTOR, PARENT_LOCATOR];

/// Entries of the table in memory. They are `ABSENT`, `ZERO`, or the number of the MiB at which a block
/// begins plus `FIRST`. The bit `PARTLY` is set if only some sectors of the block are in this image.
const PARTLY: u32 = 1 << 31;
const ABSENT: u32 = 0;
const ZERO: u32 = 1;
const FIRST: u64 = 2;

/// The properties of an image.
#[derive(Debug)]
struct Vhdx {
    /// The number by which differencing images recognize this one. It changes with each change of the disk.
    identity: Identity,
    parent: Option<Parent>,
    /// The place of the bits of each chunk (2.4), in MiB, for images with a parent.
    bits: Vec<Option<u32>>,
    chunk: Chunk,
    /// The first offset at which blocks can be.
    data: u64,
    /// Whether the log had changes that were not applied.
    was_dirty: bool,
}

/// Returns whether `head` is the beginning of an image of this format.
pub(crate) fn is_one(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// Returns the CRC-32C (2.2) of `bytes`, in which the four bytes of the checksum at `at` count as zeros.
fn checksum(bytes: &[u8], at: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..at]);
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &[0; 4]), &bytes[at + 4..])
}

/// Returns the GUID at byte `at`.
fn guid_at(bytes: &[u8], at: usize) -> Guid {
    bytes[at..at + 16].try_into().expect("16 bytes")
}

/// Returns the current header (2.2.2): of those with a correct checksum, the one with the larger sequence
/// number.
fn header(storage: &dyn Storage) -> Result<Vec<u8>> {
    let mut found: Option<Vec<u8>> = None;
    for at in HEADERS {
        let mut header = vec![0; HEADER_LEN];
        read_padded(storage, &mut header, at)?;
        let is_whole = header.starts_with(b"head") && le32(&header, 4) == checksum(&header, 4);
        if is_whole && found.as_ref().is_none_or(|other| le64(other, 8) < le64(&header, 8)) {
            found = Some(header);
        }
    }
    let header = found.ok_or_else(|| Fault::damaged("neither of its headers is valid"))?;
    if le16(&header, 66) != 1 {
        let version = le16(&header, 66);
        return Err(Fault::unsupported(format!("version {version} of VHDX is not supported")));
    }
    Ok(header)
}

/// A range of the file, whose end does not overflow.
#[derive(Debug, Clone, Copy)]
struct Region {
    at: u64,
    len: u64,
}

/// Returns the places of the BAT and the metadata (2.2.3).
fn regions(storage: &dyn Storage) -> Result<(Region, Region)> {
    let mut table = vec![0; REGIONS_LEN];
    for at in REGIONS {
        read_padded(storage, &mut table, at)?;
        if table.starts_with(b"regi") && le32(&table, 4) == checksum(&table, 4) {
            break;
        }
        table.fill(0);
    }
    let count = le32(&table, 8) as usize;
    if !table.starts_with(b"regi") || count > ENTRIES_IN_TABLE {
        return Err(Fault::damaged("neither of its region tables is valid"));
    }
    let (mut bat, mut metadata) = (None, None);
    for entry in table[16..].chunks_exact(32).take(count) {
        let region = Region { at: le64(entry, 16), len: u64::from(le32(entry, 24)) };
        if region.at < MIB || !region.at.is_multiple_of(MIB) || region.at > i64::MAX as u64 {
            return Err(Fault::damaged(format!("no region can be at {:#x}", region.at)));
        }
        match guid_at(entry, 0) {
            BAT => bat = Some(region),
            METADATA => metadata = Some(region),
            _ if le32(entry, 28) & 1 != 0 => {
                return Err(Fault::unsupported("it has a required region of an unknown type"));
            }
            _ => {}
        }
    }
    let missing = |what| Fault::damaged(format!("it has no {what}"));
    Ok((bat.ok_or_else(|| missing("BAT"))?, metadata.ok_or_else(|| missing("metadata"))?))
}

/// The part of the disk for which a block of bits stands (2.4).
#[derive(Debug, Clone, Copy)]
struct Chunk {
    /// Number of blocks.
    blocks: u64,
    /// Number of bytes in a sector.
    sector: u64,
}

/// The contents of the metadata (2.6.2).
struct Metadata {
    block: u64,
    size: u64,
    chunk: Chunk,
    parent: Option<Parent>,
}

fn metadata(storage: &dyn Storage, region: Region) -> Result<Metadata> {
    let mut table = vec![0; METADATA_LEN];
    read_padded(storage, &mut table, region.at)?;
    let count = usize::from(le16(&table, 10));
    if !table.starts_with(b"metadata") || count > ENTRIES_IN_TABLE {
        return Err(Fault::damaged("its metadata region has no valid header"));
    }
    let entries: Vec<&[u8]> = table[32..].chunks_exact(32).take(count).collect();
    for entry in &entries {
        // Bit 2: a program that does not know this item cannot use the image.
        if le32(entry, 24) & 4 != 0 && !KNOWN_ITEMS.contains(&guid_at(entry, 0)) {
            return Err(Fault::unsupported("it has required metadata of an unknown type"));
        }
    }
    // Returns an item of the given length, or of the length that the table states.
    let item = |id: Guid, len: Option<usize>| -> Result<Vec<u8>> {
        let entry = entries.iter().find(|entry| guid_at(entry, 0) == id);
        let entry = entry.ok_or_else(|| Fault::damaged("required metadata are missing"))?;
        let at = u64::from(le32(entry, 16));
        let len = len.unwrap_or((le32(entry, 20) as usize).min(ITEM_MAX));
        if at < METADATA_LEN as u64 || at + len as u64 > region.len {
            return Err(Fault::damaged(format!("metadata at {at:#x} are outside of their region")));
        }
        let mut bytes = vec![0; len];
        read_padded(storage, &mut bytes, region.at + at)?;
        Ok(bytes)
    };
    let parameters = item(FILE_PARAMETERS, Some(8))?;
    let block = u64::from(le32(&parameters, 0));
    if !block.is_power_of_two() || !(MIB..=256 * MIB).contains(&block) {
        return Err(Fault::damaged(format!("its metadata say that a block has {block} bytes")));
    }
    let has_parent = le32(&parameters, 4) & 2 != 0;
    let parent = if has_parent { Some(Parent::of(&item(PARENT_LOCATOR, None)?)?) } else { None };
    let size = le64(&item(DISK_SIZE, Some(8))?, 0);
    let sector = u64::from(le32(&item(LOGICAL_SECTOR, Some(4))?, 0));
    if size > SIZE_MAX || !matches!(sector, 512 | 4096) || !size.is_multiple_of(sector) {
        return Err(Fault::damaged(format!(
            "a disk cannot have {size} bytes in sectors of {sector}"
        )));
    }
    Ok(Metadata { block, size, chunk: Chunk { blocks: BITS * sector / block, sector }, parent })
}

/// Returns the table of blocks, in the form that [`Vhdx::place`] expects, and the place of the bits of each
/// chunk.
fn table(
    storage: &dyn Storage,
    region: Region,
    of: &Metadata,
) -> Result<(Vec<u32>, Vec<Option<u32>>)> {
    let blocks = of.size.div_ceil(of.block);
    if blocks > ENTRIES_MAX {
        return Err(Fault::damaged(format!("it cannot have {blocks} blocks")));
    }
    // The entries of a chunk's blocks are followed by the entry of its bits, except for the last chunk of an
    // image without a parent (2.5).
    let ratio = of.chunk.blocks;
    let chunks = match of.parent {
        Some(_) => blocks.div_ceil(ratio),
        None => blocks.saturating_sub(1) / ratio,
    };
    let entries = if of.parent.is_some() { chunks * (ratio + 1) } else { blocks + chunks };
    if entries * 8 > region.len || region.at + entries * 8 > storage.size()? {
        return Err(Fault::damaged(format!(
            "a BAT of {} bytes has no room for {blocks} blocks",
            region.len
        )));
    }
    let (mut table, mut bits) = (Vec::with_capacity(blocks as usize), Vec::new());
    let mut bytes = vec![0; (ratio + 1) as usize * 8];
    let mut at = region.at;
    while (table.len() as u64) < blocks {
        let count = (blocks - table.len() as u64).min(ratio);
        let has_bits = of.parent.is_some();
        let whole = if has_bits { ratio + 1 } else { count };
        let chunk = &mut bytes[..whole as usize * 8];
        storage.read_at(chunk, at)?;
        let bits_at = if has_bits { place_of_bits(le64(chunk, ratio as usize * 8))? } else { None };
        for entry in chunk.chunks_exact(8).take(count as usize).map(|entry| le64(entry, 0)) {
            let entry = in_memory(entry, has_bits)?;
            if entry & PARTLY != 0 && bits_at.is_none() {
                return Err(Fault::damaged(
                    "a block that is partly in the parent has no sector bitmap",
                ));
            }
            table.push(entry);
        }
        bits.push(bits_at);
        at += (ratio + 1) * 8;
    }
    Ok((table, bits))
}

/// Returns the number of the MiB in an entry of the BAT: bits 20 to 63 (2.5.1).
fn mib(entry: u64) -> Result<u32> {
    u32::try_from(entry >> 20)
        .ok()
        .filter(|mib| u64::from(*mib) + FIRST < u64::from(PARTLY))
        .ok_or_else(|| Fault::damaged(format!("no block can be at MiB {}", entry >> 20)))
}

/// Returns the place of a chunk's bits in MiB, or None if there are none (2.5.1.2).
fn place_of_bits(entry: u64) -> Result<Option<u32>> {
    match entry & 7 {
        0 => Ok(None),
        6 => mib(entry).map(Some),
        state => Err(Fault::damaged(format!("a sector bitmap is in the unknown state {state}"))),
    }
}

/// Returns an entry of the BAT in the form that the table in memory has.
fn in_memory(entry: u64, has_parent: bool) -> Result<u32> {
    // Bits 0 to 2 contain the state (2.5.1.1).
    match entry & 7 {
        // Undefined or unmapped blocks have no reliable contents, and in particular not those of the parent.
        1 | 3 if has_parent => Ok(ZERO),
        0 | 1 | 3 => Ok(ABSENT),
        2 => Ok(ZERO),
        6 => Ok(mib(entry)? + FIRST as u32),
        7 if has_parent => Ok((mib(entry)? + FIRST as u32) | PARTLY),
        state => Err(Fault::damaged(format!("a block is in the unknown state {state}"))),
    }
}

/// Opens the image in `storage`.
pub(crate) fn open(storage: Box<dyn Storage>) -> Result<Box<dyn Driver>> {
    let mut head = [0; 8];
    read_padded(&*storage, &mut head, 0)?;
    if !is_one(&head) {
        return Err(Fault::refused("it is not a VHDX image"));
    }
    let header = header(&*storage)?;
    let replayed = Replayed::open(storage, &header)?;
    let (bat, place) = regions(&replayed)?;
    let metadata = metadata(&replayed, place)?;
    let (entries, bits) = table(&replayed, bat, &metadata)?;
    let (file, was_dirty) = (replayed.size()?, replayed.is_changed());
    let Metadata { size, block, chunk, parent } = metadata;
    // DataWriteGuid (2.2.2).
    let identity = guid_at(&header, 32);
    let layout = Vhdx { identity, parent, bits, chunk, data: MIB, was_dirty };
    Ok(Box::new(Blocks::new(Box::new(replayed), layout, size, block, entries, file)))
}

impl Layout for Vhdx {
    fn place(&self, entry: u32) -> Place {
        match entry {
            ABSENT => Place::Absent,
            ZERO => Place::Zero,
            at => Place::At((u64::from(at & !PARTLY) - FIRST) * MIB),
        }
    }

    fn bits_at(&self, entry: u32, _at: u64, index: usize) -> Option<u64> {
        let index = index as u64;
        let chunk = self.bits.get((index / self.chunk.blocks) as usize).copied().flatten()?;
        let bytes_of_a_block = BITS / 8 / self.chunk.blocks;
        let inside = index % self.chunk.blocks * bytes_of_a_block;
        (entry & PARTLY != 0).then(|| u64::from(chunk) * MIB + inside)
    }

    fn sector(&self) -> u64 {
        self.chunk.sector
    }

    /// Bit 0 of byte 0 belongs to the first sector (2.4).
    fn is_here(&self, bits: &[u8], sector: u64) -> bool {
        bits.get((sector / 8) as usize).is_some_and(|byte| byte >> (sector % 8) & 1 != 0)
    }

    fn alignment(&self) -> u64 {
        MIB
    }

    fn data_start(&self) -> u64 {
        self.data
    }

    fn is_dirty(&self) -> bool {
        self.was_dirty
    }

    fn backing(&self) -> Option<BackingName> {
        let name = self.parent.as_ref()?.name.clone();
        Some(BackingName { name, format: Some("vhdx".to_owned()) })
    }

    fn identity(&self) -> Option<Identity> {
        Some(self.identity)
    }

    fn stands_on(&self) -> Vec<Identity> {
        self.parent.as_ref().map(|parent| parent.identities.clone()).unwrap_or_default()
    }
}
