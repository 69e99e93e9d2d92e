//! The fast engine: IA-32 guests on x86-64 Linux hosts, in an ordinary process.
//!
//! Most instructions of a guest can run as they are; what changes is where they find their memory, where control goes,
//! and what privileged instructions do. So guest code is copied ([`block`], [`copy`], [`strings`], [`flags`], [`segments`], [`frames`]) with its memory
//! operands in a *window* ([`window`]), 4 GiB of host addresses into which the host's own MMU maps guest memory
//! as the guest's page tables say ([`space`], [`spaces`]). There is no compare, no branch and no flag in an access: what is not there
//! faults, and is then filled in, or left to the interpreter, which is the specification and executes all that is
//! rare or privileged.
//!
//! Flat 32-bit code is that and no more. All other code ([`segmented`]) has segments with bases and limits; [`mode`] tells one from the
//! other.
//!
//! * [`context`] has the registers, and the way into translated code and out of it; [`routines`] are what it calls;
//! * [`numeric`] has the host's x87, MMX and SSE registers be the guest's;
//! * [`descriptors`] has segment registers be loaded, and INT n and IRET find their way, without the interpreter;
//! * [`signals`] catches faults;
//! * [`access`] has devices be accessed without the interpreter;
//! * [`changing`] is about pages whose code is written to again and again;
//! * [`slots`] lets direct branches go into other pages;
//! * [`targets`] has the jump tables of segmented code, and [`limits`] checks offsets;
//! * [`returns`] is the host's stack meanwhile;
//! * [`budget`] stops translated code after an exact number of instructions;
//! * [`code_cache`] and [`emitter`] hold and write host code;
//! * [`blocks`] knows what is translated;
//! * [`translator`] is the engine.
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod access;
mod block;
mod blocks;
mod budget;
mod changing;
mod code_cache;
mod context;
mod copy;
mod descriptors;
mod emitter;
mod flags;
mod frames;
mod host_memory;
mod limits;
mod map;
mod mode;
mod numeric;
mod returns;
mod routines;
mod segmented;
mod segments;
mod signals;
mod slots;
mod space;
mod spaces;
mod strings;
mod targets;
mod translator;
mod window;

pub use host_memory::GuestMemory;
pub use translator::{Translator, Unavailable};
