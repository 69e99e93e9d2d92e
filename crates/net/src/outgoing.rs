//! The queue of packets that a card has sent and that have yet to go out.
//!
//! The machine's own thread sends, with one system call for all that the guest sends at once, and never
//! waits. When something does not go out, another thread takes over until the queue is empty; that one waits.
//! When the queue is so long that the card is told to wait, there is still room for the packets that the card
//! has begun with, and for no more.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ring3_core::net::{Offloads, Packet};
use ring3_vm::networks::Network;
use tracing::debug;

use crate::card::Card;
use crate::error::NetError;
use crate::message::{Message, Notice, is_notice};

/// Numbers of queued bytes at which a network becomes congested, and at which it is no longer.
const CONGESTED: usize = 512 << 10;
const RELIEVED: usize = 128 << 10;

/// Upper bound of the queued bytes.
const QUEUE_MAX: usize = 16 << 20;

/// Number of messages that are taken out of the queue at once.
pub(crate) const MESSAGES_AT_ONCE: usize = 64;

/// The destination of messages.
pub(crate) trait Sink: Debug + Send + Sync + 'static {
    /// Sends messages from the front of `messages` and removes those that have gone out. With `waits` it
    /// waits for the other side, but not for ever. Returns whether nothing is left. An error means that
    /// nothing will ever go out.
    fn send(&self, messages: &mut VecDeque<Message>, waits: bool) -> io::Result<bool>;

    /// Ends all calls that wait for this or read from it.
    fn cut(&self);

    /// Returns a frame as a message.
    fn message(&self, frame: Vec<u8>) -> Message;
}

/// The queue of a card.
#[derive(Debug)]
pub(crate) struct Outgoing<S> {
    state: Mutex<State<S>>,
    /// Signals that there is work for the thread, or that it must end.
    changed: Condvar,
    card: Card,
}

#[derive(Debug)]
struct State<S> {
    sink: Option<Arc<S>>,
    queue: VecDeque<Message>,
    /// Bytes that have yet to go out, in the queue and in the thread's hands.
    queued: usize,
    /// Whether the other end accepts packets with headers.
    with_headers: bool,
    /// Whether the thread sends; then nobody else may.
    thread_sends: bool,
    /// Whether the other end has taken nothing for as long as the thread waits. Then packets that do not go
    /// out at once are lost, until one does.
    is_stuck: bool,
    /// Whether the card was told to wait.
    card_waits: bool,
    is_closed: bool,
}

impl<S: Sink> Outgoing<S> {
    /// Returns the queue for `card`, without a destination, and starts its thread.
    pub(crate) fn start(card: Card) -> Result<Arc<Outgoing<S>>, NetError> {
        let state = State {
            sink: None,
            queue: VecDeque::new(),
            queued: 0,
            with_headers: false,
            thread_sends: false,
            is_stuck: false,
            card_waits: false,
            is_closed: false,
        };
        let name = format!("{} out", card.name());
        let outgoing =
            Arc::new(Outgoing { state: Mutex::new(state), changed: Condvar::new(), card });
        let for_thread = outgoing.clone();
        let thread = thread::Builder::new().name(name).spawn(move || for_thread.run());
        thread.map_err(NetError::Thread)?;
        Ok(outgoing)
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `sink` the destination of messages. Returns false if the queue was [closed](Outgoing::close).
    pub(crate) fn connect(&self, sink: &Arc<S>) -> bool {
        let mut state = self.lock();
        state.reset(Some(sink.clone()));
        self.changed.notify_all();
        !state.is_closed
    }

    /// Removes the destination: messages are lost from now on.
    pub(crate) fn disconnect(&self) {
        self.lock().reset(None);
        self.changed.notify_all();
    }

    /// Ends the thread, and all calls that wait for the sink.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        if let Some(sink) = state.sink.take() {
            sink.cut();
        }
        self.changed.notify_all();
    }

    /// Waits for `duration`, or until [`Outgoing::close`] is called. Returns whether the queue is still open.
    pub(crate) fn wait(&self, duration: Duration) -> bool {
        let until = Instant::now() + duration;
        let mut state = self.lock();
        while !state.is_closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let changed = self.changed.wait_timeout(state, left);
            (state, _) = changed.unwrap_or_else(PoisonError::into_inner);
        }
        false
    }

    /// Adds a packet.
    pub(crate) fn push(&self, packet: Packet) {
        let mut state = self.lock();
        let Some(sink) = state.sink.clone() else { return };
        if is_notice(&packet.bytes) || !packet.is_sound() {
            return;
        }
        if state.with_headers {
            state.enqueue(Message::with_header(packet));
        } else {
            let none = Offloads::default();
            packet.without_offloads(none, |frame| {
                state.enqueue(sink.message(frame.bytes));
            });
        }
    }

    /// Returns whether there is a destination.
    pub(crate) fn is_connected(&self) -> bool {
        self.lock().sink.is_some()
    }

    /// Sends a notice. Returns false if there is no room for it.
    pub(crate) fn notify(&self, notice: &Notice) -> bool {
        self.notify_with(notice, |message| message)
    }

    /// Sends a notice with a descriptor. Returns false if there is no room for it.
    pub(crate) fn hand_over(&self, notice: &Notice, descriptor: OwnedFd) -> bool {
        self.notify_with(notice, |message| message.with_descriptor(descriptor))
    }

    fn notify_with(&self, notice: &Notice, complete: impl FnOnce(Message) -> Message) -> bool {
        let mut state = self.lock();
        let frame = notice.to_frame();
        let message = if state.with_headers {
            Message::with_header(Packet::frame(frame))
        } else {
            Message::frame(frame)
        };
        let is_queued = state.enqueue(complete(message.into_notice()));
        state.with_headers |= *notice == Notice::Headers;
        drop(state);
        self.flush();
        is_queued
    }

    /// Sends what can go out at once, and leaves the rest to the thread.
    pub(crate) fn flush(&self) {
        let mut state = self.lock();
        if state.thread_sends || state.queue.is_empty() {
            return;
        }
        let Some(sink) = state.sink.clone() else { return };
        let result = sink.send(&mut state.queue, false);
        state.queued = state.queue.iter().map(Message::left).sum();
        match result {
            Ok(true) => state.is_stuck = false,
            Ok(false) if state.is_stuck => state.discard(),
            Ok(false) => {
                state.thread_sends = true;
                self.changed.notify_all();
            }
            Err(error) => self.fail(&mut state, &sink, &error),
        }
    }

    /// Returns whether the card must wait. The card is told when it need no longer.
    pub(crate) fn is_congested(&self) -> bool {
        let mut state = self.lock();
        let is_congested = state.queued >= CONGESTED;
        state.card_waits |= is_congested;
        is_congested
    }

    /// The body of the thread.
    fn run(&self) {
        loop {
            let mut state = self.lock();
            while !state.thread_sends && !state.is_closed && !state.is_relieved() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_closed {
                return;
            }
            if state.is_relieved() {
                state.card_waits = false;
                drop(state);
                // This call may wait for the machine, and the machine may wait for the queue, so the lock
                // must not be held.
                self.card.relieve();
                continue;
            }
            let Some(sink) = state.sink.clone() else {
                state.thread_sends = false;
                continue;
            };
            let count = state.queue.len().min(MESSAGES_AT_ONCE);
            let mut messages: VecDeque<Message> = state.queue.drain(..count).collect();
            drop(state);
            let result = sink.send(&mut messages, true);
            let mut state = self.lock();
            if !state.sink.as_ref().is_some_and(|now| Arc::ptr_eq(now, &sink)) {
                continue;
            }
            while let Some(message) = messages.pop_back() {
                state.queue.push_front(message);
            }
            state.queued = state.queue.iter().map(Message::left).sum();
            match result {
                Ok(true) => state.is_stuck = false,
                Ok(false) => {
                    debug!(
                        "{}: the receiver does not read; packets are discarded",
                        self.card.name()
                    );
                    state.is_stuck = true;
                    state.discard();
                }
                Err(error) => self.fail(&mut state, &sink, &error),
            }
            if state.queue.is_empty() || state.is_stuck {
                state.thread_sends = false;
            }
        }
    }

    /// Removes the destination `sink` after an error.
    fn fail(&self, state: &mut State<S>, sink: &S, error: &io::Error) {
        debug!("{}: the packets that it sends are lost: {error}", self.card.name());
        sink.cut();
        state.reset(None);
        self.changed.notify_all();
    }
}

/// A network that sends by a queue. `R` is what receives for it; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Queued<S: Sink, R> {
    outgoing: Arc<Outgoing<S>>,
    _receiving: R,
}

impl<S: Sink, R> Queued<S, R> {
    /// Returns a network that sends by `outgoing`.
    pub(crate) fn new(outgoing: Arc<Outgoing<S>>, receiving: R) -> Queued<S, R> {
        Queued { outgoing, _receiving: receiving }
    }
}

impl<S: Sink, R: Debug + Send> Network for Queued<S, R> {
    fn send(&mut self, packet: Packet) {
        self.outgoing.push(packet);
    }

    fn flush(&mut self) {
        self.outgoing.flush();
    }

    fn is_congested(&mut self) -> bool {
        self.outgoing.is_congested()
    }
}

impl<S: Sink, R> Drop for Queued<S, R> {
    fn drop(&mut self) {
        self.outgoing.close();
    }
}

impl<S> State<S> {
    /// Returns whether the card waits and need not any more.
    fn is_relieved(&self) -> bool {
        self.card_waits && self.queued <= RELIEVED
    }

    fn reset(&mut self, sink: Option<Arc<S>>) {
        self.sink = sink;
        self.queue.clear();
        self.queued = 0;
        self.with_headers = false;
        self.thread_sends = false;
        self.is_stuck = false;
    }

    /// Adds a message. Returns false if there is no room for it.
    fn enqueue(&mut self, message: Message) -> bool {
        let has_room = self.queued + message.left() <= QUEUE_MAX;
        if has_room {
            self.queued += message.left();
            self.queue.push_back(message);
        }
        has_room
    }

    /// Drops all packets of which nothing has gone out yet.
    fn discard(&mut self) {
        self.queue.retain(|message| !message.may_be_lost());
        self.queued = self.queue.iter().map(Message::left).sum();
    }
}
