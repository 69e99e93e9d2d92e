//! The log ([MS-VHDX] 2.3): changes of metadata that may not have been written to their places. They are
//! applied in memory, and the file does not change.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::{Guid, checksum, guid_at};
use crate::bytes::{le16, le32, le64};
use crate::error::{Fault, Result};
use crate::storage::{Storage, read_padded};

/// Number of bytes that the log changes at once. Entries begin at multiples of this number.
const PAGE: usize = 4096;
/// Number of bytes in an entry's header, and in a descriptor.
const HEADER_LEN: usize = 64;
const DESCRIPTOR_LEN: usize = 32;
/// Upper bound of the bytes in a log that is accepted.
const LOG_MAX: u64 = 32 << 20;
/// Upper bound of the pages that a log may change.
const PAGES_MAX: usize = 1 << 16;

/// The file with the changes of its log.
#[derive(Debug)]
pub(super) struct Replayed {
    storage: Box<dyn Storage>,
    /// The pages that the log changes, by their offset in the file. None means zeros.
    pages: BTreeMap<u64, Option<Box<[u8]>>>,
    /// The least size of the file.
    end: u64,
}

/// A valid entry of the log.
struct Entry {
    at: usize,
    len: usize,
    tail: usize,
    sequence: u64,
    descriptors: usize,
    last_file_offset: u64,
}

/// The log in memory.
struct Log {
    bytes: Vec<u8>,
    guid: Guid,
    /// Number of bytes that may still be read: the log of a hostile image may have many entries that overlap.
    budget: usize,
}

impl Log {
    /// Returns bytes from `at` on. The log is a ring.
    fn copy(&self, at: usize, len: usize) -> Vec<u8> {
        let at = at % self.bytes.len();
        let first = len.min(self.bytes.len() - at);
        [&self.bytes[at..at + first], &self.bytes[..len - first]].concat()
    }

    /// Returns the entry at `at` (2.3.1.1), if it is valid.
    fn entry(&mut self, at: usize) -> Result<Option<Entry>> {
        let header = self.copy(at, HEADER_LEN);
        let (len, tail) = (le32(&header, 8) as usize, le32(&header, 12) as usize);
        let descriptors = le32(&header, 24) as usize;
        let is_possible = header.starts_with(b"loge")
            && guid_at(&header, 32) == self.guid
            && len >= PAGE
            && len.is_multiple_of(PAGE)
            && len <= self.bytes.len()
            && tail.is_multiple_of(PAGE)
            && tail < self.bytes.len()
            && descriptors <= (len - HEADER_LEN) / DESCRIPTOR_LEN;
        if !is_possible {
            return Ok(None);
        }
        let left = self.budget.checked_sub(len);
        self.budget =
            left.ok_or_else(|| Fault::damaged("entries of its log contain each other"))?;
        let is_whole = le32(&header, 4) == checksum(&self.copy(at, len), 4);
        let (sequence, last_file_offset) = (le64(&header, 16), le64(&header, 56));
        let entry = Entry { at, len, tail, sequence, descriptors, last_file_offset };
        Ok((is_whole && sequence != 0).then_some(entry))
    }

    /// Returns the consecutive entries from `tail` on.
    fn sequence(&mut self, tail: usize) -> Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = Vec::new();
        let (mut at, mut len) = (tail, 0);
        while let Some(entry) = self.entry(at)? {
            let goes_on = entries.last().is_none_or(|last| last.sequence + 1 == entry.sequence);
            len += entry.len;
            if !goes_on || len > self.bytes.len() {
                break;
            }
            at = (at + entry.len) % self.bytes.len();
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Returns the entries to be applied (2.3.2): those of the complete sequence with the largest numbers,
    /// beginning with its tail, which the sequence's last entry names.
    fn active(&mut self) -> Result<Vec<Entry>> {
        let mut found: Vec<Entry> = Vec::new();
        let mut tail = 0;
        while tail < self.bytes.len() {
            let mut entries = self.sequence(tail)?;
            let len: usize = entries.iter().map(|entry| entry.len).sum();
            tail += len.max(PAGE);
            let first = entries
                .last()
                .and_then(|last| entries.iter().position(|entry| entry.at == last.tail));
            let is_newer = match (entries.last(), found.last()) {
                (Some(last), Some(before)) => last.sequence > before.sequence,
                (last, _) => last.is_some(),
            };
            if let Some(first) = first
                && is_newer
            {
                found = entries.split_off(first);
            }
        }
        Ok(found)
    }
}

impl Replayed {
    /// Returns the file in `storage` with the changes of its log. `header` is its current header (2.2.2).
    pub(super) fn open(storage: Box<dyn Storage>, header: &[u8]) -> Result<Replayed> {
        let end = storage.size()?;
        let mut replayed = Replayed { storage, pages: BTreeMap::new(), end };
        let guid = guid_at(header, 48);
        if guid == [0; 16] {
            return Ok(replayed);
        }
        let (len, at) = (u64::from(le32(header, 68)), le64(header, 72));
        let is_there = at.checked_add(len).is_some_and(|log_end| log_end <= end);
        if le16(header, 64) != 0 || len == 0 || len > LOG_MAX || !is_there || len % (1 << 20) != 0 {
            return Err(Fault::damaged(format!("its log cannot have {len} bytes at {at:#x}")));
        }
        let mut bytes = vec![0; len as usize];
        read_padded(&*replayed.storage, &mut bytes, at)?;
        let mut log = Log { budget: bytes.len() * 4, bytes, guid };
        let entries = log.active()?;
        for entry in &entries {
            replayed.apply(&log, entry)?;
        }
        if !replayed.pages.is_empty() {
            tracing::info!("applying the {} entries of its log in memory", entries.len());
        }
        Ok(replayed)
    }

    /// Returns whether the log had changes that were applied.
    pub(super) fn is_changed(&self) -> bool {
        !self.pages.is_empty()
    }

    fn apply(&mut self, log: &Log, entry: &Entry) -> Result<()> {
        let bytes = log.copy(entry.at, entry.len);
        // The header and the descriptors fill whole pages, and the pages of data follow (2.3.1).
        let head = (HEADER_LEN + entry.descriptors * DESCRIPTOR_LEN).next_multiple_of(PAGE);
        let mut data = bytes.get(head..).unwrap_or_default().chunks_exact(PAGE);
        let descriptors = bytes[HEADER_LEN..].chunks_exact(DESCRIPTOR_LEN).take(entry.descriptors);
        let wrong = || Fault::damaged("an entry of its log contradicts itself");
        for descriptor in descriptors {
            let (offset, sequence) = (le64(descriptor, 16), le64(descriptor, 24));
            let is_place = offset.is_multiple_of(PAGE as u64) && offset < i64::MAX as u64 / 2;
            if sequence != entry.sequence || !is_place {
                return Err(wrong());
            }
            match &descriptor[..4] {
                b"desc" => {
                    let page = data.next().ok_or_else(wrong)?;
                    let number = u64::from(le32(page, 4)) << 32 | u64::from(le32(page, PAGE - 4));
                    if !page.starts_with(b"data") || number != sequence {
                        return Err(wrong());
                    }
                    // The first and the last bytes of the page are in the descriptor.
                    let page = [&descriptor[8..16], &page[8..PAGE - 4], &descriptor[4..8]].concat();
                    self.pages.insert(offset, Some(page.into()));
                }
                b"zero" => {
                    let count = le64(descriptor, 8) / PAGE as u64;
                    if count > PAGES_MAX as u64 {
                        return Err(wrong());
                    }
                    let pages = (0..count).map(|index| (offset + index * PAGE as u64, None));
                    self.pages.extend(pages);
                }
                _ => return Err(wrong()),
            }
            if self.pages.len() > PAGES_MAX {
                return Err(Fault::unsupported("its log is too large to be applied in memory"));
            }
        }
        self.end = self.end.max(entry.last_file_offset.min(i64::MAX as u64));
        Ok(())
    }
}

fn read_only<T>() -> io::Result<T> {
    Err(ErrorKind::ReadOnlyFilesystem.into())
}

impl Storage for Replayed {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        read_padded(&*self.storage, bytes, offset)?;
        let page_len = PAGE as u64;
        let end = offset.saturating_add(bytes.len() as u64);
        for (start, page) in self.pages.range(offset / page_len * page_len..end) {
            let (from, to) = (offset.max(*start), end.min(start + page_len));
            let part = &mut bytes[(from - offset) as usize..(to - offset) as usize];
            match page {
                Some(page) => part.copy_from_slice(&page[(from - start) as usize..][..part.len()]),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        read_only()
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.end)
    }

    fn set_size(&self, _size: u64) -> io::Result<()> {
        read_only()
    }

    fn write_zeroes(&self, _offset: u64, _len: u64) -> io::Result<()> {
        read_only()
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        read_only()
    }

    fn run_at(&self, offset: u64, end: u64) -> io::Result<(bool, u64)> {
        self.storage.run_at(offset, end)
    }

    fn path(&self) -> Option<&Path> {
        self.storage.path()
    }

    fn allocated(&self) -> Option<u64> {
        self.storage.allocated()
    }
}
