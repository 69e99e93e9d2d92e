//! Guest memory that a client shares by descriptors.
//!
//! The client remains the owner of this memory. It writes to it at any time, and could shorten the file; then
//! each access of this process beyond the new end would raise SIGBUS. So the file must be sealed against this
//! (F_SEAL_SHRINK of fcntl(2)), as those of QEMU's `memory-backend-memfd` and of ring3's own memory are.
//! Memory of huge pages is refused too: a page that the client gives back cannot always be replaced.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstatfs, memfd_create};
use thiserror::Error;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// Upper bound of the pieces of memory, for which a message of the protocol has room.
pub const SLOTS: usize = 8;
/// HUGETLBFS_MAGIC of statfs(2).
const HUGE_PAGES: u64 = 0x958458f6;

/// The reasons why memory is refused.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// The piece's file could become shorter.
    #[error(
        "its shared memory is not sealed against shrinking; with QEMU, use -object memory-backend-memfd,share=on"
    )]
    NotSealed,
    /// The piece's file has huge pages.
    #[error("its memory has huge pages, which are not safe to share")]
    HugePages,
    /// The piece's file ends before the piece does.
    #[error("the file of its memory ends too early")]
    Short,
    /// The host cannot map the piece.
    #[error("its memory cannot be mapped: {0}")]
    Map(io::Error),
    /// The piece overlaps another one, or there are too many pieces.
    #[error("the regions of its memory overlap, or are more than {SLOTS}")]
    Layout,
    /// There is no such piece to remove.
    #[error("it removes a memory region that does not exist")]
    Missing,
}

/// A piece of memory, as the client describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The piece's guest-physical address.
    pub guest: u64,
    /// Number of bytes.
    pub len: u64,
    /// The piece's address in the client's process.
    pub user: u64,
    /// The piece's offset in the file.
    pub offset: u64,
}

impl Piece {
    /// Returns the piece that a message describes.
    pub fn of(region: &VhostUserMemoryRegion) -> Piece {
        Piece {
            guest: region.guest_phys_addr,
            len: region.memory_size,
            user: region.user_addr,
            offset: region.mmap_offset,
        }
    }
}

/// All memory that a client shares.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    pieces: Vec<(Piece, Arc<GuestRegionMmap>)>,
    guest: Arc<GuestMemoryMmap>,
}

impl Memory {
    /// Returns the memory, by guest-physical addresses.
    pub fn guest(&self) -> &Arc<GuestMemoryMmap> {
        &self.guest
    }

    /// Returns whether there are no pieces.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Maps a piece, which is a part of `file`.
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

    /// Unmaps a piece.
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

    /// Returns the guest-physical address of the byte that the client has at address `user`.
    pub fn guest_address(&self, user: u64) -> Option<GuestAddress> {
        self.pieces.iter().find_map(|(piece, _)| {
            let inside = user.checked_sub(piece.user).filter(|inside| *inside < piece.len)?;
            // The sum does not overflow: all of the piece was mapped at guest-physical addresses.
            Some(GuestAddress(piece.guest + inside))
        })
    }
}

/// Returns a new memory file of `len` zeros, whose size nobody can change, so that [`check`] accepts it.
pub fn sealed(name: &str, len: u64) -> io::Result<File> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let file = File::from(file);
    file.set_len(len)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Refuses files that do not have `len` bytes from `offset` on, or that may lose them.
pub fn check(file: &File, offset: u64, len: u64) -> Result<(), MemoryError> {
    // A file without seals is not in memory, so it could become shorter.
    let seals = fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK) {
        return Err(MemoryError::NotSealed);
    }
    let system = fstatfs(file).map_err(|error| MemoryError::Map(error.into()))?;
    if system.f_type as u64 == HUGE_PAGES {
        return Err(MemoryError::HugePages);
    }
    // The size is read after the seal, which keeps the file from becoming shorter.
    let there = file.metadata().map_err(MemoryError::Map)?.len();
    match offset.checked_add(len) {
        Some(end) if end <= there => Ok(()),
        _ => Err(MemoryError::Short),
    }
}
