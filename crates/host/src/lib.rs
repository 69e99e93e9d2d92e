//! The host as ring3's processes use it, whatever they serve: the machine, the servers and the front-ends share these.
//!
//! * [`socket`]: Unix sockets to which this user's programs connect;
//! * [`listener`]: where connections come from, also by TCP and from other processes; [`stream`]: one end of a connection;
//! * [`admission`]: who is let in where too many come; [`deadline`]: what must be said in time;
//! * [`telnet`]: as much of that protocol as serial lines and monitors need;
//! * [`polling`]: how long to look for what comes before sleeping; [`workers`]: the same for threads that wait for work.
#![forbid(unsafe_code)]

pub mod admission;
pub mod deadline;
pub mod listener;
pub mod polling;
pub mod socket;
pub mod stream;
pub mod telnet;
pub mod workers;
