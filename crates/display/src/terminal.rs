//! Shows the screen in the terminal, like QEMU's curses display.
//!
//! Text is shown as text, in the guest's colours where the terminal has them, and graphics as blocks with two
//! pixels in a character. Of a screen that is larger than the terminal, a part is shown: the one with the
//! cursor, or the one to which the person has moved.
//!
//! All keys except those of [`crate::escape`] go to the guest. A terminal does not report releases, so each
//! key is pressed and released at once, together with the modifiers that it needs.

mod cp437;
mod keys;
mod screen;
mod window;

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use ratatui_core::backend::Backend;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::terminal::Terminal;
use ratatui_core::widgets::Widget;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind};
use ring3_core::display::Picture;
use ring3_core::input::{DeviceInput, Key};

use crate::escape::{self, ESCAPE, EscapeKeys, HELP};
use crate::rate::Rate;
use crate::tty::RawMode;
use crate::{Ended, Machine};
use keys::Stroke;
use screen::{Colours, Note, PictureSize, Screen, size_of};
use window::Window;

/// The time between two keys that are sent to the machine. It gives the guest time to fetch them when a
/// person pastes text, since a keyboard's buffer is small.
const SPACING: Duration = Duration::from_millis(10);
/// How long a hint is shown.
const HINT: Duration = Duration::from_secs(3);
/// The keys that exist only with a screen, in addition to those of [`crate::escape`].
const MORE_HELP: &str = concat!(
    "  Ctrl-A d       send Ctrl-Alt-Delete\n",
    "  Ctrl-A arrow   move over a screen that is larger than the terminal\n",
);

/// Why the display has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The person wants to end the run.
    Quit,
    /// The machine has ended.
    MachineEnded,
}

/// Shows the screen of `machine` in the terminal at standard input and output, and sends the keys that are
/// typed there, until the machine ends or the person ends it. Then the terminal is restored. The caller must
/// wait for this function before the process ends.
///
/// # Errors
///
/// Fails with [`io::ErrorKind::NotFound`] if standard input or output is no terminal, or with the terminal's
/// own error.
pub fn run(machine: &dyn Machine) -> io::Result<Ending> {
    let _restored_at_the_end = RawMode::enter_full_screen()?;
    let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
    Display::new(machine, terminal).run()
}

/// Draws `picture` into `area` of a terminal that also shows other things. Of a screen that is larger, the part with the
/// cursor is shown. Returns where in `area` the cursor is.
pub fn render(picture: &Picture, area: Rect, buffer: &mut Buffer) -> Option<(u16, u16)> {
    let mut window = Window::default();
    let room = (usize::from(area.width), usize::from(area.height));
    if let Picture::Text(text) = picture {
        window.follow((text.columns, text.rows), room, text.cursor);
    }
    let screen = Screen {
        picture: Some(picture),
        from: window.corner(),
        colours: Colours::of_terminal(),
        note: &Note::default(),
    };
    screen.render(area, buffer);
    screen.cursor(room)
}

/// Returns the keys of a US keyboard that a person presses (true) and releases for `event`, in their order. There are
/// none for a character that the keyboard lacks.
pub fn key_changes(event: &KeyEvent) -> Vec<(Key, bool)> {
    keys::stroke(event).map_or_else(Vec::new, |stroke| stroke.changes().collect())
}

/// Returns the keys for Ctrl-Alt-Delete.
pub fn control_alt_delete() -> Vec<(Key, bool)> {
    Stroke::control_alt_delete().changes().collect()
}

/// The sizes of a picture and of the terminal in characters.
type Sizes = (Option<PictureSize>, (usize, usize));

/// The display that [`run`] runs.
struct Display<'a, B: Backend> {
    machine: &'a dyn Machine,
    terminal: Terminal<B>,
    colours: Colours,
    escape: EscapeKeys,
    /// The picture that is shown.
    picture: Option<Picture>,
    window: Window,
    note: Note,
    /// When the note disappears by itself.
    note_ends: Option<Instant>,
    /// The sizes of the picture and of the terminal for which the last hint was shown.
    hinted: Option<Sizes>,
    /// Whether something other than the picture has changed.
    redraw: bool,
    rate: Rate,
}

impl<'a, B: Backend<Error: Send + Sync + 'static>> Display<'a, B> {
    fn new(machine: &'a dyn Machine, terminal: Terminal<B>) -> Self {
        Display {
            machine,
            terminal,
            colours: Colours::of_terminal(),
            escape: EscapeKeys::default(),
            picture: None,
            window: Window::default(),
            note: Note::default(),
            note_ends: None,
            hinted: None,
            redraw: true,
            rate: Rate::default(),
        }
    }

    fn run(mut self) -> io::Result<Ending> {
        loop {
            let looked = Instant::now();
            match self.machine.picture() {
                Ok(picture) => self.show(picture)?,
                Err(Ended) => return Ok(Ending::MachineEnded),
            }
            // At least one event is taken between two looks, however long a look takes.
            loop {
                let left = self.rate.interval().saturating_sub(looked.elapsed());
                if !event::poll(left)? {
                    break;
                }
                if let Some(ending) = self.event(&event::read()?) {
                    return Ok(ending);
                }
                self.rate.hurry();
                if left.is_zero() {
                    break;
                }
            }
        }
    }

    /// Draws `picture` if it or anything else has changed.
    fn show(&mut self, picture: Option<Picture>) -> io::Result<()> {
        let changed = picture != self.picture;
        self.rate.looked(changed);
        if self.note_ends.is_some_and(|ends| Instant::now() >= ends) {
            self.set_note(Note::default(), None);
        }
        let redraw = std::mem::take(&mut self.redraw);
        if !changed && !redraw {
            return Ok(());
        }
        let area = self.terminal.size().map_err(io::Error::other)?;
        let room = (usize::from(area.width), usize::from(area.height));
        let sizes = (size_of(picture.as_ref()), room);
        if self.hinted.replace(sizes) != Some(sizes) {
            self.hint(picture.as_ref(), room);
        }
        self.picture = picture;
        if let Some(Picture::Text(text)) = &self.picture {
            self.window.follow((text.columns, text.rows), room, text.cursor);
        }
        let screen = Screen {
            picture: self.picture.as_ref(),
            from: self.window.corner(),
            colours: self.colours,
            note: &self.note,
        };
        self.redraw = false;
        let drawn = self.terminal.draw(|frame| {
            frame.render_widget(&screen, frame.area());
            if let Some((x, y)) = screen.cursor(room) {
                frame.set_cursor_position(Position { x, y });
            }
        });
        drawn.map_err(io::Error::other)?;
        Ok(())
    }

    /// Shows a hint about the part of the screen that is not visible.
    fn hint(&mut self, picture: Option<&Picture>, (columns, rows): (usize, usize)) {
        let hint = match picture {
            None => "the screen is off".to_owned(),
            Some(Picture::Pixels(pixels)) => {
                format!("graphics mode {}x{}", pixels.width, pixels.height)
            }
            Some(Picture::Text(text)) if text.columns > columns || text.rows > rows => {
                format!(
                    "{}x{} characters in {columns}x{rows}; Ctrl-A h helps",
                    text.columns, text.rows
                )
            }
            Some(Picture::Text(_)) => {
                // A hint about a smaller screen is no longer true; help stays.
                if self.note_ends.is_some() {
                    self.set_note(Note::default(), None);
                }
                return;
            }
        };
        self.set_note(Note::line(&hint), Some(HINT));
    }

    fn set_note(&mut self, note: Note, stays: Option<Duration>) {
        self.note = note;
        self.note_ends = stays.map(|stays| Instant::now() + stays);
        self.redraw = true;
    }

    /// Handles an event of the terminal.
    fn event(&mut self, event: &Event) -> Option<Ending> {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.key(key),
            Event::Resize(..) => {
                self.redraw = true;
                None
            }
            _ => None,
        }
    }

    fn key(&mut self, event: &KeyEvent) -> Option<Ending> {
        if self.note_ends.is_none() && !self.note.is_empty() {
            // Help stays until the next key.
            self.set_note(Note::default(), None);
        }
        let Some(byte) = keys::byte(event) else {
            if self.escape.take() {
                self.scroll(event.code);
            } else if let Some(stroke) = keys::stroke(event) {
                self.send(&stroke);
            }
            return None;
        };
        match self.escape.key(byte) {
            escape::Key::Guest(ESCAPE) => self.send(&Stroke::control_a()),
            escape::Key::Guest(_) => {
                if let Some(stroke) = keys::stroke(event) {
                    self.send(&stroke);
                }
            }
            escape::Key::Help => self.set_note(Note::lines(&format!("{HELP}{MORE_HELP}")), None),
            escape::Key::Other(b'd' | b'D') => self.send(&Stroke::control_alt_delete()),
            escape::Key::Nothing | escape::Key::Other(_) => {}
            escape::Key::Quit => return Some(Ending::Quit),
        }
        None
    }

    fn scroll(&mut self, arrow: KeyCode) {
        match arrow {
            KeyCode::Left => self.window.scroll(-1, 0),
            KeyCode::Right => self.window.scroll(1, 0),
            KeyCode::Up => self.window.scroll(0, -1),
            KeyCode::Down => self.window.scroll(0, 1),
            _ => return,
        }
        self.redraw = true;
    }

    fn send(&self, stroke: &Stroke) {
        for (key, pressed) in stroke.changes() {
            self.machine.send(DeviceInput::Key { key, pressed });
        }
        thread::sleep(SPACING);
    }
}

#[cfg(test)]
mod tests {
    use ratatui_core::backend::TestBackend;
    use ring3_core::display::{Cell, Pixels, TextScreen};

    use super::*;

    struct NoMachine;

    impl Machine for NoMachine {
        fn picture(&self) -> Result<Option<Picture>, Ended> {
            Err(Ended)
        }

        fn send(&self, _: DeviceInput) {}
    }

    #[test]
    fn a_terminal_that_has_grown_is_not_called_too_small() {
        let space = Cell { character: b' ', foreground: 0xaa_aaaa, background: 0, blinks: false };
        let text = TextScreen {
            columns: 80,
            rows: 25,
            cells: vec![space; 80 * 25],
            cursor: None,
            pixels: Pixels { width: 0, height: 0, colours: Vec::new() },
        };
        let terminal = Terminal::new(TestBackend::new(60, 15)).unwrap();
        let mut display = Display::new(&NoMachine, terminal);
        let mut show = |columns, rows| {
            display.terminal.backend_mut().resize(columns, rows);
            display.event(&Event::Resize(columns, rows));
            display.show(Some(Picture::Text(text.clone()))).unwrap();
            display.terminal.backend().to_string()
        };
        assert!(show(60, 15).contains("80x25 characters in 60x15"));
        assert!(show(70, 20).contains("80x25 characters in 70x20"));
        let shown = show(80, 25);
        assert!(!shown.contains("characters"), "{shown}");
        assert!(show(79, 25).contains("80x25 characters in 79x25"));
    }
}
