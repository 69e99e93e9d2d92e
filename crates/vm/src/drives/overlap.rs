//! Requests that others do for a drive, and the machine's own thread looks after.
//!
//! To hand a request to a thread, and its answer back by the door, takes two threads to wake up. A server answers sooner. So who asks
//! looks a while for the answer, and the guest has it when its notification is over. But a guest with several requests
//! under way has better things to do meanwhile: it runs on, and the answers are found where the machine looks outside anyway. Which kind
//! a guest is shows by what it does next. Where it waits, the machine sleeps until there is an answer, as for all that it
//! [fetches](crate::door::Source) itself.

use ring3_core::disk::{DiskError, DiskRequest};

use super::Later;

/// One request in so many is not waited for, to see what the guest does.
const PROBE: u32 = 64;

/// Whether the guest has more to ask while a request is under way.
#[derive(Debug, Default)]
pub(super) struct Overlap {
    goes_on: bool,
    asked: u32,
}

impl Overlap {
    /// The guest asks while `others` are under way: true if it is let run on.
    pub(super) fn asks(&mut self, others: usize) -> bool {
        self.goes_on |= others > 0;
        self.asked = self.asked.wrapping_add(1);
        self.goes_on || self.asked.is_multiple_of(PROBE)
    }

    /// The guest waits while `count` are under way: 0 says nothing.
    pub(super) fn waits(&mut self, count: usize) {
        self.goes_on &= count != 1;
    }
}

/// A request that was begun.
pub(super) struct Held {
    pub(super) request: DiskRequest,
    pub(super) later: Box<dyn Later>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("request", &self.request.tag).finish_non_exhaustive()
    }
}

/// What was found of one: the bytes read, or that it failed and is to be done again by a thread, which has to do with errors.
pub(super) type Found = (Held, Result<Vec<u8>, DiskError>);

/// The first of `held` that `look` finds complete.
pub(super) fn find(
    held: &mut Vec<Held>,
    mut look: impl FnMut(&mut dyn Later) -> Option<Result<Vec<u8>, DiskError>>,
) -> Option<Found> {
    let found =
        held.iter_mut().zip(0..).find_map(|(one, index)| Some((index, look(&mut *one.later)?)));
    found.map(|(index, result)| (held.remove(index), result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_shows_what_it_does_next() {
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
