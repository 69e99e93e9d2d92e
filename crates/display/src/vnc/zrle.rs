//! The ZRLE encoding (RFC 6143, section 7.7.6): squares of 64 pixels, each with its palette, all in one zlib
//! stream that lasts as long as the connection.
//!
//! Of the subencodings of a tile, this encoder uses raw, solid and packed palette. It leaves runs to zlib,
//! which finds them in packed pixels as well.

use flate2::{Compress, Compression, FlushCompress};
use ring3_core::display::Pixels;
use thiserror::Error;

use super::pixel_format::PixelWriter;
use super::view::{Rect, rows};

/// Pixels along a tile's sides.
const TILE: usize = 64;
/// The most colours of a packed palette.
const MOST_COLOURS: usize = 16;

/// The subencodings whose numbers are not sizes of palettes.
const RAW: u8 = 0;
const SOLID: u8 = 1;

/// The error of zlib when it refuses to compress.
#[derive(Debug, Error)]
#[error("cannot compress an update: {0}")]
pub(crate) struct ZlibError(#[from] flate2::CompressError);

/// A connection's zlib stream.
#[derive(Debug)]
pub(crate) struct Zrle {
    zlib: Compress,
    tiles: Vec<u8>,
}

impl Zrle {
    pub(crate) fn new() -> Zrle {
        Zrle { zlib: Compress::new(Compression::fast(), true), tiles: Vec::new() }
    }

    /// Writes the pixels in `rect`: the length of the compressed tiles, and the tiles.
    pub(crate) fn encode(
        &mut self,
        pixels: &Pixels,
        rect: Rect,
        writer: &PixelWriter,
        out: &mut Vec<u8>,
    ) -> Result<(), ZlibError> {
        self.tiles.clear();
        for tile in rect.parts(TILE) {
            encode_tile(pixels, tile, writer, &mut self.tiles);
        }
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        self.compress(out)?;
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// Compresses the tiles, with everything that is needed to decompress them.
    fn compress(&mut self, out: &mut Vec<u8>) -> Result<(), ZlibError> {
        let mut rest = self.tiles.as_slice();
        loop {
            out.reserve(rest.len() / 4 + 64);
            let before = self.zlib.total_in();
            self.zlib.compress_vec(rest, out, FlushCompress::Sync)?;
            rest = &rest[(self.zlib.total_in() - before) as usize..];
            // A flush is complete when it leaves space in the buffer (zlib.h, deflate).
            if rest.is_empty() && out.len() < out.capacity() {
                return Ok(());
            }
        }
    }
}

fn encode_tile(pixels: &Pixels, tile: Rect, writer: &PixelWriter, out: &mut Vec<u8>) {
    let Some(palette) = palette(rows(pixels, tile).flatten().copied()) else {
        out.push(RAW);
        for colour in rows(pixels, tile).flatten() {
            writer.compact_pixel(*colour, out);
        }
        return;
    };
    if let [colour] = palette[..] {
        out.push(SOLID);
        writer.compact_pixel(colour, out);
        return;
    }
    out.push(palette.len() as u8);
    for colour in &palette {
        writer.compact_pixel(*colour, out);
    }
    let bits = match palette.len() {
        0..=2 => 1,
        3..=4 => 2,
        _ => 4,
    };
    for row in rows(pixels, tile) {
        // The leftmost pixel is in the highest bits; each row starts with a byte of its own.
        for pixels in row.chunks(8 / bits) {
            let mut byte = 0;
            for (place, colour) in pixels.iter().enumerate() {
                let index = palette.iter().position(|other| other == colour).unwrap_or(0);
                byte |= (index as u8) << (8 - bits * (place + 1));
            }
            out.push(byte);
        }
    }
}

/// Returns the distinct colours, if they are few enough for a packed palette.
fn palette(colours: impl Iterator<Item = u32>) -> Option<Vec<u32>> {
    let mut palette: Vec<u32> = Vec::with_capacity(MOST_COLOURS);
    let mut last = None;
    for colour in colours {
        if last == Some(colour) {
            continue;
        }
        last = Some(colour);
        if !palette.contains(&colour) {
            if palette.len() == MOST_COLOURS {
                return None;
            }
            palette.push(colour);
        }
    }
    Some(palette)
}

#[cfg(test)]
mod tests {
    use flate2::{Decompress, FlushDecompress};
    use proptest::prelude::*;

    use super::super::pixel_format::PixelFormat;
    use super::*;

    /// Decompresses one rectangle's tiles.
    fn inflated(zlib: &mut Decompress, bytes: &[u8], room: usize) -> Vec<u8> {
        let (length, compressed) = bytes.split_first_chunk().expect("a length comes first");
        assert_eq!(u32::from_be_bytes(*length) as usize, compressed.len());
        let mut tiles = Vec::with_capacity(room);
        let before = zlib.total_in();
        zlib.decompress_vec(compressed, &mut tiles, FlushDecompress::Sync).expect("it is zlib");
        assert_eq!((zlib.total_in() - before) as usize, compressed.len(), "all is used");
        tiles
    }

    fn colour(from: &mut &[u8]) -> u32 {
        let ([blue, green, red], rest) = from.split_first_chunk().expect("there is more");
        *from = rest;
        u32::from_be_bytes([0, *red, *green, *blue])
    }

    /// Decodes tiles by section 7.7.6 into a picture of this size.
    fn decoded(mut from: &[u8], width: usize, height: usize) -> Vec<u32> {
        let mut colours = vec![u32::MAX; width * height];
        for top in (0..height).step_by(64) {
            for left in (0..width).step_by(64) {
                let (wide, high) = (64.min(width - left), 64.min(height - top));
                let (subencoding, rest) = from.split_first().expect("there is a tile");
                from = rest;
                let palette: Vec<u32> = match subencoding {
                    0 => Vec::new(),
                    1..=16 => (0..*subencoding).map(|_| colour(&mut from)).collect(),
                    other => panic!("subencoding {other}"),
                };
                let bits = match palette.len() {
                    0 | 1 => 0,
                    2 => 1,
                    3 | 4 => 2,
                    _ => 4,
                };
                for y in top..top + high {
                    let row = &mut colours[y * width + left..][..wide];
                    match palette[..] {
                        [] => row.iter_mut().for_each(|pixel| *pixel = colour(&mut from)),
                        [only] => row.fill(only),
                        _ => {
                            let (packed, rest) = from.split_at((wide * bits).div_ceil(8));
                            from = rest;
                            for (x, pixel) in row.iter_mut().enumerate() {
                                let at = x * bits;
                                let byte = packed[at / 8] << (at % 8) >> (8 - bits);
                                *pixel = palette[usize::from(byte)];
                            }
                        }
                    }
                }
            }
        }
        assert!(from.is_empty(), "nothing is left over");
        colours
    }

    proptest! {
        #[test]
        fn a_decoder_gets_the_pixels_back(
            width in 1usize..140,
            height in 1usize..70,
            palettes in proptest::collection::vec(1u32..20, 3),
            noise in proptest::collection::vec(any::<u32>(), 140 * 70),
        ) {
            let mut zrle = Zrle::new();
            let mut zlib = Decompress::new(true);
            // One stream contains several rectangles.
            for palette in palettes {
                let colours: Vec<u32> =
                    noise.iter().take(width * height).map(|noise| noise % palette * 1000).collect();
                let pixels = Pixels { width, height, colours };
                let mut bytes = Vec::new();
                let writer = PixelWriter::new(PixelFormat::NATIVE);
                zrle.encode(&pixels, Rect::all(width, height), &writer, &mut bytes).unwrap();
                let tiles = inflated(&mut zlib, &bytes, 4 * width * height + 100);
                prop_assert_eq!(decoded(&tiles, width, height), pixels.colours);
            }
        }
    }
}
