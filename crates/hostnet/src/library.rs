//! Loads libraries of the host when they are needed.

use libloading::Library;
use thiserror::Error;

/// The error for a library that cannot be loaded.
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

/// A library, its purpose and its names.
pub(crate) struct Wanted {
    pub(crate) what: &'static str,
    pub(crate) library: &'static str,
    pub(crate) package: &'static str,
    /// The file names of this version of its interface.
    pub(crate) names: &'static [&'static str],
}

impl Wanted {
    /// Loads the library.
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

    /// Makes the error that says that `source` has gone wrong.
    pub(crate) fn missing(&self, source: libloading::Error) -> NoLibrary {
        let Wanted { what, library, package, .. } = self;
        NoLibrary { what, library, package, source }
    }
}
