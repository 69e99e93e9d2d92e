//! The socket of a client at a vblock server, at which it learns of its devices and is connected with them.
//! Each message is a JSON object on one line.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::Deserialize;
use serde_json::{Value, json};

/// Upper bound of the bytes in a message.
const MESSAGE_MAX: usize = 64 << 10;
/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A device that the client may use.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Device {
    /// The device's name.
    pub device: String,
    /// Size in bytes.
    pub size: u64,
    /// Number of bytes in a sector.
    pub sector_size: u64,
    /// `r` or `rw`.
    pub access: String,
}

/// A change of the devices that the client may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A device has come.
    Added(Device),
    /// The device of this name has gone.
    Removed(String),
    /// A device has another size.
    Resized(Device),
}

/// A connection with the client's socket.
#[derive(Debug)]
pub struct Lobby {
    stream: UnixStream,
    /// Bytes of the next line.
    line: Vec<u8>,
    events: VecDeque<Event>,
}

impl Lobby {
    /// Connects to the client's socket.
    pub fn connect(socket: &Path) -> io::Result<Lobby> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Lobby { stream, line: Vec::new(), events: VecDeque::new() })
    }

    /// Returns the devices that the client may use.
    pub fn devices(&mut self) -> io::Result<Vec<Device>> {
        let (answer, _) = self.ask("query-devices", &json!({}))?;
        Ok(serde_json::from_value(answer)?)
    }

    /// Returns a connection with a device: over vhost-user-blk, or with `direct` to its provider, which is an
    /// NBD server. The latter lasts as long as this connection, and until it makes another.
    pub fn open(&mut self, device: &str, direct: bool) -> io::Result<OwnedFd> {
        let arguments = json!({ "device": device, "direct": direct });
        let (_, descriptor) = self.ask("connect", &arguments)?;
        descriptor.ok_or_else(|| invalid("the server sends no descriptor"))
    }

    /// Returns the next change that the server has told, without waiting.
    pub fn event(&mut self) -> io::Result<Option<Event>> {
        if self.events.is_empty() {
            match self.read(RecvFlags::DONTWAIT) {
                Ok((message, _)) => self.note(&message),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.events.pop_front())
    }

    /// Sends a message, and returns the answer with its descriptor.
    fn ask(&mut self, command: &str, arguments: &Value) -> io::Result<(Value, Option<OwnedFd>)> {
        let message = json!({ "execute": command, "arguments": arguments });
        self.stream.write_all(format!("{message}\n").as_bytes())?;
        loop {
            let (mut answer, descriptor) = self.read(RecvFlags::empty())?;
            if let Some(why) = answer["error"]["desc"].as_str() {
                return Err(io::Error::other(why.to_owned()));
            }
            if answer.get("return").is_some() {
                return Ok((answer["return"].take(), descriptor));
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, message: &Value) {
        let device = || Device::deserialize(&message["data"]).ok();
        let event = match message["event"].as_str() {
            Some("DEVICE_ADDED") => device().map(Event::Added),
            Some("DEVICE_RESIZED") => device().map(Event::Resized),
            Some("DEVICE_REMOVED") => {
                message["data"]["device"].as_str().map(|name| Event::Removed(name.to_owned()))
            }
            _ => None,
        };
        self.events.extend(event);
    }

    /// Reads a line, and the descriptor that came with it.
    fn read(&mut self, flags: RecvFlags) -> io::Result<(Value, Option<OwnedFd>)> {
        let mut descriptor = None;
        loop {
            let mut byte = [0];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut byte)];
            let flags = flags | RecvFlags::CMSG_CLOEXEC;
            let received = recvmsg(&self.stream, &mut parts, &mut ancillary, flags)?;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    descriptor = descriptors.last().or(descriptor);
                }
            }
            match byte {
                _ if received.bytes == 0 => return Err(ErrorKind::UnexpectedEof.into()),
                [b'\n'] => break,
                _ if self.line.len() >= MESSAGE_MAX => {
                    return Err(invalid("the server's message is too long"));
                }
                [byte] => self.line.push(byte),
            }
        }
        let message = serde_json::from_slice(&std::mem::take(&mut self.line))?;
        Ok((message, descriptor))
    }
}

/// Readable when there may be an [event](Lobby::event).
impl AsFd for Lobby {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}
