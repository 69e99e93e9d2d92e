//! What is behind the serial port COM1: standard input and output, or a file.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use ring3_core::input::{DeviceInput, Input};
use ring3_display::escape::{self, EscapeKeys, Key};
use ring3_display::tty::Stderr;
use ring3_vm::{Console, Sender};
use tracing::warn;

/// The name of the serial port's device in the machine.
const COM1: &str = "com1";
/// Its number in outputs.
const COM1_PORT: u8 = 0;

/// Where the bytes go that the guest sends.
#[derive(Debug)]
pub(crate) struct SerialOutput {
    /// Nowhere, if there is none.
    to: Option<File>,
    name: String,
}

impl SerialOutput {
    /// To standard output.
    pub(crate) fn stdout() -> io::Result<SerialOutput> {
        Ok(SerialOutput { to: Some(stdout()?), name: "standard output".to_owned() })
    }

    /// To the file at `path`, which is made or emptied.
    pub(crate) fn file(path: &Path) -> io::Result<SerialOutput> {
        Ok(SerialOutput { to: Some(File::create(path)?), name: path.display().to_string() })
    }

    /// Nowhere.
    pub(crate) fn null() -> SerialOutput {
        SerialOutput { to: None, name: "nowhere".to_owned() }
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("cannot write to {}: {error}", self.name))
    }
}

/// Standard output. Not by way of [`io::stdout`], which would hold back
/// what is no whole line: a prompt.
pub(crate) fn stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

impl Console for SerialOutput {
    fn serial(&mut self, port: u8, bytes: &[u8]) -> io::Result<()> {
        match &mut self.to {
            Some(file) if port == COM1_PORT => {
                file.write_all(bytes).map_err(|error| self.named(&error))
            }
            _ => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            Some(file) => file.flush().map_err(|error| self.named(&error)),
            None => Ok(()),
        }
    }
}

/// Who writes to standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputFrom {
    /// A person at a terminal, who has the escape key.
    Terminal,
    /// A pipe or a file, whose bytes are all for the guest.
    Script,
}

/// Starts a thread that sends what comes on standard input to the guest, until
/// it ends. The run goes on then.
pub(crate) fn read_stdin(from: InputFrom, sender: Sender) -> io::Result<()> {
    thread::Builder::new().name("stdin".into()).spawn(move || {
        let send = |input| match from {
            InputFrom::Script => sender.send(input),
            // A guest that reads nothing must not keep the escape key from being seen.
            InputFrom::Terminal => drop(sender.offer(input)),
        };
        if let Err(error) = read(io::stdin().lock(), from, send) {
            warn!("no more input for the guest: cannot read standard input: {error}");
        }
    })?;
    Ok(())
}

/// Reads `source` to its end or until the escape key says to quit.
fn read(mut source: impl Read, from: InputFrom, mut send: impl FnMut(Input)) -> io::Result<()> {
    let mut keys = EscapeKeys::default();
    let mut buffer = [0; 4096];
    loop {
        let bytes = match source.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => &buffer[..length],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let (for_guest, quit) = match from {
            InputFrom::Terminal => typed(&mut keys, bytes),
            InputFrom::Script => (bytes.to_vec(), false),
        };
        if !for_guest.is_empty() {
            let input = DeviceInput::Serial(for_guest);
            send(Input::Device { name: COM1.to_owned(), input });
        }
        if quit {
            send(Input::Quit);
            return Ok(());
        }
    }
}

/// What of `bytes`, which a person typed, is for the guest, and whether that
/// person wants to quit.
fn typed(keys: &mut EscapeKeys, bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut for_guest = Vec::with_capacity(bytes.len());
    for byte in bytes {
        match keys.key(*byte) {
            Key::Guest(byte) => for_guest.push(byte),
            Key::Nothing | Key::Other(_) => {}
            Key::Quit => return (for_guest, true),
            Key::Help => {
                // Who asked for help and has no standard error gets none.
                let _ = write!(Stderr, "\n{}", escape::HELP);
            }
        }
    }
    (for_guest, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(from: InputFrom, bytes: &[u8]) -> Vec<Input> {
        let mut inputs = Vec::new();
        read(bytes, from, |input| inputs.push(input)).unwrap();
        inputs
    }

    fn serial(bytes: &[u8]) -> Input {
        Input::Device { name: "com1".into(), input: DeviceInput::Serial(bytes.to_vec()) }
    }

    #[test]
    fn a_person_has_the_escape_key() {
        assert_eq!(
            inputs(InputFrom::Terminal, b"ls\x01\x01\x01xrm"),
            [serial(b"ls\x01"), Input::Quit]
        );
        assert_eq!(inputs(InputFrom::Terminal, b"\x01x"), [Input::Quit]);
    }

    #[test]
    fn a_script_sends_every_byte() {
        assert_eq!(inputs(InputFrom::Script, b"ls\x01x"), [serial(b"ls\x01x")]);
        assert_eq!(inputs(InputFrom::Script, b""), []);
    }
}
