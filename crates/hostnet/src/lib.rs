//! The parts of the host's networking that need `unsafe` code, behind safe functions.
//!
//! * [`tap`]: tap devices, for whose system calls no library has safe functions;
//! * [`filter`]: expressions that select packets, by libpcap;
//! * [`slirp`]: a network behind one address that needs no rights, by libslirp;
//! * [`sandbox`]: takes from a process all rights that it does not need for that.
//!
//! The libraries are loaded when they are needed. So ring3 can be built and run without them, and a user who
//! asks for one of their functions is told what to install. Functions and structures are declared here as in
//! the libraries' headers, whose authors keep them compatible under the names that are loaded here
//! (libslirp.so.0, and libpcap.so.0.8, which other systems call libpcap.so.1).

pub mod filter;
mod library;
pub mod sandbox;
pub mod slirp;
pub mod tap;

pub use filter::{CaptureFilter, FilterError};
pub use library::NoLibrary;
pub use sandbox::Sandbox;
pub use slirp::{Forward, ForwardTarget, Slirp, SlirpError, SlirpOptions};
pub use tap::{Tap, TapError};
