//! The registers of the DP8390 and their bits (data sheet, chapter 10).

/// The command register, in all pages.
pub(super) mod command {
    /// Stop: the chip takes no part in the network.
    pub(crate) const STOP: u8 = 1 << 0;
    /// Start.
    pub(crate) const START: u8 = 1 << 1;
    /// Transmit a packet.
    pub(crate) const TRANSMIT: u8 = 1 << 2;
    /// What the remote DMA does.
    pub(crate) const REMOTE: u8 = 7 << 3;
    pub(crate) const REMOTE_READ: u8 = 1 << 3;
    pub(crate) const REMOTE_WRITE: u8 = 2 << 3;
    pub(crate) const SEND_PACKET: u8 = 3 << 3;
    /// The remote DMA is aborted, or complete; with any of the bits below.
    pub(crate) const ABORT: u8 = 4 << 3;
    /// Which page of registers is seen, in the two highest bits.
    pub(crate) const PAGE_SHIFT: u8 = 6;
}

/// The interrupt status register, and the mask.
pub(super) mod interrupt {
    /// A packet was received.
    pub(crate) const RECEIVED: u8 = 1 << 0;
    /// A packet was transmitted.
    pub(crate) const TRANSMITTED: u8 = 1 << 1;
    /// A packet was received with errors, or missed.
    pub(crate) const RECEIVE_ERROR: u8 = 1 << 2;
    /// The receive buffer is full.
    pub(crate) const OVERWRITE: u8 = 1 << 4;
    /// A counter is half full.
    pub(crate) const COUNTER: u8 = 1 << 5;
    /// The remote DMA is complete.
    pub(crate) const REMOTE_COMPLETE: u8 = 1 << 6;
    /// The chip is stopped, or the receive buffer has no room. It cannot be cleared and interrupts nobody.
    pub(crate) const RESET: u8 = 1 << 7;
}

/// The data configuration register.
pub(super) mod data {
    /// The remote DMA moves words.
    pub(crate) const WORDS: u8 = 1 << 0;
    /// The bytes of words are in the order of the 68000. The card's data port does not change it, but a loopback does.
    pub(crate) const HIGH_FIRST: u8 = 1 << 1;
    /// The send packet command begins anew as long as there are packets.
    pub(crate) const AUTO_INITIALIZE: u8 = 1 << 4;
}

/// The transmit configuration register.
pub(super) mod transmit {
    /// The check sequence is part of what software has written.
    pub(crate) const INHIBIT_CHECK: u8 = 1 << 0;
    /// Which loopback, if any.
    pub(crate) const LOOPBACK: u8 = 3 << 1;
    /// That through the controller, and that through the encoder.
    pub(crate) const LOOPBACK_CONTROLLER: u8 = 1 << 1;
    pub(crate) const LOOPBACK_ENCODER: u8 = 2 << 1;
}

/// The transmit status register.
pub(super) mod transmitted {
    /// The packet is on the wire.
    pub(crate) const WELL: u8 = 1 << 0;
    /// The carrier was lost.
    pub(crate) const CARRIER_LOST: u8 = 1 << 4;
    /// The transceiver has not said after it that it could tell of collisions.
    pub(crate) const HEARTBEAT_MISSING: u8 = 1 << 6;
}

/// The receive configuration register. On a wire without errors nothing hangs on its lowest bit, by which packets with errors are taken.
pub(super) mod receive {
    /// Packets are taken that are too short.
    pub(crate) const RUNTS: u8 = 1 << 1;
    /// The same of those for everyone.
    pub(crate) const BROADCAST: u8 = 1 << 2;
    /// Of those for the groups that the multicast address registers say.
    pub(crate) const MULTICAST: u8 = 1 << 3;
    /// Of those for any single card.
    pub(crate) const PROMISCUOUS: u8 = 1 << 4;
    /// Packets are looked at and not kept.
    pub(crate) const MONITOR: u8 = 1 << 5;
}

/// The receive status register.
pub(super) mod received {
    /// Without errors.
    pub(crate) const INTACT: u8 = 1 << 0;
    /// The check sequence was wrong.
    pub(crate) const CHECK_ERROR: u8 = 1 << 1;
    /// It was missed: there was no room.
    pub(crate) const MISSED: u8 = 1 << 4;
    /// It was for several.
    pub(crate) const GROUP: u8 = 1 << 5;
    /// The receiver only monitors.
    pub(crate) const DISABLED: u8 = 1 << 6;
}
