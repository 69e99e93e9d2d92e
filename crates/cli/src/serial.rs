//! What is behind the serial ports COM1 to COM4.
//!
//! * [`stdin`]: standard input, with the escape key;
//! * [`clients`]: programs that come and go, at a Unix socket or a pseudoterminal;
//! * [`terminals`]: the pseudoterminals themselves.

pub(crate) mod clients;
mod stdin;
pub(crate) mod terminals;

use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use ring3_core::input::{DeviceInput, Input};
use ring3_devices::uart16550::COM_PORTS;
use ring3_display::tty::{RawMode, Stderr};
use ring3_host::socket::SocketError;
use ring3_vm::{Door, Sender};
use thiserror::Error;

use crate::characters::Characters;
use crate::output::Output;
use clients::Clients;
use stdin::InputFrom;
use terminals::{Owner, Terminals};

/// The most serial ports that a PC has.
pub(crate) const PORTS_MAX: usize = COM_PORTS.len();

/// Where a serial port goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SerialTarget {
    /// Standard input and output.
    Stdio,
    /// Output to this file; there is no input.
    File(PathBuf),
    /// Nowhere.
    Null,
    /// There is no port.
    None,
    /// To clients of a Unix socket with this path.
    Socket(PathBuf),
    /// To who opens a pseudoterminal.
    Pty,
    /// To the character device of that number ([`crate::characters`]).
    Character(usize),
}

/// Why a `--serial` is refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("give \"stdio\", \"null\", \"none\", \"file:PATH\", \"unix:PATH\" or \"pty\"")]
pub(crate) struct BadSerialTarget;

impl FromStr for SerialTarget {
    type Err = BadSerialTarget;

    fn from_str(text: &str) -> Result<SerialTarget, BadSerialTarget> {
        match text.split_once(':') {
            None if text == "stdio" => Ok(SerialTarget::Stdio),
            None if text == "null" => Ok(SerialTarget::Null),
            None if text == "none" => Ok(SerialTarget::None),
            None if text == "pty" => Ok(SerialTarget::Pty),
            Some(("file", path)) if !path.is_empty() => Ok(SerialTarget::File(path.into())),
            Some(("unix", path)) if !path.is_empty() => Ok(SerialTarget::Socket(path.into())),
            _ => Err(BadSerialTarget),
        }
    }
}

/// Why there is no serial port.
#[derive(Debug, Error)]
pub(crate) enum SerialError {
    #[error("cannot write the serial port's output to {path}: {source}", path = .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("cannot make a pseudoterminal: {0}")]
    Pty(#[source] io::Error),
    #[error("cannot use the terminal: {0}")]
    Terminal(#[source] io::Error),
    #[error("cannot read standard input: {0}")]
    Stdin(#[source] io::Error),
    #[error("cannot start a thread for the serial port: {0}")]
    Thread(#[source] io::Error),
}

/// Takes what comes in from outside.
pub(crate) trait Taker: Send + Sync {
    /// Takes all of `bytes`, or, where there is no room for them now, nothing: false.
    fn offer(&self, bytes: &[u8]) -> bool;
}

impl std::fmt::Debug for dyn Taker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taker").finish_non_exhaustive()
    }
}

/// What stands behind a serial port.
#[derive(Debug)]
pub(crate) enum Port {
    Null,
    Output(Output),
    Clients(Clients),
    /// One of which there is a copy.
    Copied(Box<Port>, Output),
}

impl Port {
    /// Somebody on this side has sent `bytes`.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Port::Output(output) => output.write(bytes),
            Port::Clients(clients) => {
                clients.write(bytes);
                Ok(())
            }
            Port::Copied(port, copy) => {
                copy.write(bytes)?;
                port.write(bytes)
            }
            Port::Null => Ok(()),
        }
    }

    /// Lets clients have what was written last.
    fn finish(&self) {
        match self {
            Port::Clients(clients) => clients.finish(),
            Port::Copied(port, _) => port.finish(),
            Port::Null | Port::Output(_) => {}
        }
    }
}

/// The serial ports' host side, COM1 first.
#[derive(Debug)]
pub(crate) struct SerialPorts {
    ports: Vec<Arc<Port>>,
    /// Who takes standard input, if somebody does.
    stdin: Option<StdinTaker>,
}

/// Who takes standard input.
#[derive(Debug)]
enum StdinTaker {
    /// The line of a serial port, with the escape key.
    Line(Line),
    /// Somebody who has the escape key himself.
    Other(Arc<dyn Taker>),
}

impl SerialPorts {
    /// Opens what `targets` name; what clients send goes to `sender`. Some of them are among `characters`, and pseudoterminals among
    /// `terminals`.
    pub(crate) fn open(
        targets: &[SerialTarget],
        sender: &Sender,
        characters: &Characters,
        terminals: &mut Terminals,
    ) -> Result<SerialPorts, SerialError> {
        let open = |(index, target): (usize, &SerialTarget)| {
            let line = Line::new(index, sender.clone());
            Ok(Arc::new(match target {
                SerialTarget::Character(index) => {
                    return Ok(characters.port(*index).unwrap_or_else(|| Arc::new(Port::Null)));
                }
                SerialTarget::Null | SerialTarget::None => Port::Null,
                SerialTarget::Stdio => {
                    Port::Output(Output::stdout().map_err(SerialError::Terminal)?)
                }
                SerialTarget::File(path) => {
                    let fails = |source| SerialError::File { path: path.clone(), source };
                    Port::Output(Output::create(path).map_err(fails)?)
                }
                SerialTarget::Socket(path) => Port::Clients(Clients::on_socket(path, line)?),
                SerialTarget::Pty => {
                    let terminal = terminals.take(Owner::Port(index))?;
                    // Who has no standard error looks for it in vain.
                    let _ = writeln!(Stderr, "ring3: COM{} is {}", index + 1, terminal.name);
                    Port::Clients(Clients::on_terminal(terminal, Arc::new(line))?)
                }
            }))
        };
        let ports = targets.iter().enumerate().map(open).collect::<Result<_, SerialError>>()?;
        let stdio = targets.iter().position(|target| *target == SerialTarget::Stdio);
        let line = stdio.map(|index| StdinTaker::Line(Line::new(index, sender.clone())));
        let stdin = line.or_else(|| characters.stdin.clone().map(StdinTaker::Other));
        Ok(SerialPorts { ports, stdin })
    }

    /// Sends standard input to the one whose it is, if there is one. A terminal is in raw mode as long as what this
    /// returns lives. In a deterministic run, what is there already waits at `script`.
    pub(crate) fn read_stdin(
        &self,
        script: Option<&mut Door>,
    ) -> Result<Option<RawMode>, SerialError> {
        let Some(taker) = &self.stdin else { return Ok(None) };
        let raw_mode = RawMode::enter().map_err(SerialError::Terminal)?;
        match taker {
            StdinTaker::Other(taker) => {
                stdin::start_for(taker.clone()).map_err(SerialError::Thread)?;
            }
            StdinTaker::Line(line) => {
                let from = if raw_mode.is_some() { InputFrom::Terminal } else { InputFrom::Script };
                let is_script = match script {
                    Some(door) => stdin::put_script(line, door).map_err(SerialError::Stdin)?,
                    None => false,
                };
                if !is_script {
                    stdin::start(from, line.clone()).map_err(SerialError::Thread)?;
                }
            }
        }
        Ok(raw_mode)
    }

    /// The guest has sent `bytes` on port `port`.
    pub(crate) fn write(&mut self, port: u8, bytes: &[u8]) -> io::Result<()> {
        self.ports.get(usize::from(port)).map_or(Ok(()), |port| port.write(bytes))
    }

    /// Lets clients have what the guest has sent last.
    pub(crate) fn finish(self) {
        for port in &self.ports {
            port.finish();
        }
    }
}

/// The line to a serial port of the machine.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Which port, 0 for COM1.
    index: usize,
    sender: Sender,
}

impl Taker for Line {
    fn offer(&self, bytes: &[u8]) -> bool {
        self.sender.offer(self.input(bytes.to_vec()))
    }
}

impl Line {
    /// The line to port `index`, 0 for COM1.
    pub(crate) fn new(index: usize, sender: Sender) -> Line {
        Line { index, sender }
    }

    /// What the machine gets when `bytes` come in.
    fn input(&self, bytes: Vec<u8>) -> Input {
        let name = COM_PORTS[self.index].name.to_owned();
        Input::Device { name, input: DeviceInput::Serial(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read() {
        assert_eq!("stdio".parse(), Ok(SerialTarget::Stdio));
        assert_eq!("null".parse(), Ok(SerialTarget::Null));
        assert_eq!("pty".parse(), Ok(SerialTarget::Pty));
        assert_eq!("file:a:b".parse(), Ok(SerialTarget::File("a:b".into())));
        assert_eq!("unix:a".parse(), Ok(SerialTarget::Socket("a".into())));
        for bad in ["", "stdio:", "file", "file:", "unix:", "pty:x", "tty", "FILE:x"] {
            assert_eq!(bad.parse::<SerialTarget>(), Err(BadSerialTarget), "{bad:?}");
        }
    }
}
