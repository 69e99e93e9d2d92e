//! A port, as the device at the other end of a guest's two queues.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring3_vhost::queue::Setting;
use ring3_vhost::session::{self, Device};
use vhost::vhost_user::message::VhostUserProtocolFeatures;

use super::features::Features;
use super::receiver::Receiver;
use super::ring::Ring;
use super::transmitter::Transmitter;
use super::worker::Worker;
use crate::card::CardOwner;
use crate::switch::port::Port;

/// Number of a card's queues: that for packets it receives, and the other one (virtio 1.2, 5.1.2).
const QUEUES: usize = 2;
const TRANSMIT: usize = 1;

/// See the module.
pub(super) struct PortDevice {
    port: Arc<Port>,
    receiver: Arc<Receiver>,
    features: Features,
}

/// A running queue.
pub(super) enum Running {
    Receive(Arc<Receiver>, Worker),
    Transmit(Arc<Transmitter>, Worker),
}

impl session::Running for Running {
    fn stop(self, next: u16) -> u16 {
        match self {
            Running::Receive(receiver, worker) => {
                // A broken queue has no position.
                let next = receiver.stop().unwrap_or(next);
                drop(worker);
                next
            }
            Running::Transmit(transmitter, worker) => {
                transmitter.end();
                drop(worker);
                transmitter.position()
            }
        }
    }
}

impl PortDevice {
    pub(super) fn new(port: Arc<Port>, receiver: Arc<Receiver>) -> PortDevice {
        PortDevice { port, receiver, features: Features::default() }
    }

    fn transmit(&self, ring: Ring, kick: &OwnedFd) -> io::Result<Running> {
        let transmitter = Arc::new(Transmitter::new(ring, self.features, Arc::clone(&self.port)));
        let inside = Arc::clone(&transmitter);
        let worker = Worker::start("transmit queue", kick, move || inside.work())?;
        Ok(Running::Transmit(transmitter, worker))
    }

    fn receive(&self, ring: Ring, kick: &OwnedFd) -> io::Result<Running> {
        self.receiver.start(ring, self.features);
        let (inside, port) = (Arc::clone(&self.receiver), Arc::clone(&self.port));
        let worker = Worker::start("receive queue", kick, move || {
            if inside.resume() {
                port.relieve();
            }
        });
        let worker = worker.inspect_err(|_| {
            self.receiver.stop();
        })?;
        Ok(Running::Receive(Arc::clone(&self.receiver), worker))
    }
}

/// A network may lose packets, so those in flight are not tracked.
impl Device for PortDevice {
    type Running = Running;

    const MORE_PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::empty();

    fn queues(&self) -> usize {
        QUEUES
    }

    fn features(&self) -> u64 {
        Features::OFFERED.0
    }

    fn set_features(&mut self, features: u64) {
        self.features = Features(features);
    }

    fn start(&mut self, index: usize, kick: &OwnedFd, setting: Setting) -> io::Result<Running> {
        let ring = Ring::new(setting).map_err(io::Error::other)?;
        if index == TRANSMIT { self.transmit(ring, kick) } else { self.receive(ring, kick) }
    }

    fn reset(&mut self) {
        self.features = Features::default();
    }
}
