//! A drive that is attached to a device, with its requests and the threads that execute them.

use std::sync::Arc;
use std::time::Instant;

use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, DiskRequest, DriveId};
use ring3_core::input::{DeviceInput, Input};

use super::counts::{Counted, Counts};
use super::overlap::{Found, Held, Overlap};
use super::pool::{Asked, Pool};
use super::throttle::Throttle;
use super::{Attachment, Begun, Drive, DriveNames, ErrorPolicy};
use crate::door::Sender;

/// A drive that is attached to a device.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) id: DriveId,
    pub(super) drive: Arc<dyn Drive>,
    pub(super) names: DriveNames,
    /// Requests that others execute, and for which no thread waits.
    pub(super) held: Vec<Held>,
    pub(super) overlap: Overlap,
    /// The threads, from the first request on that is not executed at once.
    pub(super) pool: Option<Pool>,
    /// The requests that it has not answered, by their tags.
    pub(super) waiting: Vec<Waiting>,
    /// Delays requests, if there are limits.
    pub(super) throttle: Option<Throttle>,
    /// The policy for errors.
    pub(super) policy: ErrorPolicy,
    /// The error for which it keeps requests, as long as it does.
    pub(super) stopped: Option<DiskError>,
    /// Counts of its operations.
    pub(super) counts: Counts,
    /// When an error was last reported for which the machine does not stand still.
    pub(super) told: Option<Instant>,
}

/// A request that the drive has not answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) tag: u64,
    /// Whether it is a [`DiskOperation::Eject`].
    pub(super) ejects: bool,
    /// Its counts, which are added when it is answered.
    pub(super) counted: Counted,
}

impl Waiting {
    fn of(request: &DiskRequest, counted: Counted) -> Waiting {
        Waiting { tag: request.tag, ejects: request.operation == DiskOperation::Eject, counted }
    }
}

impl Attached {
    pub(super) fn new(id: DriveId, attachment: Attachment) -> Attached {
        let Attachment { drive, names, limits, errors } = attachment;
        Attached {
            id,
            drive,
            names,
            held: Vec::new(),
            overlap: Overlap::default(),
            pool: None,
            waiting: Vec::new(),
            throttle: Throttle::new(limits, Instant::now()),
            policy: errors,
            stopped: None,
            counts: Counts::default(),
            told: None,
        }
    }

    /// Replaces the drive by `drive`. Limits and policy, names and counts stay.
    pub(super) fn replace(&mut self, drive: Arc<dyn Drive>) {
        let new = Attached::new(self.id, Attachment::new(drive));
        let names = DriveNames { node: None, ..std::mem::take(&mut self.names) };
        let counts = Counts { highest_written: 0, ..self.counts };
        let throttle = self.throttle.take();
        *self = Attached { throttle, policy: self.policy, names, counts, ..new };
    }

    /// Replaces the drive by `drive`, which has the same medium.
    pub(super) fn exchange(&mut self, drive: Arc<dyn Drive>) {
        self.pool = None;
        self.drive = drive;
    }

    /// Takes over the names, limits and policy of `other`. The name of a medium is that of its file.
    pub(super) fn inherit(&mut self, other: &Attached) {
        let is_same = self.drive.file() == other.drive.file();
        self.names = other.names.clone();
        if !is_same {
            self.names.node = None;
        }
        let limits = other.throttle.as_ref().map(|throttle| *throttle.limits());
        self.throttle = Throttle::new(limits.unwrap_or_default(), Instant::now());
        self.policy = other.policy;
    }

    /// Executes `request`, which is counted as `counted` when it is answered later. Returns the answer, if
    /// there is one at once; otherwise threads answer at `door`, or there are no threads.
    pub(super) fn ask(
        &mut self,
        request: DiskRequest,
        counted: Counted,
        door: &Sender,
    ) -> Option<Result<Vec<u8>, DiskError>> {
        let now = Instant::now();
        let throttle = self.throttle.as_mut();
        let not_before = throttle.map_or(now, |throttle| throttle.ask(&request.operation, now));
        // No request overtakes one that takes out the medium.
        let is_next = not_before <= now && !self.waiting.iter().any(|asked| asked.ejects);
        match is_next.then(|| self.drive.begin(&request.operation)).flatten() {
            Some(Begun::Complete(result)) => return Some(result),
            Some(Begun::Pending(mut later)) => {
                let runs_on = self.overlap.asks(self.held.len());
                let found = if runs_on { None } else { later.look_a_while() };
                match found {
                    Some(Ok(bytes)) => return Some(Ok(bytes)),
                    // A thread repeats it and handles the error.
                    Some(Err(_)) => {}
                    None => {
                        self.waiting.push(Waiting::of(&request, counted));
                        self.held.push(Held { request, later });
                        return None;
                    }
                }
            }
            None => {}
        }
        let waiting = Waiting::of(&request, counted);
        if self.ask_pool(Asked { request, not_before, later: None }, door) {
            self.waiting.push(waiting);
            None
        } else {
            Some(Err(DiskError::Host))
        }
    }

    /// Returns the answer of a request that others have executed, unless a thread must repeat it.
    pub(super) fn answer(&mut self, (held, result): Found, door: &Sender) -> Option<DiskAnswer> {
        let tag = held.request.tag;
        if result.is_ok() {
            return Some(DiskAnswer { tag, result });
        }
        let asked = Asked { request: held.request, not_before: Instant::now(), later: None };
        let is_asked = self.ask_pool(asked, door);
        (!is_asked).then_some(DiskAnswer { tag, result })
    }

    /// Lets threads wait for the requests that others execute.
    pub(super) fn hand_over(&mut self, door: &Sender) {
        for Held { request, later } in std::mem::take(&mut self.held) {
            let tag = request.tag;
            let asked = Asked { request, not_before: Instant::now(), later: Some(later) };
            if !self.ask_pool(asked, door) {
                let input = DeviceInput::Disk(DiskAnswer { tag, result: Err(DiskError::Host) });
                door.send(Input::Device { device: self.id.device, input });
            }
        }
    }

    /// Lets threads execute `asked` and answer at `door`. Returns false if there can be no threads.
    pub(super) fn ask_pool(&mut self, asked: Asked, door: &Sender) -> bool {
        let new = || Pool::new(self.id, Arc::clone(&self.drive), self.policy, door.clone());
        match self.pool.get_or_insert_with(new).ask(asked) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("no thread can be started for a drive: {error}");
                false
            }
        }
    }
}
