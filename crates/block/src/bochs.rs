//! Growing images of Bochs ("Bochs User Manual", "Disk image modes"; iodev/hdimage/hdimage.h has the layout).
//!
//! Numbers are little-endian. A catalog tells the place of each extent. An extent begins with a bit for each
//! of its sectors.

use crate::blocks::{Blocks, Layout, Place};
use crate::bytes::{le32, le64};
use crate::error::{Fault, Result};
use crate::storage::{Storage, read_padded};

/// Number of bytes in the header.
const HEADER_LEN: usize = 512;
const MAGIC: &[u8] = b"Bochs Virtual HD Image\0";
const KIND: &[u8] = b"Redolog\0";
const SUBKIND: &[u8] = b"Growing\0";
/// Versions 1 and 2. The size of the disk has another offset in each of them.
const VERSION_1: u32 = 0x0001_0000;
const VERSION_2: u32 = 0x0002_0000;
/// The entry in the catalog of an extent that is not in the file.
const ABSENT: u32 = 0xffff_ffff;
/// Upper bound of the entries in a catalog, as in QEMU.
const ENTRIES_MAX: u64 = 1 << 20;
/// Upper bound of the bytes in an extent, as in QEMU.
const EXTENT_MAX: u64 = 8 << 20;

/// The offsets and sizes of an image's parts, in bytes.
#[derive(Debug)]
pub(crate) struct Bochs {
    catalog: u64,
    data: u64,
    bitmap: u64,
    extent: u64,
}

/// Returns whether `head` is the beginning of an image of this format.
pub(crate) fn is_one(head: &[u8]) -> bool {
    head.len() >= HEADER_LEN && head.starts_with(MAGIC) && head[32..].starts_with(KIND)
}

impl Bochs {
    /// Opens the image in `storage`.
    pub(crate) fn open(storage: Box<dyn Storage>) -> Result<Blocks<Bochs>> {
        let mut head = vec![0; HEADER_LEN];
        read_padded(&*storage, &mut head, 0)?;
        if !is_one(&head) {
            return Err(Fault::refused("it is not an image of Bochs"));
        }
        let version = le32(&head, 64);
        if !head[48..].starts_with(SUBKIND) || ![VERSION_1, VERSION_2].contains(&version) {
            return Err(Fault::unsupported(
                "only growing images of Bochs of versions 1 and 2 are supported",
            ));
        }
        let (header, entries) = (u64::from(le32(&head, 68)), u64::from(le32(&head, 72)));
        let (bitmap, extent) = (u64::from(le32(&head, 76)), u64::from(le32(&head, 80)));
        let size = le64(&head, if version == VERSION_1 { 84 } else { 88 }) / 512 * 512;
        let is_extent = extent.is_power_of_two() && (512..=EXTENT_MAX).contains(&extent);
        if !is_extent || bitmap < extent.div_ceil(512 * 8) || bitmap > extent.max(512) {
            return Err(Fault::damaged(format!(
                "an extent of {extent} bytes cannot have a bitmap of {bitmap} bytes"
            )));
        }
        let needed = size.div_ceil(extent);
        if header < HEADER_LEN as u64 || entries > ENTRIES_MAX || needed > entries {
            return Err(Fault::damaged(format!(
                "a catalog of {entries} extents at {header:#x} does not fit a disk of {size} bytes"
            )));
        }
        let end = storage.size()?;
        let data = header + entries * 4;
        if data > end {
            return Err(Fault::damaged("the file ends within the catalog"));
        }
        let mut bytes = vec![0; needed as usize * 4];
        storage.read_at(&mut bytes, header)?;
        let entries = (0..needed as usize).map(|index| le32(&bytes, index * 4)).collect();
        let layout = Bochs { catalog: header, data, bitmap: bitmap.next_multiple_of(512), extent };
        Ok(Blocks::new(storage, layout, size, extent, entries, end))
    }

    /// Makes an image of `size` bytes.
    pub(crate) fn create(storage: &dyn Storage, size: u64) -> Result<()> {
        let size = size.next_multiple_of(512);
        // As in Bochs, extents are as large as is needed for a catalog that is small enough.
        let mut extent = 32 << 10;
        while size.div_ceil(extent) > 0x1_0000 && extent < EXTENT_MAX {
            extent *= 2;
        }
        let entries = size.div_ceil(extent).next_multiple_of(128).max(128);
        if entries > ENTRIES_MAX {
            return Err(Fault::refused(format!(
                "an image of Bochs has at most {} bytes",
                ENTRIES_MAX * EXTENT_MAX
            )));
        }
        let mut head = vec![0; HEADER_LEN];
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(32, KIND);
        put(48, SUBKIND);
        put(64, &VERSION_2.to_le_bytes());
        put(68, &(HEADER_LEN as u32).to_le_bytes());
        put(72, &(entries as u32).to_le_bytes());
        put(76, &(extent.div_ceil(512 * 8) as u32).to_le_bytes());
        put(80, &(extent as u32).to_le_bytes());
        put(88, &size.to_le_bytes());
        storage.write_at(&vec![0xff; entries as usize * 4], HEADER_LEN as u64)?;
        storage.flush()?;
        storage.write_at(&head, 0)?;
        Ok(storage.flush()?)
    }
}

impl Layout for Bochs {
    fn place(&self, entry: u32) -> Place {
        if entry == ABSENT {
            Place::Absent
        } else {
            Place::At(self.data + u64::from(entry) * self.alignment())
        }
    }

    fn entry(&self, at: u64) -> Option<u32> {
        u32::try_from((at - self.data) / self.alignment()).ok().filter(|entry| *entry != ABSENT)
    }

    fn bitmap_len(&self) -> u64 {
        self.bitmap
    }

    fn bits_at(&self, _entry: u32, at: u64, _index: usize) -> Option<u64> {
        Some(at)
    }

    fn is_here(&self, bits: &[u8], sector: u64) -> bool {
        bits.get((sector / 8) as usize).is_some_and(|byte| byte >> (sector % 8) & 1 != 0)
    }

    fn alignment(&self) -> u64 {
        self.bitmap + self.extent
    }

    fn data_start(&self) -> u64 {
        self.data
    }

    fn write_entries(&self, storage: &dyn Storage, first: usize, entries: &[u32]) -> Result<()> {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        Ok(storage.write_at(&bytes, self.catalog + first as u64 * 4)?)
    }

    fn finish(&self, _storage: &dyn Storage, _allocated: u64, _end: u64) -> Result<()> {
        Ok(())
    }

    fn specific(&self) -> Vec<(&'static str, String)> {
        vec![]
    }
}
