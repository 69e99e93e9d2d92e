//! The supervisor: one daemon of a user that starts machines and servers, watches them, and replaces those
//! that die or hang.
//!
//! A *part* is a process that it owns: a machine (`ring3 run`) or a server (`ring3 vblock`, `ring3 switch`,
//! `ring3 console`). The user defines parts in a file ([`definition`]) or by [commands](command). Each part has
//!
//! * a directory of its own with its sockets and its log ([`place`]), and a command line that follows from
//!   its definition ([`command_line`]);
//! * a task that leads its life ([`part`]): it waits for the parts that this one needs, starts the process,
//!   asks it every two seconds whether it still answers (by a [`link`]), carries out the orders of
//!   users, and decides about a new start when the process ends.
//!
//! `memory` and `processors` share out what the host has, and `shares` tells servers who may transfer how much. `granting` keeps the rights to disks; `plugging` gives disks to
//! guests that run, and takes them away; `providing` is for disks that programs and guests bring.
//!
//! All tasks run in one thread ([`supervisor`]), so the state of one is never seen half changed by another.
//!
//! # The supervisor may die, too
//!
//! Parts do not end with it. Their definitions, and what the user wants of them, are in a file
//! ([`record`]). The next supervisor finds a running process by its socket: the kernel tells who listens
//! there ([`process`]). So nothing is lost if the supervisor dies between the start of a process and a note
//! of it.
#![forbid(unsafe_code)]

pub mod client;
pub mod command;
pub mod definition;
pub mod error;
pub mod launching;
pub mod memory;
pub mod place;
pub mod processors;

mod activation;
mod command_line;
mod control;
mod fill;
mod granting;
mod link;
mod part;
mod plugging;
mod process;
mod providing;
mod record;
mod shares;
mod supervisor;
mod usage;

pub use supervisor::{Options, run};
