//! Threads that do what a drive is asked, so that the guest runs on meanwhile. Answers come by the machine's door.
//!
//! Requests are begun in the order in which they come, and done side by side: who wants one done after another waits for the
//! answer of that first, as with a disk that has a queue. So a flush covers what was answered before it was asked, and runs beside
//! all else. Only [`DiskOperation::Eject`] has the drive alone.

use std::collections::VecDeque;
use std::fmt::{self, Debug, Formatter};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, DiskRequest};
use ring3_core::input::{DeviceInput, Input};

use super::Drive;
use crate::door::Sender;

/// The most requests of one drive that are done at once: as many as keep a disk of the host busy.
const THREADS_MAX: usize = 4;

/// See the module. When it is dropped, it ends after all that it was asked.
pub(super) struct Pool {
    shared: Arc<Shared>,
    /// Started when all others are at work.
    threads: Vec<JoinHandle<()>>,
}

/// What its threads have.
struct Shared {
    /// The device to which the drive belongs.
    device: String,
    drive: Arc<dyn Drive>,
    /// Where answers go.
    door: Sender,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<DiskRequest>,
    /// Threads that wait for requests.
    idle: usize,
    /// Requests that are being done.
    running: usize,
    /// That is one that has the drive alone.
    is_alone: bool,
    /// No more requests come.
    is_closed: bool,
}

impl Debug for Pool {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl Pool {
    /// One for `drive`, which belongs to `device`; its answers go to `door`.
    pub(super) fn new(device: &str, drive: Arc<dyn Drive>, door: Sender) -> Pool {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let shared = Shared { device: device.to_owned(), drive, door, queue, changed };
        Pool { shared: Arc::new(shared), threads: Vec::new() }
    }

    /// Has `request` done. An error where no thread can do it.
    pub(super) fn ask(&mut self, request: DiskRequest) -> io::Result<()> {
        let mut queue = self.shared.lock();
        queue.requests.push_back(request);
        if queue.requests.len() > queue.idle && self.threads.len() < THREADS_MAX {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("drive".to_owned());
            match thread.spawn(move || shared.work()) {
                Ok(thread) => self.threads.push(thread),
                Err(error) if self.threads.is_empty() => {
                    queue.requests.pop_back();
                    return Err(error);
                }
                // Those that there are do it later.
                Err(_) => {}
            }
        }
        self.shared.changed.notify_one();
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // They do not panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does.
    fn work(&self) {
        while let Some(DiskRequest { tag, operation }) = self.begin() {
            // Even where our own code fails the guest is answered, and the machine does not wait for ever.
            let result = catch_unwind(AssertUnwindSafe(|| self.drive.execute(&operation)));
            let result = result.unwrap_or(Err(DiskError::Host));
            self.end();
            let input = DeviceInput::Disk(DiskAnswer { tag, result });
            self.door.send(Input::Device { name: self.device.clone(), input });
        }
    }

    /// Waits for a request that can be done now. None comes any more where this gives nothing.
    fn begin(&self) -> Option<DiskRequest> {
        let mut queue = self.lock();
        loop {
            if let Some(request) = queue.begin() {
                return Some(request);
            }
            if queue.is_closed && queue.requests.is_empty() {
                return None;
            }
            queue.idle += 1;
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    fn end(&self) {
        let mut queue = self.lock();
        queue.running -= 1;
        queue.is_alone = false;
        if !queue.requests.is_empty() {
            self.changed.notify_all();
        }
    }
}

impl Queue {
    fn begin(&mut self) -> Option<DiskRequest> {
        let wants_alone = self.requests.front()?.operation == DiskOperation::Eject;
        if self.is_alone || wants_alone && self.running > 0 {
            return None;
        }
        self.is_alone = wants_alone;
        self.running += 1;
        self.requests.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ring3_core::disk::Medium;

    use super::*;
    use crate::door::{Door, door};

    /// Counts who is in it. Reads wait until there are as many as threads.
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
        (Pool::new("ide", drive.clone(), sender), drive, door)
    }

    fn answer(door: &mut Door) -> DiskAnswer {
        match door.wait_for(|_| true) {
            Input::Device { input: DeviceInput::Disk(answer), .. } => answer,
            other => panic!("{other:?}"),
        }
    }

    const READ: DiskOperation = DiskOperation::Read { sector: 0, count: 1 };

    #[test]
    fn requests_are_done_side_by_side_and_ejecting_waits_for_all() {
        let (mut pool, drive, mut door) = pool();
        let reads = 0..THREADS_MAX as u64;
        for tag in reads.clone() {
            pool.ask(DiskRequest { tag, operation: READ }).unwrap();
        }
        pool.ask(DiskRequest { tag: 99, operation: DiskOperation::Eject }).unwrap();
        for tag in reads.clone() {
            pool.ask(DiskRequest { tag: 100 + tag, operation: READ }).unwrap();
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
            pool.ask(DiskRequest { tag, operation: READ }).unwrap();
        }
        // This waits for the threads, and nobody takes the answers.
        drop(pool);
        let mut door = door;
        for _ in 0..asked {
            answer(&mut door);
        }
    }

    #[test]
    fn a_fault_of_our_own_is_an_error_for_the_guest() {
        let (mut pool, _, mut door) = pool();
        pool.ask(DiskRequest { tag: 1, operation: DiskOperation::Flush }).unwrap();
        assert_eq!(answer(&mut door), DiskAnswer { tag: 1, result: Err(DiskError::Host) });
    }
}
