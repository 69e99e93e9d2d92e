//! An image file that holds a medium's sectors one after the other.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ring3_core::disk::{DiskError, DiskOperation, Medium, SECTOR_SIZE};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

use super::{Drive, ImageError};

/// The most sectors that one request may read: a device asks for less.
const REQUEST_SECTORS_MAX: u32 = 0x1_0000;

/// What the sectors of a medium are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockSize {
    /// 512 bytes: hard disks and floppies.
    Disk,
    /// 2048 bytes: CDs and DVDs.
    CdRom,
}

impl BlockSize {
    fn bytes(self) -> u64 {
        match self {
            BlockSize::Disk => SECTOR_SIZE as u64,
            BlockSize::CdRom => 2048,
        }
    }
}

/// What may be done with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It is read, and others may read it at the same time.
    ReadOnly,
    /// It is read and written, and nobody else may use it.
    ReadWrite,
}

/// An image file, or a block device of the host.
#[derive(Debug)]
pub struct RawFile {
    path: PathBuf,
    file: File,
    medium: Medium,
}

impl RawFile {
    /// Opens the image at `path`, whose size is to be a whole number of `block`s.
    ///
    /// The file is locked (by flock(2), which only programs heed that do the same) until it is dropped.
    pub fn open(path: &Path, access: Access, block: BlockSize) -> Result<RawFile, ImageError> {
        let writes = access == Access::ReadWrite;
        // Without O_NONBLOCK, opening a pipe waits for its other end.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let opened = OpenOptions::new().read(true).write(writes).custom_flags(flags).open(path);
        let fails = |error| open_error(path, writes, error);
        let mut file = opened.map_err(fails)?;
        let kind = file.metadata().map_err(fails)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(ImageError::NotAnImage { path: path.to_owned() });
        }
        lock(&file, path, writes)?;
        let len = file.seek(SeekFrom::End(0)).map_err(fails)?;
        if len == 0 || !len.is_multiple_of(block.bytes()) {
            let block = block.bytes();
            return Err(ImageError::Truncated { path: path.to_owned(), len, block });
        }
        let medium = Medium { sectors: len / SECTOR_SIZE as u64, read_only: !writes };
        Ok(RawFile { path: path.to_owned(), file, medium })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The byte at which `len` bytes from `sector` on begin, when they are all there.
    pub(super) fn offset(&self, sector: u64, len: u64) -> Result<u64, DiskError> {
        let size = self.medium.sectors * SECTOR_SIZE as u64;
        let start = sector.checked_mul(SECTOR_SIZE as u64);
        let inside = |start: &u64| start.checked_add(len).is_some_and(|end| end <= size);
        start.filter(inside).ok_or(DiskError::OutOfRange)
    }

    /// Reads whole sectors from `sector` on.
    pub(super) fn read(&self, sector: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        let offset = self.offset(sector, bytes.len() as u64)?;
        self.check(self.file.read_exact_at(bytes, offset), "reading")
    }

    /// Room for `count` sectors.
    pub(super) fn buffer(count: u32) -> Result<Vec<u8>, DiskError> {
        if count > REQUEST_SECTORS_MAX {
            return Err(DiskError::OutOfRange);
        }
        Ok(vec![0; count as usize * SECTOR_SIZE])
    }

    fn write(&self, sector: u64, data: &[u8]) -> Result<(), DiskError> {
        if self.medium.read_only {
            return Err(DiskError::ReadOnly);
        }
        if !data.len().is_multiple_of(SECTOR_SIZE) {
            return Err(DiskError::OutOfRange);
        }
        let offset = self.offset(sector, data.len() as u64)?;
        self.check(self.file.write_all_at(data, offset), "writing")
    }

    /// Warns of an error of the host; the guest is only told that there was one.
    fn check(&self, result: io::Result<()>, what: &str) -> Result<(), DiskError> {
        result.map_err(|error| {
            tracing::warn!("{what} {} failed: {error}", self.path.display());
            DiskError::Host
        })
    }
}

fn open_error(path: &Path, writes: bool, source: io::Error) -> ImageError {
    let path = path.to_owned();
    match source.kind() {
        ErrorKind::NotFound => ImageError::Missing { path },
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem if writes => {
            let hint = "it can be attached read-only, or with its writes thrown away";
            ImageError::Permission { path, what: "read and write", hint }
        }
        ErrorKind::PermissionDenied => {
            let hint = "its owner can grant it";
            ImageError::Permission { path, what: "read", hint }
        }
        ErrorKind::IsADirectory => ImageError::NotAnImage { path },
        _ => ImageError::Open { path, source },
    }
}

fn lock(file: &File, path: &Path, writes: bool) -> Result<(), ImageError> {
    let operation = if writes {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(ImageError::InUse { path: path.to_owned() }),
        // A file system without locks: better unprotected than unusable.
        Err(Errno::NOTSUP | Errno::NOLCK | Errno::INVAL | Errno::NOSYS) => {
            tracing::warn!("{} cannot be locked against a second user", path.display());
            Ok(())
        }
        Err(error) => Err(ImageError::Open { path: path.to_owned(), source: error.into() }),
    }
}

impl Drive for RawFile {
    fn execute(&mut self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError> {
        match operation {
            DiskOperation::Read { sector, count } => {
                let mut bytes = RawFile::buffer(*count)?;
                self.read(*sector, &mut bytes)?;
                return Ok(bytes);
            }
            DiskOperation::Write { sector, data } => self.write(*sector, data)?,
            DiskOperation::Flush if self.medium.read_only => {}
            DiskOperation::Flush => self.check(self.file.sync_data(), "flushing")?,
            // The machine puts an empty drive in the place of this one.
            DiskOperation::Eject => {}
        }
        Ok(Vec::new())
    }

    /// Reads what the host has in memory, and writes where it only has to remember what.
    fn execute_at_once(&mut self, operation: &DiskOperation) -> Option<Result<Vec<u8>, DiskError>> {
        let at_once = ReadWriteFlags::NOWAIT;
        match operation {
            DiskOperation::Read { sector, count } => {
                let mut bytes = RawFile::buffer(*count).ok()?;
                let offset = self.offset(*sector, bytes.len() as u64).ok()?;
                let buffers = &mut [IoSliceMut::new(&mut bytes)];
                let len = preadv2(&self.file, buffers, offset, at_once).ok()?;
                (len == bytes.len()).then_some(Ok(bytes))
            }
            DiskOperation::Write { sector, data }
                if !self.medium.read_only && data.len().is_multiple_of(SECTOR_SIZE) =>
            {
                let offset = self.offset(*sector, data.len() as u64).ok()?;
                let len = pwritev2(&self.file, &[IoSlice::new(data)], offset, at_once).ok()?;
                (len == data.len()).then_some(Ok(Vec::new()))
            }
            _ => None,
        }
    }

    fn medium(&self) -> Option<Medium> {
        Some(self.medium)
    }

    fn file(&self) -> Option<&Path> {
        Some(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(directory: &tempfile::TempDir, len: usize) -> PathBuf {
        let path = directory.path().join("image");
        let bytes: Vec<u8> = (0..len).map(|index| (index / 512) as u8).collect();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn message(path: &Path, access: Access, block: BlockSize) -> String {
        RawFile::open(path, access, block).unwrap_err().to_string()
    }

    #[test]
    fn sectors_are_read_and_written_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 4096);
        let mut drive = RawFile::open(&path, Access::ReadWrite, BlockSize::CdRom).unwrap();
        assert_eq!(drive.medium(), Some(Medium { sectors: 8, read_only: false }));
        let read = drive.execute(&DiskOperation::Read { sector: 2, count: 2 }).unwrap();
        assert_eq!(read, [[2; 512], [3; 512]].concat());
        let write = DiskOperation::Write { sector: 7, data: vec![9; 512] };
        assert_eq!(drive.execute(&write), Ok(Vec::new()));
        assert_eq!(drive.execute(&DiskOperation::Flush), Ok(Vec::new()));
        assert_eq!(std::fs::read(&path).unwrap()[7 * 512..], [9; 512]);
    }

    #[test]
    fn requests_that_leave_the_image_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 4096);
        let mut drive = RawFile::open(&path, Access::ReadWrite, BlockSize::Disk).unwrap();
        for (sector, count) in [(8, 1), (7, 2), (u64::MAX, 1), (u64::MAX / 512, 1), (0, u32::MAX)] {
            let read = DiskOperation::Read { sector, count };
            assert_eq!(drive.execute(&read), Err(DiskError::OutOfRange));
        }
        for (sector, len) in [(8, 512), (0, 100)] {
            let write = DiskOperation::Write { sector, data: vec![0; len] };
            assert_eq!(drive.execute(&write), Err(DiskError::OutOfRange));
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4096);
    }

    #[test]
    fn an_image_for_reading_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 512);
        let mut drive = RawFile::open(&path, Access::ReadOnly, BlockSize::Disk).unwrap();
        let write = DiskOperation::Write { sector: 0, data: vec![9; 512] };
        assert_eq!(drive.execute(&write), Err(DiskError::ReadOnly));
        assert_eq!(drive.execute(&DiskOperation::Flush), Ok(Vec::new()));
    }

    #[test]
    fn one_writer_or_many_readers_use_an_image() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 512);
        let first = RawFile::open(&path, Access::ReadOnly, BlockSize::Disk).unwrap();
        let second = RawFile::open(&path, Access::ReadOnly, BlockSize::Disk).unwrap();
        assert!(message(&path, Access::ReadWrite, BlockSize::Disk).contains("is in use"));
        drop((first, second));
        let _writer = RawFile::open(&path, Access::ReadWrite, BlockSize::Disk).unwrap();
        assert!(message(&path, Access::ReadOnly, BlockSize::Disk).contains("is in use"));
    }

    #[test]
    fn what_is_no_image_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing");
        let says = message(&missing, Access::ReadOnly, BlockSize::Disk);
        assert_eq!(says, format!("there is no image file {}", missing.display()));
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let says = message(directory.path(), access, BlockSize::Disk);
            assert!(says.ends_with("is neither a file nor a block device"), "{says}");
        }
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let says = message(&pipe, Access::ReadOnly, BlockSize::Disk);
        assert!(says.ends_with("is neither a file nor a block device"), "{says}");
        for (len, block, size) in
            [(0, BlockSize::Disk, 512), (700, BlockSize::Disk, 512), (512, BlockSize::CdRom, 2048)]
        {
            let says = message(&image(&directory, len), Access::ReadOnly, block);
            let expected =
                format!("has {len} bytes, which is no whole number of {size}-byte sectors");
            assert!(says.contains(&expected), "{says}");
        }
    }

    #[test]
    fn errors_of_the_host_reach_the_guest_as_such() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 4096);
        let mut drive = RawFile::open(&path, Access::ReadWrite, BlockSize::Disk).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(1024).unwrap();
        let read = DiskOperation::Read { sector: 1, count: 2 };
        assert_eq!(drive.execute(&read), Err(DiskError::Host));
    }
}
