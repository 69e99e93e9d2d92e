//! Other files and servers that an image names, and that are opened because the image says so and not the
//! user.
//!
//! An image that a guest or a stranger has written may name any file that this user can read.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Fault, Result};

static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Forbids this process to open anything that an image names, whatever
/// [`crate::OpenOptions::no_external_files`] says.
pub fn forbid_external_files() {
    IS_FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Whether files and servers that `image` names may be opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct External<'a> {
    pub(crate) image: &'a Path,
    pub(crate) is_allowed: bool,
}

impl External<'_> {
    /// Logs that `name` is about to be opened, or refuses it. `what` describes it, such as "a backing file".
    pub(crate) fn ask(&self, what: &str, name: &str) -> Result<()> {
        if !self.is_allowed || IS_FORBIDDEN.load(Ordering::Relaxed) {
            return Err(Fault::refused(format!(
                "it names {what}, {name:?}, which --no-external-files (external-files=off) forbids to open"
            )));
        }
        tracing::info!("{} names {what}, {name:?}; opening it", self.image.display());
        Ok(())
    }
}
