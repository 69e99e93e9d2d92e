//! The features that a port offers to a guest's card (virtio 1.2, 5.1.3 and 6), and those that the guest has
//! accepted.

use ring3_core::net::{OFFLOAD_HEADER_LEN, Offloads};
use ring3_vhost::queue::feature::{EVENT_INDEX, INDIRECT, PROTOCOL, VERSION_1};

const CHECKSUM: u64 = 1 << 0;
const GUEST_CHECKSUM: u64 = 1 << 1;
const GUEST_TCP_V4: u64 = 1 << 7;
const GUEST_TCP_V6: u64 = 1 << 8;
const GUEST_CONGESTION: u64 = 1 << 9;
const HOST_TCP_V4: u64 = 1 << 11;
const HOST_TCP_V6: u64 = 1 << 12;
const HOST_CONGESTION: u64 = 1 << 13;
const MERGEABLE: u64 = 1 << 15;

/// Bytes of the number of buffers, which follows the header.
const BUFFERS_LEN: usize = 2;

/// A set of features.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Features(pub(super) u64);

impl Features {
    /// All features of a port.
    pub(super) const OFFERED: Features = Features(
        CHECKSUM
            | GUEST_CHECKSUM
            | GUEST_TCP_V4
            | GUEST_TCP_V6
            | GUEST_CONGESTION
            | HOST_TCP_V4
            | HOST_TCP_V6
            | HOST_CONGESTION
            | MERGEABLE
            | INDIRECT
            | EVENT_INDEX
            | PROTOCOL
            | VERSION_1,
    );

    fn has(self, feature: u64) -> bool {
        self.0 & feature != 0
    }

    /// Returns the work on packets that may be left to the guest.
    pub(super) fn offloads(self) -> Offloads {
        Offloads {
            checksum: self.has(GUEST_CHECKSUM),
            tcp_v4: self.has(GUEST_TCP_V4),
            tcp_v6: self.has(GUEST_TCP_V6),
            congestion: self.has(GUEST_CONGESTION),
        }
    }

    /// Returns whether a packet for the guest may be in several chains.
    pub(super) fn merges(self) -> bool {
        self.has(MERGEABLE)
    }

    /// Returns the bytes of the header before a packet (5.1.6.1).
    pub(super) fn header_len(self) -> usize {
        let has_buffers = self.has(MERGEABLE | VERSION_1);
        OFFLOAD_HEADER_LEN + if has_buffers { BUFFERS_LEN } else { 0 }
    }
}
