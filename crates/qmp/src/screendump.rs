//! Writes pictures of the screen into files.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use ring3_core::display::{Picture, Pixels};
use ring3_vm::screenshot::{self, ScreenshotError};
use serde::Deserialize;

/// The format of a picture file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// Portable pixmap, 24 bits a pixel.
    #[default]
    Ppm,
    /// Portable Network Graphics.
    Png,
}

/// Writes `picture` to a file at `path`, which is created or overwritten.
pub(crate) fn save(picture: &Picture, format: Format, path: &Path) -> Result<(), ScreenshotError> {
    let mut file = BufWriter::new(File::create(path)?);
    match format {
        Format::Ppm => screenshot::write_ppm(pixels(picture), &mut file)?,
        Format::Png => screenshot::write_png(pixels(picture), &mut file)?,
    }
    file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    Ok(())
}

/// Returns the pixels of a screen, whether it shows text or graphics.
pub(crate) fn pixels(picture: &Picture) -> &Pixels {
    match picture {
        Picture::Text(screen) => &screen.pixels,
        Picture::Pixels(pixels) => pixels,
    }
}
