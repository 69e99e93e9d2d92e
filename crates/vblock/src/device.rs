//! A device: an image that clients share, and the threads that work on it.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ring3_block::{Fault, Format, Image, Mapping, OpenOptions};
use ring3_vhost::block::SECTOR;

use crate::error::Error;
use crate::pool::Pool;
use crate::transfer::{Direction, Parts};

/// Threads of a device: so many requests wait for the host at the same time.
const THREADS: usize = 4;
/// Bytes that are copied at once, where data cannot go straight.
const COPY: usize = 1 << 20;

/// What a device is made of.
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    /// The image, or the address of an NBD export.
    pub file: PathBuf,
    /// Its format; if not given, it is found out.
    pub format: Option<Format>,
    /// Nobody may write to it.
    pub read_only: bool,
    /// Nothing is opened that the image names: no backing file, no file with a part of its data.
    pub no_external_files: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Device {
    name: String,
    image: Image,
    read_only: bool,
    pool: Pool,
    /// Held by whoever flushes for requests that must outlive this process.
    settling: Mutex<()>,
    /// The last of the fields: it is there until the image is closed.
    open: Arc<()>,
}

/// What was asked for failed; the log tells of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed {
    /// Linux's number, for protocols that tell.
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
        let image = Image::open(&options.file, &open)?;
        let pool = Pool::start(name, THREADS).map_err(Error::Thread)?;
        Ok(Device {
            name: name.to_owned(),
            image,
            read_only: options.read_only,
            pool,
            settling: Mutex::new(()),
            open: Arc::default(),
        })
    }

    /// Something that is gone when the image is closed.
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

    /// Bytes: whole sectors.
    pub(crate) fn size(&self) -> u64 {
        self.image.size() / SECTOR * SECTOR
    }

    /// Has one of its threads do something, which must not panic.
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
                    // The end of the file is before that of the disk: the image knows what is there.
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

    /// The same if it needs no waiting for the host; false if it was not all done. For reading alone, or of a file.
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

    /// Makes zeros of a range, and gives its room back where `unmaps`.
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

    /// Comes back when what was written outlives this process: the tables of formats that have some are in the file, in an order
    /// that outlives a power cut too. Whoever comes while another one does that for his own request uses it as well.
    pub(crate) fn settle(&self) -> Result<(), Failed> {
        if !self.image.is_behind() {
            return Ok(());
        }
        let _alone = self.settling.lock().unwrap_or_else(PoisonError::into_inner);
        if self.image.is_behind() { self.flush() } else { Ok(()) }
    }

    /// What stands for the bytes from `offset` on.
    pub(crate) fn map(&self, offset: u64, len: u64) -> Result<Mapping, Failed> {
        self.image.map(offset, len).map_err(|error| self.failed(&error))
    }

    /// Refuses what is not all on the disk.
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
