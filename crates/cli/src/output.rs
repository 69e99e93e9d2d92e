//! Files, and standard output, that get bytes of the guest as soon as it sends them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use ring3_host::listener::inherited;

/// A file, or standard output, and its name in errors.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    name: String,
}

impl Output {
    /// Returns standard output.
    pub(crate) fn stdout() -> io::Result<Output> {
        Ok(Output { file: stdout()?, name: "standard output".to_owned() })
    }

    /// Opens the file at `path`, which is created or emptied.
    pub(crate) fn create(path: &Path) -> io::Result<Output> {
        Output::open(path, File::options().create(true).write(true).truncate(true))
    }

    /// Opens the file at `path` to write behind its present contents. It is created if it does not exist.
    pub(crate) fn append(path: &Path) -> io::Result<Output> {
        Output::open(path, File::options().create(true).append(true))
    }

    /// Opens the file at `path`. If the path is that of an inherited descriptor, the descriptor itself is
    /// used: opening it by its path would check the user's rights again, and the reader of a pipe would not
    /// see its end.
    fn open(path: &Path, options: &OpenOptions) -> io::Result<Output> {
        let given = path.strip_prefix("/proc/self/fd").or_else(|_| path.strip_prefix("/dev/fd"));
        let number = given.ok().and_then(|number| number.to_str()?.parse().ok());
        let file = match number {
            Some(number) => File::from(inherited(number)?),
            None => options.open(path)?,
        };
        Ok(Output { file, name: path.display().to_string() })
    }

    /// Writes all of `bytes`. An error says which file cannot be written.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.file).write_all(bytes).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot write to {}: {error}", self.name))
        })
    }
}

/// Returns standard output as a file. [`io::stdout`] is not used, since it would hold back incomplete lines,
/// such as a prompt.
pub(crate) fn stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}
