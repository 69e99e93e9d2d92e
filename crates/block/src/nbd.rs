//! Network Block Device, as a client (the protocol is doc/proto.md of the NBD project).
//!
//! An export of a server is storage, so any format may be in it. Requests of several threads go over one connection, and are
//! answered in any order. A server that goes and comes back loses nothing: see [`requests`].
//!
//! * [`address`]: how an export is named; [`requests`]: those that the server has, and connections that are lost;
//! * [`handshake`], [`replies`]: what is said to the server, and by it; [`protocol`]: the numbers in it; [`stream`]: its bytes;
//! * [`unflushed`]: what the server may have lost.
//!
//! No thread belongs to the connection: one of those that wait for an answer reads for all of them, so a
//! request that is alone changes no threads. A server that comes back is told again of all writes that it had not
//! flushed, since it may have been a machine that died. Up to 16 MiB of such writes are kept; FUA with each
//! write would need no copies, at the price of a sync each.

mod address;
mod handshake;
pub mod protocol;
mod replies;
mod requests;
mod stream;
mod unflushed;

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::Error;
use crate::storage::Storage;
use address::Address;
use handshake::Export;
use protocol::Command;
use replies::{Request, wrong};
use requests::Requests;

/// Bytes of the largest request: less than what all servers take (32 MiB), and a multiple of all block sizes.
const REQUEST_MAX: u64 = 1 << 20;

/// An export of a server.
#[derive(Debug)]
pub struct Nbd {
    export: Export,
    requests: Arc<Requests>,
    /// Held alone by who reads blocks to write them with a part changed.
    blocks: RwLock<()>,
}

impl Nbd {
    /// `name` is the address of an export: `nbd://host:port/export`, `nbd+unix:///export?socket=path`, or QEMU's
    /// `nbd:host:port:exportname=export` and `nbd:unix:path:exportname=export`.
    pub fn is_address(name: &Path) -> bool {
        name.to_str().is_some_and(|name| name.starts_with("nbd:") || name.starts_with("nbd+unix:"))
    }

    /// Connects to the server, which must allow writing where `writes`.
    pub fn connect(name: &Path, writes: bool) -> Result<Nbd, Error> {
        let fails = |source: io::Error| Error::Open { path: name.to_owned(), source };
        let text = name.to_str().unwrap_or_default();
        let address: Address =
            text.parse().map_err(|error| fails(io::Error::new(ErrorKind::InvalidInput, error)))?;
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

    /// From now on what would have to wait for the server fails: nobody wants to know of it any more.
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

    /// Does something without data.
    fn act(&self, command: Command, offset: u64, len: u32) -> io::Result<()> {
        self.requests.ask(&Request::new(command, offset, len), &mut [])?;
        self.limit()
    }

    /// Does not let what is not flushed become too much.
    fn limit(&self) -> io::Result<()> {
        if self.requests.is_far_behind() { self.flush() } else { Ok(()) }
    }

    /// `offset` and `len` widened to whole blocks of the server.
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

    /// Calls `act` for the parts of a range that one request may have.
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

    /// Writes whole blocks, of which `bytes` are a part.
    fn write_part(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (start, len) = self.widened(offset, bytes.len() as u64);
        if (start, len) == (offset, bytes.len() as u64) {
            let _beside = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
            return self.write(bytes, offset);
        }
        // Nobody of us writes between.
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
        // A server that does not have it keeps all at once.
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
