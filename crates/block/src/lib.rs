//! Disk images.
//!
//! An [`Image`] is a disk in a file. Whatever its format, the machine and the tools read, write, flush and
//! describe it in the same way. [`create()`] makes one.
//!
//! * [`storage`]: storage for the bytes of images: files and block devices of the host, and memory; [`nbd`]:
//!   exports of servers;
//! * [`mod@format`]: the list of formats, and the trait that each of them implements;
//! * [`image`]: images as their users see them, with the chain of their backing images;
//! * a module for each format: `raw`, `qcow2`, `qcow`, `vdi`, `vmdk`, `vpc`, `bochs`, `cow`, and, for reading
//!   only, `vhdx`, `parallels` and those in `encryption`; `blocks` and `flat` are common parts of several
//!   formats.
//!
//! # Rules for formats
//!
//! **The contents of an image are hostile.** A number from an image is checked before it is used: nothing
//! panics, no table takes more than 64 MiB, no loop runs longer than the disk is large, and nothing is read
//! or written outside of the file.
//!
//! **After a crash an image has the contents of the last flush, or newer ones.** Data and new clusters are
//! written at once, to places to which the tables in the file do not lead. The tables change in memory, and a
//! flush writes them: data and reference counts first, then, when the storage has flushed these, the tables
//! that lead to them. Room that became free is used again only after another flush of the storage. So a crash
//! may lose room, and nothing else.
//!
//! # Why this crate does not use imago
//!
//! The crate `imago` (0.2.6) reads and writes qcow2 and flat VMDK images, and was examined first. It is not
//! used, because
//!
//! * it writes tables in the right order but never asks the host to keep that order: it does not sync between
//!   its caches of reference counts and of L2 tables, nor between data and tables. After a power cut tables
//!   can lead to clusters that were never counted or never written. In a test like the one of this crate, 84
//!   of 1000 images were corrupt; the test of this crate finds none;
//! * an implementation of its traits, for storage or a format, needs `unsafe` functions, which this crate
//!   forbids;
//! * it refuses images with zstd clusters, with extended L2 tables, or that were not closed. It supports
//!   neither snapshots nor checks, and keeps header and reference counts private, so none of that can be
//!   added from outside;
//! * it takes no locks.
#![forbid(unsafe_code)]

mod blocks;
mod bochs;
mod bytes;
mod check;
mod cow;
mod create;
mod encryption;
mod error;
mod external;
mod flat;
pub mod format;
pub mod image;
pub mod nbd;
mod parallels;
mod preallocation;
mod qcow;
mod qcow2;
mod raw;
mod spec;
pub mod storage;
mod unfinished;
mod vdi;
mod vhdx;
mod vmdk;
mod vpc;

pub use check::{Repair, Report};
pub use create::{CreateOptions, NewImage, create, create_in, parse_size};
pub use encryption::Secret;
pub use error::{Error, Fault};
pub use external::forbid_external_files;
pub use format::{BackingName, Details, Extent, Format, Kind, Snapshot, SnapshotAct};
pub use image::{Backing, Image, Mapping, OpenOptions};
pub use preallocation::{BadPreallocation, Preallocation};
pub use spec::{BadSpec, ImageSpec};
pub use unfinished::{Unfinished, abandon_unfinished, remove_left};
