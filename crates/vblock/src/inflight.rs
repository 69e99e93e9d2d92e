//! The list of requests in flight, in memory that outlives this process.
//!
//! The vhost-user specification ("Inflight I/O tracking", split virtqueues) has the back-end keep this list
//! in memory that the front-end holds. When a server dies, the next one gets the same memory, and executes
//! again the requests that were taken from the available ring and not put into the used ring. The memory has
//! a part for each queue, with these fields in this order: 8 bytes of features; 16-bit numbers for the
//! version, the number of descriptors, the head that was completed last, and the index of the used ring; 16
//! bytes for each descriptor: whether it is in flight (byte 0), the head that was completed before it (byte
//! 6), and a number by which requests are ordered (byte 8).
//!
//! The client can write to this memory too, so nothing there is trusted except as far as it concerns the
//! client's own requests.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use ring3_vhost::memory::{MemoryError, check, sealed};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// Offsets of the fields.
mod at {
    pub(super) const VERSION: usize = 8;
    pub(super) const COUNT: usize = 10;
    pub(super) const LAST: usize = 12;
    pub(super) const USED: usize = 14;
    pub(super) const DESCRIPTORS: usize = 16;
    /// Offsets in the 16 bytes of a descriptor.
    pub(super) const NEXT: usize = 6;
    pub(super) const ORDER: usize = 8;
}

/// Number of bytes for a descriptor.
const STATE: usize = 16;
/// The size of a queue's part is a multiple of this number of bytes.
const ALIGNMENT: usize = 64;
/// The only version.
const VERSION: u16 = 1;

/// Returns the number of bytes in the part of a queue with `size` descriptors.
fn part(size: u16) -> usize {
    (at::DESCRIPTORS + usize::from(size) * STATE).next_multiple_of(ALIGNMENT)
}

/// The memory for all queues of a client.
#[derive(Debug, Clone)]
pub(crate) struct Inflight {
    mapping: Arc<MmapRegion>,
    queues: u16,
    size: u16,
}

impl Inflight {
    /// Returns the number of bytes for `queues` queues of `size` descriptors each.
    pub(crate) fn len(queues: u16, size: u16) -> u64 {
        (usize::from(queues) * part(size)) as u64
    }

    /// Returns a new file with this memory.
    pub(crate) fn create(queues: u16, size: u16) -> io::Result<File> {
        sealed("ring3 requests in flight", Inflight::len(queues, size))
    }

    /// Maps the memory that the client gives back.
    pub(crate) fn map(
        file: File,
        offset: u64,
        queues: u16,
        size: u16,
    ) -> Result<Inflight, MemoryError> {
        let len = Inflight::len(queues, size);
        check(&file, offset, len)?;
        let mapping = MmapRegion::from_file(FileOffset::new(file, offset), len as usize)
            .map_err(|error| MemoryError::Map(io::Error::other(error)))?;
        Ok(Inflight { mapping: Arc::new(mapping), queues, size })
    }

    /// Returns the part of queue `index`, which has `size` descriptors. Returns None if there is no room for
    /// it.
    pub(crate) fn queue(&self, index: u16, size: u16) -> Option<Tracker> {
        let fits = index < self.queues && size <= self.size;
        let start = usize::from(index) * part(self.size);
        fits.then(|| Tracker { mapping: Arc::clone(&self.mapping), start, size, order: 0 })
    }
}

/// The part of one queue.
#[derive(Debug)]
pub(crate) struct Tracker {
    mapping: Arc<MmapRegion>,
    start: usize,
    size: u16,
    /// The number of the request that was taken last.
    order: u64,
}

impl Tracker {
    fn number(&self, at: usize) -> &AtomicU16 {
        self.mapping.get_atomic_ref(self.start + at).expect("it is in the part of the queue")
    }

    fn is_in_flight(&self, head: u16) -> &AtomicU8 {
        let at = self.start + Tracker::state(head);
        self.mapping.get_atomic_ref(at).expect("it is in the part of the queue")
    }

    fn order(&self, head: u16) -> &AtomicU64 {
        let at = self.start + Tracker::state(head) + at::ORDER;
        self.mapping.get_atomic_ref(at).expect("it is in the part of the queue")
    }

    fn next(&self, head: u16) -> &AtomicU16 {
        self.number(Tracker::state(head) + at::NEXT)
    }

    fn state(head: u16) -> usize {
        at::DESCRIPTORS + usize::from(head) * STATE
    }

    /// Finds out which requests an earlier server has left in flight, where `used` is the index of the used
    /// ring. Returns their heads in the order in which they must be executed again, or None if there was no
    /// earlier server.
    pub(crate) fn recover(&mut self, used: u16) -> Option<Vec<u16>> {
        if self.number(at::VERSION).load(Ordering::Acquire) == 0 {
            self.number(at::VERSION).store(VERSION, Ordering::Release);
            self.number(at::COUNT).store(self.size, Ordering::Release);
            self.number(at::USED).store(used, Ordering::Release);
            return None;
        }
        // The earlier server may have died after it wrote the index of the used ring and before it noted this
        // here. Requests that it completed in between are not in flight.
        let batch = used.wrapping_sub(self.number(at::USED).load(Ordering::Acquire));
        let mut head = self.number(at::LAST).load(Ordering::Acquire);
        for _ in 0..batch.min(self.size) {
            if head >= self.size {
                break;
            }
            self.is_in_flight(head).store(0, Ordering::Release);
            head = self.next(head).load(Ordering::Acquire);
        }
        self.number(at::USED).store(used, Ordering::Release);
        let mut heads: Vec<_> = (0..self.size)
            .filter(|head| self.is_in_flight(*head).load(Ordering::Acquire) == 1)
            .map(|head| (self.order(head).load(Ordering::Acquire), head))
            .collect();
        heads.sort_unstable();
        self.order = heads.last().map_or(0, |(order, _)| *order);
        Some(heads.into_iter().map(|(_, head)| head).collect())
    }

    /// Notes that the request of `head`, a descriptor of the queue, was taken from the available ring.
    pub(crate) fn take(&mut self, head: u16) {
        self.order = self.order.wrapping_add(1);
        self.order(head).store(self.order, Ordering::Release);
        self.is_in_flight(head).store(1, Ordering::Release);
    }

    /// Notes that the request of `head` is about to be put into the used ring.
    pub(crate) fn complete(&mut self, head: u16) {
        let last = self.number(at::LAST).load(Ordering::Acquire);
        self.next(head).store(last, Ordering::Release);
        self.number(at::LAST).store(head, Ordering::Release);
    }

    /// Notes that the request of `head` is in the used ring, whose index is now `used`.
    pub(crate) fn completed(&mut self, head: u16, used: u16) {
        self.is_in_flight(head).store(0, Ordering::Release);
        self.number(at::USED).store(used, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trackers(file: &File, queues: u16, size: u16) -> Vec<Tracker> {
        let inflight = Inflight::map(file.try_clone().unwrap(), 0, queues, size).unwrap();
        (0..queues).map(|index| inflight.queue(index, size).unwrap()).collect()
    }

    #[test]
    fn unfinished_requests_are_repeated_in_their_order() {
        let file = Inflight::create(2, 8).unwrap();
        let mut first = trackers(&file, 2, 8);
        assert_eq!(first[1].recover(5), None);
        for head in [3, 0, 7] {
            first[1].take(head);
        }
        first[1].complete(0);
        first[1].completed(0, 6);
        let mut second = trackers(&file, 2, 8);
        assert_eq!(second[0].recover(0), None);
        assert_eq!(second[1].recover(6).unwrap(), [3, 7]);
        // New requests come after those that were left.
        second[1].take(1);
        assert_eq!(trackers(&file, 2, 8)[1].recover(6).unwrap(), [3, 7, 1]);
    }

    #[test]
    fn a_stop_at_any_step_of_a_completion_repeats_or_completes_once() {
        // If the server dies before it writes the index of the used ring, the request is executed again.
        // After that it is not.
        for (used, expected) in [(0, vec![2, 4]), (1, vec![2])] {
            let file = Inflight::create(1, 8).unwrap();
            let mut first = trackers(&file, 1, 8).remove(0);
            first.recover(0);
            first.take(2);
            first.take(4);
            first.complete(4);
            assert_eq!(trackers(&file, 1, 8)[0].recover(used).unwrap(), expected);
        }
    }

    #[test]
    fn any_contents_that_a_client_writes_are_harmless() {
        let file = Inflight::create(1, 8).unwrap();
        let mut tracker = trackers(&file, 1, 8).remove(0);
        tracker.recover(0);
        tracker.take(1);
        tracker.number(at::LAST).store(0xffff, Ordering::Relaxed);
        assert_eq!(tracker.recover(0x8000).unwrap(), [1]);
        tracker.number(at::LAST).store(1, Ordering::Relaxed);
        tracker.next(1).store(1, Ordering::Relaxed);
        assert_eq!(tracker.recover(0).unwrap(), [] as [u16; 0]);
        // A file that is not sealed, and one that is too short.
        let open = tempfile::tempfile().unwrap();
        open.set_len(4096).unwrap();
        assert!(matches!(Inflight::map(open, 0, 1, 8), Err(MemoryError::NotSealed)));
        assert!(matches!(Inflight::map(file, 64, 1, 8), Err(MemoryError::Short)));
    }
}
