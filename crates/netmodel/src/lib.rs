//! What a network between virtual machines costs, by its design.
//!
//! This is the model of chapter 6 of Richter, "Network interface model for virtual machines" (NE2000 on the Vancouver monitor and the NOVA microhypervisor, 2009):
//! a packet costs processor cycles where it enters the device model of its sender, where it crosses the network,
//! and where it leaves the model of its receiver (6.5). How many depends on the host ([`Host`]) and on the design ([`Design`]); latency and
//! bandwidth follow ([`Prediction`]).
//!
//! | symbol | here |
//! | --- | --- |
//! | rate_CPU | [`Host::frequency`] |
//! | bandwidth_mem | [`Host::memory_bandwidth`] |
//! | #VmExit | [`Host::exit`] |
//! | IRQ | [`Host::interrupt`] |
//! | IPC, sem_up | [`Host::message`], [`Host::wake_up`] |
//! | C_emulation(#rep outs) | [`Host::element`] |
//! | buswidth, packetsize, coalesced | [`Design::bus_width`], [`Design::packet`], [`Design::coalesced`] |
//! | N(VM) | [`Network::Broadcast`] |
//! | C_in, C_vlan, C_out | [`Prediction::sending`], [`Prediction::network`], [`Prediction::receiving`] |
//!
//! # Where it says more than the paper
//!
//! * The network of formula (6.6) ends with a copy into the memory of the receiving device model. With DMA there is none: the formula for reception (6.10)
//!   has the copy to the guest, and the paper's own example (6.18) counts two copies in all, as is done here.
//! * For TSO the paper has no formula. Here the sender's exit and interrupt are for a buffer, which is more than one packet; the network and the
//!   receiver have packets.
//! * What the sender hands over at once may stay whole until its receiver ([`Design::crossing`]).
//! * A packet may pass more processes than its receiver's, and wake more threads than one ([`Design::messages`], [`Design::wake_ups`]).
//! * For page remapping it has what guest and device do (6.16, 6.17). A page's remapping has a cost here ([`Host::remap`]), as the paper calls it
//!   the limiting factor.
#![forbid(unsafe_code)]

mod cycles;
mod design;
mod host;
mod prediction;
pub mod tcp;

pub use cycles::Cycles;
pub use design::{DESIGNS, Design, Network, Transfer};
pub use host::Host;
pub use prediction::Prediction;
