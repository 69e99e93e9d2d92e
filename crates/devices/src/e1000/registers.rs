//! The registers of the 82540EM that software sees in memory (chapter 13), by their offsets, and bits of them.

/// Bytes of the registers that there are.
pub(super) const LEN: usize = 0x6000;

pub(super) const CTRL: u32 = 0x0000;
pub(super) const STATUS: u32 = 0x0008;
pub(super) const EECD: u32 = 0x0010;
pub(super) const EERD: u32 = 0x0014;
pub(super) const MDIC: u32 = 0x0020;
pub(super) const VET: u32 = 0x0038;
pub(super) const ICR: u32 = 0x00c0;
pub(super) const ITR: u32 = 0x00c4;
pub(super) const ICS: u32 = 0x00c8;
pub(super) const IMS: u32 = 0x00d0;
pub(super) const IMC: u32 = 0x00d8;
pub(super) const RCTL: u32 = 0x0100;
pub(super) const TCTL: u32 = 0x0400;
pub(super) const PBA: u32 = 0x1000;
pub(super) const RDBAL: u32 = 0x2800;
pub(super) const RDBAH: u32 = 0x2804;
pub(super) const RDLEN: u32 = 0x2808;
pub(super) const RDH: u32 = 0x2810;
pub(super) const RDT: u32 = 0x2818;
pub(super) const RDTR: u32 = 0x2820;
pub(super) const RADV: u32 = 0x282c;
pub(super) const TDBAL: u32 = 0x3800;
pub(super) const TDBAH: u32 = 0x3804;
pub(super) const TDLEN: u32 = 0x3808;
pub(super) const TDH: u32 = 0x3810;
pub(super) const TDT: u32 = 0x3818;
pub(super) const TIDV: u32 = 0x3820;
pub(super) const TADV: u32 = 0x382c;
pub(super) const RXCSUM: u32 = 0x5000;
pub(super) const MTA: u32 = 0x5200;
pub(super) const MTA_LEN: u32 = 128;
pub(super) const RAL: u32 = 0x5400;
pub(super) const RAH: u32 = 0x5404;
pub(super) const RECEIVE_ADDRESSES: u32 = 16;
pub(super) const VFTA: u32 = 0x5600;
pub(super) const VFTA_LEN: u32 = 128;

/// Statistics, which reading clears (chapter 13).
pub(super) mod statistics {
    pub(in super::super) const FIRST: u32 = 0x4000;
    pub(in super::super) const MISSED: u32 = 0x4010;
    pub(in super::super) const END: u32 = 0x4100;
    pub(in super::super) const RECEIVED: u32 = 0x4074;
    pub(in super::super) const BROADCASTS_RECEIVED: u32 = 0x4078;
    pub(in super::super) const MULTICASTS_RECEIVED: u32 = 0x407c;
    pub(in super::super) const SENT: u32 = 0x4080;
    pub(in super::super) const BYTES_RECEIVED: u32 = 0x4088;
    pub(in super::super) const BYTES_SENT: u32 = 0x4090;
    pub(in super::super) const TOO_LONG: u32 = 0x40ac;
    pub(in super::super) const ALL_BYTES_RECEIVED: u32 = 0x40c0;
    pub(in super::super) const ALL_BYTES_SENT: u32 = 0x40c8;
    pub(in super::super) const ALL_RECEIVED: u32 = 0x40d0;
    pub(in super::super) const ALL_SENT: u32 = 0x40d4;
    pub(in super::super) const BROADCASTS_SENT: u32 = 0x40f4;
    pub(in super::super) const MULTICASTS_SENT: u32 = 0x40f0;
    pub(in super::super) const CUT: u32 = 0x40f8;
}

/// Those that software reads as it wrote them, from the first to before the last offset: what they ask for has no effect here, or is looked at when it matters.
const PLAIN: [(u32, u32); 22] = [
    (CTRL, CTRL + 4),
    (0x0018, 0x001c),
    (0x0028, 0x0034),
    (VET, VET + 4),
    (ITR, ITR + 4),
    (RCTL, RCTL + 4),
    (0x0170, 0x0188),
    (TCTL, TCTL + 4),
    (0x0410, 0x0414),
    (0x0458, 0x045c),
    (0x0e00, 0x0e04),
    (PBA, PBA + 4),
    (0x2160, 0x2170),
    (RDBAL, RDLEN + 4),
    (RDH, RDH + 4),
    (RDT, RDTR + 4),
    (0x2828, RADV + 4),
    (TDBAL, TDLEN + 4),
    (TDH, TDH + 4),
    (TDT, TADV + 4),
    (RXCSUM, RXCSUM + 4),
    (MTA, VFTA + 4 * VFTA_LEN),
];

/// Bits of registers that are always 0: a ring begins at a multiple of 16 bytes and has a multiple of 128 of them.
fn writable_bits(offset: u32) -> u32 {
    match offset {
        RDBAL | TDBAL => !0xf,
        RDLEN | TDLEN => 0x000f_ff80,
        RDH | RDT | TDH | TDT | RDTR | RADV | TIDV | TADV | ITR | VET => 0xffff,
        _ => u32::MAX,
    }
}

/// What is kept when software writes `value` at `offset`: nothing where that is no plain register.
pub(super) fn kept(offset: u32, value: u32) -> Option<u32> {
    let is_plain = PLAIN.iter().any(|(first, end)| (*first..*end).contains(&offset));
    is_plain.then_some(value & writable_bits(offset))
}

/// Device control (CTRL).
pub(super) mod ctrl {
    pub(in super::super) const FULL_DUPLEX: u32 = 1 << 0;
    pub(in super::super) const SPEED_1000: u32 = 2 << 8;
    pub(in super::super) const RESET: u32 = 1 << 26;
    pub(in super::super) const VLAN_MODE: u32 = 1 << 30;
    pub(in super::super) const PHY_RESET: u32 = 1 << 31;
}

/// Device status (STATUS).
pub(super) mod status {
    pub(in super::super) const FULL_DUPLEX: u32 = 1 << 0;
    pub(in super::super) const LINK_UP: u32 = 1 << 1;
    pub(in super::super) const SPEED_1000: u32 = 2 << 6;
}

/// Receive control (RCTL).
pub(super) mod rctl {
    pub(in super::super) const ENABLE: u32 = 1 << 1;
    pub(in super::super) const UNICAST_PROMISCUOUS: u32 = 1 << 3;
    pub(in super::super) const MULTICAST_PROMISCUOUS: u32 = 1 << 4;
    pub(in super::super) const LONG_PACKETS: u32 = 1 << 5;
    pub(in super::super) const LOOPBACK: u32 = 3 << 6;
    pub(in super::super) const THRESHOLD_SHIFT: u32 = 8;
    pub(in super::super) const MULTICAST_OFFSET_SHIFT: u32 = 12;
    pub(in super::super) const BROADCASTS: u32 = 1 << 15;
    pub(in super::super) const BUFFER_SIZE_SHIFT: u32 = 16;
    pub(in super::super) const VLAN_FILTER: u32 = 1 << 18;
    pub(in super::super) const BUFFERS_EXTENDED: u32 = 1 << 25;
    pub(in super::super) const STRIP_CHECK_SEQUENCE: u32 = 1 << 26;
}

/// Transmit control (TCTL).
pub(super) mod tctl {
    pub(in super::super) const ENABLE: u32 = 1 << 1;
    pub(in super::super) const PAD_SHORT: u32 = 1 << 3;
}

/// Causes of interrupts (ICR).
pub(super) mod cause {
    pub(in super::super) const SENT: u32 = 1 << 0;
    pub(in super::super) const QUEUE_EMPTY: u32 = 1 << 1;
    pub(in super::super) const LINK_CHANGED: u32 = 1 << 2;
    pub(in super::super) const FEW_BUFFERS: u32 = 1 << 4;
    pub(in super::super) const RECEIVED: u32 = 1 << 7;
    pub(in super::super) const PHY_ACCESS: u32 = 1 << 9;
    /// All that there are.
    pub(in super::super) const ALL: u32 = 0x0001_82df | PHY_ACCESS;
}

/// In the upper half of a receive address: it counts (RAH.AV).
pub(super) const ADDRESS_VALID: u32 = 1 << 31;
