//! A rate that clients share by weights, as a disk's or a network's.
//!
//! Work is given its turn by *start-time fair queueing* (Goyal, Vin and Cheng, "Start-time Fair Queueing", 1996): each
//! piece of work has a start tag, the larger of its client's last finish tag and of the tag that begins now, and the smallest
//! tag begins next. A finish tag is the start tag and the work's bytes by its client's weight. So busy clients
//! share the rate by their weights, what idle ones leave goes to the others, and nobody saves up turns. A client may have a
//! limit of its own beside that. Without a rate and without a limit a turn costs nothing.
//!
//! Threads wait for their turns. The size of a piece of work need not be known before it begins.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The weight of a client to which none was given.
pub const WEIGHT: u32 = 100;
/// How much time that nobody used can be caught up on: threads wake a little late.
const SPARE: Duration = Duration::from_millis(5);
/// How often a thread that waits looks whether it must end.
const LOOK: Duration = Duration::from_millis(50);
/// The parts of a byte in which tags count, so that large weights are exact enough.
const PARTS: u128 = 1 << 20;

/// What a client may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Its weight among the others; 0 counts as 1.
    pub weight: u32,
    /// The most bytes a second that it may use, whatever the others leave. None is no limit.
    pub most: Option<NonZero<u64>>,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms { weight: WEIGHT, most: None }
    }
}

/// Gives clients their turns.
#[derive(Debug)]
pub struct Turns {
    /// Bytes a second; None if only the clients' own limits hold.
    rate: Option<NonZero<u64>>,
    state: Mutex<State>,
}

/// A client's share of the turns. It is gone when this is dropped.
#[derive(Debug)]
pub struct Share {
    turns: Arc<Turns>,
    client: u64,
    has_limit: AtomicBool,
}

/// A turn. The next one begins after its end.
#[derive(Debug)]
#[must_use = "nobody else has a turn meanwhile"]
pub struct Turn<'a> {
    share: &'a Share,
    /// The start tag; None without a rate.
    tag: Option<u128>,
    bytes: u64,
}

/// The place of a piece of work among all that wait: its start tag, and its number.
type Place = (u128, u64);

#[derive(Debug)]
struct State {
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    waiting: BTreeMap<Place, Thread>,
    next_work: u64,
    /// Whether a turn has begun and not ended.
    is_taken: bool,
    /// The start tag of what has begun last.
    tag: u128,
    /// When all that has begun would be done at the rate.
    free_at: Instant,
}

#[derive(Debug)]
struct Client {
    terms: Terms,
    finish: u128,
    /// When all that it has begun would be done at its own limit.
    free_at: Instant,
}

/// Returns when `bytes` more are done at this rate.
fn done_at(free_at: Instant, bytes: u64, rate: NonZero<u64>, now: Instant) -> Instant {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
    let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    let begins = now.checked_sub(SPARE).map_or(free_at, |earliest| free_at.max(earliest));
    begins.checked_add(time).unwrap_or(begins)
}

impl State {
    fn new(now: Instant) -> State {
        State {
            clients: BTreeMap::new(),
            next_client: 0,
            waiting: BTreeMap::new(),
            next_work: 0,
            is_taken: false,
            tag: 0,
            free_at: now,
        }
    }

    fn join(&mut self, terms: Terms, now: Instant) -> u64 {
        let client = self.next_client;
        self.next_client += 1;
        self.clients.insert(client, Client { terms, finish: 0, free_at: now });
        client
    }

    /// Returns for how long a client's own limit lets it wait.
    fn held_back(&self, client: u64, now: Instant) -> Option<Duration> {
        let client = self.clients.get(&client)?;
        client.terms.most.and_then(|_| client.free_at.checked_duration_since(now))
    }

    /// Queues a piece of work of a client, for which `thread` waits.
    fn enter(&mut self, client: u64, thread: Thread) -> Place {
        let finish = self.clients.get(&client).map_or(0, |client| client.finish);
        let place = (self.tag.max(finish), self.next_work);
        self.next_work += 1;
        self.waiting.insert(place, thread);
        place
    }

    /// Begins the work at `place` if it is its turn, and else returns for how long to wait before the next look. A thread is
    /// woken when its work becomes the first.
    fn begin(&mut self, place: Place, now: Instant) -> Result<(), Duration> {
        let is_first = self.waiting.first_key_value().is_some_and(|(first, _)| *first == place);
        if self.is_taken || !is_first {
            return Err(LOOK);
        }
        if let Some(time) = self.free_at.checked_duration_since(now).filter(|time| !time.is_zero())
        {
            return Err(time.min(LOOK));
        }
        self.waiting.remove(&place);
        self.is_taken = true;
        self.tag = place.0;
        Ok(())
    }

    /// Ends the turn of a client whose work of `bytes` had this tag, at this rate.
    fn end(&mut self, client: u64, tag: u128, bytes: u64, rate: NonZero<u64>, now: Instant) {
        self.is_taken = false;
        self.free_at = done_at(self.free_at, bytes, rate, now);
        if let Some(client) = self.clients.get_mut(&client) {
            let weight = u128::from(client.terms.weight.max(1));
            client.finish = client.finish.max(tag) + u128::from(bytes) * PARTS / weight;
        }
        self.wake_first();
    }

    /// Counts `bytes` towards a client's own limit.
    fn charge(&mut self, client: u64, bytes: u64, now: Instant) {
        if let Some(client) = self.clients.get_mut(&client)
            && let Some(most) = client.terms.most
        {
            client.free_at = done_at(client.free_at, bytes, most, now);
        }
    }

    fn wake_first(&self) {
        if let Some((_, thread)) = self.waiting.first_key_value() {
            thread.unpark();
        }
    }
}

impl Turns {
    /// Shares out `rate` bytes a second; with None, clients have only their own limits.
    pub fn new(rate: Option<NonZero<u64>>) -> Arc<Turns> {
        Arc::new(Turns { rate, state: Mutex::new(State::new(Instant::now())) })
    }

    /// Adds a client.
    pub fn join(self: &Arc<Self>, terms: Terms) -> Share {
        let client = self.lock().join(terms, Instant::now());
        let has_limit = AtomicBool::new(terms.most.is_some());
        Share { turns: Arc::clone(self), client, has_limit }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Changes what the client may use, from its next turn on.
    pub fn set(&self, terms: Terms) {
        if let Some(client) = self.turns.lock().clients.get_mut(&self.client) {
            client.terms = terms;
            self.has_limit.store(terms.most.is_some(), Ordering::Relaxed);
        }
    }

    /// Returns what the client may use.
    pub fn terms(&self) -> Terms {
        let state = self.turns.lock();
        state.clients.get(&self.client).map_or_else(Terms::default, |client| client.terms)
    }

    fn has_limit(&self) -> bool {
        self.has_limit.load(Ordering::Relaxed)
    }

    /// Waits for the client's turn. Returns None if `has_ended` returns true meanwhile. It is asked each time before
    /// the thread sleeps, for 50 ms at most, or until it is unparked.
    pub fn begin(&self, mut has_ended: impl FnMut() -> bool) -> Option<Turn<'_>> {
        let held_back = || self.turns.lock().held_back(self.client, Instant::now());
        while self.has_limit()
            && let Some(time) = held_back().filter(|time| !time.is_zero())
        {
            if has_ended() {
                return None;
            }
            thread::park_timeout(time.min(LOOK));
        }
        if self.turns.rate.is_none() {
            return Some(Turn { share: self, tag: None, bytes: 0 });
        }
        let mut state = self.turns.lock();
        let place = state.enter(self.client, thread::current());
        loop {
            let Err(time) = state.begin(place, Instant::now()) else {
                return Some(Turn { share: self, tag: Some(place.0), bytes: 0 });
            };
            drop(state);
            let ends = has_ended();
            if !ends {
                thread::park_timeout(time);
            }
            state = self.turns.lock();
            if ends {
                state.waiting.remove(&place);
                state.wake_first();
                return None;
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.turns.lock().clients.remove(&self.client);
    }
}

impl Turn<'_> {
    /// Ends the turn, whose work is so long.
    pub fn end(mut self, bytes: u64) {
        self.bytes = bytes;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Share { turns, client, .. } = self.share;
        let now = Instant::now();
        if let (Some(tag), Some(rate)) = (self.tag, turns.rate) {
            turns.lock().end(*client, tag, self.bytes, rate, now);
        }
        if self.share.has_limit() {
            turns.lock().charge(*client, self.bytes, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn rate(bytes: u64) -> NonZero<u64> {
        NonZero::new(bytes).unwrap()
    }

    /// Lets clients with these terms work for `time`, each of which has its next work, of as many bytes as stand beside its
    /// terms, a tenth of a millisecond after it has begun the one before. Returns the bytes of each.
    fn simulate(all: NonZero<u64>, clients: &[(Terms, u64)], time: Duration) -> Vec<u64> {
        let start = Instant::now();
        let mut state = State::new(start);
        let ids: Vec<_> = clients.iter().map(|(terms, _)| state.join(*terms, start)).collect();
        let mut places: Vec<Option<Place>> = vec![None; clients.len()];
        let mut ready = vec![start; clients.len()];
        let mut used = vec![0; clients.len()];
        let mut now = start;
        while now < start + time {
            for (index, (_, bytes)) in clients.iter().enumerate() {
                let waits = state.held_back(ids[index], now).is_some_and(|time| !time.is_zero());
                if places[index].is_none() && ready[index] <= now && !waits {
                    places[index] = Some(state.enter(ids[index], thread::current()));
                }
                if let Some(place) = places[index]
                    && state.begin(place, now).is_ok()
                {
                    state.end(ids[index], place.0, *bytes, all, now);
                    state.charge(ids[index], *bytes, now);
                    used[index] += bytes;
                    places[index] = None;
                    ready[index] = now + MILLISECOND / 10;
                }
            }
            now += MILLISECOND / 50;
        }
        used
    }

    fn client(weight: u32, bytes: u64) -> (Terms, u64) {
        (Terms { weight, most: None }, bytes)
    }

    #[test]
    fn busy_clients_share_by_weight_whatever_the_sizes_of_their_work() {
        let clients =
            [client(100, 4096), client(100, 65536), client(200, 16384), client(400, 4096)];
        let all = 20_000_000;
        let used = simulate(rate(all), &clients, Duration::from_secs(4));
        for (used, part) in used.iter().zip([8, 8, 4, 2]) {
            let wanted = 4 * all / part;
            assert!(used.abs_diff(wanted) < wanted / 40, "{used} {wanted}");
        }
    }

    #[test]
    fn what_idle_clients_leave_goes_to_the_others() {
        // One of these waits a second between two pieces of work, and so would have earned much.
        let used = simulate(rate(1_000_000), &[client(1, 10_000)], Duration::from_secs(1));
        assert!(used[0].abs_diff(1_000_000) < 30_000, "{used:?}");
        let start = Instant::now();
        let mut state = State::new(start);
        let [busy, idle] = [1, 1000].map(|weight| state.join(Terms { weight, most: None }, start));
        let mut now = start;
        for _ in 0..100 {
            let place = state.enter(busy, thread::current());
            state.begin(place, now).unwrap();
            state.end(busy, place.0, 10_000, rate(1_000_000), now);
            now += 10 * MILLISECOND;
        }
        // It is the next one, but does not hold the rate for what it has not used.
        let of_busy = state.enter(busy, thread::current());
        let of_idle = state.enter(idle, thread::current());
        assert!(of_idle < of_busy);
        assert!(of_busy.0 - of_idle.0 <= 10_000 * PARTS);
    }

    #[test]
    fn nobody_goes_beyond_a_limit_of_its_own() {
        let limited = (Terms { weight: 1000, most: Some(rate(100_000)) }, 1000);
        let used = simulate(rate(1_000_000), &[limited, client(1, 1000)], Duration::from_secs(2));
        assert!(used[0].abs_diff(200_000) < 5_000, "{used:?}");
        assert!(used[1].abs_diff(1_800_000) < 20_000, "{used:?}");
    }

    #[test]
    fn any_numbers_end() {
        let now = Instant::now();
        for most in [None, Some(rate(1)), Some(rate(u64::MAX))] {
            for weight in [0, 1, u32::MAX] {
                let mut state = State::new(now);
                let client = state.join(Terms { weight, most }, now);
                for bytes in [0, 1, u64::MAX, u64::MAX] {
                    let place = state.enter(client, thread::current());
                    let _ = state.begin(place, now);
                    state.waiting.clear();
                    state.end(client, place.0, bytes, rate(1), now);
                    state.charge(client, bytes, now);
                }
            }
        }
    }

    #[test]
    fn a_thread_that_waits_ends_when_it_is_told_to() {
        let turns = Turns::new(Some(rate(1)));
        let share = turns.join(Terms::default());
        share.begin(|| false).unwrap().end(1_000_000);
        assert!(share.begin(|| true).is_none());
        // Nor does a turn that is dropped keep others from theirs.
        let turns = Turns::new(Some(rate(1_000_000)));
        let (one, other) = (turns.join(Terms::default()), turns.join(Terms::default()));
        drop(one.begin(|| false));
        other.begin(|| false).unwrap().end(1);
    }
    #[test]
    fn without_a_rate_only_limits_hold() {
        let turns = Turns::new(None);
        let share = turns.join(Terms::default());
        // Several at a time have their turns.
        let both = [(); 2].map(|()| share.begin(|| true).unwrap());
        for turn in both {
            turn.end(u64::MAX);
        }
        share.set(Terms { most: Some(rate(1)), ..Terms::default() });
        share.begin(|| true).unwrap().end(1_000_000);
        assert!(share.begin(|| true).is_none());
        share.set(Terms::default());
        share.begin(|| true).unwrap().end(1);
    }
}
