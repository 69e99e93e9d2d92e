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

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ring3_vm::networks::Network;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tracing::{info, warn};

use crate::card::Card;
use crate::error::NetError;
use crate::message::{Notice, Received};
use crate::outgoing::Outgoing;
use crate::program::Program;
use crate::stream::{self, Connection, Connector, StreamSink};
pub use server::{NatOptions, serve, serve_at};

/// How long the process may take until it is ready.
const START: Duration = Duration::from_secs(20);

/// The pause before another process is started, at first and at most, if processes end soon.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A process that has lived this long has not ended soon.
const LIFE: Duration = Duration::from_secs(10);

/// Starts `program`, which talks to the machine over its standard input, and waits until it is ready.
pub(crate) fn start(program: Program, card: Card) -> Result<Box<dyn Network>, NetError> {
    let mut processes = Processes { program, child: None, pause: PAUSE_MIN };
    let first = processes.start()?;
    stream::start(card, first, processes)
}

/// One process after another, each with a connection.
struct Processes {
    program: Program,
    child: Option<(Child, Instant)>,
    /// The pause before the next process is started.
    pause: Duration,
}

impl Processes {
    fn start(&mut self) -> Result<Connection, NetError> {
        let fails = |source| NetError::Program { program: self.program.path.clone(), source };
        let (ours, theirs) = UnixStream::pair().map_err(fails)?;
        let child = self.program.spawn(Stdio::from(OwnedFd::from(theirs)))?;
        self.child = Some((child, Instant::now()));
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

    /// Ends the present process, and notes how long it has lived.
    fn end(&mut self) {
        let Some((mut child, since)) = self.child.take() else { return };
        let killed: io::Result<()> = child.kill();
        match killed.and_then(|()| child.wait()) {
            Ok(status) => info!("the NAT ended with {status}"),
            Err(error) => warn!("the NAT cannot be ended: {error}"),
        }
        self.pause = if since.elapsed() < LIFE { PAUSE_MAX.min(self.pause * 2) } else { PAUSE_MIN };
    }
}

impl Connector for Processes {
    fn next(&mut self, outgoing: &Outgoing<StreamSink>) -> Option<Connection> {
        loop {
            self.end();
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

impl Drop for Processes {
    fn drop(&mut self) {
        self.end();
    }
}
