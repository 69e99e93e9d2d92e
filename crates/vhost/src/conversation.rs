//! The conversation with a client, one message after the other.
//!
//! The crate `vhost` reads the messages, except for those that enable a queue too early: QEMU (7.2 and
//! others) sends SET_VRING_ENABLE for a network card before SET_FEATURES. The crate regards this as an error
//! and ends the connection, so these messages are taken from the socket before it sees them.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tracing::debug;
use vhost::vhost_user::{BackendReqHandler, Error as Message, VhostUserBackendReqHandlerMut};

use crate::session::{Device, Session};

/// How long a client may take for its first message, for the rest of a message that has begun, and to accept
/// an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers a client's messages until it disconnects, waiting for them. At the end its queues are stopped,
/// with all their requests complete, and its memory is unmapped.
pub fn talk<D: Device>(stream: UnixStream, session: Session<D>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    if !comes(&stream, Some(PATIENCE))? {
        return Err(io::Error::new(ErrorKind::TimedOut, "the client says nothing"));
    }
    let session = Arc::new(Mutex::new(session));
    let socket = stream.try_clone()?;
    let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&session));
    loop {
        comes(&socket, None)?;
        if !take_early(&socket, &session)? {
            continue;
        }
        match handler.handle_request() {
            Ok(()) => {}
            Err(Message::Disconnected | Message::PartialMessage) => return Ok(()),
            Err(Message::SocketBroken(error) | Message::SocketError(error)) => {
                debug!("the socket ends: {error}");
                return Ok(());
            }
            Err(error) => return Err(io::Error::other(error.to_string())),
        }
    }
}

/// From `docs/interop/vhost-user`: the number of the message, the bytes of its header and of its payload, and
/// fields of its flags.
const SET_VRING_ENABLE: u32 = 18;
const HEADER: usize = 12;
const PAYLOAD: usize = 8;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Waits until a message arrives or the connection ends. Returns false if neither happens in time.
fn comes(stream: &UnixStream, patience: Option<Duration>) -> io::Result<bool> {
    let patience = patience.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: 0 });
    loop {
        match poll(&mut [PollFd::new(stream, PollFlags::IN)], patience.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Looks at the message of which the first bytes have arrived. If it enables a queue too early, takes it from
/// the socket, obeys it and returns false. Otherwise, or at the end of the connection, leaves it in the
/// socket and returns true.
fn take_early<D: Device>(stream: &UnixStream, session: &Mutex<Session<D>>) -> io::Result<bool> {
    let mut header = [0; HEADER];
    let all = RecvFlags::WAITALL;
    match receive(stream, &mut header, all | RecvFlags::PEEK)? {
        0 => return Ok(true),
        HEADER => {}
        _ => return Err(io::Error::new(ErrorKind::TimedOut, "a message does not go on")),
    }
    let field = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| header[at + index]));
    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
    let is_early = !session.has_protocol();
    if field(0) != SET_VRING_ENABLE || field(8) != PAYLOAD as u32 || !is_early {
        return Ok(true);
    }
    let mut message = [0; HEADER + PAYLOAD];
    if receive(stream, &mut message, all)? < message.len() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let field = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| message[at + index]));
    let enables = field(HEADER + 4) != 0;
    let result = session.set_vring_enable(field(HEADER), enables);
    if field(4) & NEED_REPLY != 0 {
        let words = [SET_VRING_ENABLE, VERSION | REPLY, PAYLOAD as u32, result.is_err().into(), 0];
        send(stream, words.map(u32::to_le_bytes).as_flattened(), SendFlags::NOSIGNAL)?;
    }
    result.map(|()| false).map_err(|error| io::Error::other(error.to_string()))
}

/// Reads into `bytes`, and returns the number of bytes read, which is less than there is room for if the
/// connection ends or is too slow.
fn receive(stream: &UnixStream, bytes: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    loop {
        match recv(stream, &mut *bytes, flags) {
            Ok((len, _)) => return Ok(len),
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(0),
            Err(error) => return Err(error.into()),
        }
    }
}
