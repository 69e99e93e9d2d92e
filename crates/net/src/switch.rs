//! A switch between machines, in a process of its own (`ring3 switch`).
//!
//! Machines connect to it as to a [`stream`](crate::stream); QEMU's can, too. Between machines of ring3
//! packets go through it unfinished and large. It has no state that cannot be found out again: when it dies,
//! machines connect to the next one, and guests notice a pause.
//!
//! * [`fabric`]: decides where packets go; `limit`: limits their rate;
//! * [`Switch`]: the ports, and what is behind them; [`SwitchServer`]: the socket to which machines connect;
//!   [`SwitchStatus`]: the switch's report; [`take_commands`]: the socket for commands;
//! * [`MachineShare`]: what a machine may send where all share a bandwidth;
//! * [`VhostServer`]: the socket for machines that share their memory, so that a packet between two of them
//!   is copied once;
//! * `join`: the machine's side, which starts a switch where there is none.
//!
//! A sender waits for a receiver that is too slow, so between two guests no packet is lost that they do not
//! lose themselves. A sender of a packet to all does not wait.
//!
//! # Streams instead of shared memory
//!
//! A machine of ring3 is connected by a stream of bytes, at the price of four copies of each packet. Its
//! memory stays its own: the translator would not see the switch write code there, and no recording could
//! repeat such writes. Passing through a third process costs more than the copies, a third to a half of a
//! round trip on two cores; the [short cuts](crate::short_cuts) avoid it.

mod control;
pub mod fabric;
mod joining;
mod limit;
mod port;
mod server;
mod shares;
mod status;
mod vhost;

pub use control::take_commands;
pub use joining::SwitchProgram;
pub(crate) use joining::join;
pub use port::{Switch, SwitchOptions};
pub use server::{SwitchServer, tell_status};
pub use shares::MachineShare;
pub use status::{PortStatus, SwitchStatus};
pub use vhost::VhostServer;
