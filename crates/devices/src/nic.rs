//! What the network cards of a machine have in common.

use ring3_core::net::MacAddress;

/// The address of card `index` where nobody chooses one: it is locally administered (IEEE 802, 8.4), and one that users know from QEMU.
pub fn default_address(index: u8) -> MacAddress {
    MacAddress([0x52, 0x54, 0x00, 0x12, 0x34, 0x56_u8.wrapping_add(index)])
}
