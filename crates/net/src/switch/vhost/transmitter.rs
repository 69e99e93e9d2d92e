//! Packets from a guest: its transmit queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::warn;

use super::features::Features;
use super::frame::Frame;
use super::ring::{BadRing, Ring};
use crate::card::CardOwner;
use crate::switch::port::Port;

/// Number of packets that are taken before their receivers are told.
const AT_ONCE: usize = 64;

/// See the module.
pub(super) struct Transmitter {
    /// The queue; None if it makes no sense.
    ring: Mutex<Option<Ring>>,
    position: Mutex<u16>,
    features: Features,
    port: Arc<Port>,
    is_ending: AtomicBool,
}

impl Transmitter {
    pub(super) fn new(ring: Ring, features: Features, port: Arc<Port>) -> Transmitter {
        let position = Mutex::new(ring.position());
        let is_ending = AtomicBool::new(false);
        Transmitter { ring: Mutex::new(Some(ring)), position, features, port, is_ending }
    }

    /// Ends [`Transmitter::work`] soon.
    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Returns the next index of the available ring.
    pub(super) fn position(&self) -> u16 {
        *self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes packets until there are none, and then asks for a kick.
    pub(super) fn work(&self) {
        let mut slot = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ring) = slot.as_mut() else { return };
        ring.wants_no_kicks();
        while !self.is_ending.load(Ordering::Relaxed) {
            let result = self.some(ring);
            ring.tell();
            *self.position.lock().unwrap_or_else(PoisonError::into_inner) = ring.position();
            // This waits for slow receivers.
            self.port.flush();
            match result {
                Ok(true) => {}
                Ok(false) if ring.wants_kicks() => ring.wants_no_kicks(),
                Ok(false) => return,
                Err(error) => {
                    warn!("a transmit queue is broken: {error}");
                    ring.report();
                    *slot = None;
                    return;
                }
            }
        }
    }

    /// Takes some packets. Returns false if there are no more.
    fn some(&self, ring: &mut Ring) -> Result<bool, BadRing> {
        let memory = ring.memory();
        for _ in 0..AT_ONCE {
            let Some(chain) = ring.take()? else { return Ok(false) };
            match Frame::read(&memory, &chain.buffers, self.features.header_len()) {
                Some(frame) => self.port.take_frame(&frame),
                None => return Err(BadRing::Chain),
            }
            ring.give_back(&[(chain.head, 0)])?;
        }
        Ok(true)
    }
}
