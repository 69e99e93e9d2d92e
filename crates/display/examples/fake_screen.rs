//! A moving screen without a machine, to try the displays by hand.
//!
//! ```text
//! cargo run --example fake_screen -- terminal
//! cargo run --example fake_screen -- vnc :7
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ring3_core::display::{Cell, Picture, Pixels, TextScreen};
use ring3_core::input::DeviceInput;
use ring3_display::terminal::{self, Ending};
use ring3_display::vnc::{self, Listener};
use ring3_display::{Ended, Machine};

const COLUMNS: usize = 80;
const ROWS: usize = 25;
/// Pixels of a character.
const WIDTH: usize = 9;
const HEIGHT: usize = 16;

/// A screen of all characters, with a line that shows the last inputs and a bar that moves. Every press of
/// F10 changes between text and graphics.
struct FakeScreen {
    started: Instant,
    last_inputs: Mutex<Vec<String>>,
    graphics: AtomicBool,
}

impl FakeScreen {
    fn new() -> FakeScreen {
        FakeScreen {
            started: Instant::now(),
            last_inputs: Mutex::default(),
            graphics: AtomicBool::new(false),
        }
    }

    fn text(&self) -> TextScreen {
        const COLOURS: [u32; 4] = [0xaaaaaa, 0xffff55, 0x55ff55, 0xff5555];
        let blank =
            Cell { character: b' ', foreground: 0xaaaaaa, background: 0x0000aa, blinks: false };
        let mut cells = vec![blank; COLUMNS * ROWS];
        for (code, cell) in (0..=255).zip(cells.iter_mut().skip(2 * COLUMNS)) {
            cell.character = code;
            cell.foreground = COLOURS[usize::from(code) / 64];
        }
        let mut write = |row: usize, text: &str| {
            for (cell, character) in cells[row * COLUMNS..].iter_mut().zip(text.bytes()) {
                cell.character = character;
            }
        };
        write(0, "ring3: no machine, only its screen. F10 changes to graphics and back.");
        let inputs = self.last_inputs.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, input) in (8..).zip(inputs.iter()) {
            write(row, input);
        }
        let bar = self.started.elapsed().as_millis() as usize / 50 % COLUMNS;
        cells[20 * COLUMNS + bar].background = 0xaa0000;
        let pixels = pixels(&cells);
        TextScreen { columns: COLUMNS, rows: ROWS, cells, cursor: Some((bar, 22)), pixels }
    }

    fn picture(&self) -> Picture {
        if !self.graphics.load(Ordering::Relaxed) {
            return Picture::Text(self.text());
        }
        let moved = self.started.elapsed().as_millis() as usize / 10;
        let (width, height) = (640, 480);
        let colours = (0..width * height)
            .map(|place| {
                let (x, y) = (place % width + moved, place / width);
                (((x & 255) << 16) | ((y & 255) << 8) | (((x ^ y) & 64) * 2)) as u32
            })
            .collect();
        Picture::Pixels(Pixels { width, height, colours })
    }
}

/// Draws cells as blocks of colour, since there is no font here. The foreground is a bar whose width depends
/// on the code.
fn pixels(cells: &[Cell]) -> Pixels {
    let (width, height) = (COLUMNS * WIDTH, ROWS * HEIGHT);
    let colours = (0..width * height)
        .map(|place| {
            let (x, y) = (place % width, place / width);
            let cell = cells[y / HEIGHT * COLUMNS + x / WIDTH];
            let is_foreground = cell.character >> (x % WIDTH).min(7) & 1 != 0 && y % 4 < 2;
            if is_foreground { cell.foreground } else { cell.background }
        })
        .collect();
    Pixels { width, height, colours }
}

impl Machine for FakeScreen {
    fn picture(&self) -> Result<Option<Picture>, Ended> {
        Ok(Some(FakeScreen::picture(self)))
    }

    fn send(&self, input: DeviceInput) {
        if let DeviceInput::Key { key, pressed: true } = input
            && key.0 == 0x44
        {
            self.graphics.fetch_xor(true, Ordering::Relaxed);
        }
        let mut inputs = self.last_inputs.lock().unwrap_or_else(PoisonError::into_inner);
        inputs.push(format!("{input:x?}"));
        if inputs.len() > 10 {
            inputs.remove(0);
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = Arc::new(FakeScreen::new());
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["terminal"] => match terminal::run(&*machine)? {
            Ending::Quit | Ending::MachineEnded => {}
        },
        ["vnc", address] => {
            let listener = Listener::bind(&address.parse()?)?;
            println!("serving VNC at {}; end it with Ctrl-C", listener.address());
            let _server = vnc::serve(listener, machine)?;
            loop {
                std::thread::park();
            }
        }
        _ => return Err("usage: fake_screen terminal | vnc ADDRESS".into()),
    }
    Ok(())
}
