//! The list on the terminal, with keys for power.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use ratatui_core::backend::Backend;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::event::{
    self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers,
};
use ring3_display::tty::RawMode;
use ring3_supervisor::client::Client;
use ring3_supervisor::command::Command;
use ring3_supervisor::definition::Name;
use ring3_supervisor::place::Place;

use super::table;
use super::{FIRST, Options, sample};
use crate::error::Error;
use crate::rates::Sample;
use crate::terminal::render_status;

/// Things that wait to be looked at.
const WAITING: usize = 8;
/// How long a note stays.
const NOTE: Duration = Duration::from_secs(5);
/// The pause before the supervisor is looked for again.
const AGAIN: Duration = Duration::from_millis(500);

const HELP: &str = "s start, p pause, o power off, k kill, q leave ";

/// Something that has happened.
enum Incoming {
    Terminal(Event),
    Sample(Sample),
    /// Something is to be told to the person.
    Note(String),
}

/// Shows the list until the person leaves.
pub(super) fn run(options: &Options, client: Client) -> Result<(), Error> {
    let restored_at_the_end = RawMode::enter_full_screen().map_err(Error::Terminal)?;
    let (incoming, events) = mpsc::sync_channel(WAITING);
    let (commands, to_execute) = mpsc::channel();
    let (place, delay) = (options.place.clone(), options.delay);
    let for_samples = incoming.clone();
    start("samples", move || take_samples(&place, client, delay, &for_samples))?;
    let (place, for_notes) = (options.place.clone(), incoming.clone());
    start("commands", move || execute(&place, &to_execute, &for_notes))?;
    start("terminal", move || {
        while let Ok(event) = event::read() {
            if incoming.send(Incoming::Terminal(event)).is_err() {
                return;
            }
        }
    })?;
    let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).map_err(Error::Terminal)?;
    let top = Top {
        terminal,
        commands,
        before: None,
        now: None,
        chosen: None,
        asked: None,
        note: None,
        left: options.times,
    };
    let ended = top.run(&events).map_err(Error::Terminal);
    drop(restored_at_the_end);
    ended
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    thread::Builder::new().name(name.into()).spawn(run).map(drop).map_err(Error::Host)
}

/// Takes samples until nobody listens any more.
fn take_samples(place: &Place, client: Client, delay: Duration, to: &SyncSender<Incoming>) {
    let (mut client, mut pause) = (Some(client), FIRST.min(delay));
    loop {
        let taken = match &mut client {
            Some(client) => sample(client),
            None => Client::connect(place).map_err(Error::from).and_then(|mut new| {
                let taken = sample(&mut new);
                client = Some(new);
                taken
            }),
        };
        let incoming = match taken {
            Ok(sample) => Incoming::Sample(sample),
            Err(error) => {
                (client, pause) = (None, AGAIN);
                Incoming::Note(format!("{error}; trying again"))
            }
        };
        if to.send(incoming).is_err() {
            return;
        }
        thread::sleep(pause);
        pause = delay;
    }
}

/// Executes commands, each by a connection of its own: the supervisor may have been replaced.
fn execute(place: &Place, commands: &Receiver<(String, Command)>, to: &SyncSender<Incoming>) {
    for (what, command) in commands {
        let done = Client::connect(place).and_then(|mut client| client.execute(&command));
        let note = match done {
            Ok(_) => format!("{what}: done"),
            Err(error) => error.to_string(),
        };
        if to.send(Incoming::Note(note)).is_err() {
            return;
        }
    }
}

/// See the module.
struct Top<B: Backend> {
    terminal: Terminal<B>,
    commands: Sender<(String, Command)>,
    before: Option<Sample>,
    now: Option<Sample>,
    /// The part that is marked.
    chosen: Option<Name>,
    /// What the person was asked to confirm.
    asked: Option<(String, Command)>,
    note: Option<(String, Instant)>,
    /// How many lists are still to come.
    left: Option<u64>,
}

impl<B: Backend<Error: Send + Sync + 'static>> Top<B> {
    fn run(mut self, events: &Receiver<Incoming>) -> io::Result<()> {
        loop {
            self.draw()?;
            if self.left == Some(0) {
                return Ok(());
            }
            let pause = self
                .note
                .as_ref()
                .map_or(NOTE, |(_, until)| until.saturating_duration_since(Instant::now()));
            match events.recv_timeout(pause) {
                Ok(Incoming::Terminal(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    if self.key(&key) {
                        return Ok(());
                    }
                }
                Ok(Incoming::Terminal(_)) => {}
                Ok(Incoming::Sample(sample)) => {
                    self.before = self.now.replace(sample);
                    if self.before.is_some() {
                        self.left = self.left.map(|left| left.saturating_sub(1));
                    }
                }
                Ok(Incoming::Note(note)) => self.note = Some((note, Instant::now() + NOTE)),
                Err(RecvTimeoutError::Timeout) => self.note = None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// Returns the names of all parts, as they are listed.
    fn names(&self) -> Vec<Name> {
        let parts = self.now.iter().flat_map(|sample| &sample.parts);
        parts.map(|part| part.status.name.clone()).collect()
    }

    /// Returns the place of the marked part in the list.
    fn place(&self) -> usize {
        let chosen = self.chosen.as_ref();
        self.names().iter().position(|name| Some(name) == chosen).unwrap_or(0)
    }

    /// Takes a key. Returns whether the person leaves.
    fn key(&mut self, event: &KeyEvent) -> bool {
        let key = event.code;
        if let Some((what, command)) = self.asked.take() {
            if matches!(key, KeyCode::Char('y' | 'Y')) {
                self.send(what, command);
            }
            return false;
        }
        let (names, place) = (self.names(), self.place());
        let last = names.len().saturating_sub(1);
        let to = match key {
            KeyCode::Up => place.saturating_sub(1),
            KeyCode::Down => (place + 1).min(last),
            KeyCode::Home => 0,
            KeyCode::End => last,
            KeyCode::Esc | KeyCode::Char('q') => return true,
            KeyCode::Char('c') if event.modifiers == KeyModifiers::CONTROL => return true,
            KeyCode::Char(letter) => {
                if let Some(name) = names.get(place).cloned() {
                    self.order(letter, name);
                }
                return false;
            }
            _ => return false,
        };
        self.chosen = names.get(to).cloned();
        false
    }

    /// Executes what the key `letter` means. What ends a part is confirmed first.
    fn order(&mut self, letter: char, name: Name) {
        let what = |act: &str| format!("{act} {name}");
        match letter {
            's' => self.send(what("start"), Command::Start { name }),
            'p' => self.send(what("pause"), Command::Pause { name }),
            'o' => self.asked = Some((what("power off"), Command::Stop { name, wait: false })),
            'k' => self.asked = Some((what("kill"), Command::Kill { name })),
            _ => {}
        }
    }

    fn send(&mut self, what: String, command: Command) {
        // The receiver lives as long as the process.
        let _ = self.commands.send((what, command));
    }

    fn draw(&mut self) -> io::Result<()> {
        let lines = match (&self.before, &self.now) {
            (Some(before), Some(now)) => table::lines(before, now),
            (None, Some(now)) => table::lines(now, now),
            (_, None) => vec![table::HEAD.to_owned()],
        };
        let (chosen, status, last) = (self.place(), self.status(), self.last_end());
        let colour = if self.asked.is_some() { Color::Yellow } else { Color::Cyan };
        let drawn = self.terminal.draw(|frame| {
            let whole = frame.area();
            // Below the list is what there is no room for, and our line.
            let area = Rect { height: whole.height.saturating_sub(2), ..whole };
            render(&lines, chosen, area, frame.buffer_mut());
            if whole.height > 1 {
                let width = usize::from(whole.width);
                frame.buffer_mut().set_stringn(0, whole.bottom() - 2, &last, width, Style::new());
            }
            if whole.height > 0 {
                render_status(&status, colour, whole, frame.buffer_mut());
            }
        });
        drawn.map_err(io::Error::other)?;
        Ok(())
    }

    /// Returns why the marked part has ended the last time.
    fn last_end(&self) -> String {
        let part = self.now.as_ref().and_then(|sample| sample.parts.get(self.place()));
        let ended = part.and_then(|part| Some((&part.status.name, part.status.ended.as_ref()?)));
        ended.map_or_else(String::new, |(name, reason)| {
            table::harmless(&format!("{name} has ended last: {reason}"))
        })
    }

    fn status(&self) -> (String, String) {
        if let Some((what, _)) = &self.asked {
            return (format!(" {what}? y, or any other key"), String::new());
        }
        let parts = self.now.iter().flat_map(|sample| &sample.parts);
        let (machines, servers): (Vec<_>, Vec<_>) =
            parts.partition(|part| part.status.kind == "machine");
        let left = format!(" machines {}, servers {}", machines.len(), servers.len());
        let right = self.note.as_ref().map_or(HELP, |(note, _)| note);
        (left, right.to_owned())
    }
}

/// Draws the list, with a mark at the part `chosen`, which is visible.
fn render(lines: &[String], chosen: usize, area: Rect, buffer: &mut Buffer) {
    let Some((head, parts)) = lines.split_first() else { return };
    let width = usize::from(area.width);
    let room = usize::from(area.height.saturating_sub(1));
    if area.height > 0 {
        let style = Style::new().add_modifier(Modifier::BOLD);
        buffer.set_stringn(area.x, area.y, head, width, style);
    }
    let first = (chosen + 1).saturating_sub(room);
    for (row, line) in parts.iter().enumerate().skip(first).take(room) {
        let modifier = if row == chosen { Modifier::REVERSED } else { Modifier::empty() };
        let y = area.y + 1 + (row - first) as u16;
        let line = format!("{line:width$}");
        buffer.set_stringn(area.x, y, line, width, Style::new().add_modifier(modifier));
    }
}
