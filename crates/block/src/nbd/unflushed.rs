//! The changes that were not flushed. If a server's host or guest dies, the server may have lost them, and
//! gets them again.

use std::collections::VecDeque;

use super::protocol::Command;

/// Number of bytes after which it is time to flush.
const BYTES_MAX: usize = 16 << 20;
/// Number of changes after which it is time to flush.
const COUNT_MAX: usize = 0x1000;

/// A change of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// The command: a write, or a write of zeros.
    pub(super) command: Command,
    pub(super) offset: u64,
    pub(super) len: u32,
    /// The data of a write, `len` bytes. Empty for a write of zeros.
    pub(super) data: Vec<u8>,
}

/// Changes, in the order in which the server has reported them as made.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    changes: VecDeque<Change>,
    /// Number of changes that were flushed.
    flushed: u64,
    bytes: usize,
}

impl Unflushed {
    pub(super) fn add(&mut self, change: Change) {
        self.bytes += change.data.len();
        self.changes.push_back(change);
    }

    /// Returns the number of changes so far, including those that were flushed.
    pub(super) fn count(&self) -> u64 {
        self.flushed + self.changes.len() as u64
    }

    /// Forgets the first `count` of all changes so far, since the server has made them permanent.
    pub(super) fn forget(&mut self, count: u64) {
        while self.flushed < count
            && let Some(change) = self.changes.pop_front()
        {
            self.flushed += 1;
            self.bytes -= change.data.len();
        }
    }

    pub(super) fn is_much(&self) -> bool {
        self.bytes >= BYTES_MAX || self.changes.len() >= COUNT_MAX
    }

    /// Returns the changes that were not flushed.
    pub(super) fn all(&self) -> Vec<Change> {
        self.changes.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushed_writes_are_forgotten() {
        let change = |offset| Change {
            command: Command::Write,
            offset,
            len: 4,
            data: vec![offset as u8; 4],
        };
        let mut unflushed = Unflushed::default();
        unflushed.add(change(0));
        unflushed.add(change(1));
        let count = unflushed.count();
        unflushed.add(change(2));
        unflushed.forget(count);
        assert_eq!(unflushed.all(), [change(2)]);
        // This flush was requested before the last one, and is answered after it.
        unflushed.forget(1);
        assert_eq!((unflushed.all(), unflushed.bytes), (vec![change(2)], 4));
        unflushed.forget(3);
        assert_eq!((unflushed.all(), unflushed.bytes), (vec![], 0));
        for _ in 0..COUNT_MAX {
            assert!(!unflushed.is_much());
            unflushed.add(change(0));
        }
        assert!(unflushed.is_much());
    }
}
