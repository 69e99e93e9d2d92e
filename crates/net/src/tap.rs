//! Frames over a tap device of the host (`ring3_hostnet::tap`), which computes checksums and cuts packets
//! itself where they are unfinished.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use ring3_core::net::{OFFLOAD_HEADER_LEN, PACKET_MAX, Packet};
use ring3_hostnet::Tap as Device;
use ring3_vm::networks::Network;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use tracing::{debug, warn};

use crate::card::Card;
use crate::error::NetError;

/// A network that is an interface of the host.
#[derive(Debug)]
pub struct Tap {
    device: Arc<Device>,
    /// Ends the thread.
    stop: Arc<OwnedFd>,
}

impl Tap {
    /// Attaches to the interface `name`.
    pub fn open(name: &str, card: Card) -> Result<Tap, NetError> {
        let device = Arc::new(Device::open(name)?);
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| NetError::Thread(error.into()))?;
        let tap = Tap { device: device.clone(), stop: Arc::new(stop) };
        let stop = tap.stop.clone();
        let thread = thread::Builder::new().name(format!("{} in", card.name()));
        thread.spawn(move || receive(&device, &stop, &card)).map_err(NetError::Thread)?;
        Ok(tap)
    }
}

/// Hands over the packets that arrive, until `stop` is signalled.
fn receive(device: &Device, stop: &OwnedFd, card: &Card) {
    let mut buffer = vec![0; OFFLOAD_HEADER_LEN + PACKET_MAX];
    loop {
        match device.receive(&mut buffer) {
            Ok(length) => {
                if let Some((header, bytes)) = buffer[..length].split_first_chunk()
                    && let Some(packet) = Packet::with_offload_header(*header, bytes.to_vec())
                {
                    card.deliver(packet);
                    card.flush();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !wait(device, stop) {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                warn!("{}: no more packets can be received from the host: {error}", card.name());
                return;
            }
        }
    }
}

/// Waits for something to read. Returns false when it is time to stop.
fn wait(device: &Device, stop: &OwnedFd) -> bool {
    loop {
        let mut waiting =
            [device.as_fd(), stop.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut waiting, None) {
            Err(Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => return waiting[1].revents().is_empty(),
        }
    }
}

impl Network for Tap {
    fn send(&mut self, packet: Packet) {
        if !packet.is_sound() {
            return;
        }
        // If the interface is down, or the host has no room, the packet is lost, as on a wire.
        if let Err(error) = self.device.send(&packet.offload_header(), &packet.bytes) {
            debug!("the host does not accept a packet: {error}");
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // The counter is at zero, so it can be incremented.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}
