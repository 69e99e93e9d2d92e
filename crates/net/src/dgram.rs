//! One frame in each datagram: QEMU's `-netdev dgram`, and `-netdev socket` with `udp=` and `mcast=`.
//!
//! Datagrams are lost where nobody listens or the receiver has no room, and nobody is told.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ring3_core::net::{PACKET_MAX, Packet};
use ring3_host::socket::SocketFile;
use ring3_vm::networks::Network;
use rustix::io::Errno;
use rustix::net::sockopt::{
    Timeout, set_ip_add_membership, set_ip_multicast_if, set_ip_multicast_loop,
    set_socket_reuseaddr, set_socket_timeout,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketAddrUnix, SocketFlags,
    SocketType, bind, getsockname, recvfrom, sendto, shutdown, socket_with,
};
use tracing::debug;

use crate::card::Card;
use crate::error::NetError;
use crate::message::Message;
use crate::outgoing::{Outgoing, Queued, Sink};

/// How long the other end may have no room before packets sent to it are lost.
const PATIENCE: Duration = Duration::from_millis(200);

/// The ends between which datagrams go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DgramOptions {
    /// UDP between this end's address and another one.
    Udp {
        /// The address of this end. Without it the system chooses a port, and no datagrams are received.
        local: Option<SocketAddr>,
        /// The address of the other end.
        remote: SocketAddr,
    },
    /// Among all members of a multicast group. Datagrams that this end sends do not come back to it.
    Multicast {
        /// The address of the group.
        group: SocketAddrV4,
        /// The address of the network where the group is; without it the system chooses.
        interface: Option<Ipv4Addr>,
    },
    /// Between two Unix sockets, each of which is made by its own side.
    Unix {
        /// The socket of this end.
        local: PathBuf,
        /// The socket of the other end.
        remote: PathBuf,
    },
}

/// The receiving side, until it is dropped.
#[derive(Debug)]
struct Receiving {
    socket: Arc<OwnedFd>,
    /// The file of a Unix socket, which is removed when this is dropped.
    _file: Option<SocketFile>,
}

/// The sockets of one network.
struct Ends {
    receiving: OwnedFd,
    sending: OwnedFd,
    remote: SocketAddrAny,
    /// The address from which this end's own datagrams come back.
    echo: Option<SocketAddrAny>,
    file: Option<SocketFile>,
}

/// Makes the sockets of a network. The other end need not exist.
pub(crate) fn open(options: &DgramOptions, card: Card) -> Result<Box<dyn Network>, NetError> {
    let ends = match options {
        DgramOptions::Udp { local, remote } => udp(*local, *remote).map_err(|source| {
            let address = local.map_or("any address".to_owned(), |local| local.to_string());
            NetError::Datagrams { address, source }
        }),
        DgramOptions::Multicast { group, interface } => {
            multicast(*group, *interface).map_err(|source| NetError::Datagrams {
                address: format!("the group {group}"),
                source,
            })
        }
        DgramOptions::Unix { local, remote } => unix(local, remote),
    }?;
    let Ends { receiving, sending, remote, echo, file } = ends;
    let outgoing = Outgoing::start(card.clone())?;
    outgoing.connect(&Arc::new(DgramSink { socket: sending, remote }));
    let socket = Arc::new(receiving);
    let receiving = Receiving { socket: socket.clone(), _file: file };
    let network = Queued::new(outgoing, receiving);
    let thread = thread::Builder::new().name(format!("{} in", card.name()));
    thread.spawn(move || receive(&socket, echo.as_ref(), &card)).map_err(NetError::Thread)?;
    Ok(Box::new(network))
}

fn new_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    Ok(socket)
}

fn udp(local: Option<SocketAddr>, remote: SocketAddr) -> io::Result<Ends> {
    let family = if remote.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let receiving = new_socket(family)?;
    if let Some(local) = local {
        bind(&receiving, &local)?;
    }
    let sending = receiving.try_clone()?;
    Ok(Ends { receiving, sending, remote: remote.into(), echo: None, file: None })
}

fn multicast(group: SocketAddrV4, interface: Option<Ipv4Addr>) -> io::Result<Ends> {
    if !group.ip().is_multicast() {
        let text = "it is not a multicast group: their addresses begin with 224 to 239";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let receiving = new_socket(AddressFamily::INET)?;
    // All members of the group on this host share the address.
    set_socket_reuseaddr(&receiving, true)?;
    bind(&receiving, &group)?;
    let network = interface.unwrap_or(Ipv4Addr::UNSPECIFIED);
    set_ip_add_membership(&receiving, group.ip(), &network)?;
    // A separate socket sends, so that datagrams which come back can be recognized.
    let sending = new_socket(AddressFamily::INET)?;
    set_ip_multicast_loop(&sending, true)?;
    set_ip_multicast_if(&sending, &network)?;
    bind(&sending, &SocketAddrV4::new(network, 0))?;
    let echo = Some(getsockname(&sending)?);
    Ok(Ends { receiving, sending, remote: SocketAddr::from(group).into(), echo, file: None })
}

fn unix(local: &std::path::Path, remote: &std::path::Path) -> Result<Ends, NetError> {
    let refused = |source| NetError::Datagrams { address: local.display().to_string(), source };
    let remote = SocketAddrUnix::new(remote).map_err(|error| refused(error.into()))?;
    let (receiving, file) = ring3_host::socket::datagrams_at(local)?;
    set_socket_timeout(&receiving, Timeout::Send, Some(PATIENCE))
        .map_err(|error| refused(error.into()))?;
    let sending = receiving.try_clone().map_err(refused)?;
    Ok(Ends { receiving, sending, remote: remote.into(), echo: None, file: Some(file) })
}

/// Hands over the datagrams that arrive, until the socket is shut down.
fn receive(socket: &OwnedFd, echo: Option<&SocketAddrAny>, card: &Card) {
    let mut buffer = vec![0; PACKET_MAX];
    loop {
        match recvfrom(socket, &mut buffer, RecvFlags::TRUNC) {
            // An empty datagram means that the socket was shut down: nobody sends one.
            Ok((_, 0, _)) | Err(Errno::NOTCONN) => return,
            Ok((_, length, from)) if length <= PACKET_MAX && !is_echo(from.as_ref(), echo) => {
                card.deliver(Packet::frame(buffer[..length].to_vec()));
                card.flush();
            }
            Ok(_) | Err(Errno::INTR | Errno::CONNREFUSED) => {}
            Err(error) => {
                debug!("{}: no more packets can be received: {error}", card.name());
                return;
            }
        }
    }
}

/// Returns whether a datagram was sent by this end. The port decides, since the address may be that of any
/// network.
fn is_echo(from: Option<&SocketAddrAny>, echo: Option<&SocketAddrAny>) -> bool {
    let port = |address: &SocketAddrAny| SocketAddrV4::try_from(address.clone()).ok();
    match (from.and_then(port), echo.and_then(port)) {
        (Some(from), Some(echo)) => {
            from.port() == echo.port() && (echo.ip().is_unspecified() || from.ip() == echo.ip())
        }
        _ => false,
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        // For an unconnected socket this is an error, but it wakes those who read from it.
        let _ = shutdown(&*self.socket, Shutdown::Both);
    }
}

/// The sending side.
#[derive(Debug)]
pub(crate) struct DgramSink {
    socket: OwnedFd,
    remote: SocketAddrAny,
}

impl Sink for DgramSink {
    fn send(&self, messages: &mut VecDeque<Message>, waits: bool) -> io::Result<bool> {
        let waiting = if waits { SendFlags::empty() } else { SendFlags::DONTWAIT };
        while let Some(first) = messages.front() {
            let [_, frame] = first.parts();
            match sendto(&self.socket, frame, waiting | SendFlags::NOSIGNAL, &self.remote) {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(false),
                // Nobody listens, or not now; or the packet is too large for a datagram.
                Ok(_) | Err(_) => {}
            }
            messages.pop_front();
        }
        Ok(true)
    }

    fn cut(&self) {
        // See the end of Receiving.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    fn message(&self, frame: Vec<u8>) -> Message {
        Message::datagram(frame)
    }
}
