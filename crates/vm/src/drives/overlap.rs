//! Requests that others execute for a drive, and that the machine's own thread follows.
//!
//! Handing a request to a thread, and its answer back by the door, wakes up two threads. A server answers
//! sooner. So after a request the machine polls for the answer for a while, and the guest has it when its
//! notification returns. But a guest with several requests under way has better things to do meanwhile: it
//! runs on, and the answers are found where the machine looks outside anyway. The guest's next actions show
//! of which kind it is. If it waits, the machine sleeps until there is an answer, as for everything that it
//! [fetches](crate::door::Source) itself.

use ring3_core::disk::{DiskError, DiskRequest};

use super::PendingOperation;

/// One request in this many is not waited for, to see what the guest does.
const PROBE: u32 = 64;

/// Whether the guest has more requests while one is under way.
#[derive(Debug, Default)]
pub(super) struct Overlap {
    goes_on: bool,
    asked: u32,
}

impl Overlap {
    /// Notes a request of the guest while `others` are under way. Returns whether the guest should run on.
    pub(super) fn asks(&mut self, others: usize) -> bool {
        self.goes_on |= others > 0;
        self.asked = self.asked.wrapping_add(1);
        self.goes_on || self.asked.is_multiple_of(PROBE)
    }

    /// Notes that the guest waits while `count` requests are under way; 0 says nothing.
    pub(super) fn waits(&mut self, count: usize) {
        self.goes_on &= count != 1;
    }
}

/// A request that was begun.
pub(super) struct Held {
    pub(super) request: DiskRequest,
    pub(super) later: Box<dyn PendingOperation>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("request", &self.request.tag).finish_non_exhaustive()
    }
}

/// The result of such a request: the bytes read, or an error, after which a thread repeats it and handles the
/// error.
pub(super) type Found = (Held, Result<Vec<u8>, DiskError>);

/// Returns the first of `held` that `look` finds complete.
pub(super) fn find(
    held: &mut Vec<Held>,
    mut look: impl FnMut(&mut dyn PendingOperation) -> Option<Result<Vec<u8>, DiskError>>,
) -> Option<Found> {
    let found =
        held.iter_mut().zip(0..).find_map(|(one, index)| Some((index, look(&mut *one.later)?)));
    found.map(|(index, result)| (held.remove(index), result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_requests_show_whether_it_sends_several_at_once() {
        let mut overlap = Overlap::default();
        let probes = (0..2 * PROBE).filter(|_| {
            let goes_on = overlap.asks(0);
            overlap.waits(usize::from(goes_on));
            goes_on
        });
        assert_eq!(probes.count(), 2, "one at a time");
        assert!(overlap.asks(1) && overlap.asks(0), "it has asked for more");
        overlap.waits(2);
        assert!(overlap.asks(0));
        overlap.waits(1);
        assert!(!overlap.asks(0));
    }
}
