//! Where streams come from: a Unix socket, a TCP port of this host alone, or a socket that another process has opened; and
//! connections that are made to such.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::sockopt::{socket_acceptconn, socket_domain};
use rustix::net::{AddressFamily, Shutdown, shutdown};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use thiserror::Error;

use crate::{SocketError, SocketFile, listen_at};

/// Why there is nobody to listen to.
#[derive(Debug, Error)]
pub enum ListenError {
    /// A Unix socket cannot be.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A port cannot be.
    #[error("cannot listen at port {port} of {host}: {source}")]
    Port {
        /// Where.
        host: String,
        /// Which port.
        port: u16,
        /// Why.
        source: io::Error,
    },
    /// Only this host's own addresses are listened at.
    #[error("{0} is not an address of this host alone: listen at 127.0.0.1")]
    Foreign(String),
    /// The descriptor cannot be used.
    #[error("cannot use descriptor {number}: {source}")]
    Descriptor {
        /// Which.
        number: i32,
        /// Why.
        source: io::Error,
    },
}

/// Listens for those who connect. What is made for it at a path is removed with it.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
    file: Option<SocketFile>,
}

#[derive(Debug)]
enum Kind {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// At a new Unix socket, for this user alone.
    pub fn unix(path: &Path) -> Result<Listener, ListenError> {
        let (listener, file) = listen_at(path)?;
        Ok(Listener { kind: Kind::Unix(listener), file: Some(file) })
    }

    /// At a TCP port of `host`, an address of this host alone. Whoever has an account on this host can connect.
    pub fn tcp(host: &str, port: u16) -> Result<Listener, ListenError> {
        let failed = |source| ListenError::Port { host: host.to_owned(), port, source };
        let listener = TcpListener::bind((host, port)).map_err(failed)?;
        if !listener.local_addr().map_err(failed)?.ip().is_loopback() {
            return Err(ListenError::Foreign(host.to_owned()));
        }
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Listener { kind: Kind::Tcp(listener), file: None })
    }

    /// At a socket that was given to this process as descriptor `number` and listens already.
    pub fn inherited(number: i32) -> Result<Listener, ListenError> {
        let failed = |source| ListenError::Descriptor { number, source };
        let socket = inherited(number).map_err(failed)?;
        let listens = socket_acceptconn(&socket).map_err(|error| failed(error.into()))?;
        if !listens {
            return Err(failed(io::Error::other("it is no socket that listens")));
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(|error| failed(error.into()))?;
        let domain = socket_domain(&socket).map_err(|error| failed(error.into()))?;
        let kind = match domain {
            AddressFamily::UNIX => Kind::Unix(socket.into()),
            _ => Kind::Tcp(socket.into()),
        };
        Ok(Listener { kind, file: None })
    }

    /// The file of the socket, for who has it removed at another time.
    pub fn take_file(&mut self) -> Option<SocketFile> {
        self.file.take()
    }

    /// The next one who connects; [`io::ErrorKind::WouldBlock`] where nobody does.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        let connection: OwnedFd = match &self.kind {
            Kind::Unix(listener) => listener.accept()?.0.into(),
            Kind::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // A key is to be seen at once.
                stream.set_nodelay(true)?;
                stream.into()
            }
        };
        rustix::io::ioctl_fionbio(&connection, false)?;
        Ok(connection)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Unix(listener) => listener.as_fd(),
            Kind::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Another descriptor for what this process was given as number `number`.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, number, PidfdGetfdFlags::empty())?)
}

/// A connection to the Unix socket at `path`.
pub fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
    Ok(UnixStream::connect(path)?.into())
}

/// A connection to a TCP port.
pub fn connect_tcp(host: &str, port: u16) -> io::Result<OwnedFd> {
    let stream = TcpStream::connect((host, port))?;
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

/// Hangs up. What is no socket is left as it is.
pub fn hang_up(connection: impl AsFd) {
    match shutdown(connection, Shutdown::Both) {
        // It has done so itself, or is no socket.
        Ok(()) | Err(Errno::NOTCONN | Errno::NOTSOCK) => {}
        Err(error) => tracing::debug!("cannot hang up: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[track_caller]
    fn accepts(listener: &Listener, connect: impl FnOnce() -> OwnedFd) {
        let mut client = std::fs::File::from(connect());
        poll(&mut [PollFd::new(listener, PollFlags::IN)], None).unwrap();
        let mut served = std::fs::File::from(listener.accept().unwrap());
        client.write_all(b"x").unwrap();
        let mut byte = [0];
        served.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn all_kinds_accept() {
        let path = std::env::temp_dir().join(format!("ring3-listener-{}", std::process::id()));
        let listener = Listener::unix(&path).unwrap();
        accepts(&listener, || connect_unix(&path).unwrap());
        let again = Listener::inherited(listener.as_fd().as_raw_fd()).unwrap();
        accepts(&again, || connect_unix(&path).unwrap());
        let listener = Listener::tcp("127.0.0.1", 0).unwrap();
        let Kind::Tcp(inner) = &listener.kind else { panic!("it is TCP") };
        let port = inner.local_addr().unwrap().port();
        accepts(&listener, || connect_tcp("127.0.0.1", port).unwrap());
    }

    #[test]
    fn only_this_host_is_listened_to() {
        assert!(matches!(Listener::tcp("0.0.0.0", 0), Err(ListenError::Foreign(_))));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Listener::inherited(file.as_raw_fd()).is_err());
        assert!(Listener::inherited(9999).is_err());
    }
}
