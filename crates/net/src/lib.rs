//! The networks behind a machine's network cards.
//!
//! Each kind of network is a [`Network`]. It gets the [`Card`] to which it sends the packets that arrive:
//!
//! * [`stream`]: frames over a connection, in QEMU's format: with another machine, of ring3 or QEMU, or with
//!   any program that uses this format;
//! * [`dgram`]: one frame in each datagram, over UDP, also to a multicast group, or between Unix sockets;
//! * [`nat`]: a NAT that needs no rights, in a process of its own;
//! * [`tap`]: an interface of the host;
//! * [`switch`]: a switch between machines, in a process of its own;
//! * [`capture`]: copies of all packets in a file, which each kind of network can have; [`pcap`] is its format,
//!   and [`mod@describe`] shows packets as text.
//!
//! Internally, `message` is the format of packets in a stream, `outgoing` is the queue of packets that a card
//! has sent, and `short_cuts` are a machine's ways to other machines of a switch besides its connection.
//! A [`starter`] starts the processes of a NAT and a switch, which the machine's own may not.
//!
//! # The machine does not wait
//!
//! The machine hands over what a card sends and continues at once. A thread does the rest, and the card is
//! told to wait when too much is queued ([`Network::is_congested`]). The machine itself
//! [fetches](ring3_vm::Source) what arrives over a connection; other kinds of networks have a thread that
//! sends it to the machine's door. Both wait while the door is full, so the sender waits too, as far as the
//! kind of network can tell it to.
//!
//! A thread that fetched packets for the machine would have to be woken for each packet before the machine
//! is. Such a wake-up takes 60 to 120 µs in a virtual host: a third of a short round trip.
//!
//! Between two ends of ring3 packets stay as the cards send them, large and without a checksum (`message`).
//! Other ends get frames, which [`Offloads`](ring3_core::net::Offloads) makes of them.
//!
//! # Why libslirp and libpcap are loaded at run time
//!
//! Users who need neither do not have to install them. passt is a process of its own already, but it serves
//! no files by TFTP; smoltcp has no NAT.
#![forbid(unsafe_code)]

pub mod capture;
mod card;
pub mod describe;
pub mod dgram;
mod error;
mod message;
pub mod nat;
mod outgoing;
pub mod pcap;
mod program;
mod short_cuts;
pub mod starter;
pub mod stream;
pub mod switch;
pub mod tap;

pub use capture::Capture;
pub use card::Card;
pub use dgram::DgramOptions;
pub use error::NetError;
pub use nat::NatOptions;
pub use program::Program;
pub use ring3_hostnet as hostnet;
pub use stream::{StreamAddress, StreamOptions};
pub use switch::{Switch, SwitchOptions, SwitchProgram, SwitchServer};
pub use tap::Tap;

use ring3_vm::networks::Network;

use capture::Captured;

/// The network to which a card is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// [`stream`].
    Stream(StreamOptions),
    /// [`dgram`].
    Dgram(DgramOptions),
    /// [`nat`]: the program that [starts](starter) it.
    Nat(Program),
    /// [`tap`]: the interface's name.
    Tap(String),
    /// [`switch`].
    Switch(SwitchProgram),
}

/// Makes the network behind `card`.
pub fn open(backend: &Backend, card: &Card) -> Result<Box<dyn Network>, NetError> {
    let network: Box<dyn Network> = match backend.clone() {
        Backend::Stream(options) => stream::open(options, card.clone())?,
        Backend::Dgram(options) => dgram::open(&options, card.clone())?,
        Backend::Nat(program) => nat::start(program, card.clone())?,
        Backend::Tap(name) => Box::new(Tap::open(&name, card.clone())?),
        Backend::Switch(program) => switch::join(program, card.clone())?,
    };
    Ok(match card.capture() {
        Some(_) => Box::new(Captured { network, card: card.clone() }),
        None => network,
    })
}
