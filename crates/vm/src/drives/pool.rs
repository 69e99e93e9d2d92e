//! Threads that execute the requests of a drive, so that the guest runs on meanwhile. Answers come by the
//! machine's door.
//!
//! Requests are begun in the order in which they come, except those that limits delay, and executed side by
//! side: a guest that wants one after another waits for the answer of the first, as with a disk that has a
//! queue. So a flush covers the requests that were answered before it, and runs beside all others. Only
//! [`DiskOperation::Eject`] has the drive alone.
//!
//! A request that the host could not execute may be kept, and is repeated when the machine continues.
//!
//! When requests come in quick succession, one thread [polls](ring3_host::workers) for the next one before it
//! sleeps.

use std::collections::VecDeque;
use std::fmt::{self, Debug, Formatter};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, DiskRequest, DriveId};
use ring3_core::input::{DeviceInput, Input};
use ring3_host::workers::Workers;

use super::errors::{self, Action, ErrorPolicy};
use super::{Drive, DriveFailure, PendingOperation};
use crate::control::Request;
use crate::door::Sender;

/// Upper bound of the requests of one drive that are executed at once: as many as keep a disk of the host
/// busy.
const THREADS_MAX: usize = 4;

/// How long a thread polls for the next request at most: longer than a guest takes to send one after an
/// answer, and less than waking the thread takes.
const LOOKS_FOR: Duration = Duration::from_micros(50);

/// See the module. When it is dropped it first executes all its requests, without limits.
pub(super) struct Pool {
    shared: Arc<Shared>,
    /// The threads. One is started when all others are at work.
    threads: Vec<JoinHandle<()>>,
}

/// The state that the threads share.
struct Shared {
    id: DriveId,
    drive: Arc<dyn Drive>,
    /// The policy for errors.
    policy: ErrorPolicy,
    /// The destination of answers.
    door: Sender,
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    requests: VecDeque<Asked>,
    /// Number of threads that wait for requests.
    idle: usize,
    /// Whether the request under way has the drive alone.
    is_alone: bool,
    /// Requests that the host could not execute, with its errors.
    kept: Vec<(DiskRequest, DiskError)>,
    /// Whether requests are no longer kept or delayed.
    hurries: bool,
    /// Whether no more requests come.
    is_closed: bool,
    workers: Workers,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            requests: VecDeque::new(),
            idle: 0,
            is_alone: false,
            kept: Vec::new(),
            hurries: false,
            is_closed: false,
            workers: Workers::looking_up_to(LOOKS_FOR),
        }
    }
}

/// A request to be executed.
pub(super) struct Asked {
    pub(super) request: DiskRequest,
    /// When limits allow it to be executed.
    pub(super) not_before: Instant,
    /// Waits for its end, if it was begun already.
    pub(super) later: Option<Box<dyn PendingOperation>>,
}

/// The next action of a thread.
enum Next {
    Begin(DiskRequest, Option<Box<dyn PendingOperation>>),
    /// Wait: there is nothing to do yet.
    Wait,
    /// Wait until this time.
    WaitUntil(Instant),
}

impl Debug for Pool {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Returns a pool for `drive`, which is drive `id` of the machine. Answers go to `door`.
    pub(super) fn new(
        id: DriveId,
        drive: Arc<dyn Drive>,
        policy: ErrorPolicy,
        door: Sender,
    ) -> Pool {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let shared = Shared { id, drive, policy, door, queue, changed };
        Pool { shared: Arc::new(shared), threads: Vec::new() }
    }

    /// Lets a thread execute a request. Returns an error if there can be no thread.
    pub(super) fn ask(&mut self, asked: Asked) -> io::Result<()> {
        let mut queue = self.shared.lock();
        queue.requests.push_back(asked);
        let waiting = queue.requests.len();
        let unattended = queue.workers.asked(waiting);
        if unattended == 0 {
            return Ok(());
        }
        if unattended > queue.idle && self.threads.len() < THREADS_MAX {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("drive".to_owned());
            match thread.spawn(move || shared.work()) {
                Ok(thread) => {
                    queue.workers.starts();
                    self.threads.push(thread);
                }
                Err(error) if self.threads.is_empty() => {
                    queue.requests.pop_back();
                    return Err(error);
                }
                // The present threads execute it later.
                Err(_) => {}
            }
        }
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Repeats the requests that the host could not execute.
    pub(super) fn do_again(&self) {
        let mut queue = self.shared.lock();
        let not_before = Instant::now();
        for (request, _) in std::mem::take(&mut queue.kept).into_iter().rev() {
            queue.requests.push_front(Asked { request, not_before, later: None });
        }
        self.shared.changed.notify_all();
    }

    /// Executes the requests that limits delay at once.
    pub(super) fn release(&self) {
        let now = Instant::now();
        for asked in &mut self.shared.lock().requests {
            asked.not_before = now;
        }
        self.shared.changed.notify_all();
    }

    /// Returns whether there are requests that the host could not execute.
    pub(super) fn keeps_any(&self) -> bool {
        !self.shared.lock().kept.is_empty()
    }

    /// Lets the requests fail that the host could not execute.
    pub(super) fn give_up(&self) {
        let kept = std::mem::take(&mut self.shared.lock().kept);
        for (request, error) in kept {
            self.shared.answer(request.tag, Err(error));
        }
    }

    /// From now on requests are neither kept nor delayed: the run ends.
    pub(super) fn hurry(&self) {
        self.shared.drive.end();
        self.let_go();
    }

    /// From now on requests are neither kept nor delayed, but the drive may have other users.
    pub(super) fn let_go(&self) {
        self.shared.lock().hurries = true;
        self.shared.changed.notify_all();
        self.give_up();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // An idle pool leaves the drive to its other users.
        if self.shared.lock().is_done() {
            self.let_go();
        } else {
            self.hurry();
        }
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // The threads do not panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, tag: u64, result: Result<Vec<u8>, DiskError>) {
        let input = DeviceInput::Disk(DiskAnswer { tag, result });
        self.door.send(Input::Device { device: self.id.device, input });
    }

    /// The body of a thread.
    fn work(&self) {
        while let Some((request, later)) = self.begin() {
            let execute = || self.drive.execute(&request.operation);
            let act = || later.map_or_else(execute, PendingOperation::wait);
            // Even if the code here panics the guest gets an answer, so that the machine does not wait for
            // ever.
            let result = catch_unwind(AssertUnwindSafe(act));
            let result = result.unwrap_or(Err(DiskError::Host));
            if let Some((tag, result)) = self.end(request, result) {
                self.answer(tag, result);
            }
        }
    }

    /// Waits for a request that can be executed now. Returns None if no more will come.
    fn begin(&self) -> Option<(DiskRequest, Option<Box<dyn PendingOperation>>)> {
        let mut queue = self.lock();
        queue.workers.comes();
        let mut has_looked = false;
        loop {
            let next = queue.next();
            if let Next::Begin(request, later) = next {
                return Some((request, later));
            }
            if queue.is_closed && queue.requests.is_empty() {
                return None;
            }
            if matches!(next, Next::Wait)
                && !has_looked
                && let Some(look) = queue.workers.look()
            {
                has_looked = true;
                drop(queue);
                look.wait();
                queue = self.lock();
                queue.workers.has_looked();
                continue;
            }
            queue.idle += 1;
            queue = match next {
                Next::WaitUntil(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    let woken = self.changed.wait_timeout(queue, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                _ => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
            queue.idle -= 1;
        }
    }

    /// Ends a request. Returns the answer for the guest, unless it comes later.
    fn end(
        &self,
        request: DiskRequest,
        result: Result<Vec<u8>, DiskError>,
    ) -> Option<(u64, Result<Vec<u8>, DiskError>)> {
        let mut queue = self.lock();
        queue.workers.ends();
        queue.is_alone = false;
        if !queue.requests.is_empty() {
            self.changed.notify_all();
        }
        let Err(error) = result else { return Some((request.tag, result)) };
        let action = match self.policy.action(&request.operation, error) {
            None => return Some((request.tag, result)),
            Some(Action::Stop) if queue.hurries => Action::Report,
            Some(action) => action,
        };
        self.door.request(Request::DriveFailed(DriveFailure {
            drive: self.id,
            is_read: errors::is_read(&request.operation),
            error,
            action,
        }));
        match action {
            Action::Report => Some((request.tag, Err(error))),
            Action::Ignore => Some((request.tag, Ok(errors::ignored(&request.operation)))),
            Action::Stop => {
                queue.kept.push((request, error));
                None
            }
        }
    }
}

impl Queue {
    fn is_done(&self) -> bool {
        self.requests.is_empty() && self.workers.busy() == 0 && self.kept.is_empty()
    }

    fn next(&mut self) -> Next {
        if self.is_alone {
            return Next::Wait;
        }
        let now = Instant::now();
        let mut until: Option<Instant> = None;
        for (index, asked) in self.requests.iter().enumerate() {
            let wants_alone = asked.request.operation == DiskOperation::Eject;
            if wants_alone && (index > 0 || self.workers.busy() > 0) {
                break;
            }
            if asked.not_before <= now || self.hurries {
                self.is_alone = wants_alone;
                self.workers.begins();
                return match self.requests.remove(index) {
                    Some(Asked { request, later, .. }) => Next::Begin(request, later),
                    None => Next::Wait,
                };
            }
            until = Some(until.map_or(asked.not_before, |until| until.min(asked.not_before)));
        }
        until.map_or(Next::Wait, Next::WaitUntil)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use ring3_core::device::DeviceId;
    use ring3_core::disk::Medium;

    use super::*;
    use crate::door::{Door, door};

    /// A drive that counts the threads in it. Reads wait until there are as many as threads.
    #[derive(Debug)]
    struct Counts {
        together: Barrier,
        inside: AtomicUsize,
        ejected_with: AtomicUsize,
    }

    impl Drive for Counts {
        fn execute(&self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError> {
            let others = self.inside.fetch_add(1, Ordering::SeqCst);
            match operation {
                DiskOperation::Read { .. } => {
                    self.together.wait();
                }
                DiskOperation::Eject => self.ejected_with.store(others, Ordering::SeqCst),
                _ => panic!("a fault of our own"),
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
            Ok(Vec::new())
        }

        fn medium(&self) -> Option<Medium> {
            None
        }

        fn file(&self) -> Option<&Path> {
            None
        }
    }

    fn pool() -> (Pool, Arc<Counts>, Door) {
        let drive = Arc::new(Counts {
            together: Barrier::new(THREADS_MAX),
            inside: AtomicUsize::new(0),
            ejected_with: AtomicUsize::new(usize::MAX),
        });
        let (sender, door) = door();
        let pool = Pool::new(
            DriveId::new(DeviceId::IDE, 0),
            drive.clone(),
            ErrorPolicy::default(),
            sender,
        );
        (pool, drive, door)
    }

    fn ask(pool: &mut Pool, tag: u64, operation: DiskOperation) {
        let request = DiskRequest { tag, operation };
        pool.ask(Asked { request, not_before: Instant::now(), later: None }).unwrap();
    }

    fn answer(door: &mut Door) -> DiskAnswer {
        match door.wait_for(|_| true) {
            Input::Device { input: DeviceInput::Disk(answer), .. } => answer,
            other => panic!("{other:?}"),
        }
    }

    const READ: DiskOperation = DiskOperation::Read { sector: 0, count: 1 };

    #[test]
    fn requests_are_executed_in_parallel_and_ejecting_waits_for_all() {
        let (mut pool, drive, mut door) = pool();
        let reads = 0..THREADS_MAX as u64;
        for tag in reads.clone() {
            ask(&mut pool, tag, READ);
        }
        ask(&mut pool, 99, DiskOperation::Eject);
        for tag in reads.clone() {
            ask(&mut pool, 100 + tag, READ);
        }
        let mut tags: Vec<u64> = (0..=2 * THREADS_MAX).map(|_| answer(&mut door).tag).collect();
        assert_eq!(drive.ejected_with.load(Ordering::SeqCst), 0);
        tags.sort_unstable();
        assert!(tags.into_iter().eq(reads.clone().chain([99]).chain(reads.map(|tag| 100 + tag))));
        assert_eq!(pool.threads.len(), THREADS_MAX);
    }

    #[test]
    fn answers_never_wait_for_the_machine() {
        let (mut pool, _, door) = pool();
        let asked = 100 * THREADS_MAX as u64;
        for tag in 0..asked {
            ask(&mut pool, tag, READ);
        }
        // This waits for the threads. Nobody takes the answers.
        drop(pool);
        let mut door = door;
        for _ in 0..asked {
            answer(&mut door);
        }
    }

    #[test]
    fn a_panic_of_a_drive_is_an_error_for_the_guest() {
        let (mut pool, _, mut door) = pool();
        ask(&mut pool, 1, DiskOperation::Flush);
        assert_eq!(answer(&mut door), DiskAnswer { tag: 1, result: Err(DiskError::Host) });
    }

    /// A drive that fails as long as it is told to.
    #[derive(Debug, Default)]
    struct Full {
        has_room: AtomicBool,
        done: AtomicUsize,
    }

    impl Drive for Full {
        fn execute(&self, _: &DiskOperation) -> Result<Vec<u8>, DiskError> {
            if self.has_room.load(Ordering::SeqCst) {
                self.done.fetch_add(1, Ordering::SeqCst);
                Ok(Vec::new())
            } else {
                Err(DiskError::NoSpace)
            }
        }

        fn medium(&self) -> Option<Medium> {
            None
        }

        fn file(&self) -> Option<&Path> {
            None
        }
    }

    const SECOND: DriveId = DriveId::new(DeviceId::IDE, 1);

    fn full(policy: ErrorPolicy) -> (Pool, Arc<Full>, Door) {
        let drive = Arc::new(Full::default());
        let (sender, door) = door();
        (Pool::new(SECOND, drive.clone(), policy, sender), drive, door)
    }

    fn failures(door: &mut Door, count: usize) -> Vec<DriveFailure> {
        let mut failures = Vec::new();
        while failures.len() < count {
            door.wait(None, |_| true);
            failures.extend(door.take_requests().into_iter().filter_map(|request| match request {
                Request::DriveFailed(failure) => Some(failure),
                _ => None,
            }));
        }
        failures
    }

    const ZEROES: DiskOperation =
        DiskOperation::WriteZeroes { sector: 0, count: 1, gives_up_room: true };

    #[test]
    fn a_request_that_finds_no_space_is_repeated() {
        let (mut pool, drive, mut door) = full(ErrorPolicy::default());
        for tag in 0..3 {
            ask(&mut pool, tag, ZEROES);
        }
        let failures = failures(&mut door, 3);
        let expected = DriveFailure {
            drive: SECOND,
            is_read: false,
            error: DiskError::NoSpace,
            action: Action::Stop,
        };
        assert!(failures.iter().all(|failure| *failure == expected), "{failures:?}");
        assert_eq!(door.take(|_| true), None);
        drive.has_room.store(true, Ordering::SeqCst);
        pool.do_again();
        let mut tags = [(); 3].map(|()| match answer(&mut door) {
            DiskAnswer { tag, result: Ok(_) } => tag,
            other => panic!("{other:?}"),
        });
        tags.sort_unstable();
        assert_eq!((tags, drive.done.load(Ordering::SeqCst)), ([0, 1, 2], 3));
    }

    #[test]
    fn requests_that_are_kept_at_the_end_have_failed() {
        for ends in [Pool::give_up as fn(&Pool), Pool::hurry] {
            let (mut pool, drive, mut door) = full(ErrorPolicy::default());
            ask(&mut pool, 7, ZEROES);
            failures(&mut door, 1);
            ends(&pool);
            assert_eq!(answer(&mut door), DiskAnswer { tag: 7, result: Err(DiskError::NoSpace) });
            drive.has_room.store(true, Ordering::SeqCst);
            drop(pool);
            assert_eq!(drive.done.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn errors_are_ignored_on_request() {
        let policy = ErrorPolicy { read: errors::OnError::Ignore, ..ErrorPolicy::default() };
        let (mut pool, _, mut door) = full(policy);
        ask(&mut pool, 1, READ);
        assert_eq!(answer(&mut door), DiskAnswer { tag: 1, result: Ok(vec![0; 512]) });
        assert_eq!(failures(&mut door, 1)[0].action, Action::Ignore);
    }

    #[test]
    fn limits_delay_only_their_kind_of_requests_and_nothing_at_the_end() {
        let (mut pool, drive, mut door) = full(ErrorPolicy::default());
        drive.has_room.store(true, Ordering::SeqCst);
        let never = Instant::now() + std::time::Duration::from_secs(1_000_000);
        let request = DiskRequest { tag: 1, operation: ZEROES };
        pool.ask(Asked { request, not_before: never, later: None }).unwrap();
        ask(&mut pool, 2, READ);
        assert_eq!(answer(&mut door).tag, 2);
        // A request that has the drive alone comes after those that are delayed.
        ask(&mut pool, 3, DiskOperation::Eject);
        ask(&mut pool, 4, READ);
        drop(pool);
        assert_eq!([(); 3].map(|()| answer(&mut door).tag)[..2], [1, 3]);
    }
}
