//! The sockets at which machines connect to a switch.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ring3_host::listener::Listener;
use ring3_host::socket::{SocketFile, listen_at};
use tracing::warn;

use super::port::{Newcomer, Switch};
use crate::error::NetError;
use crate::outgoing::Outgoing;
use crate::stream::{self, Connection, Connector, StreamAddress, StreamSink, listen_on_this_host};

/// The pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket to which machines connect.
#[derive(Debug)]
pub struct SwitchServer {
    switch: Switch,
    listener: Listener,
    address: StreamAddress,
    file: Mutex<Option<SocketFile>>,
}

/// A connector with no connection besides the first.
struct Nobody;

impl Connector for Nobody {
    fn next(&mut self, _outgoing: &Outgoing<StreamSink>) -> Option<Connection> {
        None
    }
}

/// Passes each machine that `accept` returns to `take`, with a number of its own, as far as `switch` has
/// room.
pub(super) fn take_in<T: AsFd>(
    switch: &Switch,
    accept: impl Fn() -> Result<T, NetError>,
    take: impl Fn(T, Newcomer, u64) -> Result<(), NetError>,
) -> ! {
    for number in 1_u64.. {
        let taken = accept().and_then(|machine| {
            if let Some(newcomer) = switch.admit(&machine)? {
                return take(machine, newcomer, number);
            }
            warn!("too many machines are connected; another one is refused");
            Ok(())
        });
        if let Err(error) = taken {
            warn!("a machine cannot be connected: {error}");
            thread::sleep(PAUSE);
        }
    }
    unreachable!("the numbers of machines do not end");
}

impl SwitchServer {
    /// Listens at `address` for machines of `switch`.
    pub fn listen(address: &StreamAddress, switch: Switch) -> Result<SwitchServer, NetError> {
        let mut listener = listen_on_this_host("a switch", address)?;
        let file = listener.take_file();
        Ok(SwitchServer { switch, listener, address: address.clone(), file: Mutex::new(file) })
    }

    /// Lets machines in for as long as the process lives.
    pub fn serve(&self) -> ! {
        let listening = |source| NetError::Listen { address: self.address.to_string(), source };
        let accept = || self.listener.wait().map_err(listening);
        take_in(&self.switch, accept, |stream, newcomer, number| {
            self.take(stream.into(), newcomer, number)
        })
    }

    /// Removes the socket's file, so that nobody else can connect.
    pub fn close(&self) {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn take(&self, socket: OwnedFd, newcomer: Newcomer, number: u64) -> Result<(), NetError> {
        let connection = Connection::new(socket).map_err(NetError::Conversation)?;
        let name = format!("machine {number}");
        self.switch.add_guest(&name, newcomer, |card| stream::start(card, connection, Nobody))
    }
}

/// Sends the status of `switch`, as JSON, to everyone who connects to a socket at `path`, in a thread of its
/// own. The socket exists until the returned value is dropped.
pub fn tell_status(path: &Path, switch: Switch) -> Result<SocketFile, NetError> {
    let (listener, file) = listen_at(path)?;
    listener.set_nonblocking(false).map_err(NetError::Conversation)?;
    thread::Builder::new()
        .name("status".to_owned())
        .spawn(move || tell_all(&listener, &switch))
        .map_err(NetError::Thread)?;
    Ok(file)
}

fn tell_all(listener: &UnixListener, switch: &Switch) {
    for client in listener.incoming() {
        let told = client.and_then(|mut client| {
            client.set_write_timeout(Some(Duration::from_secs(1)))?;
            let text = serde_json::to_string(&switch.status())?;
            client.write_all(text.as_bytes())
        });
        if let Err(error) = told {
            warn!("the status cannot be sent to a client: {error}");
            thread::sleep(PAUSE);
        }
    }
}
