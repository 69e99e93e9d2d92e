//! Threads that do what has to wait for the host, several at a time.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Something to do.
type Job = Box<dyn FnOnce() + Send>;

/// See the module. What was asked for is done before it is dropped.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut state = self.lock();
            let job = loop {
                if let Some(job) = state.jobs.pop_front() {
                    break job;
                }
                if state.ended {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            job();
        }
    }
}

impl Pool {
    /// Starts `count` threads for the device called `name`.
    pub(crate) fn start(name: &str, count: usize) -> io::Result<Pool> {
        let mut pool = Pool { shared: Arc::default(), threads: Vec::new() };
        for _ in 0..count {
            let shared = Arc::clone(&pool.shared);
            let thread = thread::Builder::new().name(format!("disk {name}"));
            pool.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(pool)
    }

    /// Has one of the threads do it. It must not panic.
    pub(crate) fn ask(&self, job: impl FnOnce() + Send + 'static) {
        self.shared.lock().jobs.push_back(Box::new(job));
        self.shared.changed.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // The device is dropped by whoever uses it last, which may be one of these.
            if thread.thread().id() != thread::current().id() {
                // It does not panic.
                let _ = thread.join();
            }
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}
