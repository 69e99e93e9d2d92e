//! The Hextile encoding (RFC 6143, section 7.7.4): squares of 16 pixels, each with a background and smaller
//! rectangles on it.

use ring3_core::display::Pixels;

use super::pixel_format::PixelWriter;
use super::view::{Rect, rows};

/// Pixels along a tile's sides.
const TILE: usize = 16;

/// Bits of a tile's first byte.
const RAW: u8 = 1 << 0;
const BACKGROUND_SPECIFIED: u8 = 1 << 1;
const FOREGROUND_SPECIFIED: u8 = 1 << 2;
const ANY_SUBRECTS: u8 = 1 << 3;
const SUBRECTS_COLOURED: u8 = 1 << 4;

/// Writes the pixels in `rect`. No tile depends on the colours of the one before it.
pub(crate) fn encode(pixels: &Pixels, rect: Rect, writer: &PixelWriter, out: &mut Vec<u8>) {
    for tile in rect.parts(TILE) {
        encode_tile(pixels, tile, writer, out);
    }
}

fn encode_tile(pixels: &Pixels, tile: Rect, writer: &PixelWriter, out: &mut Vec<u8>) {
    let mut colours: Vec<u32> = rows(pixels, tile).flatten().copied().collect();
    let background = most_frequent(&colours);
    let original = colours.clone();
    let subrects = take_subrects(&mut colours, tile.width, background);
    let Some(first) = subrects.first() else {
        out.push(BACKGROUND_SPECIFIED);
        writer.pixel(background, out);
        return;
    };

    let one_colour = subrects.iter().all(|subrect| subrect.colour == first.colour);
    let bytes_of_pixel = usize::from(writer.format().bytes_per_pixel());
    let bytes_of_subrect = 2 + if one_colour { 0 } else { bytes_of_pixel };
    // A tile can have up to 255 subrectangles.
    if subrects.len() > 255
        || 2 + 2 * bytes_of_pixel + subrects.len() * bytes_of_subrect
            > original.len() * bytes_of_pixel
    {
        out.push(RAW);
        for colour in original {
            writer.pixel(colour, out);
        }
        return;
    }

    let subencoding = if one_colour { FOREGROUND_SPECIFIED } else { SUBRECTS_COLOURED };
    out.push(BACKGROUND_SPECIFIED | ANY_SUBRECTS | subencoding);
    writer.pixel(background, out);
    if one_colour {
        writer.pixel(first.colour, out);
    }
    out.push(subrects.len() as u8);
    for subrect in &subrects {
        if !one_colour {
            writer.pixel(subrect.colour, out);
        }
        let Rect { x, y, width, height } = subrect.place;
        out.push((x << 4 | y) as u8);
        out.push(((width - 1) << 4 | (height - 1)) as u8);
    }
}

/// A rectangle of one colour in a tile.
struct Subrect {
    place: Rect,
    colour: u32,
}

/// Finds rectangles that together cover all pixels of colours other than `background`, and overwrites them
/// with the background.
fn take_subrects(colours: &mut [u32], tile_width: usize, background: u32) -> Vec<Subrect> {
    let mut subrects = Vec::new();
    for index in 0..colours.len() {
        let colour = colours[index];
        if colour == background {
            continue;
        }
        let (x, y) = (index % tile_width, index / tile_width);
        let row = &colours[index..(y + 1) * tile_width];
        let width = row.iter().take_while(|other| **other == colour).count();
        let height = colours[y * tile_width..]
            .chunks_exact(tile_width)
            .take_while(|row| row[x..x + width].iter().all(|other| *other == colour))
            .count();
        for row in colours[y * tile_width..].chunks_exact_mut(tile_width).take(height) {
            row[x..x + width].fill(background);
        }
        subrects.push(Subrect { place: Rect { x, y, width, height }, colour });
    }
    subrects
}

/// Returns the most frequent of `colours`, or a frequent one if there are more than a few.
fn most_frequent(colours: &[u32]) -> u32 {
    /// The number of colours that are counted.
    const COUNTED: usize = 8;
    let mut counts: Vec<(u32, usize)> = Vec::with_capacity(COUNTED);
    for colour in colours {
        if let Some((_, count)) = counts.iter_mut().find(|(counted, _)| counted == colour) {
            *count += 1;
        } else if counts.len() < COUNTED {
            counts.push((*colour, 1));
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(colour, _)| colour)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::pixel_format::PixelFormat;
    use super::*;

    fn encoded(pixels: &Pixels, rect: Rect) -> Vec<u8> {
        let mut out = Vec::new();
        encode(pixels, rect, &PixelWriter::new(PixelFormat::NATIVE), &mut out);
        out
    }

    /// Takes the next bytes.
    fn take<const N: usize>(from: &mut &[u8]) -> [u8; N] {
        let (taken, rest) = from.split_first_chunk().expect("there is more");
        *from = rest;
        *taken
    }

    fn colour(from: &mut &[u8]) -> u32 {
        u32::from_le_bytes(take(from))
    }

    /// Decodes tiles by section 7.7.4 into a picture of this size.
    fn decoded(mut from: &[u8], width: usize, height: usize) -> Vec<u32> {
        let mut colours = vec![u32::MAX; width * height];
        let mut background = u32::MAX;
        for top in (0..height).step_by(16) {
            for left in (0..width).step_by(16) {
                let (wide, high) = (16.min(width - left), 16.min(height - top));
                let mut fill = |x: u8, y: u8, w: usize, h: usize, colour| {
                    for line in 0..h {
                        let start = (top + usize::from(y) + line) * width + left + usize::from(x);
                        colours[start..start + w].fill(colour);
                    }
                };
                let [mask] = take(&mut from);
                if mask & RAW != 0 {
                    for y in 0..high as u8 {
                        (0..wide as u8).for_each(|x| fill(x, y, 1, 1, colour(&mut from)));
                    }
                    continue;
                }
                if mask & BACKGROUND_SPECIFIED != 0 {
                    background = colour(&mut from);
                }
                fill(0, 0, wide, high, background);
                let foreground = (mask & FOREGROUND_SPECIFIED != 0).then(|| colour(&mut from));
                let [subrects] = if mask & ANY_SUBRECTS != 0 { take(&mut from) } else { [0] };
                for _ in 0..subrects {
                    let coloured = mask & SUBRECTS_COLOURED != 0;
                    let colour = if coloured { colour(&mut from) } else { foreground.unwrap() };
                    let [xy, wh] = take(&mut from);
                    let (w, h) = (usize::from(wh >> 4) + 1, usize::from(wh & 15) + 1);
                    fill(xy >> 4, xy & 15, w, h, colour);
                }
            }
        }
        assert!(from.is_empty(), "nothing is left over");
        colours
    }

    #[test]
    fn one_colour_is_one_background() {
        let pixels = Pixels { width: 16, height: 16, colours: vec![0x123456; 256] };
        let bytes = encoded(&pixels, Rect::all(16, 16));
        assert_eq!(bytes, [BACKGROUND_SPECIFIED, 0x56, 0x34, 0x12, 0]);
    }

    #[test]
    fn two_colours_are_subrectangles() {
        let mut pixels = Pixels { width: 16, height: 16, colours: vec![0; 256] };
        for y in 3..8 {
            pixels.colours[y * 16 + 2..y * 16 + 12].fill(0xff);
        }
        let bytes = encoded(&pixels, Rect::all(16, 16));
        assert_eq!(bytes, [0x0e, 0, 0, 0, 0, 0xff, 0, 0, 0, 1, 0x23, 0x94]);
    }

    proptest! {
        #[test]
        fn a_decoder_gets_the_pixels_back(
            width in 1usize..40,
            height in 1usize..40,
            palette in 1u32..200,
            noise in proptest::collection::vec(any::<u32>(), 1600),
        ) {
            let colours: Vec<u32> =
                noise.iter().take(width * height).map(|noise| noise % palette * 7).collect();
            let pixels = Pixels { width, height, colours };
            let bytes = encoded(&pixels, Rect::all(width, height));
            prop_assert_eq!(decoded(&bytes, width, height), pixels.colours);
        }
    }
}
