//! A connection or file that is read and written for as long as anybody wants to wait.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::ToSocketAddrs;
use std::thread;
use std::time::{Duration, Instant};

use ring3_host::listener::{ListenError, Listener};
use ring3_host::stream::Stream;

use super::{MoveError, Place};

/// How often to look whether anybody still wants to wait.
const LOOKS: Duration = Duration::from_millis(100);
/// How long to look for a connection before the next look.
const BETWEEN: Duration = Duration::from_millis(2);
/// How long the other end may do nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// Says whether to go on waiting.
pub(super) type GoesOn = Box<dyn Fn() -> bool + Send + Sync>;

/// See the module.
pub(super) struct Channel {
    end: End,
    goes_on: GoesOn,
    /// Whether `goes_on` has said that nobody wants to wait.
    given_up: bool,
    /// Whether to wait all the same, and for as long as there is another end.
    insists: bool,
}

enum End {
    Stream(Stream),
    File(File),
}

impl Channel {
    /// Connects to where a machine is awaited, or makes the file.
    pub(super) fn connect(place: &Place, goes_on: GoesOn) -> Result<Channel, MoveError> {
        let failed = |source| MoveError::Connect { place: place.to_string(), source };
        let stream = match place {
            Place::Unix(path) => Stream::unix(path),
            Place::Tcp { host, port } => {
                let mut addresses = (host.as_str(), *port).to_socket_addrs().map_err(failed)?;
                let is_here = addresses.all(|address| address.ip().is_loopback());
                if !is_here {
                    return Err(ListenError::Foreign(host.clone()).into());
                }
                Stream::tcp((host.as_str(), *port))
            }
            Place::File(path) => {
                let file = File::create(path);
                let file = file.map_err(|source| MoveError::File { path: path.clone(), source })?;
                return Ok(Channel {
                    end: End::File(file),
                    goes_on,
                    given_up: false,
                    insists: false,
                });
            }
        };
        Channel::of(stream.map_err(failed)?, goes_on)
    }

    /// Waits until somebody connects to `listener`.
    pub(super) fn accept(listener: &Listener, goes_on: GoesOn) -> Result<Channel, MoveError> {
        loop {
            match listener.accept() {
                Ok(stream) => return Channel::of(stream, goes_on),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !goes_on() {
                        return Err(MoveError::Cancelled);
                    }
                    thread::sleep(BETWEEN);
                }
                Err(error) => return Err(MoveError::Lost(error)),
            }
        }
    }

    /// Reads `file`.
    pub(super) fn file(file: File, goes_on: GoesOn) -> Channel {
        Channel { end: End::File(file), goes_on, given_up: false, insists: false }
    }

    pub(super) fn of(stream: Stream, goes_on: GoesOn) -> Result<Channel, MoveError> {
        stream.set_patience(Some(LOOKS)).map_err(MoveError::Lost)?;
        Ok(Channel { end: End::Stream(stream), goes_on, given_up: false, insists: false })
    }

    /// Returns whether somebody at the other end answers.
    pub(super) fn answers(&self) -> bool {
        matches!(self.end, End::Stream(_))
    }

    /// Returns the name of this end, by which the other one knows whether it is connected to it directly.
    pub(super) fn here(&self) -> String {
        self.ends().map_or_else(String::new, |[here, _]| here)
    }

    /// Returns whether the other end has this name for itself, so that nothing that passes bytes on is between.
    pub(super) fn is_connected_to(&self, name: &[u8]) -> bool {
        self.ends().is_some_and(|[_, there]| there.as_bytes() == name)
    }

    fn ends(&self) -> Option<[String; 2]> {
        match &self.end {
            End::Stream(stream) => stream.ends().ok(),
            End::File(_) => None,
        }
    }

    /// From now on waits whether or not anybody wants to, until the other end is gone.
    pub(super) fn insist(&mut self) {
        self.insists = true;
    }

    /// Makes sure that everything written is in the file.
    pub(super) fn finish(&self) -> Result<(), MoveError> {
        match &self.end {
            End::Stream(_) => Ok(()),
            End::File(file) => file.sync_all().map_err(MoveError::Lost),
        }
    }

    /// Returns why reading or writing has failed.
    pub(super) fn error(&self, error: io::Error) -> MoveError {
        if self.given_up {
            return MoveError::Cancelled;
        }
        match error.kind() {
            ErrorKind::UnexpectedEof => MoveError::Cut,
            _ => MoveError::Lost(error),
        }
    }

    fn patiently(
        &mut self,
        mut act: impl FnMut(&mut End) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let until = Instant::now() + PATIENCE;
        loop {
            match act(&mut self.end) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
            if self.insists {
                continue;
            }
            if !(self.goes_on)() {
                self.given_up = true;
                return Err(io::Error::other("nobody waits for it any more"));
            }
            if Instant::now() > until {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }
}

impl Read for Channel {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.patiently(|end| match end {
            End::Stream(stream) => stream.read(bytes),
            End::File(file) => file.read(bytes),
        })
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patiently(|end| match end {
            End::Stream(stream) => stream.write(bytes),
            End::File(file) => file.write(bytes),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
