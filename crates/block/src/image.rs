//! Images as their users see them.

mod layer;
mod open;

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

use crate::preallocation::Preallocation;
use crate::storage::{Access, Storage};
use layer::Layer;
pub use open::{Backing, OpenOptions};

/// A disk image, with all images on which it stands.
///
/// Several threads can use it at once. What it does is done when the method comes back, and kept for certain after
/// the next [`Image::flush`]. Dropping it flushes too, and can only warn of what goes wrong then:
/// [`Image::close`] tells.
#[derive(Debug)]
pub struct Image {
    layer: Arc<Layer>,
    writes: bool,
    /// It was found to be raw: nobody said so.
    guarded: bool,
    /// There is nothing to flush when it is dropped.
    closed: bool,
}

/// What is known of a range of the disk, of all images below too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Where it begins on the disk.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// How many images down it stands: 0 for the image itself.
    pub depth: usize,
    /// What stands for it; [`Kind::Absent`] where no image has anything.
    pub kind: Kind,
}

impl Mapping {
    /// It is known to read as zeros.
    pub fn is_zero(&self) -> bool {
        !matches!(self.kind, Kind::Data { .. })
    }
}

impl Image {
    /// Opens the image at `path`, or the NBD export with that address.
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

    /// The same image, but that it is not flushed when it is dropped.
    pub(crate) fn lost_by_drop(mut self) -> Image {
        self.closed = true;
        self
    }

    /// Opens the image in `storage`, on the image `below`, whatever it says itself. Errors call it `path`.
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

    /// From now on what would have to wait for an NBD server to come back, or to answer, fails: nobody wants to know of it any more.
    pub fn give_up(&self) {
        let mut layer = Some(&self.layer);
        while let Some(present) = layer {
            if let Some(server) = &present.server {
                server.give_up();
            }
            layer = present.below.as_ref();
        }
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.layer.path
    }

    /// What it is.
    pub fn format(&self) -> Format {
        self.layer.format
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.layer.driver.size()
    }

    /// What the format tells of it.
    pub fn details(&self) -> Details {
        self.layer.driver.details()
    }

    /// Its own snapshots.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.details().snapshots
    }

    /// The image on which it stands, as it names it.
    pub fn backing(&self) -> Option<BackingName> {
        self.layer.driver.backing()
    }

    /// The image on which it stands, for reading, if that was opened.
    pub fn below(&self) -> Option<Image> {
        let layer = Arc::clone(self.layer.below.as_ref()?);
        Some(Image { layer, writes: false, guarded: false, closed: false })
    }

    /// Bytes that its file takes on the host, where that is known.
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

    /// Reads all of `bytes` from `offset` on, if that needs no waiting for the host. False if it did not; `bytes` then are anything.
    pub fn read_at_once(&self, bytes: &mut [u8], offset: u64) -> bool {
        self.check_range(offset, bytes.len() as u64).is_ok()
            && self.layer.driver.read_at_once(bytes, offset)
    }

    /// Writes all of `bytes` from `offset` on, if that needs no waiting for the host. False if it did not, but perhaps a part of it.
    pub fn write_at_once(&self, bytes: &[u8], offset: u64) -> bool {
        let is_guarded = self.guarded && offset < PROBE_SIZE as u64;
        self.check_write(offset, bytes.len() as u64).is_ok()
            && !is_guarded
            && self.layer.driver.write_at_once(bytes, offset)
    }

    /// Makes zeros of a range, without room for them where the format can.
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.check_write(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        self.said(self.layer.driver.write_zeroes(offset, len, self.layer.beneath()))
    }

    /// Makes zeros of a range, for which the image keeps its room on the host where it has the disk's bytes as they are.
    pub fn write_zeroes_in_place(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.check_write(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        self.said(self.layer.driver.write_zeroes_in_place(offset, len, self.layer.beneath()))
    }

    /// A hint that a range is not needed. What is read there afterwards is zeros or what was there.
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.check_write(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        self.said(self.layer.driver.discard(offset, len, self.layer.beneath()))
    }

    /// Comes back when all that was written before is kept, whatever happens to the host.
    pub fn flush(&self) -> Result<(), Error> {
        if self.writes { self.said(self.layer.driver.flush()) } else { Ok(()) }
    }

    /// Something that was written is lost, if this process ends before the next flush. Otherwise only a power cut can lose it.
    pub fn is_behind(&self) -> bool {
        self.writes && self.layer.driver.is_behind()
    }

    /// A file of the host in which `len` bytes of the disk stand at the same `offset`, to be read there, or written where
    /// `writes`; where the file is shorter the disk is zeros. None where it takes this image to find them.
    pub fn file_at(&self, offset: u64, len: u64, writes: bool) -> Option<BorrowedFd<'_>> {
        let is_guarded = self.guarded && offset < PROBE_SIZE as u64;
        let allowed = if writes {
            !is_guarded && self.check_write(offset, len).is_ok()
        } else {
            self.check_range(offset, len).is_ok()
        };
        allowed.then(|| self.layer.driver.file()).flatten()
    }

    /// Flushes and closes it.
    pub fn close(mut self) -> Result<(), Error> {
        self.closed = true;
        self.flush()
    }

    /// What stands for the bytes from `offset` on in this image alone, `max` at most.
    pub fn extent(&self, offset: u64, max: u64) -> Result<Extent, Error> {
        self.check_range(offset, 1)?;
        let max = max.clamp(1, self.size() - offset);
        let extent = self.said(self.layer.driver.extent(offset, max))?;
        Ok(Extent { kind: extent.kind, len: extent.len.clamp(1, max) })
    }

    /// What stands for the bytes from `offset` on in this image or those below, `max` at most.
    pub fn map(&self, offset: u64, max: u64) -> Result<Mapping, Error> {
        self.check_range(offset, 1)?;
        self.said(self.layer.map(offset, max.clamp(1, self.size() - offset)))
    }

    /// Gives the disk another size; new bytes are zeros.
    pub fn resize(&self, size: u64) -> Result<(), Error> {
        self.check_write(0, 0)?;
        let before = self.size();
        self.said(self.layer.driver.resize(size))?;
        // What the backing file has behind the old end must not show.
        let below = self.layer.below.as_ref().map_or(0, |below| below.driver.size());
        if size > before && below > before {
            self.write_zeroes(before, size.min(below) - before)?;
        }
        self.flush()
    }

    /// The same for a larger disk, with room for what is new. Where there is none the disk has its size again, unless there is not even room
    /// for that.
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
                "there is no room for its new size, nor for going back to the old one ({error}): its data are as they were; \
                 make room, and then use ring3 img resize --shrink to give it {before} bytes, and check -r leaks"
            )),
        })
    }

    /// Looks for damage, and repairs what `repair` says.
    pub fn check(&self, repair: Repair) -> Result<Report, Error> {
        if repair != Repair::Nothing {
            self.check_write(0, 0)?;
        }
        self.said(self.layer.driver.check(repair))
    }

    /// Writes one whole cluster compressed, or the last part of the disk, where nothing was written before.
    pub fn write_compressed(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.check_write(offset, bytes.len() as u64)?;
        self.said(self.layer.driver.write_compressed(bytes, offset))
    }

    /// Names another image on which it stands, or none. What the disk shows changes if that shows something else.
    pub fn set_backing(&self, backing: Option<&BackingName>) -> Result<(), Error> {
        self.check_write(0, 0)?;
        self.said(self.layer.driver.set_backing(backing))
    }

    /// Forgets all that this image has, so that the one below shows everywhere.
    pub fn make_empty(&self) -> Result<(), Error> {
        self.check_write(0, 0)?;
        self.said(self.layer.driver.make_empty())
    }

    /// Makes, applies or deletes a snapshot of its own.
    pub fn snapshot(&self, act: &SnapshotAct) -> Result<(), Error> {
        self.check_write(0, 0)?;
        self.said(self.layer.driver.snapshot(act))
    }

    /// Shows the disk as it was in one of its own snapshots, from now on; a name or an id. The image is open for reading only.
    pub fn show_snapshot(&self, which: &str) -> Result<(), Error> {
        if self.writes {
            return self.said(Err(Fault::refused("a snapshot is shown for reading only")));
        }
        self.said(self.layer.driver.show_snapshot(which))
    }

    /// Refuses to make another format's header of the start of an image that was found to be raw.
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
            "it was found to be raw, and this write would make a {other} image of it: say format=raw (-f raw)"
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
            tracing::error!("what was written last may be lost: {error}");
        }
    }
}
