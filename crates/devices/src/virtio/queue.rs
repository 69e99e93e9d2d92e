//! A split virtqueue as the device sees it (virtio 1.2, 2.7; of version 0.9.5, 2.3).
//!
//! The driver puts *chains* of descriptors into the available ring, each descriptor a piece of memory to be read or to be
//! written; the device takes them ([`Queue::pop`]) and gives each back through the used ring ([`Queue::push`]). All of it is in guest memory,
//! and nothing there is trusted: what cannot be makes the queue [broken](Queue::is_broken), and the device then waits for a reset.
//!
//! The crate `virtio-queue` does the same over the traits of `vm-memory`. It does not fit here: all its accesses go through
//! `VolatileSlice`, which is a raw pointer, so that an implementation for [`Memory`] takes `unsafe` code; they would pass by the tracking of decoded code,
//! which [`Memory::write`] does; a chain that is cut short by a wrong descriptor looks like one that has ended; and it interrupts
//! drivers that have set `VIRTQ_AVAIL_F_NO_INTERRUPT`.

use ring3_core::memory::Memory;
use serde::{Deserialize, Serialize};

/// Descriptors of the largest chain that is taken: what Linux and QEMU have as their limit for indirect tables.
const CHAIN_MAX: u32 = 1024;
/// The largest size of a queue (2.7).
pub const QUEUE_SIZE_MAX: u16 = 1 << 15;

/// Bytes of a descriptor: address, length, flags, next (2.7.5).
const DESCRIPTOR_LEN: u64 = 16;
const DESCRIPTOR_NEXT: u16 = 1 << 0;
const DESCRIPTOR_WRITE: u16 = 1 << 1;
const DESCRIPTOR_INDIRECT: u16 = 1 << 2;

// The available ring (2.7.6): flags, index, ring, event index of the used ring.
const AVAILABLE_NO_INTERRUPT: u16 = 1 << 0;
const AVAILABLE_RING: u64 = 4;
const AVAILABLE_ENTRY_LEN: u64 = 2;

// The used ring (2.7.8): flags, index, ring, event index of the available ring.
const USED_NO_NOTIFY: u16 = 1 << 0;
const USED_RING: u64 = 4;
const USED_ENTRY_LEN: u64 = 8;

/// Both rings have their index here.
const RING_INDEX: u64 = 2;

/// The alignment of the used ring of a legacy driver (0.9.5, 2.3).
const LEGACY_ALIGNMENT: u64 = 4096;

/// A piece of guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its guest-physical address.
    pub address: u64,
    /// Its length in bytes, at least 1.
    pub len: u32,
}

/// What the driver has made available at once, a chain of descriptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// By this it is given back.
    pub head: u16,
    /// What the device is to read, in its order. It may be anywhere, even where no memory is.
    pub readable: Vec<Segment>,
    /// What the device is to write, which comes after all that.
    pub writable: Vec<Segment>,
}

/// Where the three parts of a queue are in guest-physical memory (2.7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Areas {
    /// The descriptor table.
    pub descriptors: u64,
    /// The available ring, the "driver area".
    pub available: u64,
    /// The used ring, the "device area".
    pub used: u64,
}

impl Areas {
    /// Those of a legacy driver's queue of `size` descriptors in the pages from number `page` on (0.9.5, 2.3).
    pub fn legacy(page: u32, size: u16) -> Areas {
        let descriptors = u64::from(page) * LEGACY_ALIGNMENT;
        let available = descriptors + DESCRIPTOR_LEN * u64::from(size);
        let end = available + available_len(size);
        Areas { descriptors, available, used: end.next_multiple_of(LEGACY_ALIGNMENT) }
    }

    /// They are where a driver may put them (2.7).
    fn are_aligned(&self) -> bool {
        self.descriptors.is_multiple_of(16)
            && self.available.is_multiple_of(2)
            && self.used.is_multiple_of(4)
    }
}

/// Bytes of the available ring, with its event index.
fn available_len(size: u16) -> u64 {
    AVAILABLE_RING + AVAILABLE_ENTRY_LEN * u64::from(size) + 2
}

/// Bytes of the used ring, with its event index.
fn used_len(size: u16) -> u64 {
    USED_RING + USED_ENTRY_LEN * u64::from(size) + 2
}

/// A queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    size_max: u16,
    size: u16,
    areas: Areas,
    enabled: bool,
    /// The device may work on it.
    running: bool,
    /// The driver has made use of `VIRTIO_F_INDIRECT_DESC`.
    indirect: bool,
    /// The same of `VIRTIO_F_EVENT_IDX`.
    event_index: bool,
    /// How many chains were taken, modulo 2^16.
    next_available: u16,
    /// How many were given back.
    next_used: u16,
    /// How many had been when the driver was last asked whether it wants an interrupt.
    told_used: u16,
    /// The driver was told not to notify.
    held: bool,
    /// An interrupt is due, whatever the rings say.
    called: bool,
    broken: bool,
}

impl Queue {
    /// One of `size_max` descriptors at most, a power of two up to [`QUEUE_SIZE_MAX`].
    pub fn new(size_max: u16) -> Queue {
        Queue {
            size_max,
            size: size_max,
            areas: Areas::default(),
            enabled: false,
            running: false,
            indirect: false,
            event_index: false,
            next_available: 0,
            next_used: 0,
            told_used: 0,
            held: false,
            called: false,
            broken: false,
        }
    }

    /// Number of descriptors.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The driver wants fewer descriptors. Nothing happens where that is no power of two or too many, or the queue is in use.
    pub fn set_size(&mut self, size: u16) {
        if size.is_power_of_two() && size <= self.size_max && !self.enabled {
            self.size = size;
        }
    }

    /// Where it is.
    pub fn areas(&self) -> Areas {
        self.areas
    }

    /// The driver says where it is. Nothing happens while the queue is in use.
    pub fn set_areas(&mut self, areas: Areas) {
        if !self.enabled {
            self.areas = areas;
        }
    }

    /// The driver has set it up.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The driver has set it up.
    pub fn enable(&mut self) {
        self.enabled = true;
    }

    /// The device may work on it.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// The device may work on it from now on, with what the driver has accepted of `VIRTIO_F_INDIRECT_DESC` and
    /// `VIRTIO_F_EVENT_IDX`. It is broken where it is not in memory.
    pub fn start(&mut self, memory: &Memory, indirect: bool, event_index: bool) {
        (self.indirect, self.event_index) = (indirect, event_index);
        let Areas { descriptors, available, used } = self.areas;
        let is_there = memory.holds(descriptors, DESCRIPTOR_LEN * u64::from(self.size))
            && memory.holds(available, available_len(self.size))
            && memory.holds(used, used_len(self.size));
        self.running = self.enabled;
        if self.running && !(is_there && self.areas.are_aligned()) {
            self.fail();
        }
    }

    /// The driver has done something that it must not do. The queue stops until a reset, and the driver is told.
    pub fn fail(&mut self) {
        self.broken = true;
    }

    /// See [`Queue::fail`].
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The next chain; none where there is none, and where the queue is not in use or broken. The driver is asked to notify of the next one in
    /// the first case.
    pub fn pop(&mut self, memory: &mut Memory) -> Option<Chain> {
        if !self.running || self.broken {
            return None;
        }
        let index = read_u16(memory, self.areas.available.wrapping_add(RING_INDEX));
        let waiting = index.wrapping_sub(self.next_available);
        if waiting == 0 {
            self.ask_for_notification(memory);
            return None;
        }
        let chain = if waiting > self.size { None } else { self.read_chain(memory) };
        match &chain {
            Some(_) => self.next_available = self.next_available.wrapping_add(1),
            None => self.fail(),
        }
        chain
    }

    /// The last `count` chains were not taken after all: nothing has come of them, and they are the next ones again.
    pub fn put_back(&mut self, count: u16) {
        self.next_available = self.next_available.wrapping_sub(count);
    }

    /// Reads the next chain of the available ring. None if it cannot be.
    fn read_chain(&self, memory: &Memory) -> Option<Chain> {
        let place = u64::from(self.next_available % self.size);
        let entry = AVAILABLE_RING + AVAILABLE_ENTRY_LEN * place;
        let head = read_u16(memory, self.areas.available.wrapping_add(entry));
        let mut chain = Chain { head, readable: Vec::new(), writable: Vec::new() };
        let (mut table, mut table_len) = (self.areas.descriptors, u32::from(self.size));
        let (mut index, mut is_indirect) = (u32::from(head), false);
        // In a direct chain no descriptor comes twice.
        let mut left = table_len;
        let mut total = 0_u32;
        loop {
            if index >= table_len || left == 0 {
                return None;
            }
            left -= 1;
            let descriptor = read_descriptor(memory, table, index);
            let Descriptor { address, len, flags, next } = descriptor;
            if flags & DESCRIPTOR_INDIRECT != 0 {
                // It stands for all of the chain (2.7.5.3.1); some legacy drivers let readable ones come before.
                let entries = len / DESCRIPTOR_LEN as u32;
                if !self.indirect
                    || is_indirect
                    || flags & DESCRIPTOR_NEXT != 0
                    || !u64::from(len).is_multiple_of(DESCRIPTOR_LEN)
                    || entries > CHAIN_MAX
                {
                    return None;
                }
                (table, table_len, left) = (address, entries, entries);
                (index, is_indirect) = (0, true);
                continue;
            }
            total = total.checked_add(len)?;
            let is_written = flags & DESCRIPTOR_WRITE != 0;
            if !is_written && !chain.writable.is_empty() {
                return None;
            }
            if len > 0 {
                let part = if is_written { &mut chain.writable } else { &mut chain.readable };
                part.push(Segment { address, len });
            }
            if flags & DESCRIPTOR_NEXT == 0 {
                return Some(chain);
            }
            index = next.into();
        }
    }

    /// Gives the chain `head` back, into which `written` bytes were written.
    pub fn push(&mut self, memory: &mut Memory, head: u16, written: u32) {
        if !self.running || self.broken {
            return;
        }
        let place = u64::from(self.next_used % self.size);
        let entry = self.areas.used.wrapping_add(USED_RING + USED_ENTRY_LEN * place);
        let element = [u32::from(head), written].map(u32::to_le_bytes);
        memory.write(entry, element.as_flattened());
        self.next_used = self.next_used.wrapping_add(1);
        let index = self.areas.used.wrapping_add(RING_INDEX);
        memory.write(index, &self.next_used.to_le_bytes());
    }

    /// The driver need not notify while the device takes no more chains; [`Queue::pop`] asks for it again when it has
    /// taken all.
    pub fn hold_notifications(&mut self, memory: &mut Memory) {
        // With an event index the driver notifies no more once it has passed that.
        if self.running && !self.broken && !self.event_index && !self.held {
            self.held = true;
            memory.write(self.areas.used, &USED_NO_NOTIFY.to_le_bytes());
        }
    }

    fn ask_for_notification(&mut self, memory: &mut Memory) {
        if self.event_index {
            let entry = USED_RING + USED_ENTRY_LEN * u64::from(self.size);
            let event = self.areas.used.wrapping_add(entry);
            memory.write(event, &self.next_available.to_le_bytes());
        } else if self.held {
            self.held = false;
            memory.write(self.areas.used, &0_u16.to_le_bytes());
        }
    }

    /// An interrupt for this queue is due, whatever the rings say: for a device type whose rings are worked on elsewhere.
    pub fn call(&mut self) {
        self.called = true;
    }

    /// True when the driver is to be interrupted for what was given back since the last call (2.7.7, 2.7.10).
    pub fn take_interrupt(&mut self, memory: &Memory) -> bool {
        let before = std::mem::replace(&mut self.told_used, self.next_used);
        let is_called = std::mem::take(&mut self.called);
        if is_called || !self.running || self.broken || before == self.next_used {
            return is_called;
        }
        let available = self.areas.available;
        if self.event_index {
            let entry = AVAILABLE_RING + AVAILABLE_ENTRY_LEN * u64::from(self.size);
            let event = read_u16(memory, available.wrapping_add(entry));
            let since_event = self.next_used.wrapping_sub(event).wrapping_sub(1);
            return since_event < self.next_used.wrapping_sub(before);
        }
        read_u16(memory, available) & AVAILABLE_NO_INTERRUPT == 0
    }

    /// How many chains were taken, modulo 2^16: what a device type needs whose rings are worked on elsewhere.
    pub fn next_available(&self) -> u16 {
        self.next_available
    }

    /// Somebody else has taken so many chains, modulo 2^16, and given all of them back.
    pub fn set_next(&mut self, next: u16) {
        (self.next_available, self.next_used, self.told_used) = (next, next, next);
    }

    /// False for what no treatment of a queue of that size can lead to.
    pub(super) fn is_possible(&self, size_max: u16) -> bool {
        let is_size = self.size.is_power_of_two() && self.size <= size_max;
        self.size_max == size_max && is_size && (self.enabled || !self.running)
    }
}

struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

fn read_descriptor(memory: &Memory, table: u64, index: u32) -> Descriptor {
    let mut bytes = [0; DESCRIPTOR_LEN as usize];
    memory.read(table.wrapping_add(DESCRIPTOR_LEN * u64::from(index)), &mut bytes);
    let all = u128::from_le_bytes(bytes);
    Descriptor {
        address: all as u64,
        len: (all >> 64) as u32,
        flags: (all >> 96) as u16,
        next: (all >> 112) as u16,
    }
}

fn read_u16(memory: &Memory, address: u64) -> u16 {
    let mut bytes = [0; 2];
    memory.read(address, &mut bytes);
    u16::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests;
