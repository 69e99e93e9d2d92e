//! What a person types: keys for the guest, and keys for the console.

use std::mem;

use ratatui_core::backend::Backend;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ring3_display::terminal as screens;

use super::overlay::Overlay;
use super::{App, Purpose, keys};
use crate::protocol::{Command, KeyChange, View, Wish};

/// The most bytes, or changes of keys, that wait for a guest which takes none. Later ones are lost.
const WAITING_MAX: usize = 16 << 10;
/// The most changes of keys in a command.
const KEYS_MAX: usize = 64;

/// What was typed and not yet taken. Only one command is on its way, so the order is kept.
#[derive(Debug, Default)]
pub(crate) struct Typing {
    bytes: Vec<u8>,
    keys: Vec<KeyChange>,
    /// The command that is on its way.
    sent: Option<Command>,
}

impl Typing {
    /// Adds bytes. Returns false if there is no room.
    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) -> bool {
        let has_room = self.bytes.len() + bytes.len() <= WAITING_MAX;
        if has_room {
            self.bytes.extend(bytes);
        }
        has_room
    }

    /// Adds changes of keys. Returns false if there is no room.
    pub(crate) fn add_keys(&mut self, keys: &[KeyChange]) -> bool {
        let has_room = self.keys.len() + keys.len() <= WAITING_MAX;
        if has_room {
            self.keys.extend(keys);
        }
        has_room
    }

    /// Returns whether something waits.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.bytes.is_empty() || !self.keys.is_empty()
    }

    /// Returns the next command, if none is on its way.
    pub(crate) fn next(&mut self) -> Option<Command> {
        if self.sent.is_some() {
            return None;
        }
        self.sent = if !self.bytes.is_empty() {
            Some(Command::Input { bytes: mem::take(&mut self.bytes) })
        } else if !self.keys.is_empty() {
            let rest = self.keys.split_off(self.keys.len().min(KEYS_MAX));
            Some(Command::Keys { keys: mem::replace(&mut self.keys, rest) })
        } else {
            None
        };
        self.sent.clone()
    }

    /// Notes whether the command on its way was taken. Otherwise it is sent again.
    pub(crate) fn answered(&mut self, is_taken: bool) {
        match self.sent.take() {
            Some(Command::Input { mut bytes }) if !is_taken => {
                bytes.append(&mut self.bytes);
                self.bytes = bytes;
            }
            Some(Command::Keys { mut keys }) if !is_taken => {
                keys.append(&mut self.keys);
                self.keys = keys;
            }
            _ => {}
        }
    }

    /// Returns a last command for the console that the person leaves.
    pub(crate) fn rest(&mut self) -> Option<Command> {
        let Typing { bytes, keys, .. } = mem::take(self);
        if !bytes.is_empty() {
            return Some(Command::Input { bytes });
        }
        (!keys.is_empty()).then_some(Command::Keys { keys })
    }

    /// Forgets everything: the server has died.
    pub(crate) fn forget(&mut self) {
        *self = Typing::default();
    }
}

impl<B: Backend<Error: Send + Sync + 'static>> App<B> {
    /// Takes a key.
    pub(super) fn key(&mut self, event: &KeyEvent) {
        if mem::take(&mut self.is_prefixed) {
            self.command(event);
        } else if self.prefix.is(event) {
            self.is_prefixed = true;
        } else if self.overlay != Overlay::None {
            self.key_for_overlay(event);
        } else {
            self.key_for_guest(event);
        }
    }

    fn key_for_guest(&mut self, event: &KeyEvent) {
        let has_room = match self.seen {
            Some(View::Serial(_) | View::Screen) if !self.owner.input => {
                self.tell(&format!("you look on; {} w lets you type", self.prefix));
                return;
            }
            Some(View::Serial(_)) => {
                let application = self.emulator.application_cursor();
                self.emulator.scroll(isize::MIN);
                self.typing.add_bytes(&keys::bytes(event, application))
            }
            Some(View::Screen) => self.typing.add_keys(&numbered(&screens::key_changes(event))),
            Some(View::Log) => return,
            None => return self.tell("there is no connection, and this key is lost"),
        };
        if !has_room {
            self.tell("the guest takes no keys, and this one is lost");
        }
        self.send_typed();
    }

    /// Takes the key after the prefix.
    fn command(&mut self, event: &KeyEvent) {
        let page = isize::from(self.room().1 as i16) / 2;
        match event.code {
            KeyCode::PageUp => return self.emulator.scroll(page),
            KeyCode::PageDown => return self.emulator.scroll(-page),
            KeyCode::Delete if self.seen == Some(View::Screen) && self.owner.input => {
                self.typing.add_keys(&numbered(&screens::control_alt_delete()));
                return self.send_typed();
            }
            _ => {}
        }
        if self.prefix.is(event) || event.code == KeyCode::Char(self.prefix.letter()) {
            return self.key_for_guest(&self.prefix.event());
        }
        let KeyCode::Char(character) = event.code else { return };
        // Ctrl may still be held.
        let was_help = mem::replace(&mut self.overlay, Overlay::None) == Overlay::Help;
        match character {
            'n' | ' ' => self.turn(1),
            'p' => self.turn(-1),
            '0'..='9' => self.turn_to(character as usize - '0' as usize),
            'l' => self.overlay = Overlay::List { chosen: self.number(), typed: String::new() },
            'c' => self.see(self.next_line()),
            's' => self.see(View::Screen),
            'g' => self.see(View::Log),
            'w' => self.change_wish(),
            'd' | 'x' => self.leaves = true,
            'h' | '?' if !was_help => self.overlay = Overlay::Help,
            _ => {}
        }
    }

    fn change_wish(&mut self) {
        let wish = if self.owner.input { Wish::Watch } else { Wish::Take };
        self.send(Command::Own { wish }, Purpose::Own);
    }

    fn key_for_overlay(&mut self, event: &KeyEvent) {
        let last = self.machines.len().saturating_sub(1);
        let Overlay::List { chosen, typed } = &mut self.overlay else {
            // Any key ends help.
            self.overlay = Overlay::None;
            return;
        };
        match event.code {
            KeyCode::Up => *chosen = chosen.saturating_sub(1),
            KeyCode::Down => *chosen = (*chosen + 1).min(last),
            KeyCode::Home => *chosen = 0,
            KeyCode::End => *chosen = last,
            KeyCode::Esc if self.wanted.is_some() => self.overlay = Overlay::None,
            KeyCode::Enter => {
                let chosen = *chosen;
                self.overlay = Overlay::None;
                self.turn_to(chosen);
            }
            KeyCode::Backspace => {
                typed.pop();
            }
            KeyCode::Char(character)
                if event.modifiers == KeyModifiers::NONE || character.is_ascii_uppercase() =>
            {
                typed.push(character);
                let begins = |name: &str| name.starts_with(typed.as_str());
                match self.machines.iter().position(|machine| begins(machine.name.as_str())) {
                    Some(number) => *chosen = number,
                    None => {
                        typed.pop();
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns the number of the machine that is wanted.
    fn number(&self) -> usize {
        let name = self.wanted.as_ref().map(|(name, _)| name);
        self.machines.iter().position(|machine| Some(&machine.name) == name).unwrap_or(0)
    }

    /// Turns to the machine so many places further.
    fn turn(&mut self, by: isize) {
        let count = self.machines.len() as isize;
        if count > 0 {
            self.turn_to((self.number() as isize + by).rem_euclid(count) as usize);
        }
    }

    fn turn_to(&mut self, number: usize) {
        let Some(machine) = self.machines.get(number) else {
            return self.tell(&format!("there is no machine {number}"));
        };
        let view = self.wanted.as_ref().and_then(|(_, view)| *view);
        self.wanted = Some((machine.name.clone(), view));
        self.left_behind = None;
        self.attach();
    }

    fn see(&mut self, view: View) {
        if let Some((_, wanted)) = &mut self.wanted {
            *wanted = Some(view);
            self.attach();
        }
    }

    /// Returns the serial line after the present one.
    fn next_line(&self) -> View {
        let consoles = self.machines.get(self.number()).map(|machine| &machine.consoles);
        let lines = consoles.into_iter().flatten().map(|console| console.view);
        let lines: Vec<_> = lines.filter(|view| matches!(view, View::Serial(_))).collect();
        let next = lines.iter().find(|line| Some(**line) > self.seen);
        let is_line = matches!(self.seen, Some(View::Serial(_)));
        let next = next.filter(|_| is_line).or(lines.first());
        next.copied().unwrap_or(View::Serial(0))
    }
}

/// Returns changes of keys with their numbers in QMP.
pub(crate) fn numbered(changes: &[(ring3_core::input::Key, bool)]) -> Vec<KeyChange> {
    let number = |key: u16| (key & 0x7f) as u8 | if key >> 8 == 0xe0 { 0x80 } else { 0 };
    changes
        .iter()
        .map(|(key, is_pressed)| (if key.0 == PAUSE { 0xc6 } else { number(key.0) }, *is_pressed))
        .collect()
}

/// The scan code of Pause, the only key with a prefix of its own.
const PAUSE: u16 = 0xe11d;

#[cfg(test)]
mod tests {
    use ring3_core::input::Key;

    use super::*;

    #[test]
    fn keys_that_are_not_taken_are_sent_again_in_their_order() {
        let mut typing = Typing::default();
        assert!(typing.add_bytes(b"a"));
        assert!(matches!(typing.next(), Some(Command::Input { bytes }) if bytes == b"a"));
        assert!(typing.add_bytes(b"b"));
        assert!(typing.next().is_none(), "one is on its way");
        typing.answered(false);
        assert!(matches!(typing.next(), Some(Command::Input { bytes }) if bytes == b"ab"));
        typing.answered(true);
        assert!(typing.next().is_none() && !typing.is_waiting());
        assert!(!typing.add_bytes(&vec![0; WAITING_MAX + 1]));
    }

    #[test]
    fn keys_have_numbers() {
        let keys = [(Key(0x1e), true), (Key(0xe04b), false), (Key(PAUSE), true)];
        assert_eq!(numbered(&keys), [(0x1e, true), (0xcb, false), (0xc6, true)]);
    }
}
