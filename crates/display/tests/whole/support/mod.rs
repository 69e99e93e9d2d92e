//! A machine that consists only of a screen, for the tests.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ring3_core::display::{Cell, Picture, Pixels, TextScreen};
use ring3_core::input::DeviceInput;
use ring3_display::{Ended, Machine};

/// How long to wait for an event that should happen at once, before the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A machine that shows the picture it is given and keeps the inputs that it receives.
#[derive(Debug, Default)]
pub(crate) struct FakeMachine {
    picture: Mutex<Option<Picture>>,
    after_a_key: Mutex<Option<Picture>>,
    inputs: Mutex<Vec<DeviceInput>>,
    looks: AtomicUsize,
    ended: AtomicBool,
}

impl FakeMachine {
    pub(crate) fn showing(picture: Picture) -> FakeMachine {
        let machine = FakeMachine::default();
        machine.show(picture);
        machine
    }

    pub(crate) fn show(&self, picture: Picture) {
        *self.picture.lock().unwrap_or_else(PoisonError::into_inner) = Some(picture);
    }

    /// Makes the picture change as soon as a key arrives.
    pub(crate) fn show_after_a_key(&self, picture: Picture) {
        *self.after_a_key.lock().unwrap_or_else(PoisonError::into_inner) = Some(picture);
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Returns how often the picture was asked for.
    pub(crate) fn looks(&self) -> usize {
        self.looks.load(Ordering::SeqCst)
    }

    /// Waits for the first `count` inputs.
    pub(crate) fn wait_for_inputs(&self, count: usize) -> Vec<DeviceInput> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if inputs.len() >= count {
                return inputs;
            }
            assert!(Instant::now() < deadline, "there are only these inputs: {inputs:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Machine for FakeMachine {
    fn picture(&self) -> Result<Option<Picture>, Ended> {
        if self.ended.load(Ordering::SeqCst) {
            return Err(Ended);
        }
        self.looks.fetch_add(1, Ordering::SeqCst);
        Ok(self.picture.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn send(&self, input: DeviceInput) {
        let next = self.after_a_key.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(picture) = next {
            self.show(picture);
        }
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner).push(input);
    }
}

/// Makes pixels that differ from each other.
pub(crate) fn pattern(width: usize, height: usize) -> Pixels {
    let colours = (0..width * height)
        .map(|place| {
            let (x, y) = (place % width, place / width);
            ((x * 255 / width) << 16 | (y * 255 / height) << 8 | (x ^ y) & 0xff) as u32
        })
        .collect();
    Pixels { width, height, colours }
}

/// Makes a text screen of 80 by 25 with these lines, bright yellow on blue, and the cursor behind the last
/// one.
pub(crate) fn text(lines: &[&str]) -> TextScreen {
    let blank = Cell { character: b' ', foreground: 0xffff55, background: 0x0000aa, blinks: false };
    let mut cells = vec![blank; 80 * 25];
    for (row, line) in cells.chunks_mut(80).zip(lines) {
        for (cell, character) in row.iter_mut().zip(line.bytes()) {
            cell.character = character;
        }
    }
    let last = lines.last().map_or(0, |line| line.len());
    TextScreen {
        columns: 80,
        rows: 25,
        cells,
        cursor: Some((last, lines.len().saturating_sub(1))),
        pixels: pattern(720, 400),
    }
}
