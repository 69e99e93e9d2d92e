//! The registers of linear modes: the Bochs VBE display interface (DISPI).
//!
//! After "VBE display interface" of the Bochs project (versions B0C0h to B0C5h), with its MMIO form as in "QEMU Standard VGA". While
//! it is enabled with at least 8 bits a pixel, video memory is a plain array of pixels.

use serde::{Deserialize, Serialize};

// Indices of the registers.
const ID: u16 = 0;
const XRES: u16 = 1;
const YRES: u16 = 2;
const BPP: u16 = 3;
const ENABLE: u16 = 4;
const BANK: u16 = 5;
const VIRTUAL_WIDTH: u16 = 6;
const VIRTUAL_HEIGHT: u16 = 7;
const X_OFFSET: u16 = 8;
const Y_OFFSET: u16 = 9;
const VIDEO_MEMORY: u16 = 10;
/// How many there are.
pub(super) const REGISTER_COUNT: u16 = 11;

const OLDEST_ID: u16 = 0xb0c0;
const NEWEST_ID: u16 = 0xb0c5;

// Bits of the enable register.
const ENABLED: u16 = 0x01;
/// XRES, YRES and BPP read the largest values that can be set.
const GET_CAPABILITIES: u16 = 0x02;
const EIGHT_BIT_DAC: u16 = 0x20;
/// The linear frame buffer is to be used; it always can be.
const LINEAR_FRAME_BUFFER: u16 = 0x40;
const NO_CLEAR: u16 = 0x80;
const ENABLE_BITS: u16 =
    ENABLED | GET_CAPABILITIES | EIGHT_BIT_DAC | LINEAR_FRAME_BUFFER | NO_CLEAR;

/// The largest width and height.
const MAX_RESOLUTION: u16 = 4096;
/// The largest virtual width.
const MAX_VIRTUAL_WIDTH: u16 = 0x7ff8;
const MAX_BPP: u16 = 32;
/// What a bank is, and the unit of the memory size.
pub(super) const BANK_LEN: u64 = 0x1_0000;
/// The four planes of a bank.
const PLANES_LEN: u64 = 4 * BANK_LEN;

/// The registers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Dispi {
    index: u16,
    id: u16,
    width: u16,
    height: u16,
    bits_per_pixel: u16,
    enable: u16,
    bank: u16,
    virtual_width: u16,
    x_offset: u16,
    y_offset: u16,
}

/// A linear mode: what is shown of video memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mode {
    pub(super) width: usize,
    pub(super) height: usize,
    /// 4 (planar), 8, 15, 16, 24 or 32.
    pub(super) bits_per_pixel: u16,
    /// Pixels from one line to the next.
    pub(super) virtual_width: usize,
    pub(super) x_offset: usize,
    pub(super) y_offset: usize,
}

/// What a write asks of the adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    None,
    /// Video memory is to be cleared, as many bytes.
    Clear(u64),
}

impl Dispi {
    pub(super) fn power_on() -> Dispi {
        Dispi {
            index: 0,
            id: NEWEST_ID,
            width: 0,
            height: 0,
            bits_per_pixel: 8,
            enable: 0,
            bank: 0,
            virtual_width: 0,
            x_offset: 0,
            y_offset: 0,
        }
    }

    /// True when the registers hold what they can hold where there are `memory_len` bytes of video memory.
    pub(super) fn is_possible(&self, memory_len: u64) -> bool {
        let each = (OLDEST_ID..=NEWEST_ID).contains(&self.id)
            && self.enable & !ENABLE_BITS == 0
            && is_depth(self.bits_per_pixel)
            && self.width <= MAX_RESOLUTION
            && self.height <= MAX_RESOLUTION
            && u64::from(self.bank) < banks(memory_len);
        let together = |mut settled: Dispi| {
            settled.settle(memory_len);
            settled == *self
        };
        each && (!self.is_enabled() || together(self.clone()))
    }

    pub(super) fn read_index(&self) -> u16 {
        self.index
    }

    pub(super) fn write_index(&mut self, value: u16) {
        self.index = value;
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.enable & ENABLED != 0
    }

    /// The picture is made from video memory as an array of pixels.
    pub(super) fn is_linear(&self) -> bool {
        self.is_enabled() && self.bits_per_pixel != 4
    }

    pub(super) fn dac_has_eight_bits(&self) -> bool {
        self.is_enabled() && self.enable & EIGHT_BIT_DAC != 0
    }

    /// Where the bank begins that is to be seen at A0000h, in bytes.
    pub(super) fn bank_offset(&self) -> u64 {
        u64::from(self.bank) * BANK_LEN
    }

    /// The mode, if one is enabled.
    pub(super) fn mode(&self) -> Option<Mode> {
        self.is_enabled().then(|| Mode {
            width: self.width.into(),
            height: self.height.into(),
            bits_per_pixel: self.bits_per_pixel,
            virtual_width: self.virtual_width.into(),
            x_offset: self.x_offset.into(),
            y_offset: self.y_offset.into(),
        })
    }

    /// The register that the index selects.
    pub(super) fn read(&self, memory_len: u64) -> u16 {
        self.read_register(self.index, memory_len)
    }

    /// Register `index`, of an adapter with `memory_len` bytes of video memory; 0 where there is none.
    pub(super) fn read_register(&self, index: u16, memory_len: u64) -> u16 {
        let capabilities = self.enable & GET_CAPABILITIES != 0;
        match index {
            ID => self.id,
            XRES | YRES if capabilities => MAX_RESOLUTION,
            BPP if capabilities => MAX_BPP,
            XRES => self.width,
            YRES => self.height,
            BPP => self.bits_per_pixel,
            ENABLE => self.enable,
            BANK => self.bank,
            VIRTUAL_WIDTH => self.virtual_width,
            VIRTUAL_HEIGHT if self.is_enabled() => self.virtual_height(memory_len),
            X_OFFSET => self.x_offset,
            Y_OFFSET => self.y_offset,
            VIDEO_MEMORY => u16::try_from(memory_len / BANK_LEN).unwrap_or(u16::MAX),
            _ => 0,
        }
    }

    /// Writes the register that the index selects.
    pub(super) fn write(&mut self, value: u16, memory_len: u64) -> Effect {
        self.write_register(self.index, value, memory_len)
    }

    /// Writes register `index`. Values that cannot be are not taken; those that do not go together in an enabled mode are cut to what does.
    pub(super) fn write_register(&mut self, index: u16, value: u16, memory_len: u64) -> Effect {
        match index {
            ID if (OLDEST_ID..=NEWEST_ID).contains(&value) => self.id = value,
            XRES if value <= MAX_RESOLUTION => self.width = value,
            YRES if value <= MAX_RESOLUTION => self.height = value,
            // 0 stands for 8, as in the oldest version.
            BPP if value == 0 => self.bits_per_pixel = 8,
            BPP if is_depth(value) => self.bits_per_pixel = value,
            ENABLE => return self.write_enable(value, memory_len),
            BANK => self.bank = (u64::from(value) % banks(memory_len)) as u16,
            VIRTUAL_WIDTH => self.virtual_width = value,
            X_OFFSET => self.x_offset = value,
            Y_OFFSET => self.y_offset = value,
            _ => {}
        }
        if self.is_enabled() {
            self.settle(memory_len);
        }
        Effect::None
    }

    /// A mode that is enabled begins with its first pixel at the beginning of video memory, which is
    /// cleared.
    fn write_enable(&mut self, value: u16, memory_len: u64) -> Effect {
        let was_enabled = self.is_enabled();
        self.enable = value & ENABLE_BITS;
        if !self.is_enabled() {
            self.bank = 0;
            return Effect::None;
        }
        if was_enabled {
            return Effect::None;
        }
        (self.virtual_width, self.x_offset, self.y_offset, self.bank) = (self.width, 0, 0, 0);
        self.settle(memory_len);
        if self.enable & NO_CLEAR != 0 {
            return Effect::None;
        }
        let bytes = self.line_bits() / 8 * u64::from(self.height);
        // The planes are cleared as a whole: their lines are not in one piece.
        let bytes = if self.is_linear() { bytes } else { bytes.next_multiple_of(PLANES_LEN) };
        Effect::Clear(bytes.min(memory_len))
    }

    /// Cuts the registers to a mode that stays in `memory_len` bytes of video memory.
    fn settle(&mut self, memory_len: u64) {
        // The bytes of planes have eight pixels each.
        let step = if self.bits_per_pixel == 4 { 8 } else { 1 };
        self.width = (self.width / step * step).max(step);
        let widest = memory_len * 8 / storage_bits(self.bits_per_pixel);
        let widest = u16::try_from(widest).unwrap_or(u16::MAX).min(MAX_VIRTUAL_WIDTH);
        self.virtual_width = (self.virtual_width.clamp(self.width, widest)).next_multiple_of(step);
        let lines = self.virtual_height(memory_len);
        self.height = self.height.clamp(1, lines);
        self.x_offset = self.x_offset.min(self.virtual_width - self.width) / step * step;
        self.y_offset = self.y_offset.min(lines - self.height);
    }

    /// The lines for which there is memory.
    fn virtual_height(&self, memory_len: u64) -> u16 {
        let lines = memory_len * 8 / self.line_bits().max(1);
        u16::try_from(lines).unwrap_or(u16::MAX)
    }

    /// Bits of memory from one line to the next, a multiple of 8.
    fn line_bits(&self) -> u64 {
        u64::from(self.virtual_width) * storage_bits(self.bits_per_pixel)
    }
}

fn is_depth(bits_per_pixel: u16) -> bool {
    matches!(bits_per_pixel, 4 | 8 | 15 | 16 | 24 | 32)
}

/// Bits of memory for a pixel: of 16 only 15 are used where that is asked for.
fn storage_bits(bits_per_pixel: u16) -> u64 {
    if bits_per_pixel == 15 { 16 } else { bits_per_pixel.into() }
}

fn banks(memory_len: u64) -> u64 {
    (memory_len / BANK_LEN).max(1)
}
