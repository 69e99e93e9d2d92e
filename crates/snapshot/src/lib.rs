//! Machines in files: saved ones, which continue later, and dumps for debuggers; and machines on the move.
//!
//! [`save`] keeps a machine that runs, or is paused, in a file: processor, devices and time, the contents of
//! memory, and for each drive where the contents of its disk at that moment are. [`Snapshot`] reads such a
//! file; the machine is made from it by [`Vm::restore`](ring3_vm::Vm::restore).
//!
//! * [`mod@format`] is the layout of the file;
//! * `writer` keeps a moment of a machine, `reader` reads it by its `parts`;
//! * `dump` writes the memory and the registers of a machine into an ELF core ([`dump()`]), whose layout is in
//!   `elf_core`;
//! * `drives` opens the disks again, `loader` lets a machine that runs go on as the one in a file ([`load`]);
//! * [`moving`] sends a machine that runs to another process.
//!
//! # Disks
//!
//! A disk's contents are not copied. A disk that the guest cannot change stays in its file. A writable qcow2
//! image gets a snapshot of its own, which [`save`] makes and [`Snapshot::delete`] deletes. The sectors that
//! a guest has written over an image with `snapshot=on` are in the file of the machine.
//!
//! # Failures
//!
//! The file gets its name when it is complete and on disk: whatever happens before, an older file of this
//! name stays as it is. A file that was cut is refused, and so is one whose header or index has changed. The
//! other parts have checksums too, which are compared when a part is read: the kernel and its files when the
//! machine is reset. Only memory that is mapped ([`Snapshot::give_memory`]) is not compared with them, since
//! that would read all of it: [`Snapshot::check`] does so.
#![forbid(unsafe_code)]

mod drives;
mod dump;
mod elf_core;
mod error;
pub mod format;
mod loader;
pub mod moving;
mod parts;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use drives::{RestoreDriveError, attach_drives};
pub use dump::{DumpError, DumpOptions, Progress, dump};
pub use error::{OpenError, SaveError};
pub use format::SavedDrive;
pub use loader::{LoadFileError, load};
pub use reader::Snapshot;
pub use writer::{SaveOptions, Saved, save};
