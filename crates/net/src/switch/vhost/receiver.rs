//! Packets for a guest: its receive queue, and packets that wait for buffers there.

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

/// How long packets wait for a guest that gives no buffers; then they are lost until it gives some.
const PATIENCE: Duration = Duration::from_millis(900);

/// Upper bound of the bytes of waiting packets.
const WAITING_MAX: usize = 4 << 20;

/// Upper bound of the chains for a packet. Buffers of a frame's size suffice for the largest packet.
const CHAINS_MAX: usize = 64;

/// Upper bound of the bytes in a chain, which is more than any packet needs.
const CHAIN_LEN_MAX: usize = 1 << 20;

/// See the module. It has no ring while the guest's driver does not run; then packets are lost, as with an
/// unplugged cable.
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
    /// When the first waiting packet began to wait.
    since: Option<Instant>,
    /// Whether the guest has given no buffers for too long.
    is_stuck: bool,
}

/// The fate of a packet.
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

    /// Makes packets go to `ring`.
    pub(super) fn start(&self, mut ring: Ring, features: Features) {
        ring.wants_no_kicks();
        *self.lock() = State { ring: Some(ring), features, ..State::default() };
    }

    /// Makes packets be lost. Returns the next index of the available ring, if there was a ring.
    pub(super) fn stop(&self) -> Option<u16> {
        let state = std::mem::take(&mut *self.lock());
        state.ring.map(|ring| ring.position())
    }

    /// Tries again after the guest may have given buffers. Returns whether no packet waits any more.
    pub(super) fn resume(&self) -> bool {
        let mut state = self.lock();
        state.resume();
        state.tell();
        state.waiting.is_empty()
    }

    /// Copies a packet from one guest's memory to the other's. Returns false if it must be
    /// [sent](Receiver::send), since it needs work or must wait.
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
            // A guest without buffers must tell when there are some.
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

    /// Puts the packet of `len` bytes, which begins with `start` and continues with `rest`, into the guest's
    /// buffers.
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
        // The buffer has room for the header at least (5.1.6.3.1).
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

/// The way to the guest for other packets: those that were copied, and those from ports of another kind.
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
