//! What can go wrong, in words that say what to do.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// What went wrong inside of an image, whichever it is.
#[derive(Debug, Error)]
pub enum Fault {
    /// The host's file or device, or the server, failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The image contradicts itself or its format.
    #[error("the image is damaged: {0}")]
    Damaged(String),
    /// The image is well, but does what this crate cannot.
    #[error("{0}")]
    Unsupported(String),
    /// Images of its kind are read, and not written.
    #[error("{0} are only read here: open it for reading, or convert it")]
    OnlyRead(&'static str),
    /// It was opened for reading only.
    #[error("it is open for reading only")]
    ReadOnly,
    /// The request leaves the image.
    #[error("bytes {offset} to {end} were asked for, and the image has {size}")]
    OutOfRange {
        /// The first byte.
        offset: u64,
        /// The byte after the last one.
        end: u64,
        /// The size of the image.
        size: u64,
    },
    /// What was asked cannot be done with this image, or not in that way.
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

/// Why an image cannot be opened, made or used.
#[derive(Debug, Error)]
pub enum Error {
    /// It is not there.
    #[error("there is no image {}{}", .path.display(), fetch(path))]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The user may not read it, or write it where that was asked.
    #[error("no permission to {what} {}; {hint}", .path.display())]
    Permission {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What may help.
        hint: &'static str,
    },
    /// It is a directory, a pipe or the like.
    #[error("{} is neither a file nor a block device", .path.display())]
    NotAnImage {
        /// The file.
        path: PathBuf,
    },
    /// Another process has it open.
    #[error(
        "{} is in use by another process, {}",
        .path.display(),
        if *.writes { "and one that writes needs it alone; end the other one, or open it for reading" }
        else { "which writes to it; end that, or read it as it is at the moment with -U (--force-share)" }
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// It was to be written.
        writes: bool,
    },
    /// The host fails.
    #[error("{} cannot be opened: {source}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the host says.
        source: io::Error,
    },
    /// The file system has no access past the host's cache.
    #[error(
        "{} cannot be used past the host's cache, as cache=none and cache=directsync have it: its file system does not allow \
         that; use cache=writeback, or another file system",
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
        /// Why.
        fault: Fault,
    },
    /// An image on which another one stands cannot be opened.
    #[error("the backing file of {} cannot be opened: {source}", .path.display())]
    Backing {
        /// The image that names it.
        path: PathBuf,
        /// Why.
        source: Box<Error>,
    },
    /// A chain of backing files does not end.
    #[error("{} stands on itself: its chain of backing files comes back to it", .path.display())]
    Loop {
        /// The file that comes twice.
        path: PathBuf,
    },
    /// A chain of backing files is too long.
    #[error("the chain of backing files of {} has more than {max} images; shorten it with \"ring3 img rebase\"", .path.display())]
    Deep {
        /// The image at the top.
        path: PathBuf,
        /// The most that there may be.
        max: usize,
    },
    /// Something in the image.
    #[error("{}: {fault}", .path.display())]
    In {
        /// The image.
        path: PathBuf,
        /// What it is.
        fault: Fault,
    },
}

/// What is said more of an address that is none of a server of images.
fn fetch(path: &Path) -> &'static str {
    if path.to_string_lossy().contains("://") {
        ": of addresses, those of NBD servers (nbd://...) are images; fetch the file first"
    } else {
        ""
    }
}

/// What functions inside of the formats return.
pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;
