//! The process of the NAT. Before it hears from a guest, it gives up all rights that it does not need.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use ring3_core::net::Offloads;
use ring3_hostnet::slirp::Watch;
use ring3_hostnet::{Forward, ForwardTarget, Sandbox, Slirp, SlirpOptions};
use tracing::{info, warn};

use super::commands::Commands;
use crate::error::NetError;
use crate::message::{Message, Notice, Reader, Received};
use crate::outgoing::Sink;
use crate::program::Program;
use crate::stream::{ReceivingEnd, StreamAddress, StreamSink, listen_on_this_host};

/// The file in which the library looks up the host's name server now and then.
const RESOLVER: &str = "/etc/resolv.conf";

/// Number of bytes queued for a guest from which on nothing more is done for it.
const CONGESTED: usize = 512 << 10;

/// Number of messages of the guest that are handled before other work.
const MESSAGES_IN_A_ROW: usize = 256;

/// The options of a NAT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatOptions {
    /// The network of the guest.
    pub network: SlirpOptions,
    /// Ports of the host that are forwarded to it.
    pub forwards: Vec<Forward>,
    /// Addresses that only the guest sees, and their targets.
    pub guest_forwards: Vec<(SocketAddrV4, ForwardTarget)>,
}

impl NatOptions {
    /// Makes the network. `commands` is the program that serves a guest's commands.
    fn start(&self, commands: &Program) -> Result<Nat, NetError> {
        let mut nat = Nat { slirp: Slirp::new(&self.network)?, commands: Vec::new() };
        for forward in &self.forwards {
            nat.slirp.forward(forward)?;
        }
        for (guest, target) in &self.guest_forwards {
            let target = match target {
                ForwardTarget::Unix(_) => target.clone(),
                ForwardTarget::Command(command) => {
                    let commands = Commands::start(commands, command)?;
                    let socket = commands.socket.clone();
                    nat.commands.push(commands);
                    ForwardTarget::Unix(socket)
                }
            };
            nat.slirp.forward_guest(*guest, &target)?;
        }
        Ok(nat)
    }

    /// Gives up all rights that the network does not need.
    fn enter_sandbox(&self) {
        let readable = self.network.tftp.iter().cloned().chain(resolver_files()).collect();
        let connects_to_unix_sockets = !self.guest_forwards.is_empty();
        let shortfalls = Sandbox { readable, connects_to_unix_sockets }.enter();
        if !shortfalls.is_empty() {
            let all: Vec<_> = shortfalls.iter().map(ToString::to_string).collect();
            warn!(
                "the NAT keeps some rights, because this host does not allow it to give them up: {}",
                all.join(", ")
            );
        }
    }
}

/// Returns the files that are read to find the host's name server. If the file is a link into a directory of
/// the program that maintains it, these include every new file there.
fn resolver_files() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from(RESOLVER)];
    let target = fs::canonicalize(RESOLVER).ok();
    let directory = target.as_deref().and_then(Path::parent);
    let is_for_it = |directory: &&Path| directory.parent().is_some_and(|above| above != "/");
    files.extend(directory.filter(is_for_it).map(Path::to_owned));
    files
}

/// A network, and the processes that belong to it.
struct Nat {
    slirp: Slirp,
    commands: Vec<Commands>,
}

/// Serves as the NAT of the machine at the other end of `socket`, until that is closed. If there can be no
/// NAT, the machine is told why. `commands` is the program that [serves](super::commands::serve) a command of
/// a guest, which is its last argument.
pub fn serve(options: &NatOptions, commands: &Program, socket: OwnedFd) -> Result<(), NetError> {
    match options.start(commands) {
        Ok(mut nat) => {
            options.enter_sandbox();
            converse(&mut nat.slirp, &socket).map_err(NetError::Conversation)
        }
        Err(error) => {
            let failed = Message::frame(Notice::Failed(error.to_string()).to_frame());
            let sink = StreamSink::new(socket).map_err(NetError::Conversation)?;
            let sent = sink.send(&mut VecDeque::from([failed]), true);
            sent.map_err(NetError::Conversation)?;
            Err(error)
        }
    }
}

/// Listens at `address`, and serves as the NAT of whoever connects there, one at a time; QEMU's
/// `-netdev stream` can connect, too. The guest's connections outlive that of its machine.
pub fn serve_at(
    options: &NatOptions,
    commands: &Program,
    address: &StreamAddress,
) -> Result<(), NetError> {
    let Nat { mut slirp, commands: _commands } = options.start(commands)?;
    let listener = listen_on_this_host("a NAT", address)?;
    options.enter_sandbox();
    loop {
        let watch = Watch { fd: listener.as_fd(), reads: true, writes: false };
        let is_there = slirp.work(&watch, true, true).map_err(NetError::Conversation)?;
        // No machine is connected to receive these frames.
        slirp.take_frames();
        if !is_there {
            continue;
        }
        let socket = match listener.accept() {
            Ok(stream) => stream.into(),
            Err(error) => {
                warn!("a machine cannot connect: {error}");
                continue;
            }
        };
        info!("a machine has connected");
        match converse(&mut slirp, &socket) {
            Ok(()) => info!("the machine has disconnected"),
            Err(error) => warn!("the machine's connection is lost: {error}"),
        }
    }
}

/// Does the work for a machine that is connected by `socket`, until that is closed.
fn converse(slirp: &mut Slirp, socket: &OwnedFd) -> io::Result<()> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    // Also closed, by a machine that had not read everything.
    let is_closed = |error: &io::Error| matches!(error.kind(), BrokenPipe | ConnectionReset);
    converse_until_closed(slirp, socket)
        .or_else(|error| if is_closed(&error) { Ok(()) } else { Err(error) })
}

fn converse_until_closed(slirp: &mut Slirp, socket: &OwnedFd) -> io::Result<()> {
    let sink = StreamSink::new(socket.try_clone()?)?;
    // A machine that sends only a part of a message must not hold up the guest's connections.
    let mut reader = Reader::new(ReceivingEnd::without_waiting(socket.try_clone()?));
    let mut queue = VecDeque::from([Message::frame(Notice::Hello.to_frame())]);
    loop {
        queue.extend(slirp.take_frames().into_iter().map(Message::frame));
        sink.send(&mut queue, false)?;
        // Without room those who send to the guest must wait; TCP tells them so.
        let has_room = queue.iter().map(Message::left).sum::<usize>() < CONGESTED;
        let watch = Watch { fd: socket.as_fd(), reads: has_room, writes: !queue.is_empty() };
        let has_more = has_room && reader.has_more();
        let is_ready = slirp.work(&watch, has_room, !has_more)?;
        if !is_ready && !has_more {
            continue;
        }
        for _ in 0..MESSAGES_IN_A_ROW {
            match reader.receive() {
                Ok(None) => return Ok(()),
                // The reader itself notes that packets have headers.
                Ok(Some(Received::Notice(_))) => {}
                Ok(Some(Received::Packet(packet))) => {
                    packet.without_offloads(Offloads::default(), |frame| slirp.input(&frame.bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            if !reader.has_more() {
                break;
            }
        }
    }
}
