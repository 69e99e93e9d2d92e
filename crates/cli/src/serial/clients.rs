//! Programs at the other end of a serial line, which come and go: clients of a socket, one at a time; the
//! peer of a connection that ring3 makes; or programs that open a pseudoterminal.
//!
//! The machine never waits for them. The guest's bytes go to a backlog, from which a thread writes to the
//! client. Without a client, or with one that reads too slowly, the backlog keeps the last 256 KiB, so that a
//! client that comes late sees what happened before. Another thread reads the client's bytes, and waits while
//! the guest does not take them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ring3_host::listener::Listener;
use ring3_host::socket::SocketFile;
use ring3_host::{stream, telnet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{debug, warn};

use super::terminals::Terminal;
use super::{SerialError, Taker};
use crate::characters::{Close, Connections};

/// Upper bound of the bytes that wait for a client; beyond it, the oldest are lost.
const BACKLOG_MAX: usize = 256 << 10;
/// Bytes that are written at once.
const CHUNK: usize = 4096;
/// How long the end of the process waits for a client to take the last output.
const PARTING: Duration = Duration::from_secs(2);
/// The pause after which a reader offers bytes again for which the machine had no room.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The host's side of a serial line with clients. When it is dropped, the client is disconnected and no other one let in.
#[derive(Debug)]
pub(crate) struct Clients {
    shared: Arc<Shared>,
    /// What ends the waiting for connections, if there are any.
    close: Option<Close>,
    /// The socket's file, which is removed when the run ends.
    socket: Mutex<Option<SocketFile>>,
    /// The other end of a pseudoterminal. It is held open so that the line stays up, and keeps its settings,
    /// while no program has it open.
    _terminal: Option<OwnedFd>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether clients speak the telnet protocol.
    telnet: bool,
}

#[derive(Debug, Default)]
struct State {
    backlog: VecDeque<u8>,
    /// The present client.
    client: Option<Arc<File>>,
    /// Whether some bytes are neither in the backlog nor with the client.
    is_writing: bool,
    /// Whether nothing more is to be written.
    is_closed: bool,
}

impl State {
    /// Drops the oldest bytes if there are too many.
    fn limit_backlog(&mut self) {
        let lost = self.backlog.len().saturating_sub(BACKLOG_MAX);
        self.backlog.drain(..lost);
    }
}

impl Shared {
    /// Locks the state. A thread that panicked has left it consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the client, unless there is to be none any more.
    fn connect(&self, client: Arc<File>) {
        let mut state = self.lock();
        if state.is_closed {
            stream::hang_up(&client);
        } else {
            state.client = Some(client);
            self.changed.notify_all();
        }
    }

    /// Disconnects `client`, or notes that it has gone.
    fn hang_up(&self, client: &Arc<File>) {
        let mut state = self.lock();
        if state.client.as_ref().is_some_and(|present| Arc::ptr_eq(present, client)) {
            state.client = None;
            self.changed.notify_all();
        }
        stream::hang_up(client);
    }
}

impl Clients {
    /// Serves clients of a new Unix socket at `path`.
    pub(super) fn on_socket(path: &Path, taker: Arc<dyn Taker>) -> Result<Clients, SerialError> {
        Clients::one_by_one(Connections::at(Listener::unix(path)?), false, taker)
    }

    /// Serves one client after the other.
    pub(crate) fn one_by_one(
        Connections { next, file, close }: Connections,
        telnet: bool,
        taker: Arc<dyn Taker>,
    ) -> Result<Clients, SerialError> {
        let shared = Arc::new(Shared { telnet, ..Shared::default() });
        let for_reader = shared.clone();
        spawn("serial socket", move || accept(next, &for_reader, &*taker))?;
        start_writer(&shared)?;
        Ok(Clients { shared, close: Some(close), socket: Mutex::new(file), _terminal: None })
    }

    /// Serves a single client at the other end of `input` and `output`.
    pub(crate) fn on_files(
        input: File,
        output: File,
        taker: Arc<dyn Taker>,
    ) -> Result<Clients, SerialError> {
        let shared = Arc::new(Shared::default());
        shared.connect(Arc::new(output));
        let for_reader = shared.clone();
        spawn("serial input", move || read(&input, &for_reader, &*taker))?;
        start_writer(&shared)?;
        Ok(Clients { shared, close: None, socket: Mutex::default(), _terminal: None })
    }

    /// Serves programs that open `terminal`.
    pub(crate) fn on_terminal(
        terminal: Terminal,
        taker: Arc<dyn Taker>,
    ) -> Result<Clients, SerialError> {
        let Terminal { master, other, .. } = terminal;
        let client = Arc::new(File::from(master));
        let shared = Arc::new(Shared::default());
        shared.connect(client.clone());
        let for_reader = shared.clone();
        spawn("serial pty", move || read(&client, &for_reader, &*taker))?;
        start_writer(&shared)?;
        Ok(Clients { shared, close: None, socket: Mutex::default(), _terminal: Some(other) })
    }

    /// Takes `bytes` from the guest.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let mut state = self.shared.lock();
        state.backlog.extend(bytes);
        state.limit_backlog();
        self.shared.changed.notify_all();
    }

    /// Waits until the client has received all output of the guest, for two seconds at most.
    pub(super) fn finish(&self) {
        let is_busy = |state: &mut State| {
            state.client.is_some() && (state.is_writing || !state.backlog.is_empty())
        };
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), PARTING, is_busy);
        // The result does not matter: the client takes no more, or a thread has panicked and said so.
        drop(waited);
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        if let Some(close) = &self.close {
            close.close();
        }
        let mut state = self.shared.lock();
        state.is_closed = true;
        if let Some(client) = state.client.take() {
            stream::hang_up(&client);
        }
        self.shared.changed.notify_all();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), SerialError> {
    thread::Builder::new().name(name.into()).spawn(run).map_err(SerialError::Thread)?;
    Ok(())
}

/// Starts the thread that writes the backlog to the present client.
fn start_writer(shared: &Arc<Shared>) -> Result<(), SerialError> {
    let shared = shared.clone();
    spawn("serial output", move || {
        while let Some((client, bytes)) = next_chunk(&shared) {
            let sent = if shared.telnet {
                let escaped = telnet::escaped(&bytes);
                // The escaped bytes do not tell which of the original ones the client has taken, so none are
                // kept.
                send(&client, &escaped).map_err(|(error, _)| (error, &bytes[..0]))
            } else {
                send(&client, &bytes)
            };
            let mut state = shared.lock();
            state.is_writing = false;
            if let Err((_, unsent)) = &sent {
                // They are for the next client.
                unsent.iter().rev().for_each(|byte| state.backlog.push_front(*byte));
                state.limit_backlog();
            }
            drop(state);
            shared.changed.notify_all();
            if let Err((error, _)) = sent {
                debug!("the serial port's client is disconnected: {error}");
                shared.hang_up(&client);
            }
        }
    })
}

/// Sends `bytes` to `client`. An error comes with the bytes that the client has not taken.
fn send<'a>(mut client: &File, mut bytes: &'a [u8]) -> Result<(), (io::Error, &'a [u8])> {
    while !bytes.is_empty() {
        match client.write(bytes) {
            Ok(0) => return Err((ErrorKind::WriteZero.into(), bytes)),
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err((error, bytes)),
        }
    }
    Ok(())
}

/// Waits until there are bytes to write and a client to take them. Returns None if nothing more is to be written.
fn next_chunk(shared: &Shared) -> Option<(Arc<File>, Vec<u8>)> {
    let mut state = shared.lock();
    while !state.is_closed {
        if let Some(client) = state.client.clone()
            && !state.backlog.is_empty()
        {
            let length = state.backlog.len().min(CHUNK);
            state.is_writing = true;
            return Some((client, state.backlog.drain(..length).collect()));
        }
        state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    None
}

/// Lets clients in, one after the other.
fn accept(mut next: impl FnMut() -> io::Result<OwnedFd>, shared: &Shared, taker: &dyn Taker) {
    while let Some(connection) = next_connection(&mut next, "the serial port") {
        let client = Arc::new(File::from(connection));
        if shared.telnet && send(&client, &telnet::GREETING).is_err() {
            continue;
        }
        shared.connect(client.clone());
        read(&client, shared, taker);
        // A client that sends no more may still want to read.
        while !has_hung_up(&client, None) {}
        shared.hang_up(&client);
    }
}

/// Waits for the next connection to `place`. Returns None if there will be no more, which is logged unless there was to be
/// only one.
pub(crate) fn next_connection(
    next: &mut impl FnMut() -> io::Result<OwnedFd>,
    place: &str,
) -> Option<OwnedFd> {
    loop {
        match next() {
            Ok(connection) => return Some(connection),
            // The client has gone in the meantime.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            // The connection is made only once.
            Err(error) if error.kind() == ErrorKind::NotConnected => return None,
            Err(error) => {
                warn!("no more clients can connect to {place}: {error}");
                return None;
            }
        }
    }
}

/// Passes the bytes of `client` to the machine until there are no more.
fn read(client: &File, shared: &Shared, taker: &dyn Taker) {
    let mut filter = telnet::Filter::default();
    let mut buffer = [0; CHUNK];
    let mut source = client;
    loop {
        let length = match source.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => {
                debug!("nothing more can be read from the serial port's client: {error}");
                return;
            }
        };
        let bytes = &buffer[..length];
        let bytes = if shared.telnet { filter.data(bytes) } else { bytes.to_vec() };
        while !bytes.is_empty() && !taker.offer(&bytes) {
            // A guest that takes no input must not keep the next client out.
            if has_hung_up(client, Some(&AGAIN)) {
                return;
            }
        }
    }
}

/// Waits until `client` has hung up, at most for `timeout`. Returns whether it has.
pub(crate) fn has_hung_up(client: &File, timeout: Option<&Timespec>) -> bool {
    // poll(2) reports a hang-up or an error even if no events are requested.
    let mut polled = [PollFd::new(client, PollFlags::empty())];
    // An error means an interruption by a signal; the caller asks again.
    matches!(poll(&mut polled, timeout), Ok(1..))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use ring3_vm::{Door, door};

    use super::*;

    fn line() -> (super::super::Line, Door) {
        let (sender, door) = door();
        (super::super::Line { index: 0, sender }, door)
    }

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("ring3-serial-{}-{name}", std::process::id()))
    }

    /// Returns the next input of the machine.
    fn taken(door: &mut Door) -> Vec<u8> {
        use ring3_core::input::{DeviceInput, Input};

        door.wait(None, |_| true);
        match door.take(|_| true) {
            Some(Input::Device { input: DeviceInput::Serial(bytes), .. }) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn clients_that_connect_in_turn_miss_nothing() {
        let (path, (line, mut door)) = (path("come"), line());
        let clients = Clients::on_socket(&path, Arc::new(line)).unwrap();
        clients.write(b"early ");
        for word in [b"one", b"two"] {
            let mut client = UnixStream::connect(&path).unwrap();
            client.write_all(word).unwrap();
            assert_eq!(taken(&mut door), word);
            clients.write(word);
            let mut seen = vec![0; if word == b"one" { 9 } else { 3 }];
            client.read_exact(&mut seen).unwrap();
            assert!(seen.ends_with(word), "{seen:?}");
        }
        clients.finish();
        assert!(!path.exists());
    }

    #[test]
    fn output_after_a_client_has_left_goes_to_the_next_one() {
        let (path, (line, mut door)) = (path("gone"), line());
        let clients = Clients::on_socket(&path, Arc::new(line)).unwrap();
        for number in 0..100 {
            let mut gone = UnixStream::connect(&path).unwrap();
            gone.write_all(b"!").unwrap();
            assert_eq!(taken(&mut door), b"!");
            drop(gone);
            clients.write(&[number]);
            let mut seen = [0];
            UnixStream::connect(&path).unwrap().read_exact(&mut seen).unwrap();
            assert_eq!(seen, [number]);
        }
    }

    #[test]
    fn a_client_that_has_stopped_sending_still_receives() {
        let (path, (line, mut door)) = (path("half"), line());
        let clients = Clients::on_socket(&path, Arc::new(line)).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"?").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(taken(&mut door), b"?");
        clients.write(b"answer");
        let mut seen = [0; 6];
        client.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"answer");
    }

    #[test]
    fn a_client_that_does_not_read_does_not_block_the_guest() {
        let (path, (line, _door)) = (path("deaf"), line());
        let clients = Clients::on_socket(&path, Arc::new(line)).unwrap();
        let deaf = UnixStream::connect(&path).unwrap();
        for _ in 0..4096 {
            clients.write(&[b'x'; 1024]);
        }
        assert!(clients.shared.lock().backlog.len() <= BACKLOG_MAX);
        drop(deaf);
        clients.write(b"end");
        let mut next = UnixStream::connect(&path).unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"end") {
            let mut chunk = [0; 4096];
            let length = next.read(&mut chunk).unwrap();
            assert_ne!(length, 0);
            seen.extend(&chunk[..length]);
        }
    }

    #[test]
    fn a_guest_that_does_not_read_does_not_keep_clients_out() {
        let (path, (line, _door)) = (path("full"), line());
        let clients = Clients::on_socket(&path, Arc::new(line)).unwrap();
        let mut eager = UnixStream::connect(&path).unwrap();
        eager.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        // This ends when neither the machine nor the socket has room.
        while eager.write(&[0; CHUNK]).is_ok() {}
        drop(eager);
        let mut next = UnixStream::connect(&path).unwrap();
        clients.write(b"x");
        let mut seen = [0];
        next.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"x");
    }

    #[test]
    fn a_pseudoterminal_passes_every_byte() {
        let (line, mut door) = line();
        let terminal = Terminal::open().unwrap();
        let name = terminal.name.clone();
        let clients = Clients::on_terminal(terminal, Arc::new(line)).unwrap();
        for _ in 0..2 {
            let mut terminal = File::options().read(true).write(true).open(&name).unwrap();
            terminal.write_all(b"\x03\r\n\x00").unwrap();
            assert_eq!(taken(&mut door), b"\x03\r\n\x00");
            clients.write(b"\r\n\x04\xff");
            let mut seen = [0; 4];
            terminal.read_exact(&mut seen).unwrap();
            assert_eq!(&seen, b"\r\n\x04\xff");
        }
    }
}
