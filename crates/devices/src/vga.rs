//! A VGA with linear modes, as PCI function 02.0: the standard adapter of Bochs and QEMU, for
//! which there is a free VGA BIOS.
//!
//! The VGA is written from IBM's "Personal System/2 Hardware Interface Technical Reference,
//! Video Subsystem" (the Reference below) and the FreeVGA project's documentation; the linear modes
//! from the Bochs project's "VBE display interface" and from "QEMU Standard VGA".
//!
//! * `registers` has the registers, `dac` the colours;
//! * `planar` is the processor's way to the four planes, `scan` the CRT controller's;
//! * `text` and `graphics` make pictures of the planes, `linear` of plain pixels, and `render` chooses;
//! * `dispi` has the registers of linear modes, `pci` the configuration space, `retrace` tells where
//!   the beam is.
//!
//! The ports and the window at A0000h are there whatever the PCI command register says. There is no
//! interrupt at the vertical retrace, as in most VGAs. The extended memory bit does nothing: all planes
//! have 64 KiB. Of the fields that no mode of the BIOS uses, the border, the skew of the display,
//! and address counters and shift registers that advance with every second or fourth character clock are
//! not there.
//!
//! ```
//! use ring3_core::device::{Device, TestBench, Width};
//! use ring3_core::display::Picture;
//! use ring3_devices::vga::{VIDEO_MEMORY_LEN, Vga};
//!
//! let mut bench = TestBench::default();
//! let video = bench.memory.add_area(VIDEO_MEMORY_LEN).unwrap();
//! let mut vga = Vga::new(video, None);
//! // 640 by 480 with 32 bits a pixel, and the screen on.
//! for (index, value) in [(1, 640), (2, 480), (3, 32), (4, 0x41)] {
//!     vga.write_port(&mut bench.context(), 0x1ce, Width::Word, index);
//!     vga.write_port(&mut bench.context(), 0x1cf, Width::Word, value);
//! }
//! bench.write(&mut vga, 0x3c0, 0x20);
//! bench.memory.write_area(video, 0, &0x00ff_8000_u32.to_le_bytes());
//! let Some(Picture::Pixels(pixels)) = vga.picture(&bench.memory) else { panic!() };
//! assert_eq!((pixels.width, pixels.height), (640, 480));
//! assert_eq!(pixels.colours[..2], [0xff8000, 0]);
//! ```

mod dac;
mod dispi;
mod graphics;
mod linear;
mod pci;
mod planar;
mod registers;
mod render;
mod retrace;
mod scan;
mod text;

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::display::Picture;
use ring3_core::memory::{Area, Backing, Memory};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::bytewise;
use crate::pci::Function;
use dispi::{Dispi, Effect};
use planar::Arrangement;
use registers::Registers;
use retrace::Status;
use scan::Planes;

/// Size of video memory in bytes, which the builder of a machine makes an area for.
pub const VIDEO_MEMORY_LEN: u64 = 16 << 20;
/// The PCI device number that firmware expects the adapter at.
pub const PCI_SLOT: u8 = 2;

/// The least video memory: four planes.
const PLANES_LEN: u64 = 0x4_0000;

// The regions of memory.
const WINDOW: u8 = 0;
const MMIO: u8 = pci::REGISTERS;
const WINDOW_START: u64 = 0xa_0000;
/// The part of the window that linear modes use, and mode 13h.
const LINEAR_WINDOW_LEN: u64 = dispi::BANK_LEN;

// Offsets in the registers' memory region ("QEMU Standard VGA").
const MMIO_PORTS: std::ops::Range<u64> = 0x400..0x420;
const MMIO_DISPI: std::ops::Range<u64> = 0x500..0x500 + 2 * dispi::REGISTER_COUNT as u64;
const MMIO_EXTENDED: std::ops::Range<u64> = 0x600..0x608;
/// The extended registers: their size, and the byte order of video memory.
const EXTENDED: [u32; 2] = [8, 0x1e1e_1e1e];
/// What the MMIO ports begin with.
const FIRST_MMIO_PORT: u16 = 0x3c0;

const DISPI_INDEX: u16 = 0x1ce;
const DISPI_DATA: u16 = 0x1cf;
/// The data register again, at an even port for machines that need that.
const DISPI_DATA_ALIAS: u16 = 0x1d0;
const DISPI_END: u16 = 0x1d2;

/// Input status 0: a monitor is there.
const SWITCH_SENSE: u8 = 0x10;
const OPEN_BUS: u8 = 0xff;

const VERSION: u32 = 1;

/// The state as it is saved; video memory is the machine's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    registers: Registers,
    dispi: Dispi,
    /// The graphics controller's latches, a byte for each plane.
    latches: u32,
    mapped: pci::Mapped,
    /// The part of video memory, by its offset, that is mapped at A0000h so that the processor reaches it by itself.
    window: Option<u64>,
    /// The guest-physical address at which the characters of a text mode are mapped in the same way. They are
    /// in order in one arrangement of the planes, so that they have it meanwhile.
    #[serde(default)]
    text: Option<u64>,
}

impl State {
    fn arrangement(&self) -> Arrangement {
        if self.text.is_some() { Arrangement::OddEven } else { Arrangement::Chain4 }
    }
}

/// The saved state with the configuration space.
#[derive(Serialize, Deserialize)]
struct Saved {
    config: Vec<u8>,
    state: State,
}

/// The adapter, device `vga`.
#[derive(Debug)]
pub struct Vga {
    video: Area,
    rom: Option<Area>,
    function: Function,
    state: State,
    /// The last input status 1 that was read, until a register is written.
    status: Option<Status>,
}

impl Vga {
    /// An adapter with video memory `video` of a power of two of at least 256 KiB ([`VIDEO_MEMORY_LEN`] is usual), and the VGA BIOS
    /// `rom` for its expansion ROM.
    ///
    /// # Panics
    /// When video memory has another size.
    pub fn new(video: Area, rom: Option<Area>) -> Vga {
        let len = video.size();
        assert!(len.is_power_of_two() && len >= PLANES_LEN, "{len} bytes of video memory");
        let state = State {
            registers: Registers::power_on(),
            dispi: Dispi::power_on(),
            latches: 0,
            mapped: pci::Mapped::default(),
            window: None,
            text: None,
        };
        Vga { video, rom, function: pci::function(video, rom), state, status: None }
    }

    /// The ports at which the board attaches the device: those of the monochrome and of the colour adapter, without
    /// the printer port between them, and DISPI.
    pub fn ports(&self) -> [PortRange; 3] {
        [
            PortRange::new(0x3b0, 12),
            PortRange::new(0x3c0, 32),
            PortRange::new(DISPI_INDEX, DISPI_END - DISPI_INDEX),
        ]
    }

    /// Reads one of the VGA's own ports.
    fn read(&mut self, context: &Context<'_>, port: u16) -> u8 {
        let registers = &mut self.state.registers;
        match port {
            0x3c0 => registers.read_attribute_address(),
            0x3c1 => registers.read_attribute(),
            0x3c2 => SWITCH_SENSE,
            0x3c4 => registers.read_sequencer_address(),
            0x3c5 => registers.read_sequencer(),
            0x3c6 => registers.dac.read_mask(),
            0x3c7 => registers.dac.read_state(),
            0x3c8 => registers.dac.read_address(),
            0x3c9 => registers.dac.read_data(),
            0x3ca => registers.read_feature_control(),
            0x3cc => registers.read_miscellaneous(),
            0x3ce => registers.read_graphics_address(),
            0x3cf => registers.read_graphics(),
            _ => match crtc_port(registers, port) {
                Some(4) => registers.read_crtc_address(),
                Some(5) => registers.read_crtc(),
                Some(10) => {
                    registers.reset_attribute_flip_flop();
                    let now = context.now;
                    let known = self.status.filter(|status| status.holds_at(now));
                    let linear = self.state.dispi.is_enabled();
                    let status = known.unwrap_or_else(|| Status::at(now, registers, linear));
                    self.status = Some(status);
                    status.value
                }
                _ => OPEN_BUS,
            },
        }
    }

    /// Writes one of the VGA's own ports.
    fn write(&mut self, port: u16, value: u8) {
        let registers = &mut self.state.registers;
        match port {
            0x3c0 => registers.write_attribute(value),
            0x3c2 => registers.write_miscellaneous(value),
            0x3c4 => registers.write_sequencer_address(value),
            0x3c5 => registers.write_sequencer(value),
            0x3c6 => registers.dac.write_mask(value),
            0x3c7 => registers.dac.write_read_address(value),
            0x3c8 => registers.dac.write_address(value),
            0x3c9 => registers.dac.write_data(value),
            0x3ce => registers.write_graphics_address(value),
            0x3cf => registers.write_graphics(value),
            _ => match crtc_port(registers, port) {
                Some(4) => registers.write_crtc_address(value),
                Some(5) => registers.write_crtc(value),
                Some(10) => registers.write_feature_control(value),
                _ => {}
            },
        }
    }

    /// Reads a DISPI port; they are words, and a dword is two.
    fn read_dispi(&self, port: u16, width: Width) -> u32 {
        if width == Width::Byte {
            return OPEN_BUS.into();
        }
        (0..width.bytes()).step_by(2).fold(0, |value, offset| {
            let word = match port.wrapping_add(offset) {
                DISPI_INDEX => self.state.dispi.read_index(),
                DISPI_DATA | DISPI_DATA_ALIAS => self.state.dispi.read(self.video.size()),
                _ => u16::MAX,
            };
            value | u32::from(word) << (8 * offset)
        })
    }

    fn write_dispi(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        if width == Width::Byte {
            return;
        }
        for offset in (0..width.bytes()).step_by(2) {
            let word = (value >> (8 * offset)) as u16;
            match port.wrapping_add(offset) {
                DISPI_INDEX => self.state.dispi.write_index(word),
                DISPI_DATA | DISPI_DATA_ALIAS => {
                    let effect = self.state.dispi.write(word, self.video.size());
                    self.apply(context, effect);
                }
                _ => {}
            }
        }
    }

    /// What a write to a DISPI register does besides.
    fn apply(&mut self, context: &mut Context<'_>, effect: Effect) {
        self.state.registers.dac.set_eight_bits(self.state.dispi.dac_has_eight_bits());
        if let Effect::Clear(len) = effect {
            const ZEROS: [u8; 4096] = [0; 4096];
            for offset in (0..len).step_by(ZEROS.len()) {
                let part = (len - offset).min(ZEROS.len() as u64) as usize;
                context.memory.write_area(self.video, offset, &ZEROS[..part]);
            }
        }
    }

    /// Lets the processor reach video memory by itself where the window is plain memory, and sends its accesses
    /// here where it is not. It is plain memory in linear modes, in mode 13h and in text modes.
    fn update_window(&mut self, context: &mut Context<'_>) {
        let State { registers, dispi, .. } = &self.state;
        let (window, text) = if dispi.is_linear() {
            (Some(dispi.bank_offset()), None)
        } else if dispi.is_enabled() {
            (None, None)
        } else {
            (planar::is_plain_chain_4(registers).then_some(0), planar::plain_text(registers))
        };
        if text != self.state.text {
            self.map_text(context.memory, text);
        }
        if window == self.state.window {
            return;
        }
        let backing = match window {
            Some(offset) => Backing::Area(self.video, offset),
            None => Backing::Device,
        };
        if context.memory.map(WINDOW_START, LINEAR_WINDOW_LEN, backing, backing).is_ok() {
            self.state.window = window;
        }
    }

    /// Maps the characters of a text mode at `text`, instead of where they are mapped now.
    fn map_text(&mut self, memory: &mut Memory, text: Option<u64>) {
        let before = self.state.arrangement();
        let (device, characters) = (Backing::Device, Backing::Area(self.video, 0));
        // Both are in the window, which is below the first MiB, so neither call fails.
        if let Some(old) = self.state.text.take() {
            let _ = memory.map(old, planar::TEXT_LEN, device, device);
        }
        if let Some(new) = text
            && memory.map(new, planar::TEXT_LEN, characters, characters).is_ok()
        {
            self.state.text = text;
        }
        if self.state.arrangement() != before {
            planar::rearrange(memory, self.video);
        }
    }

    /// The plane offset for one that the window gives: in a planar DISPI mode the bank is added.
    fn banked(&self, offset: u32) -> u32 {
        if !self.state.dispi.is_enabled() {
            return offset;
        }
        let offset = u64::from(offset) + self.state.dispi.bank_offset();
        (offset % (self.video.size() / 4)) as u32
    }

    /// The planes.
    fn planes<'a>(&self, memory: &'a Memory) -> Planes<'a> {
        Planes { video: memory.area(self.video), arrangement: self.state.arrangement() }
    }

    /// Writes the bytes of the four planes at plane offset `offset`.
    fn set_planes(&self, memory: &mut Memory, offset: u32, [zero, one, two, three]: [u8; 4]) {
        let [lower, upper] = self.state.arrangement().places(offset);
        memory.write_area(self.video, lower, &[zero, one]);
        memory.write_area(self.video, upper, &[two, three]);
    }

    /// The processor reads a byte of the window at A0000h.
    fn read_window(&mut self, memory: &Memory, address: u32) -> u8 {
        if self.state.dispi.is_linear() {
            return self.linear_place(address).map_or(OPEN_BUS, |place| {
                memory.area(self.video).get(place as usize).copied().unwrap_or(OPEN_BUS)
            });
        }
        let registers = &self.state.registers;
        let Some(selected) = planar::select_read(registers, address) else { return OPEN_BUS };
        let planes = self.planes(memory).at(self.banked(selected.offset));
        let latches = u32::from_le_bytes(planes);
        self.state.latches = latches;
        planar::read(&self.state.registers, selected, latches)
    }

    /// The processor writes a byte of the window at A0000h.
    fn write_window(&mut self, memory: &mut Memory, address: u32, value: u8) {
        if self.state.dispi.is_linear() {
            if let Some(place) = self.linear_place(address) {
                memory.write_area(self.video, place, &[value]);
            }
            return;
        }
        let registers = &self.state.registers;
        let Some(selected) = planar::select_write(registers, address) else { return };
        let offset = self.banked(selected.offset);
        let before = u32::from_le_bytes(self.planes(memory).at(offset));
        let after = planar::write(registers, selected, self.state.latches, before, value);
        if after != before {
            self.set_planes(memory, offset, after.to_le_bytes());
        }
    }

    /// Where in video memory `address` of the window is in a linear mode.
    fn linear_place(&self, address: u32) -> Option<u64> {
        let address = u64::from(address);
        (address < LINEAR_WINDOW_LEN).then(|| self.state.dispi.bank_offset() + address)
    }

    /// A byte of the registers' memory region.
    fn read_mmio(&mut self, context: &Context<'_>, offset: u64) -> u8 {
        if MMIO_PORTS.contains(&offset) {
            let port = FIRST_MMIO_PORT + (offset - MMIO_PORTS.start) as u16;
            return self.read(context, port);
        }
        let byte_of = |bytes: &[u8], start: u64| bytes[(offset - start) as usize % bytes.len()];
        if MMIO_DISPI.contains(&offset) {
            let index = ((offset - MMIO_DISPI.start) / 2) as u16;
            let word = self.state.dispi.read_register(index, self.video.size());
            return byte_of(&word.to_le_bytes(), MMIO_DISPI.start);
        }
        if MMIO_EXTENDED.contains(&offset) {
            let index = (offset - MMIO_EXTENDED.start) / 4;
            return byte_of(&EXTENDED[index as usize].to_le_bytes(), MMIO_EXTENDED.start);
        }
        0
    }

    fn write_mmio(&mut self, context: &mut Context<'_>, offset: u64, width: Width, value: u32) {
        for part in 0..u64::from(width.bytes()) {
            let offset = offset + part;
            if MMIO_PORTS.contains(&offset) {
                let port = FIRST_MMIO_PORT + (offset - MMIO_PORTS.start) as u16;
                self.write(port, (value >> (8 * part)) as u8);
            }
        }
        // DISPI registers are written as aligned words.
        if width == Width::Byte || !offset.is_multiple_of(2) {
            return;
        }
        for part in (0..u64::from(width.bytes())).step_by(2) {
            let offset = offset + part;
            if MMIO_DISPI.contains(&offset) {
                let index = ((offset - MMIO_DISPI.start) / 2) as u16;
                let word = (value >> (8 * part)) as u16;
                let effect = self.state.dispi.write_register(index, word, self.video.size());
                self.apply(context, effect);
            }
        }
    }
}

/// The low four bits of `port`, one of those that are at 3Bxh or at 3Dxh by the miscellaneous output register, if
/// they are at the one where `port` is.
fn crtc_port(registers: &Registers, port: u16) -> Option<u16> {
    let base = if registers.is_colour() { 0x3d0 } else { 0x3b0 };
    (port & 0xfff0 == base).then_some(port & 0xf)
}

impl Device for Vga {
    fn id(&self) -> DeviceId {
        DeviceId::VGA
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        self.map_text(context.memory, None);
        *self = Vga::new(self.video, self.rom);
        context.claim_memory(WINDOW, WINDOW_START, planar::WINDOW_LEN);
        // RAM behind the window is not to be seen. The window is below the first MiB, where every address can be mapped.
        let device = Backing::Device;
        let _ = context.memory.map(WINDOW_START, planar::WINDOW_LEN, device, device);
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        if (DISPI_INDEX..DISPI_END).contains(&port) {
            return self.read_dispi(port, width);
        }
        bytewise::read(port, width, |port| self.read(context, port))
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        if (DISPI_INDEX..DISPI_END).contains(&port) {
            self.write_dispi(context, port, width, value);
        } else {
            bytewise::write(port, width, value, |port, byte| self.write(port, byte));
        }
        self.status = None;
        self.update_window(context);
    }

    fn read_memory(
        &mut self,
        context: &mut Context<'_>,
        region: u8,
        offset: u64,
        width: Width,
    ) -> u32 {
        (0..width.bytes()).fold(0, |value, part| {
            let offset = offset.saturating_add(part.into());
            let byte = match region {
                WINDOW if offset < planar::WINDOW_LEN => {
                    self.read_window(context.memory, offset as u32)
                }
                MMIO => self.read_mmio(context, offset),
                _ => OPEN_BUS,
            };
            value | u32::from(byte) << (8 * part)
        })
    }

    fn write_memory(
        &mut self,
        context: &mut Context<'_>,
        region: u8,
        offset: u64,
        width: Width,
        value: u32,
    ) {
        if region == MMIO && offset < u64::from(pci::REGISTERS_LEN) {
            self.write_mmio(context, offset, width, value);
            self.status = None;
            self.update_window(context);
        } else if region == WINDOW {
            for part in 0..width.bytes() {
                let offset = offset.saturating_add(part.into());
                if offset < planar::WINDOW_LEN {
                    self.write_window(context.memory, offset as u32, (value >> (8 * part)) as u8);
                }
            }
        }
    }

    fn read_config(
        &mut self,
        _context: &mut Context<'_>,
        _function: u8,
        offset: u8,
        width: Width,
    ) -> u32 {
        self.function.read(offset, width)
    }

    fn write_config(
        &mut self,
        context: &mut Context<'_>,
        _function: u8,
        offset: u8,
        width: Width,
        value: u32,
    ) {
        self.function.write(context, offset, width, value);
        self.state.mapped.update(&self.function, context.memory, self.video, self.rom);
    }

    fn picture(&self, memory: &Memory) -> Option<Picture> {
        let State { registers, dispi, .. } = &self.state;
        Some(render::picture(registers, dispi, self.planes(memory)))
    }

    fn save(&self) -> SavedState {
        let saved = Saved { config: self.function.save(), state: self.state.clone() };
        SavedState::new(self.name(), VERSION, &saved)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let Saved { config, state } = saved.load(self.name(), VERSION)?;
        let function = self.function.restored(saved, &config)?;
        let window_fits = state.window.is_none_or(|offset| {
            offset.is_multiple_of(LINEAR_WINDOW_LEN) && offset < self.video.size()
        });
        let text_fits = state.text.is_none_or(|text| planar::TEXT_STARTS.contains(&text));
        if !state.registers.is_possible()
            || !state.dispi.is_possible(self.video.size())
            || !state.mapped.is_possible(&function)
            || !window_fits
            || !text_fits
        {
            return Err(saved.damaged("a register holds what it cannot hold"));
        }
        self.function = function;
        self.state = state;
        self.status = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
