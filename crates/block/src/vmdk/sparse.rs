//! Sparse files: specification, "Hosted Sparse Extents" and "Stream-Optimized Compressed Sparse Extents".
//!
//! A grain directory leads to grain tables, and these lead to grains. In memory all tables form one.

use flate2::{Decompress, FlushDecompress};

use super::descriptor::Descriptor;
use super::{DESCRIPTOR_MAX, MAGIC, SECTOR};
use crate::blocks::{Blocks, ENTRIES_MAX, Layout, Place};
use crate::bytes::{le16, le32, le64};
use crate::error::{Fault, Result};
use crate::format::{BackingName, Driver};
use crate::storage::{Storage, read_padded};

/// Number of entries in a grain table. The specification allows no other number.
const TABLE_ENTRIES: u64 = 512;
/// Number of sectors in a grain of new images: 64 KiB, which is the usual size.
const GRAIN: u64 = 128;
/// Says that the offset of the directory is in the footer.
const AT_END: u64 = u64::MAX;
/// Number of sectors for the descriptor of new images.
const DESCRIPTOR_SECTORS: u64 = 20;

/// Bits of the flags.
mod flag {
    pub(super) const NEWLINES: u32 = 1 << 0;
    pub(super) const SECOND_TABLES: u32 = 1 << 1;
    pub(super) const ZERO_GRAINS: u32 = 1 << 2;
    pub(super) const COMPRESSED: u32 = 1 << 16;
}

/// The places of the tables in a sparse file, and its other properties.
#[derive(Debug)]
struct Sparse {
    /// The sector of each grain table, or 0 if there is no such table.
    tables: Vec<u32>,
    /// The sector of each second grain table, if these are used.
    second_tables: Vec<u32>,
    flags: u32,
    data: u64,
    grain: u64,
    create_type: String,
    backing: Option<BackingName>,
}

/// Opens the sparse file in `storage`: a whole image, or the part of an image with this number of sectors.
pub(super) fn open(
    storage: Box<dyn Storage>,
    part: Option<u64>,
    writes: bool,
) -> Result<Box<dyn Driver>> {
    let mut header = vec![0; SECTOR as usize];
    read_padded(&*storage, &mut header, 0)?;
    if !header.starts_with(MAGIC) {
        return Err(Fault::refused("a part of it is not a sparse VMDK file"));
    }
    let file = storage.size()?;
    let descriptor = descriptor(&*storage, &header)?;
    if le64(&header, 56) == AT_END {
        // The footer is followed by a marker for the end.
        read_padded(&*storage, &mut header, file.saturating_sub(2 * SECTOR))?;
        if !header.starts_with(MAGIC) {
            return Err(Fault::damaged("it has no footer, so it was not written completely"));
        }
    }
    let (version, flags) = (le32(&header, 4), le32(&header, 8));
    if !(1..=3).contains(&version) {
        return Err(Fault::unsupported(format!("version {version} of VMDK is not supported")));
    }
    let (capacity, grain) = (le64(&header, 12), le64(&header, 20));
    let is_grain = grain.is_power_of_two() && (8..=4096).contains(&grain);
    if !is_grain || u64::from(le32(&header, 44)) != TABLE_ENTRIES {
        return Err(Fault::damaged(format!(
            "grains of {grain} sectors in tables of {} entries are not valid",
            le32(&header, 44)
        )));
    }
    if flags & flag::COMPRESSED != 0 {
        if writes {
            return Err(Fault::OnlyRead("stream-optimized images"));
        }
        if le16(&header, 77) != 1 {
            return Err(Fault::unsupported(format!(
                "it is compressed by the unknown method {}",
                le16(&header, 77)
            )));
        }
    }
    let count = capacity.div_ceil(grain);
    if count > ENTRIES_MAX || part.is_some_and(|sectors| sectors > capacity) {
        return Err(Fault::damaged(format!(
            "its header says that it has {capacity} sectors in {count} grains"
        )));
    }
    let tables = directory(&*storage, le64(&header, 56), count)?;
    let second_tables = if writes && flags & flag::SECOND_TABLES != 0 {
        directory(&*storage, le64(&header, 48), count)?
    } else {
        vec![]
    };
    let mut entries = vec![0; count as usize];
    for (table, part) in tables.iter().zip(entries.chunks_mut(TABLE_ENTRIES as usize)) {
        if *table == 0 {
            continue;
        }
        let at = u64::from(*table) * SECTOR;
        let mut bytes = vec![0; part.len() * 4];
        if at + bytes.len() as u64 > file {
            return Err(Fault::damaged(format!(
                "the grain table at {at:#x} is not completely in the file"
            )));
        }
        storage.read_at(&mut bytes, at)?;
        for (index, entry) in part.iter_mut().enumerate() {
            *entry = le32(&bytes, index * 4);
        }
    }
    let data = le64(&header, 64).saturating_mul(SECTOR).min(file);
    let (create_type, backing) = match descriptor {
        Some(descriptor) => (descriptor.create_type.clone(), descriptor.backing()),
        None => (String::new(), None),
    };
    let size = part.unwrap_or(capacity) * SECTOR;
    let layout =
        Sparse { tables, second_tables, flags, data, grain: grain * SECTOR, create_type, backing };
    Ok(Box::new(Blocks::new(storage, layout, size, grain * SECTOR, entries, file)))
}

/// Returns the descriptor in the file, if there is one.
fn descriptor(storage: &dyn Storage, header: &[u8]) -> Result<Option<Descriptor>> {
    let (at, len) = (le64(header, 28), le64(header, 36));
    if at == 0 || len == 0 {
        return Ok(None);
    }
    let is_place = at < 1 << 32 && len <= DESCRIPTOR_MAX / SECTOR;
    if !is_place {
        return Err(Fault::damaged(format!(
            "its descriptor cannot have {len} sectors at sector {at}"
        )));
    }
    let mut bytes = vec![0; (len * SECTOR) as usize];
    read_padded(storage, &mut bytes, at * SECTOR)?;
    Descriptor::parse(&bytes).map(Some)
}

/// Reads the grain directory at sector `at`. Returns the sectors of the tables for `count` grains.
fn directory(storage: &dyn Storage, at: u64, count: u64) -> Result<Vec<u32>> {
    let tables = count.div_ceil(TABLE_ENTRIES);
    let start = at.checked_mul(SECTOR);
    let end = start.and_then(|start| start.checked_add(tables * 4));
    if end.is_none_or(|end| end > storage.size().unwrap_or(0)) {
        return Err(Fault::damaged(format!(
            "the grain directory at sector {at} is not completely in the file"
        )));
    }
    let mut bytes = vec![0; tables as usize * 4];
    storage.read_at(&mut bytes, at * SECTOR)?;
    Ok((0..tables as usize).map(|index| le32(&bytes, index * 4)).collect())
}

impl Layout for Sparse {
    fn place(&self, entry: u32) -> Place {
        match entry {
            0 => Place::Absent,
            1 if self.flags & flag::ZERO_GRAINS != 0 => Place::Zero,
            sector if self.flags & flag::COMPRESSED != 0 => {
                Place::Packed(u64::from(sector) * SECTOR)
            }
            sector => Place::At(u64::from(sector) * SECTOR),
        }
    }

    fn entry(&self, at: u64) -> Option<u32> {
        u32::try_from(at / SECTOR).ok()
    }

    fn alignment(&self) -> u64 {
        SECTOR
    }

    fn data_start(&self) -> u64 {
        self.data.next_multiple_of(SECTOR)
    }

    fn write_entries(&self, storage: &dyn Storage, first: usize, entries: &[u32]) -> Result<()> {
        let (table, inside) = (first / TABLE_ENTRIES as usize, first as u64 % TABLE_ENTRIES);
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        // The second tables are written first, because readers use the others.
        for tables in [&self.second_tables, &self.tables] {
            match tables.get(table) {
                None => {}
                Some(0) => {
                    return Err(Fault::unsupported(
                        "a grain table is missing; convert the image to write to it",
                    ));
                }
                Some(sector) => {
                    storage.write_at(&bytes, u64::from(*sector) * SECTOR + inside * 4)?;
                }
            }
        }
        Ok(())
    }

    fn finish(&self, _storage: &dyn Storage, _allocated: u64, _end: u64) -> Result<()> {
        Ok(())
    }

    fn unpack(&self, storage: &dyn Storage, at: u64, block: &mut [u8]) -> Result<()> {
        // A grain begins with a marker: the number of the first sector (8 bytes), and the number of bytes
        // that follow.
        let mut marker = [0; 12];
        read_padded(storage, &mut marker, at)?;
        let len = u64::from(le32(&marker, 8));
        if len > 2 * self.grain
            || at.checked_add(12 + len).is_none_or(|end| end > storage.size().unwrap_or(0))
        {
            return Err(Fault::damaged(format!(
                "a compressed grain cannot have {len} bytes at {at:#x}"
            )));
        }
        let mut packed = vec![0; len as usize];
        storage.read_at(&mut packed, at + 12)?;
        let mut inflate = Decompress::new(true);
        let status = inflate.decompress(&packed, block, FlushDecompress::Finish);
        status.map_err(|error| {
            Fault::damaged(format!("the compressed grain at {at:#x} cannot be read: {error}"))
        })?;
        // The last grain of a disk may be shorter.
        block[inflate.total_out() as usize..].fill(0);
        Ok(())
    }

    fn specific(&self) -> Vec<(&'static str, String)> {
        vec![("create type", self.create_type.clone())]
    }

    fn backing(&self) -> Option<BackingName> {
        self.backing.clone()
    }
}

/// Makes an image of `size` bytes in one sparse file, which its descriptor calls `name`.
pub(crate) fn create(storage: &dyn Storage, size: u64, name: &str) -> Result<()> {
    let capacity = size.div_ceil(SECTOR);
    let grains = capacity.div_ceil(GRAIN);
    if grains > ENTRIES_MAX {
        return Err(Fault::refused(format!(
            "a VMDK image has at most {} bytes",
            ENTRIES_MAX * GRAIN * SECTOR
        )));
    }
    let tables = grains.div_ceil(TABLE_ENTRIES);
    let directory_sectors = (tables * 4).div_ceil(SECTOR);
    let table_sectors = TABLE_ENTRIES * 4 / SECTOR;
    let second = 1 + DESCRIPTOR_SECTORS;
    let first = second + directory_sectors + tables * table_sectors;
    let overhead = (first + directory_sectors + tables * table_sectors).next_multiple_of(GRAIN);
    let mut header = vec![0; SECTOR as usize];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, MAGIC);
    put(4, &1_u32.to_le_bytes());
    put(8, &(flag::NEWLINES | flag::SECOND_TABLES).to_le_bytes());
    put(12, &capacity.to_le_bytes());
    put(20, &GRAIN.to_le_bytes());
    put(28, &1_u64.to_le_bytes());
    put(36, &DESCRIPTOR_SECTORS.to_le_bytes());
    put(44, &(TABLE_ENTRIES as u32).to_le_bytes());
    put(48, &second.to_le_bytes());
    put(56, &first.to_le_bytes());
    put(64, &overhead.to_le_bytes());
    // These bytes show whether a program has converted the line ends, as if the file were a text.
    put(73, b"\n \r\n");
    let [one, two, three, four, ..] = crate::bytes::random_uuid()?;
    let content = u32::from_le_bytes([one, two, three, four]);
    let cylinders = (capacity / (16 * 63)).min(16383);
    let text = format!(
        "# Disk DescriptorFile\nversion=1\nCID={content:08x}\nparentCID=ffffffff\ncreateType=\"monolithicSparse\"\n\n\
        # Extent description\nRW {capacity} SPARSE \"{name}\"\n\n\
        # The Disk Data Base\n#DDB\n\nddb.virtualHWVersion = \"4\"\nddb.geometry.cylinders = \"{cylinders}\"\n\
        ddb.geometry.heads = \"16\"\nddb.geometry.sectors = \"63\"\nddb.adapterType = \"ide\"\n"
    );
    if text.len() as u64 > DESCRIPTOR_SECTORS * SECTOR {
        return Err(Fault::refused("the names do not fit into the descriptor"));
    }
    storage.set_size(overhead * SECTOR)?;
    for directory in [second, first] {
        let start = directory + directory_sectors;
        let entries = (0..tables).map(|table| (start + table * table_sectors) as u32);
        let bytes: Vec<u8> = entries.flat_map(u32::to_le_bytes).collect();
        storage.write_at(&bytes, directory * SECTOR)?;
    }
    storage.write_at(text.as_bytes(), SECTOR)?;
    storage.flush()?;
    storage.write_at(&header, 0)?;
    Ok(storage.flush()?)
}
