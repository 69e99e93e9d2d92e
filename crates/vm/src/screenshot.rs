//! Screenshots: pictures of a display adapter as image files.

use std::io::{self, Write};

use ring3_core::display::Pixels;
use thiserror::Error;

/// The reasons why a screenshot cannot be written.
#[derive(Debug, Error)]
pub enum ScreenshotError {
    /// The picture has no pixels, or more in a row than the format allows.
    #[error("a picture of {width} by {height} pixels cannot be written as an image")]
    BadSize {
        /// Pixels in a row.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// The output cannot be written.
    #[error("cannot write the screenshot: {0}")]
    Io(#[from] io::Error),
    /// The image cannot be made.
    #[error("cannot make a PNG image: {0}")]
    Png(png::EncodingError),
}

impl From<png::EncodingError> for ScreenshotError {
    fn from(error: png::EncodingError) -> ScreenshotError {
        match error {
            png::EncodingError::IoError(error) => ScreenshotError::Io(error),
            other => ScreenshotError::Png(other),
        }
    }
}

/// Writes `pixels` to `output` as a PNG image (ISO/IEC 15948) with eight bits for each of red, green and blue.
pub fn write_png(pixels: &Pixels, output: impl Write) -> Result<(), ScreenshotError> {
    let (width, height) = size(pixels)?;
    let mut encoder = png::Encoder::new(output, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&bytes(pixels))?;
    writer.finish()?;
    Ok(())
}

/// Writes `pixels` to `output` as a PPM image in its binary form (P6 of Netpbm).
pub fn write_ppm(pixels: &Pixels, mut output: impl Write) -> Result<(), ScreenshotError> {
    let (width, height) = size(pixels)?;
    write!(output, "P6\n{width} {height}\n255\n")?;
    output.write_all(&bytes(pixels))?;
    output.flush()?;
    Ok(())
}

/// Returns width and height, if there is a pixel and as many as they say.
fn size(pixels: &Pixels) -> Result<(u32, u32), ScreenshotError> {
    let Pixels { width, height, ref colours } = *pixels;
    let fits = |value: usize| u32::try_from(value).ok().filter(|value| *value > 0);
    match (fits(width), fits(height)) {
        (Some(columns), Some(rows)) if width.checked_mul(height) == Some(colours.len()) => {
            Ok((columns, rows))
        }
        _ => Err(ScreenshotError::BadSize { width, height }),
    }
}

/// Returns red, green and blue of each pixel.
fn bytes(pixels: &Pixels) -> Vec<u8> {
    let components = |colour: &u32| {
        let [_, red, green, blue] = colour.to_be_bytes();
        [red, green, blue]
    };
    pixels.colours.iter().flat_map(components).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Pixels {
        Pixels {
            width: 3,
            height: 2,
            colours: vec![0xff0000, 0x00ff00, 0x0000ff, 0x010203, 0, 0xffffff],
        }
    }

    const BYTES: [u8; 18] = [255, 0, 0, 0, 255, 0, 0, 0, 255, 1, 2, 3, 0, 0, 0, 255, 255, 255];

    #[test]
    fn png_comes_back_as_it_was() {
        let mut file = Vec::new();
        write_png(&picture(), &mut file).unwrap();
        let mut reader = png::Decoder::new(io::Cursor::new(&file)).read_info().unwrap();
        let mut read = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut read).unwrap();
        assert_eq!((info.width, info.height), (3, 2));
        assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        assert_eq!(read, BYTES);
    }

    #[test]
    fn ppm_has_a_header_and_bytes() {
        let mut file = Vec::new();
        write_ppm(&picture(), &mut file).unwrap();
        assert_eq!(file, [b"P6\n3 2\n255\n".as_slice(), &BYTES].concat());
    }

    #[test]
    fn an_impossible_picture_is_refused() {
        for (width, height, len) in [(0, 0, 0), (2, 2, 3), (usize::MAX, 2, 0)] {
            let pixels = Pixels { width, height, colours: vec![0; len] };
            let refused = |result| matches!(result, Err(ScreenshotError::BadSize { .. }));
            assert!(refused(write_png(&pixels, io::sink())));
            assert!(refused(write_ppm(&pixels, io::sink())));
        }
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut room = [0; 20];
        let result = write_png(&picture(), room.as_mut_slice());
        assert!(matches!(result, Err(ScreenshotError::Io(_))), "{result:?}");
        assert!(write_ppm(&picture(), room.as_mut_slice()).is_err());
    }
}
