//! Images as their users see them.

mod layer;
mod open;

use std::iter;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use crate::check::{Repair, Report};
use crate::encryption::Password;
use crate::error::{Error, Fault};
use crate::external::External;
use crate::format::{
    BackingName, Details, Extent, Format, Kind, PROBE_SIZE, Snapshot, SnapshotAct,
};
use crate::nbd::Nbd;

use crate::preallocation::Preallocation;
use crate::storage::{Access, Storage};
use layer::Layer;
pub use open::{Backing, OpenOptions};

/// A disk image, with its chain of backing images.
///
/// Several threads can use it at once. When a method returns, its work is done, but only [`Image::flush`]
/// makes it survive a power cut. Dropping an image flushes it too, but can only log an error.
/// [`Image::close`] returns the error.
#[derive(Debug)]
pub struct Image {
    layer: Arc<Layer>,
    writes: bool,
    /// Whether the format was found to be raw by probing, and not given.
    guarded: bool,
    /// Whether the image is not flushed when it is dropped.
    closed: bool,
}

/// The contents of a range of the disk, and the image of the chain that they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Offset of the range on the disk.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Number of images above the one that has the contents: 0 for the image itself.
    pub depth: usize,
    /// The kind of contents: [`Kind::Absent`] if no image has any.
    pub kind: Kind,
}

impl Mapping {
    /// Returns whether the range is known to read as zeros.
    pub fn is_zero(&self) -> bool {
        !matches!(self.kind, Kind::Data { .. })
    }
}

impl Image {
    /// Opens the image at `path`, or in the NBD export with this address.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Image, Error> {
        open::open(path, options)
    }

    /// Opens the image in `storage` as if it were the file at `path`.
    pub fn in_storage(
        storage: Box<dyn Storage>,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<Image, Error> {
        open::open_in(storage, path, options)
    }

    /// Opens the image in an export, which messages call `path`.
    pub fn in_export(export: Nbd, path: &Path, options: &OpenOptions) -> Result<Image, Error> {
        open::open_export(export, path, options)
    }

    /// Returns the image, which is then not flushed when it is dropped.
    pub(crate) fn lost_by_drop(mut self) -> Image {
        self.closed = true;
        self
    }

    /// Opens the image in `storage` with the backing image `below`, whatever name it states itself. Errors
    /// call it `path`.
    pub fn of_storage(
        storage: Box<dyn Storage>,
        path: &Path,
        format: Format,
        writes: bool,
        below: Option<&Image>,
    ) -> Result<Image, Error> {
        let external = External { image: path, is_allowed: false };
        let access = Access { writes, ..Access::default() };
        let driver = open::open_driver(format, storage, access, external, Password::Missing);
        let driver = driver.map_err(|fault| Error::In { path: path.to_owned(), fault })?;
        let below = below.map(|below| Arc::clone(&below.layer));
        let layer = Layer { path: path.to_owned(), format, driver, below, server: None };
        Ok(Image { layer: Arc::new(layer), writes, guarded: false, closed: false })
    }

    /// Lets requests fail from now on that would have to wait for an NBD server, since nobody needs them any
    /// more.
    pub fn give_up(&self) {
        let mut layer = Some(&self.layer);
        while let Some(present) = layer {
            if let Some(server) = &present.server {
                server.give_up();
            }
            layer = present.below.as_ref();
        }
    }

    /// Returns whether the image and those below are files, rather than devices or the exports of servers, which others
    /// may change.
    pub fn is_in_files(&self) -> bool {
        let mut layers = iter::successors(Some(&self.layer), |layer| layer.below.as_ref());
        layers.all(|layer| layer.server.is_none() && layer.path.is_file())
    }

    /// Returns the path by which the image was opened.
    pub fn path(&self) -> &Path {
        &self.layer.path
    }

    /// Returns the image's format.
    pub fn format(&self) -> Format {
        self.layer.format
    }

    /// Returns the size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.layer.driver.size()
    }

    /// Returns the image's properties.
    pub fn details(&self) -> Details {
        self.layer.driver.details()
    }

    /// Returns the snapshots in the image.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.details().snapshots
    }

    /// Returns the name of the backing image, as the image states it.
    pub fn backing(&self) -> Option<BackingName> {
        self.layer.driver.backing()
    }

    /// Returns the backing image for reading, if it was opened.
    pub fn below(&self) -> Option<Image> {
        let layer = Arc::clone(self.layer.below.as_ref()?);
        Some(Image { layer, writes: false, guarded: false, closed: false })
    }

    /// Returns the number of bytes that the image's file takes on the host, if this is known.
    pub fn allocated(&self) -> Option<u64> {
        self.layer.driver.allocated()
    }

    /// Reads all of `bytes` from `offset` on.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
        self.check_range(offset, bytes.len() as u64)?;
        if bytes.is_empty() { Ok(()) } else { self.said(self.layer.read(bytes, offset)) }
    }

    /// Writes all of `bytes` from `offset` on.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.check_write(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.said(self.guard(bytes, offset))?;
        self.said(self.layer.driver.write(bytes, offset, self.layer.beneath()))
    }

    /// Reads all of `bytes` from `offset` on, if this needs no waiting for the host. Otherwise returns false,
    /// and `bytes` may contain anything.
    pub fn read_at_once(&self, bytes: &mut [u8], offset: u64) -> bool {
        self.check_range(offset, bytes.len() as u64).is_ok()
            && self.layer.driver.read_at_once(bytes, offset)
    }

    /// Writes all of `bytes` from `offset` on, if this needs no waiting for the host. Otherwise returns
    /// false, and a part may have been written.
    pub fn write_at_once(&self, bytes: &[u8], offset: u64) -> bool {
        let is_guarded = self.guarded && offset < PROBE_SIZE as u64;
        self.check_write(offset, bytes.len() as u64).is_ok()
            && !is_guarded
            && self.layer.driver.write_at_once(bytes, offset)
    }

    /// Fills a range with zeros, which take no room if the format allows that.
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.check_write(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        self.said(self.layer.driver.write_zeroes(offset, len, self.layer.beneath()))
    }

    /// Fills a range with zeros. The range keeps its room on the host if the image contains the disk's bytes
    /// unchanged.
    pub fn write_zeroes_in_place(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.check_write(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        self.said(self.layer.driver.write_zeroes_in_place(offset, len, self.layer.beneath()))
    }

    /// Tells the image that a range is not needed. It reads as zeros or as before afterwards.
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.check_write(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        self.said(self.layer.driver.discard(offset, len, self.layer.beneath()))
    }

    /// Returns once all that was written before would survive a failure of the host.
    pub fn flush(&self) -> Result<(), Error> {
        if self.writes { self.said(self.layer.driver.flush()) } else { Ok(()) }
    }

    /// Returns whether written data would be lost if this process ended before the next flush. Otherwise only
    /// a failure of the host can lose them.
    pub fn is_behind(&self) -> bool {
        self.writes && self.layer.driver.is_behind()
    }

    /// Returns a file of the host that contains `len` bytes of the disk at the same `offset`, for reading, or
    /// with `writes` for writing. If the file is shorter, the rest of the disk is zeros. Returns None if only
    /// this image can find the bytes.
    pub fn file_at(&self, offset: u64, len: u64, writes: bool) -> Option<BorrowedFd<'_>> {
        let is_guarded = self.guarded && offset < PROBE_SIZE as u64;
        let allowed = if writes {
            !is_guarded && self.check_write(offset, len).is_ok()
        } else {
            self.check_range(offset, len).is_ok()
        };
        allowed.then(|| self.layer.driver.file()).flatten()
    }

    /// Flushes and closes the image.
    pub fn close(mut self) -> Result<(), Error> {
        self.closed = true;
        self.flush()
    }

    /// Returns the contents of the bytes from `offset` on in this image alone, for at most `max` bytes.
    pub fn extent(&self, offset: u64, max: u64) -> Result<Extent, Error> {
        self.check_range(offset, 1)?;
        let max = max.clamp(1, self.size() - offset);
        let extent = self.said(self.layer.driver.extent(offset, max))?;
        Ok(Extent { kind: extent.kind, len: extent.len.clamp(1, max) })
    }

    /// Returns the contents of the bytes from `offset` on in this image or those below, for at most `max`
    /// bytes.
    pub fn map(&self, offset: u64, max: u64) -> Result<Mapping, Error> {
        self.check_range(offset, 1)?;
        self.said(self.layer.map(offset, max.clamp(1, self.size() - offset)))
    }

    /// Changes the size of the disk. New bytes are zeros.
    pub fn resize(&self, size: u64) -> Result<(), Error> {
        self.check_write(0, 0)?;
        let before = self.size();
        self.said(self.layer.driver.resize(size))?;
        // Bytes of the backing image after the old end must not show through.
        let below = self.layer.below.as_ref().map_or(0, |below| below.driver.size());
        if size > before && below > before {
            self.write_zeroes(before, size.min(below) - before)?;
        }
        self.flush()
    }

    /// Enlarges the disk, and takes room for the new part. If there is too little, restores the old size,
    /// unless even this needs room that is not there.
    pub fn grow(&self, size: u64, mode: Preallocation) -> Result<(), Error> {
        let before = self.size();
        self.resize(size)?;
        let done = self.said(self.layer.driver.preallocate(before, mode));
        let Err(error) = done.and_then(|()| self.flush()) else { return Ok(()) };
        if self.resize(before).is_ok() {
            return Err(error);
        }
        Err(Error::In {
            path: self.layer.path.clone(),
            fault: Fault::refused(format!(
                "there is not enough space for the new size, nor for a return to the old one ({error}); no data are lost: \
                 free some space, then use \"ring3 img resize --shrink\" to set {before} bytes, and \"ring3 img check -r leaks\""
            )),
        })
    }

    /// Looks for damage, and repairs it as far as `repair` allows.
    pub fn check(&self, repair: Repair) -> Result<Report, Error> {
        if repair != Repair::Nothing {
            self.check_write(0, 0)?;
        }
        self.said(self.layer.driver.check(repair))
    }

    /// Writes a whole cluster, or the last part of the disk, in compressed form. Nothing may have been
    /// written there before.
    pub fn write_compressed(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.check_write(offset, bytes.len() as u64)?;
        self.said(self.layer.driver.write_compressed(bytes, offset))
    }

    /// Changes the name of the backing image, or removes it. The disk's contents change if the new one has
    /// other contents.
    pub fn set_backing(&self, backing: Option<&BackingName>) -> Result<(), Error> {
        self.check_write(0, 0)?;
        self.said(self.layer.driver.set_backing(backing))
    }

    /// Drops all data of this image, so that the one below shows everywhere.
    pub fn make_empty(&self) -> Result<(), Error> {
        self.check_write(0, 0)?;
        self.said(self.layer.driver.make_empty())
    }

    /// Makes, applies or deletes a snapshot in the image.
    pub fn snapshot(&self, act: &SnapshotAct) -> Result<(), Error> {
        self.check_write(0, 0)?;
        self.said(self.layer.driver.snapshot(act))
    }

    /// Shows the disk from now on as it was in the snapshot with the name or id `which`. The image must be
    /// open for reading only.
    pub fn show_snapshot(&self, which: &str) -> Result<(), Error> {
        if self.writes {
            return self.said(Err(Fault::refused("a snapshot can only be read")));
        }
        self.said(self.layer.driver.show_snapshot(which))
    }

    /// Refuses a write that would make an image that was found to be raw look like one of another format.
    fn guard(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        if !self.guarded || offset >= PROBE_SIZE as u64 {
            return Ok(());
        }
        let mut head = vec![0; PROBE_SIZE.min(self.size() as usize)];
        self.layer.read(&mut head, 0)?;
        let part = &mut head[offset as usize..];
        let len = part.len().min(bytes.len());
        part[..len].copy_from_slice(&bytes[..len]);
        let other = Format::probe(&head);
        if other == Format::Raw {
            return Ok(());
        }
        Err(Fault::refused(format!(
            "its format was not given and it is used as raw, and this write would make it a {other} image; give format=raw (-f raw)"
        )))
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        let size = self.size();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            end => {
                let end = end.unwrap_or(u64::MAX);
                self.said(Err(Fault::OutOfRange { offset, end, size }))
            }
        }
    }

    fn check_write(&self, offset: u64, len: u64) -> Result<(), Error> {
        if !self.writes {
            return self.said(Err(Fault::ReadOnly));
        }
        self.check_range(offset, len)
    }

    fn said<T>(&self, result: Result<T, Fault>) -> Result<T, Error> {
        result.map_err(|fault| Error::In { path: self.layer.path.clone(), fault })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        if let Err(error) = self.flush() {
            tracing::error!("the last writes may be lost: {error}");
        }
    }
}
