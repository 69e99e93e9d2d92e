//! The console that a page sees.

use std::collections::BTreeMap;
use std::future;
use std::mem;
use std::time::Duration;

use axum::extract::ws::Message;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ring3_display::terminal as screens;
use ring3_supervisor::definition::Name;
use ring3_supervisor::place::Place;
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use super::screen::Screen;
use super::{Left, Said, note, text};
use crate::client::Message as Heard;
use crate::protocol::{Command, Owner, PointerChange, View, Wish};
use crate::terminal::emulator::Emulator;
use crate::terminal::keys::bytes;
use crate::terminal::typing::{Typing, numbered};
use crate::web::keys;
use crate::web::link::Incoming;
use crate::web::rows::Shown;

/// The shortest time between two drawings of a terminal.
const FRAME: Duration = Duration::from_millis(20);
/// The pause before something is tried again: the guest takes no keys, or the machine is not known yet.
const AGAIN: Duration = Duration::from_millis(100);
/// What a new console shows of what was said before.
const TAIL: u32 = 64 << 10;
/// The most changes of the mouse that wait. Movements beyond it are lost, and the last place is not.
const CHANGES_MAX: usize = 64;
/// The least and the most columns and rows of a terminal.
const COLUMNS: (u16, u16) = (20, 300);
const ROWS: (u16, u16) = (5, 100);

/// Why a command was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Attach,
    Own,
    Typing,
    Pointer,
    Nothing,
}

/// What is seen of it.
enum Picture {
    Terminal(Box<Terminal>),
    Screen(Screen),
}

/// A serial line or a log.
struct Terminal {
    emulator: Emulator,
    /// What the page shows.
    shown: Shown,
    /// Whether something has changed since.
    has_changed: bool,
    /// Whether the page still draws.
    is_drawn: bool,
    /// When it was sent something.
    sent: Instant,
}

/// See the module.
pub(super) struct Console {
    place: Place,
    /// The console that the person wants to see, and a picture of it.
    wanted: Option<(Name, View, Picture)>,
    size: (u16, u16),
    watches: bool,
    /// Whether the server shows it.
    is_seen: bool,
    owner: Owner,
    commands: Option<Sender<Command>>,
    sent: u64,
    purposes: BTreeMap<u64, Purpose>,
    typing: Typing,
    moves: Vec<PointerChange>,
    /// When something is tried again.
    again: Option<Instant>,
}

impl Console {
    pub(super) fn new(place: Place) -> Console {
        Console {
            place,
            wanted: None,
            size: (80, 25),
            watches: false,
            is_seen: false,
            owner: Owner::default(),
            commands: None,
            sent: 0,
            purposes: BTreeMap::new(),
            typing: Typing::default(),
            moves: Vec::new(),
            again: None,
        }
    }

    /// Returns whether the page shows no console.
    pub(super) fn sees_none(&self) -> bool {
        self.wanted.is_none()
    }

    /// Waits for the next picture of a screen. This may be given up, and begun again.
    pub(super) async fn picture(&mut self) -> Message {
        if let Some((_, _, Picture::Screen(screen))) = &mut self.wanted
            && let Some(message) = screen.message().await
        {
            return message;
        }
        future::pending().await
    }

    /// Returns when [`act`](Self::act) has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let drawing = match &self.wanted {
            Some((_, _, Picture::Terminal(terminal)))
                if terminal.has_changed && terminal.is_drawn =>
            {
                Some(terminal.sent + FRAME)
            }
            _ => None,
        };
        drawing.into_iter().chain(self.again).min()
    }

    /// Does what is due.
    pub(super) fn act(&mut self, out: &mut Vec<Message>) -> Result<(), Left> {
        let now = Instant::now();
        if self.again.take_if(|again| *again <= now).is_some() {
            if !self.is_seen && !self.waits_for(Purpose::Attach) {
                self.attach()?;
            }
            self.send_typed()?;
        }
        if let Some((_, _, Picture::Terminal(terminal))) = &mut self.wanted
            && terminal.has_changed
            && terminal.is_drawn
            && terminal.sent + FRAME <= now
        {
            terminal.has_changed = false;
            let new = Shown::of(&terminal.emulator);
            if let Some(changes) = terminal.shown.changes(&new) {
                terminal.is_drawn = false;
                terminal.sent = now;
                terminal.shown = new;
                out.push(text(&json!(changes)));
            }
        }
        Ok(())
    }

    /// Hears what the page says.
    pub(super) fn hear(&mut self, said: Said, out: &mut Vec<Message>) -> Result<(), Left> {
        match said {
            Said::See { machine, view, columns, rows } => {
                self.resize(columns, rows);
                self.see(machine, view)?;
            }
            Said::Leave {} => {
                self.leave()?;
                self.send(Command::Detach {}, Purpose::Nothing)?;
            }
            Said::Own { wish } => {
                self.watches = wish == Wish::Watch;
                self.send(Command::Own { wish }, Purpose::Own)?;
            }
            Said::Key { place, down } => {
                let Some(number) = keys::number(&place) else { return Ok(()) };
                // A key that was held when another page took over is released by the server.
                if self.may_type(out, down) {
                    self.type_keys(&[(number, down)], out)?;
                }
            }
            Said::Type { key, control, alt, shift } => {
                if let Some(event) = keys::event(&key, control, alt, shift)
                    && self.may_type(out, true)
                {
                    self.type_events(&[event], out)?;
                }
            }
            Said::Text { text } => {
                if !self.may_type(out, true) {
                    return Ok(());
                }
                let character = |character| {
                    let code = match character {
                        '\n' => KeyCode::Enter,
                        '\t' => KeyCode::Tab,
                        other => KeyCode::Char(other),
                    };
                    KeyEvent::new(code, KeyModifiers::NONE)
                };
                let text = text.replace("\r\n", "\n");
                let typed =
                    text.chars().filter(|one| matches!(one, '\n' | '\t') || !one.is_control());
                self.type_events(&typed.map(character).collect::<Vec<_>>(), out)?;
            }
            Said::Pointer { changes } if self.is_seen && self.owner.input => {
                self.move_pointer(&changes)?;
            }
            Said::Size { columns, rows } => self.resize(columns, rows),
            Said::Scroll { lines } => {
                if let Some((_, _, Picture::Terminal(terminal))) = &mut self.wanted {
                    terminal.emulator.scroll(lines as isize);
                    terminal.has_changed = true;
                }
            }
            Said::Drawn {} => match &mut self.wanted {
                Some((_, _, Picture::Terminal(terminal))) => terminal.is_drawn = true,
                Some((_, _, Picture::Screen(screen))) => screen.is_drawn(),
                None => {}
            },
            Said::Pointer { .. } | Said::Visible { .. } | Said::Do { .. } => {}
        }
        Ok(())
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        self.size = (columns.clamp(COLUMNS.0, COLUMNS.1), rows.clamp(ROWS.0, ROWS.1));
        if let Some((_, _, Picture::Terminal(terminal))) = &mut self.wanted {
            terminal.emulator.resize(self.size);
            terminal.has_changed = true;
        }
    }

    fn see(&mut self, machine: Name, view: View) -> Result<(), Left> {
        self.leave()?;
        self.watches = false;
        let picture = match view {
            View::Screen => Picture::Screen(Screen::new(self.place.part(&machine).screen())),
            View::Serial(_) | View::Log => Picture::Terminal(Box::new(Terminal {
                emulator: Emulator::new(self.size, view == View::Log),
                shown: Shown::default(),
                has_changed: true,
                is_drawn: true,
                sent: Instant::now(),
            })),
        };
        self.wanted = Some((machine, view, picture));
        self.attach()
    }

    /// Leaves the console. What was typed there and not yet taken stays there.
    fn leave(&mut self) -> Result<(), Left> {
        if let Some(command) = self.typing.rest() {
            self.send(command, Purpose::Nothing)?;
        }
        self.moves.clear();
        self.wanted = None;
        self.is_seen = false;
        self.owner = Owner::default();
        self.again = None;
        Ok(())
    }

    /// Asks the server for the console that is wanted.
    fn attach(&mut self) -> Result<(), Left> {
        let Some((machine, view, _)) = &self.wanted else { return Ok(()) };
        let (machine, view) = (machine.clone(), *view);
        let wish = if self.watches { Wish::Watch } else { Wish::Own };
        let attach = Command::Attach { machine, view, wish, tail: TAIL, pictures: false };
        self.send(attach, Purpose::Attach)
    }

    /// Returns whether the page may type, and tells the person if it may not.
    fn may_type(&self, out: &mut Vec<Message>, tells: bool) -> bool {
        let may = self.is_seen && self.owner.input;
        let is_log = matches!(self.wanted, Some((_, View::Log, _)));
        if !may && tells && self.wanted.is_some() && !is_log {
            out.push(note(if self.is_seen {
                "you look on; \"Type here\" lets you type"
            } else {
                "there is no connection, and this key is lost"
            }));
        }
        may
    }

    fn type_events(&mut self, events: &[KeyEvent], out: &mut Vec<Message>) -> Result<(), Left> {
        match &mut self.wanted {
            Some((_, _, Picture::Screen(_))) => {
                let keys: Vec<_> = events
                    .iter()
                    .flat_map(|event| numbered(&screens::key_changes(event)))
                    .collect();
                self.type_keys(&keys, out)
            }
            Some((_, _, Picture::Terminal(terminal))) => {
                let application = terminal.emulator.application_cursor();
                terminal.emulator.scroll(isize::MIN);
                terminal.has_changed = true;
                let typed: Vec<_> =
                    events.iter().flat_map(|event| bytes(event, application)).collect();
                self.tell_if_lost(&typed, Typing::add_bytes, out)
            }
            None => Ok(()),
        }
    }

    fn type_keys(&mut self, keys: &[(u8, bool)], out: &mut Vec<Message>) -> Result<(), Left> {
        let Some((_, _, Picture::Screen(screen))) = &self.wanted else { return Ok(()) };
        screen.hurry();
        self.tell_if_lost(keys, Typing::add_keys, out)
    }

    fn tell_if_lost<T>(
        &mut self,
        typed: &[T],
        add: fn(&mut Typing, &[T]) -> bool,
        out: &mut Vec<Message>,
    ) -> Result<(), Left> {
        if !add(&mut self.typing, typed) {
            out.push(note("the guest takes no more, and this is lost"));
        }
        self.send_typed()
    }

    /// Adds changes of the mouse. Of movements that wait, only the sum, or the last place, matters.
    fn move_pointer(&mut self, changes: &[PointerChange]) -> Result<(), Left> {
        let Some((_, _, Picture::Screen(screen))) = &self.wanted else { return Ok(()) };
        screen.hurry();
        for change in changes {
            let has_room = self.moves.len() < CHANGES_MAX;
            match (self.moves.last_mut(), change) {
                (Some(PointerChange::By(x, y)), PointerChange::By(right, down)) => {
                    (*x, *y) = (x.saturating_add(*right), y.saturating_add(*down));
                }
                (Some(last @ PointerChange::To(..)), PointerChange::To(..)) => *last = *change,
                _ if has_room => self.moves.push(*change),
                _ => {}
            }
        }
        self.send_moves()
    }

    fn send_moves(&mut self) -> Result<(), Left> {
        if self.moves.is_empty() || self.waits_for(Purpose::Pointer) {
            return Ok(());
        }
        let changes = mem::take(&mut self.moves);
        self.send(Command::Pointer { changes }, Purpose::Pointer)
    }

    /// Types what waits, if nothing is on its way.
    fn send_typed(&mut self) -> Result<(), Left> {
        if self.commands.is_some()
            && let Some(command) = self.typing.next()
        {
            self.send(command, Purpose::Typing)?;
        }
        Ok(())
    }

    fn send(&mut self, command: Command, purpose: Purpose) -> Result<(), Left> {
        let Some(commands) = &self.commands else { return Ok(()) };
        match commands.try_send(command) {
            Ok(()) => {
                self.sent += 1;
                self.purposes.insert(self.sent, purpose);
                Ok(())
            }
            Err(tokio::sync::mpsc::error::TrySendError::Full(_)) => Err(Left::TooMuch),
            // The connection has ended, which will be said.
            Err(tokio::sync::mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }

    fn waits_for(&self, purpose: Purpose) -> bool {
        self.purposes.values().any(|other| *other == purpose)
    }

    /// Takes what the server of consoles says.
    pub(super) fn take(&mut self, incoming: Incoming, out: &mut Vec<Message>) -> Result<(), Left> {
        match incoming {
            Incoming::Connected(commands) => {
                self.commands = Some(commands);
                self.sent = 0;
                self.purposes.clear();
                self.typing.forget();
                self.moves.clear();
                self.attach()?;
            }
            Incoming::Gone(reason) => {
                self.commands = None;
                self.is_seen = false;
                self.owner = Owner::default();
                // The next server begins a log again, and goes on with a serial line.
                if let Some((_, View::Log, Picture::Terminal(terminal))) = &mut self.wanted {
                    terminal.emulator = Emulator::new(self.size, true);
                }
                out.push(text(&json!({ "is": "gone", "text": format!("{reason}; trying again") })));
            }
            Incoming::Message(Heard::Answer(number, answer)) => {
                if let Some(purpose) = self.purposes.remove(&number) {
                    self.answered(purpose, answer, out)?;
                }
            }
            // What comes before the answer belongs to the console before.
            Incoming::Message(_) if !self.is_seen => {}
            Incoming::Message(Heard::Output { bytes, lost }) => {
                if lost > 0 {
                    out.push(note(&format!("{lost} bytes were too old to be kept")));
                }
                if let Some((_, _, Picture::Terminal(terminal))) = &mut self.wanted {
                    terminal.emulator.process(&bytes);
                    terminal.has_changed = true;
                }
            }
            Incoming::Message(Heard::Event(event, data)) => {
                if event == "OWNER" {
                    self.owner = serde_json::from_value(data).unwrap_or_default();
                    self.tell_owner(out);
                }
            }
        }
        Ok(())
    }

    fn answered(
        &mut self,
        purpose: Purpose,
        answer: Result<Value, String>,
        out: &mut Vec<Message>,
    ) -> Result<(), Left> {
        match (purpose, answer) {
            // A later wish is on its way.
            (Purpose::Attach, _) if self.waits_for(Purpose::Attach) => {}
            (Purpose::Attach | Purpose::Own, Ok(owner)) if self.wanted.is_some() => {
                self.is_seen |= purpose == Purpose::Attach;
                self.owner = serde_json::from_value(owner).unwrap_or_default();
                self.tell_owner(out);
            }
            (Purpose::Attach, Err(reason)) => {
                // A server that has just begun learns of its machines in a moment.
                out.push(text(&json!({ "is": "gone", "text": reason })));
                self.again = Some(Instant::now() + AGAIN);
            }
            (Purpose::Typing, taken) => {
                if let Err(reason) = &taken {
                    out.push(note(reason));
                }
                let is_taken = taken.map_or(true, |answer| answer["taken"] != 0);
                self.typing.answered(is_taken);
                if is_taken {
                    self.send_typed()?;
                } else {
                    self.again = Some(Instant::now() + AGAIN);
                }
            }
            (Purpose::Pointer, _) => self.send_moves()?,
            (_, Err(reason)) => out.push(note(&reason)),
            (_, Ok(_)) => {}
        }
        Ok(())
    }

    fn tell_owner(&self, out: &mut Vec<Message>) {
        if let Some((machine, view, _)) = &self.wanted {
            let Owner { input, owner } = self.owner;
            out.push(text(&json!({
                "is": "seen", "machine": machine, "view": view, "input": input, "owner": owner,
            })));
        }
    }
}
