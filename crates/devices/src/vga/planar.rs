//! How the processor reads and writes the four planes of display memory.
//!
//! The four bytes of the planes at one plane offset stand side by side in video memory, plane 0 first, and are handled as one
//! little-endian `u32`. [`place`] tells where. (FreeVGA, "Accessing the VGA Display Memory"; the Reference, "Graphics Controller".)

use super::registers::{Function, Registers};

/// Size of the window at A0000h in bytes.
pub(super) const WINDOW_LEN: u64 = 0x2_0000;
/// What a read finds that nothing answers.
const OPEN_BUS: u8 = 0xff;

/// Where in video memory the four planes of plane offset `offset` are: offsets whose low two bits are 0 come first. These are what
/// chain 4 reaches, so the window of a 256-colour mode is the first 64 KiB as they are and can be mapped for the processor.
pub(super) fn place(offset: u32) -> u64 {
    let block = u64::from(offset >> 16) << 18;
    block | u64::from(offset & 3) << 16 | u64::from(offset & 0xfffc)
}

/// What the processor can reach by an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Selected {
    /// The plane offset.
    pub(super) offset: u32,
    /// The planes, a bit each.
    pub(super) planes: u8,
}

/// The offset in the part of the window that is in use, if `address` (from A0000h on) is there.
fn decode(registers: &Registers, address: u32) -> Option<u32> {
    if !registers.memory_is_enabled() {
        return None;
    }
    let (start, len) = match registers.memory_map() {
        0 => (0, 0x2_0000),
        1 => (0, 0x1_0000),
        2 => (0x1_0000, 0x8000),
        _ => (0x1_8000, 0x8000),
    };
    let offset = address.wrapping_sub(start);
    (offset < len).then_some(offset)
}

/// An address with odd/even addressing: bit 0 is replaced by bit 16, if it is replaced. The page select of the miscellaneous output
/// register, which the Reference has in this place for the smaller windows, is the same in all modes of the BIOS and counts as low.
fn odd_even_offset(registers: &Registers, offset: u32) -> u32 {
    if registers.chains_odd_even() { offset & !1 | offset >> 16 & 1 } else { offset }
}

/// The planes that a write at `address` goes to, before the map mask.
pub(super) fn select_write(registers: &Registers, address: u32) -> Option<Selected> {
    let offset = decode(registers, address)?;
    let (offset, planes) = if registers.is_chain_4() {
        (offset & !3, 1 << (offset & 3))
    } else if registers.writes_odd_even() {
        (odd_even_offset(registers, offset), 0b0101 << (offset & 1))
    } else {
        (offset, 0b1111)
    };
    Some(Selected { offset: offset & 0xffff, planes })
}

/// The plane that a read at `address` comes from in read mode 0.
pub(super) fn select_read(registers: &Registers, address: u32) -> Option<Selected> {
    let offset = decode(registers, address)?;
    let map = registers.read_map_select();
    let (offset, plane) = if registers.is_chain_4() {
        (offset & !3, offset as u8 & 3)
    } else if registers.reads_odd_even() {
        (odd_even_offset(registers, offset), map & 2 | offset as u8 & 1)
    } else {
        (offset, map)
    };
    Some(Selected { offset: offset & 0xffff, planes: 1 << plane })
}

/// What the processor reads where the latches are `latches`.
pub(super) fn read(registers: &Registers, selected: Selected, latches: u32) -> u8 {
    if registers.reads_compare() {
        let wanted = spread_planes(registers.colour_compare());
        let different = (latches ^ wanted) & spread_planes(registers.colour_care());
        let [a, b, c, d] = different.to_le_bytes();
        return !(a | b | c | d);
    }
    let planes = latches.to_le_bytes();
    planes.get(selected.planes.trailing_zeros() as usize).copied().unwrap_or(OPEN_BUS)
}

/// What the planes hold after the processor wrote `value`, with `before` in them.
pub(super) fn write(
    registers: &Registers,
    selected: Selected,
    latches: u32,
    before: u32,
    value: u8,
) -> u32 {
    let written = spread_planes(selected.planes & registers.map_mask());
    before & !written | combine(registers, latches, value) & written
}

/// The four bytes that the graphics controller makes of `value` by the write mode.
fn combine(registers: &Registers, latches: u32, value: u8) -> u32 {
    let set_reset = spread_planes(registers.set_reset());
    let rotated = value.rotate_right(registers.rotate_count());
    let (data, bit_mask) = match registers.write_mode() {
        0 => {
            let enabled = spread_planes(registers.enable_set_reset());
            (set_reset & enabled | spread_bits(rotated) & !enabled, registers.bit_mask())
        }
        1 => return latches,
        2 => (spread_planes(value), registers.bit_mask()),
        _ => (set_reset, registers.bit_mask() & rotated),
    };
    let data = match registers.function() {
        Function::Replace => data,
        Function::And => data & latches,
        Function::Or => data | latches,
        Function::Xor => data ^ latches,
    };
    let mask = spread_bits(bit_mask);
    data & mask | latches & !mask
}

/// True when a 64 KiB window at A0000h is plain memory: what is written there is read
/// there, and goes to the first 64 KiB of video memory.
pub(super) fn is_plain(registers: &Registers) -> bool {
    registers.memory_is_enabled()
        && registers.memory_map() == 1
        && registers.is_chain_4()
        && registers.map_mask() == 0xf
        && registers.write_mode() == 0
        && registers.enable_set_reset() == 0
        && registers.rotate_count() == 0
        && registers.function() == Function::Replace
        && registers.bit_mask() == 0xff
        && !registers.reads_compare()
}

/// FFh for each plane whose bit is 1.
fn spread_planes(planes: u8) -> u32 {
    let bytes = std::array::from_fn(|plane| if planes >> plane & 1 != 0 { 0xff } else { 0 });
    u32::from_le_bytes(bytes)
}

/// The same byte for each plane.
fn spread_bits(byte: u8) -> u32 {
    u32::from_le_bytes([byte; 4])
}
