//! Threads that execute jobs which must wait for the host, several at a time. If jobs follow each other
//! closely, one thread [polls](ring3_host::workers) for the next one before it sleeps.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use ring3_host::workers::Workers;
use ring3_vhost::block::LOOKS_FOR;

/// A job for one of the threads.
type Job = Box<dyn FnOnce() + Send>;

/// The threads of a device, and the queue of their jobs. All jobs are executed before it is dropped.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    workers: Workers,
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            job();
            self.lock().workers.ends();
        }
    }

    /// Waits for a job. Returns None at the end.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        state.workers.comes();
        let mut has_looked = false;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.workers.begins();
                return Some(job);
            }
            if state.ended {
                return None;
            }
            if !has_looked && let Some(look) = state.workers.look() {
                has_looked = true;
                drop(state);
                look.wait();
                state = self.lock();
                state.workers.has_looked();
                continue;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Pool {
    /// Starts `count` threads for the device called `name`.
    pub(crate) fn start(name: &str, count: usize) -> io::Result<Pool> {
        let workers = Workers::looking_up_to(LOOKS_FOR);
        let state = Mutex::new(State { jobs: VecDeque::new(), workers, ended: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let mut pool = Pool { shared, threads: Vec::new() };
        for _ in 0..count {
            let shared = Arc::clone(&pool.shared);
            let thread = thread::Builder::new().name(format!("disk {name}"));
            pool.shared.lock().workers.starts();
            pool.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(pool)
    }

    /// Lets one of the threads execute `job`, which must not panic.
    pub(crate) fn ask(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        state.jobs.push_back(Box::new(job));
        let waiting = state.jobs.len();
        if state.workers.asked(waiting) > 0 {
            drop(state);
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // The last user of the device drops it, and that may be one of these threads.
            if thread.thread().id() != thread::current().id() {
                // The thread does not panic.
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
