//! What a card has sent and what has not gone out yet.
//!
//! The machine's own thread sends, with one call of the system for all that the guest sends at once, and never waits. Once something does not go
//! out, a thread takes over until nothing is left; that one waits. Behind so much that the card is told to wait too there is room for
//! what it had begun with, and no more.

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

/// Bytes from which on a network is congested, and when it is so no longer.
const CONGESTED: usize = 512 << 10;
const RELIEVED: usize = 128 << 10;

/// Bytes that are kept at most.
const QUEUE_MAX: usize = 16 << 20;

/// Messages that are taken out of the queue at once.
pub(crate) const MESSAGES_AT_ONCE: usize = 64;

/// Where messages go.
pub(crate) trait Sink: Debug + Send + Sync + 'static {
    /// Sends from the front of `messages` and removes what has gone out. With `waits` it waits for the other side, but not for ever. True if
    /// nothing is left. An error says that nothing will ever go out.
    fn send(&self, messages: &mut VecDeque<Message>, waits: bool) -> io::Result<bool>;

    /// Makes all who wait for this or read from it end.
    fn cut(&self);

    /// A frame as a message.
    fn message(&self, frame: Vec<u8>) -> Message;
}

/// The queue of a card.
#[derive(Debug)]
pub(crate) struct Outgoing<S> {
    state: Mutex<State<S>>,
    /// There is something for the thread, or it is to end.
    changed: Condvar,
    card: Card,
}

#[derive(Debug)]
struct State<S> {
    sink: Option<Arc<S>>,
    queue: VecDeque<Message>,
    /// Bytes that have not gone out, in the queue and in the thread's hands.
    queued: usize,
    /// The other end takes packets with headers.
    with_headers: bool,
    /// The thread sends, and nobody else may.
    thread_sends: bool,
    /// The other end has taken nothing for as long as the thread waits: what does not go out at once is lost, until something does.
    is_stuck: bool,
    /// The card was told to wait.
    card_waits: bool,
    is_closed: bool,
}

impl<S: Sink> Outgoing<S> {
    /// The queue for `card`, with nothing behind it, and a thread of its own.
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

    /// From now on what is sent goes to `sink`. False if this is [closed](Outgoing::close).
    pub(crate) fn connect(&self, sink: &Arc<S>) -> bool {
        let mut state = self.lock();
        state.reset(Some(sink.clone()));
        self.changed.notify_all();
        !state.is_closed
    }

    /// From now on what is sent is lost.
    pub(crate) fn disconnect(&self) {
        self.lock().reset(None);
        self.changed.notify_all();
    }

    /// Ends the thread, and all who wait for the sink.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        if let Some(sink) = state.sink.take() {
            sink.cut();
        }
        self.changed.notify_all();
    }

    /// Waits for `duration`, but not after [`Outgoing::close`]. True if this is open still.
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

    /// Adds a packet to what is to be sent.
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

    /// There is something to which what is sent can go.
    pub(crate) fn is_connected(&self) -> bool {
        self.lock().sink.is_some()
    }

    /// Sends a notice. False if there is no room for it.
    pub(crate) fn notify(&self, notice: &Notice) -> bool {
        self.notify_with(notice, |message| message)
    }

    /// The same with a descriptor.
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

    /// True if the card is to wait, which is then told when it need not any more.
    pub(crate) fn is_congested(&self) -> bool {
        let mut state = self.lock();
        let is_congested = state.queued >= CONGESTED;
        state.card_waits |= is_congested;
        is_congested
    }

    /// What the thread does.
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
                // It may wait until the machine takes it, and the machine may wait for the queue.
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
                    debug!("{}: the other side takes nothing", self.card.name());
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

    /// Nothing goes to `sink` any more.
    fn fail(&self, state: &mut State<S>, sink: &S, error: &io::Error) {
        debug!("{}: what it sends is lost: {error}", self.card.name());
        sink.cut();
        state.reset(None);
        self.changed.notify_all();
    }
}

/// A network that sends by a queue. What receives for it goes with it: what `R` ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Queued<S: Sink, R> {
    outgoing: Arc<Outgoing<S>>,
    _receiving: R,
}

impl<S: Sink, R> Queued<S, R> {
    /// One that sends by `outgoing`.
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
    /// The card waits and need not any more.
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

    /// False if there is no room for it.
    fn enqueue(&mut self, message: Message) -> bool {
        let has_room = self.queued + message.left() <= QUEUE_MAX;
        if has_room {
            self.queued += message.left();
            self.queue.push_back(message);
        }
        has_room
    }

    /// Throws away all packets that have not begun to go out.
    fn discard(&mut self) {
        self.queue.retain(|message| !message.may_be_lost());
        self.queued = self.queue.iter().map(Message::left).sum();
    }
}
