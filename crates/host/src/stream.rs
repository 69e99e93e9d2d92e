//! One end of a connection, over a Unix socket or TCP. Both are read and written alike.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, getpeername, getsockname,
    recv, send, sendmsg, shutdown,
};

/// One end of a connection. Any thread may use it at any time.
#[derive(Debug)]
pub struct Stream(OwnedFd);

impl Stream {
    /// Connects to the Unix socket at `path`.
    pub fn unix(path: &Path) -> io::Result<Stream> {
        Ok(Stream(UnixStream::connect(path)?.into()))
    }

    /// Connects to a TCP port. Written bytes are sent at once, even a few.
    pub fn tcp(address: impl ToSocketAddrs) -> io::Result<Stream> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Stream(stream.into()))
    }

    /// Returns another handle to the same end.
    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(Stream(self.0.try_clone()?))
    }

    /// Sets how long a read may wait before it fails with [`io::ErrorKind::WouldBlock`]. None means for ever.
    pub fn set_read_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        Ok(set_socket_timeout(&self.0, Timeout::Recv, patience)?)
    }

    /// Sets how long a write may wait before it fails with [`io::ErrorKind::WouldBlock`]. None means for
    /// ever.
    pub fn set_write_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        Ok(set_socket_timeout(&self.0, Timeout::Send, patience)?)
    }

    /// Sets how long reads and writes may wait.
    pub fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_patience(patience)?;
        self.set_write_patience(patience)
    }

    /// Returns the names of this end and of the other one. If nothing is between the two, each has the same names
    /// for them: addresses of TCP, or the processes at a Unix socket.
    pub fn ends(&self) -> io::Result<[String; 2]> {
        let near = getsockname(&self.0)?;
        if near.address_family() == AddressFamily::UNIX {
            let there = socket_peercred(&self.0)?.pid.as_raw_nonzero().get();
            return Ok([format!("process {}", process::id()), format!("process {there}")]);
        }
        let name = |address| io::Result::Ok(SocketAddr::try_from(address)?.to_string());
        let there = getpeername(&self.0)?.ok_or(Errno::NOTCONN)?;
        Ok([name(near)?, name(there)?])
    }

    /// Ends the connection for both sides. Reads and writes that are waiting now end too.
    pub fn hang_up(&self) {
        hang_up(&self.0);
    }
}

/// Ends a connection as [`Stream::hang_up`] does. Does nothing to an object that is no socket.
pub fn hang_up(connection: impl AsFd) {
    match shutdown(connection, Shutdown::Both) {
        // The other side has already hung up, or the object is no socket.
        Ok(()) | Err(Errno::NOTCONN | Errno::NOTSOCK) => {}
        Err(error) => tracing::debug!("cannot hang up: {error}"),
    }
}

impl From<OwnedFd> for Stream {
    fn from(socket: OwnedFd) -> Stream {
        Stream(socket)
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> OwnedFd {
        stream.0
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (count, _) = recv(&self.0, buffer, RecvFlags::empty())?;
        Ok(count)
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        Ok(sendmsg(&self.0, parts, &mut nothing, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// Returns both ends of a connection over a Unix socket, and of one over TCP.
    fn pairs() -> [(Stream, Stream); 2] {
        let (near, far) = UnixStream::pair().unwrap();
        let unix = (Stream(near.into()), Stream(far.into()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = Stream::tcp(listener.local_addr().unwrap()).unwrap();
        [unix, (near, Stream(listener.accept().unwrap().0.into()))]
    }

    #[test]
    fn both_ends_have_the_same_names() {
        for (near, far) in pairs() {
            let [here, there] = near.ends().unwrap();
            assert_eq!(far.ends().unwrap(), [there, here]);
        }
    }

    #[test]
    fn both_kinds_are_read_and_written_alike() {
        for (mut near, mut far) in pairs() {
            assert_eq!(near.write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b"c")]).unwrap(), 3);
            near.try_clone().unwrap().write_all(b"d").unwrap();
            let mut bytes = [0; 4];
            far.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"abcd");
        }
    }

    #[test]
    fn patience_ends() {
        for (mut near, _far) in pairs() {
            let little = Some(Duration::from_millis(5));
            near.set_patience(little).unwrap();
            assert_eq!(near.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
            let full = loop {
                if let Err(error) = near.write(&[0; 1 << 12]) {
                    break error;
                }
            };
            assert_eq!(full.kind(), ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn a_disconnected_peer_reads_the_end_and_gets_no_signal() {
        for (near, mut far) in pairs() {
            near.hang_up();
            near.hang_up();
            assert_eq!(far.read(&mut [0]).unwrap(), 0);
            assert_eq!((&near).write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
            let parts = [IoSlice::new(b"x")];
            assert_eq!((&near).write_vectored(&parts).unwrap_err().kind(), ErrorKind::BrokenPipe);
        }
        // Some connections are given as descriptors that are no sockets.
        hang_up(std::fs::File::open("/dev/null").unwrap());
    }
}
