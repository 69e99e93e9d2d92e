//! The registers of the VGA and what is to be read from them.
//!
//! External registers, sequencer, CRT controller, graphics controller and attribute controller, each with
//! the bits that software can set. The methods below give names to fields; what is behind them is in the modules that use them.

use serde::{Deserialize, Serialize};

use super::dac::Dac;

pub(super) const SEQUENCER_COUNT: usize = 5;
pub(super) const GRAPHICS_COUNT: usize = 9;
pub(super) const ATTRIBUTE_COUNT: usize = 21;
pub(super) const CRTC_COUNT: usize = 25;

// Sequencer.
const CLOCKING_MODE: usize = 1;
const MAP_MASK: usize = 2;
const CHARACTER_MAP_SELECT: usize = 3;
const MEMORY_MODE: usize = 4;
const SEQUENCER_BITS: [u8; SEQUENCER_COUNT] = [0x03, 0x3d, 0x0f, 0x3f, 0x0e];

// Graphics controller.
const SET_RESET: usize = 0;
const ENABLE_SET_RESET: usize = 1;
const COLOUR_COMPARE: usize = 2;
const DATA_ROTATE: usize = 3;
const READ_MAP_SELECT: usize = 4;
const GRAPHICS_MODE: usize = 5;
const GRAPHICS_MISCELLANEOUS: usize = 6;
const COLOUR_DONT_CARE: usize = 7;
const BIT_MASK: usize = 8;
const GRAPHICS_BITS: [u8; GRAPHICS_COUNT] = [0x0f, 0x0f, 0x0f, 0x1f, 0x03, 0x7b, 0x0f, 0x0f, 0xff];

// Attribute controller; registers 0 to 15 are the internal palette.
const ATTRIBUTE_MODE: usize = 0x10;
const OVERSCAN_COLOUR: usize = 0x11;
const COLOUR_PLANE_ENABLE: usize = 0x12;
const PEL_PANNING: usize = 0x13;
const COLOUR_SELECT: usize = 0x14;
/// Bit 5 of the attribute address: the screen is on, and the palette belongs to the display.
const PALETTE_ADDRESS_SOURCE: u8 = 0x20;

// CRT controller.
const HORIZONTAL_TOTAL: usize = 0x00;
const HORIZONTAL_DISPLAY_END: usize = 0x01;
const VERTICAL_TOTAL: usize = 0x06;
const OVERFLOW: usize = 0x07;
const PRESET_ROW_SCAN: usize = 0x08;
const MAXIMUM_SCAN_LINE: usize = 0x09;
const CURSOR_START: usize = 0x0a;
const CURSOR_END: usize = 0x0b;
const START_ADDRESS: usize = 0x0c;
const CURSOR_LOCATION: usize = 0x0e;
const VERTICAL_RETRACE_START: usize = 0x10;
const VERTICAL_RETRACE_END: usize = 0x11;
const VERTICAL_DISPLAY_END: usize = 0x12;
const OFFSET: usize = 0x13;
const UNDERLINE_LOCATION: usize = 0x14;
const MODE_CONTROL: usize = 0x17;
const LINE_COMPARE: usize = 0x18;
/// In the vertical retrace end register: registers 0 to 7 are not for writing.
const PROTECT: u8 = 0x80;
/// The bit of the overflow register that is never protected: bit 8 of the line compare.
const OVERFLOW_LINE_COMPARE: u8 = 0x10;

/// What the registers of a VGA hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Registers {
    miscellaneous: u8,
    feature_control: u8,
    sequencer_address: u8,
    sequencer: [u8; SEQUENCER_COUNT],
    graphics_address: u8,
    graphics: [u8; GRAPHICS_COUNT],
    attribute_address: u8,
    /// The flip-flop: the next write to 3C0h is data.
    attribute_data_is_next: bool,
    attribute: [u8; ATTRIBUTE_COUNT],
    crtc_address: u8,
    crtc: [u8; CRTC_COUNT],
    pub(super) dac: Dac,
}

/// Which logical function the graphics controller applies to data and latches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Replace,
    And,
    Or,
    Xor,
}

/// How the graphics controller makes pixels of the four bytes of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shift {
    /// A bit of each plane is a pixel.
    Planar,
    /// Two neighbouring bits are a pixel's, as on the CGA.
    Interleaved,
    /// A byte is a pixel.
    Bytes,
}

/// How the CRT controller makes an address of its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Addressing {
    Byte,
    Word,
    Doubleword,
}

impl Registers {
    /// All registers 0, as after power-on: the screen is off.
    pub(super) fn power_on() -> Registers {
        Registers {
            miscellaneous: 0,
            feature_control: 0,
            sequencer_address: 0,
            sequencer: [0; SEQUENCER_COUNT],
            graphics_address: 0,
            graphics: [0; GRAPHICS_COUNT],
            attribute_address: 0,
            attribute_data_is_next: false,
            attribute: [0; ATTRIBUTE_COUNT],
            crtc_address: 0,
            crtc: [0; CRTC_COUNT],
            dac: Dac::power_on(),
        }
    }

    /// True when every register holds what it can hold.
    pub(super) fn is_possible(&self) -> bool {
        let fits = |values: &[u8], bits: &[u8]| values.iter().zip(bits).all(|(v, b)| v & !b == 0);
        fits(&self.sequencer, &SEQUENCER_BITS)
            && fits(&self.graphics, &GRAPHICS_BITS)
            && (0..ATTRIBUTE_COUNT).all(|index| self.attribute[index] & !attribute_bits(index) == 0)
            && self.dac.is_possible()
    }

    /// True when the ports of the CRT controller and of input status 1 are at 3Dxh, and not at 3Bxh.
    pub(super) fn is_colour(&self) -> bool {
        self.miscellaneous & 1 != 0
    }

    pub(super) fn read_miscellaneous(&self) -> u8 {
        self.miscellaneous
    }

    pub(super) fn write_miscellaneous(&mut self, value: u8) {
        self.miscellaneous = value;
    }

    pub(super) fn read_feature_control(&self) -> u8 {
        self.feature_control
    }

    pub(super) fn write_feature_control(&mut self, value: u8) {
        self.feature_control = value;
    }

    pub(super) fn read_sequencer_address(&self) -> u8 {
        self.sequencer_address
    }

    pub(super) fn write_sequencer_address(&mut self, value: u8) {
        self.sequencer_address = value;
    }

    /// The register that the address selects; 0 where there is none, as for the others below.
    pub(super) fn read_sequencer(&self) -> u8 {
        self.sequencer.get(usize::from(self.sequencer_address)).copied().unwrap_or(0)
    }

    pub(super) fn write_sequencer(&mut self, value: u8) {
        let index = usize::from(self.sequencer_address);
        if let Some(register) = self.sequencer.get_mut(index) {
            *register = value & SEQUENCER_BITS[index];
        }
    }

    pub(super) fn read_graphics_address(&self) -> u8 {
        self.graphics_address
    }

    pub(super) fn write_graphics_address(&mut self, value: u8) {
        self.graphics_address = value;
    }

    pub(super) fn read_graphics(&self) -> u8 {
        self.graphics.get(usize::from(self.graphics_address)).copied().unwrap_or(0)
    }

    pub(super) fn write_graphics(&mut self, value: u8) {
        let index = usize::from(self.graphics_address);
        if let Some(register) = self.graphics.get_mut(index) {
            *register = value & GRAPHICS_BITS[index];
        }
    }

    pub(super) fn read_crtc_address(&self) -> u8 {
        self.crtc_address
    }

    pub(super) fn write_crtc_address(&mut self, value: u8) {
        self.crtc_address = value;
    }

    pub(super) fn read_crtc(&self) -> u8 {
        self.crtc.get(usize::from(self.crtc_address)).copied().unwrap_or(0)
    }

    pub(super) fn write_crtc(&mut self, value: u8) {
        let index = usize::from(self.crtc_address);
        let protected = self.crtc[VERTICAL_RETRACE_END] & PROTECT != 0;
        let Some(register) = self.crtc.get_mut(index) else { return };
        *register = match index {
            OVERFLOW if protected => {
                *register & !OVERFLOW_LINE_COMPARE | value & OVERFLOW_LINE_COMPARE
            }
            HORIZONTAL_TOTAL..OVERFLOW if protected => *register,
            _ => value,
        };
    }

    pub(super) fn read_attribute_address(&self) -> u8 {
        self.attribute_address
    }

    pub(super) fn read_attribute(&self) -> u8 {
        self.attribute.get(usize::from(self.attribute_address & 0x1f)).copied().unwrap_or(0)
    }

    /// A write to 3C0h: address and data in turn. Software may change the palette while the
    /// display uses it; the Reference only warns of what is then to be seen.
    pub(super) fn write_attribute(&mut self, value: u8) {
        if self.attribute_data_is_next {
            let index = usize::from(self.attribute_address & 0x1f);
            if let Some(register) = self.attribute.get_mut(index) {
                *register = value & attribute_bits(index);
            }
        } else {
            self.attribute_address = value & 0x3f;
        }
        self.attribute_data_is_next = !self.attribute_data_is_next;
    }

    /// Input status 1 was read: the next write to 3C0h is an address.
    pub(super) fn reset_attribute_flip_flop(&mut self) {
        self.attribute_data_is_next = false;
    }

    // Where the processor sees display memory, and how.

    pub(super) fn memory_is_enabled(&self) -> bool {
        self.miscellaneous & 0x02 != 0
    }

    /// Memory map select: 0 for A0000h with 128 KiB, 1 for A0000h with 64 KiB, 2 for B0000h
    /// and 3 for B8000h with 32 KiB.
    pub(super) fn memory_map(&self) -> u8 {
        self.graphics[GRAPHICS_MISCELLANEOUS] >> 2 & 3
    }

    /// The low two bits of an address select the plane.
    pub(super) fn is_chain_4(&self) -> bool {
        self.sequencer[MEMORY_MODE] & 0x08 != 0
    }

    /// Bit 0 of an address selects the even or the odd planes for writes.
    pub(super) fn writes_odd_even(&self) -> bool {
        self.sequencer[MEMORY_MODE] & 0x04 == 0
    }

    /// The same for reads.
    pub(super) fn reads_odd_even(&self) -> bool {
        self.graphics[GRAPHICS_MODE] & 0x10 != 0
    }

    /// Bit 0 of an address does not go to the memory.
    pub(super) fn chains_odd_even(&self) -> bool {
        self.graphics[GRAPHICS_MISCELLANEOUS] & 0x02 != 0
    }

    /// The planes that are written, a bit each, as in the other masks of planes.
    pub(super) fn map_mask(&self) -> u8 {
        self.sequencer[MAP_MASK]
    }

    pub(super) fn set_reset(&self) -> u8 {
        self.graphics[SET_RESET]
    }

    pub(super) fn enable_set_reset(&self) -> u8 {
        self.graphics[ENABLE_SET_RESET]
    }

    pub(super) fn colour_compare(&self) -> u8 {
        self.graphics[COLOUR_COMPARE]
    }

    /// The planes that are compared.
    pub(super) fn colour_care(&self) -> u8 {
        self.graphics[COLOUR_DONT_CARE]
    }

    pub(super) fn rotate_count(&self) -> u32 {
        u32::from(self.graphics[DATA_ROTATE] & 7)
    }

    pub(super) fn function(&self) -> Function {
        match self.graphics[DATA_ROTATE] >> 3 & 3 {
            0 => Function::Replace,
            1 => Function::And,
            2 => Function::Or,
            _ => Function::Xor,
        }
    }

    pub(super) fn read_map_select(&self) -> u8 {
        self.graphics[READ_MAP_SELECT]
    }

    /// 0 to 3.
    pub(super) fn write_mode(&self) -> u8 {
        self.graphics[GRAPHICS_MODE] & 3
    }

    /// Read mode 1.
    pub(super) fn reads_compare(&self) -> bool {
        self.graphics[GRAPHICS_MODE] & 0x08 != 0
    }

    pub(super) fn bit_mask(&self) -> u8 {
        self.graphics[BIT_MASK]
    }

    // What the display shows.

    /// The screen is on: neither the attribute controller nor the sequencer keeps it dark.
    pub(super) fn screen_is_on(&self) -> bool {
        self.attribute_address & PALETTE_ADDRESS_SOURCE != 0
            && self.sequencer[CLOCKING_MODE] & 0x20 == 0
    }

    pub(super) fn is_graphics(&self) -> bool {
        self.graphics[GRAPHICS_MISCELLANEOUS] & 1 != 0
    }

    pub(super) fn shift(&self) -> Shift {
        match self.graphics[GRAPHICS_MODE] >> 5 {
            0 => Shift::Planar,
            1 => Shift::Interleaved,
            _ => Shift::Bytes,
        }
    }

    /// Dots of a character clock, 8 or 9.
    pub(super) fn dots(&self) -> usize {
        if self.sequencer[CLOCKING_MODE] & 1 != 0 { 8 } else { 9 }
    }

    /// The dot clock is halved: each dot is two of the screen.
    pub(super) fn dot_clock_is_halved(&self) -> bool {
        self.sequencer[CLOCKING_MODE] & 0x08 != 0
    }

    /// The dot clock before it is halved, in hertz. Two of its four settings are for clocks from
    /// outside, which nothing provides.
    pub(super) fn dot_clock(&self) -> u64 {
        if self.miscellaneous >> 2 & 3 == 1 { 28_322_000 } else { 25_175_000 }
    }

    /// Plane offset of the font for characters without attribute bit 3 (map B) or with it (map A).
    pub(super) fn character_map(&self, attribute_bit_3: bool) -> u32 {
        let select = self.sequencer[CHARACTER_MAP_SELECT];
        let (low, high) = if attribute_bit_3 {
            (select >> 2 & 3, select >> 5 & 1)
        } else {
            (select & 3, select >> 4 & 1)
        };
        u32::from(low) << 14 | u32::from(high) << 13
    }

    /// Character clocks of a whole line.
    pub(super) fn horizontal_total(&self) -> u64 {
        u64::from(self.crtc[HORIZONTAL_TOTAL]) + 5
    }

    /// Character clocks that are displayed: 1 to 256.
    pub(super) fn columns(&self) -> usize {
        usize::from(self.crtc[HORIZONTAL_DISPLAY_END]) + 1
    }

    /// Lines of a whole frame.
    pub(super) fn vertical_total(&self) -> u64 {
        u64::from(self.vertical(VERTICAL_TOTAL, 0, 5)) + 2
    }

    /// Lines that are displayed: 1 to 1024.
    pub(super) fn lines(&self) -> usize {
        usize::from(self.vertical(VERTICAL_DISPLAY_END, 1, 6)) + 1
    }

    /// The first line of the vertical retrace.
    pub(super) fn retrace_start(&self) -> u64 {
        self.vertical(VERTICAL_RETRACE_START, 2, 7).into()
    }

    /// The low four bits of the line at which the vertical retrace ends.
    pub(super) fn retrace_end(&self) -> u64 {
        u64::from(self.crtc[VERTICAL_RETRACE_END] & 15)
    }

    /// After this line the display goes on at address 0.
    pub(super) fn line_compare(&self) -> usize {
        let bit_9 = u16::from(self.crtc[MAXIMUM_SCAN_LINE] >> 6 & 1);
        let bit_8 = u16::from(self.crtc[OVERFLOW] >> 4 & 1);
        usize::from(bit_9 << 9 | bit_8 << 8 | u16::from(self.crtc[LINE_COMPARE]))
    }

    /// A ten-bit line number: `low` has bits 7:0, and the overflow register the others.
    fn vertical(&self, low: usize, bit_8: u8, bit_9: u8) -> u16 {
        let overflow = u16::from(self.crtc[OVERFLOW]);
        (overflow >> bit_9 & 1) << 9 | (overflow >> bit_8 & 1) << 8 | u16::from(self.crtc[low])
    }

    /// The row scan of the first line: 0 to 31.
    pub(super) fn preset_row_scan(&self) -> u8 {
        self.crtc[PRESET_ROW_SCAN] & 0x1f
    }

    /// Addresses by which the first character is shifted out on the left: 0 to 3.
    pub(super) fn byte_panning(&self) -> u16 {
        u16::from(self.crtc[PRESET_ROW_SCAN] >> 5 & 3)
    }

    /// The last row scan of a row: 0 to 31.
    pub(super) fn maximum_scan_line(&self) -> u8 {
        self.crtc[MAXIMUM_SCAN_LINE] & 0x1f
    }

    /// Every line is shown twice.
    pub(super) fn is_double_scanned(&self) -> bool {
        self.crtc[MAXIMUM_SCAN_LINE] & 0x80 != 0
    }

    pub(super) fn start_address(&self) -> u16 {
        self.crtc_word(START_ADDRESS)
    }

    /// The address of the cursor, with its skew.
    pub(super) fn cursor_location(&self) -> u16 {
        let skew = u16::from(self.crtc[CURSOR_END] >> 5 & 3);
        self.crtc_word(CURSOR_LOCATION).wrapping_add(skew)
    }

    /// The row scans of the cursor; none when it is off.
    pub(super) fn cursor_rows(&self) -> Option<std::ops::RangeInclusive<u8>> {
        let (start, end) = (self.crtc[CURSOR_START], self.crtc[CURSOR_END] & 0x1f);
        let rows = start & 0x1f..=end;
        let visible = start & 0x20 == 0 && *rows.start() <= self.maximum_scan_line();
        (visible && !rows.is_empty()).then_some(rows)
    }

    fn crtc_word(&self, high: usize) -> u16 {
        u16::from_be_bytes([self.crtc[high], self.crtc[high + 1]])
    }

    /// From one row to the next, in units of the address counter.
    pub(super) fn row_offset(&self) -> u16 {
        u16::from(self.crtc[OFFSET]) << 1
    }

    /// The row scan at which underlined characters have their line.
    pub(super) fn underline_row(&self) -> u8 {
        self.crtc[UNDERLINE_LOCATION] & 0x1f
    }

    pub(super) fn addressing(&self) -> Addressing {
        if self.crtc[UNDERLINE_LOCATION] & 0x40 != 0 {
            Addressing::Doubleword
        } else if self.crtc[MODE_CONTROL] & 0x40 == 0 {
            Addressing::Word
        } else {
            Addressing::Byte
        }
    }

    /// In word addressing bit 15 of the counter becomes bit 0 of the address, and not bit 13.
    pub(super) fn wraps_at_64k(&self) -> bool {
        self.crtc[MODE_CONTROL] & 0x20 != 0
    }

    /// Bit 0 of the row scan replaces bit 13 of the address (CGA graphics).
    pub(super) fn row_scan_0_is_address_13(&self) -> bool {
        self.crtc[MODE_CONTROL] & 1 == 0
    }

    /// Bit 1 of the row scan replaces bit 14 of the address (Hercules graphics).
    pub(super) fn row_scan_1_is_address_14(&self) -> bool {
        self.crtc[MODE_CONTROL] & 2 == 0
    }

    /// The colours of the 16 attributes, as the attribute controller and the DAC make them.
    pub(super) fn palette_16(&self) -> [u32; 16] {
        let select = self.attribute[COLOUR_SELECT];
        let planes = self.attribute[COLOUR_PLANE_ENABLE] & 15;
        std::array::from_fn(|attribute| {
            let low = self.attribute[attribute & usize::from(planes)];
            let low = if self.attribute[ATTRIBUTE_MODE] & 0x80 != 0 {
                low & 0x0f | (select & 3) << 4
            } else {
                low
            };
            self.dac.colour(low | (select & 0x0c) << 4)
        })
    }

    /// Dots by which the picture is shifted to the left, where a character has `dots` dots.
    pub(super) fn pel_panning(&self, dots: usize) -> usize {
        let panning = usize::from(self.attribute[PEL_PANNING]);
        match (dots, panning) {
            // With nine dots 8 means none, and the others one more.
            (9, 0..8) => panning + 1,
            (9, _) => 0,
            _ => panning & 7,
        }
    }

    /// Panning ends at the line compare.
    pub(super) fn panning_ends_at_line_compare(&self) -> bool {
        self.attribute[ATTRIBUTE_MODE] & 0x20 != 0
    }

    /// Attribute bit 7 makes a character blink, and is not of its background.
    pub(super) fn blinks(&self) -> bool {
        self.attribute[ATTRIBUTE_MODE] & 0x08 != 0
    }

    /// The ninth dot of the line graphics C0h to DFh is as the eighth.
    pub(super) fn extends_line_graphics(&self) -> bool {
        self.attribute[ATTRIBUTE_MODE] & 0x04 != 0
    }
}

/// The bits of attribute register `index` that software can set.
fn attribute_bits(index: usize) -> u8 {
    match index {
        ATTRIBUTE_MODE => 0xef,
        OVERSCAN_COLOUR => 0xff,
        PEL_PANNING | COLOUR_SELECT => 0x0f,
        _ => 0x3f,
    }
}
