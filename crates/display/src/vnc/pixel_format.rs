//! The pixel formats that clients ask for (RFC 6143, section 7.4).

use thiserror::Error;

/// The length of a pixel format in a message, in bytes.
pub(crate) const ENCODED_LENGTH: usize = 16;

/// A pixel format with red, green and blue in a pixel ("true colour").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PixelFormat {
    bits_per_pixel: u8,
    depth: u8,
    big_endian: bool,
    red: Channel,
    green: Channel,
    blue: Channel,
}

/// The place of a colour in a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Channel {
    /// The colour's greatest value, one less than a power of two.
    max: u16,
    /// The distance by which the value is shifted to the left.
    shift: u8,
}

impl Channel {
    fn mask(self) -> u64 {
        u64::from(self.max) << self.shift
    }
}

/// Why a pixel format cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum BadFormat {
    #[error("{0} bits a pixel, which must be 8, 16 or 32")]
    BitsPerPixel(u8),
    #[error("pixels by a colour map, which are not served; the client must ask for true colour")]
    ColourMap,
    #[error("colours that do not fit into a pixel")]
    Channel,
}

impl PixelFormat {
    /// The server's own format: 0RGB with 8 bits each, little-endian.
    pub(crate) const NATIVE: PixelFormat = PixelFormat {
        bits_per_pixel: 32,
        depth: 24,
        big_endian: false,
        red: Channel { max: 255, shift: 16 },
        green: Channel { max: 255, shift: 8 },
        blue: Channel { max: 255, shift: 0 },
    };

    /// Reads a client's format.
    pub(crate) fn decode(bytes: &[u8; ENCODED_LENGTH]) -> Result<PixelFormat, BadFormat> {
        let [bits_per_pixel, depth, big_endian, true_colour, rest @ ..] = *bytes;
        if !matches!(bits_per_pixel, 8 | 16 | 32) {
            return Err(BadFormat::BitsPerPixel(bits_per_pixel));
        }
        if true_colour == 0 {
            return Err(BadFormat::ColourMap);
        }
        let channel = |index: usize| {
            let max = u16::from_be_bytes([rest[2 * index], rest[2 * index + 1]]);
            let shift = rest[6 + index];
            let channel = Channel { max, shift };
            let fits = max != 0
                && max & max.wrapping_add(1) == 0
                && shift < bits_per_pixel
                && channel.mask() >> bits_per_pixel == 0;
            if fits { Ok(channel) } else { Err(BadFormat::Channel) }
        };
        Ok(PixelFormat {
            bits_per_pixel,
            depth,
            big_endian: big_endian != 0,
            red: channel(0)?,
            green: channel(1)?,
            blue: channel(2)?,
        })
    }

    /// Returns the bytes in a pixel: 1, 2 or 4.
    pub(crate) fn bytes_per_pixel(self) -> u8 {
        self.bits_per_pixel / 8
    }

    /// Encodes the format as in the server's first message.
    pub(crate) fn encode(self) -> [u8; ENCODED_LENGTH] {
        let max = [self.red.max, self.green.max, self.blue.max].map(u16::to_be_bytes);
        let [[r1, r2], [g1, g2], [b1, b2]] = max;
        let true_colour = 1;
        [
            self.bits_per_pixel,
            self.depth,
            u8::from(self.big_endian),
            true_colour,
            r1,
            r2,
            g1,
            g2,
            b1,
            b2,
            self.red.shift,
            self.green.shift,
            self.blue.shift,
            0,
            0,
            0,
        ]
    }
}

/// Writes pixels in a client's format.
#[derive(Debug, Clone)]
pub(crate) struct PixelWriter {
    format: PixelFormat,
    /// For each channel, the shifted value for each value of 8 bits.
    red: [u32; 256],
    green: [u32; 256],
    blue: [u32; 256],
    /// The range of a pixel's bytes that ZRLE sends.
    compact: (usize, usize),
}

impl PixelWriter {
    pub(crate) fn new(format: PixelFormat) -> PixelWriter {
        let table = |channel: Channel| {
            std::array::from_fn(|value| {
                let scaled = (value as u32 * u32::from(channel.max) + 127) / 255;
                scaled << channel.shift
            })
        };
        PixelWriter {
            format,
            red: table(format.red),
            green: table(format.green),
            blue: table(format.blue),
            compact: compact(format),
        }
    }

    /// Returns the format.
    pub(crate) fn format(&self) -> PixelFormat {
        self.format
    }

    /// Writes a pixel (type PIXEL).
    pub(crate) fn pixel(&self, colour: u32, out: &mut Vec<u8>) {
        let length = usize::from(self.format.bytes_per_pixel());
        out.extend_from_slice(&self.bytes(colour)[..length]);
    }

    /// Writes a pixel as in ZRLE (type CPIXEL, section 7.7.5), without the byte that is always zero.
    pub(crate) fn compact_pixel(&self, colour: u32, out: &mut Vec<u8>) {
        let (from, to) = self.compact;
        out.extend_from_slice(&self.bytes(colour)[from..to]);
    }

    /// Returns the pixel's bytes in their order, at the start of an array.
    fn bytes(&self, colour: u32) -> [u8; 4] {
        let [_, red, green, blue] = colour.to_be_bytes();
        let value = self.red[usize::from(red)]
            | self.green[usize::from(green)]
            | self.blue[usize::from(blue)];
        if self.format.big_endian {
            (value << (32 - u32::from(self.format.bits_per_pixel))).to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    }
}

/// Returns the range of a pixel's bytes that make a CPIXEL.
fn compact(format: PixelFormat) -> (usize, usize) {
    let used = format.red.mask() | format.green.mask() | format.blue.mask();
    let low = used & 0xff00_0000 == 0;
    let high = used & 0x0000_00ff == 0;
    if format.bits_per_pixel != 32 || format.depth > 24 || !(low || high) {
        return (0, usize::from(format.bytes_per_pixel()));
    }
    // The byte without colour is the last one of a little-endian pixel whose low bytes are used.
    if low == format.big_endian { (1, 4) } else { (0, 3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(bytes: [u8; 13]) -> Result<PixelFormat, BadFormat> {
        let mut all = [0; ENCODED_LENGTH];
        all[..13].copy_from_slice(&bytes);
        PixelFormat::decode(&all)
    }

    fn pixel(format: PixelFormat, colour: u32) -> Vec<u8> {
        let mut out = Vec::new();
        PixelWriter::new(format).pixel(colour, &mut out);
        out
    }

    fn compact_pixel(format: PixelFormat, colour: u32) -> Vec<u8> {
        let mut out = Vec::new();
        PixelWriter::new(format).compact_pixel(colour, &mut out);
        out
    }

    #[test]
    fn our_own_format_is_read_back() {
        assert_eq!(PixelFormat::decode(&PixelFormat::NATIVE.encode()), Ok(PixelFormat::NATIVE));
        assert_eq!(pixel(PixelFormat::NATIVE, 0x123456), [0x56, 0x34, 0x12, 0]);
        assert_eq!(compact_pixel(PixelFormat::NATIVE, 0x123456), [0x56, 0x34, 0x12]);
    }

    #[test]
    fn sixteen_and_eight_bits() {
        let rgb565 = format([16, 16, 1, 1, 0, 31, 0, 63, 0, 31, 11, 5, 0]).unwrap();
        assert_eq!(pixel(rgb565, 0xff0000), [0xf8, 0x00]);
        assert_eq!(pixel(rgb565, 0x00ff00), [0x07, 0xe0]);
        assert_eq!(compact_pixel(rgb565, 0x0000ff), [0x00, 0x1f]);
        let bgr233 = format([8, 8, 0, 1, 0, 7, 0, 7, 0, 3, 0, 3, 6]).unwrap();
        assert_eq!(pixel(bgr233, 0xffffff), [0xff]);
        assert_eq!(pixel(bgr233, 0xff0000), [0x07]);
        assert_eq!(pixel(bgr233, 0x0000ff), [0xc0]);
    }

    #[test]
    fn the_unused_byte_is_left_out_wherever_it_is() {
        let compact = |big_endian, red, green, blue| {
            let bytes = [32, 24, big_endian, 1, 0, 255, 0, 255, 0, 255, red, green, blue];
            let format = format(bytes).unwrap();
            (pixel(format, 0x123456), compact_pixel(format, 0x123456))
        };
        let (all, compacted) = compact(1, 16, 8, 0);
        assert_eq!((all, compacted), (vec![0, 0x12, 0x34, 0x56], vec![0x12, 0x34, 0x56]));
        let (all, compacted) = compact(0, 24, 16, 8);
        assert_eq!((all, compacted), (vec![0, 0x56, 0x34, 0x12], vec![0x56, 0x34, 0x12]));
        let (all, compacted) = compact(1, 24, 16, 8);
        assert_eq!((all, compacted), (vec![0x12, 0x34, 0x56, 0], vec![0x12, 0x34, 0x56]));
        // Every byte has some colour.
        let (all, compacted) = compact(0, 24, 8, 0);
        assert_eq!(all, compacted);
    }

    #[test]
    fn bad_formats_are_refused() {
        let ok = [32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0];
        let with = |index: usize, value: u8| {
            let mut bytes = ok;
            bytes[index] = value;
            format(bytes)
        };
        assert_eq!(with(0, 24), Err(BadFormat::BitsPerPixel(24)));
        assert_eq!(with(0, 0), Err(BadFormat::BitsPerPixel(0)));
        assert_eq!(with(3, 0), Err(BadFormat::ColourMap));
        assert_eq!(with(5, 0), Err(BadFormat::Channel), "a maximum of zero");
        assert_eq!(with(5, 254), Err(BadFormat::Channel), "no power of two less one");
        assert_eq!(with(10, 25), Err(BadFormat::Channel), "it does not fit");
        assert_eq!(with(10, 255), Err(BadFormat::Channel), "it does not fit at all");
        assert!(with(10, 24).is_ok());
    }
}
