//! The memory that all clients' requests and replies take together.
//!
//! Each connection has a little that nobody can take from it, so small requests never wait for other clients. Beyond that it has as much as is left free, and it leaves as
//! much as it takes. One that waits for memory is told when some is given back; meanwhile those that take nothing [have to go](Account::is_wanted).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bell::Bell;

/// Bytes of requests and replies at a time, of all connections, beside [`GUARANTEED`]: three of the largest.
pub(crate) const ALL: usize = 96 << 20;
/// Bytes that each connection has in any case.
pub(crate) const GUARANTEED: usize = 256 << 10;
/// Bytes of those of one connection.
const OF_A_CONNECTION: usize = 64 << 20;
/// Requests of a connection at a time.
const REQUESTS: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Budget(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    used: usize,
    /// Connections that wait for some.
    waiting: Vec<Arc<Bell>>,
}

/// What a connection has of it. All is given back before it is dropped.
#[derive(Debug)]
pub(super) struct Account {
    budget: Arc<Budget>,
    bell: Arc<Bell>,
    own: Mutex<Own>,
}

#[derive(Debug, Default)]
struct Own {
    requests: usize,
    bytes: usize,
    /// It was refused some, so the bell is rung when it gives some back itself.
    waits: bool,
}

impl Budget {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are taken now, at most [`ALL`] and [`GUARANTEED`] for each connection.
    pub(crate) fn used(&self) -> usize {
        self.lock().used
    }
}

impl Account {
    /// One of `budget`, with nothing taken. The bell is rung when it is worth trying again.
    pub(super) fn new(budget: &Arc<Budget>, bell: &Arc<Bell>) -> Account {
        Account { budget: Arc::clone(budget), bell: Arc::clone(bell), own: Mutex::default() }
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a request of so many bytes needs; false if it has to wait.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let mut own = self.own();
        own.waits = own.requests >= REQUESTS || own.bytes + bytes > OF_A_CONNECTION;
        if own.waits {
            return false;
        }
        let mut state = self.budget.lock();
        let is_guaranteed = own.bytes + bytes <= GUARANTEED;
        if !is_guaranteed && own.bytes + 2 * bytes > ALL.saturating_sub(state.used) {
            own.waits = true;
            if !state.waiting.iter().any(|bell| Arc::ptr_eq(bell, &self.bell)) {
                state.waiting.push(Arc::clone(&self.bell));
            }
            return false;
        }
        state.used += bytes;
        *own = Own { requests: own.requests + 1, bytes: own.bytes + bytes, waits: false };
        true
    }

    /// A request that has taken so many is done.
    pub(super) fn give_back(&self, bytes: usize) {
        let mut own = self.own();
        (own.requests, own.bytes) = (own.requests - 1, own.bytes - bytes);
        let waits = own.waits;
        drop(own);
        let mut state = self.budget.lock();
        state.used -= bytes;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for bell in waiting {
            bell.ring();
        }
        if waits {
            self.bell.ring();
        }
    }

    /// Requests that are not done.
    pub(super) fn requests(&self) -> usize {
        self.own().requests
    }

    /// Some connection waits for memory.
    pub(super) fn is_wanted(&self) -> bool {
        !self.budget.lock().waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn what_is_left_is_shared() {
        let budget = Arc::new(Budget::default());
        let account = || Account::new(&budget, &Arc::new(Bell::new().unwrap()));
        let fill = |account: &Account, bytes: usize| {
            let mut count = 0;
            while account.take(bytes) {
                count += 1;
            }
            count
        };
        // The first has half of all, and the second half of the rest.
        let first = account();
        assert_eq!((fill(&first, 2 * MIB), budget.used()), (24, 48 * MIB));
        let second = account();
        assert_eq!(fill(&second, 2 * MIB), 12);
        // Of a hundred more each has what nobody can take from it.
        let others: Vec<_> = (0..100).map(|_| account()).collect();
        for other in &others {
            assert!(fill(other, MIB / 16) >= 4);
        }
        let last = account();
        assert!(last.take(MIB / 4) && !last.take(32 * MIB));
        assert!(budget.used() <= ALL + 103 * GUARANTEED && last.is_wanted());
        // It is told when some is given back.
        assert!(last.bell.is_quiet());
        first.give_back(2 * MIB);
        assert!(!last.bell.is_quiet() && !last.is_wanted());
        // The number of requests is bounded, too.
        assert_eq!(fill(&account(), 0), REQUESTS);
    }
}
