//! What every part of a ring3 machine stands on.
//!
//! * [`memory`]: guest-physical memory, and which of it holds translated code;
//! * [`device`]: what a device model is, and all that it may do to the rest of
//!   the machine (raise an IRQ line, set a timer, emit an output);
//! * [`bus`]: port I/O, memory-mapped I/O and PCI configuration, from an address to a device;
//! * [`lines`]: IRQ lines;
//! * [`a20`]: address line 20;
//! * [`dma`]: DMA request lines of the ISA bus;
//! * [`disk`], [`display`], [`net`]: what devices and the drives, screens and networks behind them tell each other;
//! * [`clock`]: virtual time and the timers that run on it;
//! * [`input`]: the one door by which anything from outside enters;
//! * [`keys`]: keys by name, by character and by X keysym;
//! * [`state`]: saved states of devices, tagged and versioned.
//!
//! Nothing here knows the host: no files, no threads, no host time. A machine
//! that is given the same inputs at the same instruction counts does the same.
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
pub mod bus;
pub mod clock;
pub mod device;
pub mod disk;
pub mod display;
pub mod dma;
pub mod input;
pub mod keys;
pub mod lines;
pub mod memory;
pub mod net;
pub mod state;
