//! What is said to a server: doc/proto.md, "Protocol phases". Numbers are big-endian.

use std::fmt::{self, Debug, Formatter};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::address::{Address, Place};
use super::protocol::*;
use crate::bytes::{be32, be64};

/// How long a server may take for each step of the handshake.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes of a reply to an option.
const REPLY_MAX: u32 = 16 << 10;
/// The most replies to an option, and parts of a reply to a request.
const PARTS_MAX: usize = 0x1_0000;
/// The largest block size that is accepted.
const BLOCK_MAX: u32 = 64 << 10;

/// What the server says of an export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) size: u64,
    flags: u16,
    /// Requests are for multiples of so many bytes.
    pub(super) block: u64,
    /// The context by which it tells what is allocated.
    pub(super) allocation: Option<u32>,
}

impl Export {
    pub(super) fn is_read_only(&self) -> bool {
        self.flags & flag::READ_ONLY != 0
    }

    pub(super) fn can_flush(&self) -> bool {
        self.flags & flag::FLUSH != 0
    }

    pub(super) fn can_trim(&self) -> bool {
        self.flags & flag::TRIM != 0
    }

    pub(super) fn can_write_zeroes(&self) -> bool {
        self.flags & flag::WRITE_ZEROES != 0
    }
}

trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// A connection to a server.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    /// The number of the next request.
    next: u64,
    has_failed: bool,
}

impl Debug for Connection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("next", &self.next).finish_non_exhaustive()
    }
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("the NBD server does not keep to the protocol: {}", what.into()),
    )
}

fn refused(what: &str) -> io::Error {
    io::Error::other(format!("the NBD server {what}"))
}

impl Connection {
    /// Connects, and asks for an export.
    pub(super) fn open(address: &Address) -> io::Result<(Connection, Export)> {
        match &address.place {
            Place::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port))?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                let again = stream.try_clone()?;
                let opened = Connection::greet(Box::new(stream), &address.export)?;
                again.set_read_timeout(None)?;
                Ok(opened)
            }
            Place::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                let again = stream.try_clone()?;
                let opened = Connection::greet(Box::new(stream), &address.export)?;
                again.set_read_timeout(None)?;
                Ok(opened)
            }
        }
    }

    /// "Newstyle negotiation".
    fn greet(stream: Box<dyn Stream>, name: &str) -> io::Result<(Connection, Export)> {
        let mut connection = Connection { stream, next: 1, has_failed: false };
        let hello: [u8; 18] = connection.take()?;
        if hello[..16] != *MAGIC {
            return Err(wrong("it does not begin as a newstyle server"));
        }
        let flags = u16::from_be_bytes([hello[16], hello[17]]);
        if flags & FIXED_NEWSTYLE == 0 {
            return Err(refused("is too old: it has no fixed newstyle negotiation"));
        }
        let ours = flags & (FIXED_NEWSTYLE | NO_ZEROES);
        connection.stream.write_all(&u32::from(ours).to_be_bytes())?;
        let mut export = Export { block: 1, ..Export::default() };
        if connection.option(STRUCTURED, &[], |_, _| Ok(()))? {
            let mut data = with_len(name);
            data.extend(1_u32.to_be_bytes());
            data.extend(with_len(ALLOCATION));
            connection.option(SET_META_CONTEXT, &data, |kind, data| {
                if kind == META_CONTEXT && data.len() >= 4 && &data[4..] == ALLOCATION.as_bytes() {
                    export.allocation = Some(be32(data, 0));
                }
                Ok(())
            })?;
        }
        let mut data = with_len(name);
        data.extend([0, 1]);
        data.extend(INFO_BLOCK_SIZE.to_be_bytes());
        let mut is_known = false;
        let goes = connection.option(GO, &data, |kind, data| {
            let of = data.get(..2).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
            match (kind, of, data.len()) {
                (INFO, Some(INFO_EXPORT), 12) => {
                    is_known = true;
                    export.size = be64(data, 2);
                    export.flags = u16::from_be_bytes([data[10], data[11]]);
                }
                (INFO, Some(INFO_BLOCK_SIZE), 14) => {
                    let block = be32(data, 2);
                    if !block.is_power_of_two() || block > BLOCK_MAX {
                        return Err(wrong(format!("blocks of {block} bytes")));
                    }
                    export.block = u64::from(block);
                }
                _ => {}
            }
            Ok(())
        })?;
        if !goes {
            connection.send_option(EXPORT_NAME, name.as_bytes())?;
            let answer: [u8; 10] = connection.take()?;
            export.size = be64(&answer, 0);
            export.flags = u16::from_be_bytes([answer[8], answer[9]]);
            if ours & NO_ZEROES == 0 {
                connection.take::<124>()?;
            }
        } else if !is_known {
            return Err(wrong("it does not tell the size of the export"));
        }
        if i64::try_from(export.size).is_err() || !export.size.is_multiple_of(export.block) {
            return Err(wrong(format!(
                "an export of {} bytes in blocks of {}",
                export.size, export.block
            )));
        }
        Ok((connection, export))
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => refused("does not answer"),
            ErrorKind::UnexpectedEof => refused("has closed the connection"),
            _ => error,
        })?;
        Ok(bytes)
    }

    fn take_vec(&mut self, len: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn send_option(&mut self, option: u32, data: &[u8]) -> io::Result<()> {
        let mut bytes = MAGIC[8..].to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes)
    }

    /// Says an option, and calls `each` for what comes before the acknowledgement; false if the server does not know it.
    fn option(
        &mut self,
        option: u32,
        data: &[u8],
        mut each: impl FnMut(u32, &[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        self.send_option(option, data)?;
        for _ in 0..PARTS_MAX {
            let header: [u8; 20] = self.take()?;
            let (kind, len) = (be32(&header, 12), be32(&header, 16));
            if be64(&header, 0) != OPTION_REPLY || be32(&header, 8) != option || len > REPLY_MAX {
                return Err(wrong("a reply to an option"));
            }
            let data = self.take_vec(len)?;
            match kind {
                ACK => return Ok(true),
                UNSUPPORTED => return Ok(false),
                error if error & 1 << 31 != 0 => {
                    let says = String::from_utf8_lossy(&data).into_owned();
                    return Err(refused(&format!(
                        "refuses the export: {}",
                        if says.is_empty() { format!("error {error:#x}") } else { says }
                    )));
                }
                kind => each(kind, &data)?,
            }
        }
        Err(wrong("too many replies to an option"))
    }

    /// Sends a request with `data`, and takes the reply, of which `read` gets the data.
    fn request(
        &mut self,
        command: Command,
        offset: u64,
        len: u32,
        data: &[u8],
        read: &mut dyn FnMut(&mut Connection, Reply) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.has_failed {
            return Err(refused("was lost before"));
        }
        // An error that the server tells of leaves the connection as it is.
        self.has_failed = true;
        let number = self.next;
        self.next += 1;
        let mut bytes = REQUEST.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend((command as u16).to_be_bytes());
        bytes.extend(number.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes)?;
        let result = self.reply(number, command == Command::Read, read)?;
        self.has_failed = false;
        match result {
            0 => Ok(()),
            // The protocol has Linux's numbers.
            error => Err(io::Error::from_raw_os_error(error as i32)),
        }
    }

    /// Takes a whole reply; the server's error, if it tells of one.
    fn reply(
        &mut self,
        number: u64,
        has_data: bool,
        read: &mut dyn FnMut(&mut Connection, Reply) -> io::Result<()>,
    ) -> io::Result<u32> {
        let mut error = 0;
        for _ in 0..PARTS_MAX {
            let start: [u8; 4] = self.take()?;
            match u32::from_be_bytes(start) {
                SIMPLE_REPLY => {
                    let rest: [u8; 12] = self.take()?;
                    if be64(&rest, 4) != number {
                        return Err(wrong("a reply to nothing"));
                    }
                    if be32(&rest, 0) == 0 && has_data {
                        read(self, Reply::All)?;
                    }
                    return Ok(be32(&rest, 0));
                }
                STRUCTURED_REPLY => {}
                _ => return Err(wrong("no reply")),
            }
            let rest: [u8; 16] = self.take()?;
            let (flags, kind) =
                (u16::from_be_bytes([rest[0], rest[1]]), u16::from_be_bytes([rest[2], rest[3]]));
            let len = be32(&rest, 12);
            if be64(&rest, 4) != number {
                return Err(wrong("a reply to nothing"));
            }
            match kind {
                part::NONE if len == 0 => {}
                part::DATA if len > 8 => {
                    let at: [u8; 8] = self.take()?;
                    read(self, Reply::Data { at: u64::from_be_bytes(at), len: len - 8 })?;
                }
                part::HOLE if len == 12 => {
                    let hole: [u8; 12] = self.take()?;
                    read(self, Reply::Hole { at: be64(&hole, 0), len: be32(&hole, 8) })?;
                }
                part::BLOCK_STATUS if (12..=REPLY_MAX).contains(&len) => {
                    let status = self.take_vec(len)?;
                    read(self, Reply::Status(status))?;
                }
                kind if kind & part::ERROR != 0 && (6..=REPLY_MAX).contains(&len) => {
                    let data = self.take_vec(len)?;
                    error = be32(&data, 0).max(1);
                }
                kind => {
                    return Err(wrong(format!(
                        "a part of a reply of type {kind} with {len} bytes"
                    )));
                }
            }
            if flags & DONE != 0 {
                return Ok(error);
            }
        }
        Err(wrong("a reply in too many parts"))
    }

    /// Reads all of `bytes`.
    pub(super) fn read(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let len = bytes.len() as u32;
        let mut missing = bytes.len();
        self.request(Command::Read, offset, len, &[], &mut |connection, reply| {
            let place = |at: u64, len: u32| {
                let start = at
                    .checked_sub(offset)
                    .filter(|start| start + u64::from(len) <= bytes.len() as u64);
                start
                    .map(|start| start as usize..start as usize + len as usize)
                    .ok_or_else(|| wrong("data that were not asked for"))
            };
            let (range, is_hole) = match reply {
                Reply::All => (0..bytes.len(), false),
                Reply::Data { at, len } => (place(at, len)?, false),
                Reply::Hole { at, len } => (place(at, len)?, true),
                Reply::Status(_) => return Err(wrong("a status that was not asked for")),
            };
            missing =
                missing.checked_sub(range.len()).ok_or_else(|| wrong("data that come twice"))?;
            if is_hole {
                bytes[range].fill(0);
                Ok(())
            } else {
                connection.stream.read_exact(&mut bytes[range])
            }
        })?;
        if missing == 0 { Ok(()) } else { Err(wrong("data that do not come")) }
    }

    /// Writes all of `bytes`.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.request(Command::Write, offset, bytes.len() as u32, bytes, &mut |_, _| {
            Err(wrong("data that were not asked for"))
        })
    }

    /// Does something without data.
    pub(super) fn act(&mut self, command: Command, offset: u64, len: u32) -> io::Result<()> {
        self.request(command, offset, len, &[], &mut |_, _| {
            Err(wrong("data that were not asked for"))
        })
    }

    /// Whether there are data at `offset`, and how many bytes that is the same for.
    pub(super) fn status(
        &mut self,
        export: &Export,
        offset: u64,
        len: u32,
    ) -> io::Result<(bool, u64)> {
        let mut found = None;
        self.request(Command::BlockStatus, offset, len, &[], &mut |_, reply| {
            let Reply::Status(status) = reply else {
                return Err(wrong("data that were not asked for"));
            };
            if Some(be32(&status, 0)) == export.allocation {
                found = Some((be32(&status, 8) & READS_AS_ZERO == 0, u64::from(be32(&status, 4))));
            }
            Ok(())
        })?;
        found.filter(|(_, len)| *len > 0).ok_or_else(|| wrong("a status that says nothing"))
    }
}

/// A part of a reply.
enum Reply {
    /// All data follow.
    All,
    /// So many data for that place follow.
    Data { at: u64, len: u32 },
    /// There are zeros.
    Hole { at: u64, len: u32 },
    /// The context, and lengths with flags.
    Status(Vec<u8>),
}

fn with_len(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut bytes = REQUEST.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend((Command::Disconnect as u16).to_be_bytes());
        bytes.extend([0; 20]);
        // There is no reply, and nobody to tell.
        let _ = self.stream.write_all(&bytes);
    }
}
