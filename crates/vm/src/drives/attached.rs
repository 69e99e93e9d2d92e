//! A drive behind a device: what it was asked, and who does it.

use std::sync::Arc;
use std::time::Instant;

use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, DiskRequest};
use ring3_core::input::{DeviceInput, Input};

use super::counts::{Counted, Counts};
use super::overlap::{Found, Held, Overlap};
use super::pool::{Asked, Pool};
use super::throttle::Throttle;
use super::{Begun, Drive, DriveNames, ErrorPolicy};
use crate::door::Sender;

/// A drive behind a device.
#[derive(Debug)]
pub(super) struct Attached {
    /// The name of the device.
    pub(super) device: String,
    /// Its number there.
    pub(super) unit: u8,
    pub(super) drive: Arc<dyn Drive>,
    pub(super) names: DriveNames,
    /// Requests that others do, and for which no thread waits.
    pub(super) held: Vec<Held>,
    pub(super) overlap: Overlap,
    /// From the first request on that is not done at once.
    pub(super) pool: Option<Pool>,
    /// The requests that it has not answered, by their tags.
    pub(super) waiting: Vec<Waiting>,
    /// What keeps to limits, if there are any.
    pub(super) throttle: Option<Throttle>,
    /// What is done about errors.
    pub(super) policy: ErrorPolicy,
    /// Why it keeps requests, as long as it does.
    pub(super) stopped: Option<DiskError>,
    /// What it has done.
    pub(super) counts: Counts,
    /// When somebody was last told of an error for which the machine does not stand still.
    pub(super) told: Option<Instant>,
}

/// A request that a drive has not answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) tag: u64,
    /// It is an [`DiskOperation::Eject`].
    pub(super) ejects: bool,
    /// As it is counted when it is answered.
    pub(super) counted: Counted,
}

impl Waiting {
    fn of(request: &DiskRequest, counted: Counted) -> Waiting {
        Waiting { tag: request.tag, ejects: request.operation == DiskOperation::Eject, counted }
    }
}

impl Attached {
    pub(super) fn new(device: &str, unit: u8, drive: Arc<dyn Drive>) -> Attached {
        Attached {
            device: device.to_owned(),
            unit,
            drive,
            names: DriveNames::default(),
            held: Vec::new(),
            overlap: Overlap::default(),
            pool: None,
            waiting: Vec::new(),
            throttle: None,
            policy: ErrorPolicy::default(),
            stopped: None,
            counts: Counts::default(),
            told: None,
        }
    }

    /// Puts `drive` in the place of the one that was there. What is said of limits and errors stays, and what the
    /// drive is called and has done.
    pub(super) fn replace(&mut self, drive: Arc<dyn Drive>) {
        let new = Attached::new(&self.device, self.unit, drive);
        let names = DriveNames { node: None, ..std::mem::take(&mut self.names) };
        let counts = Counts { highest_written: 0, ..self.counts };
        let throttle = self.throttle.take();
        *self = Attached { throttle, policy: self.policy, names, counts, ..new };
    }

    /// Asks for `request`, which is counted as `counted` when it is answered later: the answer, if there is one at once; else threads answer at `door`, or there are none.
    pub(super) fn ask(
        &mut self,
        request: DiskRequest,
        counted: Counted,
        door: &Sender,
    ) -> Option<Result<Vec<u8>, DiskError>> {
        let now = Instant::now();
        let throttle = self.throttle.as_mut();
        let not_before = throttle.map_or(now, |throttle| throttle.ask(&request.operation, now));
        // Nothing overtakes that the medium is taken out.
        let is_next = not_before <= now && !self.waiting.iter().any(|asked| asked.ejects);
        match is_next.then(|| self.drive.begin(&request.operation)).flatten() {
            Some(Begun::Complete(result)) => return Some(result),
            Some(Begun::Waits(mut later)) => {
                let runs_on = self.overlap.asks(self.held.len());
                let found = if runs_on { None } else { later.look_a_while() };
                match found {
                    Some(Ok(bytes)) => return Some(Ok(bytes)),
                    // A thread does it again, which has to do with errors.
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

    /// What has become of a request that is held: an answer, if no thread has to do it again.
    pub(super) fn answer(&mut self, (held, result): Found, door: &Sender) -> Option<DiskAnswer> {
        let tag = held.request.tag;
        if result.is_ok() {
            return Some(DiskAnswer { tag, result });
        }
        let asked = Asked { request: held.request, not_before: Instant::now(), later: None };
        let is_asked = self.ask_pool(asked, door);
        (!is_asked).then_some(DiskAnswer { tag, result })
    }

    /// Lets threads wait for what is held.
    pub(super) fn hand_over(&mut self, door: &Sender) {
        for Held { request, later } in std::mem::take(&mut self.held) {
            let tag = request.tag;
            let asked = Asked { request, not_before: Instant::now(), later: Some(later) };
            if !self.ask_pool(asked, door) {
                let input = DeviceInput::Disk(DiskAnswer { tag, result: Err(DiskError::Host) });
                door.send(Input::Device { name: self.device.clone(), input });
            }
        }
    }

    /// Has threads do what is `asked`, which answer at `door`. False if there can be none.
    pub(super) fn ask_pool(&mut self, asked: Asked, door: &Sender) -> bool {
        let place = (self.device.as_str(), self.unit);
        let new = || Pool::new(place, Arc::clone(&self.drive), self.policy, door.clone());
        match self.pool.get_or_insert_with(new).ask(asked) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("there can be no thread for a drive: {error}");
                false
            }
        }
    }
}
