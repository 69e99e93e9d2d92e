//! Wide accesses to 8-bit devices: the ISA bus makes byte accesses of them, at ascending ports.

use ring3_core::device::Width;

/// Reads `width` at `port` as single bytes, each by `read`.
pub(crate) fn read(port: u16, width: Width, mut read: impl FnMut(u16) -> u8) -> u32 {
    (0..width.bytes())
        .fold(0, |value, offset| value | u32::from(read(port.wrapping_add(offset))) << (8 * offset))
}

/// Writes `value` of `width` at `port` as single bytes, each by `write`.
pub(crate) fn write(port: u16, width: Width, value: u32, mut write: impl FnMut(u16, u8)) {
    for offset in 0..width.bytes() {
        write(port.wrapping_add(offset), (value >> (8 * offset)) as u8);
    }
}
