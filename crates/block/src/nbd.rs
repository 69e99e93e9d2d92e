//! Network Block Device, as a client (the protocol is doc/proto.md of the NBD project).
//!
//! An export of a server is storage, so any format may be in it. Requests go over one connection, one after the other.
//! A connection that fails stays failed: what was not flushed may be lost, and all that comes after is refused.
//!
//! * [`address`]: how an export is named; [`connection`]: what is said to the server; [`protocol`]: the numbers in it.

mod address;
mod connection;
pub mod protocol;

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::storage::Storage;
use address::Address;
use connection::{Connection, Export};
use protocol::Command;

/// Bytes of the largest request: less than what all servers take (32 MiB), and a multiple of all block sizes.
const REQUEST_MAX: u64 = 1 << 20;

/// An export of a server.
#[derive(Debug)]
pub struct Nbd {
    export: Export,
    connection: Mutex<Connection>,
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
        let (connection, export) = Connection::open(&address).map_err(fails)?;
        if writes && export.is_read_only() {
            return Err(Error::Permission {
                path: name.to_owned(),
                what: "write to",
                hint: "the server exports it for reading only",
            });
        }
        Ok(Nbd { export, connection: Mutex::new(connection) })
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn write_part(&self, connection: &mut Connection, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (start, len) = self.widened(offset, bytes.len() as u64);
        if (start, len) == (offset, bytes.len() as u64) {
            return connection.write(bytes, offset);
        }
        // Nobody else has the connection, so nobody of us writes between.
        let mut blocks = vec![0; len as usize];
        connection.read(&mut blocks, start)?;
        blocks[(offset - start) as usize..][..bytes.len()].copy_from_slice(bytes);
        connection.write(&blocks, start)
    }
}

impl Storage for Nbd {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(offset, bytes.len() as u64)?;
        let mut connection = self.connection();
        Nbd::each(offset, bytes.len() as u64, |at, count| {
            let part = &mut bytes[(at - offset) as usize..][..count as usize];
            let (start, len) = self.widened(at, count);
            if (start, len) == (at, count) {
                return connection.read(part, at);
            }
            let mut blocks = vec![0; len as usize];
            connection.read(&mut blocks, start)?;
            part.copy_from_slice(&blocks[(at - start) as usize..][..part.len()]);
            Ok(())
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check(offset, bytes.len() as u64)?;
        let mut connection = self.connection();
        Nbd::each(offset, bytes.len() as u64, |at, count| {
            self.write_part(&mut connection, &bytes[(at - offset) as usize..][..count as usize], at)
        })
    }

    fn flush(&self) -> io::Result<()> {
        // A server that does not have it keeps all at once.
        if self.export.can_flush() { self.connection().act(Command::Flush, 0, 0) } else { Ok(()) }
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
        let mut connection = self.connection();
        Nbd::each(offset, len, |at, count| {
            let is_whole = self.widened(at, count) == (at, count);
            if is_whole && self.export.can_write_zeroes() {
                connection.act(Command::WriteZeroes, at, count as u32)
            } else {
                self.write_part(&mut connection, &vec![0; count as usize], at)
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
        let mut connection = self.connection();
        Nbd::each(start, end - start, |at, count| connection.act(Command::Trim, at, count as u32))
    }

    fn run_at(&self, offset: u64, end: u64) -> io::Result<(bool, u64)> {
        if self.export.allocation.is_none() || offset >= end.min(self.export.size) {
            return Ok((true, end));
        }
        let (start, len) = self.widened(offset, (end.min(self.export.size) - offset).min(1 << 30));
        let (is_data, count) = self.connection().status(&self.export, start, len as u32)?;
        Ok((is_data, (start + count).clamp(offset + 1, end)))
    }
}
