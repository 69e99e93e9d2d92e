//! Files and block devices of the host.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

use super::direct::Direct;
use super::{Access, Storage, locks, write_zero_bytes};
use crate::error::Error;

/// An image file, or a block device of the host.
#[derive(Debug)]
pub struct HostFile {
    path: PathBuf,
    file: File,
    is_device: bool,
    no_flush: bool,
    /// The alignment for access that bypasses the host's cache, if this was asked for.
    direct: Option<Direct>,
}

impl HostFile {
    /// Opens the file at `path`.
    ///
    /// Unless it is shared, the file stays locked until it is dropped, for one writer or any number of
    /// readers. The locks are those of QEMU's programs, and flock(2).
    pub fn open(path: &Path, access: Access) -> Result<HostFile, Error> {
        let Access { writes, shares, direct, no_flush } = access;
        // Without O_NONBLOCK, opening a pipe waits for its other end.
        let flags = OFlags::NONBLOCK | if direct { OFlags::DIRECT } else { OFlags::empty() };
        let flags = flags.bits().cast_signed();
        let opened = OpenOptions::new().read(true).write(writes).custom_flags(flags).open(path);
        let fails = |error| open_error(path, writes, error);
        let file = opened.map_err(|error| match error.kind() {
            // A file system without O_DIRECT reports this error (open(2)).
            ErrorKind::InvalidInput if direct => Error::Direct { path: path.to_owned() },
            _ => fails(error),
        })?;
        let kind = file.metadata().map_err(fails)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Error::NotAnImage { path: path.to_owned() });
        }
        if !shares {
            locks::take(&file, path, writes)?;
        }
        let direct = direct.then(|| Direct::of(&file));
        let (path, is_device) = (path.to_owned(), kind.is_block_device());
        Ok(HostFile { path, file, is_device, no_flush, direct })
    }

    /// Makes a file at `path` for reading and writing. Fails if there is already one.
    pub fn create(path: &Path) -> Result<HostFile, Error> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file =
            file.map_err(|source| Error::Create { path: path.to_owned(), fault: source.into() })?;
        locks::take(&file, path, true)?;
        let path = path.to_owned();
        Ok(HostFile { path, file, is_device: false, no_flush: false, direct: None })
    }

    /// Returns whether `path` still leads to this file.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let of = |data: std::fs::Metadata| (data.dev(), data.ino());
        match (self.file.metadata(), std::fs::symlink_metadata(path)) {
            (Ok(one), Ok(other)) => of(one) == of(other),
            _ => false,
        }
    }

    /// Returns whether it is a block device, whose size cannot change.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    fn fallocate(&self, flags: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        // The kernel refuses a range of no bytes.
        if len == 0 { Ok(()) } else { fallocate(&self.file, flags, offset, len) }
    }
}

fn open_error(path: &Path, writes: bool, source: io::Error) -> Error {
    let path = path.to_owned();
    match source.kind() {
        ErrorKind::NotFound => Error::Missing { path },
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem if writes => {
            Error::Permission {
                path,
                what: "read and write",
                hint: "it can be used for reading only",
            }
        }
        ErrorKind::PermissionDenied => {
            Error::Permission { path, what: "read", hint: "its owner can grant it" }
        }
        ErrorKind::IsADirectory => Error::NotAnImage { path },
        _ => Error::Open { path, source },
    }
}

/// Returns whether this file or this kernel does not have the operation.
fn is_missing(error: Errno) -> bool {
    matches!(error, Errno::NOTSUP | Errno::NOSYS | Errno::INVAL | Errno::NODEV)
}

impl Storage for HostFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.direct {
            Some(direct) => direct.read(&self.file, bytes, offset),
            None => self.file.read_exact_at(bytes, offset),
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match &self.direct {
            Some(direct) => direct.write(&self.file, bytes, offset),
            None => self.file.write_all_at(bytes, offset),
        }
    }

    /// Reads bytes that are in the host's cache.
    fn read_at_once(&self, bytes: &mut [u8], offset: u64) -> bool {
        if self.direct.is_some() {
            return false;
        }
        let len = bytes.len();
        let read =
            preadv2(&self.file, &mut [IoSliceMut::new(bytes)], offset, ReadWriteFlags::NOWAIT);
        read == Ok(len)
    }

    /// Writes bytes that the host can put into its cache at once.
    fn write_at_once(&self, bytes: &[u8], offset: u64) -> bool {
        if self.direct.is_some() {
            return false;
        }
        let written = pwritev2(&self.file, &[IoSlice::new(bytes)], offset, ReadWriteFlags::NOWAIT);
        written == Ok(bytes.len())
    }

    fn flush(&self) -> io::Result<()> {
        if self.no_flush { Ok(()) } else { self.file.sync_data() }
    }

    fn size(&self) -> io::Result<u64> {
        // This is the only way to learn a block device's size that also works for files. All other accesses
        // are by offset.
        (&self.file).seek(SeekFrom::End(0))
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        if self.is_device {
            let there = self.size()?;
            let message = format!("the device has {there} bytes, and {size} are needed");
            return if size <= there { Ok(()) } else { Err(io::Error::other(message)) };
        }
        self.file.set_len(size)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.checked_add(len).ok_or(ErrorKind::FileTooLarge)?;
        let there = self.size()?;
        if end > there {
            self.set_size(end)?;
        }
        let inside = there.saturating_sub(offset).min(len);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match self.fallocate(punch, offset, inside) {
            Err(error) if is_missing(error) => {}
            result => return result.map_err(Into::into),
        }
        write_zero_bytes(self, offset, inside)
    }

    fn write_zeroes_in_place(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.checked_add(len).ok_or(ErrorKind::FileTooLarge)?;
        match self.fallocate(FallocateFlags::ZERO_RANGE, offset, len) {
            Err(error) if is_missing(error) => {}
            result => return result.map_err(Into::into),
        }
        let there = self.size()?;
        if end > there {
            self.set_size(end)?;
        }
        write_zero_bytes(self, offset, len)
    }

    fn take_room(&self, offset: u64, len: u64, writes: bool) -> io::Result<()> {
        if !writes {
            // A device always has its room. If a file cannot have room without data, the data are written.
            match self.fallocate(FallocateFlags::empty(), offset, len) {
                Err(_) if self.is_device => return Ok(()),
                Err(error) if is_missing(error) => {}
                result => return result.map_err(Into::into),
            }
        }
        write_zero_bytes(self, offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let len = self.size()?.saturating_sub(offset).min(len);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match self.fallocate(punch, offset, len) {
            Err(error) if is_missing(error) => Ok(()),
            result => result.map_err(Into::into),
        }
    }

    fn run_at(&self, offset: u64, end: u64) -> io::Result<(bool, u64)> {
        use rustix::fs::{SeekFrom, seek};
        match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) if data > offset => Ok((false, data.min(end))),
            Ok(_) => match seek(&self.file, SeekFrom::Hole(offset)) {
                Ok(hole) if hole > offset => Ok((true, hole.min(end))),
                _ => Ok((true, end)),
            },
            // There are no data from `offset` on.
            Err(Errno::NXIO) => Ok((false, end)),
            // A file system or device that does not know this may have data everywhere.
            Err(error) if is_missing(error) => Ok((true, end)),
            Err(error) => Err(error.into()),
        }
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        // Without the cache not every offset and address is possible.
        self.direct.is_none().then(|| self.file.as_fd())
    }

    fn allocated(&self) -> Option<u64> {
        // stat(2) counts blocks of 512 bytes.
        self.file.metadata().ok().map(|data| data.blocks() * 512)
    }
}
