//! Transfers between guest memory and a file of the host, without a copy in this process.
//!
//! This is the only `unsafe` code of the crate. The kernel reads and writes memory that the guest may change
//! at any time, so no Rust slice may refer to this memory, and no safe function of the standard library or of
//! `rustix` accepts anything else.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use ring3_vhost::chain::Buffer;
use vm_memory::{GuestAddress, GuestMemory, GuestMemoryMmap, Permissions, VolatileSlice};

/// Upper bound of the parts in one system call (IOV_MAX).
const PARTS_MAX: usize = 1024;

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the file to the guest.
    ToGuest,
    /// From the guest to the file.
    FromGuest,
}

/// Parts of guest memory, which are used one after another.
#[derive(Debug)]
pub(crate) struct Parts<'a>(Vec<VolatileSlice<'a>>);

impl<'a> Parts<'a> {
    /// Returns the parts that make up `buffers`, or None if one of them is not wholly in memory.
    pub(crate) fn of(memory: &'a GuestMemoryMmap, buffers: &[Buffer]) -> Option<Parts<'a>> {
        let mut parts = Vec::with_capacity(buffers.len());
        for Buffer { at: GuestAddress(at), len } in buffers {
            let slices =
                memory.get_slices(GuestAddress(*at), *len as usize, Permissions::ReadWrite);
            for slice in slices.ok()? {
                parts.push(slice.ok()?);
            }
        }
        Some(Parts(parts))
    }

    /// Returns the number of bytes in all parts.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(VolatileSlice::len).sum()
    }

    /// Returns the parts that follow the first `done` bytes.
    pub(crate) fn behind(&self, done: usize) -> Parts<'a> {
        let mut skip = done;
        let mut parts = Vec::with_capacity(self.0.len());
        for part in &self.0 {
            let here = skip.min(part.len());
            skip -= here;
            if here < part.len() {
                parts.extend(part.offset(here).ok());
            }
        }
        Parts(parts)
    }

    /// Copies `bytes` to the parts, which have the same length.
    pub(crate) fn write(&self, mut bytes: &[u8]) {
        for part in &self.0 {
            let (now, later) = bytes.split_at(part.len().min(bytes.len()));
            part.copy_from(now);
            bytes = later;
        }
    }

    /// Copies the parts to `bytes`, which have the same length.
    pub(crate) fn read(&self, mut bytes: &mut [u8]) {
        for part in &self.0 {
            let (now, later) = bytes.split_at_mut(part.len().min(bytes.len()));
            part.copy_to(now);
            bytes = later;
        }
    }

    /// Moves data between `file`, from `offset` on, and the parts, by one system call. Returns the number of
    /// bytes moved. Unless `waits` is set, moves only as much as needs no waiting for the host.
    pub(crate) fn transfer(
        &self,
        direction: Direction,
        file: BorrowedFd<'_>,
        offset: u64,
        waits: bool,
    ) -> io::Result<usize> {
        let guards: Vec<_> =
            self.0.iter().take(PARTS_MAX).map(VolatileSlice::ptr_guard_mut).collect();
        let parts: Vec<_> = guards
            .iter()
            .map(|guard| libc::iovec { iov_base: guard.as_ptr().cast(), iov_len: guard.len() })
            .collect();
        let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = if waits { 0 } else { libc::RWF_NOWAIT };
        let (fd, count) = (file.as_raw_fd(), parts.len() as libc::c_int);
        // SAFETY: `parts` has `count` entries. Each of them describes memory that stays mapped as long as the
        // guards exist. It is guest memory, so it belongs to no Rust value, may contain any bytes, and may
        // change at any time. The file is open as long as it is borrowed. If pages of the memory have
        // vanished, the kernel returns EFAULT.
        let moved = unsafe {
            match direction {
                Direction::ToGuest => libc::preadv2(fd, parts.as_ptr(), count, offset, flags),
                Direction::FromGuest => libc::pwritev2(fd, parts.as_ptr(), count, offset, flags),
            }
        };
        usize::try_from(moved).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use vm_memory::Bytes;

    use super::*;

    #[test]
    fn data_are_spread_over_all_parts_and_collected_from_them() {
        let ranges = [(GuestAddress(0), 0x1000), (GuestAddress(0x1000), 0x1000)];
        let memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"0123456789", 3).unwrap();
        let buffer = |at, len| Buffer { at: GuestAddress(at), len };
        // The second buffer lies in both regions.
        let parts =
            Parts::of(&memory, &[buffer(0x10, 3), buffer(0xffe, 4), buffer(0x20, 0)]).unwrap();
        assert_eq!(parts.len(), 7);
        assert_eq!(parts.transfer(Direction::ToGuest, file.as_fd(), 4, true).unwrap(), 7);
        let mut bytes = [0; 7];
        parts.read(&mut bytes);
        assert_eq!(&bytes, b"1234567");
        parts.behind(4).write(b"abc");
        assert_eq!(parts.transfer(Direction::FromGuest, file.as_fd(), 20, true).unwrap(), 7);
        file.read_exact_at(&mut bytes, 20).unwrap();
        assert_eq!(&bytes, b"1234abc");
        let mut three = [0; 3];
        memory.read_slice(&mut three, GuestAddress(0xfff)).unwrap();
        assert_eq!(&three, b"abc");
        assert!(Parts::of(&memory, &[buffer(0x1fff, 2)]).is_none());
        assert!(Parts::of(&memory, &[buffer(u64::MAX, 2)]).is_none());
    }
}
