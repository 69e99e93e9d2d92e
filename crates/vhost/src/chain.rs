//! Descriptor chains (virtio 1.2, 2.7.5 and 2.7.5.3): the buffers of a request.
//!
//! The crate `virtio-queue` provides queues, but not these chains. Its iterator ends at a broken chain as at
//! a complete one, and begins only at an entry that the driver has just made available, not at a request that
//! an earlier server has left.

use thiserror::Error;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

/// Upper bound of the buffers in a request, including those of the header and the status. The bound that a
/// guest is told is lower.
pub const BUFFERS_MAX: usize = 256;

/// Number of bytes in a descriptor.
const DESCRIPTOR: u64 = 16;

/// The descriptors form no valid chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("its descriptors form a chain that the specification does not permit")]
pub struct BadChain;

/// A part of guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// The first address.
    pub at: GuestAddress,
    /// Number of bytes.
    pub len: u32,
}

/// The buffers of a request, in the order of their descriptors.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Buffers {
    /// The buffers that the device reads.
    pub readable: Vec<Buffer>,
    /// The buffers that the device writes.
    pub writable: Vec<Buffer>,
}

/// Returns the buffers of the chain that begins at descriptor `head` of the table at `table`, which has
/// `size` entries.
pub fn walk(
    memory: &GuestMemoryMmap,
    table: GuestAddress,
    size: u16,
    head: u16,
) -> Result<Buffers, BadChain> {
    let (mut table, mut size) = (table, u32::from(size));
    let mut index = u32::from(head);
    let mut is_indirect = false;
    let mut buffers = Buffers::default();
    // The bound also ends loops.
    for _ in 0..=BUFFERS_MAX {
        if index >= size {
            return Err(BadChain);
        }
        let at = table.checked_add(u64::from(index) * DESCRIPTOR).ok_or(BadChain)?;
        let descriptor: Descriptor = memory.read_obj(at).map_err(|_| BadChain)?;
        if descriptor.refers_to_indirect_table() {
            let len = descriptor.len();
            let is_whole = len > 0 && u64::from(len).is_multiple_of(DESCRIPTOR);
            if is_indirect || descriptor.has_next() || !is_whole {
                return Err(BadChain);
            }
            (table, size, index) = (descriptor.addr(), len / DESCRIPTOR as u32, 0);
            is_indirect = true;
            continue;
        }
        let buffer = Buffer { at: descriptor.addr(), len: descriptor.len() };
        if descriptor.is_write_only() {
            buffers.writable.push(buffer);
        } else if buffers.writable.is_empty() {
            buffers.readable.push(buffer);
        } else {
            // 2.7.4.2: buffers that the device reads precede those that it writes.
            return Err(BadChain);
        }
        if !descriptor.has_next() {
            return Ok(buffers);
        }
        index = u32::from(descriptor.next());
    }
    Err(BadChain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: GuestAddress = GuestAddress(0x100);
    const INDIRECT: GuestAddress = GuestAddress(0x800);
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const TO_TABLE: u16 = 4;

    /// A table, an index into it, and the descriptor there: address, length, flags, next.
    type Entry = (GuestAddress, u16, (u64, u32, u16, u16));

    fn memory(entries: &[Entry]) -> GuestMemoryMmap {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        for (table, index, (at, len, flags, next)) in entries {
            let descriptor = Descriptor::new(*at, *len, *flags, *next);
            memory
                .write_obj(descriptor, table.unchecked_add(u64::from(*index) * DESCRIPTOR))
                .unwrap();
        }
        memory
    }

    fn buffer(at: u64, len: u32) -> Buffer {
        Buffer { at: GuestAddress(at), len }
    }

    #[test]
    fn chains_are_followed_into_a_table_too() {
        let memory = memory(&[
            (TABLE, 2, (0x10, 16, NEXT, 0)),
            (TABLE, 0, (0x20, 512, NEXT | WRITE, 3)),
            (TABLE, 3, (0x30, 1, WRITE, 0)),
            (TABLE, 1, (INDIRECT.0, 32, TO_TABLE, 0)),
            (INDIRECT, 0, (0x40, 16, NEXT, 1)),
            (INDIRECT, 1, (0x50, 1, WRITE, 0)),
        ]);
        assert_eq!(
            walk(&memory, TABLE, 4, 2),
            Ok(Buffers {
                readable: vec![buffer(0x10, 16)],
                writable: vec![buffer(0x20, 512), buffer(0x30, 1)]
            })
        );
        assert_eq!(
            walk(&memory, TABLE, 4, 1),
            Ok(Buffers { readable: vec![buffer(0x40, 16)], writable: vec![buffer(0x50, 1)] })
        );
    }

    #[test]
    fn broken_chains_are_found() {
        for entries in [
            // In turn: a loop, a descriptor outside of the table, and one to be read after one to be written.
            vec![(TABLE, 0, (0, 1, NEXT, 0))],
            vec![(TABLE, 0, (0, 1, NEXT, 4))],
            vec![(TABLE, 0, (0, 1, NEXT | WRITE, 1)), (TABLE, 1, (0, 1, 0, 0))],
            // Indirect tables in turn: inside another one, followed by a descriptor, of a size that is no
            // whole number of descriptors, empty, and outside of memory.
            vec![
                (TABLE, 0, (INDIRECT.0, 16, TO_TABLE, 0)),
                (INDIRECT, 0, (INDIRECT.0, 16, TO_TABLE, 0)),
            ],
            vec![(TABLE, 0, (INDIRECT.0, 16, TO_TABLE | NEXT, 1))],
            vec![(TABLE, 0, (INDIRECT.0, 15, TO_TABLE, 0))],
            vec![(TABLE, 0, (INDIRECT.0, 0, TO_TABLE, 0))],
            vec![(TABLE, 0, (u64::MAX - 7, 16, TO_TABLE, 0))],
        ] {
            assert_eq!(walk(&memory(&entries), TABLE, 4, 0), Err(BadChain), "{entries:?}");
        }
        assert_eq!(walk(&memory(&[]), TABLE, 4, 4), Err(BadChain));
        assert_eq!(walk(&memory(&[]), GuestAddress(0xfff8), 4, 0), Err(BadChain));
    }
}
