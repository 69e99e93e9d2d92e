//! The vblock server: a process that owns disk images, and lets clients use them.
//!
//! A *device* is an image, of any format of `ring3_block`, or an export of an NBD server. A *provider* is a program
//! that connects and then is such a server itself, so its disks come and go with it. A *client* has a name and
//! rights: it may read a device, or write it too. It reaches a device in one of two ways: by a socket that was made
//! for this client and this device alone, over vhost-user-blk, or by an NBD server of its own, which exports the
//! devices to which it has rights. So a client's sockets limit what it can do. Only programs that can connect to the [control
//! socket](ControlSocket), and the user who starts the server, give rights.
//!
//! * [`Server`]: devices, clients and their rights; [`ControlSocket`]: the socket by which other processes
//!   change them;
//! * `device`: an image and its work; `pool`: the threads for this work;
//! * `vhost_user`: the front for virtual machines. Guest memory and rings are shared, and no data go over the
//!   socket. `request`, `transfer` and `ring3_vhost` read the shared memory; `inflight` is the memory that
//!   outlives a killed server;
//! * `lobby`: a client's own socket, at which it learns of its devices and is connected with them;
//! * `message`: what they say there, and providers at theirs;
//! * `provider`: programs that bring their own disks;
//! * `nbd`: the front for all other clients; `listening`: the common part of both fronts.
//!
//! The other side, for a machine whose disk is behind a server, is the crate `ring3_vblock_client`.
//!
//! # A server that is killed loses nothing
//!
//! * The client keeps memory that lists the requests which were taken from a ring and are not complete
//!   (`inflight`). The next server executes them again, in their order. A request is complete exactly when
//!   its entry is in the used ring.
//! * A write is complete when it would survive the end of the process. In a raw image it is complete as soon
//!   as the host's kernel has the data. Formats with tables flush the tables first, if the write has changed
//!   them (`Device::settle`).
//! * The next server creates its sockets again at the same paths. An image is locked by the process that has
//!   it open, and a killed process holds no lock.
//!
//! # Clients are hostile
//!
//! No ring, address, message or descriptor of a client makes the server panic, wait forever, or use memory
//! without bound. A memory file that could shrink while it is mapped is refused (`ring3_vhost::memory`).
#![deny(unsafe_code)]

mod control;
mod device;
mod error;
mod inflight;
mod listening;
mod lobby;
mod message;
mod nbd;
mod pool;
mod provider;
mod request;
mod server;
mod transfer;
mod vhost_user;

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::path::PathBuf;

pub use control::{Command, ControlError, ControlSocket, ask};
pub use device::DeviceOptions;
pub use error::Error;
pub use provider::{ProviderOptions, ProviderStatus, Right, RightStatus};
pub use server::{
    Access, ClientStatus, DeviceStatus, GrantStatus, Server, ShareOptions, VhostUserOptions,
};

/// Upper bound of the bytes that requests and replies of all NBD clients take together, beyond those that
/// each connection may always have.
pub const MEMORY_MAX: usize = nbd::MEMORY_MAX;

/// Number of bytes that the requests and replies of an NBD connection may always have.
pub const MEMORY_OF_A_CONNECTION: usize = nbd::GUARANTEED;

/// Upper bound of the queues of a device.
pub const QUEUES_MAX: u16 = 16;

/// The address at which an NBD server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdAddress {
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// An address and port of this host. For port 0 the host chooses one.
    Tcp(SocketAddr),
}

/// The URI by which NBD clients connect (doc/uri.md of the NBD project), without an export.
impl Display for NbdAddress {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            NbdAddress::Unix(path) => write!(f, "nbd+unix:///?socket={}", path.display()),
            NbdAddress::Tcp(address) => write!(f, "nbd://{address}"),
        }
    }
}
