//! Performs key presses and mouse movements one after the other, each at its time.
//!
//! A client that sends keys does not wait until they are typed: keys are held for a while, and the keyboard
//! may take no more of them, above all while the machine is paused. So a thread types them, in the order of
//! the commands.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use ring3_core::input::{Key, MouseMove};
use ring3_core::keys;
use ring3_vm::Control;
use serde::Deserialize;

use crate::protocol::Failure;

/// The most commands whose keys wait. Messages are bounded, and so are the keys of one message.
const COMMANDS_WAITING: usize = 64;

/// How long keys are held if the client does not say (QMP Reference Manual, send-key).
const DEFAULT_HOLD_MILLIS: u32 = 100;

/// The time between two keys or movements. It gives the guest time to fetch them, since a keyboard's buffer is small.
const SPACING: Duration = Duration::from_millis(5);

/// The number of Pause is special, because its scan code is not a single byte.
const PAUSE_NUMBER: u32 = 0xc6;
const PAUSE: Key = Key(0xe11d);

/// A client's name of a key (QMP Reference Manual, `KeyValue`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum KeyValue {
    /// The key's scan code of set 1, plus 80h for codes after E0h.
    Number(u32),
    /// The key's name.
    Qcode(String),
}

impl KeyValue {
    pub(crate) fn key(&self) -> Result<Key, Failure> {
        let key = match self {
            KeyValue::Qcode(name) => keys::by_name(name),
            KeyValue::Number(PAUSE_NUMBER) => Some(PAUSE),
            KeyValue::Number(number @ 0x01..=0x7f) => Some(Key(*number as u16)),
            KeyValue::Number(number @ 0x81..=0xff) => Some(Key(0xe000 | *number as u16 & 0x7f)),
            KeyValue::Number(_) => None,
        };
        key.ok_or_else(|| match self {
            KeyValue::Qcode(name) => Failure::generic(format!("there is no key '{name}'")),
            KeyValue::Number(number) => Failure::generic(format!("there is no key {number}")),
        })
    }
}

/// One action of the typist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Presses or releases a key.
    Key {
        key: Key,
        pressed: bool,
    },
    Mouse(MouseMove),
    Wait(Duration),
}

/// Returns the steps that press `keys` together, hold them for `hold_millis` milliseconds, and release them
/// again.
pub(crate) fn chord(keys: &[Key], hold_millis: Option<u32>) -> Vec<Step> {
    let hold = hold_millis.unwrap_or(DEFAULT_HOLD_MILLIS);
    let presses = keys.iter().map(|key| Step::Key { key: *key, pressed: true });
    let releases = keys.iter().rev().map(|key| Step::Key { key: *key, pressed: false });
    let hold = Step::Wait(Duration::from_millis(hold.into()));
    presses.chain([hold]).chain(releases).collect()
}

/// The thread that types. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Typist {
    commands: SyncSender<Vec<Step>>,
    /// Nothing is sent here. Dropping it tells the thread to end, even while it holds keys.
    _alive: SyncSender<()>,
}

impl Typist {
    /// Starts the thread.
    pub(crate) fn new(control: Control) -> io::Result<Typist> {
        let (commands, waiting) = mpsc::sync_channel::<Vec<Step>>(COMMANDS_WAITING);
        let (alive, dropped) = mpsc::sync_channel(0);
        thread::Builder::new().name("qmp typist".into()).spawn(move || {
            for step in waiting.into_iter().flatten() {
                if !take(&step, &control, &dropped) {
                    return;
                }
            }
        })?;
        Ok(Typist { commands, _alive: alive })
    }

    /// Queues `steps` behind those of earlier commands.
    pub(crate) fn queue(&self, steps: Vec<Step>) -> Result<(), Failure> {
        let full = |_| Failure::generic("too much is waiting to be typed already");
        self.commands.try_send(steps).map_err(full)
    }
}

/// Performs a step. Returns false if the typist was dropped.
fn take(step: &Step, control: &Control, dropped: &Receiver<()>) -> bool {
    let wait = match step {
        Step::Key { key, pressed } => {
            control.key(*key, *pressed);
            SPACING
        }
        Step::Mouse(moved) => {
            control.mouse(*moved);
            SPACING
        }
        Step::Wait(duration) => *duration,
    };
    dropped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout)
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn keys_have_names_and_numbers() {
        let key = |data| from_value::<KeyValue>(data).unwrap().key();
        assert_eq!(key(json!({"type": "qcode", "data": "a"})), Ok(Key(0x1e)));
        assert_eq!(key(json!({"type": "number", "data": 0x1e})), Ok(Key(0x1e)));
        assert_eq!(key(json!({"type": "number", "data": 0x9c})), Ok(Key(0xe01c)));
        assert_eq!(key(json!({"type": "number", "data": 0xc6})), Ok(PAUSE));
        assert!(key(json!({"type": "qcode", "data": "any"})).is_err());
        for number in [0u32, 0x80, 0x100, u32::MAX] {
            assert!(key(json!({"type": "number", "data": number})).is_err());
        }
        assert!(from_value::<KeyValue>(json!({"type": "number", "data": -1})).is_err());
    }

    #[test]
    fn a_chord_is_released_in_reverse() {
        let (first, second) = (Key(0x1d), Key(0x38));
        let expected = [
            Step::Key { key: first, pressed: true },
            Step::Key { key: second, pressed: true },
            Step::Wait(Duration::from_millis(5)),
            Step::Key { key: second, pressed: false },
            Step::Key { key: first, pressed: false },
        ];
        assert_eq!(chord(&[first, second], Some(5)), expected);
    }

    #[test]
    fn waiting_keys_are_bounded() {
        let (sender, _door) = ring3_vm::door();
        let typist = Typist::new(sender.control()).unwrap();
        typist.queue(vec![Step::Wait(Duration::from_secs(3600))]).unwrap();
        let queued = (0..1000).take_while(|_| typist.queue(Vec::new()).is_ok()).count();
        assert!((COMMANDS_WAITING - 1..=COMMANDS_WAITING).contains(&queued), "{queued}");
    }
}
