//! A running virtqueue: a thread takes requests from it, and this thread or those of the device put them
//! back.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use ring3_host::polling::Polling;
use ring3_host::turns::{Share, Turn};
use ring3_vhost::block::LOOKS_FOR;
use ring3_vhost::chain::walk;
use ring3_vhost::event::signal;
use ring3_vhost::queue::Setting;
use rustix::event::{EventfdFlags, epoll, eventfd};
use tracing::{debug, warn};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::Grant;
use crate::device::Device;
use crate::inflight::Tracker;
use crate::request::{Mode, Outcome, Request};

/// The flag by which the guest asks for no calls (VIRTQ_AVAIL_F_NO_INTERRUPT).
const NO_INTERRUPT: u16 = 1;

/// The state that the queue's thread shares with the device's threads.
struct Shared {
    device: Arc<Device>,
    share: Arc<Share>,
    /// Set when the queue is to stop.
    stops: AtomicBool,
    mode: Arc<Mode>,
    memory: Arc<GuestMemoryMmap>,
    call: Option<Arc<OwnedFd>>,
    error: Option<Arc<OwnedFd>>,
    state: Mutex<State>,
    /// Signals that the last request in flight is complete.
    drained: Condvar,
}

struct State {
    queue: Queue,
    tracker: Option<Tracker>,
    /// Number of requests that the device's threads have.
    in_flight: usize,
    /// Whether the rings have turned out to be invalid. Then no more requests are taken.
    broken: bool,
}

/// A running queue. Only [`Ring::stop`] tells the index at which it continues.
pub(super) struct Ring {
    shared: Arc<Shared>,
    stop: OwnedFd,
    thread: JoinHandle<()>,
}

impl Ring {
    /// Starts the queue. First executes the requests again that an earlier server has left, according to
    /// `tracker`.
    pub(super) fn start(
        grant: &Grant,
        mode: &Arc<Mode>,
        kick: &OwnedFd,
        mut tracker: Option<Tracker>,
        setting: Setting,
    ) -> io::Result<Ring> {
        let (mut queue, used) = setting.queue().map_err(io::Error::other)?;
        let mut left = Vec::new();
        if let Some(heads) = tracker.as_mut().and_then(|tracker| tracker.recover(used)) {
            left = heads;
            // Each request that was taken is either in the used ring or in flight.
            queue.set_next_avail(used.wrapping_add(left.len() as u16));
        }
        let state = State { queue, tracker, in_flight: 0, broken: false };
        let shared = Arc::new(Shared {
            device: Arc::clone(&grant.device),
            share: Arc::clone(&grant.share),
            stops: AtomicBool::new(false),
            mode: Arc::clone(mode),
            memory: setting.memory,
            call: setting.call,
            error: setting.error,
            state: Mutex::new(state),
            drained: Condvar::new(),
        });
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // The client's descriptor is edge-triggered: it is never read, so it cannot make this thread wait.
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&events, kick, epoll::EventData::new_u64(0), edge)?;
        epoll::add(&events, &stop, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        let thread = thread::Builder::new().name(format!("queue {}", grant.device.name()));
        let thread = thread.spawn({
            let shared = Arc::clone(&shared);
            move || {
                if !left.is_empty() {
                    debug!("executing {} requests again", left.len());
                }
                for head in left {
                    shared.start(head, false, None);
                }
                shared.run(&events);
            }
        })?;
        Ok(Ring { shared, stop, thread })
    }

    /// Stops the queue after all requests that it has taken are complete. Returns the next index of the
    /// available ring.
    pub(super) fn stop(self) -> u16 {
        self.shared.stops.store(true, Ordering::Relaxed);
        signal(&self.stop);
        // It may be waiting for its turn.
        self.thread.thread().unpark();
        // If the thread has panicked, nothing more can be done for it.
        let _ = self.thread.join();
        let mut state = self.shared.lock();
        while state.in_flight > 0 {
            state = self.shared.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.queue.next_avail()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes requests until the thread must end.
    fn run(self: &Arc<Self>, events: &OwnedFd) {
        let mut polling = Polling::up_to(LOOKS_FOR);
        let mut list = Vec::with_capacity(2);
        loop {
            let worked = self.work();
            if self.stops.load(Ordering::Relaxed) {
                return;
            }
            if worked {
                // A guest often makes the next request as soon as it learns of a completed one.
                if polling.wait(|| self.has_more()) {
                    continue;
                }
            }
            // Requests that come from now on are announced by a kick, and earlier ones are found here.
            if self.wants_kicks() {
                continue;
            }
            list.clear();
            let slept = Instant::now();
            match epoll::wait(events, rustix::buffer::spare_capacity(&mut list), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    warn!("a queue of {} cannot go on: {error}", self.device.name());
                    return;
                }
            }
            if list.iter().any(|event| event.data.u64() == 1) {
                return;
            }
            polling.slept(slept.elapsed());
            // This is only a hint, so an error does not matter: kicks that come nevertheless are harmless.
            let _ = self.lock().queue.disable_notification(&*self.memory);
        }
    }

    /// Starts all available requests. Returns whether there were any.
    fn work(self: &Arc<Self>) -> bool {
        let mut worked = false;
        let mut completed = false;
        while self.has_more() {
            // The guest learns of completed requests before this thread waits for its turn.
            let has_ended = || {
                if std::mem::take(&mut completed) {
                    self.tell();
                }
                self.stops.load(Ordering::Relaxed)
            };
            let Some(turn) = self.share.begin(has_ended) else { break };
            let mut state = self.lock();
            let (head, is_last) = match self.take(&mut state) {
                Some(taken) if !state.broken => taken,
                _ => break,
            };
            drop(state);
            worked = true;
            completed |= self.start(head, is_last, Some(turn));
        }
        if completed {
            self.tell();
        }
        worked
    }

    /// Takes the head of the next request. Returns it, and whether it is the last one available.
    fn take(&self, state: &mut State) -> Option<(u16, bool)> {
        if state.broken {
            return None;
        }
        let memory = &*self.memory;
        let available = state.queue.avail_idx(memory, Ordering::Acquire);
        let next = state.queue.next_avail();
        let waiting = match available {
            Ok(available) => available.0.wrapping_sub(next),
            Err(_) => u16::MAX,
        };
        if waiting == 0 {
            return None;
        }
        // A driver that conforms to the specification cannot have more requests than there are descriptors.
        let fits =
            waiting <= state.queue.size() && state.in_flight < usize::from(state.queue.size());
        let head = fits
            .then(|| state.queue.pop_descriptor_chain(memory))
            .flatten()
            .map(|chain| chain.head_index())
            .filter(|head| *head < state.queue.size());
        let Some(head) = head else {
            self.break_down(state, "its available ring is not valid");
            return None;
        };
        if let Some(tracker) = &mut state.tracker {
            tracker.take(head);
        }
        Some((head, waiting == 1))
    }

    /// Executes a request that was taken, or lets a thread of the device do it. Returns whether the request
    /// is complete. `is_alone` says that no other request waits for this thread, and `turn` is the client's.
    fn start(self: &Arc<Self>, head: u16, is_alone: bool, turn: Option<Turn<'_>>) -> bool {
        let (table, size) = {
            let state = self.lock();
            (GuestAddress(state.queue.desc_table()), state.queue.size())
        };
        let memory = &self.memory;
        let buffers = walk(memory, table, size, head);
        let request = buffers.ok().and_then(|buffers| Request::parse(memory, buffers));
        if let (Some(turn), Some(request)) = (turn, &request) {
            turn.end(request.cost());
        }
        let Some(request) = request else {
            // There is no room for an answer, but the guest gets its buffers back.
            self.complete(head, Outcome { written: 0 });
            return true;
        };
        let mut outcome = request.execute_at_once(memory, &self.device, &self.mode);
        if outcome.is_none()
            && is_alone
            && request.is_short()
            && request.writes_to_file(&self.device)
        {
            outcome = Some(request.execute(memory, &self.device, &self.mode));
        }
        if let Some(outcome) = outcome {
            self.complete(head, outcome);
            return true;
        }
        self.lock().in_flight += 1;
        let shared = Arc::clone(self);
        self.device.ask(move || {
            let act = || request.execute(&shared.memory, &shared.device, &shared.mode);
            // The guest gets an answer even if this code panics.
            let outcome = catch_unwind(AssertUnwindSafe(act))
                .unwrap_or_else(|_| request.fail(&shared.memory));
            shared.complete(head, outcome);
            shared.tell();
            let mut state = shared.lock();
            state.in_flight -= 1;
            if state.in_flight == 0 {
                shared.drained.notify_all();
            }
        });
        false
    }

    /// Puts a request into the used ring.
    fn complete(&self, head: u16, outcome: Outcome) {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(tracker) = &mut state.tracker {
            tracker.complete(head);
        }
        if let Err(error) = state.queue.add_used(&*self.memory, head, outcome.written) {
            self.break_down(state, &error.to_string());
        } else if let Some(tracker) = &mut state.tracker {
            tracker.completed(head, state.queue.next_used());
        }
    }

    /// Tells the guest of completed requests, if it has asked for that.
    fn tell(&self) {
        let Some(call) = &self.call else { return };
        let mut state = self.lock();
        let wants = if state.queue.event_idx_enabled() {
            state.queue.needs_notification(&*self.memory).unwrap_or(true)
        } else {
            // The used ring must be written before the flags are read. Otherwise a guest that asks for calls
            // in between would see neither the completed request nor a call.
            fence(Ordering::SeqCst);
            let flags = GuestAddress(state.queue.avail_ring());
            let flags: Result<u16, _> = self.memory.load(flags, Ordering::Relaxed);
            flags.map_or(true, |flags| u16::from_le(flags) & NO_INTERRUPT == 0)
        };
        drop(state);
        if wants {
            signal(call);
        }
    }

    /// Returns whether a request is available.
    fn has_more(&self) -> bool {
        let state = self.lock();
        let available = state.queue.avail_idx(&*self.memory, Ordering::Acquire);
        // Whoever takes the next request finds out what an error means.
        let has_more = available.map_or(true, |available| available.0 != state.queue.next_avail());
        !state.broken && has_more
    }

    /// Asks the guest for kicks. Returns whether a request is available already.
    fn wants_kicks(&self) -> bool {
        let mut state = self.lock();
        let more = state.queue.enable_notification(&*self.memory);
        !state.broken && more.unwrap_or(false)
    }

    fn break_down(&self, state: &mut State, why: &str) {
        if !state.broken {
            warn!("a queue of {} is used wrongly and stops: {why}", self.device.name());
        }
        state.broken = true;
        if let Some(error) = &self.error {
            signal(error);
        }
    }
}
