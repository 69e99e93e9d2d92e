//! Runs one IA-32 instruction on the real processor of an x86-64 Linux host and returns the state after it.
//!
//! # Why
//! The interpreter of ring3 is its specification, and a specification must be compared with the thing that it
//! specifies. This crate is that thing behind a function call: it takes a start state and the bytes of an
//! instruction, and returns the state after it or the exception that it raised. A call takes a few
//! microseconds, in the same process and without privileges.
//!
//! # How
//! A 64-bit Linux process may run 32-bit code: the kernel keeps a flat 32-bit code segment
//! (selector 0x23) in the descriptor table, and a far transfer to it puts the processor in
//! compatibility mode (SDM vol. 3A, 6.2.1). The [`Runner`] maps a small arena below 4 GiB (see
//! [`Layout`]), puts the instruction in a code region full of HLT, loads the start state and
//! enters the segment with IRETQ. HLT is privileged: wherever the instruction leads within the
//! code region, the next fetch raises #GP, and the signal frame built by the kernel holds the
//! exact state at that boundary. A page fault, a divide error and so on arrive the same way,
//! with vector, error code and CR2.
//!
//! ```
//! use ring3_hostcpu::{Runner, State, Stop, eflags};
//!
//! let Ok(mut cpu) = Runner::new() else { return }; // not on this host: skip
//! let mut start = State::at(cpu.layout().code.start);
//! start.gpr[0] = 0xffff_ffff;
//! let (end, stop) = cpu.run(&start, &[0x83, 0xc0, 0x01]).unwrap(); // ADD EAX, 1
//! assert_eq!(stop, Stop::Reached);
//! assert_eq!(end.gpr[0], 0);
//! assert_eq!(end.eip, start.eip + 3);
//! assert_ne!(end.eflags & eflags::CF, 0);
//! ```
//!
//! # What the instruction sees
//! - CPL 3 and IOPL 0 with interrupts on: privileged instructions raise #GP.
//! - CS = [`CODE_SELECTOR`], DS = ES = SS = [`DATA_SELECTOR`], all flat; FS and GS are null. Which other
//!   selectors are valid (LAR, LSL, VERR, MOV to a segment register) depends on the host's descriptor table.
//! - Memory as in [`Layout`]. The instruction can also access everything else that the process has mapped
//!   below 4 GiB; a position-independent executable has nothing there.
//! - Start flags limited to [`eflags::SETTABLE`]. TF is not among them. AC is: an unaligned access
//!   then raises #AC, as CR0.AM is set on Linux.
//! - x87, MMX and SSE state from the FXSAVE image, and the upper halves of the YMM registers.
//!
//! # What not to run
//! [`Runner::run`] refuses instructions that would leave the box (see [`Refused`]). It checks only the first
//! instruction, so the caller must pass one complete instruction that does not branch into its own bytes.
//! Results of SGDT, SIDT, SLDT, SMSW and STR are those of the kernel's emulation where UMIP is on.
//!
//! [`Runner::run_program`] runs more than one instruction, for measurements; the same holds for each of them.
//!
//! # Where processors differ
//! [`Cpu`] says which processor gave a result. Processors differ by specification in undefined flags, in the
//! x87 instruction and data pointers, and in accesses that wrap around at 4 GiB (SDM vol. 3A, 6.3: no
//! exception, #SS or #GP). On a virtual machine that these tests ran on, INT1 was reported with the address
//! of the instruction instead of the next one; whether its hypervisor or its processor was the reason is not
//! known.

#![deny(unsafe_op_in_unsafe_fn)]

mod cpu;
mod fx;
mod layout;
mod refuse;
mod state;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "linux/mod.rs"]
mod runner;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[path = "elsewhere.rs"]
mod runner;

pub use cpu::{Cpu, Feature, Vendor};
pub use fx::FxImage;
pub use layout::{
    CODE_SELECTOR, DATA_SELECTOR, FILLER, LONG_CODE_SELECTOR, Layout, PAGE_SIZE, Region,
};
pub use refuse::Refused;
pub use runner::Runner;
pub use state::{LongState, LongStop, State, Stop, Unavailable, eflags, gpr};
