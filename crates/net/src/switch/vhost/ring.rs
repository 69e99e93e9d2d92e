//! A virtqueue in a client's memory (virtio 1.2, 2.7).
//!
//! The crate `virtio-queue` reads the available ring. The used ring is written here: a packet in several
//! chains must appear all at once (5.1.6.4), but the crate shows each entry by itself, and ignores the flag
//! of drivers without an event index.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ring3_vhost::chain::{Buffers, walk};
use ring3_vhost::event::signal;
use ring3_vhost::queue::{Outside, Setting};
use thiserror::Error;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

/// The guest wants no calls (VIRTQ_AVAIL_F_NO_INTERRUPT).
const NO_INTERRUPT: u16 = 1;
/// Bytes of flags and index, which precede the entries of both rings, and bytes of an entry of the used ring.
const RING_HEADER: u64 = 4;
const USED_ENTRY: u64 = 8;
/// Offset of the index in both rings.
const INDEX: u64 = 2;

/// The reasons why a ring does not run, or no longer runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum BadRing {
    #[error("its rings are not in its memory")]
    Outside,
    #[error("its available ring is not valid")]
    Available,
    #[error("its descriptors are not valid")]
    Chain,
}

impl From<Outside> for BadRing {
    fn from(Outside: Outside) -> BadRing {
        BadRing::Outside
    }
}

/// An entry that was taken from the available ring.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) head: u16,
    pub(super) buffers: Buffers,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ring {
    queue: Queue,
    memory: Arc<GuestMemoryMmap>,
    used: GuestAddress,
    /// The index of the available ring at which there was no entry.
    end: u16,
    /// The next index of the used ring, and the one up to which the guest was told.
    next_used: u16,
    told: u16,
    call: Option<Arc<OwnedFd>>,
    error: Option<Arc<OwnedFd>>,
}

impl Ring {
    pub(super) fn new(setting: Setting) -> Result<Ring, BadRing> {
        let (queue, next_used) = setting.queue()?;
        let memory = setting.memory;
        let (call, error) = (setting.call, setting.error);
        let (used, told) = (setting.used, next_used);
        let ring = Ring { queue, memory, used, end: setting.next, next_used, told, call, error };
        // An earlier server may have died before it told the guest.
        ring.call();
        Ok(ring)
    }

    pub(super) fn memory(&self) -> Arc<GuestMemoryMmap> {
        Arc::clone(&self.memory)
    }

    /// Returns the next index of the available ring.
    pub(super) fn position(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Goes back to a position: entries that were taken since are not used, and come again.
    pub(super) fn return_to(&mut self, position: u16) {
        self.queue.set_next_avail(position);
    }

    /// Takes the next entry, if there is one. After an error the ring cannot be used any more.
    pub(super) fn take(&mut self) -> Result<Option<Chain>, BadRing> {
        let memory = &*self.memory;
        let available =
            self.queue.avail_idx(memory, Ordering::Acquire).map_err(|_| BadRing::Available)?;
        let size = self.queue.size();
        match available.0.wrapping_sub(self.queue.next_avail()) {
            0 => {
                self.end = available.0;
                return Ok(None);
            }
            // A driver that follows the specification has no more descriptors than that.
            waiting if waiting > size => return Err(BadRing::Available),
            _ => {}
        }
        let chain = self.queue.pop_descriptor_chain(memory).ok_or(BadRing::Available)?;
        let head = chain.head_index();
        let table = GuestAddress(self.queue.desc_table());
        let buffers = walk(memory, table, size, head).map_err(|_| BadRing::Chain)?;
        Ok(Some(Chain { head, buffers }))
    }

    /// Puts entries into the used ring, each with the number of bytes that were written to it. The guest sees
    /// all of them or none.
    pub(super) fn give_back(&mut self, entries: &[(u16, u32)]) -> Result<(), BadRing> {
        for (head, written) in entries {
            let index = u64::from(self.next_used % self.queue.size());
            let place = at(self.used, RING_HEADER + index * USED_ENTRY)?;
            let entry = u64::from(*head) | u64::from(*written) << 32;
            self.memory.write_obj(entry.to_le(), place).map_err(|_| BadRing::Outside)?;
            self.next_used = self.next_used.wrapping_add(1);
        }
        let place = at(self.used, INDEX)?;
        let index = self.next_used.to_le();
        self.memory.store(index, place, Ordering::Release).map_err(|_| BadRing::Outside)
    }

    /// Tells the guest of new entries in the used ring, if it wants to be told.
    pub(super) fn tell(&mut self) {
        if self.told == self.next_used {
            return;
        }
        // Entries that were written to the used ring must be visible to a guest that asks for calls after
        // this is read.
        fence(Ordering::SeqCst);
        let available = GuestAddress(self.queue.avail_ring());
        let field = |offset| -> Result<u16, BadRing> {
            let value = self.memory.load(at(available, offset)?, Ordering::Relaxed);
            value.map(u16::from_le).map_err(|_| BadRing::Outside)
        };
        let wants = if self.queue.event_idx_enabled() {
            let event = field(RING_HEADER + 2 * u64::from(self.queue.size()));
            // The index that the guest waits for is among the new ones (2.7.7.1).
            let is_new = |event: u16| {
                self.next_used.wrapping_sub(event).wrapping_sub(1)
                    < self.next_used.wrapping_sub(self.told)
            };
            event.map_or(true, is_new)
        } else {
            field(0).map_or(true, |flags| flags & NO_INTERRUPT == 0)
        };
        self.told = self.next_used;
        if wants {
            self.call();
        }
    }

    /// Asks the guest for kicks. Returns whether there are entries already after the last one that was found, for which
    /// no kick comes.
    pub(super) fn wants_kicks(&mut self) -> bool {
        // The ring may have gone back from its end since. A guest with an event index does not kick again for
        // entries before that end, or after it if the index lies before (2.7.10.1).
        let position = self.position();
        self.queue.set_next_avail(self.end);
        let has_more = self.queue.enable_notification(&*self.memory).unwrap_or(false);
        self.return_to(position);
        has_more
    }

    /// Tells the guest that kicks are not needed until they are asked for again. This is only a hint: kicks
    /// that come all the same are harmless.
    pub(super) fn wants_no_kicks(&mut self) {
        let _ = self.queue.disable_notification(&*self.memory);
    }

    /// Tells the client that nothing more is done with the ring.
    pub(super) fn report(&self) {
        if let Some(error) = &self.error {
            signal(error);
        }
    }

    fn call(&self) {
        if let Some(call) = &self.call {
            signal(call);
        }
    }
}

fn at(ring: GuestAddress, offset: u64) -> Result<GuestAddress, BadRing> {
    ring.checked_add(offset).ok_or(BadRing::Outside)
}
