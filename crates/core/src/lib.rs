//! The foundation of every other part of a ring3 machine.
//!
//! * [`memory`]: guest-physical memory, and which of it holds decoded code;
//! * [`device`]: what a device model is, and everything by which it may act on the rest of the machine (raise
//!   an IRQ line, set a timer, emit an output);
//! * [`bus`]: port I/O, memory-mapped I/O and PCI configuration, from an address to a device;
//! * [`lines`]: IRQ lines;
//! * [`a20`]: address line 20;
//! * [`dma`]: DMA request lines of the ISA bus;
//! * [`disk`], [`display`], [`net`]: the messages between devices and the drives, screens and networks behind
//!   them;
//! * [`clock`]: virtual time and the timers that run on it;
//! * [`input`]: the one door through which every event from outside enters;
//! * [`balloon`]: what passes between a memory balloon and those outside;
//! * [`extra_memory`]: what is known of memory that comes and goes;
//! * [`keys`]: keys by name, by character and by X keysym;
//! * [`state`]: saved states of devices, tagged and versioned.
//!
//! Nothing here knows the host: no files, no threads, no host time. A machine that receives the same inputs
//! at the same instruction counts runs in the same way again.
//!
//! ```
//! use ring3_core::clock::{Clock, Time};
//!
//! // 1000 picoseconds for each instruction: virtual time is instructions executed.
//! let clock = Clock::new(1_000);
//! assert_eq!(clock.now(1_000), Time::from_nanos(1_000));
//! ```
#![forbid(unsafe_code)]

pub mod a20;
pub mod balloon;
pub mod bus;
pub mod channel;
pub mod clock;
pub mod device;
pub mod disk;
pub mod display;
pub mod dma;
pub mod extra_memory;
pub mod input;
pub mod keys;
pub mod lines;
pub mod memory;
pub mod net;
pub mod state;
