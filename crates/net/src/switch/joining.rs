//! A machine's connection to a switch. If there is no switch, the machine starts one, or waits for one.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ring3_vm::networks::Network;
use tracing::{info, warn};

use crate::card::Card;
use crate::error::NetError;
use crate::outgoing::Outgoing;
use crate::program::Program;
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
    /// The program that is started to listen at that socket. Without it the machine waits until another process does.
    pub program: Option<Program>,
}

/// Connects to the switch. If there is none, it starts one first, or waits for some seconds.
pub(crate) fn join(program: SwitchProgram, card: Card) -> Result<Box<dyn Network>, NetError> {
    let mut joining = Joining { program, child: None };
    let first = joining.join()?;
    stream::start(card, first, joining)
}

struct Joining {
    program: SwitchProgram,
    /// The switch, if it was started here. Others may use it, so it is never ended.
    child: Option<Child>,
}

impl Joining {
    fn connect(&self) -> io::Result<Connection> {
        Connection::new(UnixStream::connect(&self.program.socket)?.into())
    }

    fn join(&mut self) -> Result<Connection, NetError> {
        if let Ok(connection) = self.connect() {
            return Ok(connection);
        }
        let SwitchProgram { socket, program } = &self.program;
        if let Some(program) = program {
            // The switch outlives this machine.
            self.child = Some(program.spawn(Stdio::null())?);
            info!("starting a switch at {}", socket.display());
        }
        let until = Instant::now() + START;
        loop {
            // Another machine may have been quicker; its switch will do as well.
            match self.connect() {
                Ok(connection) => return Ok(connection),
                Err(source) if Instant::now() > until => {
                    return Err(NetError::Connect {
                        address: socket.display().to_string(),
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
            // Reaps a switch that was started here and has ended.
            if self.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
                self.child = None;
            }
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
