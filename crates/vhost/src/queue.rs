//! What a client says of a virtqueue (virtio 1.2, 2.7).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use thiserror::Error;
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// The most descriptors of a queue: what QEMU permits.
pub const SIZE_MAX: u16 = 1024;

/// Feature bits of all devices (virtio 1.2, 6), and that of vhost-user.
pub mod feature {
    /// Buffers may be in a table of their own.
    pub const INDIRECT: u64 = 1 << 28;
    /// Both sides say by an index when they want to hear of the next entry.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// Of vhost-user and not of virtio: there are protocol features, and queues begin disabled.
    pub const PROTOCOL: u64 = 1 << 30;
    /// The device keeps to version 1 of the specification.
    pub const VERSION_1: u64 = 1 << 32;
}

/// The rings of a queue are not in the client's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("its rings are not in memory")]
pub struct Outside;

/// A queue that is to run.
#[derive(Debug)]
pub struct Setting {
    /// How many descriptors there are: a power of two, at most [`SIZE_MAX`].
    pub size: u16,
    /// The table of descriptors.
    pub descriptors: GuestAddress,
    /// The available ring.
    pub available: GuestAddress,
    /// The used ring.
    pub used: GuestAddress,
    /// The next index of the available ring.
    pub next: u16,
    /// The client has taken [`feature::EVENT_INDEX`].
    pub has_event_index: bool,
    /// By which the guest is told of used buffers; none if it looks itself.
    pub call: Option<Arc<OwnedFd>>,
    /// By which the client is told that the queue is broken.
    pub error: Option<Arc<OwnedFd>>,
    /// The client's memory.
    pub memory: Arc<GuestMemoryMmap>,
}

impl Setting {
    /// The queue, and the index of its used ring.
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
