//! Several users of one terminal or socket. The escape key and c switch from one to the next (QEMU, "Keys in
//! the character backend multiplexer").

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring3_core::input::Input;
use ring3_display::escape::{ESCAPE, EscapeKeys, HELP, Key};
use ring3_vm::Sender;

use crate::serial::{Port, Taker};

/// Upper bound of the bytes that wait for a taker; later ones are refused.
const WAITING_MAX: usize = 64 << 10;

/// A function that runs when its user gets the focus for the first time.
type Start = Box<dyn FnOnce() + Send>;

/// Gives input to one of several takers.
pub(crate) struct Mux {
    sender: Sender,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    takers: Vec<(Arc<dyn Taker>, Option<Start>)>,
    /// The index of the taker that gets the input.
    focus: usize,
    keys: EscapeKeys,
    /// Whether the last byte was the escape key.
    is_escaped: bool,
    waiting: VecDeque<u8>,
    /// The place where the list of keys is shown.
    port: Option<Arc<Port>>,
}

impl std::fmt::Debug for Mux {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mux").finish_non_exhaustive()
    }
}

impl Mux {
    /// Returns a multiplexer without takers. The escape key and x end the machine behind `sender`.
    pub(crate) fn new(sender: Sender) -> Mux {
        Mux { sender, state: Mutex::default() }
    }

    /// Locks the state. A thread that panicked has left it consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a taker. The first one gets the focus.
    pub(crate) fn add(&self, taker: Arc<dyn Taker>, start: Option<Start>) {
        let mut state = self.lock();
        state.takers.push((taker, start));
        if state.takers.len() == 1 {
            state.look();
        }
    }

    /// Sets the place where the list of keys is shown to users who ask for it.
    pub(crate) fn show_help_at(&self, port: Arc<Port>) {
        self.lock().port = Some(port);
    }
}

impl State {
    /// Shows the taker that has got the focus.
    fn look(&mut self) {
        if let Some(start) = self.takers.get_mut(self.focus).and_then(|(_, start)| start.take()) {
            start();
        } else if self.focus > 0
            && let Some((taker, _)) = self.takers.get(self.focus)
        {
            // A monitor that has been shown before prints its prompt again.
            taker.offer(b"\r");
        }
    }

    /// Gives the waiting bytes to the taker that has the focus. Returns false if it takes none now.
    fn deliver(&mut self) -> bool {
        let waiting = std::mem::take(&mut self.waiting);
        let taken = match self.takers.get(self.focus) {
            Some((taker, _)) if !waiting.is_empty() => taker.offer(&Vec::from(waiting.clone())),
            _ => true,
        };
        if !taken {
            self.waiting = waiting;
        }
        taken
    }
}

impl Taker for Mux {
    fn offer(&self, bytes: &[u8]) -> bool {
        let mut state = self.lock();
        // A guest that takes no input must not keep the escape key from working.
        let has_escape = state.is_escaped || bytes.contains(&ESCAPE);
        if !state.deliver() && state.waiting.len() >= WAITING_MAX && !has_escape {
            return false;
        }
        for byte in bytes {
            let key = state.keys.key(*byte);
            state.is_escaped = key == Key::Nothing;
            match key {
                Key::Guest(byte) if state.waiting.len() < WAITING_MAX => {
                    state.waiting.push_back(byte);
                }
                Key::Quit => self.sender.send(Input::Quit),
                Key::Help => {
                    let text = format!(
                        "{HELP}  Ctrl-A c       switch between the serial port and the monitor\n"
                    );
                    if let Some(port) = &state.port {
                        // A failure is ignored: a client that has gone does not read it.
                        let _ = port.write(text.replace('\n', "\r\n").as_bytes());
                    }
                }
                Key::Other(b'c' | b'C') => {
                    // Bytes that were typed before are for the taker before.
                    if !state.deliver() {
                        state.waiting.clear();
                    }
                    state.focus = (state.focus + 1) % state.takers.len().max(1);
                    state.look();
                }
                Key::Guest(_) | Key::Nothing | Key::Other(_) => {}
            }
        }
        state.deliver();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A taker with room for this many bytes.
    struct Bounded(Mutex<Vec<u8>>, usize);

    impl Taker for Bounded {
        fn offer(&self, bytes: &[u8]) -> bool {
            let mut taken = self.0.lock().unwrap();
            let fits = taken.len() + bytes.len() <= self.1;
            if fits {
                taken.extend(bytes);
            }
            fits
        }
    }

    #[test]
    fn the_escape_key_goes_round() {
        let (sender, mut door) = ring3_vm::door();
        let mux = Mux::new(sender);
        let takers = [(); 2].map(|()| Arc::new(Bounded(Mutex::default(), 1000)));
        let started = Arc::new(Mutex::new(0));
        let count = started.clone();
        mux.add(takers[0].clone(), None);
        mux.add(takers[1].clone(), Some(Box::new(move || *count.lock().unwrap() += 1)));
        for part in [&b"one\x01"[..], b"ctwo\x01c", b"three\x01", b"\x01", b"\x01cfour\x01x"] {
            assert!(mux.offer(part));
        }
        assert_eq!(*takers[0].0.lock().unwrap(), b"onethree\x01");
        // The second time it has started already, and is asked for its prompt.
        assert_eq!(*takers[1].0.lock().unwrap(), b"two\rfour");
        assert_eq!(*started.lock().unwrap(), 1);
        assert_eq!(door.take(|_| true), Some(Input::Quit));
    }

    #[test]
    fn a_guest_that_reads_nothing_takes_no_memory_and_blocks_no_monitor() {
        let (sender, _door) = ring3_vm::door();
        let mux = Mux::new(sender);
        mux.add(Arc::new(Bounded(Mutex::default(), 0)), None);
        let monitor = Arc::new(Bounded(Mutex::default(), 10));
        mux.add(monitor.clone(), None);
        let taken = (0..1000).take_while(|_| mux.offer(&[b'x'; 1000])).count();
        assert!(taken < 100, "{taken}");
        assert!(mux.lock().waiting.len() <= WAITING_MAX);
        assert!(mux.offer(b"x\x01cq"));
        assert_eq!(*monitor.0.lock().unwrap(), b"\rq");
    }
}
