//! The host as all processes of ring3 use it: the machine, the servers and the front-ends share these
//! modules.
//!
//! * [`socket`]: Unix sockets to which this user's programs connect;
//! * [`listener`]: sources of connections, also by TCP and from other processes; [`stream`]: one end of a
//!   connection;
//! * [`admission`]: the choice of clients when there are too many; [`deadline`]: limits for the time of a
//!   conversation;
//! * [`telnet`]: the part of that protocol that serial lines and monitors need;
//! * [`polling`]: how long to poll before sleeping; [`workers`]: threads that wait for work in this way;
//! * [`turns`]: a rate that clients share by weights;
//! * [`memory`]: how much memory the host can still give; [`control_groups`]: those of this process;
//! * [`samples`]: how long frequent pieces of work take.
#![forbid(unsafe_code)]

pub mod admission;
pub mod control_groups;
pub mod deadline;
pub mod listener;
pub mod memory;
pub mod polling;
pub mod samples;
pub mod socket;
pub mod stream;
pub mod telnet;
pub mod turns;
pub mod workers;
