//! Guest memory that a client shares by descriptors.
//!
//! The client stays its owner: it writes to it at any time, and could make the file shorter, after which each
//! access of this process behind its new end would be a SIGBUS. So memory must be sealed against that
//! (F_SEAL_SHRINK of fcntl(2)), as QEMU's `memory-backend-memfd` and ring3's own memory are. Memory of huge pages is refused too,
//! where a page that the client takes back is not always there again.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstatfs, memfd_create};
use thiserror::Error;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// The most pieces of memory: what a message of the protocol has room for.
pub const SLOTS: usize = 8;
/// HUGETLBFS_MAGIC of statfs(2).
const HUGE_PAGES: u64 = 0x958458f6;

/// Why memory is refused.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// Its file could become shorter.
    #[error(
        "its memory is not sealed against becoming shorter; with QEMU, use -object memory-backend-memfd,share=on"
    )]
    NotSealed,
    /// Its file has huge pages.
    #[error("its memory has huge pages, which are not safe to share")]
    HugePages,
    /// Its file ends before the piece does.
    #[error("the file of its memory ends too early")]
    Short,
    /// The host refuses.
    #[error("its memory cannot be mapped: {0}")]
    Map(io::Error),
    /// The pieces do not go together.
    #[error("its memory overlaps, or there are more than {SLOTS} pieces")]
    Layout,
    /// A piece to be removed that is not there.
    #[error("it takes away memory that is not there")]
    Missing,
}

/// A piece of memory, as the client describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its guest-physical address.
    pub guest: u64,
    /// Bytes.
    pub len: u64,
    /// Its address in the client.
    pub user: u64,
    /// Where it begins in the file.
    pub offset: u64,
}

impl Piece {
    /// What a message says of one.
    pub fn of(region: &VhostUserMemoryRegion) -> Piece {
        Piece {
            guest: region.guest_phys_addr,
            len: region.memory_size,
            user: region.user_addr,
            offset: region.mmap_offset,
        }
    }
}

/// All memory of a client.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    pieces: Vec<(Piece, Arc<GuestRegionMmap>)>,
    guest: Arc<GuestMemoryMmap>,
}

impl Memory {
    /// What is to be read and written by guest-physical addresses.
    pub fn guest(&self) -> &Arc<GuestMemoryMmap> {
        &self.guest
    }

    /// No piece was put in.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Puts `file`'s part in.
    pub fn add(&mut self, piece: Piece, file: File) -> Result<(), MemoryError> {
        if self.pieces.len() == SLOTS {
            return Err(MemoryError::Layout);
        }
        check(&file, piece.offset, piece.len)?;
        let len = usize::try_from(piece.len).map_err(|_| MemoryError::Layout)?;
        let mapping = MmapRegion::from_file(FileOffset::new(file, piece.offset), len)
            .map_err(|error| MemoryError::Map(io::Error::other(error)))?;
        let region = GuestRegionMmap::new(mapping, GuestAddress(piece.guest));
        let region = Arc::new(region.ok_or(MemoryError::Layout)?);
        let mut pieces = self.pieces.clone();
        pieces.push((piece, region));
        pieces.sort_by_key(|(piece, _)| piece.guest);
        self.replace(pieces)
    }

    /// Takes a piece out.
    pub fn remove(&mut self, piece: Piece) -> Result<(), MemoryError> {
        let same = |there: &Piece| {
            (there.guest, there.len, there.user) == (piece.guest, piece.len, piece.user)
        };
        let at = self.pieces.iter().position(|(there, _)| same(there));
        let mut pieces = self.pieces.clone();
        pieces.remove(at.ok_or(MemoryError::Missing)?);
        self.replace(pieces)
    }

    fn replace(&mut self, pieces: Vec<(Piece, Arc<GuestRegionMmap>)>) -> Result<(), MemoryError> {
        let regions: Vec<_> = pieces.iter().map(|(_, region)| Arc::clone(region)).collect();
        self.guest = Arc::new(if regions.is_empty() {
            GuestMemoryMmap::default()
        } else {
            GuestMemoryMmap::from_arc_regions(regions).map_err(|_| MemoryError::Layout)?
        });
        self.pieces = pieces;
        Ok(())
    }

    /// The guest-physical address of what is at `user` in the client.
    pub fn guest_address(&self, user: u64) -> Option<GuestAddress> {
        self.pieces.iter().find_map(|(piece, _)| {
            let inside = user.checked_sub(piece.user).filter(|inside| *inside < piece.len)?;
            // It does not overflow: the memory was mapped.
            Some(GuestAddress(piece.guest + inside))
        })
    }
}

/// A file in memory with `len` bytes, all zeros, which nobody can make shorter or longer: one that [`check`] does not refuse.
pub fn sealed(name: &str, len: u64) -> io::Result<File> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let file = File::from(file);
    file.set_len(len)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Refuses files that do not have, or may not keep, `len` bytes from `offset` on.
pub fn check(file: &File, offset: u64, len: u64) -> Result<(), MemoryError> {
    // Only memory files have seals.
    let seals = fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK) {
        return Err(MemoryError::NotSealed);
    }
    let system = fstatfs(file).map_err(|error| MemoryError::Map(error.into()))?;
    if system.f_type as u64 == HUGE_PAGES {
        return Err(MemoryError::HugePages);
    }
    // Only after the seal does the length mean anything.
    let there = file.metadata().map_err(MemoryError::Map)?.len();
    match offset.checked_add(len) {
        Some(end) if end <= there => Ok(()),
        _ => Err(MemoryError::Short),
    }
}
