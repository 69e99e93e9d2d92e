//! What can be wrong with an image.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// The reasons why an image file cannot be a drive.
#[derive(Debug, Error)]
pub enum ImageError {
    /// It cannot be opened.
    #[error(transparent)]
    Image(#[from] ring3_block::Error),
    /// It is empty, or ends within a sector.
    #[error(
        "{path} has {len} bytes, which is no whole number of {block}-byte sectors: it is cut short or no raw image"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        len: u64,
        /// Bytes of a sector.
        block: u64,
    },
    /// There is no room for the guest's writes.
    #[error(
        "no temporary file for writes to {path} in {directory}: {source}; TMPDIR names another directory"
    )]
    Temporary {
        /// The image.
        path: PathBuf,
        /// The directory for temporary files.
        directory: PathBuf,
        /// The error of the host.
        source: io::Error,
    },
}
