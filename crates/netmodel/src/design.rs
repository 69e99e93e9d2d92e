//! Designs of a virtual network.

/// How data pass between a guest and its device model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// By repeated port I/O, element by element, as with the NE2000.
    Ports,
    /// By a copy that the device model makes.
    Dma,
    /// By mapping their pages at another address, without a copy.
    Remap,
}

/// How a network chooses the receivers of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// It sends the packet to every machine except the sender; all but one drop it.
    Broadcast {
        /// Number of all machines, including the sender: 2 or more.
        machines: u32,
    },
    /// It sends the packet only to the machine to which it is addressed.
    Switched,
}

impl Network {
    /// Returns how many machines receive a packet.
    pub(crate) fn receivers(self) -> f64 {
        match self {
            Network::Broadcast { machines } => f64::from(machines.max(2) - 1),
            Network::Switched => 1.0,
        }
    }
}

/// A design of a virtual network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Design {
    /// How data pass between a guest and its device model.
    pub transfer: Transfer,
    /// The largest packet, in bytes.
    pub packet: f64,
    /// Bytes that the sender hands over at once, to be cut into packets (TSO). Without TSO this is the size
    /// of a packet.
    pub buffer: f64,
    /// Bytes that cross the network at once: a packet, or a whole buffer if its receiver cuts it.
    pub crossing: f64,
    /// Number of packets for which there is one interrupt.
    pub coalesced: f64,
    /// Size of an element of port I/O, in bytes.
    pub bus_width: f64,
    /// How the network chooses the receivers of a packet.
    pub network: Network,
    /// Number of processes to which a packet is sent, one after the other, and copied until it reaches its
    /// receiver: 1 in the paper, 2 where a switch is one of them.
    pub messages: f64,
    /// Number of threads that are woken for this, one after the other: 1 in the paper.
    pub wake_ups: f64,
}

/// The most data in an Ethernet frame, in bytes (IEEE 802.3, 3.2.7).
const FRAME: f64 = 1500.0;
/// The data in a jumbo frame of many devices, in bytes.
const JUMBO: f64 = 9000.0;
/// The largest IPv4 packet, in bytes (RFC 791, 3.1).
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

/// The designs that the paper discusses, by the names that users type. All are switched, which is the same as
/// broadcast between two machines.
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
