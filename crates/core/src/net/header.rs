//! The header by which virtio, and a TAP device of Linux, describe the work that is left to do for a packet
//! (virtio 1.2, 5.1.6, `struct virtio_net_hdr`).

use super::{Packet, PartialChecksum, Segmentation, SegmentationKind};

/// Bytes of the header, without the number of buffers that may follow it in virtio.
pub const OFFLOAD_HEADER_LEN: usize = 10;

// Flags.
const NEEDS_CHECKSUM: u8 = 1 << 0;

// Kinds of segmentation.
const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
const GSO_TCP_V6: u8 = 4;
const GSO_CONGESTION: u8 = 1 << 7;

impl Packet {
    /// Returns the header that goes before [`Packet::bytes`]. All numbers are little-endian.
    pub fn offload_header(&self) -> [u8; OFFLOAD_HEADER_LEN] {
        let mut flags = 0;
        let (mut gso, mut segment_len, mut header_len) = (GSO_NONE, 0, 0);
        let (mut start, mut offset) = (0, 0);
        if let Some(checksum) = self.checksum {
            flags = NEEDS_CHECKSUM;
            (start, offset) = (checksum.start, checksum.offset);
        }
        if let Some(Segmentation { kind, size, congestion }) = self.segmentation {
            gso = match kind {
                SegmentationKind::TcpV4 => GSO_TCP_V4,
                SegmentationKind::TcpV6 => GSO_TCP_V6,
            };
            gso |= if congestion { GSO_CONGESTION } else { 0 };
            segment_len = size;
            header_len = self.headers_len().unwrap_or_default() as u16;
        }
        let mut header = [0; OFFLOAD_HEADER_LEN];
        header[0] = flags;
        header[1] = gso;
        let fields = [header_len, segment_len, start, offset].map(u16::to_le_bytes);
        header[2..].copy_from_slice(fields.as_flattened());
        header
    }

    /// Returns the packet that `header` and `bytes` describe, or None if they contradict each other or the
    /// header asks for an unknown service.
    pub fn with_offload_header(header: [u8; OFFLOAD_HEADER_LEN], bytes: Vec<u8>) -> Option<Packet> {
        let field = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let checksum = (header[0] & NEEDS_CHECKSUM != 0)
            .then(|| PartialChecksum { start: field(6), offset: field(8) });
        let kind = match header[1] & !GSO_CONGESTION {
            GSO_NONE => None,
            GSO_TCP_V4 => Some(SegmentationKind::TcpV4),
            GSO_TCP_V6 => Some(SegmentationKind::TcpV6),
            _ => return None,
        };
        let congestion = header[1] & GSO_CONGESTION != 0;
        let size = field(4);
        let segmentation = kind.map(|kind| Segmentation { kind, size, congestion });
        let packet = Packet { bytes, checksum, segmentation };
        packet.is_sound().then_some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_states_the_remaining_work() {
        let plain = Packet::frame(vec![7; 60]);
        assert_eq!(plain.offload_header(), [0; OFFLOAD_HEADER_LEN]);
        let mut bytes = vec![0; 4000];
        bytes[14 + 20 + 12] = 0x50;
        let packet = Packet {
            bytes,
            checksum: Some(PartialChecksum { start: 34, offset: 16 }),
            segmentation: Some(Segmentation {
                kind: SegmentationKind::TcpV4,
                size: 1448,
                congestion: true,
            }),
        };
        let header = packet.offload_header();
        assert_eq!(header, [1, 0x81, 54, 0, 0xa8, 5, 34, 0, 16, 0]);
        assert_eq!(Packet::with_offload_header(header, packet.bytes.clone()), Some(packet));
    }

    #[test]
    fn a_header_that_cannot_be_is_refused() {
        let refused = |header, len| Packet::with_offload_header(header, vec![0; len]).is_none();
        // The checksum lies beyond the end; a size without a checksum; no size; an unknown kind.
        assert!(refused([1, 0, 0, 0, 0, 0, 34, 0, 16, 0], 51));
        assert!(!refused([1, 0, 0, 0, 0, 0, 34, 0, 16, 0], 52));
        assert!(refused([0, 1, 0, 0, 0xa8, 5, 0, 0, 0, 0], 4000));
        assert!(refused([1, 1, 0, 0, 0, 0, 34, 0, 16, 0], 4000));
        assert!(refused([1, 3, 0, 0, 0xa8, 5, 34, 0, 16, 0], 4000));
    }
}
