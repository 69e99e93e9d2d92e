//! Errors, in words that say what to do.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// The reasons why an image file cannot be a drive.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The image cannot be opened.
    #[error(transparent)]
    Image(#[from] ring3_block::Error),
    /// The image is empty, or ends within a sector.
    #[error(
        "{path} has {len} bytes, not a whole number of {block}-byte sectors: it is cut short or not a raw image"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The file's size in bytes.
        len: u64,
        /// Number of bytes in a sector.
        block: u64,
    },
    /// The temporary file for the guest's writes cannot be made.
    #[error(
        "cannot make a temporary file for writes to {path} in {directory}: {source}; set TMPDIR to another directory"
    )]
    Temporary {
        /// The image.
        path: PathBuf,
        /// The directory for temporary files.
        directory: PathBuf,
        /// The reason.
        source: io::Error,
    },
}
