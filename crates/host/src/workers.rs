//! Threads that wait for items in a queue under a lock. One of them [polls](crate::polling) for an item
//! before it sleeps.
//!
//! Waking a thread also costs the thread that wakes it. So no thread is woken for an item that another one,
//! which is about to look at the queue anyway, can take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::polling::Polling;

/// What the threads of a queue are doing. It is kept with the queue, under the same lock.
#[derive(Debug)]
pub struct Workers {
    /// Number of threads at work.
    busy: usize,
    /// Number of threads that will look at the queue without being woken.
    coming: usize,
    /// Whether a thread polls.
    is_looked: bool,
    polling: Polling,
    /// When a thread last finished its work.
    idle_since: Instant,
    /// Number of items that have come so far. The thread that polls reads it without the lock.
    asked: Arc<AtomicUsize>,
}

/// The state of the thread that polls.
#[derive(Debug)]
pub struct Look {
    polling: Polling,
    asked: Arc<AtomicUsize>,
    before: usize,
}

impl Look {
    /// Polls until an item has come, or for as long as it pays. The queue must not be locked meanwhile.
    pub fn wait(mut self) {
        self.polling.wait(|| self.asked.load(Ordering::Relaxed) != self.before);
    }
}

impl Workers {
    /// Returns the state of a queue without threads. One thread at a time will poll, for `max` at most.
    pub fn looking_up_to(max: Duration) -> Workers {
        Workers {
            busy: 0,
            coming: 0,
            is_looked: false,
            polling: Polling::up_to(max),
            idle_since: Instant::now(),
            asked: Arc::default(),
        }
    }

    /// Notes that an item has come, and that `waiting` items are in the queue now. Returns the number of
    /// items for which a thread must be woken.
    pub fn asked(&mut self, waiting: usize) -> usize {
        if self.busy == 0 && self.coming == 0 {
            self.polling.slept(self.idle_since.elapsed());
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        waiting.saturating_sub(self.coming)
    }

    /// Notes that a thread was started. It will look at the queue.
    pub fn starts(&mut self) {
        self.coming += 1;
    }

    /// Notes that a thread looks at the queue, after it was started or has finished its work.
    pub fn comes(&mut self) {
        self.coming -= 1;
    }

    /// Notes that a thread takes an item.
    pub fn begins(&mut self) {
        self.busy += 1;
    }

    /// Notes that a thread has finished its work. It will look at the queue.
    pub fn ends(&mut self) {
        self.busy -= 1;
        self.coming += 1;
        self.idle_since = Instant::now();
    }

    /// Notes that a thread has found the queue empty. Returns how it must poll before it looks at the queue
    /// [once more](Workers::has_looked), or None if another thread polls.
    pub fn look(&mut self) -> Option<Look> {
        if self.is_looked {
            return None;
        }
        self.is_looked = true;
        self.coming += 1;
        let before = self.asked.load(Ordering::Relaxed);
        Some(Look { polling: self.polling, asked: Arc::clone(&self.asked), before })
    }

    /// Notes that the thread that polled has finished polling.
    pub fn has_looked(&mut self) {
        self.is_looked = false;
        self.coming -= 1;
    }

    /// Returns the number of threads at work.
    pub fn busy(&self) -> usize {
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_is_woken_for_a_job_that_another_one_fetches() {
        let mut workers = Workers::looking_up_to(Duration::from_micros(50));
        assert_eq!(workers.asked(1), 1);
        workers.starts();
        assert_eq!(workers.asked(1), 0);
        assert_eq!(workers.asked(2), 1);
        workers.comes();
        workers.begins();
        assert_eq!(workers.busy(), 1);
        assert_eq!(workers.asked(1), 1);
        workers.ends();
        workers.comes();
        let look = workers.look().expect("no other one looks");
        assert!(workers.look().is_none());
        assert_eq!(workers.asked(1), 0);
        // An item has come since, so this returns at once.
        look.wait();
        workers.has_looked();
        assert_eq!(workers.asked(1), 1);
    }
}
