//! Standard input as the sender on a serial line, with the escape key.

use std::io::{self, Read, Write};
use std::thread;

use ring3_core::input::Input;
use ring3_display::escape::{self, EscapeKeys, Key};
use ring3_display::tty::Stderr;
use tracing::warn;

use super::Line;

/// Who writes to standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputFrom {
    /// A person at a terminal, who has the escape key.
    Terminal,
    /// A pipe or a file, whose bytes are all for the guest.
    Script,
}

/// Starts a thread that sends what comes on standard input to the guest, until
/// it ends. The run goes on then.
pub(super) fn start(from: InputFrom, line: Line) -> io::Result<()> {
    thread::Builder::new().name("stdin".into()).spawn(move || {
        let send = |input| match from {
            InputFrom::Script => line.sender.send(input),
            // A guest that reads nothing must not keep the escape key from being seen.
            InputFrom::Terminal => drop(line.sender.offer(input)),
        };
        if let Err(error) = read(io::stdin().lock(), from, &line, send) {
            warn!("no more input for the guest: cannot read standard input: {error}");
        }
    })?;
    Ok(())
}

/// Reads `source` to its end or until the escape key says to quit.
fn read(
    mut source: impl Read,
    from: InputFrom,
    line: &Line,
    mut send: impl FnMut(Input),
) -> io::Result<()> {
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
            send(line.input(for_guest));
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
    use ring3_core::input::DeviceInput;

    use super::*;

    fn inputs(from: InputFrom, bytes: &[u8]) -> Vec<Input> {
        let (sender, _door) = ring3_vm::door();
        let mut inputs = Vec::new();
        read(bytes, from, &Line { index: 1, sender }, |input| inputs.push(input)).unwrap();
        inputs
    }

    fn serial(bytes: &[u8]) -> Input {
        Input::Device { name: "com2".into(), input: DeviceInput::Serial(bytes.to_vec()) }
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
