//! Room for translators below 2 GiB, where each has tables and code: a process has enough for few at a time, and
//! the others interpret. So threads of tests wait until there is room.

use std::cell::OnceCell;
use std::sync::{Condvar, Mutex, PoisonError};

/// Upper bound of the threads that have translators at a time.
const MOST: usize = 3;

/// The number of threads that may have translators, and a signal when one of them ends.
static THREADS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

thread_local! {
    /// The room of this thread, once it has some.
    static ROOM: OnceCell<Room> = const { OnceCell::new() };
}

/// The room of a thread, until it ends.
struct Room;

impl Room {
    fn take() -> Room {
        let (threads, ended) = &THREADS;
        let threads = threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut threads = ended
            .wait_while(threads, |threads| *threads == MOST)
            .unwrap_or_else(PoisonError::into_inner);
        *threads += 1;
        Room
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let (threads, ended) = &THREADS;
        *threads.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ended.notify_one();
    }
}

/// Waits until there is room for a translator on this thread. It has the room until it ends.
pub(super) fn wait() {
    ROOM.with(|room| {
        room.get_or_init(Room::take);
    });
}
