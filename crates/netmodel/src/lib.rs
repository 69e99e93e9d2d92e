//! Computes what a network between virtual machines costs, depending on its design.
//!
//! This is the model of chapter 6 of Richter, "Network interface model for virtual machines" (NE2000 on the
//! Vancouver monitor and the NOVA microhypervisor, 2009). A packet costs processor cycles where it enters the
//! device model of its sender, where it crosses the network, and where it leaves the model of its receiver
//! (6.5). Their number depends on the host ([`Host`]) and on the design ([`Design`]); latency and bandwidth
//! follow ([`Prediction`]).
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
//! # Differences from the paper
//!
//! * The network of formula (6.6) ends with a copy into the memory of the receiving device model. With DMA
//!   there is no such copy: the formula for reception (6.10) contains the copy to the guest, and the paper's
//!   own example (6.18) counts two copies in all, as this model does.
//! * The paper has no formula for TSO. Here the sender's exit and interrupt count for each buffer, which
//!   holds several packets; the network and the receiver handle packets.
//! * A buffer that the sender hands over may stay whole until its receiver ([`Design::crossing`]).
//! * A packet may pass other processes before its receiver's, and wake more than one thread
//!   ([`Design::messages`], [`Design::wake_ups`]).
//! * For page remapping the paper describes the work of guest and device (6.16, 6.17). Here the remapping of
//!   a page has a cost ([`Host::remap`]), since the paper calls it the limiting factor.
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
