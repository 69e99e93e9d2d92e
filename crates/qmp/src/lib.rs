//! The QEMU Machine Protocol (QMP): how tools drive a machine.
//!
//! A tool connects to a Unix socket (or to standard input and output), is greeted, negotiates, and then sends
//! commands in JSON, each of which is answered; in between it is told of events. Many tools speak
//! this protocol, so ring3 speaks it too, with the commands that make sense for its machine. What each
//! is and takes is in QEMU's "QMP Reference Manual"; how messages look, in its "QEMU Machine Protocol
//! Specification".
//!
//! * [`Server`] is all that a program needs: it has threads of its own, and ends with its machine;
//! * `server`: the threads and the clients;
//! * `framing`: from bytes to messages;
//! * `session`: negotiation, and from a message to its answer;
//! * `protocol`: the messages;
//! * `commands`: what the commands do;
//! * `media`: discs and diskettes are changed;
//! * `nodes`: images that are there before a device has them;
//! * `block_stats`: what drives have done;
//! * `cards`: disks are put into slots, and wanted back;
//! * `typist`, `pointer`: keys and the mouse;
//! * `screendump`: pictures in files;
//! * `probe`, `schema`, `qom`, `devices`: what tools ask for to find out with what they talk;
//! * `monitor`: the same for people, by lines of text.
//!
//! Several clients can be there at once, at several places; all are told of events. The tool is not trusted more
//! than a guest is: messages are bounded, as is all that waits; a client that does not read is hung up on.
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

mod block_stats;
mod cards;
mod commands;
mod devices;
mod framing;
mod limits;
mod media;
mod monitor;
mod nodes;
mod pointer;
mod probe;
mod protocol;
mod qom;
mod schema;
mod screendump;
mod server;
mod session;
mod typist;
mod uuid;

pub use commands::{CharacterInfo, Facts};
pub use devices::device_properties;
pub use server::{Handle, Protocol, Server};
