//! Graphics modes that the CRT controller scans from the four planes: 16 colours, CGA's, and a byte a pixel (13h and
//! its unchained forms).
//!
//! (FreeVGA, "VGA Sequencer Operation"; the Reference, "Graphics Modes".)

use ring3_core::display::Pixels;

use super::dispi::Mode;
use super::registers::{Registers, Shift};
use super::render::{put_line, size};
use super::scan::{self, Planes};

/// Dots of a character clock.
const DOTS: usize = 8;

/// For each byte a nibble for each bit, in the same order.
const SPREAD: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut bit = 0;
        while bit < 8 {
            table[byte] |= (byte as u32 >> bit & 1) << (4 * bit);
            bit += 1;
        }
        byte += 1;
    }
    table
};

/// The palettes of a mode.
struct Palettes {
    colours_16: [u32; 16],
    colours_256: [u32; 256],
}

/// The screen in a graphics mode of the VGA.
pub(super) fn picture(registers: &Registers, planes: Planes<'_>) -> Pixels {
    let palettes =
        Palettes { colours_16: registers.palette_16(), colours_256: registers.dac.palette_256() };
    let (width, height) = size(registers);
    let mut pixels = Vec::with_capacity(width * height);
    let mut dots = Vec::with_capacity((registers.columns() + 1) * DOTS);
    let mut drawn = None;
    for line in scan::lines(registers, DOTS) {
        if drawn != Some((line.start, line.row_scan)) {
            drawn = Some((line.start, line.row_scan));
            dots.clear();
            // One character clock more than is shown: panning brings a part of it in.
            for column in 0..=registers.columns() {
                let counter = line.start.wrapping_add(column as u16);
                let offset = scan::plane_offset(registers, counter, line.row_scan);
                let bytes = planes.at(offset.into());
                dots.extend(character_dots(registers.shift(), bytes, &palettes));
            }
        }
        put_line(registers, &dots, line.panning, &mut pixels, width);
    }
    Pixels { width, height, colours: pixels }
}

/// The dots of a character clock, from what the planes have for it.
fn character_dots(shift: Shift, planes: [u8; 4], palettes: &Palettes) -> [u32; DOTS] {
    match shift {
        Shift::Planar => planar_dots(planes).map(|pixel| palettes.colours_16[pixel]),
        Shift::Interleaved => interleaved_dots(planes).map(|pixel| palettes.colours_16[pixel]),
        Shift::Bytes => std::array::from_fn(|dot| palettes.colours_256[planes[dot / 2] as usize]),
    }
}

/// A bit of each plane is a pixel, the highest one first.
fn planar_dots(planes: [u8; 4]) -> [usize; DOTS] {
    let [p0, p1, p2, p3] = planes.map(|byte| SPREAD[usize::from(byte)]);
    let nibbles = p0 | p1 << 1 | p2 << 2 | p3 << 3;
    std::array::from_fn(|dot| (nibbles >> (28 - 4 * dot) & 15) as usize)
}

/// Two bits of plane 0 are the low bits of each of the first four pixels, and two bits of plane 2 the high ones; planes 1
/// and 3 have the other four.
fn interleaved_dots(planes: [u8; 4]) -> [usize; DOTS] {
    std::array::from_fn(|dot| {
        let (plane, shift) = (dot / 4, 6 - dot % 4 * 2);
        let (low, high) = (planes[plane] >> shift & 3, planes[plane + 2] >> shift & 3);
        usize::from(high << 2 | low)
    })
}

/// The screen in a mode with four planes whose size the DISPI registers give.
pub(super) fn dispi_picture(mode: Mode, registers: &Registers, planes: Planes<'_>) -> Pixels {
    let palette = registers.palette_16();
    let mut pixels = Vec::with_capacity(mode.width * mode.height);
    for y in mode.y_offset..mode.y_offset + mode.height {
        let first = (y * mode.virtual_width + mode.x_offset) / DOTS;
        for offset in first..first + mode.width / DOTS {
            let bytes = planes.at(offset as u32);
            pixels.extend(planar_dots(bytes).map(|pixel| palette[pixel]));
        }
    }
    Pixels { width: mode.width, height: mode.height, colours: pixels }
}
