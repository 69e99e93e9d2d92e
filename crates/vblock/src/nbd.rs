//! A server for Network Block Device (doc/proto.md of the NBD project), with fixed newstyle negotiation,
//! structured replies and block status.
//!
//! Each client of vblock can have an NBD server of its own, at an address that only this client is told. Its
//! exports are the devices to which the client has a right. The protocol has no passwords, so a TCP address
//! must belong to this host alone.
//!
//! * [`handshake`]: the choice of an export; [`transmission`]: requests and replies;
//! * `execution`: the effects of a request; `outbox`: replies that have yet to go out; `budget`: the memory
//!   that all connections share; `bell`: the descriptor that wakes a connection's thread.

mod bell;
mod budget;
mod execution;
mod handshake;
mod outbox;
mod transmission;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use ring3_host::admission::Room;
use ring3_host::deadline::Deadline;
use ring3_host::listener::{Listener, for_this_host};
use ring3_host::socket::SocketFile;
use ring3_host::turns::Share;
use rustix::net::AddressFamily;
use rustix::net::sockopt::{set_socket_keepalive, socket_domain};
use tracing::{debug, info};

use crate::NbdAddress;
use crate::device::Device;
use crate::error::Error;
use crate::listening::{Connection, Front, IDLE};
use crate::server::Access;
pub(crate) use budget::{ALL as MEMORY_MAX, Budget, GUARANTEED};

/// Limits for the connections of a client, each of which takes a thread.
const ROOM: Room = Room { all: 128, of_a_peer: 64, idle: Some(IDLE) };
/// How long a client may take for the whole handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// A device to which a client has a right.
#[derive(Debug, Clone)]
pub(crate) struct Export {
    pub(crate) device: Arc<Device>,
    pub(crate) writes: bool,
    /// The client's share of what the server transfers.
    pub(crate) share: Arc<Share>,
}

impl Export {
    pub(crate) fn access(&self) -> Access {
        if self.writes { Access::ReadWrite } else { Access::Read }
    }
}

/// The devices to which a client has a right.
#[derive(Debug, Default)]
pub(crate) struct Exports(RwLock<BTreeMap<String, Export>>);

impl Exports {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Export>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Export>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The NBD server of a client.
#[derive(Debug)]
pub(crate) struct Nbd {
    address: NbdAddress,
    front: Front,
    _file: Option<SocketFile>,
}

impl Nbd {
    /// Starts the NBD server of `client`, at `address`.
    pub(crate) fn start(
        client: &str,
        address: &NbdAddress,
        exports: &Arc<Exports>,
        budget: &Arc<Budget>,
    ) -> Result<Nbd, Error> {
        let (address, mut listener) = match address {
            NbdAddress::Unix(path) => (address.clone(), Listener::unix(path)?),
            NbdAddress::Tcp(place) => {
                for_this_host("NBD", *place)?;
                let refused = |source| Error::Listen { address: *place, source };
                let listener = Listener::tcp(place).map_err(refused)?;
                // If port 0 was given, this is the port that the host has chosen.
                let place = listener.local_address().map_err(refused)?;
                (NbdAddress::Tcp(place), listener)
            }
        };
        let file = listener.take_file();
        let front = serve(listener, client, exports, budget)?;
        Ok(Nbd { address, front, _file: file })
    }

    pub(crate) fn address(&self) -> &NbdAddress {
        &self.address
    }

    /// Cuts all connections that use `export`.
    pub(crate) fn cut(&self, export: &str) {
        // What such a client has asked for and does not get is not missed.
        let _ = self.front.cut(export);
    }

    pub(crate) fn connections(&self) -> usize {
        self.front.connections()
    }
}

/// Listens for `client` in a new thread.
fn serve(
    listener: Listener,
    client: &str,
    exports: &Arc<Exports>,
    budget: &Arc<Budget>,
) -> Result<Front, Error> {
    let (exports, budget, owner) = (Arc::clone(exports), Arc::clone(budget), client.to_owned());
    Front::serve_all(&format!("nbd {client}"), listener, ROOM, move |stream, connection| {
        info!("{owner} is connected by NBD");
        match talk(stream.into(), &exports, &budget, connection) {
            Ok(()) => info!("{owner} is disconnected"),
            Err(error) => debug!("{owner} is disconnected: {error}"),
        }
    })
}

fn talk(
    socket: OwnedFd,
    exports: &Exports,
    budget: &Arc<Budget>,
    connection: &Connection,
) -> io::Result<()> {
    if socket_domain(&socket) != Ok(AddressFamily::UNIX) {
        set_socket_keepalive(&socket, true)?;
    }
    let mut stream = Deadline::new(&socket, PATIENCE);
    let Some(chosen) = handshake::shake_hands(&mut stream, exports)? else { return Ok(()) };
    connection.is_active();
    connection.name(chosen.export.device.name());
    // The right may have been revoked before the connection had a name by which it could be cut.
    if exports.read().get(chosen.export.device.name()).is_none() {
        return Ok(());
    }
    transmission::transmit(socket, chosen, budget, connection)
}

/// Reads `len` bytes, a length that the client has sent.
fn take(stream: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns the error for a client that sends `what` and so breaks the protocol.
fn wrong(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the client sends {what}"))
}
