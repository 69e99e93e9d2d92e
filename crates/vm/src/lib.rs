//! One virtual machine: a processor, an engine and a board, run until it ends.
//!
//! * [`Vm`] makes a machine from a [`Config`] and runs it, from firmware or from a kernel; a later run can
//!   continue from a [`SavedMachine`];
//! * [`board`] is the chipset: devices on their bus, their lines and timers; [`interrupts`] wires the
//!   interrupt controllers to each other and to the processor;
//! * [`mod@door`] takes in everything from outside, from any thread;
//! * [`control`] is the handle by which front-ends see the screen, pause the machine and learn what happens
//!   to it;
//! * [`debug`] is the machine as a debugger sees it;
//! * [`inspect`] describes the machine's state for readers outside, and [`tree`] shows all of it;
//! * [`Vm::verify`] and [`Vm::verify_replay`] compare two engines, and return a [`Difference`];
//! * [`event_log`] reports the events of a run, and [`recording`] is a file from which a run is repeated;
//! * [`taps`] copies packets for those who look on;
//! * [`system_calls`] shows the calls of the guest's programs;
//! * [`pace`] keeps virtual time close to the host's;
//! * [`firmware`] finds SeaBIOS and describes the machine to it;
//! * [`screenshot`] writes the display's picture to a file;
//! * `smbios` makes the tables that identify the machine;
//! * [`linux`], [`multiboot`], [`mod@multiboot2`], [`pvh`] and [`acpi`] put a kernel into memory without firmware.
//!
//! ```no_run
//! use ring3_vm::{Config, Console, Ending, Kernel, Software, Vm};
//!
//! struct Stdout;
//!
//! impl Console for Stdout {
//!     fn serial(&mut self, _port: u8, bytes: &[u8]) -> std::io::Result<()> {
//!         std::io::Write::write_all(&mut std::io::stdout(), bytes)
//!     }
//!     fn flush(&mut self) -> std::io::Result<()> {
//!         std::io::Write::flush(&mut std::io::stdout())
//!     }
//! }
//!
//! let config = Config { memory_bytes: 64 << 20, ..Config::default() };
//! let kernel = Kernel {
//!     image: std::fs::read("vmlinuz")?.into(),
//!     modules: Vec::new(),
//!     command_line: "console=ttyS0".into(),
//! };
//! let mut vm = Vm::new(config, Software::Kernel(kernel))?;
//! let (_sender, mut door) = ring3_vm::door();
//! assert!(matches!(vm.run(&mut door, &mut Stdout)?, Ending::PowerOff));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod acpi;
pub mod balloon;
pub mod board;
pub mod cards;
mod checksum;
pub mod config;
pub mod control;
pub mod debug;
pub mod difference;
pub mod door;
pub mod drives;
mod elf_kernel;
mod engines;
pub mod event_log;
pub mod extra_memory;
mod facts;
pub mod file_bytes;
pub mod firmware;
mod host_clocks;
mod host_fpu;
pub mod inspect;
pub mod interrupts;
mod kernel;
pub mod kernel_file;
mod linear_mode;
pub mod linux;
mod machine;
mod memory_map;
pub mod multiboot;
pub mod multiboot2;
pub mod networks;
pub mod pace;
pub mod placing;
pub mod profile;
pub mod pvh;
pub mod recording;
pub mod screenshot;
pub mod serial_lines;
mod set_up;
mod smbios;
mod stats;
pub mod system_calls;
pub mod taps;
pub mod tree;

/// The histogram of executed instructions.
pub mod histogram {
    pub use ring3_x86::histogram::{Histogram, Row};
    pub use ring3_x86::hot_blocks::HotBlock;
    pub use ring3_x86::table::Group;
}

pub use config::{
    BootDevice, Config, DisketteDrive, FwCfgFile, Kernel, Module, Nic, NicModel, OnPanic, Software,
    VirtioDisk, VirtioNic,
};
pub use control::Control;
pub use difference::{Difference, Undefined};
pub use door::{Door, Fetched, Sender, Source, door};
pub use engines::{EngineChoice, EngineError, EngineIn, EngineMaker};
pub use event_log::EventLog;
pub use file_bytes::FileBytes;
pub use machine::flight::{Archive, Kept, LastOptions, Occasion};
pub use machine::verify::{Engines, Verified};
pub use machine::{Console, Ending, Identity, ReplayOptions, Report, SavedMachine, Vm, VmError};
pub use ring3_x86::cpuid::Model;
pub use ring3_x86::guest_tools::GuestTools;
pub use smbios::{Smbios, SmbiosText};
pub use stats::Stats;
pub use system_calls::SystemCallTrace;
