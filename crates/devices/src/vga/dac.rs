//! The digital-to-analog converter with its 256 colours, ports 3C6h to 3C9h.

use serde::{Deserialize, Serialize};

const COLOURS: usize = 256;

/// What 3C7h reads after an address was written for writing or for reading.
const STATE_WRITE: u8 = 0;
const STATE_READ: u8 = 3;

/// The DAC. Each component has six bits, or eight where VBE asks for that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Dac {
    mask: u8,
    address: u8,
    is_reading: bool,
    /// Which component of the colour at the address is next: 0 for red to 2 for blue.
    component: u8,
    /// Components that were written; the colour changes with the third one.
    written: [u8; 3],
    eight_bits: bool,
    /// 256 colours: red, green, blue.
    colours: Vec<[u8; 3]>,
}

impl Dac {
    pub(super) fn power_on() -> Dac {
        Dac {
            mask: 0xff,
            address: 0,
            is_reading: false,
            component: 0,
            written: [0; 3],
            eight_bits: false,
            colours: vec![[0; 3]; COLOURS],
        }
    }

    pub(super) fn is_possible(&self) -> bool {
        self.colours.len() == COLOURS && self.component < 3
    }

    /// Gives components eight bits instead of six. The values stay as they are.
    pub(super) fn set_eight_bits(&mut self, eight_bits: bool) {
        self.eight_bits = eight_bits;
    }

    pub(super) fn read_mask(&self) -> u8 {
        self.mask
    }

    pub(super) fn write_mask(&mut self, value: u8) {
        self.mask = value;
    }

    pub(super) fn read_state(&self) -> u8 {
        if self.is_reading { STATE_READ } else { STATE_WRITE }
    }

    pub(super) fn write_read_address(&mut self, value: u8) {
        (self.address, self.is_reading, self.component) = (value, true, 0);
    }

    pub(super) fn read_address(&self) -> u8 {
        self.address
    }

    pub(super) fn write_address(&mut self, value: u8) {
        (self.address, self.is_reading, self.component) = (value, false, 0);
    }

    pub(super) fn read_data(&mut self) -> u8 {
        let value = self.colours[usize::from(self.address)][usize::from(self.component)];
        self.next_component();
        value & self.component_bits()
    }

    pub(super) fn write_data(&mut self, value: u8) {
        self.written[usize::from(self.component)] = value & self.component_bits();
        if self.component == 2 {
            self.colours[usize::from(self.address)] = self.written;
        }
        self.next_component();
    }

    fn next_component(&mut self) {
        self.component = (self.component + 1) % 3;
        if self.component == 0 {
            self.address = self.address.wrapping_add(1);
        }
    }

    fn component_bits(&self) -> u8 {
        if self.eight_bits { 0xff } else { 0x3f }
    }

    /// The colour of pixel value `pixel`, through the mask: 0RGB.
    pub(super) fn colour(&self, pixel: u8) -> u32 {
        let components = self.colours[usize::from(pixel & self.mask)].map(|component| {
            if self.eight_bits {
                component
            } else {
                // The highest of six bits again below them, so that 3Fh becomes FFh.
                component << 2 | component >> 4 & 3
            }
        });
        let [red, green, blue] = components;
        u32::from_be_bytes([0, red, green, blue])
    }

    /// The colours of all pixel values.
    pub(super) fn palette_256(&self) -> [u32; 256] {
        std::array::from_fn(|pixel| self.colour(pixel as u8))
    }
}
