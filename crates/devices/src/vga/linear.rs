//! Linear modes: video memory is an array of pixels.

use ring3_core::display::Pixels;

use super::dispi::Mode;

/// The screen in `mode`, one with 8, 15, 16, 24 or 32 bits a pixel. A mode never leaves video memory; were it to, the
/// rest would be black.
pub(super) fn picture(mode: Mode, palette: &[u32; 256], video: &[u8]) -> Pixels {
    match mode.bits_per_pixel {
        8 => convert(mode, video, |&[pixel]| palette[usize::from(pixel)]),
        15 => convert(mode, video, |bytes| from_555(u16::from_le_bytes(*bytes))),
        16 => convert(mode, video, |bytes| from_565(u16::from_le_bytes(*bytes))),
        24 => convert(mode, video, |&[blue, green, red]| u32::from_le_bytes([blue, green, red, 0])),
        _ => convert(mode, video, |bytes| u32::from_le_bytes(*bytes) & 0x00ff_ffff),
    }
}

/// Makes each pixel of `N` bytes a colour.
fn convert<const N: usize>(mode: Mode, video: &[u8], colour: impl Fn(&[u8; N]) -> u32) -> Pixels {
    let mut pixels = Vec::with_capacity(mode.width * mode.height);
    for y in 0..mode.height {
        let start = ((mode.y_offset + y) * mode.virtual_width + mode.x_offset) * N;
        let line = video.get(start..).unwrap_or_default();
        let (line, _) = line.as_chunks::<N>();
        pixels.extend(line.iter().take(mode.width).map(&colour));
        pixels.resize((y + 1) * mode.width, 0);
    }
    Pixels { width: mode.width, height: mode.height, colours: pixels }
}

/// Five bits for each component.
fn from_555(pixel: u16) -> u32 {
    let component = |shift: u32| widen(pixel >> shift & 0x1f, 5);
    u32::from_be_bytes([0, component(10), component(5), component(0)])
}

/// Six bits for green and five for red and blue.
fn from_565(pixel: u16) -> u32 {
    let red = widen(pixel >> 11, 5);
    let green = widen(pixel >> 5 & 0x3f, 6);
    u32::from_be_bytes([0, red, green, widen(pixel & 0x1f, 5)])
}

/// A component of `bits` (5 or 6) as one of 8 bits: its highest bits again below it, so that all ones stay all ones.
fn widen(component: u16, bits: u32) -> u8 {
    (component << (8 - bits) | component >> (2 * bits - 8)) as u8
}
