//! Errors, whose messages tell the user what to do.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The reasons why an operation on an image fails, without the image's name.
#[derive(Debug, Error)]
pub enum Fault {
    /// The host's file or device, or the server, has failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The image contradicts itself or its format.
    #[error("the image is damaged: {0}")]
    Damaged(String),
    /// The image is intact, but needs something that this crate does not support.
    #[error("{0}")]
    Unsupported(String),
    /// Images of this kind can be read, but not written.
    #[error("{0} cannot be written: open it for reading only, or convert it")]
    OnlyRead(&'static str),
    /// The image was opened for reading only.
    #[error("it is open for reading only")]
    ReadOnly,
    /// The request reaches beyond the end of the disk.
    #[error("a request for bytes {offset} to {end} exceeds the image's {size} bytes")]
    OutOfRange {
        /// Offset of the first byte.
        offset: u64,
        /// Offset of the byte after the last one.
        end: u64,
        /// Size of the disk.
        size: u64,
    },
    /// The operation is not possible with this image, or not in this way.
    #[error("{0}")]
    Refused(String),
}

impl Fault {
    pub(crate) fn damaged(what: impl Into<String>) -> Fault {
        Fault::Damaged(what.into())
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Fault {
        Fault::Unsupported(what.into())
    }

    pub(crate) fn refused(what: impl Into<String>) -> Fault {
        Fault::Refused(what.into())
    }
}

/// The reasons why an image cannot be opened, made or used.
#[derive(Debug, Error)]
pub enum Error {
    /// The image does not exist.
    #[error("there is no image {}{}", .path.display(), fetch(path))]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The user may not read the image, or may not write it if that is needed.
    #[error("no permission to {what} {}; {hint}", .path.display())]
    Permission {
        /// The file.
        path: PathBuf,
        /// The operation that was refused.
        what: &'static str,
        /// Advice for the user.
        hint: &'static str,
    },
    /// The file is a directory, a pipe or the like.
    #[error("{} is neither a file nor a block device", .path.display())]
    NotAnImage {
        /// The file.
        path: PathBuf,
    },
    /// Another process has the image open.
    #[error(
        "{} is in use by another process, {}",
        .path.display(),
        if *.writes { "so it cannot be opened for writing; end the other process, or open it for reading only" }
        else { "which writes to it; end that process, or read the image in its present state with -U (--force-share)" }
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// Whether it was to be opened for writing.
        writes: bool,
    },
    /// The host cannot open the file.
    #[error("{} cannot be opened: {source}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file system does not allow access without the host's cache.
    #[error(
        "{} cannot be opened with cache=none or cache=directsync: its file system does not allow access without the host's \
         cache; use cache=writeback, or another file system",
        .path.display()
    )]
    Direct {
        /// The file.
        path: PathBuf,
    },
    /// A new image cannot be written.
    #[error("{} cannot be made: {fault}", .path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The reason.
        fault: Fault,
    },
    /// The backing image of an image cannot be opened.
    #[error("the backing file of {} cannot be opened: {source}", .path.display())]
    Backing {
        /// The image that names the backing image.
        path: PathBuf,
        /// The reason.
        source: Box<Error>,
    },
    /// A chain of backing images contains itself.
    #[error("the chain of backing files of {} leads back to it", .path.display())]
    Loop {
        /// The file that occurs twice.
        path: PathBuf,
    },
    /// A chain of backing images is too long.
    #[error("the chain of backing files of {} has more than {max} images; shorten it with \"ring3 img rebase\"", .path.display())]
    Deep {
        /// The image at the top.
        path: PathBuf,
        /// Upper bound of the images in a chain.
        max: usize,
    },
    /// An operation on an image has failed.
    #[error("{}: {fault}", .path.display())]
    In {
        /// The image.
        path: PathBuf,
        /// The reason.
        fault: Fault,
    },
}

/// Returns advice if the path looks like an address of another kind than NBD's.
fn fetch(path: &Path) -> &'static str {
    if path.to_string_lossy().contains("://") {
        ": of addresses, those of NBD servers (nbd://...) are images; fetch the file first"
    } else {
        ""
    }
}

/// The results of functions inside of formats.
pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;
