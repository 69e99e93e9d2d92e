//! What is behind the debug console, port 402h: the log, standard output, or a file.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use tracing::debug;

/// A message without an end is cut here.
const LINE_MAX: usize = 1024;

/// Where the bytes go that firmware writes for those who debug it.
#[derive(Debug)]
pub(crate) enum DebugOutput {
    /// To the log, as lines of target `ring3::firmware`.
    Log(Vec<u8>),
    /// To a file, or to standard output, of that name.
    File(File, String),
}

impl DebugOutput {
    /// To the log.
    pub(crate) fn log() -> DebugOutput {
        DebugOutput::Log(Vec::new())
    }

    /// To standard output.
    pub(crate) fn stdout() -> io::Result<DebugOutput> {
        let to = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(DebugOutput::File(to, "standard output".to_owned()))
    }

    /// To the file at `path`, which is made or emptied.
    pub(crate) fn file(path: &Path) -> io::Result<DebugOutput> {
        Ok(DebugOutput::File(File::create(path)?, path.display().to_string()))
    }

    /// Firmware has written a byte.
    pub(crate) fn write(&mut self, byte: u8) -> io::Result<()> {
        match self {
            DebugOutput::Log(line) => {
                if byte != b'\n' {
                    line.push(byte);
                }
                if byte == b'\n' || line.len() >= LINE_MAX {
                    let text = String::from_utf8_lossy(line);
                    debug!(target: "ring3::firmware", "{}", text.trim_end());
                    line.clear();
                }
                Ok(())
            }
            DebugOutput::File(file, name) => file.write_all(&[byte]).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot write to {name}: {error}"))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_an_end_does_not_grow_for_ever() {
        let mut output = DebugOutput::log();
        for _ in 0..3 * LINE_MAX {
            output.write(b'x').unwrap();
        }
        let DebugOutput::Log(line) = output else { panic!("it is the log") };
        assert!(line.len() < LINE_MAX);
    }
}
