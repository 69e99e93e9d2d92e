//! How the processor reads and writes the four planes of display memory.
//!
//! The four bytes of the planes at one plane offset are handled as one little-endian `u32`, plane 0 first.
//! [`Arrangement`] tells where they are in video memory. (FreeVGA, "Accessing the VGA Display Memory"; the
//! Reference, "Graphics Controller".)

use ring3_core::memory::{Area, Memory};

use super::registers::{Function, Registers};

/// Size of the window at A0000h in bytes.
pub(super) const WINDOW_LEN: u64 = 0x2_0000;
/// What a read finds that nothing answers.
const OPEN_BUS: u8 = 0xff;

/// Where in video memory the bytes of the planes are. Each arrangement suits one kind of addressing: what the
/// processor reaches by it is then in order, and can be mapped for the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrangement {
    /// The four bytes of a plane offset stand side by side, and offsets whose low two bits are 0 come first.
    /// Chain 4 reaches these.
    Chain4,
    /// The same, but for even offsets below [`TEXT_LEN`]: planes 0 and 1 of these come first, and planes 2 and
    /// 3 are [`UPPER_PLANES`] further on. Odd/even addressing reaches planes 0 and 1 of these in text modes.
    OddEven,
}

/// Size of the part of the window that text modes use.
pub(super) const TEXT_LEN: u64 = 0x8000;
/// The guest-physical addresses at which that part begins, for monochrome and for colour text.
pub(super) const TEXT_STARTS: [u64; 2] = [0xb_0000, 0xb_8000];
/// Where [`Arrangement::OddEven`] has planes 2 and 3 of plane offset 0. Here [`Arrangement::Chain4`] has the
/// planes of offset 2.
const UPPER_PLANES: u64 = 0x2_0000;

impl Arrangement {
    /// Returns the places of planes 0 and 1, and of planes 2 and 3, of plane offset `offset`.
    pub(super) fn places(self, offset: u32) -> [u64; 2] {
        let offset = u64::from(offset);
        if self == Arrangement::OddEven && offset < TEXT_LEN && offset.is_multiple_of(2) {
            return [offset, UPPER_PLANES + offset];
        }
        let first = offset >> 16 << 18 | (offset & 3) << 16 | offset & 0xfffc;
        [first, first + 2]
    }
}

/// Brings `video` from one arrangement to the other: what differs changes places.
pub(super) fn rearrange(memory: &mut Memory, video: Area) {
    let part = |start: u64| start as usize..(start + TEXT_LEN) as usize;
    let bytes = memory.area(video);
    let mut lower = bytes[part(0)].to_vec();
    let mut upper = bytes[part(UPPER_PLANES)].to_vec();
    for (lower, upper) in lower.chunks_exact_mut(4).zip(upper.chunks_exact_mut(4)) {
        // Planes 2 and 3 of an offset that is a multiple of 4, and planes 0 and 1 of the next even one.
        lower[2..].swap_with_slice(&mut upper[..2]);
    }
    memory.write_area(video, 0, &lower);
    memory.write_area(video, UPPER_PLANES, &upper);
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

/// True when a byte that is written is the one that is read at the same address, and nothing else changes, if
/// addresses select the same planes for writes and for reads. There is more to a read: it loads the latches.
/// These count only after other registers were written, and software that needs them reads after that.
fn is_plain(registers: &Registers) -> bool {
    registers.memory_is_enabled()
        && registers.write_mode() == 0
        && registers.enable_set_reset() == 0
        && registers.rotate_count() == 0
        && registers.function() == Function::Replace
        && registers.bit_mask() == 0xff
        && !registers.reads_compare()
}

/// True when a 64 KiB window at A0000h is plain memory: what is written there is read there, and goes to the
/// first 64 KiB of video memory, arranged as [`Arrangement::Chain4`].
pub(super) fn is_plain_chain_4(registers: &Registers) -> bool {
    registers.is_chain_4()
        && registers.memory_map() == 1
        && registers.map_mask() == 0xf
        && is_plain(registers)
}

/// Returns the guest-physical address at which [`TEXT_LEN`] bytes are plain memory, if text modes have them
/// so: characters and attributes in turn, which are the first bytes of video memory, arranged as
/// [`Arrangement::OddEven`].
pub(super) fn plain_text(registers: &Registers) -> Option<u64> {
    let start = match registers.memory_map() {
        2 => TEXT_STARTS[0],
        3 => TEXT_STARTS[1],
        _ => return None,
    };
    let is_odd_even = !registers.is_chain_4()
        && registers.writes_odd_even()
        && registers.reads_odd_even()
        && registers.chains_odd_even()
        && registers.map_mask() == 0b0011
        && registers.read_map_select() & 2 == 0;
    (is_odd_even && is_plain(registers)).then_some(start)
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
