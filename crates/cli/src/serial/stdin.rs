//! Standard input as the sender on a serial line, with the escape key.

use std::fs::File;
use std::io::{self, Read, Write};
use std::iter;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use ring3_core::input::Input;
use ring3_display::escape::{self, EscapeKeys, Key};
use ring3_display::tty::Stderr;
use ring3_vm::Door;
use rustix::fs::{FileType, fstat};
use tracing::{info, warn};

use super::{Line, Taker};

/// Bytes that the guest gets at a time. Its serial port always has room for them when it takes input.
const CHUNK: usize = 4096;

/// How long to wait for the other end of a pipe to be closed, so that all its bytes are known before the
/// machine runs.
const SCRIPT_WAIT: Duration = Duration::from_secs(1);

/// The pause after which bytes are offered again.
const AGAIN: Duration = Duration::from_millis(10);

/// Upper bound of the bytes of a script in a pipe.
const SCRIPT_MAX: usize = 16 << 20;

/// The origin of standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputFrom {
    /// A person at a terminal, who has the escape key.
    Terminal,
    /// A pipe or a file, whose bytes are all for the guest.
    Script,
}

/// Starts a thread that passes standard input to the guest until the input ends. The run continues after
/// that.
pub(super) fn start(from: InputFrom, line: Line) -> io::Result<()> {
    thread::Builder::new().name("stdin".into()).spawn(move || {
        let send = |input| match from {
            InputFrom::Script => line.sender.send(input),
            // A guest that reads nothing must not keep the escape key from working.
            InputFrom::Terminal => drop(line.sender.offer(input)),
        };
        if let Err(error) = read(io::stdin().lock(), from, &line, send) {
            warn!("the guest gets no more input: cannot read standard input: {error}");
        }
    })?;
    Ok(())
}

/// Starts a thread that passes standard input to `taker` until the input ends. Bytes that are not taken at
/// once wait.
pub(super) fn start_for(taker: Arc<dyn Taker>) -> io::Result<()> {
    thread::Builder::new().name("stdin".into()).spawn(move || {
        for bytes in arriving(io::stdin().lock()) {
            while !taker.offer(&bytes) {
                thread::sleep(AGAIN);
            }
        }
    })?;
    Ok(())
}

/// Puts standard input at `door`, if it is a file, or a pipe that is closed soon. The guest then receives it
/// as soon as it takes input. Returns false, and does nothing, if standard input is neither.
pub(super) fn put_script(line: &Line, door: &mut Door) -> io::Result<bool> {
    let stdin = io::stdin();
    match FileType::from_raw_mode(fstat(&stdin)?.st_mode) {
        FileType::RegularFile => {
            let file = File::from(stdin.as_fd().try_clone_to_owned()?);
            let line = line.clone();
            door.put_script(chunks(file).map(move |bytes| line.input(bytes)));
        }
        FileType::Fifo | FileType::Socket => {
            let pipe = File::from(stdin.as_fd().try_clone_to_owned()?);
            let bytes = read_pipe(pipe, line)?;
            let line = line.clone();
            door.put_script(chunks(io::Cursor::new(bytes)).map(move |bytes| line.input(bytes)));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns the bytes of `source` to its end in chunks of the same sizes, no matter when they arrive.
fn chunks(mut source: impl Read) -> impl Iterator<Item = Vec<u8>> {
    iter::from_fn(move || {
        let mut bytes = Vec::with_capacity(CHUNK);
        if let Err(error) = source.by_ref().take(CHUNK as u64).read_to_end(&mut bytes) {
            warn!("the guest gets no more input: cannot read standard input: {error}");
        }
        (!bytes.is_empty()).then_some(bytes)
    })
}

/// Reads `pipe` until it is closed. If that takes long, the rest goes to the guest as it arrives.
fn read_pipe(pipe: File, line: &Line) -> io::Result<Vec<u8>> {
    let (sender, receiver) = mpsc::sync_channel(0);
    let reader = thread::Builder::new().name("stdin".into());
    reader.spawn(move || {
        for bytes in arriving(pipe) {
            // This fails when the machine has ended.
            if sender.send(bytes).is_err() {
                return;
            }
        }
    })?;
    let deadline = Instant::now() + SCRIPT_WAIT;
    let mut script = Vec::new();
    while script.len() < SCRIPT_MAX {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(bytes) => script.extend(bytes),
            Err(RecvTimeoutError::Disconnected) => return Ok(script),
            Err(RecvTimeoutError::Timeout) => break,
        }
    }
    info!(
        "standard input is still open: its bytes from now on reach the guest at no fixed instruction"
    );
    let line = line.clone();
    thread::Builder::new().name("stdin-late".into()).spawn(move || {
        for bytes in receiver {
            line.sender.send(line.input(bytes));
        }
    })?;
    Ok(script)
}

/// Returns the bytes of `source` to its end as they arrive.
fn arriving(mut source: impl Read) -> impl Iterator<Item = Vec<u8>> {
    iter::from_fn(move || {
        let mut buffer = [0; CHUNK];
        loop {
            return match source.read(&mut buffer) {
                Ok(0) => None,
                Ok(length) => Some(buffer[..length].to_vec()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    warn!("the guest gets no more input: cannot read standard input: {error}");
                    None
                }
            };
        }
    })
}

/// Reads `source` to its end, or until the escape key ends the run.
fn read(
    mut source: impl Read,
    from: InputFrom,
    line: &Line,
    mut send: impl FnMut(Input),
) -> io::Result<()> {
    let mut keys = EscapeKeys::default();
    let mut buffer = [0; CHUNK];
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

/// Returns the bytes among `bytes`, which a person typed, that are for the guest, and whether that person
/// wants to quit.
fn typed(keys: &mut EscapeKeys, bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut for_guest = Vec::with_capacity(bytes.len());
    for byte in bytes {
        match keys.key(*byte) {
            Key::Guest(byte) => for_guest.push(byte),
            Key::Nothing | Key::Other(_) => {}
            Key::Quit => return (for_guest, true),
            Key::Help => {
                // A failure is ignored: without standard error nobody can read the help.
                let _ = write!(Stderr, "\n{}", escape::HELP);
            }
        }
    }
    (for_guest, false)
}

#[cfg(test)]
mod tests {
    use ring3_core::device::DeviceId;
    use ring3_core::input::DeviceInput;

    use super::*;

    fn inputs(from: InputFrom, bytes: &[u8]) -> Vec<Input> {
        let (sender, _door) = ring3_vm::door();
        let mut inputs = Vec::new();
        read(bytes, from, &Line { index: 1, sender }, |input| inputs.push(input)).unwrap();
        inputs
    }

    fn serial(bytes: &[u8]) -> Input {
        Input::Device { device: DeviceId::COM[1], input: DeviceInput::Serial(bytes.to_vec()) }
    }

    #[test]
    fn a_person_has_the_escape_key() {
        assert_eq!(
            inputs(InputFrom::Terminal, b"ls\x01\x01\x01xrm"),
            [serial(b"ls\x01"), Input::Quit]
        );
        assert_eq!(inputs(InputFrom::Terminal, b"\x01x"), [Input::Quit]);
    }

    /// A source that returns a few bytes at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = buffer.len().min(7);
            self.0.read(&mut buffer[..most])
        }
    }

    #[test]
    fn a_script_is_divided_in_the_same_way_whenever_it_comes() {
        let script: Vec<u8> = (0..10_000).map(|number| number as u8).collect();
        let divided: Vec<_> = chunks(Slow(&script)).collect();
        assert_eq!(divided, script.chunks(CHUNK).map(<[u8]>::to_vec).collect::<Vec<_>>());
        assert_eq!(arriving(Slow(&script)).flatten().collect::<Vec<_>>(), script);
    }

    #[test]
    fn a_script_sends_every_byte() {
        assert_eq!(inputs(InputFrom::Script, b"ls\x01x"), [serial(b"ls\x01x")]);
        assert_eq!(inputs(InputFrom::Script, b""), []);
    }
}
