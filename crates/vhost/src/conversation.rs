//! A client's messages, one after the other.
//!
//! They are those of the crate `vhost`, but for queues that are enabled too early: QEMU (7.2 and others) says for a network card
//! SET_VRING_ENABLE before it has said SET_FEATURES. The crate takes that for an error and ends the connection, so these messages are
//! taken from the socket before it sees them.

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

/// How long a client may take for its first message, for the rest of one that has begun, and for taking an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers a client's messages to their end, which may wait. Its queues are stopped then, with all requests complete, and its memory is not mapped any more.
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

/// `docs/interop/vhost-user`: the number of the message, bytes of its header and its payload, and bits of its flags.
const SET_VRING_ENABLE: u32 = 18;
const HEADER: usize = 12;
const PAYLOAD: usize = 8;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Waits for something to come, or for the end; false if nothing does in that time.
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

/// Takes a message, of which something has come, and does what it says if it enables a queue too early. True if there is one of another kind, or the end.
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

/// Fewer bytes than there is room for are the end.
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
