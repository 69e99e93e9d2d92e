//! The network cards that are compared.

use ring3_netmodel::{Design, Network, Transfer};

/// A card that both guests can have.
#[derive(Debug)]
pub(in super::super) struct Card {
    pub(super) name: &'static str,
    /// The name of the card in `-device`.
    pub(super) device: &'static str,
    /// Linux's modules for the card.
    pub(super) modules: &'static str,
    /// How much of the work the card does, in units of 1/[`SHARES`]: slow cards do less of it.
    pub(super) share: u32,
    /// Packet sizes in bytes to which the card can be set, that of an ordinary frame first. The list is empty
    /// if there is only one.
    pub(super) sizes: &'static [u32],
    /// The card's design in terms of the model, where two machines are joined without a switch.
    pub(super) design: Design,
}

/// The design of a card that uses DMA. It has an interrupt for each packet, which is large where the card and
/// its network leave it whole. A thread takes the packet from the connection and wakes the machine.
const DMA: Design = Design {
    transfer: Transfer::Dma,
    packet: 65535.0,
    buffer: 65535.0,
    crossing: 65535.0,
    coalesced: 1.0,
    bus_width: 2.0,
    network: Network::Switched,
    messages: 1.0,
    wake_ups: 2.0,
};
/// Bytes of a packet in an Ethernet frame.
const FRAME: f64 = 1500.0;

pub(super) const SHARES: u32 = 16;

pub(super) const CARDS: [Card; 3] = [
    Card {
        name: "virtio",
        device: "virtio-net-pci",
        modules: "virtio_pci virtio_net",
        share: SHARES,
        sizes: &[1500, 9000, 65535],
        design: DMA,
    },
    // The buffers of its driver (TSO) stay whole until the other card cuts them.
    Card {
        name: "e1000",
        device: "e1000",
        modules: "e1000",
        share: 6,
        sizes: &[1500, 9000, 16110],
        design: Design { packet: FRAME, ..DMA },
    },
    // Linux moves 16-bit words.
    Card {
        name: "ne2k_pci",
        device: "ne2k_pci",
        modules: "ne2k-pci",
        share: 2,
        sizes: &[],
        design: Design {
            transfer: Transfer::Ports,
            packet: FRAME,
            buffer: FRAME,
            crossing: FRAME,
            ..DMA
        },
    },
];

/// Returns the card with this name.
pub(in super::super) fn named(name: &str) -> Result<&'static Card, String> {
    let found = CARDS.iter().find(|card| card.name == name);
    let names = || CARDS.iter().map(|card| card.name).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("no such card is measured; choose from {}", names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_have_names() {
        assert_eq!(named("e1000").unwrap().modules, "e1000");
        let error = named("rtl8139").unwrap_err();
        assert!(error.ends_with("virtio, e1000, ne2k_pci"), "{error}");
    }
}
