//! The back-end of the debug console, port 402h: the log, standard output, or a file.

use std::io;

use tracing::debug;

use crate::output::Output;

/// A longer message is cut here.
const LINE_MAX: usize = 1024;

/// The target of the bytes that firmware writes for debugging.
#[derive(Debug)]
pub(crate) enum DebugOutput {
    /// The log, as lines of target `ring3::firmware`.
    Log(Vec<u8>),
    /// A file, or standard output.
    Output(Output),
}

impl DebugOutput {
    /// Returns a back-end that logs.
    pub(crate) fn log() -> DebugOutput {
        DebugOutput::Log(Vec::new())
    }

    /// Takes a byte from the firmware.
    pub(crate) fn write(&mut self, byte: u8) -> io::Result<()> {
        match self {
            DebugOutput::Log(line) => {
                if byte != b'\n' {
                    line.push(byte);
                }
                if byte == b'\n' || line.len() >= LINE_MAX {
                    log(line);
                    line.clear();
                }
                Ok(())
            }
            DebugOutput::Output(output) => output.write(&[byte]),
        }
    }

    /// Logs the last line at the end of the run, even if it is incomplete.
    pub(crate) fn finish(self) {
        if let DebugOutput::Log(line) = self
            && !line.is_empty()
        {
            log(&line);
        }
    }
}

fn log(line: &[u8]) {
    debug!(target: "ring3::firmware", "{}", String::from_utf8_lossy(line).trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_an_end_takes_bounded_memory() {
        let mut output = DebugOutput::log();
        for _ in 0..3 * LINE_MAX {
            output.write(b'x').unwrap();
        }
        let DebugOutput::Log(line) = output else { panic!("it is the log") };
        assert!(line.len() < LINE_MAX);
    }
}
