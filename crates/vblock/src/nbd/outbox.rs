//! Replies that have yet to go out. The thread that makes a reply sends it if the client accepts it at once.
//! Otherwise the connection's thread sends it later.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::bell::Bell;
use super::budget::{Account, Budget};

/// Upper bound of the replies that are sent with one system call.
const AT_ONCE: usize = 32;

/// A reply: its header, and the data that follow.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) head: Vec<u8>,
    pub(super) data: Vec<u8>,
    /// Number of bytes that the request has taken of the memory that all share.
    pub(super) room: usize,
}

impl Reply {
    fn len(&self) -> usize {
        self.head.len() + self.data.len()
    }
}

/// A client's socket, and the queue of its replies.
#[derive(Debug)]
pub(super) struct Outbox {
    socket: OwnedFd,
    pub(super) account: Account,
    pub(super) bell: Arc<Bell>,
    state: Mutex<State>,
    /// Whether the client can receive nothing any more.
    is_gone: AtomicBool,
    /// Whether requests need not be executed any more, since the client has gone without disconnecting first.
    is_abandoned: AtomicBool,
    /// Whether the client makes no more requests.
    is_ending: AtomicBool,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Reply>,
    /// Number of bytes of the first reply that were sent.
    sent: usize,
    /// When the client last accepted something, or when the queue began.
    since: Instant,
}

impl Outbox {
    pub(super) fn new(socket: OwnedFd, budget: &Arc<Budget>) -> io::Result<Outbox> {
        let bell = Arc::new(Bell::new()?);
        let account = Account::new(budget, &bell);
        let state = State { queue: VecDeque::new(), sent: 0, since: Instant::now() };
        Ok(Outbox {
            socket,
            account,
            bell,
            state: Mutex::new(state),
            is_gone: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a reply, now or later.
    pub(super) fn push(&self, reply: Reply) {
        let mut state = self.lock();
        if self.is_gone() {
            drop(state);
            self.account.give_back(reply.room);
        } else {
            state.queue.push_back(reply);
            // If other replies are queued, the connection's thread already waits until the client accepts
            // them.
            if state.queue.len() == 1 {
                state.since = Instant::now();
                if !self.send_from(state) {
                    self.bell.ring();
                }
            }
        }
        if self.is_ending.load(Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// Makes each finished request ring the bell from now on.
    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
    }

    /// Sends as many replies as the client accepts.
    pub(super) fn send(&self) {
        self.send_from(self.lock());
    }

    /// Sends as many replies as the client accepts. Returns whether the queue is empty.
    fn send_from(&self, mut state: MutexGuard<'_, State>) -> bool {
        let mut done = Vec::new();
        while !state.queue.is_empty() {
            let mut skip = state.sent;
            let parts =
                state.queue.iter().take(AT_ONCE).flat_map(|reply| [&reply.head, &reply.data]);
            let parts: Vec<_> = parts
                .map(|part| {
                    let (_, rest) = part.split_at(skip.min(part.len()));
                    skip -= part.len() - rest.len();
                    IoSlice::new(rest)
                })
                .collect();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let mut none = SendAncillaryBuffer::default();
            match sendmsg(&self.socket, &parts, &mut none, flags) {
                Ok(count) => {
                    state.since = Instant::now();
                    state.sent += count;
                    while let Some(first) = state.queue.front()
                        && state.sent >= first.len()
                    {
                        state.sent -= first.len();
                        done.extend(state.queue.pop_front().map(|reply| reply.room));
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.is_gone.store(true, Ordering::Relaxed);
                    done.extend(state.queue.drain(..).map(|reply| reply.room));
                }
            }
        }
        let is_empty = state.queue.is_empty();
        drop(state);
        for room in done {
            self.account.give_back(room);
        }
        is_empty
    }

    /// Drops all replies, since the client can receive nothing any more.
    pub(super) fn close(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
        let left: Vec<_> = self.lock().queue.drain(..).collect();
        for reply in left {
            self.account.give_back(reply.room);
        }
    }

    /// Drops all replies, and lets requests that have not begun fail.
    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
        self.close();
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Relaxed)
    }

    /// Returns since when the client has not accepted any of the queued replies, or None if there are none.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        let state = self.lock();
        (!state.queue.is_empty()).then_some(state.since)
    }
}

impl AsFd for Outbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
