//! Threads that wait for what a queue under a lock has for them, one of which [looks](crate::polling) for it before it sleeps.
//!
//! To wake a thread costs whoever wakes it as well, so none is woken for what one that will look at the queue anyway can do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::polling::Polling;

/// See the module. It is kept with the queue, under its lock.
#[derive(Debug)]
pub struct Workers {
    /// Threads that do something.
    busy: usize,
    /// Threads that will look at the queue without being woken.
    coming: usize,
    /// One of them looks for what comes.
    is_looked: bool,
    polling: Polling,
    /// When the last one had done something.
    idle_since: Instant,
    /// How much has come, for the one that looks.
    asked: Arc<AtomicUsize>,
}

/// What one thread does while it looks.
#[derive(Debug)]
pub struct Look {
    polling: Polling,
    asked: Arc<AtomicUsize>,
    before: usize,
}

impl Look {
    /// Looks until something has come, or for the time that is worth it. The queue is not to be locked meanwhile.
    pub fn wait(mut self) {
        self.polling.wait(|| self.asked.load(Ordering::Relaxed) != self.before);
    }
}

impl Workers {
    /// No threads yet. One of them looks for `max` at most.
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

    /// Something has come, and `waiting` things wait in the queue now. How many of them no thread comes for that was not woken.
    pub fn asked(&mut self, waiting: usize) -> usize {
        if self.busy == 0 && self.coming == 0 {
            self.polling.slept(self.idle_since.elapsed());
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        waiting.saturating_sub(self.coming)
    }

    /// A thread was started, which will look at the queue.
    pub fn starts(&mut self) {
        self.coming += 1;
    }

    /// A thread looks at the queue after it was started, or after it had done something.
    pub fn comes(&mut self) {
        self.coming -= 1;
    }

    /// A thread takes something.
    pub fn begins(&mut self) {
        self.busy += 1;
    }

    /// A thread has done it, and will look at the queue.
    pub fn ends(&mut self) {
        self.busy -= 1;
        self.coming += 1;
        self.idle_since = Instant::now();
    }

    /// A thread has found nothing: it is to look, and then to look at the queue [once more](Workers::has_looked). None where
    /// another one does.
    pub fn look(&mut self) -> Option<Look> {
        if self.is_looked {
            return None;
        }
        self.is_looked = true;
        self.coming += 1;
        let before = self.asked.load(Ordering::Relaxed);
        Some(Look { polling: self.polling, asked: Arc::clone(&self.asked), before })
    }

    /// The thread that was to look has done so.
    pub fn has_looked(&mut self) {
        self.is_looked = false;
        self.coming -= 1;
    }

    /// How many threads do something.
    pub fn busy(&self) -> usize {
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_woken_for_what_another_one_comes_for() {
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
        // Something has come: it ends.
        look.wait();
        workers.has_looked();
        assert_eq!(workers.asked(1), 1);
    }
}
