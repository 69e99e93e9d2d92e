//! The networks behind the network cards.
//!
//! A card sends packets as outputs. Packets for it are inputs, [`DeviceInput::Packet`], from whoever has a
//! sender of the machine's door. So a replay needs no network, and the guest's packets go nowhere then.
//!
//! [`DeviceInput::Packet`]: ring3_core::input::DeviceInput::Packet

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Instant;

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

/// Packets in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// How many there were.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long the host has worked on them, in nanoseconds: the network on those that were sent, the card on
    /// those that were received.
    pub nanos: u64,
}

impl PacketCounts {
    fn note(&mut self, bytes: usize, began: Instant) {
        self.packets += 1;
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.took(began);
    }

    fn took(&mut self, began: Instant) {
        let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanos = self.nanos.saturating_add(nanos);
    }
}

/// Counts of a network card since the machine was made, for observers outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CardCounts {
    /// Packets that the guest has sent.
    pub sent: PacketCounts,
    /// Packets for the guest.
    pub received: PacketCounts,
}

/// The networks of a machine, by their cards.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    all: Vec<Attached>,
    counts: BTreeMap<DeviceId, CardCounts>,
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

    /// Detaches the network of the card `card`, which closes it. Another card in its place is counted anew.
    pub(crate) fn detach(&mut self, card: DeviceId) {
        self.all.retain(|at| at.card != card);
        self.counts.remove(&card);
    }

    /// Returns the id by which people know the network of the card `card`.
    pub(crate) fn id(&self, card: DeviceId) -> Option<&str> {
        self.all.iter().find(|at| at.card == card)?.id.as_deref()
    }

    /// Notes that the card `card` has been given a packet of `bytes` bytes, which it began to take at `began`.
    pub(crate) fn note_packet(&mut self, card: DeviceId, bytes: usize, began: Instant) {
        self.busy = BUSY_SLICES;
        self.counts.entry(card).or_default().received.note(bytes, began);
    }

    /// Returns the counts of the card `card`.
    pub(crate) fn counts(&self, card: DeviceId) -> CardCounts {
        self.counts.get(&card).copied().unwrap_or_default()
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
            let (bytes, began) = (packet.bytes.len(), Instant::now());
            at.network.send(packet);
            self.counts.entry(card).or_default().sent.note(bytes, began);
        }
    }

    /// Notes that nothing more is sent for now. Returns the cards whose networks are congested.
    pub(crate) fn flush(&mut self) -> Vec<DeviceId> {
        let mut congested = Vec::new();
        for at in &mut self.all {
            let began = Instant::now();
            at.network.flush();
            if let Some(counts) = self.counts.get_mut(&at.card) {
                counts.sent.took(began);
            }
            if at.network.is_congested() {
                congested.push(at.card);
            }
        }
        congested
    }
}
