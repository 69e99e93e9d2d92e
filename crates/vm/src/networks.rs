//! What is behind the network cards.
//!
//! A card sends packets as outputs; what comes for it is an input, [`DeviceInput::Packet`], from whoever has a sender of the machine's
//! door. So a replay needs no network, and what the guest sends then goes nowhere.
//!
//! [`DeviceInput::Packet`]: ring3_core::input::DeviceInput::Packet

use std::collections::BTreeMap;
use std::fmt::Debug;

use ring3_core::net::Packet;

/// Where a network card sends to.
pub trait Network: Debug + Send {
    /// Takes a packet, which may be large and without its checksum, whatever the network can carry. It never waits: what cannot go out at once is kept for
    /// a thread, up to some MiB more than where it is [congested](Network::is_congested).
    fn send(&mut self, packet: Packet);

    /// The card has nothing more to send for now: what was held back, to be sent together, goes out.
    fn flush(&mut self) {}

    /// It keeps more than it should. Who has said so sends [`DeviceInput::Congestion`] with false for the card when that is over.
    ///
    /// [`DeviceInput::Congestion`]: ring3_core::input::DeviceInput::Congestion
    fn is_congested(&mut self) -> bool {
        false
    }
}

/// The networks of a machine, by the names of their cards.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    all: Vec<(String, Box<dyn Network>)>,
    /// What people call them, by the names of the cards.
    ids: BTreeMap<String, String>,
    /// For how many more slices another packet is expected.
    busy: u32,
}

/// After a packet, for so many slices the next one is expected soon.
const BUSY_SLICES: u32 = 40;

impl Networks {
    /// Attaches `network` to the card `device`, in the place of what was there.
    pub(crate) fn attach(&mut self, device: &str, network: Box<dyn Network>) {
        self.all.retain(|(name, _)| name != device);
        self.all.push((device.to_owned(), network));
    }

    /// Says what people call what is behind the card `device`.
    pub(crate) fn name(&mut self, device: &str, id: String) {
        self.ids.insert(device.to_owned(), id);
    }

    /// What people call what is behind the card `device`.
    pub(crate) fn id(&self, device: &str) -> Option<&str> {
        self.ids.get(device).map(String::as_str)
    }

    /// A packet has come for a card.
    pub(crate) fn note_packet(&mut self) {
        self.busy = BUSY_SLICES;
    }

    /// Packets have come or gone in the last slices. It is asked once in each.
    pub(crate) fn are_busy(&mut self) -> bool {
        self.busy = self.busy.saturating_sub(1);
        self.busy > 0
    }

    /// The card `device` sends a packet: nowhere, if nothing is attached to it.
    pub(crate) fn send(&mut self, device: &str, packet: Packet) {
        if let Some((_, network)) = self.all.iter_mut().find(|(name, _)| name == device) {
            self.busy = BUSY_SLICES;
            network.send(packet);
        }
    }

    /// Nothing more is to be sent for now: the cards whose networks are congested.
    pub(crate) fn flush(&mut self) -> Vec<String> {
        let mut congested = Vec::new();
        for (name, network) in &mut self.all {
            network.flush();
            if network.is_congested() {
                congested.push(name.clone());
            }
        }
        congested
    }
}
