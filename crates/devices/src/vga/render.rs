//! From registers and video memory to a picture.
//!
//! A picture has a pixel for each dot that a monitor would show: 720 by 400 in the text mode of the BIOS,
//! 640 by 400 in mode 13h. The border (overscan) is not part of it.

use ring3_core::display::{Picture, Pixels};

use super::dispi::Dispi;
use super::registers::Registers;
use super::scan::Planes;
use super::{graphics, linear, text};

/// What is shown while there is no sensible mode.
const NO_MODE: (usize, usize) = (640, 400);
/// Less than this no monitor shows: registers that are only just being programmed.
const LEAST: (usize, usize) = (128, 64);

/// What the screen shows.
pub(super) fn picture(registers: &Registers, dispi: &Dispi, planes: Planes<'_>) -> Picture {
    let size = match dispi.mode() {
        Some(mode) => (mode.width, mode.height),
        None => size(registers),
    };
    if !registers.screen_is_on() {
        return Picture::Pixels(black(size));
    }
    match dispi.mode() {
        Some(mode) if dispi.is_linear() => {
            Picture::Pixels(linear::picture(mode, &registers.dac.palette_256(), planes.video))
        }
        Some(mode) => Picture::Pixels(graphics::dispi_picture(mode, registers, planes)),
        None if size.0 < LEAST.0 || size.1 < LEAST.1 => Picture::Pixels(black(NO_MODE)),
        None if registers.is_graphics() => Picture::Pixels(graphics::picture(registers, planes)),
        None => Picture::Text(text::picture(registers, planes)),
    }
}

/// Dots of a character clock: graphics has 8 always.
pub(super) fn dots(registers: &Registers) -> usize {
    if registers.is_graphics() { 8 } else { registers.dots() }
}

/// Width and height of the picture that the CRT controller makes, at most 4608 by 1024.
pub(super) fn size(registers: &Registers) -> (usize, usize) {
    let width = registers.columns() * dots(registers);
    (width << u32::from(registers.dot_clock_is_halved()), registers.lines())
}

/// Puts a line of dots into the picture: without the first `panning` of them, and each twice while the dot clock is
/// halved.
pub(super) fn put_line(
    registers: &Registers,
    dots: &[u32],
    panning: usize,
    pixels: &mut Vec<u32>,
    width: usize,
) {
    let dots = dots.get(panning..).unwrap_or_default();
    if registers.dot_clock_is_halved() {
        pixels.extend(dots.iter().flat_map(|dot| [*dot; 2]).take(width));
    } else {
        pixels.extend(dots.iter().take(width));
    }
}

fn black((width, height): (usize, usize)) -> Pixels {
    Pixels { width, height, colours: vec![0; width * height] }
}
