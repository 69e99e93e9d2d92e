//! What a chip says about itself: its identifier, and the Common Flash Interface (JESD68).

use super::{BLOCK_LEN, BUFFER_SHIFT};

/// Intel, and the 28F128J3.
const MANUFACTURER: u8 = 0x89;
const DEVICE: u8 = 0x18;

/// Returns the byte at `offset` in the mode that identifies the chip. No block is locked.
pub(super) fn identifier(offset: u64) -> u8 {
    match offset % BLOCK_LEN {
        0 => MANUFACTURER,
        1 => DEVICE,
        _ => 0,
    }
}

/// The offset of the table, and that of the one of Intel's command set.
const TABLE: u64 = 0x10;
const INTEL_TABLE: u8 = 0x31;

/// Returns the byte at `offset` of the query data of a chip of `len` bytes.
pub(super) fn query(offset: u64, len: u64) -> u8 {
    let [blocks_low, blocks_high] = ((len / BLOCK_LEN - 1) as u16).to_le_bytes();
    let [block_low, block_high] = ((BLOCK_LEN / 256) as u16).to_le_bytes();
    #[rustfmt::skip]
    let table = [
        b'Q', b'R', b'Y',
        0x01, 0x00, INTEL_TABLE, 0x00, // Intel's extended command set
        0x00, 0x00, 0x00, 0x00,        // and no other
        0x27, 0x36, 0x00, 0x00,        // from 2.7 to 3.6 volts, none for programming
        // Times as powers of 2, typically and at most, of 0 for what is not there: a byte and a buffer in
        // microseconds, a block and the chip in milliseconds.
        0x07, 0x07, 0x0a, 0x00,
        0x04, 0x04, 0x04, 0x00,
        len.next_power_of_two().trailing_zeros() as u8,
        0x00, 0x00,                    // 8 bits wide
        BUFFER_SHIFT, 0x00,
        0x01, blocks_low, blocks_high, block_low, block_high, // one region of blocks
        b'P', b'R', b'I', b'1', b'0',
        0x00, 0x00, 0x00, 0x00,        // nothing can be suspended, and there are no lock bits
        0x00, 0x00, 0x00,
        0x33, 0x00,                    // best at 3.3 volts
    ];
    let index = offset.checked_sub(TABLE).and_then(|index| usize::try_from(index).ok());
    index.and_then(|index| table.get(index)).copied().unwrap_or(0)
}
