//! What is behind the network cards of a machine.
//!
//! Each kind of network is a [`Network`] that is given the [`Card`] to which it sends what comes:
//!
//! * [`stream`]: frames over a connection, as QEMU has them: with another machine, of ring3 or QEMU, or whatever speaks so;
//! * [`dgram`]: a frame a datagram, over UDP, also to a group, or between Unix sockets;
//! * [`nat`]: a NAT that needs no rights, in a process of its own;
//! * [`tap`]: an interface of the host;
//! * [`switch`]: a switch between machines, in a process of its own;
//! * [`capture`]: copies of all packets in a file, of which any of these can have one.
//!
//! Inside, `message` is how packets stand in a stream, `outgoing` the queue of what a card has sent, and `short_cuts` what a machine has of a
//! switch beside its connection.
//!
//! # The machine does not wait
//!
//! It sends what goes out at once and goes on; a thread does the rest, and the card is told to wait when there is too much of it
//! ([`Network::is_congested`]). What comes over a connection it [fetches](ring3_vm::Source) itself; other kinds of networks have a thread that sends it to the machine's
//! door. Either waits while that is full, so that the sender waits, as far as the kind of network has a way to tell it.
//!
//! A thread that fetched packets for the machine would have to be woken for each of them before the machine
//! is. Such a wake-up takes 60 to 120 µs in a virtual host: a third of a short round trip.
//!
//! Between two ends of ring3 packets stay as the cards have them, large and without a checksum
//! (`message`). Other ends get frames, which [`Offloads`](ring3_core::net::Offloads) makes of them.
//!
//! # Why libslirp and libpcap are loaded at run time
//!
//! A user who needs neither does not have to install them. passt is a process of its own already, but serves
//! no files by TFTP; smoltcp has no NAT.
#![forbid(unsafe_code)]

pub mod capture;
mod card;
pub mod dgram;
mod error;
mod message;
pub mod nat;
mod outgoing;
mod program;
mod short_cuts;
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

/// What a card is attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// [`stream`].
    Stream(StreamOptions),
    /// [`dgram`].
    Dgram(DgramOptions),
    /// [`nat`].
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
