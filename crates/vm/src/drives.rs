//! What stands behind the drives of the machine.
//!
//! A [`Drive`] does what a device asks: [`ImageFile`] with a disk image, [`Overlay`] with one that
//! stays as it is while the guest writes, [`Empty`] without a medium.
//!
//! In a normal run threads of the drive do it, several requests side by side, and the guest runs on; what needs no waiting for the host is done at once.
//! In a deterministic run all is, so that answers come in the same place each time.

mod image;
mod options;
mod overlay;
mod pool;

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring3_block::Format;
use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, DiskRequest, Medium};
use ring3_devices::floppy;
use ring3_devices::ide::{self, DriveKind};
use ring3_devices::virtio;
use thiserror::Error;

pub use image::ImageFile;
pub use options::{Access, BlockSize, Cache, DetectZeroes, ImageOptions};
pub use overlay::Overlay;

use crate::config::Config;
use crate::control::DriveInfo;
use crate::door::Sender;
use pool::Pool;

/// The host's side of a drive: a file, memory, or whatever holds sectors. It is asked by several threads at once.
pub trait Drive: Debug + Send + Sync {
    /// Does `operation`; the bytes read, none for other operations.
    fn execute(&self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError>;

    /// The same, if it needs no waiting for the host; else nothing is done.
    fn execute_at_once(&self, _operation: &DiskOperation) -> Option<Result<Vec<u8>, DiskError>> {
        None
    }

    /// What is in the drive.
    fn medium(&self) -> Option<Medium>;

    /// The file with its sectors, if there is one.
    fn file(&self) -> Option<&Path>;

    /// The format of that file.
    fn format(&self) -> Option<Format> {
        None
    }

    /// What becomes of writes.
    fn cache(&self) -> Cache {
        Cache::default()
    }

    /// What becomes of writes that are zeros.
    fn detect_zeroes(&self) -> DetectZeroes {
        DetectZeroes::default()
    }
}

/// A drive without a medium.
#[derive(Debug, Clone, Copy, Default)]
pub struct Empty;

impl Drive for Empty {
    fn execute(&self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError> {
        match operation {
            DiskOperation::Eject => Ok(Vec::new()),
            _ => Err(DiskError::NoMedium),
        }
    }

    fn execute_at_once(&self, operation: &DiskOperation) -> Option<Result<Vec<u8>, DiskError>> {
        Some(self.execute(operation))
    }

    fn medium(&self) -> Option<Medium> {
        None
    }

    fn file(&self) -> Option<&Path> {
        None
    }
}

/// Why an image file cannot be a drive.
#[derive(Debug, Error)]
pub enum ImageError {
    /// It cannot be opened.
    #[error(transparent)]
    Image(#[from] ring3_block::Error),
    /// It is empty, or ends within a sector.
    #[error(
        "{path} has {len} bytes, which is no whole number of {block}-byte sectors: it is cut short or no raw image"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        len: u64,
        /// Bytes of a sector.
        block: u64,
    },
    /// There is no room for what the guest writes.
    #[error(
        "no temporary file for writes to {path} in {directory}: {source}; TMPDIR names another directory"
    )]
    Temporary {
        /// The image.
        path: PathBuf,
        /// The directory for temporary files.
        directory: PathBuf,
        /// What the host says.
        source: io::Error,
    },
}

/// The drives of a machine.
#[derive(Debug, Default)]
pub(crate) struct Drives {
    all: Vec<Attached>,
    /// Where answers go that come later. Without it all is done at once.
    door: Option<Sender>,
}

/// A drive behind a device.
#[derive(Debug)]
struct Attached {
    /// The name of the device.
    device: String,
    /// Its number there.
    unit: u8,
    drive: Arc<dyn Drive>,
    /// From the first request on that is not done at once.
    pool: Option<Pool>,
    /// The requests that it has not answered, by their tags.
    waiting: Vec<Waiting>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    tag: u64,
    /// It is an [`DiskOperation::Eject`].
    ejects: bool,
}

impl Attached {
    fn new(device: &str, unit: u8, drive: Box<dyn Drive>) -> Attached {
        Attached {
            device: device.to_owned(),
            unit,
            drive: Arc::from(drive),
            pool: None,
            waiting: Vec::new(),
        }
    }

    /// Has threads do `request`, which answer at `door`. False if there can be none.
    fn ask_pool(&mut self, request: DiskRequest, door: &Sender) -> bool {
        let asked = Waiting { tag: request.tag, ejects: request.operation == DiskOperation::Eject };
        let new = || Pool::new(&self.device, Arc::clone(&self.drive), door.clone());
        match self.pool.get_or_insert_with(new).ask(request) {
            Ok(()) => {
                self.waiting.push(asked);
                true
            }
            Err(error) => {
                tracing::warn!("there can be no thread for a drive: {error}");
                false
            }
        }
    }
}

impl Drives {
    /// Attaches `drive`, in the place of the one that was there.
    pub(crate) fn attach(&mut self, device: &str, unit: u8, drive: Box<dyn Drive>) {
        self.all.retain(|at| (at.device.as_str(), at.unit) != (device, unit));
        self.all.push(Attached::new(device, unit, drive));
    }

    /// From now on, what may have to wait for the host is done by threads, and answered at `door`.
    pub(crate) fn answer_at(&mut self, door: Sender) {
        self.door = Some(door);
    }

    /// From now on all is done at once again. Nothing may be [waited for](Drives::are_waiting).
    pub(crate) fn answer_at_once(&mut self) {
        self.door = None;
        for at in &mut self.all {
            at.pool = None;
        }
    }

    /// Some requests are not answered yet.
    pub(crate) fn are_waiting(&self) -> bool {
        self.all.iter().any(|at| !at.waiting.is_empty())
    }

    /// Asks drive `unit` of the device `device`. The answer, if there is one at once.
    pub(crate) fn ask(
        &mut self,
        device: &str,
        unit: u8,
        request: DiskRequest,
    ) -> Option<DiskAnswer> {
        let tag = request.tag;
        let place = |at: &&mut Attached| (at.device.as_str(), at.unit) == (device, unit);
        let Some(at) = self.all.iter_mut().find(place) else {
            return Some(DiskAnswer { tag, result: Err(DiskError::NoMedium) });
        };
        let ejects = request.operation == DiskOperation::Eject;
        let result = match &self.door {
            None => at.drive.execute(&request.operation),
            Some(door) => {
                // Nothing overtakes that the medium is taken out.
                let is_next = !at.waiting.iter().any(|asked| asked.ejects);
                let at_once = is_next.then(|| at.drive.execute_at_once(&request.operation));
                match at_once.flatten() {
                    Some(result) => result,
                    None if at.ask_pool(request, door) => return None,
                    None => Err(DiskError::Host),
                }
            }
        };
        if ejects && result.is_ok() {
            self.attach(device, unit, Box::new(Empty));
        }
        Some(DiskAnswer { tag, result })
    }

    /// A drive of `device` has answered later.
    pub(crate) fn note_answer(&mut self, device: &str, answer: &DiskAnswer) {
        for at in self.all.iter_mut().filter(|at| at.device == device) {
            let Some(index) = at.waiting.iter().position(|asked| asked.tag == answer.tag) else {
                continue;
            };
            if at.waiting.remove(index).ejects && answer.result.is_ok() {
                *at = Attached::new(device, at.unit, Box::new(Empty));
            }
        }
    }

    /// What the drives of a machine of that shape are. Whether the guest holds their media, the board knows.
    pub(crate) fn describe(&self, config: &Config) -> Vec<DriveInfo> {
        let ide = config.ide.iter().zip(0..).filter_map(|(drive, unit)| {
            let removable = matches!(drive.as_ref()?.kind, DriveKind::CdRom(_));
            Some((ide::NAME, unit, removable))
        });
        let virtio = virtio::block::NAMES.into_iter().zip(&config.virtio_disks);
        let virtio = virtio.map(|(device, _)| (device, 0, false));
        let diskettes = config.diskettes.iter().zip(0..).filter_map(|(drive, unit)| {
            drive.as_ref()?;
            Some((floppy::NAME, unit, true))
        });
        let info = |(device, unit, removable): (&str, u8, bool)| {
            let place = |at: &&Attached| (at.device.as_str(), at.unit) == (device, unit);
            let drive = self.all.iter().find(place).map(|at| &*at.drive);
            DriveInfo {
                device: device.to_owned(),
                unit,
                removable,
                locked: false,
                medium: drive.and_then(Drive::medium),
                file: drive.and_then(Drive::file).map(Path::to_owned),
                format: drive.and_then(Drive::format).map(Format::name),
                cache: drive.map(Drive::cache).unwrap_or_default(),
                detect_zeroes: drive.map(Drive::detect_zeroes).unwrap_or_default(),
            }
        };
        ide.chain(virtio).chain(diskettes).map(info).collect()
    }
}
