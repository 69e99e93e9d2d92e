//! The other end of the suite's network benchmarks (`guest/suite/connections.c` describes the protocol): what
//! the first paper calls benchmarkserver.
//!
//! Each client has a thread and a buffer of its own, a bounded number of bytes and a bounded time. If there
//! are too many clients, the ones that are silent have to go ([`ring3_host::admission`]).

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ring3_host::admission::{Admission, Room};
use ring3_host::deadline::Deadline;
use ring3_host::listener::Listener;
use ring3_host::stream::Stream;

use crate::arguments::ServerArguments;
use crate::{BenchError, show};

const PING: u8 = b'p';
const SEND: u8 = b's';
const RECEIVE: u8 = b'r';

/// The bytes that are read or written at once.
const RECORD: usize = 65536;
/// Upper bound of the bytes of a connection.
const MOST_BYTES: u32 = 1 << 30;
/// Upper bound of the time of a connection: NE2000s in interpreters take minutes.
const MOST_TIME: Duration = Duration::from_secs(600);
/// All guests behind this host's NATs have the same address.
const ROOM: Room = Room { all: 64, of_a_peer: 64, idle: Some(Duration::from_secs(10)) };

/// How long to wait after the host had no descriptors or memory for another client.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until the process ends.
pub(crate) fn serve(arguments: &ServerArguments) -> Result<(), BenchError> {
    let server = Server::listen(arguments.listen)?;
    show(&format!("Listening at {}", server.address()?))?;
    server.run();
    Ok(())
}

/// A server that listens.
pub(crate) struct Server(Listener);

impl Server {
    pub(crate) fn listen(address: SocketAddr) -> Result<Server, BenchError> {
        Listener::tcp(address).map(Server).map_err(|error| BenchError::Listen(address, error))
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_address()
    }

    /// Serves until the listener is closed.
    pub(crate) fn run(&self) {
        let admission = Admission::new(ROOM);
        loop {
            match self.0.wait() {
                Ok(client) => admit(&admission, client),
                Err(error) if is_passing(&error) => thread::sleep(PAUSE),
                Err(_) => return,
            }
        }
    }
}

/// Returns whether a failure to accept a client says nothing about the next one (accept(2)).
fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let passing = [Errno::CONNABORTED, Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| passing.contains(&errno))
}

/// Serves a client in a thread, or hangs up.
fn admit(admission: &Arc<Admission>, client: Stream) {
    let Ok(Some(admitted)) = admission.admit(&client) else { return };
    let talk = move || {
        let ended = talk(&mut Deadline::new(&client, MOST_TIME), || admitted.is_active());
        if let Err(error) = ended {
            tracing::debug!("a client of the benchmarks: {error}");
        }
    };
    if let Err(error) = thread::Builder::new().spawn(talk) {
        tracing::warn!("no thread for a client: {error}");
    }
}

/// Does what a client asks for. `is_active` is called when something has come from it or gone to it.
fn talk(client: &mut (impl Read + Write), is_active: impl Fn()) -> io::Result<()> {
    let [kind] = read(client)?;
    is_active();
    match kind {
        PING => client.write_all(&[PING]),
        SEND => {
            let bytes = length(client)?;
            take(client, bytes, is_active)?;
            client.write_all(&[SEND])
        }
        RECEIVE => {
            let bytes = length(client)?;
            give(client, bytes, is_active)
        }
        _ => Err(io::Error::other(format!("it asks for {kind:#04x}"))),
    }
}

fn read<const N: usize>(client: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads the number of bytes that are to come or to go.
fn length(client: &mut impl Read) -> io::Result<usize> {
    let bytes = u32::from_le_bytes(read(client)?);
    if bytes > MOST_BYTES || bytes % 4 != 0 {
        return Err(io::Error::other(format!("it wants {bytes} bytes")));
    }
    Ok(bytes as usize)
}

/// The record that begins at byte `at`, of up to `bytes` bytes: each 32-bit word is its own number.
fn record(at: usize, bytes: usize) -> Vec<u8> {
    let words = at / 4..(at + bytes.min(RECORD)) / 4;
    words.flat_map(|word| (word as u32).to_le_bytes()).collect()
}

/// Reads `bytes` bytes, each of which must be the right one.
fn take(client: &mut impl Read, bytes: usize, is_active: impl Fn()) -> io::Result<()> {
    let mut buffer = vec![0; RECORD.min(bytes)];
    for at in (0..bytes).step_by(RECORD) {
        let expected = record(at, bytes - at);
        let buffer = &mut buffer[..expected.len()];
        client.read_exact(buffer)?;
        if *buffer != *expected {
            return Err(io::Error::other(format!("wrong bytes after {at}")));
        }
        is_active();
    }
    Ok(())
}

/// Writes `bytes` bytes.
fn give(client: &mut impl Write, bytes: usize, is_active: impl Fn()) -> io::Result<()> {
    for at in (0..bytes).step_by(RECORD) {
        client.write_all(&record(at, bytes - at))?;
        is_active();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    /// A client that has written its part, and collects what is written to it.
    struct Client<'a>(&'a [u8], Vec<u8>);

    impl Read for Client<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Client<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the answer to a client that sends `bytes`, or the error that ends its connection.
    fn answer(bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut client = Client(bytes, Vec::new());
        talk(&mut client, || ()).map_err(|error| error.to_string())?;
        Ok(client.1)
    }

    fn request(kind: u8, bytes: u32, data: &[u8]) -> Vec<u8> {
        [&[kind], &bytes.to_le_bytes()[..], data].concat()
    }

    #[test]
    fn clients_get_what_they_ask_for() {
        assert_eq!(answer(b"p").unwrap(), b"p");
        let bytes: Vec<u8> = (0..20000u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(answer(&request(RECEIVE, 80000, &[])).unwrap(), bytes);
        assert_eq!(answer(&request(SEND, 80000, &bytes)).unwrap(), b"s");
        assert_eq!(answer(&request(SEND, 0, &[])).unwrap(), b"s");
    }

    #[test]
    fn hostile_clients_get_nothing() {
        for bytes in [&b""[..], b"x", b"s\0\0", &request(RECEIVE, 3, &[])] {
            assert!(answer(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(
            answer(&request(RECEIVE, u32::MAX - 3, &[])).unwrap_err(),
            "it wants 4294967292 bytes"
        );
        assert_eq!(answer(&request(SEND, 8, &[0; 8])).unwrap_err(), "wrong bytes after 0");
    }

    /// The room is full of clients that say nothing; a newcomer is served when their time to speak is over.
    #[test]
    fn silent_clients_make_room() {
        let server = Server::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = server.address().unwrap();
        thread::spawn(move || server.run());
        let silent: Vec<_> = (0..ROOM.all).map(|_| TcpStream::connect(address).unwrap()).collect();
        let served = || {
            let mut client = TcpStream::connect(address)?;
            client.write_all(&[PING])?;
            read(&mut client)
        };
        while served().ok() != Some([PING]) {
            thread::sleep(PAUSE);
        }
        drop(silent);
    }
}
