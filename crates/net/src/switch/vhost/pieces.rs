//! Parts of guest memory, one after the other, as if they were one.
//!
//! Another process writes there at any time, so nothing is read twice: bytes that decide something are copied
//! first.

use ring3_vhost::chain::Buffer;
use vm_memory::{GuestMemory, GuestMemoryMmap, Permissions, VolatileSlice};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pieces<'a> {
    all: Vec<VolatileSlice<'a>>,
    len: usize,
}

impl<'a> Pieces<'a> {
    /// Appends `buffers`. Returns false if one of them is not completely in memory, or if they have more than
    /// `most` bytes together.
    pub(super) fn add(
        &mut self,
        memory: &'a GuestMemoryMmap,
        buffers: &[Buffer],
        most: usize,
    ) -> bool {
        for Buffer { at, len } in buffers {
            self.len = self.len.saturating_add(*len as usize);
            if self.len > most {
                return false;
            }
            let slices = memory.get_slices(*at, *len as usize, Permissions::ReadWrite);
            let Ok(slices) = slices else { return false };
            for slice in slices {
                let Ok(slice) = slice else { return false };
                self.all.push(slice);
            }
        }
        true
    }

    /// Returns the number of bytes in all pieces.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns a cursor at byte `skip`.
    pub(super) fn from(&self, skip: usize) -> Cursor<'_, 'a> {
        let mut cursor = Cursor { pieces: &self.all, begun: 0 };
        let mut left = skip;
        while let Some(here) = cursor.here().filter(|_| left > 0) {
            let now = left.min(here.len());
            cursor.advance(now);
            left -= now;
        }
        cursor
    }
}

/// A position in [`Pieces`].
#[derive(Debug, Clone)]
pub(super) struct Cursor<'p, 'a> {
    pieces: &'p [VolatileSlice<'a>],
    /// Number of bytes of the first piece that precede the position.
    begun: usize,
}

impl<'a> Cursor<'_, 'a> {
    /// Returns the rest of the piece here; None at the end.
    fn here(&mut self) -> Option<VolatileSlice<'a>> {
        while let Some(first) = self.pieces.first() {
            match first.offset(self.begun) {
                Ok(here) if !here.is_empty() => return Some(here),
                _ => (self.pieces, self.begun) = (&self.pieces[1..], 0),
            }
        }
        None
    }

    /// Advances by `len` bytes, at most the rest of the piece here.
    fn advance(&mut self, len: usize) {
        self.begun += len;
    }

    /// Copies bytes to `bytes`, and returns their number.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(here) = self.here().filter(|_| done < bytes.len()) {
            let now = here.copy_to(&mut bytes[done..]);
            self.advance(now);
            done += now;
        }
        done
    }

    /// Copies bytes from `bytes`, as far as there is room.
    pub(super) fn write(&mut self, mut bytes: &[u8]) {
        while let Some(here) = self.here().filter(|_| !bytes.is_empty()) {
            let now = here.len().min(bytes.len());
            here.copy_from(&bytes[..now]);
            self.advance(now);
            bytes = &bytes[now..];
        }
    }

    /// Copies all bytes from `other` on, as far as there is room: from one guest's memory to another's.
    pub(super) fn write_from(&mut self, mut other: Cursor<'_, '_>) {
        while let (Some(here), Some(there)) = (self.here(), other.here()) {
            let now = here.len().min(there.len());
            there.copy_to_volatile_slice(here);
            self.advance(now);
            other.advance(now);
        }
    }
}
