//! The back-ends of the serial ports COM1 to COM4.
//!
//! * [`stdin`]: standard input, with the escape key;
//! * [`cards`]: serial cards on PCI, whose lines come and go;
//! * [`clients`]: programs that come and go, at a Unix socket or a pseudoterminal;
//! * [`terminals`]: the pseudoterminals themselves.

pub(crate) mod cards;
pub(crate) mod clients;
mod stdin;
pub(crate) mod terminals;

use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, Input};
use ring3_display::tty::{RawMode, Stderr};
use ring3_host::socket::SocketError;
use ring3_vm::{Door, Sender};
use thiserror::Error;

use crate::characters::Characters;
use crate::output::Output;
use clients::Clients;
use stdin::InputFrom;
use terminals::{Owner, Terminals};

/// The number of serial ports that a PC can have.
pub(crate) const PORTS_MAX: usize = DeviceId::COM.len();

/// The target of a serial port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SerialTarget {
    /// Standard input and output.
    Stdio,
    /// This file gets the output; there is no input.
    File(PathBuf),
    /// The output is dropped; there is no input.
    Null,
    /// There is no port.
    None,
    /// Clients of a Unix socket with this path.
    Socket(PathBuf),
    /// Programs that open a pseudoterminal.
    Pty,
    /// The character device with this number ([`crate::characters`]).
    Character(usize),
}

impl SerialTarget {
    /// Returns its place in QEMU's notation, unless there is none or others know it.
    pub(crate) fn place(&self) -> Option<String> {
        match self {
            SerialTarget::Character(_) | SerialTarget::None => None,
            SerialTarget::Stdio => Some("stdio".to_owned()),
            SerialTarget::Null => Some("null".to_owned()),
            SerialTarget::Pty => Some("pty".to_owned()),
            SerialTarget::File(path) => Some(format!("file:{}", path.display())),
            SerialTarget::Socket(path) => Some(format!("unix:{},server=on", path.display())),
        }
    }
}

/// The reason why a `--serial` is refused.
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

/// The reasons why a serial port cannot be opened.
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

/// A receiver of bytes from outside.
pub(crate) trait Taker: Send + Sync {
    /// Takes all of `bytes` and returns true, or takes none and returns false if there is no room now.
    fn offer(&self, bytes: &[u8]) -> bool;
}

impl std::fmt::Debug for dyn Taker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taker").finish_non_exhaustive()
    }
}

/// The back-end of a serial port.
#[derive(Debug)]
pub(crate) enum Port {
    Null,
    Output(Output),
    Clients(Clients),
    /// A back-end whose output is also copied to a file.
    Copied(Box<Port>, Output),
}

impl Port {
    /// Writes `bytes` of the guest or of a monitor.
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

    /// Waits until clients have received the last output.
    fn finish(&self) {
        match self {
            Port::Clients(clients) => clients.finish(),
            Port::Copied(port, _) => port.finish(),
            Port::Null | Port::Output(_) => {}
        }
    }
}

/// The host's side of all serial ports, COM1 first.
#[derive(Debug)]
pub(crate) struct SerialPorts {
    ports: Vec<Arc<Port>>,
    /// The receiver of standard input, if there is one.
    stdin: Option<StdinTaker>,
}

/// A receiver of standard input.
#[derive(Debug)]
enum StdinTaker {
    /// The line of a serial port, with the escape key.
    Line(Line),
    /// A receiver that handles the escape key itself.
    Other(Arc<dyn Taker>),
}

impl SerialPorts {
    /// Opens the back-ends that `targets` name. Input from clients goes to `sender`. Some back-ends are among
    /// `characters`, and some pseudoterminals among `terminals`.
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
                SerialTarget::Socket(path) => {
                    Port::Clients(Clients::on_socket(path, Arc::new(line))?)
                }
                SerialTarget::Pty => {
                    let terminal = terminals.take(Owner::Port(index))?;
                    // A failure is ignored: without standard error nobody can read the name.
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

    /// Passes standard input to its receiver, if there is one. A terminal is in raw mode as long as the
    /// returned value lives. In a deterministic run, input that is available already waits at `script`.
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

    /// Takes `bytes` that the guest has sent on port `port`.
    pub(crate) fn write(&mut self, port: u8, bytes: &[u8]) -> io::Result<()> {
        self.ports.get(usize::from(port)).map_or(Ok(()), |port| port.write(bytes))
    }

    /// Waits until clients have received the guest's last output.
    pub(crate) fn finish(self) {
        for port in &self.ports {
            port.finish();
        }
    }
}

/// The line to a serial port of the machine.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// The number of the port, 0 for COM1; those of cards follow COM4.
    index: usize,
    sender: Sender,
}

impl Taker for Line {
    fn offer(&self, bytes: &[u8]) -> bool {
        self.sender.offer(self.input(bytes.to_vec()))
    }
}

impl Line {
    /// Returns the line to port `index`, 0 for COM1.
    pub(crate) fn new(index: usize, sender: Sender) -> Line {
        Line { index, sender }
    }

    /// Returns the machine's input for `bytes` on this line.
    fn input(&self, bytes: Vec<u8>) -> Input {
        Input::Device { device: DeviceId::SERIAL[self.index], input: DeviceInput::Serial(bytes) }
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
