//! A device: an image that clients share, and the threads that work on it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use ring3_block::nbd::{Nbd, Source};
use ring3_block::{Fault, Format, Image, Mapping, OpenOptions};
use ring3_vhost::block::SECTOR;
use ring3_vhost::event::tell_configuration;

use crate::error::Error;
use crate::pool::Pool;
use crate::transfer::{Direction, Parts};

/// Number of threads of a device, and so of requests that wait for the host at the same time.
const THREADS: usize = 4;
/// Number of bytes that are copied at once if data cannot go directly between the file and the guest.
const COPY: usize = 1 << 20;

/// The options of a device.
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    /// The image, or the address of an NBD export.
    pub file: PathBuf,
    /// The image's format. Without it the first bytes decide.
    pub format: Option<Format>,
    /// Whether no client may write to the device.
    pub read_only: bool,
    /// Whether files that the image names stay closed: its backing file, and files with parts of its data.
    pub no_external_files: bool,
}

/// An open image, and the threads that work on it.
#[derive(Debug)]
pub(crate) struct Device {
    name: String,
    image: Image,
    read_only: bool,
    pool: Pool,
    /// Held during a flush for requests that must survive the end of this process.
    settling: Mutex<()>,
    /// Held for writing while the disk gets another size, and for reading by each request.
    resizing: RwLock<()>,
    /// The sockets of the clients that want to know of another size.
    listeners: Mutex<Vec<Weak<OwnedFd>>>,
    /// A mark that exists until the image is closed, since it is the last field to be dropped.
    open: Arc<()>,
}

/// The failure of a request. Errors of the image are in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed {
    /// Linux's error number, for protocols that report one.
    pub(crate) errno: i32,
}

impl Failed {
    const OUTSIDE: Failed = Failed { errno: libc::EINVAL };
}

impl Device {
    pub(crate) fn open(name: &str, options: &DeviceOptions) -> Result<Device, Error> {
        let writes = !options.read_only;
        let DeviceOptions { format, no_external_files, .. } = *options;
        let open = OpenOptions { format, writes, no_external_files, ..OpenOptions::default() };
        Device::of(name, Image::open(&options.file, &open)?, options.read_only)
    }

    /// Opens the disk of a provider, which may be away for `reconnect`.
    pub(crate) fn provided(
        name: &str,
        source: Arc<dyn Source>,
        export: &str,
        reconnect: Duration,
    ) -> Result<Device, Error> {
        let nbd = Nbd::over(source, export, reconnect, false)?;
        let read_only = nbd.is_read_only();
        let open =
            OpenOptions { format: Some(Format::Raw), writes: !read_only, ..OpenOptions::default() };
        Device::of(name, Image::in_export(nbd, Path::new(name), &open)?, read_only)
    }

    fn of(name: &str, image: Image, read_only: bool) -> Result<Device, Error> {
        let pool = Pool::start(name, THREADS).map_err(Error::Thread)?;
        Ok(Device {
            name: name.to_owned(),
            image,
            read_only,
            pool,
            settling: Mutex::new(()),
            resizing: RwLock::default(),
            listeners: Mutex::default(),
            open: Arc::default(),
        })
    }

    /// Returns a mark that is gone once the image is closed.
    pub(crate) fn open_mark(&self) -> Weak<()> {
        Arc::downgrade(&self.open)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the size of the disk in bytes, a whole number of sectors.
    pub(crate) fn size(&self) -> u64 {
        self.image.size() / SECTOR * SECTOR
    }

    /// Keeps the size as it is until the returned value is dropped.
    pub(crate) fn keep_size(&self) -> RwLockReadGuard<'_, ()> {
        self.resizing.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the client at the other end of `channel` when the disk gets another size, until `channel` is
    /// dropped.
    pub(crate) fn tell_at(&self, channel: &Arc<OwnedFd>) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(channel));
    }

    /// Gives the disk another size, after the requests that are executed now, and tells the clients.
    pub(crate) fn resize(&self, size: u64, shrinks: bool) -> Result<(), Error> {
        let name = || self.name.clone();
        if size == 0 || !size.is_multiple_of(SECTOR) {
            return Err(Error::Size(size));
        }
        if self.read_only || !self.image.is_in_files() {
            return Err(Error::FixedSize(name()));
        }
        {
            let _alone = self.resizing.write().unwrap_or_else(PoisonError::into_inner);
            let before = self.size();
            if size < before && !shrinks {
                return Err(Error::Shrinks { device: name(), before, size });
            }
            self.image.resize(size)?;
        }
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|channel| tell_configuration(&*channel));
        Ok(())
    }

    /// Lets one of the device's threads execute `job`, which must not panic.
    pub(crate) fn ask(&self, job: impl FnOnce() + Send + 'static) {
        self.pool.ask(job);
    }

    /// Moves data between the disk and guest memory.
    pub(crate) fn transfer(
        &self,
        direction: Direction,
        parts: &Parts<'_>,
        offset: u64,
    ) -> Result<(), Failed> {
        let len = parts.len();
        let mut done = 0;
        if let Some(file) =
            self.image.file_at(offset, len as u64, direction == Direction::FromGuest)
        {
            while done < len {
                let (rest, at) = (parts.behind(done), offset + done as u64);
                match rest.transfer(direction, file, at, true) {
                    // The file ends before the disk does, and the image knows what the rest contains.
                    Ok(0) => break,
                    Ok(moved) => done += moved,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        tracing::warn!("{}: {error}", self.name);
                        return Err(Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) });
                    }
                }
            }
        }
        let mut bytes = vec![0; COPY.min(len - done)];
        while done < len {
            let (rest, at) = (parts.behind(done), offset + done as u64);
            let now = bytes.len().min(len - done);
            let bytes = &mut bytes[..now];
            match direction {
                Direction::ToGuest => {
                    self.read(bytes, at)?;
                    rest.write(bytes);
                }
                Direction::FromGuest => {
                    rest.read(bytes);
                    self.write(bytes, at)?;
                }
            }
            done += now;
        }
        Ok(())
    }

    /// Moves data as [`Device::transfer`] does, if this needs no waiting for the host. Returns whether all
    /// were moved. Writes are moved only if they go directly to a file of the host.
    pub(crate) fn transfer_at_once(
        &self,
        direction: Direction,
        parts: &Parts<'_>,
        offset: u64,
    ) -> bool {
        let len = parts.len();
        let writes = direction == Direction::FromGuest;
        if let Some(file) = self.image.file_at(offset, len as u64, writes) {
            return parts.transfer(direction, file, offset, false).is_ok_and(|moved| moved == len);
        }
        if writes || len > COPY {
            return false;
        }
        let mut bytes = vec![0; len];
        let was_read = self.image.read_at_once(&mut bytes, offset);
        if was_read {
            parts.write(&bytes);
        }
        was_read
    }

    pub(crate) fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), Failed> {
        self.image.read_at(bytes, offset).map_err(|error| self.failed(&error))
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Failed> {
        self.image.write_at(bytes, offset).map_err(|error| self.failed(&error))
    }

    /// Fills a range with zeros, and gives up its room if `unmaps` is set.
    pub(crate) fn write_zeroes(&self, offset: u64, len: u64, unmaps: bool) -> Result<(), Failed> {
        let result = if unmaps {
            self.image.write_zeroes(offset, len)
        } else {
            self.image.write_zeroes_in_place(offset, len)
        };
        result.map_err(|error| self.failed(&error))
    }

    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<(), Failed> {
        self.image.discard(offset, len).map_err(|error| self.failed(&error))
    }

    pub(crate) fn flush(&self) -> Result<(), Failed> {
        self.image.flush().map_err(|error| self.failed(&error))
    }

    /// Returns once written data would survive the end of this process: a format with tables has written them
    /// to the file, in an order that survives a power cut too. Callers that wait for another one's flush
    /// share it.
    pub(crate) fn settle(&self) -> Result<(), Failed> {
        if !self.image.is_behind() {
            return Ok(());
        }
        let _alone = self.settling.lock().unwrap_or_else(PoisonError::into_inner);
        if self.image.is_behind() { self.flush() } else { Ok(()) }
    }

    /// Returns how the image stores the bytes from `offset` on.
    pub(crate) fn map(&self, offset: u64, len: u64) -> Result<Mapping, Failed> {
        self.image.map(offset, len).map_err(|error| self.failed(&error))
    }

    /// Refuses a range that is not wholly on the disk.
    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<(), Failed> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size());
        if inside { Ok(()) } else { Err(Failed::OUTSIDE) }
    }

    fn failed(&self, error: &ring3_block::Error) -> Failed {
        tracing::warn!("{}: {error}", self.name);
        let errno = match error {
            ring3_block::Error::In { fault: Fault::Io(error), .. } => error.raw_os_error(),
            ring3_block::Error::In { fault: Fault::ReadOnly, .. } => Some(libc::EPERM),
            _ => None,
        };
        Failed { errno: errno.unwrap_or(libc::EIO) }
    }
}
