//! The guest's memory: one memory file, mapped twice.
//!
//! The guest sees it below 4 GiB with the rights of the [`Layout`]; the host sees all of it
//! readable and writable somewhere else. So no page is both writable and executable, and
//! preparing a case costs no system call.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use libc::{PROT_EXEC, PROT_NONE, PROT_READ, PROT_WRITE};

use super::system;
use crate::layout::{FILLER, Layout, Region};
use crate::{PAGE_SIZE, Unavailable};

const ARENA: Region = Layout::FIXED.arena;

/// The mapped arena of the [`Layout`].
pub(super) struct Arena {
    guest: Mapping,
    host: Mapping,
}

impl Arena {
    /// Maps the arena, with the code region filled and the rest zero.
    pub(super) fn new() -> Result<Self, Unavailable> {
        // SAFETY: the name is a C string.
        let file = unsafe { libc::memfd_create(c"ring3-hostcpu".as_ptr(), libc::MFD_CLOEXEC) };
        let file = system("create a memory file", file)?;
        // SAFETY: the descriptor is new, and nothing else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // SAFETY: no memory is involved.
        let sized = unsafe { libc::ftruncate(file.as_raw_fd(), ARENA.len.into()) };
        system("size a memory file", sized)?;

        let host = Mapping::new(&file, ptr::null_mut(), PROT_READ | PROT_WRITE, 0)?;
        let low = ptr::without_provenance_mut(ARENA.start as usize);
        let guest = Mapping::new(&file, low, PROT_NONE, libc::MAP_FIXED_NOREPLACE)?;
        if guest.start.addr().get() != ARENA.start as usize {
            // A kernel before 4.17 takes the address as a hint.
            let error = std::io::Error::from_raw_os_error(libc::EEXIST);
            return Err(Unavailable::System { what: "map the arena where it belongs", error });
        }
        let mut arena = Self { guest, host };
        arena.bytes_mut(Layout::FIXED.code).fill(FILLER);
        arena.allow(Layout::FIXED.code, PROT_READ | PROT_EXEC)?;
        arena.allow(Layout::FIXED.data, PROT_READ | PROT_WRITE)?;
        arena.allow(Layout::FIXED.read_only, PROT_READ)?;
        Ok(arena)
    }

    /// Sets the guest's rights to `region`.
    fn allow(&mut self, region: Region, rights: libc::c_int) -> Result<(), Unavailable> {
        // SAFETY: the pages are the guest's mapping, to which there are no references.
        let result = unsafe {
            libc::mprotect(self.guest.at(region).as_ptr().cast(), region.len as usize, rights)
        };
        system("set the rights of the arena's pages", result).map(drop)
    }

    /// Returns the contents of `region`, which lies in the arena.
    pub(super) fn bytes(&self, region: Region) -> &[u8] {
        // SAFETY: the range is in the host's mapping, which lives as long as `self`. The guest
        // changes it only in a run, for which the caller has `&mut self`.
        unsafe { std::slice::from_raw_parts(self.host.at(region).as_ptr(), region.len as usize) }
    }

    /// Returns the contents of `region`, which lies in the arena, for changes.
    pub(super) fn bytes_mut(&mut self, region: Region) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        unsafe {
            std::slice::from_raw_parts_mut(self.host.at(region).as_ptr(), region.len as usize)
        }
    }

    /// Makes the read-only pages present for the guest. The kernel maps a page at its first read, and would
    /// report an earlier write as one to a page that is not present (bit 0 of the error code).
    pub(super) fn touch_read_only(&self) {
        let region = Layout::FIXED.read_only;
        for offset in (0..region.len).step_by(PAGE_SIZE as usize) {
            // SAFETY: the address is in the guest's mapping, which is readable there.
            unsafe { self.guest.at(region).add(offset as usize).read_volatile() };
        }
    }
}

/// One mapping of the arena's size.
struct Mapping {
    start: NonNull<u8>,
}

impl Mapping {
    fn new(
        file: &OwnedFd,
        address: *mut libc::c_void,
        rights: libc::c_int,
        flags: libc::c_int,
    ) -> Result<Self, Unavailable> {
        let (flags, file) = (flags | libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: without MAP_FIXED the kernel replaces no mapping that exists.
        let start = unsafe { libc::mmap(address, ARENA.len as usize, rights, flags, file, 0) };
        let error = std::io::Error::last_os_error();
        NonNull::new(start.cast())
            .filter(|_| start != libc::MAP_FAILED)
            .map(|start| Self { start })
            .ok_or(Unavailable::System { what: "map the arena", error })
    }

    /// Returns where `region` begins in this mapping.
    fn at(&self, region: Region) -> NonNull<u8> {
        assert!(ARENA.start <= region.start && region.end() <= ARENA.end());
        // SAFETY: the region is part of the arena, and the mapping has the arena's size.
        unsafe { self.start.add((region.start - ARENA.start) as usize) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference to it outlives the arena. The call
        // cannot fail for a range that is mapped.
        unsafe { libc::munmap(self.start.as_ptr().cast(), ARENA.len as usize) };
    }
}
