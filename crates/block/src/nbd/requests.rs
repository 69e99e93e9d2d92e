//! Requests of several threads over one connection, and over the next one if it is lost.
//!
//! Each thread sends its own requests, and waits for their answers. One of the waiting threads reads all
//! answers. After its own answer another thread takes over. So a single request needs no other thread. And
//! whenever a thread sends while the server owes an answer, another one reads, so both sides cannot wait for
//! each other.
//!
//! # A server that goes and comes back loses nothing
//!
//! The thread that finds the connection lost tries to reach the server again, and the others wait. The new
//! server first gets all changes again that were made and not flushed since, in their order, because the
//! machine in which it ran may have died with these in memory. Then each request that was not answered is
//! sent again. Up to 16 MiB of changes are kept. When there are more, this client flushes without being
//! asked. If the server does not come back in time, the waiting requests fail, and each new request tries
//! once to reach it.
//!
//! If the time to wait is zero, or if the server breaks the protocol, a lost connection stays lost. With a
//! time of zero nothing is kept.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring3_host::stream::Stream;

use super::address::Address;
use super::handshake::{Export, greet};
use super::protocol::Command;
use super::replies::{Answer, Request, Wire, refused, wrong};
use super::stream;
use super::unflushed::{Change, Unflushed};

/// Upper bound of the requests that the server has at once.
const FLIGHTS_MAX: usize = 16;
/// The time before the next attempt to reach the server: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The requests to a server, and the connection with it.
#[derive(Debug)]
pub(super) struct Requests {
    address: Address,
    export: Export,
    state: Mutex<State>,
    /// Signals that the connection has changed, or that there is room for another request.
    changed: Condvar,
    /// Held by the thread that sends.
    sending: Mutex<()>,
}

#[derive(Debug)]
struct State {
    link: Link,
    /// Number of connections so far.
    links: u64,
    /// Number of attempts so far to make a new connection.
    tries: u64,
    /// The present connection, or the one that is being made.
    stream: Option<Arc<Stream>>,
    /// The number of the next request.
    next: u64,
    /// The requests that the server has, by their numbers.
    flights: BTreeMap<u64, Flight>,
    /// Number of requests that are about to be sent, or that were sent.
    busy: usize,
    unflushed: Unflushed,
    gave_up: bool,
}

#[derive(Debug)]
enum Link {
    /// There is a connection. If a thread is reading from it, the thread has its receiving side.
    Up(Option<Wire>),
    /// There has been no connection since this time, for this reason.
    Down { since: Instant, why: String },
    /// A thread tries to make a connection.
    Trying,
    /// There will be no further connection, for this reason.
    Over(String),
}

/// A request that the server has.
#[derive(Debug)]
struct Flight {
    /// The parts of the answer so far. None while a thread reads for it.
    answer: Option<Answer>,
    /// Data that other threads have read for this request.
    bytes: Vec<u8>,
    /// The consequence for the list of changes when the server has executed the request.
    after: After,
    /// Whether the request's thread has sent it.
    is_sent: bool,
    woken: Arc<Condvar>,
}

impl Flight {
    fn is_complete(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.is_complete)
    }

    /// Returns whether the request's thread waits for the answer, or for its turn to read.
    fn waits(&self) -> bool {
        self.is_sent && !self.is_complete()
    }
}

#[derive(Debug)]
enum After {
    Nothing,
    /// The change must be repeated to a new server until it was flushed.
    Keep(Change),
    /// This number of changes, counted from the first one, are flushed.
    Forget(u64),
}

/// The end of a request.
enum Outcome {
    Answered(Answer),
    /// The connection was lost before the answer came.
    Lost,
}

impl Requests {
    /// Connects for the first time.
    pub(super) fn open(address: Address) -> io::Result<(Arc<Requests>, Export)> {
        let end = Instant::now() + address.waits.open;
        let mut pause = RETRY.0;
        let (wire, export) = loop {
            match connect(&address, &|_| {}) {
                Ok(both) => break both,
                Err(error) if Instant::now() >= end || error.kind() == ErrorKind::InvalidData => {
                    return Err(error);
                }
                Err(_) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(RETRY.1);
        };
        let state = State {
            stream: Some(Arc::clone(&wire.stream)),
            link: Link::Up(Some(wire)),
            links: 1,
            tries: 0,
            next: 1,
            flights: BTreeMap::new(),
            busy: 0,
            unflushed: Unflushed::default(),
            gave_up: false,
        };
        let (changed, sending) = (Condvar::new(), Mutex::default());
        let requests = Requests { address, export, state: Mutex::new(state), changed, sending };
        Ok((Arc::new(requests), export))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets requests fail from now on that would have to wait for the server to come back, or for its
    /// answers.
    pub(super) fn give_up(&self) {
        let mut state = self.lock();
        state.gave_up = true;
        if let Some(stream) = &state.stream {
            stream.hang_up();
        }
        state.wake_all(&self.changed);
    }

    /// Returns whether it is time to flush, because there are many changes that were not flushed.
    pub(super) fn is_far_behind(&self) -> bool {
        self.lock().unflushed.is_much()
    }

    /// Lets the server execute a request. Data that it reads go to `bytes`, which has the length that
    /// `request` states. Returns the answer to a request for block status.
    pub(super) fn ask(
        &self,
        request: &Request<'_>,
        bytes: &mut [u8],
    ) -> io::Result<Option<(bool, u64)>> {
        let mut state = self.lock();
        while state.busy >= FLIGHTS_MAX {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.busy += 1;
        drop(state);
        let answer = self.ask_until_answered(request, bytes);
        let mut state = self.lock();
        state.busy -= 1;
        if state.busy == FLIGHTS_MAX - 1 {
            self.changed.notify_all();
        }
        drop(state);
        answer?.result()
    }

    fn ask_until_answered(&self, request: &Request<'_>, bytes: &mut [u8]) -> io::Result<Answer> {
        loop {
            let (link, number, stream, woken) = self.begin(request)?;
            let alone = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
            let sent = request.send(number, &stream);
            drop(alone);
            if let Err(error) = sent {
                self.lose(link, &error);
            }
            match self.wait(link, number, &woken, bytes) {
                Outcome::Answered(answer) => return Ok(answer),
                Outcome::Lost => {}
            }
        }
    }

    /// Registers a request as soon as there is a connection. Returns the numbers of the connection and of the
    /// request, the connection, and the signal that wakes the thread.
    fn begin(&self, request: &Request<'_>) -> io::Result<(u64, u64, Arc<Stream>, Arc<Condvar>)> {
        let mut state = self.connected()?;
        let after = match request.command {
            _ if !self.keeps_changes() => After::Nothing,
            command @ (Command::Write | Command::WriteZeroes) => {
                let (offset, len) = (request.offset, request.len);
                After::Keep(Change { command, offset, len, data: request.data.to_vec() })
            }
            Command::Flush => After::Forget(state.unflushed.count()),
            _ => After::Nothing,
        };
        let number = state.next;
        state.next += 1;
        let woken = Arc::<Condvar>::default();
        let flight = Flight {
            answer: Some(Answer::new(request)),
            bytes: Vec::new(),
            after,
            is_sent: false,
            woken: Arc::clone(&woken),
        };
        state.flights.insert(number, flight);
        let stream = state.stream.as_ref().ok_or_else(|| refused("is not connected"))?;
        Ok((state.links, number, Arc::clone(stream), woken))
    }

    /// Returns whether changes must be kept until they are flushed, because a server that dies may lose them.
    fn keeps_changes(&self) -> bool {
        self.export.can_flush() && !self.address.waits.reconnect.is_zero()
    }

    /// Waits for the answer to request `number`, and reads for all requests when it is this thread's turn.
    fn wait(&self, link: u64, number: u64, woken: &Condvar, bytes: &mut [u8]) -> Outcome {
        let mut state = self.lock();
        loop {
            let is_lost = !state.is_up(link);
            let Some(flight) = state.flights.get_mut(&number) else { return Outcome::Lost };
            if flight.is_complete() {
                if !flight.bytes.is_empty() {
                    bytes.copy_from_slice(&flight.bytes);
                }
                let flight = state.flights.remove(&number);
                return flight
                    .and_then(|flight| flight.answer)
                    .map_or(Outcome::Lost, Outcome::Answered);
            }
            if is_lost {
                state.flights.remove(&number);
                return Outcome::Lost;
            }
            flight.is_sent = true;
            let Link::Up(wire) = &mut state.link else { continue };
            if let Some(mut wire) = wire.take() {
                drop(state);
                let read = self.read(&mut wire, link, number, bytes);
                state = self.lock();
                match read {
                    Ok(()) if state.is_up(link) => {
                        state.link = Link::Up(Some(wire));
                        // Another thread reads from now on.
                        if let Some(next) = state.flights.values().find(|flight| flight.waits()) {
                            next.woken.notify_one();
                        }
                    }
                    Ok(()) => {}
                    Err(error) => {
                        drop(state);
                        self.lose(link, &error);
                        state = self.lock();
                    }
                }
            } else {
                state = woken.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Reads answers until request `mine` is complete, whose data go to `bytes`.
    fn read(&self, wire: &mut Wire, link: u64, mine: u64, bytes: &mut [u8]) -> io::Result<()> {
        loop {
            let head = wire.head()?;
            let number = head.number;
            let mut state = self.lock();
            let flight = state.flights.get_mut(&number);
            let (mut answer, mut other) = flight
                .and_then(|flight| Some((flight.answer.take()?, std::mem::take(&mut flight.bytes))))
                .ok_or_else(|| wrong("a reply to nothing"))?;
            drop(state);
            let is_elsewhere = number != mine || !other.is_empty();
            if is_elsewhere && other.is_empty() {
                other = vec![0; answer.room()];
            }
            answer.take(&head, wire, if is_elsewhere { &mut other } else { bytes })?;

            let is_complete = answer.is_complete;
            let mut state = self.lock();
            // Another thread may already be repeating the changes for the next server, so the list must not
            // change.
            if !state.is_up(link) {
                return Err(refused("was lost"));
            }
            let State { flights, unflushed, .. } = &mut *state;
            let flight = flights.get_mut(&number).ok_or_else(|| refused("was lost"))?;
            if answer.is_good() {
                match std::mem::replace(&mut flight.after, After::Nothing) {
                    After::Nothing => {}
                    After::Keep(change) => unflushed.add(change),
                    After::Forget(count) => unflushed.forget(count),
                }
            }
            (flight.answer, flight.bytes) = (Some(answer), other);
            if is_complete && number == mine {
                return Ok(());
            }
            if is_complete {
                flight.woken.notify_one();
            }
        }
    }

    /// Notes that connection `link` is lost.
    fn lose(&self, link: u64, error: &io::Error) {
        let mut state = self.lock();
        if !state.is_up(link) {
            return;
        }
        if let Some(stream) = state.stream.take() {
            stream.hang_up();
        }
        let delay = self.address.waits.reconnect;
        let why = error.to_string();
        state.link = if error.kind() == ErrorKind::InvalidData {
            Link::Over(why)
        } else if delay.is_zero() || state.gave_up {
            Link::Over(format!("the NBD server was lost before: {why}"))
        } else {
            let (name, seconds) = (&self.address.place, delay.as_secs());
            tracing::warn!(
                "the connection to the NBD server at {name} is lost: {why}; requests wait {seconds} s for a new one"
            );
            Link::Down { since: Instant::now(), why }
        };
        state.wake_all(&self.changed);
    }

    /// Waits until there is a connection, or makes one.
    fn connected(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        let tries = state.tries;
        let mut pause = RETRY.0;
        loop {
            let (is_over, why) = match &state.link {
                Link::Up(_) => return Ok(state),
                Link::Over(why) => (true, why.clone()),
                Link::Down { since, why } => {
                    let is_late = since.elapsed() >= self.address.waits.reconnect;
                    (state.gave_up || is_late && state.tries > tries, why.clone())
                }
                Link::Trying => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
            };
            if is_over {
                return Err(io::Error::other(why));
            }
            if state.tries > tries {
                let waited = self.changed.wait_timeout(state, pause);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                pause = (pause * 2).min(RETRY.1);
            }
            if let Link::Down { since, .. } = state.link {
                state.link = Link::Trying;
                state = self.reconnect(state, since);
            }
        }
    }

    /// Tries once to make a new connection.
    fn reconnect<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        since: Instant,
    ) -> MutexGuard<'a, State> {
        let changes = state.unflushed.all();
        drop(state);
        let made = self.make_again(&changes);
        state = self.lock();
        state.tries += 1;
        state.link = match made {
            Ok(wire) if !state.gave_up => {
                tracing::info!("connected again to the NBD server at {}", self.address.place);
                state.links += 1;
                Link::Up(Some(wire))
            }
            Ok(_) => Link::Down { since, why: "nobody waits for it".to_owned() },
            Err(error) if error.kind() == ErrorKind::InvalidData => Link::Over(error.to_string()),
            Err(error) => Link::Down { since, why: error.to_string() },
        };
        if !matches!(state.link, Link::Up(_)) {
            state.stream = None;
        }
        state.wake_all(&self.changed);
        state
    }

    /// Makes a new connection, and repeats `changes`.
    fn make_again(&self, changes: &[Change]) -> io::Result<Wire> {
        let keep = |stream: &Arc<Stream>| self.lock().stream = Some(Arc::clone(stream));
        let (mut wire, export) = connect(&self.address, &keep)?;
        if !export.can_replace(&self.export) {
            return Err(refused("has a different export of that name now"));
        }
        for (change, number) in changes.iter().zip(0..) {
            let Change { command, offset, len, data } = change;
            let request = Request { data, ..Request::new(*command, *offset, *len) };
            request.send(number, &wire.stream)?;
            let mut answer = Answer::new(&request);
            while !answer.is_complete {
                let head = wire.head()?;
                if head.number != number {
                    return Err(wrong("a reply to nothing"));
                }
                answer.take(&head, &mut wire, &mut [])?;
            }
            answer.result()?;
        }
        Ok(wire)
    }
}

/// Connects to the server, and chooses the export. `keep` gets the connection before the handshake.
fn connect(address: &Address, keep: &dyn Fn(&Arc<Stream>)) -> io::Result<(Wire, Export)> {
    let stream = Arc::new(stream::connect(&address.place)?);
    keep(&stream);
    let mut wire = Wire::new(stream, address.place.to_string())?;
    let export = greet(&mut wire, &address.export)?;
    wire.set_patience(address.waits.answer)?;
    Ok((wire, export))
}

impl State {
    /// Returns whether connection `link` is the present one.
    fn is_up(&self, link: u64) -> bool {
        self.links == link && matches!(self.link, Link::Up(_))
    }

    fn wake_all(&self, changed: &Condvar) {
        for flight in self.flights.values() {
            flight.woken.notify_one();
        }
        changed.notify_all();
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = &state.stream {
            // The protocol has no reply to this, and an error does not matter any more.
            let _ = Request::new(Command::Disconnect, 0, 0).send(0, stream);
        }
    }
}
