//! A machine's connection to a switch. If there is no switch, the machine starts one, or waits for one.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ring3_vm::networks::Network;
use tracing::{info, warn};

use crate::card::Card;
use crate::error::NetError;
use crate::outgoing::Outgoing;
use crate::program::Program;
use crate::starter::Starter;
use crate::stream::{self, Connection, Connector, StreamSink};

/// How long a switch may take until machines can connect.
const START: Duration = Duration::from_secs(10);

/// The pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);

/// The pause before another switch is started.
const PAUSE: Duration = Duration::from_millis(200);

/// The address of a switch, and what is done if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchProgram {
    /// The socket to which machines connect.
    pub socket: PathBuf,
    /// The program that [starts](crate::starter) the one that listens at that socket. Without it the machine
    /// waits until another process does.
    pub starter: Option<Program>,
}

/// Connects to the switch. If there is none, it starts one first, or waits for some seconds.
pub(crate) fn join(program: SwitchProgram, card: Card) -> Result<Box<dyn Network>, NetError> {
    let SwitchProgram { socket, starter } = program;
    let joining = Joining { socket, starter: starter.map(Starter::new).transpose()? };
    let first = joining.join()?;
    stream::start(card, first, joining)
}

struct Joining {
    socket: PathBuf,
    /// Others may use a switch that was started here, so it is never ended.
    starter: Option<Starter>,
}

impl Joining {
    fn connect(&self) -> io::Result<Connection> {
        Connection::new(UnixStream::connect(&self.socket)?.into())
    }

    fn join(&self) -> Result<Connection, NetError> {
        if let Ok(connection) = self.connect() {
            return Ok(connection);
        }
        if let Some(starter) = &self.starter {
            starter.start(None)?;
            info!("starting a switch at {}", self.socket.display());
        }
        let until = Instant::now() + START;
        loop {
            // Another machine may have been quicker; its switch will do as well.
            match self.connect() {
                Ok(connection) => return Ok(connection),
                Err(source) if Instant::now() > until => {
                    return Err(NetError::Connect {
                        address: self.socket.display().to_string(),
                        source,
                    });
                }
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }
}

impl Connector for Joining {
    fn next(&mut self, outgoing: &Outgoing<StreamSink>) -> Option<Connection> {
        loop {
            if !outgoing.wait(PAUSE) {
                return None;
            }
            match self.join() {
                Ok(connection) => {
                    warn!("the switch ended; connected to a new one");
                    return Some(connection);
                }
                Err(error) => warn!("{error}"),
            }
        }
    }
}
