//! The networks behind the network cards.
//!
//! A card sends packets as outputs. Packets for it are inputs, [`DeviceInput::Packet`], from whoever has a
//! sender of the machine's door. So a replay needs no network, and the guest's packets go nowhere then.
//!
//! [`DeviceInput::Packet`]: ring3_core::input::DeviceInput::Packet

use std::fmt::Debug;

use ring3_core::device::DeviceId;
use ring3_core::net::Packet;

/// The network to which a card sends.
pub trait Network: Debug + Send {
    /// Takes a packet, which may be large and without its checksum, whatever the network can carry. It never
    /// waits: packets that cannot go out at once are kept for a thread, up to some MiB more than the limit at
    /// which the network is [congested](Network::is_congested).
    fn send(&mut self, packet: Packet);

    /// Notes that the card has nothing more to send for now: packets that were kept to be sent together go
    /// out.
    fn flush(&mut self) {}

    /// Returns whether more packets are kept than should be. A network that returned true sends
    /// [`DeviceInput::Congestion`] with false for the card when that is over.
    ///
    /// [`DeviceInput::Congestion`]: ring3_core::input::DeviceInput::Congestion
    fn is_congested(&mut self) -> bool {
        false
    }
}

/// The networks of a machine, by their cards.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    all: Vec<Attached>,
    /// Number of slices in which another packet is still expected.
    busy: u32,
}

/// A network that is attached to a card.
#[derive(Debug)]
struct Attached {
    card: DeviceId,
    /// The id by which people know the network, if it has one.
    id: Option<String>,
    network: Box<dyn Network>,
}

/// After a packet, the next one is expected within this number of slices.
const BUSY_SLICES: u32 = 40;

impl Networks {
    /// Attaches `network`, which people know by `id`, to the card `card`, in the place of the present one.
    pub(crate) fn attach(&mut self, card: DeviceId, id: Option<String>, network: Box<dyn Network>) {
        self.all.retain(|at| at.card != card);
        self.all.push(Attached { card, id, network });
    }

    /// Returns the id by which people know the network of the card `card`.
    pub(crate) fn id(&self, card: DeviceId) -> Option<&str> {
        self.all.iter().find(|at| at.card == card)?.id.as_deref()
    }

    /// Notes that a packet has come for a card.
    pub(crate) fn note_packet(&mut self) {
        self.busy = BUSY_SLICES;
    }

    /// Returns whether packets have come or gone in the last slices. Must be called once in each slice.
    pub(crate) fn are_busy(&mut self) -> bool {
        self.busy = self.busy.saturating_sub(1);
        self.busy > 0
    }

    /// Sends a packet of the card `card`. It is lost if no network is attached.
    pub(crate) fn send(&mut self, card: DeviceId, packet: Packet) {
        if let Some(at) = self.all.iter_mut().find(|at| at.card == card) {
            self.busy = BUSY_SLICES;
            at.network.send(packet);
        }
    }

    /// Notes that nothing more is sent for now. Returns the cards whose networks are congested.
    pub(crate) fn flush(&mut self) -> Vec<DeviceId> {
        let mut congested = Vec::new();
        for at in &mut self.all {
            at.network.flush();
            if at.network.is_congested() {
                congested.push(at.card);
            }
        }
        congested
    }
}
