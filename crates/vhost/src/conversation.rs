//! The conversation with a client, one message after the other.
//!
//! The crate `vhost` reads the messages, except for two, which are taken from the socket before it sees them:
//!
//! * those that enable a queue too early: QEMU (7.2 and others) sends SET_VRING_ENABLE for a network card
//!   before SET_FEATURES, which the crate regards as an error that ends the connection;
//! * SET_BACKEND_REQ_FD: the crate has no message for its socket by which a client learns of a changed
//!   configuration.

use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send,
};
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
        if !take(&socket, &session)? {
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

/// From `docs/interop/vhost-user`: the numbers of the messages, the bytes of a header and of the payload, and
/// fields of the flags.
const SET_VRING_ENABLE: u32 = 18;
const SET_BACKEND_REQ_FD: u32 = 21;
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

/// Looks at the message of which the first bytes have arrived. If it is one of those that the crate does not
/// see, takes it from the socket, obeys it and returns false. Otherwise, or at the end of the connection,
/// leaves it in the socket and returns true.
fn take<D: Device>(stream: &UnixStream, session: &Mutex<Session<D>>) -> io::Result<bool> {
    let mut header = [0; HEADER];
    let all = RecvFlags::WAITALL;
    match receive(stream, &mut header, all | RecvFlags::PEEK)? {
        0 => return Ok(true),
        HEADER => {}
        _ => return Err(io::Error::new(ErrorKind::TimedOut, "a message does not go on")),
    }
    let field = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| header[at + index]));
    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
    if (field(0), field(8)) == (SET_BACKEND_REQ_FD, 0) {
        let channel = receive_descriptor(stream)?;
        let result = session.set_channel(channel);
        answer(stream, SET_BACKEND_REQ_FD, field(4), result.is_err())?;
        return result.map(|()| false).map_err(|error| io::Error::other(error.to_string()));
    }
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
    answer(stream, SET_VRING_ENABLE, field(4), result.is_err())?;
    result.map(|()| false).map_err(|error| io::Error::other(error.to_string()))
}

/// Answers message `kind` with these flags, if the client wants that.
fn answer(stream: &UnixStream, kind: u32, flags: u32, has_failed: bool) -> io::Result<()> {
    if flags & NEED_REPLY != 0 {
        let words = [kind, VERSION | REPLY, PAYLOAD as u32, has_failed.into(), 0];
        send(stream, words.map(u32::to_le_bytes).as_flattened(), SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Takes a header with a descriptor from the socket, and returns the descriptor.
fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut header = [0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::WAITALL | RecvFlags::CMSG_CLOEXEC;
    recvmsg(stream, &mut [IoSliceMut::new(&mut header)], &mut ancillary, flags)?;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let first = descriptors.last();
    first.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a message has no descriptor"))
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
