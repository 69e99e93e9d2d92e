//! What goes to a guest: its receive queue, and packets that wait for its buffers.

use std::collections::VecDeque;
use std::fmt::{self, Debug, Formatter};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring3_core::net::{OFFLOAD_HEADER_LEN, Packet};
use ring3_vm::networks::Network;
use tracing::warn;

use super::features::Features;
use super::frame::Frame;
use super::pieces::{Cursor, Pieces};
use super::ring::{BadRing, Ring};

/// For so long packets wait for a guest that gives no buffers; then they are lost until it gives some.
const PATIENCE: Duration = Duration::from_millis(900);

/// Bytes of packets that wait at most.
const WAITING_MAX: usize = 4 << 20;

/// Chains of a packet at most. Buffers of a frame's size do for the largest one.
const CHAINS_MAX: usize = 64;

/// Bytes of a chain at most, which is more than any packet needs.
const CHAIN_LEN_MAX: usize = 1 << 20;

/// See the module. There is none behind it while the guest's driver does not run: then packets are lost, as with a cable that is not in.
#[derive(Default)]
pub(crate) struct Receiver {
    state: Mutex<State>,
}

impl Debug for Receiver {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    ring: Option<Ring>,
    features: Features,
    waiting: VecDeque<Packet>,
    waiting_len: usize,
    /// When the first packet began to wait.
    since: Option<Instant>,
    /// The guest has given no buffers for too long.
    is_stuck: bool,
}

/// What has become of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Delivered,
    /// It will never fit.
    Lost,
    /// There are no buffers for it now.
    Waits,
}

impl Receiver {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on packets go to `ring`.
    pub(super) fn start(&self, mut ring: Ring, features: Features) {
        ring.wants_no_kicks();
        *self.lock() = State { ring: Some(ring), features, ..State::default() };
    }

    /// From now on packets are lost. The next index of the available ring, if there was one.
    pub(super) fn stop(&self) -> Option<u16> {
        let state = std::mem::take(&mut *self.lock());
        state.ring.map(|ring| ring.position())
    }

    /// The guest may have given buffers. True if nothing waits for any more.
    pub(super) fn resume(&self) -> bool {
        let mut state = self.lock();
        state.resume();
        state.tell();
        state.waiting.is_empty()
    }

    /// Copies a packet from one guest's memory to the other's. False if it must be [sent](Receiver::send), as it needs work, or has to wait.
    pub(crate) fn copy(&self, start: &Packet, frame: &Frame<'_>) -> bool {
        let mut state = self.lock();
        if !state.waiting.is_empty() || !start.suits(state.features.offloads()) {
            return false;
        }
        state.deliver(start, frame.rest(), frame.len()) != Fate::Waits
    }

    fn send(&self, packet: Packet) {
        let mut state = self.lock();
        if state.ring.is_some() {
            let offloads = state.features.offloads();
            packet.without_offloads(offloads, |packet| state.send(packet));
        }
    }

    fn tell(&self) {
        self.lock().tell();
    }

    fn is_congested(&self) -> bool {
        let mut state = self.lock();
        if state.since.is_some_and(|since| since.elapsed() >= PATIENCE) {
            state.is_stuck = true;
            state.forget();
        }
        !state.waiting.is_empty()
    }
}

impl State {
    fn tell(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.tell();
        }
    }

    fn forget(&mut self) {
        self.waiting.clear();
        self.waiting_len = 0;
        self.since = None;
    }

    fn send(&mut self, packet: Packet) {
        if self.waiting.is_empty() {
            // Who has no buffers is to say when there are some.
            let is_done = self.deliver_whole(&packet) != Fate::Waits
                || self.ring.as_mut().is_some_and(Ring::wants_kicks)
                    && self.deliver_whole(&packet) != Fate::Waits;
            if is_done {
                return;
            }
        }
        if !self.is_stuck && self.waiting_len + packet.bytes.len() <= WAITING_MAX {
            self.since.get_or_insert_with(Instant::now);
            self.waiting_len += packet.bytes.len();
            self.waiting.push_back(packet);
        }
    }

    fn resume(&mut self) {
        while let Some(packet) = self.waiting.pop_front() {
            self.waiting_len -= packet.bytes.len();
            let mut fate = self.deliver_whole(&packet);
            if fate == Fate::Waits && self.ring.as_mut().is_some_and(Ring::wants_kicks) {
                fate = self.deliver_whole(&packet);
            }
            if fate == Fate::Waits {
                self.waiting_len += packet.bytes.len();
                self.waiting.push_front(packet);
                return;
            }
            self.since = Some(Instant::now());
        }
        self.forget();
        if let Some(ring) = &mut self.ring {
            ring.wants_no_kicks();
        }
    }

    fn deliver_whole(&mut self, packet: &Packet) -> Fate {
        self.deliver(packet, Pieces::default().from(0), packet.bytes.len())
    }

    /// Puts the packet that begins with `start` and goes on with `rest`, with `len` bytes, into the guest's buffers.
    fn deliver(&mut self, start: &Packet, rest: Cursor<'_, '_>, len: usize) -> Fate {
        let Some(ring) = &mut self.ring else { return Fate::Lost };
        match deliver(ring, self.features, start, rest, len) {
            Ok(fate) => {
                self.is_stuck &= fate != Fate::Delivered;
                fate
            }
            Err(error) => {
                warn!("a receive queue is broken: {error}");
                ring.report();
                self.ring = None;
                self.forget();
                Fate::Lost
            }
        }
    }
}

/// See [`State::deliver`].
fn deliver(
    ring: &mut Ring,
    features: Features,
    start: &Packet,
    rest: Cursor<'_, '_>,
    len: usize,
) -> Result<Fate, BadRing> {
    let memory = ring.memory();
    let position = ring.position();
    let header_len = features.header_len();
    let whole = header_len + len;
    let chains_max = if features.merges() { CHAINS_MAX } else { 1 };
    let mut pieces = Pieces::default();
    let mut entries = Vec::with_capacity(1);
    while pieces.len() < whole {
        if entries.len() == chains_max {
            ring.return_to(position);
            return Ok(Fate::Lost);
        }
        let Some(chain) = ring.take()? else {
            ring.return_to(position);
            return Ok(Fate::Waits);
        };
        let before = pieces.len();
        let is_sound = chain.buffers.readable.is_empty()
            && pieces.add(&memory, &chain.buffers.writable, before + CHAIN_LEN_MAX);
        // 5.1.6.3.1: there is room for the header at least.
        if !is_sound || pieces.len() < before + header_len {
            return Err(BadRing::Chain);
        }
        entries.push((chain.head, (pieces.len().min(whole) - before) as u32));
    }
    let mut header = [0; OFFLOAD_HEADER_LEN + 2];
    header[..OFFLOAD_HEADER_LEN].copy_from_slice(&start.offload_header());
    header[OFFLOAD_HEADER_LEN..].copy_from_slice(&(entries.len() as u16).to_le_bytes());
    let mut to = pieces.from(0);
    to.write(&header[..header_len]);
    to.write(&start.bytes);
    to.write_from(rest);
    ring.give_back(&entries)?;
    Ok(Fate::Delivered)
}

/// The way of other packets to the guest: those that were copied, and those from other kinds of ports.
#[derive(Debug)]
pub(super) struct Copying(pub(super) std::sync::Arc<Receiver>);

impl Network for Copying {
    fn send(&mut self, packet: Packet) {
        self.0.send(packet);
    }

    fn flush(&mut self) {
        self.0.tell();
    }

    fn is_congested(&mut self) -> bool {
        self.0.is_congested()
    }
}
