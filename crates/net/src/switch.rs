//! A switch between machines, in a process of its own (`ring3 switch`).
//!
//! Machines connect to it as to a [`stream`](crate::stream), those of QEMU too. Between machines of ring3 packets go through it unfinished and large. It keeps
//! nothing that cannot be found out again: when it dies, machines connect to the next one, and guests see a pause.
//!
//! * [`fabric`]: which packets go where; `limit`: how many of them at most;
//! * [`Switch`]: ports, and what is behind them; [`SwitchServer`]: where machines connect; [`SwitchStatus`]: what it says of itself;
//! * [`VhostServer`]: where machines connect that share their memory, so that a packet between two of them is copied once;
//! * `join`: the machine's side, which starts a switch where there is none.
//!
//! Who sends to somebody that is too slow waits, so between two guests nothing is lost that they do not lose themselves; who sends to all does not wait.
//!
//! # Streams and not shared memory
//!
//! A machine of ring3 is connected by a stream of bytes, at the price of four copies a packet. Its memory stays
//! its own: the translator would not see the switch write code there, and no recording could repeat such writes. Passing
//! through a third process costs more than the copies, a third to a half of a round trip on two cores,
//! which the [short cuts](crate::short_cuts) avoid.

pub mod fabric;
mod joining;
mod limit;
mod port;
mod server;
mod status;
mod vhost;

pub use joining::SwitchProgram;
pub(crate) use joining::join;
pub use port::{Switch, SwitchOptions};
pub use server::{SwitchServer, tell_status};
pub use status::{PortStatus, SwitchStatus};
pub use vhost::VhostServer;
