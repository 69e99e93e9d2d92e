//! What images name: other files and servers, which are opened because an image says so and not the user.
//!
//! Where a guest, or a stranger, has written an image, it may name any file that this user can read.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Fault, Result};

static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// From now on nothing that an image names is opened in this process, whatever [`crate::OpenOptions::no_external_files`] says.
pub fn forbid_external_files() {
    IS_FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Whether what the image at `image` names is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct External<'a> {
    pub(crate) image: &'a Path,
    pub(crate) is_allowed: bool,
}

impl External<'_> {
    /// Notes that `name` is about to be opened, or refuses that. `what` it is: "a backing file".
    pub(crate) fn ask(&self, what: &str, name: &str) -> Result<()> {
        if !self.is_allowed || IS_FORBIDDEN.load(Ordering::Relaxed) {
            return Err(Fault::refused(format!(
                "it names {what}, {name:?}, which is not opened, as --no-external-files (external-files=off) has it"
            )));
        }
        tracing::info!("{} names {what}, {name:?}, which is opened", self.image.display());
        Ok(())
    }
}
