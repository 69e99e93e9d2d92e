//! All consoles in one terminal, one at a time.
//!
//! The last line is ours: it names the machine, and no guest can draw there. Keys go to the guest, but for the prefix key
//! and the key after it.

pub(crate) mod emulator;
pub(crate) mod keys;
mod link;
mod overlay;
mod prefix;
pub(crate) mod typing;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ratatui_core::backend::Backend;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::{Color, Style};
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::event::{Event, KeyEventKind};
use ring3_core::display::Picture;
use ring3_display::terminal as screens;
use ring3_display::tty::RawMode;
use ring3_supervisor::client::Client as Supervisor;
use ring3_supervisor::command::{Command as Order, State, Status};
use ring3_supervisor::definition::Name;
use ring3_supervisor::place::Place;
use serde_json::Value;

use crate::client::Message;
use crate::error::Error;
use crate::picture::picture;
use crate::protocol::{Command, Machine, Owner, View, Wish};
use emulator::Emulator;
use link::Incoming;
use overlay::Overlay;
pub(crate) use overlay::word;
pub use prefix::Prefix;
use typing::Typing;

/// Messages that wait to be looked at. There are few, so that keys are soon found behind them.
const MESSAGES: usize = 4;
/// The shortest time between two pictures.
const FRAME: Duration = Duration::from_millis(20);
/// How often the list of machines is asked for.
const LOOK: Duration = Duration::from_secs(1);
/// The same while the console that is wanted is not there, or the guest takes no keys.
const LOOK_SOON: Duration = Duration::from_millis(100);
/// How long a note stays.
const NOTE: Duration = Duration::from_secs(3);
/// What a new console shows of what was said before.
const TAIL: u32 = 64 << 10;

/// What a person wants to see.
#[derive(Debug, Clone)]
pub struct Options {
    /// The place of the supervisor.
    pub place: Place,
    /// The machine. By default the first one.
    pub machine: Option<Name>,
    /// Its console. By default the first serial line, or the screen if there is none.
    pub view: Option<View>,
    /// Whether the person only looks on.
    pub watches: bool,
    /// The prefix key.
    pub prefix: Prefix,
}

/// Shows consoles until the person leaves.
pub fn run(options: &Options) -> Result<(), Error> {
    let machine = first_machine(options)?;
    // A person at a terminal learns here, and not on a full screen, that there is no server.
    crate::client::find(&options.place)?;
    let restored_at_the_end = RawMode::enter_full_screen().map_err(Error::Terminal)?;
    let (incoming, events) = mpsc::sync_channel(MESSAGES);
    link::read_terminal(incoming.clone()).map_err(Error::Host)?;
    link::stay_connected(options.place.clone(), options.watches, incoming).map_err(Error::Host)?;
    let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).map_err(Error::Terminal)?;
    let ended = App::new(options, machine, terminal).run(&events).map_err(Error::Terminal);
    drop(restored_at_the_end);
    ended
}

/// Returns the machine that is wanted, or the first one that runs, or the first one.
fn first_machine(options: &Options) -> Result<Option<Name>, Error> {
    let parts = Supervisor::connect(&options.place)?.execute(&Order::Query { name: None })?;
    let parts: Vec<Status> = serde_json::from_value(parts).unwrap_or_default();
    let machines: Vec<_> = parts.into_iter().filter(|part| part.kind == "machine").collect();
    let Some(wanted) = &options.machine else {
        let runs = machines.iter().find(|part| part.state == State::Running);
        return Ok(runs.or(machines.first()).map(|part| part.name.clone()));
    };
    let is_there = machines.iter().any(|part| part.name == *wanted);
    if is_there { Ok(Some(wanted.clone())) } else { Err(Error::NoMachine(wanted.clone())) }
}

/// Why a command was sent.
enum Purpose {
    Attach,
    Own,
    List,
    /// To type: the bytes or keys of which not all may have been taken.
    Typing,
    Nothing,
}

/// See the module.
struct App<B: Backend> {
    terminal: Terminal<B>,
    prefix: Prefix,
    watches: bool,
    machines: Vec<Machine>,
    /// The machine and the console that the person wants to see.
    wanted: Option<(Name, Option<View>)>,
    /// The console that the server shows.
    seen: Option<View>,
    /// The console of which the emulator shows something, if the server that told of it has died.
    left_behind: Option<(Name, View)>,
    owner: Owner,
    emulator: Emulator,
    picture: Option<(Picture, (usize, usize))>,
    overlay: Overlay,
    /// Whether the last key was the prefix.
    is_prefixed: bool,
    note: Option<(String, Instant)>,
    commands: Option<Sender<Command>>,
    sent: u64,
    purposes: BTreeMap<u64, Purpose>,
    typing: Typing,
    /// When the list is asked for next.
    look: Instant,
    drawn: Instant,
    is_dirty: bool,
    /// Whether nothing of the console that is seen has come yet.
    is_new: bool,
    leaves: bool,
}

impl<B: Backend<Error: Send + Sync + 'static>> App<B> {
    fn new(options: &Options, machine: Option<Name>, terminal: Terminal<B>) -> App<B> {
        let overlay = match machine {
            Some(_) => Overlay::None,
            None => Overlay::List { chosen: 0, typed: String::new() },
        };
        App {
            terminal,
            prefix: options.prefix,
            watches: options.watches,
            machines: Vec::new(),
            wanted: machine.map(|machine| (machine, options.view)),
            seen: None,
            left_behind: None,
            owner: Owner::default(),
            emulator: Emulator::new((80, 24), false),
            picture: None,
            overlay,
            is_prefixed: false,
            note: None,
            commands: None,
            sent: 0,
            purposes: BTreeMap::new(),
            typing: Typing::default(),
            look: Instant::now(),
            drawn: Instant::now(),
            is_dirty: true,
            is_new: false,
            leaves: false,
        }
    }

    fn run(mut self, events: &Receiver<Incoming>) -> io::Result<()> {
        self.draw()?;
        while !self.leaves {
            let next = if self.is_dirty { self.look.min(self.drawn + FRAME) } else { self.look };
            match events.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(incoming) => self.take(incoming),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if Instant::now() >= self.look {
                self.look_around();
            }
            if self.is_dirty && self.drawn.elapsed() >= FRAME {
                self.draw()?;
            }
        }
        Ok(())
    }

    /// Does what is due from time to time.
    fn look_around(&mut self) {
        let is_attached = self.seen.is_some() || self.wanted.is_none();
        let is_waiting = !is_attached || self.typing.is_waiting();
        self.look = Instant::now() + if is_waiting { LOOK_SOON } else { LOOK };
        self.is_dirty = true;
        self.send(Command::QueryConsoles {}, Purpose::List);
        self.send_typed();
    }

    fn take(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Terminal(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                self.key(&key);
            }
            Incoming::Terminal(Event::Resize(..)) => {
                // The server shrinks graphics.
                self.send_room();
            }
            Incoming::Terminal(_) => return,
            Incoming::Connected(commands) => {
                self.commands = Some(commands);
                self.sent = 0;
                self.purposes.clear();
                self.typing.forget();
                self.note = None;
                self.look = Instant::now();
            }
            Incoming::Gone(reason) => {
                self.commands = None;
                if let (Some((name, _)), Some(view)) = (&self.wanted, self.seen.take()) {
                    self.left_behind = Some((name.clone(), view));
                }
                self.owner = Owner::default();
                self.note = Some((format!("{reason}; trying again"), Instant::now() + NOTE));
            }
            Incoming::Message(message) => self.hear(message),
        }
        self.is_dirty = true;
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Answer(number, answer) => {
                if let Some(purpose) = self.purposes.remove(&number) {
                    self.answered(&purpose, answer);
                }
            }
            // What comes before the answer belongs to the console before.
            _ if self.seen.is_none() => {}
            Message::Output { bytes, lost } => {
                if lost > 0 {
                    self.tell(&format!("{lost} bytes were too old to be kept"));
                }
                self.emulator.process(&bytes);
                if std::mem::take(&mut self.is_new) {
                    // The person waits for it.
                    self.drawn = Instant::now().checked_sub(FRAME).unwrap_or(self.drawn);
                }
            }
            Message::Event(event, data) => match event.as_str() {
                "SCREEN" => self.picture = picture(data),
                "OWNER" => self.owner = serde_json::from_value(data).unwrap_or_default(),
                _ => {}
            },
        }
    }

    fn answered(&mut self, purpose: &Purpose, answer: Result<Value, String>) {
        match (purpose, answer) {
            (Purpose::List, Ok(list)) => {
                self.machines = serde_json::from_value(list).unwrap_or_default();
                if self.seen.is_none() && !self.is_attaching() {
                    self.attach();
                }
            }
            (Purpose::Attach, Ok(owner)) if !self.is_attaching() => {
                self.owner = serde_json::from_value(owner).unwrap_or_default();
                self.seen = self.view();
                self.picture = None;
                self.clear();
                self.send_room();
            }
            (Purpose::Own, Ok(owner)) => {
                self.owner = serde_json::from_value(owner).unwrap_or_default();
            }
            (Purpose::Typing, taken) => {
                if let Err(reason) = &taken {
                    self.tell(reason);
                }
                let is_taken = taken.map_or(true, |answer| answer["taken"] != 0);
                self.typing.answered(is_taken);
                if is_taken {
                    self.send_typed();
                } else {
                    self.look = self.look.min(Instant::now() + LOOK_SOON);
                }
            }
            (_, Err(reason)) => self.tell(&reason),
            (Purpose::Attach | Purpose::Nothing, Ok(_)) => {}
        }
    }

    /// Begins with an empty screen for the console that is seen now. What a serial line has said before its server died
    /// stays: the next server continues it.
    fn clear(&mut self) {
        self.is_new = true;
        let seen = self.wanted.as_ref().map(|(name, _)| name.clone()).zip(self.seen);
        let is_line = matches!(self.seen, Some(View::Serial(_)));
        if self.left_behind.take() != seen || !is_line {
            self.emulator = Emulator::new(self.room(), self.seen == Some(View::Log));
        }
    }

    /// Returns whether the answer to a wish to see a console is awaited.
    fn is_attaching(&self) -> bool {
        self.purposes.values().any(|purpose| matches!(purpose, Purpose::Attach))
    }

    fn tell(&mut self, note: &str) {
        self.note = Some((note.to_owned(), Instant::now() + NOTE));
        self.is_dirty = true;
    }

    fn send(&mut self, command: Command, purpose: Purpose) {
        let Some(commands) = &self.commands else { return };
        // If the connection has ended, this will be said.
        if commands.send(command).is_ok() {
            self.sent += 1;
            self.purposes.insert(self.sent, purpose);
        }
    }

    /// Types what waits, if nothing is on its way.
    fn send_typed(&mut self) {
        if self.commands.is_some()
            && let Some(command) = self.typing.next()
        {
            self.send(command, Purpose::Typing);
        }
    }

    fn send_room(&mut self) {
        let (columns, rows) = self.room();
        self.send(Command::Room { columns, rows: rows.saturating_mul(2) }, Purpose::Nothing);
    }

    /// Asks the server for the console that is wanted.
    fn attach(&mut self) {
        if let Some(command) = self.typing.rest() {
            self.send(command, Purpose::Nothing);
        }
        self.seen = None;
        let (Some((machine, _)), Some(view)) = (self.wanted.clone(), self.view()) else { return };
        if !self.machines.iter().any(|known| known.name == machine) {
            return;
        }
        let wish = if self.watches { Wish::Watch } else { Wish::Own };
        let attach = Command::Attach { machine, view, wish, tail: TAIL, pictures: true };
        self.send(attach, Purpose::Attach);
    }

    /// Returns the console that is wanted: by default a serial line.
    fn view(&self) -> Option<View> {
        let (machine, view) = self.wanted.as_ref()?;
        let known = self.machines.iter().find(|known| known.name == *machine)?;
        let has = |view: &View| known.consoles.iter().any(|console| console.view == *view);
        let usual = || known.consoles.first().map(|console| console.view);
        view.filter(has).or_else(usual)
    }

    /// Returns the columns and rows for the guest.
    fn room(&self) -> (u16, u16) {
        let size = self.terminal.size().unwrap_or_default();
        (size.width.max(1), size.height.saturating_sub(1).max(1))
    }

    fn draw(&mut self) -> io::Result<()> {
        self.drawn = Instant::now();
        self.is_dirty = false;
        if self.note.as_ref().is_some_and(|(_, until)| Instant::now() >= *until) {
            self.note = None;
        }
        self.emulator.resize(self.room());
        let status = self.status();
        let colour = if self.owner.input { Color::Cyan } else { Color::Gray };
        let (overlay, machines, prefix) = (&self.overlay, &self.machines, self.prefix);
        let (emulator, picture, seen) = (&self.emulator, &self.picture, self.seen);
        let is_left_behind = self.left_behind.is_some();
        let drawn = self.terminal.draw(|frame| {
            let whole = frame.area();
            let area = Rect { height: whole.height.saturating_sub(1), ..whole };
            let buffer = frame.buffer_mut();
            let mut cursor = None;
            if *overlay != Overlay::None {
                overlay::render(overlay, machines, prefix, area, buffer);
            } else if seen == Some(View::Screen) {
                if let Some((picture, _)) = picture {
                    cursor = screens::render(picture, area, buffer);
                } else {
                    let width = area.width.into();
                    buffer.set_stringn(0, 0, "(the screen is off)", width, Style::new());
                }
            } else if seen.is_some() || is_left_behind {
                cursor = emulator.render(area, buffer);
            }
            if whole.height > 0 {
                render_status(&status, colour, whole, buffer);
            }
            if let Some((x, y)) = cursor {
                frame.set_cursor_position(Position { x, y });
            }
        });
        drawn.map_err(io::Error::other)?;
        Ok(())
    }

    /// Returns the line that no guest can draw: what is seen, and what is to be known of it.
    fn status(&self) -> (String, String) {
        let Some((name, _)) = &self.wanted else {
            return (" no machine".to_owned(), self.hint());
        };
        let number = self.machines.iter().position(|machine| machine.name == *name);
        let state =
            number.map_or("not known".to_owned(), |number| word(self.machines[number].state));
        let number = number.map_or("-".to_owned(), |number| number.to_string());
        let view = self.seen.map_or("...".to_owned(), |view| view.to_string());
        let who = match self.owner {
            _ if self.seen == Some(View::Log) || self.seen.is_none() => String::new(),
            Owner { input: true, .. } => ", you type".to_owned(),
            Owner { owner: Some(process), .. } => format!(", process {process} types"),
            Owner { owner: None, .. } => ", you look on".to_owned(),
        };
        let back = match self.emulator.scrolled() {
            0 => String::new(),
            lines => format!(", {lines} lines back"),
        };
        (format!(" {number} {name} {view}: {state}{who}{back}"), self.hint())
    }

    fn hint(&self) -> String {
        match (&self.note, &self.overlay) {
            (Some((note, _)), _) => format!("{note} "),
            (None, Overlay::List { typed, .. }) if !typed.is_empty() => format!("{typed} "),
            _ if self.is_prefixed => format!("{} ... ", self.prefix),
            _ => format!("{} ? helps ", self.prefix),
        }
    }
}

/// Draws the last line, which is ours.
pub(crate) fn render_status(
    (left, right): &(String, String),
    colour: Color,
    whole: Rect,
    buffer: &mut Buffer,
) {
    let style = Style::new().fg(Color::Black).bg(colour);
    let width = usize::from(whole.width);
    let room = width.saturating_sub(left.chars().count() + 1);
    let right: String =
        right.chars().filter(|character| !character.is_control()).take(room).collect();
    let gap = width.saturating_sub(left.chars().count() + right.chars().count());
    let line = format!("{left}{:gap$}{right}", "");
    buffer.set_stringn(whole.x, whole.bottom() - 1, line, width, style);
}
