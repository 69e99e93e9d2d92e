//! Keys and movements of the mouse, one after the other, each at its time.
//!
//! A client that has keys typed does not wait for it: keys are held for a while, and the keyboard may take no
//! more of them, above all while the machine is paused. So a thread does it, in the order of the commands.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use ring3_core::input::{Key, MouseMove};
use ring3_core::keys;
use ring3_vm::Control;
use serde::Deserialize;

use crate::protocol::Failure;

/// Commands whose keys wait at most; a message is bounded, and so is what it has typed.
const COMMANDS_WAITING: usize = 64;

/// How long keys are held when the client does not say (QMP Reference Manual, send-key).
const DEFAULT_HOLD_MILLIS: u32 = 100;

/// Pause has a number of its own, for its code is no single byte.
const PAUSE_NUMBER: u32 = 0xc6;
const PAUSE: Key = Key(0xe11d);

/// A key as clients name it (QMP Reference Manual, `KeyValue`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum KeyValue {
    /// By its scan code of set 1, with 80h for those after E0h.
    Number(u32),
    /// By its name.
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

/// One thing that the typist does.
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

/// What it takes to press `keys` together, hold them for so many milliseconds, and release them again.
pub(crate) fn chord(keys: &[Key], hold_millis: Option<u32>) -> Vec<Step> {
    let hold = hold_millis.unwrap_or(DEFAULT_HOLD_MILLIS);
    let presses = keys.iter().map(|key| Step::Key { key: *key, pressed: true });
    let releases = keys.iter().rev().map(|key| Step::Key { key: *key, pressed: false });
    let hold = Step::Wait(Duration::from_millis(hold.into()));
    presses.chain([hold]).chain(releases).collect()
}

/// The one who types; when it is dropped its thread ends.
#[derive(Debug)]
pub(crate) struct Typist {
    commands: SyncSender<Vec<Step>>,
    /// Nothing is sent here; the thread sees when it is dropped, even while it holds keys.
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

    /// Has `steps` done after those of earlier commands.
    pub(crate) fn queue(&self, steps: Vec<Step>) -> Result<(), Failure> {
        let full = |_| Failure::generic("too much is waiting to be typed already");
        self.commands.try_send(steps).map_err(full)
    }
}

/// Takes a step; false when there is nobody any more who wants it.
fn take(step: &Step, control: &Control, dropped: &Receiver<()>) -> bool {
    match step {
        Step::Key { key, pressed } => control.key(*key, *pressed),
        Step::Mouse(moved) => control.mouse(*moved),
        Step::Wait(duration) => {
            return dropped.recv_timeout(*duration) == Err(RecvTimeoutError::Timeout);
        }
    }
    true
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
    fn what_waits_to_be_typed_is_bounded() {
        let (sender, _door) = ring3_vm::door();
        let typist = Typist::new(sender.control()).unwrap();
        typist.queue(vec![Step::Wait(Duration::from_secs(3600))]).unwrap();
        let queued = (0..1000).take_while(|_| typist.queue(Vec::new()).is_ok()).count();
        assert!((COMMANDS_WAITING - 1..=COMMANDS_WAITING).contains(&queued), "{queued}");
    }
}
