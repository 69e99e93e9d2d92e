//! A machine's connection to a switch, which is started where there is none.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ring3_core::net::Packet;
use ring3_vm::networks::Network;
use tracing::{info, warn};

use crate::card::Card;
use crate::error::NetError;
use crate::outgoing::Outgoing;
use crate::stream::{Connection, Connector, Stream, StreamSink};

/// How long a switch may take until machines can connect.
const START: Duration = Duration::from_secs(10);

/// How often one tries.
const RETRY: Duration = Duration::from_millis(20);

/// How long one waits before another switch is started.
const PAUSE: Duration = Duration::from_millis(200);

/// Where a switch is, and how it is started where there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchProgram {
    /// The socket to which machines connect.
    pub socket: PathBuf,
    /// The program, or ring3 itself.
    pub path: PathBuf,
    /// Its arguments, by which it listens at that socket.
    pub arguments: Vec<OsString>,
}

/// A network behind a switch.
#[derive(Debug)]
pub struct Switched(Stream);

impl Switched {
    /// Connects to the switch, and starts it before if nobody has.
    pub fn join(program: SwitchProgram, card: Card) -> Result<Switched, NetError> {
        let mut joining = Joining { program, child: None, first: None };
        joining.first = Some(joining.join()?);
        Ok(Switched(Stream::start(card, true, joining)?))
    }
}

impl Network for Switched {
    fn send(&mut self, packet: Packet) {
        self.0.send(packet);
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn is_congested(&mut self) -> bool {
        self.0.is_congested()
    }
}

struct Joining {
    program: SwitchProgram,
    /// The switch, if it was started here. Others may use it, so it is never ended.
    child: Option<Child>,
    first: Option<Connection>,
}

impl Joining {
    fn connect(&self) -> io::Result<Connection> {
        Connection::new(UnixStream::connect(&self.program.socket)?.into())
    }

    fn join(&mut self) -> Result<Connection, NetError> {
        if let Ok(connection) = self.connect() {
            return Ok(connection);
        }
        let SwitchProgram { path, arguments, socket } = &self.program;
        let fails = |source| NetError::Program { program: path.clone(), source };
        // It outlives this machine, and is not ended by what is typed at its terminal.
        let child = Command::new(path)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(fails)?;
        info!("a switch is started for {}", socket.display());
        self.child = Some(child);
        let until = Instant::now() + START;
        loop {
            // Another machine may have been quicker, and its switch is as good.
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
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            // Whoever was started here and has ended leaves nothing behind.
            if self.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
                self.child = None;
            }
            if !outgoing.wait(PAUSE) {
                return None;
            }
            match self.join() {
                Ok(connection) => {
                    warn!("the switch had gone; connected to another one");
                    return Some(connection);
                }
                Err(error) => warn!("{error}"),
            }
        }
    }
}
