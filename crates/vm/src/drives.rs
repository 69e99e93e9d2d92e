//! What stands behind the drives of the machine.
//!
//! A [`Drive`] does what a device asks: [`ImageFile`] with a disk image, [`Overlay`] with one that
//! stays as it is while the guest writes, [`Served`] with one of a server, [`Empty`] without a medium.
//!
//! In a normal run threads of the drive do it, several requests side by side, and the guest runs on; what needs no waiting for the host is done at once.
//! In a deterministic run all is, so that answers come in the same place each time. [`Limits`] hold requests back, and an
//! [`ErrorPolicy`] says what becomes of those that the host cannot do: both are matters of the threads.
//!
//! # Answers
//!
//! A device model knows the size of its medium and nothing of files. It sends a [`DiskRequest`] as an
//! output, is busy, and continues when the answer comes by the door, so a replay needs no disk. While an
//! answer is to come, the machine looks at the door every 50 µs. The host says whether it can read without
//! waiting (`RWF_NOWAIT`: it has the bytes in memory); then the answer comes at once, and no other thread
//! is woken. A recording repeats either kind: an answer that followed its request at once is taken there
//! again, any other at its recorded place. So [`Limits`] only delay answers, and a request for which the
//! host has no room is kept while the machine stands still, and repeated when it continues.
//!
//! Whoever changes a disc puts another `Drive` into place, and the device hears of the new medium by an input.
//!
//! [`DiskRequest`]: ring3_core::disk::DiskRequest

mod attached;
mod counts;
mod errors;
mod image;
mod options;
mod overlap;
mod overlay;
mod pool;
mod range;
mod served;
mod throttle;

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_block::Format;
use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, DiskRequest, Medium};
use ring3_devices::floppy;
use ring3_devices::ide::{self, DriveKind};
use ring3_devices::virtio;
use thiserror::Error;

pub use counts::{Counts, OperationCounts};
pub use errors::{Action, ErrorPolicy, OnError};
pub use image::ImageFile;
pub use options::{Access, BlockSize, Cache, DetectZeroes, ImageOptions};
pub use overlay::Overlay;
pub use served::Served;
pub use throttle::{BadLimits, Limit, Limits};

use crate::config::Config;
use crate::control::{DriveInfo, Ended};
use crate::door::{Others, Sender};
use attached::Attached;
use counts::Counted;
use pool::Pool;
use throttle::Throttle;

/// The host's side of a drive: a file, memory, or whatever holds sectors. It is asked by several threads at once.
pub trait Drive: Debug + Send + Sync {
    /// Does `operation`; the bytes read, none for other operations.
    fn execute(&self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError>;

    /// The same, if it needs no waiting for the host; else nothing is done.
    fn execute_at_once(&self, _operation: &DiskOperation) -> Option<Result<Vec<u8>, DiskError>> {
        None
    }

    /// The same, or begins it, for somebody to wait for it elsewhere, where others do the work of the drive.
    fn begin(&self, operation: &DiskOperation) -> Option<Begun> {
        self.execute_at_once(operation).map(Begun::Complete)
    }

    /// Something that was [begun](Begun::Waits) may be complete.
    fn has_news(&self) -> bool {
        false
    }

    /// Before the machine sleeps while something is under way: what can be read when there [may be news](Drive::has_news). None where there may be
    /// some already.
    fn arm(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Nobody wants to know of what is not done yet: the machine ends. What cannot be done soon fails from now on.
    fn end(&self) {}

    /// Gives the medium another size.
    fn resize(&self, _bytes: u64) -> Result<(), ResizeError> {
        Err(ResizeError::Fixed)
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

/// An operation that was begun.
pub trait Later: Send {
    /// What it came to, if it is complete; after that there is no more to look for.
    fn look(&mut self) -> Option<Result<Vec<u8>, DiskError>>;

    /// The same, looking for as long as pays.
    fn look_a_while(&mut self) -> Option<Result<Vec<u8>, DiskError>>;

    /// Waits until it is complete.
    fn wait(self: Box<Self>) -> Result<Vec<u8>, DiskError>;
}

/// What became of an operation at once.
pub enum Begun {
    /// It is done.
    Complete(Result<Vec<u8>, DiskError>),
    /// It is under way.
    Waits(Box<dyn Later>),
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

/// The host could not do what a drive was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveFailure {
    /// The name of the device to which the drive is attached.
    pub device: String,
    /// Which of that device's drives it is, from 0.
    pub unit: u8,
    /// It was asked to read, and not to write or to flush.
    pub is_read: bool,
    /// What the host says.
    pub error: DiskError,
    /// What is done about it.
    pub action: Action,
}

/// Why a medium keeps its size.
#[derive(Debug, Error)]
pub enum ResizeError {
    /// There is no machine any more.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// There is no such drive.
    #[error("there is no such drive")]
    NoDrive,
    /// Its device, or what is behind it, cannot do that.
    #[error(
        "only virtio disks, without snapshot=on, can be given another size while the machine runs"
    )]
    Fixed,
    /// It would be none, or end within a sector.
    #[error("{0} bytes are no whole number of sectors")]
    Odd(u64),
    /// The image could not.
    #[error(transparent)]
    Image(#[from] ring3_block::Error),
}

/// Why a drive has no limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LimitError {
    /// There is no machine any more.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// There is no such drive.
    #[error("there is no such drive")]
    NoDrive,
    /// It would be the host's time that decides what the guest sees.
    #[error("a drive has no limits in a deterministic run")]
    Deterministic,
    /// They contradict each other.
    #[error(transparent)]
    Bad(#[from] BadLimits),
}

/// What people call what is behind a drive, where they call it something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriveNames {
    /// The drive, whatever is in it.
    pub drive: Option<String>,
    /// What is in it.
    pub node: Option<String>,
    /// The device that has it, where that is no card.
    pub device: Option<String>,
}

/// How often somebody is told of a drive's errors, as by QEMU: a guest without room for what it writes makes thousands of them.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// The drives of a machine.
#[derive(Debug, Default)]
pub(crate) struct Drives {
    all: Vec<Attached>,
    /// Where answers go that come later. Without it all is done at once.
    door: Option<Sender>,
}

/// The answers that no thread waits for.
impl Others for Drives {
    fn have_news(&self) -> bool {
        self.all.iter().any(|at| !at.held.is_empty() && at.drive.has_news())
    }

    fn arm(&self) -> Option<Vec<BorrowedFd<'_>>> {
        self.all.iter().filter(|at| !at.held.is_empty()).map(|at| at.drive.arm()).collect()
    }
}

impl Drives {
    /// Attaches `drive`, in the place of the one that was there.
    pub(crate) fn attach(&mut self, device: &str, unit: u8, drive: Arc<dyn Drive>) {
        self.hand_over();
        match self.find(device, unit) {
            Some(at) => at.replace(drive),
            None => self.all.push(Attached::new(device, unit, drive)),
        }
    }

    fn find(&mut self, device: &str, unit: u8) -> Option<&mut Attached> {
        self.all.iter_mut().find(|at| (at.device.as_str(), at.unit) == (device, unit))
    }

    /// Says what people call a drive.
    pub(crate) fn name(&mut self, device: &str, unit: u8, names: DriveNames) {
        if let Some(at) = self.find(device, unit) {
            at.names = names;
        }
    }

    /// The device is gone: nothing is held back that its drives were asked, and what the host cannot do fails.
    pub(crate) fn let_go(&mut self, device: &str) {
        self.hand_over();
        for at in self.all.iter_mut().filter(|at| at.device == device) {
            at.stopped = None;
            at.pool.iter().for_each(Pool::let_go);
        }
    }

    /// Takes the drives of a device away that is gone.
    pub(crate) fn detach(&mut self, device: &str) {
        self.all.retain(|at| at.device != device);
    }

    /// A device has requests that are not answered yet.
    pub(crate) fn is_waiting(&self, device: &str) -> bool {
        self.all.iter().any(|at| at.device == device && !at.waiting.is_empty())
    }

    /// Gives a drive other limits. What the old ones hold back is done at once.
    pub(crate) fn limit(
        &mut self,
        device: &str,
        unit: u8,
        limits: Limits,
    ) -> Result<(), LimitError> {
        limits.check()?;
        let at = self.find(device, unit).ok_or(LimitError::NoDrive)?;
        at.throttle = (!limits.is_none()).then(|| Throttle::new(limits, Instant::now()));
        if let Some(pool) = &at.pool {
            pool.release();
        }
        Ok(())
    }

    /// Gives the medium of a drive another size: what it is then.
    pub(crate) fn resize(
        &mut self,
        device: &str,
        unit: u8,
        bytes: u64,
    ) -> Result<Option<Medium>, ResizeError> {
        let at = self.find(device, unit).ok_or(ResizeError::NoDrive)?;
        if !virtio::block::NAMES.contains(&device) {
            return Err(ResizeError::Fixed);
        }
        at.drive.resize(bytes)?;
        Ok(at.drive.medium())
    }

    /// Says what is done about a drive's errors, before it is asked for anything.
    pub(crate) fn set_error_policy(&mut self, device: &str, unit: u8, policy: ErrorPolicy) {
        if let Some(at) = self.find(device, unit) {
            at.policy = policy;
        }
    }

    /// Who wants to know is to be told of `failure`: of one a second, where the machine does not stand still for it.
    pub(crate) fn tells(&mut self, failure: &DriveFailure) -> bool {
        if failure.action == Action::Stop {
            return true;
        }
        let now = Instant::now();
        let Some(at) = self.find(&failure.device, failure.unit) else { return false };
        let is_new = at.told.is_none_or(|told| now.duration_since(told) >= TOLD_EVERY);
        if is_new {
            at.told = Some(now);
        }
        is_new
    }

    /// The machine is to stand still for `failure`: the file of the drive, if it still keeps what failed.
    pub(crate) fn stop(&mut self, failure: &DriveFailure) -> Option<PathBuf> {
        let at = self.find(&failure.device, failure.unit)?;
        if !at.pool.as_ref().is_some_and(Pool::keeps_any) {
            return None;
        }
        at.stopped = Some(failure.error);
        Some(at.drive.file().map(Path::to_owned).unwrap_or_default())
    }

    /// Does again what the host could not do.
    pub(crate) fn do_again(&mut self) {
        for at in &mut self.all {
            at.stopped = None;
            at.pool.iter().for_each(Pool::do_again);
        }
    }

    /// Lets what the host could not do fail: nobody waits for it any more.
    pub(crate) fn give_up(&mut self) {
        for at in &mut self.all {
            at.stopped = None;
            at.pool.iter().for_each(Pool::give_up);
        }
    }

    /// The run ends: nothing is held back, and what the host cannot do fails.
    pub(crate) fn hurry(&mut self) {
        self.hand_over();
        self.all.iter().filter_map(|at| at.pool.as_ref()).for_each(Pool::hurry);
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

    /// The next answer to a request that no thread waits for, with the name of its device.
    pub(crate) fn take_answer(&mut self) -> Option<(String, DiskAnswer)> {
        let door = self.door.clone()?;
        self.all.iter_mut().filter(|at| !at.held.is_empty()).find_map(|at| {
            let found = overlap::find(&mut at.held, |later| later.look())?;
            Some((at.device.clone(), at.answer(found, &door)?))
        })
    }

    /// The guest has nothing to do but to wait.
    pub(crate) fn guest_waits(&mut self) {
        for at in &mut self.all {
            at.overlap.waits(at.held.len());
        }
    }

    /// Lets threads wait for all that is under way.
    fn hand_over(&mut self) {
        if let Some(door) = self.door.clone() {
            self.all.iter_mut().for_each(|at| at.hand_over(&door));
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
        let door = self.door.clone();
        let Some(at) = self.find(device, unit) else {
            return Some(DiskAnswer { tag, result: Err(DiskError::NoMedium) });
        };
        let ejects = request.operation == DiskOperation::Eject;
        let counted = Counted::new(&request.operation);
        let result = match door {
            None => at.drive.execute(&request.operation),
            Some(door) => at.ask(request, counted, &door)?,
        };
        at.counts.note(counted, &result);
        if ejects && result.is_ok() {
            self.attach(device, unit, Arc::new(Empty));
        }
        Some(DiskAnswer { tag, result })
    }

    /// A drive of `device` has answered later.
    pub(crate) fn note_answer(&mut self, device: &str, answer: &DiskAnswer) {
        for at in self.all.iter_mut().filter(|at| at.device == device) {
            let Some(index) = at.waiting.iter().position(|asked| asked.tag == answer.tag) else {
                continue;
            };
            let asked = at.waiting.remove(index);
            at.counts.note(asked.counted, &answer.result);
            if asked.ejects && answer.result.is_ok() {
                at.replace(Arc::new(Empty));
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
        let virtio = virtio.filter_map(|(device, disk)| disk.as_ref().map(|_| (device, 0, false)));
        let diskettes = config.diskettes.iter().zip(0..).filter_map(|(drive, unit)| {
            drive.as_ref()?;
            Some((floppy::NAME, unit, true))
        });
        let info = |(device, unit, removable): (&str, u8, bool)| {
            let place = |at: &&Attached| (at.device.as_str(), at.unit) == (device, unit);
            let at = self.all.iter().find(place);
            let drive = at.map(|at| &*at.drive);
            let throttle = at.and_then(|at| at.throttle.as_ref());
            DriveInfo {
                device: device.to_owned(),
                unit,
                id: None,
                names: at.map(|at| at.names.clone()).unwrap_or_default(),
                removable,
                locked: false,
                medium: drive.and_then(Drive::medium),
                file: drive.and_then(Drive::file).map(Path::to_owned),
                format: drive.and_then(Drive::format).map(Format::name),
                cache: drive.map(Drive::cache).unwrap_or_default(),
                detect_zeroes: drive.map(Drive::detect_zeroes).unwrap_or_default(),
                limits: throttle.map(|throttle| *throttle.limits()).unwrap_or_default(),
                stopped: at.and_then(|at| at.stopped),
                counts: at.map(|at| at.counts).unwrap_or_default(),
            }
        };
        ide.chain(virtio).chain(diskettes).map(info).collect()
    }
}
