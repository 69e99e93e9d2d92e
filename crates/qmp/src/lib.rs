//! The QEMU Machine Protocol (QMP): how tools drive a machine.
//!
//! A tool connects to a Unix socket (or to standard input and output), receives a greeting, negotiates, and
//! then sends commands in JSON. Each command gets an answer; in between the tool receives events. Many tools
//! speak this protocol, so ring3 speaks it too, with the commands that make sense for its machine. QEMU's
//! "QMP Reference Manual" describes the commands and their arguments; its "QEMU Machine Protocol
//! Specification" describes the messages.
//!
//! * [`Server`] is all that a program needs: it has threads of its own, and ends with its machine;
//! * `server`: the threads and the clients;
//! * `framing`: makes messages of bytes;
//! * `session`: negotiates, and answers messages;
//! * `protocol`: the messages;
//! * `commands`: the effects of the commands;
//! * `media`: changes discs and diskettes;
//! * `nodes`: images that exist before a device uses them;
//! * `block_stats`: the statistics of drives;
//! * `networks`: networks that exist before a card uses them, and the cards on them;
//! * `cards`: puts cards into slots, and takes them out;
//! * `typist`, `pointer`: keys and the mouse;
//! * `screendump`: pictures in files;
//! * `snapshots`, `dumps`: saved machines in files, and memory for debuggers;
//! * `capture`: copies of packets;
//! * `inspect`: the whole machine as a tree;
//! * `news`: events that commands cause later;
//! * `moving`: machines that move to another process;
//! * `probe`, `schema`, `qom`, `devices`: the queries by which tools find out what they talk to;
//! * `monitor`: the same for people, by lines of text.
//!
//! Several clients can be connected at a time, at several sockets; all of them receive events. A tool is
//! trusted no more than a guest: messages and all queues are bounded, and a client that does not read is
//! disconnected.
//!
//! ```no_run
//! # fn run(mut vm: ring3_vm::Vm, console: &mut dyn ring3_vm::Console) -> Result<(), Box<dyn std::error::Error>> {
//! let (sender, mut door) = ring3_vm::door();
//! let server = ring3_qmp::Server::on_socket(&sender.control(), "qmp.socket".as_ref(), Default::default())?;
//! vm.run(&mut door, console)?;
//! server.finish();
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod balloon;
mod block_stats;
mod capture;
mod cards;
mod characters;
mod commands;
mod debuggers;
mod devices;
mod dumps;
mod extra_memory;
mod framing;
mod inspect;
mod limits;
mod media;
mod memory;
mod monitor;
mod moving;
mod networks;
mod news;
mod nodes;
mod pointer;
mod probe;
mod protocol;
mod qom;
mod schema;
mod screendump;
mod server;
mod session;
mod snapshots;
mod typist;
mod usage;
mod uuid;

pub use characters::{Character, Characters};
pub use commands::{CharacterInfo, Facts};
pub use devices::device_properties;
pub use networks::{Networks, NewNetwork};
pub use server::{Handle, Protocol, Server};
