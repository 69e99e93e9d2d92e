//! Libraries of the host that are loaded when they are needed.

use libloading::Library;
use thiserror::Error;

/// A library is not there.
#[derive(Debug, Error)]
#[error(
    "{what} needs {library}, which cannot be loaded: {source}; install it (Debian and Ubuntu: {package})"
)]
pub struct NoLibrary {
    what: &'static str,
    library: &'static str,
    package: &'static str,
    source: libloading::Error,
}

/// A library: what it is for, and how it is found.
pub(crate) struct Wanted {
    pub(crate) what: &'static str,
    pub(crate) library: &'static str,
    pub(crate) package: &'static str,
    /// The names under which its kind of interface goes.
    pub(crate) names: &'static [&'static str],
}

impl Wanted {
    /// Loads it.
    pub(crate) fn load(&self) -> Result<Library, NoLibrary> {
        let mut result = None;
        for name in self.names {
            // SAFETY: these libraries do nothing when they are loaded.
            match unsafe { Library::new(*name) } {
                Ok(library) => return Ok(library),
                Err(error) => result = Some(error),
            }
        }
        Err(self.missing(result.expect("it has names")))
    }

    /// What is said when `source` has gone wrong.
    pub(crate) fn missing(&self, source: libloading::Error) -> NoLibrary {
        let Wanted { what, library, package, .. } = self;
        NoLibrary { what, library, package, source }
    }
}
