//! The memory that requests and replies of all clients take together.
//!
//! Each connection has a small amount that nobody can take from it, so small requests never wait for other
//! clients. Beyond that, a connection may take memory as long as at least as much as it then has stays free.
//! A connection that waits for memory is told when some is given back. Meanwhile clients that accept nothing
//! [have to go](Account::is_wanted).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bell::Bell;

/// Upper bound of the bytes of all requests and replies, beyond [`GUARANTEED`] for each connection. Three of
/// the largest requests fit.
pub(crate) const ALL: usize = 96 << 20;
/// Number of bytes that a connection may always have.
pub(crate) const GUARANTEED: usize = 256 << 10;
/// Upper bound of the bytes of one connection.
const OF_A_CONNECTION: usize = 64 << 20;
/// Upper bound of the requests of one connection at a time.
const REQUESTS: usize = 64;

/// The memory that all connections share.
#[derive(Debug, Default)]
pub(crate) struct Budget(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    used: usize,
    /// The bells of connections that wait for memory.
    waiting: Vec<Arc<Bell>>,
}

/// The share of one connection. The connection gives everything back before it drops this.
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
    /// Whether the connection was refused memory, so that the bell must be rung when it gives some back
    /// itself.
    waits: bool,
}

impl Budget {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of bytes in use, at most [`ALL`], and [`GUARANTEED`] for each connection.
    pub(crate) fn used(&self) -> usize {
        self.lock().used
    }
}

impl Account {
    /// Returns an account with `budget` that has taken nothing. `bell` is rung when it may succeed after a
    /// refusal.
    pub(super) fn new(budget: &Arc<Budget>, bell: &Arc<Bell>) -> Account {
        Account { budget: Arc::clone(budget), bell: Arc::clone(bell), own: Mutex::default() }
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes memory for a request of `bytes` bytes. Returns false if the request must wait.
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

    /// Gives back the memory of a request that has taken `bytes` bytes.
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

    /// Returns the number of requests that are not finished.
    pub(super) fn requests(&self) -> usize {
        self.own().requests
    }

    /// Returns whether a connection waits for memory.
    pub(super) fn is_wanted(&self) -> bool {
        !self.budget.lock().waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_remaining_memory_is_shared() {
        let budget = Arc::new(Budget::default());
        let account = || Account::new(&budget, &Arc::new(Bell::new().unwrap()));
        let fill = |account: &Account, bytes: usize| {
            let mut count = 0;
            while account.take(bytes) {
                count += 1;
            }
            count
        };
        // The first connection gets half of all memory, and the second one half of the rest.
        let first = account();
        assert_eq!((fill(&first, 2 * MIB), budget.used()), (24, 48 * MIB));
        let second = account();
        assert_eq!(fill(&second, 2 * MIB), 12);
        // Each of a hundred more connections still gets its guaranteed amount.
        let others: Vec<_> = (0..100).map(|_| account()).collect();
        for other in &others {
            assert!(fill(other, MIB / 16) >= 4);
        }
        let last = account();
        assert!(last.take(MIB / 4) && !last.take(32 * MIB));
        assert!(budget.used() <= ALL + 103 * GUARANTEED && last.is_wanted());
        // A connection that waits is told when memory is given back.
        assert!(last.bell.is_quiet());
        first.give_back(2 * MIB);
        assert!(!last.bell.is_quiet() && !last.is_wanted());
        // The number of requests is bounded too.
        assert_eq!(fill(&account(), 0), REQUESTS);
    }
}
