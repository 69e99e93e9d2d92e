//! GDB's remote protocol: a debugger outside the guest stops it, looks at it and changes it.
//!
//! `gdbstub` speaks the protocol. This crate gives it a [`Machine`]: a small trait, which
//! [`ring3_vm::Control`] implements.
//!
//! * [`Server`] accepts debuggers, one at a time;
//! * `session` is one of them: bytes come in, the machine stops, and each is handled as it comes;
//! * `packets` answers those of QEMU's packets that `gdbstub` does not know;
//! * `target` does what the debugger asks for;
//! * `registers` describes the registers to GDB, as QEMU does.
//!
//! A debugger that breaks the protocol loses its connection. Then, as after a detach, its breakpoints are
//! gone and the machine goes on.
#![forbid(unsafe_code)]

mod machine;
mod packets;
mod registers;
mod server;
mod session;
mod target;

pub use machine::Machine;
pub use server::{BadPlace, Monitor, Place, Server};
