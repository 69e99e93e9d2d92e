//! Converts a client's key events to keys of the machine's keyboard.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ring3_core::input::Key;
use ring3_core::keys::LEFT_SHIFT;

use super::keysyms::{key_of_keycode, meant};

const RIGHT_SHIFT: Key = Key(0x36);
const CAPS_LOCK: Key = Key(0x3a);

/// The keyboard of one client.
#[derive(Debug)]
pub(crate) struct Keyboard {
    /// The keys that the client holds down.
    held: BTreeSet<Key>,
    /// Whether Caps Lock is on in the guest, judged by the presses of its key here. All clients share this.
    caps_lock: Arc<AtomicBool>,
}

/// A change of a key: it is pressed (true) or released.
pub(crate) type Change = (Key, bool);

impl Keyboard {
    pub(crate) fn new(caps_lock: Arc<AtomicBool>) -> Keyboard {
        Keyboard { held: BTreeSet::new(), caps_lock }
    }

    /// Handles a key event with a keysym (RFC 6143, section 7.5.4). The guest should get the character of the
    /// keysym even if the client's keyboard needs Shift for it and the guest's does not, or the other way
    /// round.
    pub(crate) fn keysym(&mut self, keysym: u32, pressed: bool) -> Vec<Change> {
        let Some(meant) = meant(keysym) else { return Vec::new() };
        let change = self.change(meant.key, pressed);
        let (Some(shift), false) = (meant.shift, change.is_empty() || !pressed) else {
            return change;
        };
        let needs_shift = shift ^ (meant.letter && self.caps_lock.load(Ordering::Relaxed));
        let shifts: Vec<Key> =
            [LEFT_SHIFT, RIGHT_SHIFT].into_iter().filter(|key| self.held.contains(key)).collect();
        if needs_shift && shifts.is_empty() {
            return around(&[LEFT_SHIFT], true, &change);
        }
        if !needs_shift && !shifts.is_empty() {
            return around(&shifts, false, &change);
        }
        change
    }

    /// Handles a key event that identifies the key itself (QEMU's extended key event).
    pub(crate) fn keycode(&mut self, keycode: u32, pressed: bool) -> Vec<Change> {
        key_of_keycode(keycode).map_or_else(Vec::new, |key| self.change(key, pressed))
    }

    /// Releases the keys that the client held when it disconnected.
    pub(crate) fn release_all(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.held).into_iter().map(|key| (key, false)).collect()
    }

    /// Changes a key. A key that is already down is not pressed again, because the machine's keyboard repeats
    /// keys by itself.
    fn change(&mut self, key: Key, pressed: bool) -> Vec<Change> {
        let changed = if pressed { self.held.insert(key) } else { self.held.remove(&key) };
        if !changed {
            return Vec::new();
        }
        if key == CAPS_LOCK && pressed {
            self.caps_lock.fetch_xor(true, Ordering::Relaxed);
        }
        vec![(key, pressed)]
    }
}

/// Returns `change` while `shifts` are `pressed`.
fn around(shifts: &[Key], pressed: bool, change: &[Change]) -> Vec<Change> {
    let all = |pressed| shifts.iter().map(move |key| (*key, pressed));
    all(pressed).chain(change.iter().copied()).chain(all(!pressed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Key = Key(0x1e);
    const SLASH: Key = Key(0x35);
    const SHIFT_L: u32 = 0xffe1;
    const CAPS: u32 = 0xffe5;

    fn keyboard() -> Keyboard {
        Keyboard::new(Arc::default())
    }

    /// Presses and releases a key.
    fn strike(keyboard: &mut Keyboard, keysym: u32) -> Vec<Change> {
        let mut changes = keyboard.keysym(keysym, true);
        changes.extend(keyboard.keysym(keysym, false));
        changes
    }

    #[test]
    fn each_character_has_its_key() {
        assert_eq!(strike(&mut keyboard(), 0x61), [(A, true), (A, false)]);
    }

    #[test]
    fn shift_is_pressed_for_a_character_that_needs_it() {
        assert_eq!(
            strike(&mut keyboard(), 0x41),
            [(LEFT_SHIFT, true), (A, true), (LEFT_SHIFT, false), (A, false)]
        );
    }

    #[test]
    fn a_held_shift_is_not_pressed_again() {
        let mut keyboard = keyboard();
        assert_eq!(keyboard.keysym(SHIFT_L, true), [(LEFT_SHIFT, true)]);
        assert_eq!(strike(&mut keyboard, 0x41), [(A, true), (A, false)]);
    }

    #[test]
    fn shift_is_released_for_a_character_that_must_not_have_it() {
        // '/' on a German keyboard is Shift and 7.
        let mut keyboard = keyboard();
        keyboard.keysym(SHIFT_L, true);
        assert_eq!(
            strike(&mut keyboard, u32::from('/')),
            [(LEFT_SHIFT, false), (SLASH, true), (LEFT_SHIFT, true), (SLASH, false)]
        );
    }

    #[test]
    fn caps_lock_applies_to_the_letters_of_all_clients() {
        let caps_lock = Arc::default();
        let mut one = Keyboard::new(Arc::clone(&caps_lock));
        let mut other = Keyboard::new(caps_lock);
        strike(&mut one, CAPS);
        assert_eq!(strike(&mut other, 0x41), [(A, true), (A, false)]);
        assert_eq!(other.keysym(0x61, true)[0], (LEFT_SHIFT, true));
        other.keysym(0x61, false);
        strike(&mut other, CAPS);
        assert_eq!(strike(&mut one, 0x61), [(A, true), (A, false)]);
    }

    #[test]
    fn a_key_repeats_by_itself() {
        let mut keyboard = keyboard();
        assert_eq!(keyboard.keysym(0x61, true), [(A, true)]);
        assert_eq!(keyboard.keysym(0x61, true), []);
        assert_eq!(keyboard.keycode(0x1e, true), []);
        assert_eq!(keyboard.keysym(0x61, false), [(A, false)]);
        assert_eq!(keyboard.keysym(0x61, false), []);
    }

    #[test]
    fn a_client_that_leaves_releases_its_keys() {
        let mut keyboard = keyboard();
        keyboard.keycode(0x1d, true);
        keyboard.keycode(0x9d, true);
        assert_eq!(keyboard.release_all(), [(Key(0x1d), false), (Key(0xe01d), false)]);
        assert_eq!(keyboard.release_all(), []);
    }
}
