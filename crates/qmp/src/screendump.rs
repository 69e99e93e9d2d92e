//! Pictures of the screen, in files and in answers.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use ring3_core::display::{Picture, Pixels};
use ring3_vm::screenshot::{self, ScreenshotError};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::{Machine, picture};
use crate::protocol::{Arguments, Failure, read};

/// Upper bound of the pixels in an answer.
const PIXELS_MAX: usize = 1 << 18;

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

/// Writes a picture of the screen to a file.
pub(crate) fn screendump(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Screendump {
        filename: PathBuf,
        #[serde(default)]
        format: Format,
    }
    let Screendump { filename, format } = read(arguments)?;
    save(&picture(machine)?, format, &filename)
        .map_err(|error| Failure::generic(format!("{}: {error}", filename.display())))?;
    Ok(json!({}))
}

/// Returns the screen as a terminal shows it: characters, or pixels in at most so many columns and rows.
pub(crate) fn screen(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Room {
        columns: usize,
        rows: usize,
    }
    let Room { columns, rows } = read(arguments)?;
    if columns.saturating_mul(rows) > PIXELS_MAX {
        return Err(Failure::generic(format!("there are at most {PIXELS_MAX} pixels")));
    }
    Ok(match machine.control.picture()? {
        None => json!({ "kind": "off" }),
        Some(Picture::Text(text)) => {
            let cells = text.cells.iter().map(|cell| {
                json!([cell.character, cell.foreground, cell.background, u8::from(cell.blinks)])
            });
            json!({
                "kind": "text",
                "columns": text.columns,
                "rows": text.rows,
                "cells": cells.collect::<Vec<_>>(),
                "cursor": text.cursor.map(|(column, row)| [column, row]),
            })
        }
        Some(Picture::Pixels(pixels)) => {
            let small = pixels.shrunk((columns, rows));
            json!({
                "kind": "pixels",
                "columns": small.width,
                "rows": small.height,
                "colours": small.colours,
                "width": pixels.width,
                "height": pixels.height,
            })
        }
    })
}

/// Writes `picture` to a file at `path`, which is created or overwritten.
fn save(picture: &Picture, format: Format, path: &Path) -> Result<(), ScreenshotError> {
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
