//! An image that does not change when the guest writes: the written data go to a temporary file, which is
//! deleted with the drive.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use ring3_core::disk::{DiskError, DiskOperation, Medium, SECTOR_SIZE};
use ring3_vm::drives::{Drive, KeepDiskError, KeptDisk, WrittenSectors};
use rustix::fs::{FallocateFlags, fallocate};

use crate::image::{kind_of, offset_of};
use crate::range::{bytes_of, check};
use crate::{Access, ImageError, ImageFile, ImageOptions};

/// Number of sectors for which one word of [`Overlay::written`] stands.
const GROUP: u64 = u64::BITS as u64;

/// An image, and the data that were written over it.
///
/// The temporary file has no name, is sparse, and lies in the directory that TMPDIR names.
#[derive(Debug)]
pub struct Overlay {
    base: ImageFile,
    medium: Medium,
    /// The data of the written sectors, each at the sector's own offset.
    over: File,
    /// One bit for each sector, which is set if it was written, in groups of [`GROUP`]. Groups without a
    /// written sector are missing.
    written: RwLock<BTreeMap<u64, u64>>,
}

impl Overlay {
    /// Opens the image at `path` as [`ImageFile::open`] does for reading. Options for writes are ignored.
    pub fn open(path: &Path, options: ImageOptions) -> Result<Overlay, ImageError> {
        let base = ImageFile::open(path, ImageOptions { access: Access::ReadOnly, ..options })?;
        let sectors = base.medium().map_or(0, |medium| medium.sectors);
        let make = || {
            let over = tempfile::tempfile()?;
            over.set_len(sectors * SECTOR_SIZE as u64)?;
            Ok(over)
        };
        let over = make().map_err(|source| ImageError::Temporary {
            path: path.to_owned(),
            directory: std::env::temp_dir(),
            source,
        })?;
        let medium = Medium { sectors, read_only: false };
        Ok(Overlay { base, medium, over, written: RwLock::default() })
    }

    /// Returns whether the sectors from `first` on were written, and the end of the run of sectors for which
    /// this answer holds, at most `end`.
    fn run(&self, first: u64, end: u64) -> (bool, u64) {
        let written = self.written.read().unwrap_or_else(PoisonError::into_inner);
        let is_written = |sector: u64| {
            let group = written.get(&(sector / GROUP)).copied().unwrap_or(0);
            group >> (sector % GROUP) & 1 != 0
        };
        let is_first = is_written(first);
        let next = (first + 1..end).find(|sector| is_written(*sector) != is_first);
        (is_first, next.unwrap_or(end))
    }

    fn read(&self, sector: u64, count: u32) -> Result<Vec<u8>, DiskError> {
        let mut bytes = vec![0; bytes_of(count) as usize];
        let end = sector + u64::from(count);
        let (mut first, mut rest) = (sector, bytes.as_mut_slice());
        while first < end {
            // One read serves all consecutive sectors that are in the same file.
            let (written, next) = self.run(first, end);
            let (run, after) = rest.split_at_mut((next - first) as usize * SECTOR_SIZE);
            if written {
                self.warn_of(self.over.read_exact_at(run, offset_of(first)))?;
            } else {
                self.base.read(first, run)?;
            }
            (first, rest) = (next, after);
        }
        Ok(bytes)
    }

    fn write(&self, sector: u64, data: &[u8]) -> Result<(), DiskError> {
        self.warn_of(self.over.write_all_at(data, offset_of(sector)))?;
        self.mark_written(sector, (data.len() / SECTOR_SIZE) as u64);
        Ok(())
    }

    fn mark_written(&self, sector: u64, count: u64) {
        let mut written = self.written.write().unwrap_or_else(PoisonError::into_inner);
        for sector in sector..sector + count {
            *written.entry(sector / GROUP).or_default() |= 1 << (sector % GROUP);
        }
    }

    /// Fills `count` sectors with zeros. This frees their room in the temporary file; no write relies on
    /// having room there.
    fn write_zeroes(&self, sector: u64, count: u32) -> Result<(), DiskError> {
        let (offset, len) = (offset_of(sector), bytes_of(count));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if len > 0 && fallocate(&self.over, punch, offset, len).is_err() {
            static ZEROS: [u8; 0x1_0000] = [0; 0x1_0000];
            for done in (0..len).step_by(ZEROS.len()) {
                let part = (len - done).min(ZEROS.len() as u64) as usize;
                self.warn_of(self.over.write_all_at(&ZEROS[..part], offset + done))?;
            }
        }
        self.mark_written(sector, count.into());
        Ok(())
    }

    fn warn_of(&self, result: io::Result<()>) -> Result<(), DiskError> {
        result.map_err(|error| {
            let (image, directory) = (self.base.path().display(), std::env::temp_dir());
            let directory = directory.display();
            tracing::warn!("the temporary file for {image} in {directory} failed: {error}");
            kind_of(&error)
        })
    }
}

impl Drive for Overlay {
    fn execute(&self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError> {
        check(operation, self.medium)?;
        match operation {
            DiskOperation::Read { sector, count } => return self.read(*sector, *count),
            DiskOperation::Write { sector, data } => self.write(*sector, data)?,
            DiskOperation::WriteZeroes { sector, count, .. } => {
                self.write_zeroes(*sector, *count)?;
            }
            // Discarded sectors may keep their contents, and nothing must survive the run.
            DiskOperation::Discard { .. } | DiskOperation::Flush | DiskOperation::Eject => {}
        }
        Ok(Vec::new())
    }

    fn keep(&self, _name: &str, written: WrittenSectors<'_>) -> Result<KeptDisk, KeepDiskError> {
        let groups = self.written.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut bytes = vec![0; GROUP as usize * SECTOR_SIZE];
        for group in groups.into_keys() {
            let (mut first, end) = (group * GROUP, self.medium.sectors.min((group + 1) * GROUP));
            while first < end {
                let (is_written, next) = self.run(first, end);
                if is_written {
                    let run = &mut bytes[..(next - first) as usize * SECTOR_SIZE];
                    self.over.read_exact_at(run, offset_of(first))?;
                    written(first, run)?;
                }
                first = next;
            }
        }
        Ok(KeptDisk::UnderWrites(self.base.shown().map(str::to_owned)))
    }

    fn throws_away(&self) -> bool {
        true
    }

    fn reconnects(&self) -> bool {
        self.base.reconnects()
    }

    fn changes_only_here(&self) -> bool {
        self.base.changes_only_here()
    }

    fn medium(&self) -> Option<Medium> {
        Some(self.medium)
    }

    fn file(&self) -> Option<&Path> {
        self.base.file()
    }

    fn format(&self) -> Option<&'static str> {
        self.base.format()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_seen_and_the_image_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let mut expected: Vec<u8> = (0..200 * 512).map(|index| (index / 512) as u8).collect();
        std::fs::write(&path, &expected).unwrap();
        let before = expected.clone();
        let drive = Overlay::open(&path, ImageOptions::default()).unwrap();
        assert_eq!(drive.medium(), Some(Medium { sectors: 200, read_only: false }));
        for (sector, count, byte) in [(3, 1, 0xa1), (60, 10, 0xa2), (199, 1, 0xa3), (62, 2, 0xa4)] {
            let data = vec![byte; count * 512];
            expected[sector * 512..][..data.len()].copy_from_slice(&data);
            let write = DiskOperation::Write { sector: sector as u64, data };
            assert_eq!(drive.execute(&write), Ok(Vec::new()));
        }
        let all = DiskOperation::Read { sector: 0, count: 200 };
        assert_eq!(drive.execute(&all), Ok(expected));
        assert_eq!(std::fs::read(&path).unwrap(), before);
        assert_eq!(drive.written.read().unwrap().keys().copied().collect::<Vec<_>>(), [0, 1, 3]);
    }

    #[test]
    fn zeros_hide_the_image_and_discarded_sectors_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let mut expected = vec![7; 200 * 512];
        std::fs::write(&path, &expected).unwrap();
        let drive = Overlay::open(&path, ImageOptions::default()).unwrap();
        let write = DiskOperation::Write { sector: 3, data: vec![9; 512] };
        assert_eq!(drive.execute(&write), Ok(Vec::new()));
        for (sector, count, gives_up_room) in [(2, 3, false), (150, 50, true)] {
            let zeroes = DiskOperation::WriteZeroes { sector, count, gives_up_room };
            assert_eq!(drive.execute(&zeroes), Ok(Vec::new()));
            expected[sector as usize * 512..][..count as usize * 512].fill(0);
        }
        let discard = DiskOperation::Discard { sector: 100, count: 20 };
        assert_eq!(drive.execute(&discard), Ok(Vec::new()));
        assert_eq!(drive.execute(&DiskOperation::Read { sector: 0, count: 200 }), Ok(expected));
    }

    #[test]
    fn what_was_written_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        std::fs::write(&path, vec![7; 200 * 512]).unwrap();
        let drive = Overlay::open(&path, ImageOptions::default()).unwrap();
        let other = Overlay::open(&path, ImageOptions::default()).unwrap();
        for (sector, count) in [(3, 1), (60, 10), (199, 1)] {
            let write = DiskOperation::Write { sector, data: vec![sector as u8; count * 512] };
            drive.execute(&write).unwrap();
        }
        let mut runs = Vec::new();
        let mut keep = |first, bytes: &[u8]| {
            runs.push((first, bytes.len() / 512));
            let write = DiskOperation::Write { sector: first, data: bytes.to_vec() };
            other.execute(&write).map(drop).map_err(io::Error::other)
        };
        assert_eq!(drive.keep("now", &mut keep).unwrap(), KeptDisk::UnderWrites(None));
        assert_eq!(runs, [(3, 1), (60, 4), (64, 6), (199, 1)]);
        let all = DiskOperation::Read { sector: 0, count: 200 };
        assert_eq!(other.execute(&all), drive.execute(&all));
    }

    #[test]
    fn sectors_after_the_end_of_the_image_cannot_be_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        std::fs::write(&path, [0; 1024]).unwrap();
        let drive = Overlay::open(&path, ImageOptions::default()).unwrap();
        for (sector, len) in [(2, 512), (1, 1024), (u64::MAX, 512), (0, 511)] {
            let write = DiskOperation::Write { sector, data: vec![0; len] };
            assert_eq!(drive.execute(&write), Err(DiskError::OutOfRange));
        }
        for (sector, count) in [(2, 1), (1, 2), (u64::MAX, 1)] {
            let discard = DiskOperation::Discard { sector, count };
            assert_eq!(drive.execute(&discard), Err(DiskError::OutOfRange));
            let zeroes = DiskOperation::WriteZeroes { sector, count, gives_up_room: true };
            assert_eq!(drive.execute(&zeroes), Err(DiskError::OutOfRange));
        }
        let read = DiskOperation::Read { sector: 2, count: 1 };
        assert_eq!(drive.execute(&read), Err(DiskError::OutOfRange));
        assert!(drive.written.read().unwrap().is_empty());
    }

    #[test]
    fn several_overlays_share_an_image() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        std::fs::write(&path, [7; 512]).unwrap();
        let first = Overlay::open(&path, ImageOptions::default()).unwrap();
        let second = Overlay::open(&path, ImageOptions::default()).unwrap();
        let write = DiskOperation::Write { sector: 0, data: vec![8; 512] };
        first.execute(&write).unwrap();
        let read = DiskOperation::Read { sector: 0, count: 1 };
        assert_eq!(second.execute(&read), Ok(vec![7; 512]));
        let writer = ImageFile::open(
            &path,
            ImageOptions { access: Access::ReadWrite, ..ImageOptions::default() },
        );
        assert!(matches!(writer, Err(ImageError::Image(ring3_block::Error::InUse { .. }))));
    }
}
