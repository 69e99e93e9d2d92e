//! A connection or file that is read and written for as long as anybody wants to wait.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ring3_block::storage::Storage;
use ring3_block::{Unfinished, remove_left};
use ring3_host::listener::Listener;
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
    /// A file that is read, or something else with a name, such as a pipe.
    File(File, PathBuf),
    /// A file that is made, and replaces the one of its name when it is complete.
    New(NewFile),
}

struct NewFile {
    /// None once it is complete.
    unfinished: Option<Unfinished>,
    target: PathBuf,
    len: u64,
}

impl NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let unfinished = self.unfinished.as_ref().ok_or(ErrorKind::BrokenPipe)?;
        unfinished.file().write_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        Ok(bytes.len())
    }
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
                    return Err(MoveError::Elsewhere(host.clone()));
                }
                Stream::tcp((host.as_str(), *port))
            }
            Place::File(path) => return Ok(Channel::new(make(path)?, goes_on)),
        };
        Channel::of(stream.map_err(failed)?, goes_on)
    }

    fn new(end: End, goes_on: GoesOn) -> Channel {
        Channel { end, goes_on, given_up: false, insists: false }
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

    /// Reads `file`, which has this path.
    pub(super) fn file(file: File, path: PathBuf, goes_on: GoesOn) -> Channel {
        Channel::new(End::File(file, path), goes_on)
    }

    pub(super) fn of(stream: Stream, goes_on: GoesOn) -> Result<Channel, MoveError> {
        stream.set_patience(Some(LOOKS)).map_err(MoveError::Lost)?;
        Ok(Channel::new(End::Stream(stream), goes_on))
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
            End::File(..) | End::New(_) => None,
        }
    }

    /// From now on waits whether or not anybody wants to, until the other end is gone.
    pub(super) fn insist(&mut self) {
        self.insists = true;
    }

    /// Makes sure that everything written is in the file.
    pub(super) fn finish(&mut self) -> Result<(), MoveError> {
        if let End::New(new) = &mut self.end
            && let Some(unfinished) = new.unfinished.take()
        {
            let flushed = unfinished.file().flush();
            flushed.map_err(|source| MoveError::File { path: new.target.clone(), source })?;
            unfinished.finish(&new.target)?;
        }
        Ok(())
    }

    /// Returns why reading or writing has failed.
    pub(super) fn error(&self, error: io::Error) -> MoveError {
        if self.given_up {
            return MoveError::Cancelled;
        }
        match &self.end {
            _ if error.kind() == ErrorKind::UnexpectedEof => MoveError::Cut,
            End::Stream(_) => MoveError::Lost(error),
            End::File(_, path) | End::New(NewFile { target: path, .. }) => {
                MoveError::File { path: path.clone(), source: error }
            }
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

/// Makes the file at `path`. What is there already and is no file is written to as it is.
fn make(path: &Path) -> Result<End, MoveError> {
    let fails = |source| MoveError::File { path: path.to_owned(), source };
    if fs::metadata(path).is_ok_and(|data| !data.is_file()) {
        let file = OpenOptions::new().write(true).open(path).map_err(fails)?;
        return Ok(End::File(file, path.to_owned()));
    }
    // For a symbolic link the file behind it is replaced, and not the link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    remove_left(&target);
    let unfinished = Some(Unfinished::make(&target)?);
    Ok(End::New(NewFile { unfinished, target, len: 0 }))
}

impl Read for Channel {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.patiently(|end| match end {
            End::Stream(stream) => stream.read(bytes),
            End::File(file, _) => file.read(bytes),
            End::New(_) => Ok(0),
        })
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patiently(|end| match end {
            End::Stream(stream) => stream.write(bytes),
            End::File(file, _) => file.write(bytes),
            End::New(new) => new.write(bytes),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
