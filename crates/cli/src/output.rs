//! Files, and standard output, to which bytes of the guest go as soon as they come.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use ring3_host::listener::inherited;

/// A file, or standard output, and what errors call it.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    name: String,
}

impl Output {
    /// Standard output.
    pub(crate) fn stdout() -> io::Result<Output> {
        Ok(Output { file: stdout()?, name: "standard output".to_owned() })
    }

    /// The file at `path`, which is made or emptied.
    pub(crate) fn create(path: &Path) -> io::Result<Output> {
        Output::open(path, File::options().create(true).write(true).truncate(true))
    }

    /// The same, but that what is in the file stays before it.
    pub(crate) fn append(path: &Path) -> io::Result<Output> {
        Output::open(path, File::options().create(true).append(true))
    }

    /// A file that this process was given open is used as it is: opened by its path, it would be asked whether this user may open it, and
    /// a pipe would not know its end.
    fn open(path: &Path, options: &OpenOptions) -> io::Result<Output> {
        let given = path.strip_prefix("/proc/self/fd").or_else(|_| path.strip_prefix("/dev/fd"));
        let number = given.ok().and_then(|number| number.to_str()?.parse().ok());
        let file = match number {
            Some(number) => File::from(inherited(number)?),
            None => options.open(path)?,
        };
        Ok(Output { file, name: path.display().to_string() })
    }

    /// Writes all of `bytes`; an error says what cannot be written to.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.file).write_all(bytes).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot write to {}: {error}", self.name))
        })
    }
}

/// Standard output. Not by way of [`io::stdout`], which would hold back
/// what is no whole line: a prompt.
pub(crate) fn stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}
