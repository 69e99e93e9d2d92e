//! The process of the NAT.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};

use ring3_core::net::Offloads;
use ring3_hostnet::slirp::Watch;
use ring3_hostnet::{Forward, ForwardTarget, Slirp, SlirpError, SlirpOptions};
use tracing::{info, warn};

use crate::error::NetError;
use crate::message::{Message, Notice, Reader, Received};
use crate::outgoing::Sink;
use crate::stream::{StreamAddress, StreamSink, listen};

/// Bytes for a guest that does not take them, from which on nothing more is done for it.
const CONGESTED: usize = 512 << 10;

/// Messages of the guest that are taken before others are looked at.
const MESSAGES_IN_A_ROW: usize = 256;

/// What the NAT does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatOptions {
    /// The network of the guest.
    pub network: SlirpOptions,
    /// Ports of the host that lead to it.
    pub forwards: Vec<Forward>,
    /// Addresses that only the guest sees, and what is behind them.
    pub guest_forwards: Vec<(SocketAddrV4, ForwardTarget)>,
}

impl NatOptions {
    fn start(&self) -> Result<Slirp, SlirpError> {
        let mut slirp = Slirp::new(&self.network)?;
        for forward in &self.forwards {
            slirp.forward(forward)?;
        }
        for (guest, target) in &self.guest_forwards {
            slirp.forward_guest(*guest, target)?;
        }
        Ok(slirp)
    }
}

/// Is the NAT for the machine at the other end of `socket`, until that is closed. Why there can be none is told there.
pub fn serve(options: &NatOptions, socket: OwnedFd) -> Result<(), NetError> {
    match options.start() {
        Ok(mut slirp) => converse(&mut slirp, &socket).map_err(NetError::Conversation),
        Err(error) => {
            let failed = Message::frame(Notice::Failed(error.to_string()).to_frame());
            let sink = StreamSink::new(socket).map_err(NetError::Conversation)?;
            let sent = sink.send(&mut VecDeque::from([failed]), true);
            sent.map_err(NetError::Conversation)?;
            Err(error.into())
        }
    }
}

/// Listens at `address`, and is the NAT for whoever connects there, QEMU's `-netdev stream` too, one at a time. The guest's connections outlive that of
/// its machine.
pub fn serve_at(options: &NatOptions, address: &StreamAddress) -> Result<(), NetError> {
    let mut slirp = options.start()?;
    let (listener, _file) = listen(address)?;
    loop {
        let watch = Watch { fd: listener.as_fd(), reads: true, writes: false };
        let is_there = slirp.work(&watch, true, true).map_err(NetError::Conversation)?;
        // Nobody is there for them.
        slirp.take_frames();
        if !is_there {
            continue;
        }
        let socket = match listener.accept() {
            Ok(socket) => socket,
            Err(error) => {
                warn!("a machine that connects is lost: {error}");
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

/// Does what a machine asks over `socket` until it is closed.
fn converse(slirp: &mut Slirp, socket: &OwnedFd) -> io::Result<()> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    // So it is too where the machine had not read all.
    let is_closed = |error: &io::Error| matches!(error.kind(), BrokenPipe | ConnectionReset);
    converse_until_closed(slirp, socket)
        .or_else(|error| if is_closed(&error) { Ok(()) } else { Err(error) })
}

fn converse_until_closed(slirp: &mut Slirp, socket: &OwnedFd) -> io::Result<()> {
    let sink = StreamSink::new(socket.try_clone()?)?;
    let mut reader = Reader::new(File::from(socket.try_clone()?));
    let mut queue = VecDeque::from([Message::frame(Notice::Hello.to_frame())]);
    loop {
        queue.extend(slirp.take_frames().into_iter().map(Message::frame));
        sink.send(&mut queue, false)?;
        // Then whoever sends to the guest must wait, which TCP tells them.
        let has_room = queue.iter().map(Message::left).sum::<usize>() < CONGESTED;
        let watch = Watch { fd: socket.as_fd(), reads: has_room, writes: !queue.is_empty() };
        let has_more = has_room && reader.has_more();
        let is_ready = slirp.work(&watch, has_room, !has_more)?;
        if !is_ready && !has_more {
            continue;
        }
        for _ in 0..MESSAGES_IN_A_ROW {
            match reader.receive()? {
                None => return Ok(()),
                // That it sends with headers, the reader knows.
                Some(Received::Notice(_)) => {}
                Some(Received::Packet(packet)) => {
                    packet.without_offloads(Offloads::default(), |frame| slirp.input(&frame.bytes));
                }
            }
            if !reader.has_more() {
                break;
            }
        }
    }
}
