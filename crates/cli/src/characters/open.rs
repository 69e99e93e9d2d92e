//! Opens the places of character devices.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ring3_host::listener::Listener;
use ring3_host::socket::SocketFile;

use super::{CharacterError, connect, listener, shown};
use crate::output::Output;
use crate::qemu::settings::{Character, CharacterLog, Place, SocketPlace};
use crate::serial::clients::Clients;
use crate::serial::terminals::Terminal;
use crate::serial::{Port, Taker};

/// Opens the host's side of `character`. Input from there goes to `taker`. If the place is a pseudoterminal,
/// `terminal` returns it.
pub(crate) fn port(
    character: &Character,
    taker: &Arc<dyn Taker>,
    terminal: impl FnOnce() -> Result<Terminal, CharacterError>,
) -> Result<Port, CharacterError> {
    let port = at(&character.place, taker, terminal)?;
    let Some(CharacterLog { path, append }) = &character.log else { return Ok(port) };
    let copy = if *append { Output::append(path) } else { Output::create(path) };
    let failed = |source| CharacterError::Open { place: path.display().to_string(), source };
    Ok(Port::Copied(Box::new(port), copy.map_err(failed)?))
}

/// Opens `place`, without a copy of the output.
fn at(
    place: &Place,
    taker: &Arc<dyn Taker>,
    terminal: impl FnOnce() -> Result<Terminal, CharacterError>,
) -> Result<Port, CharacterError> {
    let failed = |source| CharacterError::Open { place: shown(place), source };
    Ok(match place {
        Place::Unknown | Place::Null => Port::Null,
        Place::Stdio => Port::Output(Output::stdout().map_err(failed)?),
        Place::File { path, append: true } => Port::Output(Output::append(path).map_err(failed)?),
        Place::File { path, append: false } => Port::Output(Output::create(path).map_err(failed)?),
        Place::Pty => Port::Clients(Clients::on_terminal(terminal()?, taker.clone())?),
        Place::Pipe(_) => {
            let (input, output, _) = stream(place, terminal)?;
            Port::Clients(Clients::on_files(input, output, taker.clone())?)
        }
        Place::Socket(socket) => {
            let connections = connections(socket)?;
            Port::Clients(Clients::one_by_one(connections, socket.telnet, taker.clone())?)
        }
    })
}

/// The connections at a socket.
pub(crate) struct Connections {
    /// Waits for the next one. Fails with [`ErrorKind::NotConnected`] if there is only one.
    pub(crate) next: Box<dyn FnMut() -> io::Result<OwnedFd> + Send>,
    /// The file of a socket that listens.
    pub(crate) file: Option<SocketFile>,
    /// Lets the waiting for connections end, and no more come.
    pub(crate) close: Close,
}

impl Connections {
    /// Those that others make to `listener`.
    pub(crate) fn at(mut listener: Listener) -> Connections {
        let file = listener.take_file();
        let listener = Arc::new(listener);
        let waiting = listener.clone();
        let next = move || waiting.wait().map(OwnedFd::from);
        let close = Close(Box::new(move || listener.close()));
        Connections { next: Box::new(next), file, close }
    }
}

/// A function that ends the waiting for connections.
pub(crate) struct Close(Box<dyn Fn() + Send + Sync>);

impl Close {
    /// Calls it.
    pub(crate) fn close(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Close {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Close").finish_non_exhaustive()
    }
}

/// Listens at a socket, or connects to it, again and again if that is wanted.
pub(crate) fn connections(place: &SocketPlace) -> Result<Connections, CharacterError> {
    let SocketPlace { address, is_server, reconnect, .. } = place;
    if *is_server {
        return Ok(Connections::at(listener(address)?));
    }
    let first = match (connect(address), reconnect) {
        (Ok(connection), _) => Some(connection),
        (Err(_), Some(_)) => None,
        (Err(source), None) => {
            let place = shown(&Place::Socket(place.clone()));
            return Err(CharacterError::Connect { place, source });
        }
    };
    let (address, reconnect) = (address.clone(), *reconnect);
    let mut first = first.map(OwnedFd::from);
    let is_closed = Arc::new(AtomicBool::new(false));
    let is_over = is_closed.clone();
    let next = move || {
        loop {
            if let Some(connection) = first.take() {
                return Ok(connection);
            }
            thread::sleep(reconnect.ok_or(ErrorKind::NotConnected)?);
            if is_over.load(Ordering::Relaxed) {
                return Err(ErrorKind::NotConnected.into());
            }
            first = connect(&address).ok().map(OwnedFd::from);
        }
    };
    let close = Close(Box::new(move || is_closed.store(true, Ordering::Relaxed)));
    Ok(Connections { next: Box::new(next), file: None, close })
}

/// Opens the streams that a monitor reads and writes, at a place to which nobody connects. Returns also a
/// descriptor that must be held open meanwhile.
pub(super) fn stream(
    place: &Place,
    terminal: impl FnOnce() -> Result<Terminal, CharacterError>,
) -> Result<(File, File, Option<OwnedFd>), CharacterError> {
    let failed = |source| CharacterError::Open { place: shown(place), source };
    let both = |path: &Path| File::options().read(true).write(true).open(path);
    Ok(match place {
        Place::Pipe(path) => {
            let end = |name: &str| {
                let mut whole = path.clone().into_os_string();
                whole.push(name);
                // It is opened for both directions, so that neither end waits for the other one.
                both(whole.as_ref())
            };
            if let (Ok(input), Ok(output)) = (end(".in"), end(".out")) {
                (input, output, None)
            } else {
                let file = both(path).map_err(failed)?;
                (file.try_clone().map_err(failed)?, file, None)
            }
        }
        Place::Socket(SocketPlace { address, .. }) => {
            let file = connect(address)
                .map_err(|source| CharacterError::Connect { place: shown(place), source })?;
            (file.try_clone().map_err(failed)?, file, None)
        }
        Place::Pty => {
            let Terminal { master, other, .. } = terminal()?;
            let file = File::from(master);
            (file.try_clone().map_err(failed)?, file, Some(other))
        }
        Place::File { path, .. } => {
            let output = File::create(path).map_err(failed)?;
            (File::open("/dev/null").map_err(failed)?, output, None)
        }
        Place::Unknown | Place::Null | Place::Stdio => {
            let nothing = both("/dev/null".as_ref()).map_err(failed)?;
            (nothing.try_clone().map_err(failed)?, nothing, None)
        }
    })
}
