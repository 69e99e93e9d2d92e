//! What of the host's networking needs `unsafe` code, behind functions that do not.
//!
//! * [`tap`]: tap devices, which the system has calls for that no library makes safe;
//! * [`filter`]: expressions that say which packets are meant, by libpcap;
//! * [`slirp`]: a network behind one address without any rights, by libslirp;
//! * [`sandbox`]: what takes all rights from a process but those that it needs for that.
//!
//! The libraries are loaded when they are needed. So ring3 is built and runs without them, and who asks for what they do is told
//! what to install. Their functions and structures are those of their headers, which their authors keep compatible under the names
//! that are loaded here (libslirp.so.0, and libpcap.so.0.8, which others call libpcap.so.1).

pub mod filter;
mod library;
pub mod sandbox;
pub mod slirp;
pub mod tap;

pub use filter::{CaptureFilter, FilterError};
pub use library::NoLibrary;
pub use sandbox::{Sandbox, Shortfall};
pub use slirp::{Forward, ForwardTarget, Slirp, SlirpError, SlirpOptions};
pub use tap::{Tap, TapError};
