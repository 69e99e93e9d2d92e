//! Sources of connections: a Unix socket, a TCP port, or a socket that another process has opened.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_tcp_nodelay, socket_acceptconn, socket_domain};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, accept_with, getsockname, shutdown};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use thiserror::Error;

use crate::socket::{SocketError, SocketFile, listen_at};
use crate::stream::Stream;

/// The reasons why it is not possible to listen.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The Unix socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The port cannot be used.
    #[error("cannot listen at port {port} of {host}: {source}")]
    Port {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// The reason.
        source: io::Error,
    },
    /// The address is not the host's own, and only such addresses are allowed.
    #[error("{0} is not an address of this host alone: listen at 127.0.0.1")]
    Foreign(String),
    /// The descriptor cannot be used.
    #[error("cannot use descriptor {number}: {source}")]
    Descriptor {
        /// The descriptor's number.
        number: i32,
        /// The reason.
        source: io::Error,
    },
}

/// An address that other hosts can reach.
#[derive(Debug, Error)]
#[error(
    "{what} must not be reachable from other hosts, as it is at {address}: it has neither passwords nor encryption; give 127.0.0.1 or a Unix socket, and \
     connect from other hosts through ssh -L"
)]
pub struct NotThisHost {
    what: &'static str,
    address: SocketAddr,
}

/// Refuses an address at which `what` (such as "a switch") would listen for other hosts too.
pub fn for_this_host(what: &'static str, address: SocketAddr) -> Result<(), NotThisHost> {
    if address.ip().is_loopback() { Ok(()) } else { Err(NotThisHost { what, address }) }
}

/// A socket that listens for connections. If a file was made for the socket, dropping the listener removes
/// the file.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    is_tcp: bool,
    file: Option<SocketFile>,
}

impl Listener {
    /// Listens at a new Unix socket, for this user alone.
    pub fn unix(path: &Path) -> Result<Listener, SocketError> {
        let (listener, file) = listen_at(path)?;
        Ok(Listener { socket: listener.into(), is_tcp: false, file: Some(file) })
    }

    /// Listens at a TCP port. Everyone who reaches the address can connect.
    pub fn tcp(address: impl ToSocketAddrs) -> io::Result<Listener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Listener { socket: listener.into(), is_tcp: true, file: None })
    }

    /// Listens at a TCP port of `host`, an address of this host alone. Everyone with an account on this host
    /// can connect.
    pub fn tcp_of_this_host(host: &str, port: u16) -> Result<Listener, ListenError> {
        let failed = |source| ListenError::Port { host: host.to_owned(), port, source };
        let listener = Listener::tcp((host, port)).map_err(failed)?;
        if !listener.local_address().map_err(failed)?.ip().is_loopback() {
            return Err(ListenError::Foreign(host.to_owned()));
        }
        Ok(listener)
    }

    /// Listens at a socket that was given to this process as descriptor `number` and listens already.
    pub fn inherited(number: i32) -> Result<Listener, ListenError> {
        let failed = |source| ListenError::Descriptor { number, source };
        let socket = inherited(number).map_err(failed)?;
        let listens = socket_acceptconn(&socket).map_err(|error| failed(error.into()))?;
        if !listens {
            return Err(failed(io::Error::other("it is no socket that listens")));
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(|error| failed(error.into()))?;
        let domain = socket_domain(&socket).map_err(|error| failed(error.into()))?;
        Ok(Listener { socket, is_tcp: domain != AddressFamily::UNIX, file: None })
    }

    /// Returns the address and port of a TCP listener, whose port the host may have chosen.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(getsockname(&self.socket)?.try_into()?)
    }

    /// Takes the file of the socket, for callers that remove it at another time.
    pub fn take_file(&mut self) -> Option<SocketFile> {
        self.file.take()
    }

    /// Returns the next connection that is waiting, or [`io::ErrorKind::WouldBlock`] if there is none.
    pub fn accept(&self) -> io::Result<Stream> {
        let connection = accept_with(&self.socket, SocketFlags::CLOEXEC)?;
        if self.is_tcp {
            // The other end waits for each key, packet and answer, so they must not be delayed to be sent
            // together.
            set_tcp_nodelay(&connection, true)?;
        }
        Ok(connection.into())
    }

    /// Waits for the next connection. Fails after the listener was [closed](Listener::close).
    pub fn wait(&self) -> io::Result<Stream> {
        loop {
            match self.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            let mut fds = [PollFd::new(self, PollFlags::IN)];
            match poll(&mut fds, None) {
                // Accepting from a non-blocking Unix socket that was closed still fails as if nobody had
                // connected.
                Ok(_) if fds[0].revents().contains(PollFlags::HUP) => {
                    return Err(io::ErrorKind::NotConnected.into());
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Closes the listener: no more connections are accepted, and callers that [wait](Listener::wait) for one
    /// fail.
    pub fn close(&self) {
        if let Err(error) = shutdown(&self.socket, Shutdown::Both) {
            tracing::debug!("cannot stop listening: {error}");
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns another descriptor for the object that this process was given as descriptor `number`.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, number, PidfdGetfdFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[track_caller]
    fn accepts(listener: &Listener, connect: impl FnOnce() -> Stream) {
        let mut client = connect();
        let mut served = listener.wait().unwrap();
        client.write_all(b"x").unwrap();
        let mut byte = [0];
        served.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("ring3-listener-{}-{name}", std::process::id()))
    }

    #[test]
    fn all_kinds_accept() {
        let path = path("all");
        let listener = Listener::unix(&path).unwrap();
        accepts(&listener, || Stream::unix(&path).unwrap());
        let again = Listener::inherited(listener.as_fd().as_raw_fd()).unwrap();
        accepts(&again, || Stream::unix(&path).unwrap());
        assert!(listener.local_address().is_err());
        let listener = Listener::tcp_of_this_host("127.0.0.1", 0).unwrap();
        let address = listener.local_address().unwrap();
        accepts(&listener, || Stream::tcp(address).unwrap());
        let again = Listener::inherited(listener.as_fd().as_raw_fd()).unwrap();
        accepts(&again, || Stream::tcp(address).unwrap());
    }

    #[test]
    fn a_waiting_thread_learns_of_the_end() {
        let path = path("end");
        for listener in [Listener::unix(&path).unwrap(), Listener::tcp("127.0.0.1:0").unwrap()] {
            let listener = Arc::new(listener);
            let inside = Arc::clone(&listener);
            let waiting = thread::spawn(move || inside.wait());
            listener.close();
            assert!(waiting.join().unwrap().is_err());
        }
    }

    #[test]
    fn only_this_host_is_listened_to() {
        let foreign = Listener::tcp_of_this_host("0.0.0.0", 0);
        assert!(matches!(foreign, Err(ListenError::Foreign(_))));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Listener::inherited(file.as_raw_fd()).is_err());
        assert!(Listener::inherited(9999).is_err());
    }

    #[test]
    fn addresses_that_other_hosts_reach_are_refused() {
        for good in ["127.0.0.1:1", "127.9.9.9:0", "[::1]:5"] {
            assert!(for_this_host("this", good.parse().unwrap()).is_ok(), "{good}");
        }
        for bad in ["0.0.0.0:1", "[::]:1", "192.168.1.1:1", "[::ffff:0.0.0.0]:1", "8.8.8.8:1"] {
            let error = for_this_host("this", bad.parse().unwrap()).unwrap_err();
            assert!(
                error.to_string().contains("must not be reachable from other hosts"),
                "{error}"
            );
        }
    }
}
