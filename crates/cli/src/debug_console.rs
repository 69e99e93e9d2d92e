//! What is behind the debug console, port 402h: the log, standard output, or a file.

use std::io;

use tracing::debug;

use crate::output::Output;

/// A message without an end is cut here.
const LINE_MAX: usize = 1024;

/// Where the bytes go that firmware writes for those who debug it.
#[derive(Debug)]
pub(crate) enum DebugOutput {
    /// To the log, as lines of target `ring3::firmware`.
    Log(Vec<u8>),
    /// To a file, or to standard output.
    Output(Output),
}

impl DebugOutput {
    /// To the log.
    pub(crate) fn log() -> DebugOutput {
        DebugOutput::Log(Vec::new())
    }

    /// Firmware has written a byte.
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

    /// The run has ended: logs what came last, though it has no end of line.
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
    fn a_message_without_an_end_does_not_grow_for_ever() {
        let mut output = DebugOutput::log();
        for _ in 0..3 * LINE_MAX {
            output.write(b'x').unwrap();
        }
        let DebugOutput::Log(line) = output else { panic!("it is the log") };
        assert!(line.len() < LINE_MAX);
    }
}
