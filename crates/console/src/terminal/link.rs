//! The connection with the server, which is made again when the server has died.

use std::io;
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread;
use std::time::Duration;

use ratatui_crossterm::crossterm::event::{self, Event};
use ring3_supervisor::place::Place;

use crate::client::{Message, connect, find};
use crate::error::Error;
use crate::protocol::Command;

/// The pause before the server is looked for again.
const AGAIN: Duration = Duration::from_millis(200);

/// Something that has happened.
pub(super) enum Incoming {
    /// At the terminal.
    Terminal(Event),
    /// There is a new connection, for these commands. They are numbered from 1.
    Connected(Sender<Command>),
    /// The server has said something.
    Message(Message),
    /// There is no connection, for this reason.
    Gone(String),
}

/// Starts the thread that reads the terminal.
pub(super) fn read_terminal(incoming: SyncSender<Incoming>) -> io::Result<()> {
    let read = move || {
        while let Ok(event) = event::read() {
            if incoming.send(Incoming::Terminal(event)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("terminal".into()).spawn(read).map(drop)
}

/// Starts the thread that keeps a connection with the server.
pub(super) fn stay_connected(
    place: Place,
    watches: bool,
    incoming: SyncSender<Incoming>,
) -> io::Result<()> {
    let run = move || {
        loop {
            let error = match talk(&place, watches, &incoming) {
                Ok(()) => return,
                Err(error) => error,
            };
            if incoming.send(Incoming::Gone(error.to_string())).is_err() {
                return;
            }
            thread::sleep(AGAIN);
        }
    };
    thread::Builder::new().name("console".into()).spawn(run).map(drop)
}

/// Talks with the server until it has gone, or nobody listens any more.
fn talk(place: &Place, watches: bool, incoming: &SyncSender<Incoming>) -> Result<(), Error> {
    let name = find(place)?;
    let (mut sender, mut receiver) = connect(place, &name, watches)?;
    let (commands, to_send) = mpsc::channel();
    // A thread of its own writes, so that what comes is always read.
    let write = move || {
        for command in to_send {
            if sender.send(&command).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("commands".into()).spawn(write).map_err(Error::Host)?;
    if incoming.send(Incoming::Connected(commands)).is_err() {
        return Ok(());
    }
    loop {
        if incoming.send(Incoming::Message(receiver.message()?)).is_err() {
            return Ok(());
        }
    }
}
