//! Modes of the display adapter for kernels that ask their boot loader for one.

/// The largest picture: that of the adapter's memory (16 MiB).
const MOST_BYTES: u32 = ring3_devices::vga::VIDEO_MEMORY_LEN as u32;
/// The largest width and height of the adapter.
const MOST: u32 = 4096;
/// The mode of kernels that leave the size to the boot loader.
const USUAL: (u32, u32) = (1024, 768);

/// A mode in which video memory is a plain array of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinearMode {
    pub(crate) width: u16,
    pub(crate) height: u16,
    /// 16, 24 or 32: RGB.
    pub(crate) bits_per_pixel: u8,
}

impl LinearMode {
    /// Returns the mode for a kernel that asks for this one; 0 stands for a size or a depth that it leaves to the
    /// boot loader. None if the adapter has no such mode.
    pub(crate) fn for_request(width: u32, height: u32, depth: u32) -> Option<LinearMode> {
        let width = if width == 0 { USUAL.0 } else { width };
        let height = if height == 0 { USUAL.1 } else { height };
        // Deeper pixels than it asks for show at least as much.
        let bits_per_pixel = match depth {
            0 | 25..=32 => 32,
            1..=16 => 16,
            17..=24 => 24,
            _ => return None,
        };
        // The adapter rounds widths down to multiples of 8.
        let fits = width.is_multiple_of(8) && width <= MOST && height <= MOST;
        let bytes = width.saturating_mul(height).saturating_mul(bits_per_pixel / 8);
        (fits && bytes <= MOST_BYTES).then_some(LinearMode {
            width: width as u16,
            height: height as u16,
            bits_per_pixel: bits_per_pixel as u8,
        })
    }

    /// Returns the bytes from one line to the next.
    pub(crate) fn pitch(self) -> u32 {
        u32::from(self.width) * u32::from(self.bits_per_pixel) / 8
    }

    /// Returns the position and the number of bits of red, green and blue in a pixel.
    pub(crate) fn colours(self) -> [[u8; 2]; 3] {
        match self.bits_per_pixel {
            16 => [[11, 5], [5, 6], [0, 5]],
            _ => [[16, 8], [8, 8], [0, 8]],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_gets_the_mode_that_it_asks_for_or_a_deeper_one() {
        let mode = |width, height, bits_per_pixel| LinearMode { width, height, bits_per_pixel };
        let request = LinearMode::for_request;
        assert_eq!(request(800, 600, 32), Some(mode(800, 600, 32)));
        assert_eq!(request(0, 0, 0), Some(mode(1024, 768, 32)));
        assert_eq!(request(640, 480, 8), Some(mode(640, 480, 16)));
        assert_eq!(request(640, 480, 24).unwrap().pitch(), 1920);
        for (width, height, depth) in
            [(801, 600, 32), (8192, 8, 16), (8, 8192, 16), (4096, 4096, 32), (640, 480, 33)]
        {
            assert_eq!(request(width, height, depth), None);
        }
        assert_eq!(request(u32::MAX - 7, u32::MAX, 32), None);
    }
}
