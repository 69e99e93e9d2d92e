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
        "{path} has {len} bytes, which is no whole number of {block}-byte sectors: it is cut short or no raw image"
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
        "no temporary file for writes to {path} in {directory}: {source}; TMPDIR names another directory"
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
