//! Requests of several threads over one connection, and over the next one when that is lost.
//!
//! Each thread sends its own requests, and waits for their answers. One of those who wait reads what comes, for all; when it has its
//! own answer, another one goes on. So a request that is alone needs no other thread, and when somebody sends, there is somebody
//! who reads if the server owes anything: both sides cannot wait for each other.
//!
//! # A server that goes and comes back loses nothing
//!
//! Whoever finds the connection lost tries to reach the server again, and the others wait. When it is there, it is first told again
//! what it said was written and has not flushed since, in that order, as the machine that it runs in may have died with that in memory;
//! then each request that it had not answered is sent again. These are kept up to 16 MiB, after which there is a flush that nobody
//! asked for. When it has not come in time, the requests that wait fail, and each new one tries once.
//!
//! With no time to wait, and where a server does not keep to the protocol, a connection that is lost stays lost, and nothing is kept.

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

/// The most requests that the server has at once.
const FLIGHTS_MAX: usize = 16;
/// How long is waited before the next try to reach the server: first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// See the module.
#[derive(Debug)]
pub(super) struct Requests {
    address: Address,
    export: Export,
    state: Mutex<State>,
    /// There is another connection, or none any more, or a place for a request.
    changed: Condvar,
    /// Held by who sends.
    sending: Mutex<()>,
}

#[derive(Debug)]
struct State {
    link: Link,
    /// How many connections there have been.
    links: u64,
    /// How many tries there have been to make one.
    tries: u64,
    /// The connection over which is spoken now, or by which the server may be reached.
    stream: Option<Arc<Stream>>,
    /// The number of the next request.
    next: u64,
    /// Requests that the server has, by their numbers.
    flights: BTreeMap<u64, Flight>,
    /// Requests that are to be sent, or were.
    busy: usize,
    unflushed: Unflushed,
    gave_up: bool,
}

#[derive(Debug)]
enum Link {
    /// There is a connection; somebody reads from it, if there is nothing here.
    Up(Option<Wire>),
    /// There has been none since then.
    Down { since: Instant, why: String },
    /// Somebody tries to make one.
    Trying,
    /// There will be none, for this reason.
    Over(String),
}

/// A request that the server has.
#[derive(Debug)]
struct Flight {
    /// Not here while somebody reads for it.
    answer: Option<Answer>,
    /// What was read for it by others.
    bytes: Vec<u8>,
    /// What it leads to when the server has done it.
    after: After,
    /// Its thread has sent it.
    is_sent: bool,
    woken: Arc<Condvar>,
}

impl Flight {
    fn is_complete(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.is_complete)
    }

    /// Its thread waits for it, or for its turn to read.
    fn waits(&self) -> bool {
        self.is_sent && !self.is_complete()
    }
}

#[derive(Debug)]
enum After {
    Nothing,
    /// This must be told again, until it is flushed.
    Keep(Change),
    /// So many of all changes are flushed.
    Forget(u64),
}

/// What became of a request.
enum Outcome {
    Answered(Answer),
    /// The connection was lost before.
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

    /// From now on what would have to wait for the server to come back fails, and what the server has not answered too.
    pub(super) fn give_up(&self) {
        let mut state = self.lock();
        state.gave_up = true;
        if let Some(stream) = &state.stream {
            stream.hang_up();
        }
        state.wake_all(&self.changed);
    }

    /// What was written and not flushed is so much that it is time to.
    pub(super) fn is_far_behind(&self) -> bool {
        self.lock().unflushed.is_much()
    }

    /// Has the server do it; what it reads goes to `bytes`, which is as long as `request` says. What it tells of the state of blocks.
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

    /// A place for a request, as soon as there is a connection: its number, that connection's, and how the thread is woken.
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
        let stream = state.stream.as_ref().ok_or_else(|| refused("is not there"))?;
        Ok((state.links, number, Arc::clone(stream), woken))
    }

    /// The server may not have done for certain what it says is done.
    fn keeps_changes(&self) -> bool {
        self.export.can_flush() && !self.address.waits.reconnect.is_zero()
    }

    /// Waits for the answer to request `number`, and reads for all when it is its turn.
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
                        // Somebody else reads from now on.
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

    /// Takes what comes, until request `mine` is complete, whose data go to `bytes`.
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
            // Somebody may be telling the next server already what this one is known to have done.
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

    /// Connection `link` is lost.
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
                "the NBD server at {name} is lost: {why}; requests wait for it for {seconds} s"
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

    /// Tries once to reach the server again.
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
                tracing::info!("there is an NBD server at {} again", self.address.place);
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

    /// Connects again, and does `changes` again.
    fn make_again(&self, changes: &[Change]) -> io::Result<Wire> {
        let keep = |stream: &Arc<Stream>| self.lock().stream = Some(Arc::clone(stream));
        let (mut wire, export) = connect(&self.address, &keep)?;
        if !export.can_replace(&self.export) {
            return Err(refused("has another export of that name now"));
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

/// Reaches the server, and asks for the export. `keep` gets the connection before.
fn connect(address: &Address, keep: &dyn Fn(&Arc<Stream>)) -> io::Result<(Wire, Export)> {
    let stream = Arc::new(stream::connect(&address.place)?);
    keep(&stream);
    let mut wire = Wire::new(stream, address.place.to_string())?;
    let export = greet(&mut wire, &address.export)?;
    wire.set_patience(address.waits.answer)?;
    Ok((wire, export))
}

impl State {
    /// That connection is the present one.
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
            // There is no reply, and nobody to tell.
            let _ = Request::new(Command::Disconnect, 0, 0).send(0, stream);
        }
    }
}
