//! The input door as the host sees it: threads send, the machine takes between two instructions.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring3_core::clock::Time;
use ring3_core::input::Input;

/// Inputs that wait at the door at most; senders then wait or give up.
const CAPACITY: usize = 64;

/// Makes a door and a sender for it. Host time counts from now.
pub fn door() -> (Sender, Door) {
    let shared = Arc::new(Shared::default());
    (Sender { shared: shared.clone() }, Door { shared, opened: Instant::now() })
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    inputs: VecDeque<Input>,
    /// [`Input::Quit`] was sent; it does not wait behind the others.
    quit: bool,
    /// The door is gone: nobody will take anything any more.
    closed: bool,
}

impl Shared {
    /// A thread that panicked has left the queue as whole as any other.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends inputs to a machine, from any thread.
#[derive(Debug, Clone)]
pub struct Sender {
    shared: Arc<Shared>,
}

impl Sender {
    /// Sends `input`, waiting while the machine has too much of it; [`Input::Quit`]
    /// never waits. What is sent to a machine that has ended is lost.
    pub fn send(&self, input: Input) {
        let mut waiting = self.shared.lock();
        if input == Input::Quit {
            waiting.quit = true;
        } else {
            while waiting.inputs.len() >= CAPACITY && !waiting.closed {
                waiting = self.shared.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            waiting.inputs.push_back(input);
        }
        self.shared.changed.notify_all();
    }

    /// Sends `input` if there is room for it at once; true when there was. For
    /// what a person types, who would rather lose a key than be locked out.
    pub fn offer(&self, input: Input) -> bool {
        if input == Input::Quit {
            self.send(input);
            return true;
        }
        let mut waiting = self.shared.lock();
        let room = waiting.inputs.len() < CAPACITY;
        if room {
            waiting.inputs.push_back(input);
            self.shared.changed.notify_all();
        }
        room
    }
}

/// The machine's side of the door.
#[derive(Debug)]
pub struct Door {
    shared: Arc<Shared>,
    opened: Instant,
}

impl Door {
    /// Host time since the door was made.
    pub fn host_time(&self) -> Time {
        let nanos = self.opened.elapsed().as_nanos();
        Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Takes the next input, if there is one and `accepts` says that it can be taken now.
    pub fn take(&mut self, accepts: impl Fn(&Input) -> bool) -> Option<Input> {
        let mut waiting = self.shared.lock();
        if std::mem::take(&mut waiting.quit) {
            return Some(Input::Quit);
        }
        if !accepts(waiting.inputs.front()?) {
            return None;
        }
        self.shared.changed.notify_all();
        waiting.inputs.pop_front()
    }

    /// Sleeps until [`Door::take`] would give something, or until host time `until`, if that is given.
    pub fn wait(&mut self, until: Option<Time>, accepts: impl Fn(&Input) -> bool) {
        let mut waiting = self.shared.lock();
        while !waiting.quit && !waiting.inputs.front().is_some_and(&accepts) {
            let Some(until) = until else {
                waiting = self.shared.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.nanos_since(self.host_time());
            if left == 0 {
                return;
            }
            let timeout = Duration::from_nanos(left);
            (waiting, _) = self
                .shared
                .changed
                .wait_timeout(waiting, timeout)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use ring3_core::input::DeviceInput;

    use super::*;

    fn key(byte: u8) -> Input {
        Input::Device { name: "com1".into(), input: DeviceInput::Serial(vec![byte]) }
    }

    #[test]
    fn inputs_come_in_order_and_quit_comes_first() {
        let (sender, mut door) = door();
        sender.send(key(1));
        sender.send(key(2));
        assert_eq!(door.take(|_| false), None);
        assert_eq!(door.take(|_| true), Some(key(1)));
        sender.send(Input::Quit);
        assert_eq!(door.take(|_| false), Some(Input::Quit));
        assert_eq!(door.take(|_| true), Some(key(2)));
        assert_eq!(door.take(|_| true), None);
    }

    #[test]
    fn a_full_door_holds_senders_back() {
        let (sender, mut door) = door();
        while sender.offer(key(0)) {}
        let other = sender.clone();
        let blocked = thread::spawn(move || other.send(key(7)));
        for _ in 0..CAPACITY {
            assert_eq!(door.take(|_| true), Some(key(0)));
        }
        door.wait(None, |_| true);
        assert_eq!(door.take(|_| true), Some(key(7)));
        blocked.join().unwrap();
    }

    #[test]
    fn a_sender_does_not_wait_for_a_machine_that_has_ended() {
        let (sender, door) = door();
        while sender.offer(key(0)) {}
        drop(door);
        sender.send(key(1));
    }

    #[test]
    fn waiting_ends_with_an_input_or_in_time() {
        let (sender, mut door) = door();
        door.wait(Some(door.host_time().plus_nanos(1_000_000)), |_| true);
        assert_eq!(door.take(|_| true), None);
        let other = sender.clone();
        let thread = thread::spawn(move || other.send(Input::Quit));
        door.wait(None, |_| true);
        assert_eq!(door.take(|_| true), Some(Input::Quit));
        thread.join().unwrap();
    }
}
