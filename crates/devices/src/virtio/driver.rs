//! A driver for tests: it keeps one split virtqueue in the memory of a [`TestBench`].

use ring3_core::device::TestBench;
use ring3_core::memory::Memory;

use super::queue::{Areas, Queue};

/// Where the queue of [`Ring::new`] is.
pub(super) const AREAS: Areas = Areas { descriptors: 0x1000, available: 0x3000, used: 0x4000 };
/// Where tests may put their buffers.
pub(super) const BUFFERS: u64 = 0x1_0000;

pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

/// A buffer: its address, its length, and whether the device writes to it.
pub(super) type Buffer = (u64, u32, bool);

/// The driver's side of a queue.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) areas: Areas,
    size: u16,
    next_descriptor: u16,
    next_available: u16,
    seen: u16,
}

impl Ring {
    pub(super) fn new(size: u16) -> Ring {
        Ring::at(AREAS, size)
    }

    pub(super) fn at(areas: Areas, size: u16) -> Ring {
        Ring { areas, size, next_descriptor: 0, next_available: 0, seen: 0 }
    }

    /// The device's side of it.
    pub(super) fn queue(&self, memory: &Memory, indirect: bool, event_index: bool) -> Queue {
        let mut queue = Queue::new(self.size);
        queue.set_areas(self.areas);
        queue.enable();
        queue.start(memory, indirect, event_index);
        queue
    }

    /// Writes descriptor `index` of the table at `table`.
    pub(super) fn describe(
        memory: &mut Memory,
        table: u64,
        index: u16,
        (address, len, flags, next): (u64, u32, u16, u16),
    ) {
        let place = table + 16 * u64::from(index);
        memory.write(place, &address.to_le_bytes());
        memory.write(place + 8, &len.to_le_bytes());
        memory.write(place + 12, &flags.to_le_bytes());
        memory.write(place + 14, &next.to_le_bytes());
    }

    /// Makes a chain of `buffers` and returns its head. It is not available yet.
    pub(super) fn chain(&mut self, memory: &mut Memory, buffers: &[Buffer]) -> u16 {
        let head = self.next_descriptor;
        for (index, (address, len, is_written)) in buffers.iter().enumerate() {
            let place = self.next_descriptor;
            self.next_descriptor = (place + 1) % self.size;
            let mut flags = if *is_written { WRITE } else { 0 };
            if index + 1 < buffers.len() {
                flags |= NEXT;
            }
            let descriptor = (*address, *len, flags, self.next_descriptor);
            Ring::describe(memory, self.areas.descriptors, place, descriptor);
        }
        head
    }

    /// Makes the chain `head` available.
    pub(super) fn offer(&mut self, memory: &mut Memory, head: u16) {
        let place = u64::from(self.next_available % self.size);
        memory.write(self.areas.available + 4 + 2 * place, &head.to_le_bytes());
        self.next_available = self.next_available.wrapping_add(1);
        memory.write(self.areas.available + 2, &self.next_available.to_le_bytes());
    }

    /// Both.
    pub(super) fn add(&mut self, bench: &mut TestBench, buffers: &[Buffer]) -> u16 {
        let head = self.chain(&mut bench.memory, buffers);
        self.offer(&mut bench.memory, head);
        head
    }

    /// The next chain that was given back, and how many bytes were written to it.
    pub(super) fn used(&mut self, memory: &Memory) -> Option<(u32, u32)> {
        if read_u16(memory, self.areas.used + 2) == self.seen {
            return None;
        }
        let place = self.areas.used + 4 + 8 * u64::from(self.seen % self.size);
        self.seen = self.seen.wrapping_add(1);
        let word = |at| {
            let mut bytes = [0; 4];
            memory.read(at, &mut bytes);
            u32::from_le_bytes(bytes)
        };
        Some((word(place), word(place + 4)))
    }

    /// The flags of the used ring.
    pub(super) fn used_flags(&self, memory: &Memory) -> u16 {
        read_u16(memory, self.areas.used)
    }

    /// How many chains the device wants to be available before it is notified again.
    pub(super) fn available_event(&self, memory: &Memory) -> u16 {
        read_u16(memory, self.areas.used + 4 + 8 * u64::from(self.size))
    }

    /// How many used chains the driver wants before it is interrupted.
    pub(super) fn set_used_event(&self, memory: &mut Memory, event: u16) {
        let place = self.areas.available + 4 + 2 * u64::from(self.size);
        memory.write(place, &event.to_le_bytes());
    }

    pub(super) fn set_available_flags(&self, memory: &mut Memory, flags: u16) {
        memory.write(self.areas.available, &flags.to_le_bytes());
    }
}

fn read_u16(memory: &Memory, address: u64) -> u16 {
    let mut bytes = [0; 2];
    memory.read(address, &mut bytes);
    u16::from_le_bytes(bytes)
}
