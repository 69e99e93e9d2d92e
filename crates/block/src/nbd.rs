//! A client for Network Block Device (the protocol is doc/proto.md of the NBD project).
//!
//! An export of a server is storage, so it may contain an image of any format. Requests of several threads
//! share one connection, and are answered in any order. A server that goes and comes back loses nothing, see
//! [`requests`].
//!
//! * [`address`]: the address of an export; [`requests`]: the requests under way, and lost connections;
//! * [`handshake`], [`replies`]: the messages in both directions; [`protocol`]: the constants in them;
//!   [`stream`]: the connection's bytes;
//! * [`unflushed`]: the changes that the server may have lost.
//!
//! The connection has no thread of its own: one of the threads that wait for an answer reads for all of them,
//! so a single request needs no change of threads. A server that comes back gets all writes again that it had
//! not flushed, since the machine in which it ran may have died. Up to 16 MiB of such writes are kept. With
//! FUA for each write no copies would be needed, but each write would cost a sync.

mod address;
mod handshake;
pub mod protocol;
mod replies;
mod requests;
mod stream;
mod unflushed;

use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::error::Error;
use crate::storage::Storage;
use address::{Address, Place, Waits};
use handshake::Export;
use protocol::Command;
use replies::{Request, wrong};
use requests::Requests;

/// Upper bound of the bytes in a request: less than all servers accept (32 MiB), and a multiple of all block
/// sizes.
const REQUEST_MAX: u64 = 1 << 20;

/// The connections with a server that comes to its client.
pub trait Source: Debug + Send + Sync {
    /// Returns the server's name in messages.
    fn name(&self) -> &str;

    /// Returns a new connection, at whose other end a server begins. Waits a moment at most. Fails with an
    /// error of kind `InvalidData` if there will never be one.
    fn connect(&self) -> io::Result<OwnedFd>;
}

/// An export of a server.
#[derive(Debug)]
pub struct Nbd {
    export: Export,
    requests: Arc<Requests>,
    /// Held for writing while the part of a block is changed: the block is read, and then written.
    blocks: RwLock<()>,
}

impl Nbd {
    /// Returns whether `name` is the address of an export: `nbd://host:port/export`,
    /// `nbd+unix:///export?socket=path`, or QEMU's `nbd:host:port:exportname=export` and
    /// `nbd:unix:path:exportname=export`.
    pub fn is_address(name: &Path) -> bool {
        name.to_str().is_some_and(|name| name.starts_with("nbd:") || name.starts_with("nbd+unix:"))
    }

    /// Connects to the server. If `writes` is set, the server must allow writing.
    pub fn connect(name: &Path, writes: bool) -> Result<Nbd, Error> {
        let fails = |source: io::Error| Error::Open { path: name.to_owned(), source };
        let text = name.to_str().unwrap_or_default();
        let address: Address =
            text.parse().map_err(|error| fails(io::Error::new(ErrorKind::InvalidInput, error)))?;
        Nbd::open(address, name, writes)
    }

    /// Connects to a server by `source`. Requests wait for `reconnect` if the connection is lost.
    pub fn over(
        source: Arc<dyn Source>,
        export: &str,
        reconnect: Duration,
        writes: bool,
    ) -> Result<Nbd, Error> {
        let name = source.name().to_owned();
        // One that is there and does not answer counts as gone after the same time.
        let answer = Some(reconnect).filter(|time| !time.is_zero());
        let waits = Waits { reconnect, answer, ..Waits::default() };
        let address = Address { place: Place::Other(source), export: export.to_owned(), waits };
        Nbd::open(address, Path::new(&name), writes)
    }

    fn open(address: Address, name: &Path, writes: bool) -> Result<Nbd, Error> {
        let fails = |source: io::Error| Error::Open { path: name.to_owned(), source };
        let (requests, export) = Requests::open(address).map_err(fails)?;
        if writes && export.is_read_only() {
            return Err(Error::Permission {
                path: name.to_owned(),
                what: "write to",
                hint: "the server exports it for reading only",
            });
        }
        Ok(Nbd { export, requests, blocks: RwLock::default() })
    }

    /// Returns whether the server exports it for reading only.
    pub fn is_read_only(&self) -> bool {
        self.export.is_read_only()
    }

    /// Lets requests fail from now on that would have to wait for the server, since nobody needs them any
    /// more.
    pub fn give_up(&self) {
        self.requests.give_up();
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let request = Request::new(Command::Read, offset, bytes.len() as u32);
        self.requests.ask(&request, bytes).map(drop)
    }

    fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let request = Request { data, ..Request::new(Command::Write, offset, data.len() as u32) };
        self.requests.ask(&request, &mut [])?;
        self.limit()
    }

    /// Executes a command without data.
    fn act(&self, command: Command, offset: u64, len: u32) -> io::Result<()> {
        self.requests.ask(&Request::new(command, offset, len), &mut [])?;
        self.limit()
    }

    /// Flushes when the changes that are not flushed become too many.
    fn limit(&self) -> io::Result<()> {
        if self.requests.is_far_behind() { self.flush() } else { Ok(()) }
    }

    /// Widens a range to whole blocks of the server. Returns the new offset and length.
    fn widened(&self, offset: u64, len: u64) -> (u64, u64) {
        let block = self.export.block;
        let start = offset / block * block;
        (start, (offset + len).next_multiple_of(block) - start)
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.export.size => Ok(()),
            _ => Err(io::Error::new(ErrorKind::UnexpectedEof, "the export ends before")),
        }
    }

    /// Calls `act` for parts of a range that are small enough for one request.
    fn each(
        offset: u64,
        len: u64,
        mut act: impl FnMut(u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let count = (REQUEST_MAX - (offset + done) % REQUEST_MAX).min(len - done);
            act(offset + done, count)?;
            done += count;
        }
        Ok(())
    }

    /// Writes `bytes`, together with the rest of the blocks to which they belong.
    fn write_part(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (start, len) = self.widened(offset, bytes.len() as u64);
        if (start, len) == (offset, bytes.len() as u64) {
            let _beside = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
            return self.write(bytes, offset);
        }
        // No other thread of this process may write to these blocks in between.
        let _alone = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
        let mut blocks = vec![0; len as usize];
        self.read(&mut blocks, start)?;
        blocks[(offset - start) as usize..][..bytes.len()].copy_from_slice(bytes);
        self.write(&blocks, start)
    }
}

impl Storage for Nbd {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(offset, bytes.len() as u64)?;
        Nbd::each(offset, bytes.len() as u64, |at, count| {
            let part = &mut bytes[(at - offset) as usize..][..count as usize];
            let (start, len) = self.widened(at, count);
            if (start, len) == (at, count) {
                return self.read(part, at);
            }
            let mut blocks = vec![0; len as usize];
            self.read(&mut blocks, start)?;
            part.copy_from_slice(&blocks[(at - start) as usize..][..part.len()]);
            Ok(())
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check(offset, bytes.len() as u64)?;
        Nbd::each(offset, bytes.len() as u64, |at, count| {
            self.write_part(&bytes[(at - offset) as usize..][..count as usize], at)
        })
    }

    fn flush(&self) -> io::Result<()> {
        // A server without this command makes each write permanent at once.
        if self.export.can_flush() {
            self.requests.ask(&Request::new(Command::Flush, 0, 0), &mut []).map(drop)
        } else {
            Ok(())
        }
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.export.size)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        if size <= self.export.size {
            return Ok(());
        }
        let there = self.export.size;
        Err(io::Error::other(format!("the export has {there} bytes, and {size} are needed")))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len)?;
        Nbd::each(offset, len, |at, count| {
            let is_whole = self.widened(at, count) == (at, count);
            if is_whole && self.export.can_write_zeroes() {
                let _beside = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
                self.act(Command::WriteZeroes, at, count as u32)
            } else {
                self.write_part(&vec![0; count as usize], at)
            }
        })
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let len = self.export.size.saturating_sub(offset).min(len);
        let block = self.export.block;
        let (start, end) = (offset.next_multiple_of(block), (offset + len) / block * block);
        if !self.export.can_trim() || start >= end {
            return Ok(());
        }
        Nbd::each(start, end - start, |at, count| self.act(Command::Trim, at, count as u32))
    }

    fn run_at(&self, offset: u64, end: u64) -> io::Result<(bool, u64)> {
        if self.export.allocation.is_none() || offset >= end.min(self.export.size) {
            return Ok((true, end));
        }
        let (start, len) = self.widened(offset, (end.min(self.export.size) - offset).min(1 << 30));
        let context = self.export.allocation;
        let request = Request { context, ..Request::new(Command::BlockStatus, start, len as u32) };
        let (is_data, count) = self
            .requests
            .ask(&request, &mut [])?
            .filter(|(_, count)| *count > 0)
            .ok_or_else(|| wrong("a status that says nothing"))?;
        Ok((is_data, (start + count).clamp(offset + 1, end)))
    }
}
