//! A serial line of a machine: it is read all the time, and one client may type.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::select;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::time::sleep;

use super::AGAIN;
use super::machine::{Machine, Slot};
use crate::protocol::OUTPUT_MAX;
use crate::ring::Ring;

/// The most bytes that wait for a guest to take them.
const WAITING_MAX: usize = 64 << 10;
/// Bytes that are read at once.
const CHUNK: usize = 16 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: PathBuf,
    pub(super) slot: Slot,
    pub(super) ring: RefCell<Ring>,
    /// Tells those who watch that there is more.
    pub(super) said: watch::Sender<()>,
    pub(super) connected: Cell<bool>,
    typed: UnboundedSender<Vec<u8>>,
    waiting: Cell<usize>,
}

impl Line {
    /// Makes a line, and the bytes that are to be typed there.
    pub(super) fn new(socket: PathBuf, kept: usize) -> (Rc<Line>, UnboundedReceiver<Vec<u8>>) {
        let (typed, to_type) = mpsc::unbounded_channel();
        let line = Line {
            socket,
            slot: Slot::default(),
            ring: RefCell::new(Ring::new(kept)),
            said: watch::Sender::new(()),
            connected: Cell::new(false),
            typed,
            waiting: Cell::new(0),
        };
        (Rc::new(line), to_type)
    }

    /// Types `bytes`, all or none. Returns how many the line has taken: the guest may be slow.
    pub(super) fn offer(&self, bytes: Vec<u8>) -> usize {
        let (length, waiting) = (bytes.len(), self.waiting.get());
        // The first bytes are always taken, however many they are.
        if waiting > 0 && waiting + length > WAITING_MAX {
            return 0;
        }
        self.waiting.set(waiting + length);
        // The receiver lives as long as the machine is known.
        let _ = self.typed.send(bytes);
        length
    }

    /// Returns what was said since position `at`, or the first part of it, and how many bytes before that are lost.
    pub(super) fn said_since(&self, at: u64) -> (Vec<u8>, u64) {
        let ring = self.ring.borrow();
        (ring.read(at, OUTPUT_MAX), ring.start().saturating_sub(at))
    }

    async fn read(&self, from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        loop {
            let length = from.read(&mut buffer).await?;
            if length == 0 {
                return Ok(());
            }
            self.ring.borrow_mut().push(&buffer[..length]);
            self.said.send_replace(());
        }
    }

    async fn write(
        &self,
        to: &mut (impl AsyncWriteExt + Unpin),
        to_type: &mut UnboundedReceiver<Vec<u8>>,
    ) -> io::Result<()> {
        while let Some(bytes) = to_type.recv().await {
            self.waiting.set(self.waiting.get() - bytes.len());
            to.write_all(&bytes).await?;
        }
        Ok(())
    }
}

/// Reads a line, and types what clients type, for ever.
pub(super) async fn serve(
    machine: Rc<Machine>,
    line: Rc<Line>,
    mut to_type: UnboundedReceiver<Vec<u8>>,
) {
    loop {
        machine.has_process().await;
        if let Ok(stream) = UnixStream::connect(&line.socket).await {
            line.connected.set(true);
            let (mut from, mut to) = stream.into_split();
            // A connection ends when the machine does.
            let _ = select! {
                ended = line.read(&mut from) => ended,
                ended = line.write(&mut to, &mut to_type) => ended,
            };
            line.connected.set(false);
        }
        sleep(AGAIN).await;
    }
}
