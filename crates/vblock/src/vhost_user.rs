//! vhost-user-blk: a client's guest memory and rings are here, its disk as well, and no data go over the socket.
//!
//! The protocol is QEMU's `docs/interop/vhost-user`; its messages are those of the crate `vhost`. (`vhost-user-backend`, which
//! has rings and threads too, refuses descriptors of requests in flight, without which a killed server loses requests.)
//!
//! * [`disk`]: a client's disk in a [session](ring3_vhost::session); [`ring`]: a running queue;
//! * [`config`]: what a guest is told of its disk.

mod config;
mod disk;
mod ring;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring3_host::listener::Listener;
use ring3_vhost::conversation::talk;
use ring3_vhost::session::Session;
use tracing::{info, warn};

use crate::device::Device;
use crate::error::Error;
use crate::listening::{Ending, Front};
use disk::Disk;

/// What is granted by a socket.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) client: String,
    pub(crate) device: Arc<Device>,
    pub(crate) writes: bool,
    pub(crate) queues: u16,
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

    /// A client is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.front.connections() > 0
    }
}

/// Serves one client after the other, until it is to end.
fn serve(listener: &Listener, grant: &Grant, ending: &Ending) {
    while let Some(stream) = ending.accept(listener, grant.device.name()) {
        let Some(_connection) = ending.connect(&stream) else { return };
        info!("{} is connected with {}", grant.client, grant.device.name());
        match talk(OwnedFd::from(stream).into(), Session::new(&grant.client, Disk::new(grant))) {
            Ok(()) => info!("{} has gone", grant.client),
            Err(error) => warn!("{} and {}: {error}", grant.client, grant.device.name()),
        }
    }
}
