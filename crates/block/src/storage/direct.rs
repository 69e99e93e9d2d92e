//! Input and output that bypass the host's cache (open(2), `O_DIRECT`). The host's disk reads and writes the
//! given memory itself, so offsets, lengths and addresses must be multiples of the disk's alignment.
//!
//! Most requests do not meet this condition, so their data go through memory that does. A write of a part of
//! a block first reads the whole block, and no other write runs meanwhile.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::{PoisonError, RwLock};

use rustix::fs::{AtFlags, StatxFlags, statx};

/// The alignment that all disks accept if the host does not state one: a page.
const ALIGNMENT: u64 = 4096;

/// Number of bytes that are moved at once.
const CHUNK: u64 = 1 << 20;

/// A file that was opened with `O_DIRECT`.
#[derive(Debug)]
pub(super) struct Direct {
    /// The alignment of offsets, lengths and addresses: a power of two.
    alignment: u64,
    /// Held for writing by writes of parts of blocks, and for reading by all other writes.
    writers: RwLock<()>,
}

impl Direct {
    pub(super) fn of(file: &File) -> Direct {
        let told = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
        let told = told.filter(|told| told.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
        let told = told.map(|told| told.stx_dio_offset_align.max(told.stx_dio_mem_align));
        let told = told.map(u64::from).filter(|at| at.is_power_of_two() && *at <= CHUNK);
        Direct { alignment: told.unwrap_or(ALIGNMENT), writers: RwLock::default() }
    }

    /// Returns the offset and the length of the whole blocks that contain a range. The range must be small
    /// enough that nothing overflows.
    fn blocks(&self, offset: u64, len: u64) -> (u64, u64) {
        let start = offset & !(self.alignment - 1);
        (start, (offset - start + len).next_multiple_of(self.alignment))
    }

    /// Reads all of `bytes` from `offset` on.
    pub(super) fn read(&self, file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut memory = Aligned::new(self.alignment, self.blocks(offset, bytes.len() as u64).1);
        for (part, at) in bytes.chunks_mut(CHUNK as usize).zip((offset..).step_by(CHUNK as usize)) {
            let (start, len) = self.blocks(at, part.len() as u64);
            let blocks = memory.get(len);
            let there = read_to_end(file, blocks, start)?;
            let inside = (at - start) as usize;
            if there < inside + part.len() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            part.copy_from_slice(&blocks[inside..inside + part.len()]);
        }
        Ok(())
    }

    /// Writes all of `bytes` from `offset` on. The file grows if needed.
    pub(super) fn write(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut memory = Aligned::new(self.alignment, self.blocks(offset, bytes.len() as u64).1);
        for (part, at) in bytes.chunks(CHUNK as usize).zip((offset..).step_by(CHUNK as usize)) {
            let (start, len) = self.blocks(at, part.len() as u64);
            let blocks = memory.get(len);
            if (start, len) == (at, part.len() as u64) {
                let _writers = self.writers.read().unwrap_or_else(PoisonError::into_inner);
                blocks.copy_from_slice(part);
                file.write_all_at(blocks, start)?;
                continue;
            }
            let _writers = self.writers.write().unwrap_or_else(PoisonError::into_inner);
            let there = read_to_end(file, blocks, start)?;
            blocks[there..].fill(0);
            let end = (at - start) as usize + part.len();
            blocks[(at - start) as usize..end].copy_from_slice(part);
            file.write_all_at(blocks, start)?;
            if there < blocks.len() {
                // The last block of the file was not whole. The file must not become longer than before, or
                // than this write needs.
                file.set_len(start + there.max(end) as u64)?;
            }
        }
        Ok(())
    }
}

/// Reads into `blocks` from `start` on, up to the end of the file. Returns the number of bytes read.
fn read_to_end(file: &File, blocks: &mut [u8], start: u64) -> io::Result<usize> {
    let mut there = 0;
    while there < blocks.len() {
        match file.read_at(&mut blocks[there..], start + there as u64) {
            Ok(0) => break,
            Ok(read) => there += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // After a last block that is not whole, the next offset is not aligned. So the file ends here.
            Err(error) if error.kind() == ErrorKind::InvalidInput && there > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(there)
}

/// Memory at an aligned address.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    /// Returns room for `len` bytes, or for the bytes that are moved at once if these are fewer.
    fn new(alignment: u64, len: u64) -> Aligned {
        let len = len.min(CHUNK + 2 * alignment);
        let bytes = vec![0; (len + alignment) as usize];
        let start = bytes.as_ptr().align_offset(alignment as usize);
        Aligned { bytes, start }
    }

    /// Returns the first `len` bytes.
    fn get(&mut self, len: u64) -> &mut [u8] {
        &mut self.bytes[self.start..][..len as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::{Access, HostFile, Storage};
    use crate::error::Error;

    const DIRECT: Access = Access { writes: true, shares: false, direct: true, no_flush: false };

    /// Returns a directory beside the sources, because that for temporary files may be in memory.
    fn directory() -> tempfile::TempDir {
        tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
    }

    /// Opens the file at `path`. Returns None, and counts a skipped test, if the host has no `O_DIRECT`
    /// there.
    fn open(path: &Path) -> Option<HostFile> {
        match HostFile::open(path, DIRECT) {
            Err(Error::Direct { .. }) => {
                ring3_skipped::host("this file system has no O_DIRECT");
                None
            }
            opened => Some(opened.unwrap()),
        }
    }

    #[test]
    fn any_range_is_read_and_written() {
        let directory = directory();
        let path = directory.path().join("file");
        let mut model: Vec<u8> = (0..3_000_001_u32).map(|i| (i / 7) as u8).collect();
        fs::write(&path, &model).unwrap();
        let Some(file) = open(&path) else { return };
        let ranges = [
            (0, 512),
            (4096, 8192),
            (1, 1),
            (511, 3),
            (4095, 4098),
            (100, 2_500_000),
            (1 << 20, 1 << 20),
            (2_999_000, 1001),
        ];
        for (offset, len) in ranges {
            let mut bytes = vec![0; len];
            file.read_at(&mut bytes, offset as u64).unwrap();
            assert!(bytes == model[offset..offset + len], "{len} bytes at {offset}");
            let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + offset) as u8).collect();
            file.write_at(&bytes, offset as u64).unwrap();
            model[offset..offset + len].copy_from_slice(&bytes);
            assert!(fs::read(&path).unwrap() == model, "{len} bytes at {offset}");
        }
        // The end of the file stays where it was, or moves only as far as needed.
        file.write_at(&[1; 10], 2_999_995).unwrap();
        assert_eq!(file.size().unwrap(), 3_000_005);
        file.write_at(&[2; 10], 3_100_000).unwrap();
        assert_eq!(file.size().unwrap(), 3_100_010);
        file.write_zeroes(3_100_005, 10).unwrap();
        assert_eq!(fs::read(&path).unwrap()[3_100_000..], [[2; 5], [0; 5], [0; 5]].concat());
        let past_end = file.read_at(&mut [0; 20], 3_100_000).unwrap_err();
        assert_eq!(past_end.kind(), std::io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn threads_write_parts_of_one_block() {
        let directory = directory();
        let path = directory.path().join("file");
        fs::write(&path, [0; 4096]).unwrap();
        let Some(file) = open(&path) else { return };
        std::thread::scope(|scope| {
            for part in 0..4_u8 {
                let file = &file;
                scope.spawn(move || {
                    for at in 0..50 {
                        file.write_at(&[part + 1; 20], u64::from(part) * 1000 + at * 20).unwrap();
                    }
                });
            }
        });
        let bytes = fs::read(&path).unwrap();
        for (part, value) in bytes[..4000].chunks(1000).zip(1..) {
            assert!(part.iter().all(|byte| *byte == value), "{value}");
        }
    }
}
