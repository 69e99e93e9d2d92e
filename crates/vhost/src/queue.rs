//! The client's description of a virtqueue (virtio 1.2, 2.7).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use thiserror::Error;
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// Upper bound of the descriptors in a queue, which is also QEMU's.
pub const SIZE_MAX: u16 = 1024;

/// Feature bits that all devices have (virtio 1.2, 6), and the feature bit of vhost-user.
pub mod feature {
    /// A descriptor may name a table of descriptors.
    pub const INDIRECT: u64 = 1 << 28;
    /// Each side states by an index of which entry it wants to be told next.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// A bit of vhost-user, not of virtio: there are protocol features, and queues are disabled at first.
    pub const PROTOCOL: u64 = 1 << 30;
    /// The device conforms to version 1 of the specification.
    pub const VERSION_1: u64 = 1 << 32;
}

/// The rings of a queue lie outside of the client's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("its rings are not in its memory")]
pub struct Outside;

/// The description of a queue that is about to run.
#[derive(Debug)]
pub struct Setting {
    /// Number of descriptors: a power of two, at most [`SIZE_MAX`].
    pub size: u16,
    /// The table of descriptors.
    pub descriptors: GuestAddress,
    /// The available ring.
    pub available: GuestAddress,
    /// The used ring.
    pub used: GuestAddress,
    /// The index of the next entry to be taken from the available ring.
    pub next: u16,
    /// Whether the client has accepted [`feature::EVENT_INDEX`].
    pub has_event_index: bool,
    /// The descriptor that tells the guest of used buffers. None if the guest polls instead.
    pub call: Option<Arc<OwnedFd>>,
    /// The descriptor that tells the client that the queue is broken.
    pub error: Option<Arc<OwnedFd>>,
    /// The client's memory.
    pub memory: Arc<GuestMemoryMmap>,
}

impl Setting {
    /// Returns the queue, and the index of its used ring.
    pub fn queue(&self) -> Result<(Queue, u16), Outside> {
        let memory = &*self.memory;
        let outside = |_| Outside;
        let mut queue = Queue::new(self.size).map_err(outside)?;
        queue.try_set_desc_table_address(self.descriptors).map_err(outside)?;
        queue.try_set_avail_ring_address(self.available).map_err(outside)?;
        queue.try_set_used_ring_address(self.used).map_err(outside)?;
        queue.set_event_idx(self.has_event_index);
        queue.set_ready(true);
        if !queue.is_valid(memory) {
            return Err(Outside);
        }
        let used = queue.used_idx(memory, Ordering::Acquire).map_err(outside)?.0;
        queue.set_next_used(used);
        queue.set_next_avail(self.next);
        Ok((queue, used))
    }
}
