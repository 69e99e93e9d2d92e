//! Network Block Device, as a server (doc/proto.md of the NBD project): fixed newstyle, structured replies, block status.
//!
//! A client of this server has an NBD server of its own, at a socket that only it is told of; its exports are the devices to
//! which it has a right. The protocol has no passwords, so TCP is for addresses of this host alone.
//!
//! * [`handshake`]: how an export is chosen; [`transmission`]: requests and replies.

mod handshake;
mod transmission;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use ring3_socket::{SocketFile, listen_at};
use tracing::{debug, info};

use crate::NbdAddress;
use crate::device::Device;
use crate::error::Error;
use crate::listening::{Connection, Cuttable, Front, Listener};

/// The most connections of a client.
const CONNECTIONS_MAX: usize = 32;
/// How long a client may take for each step of the handshake.
const PATIENCE: Duration = Duration::from_secs(30);

/// A device to which a client has a right.
#[derive(Debug, Clone)]
pub(crate) struct Export {
    pub(crate) device: Arc<Device>,
    pub(crate) writes: bool,
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

/// What can be talked by.
pub(crate) trait Stream: Read + Write + Cuttable + Sized + Send + 'static {
    fn twin(&self) -> io::Result<Self>;
    fn prepare(&self, patience: Option<Duration>) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn twin(&self) -> io::Result<UnixStream> {
        self.try_clone()
    }

    fn prepare(&self, patience: Option<Duration>) -> io::Result<()> {
        self.set_nonblocking(false)?;
        self.set_read_timeout(patience)
    }
}

impl Stream for TcpStream {
    fn twin(&self) -> io::Result<TcpStream> {
        self.try_clone()
    }

    fn prepare(&self, patience: Option<Duration>) -> io::Result<()> {
        self.set_nonblocking(false)?;
        self.set_nodelay(true)?;
        self.set_read_timeout(patience)
    }
}

impl Nbd {
    /// Listens at `address` for `client`.
    pub(crate) fn start(
        client: &str,
        address: &NbdAddress,
        exports: &Arc<Exports>,
    ) -> Result<Nbd, Error> {
        let (address, front, file) = match address {
            NbdAddress::Unix(path) => {
                let (listener, file) = listen_at(path)?;
                (address.clone(), serve(listener, client, exports)?, Some(file))
            }
            NbdAddress::Tcp(place) => {
                if !place.ip().is_loopback() {
                    return Err(Error::NotLoopback(*place));
                }
                let refused = |source| Error::Listen { address: *place, source };
                let listener = TcpListener::bind(place).map_err(refused)?;
                listener.set_nonblocking(true).map_err(refused)?;
                // The port, where the host was to choose one.
                let place = listener.local_addr().map_err(refused)?;
                (NbdAddress::Tcp(place), serve(listener, client, exports)?, None)
            }
        };
        Ok(Nbd { address, front, _file: file })
    }

    pub(crate) fn address(&self) -> &NbdAddress {
        &self.address
    }

    /// Ends all use of an export.
    pub(crate) fn cut(&self, export: &str) {
        self.front.cut(export);
    }

    pub(crate) fn connections(&self) -> usize {
        self.front.connections()
    }
}

/// Listens for `client` with a thread of its own.
fn serve<L>(listener: L, client: &str, exports: &Arc<Exports>) -> Result<Front, Error>
where
    L: Listener<Stream: Stream> + Send + 'static,
{
    let (exports, owner) = (Arc::clone(exports), client.to_owned());
    Front::serve_all(
        &format!("nbd {client}"),
        listener,
        CONNECTIONS_MAX,
        move |stream, connection| {
            info!("{owner} is connected by NBD");
            match talk(stream, &exports, connection) {
                Ok(()) => info!("{owner} has gone"),
                Err(error) => debug!("{owner} has gone: {error}"),
            }
        },
    )
}

fn talk<S: Stream>(mut stream: S, exports: &Exports, connection: &Connection) -> io::Result<()> {
    stream.prepare(Some(PATIENCE))?;
    let Some(chosen) = handshake::shake_hands(&mut stream, exports)? else { return Ok(()) };
    stream.prepare(None)?;
    connection.name(chosen.export.device.name());
    // The right may have been revoked before it could be cut.
    if exports.read().get(chosen.export.device.name()).is_none() {
        return Ok(());
    }
    transmission::transmit(stream, &chosen)
}

/// Takes so many bytes, of which the client has told.
fn take(stream: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// What a client must not do.
fn wrong(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the client sends {what}"))
}
