//! The IA-32 processor as a library, to be read next to the Intel manual
//! (*Intel 64 and IA-32 Architectures Software Developer's Manual*, cited
//! as SDM with the section numbers of 2023 and later).
//!
//! * State: [`cpu`] holds all of it; [`flags`], [`segment`], [`fpu`], [`sse`], [`tlb`] are its parts.
//! * Instructions: [`table`] lists every instruction form and its handler; the files of `exec` contain the
//!   semantics, a file a chapter; [`decode`] turns bytes (through iced-x86) into [`decode::Op`]s that need no
//!   further decoding; [`undefined`] lists the results that they leave undefined.
//! * Functions that instructions share: [`access`](mod@access) reads and writes memory through segments and
//!   paging, [`paging`] walks the page tables, [`segment`] loads selectors, [`interrupt`] delivers exceptions
//!   and interrupts, [`transfer`] does far jumps, calls and returns, `task` switches tasks, `debug` holds the
//!   breakpoints, `virtual_8086` the virtual interrupts, `long_mode` what long mode has of its own, and `reset`
//!   does RESET and INIT; [`mtrr`] and [`machine_check`] hold registers that software reads and writes without
//!   an effect.
//! * Execution: an [`engine::Engine`] runs a [`cpu::Cpu`] until an [`engine::Exit`]. The [`interpreter`] is
//!   the first engine and the specification of all others. An [`observer`] sees the instructions that it
//!   executes. [`histogram`] counts them, [`system_calls`] tells of those that call a system, and
//!   [`guest_tools`] are functions that the guest calls by CPUID.
//!
//! An instruction either completes or leaves the state as it was. Page faults, device accesses (which leave
//! the engine and restart the instruction with the answer) and code that modifies itself all rest on this one
//! rule.
//!
//! ```
//! use ring3_core::memory::Memory;
//! use ring3_x86::cpu::Cpu;
//! use ring3_x86::engine::{Engine, Exit};
//! use ring3_x86::interpreter::Interpreter;
//!
//! let mut memory = Memory::new(1 << 20)?;
//! memory.load_image(0x7c00, &[0xb8, 0x34, 0x12, 0xf4])?; // mov ax, 1234h; hlt
//! let mut cpu = Cpu::new();
//! cpu.set_real_mode_entry(0, 0x7c00);
//! let exit = Interpreter::new().run(&mut cpu, &mut memory, 1000);
//! assert!(matches!(exit, Exit::Halt));
//! assert_eq!(cpu.gpr(0), 0x1234);
//! # Ok::<(), ring3_core::memory::MemoryError>(())
//! ```
#![forbid(unsafe_code)]

pub mod access;
pub mod cpu;
pub mod cpuid;
mod debug;
pub mod debugger;
pub mod decode;
pub mod device_access;
pub mod engine;
pub mod exception;
mod exec;
pub mod flags;
pub mod fpu;
pub mod guest_tools;
pub mod histogram;
pub mod hot_blocks;
pub mod interpreter;
pub mod interrupt;
mod jumps;
pub mod long_mode;
pub mod machine_check;
pub mod mtrr;
pub mod observer;
pub mod paging;
pub mod report;
mod reset;
pub mod segment;
pub mod softfloat;
pub mod sse;
pub mod sse_float;
pub mod system_calls;
pub mod table;
mod task;
pub mod tlb;
pub mod transfer;
pub mod undefined;
mod virtual_8086;
pub mod word;
