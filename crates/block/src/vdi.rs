//! VDI, VirtualBox's format. Its layout is described in block/vdi.c of QEMU, and by VirtualBox's header
//! VDICore.h.
//!
//! Numbers are little-endian. Dynamic and fixed images are read and written. Images with a backing image are
//! refused.

use crate::blocks::{Blocks, ENTRIES_MAX, Layout, Place};
use crate::bytes::{le32, le64, random_uuid};
use crate::error::{Fault, Result};
use crate::storage::Storage;

/// Number of bytes in the header.
const HEADER_LEN: usize = 512;
/// The number at byte 64 of the header.
const SIGNATURE: u32 = 0xbeda107f;
/// Version 1.1.
const VERSION: u32 = 0x00010001;
/// Offset of the number of blocks in the file.
const ALLOCATED_AT: u64 = 388;
/// The entry of a block that is not in the file.
const ABSENT: u32 = 0xffff_ffff;
/// The entry of a block that was discarded.
const ZERO: u32 = 0xffff_fffe;
/// Number of bytes in a block of new images, and of all that VirtualBox makes.
const BLOCK: u64 = 1 << 20;
/// Lower and upper bound of the bytes in a block.
const BLOCKS: std::ops::RangeInclusive<u64> = 4096..=64 << 20;

/// The offsets and sizes of an image's parts, in bytes.
#[derive(Debug)]
pub(crate) struct Vdi {
    table: u64,
    data: u64,
    block: u64,
    is_fixed: bool,
}

/// Returns whether `head` is the beginning of an image of this format.
pub(crate) fn is_one(head: &[u8]) -> bool {
    head.len() >= HEADER_LEN && le32(head, 64) == SIGNATURE
}

impl Vdi {
    /// Opens the image in `storage`.
    pub(crate) fn open(storage: Box<dyn Storage>) -> Result<Blocks<Vdi>> {
        let mut head = vec![0; HEADER_LEN];
        crate::storage::read_padded(&*storage, &mut head, 0)?;
        if !is_one(&head) {
            return Err(Fault::refused("it is not a VDI image"));
        }
        let version = le32(&head, 68);
        if version >> 16 != 1 {
            return Err(Fault::unsupported(format!(
                "version {}.{} of VDI is not supported",
                version >> 16,
                version & 0xffff
            )));
        }
        let kind = le32(&head, 76);
        if !(1..=2).contains(&kind) || head[440..456] != [0; 16] {
            return Err(Fault::unsupported(
                "it needs another VDI image, which is not supported; merge them with VBoxManage",
            ));
        }
        let (table, data) = (u64::from(le32(&head, 340)), u64::from(le32(&head, 344)));
        let (size, block) = (le64(&head, 368), u64::from(le32(&head, 376)));
        let (extra, entries) = (le32(&head, 380), u64::from(le32(&head, 384)));
        if !block.is_power_of_two()
            || !BLOCKS.contains(&block)
            || extra != 0
            || le32(&head, 360) != 512
        {
            return Err(Fault::unsupported(format!(
                "blocks of {block} bytes and {extra} extra bytes are not supported"
            )));
        }
        let needed = size.div_ceil(block);
        let is_place = table >= HEADER_LEN as u64
            && table % 512 == 0
            && data % 512 == 0
            && table + entries * 4 <= data;
        if entries > ENTRIES_MAX || needed > entries || !is_place {
            return Err(Fault::damaged(format!(
                "a table of {entries} blocks at {table:#x} with data at {data:#x} does not fit a disk of {size} bytes"
            )));
        }
        let end = storage.size()?;
        if end < table + needed * 4 {
            return Err(Fault::damaged("the file ends within the table of blocks"));
        }
        let mut bytes = vec![0; needed as usize * 4];
        storage.read_at(&mut bytes, table)?;
        let entries = (0..needed as usize).map(|index| le32(&bytes, index * 4)).collect();
        let layout = Vdi { table, data, block, is_fixed: kind == 2 };
        Ok(Blocks::new(storage, layout, size.next_multiple_of(512), block, entries, end))
    }

    /// Makes an image of `size` bytes. A fixed one has room for all blocks.
    pub(crate) fn create(storage: &dyn Storage, size: u64, is_fixed: bool) -> Result<()> {
        let size = size.next_multiple_of(512);
        let entries = size.div_ceil(BLOCK);
        if entries > ENTRIES_MAX {
            return Err(Fault::refused(format!(
                "a VDI image has at most {} bytes",
                ENTRIES_MAX * BLOCK
            )));
        }
        let table = HEADER_LEN as u64;
        let data = (table + entries * 4).next_multiple_of(512);
        let mut head = vec![0; HEADER_LEN];
        let text = b"<<< Oracle VM VirtualBox Disk Image >>>\n";
        head[..text.len()].copy_from_slice(text);
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(64, &SIGNATURE.to_le_bytes());
        put(68, &VERSION.to_le_bytes());
        // Number of bytes in the header from here on.
        put(72, &0x190_u32.to_le_bytes());
        put(76, &(if is_fixed { 2_u32 } else { 1 }).to_le_bytes());
        put(340, &(table as u32).to_le_bytes());
        put(344, &(data as u32).to_le_bytes());
        put(360, &512_u32.to_le_bytes());
        put(368, &size.to_le_bytes());
        put(376, &(BLOCK as u32).to_le_bytes());
        put(384, &(entries as u32).to_le_bytes());
        put(388, &(if is_fixed { entries as u32 } else { 0 }).to_le_bytes());
        put(392, &random_uuid()?);
        put(408, &random_uuid()?);
        let entry = |index: u64| if is_fixed { index as u32 } else { ABSENT };
        let bytes: Vec<u8> = (0..entries).flat_map(|index| entry(index).to_le_bytes()).collect();
        storage.set_size(data + if is_fixed { entries * BLOCK } else { 0 })?;
        storage.write_at(&bytes, table)?;
        storage.flush()?;
        storage.write_at(&head, 0)?;
        Ok(storage.flush()?)
    }
}

impl Layout for Vdi {
    fn place(&self, entry: u32) -> Place {
        match entry {
            ABSENT => Place::Absent,
            ZERO => Place::Zero,
            index => Place::At(self.data + u64::from(index) * self.block),
        }
    }

    fn entry(&self, at: u64) -> Option<u32> {
        let index = (at - self.data) / self.block;
        u32::try_from(index).ok().filter(|index| *index < ZERO)
    }

    fn alignment(&self) -> u64 {
        self.block
    }

    fn data_start(&self) -> u64 {
        self.data
    }

    fn write_entries(&self, storage: &dyn Storage, first: usize, entries: &[u32]) -> Result<()> {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        Ok(storage.write_at(&bytes, self.table + first as u64 * 4)?)
    }

    fn finish(&self, storage: &dyn Storage, allocated: u64, _end: u64) -> Result<()> {
        Ok(storage.write_at(&(allocated as u32).to_le_bytes(), ALLOCATED_AT)?)
    }

    fn specific(&self) -> Vec<(&'static str, String)> {
        vec![("type", if self.is_fixed { "fixed" } else { "dynamic" }.to_owned())]
    }
}
