//! The driver's side of a split virtqueue (virtio 1.2, 2.7), in this client's own memory. Each request has a
//! fixed place.
//!
//! Nothing is trusted that the server writes there: a head that belongs to no request in flight is skipped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestRegionMmap, MemoryRegionAddress};

/// Upper bound of the requests in flight.
pub(super) const SLOTS: u16 = 32;
/// Upper bound of the data bytes in a request.
pub(super) const DATA: usize = 256 << 10;
/// Number of descriptors: for each request one for its header, its data and its status, rounded up to a power
/// of two.
pub(super) const SIZE: u16 = 128;
/// Number of descriptors for a request.
const CHAIN: u16 = 3;

/// Offsets of the available and the used ring.
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Offset of the requests' headers, each of which is followed by its status, and the bytes for both.
const HEADERS: u64 = 0x4000;
const HEADER: u64 = 32;
/// Offset of the status from its header.
const STATUS: u64 = 16;
/// Offset of the requests' data.
const BUFFERS: u64 = 0x1_0000;
/// Number of bytes of shared memory.
pub(super) const MEMORY: u64 = BUFFERS + SLOTS as u64 * DATA as u64;

/// A status that no server reports.
const NOT_YET: u8 = 0xff;

// Flags of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// The data of a request, and the number of bytes: given to the server, or taken from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Data {
    None,
    Given(usize),
    Taken(usize),
}

/// The queue.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Arc<GuestRegionMmap>,
    event_index: bool,
    available: u16,
    used: u16,
    is_busy: [bool; SLOTS as usize],
}

/// Offsets of the descriptors, the available ring and the used ring.
pub(super) const PARTS: [u64; 3] = [0, AVAILABLE, USED];

impl Ring {
    /// Returns the queue in `memory`, which contains [`MEMORY`] zeros from address 0 on.
    pub(super) fn new(memory: Arc<GuestRegionMmap>, event_index: bool) -> Ring {
        Ring { memory, event_index, available: 0, used: 0, is_busy: [false; SLOTS as usize] }
    }

    fn load(&self, at: u64) -> u16 {
        // The address is inside of the memory, so this cannot fail.
        self.memory.load(MemoryRegionAddress(at), Ordering::Acquire).map_or(0, u16::from_le)
    }

    fn store(&self, value: u16, at: u64) {
        // The address is inside of the memory, so this cannot fail.
        let _ = self.memory.store(value.to_le(), MemoryRegionAddress(at), Ordering::Release);
    }

    /// Takes a free place for a request. Returns None if there is none.
    pub(super) fn take(&mut self) -> Option<u16> {
        let slot = self.is_busy.iter().position(|busy| !busy)?;
        self.is_busy[slot] = true;
        Some(slot as u16)
    }

    /// Frees the place.
    pub(super) fn give_back(&mut self, slot: u16) {
        self.is_busy[usize::from(slot)] = false;
    }

    fn buffer(slot: u16) -> MemoryRegionAddress {
        MemoryRegionAddress(BUFFERS + u64::from(slot) * DATA as u64)
    }

    /// Copies `bytes` to the data of `slot`.
    pub(super) fn write(&self, slot: u16, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_slice(bytes, Ring::buffer(slot)).map_err(io::Error::other)
    }

    /// Copies the data of `slot` to `bytes`.
    pub(super) fn read(&self, slot: u16, bytes: &mut [u8]) -> io::Result<()> {
        self.memory.read_slice(bytes, Ring::buffer(slot)).map_err(io::Error::other)
    }

    /// Offers the request of `slot` to the server. Returns whether the server wants to be told of it.
    pub(super) fn offer(
        &mut self,
        slot: u16,
        kind: u32,
        sector: u64,
        data: Data,
    ) -> io::Result<bool> {
        let header = HEADERS + u64::from(slot) * HEADER;
        let mut bytes = [0; STATUS as usize + 1];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&sector.to_le_bytes());
        bytes[STATUS as usize] = NOT_YET;
        let memory = &self.memory;
        memory.write_slice(&bytes, MemoryRegionAddress(header)).map_err(io::Error::other)?;
        let buffer = Ring::buffer(slot).0;
        let first = (header, STATUS as u32, 0);
        let status = (header + STATUS, 1, WRITE);
        let chain: &[(u64, u32, u16)] = match data {
            Data::None => &[first, status],
            Data::Given(len) => &[first, (buffer, len as u32, 0), status],
            Data::Taken(len) => &[first, (buffer, len as u32, WRITE), status],
        };
        let head = slot * CHAIN;
        let last = chain.len() as u16 - 1;
        for (index, (at, len, flags)) in (0..).zip(chain.iter().copied()) {
            let flags = if index < last { flags | NEXT } else { flags };
            let descriptor = Descriptor::new(at, len, flags, head + index + 1);
            let place = MemoryRegionAddress(u64::from(head + index) * 16);
            memory.write_obj(descriptor, place).map_err(io::Error::other)?;
        }
        self.store(head, AVAILABLE + 4 + u64::from(self.available % SIZE) * 2);
        let before = self.available;
        self.available = before.wrapping_add(1);
        self.store(self.available, AVAILABLE + 2);
        // 2.7.13.4: the index must be written before reading whether the server wants to be told.
        fence(Ordering::SeqCst);
        Ok(if self.event_index {
            let event = self.load(USED + 4 + u64::from(SIZE) * 8);
            self.available.wrapping_sub(event).wrapping_sub(1) < self.available.wrapping_sub(before)
        } else {
            self.load(USED) & 1 == 0
        })
    }

    /// Returns whether the used ring has an entry for [`Ring::next`].
    pub(super) fn has_more(&self) -> bool {
        self.load(USED + 2) != self.used
    }

    /// Returns the place of the next request that the server has completed, and its status.
    pub(super) fn next(&mut self) -> Option<(u16, u8)> {
        while self.has_more() {
            let at = USED + 4 + u64::from(self.used % SIZE) * 8;
            self.used = self.used.wrapping_add(1);
            let Ok([head, _]) = self.memory.read_obj::<[u32; 2]>(MemoryRegionAddress(at)) else {
                continue;
            };
            let (slot, rest) = (head / u32::from(CHAIN), head % u32::from(CHAIN));
            let is_ours = rest == 0 && self.is_busy.get(slot as usize) == Some(&true);
            let status = MemoryRegionAddress(HEADERS + u64::from(slot) * HEADER + STATUS);
            match self.memory.read_obj::<u8>(status) {
                Ok(status) if is_ours && status != NOT_YET => return Some((slot as u16, status)),
                _ => tracing::warn!("the server has answered a request that was not sent"),
            }
        }
        None
    }

    /// Asks the server to call after the next completed request. Returns false if there is one already.
    pub(super) fn wants_calls(&self) -> bool {
        if self.event_index {
            self.store(self.used, AVAILABLE + 4 + u64::from(SIZE) * 2);
        } else {
            self.store(0, AVAILABLE);
        }
        fence(Ordering::SeqCst);
        !self.has_more()
    }

    /// Returns the index of the used ring, at which a server continues that does not track requests in
    /// flight.
    pub(super) fn used_index(&self) -> u16 {
        self.load(USED + 2)
    }
}
