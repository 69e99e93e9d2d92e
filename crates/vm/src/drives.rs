//! The host's side of the machine's drives.
//!
//! A [`Drive`] executes the requests of a device; [`Empty`] is the one without a medium. Drives with one,
//! from images or servers, are in the crate `ring3_disk`: the machine knows nothing of files and formats.
//!
//! In a normal run threads of the drive do this work, several requests side by side, and the guest runs on;
//! requests that need no waiting for the host are executed at once. In a deterministic run all are executed
//! at once, so that answers come at the same point each time. [`Limits`] delay requests, and an
//! [`ErrorPolicy`] says what happens to those that the host cannot execute; both are up to the threads.
//!
//! # Answers
//!
//! A device model knows the size of its medium and nothing of files. It sends a [`DiskRequest`] as an output,
//! is busy, and continues when the answer comes by the door, so a replay needs no disk. While an answer is to
//! come, the machine looks at the door every 50 µs. The host says whether it can read without waiting
//! (`RWF_NOWAIT`: it has the bytes in memory); then the answer comes at once, and no other thread is woken. A
//! recording repeats either kind: an answer that followed its request at once is taken there again, any other
//! at its recorded place. So [`Limits`] only delay answers. A request for which the host has no room is kept
//! while the machine stands still, and repeated when it continues.
//!
//! To change a disc, another `Drive` takes the place of the present one, and an input tells the device of the
//! new medium.
//!
//! [`DiskRequest`]: ring3_core::disk::DiskRequest

mod attached;
mod counts;
mod errors;
mod kept;
mod overlap;
mod pool;
mod throttle;
mod writes;

use std::error::Error;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_core::device::DeviceId;
use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, DiskRequest, DriveId, Medium};
use ring3_devices::ide::DriveKind;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use counts::{Counts, OperationCounts};
pub use errors::{Action, ErrorPolicy, OnError};
pub use kept::{KeepDiskError, KeptDisk, WrittenSectors};
pub use throttle::{BadLimits, Limit, Limits};
pub use writes::{Cache, DetectZeroes};

use crate::config::Config;
use crate::control::{DriveInfo, Ended, Request};
use crate::door::{OtherSources, Sender};
use attached::Attached;
use counts::Counted;
use pool::Pool;
use throttle::Throttle;

/// The host's side of a drive: a file, memory, or anything else that holds sectors. Several threads call it
/// at once.
pub trait Drive: Debug + Send + Sync {
    /// Executes `operation`. Returns the bytes read; none for other operations.
    fn execute(&self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError>;

    /// Executes `operation` if it needs no waiting for the host; otherwise does nothing.
    fn execute_at_once(&self, _operation: &DiskOperation) -> Option<Result<Vec<u8>, DiskError>> {
        None
    }

    /// Executes `operation`, or begins it where others do the work of the drive, so that it can be waited for
    /// elsewhere.
    fn begin(&self, operation: &DiskOperation) -> Option<Begun> {
        self.execute_at_once(operation).map(Begun::Complete)
    }

    /// Returns whether an operation that was [begun](Begun::Pending) may be complete.
    fn has_news(&self) -> bool {
        false
    }

    /// Returns whether what is read stays the same until this drive writes there: nobody else may write to its files.
    fn changes_only_here(&self) -> bool {
        false
    }

    /// Returns whether it may connect to a server again, when a connection is lost.
    fn reconnects(&self) -> bool {
        false
    }

    /// Prepares for the machine to sleep while operations are under way. Returns the descriptor that can be
    /// read when there [may be news](Drive::has_news), or None if there may be some already.
    fn arm(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Notes that the machine ends, so nobody waits for unfinished operations. Those that cannot be executed
    /// soon fail from now on.
    fn end(&self) {}

    /// Changes the size of the medium.
    fn resize(&self, _bytes: u64) -> Result<(), ResizeError> {
        Err(ResizeError::Fixed)
    }

    /// Lets `listener` be called when others have changed the size of the medium.
    fn on_resize(&self, _listener: Box<dyn Fn() + Send>) {}

    /// Keeps the present contents of the disk for a saved machine, which knows them by `name`, and passes
    /// sectors that are nowhere else to `written`. Nothing is under way.
    fn keep(&self, _name: &str, _written: WrittenSectors<'_>) -> Result<KeptDisk, KeepDiskError> {
        match self.medium() {
            None => Ok(KeptDisk::NoMedium),
            Some(medium) if medium.read_only => Ok(KeptDisk::InFile),
            Some(_) => Err(KeepDiskError::Served),
        }
    }

    /// Returns whether [`Drive::keep`] has kept contents of the disk by `name`.
    fn has_kept(&self, _name: &str) -> bool {
        false
    }

    /// Returns the disk to what [`Drive::keep`] has kept by `name`. Nothing is under way.
    fn go_back(&self, _name: &str) -> Result<(), KeepDiskError> {
        Err(KeepDiskError::Served)
    }

    /// Returns whether what is written is lost when the machine ends.
    fn throws_away(&self) -> bool {
        false
    }

    /// Drops what [`Drive::keep`] has kept by `name`, if it is there.
    fn drop_kept(&self, _name: &str) -> Result<(), KeepDiskError> {
        Ok(())
    }

    /// Returns a function that opens the disk again after the drive is gone, and others have used it. None if
    /// there can be no such function.
    fn opener(&self) -> Option<Opener> {
        None
    }

    /// Returns the medium in the drive.
    fn medium(&self) -> Option<Medium>;

    /// Returns the path of the file with its sectors, if there is one.
    fn file(&self) -> Option<&Path>;

    /// Returns the format of that file, as qemu-img calls it.
    fn format(&self) -> Option<&'static str> {
        None
    }

    /// Returns how writes are cached.
    fn cache(&self) -> Cache {
        Cache::default()
    }

    /// Returns how writes of zeros are treated.
    fn detect_zeroes(&self) -> DetectZeroes {
        DetectZeroes::default()
    }
}

/// Opens a disk again. It can be tried several times.
pub type Opener = Box<dyn Fn() -> Result<Arc<dyn Drive>, Box<dyn Error + Send + Sync>> + Send>;

/// An operation that was begun.
pub trait PendingOperation: Send {
    /// Returns the result, if the operation is complete; after that it must not be called again.
    fn look(&mut self) -> Option<Result<Vec<u8>, DiskError>>;

    /// Returns the result, and polls for it for as long as it pays.
    fn look_a_while(&mut self) -> Option<Result<Vec<u8>, DiskError>>;

    /// Waits until the operation is complete, and returns the result.
    fn wait(self: Box<Self>) -> Result<Vec<u8>, DiskError>;
}

/// The result of beginning an operation.
pub enum Begun {
    /// It is complete.
    Complete(Result<Vec<u8>, DiskError>),
    /// It is under way.
    Pending(Box<dyn PendingOperation>),
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

/// An operation of a drive that the host could not execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveFailure {
    /// The drive.
    pub drive: DriveId,
    /// Whether the operation was a read, rather than a write or a flush.
    pub is_read: bool,
    /// The error of the host.
    pub error: DiskError,
    /// The action that follows.
    pub action: Action,
}

/// The reasons why a medium keeps its size.
#[derive(Debug, Error)]
pub enum ResizeError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// There is no such drive.
    #[error("there is no such drive")]
    NoDrive,
    /// The device, or the host's side, cannot do it.
    #[error(
        "the size can only be changed for virtio disks without snapshot=on while the machine runs"
    )]
    Fixed,
    /// The medium belongs to a server.
    #[error(
        "the size of this disk is its server's: \"ring3 vblock ctl SOCKET device-resize name= size=\" changes it"
    )]
    Served,
    /// The size would be 0, or end within a sector.
    #[error("{0} bytes are not a whole number of sectors")]
    Odd(u64),
    /// The image cannot be resized.
    #[error(transparent)]
    Image(Box<dyn Error + Send + Sync>),
}

/// The reasons why a drive gets no limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LimitError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// There is no such drive.
    #[error("there is no such drive")]
    NoDrive,
    /// The guest would see the host's time.
    #[error("a drive cannot have limits in a deterministic run")]
    Deterministic,
    /// They contradict each other.
    #[error(transparent)]
    Bad(#[from] BadLimits),
}

/// The names by which people know the parts of a drive, as far as they have any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveNames {
    /// The drive, whatever is in it.
    pub drive: Option<String>,
    /// The image or medium in it.
    pub node: Option<String>,
    /// The device that has it, if that is not a card.
    pub device: Option<String>,
}

/// A drive to be attached to a device: what executes its requests, and how.
#[derive(Debug)]
pub struct Attachment {
    /// The host's side of the drive.
    pub drive: Arc<dyn Drive>,
    /// The names by which people know it.
    pub names: DriveNames,
    /// Its limits.
    pub limits: Limits,
    /// The policy for errors of the host. In a deterministic run the guest is always told.
    pub errors: ErrorPolicy,
}

impl Attachment {
    /// Returns `drive` without names and limits, and with the policy that drives have by default.
    pub fn new(drive: Arc<dyn Drive>) -> Attachment {
        Attachment {
            drive,
            names: DriveNames::default(),
            limits: Limits::default(),
            errors: ErrorPolicy::default(),
        }
    }
}

/// How often a drive's errors are reported, as by QEMU: a guest without room for its writes causes thousands
/// of them.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// The drives of a machine.
#[derive(Debug, Default)]
pub(crate) struct Drives {
    all: Vec<Attached>,
    /// The destination of answers that come later. Without it all requests are executed at once.
    door: Option<Sender>,
}

/// The answers for which no thread waits.
impl OtherSources for Drives {
    fn have_news(&self) -> bool {
        self.all.iter().any(|at| !at.held.is_empty() && at.drive.has_news())
    }

    fn arm(&self) -> Option<Vec<BorrowedFd<'_>>> {
        self.all.iter().filter(|at| !at.held.is_empty()).map(|at| at.drive.arm()).collect()
    }
}

impl Drives {
    /// Attaches a drive, in the place of the present one.
    pub(crate) fn attach(&mut self, id: DriveId, attachment: Attachment) {
        self.all.retain(|at| at.id != id);
        self.all.push(Attached::new(id, attachment));
        self.listen(id);
    }

    /// Lets `drive` do the work of drive `id` from now on. Its limits and policy stay.
    pub(crate) fn replace(&mut self, id: DriveId, drive: Arc<dyn Drive>) {
        self.hand_over();
        match self.find(id) {
            Some(at) => {
                at.replace(drive);
                self.listen(id);
            }
            None => self.attach(id, Attachment::new(drive)),
        }
    }

    /// Lets `drive` do the work of drive `id` from now on. Everything else stays.
    pub(crate) fn exchange(&mut self, id: DriveId, drive: Arc<dyn Drive>) {
        self.hand_over();
        if let Some(at) = self.find(id) {
            at.exchange(drive);
            self.listen(id);
        }
    }

    /// Tells the machine when others change the size of the drive's medium, as long as there is a door.
    fn listen(&mut self, id: DriveId) {
        let Some(door) = self.door.clone() else { return };
        if let Some(at) = self.find(id) {
            at.drive.on_resize(Box::new(move || door.request(Request::DriveResized(id))));
        }
    }

    /// Returns the medium of a drive whose device knows what to do if it has another size.
    pub(crate) fn resized(&mut self, id: DriveId) -> Option<Medium> {
        let at = self.find(id).filter(|_| DeviceId::VIRTIO_BLK.contains(&id.device))?;
        at.drive.medium()
    }

    /// Takes over the names, limits and policies that the drives of another machine have.
    pub(crate) fn inherit(&mut self, other: &Drives) {
        for at in &mut self.all {
            if let Some(before) = other.all.iter().find(|before| before.id == at.id) {
                at.inherit(before);
            }
        }
    }

    fn find(&mut self, id: DriveId) -> Option<&mut Attached> {
        self.all.iter_mut().find(|at| at.id == id)
    }

    /// Notes that the device is gone: requests to its drives are no longer delayed, and those that the host
    /// cannot execute fail.
    pub(crate) fn let_go(&mut self, device: DeviceId) {
        self.hand_over();
        for at in self.all.iter_mut().filter(|at| at.id.device == device) {
            at.stopped = None;
            at.pool.iter().for_each(Pool::let_go);
        }
    }

    /// Removes the drives of a device that is gone.
    pub(crate) fn detach(&mut self, device: DeviceId) {
        self.all.retain(|at| at.id.device != device);
    }

    /// Returns whether a device has requests that are not answered yet.
    pub(crate) fn is_waiting(&self, device: DeviceId) -> bool {
        self.all.iter().any(|at| at.id.device == device && !at.waiting.is_empty())
    }

    /// Sets the limits of a drive. Requests that the old ones delay are executed at once.
    pub(crate) fn limit(&mut self, id: DriveId, limits: Limits) -> Result<(), LimitError> {
        let at = self.find(id).ok_or(LimitError::NoDrive)?;
        at.throttle = Throttle::new(limits, Instant::now());
        if let Some(pool) = &at.pool {
            pool.release();
        }
        Ok(())
    }

    /// Changes the size of a drive's medium, and returns the new medium.
    pub(crate) fn resize(
        &mut self,
        id: DriveId,
        bytes: u64,
    ) -> Result<Option<Medium>, ResizeError> {
        let at = self.find(id).ok_or(ResizeError::NoDrive)?;
        if !DeviceId::VIRTIO_BLK.contains(&id.device) {
            return Err(ResizeError::Fixed);
        }
        at.drive.resize(bytes)?;
        Ok(at.drive.medium())
    }

    /// Returns whether `failure` must be reported: one a second for each drive, if the machine does not stand
    /// still for it.
    pub(crate) fn tells(&mut self, failure: &DriveFailure) -> bool {
        if failure.action == Action::Stop {
            return true;
        }
        let now = Instant::now();
        let Some(at) = self.find(failure.drive) else { return false };
        let is_new = at.told.is_none_or(|told| now.duration_since(told) >= TOLD_EVERY);
        if is_new {
            at.told = Some(now);
        }
        is_new
    }

    /// Notes that the machine stands still for `failure`. Returns the path of the drive's file, if the drive
    /// still keeps the failed request.
    pub(crate) fn stop(&mut self, failure: &DriveFailure) -> Option<PathBuf> {
        let at = self.find(failure.drive)?;
        if !at.pool.as_ref().is_some_and(Pool::keeps_any) {
            return None;
        }
        at.stopped = Some(failure.error);
        Some(at.drive.file().map(Path::to_owned).unwrap_or_default())
    }

    /// Repeats the requests that the host could not execute.
    pub(crate) fn do_again(&mut self) {
        for at in &mut self.all {
            at.stopped = None;
            at.pool.iter().for_each(Pool::do_again);
        }
    }

    /// Lets the requests fail that the host could not execute: nobody waits for them any more.
    pub(crate) fn give_up(&mut self) {
        for at in &mut self.all {
            at.stopped = None;
            at.pool.iter().for_each(Pool::give_up);
        }
    }

    /// Prepares for the end of the run: requests are no longer delayed, and those that the host cannot
    /// execute fail.
    pub(crate) fn hurry(&mut self) {
        self.hand_over();
        self.all.iter().filter_map(|at| at.pool.as_ref()).for_each(Pool::hurry);
    }

    /// From now on, threads execute requests that may have to wait for the host, and answer at `door`.
    pub(crate) fn answer_at(&mut self, door: Sender) {
        self.door = Some(door);
        let all: Vec<_> = self.all.iter().map(|at| at.id).collect();
        for id in all {
            self.listen(id);
        }
    }

    /// From now on all requests are executed at once again. None may be [waited for](Drives::are_waiting).
    pub(crate) fn answer_at_once(&mut self) {
        self.door = None;
        for at in &mut self.all {
            at.pool = None;
        }
    }

    /// Returns the next answer for which no thread waits, with the device for which it is.
    pub(crate) fn take_answer(&mut self) -> Option<(DeviceId, DiskAnswer)> {
        let door = self.door.clone()?;
        self.all.iter_mut().filter(|at| !at.held.is_empty()).find_map(|at| {
            let found = overlap::find(&mut at.held, |later| later.look())?;
            Some((at.id.device, at.answer(found, &door)?))
        })
    }

    /// Notes that the guest only waits.
    pub(crate) fn guest_waits(&mut self) {
        for at in &mut self.all {
            at.overlap.waits(at.held.len());
        }
    }

    /// Lets threads wait for all requests that are under way.
    fn hand_over(&mut self) {
        if let Some(door) = self.door.clone() {
            self.all.iter_mut().for_each(|at| at.hand_over(&door));
        }
    }

    /// Returns whether some requests are not answered yet.
    pub(crate) fn are_waiting(&self) -> bool {
        self.all.iter().any(|at| !at.waiting.is_empty())
    }

    /// Returns the requests that are not answered yet, by device and tag.
    pub(crate) fn asked(&self) -> Vec<(DeviceId, u64)> {
        let of_drive =
            |at: &Attached| at.waiting.iter().map(|asked| (at.id.device, asked.tag)).collect();
        self.all.iter().flat_map(|at| -> Vec<_> { of_drive(at) }).collect()
    }

    /// Passes a request to a drive. Returns the answer, if there is one at once.
    pub(crate) fn ask(&mut self, id: DriveId, request: DiskRequest) -> Option<DiskAnswer> {
        let tag = request.tag;
        let door = self.door.clone();
        let Some(at) = self.find(id) else {
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
            self.replace(id, Arc::new(Empty));
        }
        Some(DiskAnswer { tag, result })
    }

    /// Notes that a drive of `device` has answered later.
    pub(crate) fn note_answer(&mut self, device: DeviceId, answer: &DiskAnswer) {
        for at in self.all.iter_mut().filter(|at| at.id.device == device) {
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

    /// Returns what does the work of drive `id`.
    pub(crate) fn of(&self, id: DriveId) -> Option<Arc<dyn Drive>> {
        self.all.iter().find(|at| at.id == id).map(|at| Arc::clone(&at.drive))
    }

    /// Describes the drives of a machine with this configuration. The board knows whether the guest holds
    /// their media.
    pub(crate) fn describe(&self, config: &Config) -> Vec<DriveInfo> {
        let ide = config.ide.iter().zip(0..).filter_map(|(drive, unit)| {
            let removable = matches!(drive.as_ref()?.kind, DriveKind::CdRom(_));
            Some((DriveId::new(DeviceId::IDE, unit), removable))
        });
        let virtio = DeviceId::VIRTIO_BLK.into_iter().zip(&config.virtio_disks);
        let virtio = virtio.filter_map(|(device, disk)| {
            disk.as_ref()?;
            Some((DriveId::new(device, 0), false))
        });
        let diskettes = config.diskettes.iter().zip(0..).filter_map(|(drive, unit)| {
            drive.as_ref()?;
            Some((DriveId::new(DeviceId::FLOPPY, unit), true))
        });
        let chips =
            (0..config.flash.len() as u8).map(|unit| (DriveId::new(DeviceId::FLASH, unit), false));
        let info = |(place, removable): (DriveId, bool)| {
            let at = self.all.iter().find(|at| at.id == place);
            let drive = at.map(|at| &*at.drive);
            let throttle = at.and_then(|at| at.throttle.as_ref());
            DriveInfo {
                drive: place,
                id: None,
                names: at.map(|at| at.names.clone()).unwrap_or_default(),
                removable,
                locked: false,
                medium: drive.and_then(Drive::medium),
                file: drive.and_then(Drive::file).map(Path::to_owned),
                format: drive.and_then(Drive::format),
                cache: drive.map(Drive::cache).unwrap_or_default(),
                detect_zeroes: drive.map(Drive::detect_zeroes).unwrap_or_default(),
                limits: throttle.map(|throttle| *throttle.limits()).unwrap_or_default(),
                errors: at.map(|at| at.policy).unwrap_or_default(),
                stopped: at.and_then(|at| at.stopped),
                counts: at.map(|at| at.counts).unwrap_or_default(),
            }
        };
        ide.chain(virtio).chain(diskettes).chain(chips).map(info).collect()
    }
}
