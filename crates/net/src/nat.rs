//! A NAT in a process of its own (`ring3 nat`), which uses the format of [`crate::stream`] over its standard
//! input.
//!
//! libslirp does the work on the guest's frames. The process has no state that a machine depends on, except
//! connections. So when it dies another one is started, and the guest notices a pause and the end of its
//! connections.
//!
//! * `start`: the machine's side;
//! * [`serve`], [`serve_at`]: the process; [`commands`]: the process that starts commands for it.

pub mod commands;
mod server;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ring3_vm::networks::Network;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tracing::warn;

use crate::card::Card;
use crate::error::NetError;
use crate::message::{Notice, Received};
use crate::outgoing::Outgoing;
use crate::program::Program;
use crate::starter::Starter;
use crate::stream::{self, Connection, Connector, StreamSink};
pub use server::{NatOptions, serve, serve_at};

/// How long the process may take until it is ready.
const START: Duration = Duration::from_secs(20);

/// The pause before another process is started, at first and at most, if processes end soon.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A process that has lived this long has not ended soon.
const LIFE: Duration = Duration::from_secs(10);

/// Starts a NAT, which talks to the machine over its standard input, and waits until it is ready. `starter` is the program
/// that [starts](crate::starter) it.
pub(crate) fn start(starter: Program, card: Card) -> Result<Box<dyn Network>, NetError> {
    let program = starter.path.clone();
    let starter = Starter::new(starter)?;
    let mut processes = Processes { starter, program, since: Instant::now(), pause: PAUSE_MIN };
    let first = processes.start()?;
    stream::start(card, first, processes)
}

/// One process after another, each with a connection.
struct Processes {
    starter: Starter,
    /// The path of its file, for messages.
    program: PathBuf,
    /// When the present one was started.
    since: Instant,
    /// The pause before the next process is started.
    pause: Duration,
}

impl Processes {
    fn start(&mut self) -> Result<Connection, NetError> {
        let fails = |source| NetError::Program { program: self.program.clone(), source };
        let (ours, theirs) = UnixStream::pair().map_err(fails)?;
        self.since = Instant::now();
        self.starter.start(Some(&OwnedFd::from(theirs)))?;
        let mut connection = Connection::new(ours.into()).map_err(fails)?;
        let set_timeout = |time| set_socket_timeout(&connection.socket, Timeout::Recv, time);
        set_timeout(Some(START)).map_err(|error| fails(error.into()))?;
        match connection.reader.receive() {
            Ok(Some(Received::Notice(Notice::Hello))) => {}
            Ok(Some(Received::Notice(Notice::Failed(text)))) => return Err(NetError::Nat(text)),
            Ok(_) => return Err(NetError::Nat("its process has ended at once".into())),
            Err(error) => return Err(fails(error)),
        }
        set_timeout(None).map_err(|error| fails(error.into()))?;
        connection.was_greeted = true;
        Ok(connection)
    }
}

impl Connector for Processes {
    fn next(&mut self, outgoing: &Outgoing<StreamSink>) -> Option<Connection> {
        loop {
            let is_soon = self.since.elapsed() < LIFE;
            self.pause = if is_soon { PAUSE_MAX.min(self.pause * 2) } else { PAUSE_MIN };
            if !outgoing.wait(self.pause) {
                return None;
            }
            match self.start() {
                Ok(connection) => {
                    warn!("the NAT ended and was started again; the guest's connections are lost");
                    return Some(connection);
                }
                Err(error) => warn!("{error}"),
            }
        }
    }
}
