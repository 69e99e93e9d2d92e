//! Expanding images of Parallels (docs/interop/parallels.txt in QEMU's sources), for reading.
//!
//! Numbers are little-endian. The table of blocks follows the header. There are two kinds of images, whose
//! entries count in different units: sectors, or blocks.

use crate::blocks::{Blocks, ENTRIES_MAX, Layout, Place};
use crate::bytes::{le32, le64};
use crate::error::{Fault, Result};
use crate::format::Driver;
use crate::storage::{Storage, read_padded};

/// The first bytes of the header if entries count sectors.
const MAGIC: &[u8; 16] = b"WithoutFreeSpace";
/// The first bytes of the header if entries count blocks.
const MAGIC_EXTENDED: &[u8; 16] = b"WithouFreSpacExt";
/// Number of bytes in the header.
const HEADER_LEN: u64 = 64;
/// The only version.
const VERSION: u32 = 2;
/// Marks an image that is open for writing, or that was not closed.
const IN_USE: u32 = 0x746f_6e59;
/// Number of bytes in a sector.
const SECTOR: u64 = 512;
/// Upper bound of the bytes in a block: 256 MiB.
const BLOCK_MAX: u64 = 256 << 20;

/// The properties of an image.
#[derive(Debug)]
struct Parallels {
    /// Number of bytes in the unit that entries count.
    unit: u64,
    data: u64,
    in_use: bool,
}

/// Returns whether `head` is the beginning of an image of this format.
pub(crate) fn is_one(head: &[u8]) -> bool {
    let is_magic = head.starts_with(MAGIC) || head.starts_with(MAGIC_EXTENDED);
    is_magic && head.len() >= 20 && le32(head, 16) == VERSION
}

/// Opens the image in `storage`.
pub(crate) fn open(storage: Box<dyn Storage>) -> Result<Box<dyn Driver>> {
    let mut header = vec![0; HEADER_LEN as usize];
    read_padded(&*storage, &mut header, 0)?;
    if !is_one(&header) {
        return Err(Fault::refused("Image not in Parallels format"));
    }
    let is_extended = header.starts_with(MAGIC_EXTENDED);
    let (block, entries) = (u64::from(le32(&header, 28)) * SECTOR, u64::from(le32(&header, 32)));
    // In the older kind only the low 32 bits count.
    let sectors = le64(&header, 36) & if is_extended { u64::MAX } else { 0xffff_ffff };
    let size = sectors.checked_mul(SECTOR).filter(|size| i64::try_from(*size).is_ok());
    let size = size.ok_or_else(|| {
        Fault::damaged(format!("its header says that the disk has {sectors} sectors"))
    })?;
    if block == 0 || block > BLOCK_MAX {
        return Err(Fault::damaged(format!("its header says that a block has {block} bytes")));
    }
    let (needed, file) = (size.div_ceil(block), storage.size()?);
    if entries > ENTRIES_MAX || needed > entries || HEADER_LEN + entries * 4 > file {
        return Err(Fault::damaged(format!(
            "a table of {entries} blocks does not fit a disk of {size} bytes"
        )));
    }
    let mut bytes = vec![0; needed as usize * 4];
    storage.read_at(&mut bytes, HEADER_LEN)?;
    let table = bytes.chunks_exact(4).map(|entry| le32(entry, 0)).collect();
    let unit = if is_extended { block } else { SECTOR };
    let data = (HEADER_LEN + entries * 4).next_multiple_of(SECTOR);
    let layout = Parallels { unit, data, in_use: le32(&header, 44) == IN_USE };
    Ok(Box::new(Blocks::new(storage, layout, size, block, table, file)))
}

impl Layout for Parallels {
    fn place(&self, entry: u32) -> Place {
        if entry == 0 { Place::Absent } else { Place::At(u64::from(entry) * self.unit) }
    }

    fn alignment(&self) -> u64 {
        SECTOR
    }

    fn data_start(&self) -> u64 {
        self.data
    }

    fn is_dirty(&self) -> bool {
        self.in_use
    }
}
