//! A disk behind a vhost-user-blk server, for a machine of ring3.
//!
//! The machine shares with the server a memory file of some MiB, which contains a queue and room for data,
//! and not the guest's memory: the translator must know of each write to guest memory, and a run can be
//! recorded and repeated only if everything from outside comes as an input. So a server can read and change
//! no more of a guest than its disk.
//!
//! When a server dies, its client waits for the next one, which executes the requests in flight: they are
//! listed in the shared memory ("Inflight I/O tracking"). Callers that wait for them get no error, but wait
//! longer.
//!
//! * [`Disk`]: the disk, to which a machine makes requests; [`Waiting`]: a request in flight;
//! * [`lobby`]: the socket at which a client learns of its devices and is connected with them;
//! * `ring`: the queue; `connection`: the messages to the server, and again to the next one.
#![deny(unsafe_code)]

mod connection;
pub mod lobby;
mod ring;

use std::fmt::{self, Debug, Formatter};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring3_host::polling::Polling;
use ring3_vhost::block::{SECTOR, UNMAP, kind};
use thiserror::Error;

use connection::{Connection, Link};
use ring::{Data, Ring};

/// Upper bound of the bytes in a request for whose answer it pays to poll.
const SHORT: usize = 64 << 10;

/// The reasons why there is no disk, or why a request failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// No server is there, or it does not let this client in.
    #[error(
        "cannot connect to a vblock server at {path}: {source}; start \"ring3 vblock\" with a --client that has this socket",
        path = .path.display()
    )]
    Connect {
        /// The server's socket.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The server is not one that this client can use.
    #[error("the server at {path} cannot be used: {why}", path = .path.display())]
    Unsuitable {
        /// The server's socket.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The server could not execute a request.
    #[error("the server at {path} could not execute a request; its log gives the reason", path = .0.display())]
    Failed(PathBuf),
    /// The host refuses shared memory, threads or the like.
    #[error("{0}")]
    Host(#[from] io::Error),
}

/// The act that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act<'a> {
    /// Reads this number of bytes.
    Read(usize),
    /// Writes these bytes.
    Write(&'a [u8]),
    /// Makes the written data survive a failure of the host.
    Flush,
    /// Tells the server that this number of sectors is no longer needed.
    Discard(u32),
    /// Fills sectors with zeros.
    WriteZeroes {
        /// Number of sectors.
        count: u32,
        /// Whether the disk may give up the room of these sectors.
        unmaps: bool,
    },
}

/// The disk of a server. Several threads can use it at once.
pub struct Disk {
    shared: Arc<Shared>,
    connection: Connection,
}

impl Debug for Disk {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

/// The state that callers share with the thread of the connection.
struct Shared {
    /// The server's socket.
    path: PathBuf,
    state: Mutex<State>,
    /// Signals that a request is complete, or that a place is free.
    changed: Condvar,
    link: Link,
    /// Size of the disk.
    sectors: AtomicU64,
    /// Called when the disk has another size.
    resized: Mutex<Option<Listener>>,
}

type Listener = Box<dyn Fn() + Send>;

struct State {
    ring: Ring,
    /// The status of each complete request, by its place.
    complete: [Option<u8>; ring::SLOTS as usize],
    /// When each request that is not complete was offered to the server.
    asked: [Option<Instant>; ring::SLOTS as usize],
    /// Whether a thread waits for calls, and looks at the ring on behalf of all callers.
    has_watcher: bool,
    /// The places of requests that have a [`Waiting`], whose owner looks after them: one bit for each. While
    /// there are any, no further thread begins to wait for calls.
    looked_after: u32,
    /// Whether callers no longer wait for a server that is away.
    gave_up: bool,
    polling: Polling,
    /// Number of threads that wait for [`Shared::changed`].
    sleepers: usize,
}

fn bit(slot: u16) -> u32 {
    1 << slot
}

impl State {
    /// Returns whether a request that has a [`Waiting`] is complete.
    fn has_news(&self) -> bool {
        (0..ring::SLOTS)
            .filter(|slot| self.looked_after & bit(*slot) != 0)
            .any(|slot| self.complete[usize::from(slot)].is_some())
    }

    /// Returns whether a request has not been answered for `time`.
    fn waits_for(&self, time: Duration) -> bool {
        self.asked.iter().flatten().any(|since| since.elapsed() >= time)
    }

    fn reap(&mut self) -> bool {
        let mut any = false;
        while let Some((slot, status)) = self.ring.next() {
            self.complete[usize::from(slot)] = Some(status);
            self.asked[usize::from(slot)] = None;
            any = true;
        }
        any
    }
}

/// A request that was offered to the server.
#[derive(Debug)]
struct Ticket {
    slot: u16,
    /// Number of bytes to be read.
    taken: usize,
    /// Whether it pays to poll for the answer.
    is_short: bool,
    since: Instant,
}

/// A request that was begun. Its result is the bytes read, or none for a write. It completes in any case,
/// even if nobody waits for it. The owner looks at it from time to time, or after [`Disk::arm`].
pub struct Waiting {
    shared: Arc<Shared>,
    ticket: Option<Ticket>,
}

impl Debug for Waiting {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl Waiting {
    /// Returns the result once the request is complete. Returns None before that, and after the result was
    /// returned.
    pub fn look(&mut self) -> Option<Result<Vec<u8>, ClientError>> {
        let ticket = self.ticket.as_ref()?;
        let mut state = self.shared.lock();
        self.shared.reap(&mut state);
        state.complete[usize::from(ticket.slot)]?;
        state.polling.slept(ticket.since.elapsed());
        state.looked_after &= !bit(ticket.slot);
        let result = self.shared.finish(&mut state, ticket);
        drop(state);
        self.ticket = None;
        Some(result)
    }

    /// Takes the ticket. Nobody looks after the request any more, so a thread may wait for calls again.
    fn leave(&mut self) -> Option<Ticket> {
        let ticket = self.ticket.take()?;
        let mut state = self.shared.lock();
        state.looked_after &= !bit(ticket.slot);
        self.shared.wake(&state);
        Some(ticket)
    }

    /// Returns the result as [`Waiting::look`] does, but polls for it first, for as long as that is quicker
    /// than to sleep.
    pub fn look_a_while(&mut self) -> Option<Result<Vec<u8>, ClientError>> {
        let ticket = self.ticket.as_ref()?;
        if ticket.is_short && self.shared.link.is_there() {
            let mut state = self.shared.lock();
            let mut polling = state.polling;
            polling.wait(|| {
                self.shared.reap(&mut state);
                state.complete[usize::from(ticket.slot)].is_some()
            });
            state.polling = polling;
        }
        self.look()
    }

    /// Waits for the result.
    pub fn wait(mut self) -> Result<Vec<u8>, ClientError> {
        let ticket = self.leave();
        ticket.map_or(Ok(Vec::new()), |ticket| self.shared.wait(&ticket))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(ticket) = self.leave() {
            // The request's place must not be used again before it is complete.
            let _ = self.shared.wait(&ticket);
        }
    }
}

impl Disk {
    /// Connects to the server at `path`.
    pub fn connect(path: &Path) -> Result<Disk, ClientError> {
        let place = path.to_owned();
        Disk::over(path, move || UnixStream::connect(&place))
    }

    /// Connects to the server by `dial`, which is called again when a connection is lost. Messages call the
    /// server `name`.
    pub fn over(
        name: &Path,
        dial: impl Fn() -> io::Result<UnixStream> + Send + 'static,
    ) -> Result<Disk, ClientError> {
        let (connection, shared) = Connection::start(name, Box::new(dial))?;
        Ok(Disk { shared, connection })
    }

    /// Returns the path of the server's socket.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Returns the size of the disk, in sectors of 512 bytes, which the server may change.
    pub fn sectors(&self) -> u64 {
        self.shared.sectors.load(Ordering::Relaxed)
    }

    /// Lets `listener` be called from now on whenever the server has changed the size, instead of an earlier
    /// listener. It must return soon.
    pub fn on_resize(&self, listener: impl Fn() + Send + 'static) {
        let mut resized = self.shared.resized.lock().unwrap_or_else(PoisonError::into_inner);
        *resized = Some(Box::new(listener));
    }

    /// Returns whether the server refuses writes.
    pub fn is_read_only(&self) -> bool {
        self.connection.offer().read_only
    }

    /// Lets requests fail from now on that would have to wait for another server, since nobody needs them any
    /// more.
    pub fn give_up(&self) {
        let mut state = self.shared.lock();
        state.gave_up = true;
        drop(state);
        self.shared.wake_everybody();
    }

    /// Returns whether requests that are not complete now will never be, since nobody needs them any more.
    pub fn is_over(&self) -> bool {
        self.shared.is_over(&self.shared.lock())
    }

    /// Begins to read or write. Returns None for other acts, for a request that is too long, and if there is
    /// no room for one more.
    pub fn begin(&self, act: Act<'_>, sector: u64) -> Option<Result<Waiting, ClientError>> {
        let len = match act {
            Act::Read(len) => len,
            Act::Write(bytes) => bytes.len(),
            Act::Flush | Act::Discard(_) | Act::WriteZeroes { .. } => return None,
        };
        if len == 0 || len > self.connection.offer().part {
            return None;
        }
        self.begin_any(act, sector, len <= SHORT)
    }

    /// Begins to make the written data survive a failure of the host. Returns None if there is no room for one
    /// more request.
    pub fn begin_flush(&self) -> Option<Result<Waiting, ClientError>> {
        self.begin_any(Act::Flush, 0, false)
    }

    fn begin_any(
        &self,
        act: Act<'_>,
        sector: u64,
        is_short: bool,
    ) -> Option<Result<Waiting, ClientError>> {
        let mut state = self.shared.lock();
        let slot = state.ring.take()?;
        let mut ticket = match self.shared.submit(&mut state, slot, act, sector) {
            Ok(ticket) => ticket,
            Err(error) => {
                state.ring.give_back(slot);
                return Some(Err(error.into()));
            }
        };
        ticket.is_short = is_short;
        state.looked_after |= bit(slot);
        drop(state);
        Some(Ok(Waiting { shared: Arc::clone(&self.shared), ticket: Some(ticket) }))
    }

    /// Returns whether a request that was begun is complete.
    pub fn has_news(&self) -> bool {
        let mut state = self.shared.lock();
        self.shared.reap(&mut state);
        state.has_news()
    }

    /// Asks the server to tell of the next request that it completes. Then the returned descriptor becomes
    /// readable. Returns None if a request may be complete already.
    pub fn arm(&self) -> Option<BorrowedFd<'_>> {
        let link = &self.shared.link;
        let state = self.shared.lock();
        link.forget_bell();
        if state.has_news() {
            return None;
        }
        if state.has_watcher {
            // That thread rings the bell after a call, or when it no longer waits for one.
            return Some(link.bell());
        }
        link.forget_call();
        state.ring.wants_calls().then(|| link.call())
    }

    /// Performs `act` from `sector` on, however long that takes. Returns the bytes read, or none for other
    /// acts.
    pub fn execute(&self, act: Act<'_>, sector: u64) -> Result<Vec<u8>, ClientError> {
        let offer = self.connection.offer();
        let mut done = Vec::new();
        match act {
            Act::Read(len) => {
                done.reserve(len);
                while done.len() < len {
                    let now = (len - done.len()).min(offer.part);
                    let at = sector.saturating_add(done.len() as u64 / SECTOR);
                    done.extend(self.one(Act::Read(now), at)?);
                }
            }
            Act::Write(bytes) => {
                for (part, index) in bytes.chunks(offer.part).zip(0..) {
                    let at = index * offer.part as u64 / SECTOR;
                    self.one(Act::Write(part), sector.saturating_add(at))?;
                }
            }
            Act::Flush if offer.flushes => drop(self.one(Act::Flush, 0)?),
            // The server makes each write survive before it completes it.
            Act::Flush => {}
            Act::Discard(count) => {
                self.ranges(sector, count, offer.discard, &Act::Discard)?;
            }
            Act::WriteZeroes { count, unmaps } if offer.write_zeroes > 0 => {
                let act = |count| Act::WriteZeroes { count, unmaps };
                self.ranges(sector, count, offer.write_zeroes, &act)?;
            }
            Act::WriteZeroes { count, .. } => {
                let zeros = vec![0; offer.part];
                let mut left = u64::from(count) * SECTOR;
                let mut at = sector;
                while left > 0 {
                    let now = left.min(zeros.len() as u64);
                    self.one(Act::Write(&zeros[..now as usize]), at)?;
                    left -= now;
                    at = at.saturating_add(now / SECTOR);
                }
            }
        }
        Ok(done)
    }

    /// Performs `act` for `count` sectors, at most `most` at a time. Does nothing if `most` is 0: then the
    /// act is a hint that the server does not accept.
    fn ranges(
        &self,
        sector: u64,
        count: u32,
        most: u32,
        act: &dyn Fn(u32) -> Act<'static>,
    ) -> Result<(), ClientError> {
        let mut done = 0;
        while most > 0 && done < count {
            let now = (count - done).min(most);
            self.one(act(now), sector.saturating_add(u64::from(done)))?;
            done += now;
        }
        Ok(())
    }

    /// Performs one request, as soon as there is a place for it.
    fn one(&self, act: Act<'_>, sector: u64) -> Result<Vec<u8>, ClientError> {
        let mut state = self.shared.lock();
        let slot = loop {
            if let Some(slot) = state.ring.take() {
                break slot;
            }
            if self.shared.is_over(&state) {
                return Err(ClientError::Failed(self.path().to_owned()));
            }
            state = self.shared.sleep(state);
        };
        let ticket = self.shared.submit(&mut state, slot, act, sector);
        let ticket = ticket.inspect_err(|_| state.ring.give_back(slot))?;
        drop(state);
        self.shared.wait(&ticket)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the size of the disk, and tells the listener if it is another one.
    fn note_size(&self, sectors: u64) {
        let resized = self.resized.lock().unwrap_or_else(PoisonError::into_inner);
        if self.sectors.swap(sectors, Ordering::Relaxed) != sectors
            && let Some(listener) = &*resized
        {
            listener();
        }
    }

    /// Waits until a request is complete, or a place is free.
    fn sleep<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.sleepers += 1;
        let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.sleepers -= 1;
        state
    }

    /// Wakes the threads that wait. Makes no system call if there are none.
    fn wake(&self, state: &State) {
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Wakes all who wait, for completed requests or for room, so that they look whether that can still come.
    fn wake_everybody(&self) {
        self.wake(&self.lock());
        self.link.wake();
    }

    /// Notes which requests the server has completed.
    fn reap(&self, state: &mut State) {
        if state.reap() {
            self.wake(state);
        }
    }

    /// Returns whether requests that are not complete now will never be complete.
    fn is_over(&self, state: &State) -> bool {
        state.gave_up && !self.link.is_there()
    }

    fn submit(
        &self,
        state: &mut State,
        slot: u16,
        act: Act<'_>,
        sector: u64,
    ) -> io::Result<Ticket> {
        // The range is the request's data, and the header has no sector (struct
        // virtio_blk_discard_write_zeroes).
        let put_range = |count: u32, flags: u32| -> io::Result<Data> {
            let mut bytes = sector.to_le_bytes().to_vec();
            bytes.extend(count.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
            state.ring.write(slot, &bytes)?;
            Ok(Data::Given(bytes.len()))
        };
        let (kind, sector, data) = match act {
            Act::Read(len) => (kind::IN, sector, Data::Taken(len)),
            Act::Write(bytes) => {
                state.ring.write(slot, bytes)?;
                (kind::OUT, sector, Data::Given(bytes.len()))
            }
            Act::Flush => (kind::FLUSH, 0, Data::None),
            Act::Discard(count) => (kind::DISCARD, 0, put_range(count, 0)?),
            Act::WriteZeroes { count, unmaps } => {
                (kind::WRITE_ZEROES, 0, put_range(count, if unmaps { UNMAP } else { 0 })?)
            }
        };
        let taken = if let Data::Taken(len) = data { len } else { 0 };
        let since = Instant::now();
        state.complete[usize::from(slot)] = None;
        if state.ring.offer(slot, kind, sector, data)? {
            self.link.kick();
        }
        state.asked[usize::from(slot)] = Some(since);
        Ok(Ticket { slot, taken, is_short: false, since })
    }

    /// Waits until the request of `ticket` is complete.
    fn wait(&self, ticket: &Ticket) -> Result<Vec<u8>, ClientError> {
        let mut state = self.lock();
        loop {
            self.reap(&mut state);
            if state.complete[usize::from(ticket.slot)].is_some() {
                state.polling.slept(ticket.since.elapsed());
                return self.finish(&mut state, ticket);
            }
            if self.is_over(&state) {
                return Err(ClientError::Failed(self.path.clone()));
            }
            if state.has_watcher || state.looked_after != 0 {
                state = self.sleep(state);
            } else if state.ring.wants_calls() {
                state.has_watcher = true;
                drop(state);
                self.link.wait_for_call();
                state = self.lock();
                state.has_watcher = false;
                // If this thread has got its answer, another one must wait for calls.
                self.wake(&state);
                if state.looked_after != 0 {
                    self.link.ring();
                }
            }
        }
    }

    /// Returns the result of a complete request, and frees its place.
    fn finish(&self, state: &mut State, ticket: &Ticket) -> Result<Vec<u8>, ClientError> {
        let mut bytes = vec![0; ticket.taken];
        let read = state.ring.read(ticket.slot, &mut bytes);
        let status = state.complete[usize::from(ticket.slot)].take();
        state.ring.give_back(ticket.slot);
        self.wake(state);
        match status {
            Some(0) => read.map(|()| bytes).map_err(Into::into),
            _ => Err(ClientError::Failed(self.path.clone())),
        }
    }
}
