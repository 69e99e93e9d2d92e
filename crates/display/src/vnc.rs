//! A VNC server: screen, keyboard and mouse for clients of the Remote Framebuffer protocol (RFC 6143).
//!
//! It speaks versions 3.3, 3.7 and 3.8, without passwords, and listens only at addresses that no other host
//! reaches ([`Address`]). Several clients may be connected, and all of them see the screen and type.
//!
//! | feature | support |
//! | --- | --- |
//! | pixel formats | true colour with 8, 16 and 32 bits a pixel; a client that wants a colour map is disconnected |
//! | encodings | Raw, Hextile, ZRLE |
//! | pseudo-encodings | DesktopSize, ExtendedDesktopSize, QEMU's extended key events |
//! | keys | keysyms, taken for those of a US keyboard, or the keys themselves by extended key events |
//! | pointer | movements for a mouse that knows no positions; buttons 4 and 5 are its wheel |
//! | cut text | ignored |
//!
//! The server sends only squares that have changed, and only at a client's request; only then does it take
//! pictures.

mod client;
mod hextile;
mod hub;
mod keyboard;
mod keysyms;
mod listener;
mod pixel_format;
mod pointer;
mod updates;
mod view;
mod zrle;

use std::io::{self, PipeWriter};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ring3_host::admission::{Admission, Admitted, Room};
use ring3_host::stream::Stream;
use rustix::event::{PollFd, PollFlags, poll};
use tracing::{info, warn};

use crate::Machine;
use hub::Hub;
pub use listener::{Address, AddressError, ListenError, Listener};

/// How long to wait after a client could not be accepted, for example when descriptors have run out.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// The limits on clients. None is disconnected for being quiet, since it may only watch.
const ROOM: Room = Room { all: 16, of_a_peer: 16, idle: None };

/// A running server. Dropping it ends it and all its connections.
#[derive(Debug)]
pub struct Server {
    hub: Arc<Hub>,
    /// Closing this pipe wakes up the thread that waits for clients.
    wake: Option<PipeWriter>,
    threads: Vec<JoinHandle<()>>,
}

/// Serves `machine` to the clients that connect to `listener`, on threads of its own, until the server is
/// dropped. The connections also end when the machine ends.
///
/// # Errors
///
/// Fails if the host has no more threads or descriptors.
pub fn serve(listener: Listener, machine: Arc<dyn Machine>) -> io::Result<Server> {
    let (end, wake) = io::pipe()?;
    let hub = Arc::new(Hub::new());
    // From here on a failure drops the server, which ends the threads that were started.
    let mut server = Server { hub: Arc::clone(&hub), wake: Some(wake), threads: Vec::new() };
    let watcher = {
        let (hub, machine) = (Arc::clone(&hub), Arc::clone(&machine));
        thread::Builder::new().name("vnc screen".into()).spawn(move || hub.watch(&*machine))?
    };
    server.threads.push(watcher);
    let admission = Admission::new(ROOM);
    let accepting = thread::Builder::new().name("vnc".into()).spawn(move || {
        loop {
            let mut ready =
                [PollFd::new(&listener, PollFlags::IN), PollFd::new(&end, PollFlags::IN)];
            if let Err(error) = poll(&mut ready, None)
                && error != rustix::io::Errno::INTR
            {
                warn!("no more VNC clients can connect: {error}");
                return;
            }
            if !ready[1].revents().is_empty() {
                return;
            }
            match listener.accept() {
                Ok(connection) => match admission.admit(&connection) {
                    Ok(Some(admitted)) => welcome(&hub, &machine, connection, admitted),
                    Ok(None) => warn!("too many VNC clients are connected; another one is refused"),
                    Err(error) => warn!("cannot serve a VNC client: {error}"),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    warn!("cannot accept a VNC client: {error}");
                    thread::sleep(AFTER_ERROR);
                }
            }
        }
    })?;
    server.threads.push(accepting);
    Ok(server)
}

/// Begins to serve a client.
fn welcome(hub: &Arc<Hub>, machine: &Arc<dyn Machine>, connection: Stream, admitted: Admitted) {
    let joined = connection.try_clone().map(|connection| hub.join(connection));
    let id = match joined {
        Ok(Some(id)) => id,
        // The machine has ended.
        Ok(None) => return,
        Err(error) => return warn!("cannot serve a VNC client: {error}"),
    };
    let serving = {
        let (hub, machine) = (Arc::clone(hub), Arc::clone(machine));
        thread::Builder::new().name("vnc client".into()).spawn(move || {
            info!("VNC client {id} is connected");
            match client::serve(&hub, id, &*machine, connection, &admitted) {
                Ok(()) => info!("VNC client {id} is disconnected"),
                Err(error) => warn!("VNC client {id} is disconnected: {error}"),
            }
            hub.leave(id);
        })
    };
    if let Err(error) = serving {
        warn!("cannot serve a VNC client: {error}");
        hub.leave(id);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.hub.end();
        drop(self.wake.take());
        for thread in self.threads.drain(..) {
            // A thread that has panicked has already printed its message.
            let _ = thread.join();
        }
    }
}
