//! vhost-user-blk: the client shares its guest's memory and rings with this process, which has the disk, and
//! no data go over the socket.
//!
//! The protocol is QEMU's `docs/interop/vhost-user`. The crate `vhost` reads its messages.
//! (`vhost-user-backend` has rings and threads too, but it refuses the descriptors of requests in flight,
//! without which a killed server loses requests.)
//!
//! * [`disk`]: a client's disk in a [session](ring3_vhost::session); [`ring`]: a running queue;
//! * [`config`]: the features and the configuration that a guest sees.

mod config;
mod disk;
mod ring;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring3_host::listener::Listener;
use ring3_host::turns::Share;
use ring3_vhost::conversation::talk;
use ring3_vhost::session::Session;
use tracing::{info, warn};

use crate::device::Device;
use crate::error::Error;
use crate::listening::{Ending, Front};
use disk::Disk;

/// The right that a socket gives, and the number of its queues.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) client: String,
    pub(crate) device: Arc<Device>,
    pub(crate) writes: bool,
    pub(crate) queues: u16,
    pub(crate) share: Arc<Share>,
}

/// A socket by which one client uses one device.
#[derive(Debug)]
pub(crate) struct VhostUser {
    path: PathBuf,
    queues: u16,
    front: Front,
}

impl VhostUser {
    /// Listens at `path`.
    pub(crate) fn start(path: &Path, grant: Grant) -> Result<VhostUser, Error> {
        let listener = Listener::unix(path)?;
        let queues = grant.queues;
        let name = format!("client {}", grant.client);
        let front = Front::start(&name, move |ending| serve(&listener, &grant, ending))?;
        Ok(VhostUser { path: path.to_owned(), queues, front })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn queues(&self) -> u16 {
        self.queues
    }

    /// Returns whether a client is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.front.connections() > 0
    }
}

/// Serves one client after another, until the thread must end.
fn serve(listener: &Listener, grant: &Grant, ending: &Ending) {
    while let Some(stream) = ending.accept(listener, grant.device.name()) {
        let Some(_connection) = ending.connect(&stream) else { return };
        serve_stream(stream.into(), grant);
    }
}

/// Serves the client at the other end of `stream` until it disconnects.
pub(crate) fn serve_stream(stream: OwnedFd, grant: &Grant) {
    info!("{} is connected to {}", grant.client, grant.device.name());
    match talk(stream.into(), Session::new(&grant.client, Disk::new(grant))) {
        Ok(()) => info!("{} is disconnected", grant.client),
        Err(error) => {
            warn!("{} is disconnected from {}: {error}", grant.client, grant.device.name());
        }
    }
}
