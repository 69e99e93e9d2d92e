//! Designs of a virtual network.

/// How data get from a guest to its device model, and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// By repeated port I/O, element by element, as with the NE2000.
    Ports,
    /// The device model copies them.
    Dma,
    /// Their pages are mapped elsewhere, and nothing is copied.
    Remap,
}

/// Who gets a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// So many machines but the sender, of which all but one drop it.
    Broadcast {
        /// All machines, the sender among them: 2 or more.
        machines: u32,
    },
    /// The machine to which it is addressed.
    Switched,
}

impl Network {
    /// How many get a packet.
    pub(crate) fn receivers(self) -> f64 {
        match self {
            Network::Broadcast { machines } => f64::from(machines.max(2) - 1),
            Network::Switched => 1.0,
        }
    }
}

/// A design.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Design {
    /// How data get to the device and back.
    pub transfer: Transfer,
    /// Bytes of a packet at most.
    pub packet: f64,
    /// Bytes that the sender hands over at once, to be cut into packets (TSO); those of a packet without that.
    pub buffer: f64,
    /// Bytes that cross the network at once: a packet, or all of a buffer where who receives it cuts it.
    pub crossing: f64,
    /// Packets for which there is one interrupt.
    pub coalesced: f64,
    /// Bytes of an element of port I/O.
    pub bus_width: f64,
    /// Who gets a packet.
    pub network: Network,
    /// Processes that a packet is sent to one after the other until it is with its receiver, and copied for: 1 in the paper, 2 where a switch is one of them.
    pub messages: f64,
    /// Threads that are woken one after the other for that: 1 in the paper.
    pub wake_ups: f64,
}

/// A frame of Ethernet has so many bytes of data at most (IEEE 802.3, 3.2.7).
const FRAME: f64 = 1500.0;
/// A jumbo frame, as many devices have it.
const JUMBO: f64 = 9000.0;
/// What an IPv4 packet has at most (RFC 791, 3.1).
const SUPER_JUMBO: f64 = 65535.0;

const fn design(transfer: Transfer, packet: f64, buffer: f64, coalesced: f64) -> Design {
    Design {
        transfer,
        packet,
        buffer,
        crossing: packet,
        coalesced,
        bus_width: 2.0,
        network: Network::Switched,
        messages: 1.0,
        wake_ups: 1.0,
    }
}

/// The designs that the paper discusses, by the names that users give. All are switched, which between two machines is the same as broadcast.
pub const DESIGNS: [(&str, Design); 8] = [
    ("ports", design(Transfer::Ports, FRAME, FRAME, 1.0)),
    ("dma", design(Transfer::Dma, FRAME, FRAME, 1.0)),
    ("coalesced", design(Transfer::Dma, FRAME, FRAME, 8.0)),
    ("tso", design(Transfer::Dma, FRAME, SUPER_JUMBO, 1.0)),
    ("jumbo", design(Transfer::Dma, JUMBO, JUMBO, 1.0)),
    ("super-jumbo", design(Transfer::Dma, SUPER_JUMBO, SUPER_JUMBO, 1.0)),
    ("remap", design(Transfer::Remap, FRAME, FRAME, 1.0)),
    ("remap-buffers", design(Transfer::Remap, SUPER_JUMBO, SUPER_JUMBO, 1.0)),
];
