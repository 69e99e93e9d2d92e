//! The consoles of all machines of a supervisor: what they say, and who types at them.
//!
//! * [`server`]: a process that reads the serial lines of all machines all the time, and keeps the last of what each
//!   has said; so a machine is never slowed by a console that nobody reads. It lets one client at a time type.
//! * [`protocol`]: what clients and the server say to each other. [`client`] is a client's end of it.
//! * [`terminal`]: all consoles in one terminal, with a line that no guest can draw.
//! * [`web`]: all consoles in a browser, with a line that no guest can draw.
//! * [`top`]: what all machines and servers use of the host, with keys for power.
//!
//! The server is a part of the supervisor, which starts it again if it dies. Machines do not notice: what a serial
//! line says meanwhile waits in the machine.
#![forbid(unsafe_code)]

pub mod client;
pub mod protocol;
pub mod server;
pub mod terminal;
pub mod top;
pub mod web;

mod error;
mod monitor;
mod picture;
mod rates;
mod ring;

pub use error::Error;
