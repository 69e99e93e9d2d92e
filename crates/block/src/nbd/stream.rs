//! The bytes of a connection, and the times to wait for them.

use std::fmt::{self, Display, Formatter};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_host::stream::Stream;
use rustix::net::sockopt;

use super::address::Place;

/// How long a server may take to accept a connection, and for each step of the handshake.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The time after which the log says that a server does not answer.
const TELL: Duration = Duration::from_secs(10);
/// The time between two looks at the clock while waiting for an answer.
const STEP: Duration = Duration::from_millis(500);
/// The time after which a silent host is probed, the interval between probes, and the number of probes after
/// which the host counts as gone (tcp(7)).
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);
/// The time after which a host that has not acknowledged sent data counts as gone (`TCP_USER_TIMEOUT`,
/// tcp(7)).
const UNACKNOWLEDGED_MS: u32 = 60_000;

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp { host, port } => write!(f, "{host}:{port}"),
            Place::Unix(path) => write!(f, "{}", path.display()),
            Place::Other(source) => f.write_str(source.name()),
        }
    }
}

/// Connects to a server. Each read waits for [`STEP`] at most, so that the reader can look at the clock.
pub(super) fn connect(place: &Place) -> io::Result<Stream> {
    let stream = match place {
        Place::Tcp { host, port } => Stream::from(OwnedFd::from(connect_tcp(host, *port)?)),
        Place::Unix(path) => Stream::unix(path)?,
        Place::Other(source) => Stream::from(source.connect()?),
    };
    stream.set_read_patience(Some(STEP))?;
    Ok(stream)
}

/// Sends all of `head` and `data`.
pub(super) fn send(mut stream: &Stream, head: &[u8], data: &[u8]) -> io::Result<()> {
    let mut parts = [IoSlice::new(head), IoSlice::new(data)];
    let mut left = &mut parts[..];
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match stream.write_vectored(left) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(sent) => IoSlice::advance_slices(&mut left, sent),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(io::Error::new(ErrorKind::TimedOut, "it takes no more requests"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                let (idle, interval, count) = KEEPALIVE;
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, idle)?;
                sockopt::set_tcp_keepintvl(&stream, interval)?;
                sockopt::set_tcp_keepcnt(&stream, count)?;
                sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED_MS)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The bytes from a server. They are read only while the server owes an answer.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) stream: Arc<Stream>,
    /// The server's name in the log.
    pub(super) name: String,
    /// How long the server may send nothing. None means for ever.
    pub(super) patience: Option<Duration>,
}

impl Read for Incoming {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut began = None;
        let mut was_told = false;
        loop {
            match (&*self.stream).read(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(count) if was_told => {
                    tracing::info!("the NBD server at {} answers again", self.name);
                    return Ok(count);
                }
                result => return result,
            }
            // The first read has already waited for one step.
            let waited = began.get_or_insert_with(Instant::now).elapsed() + STEP;
            if let Some(patience) = self.patience.filter(|patience| waited >= *patience) {
                let text = format!("it has not answered for {} s", patience.as_secs());
                return Err(io::Error::new(ErrorKind::TimedOut, text));
            }
            if !was_told && waited >= TELL {
                let (name, seconds) = (&self.name, waited.as_secs());
                tracing::warn!(
                    "the NBD server at {name} has not answered for {seconds} s; waiting for it"
                );
                was_told = true;
            }
        }
    }
}
