//! Disk images.
//!
//! An [`Image`] is a disk in a file, whatever its format: it is read, written, flushed and told about in the same way by the
//! machine and by the tools. [`create()`] makes one.
//!
//! * [`storage`]: what holds the bytes: files and block devices of the host, memory; [`nbd`]: exports of servers;
//! * [`mod@format`]: which formats there are, and the trait that each of them implements;
//! * [`image`]: images as their users see them, with the chain of those on which they stand;
//! * a module for each format: `raw`, `qcow2`, `qcow`, `vdi`, `vmdk`, `vpc`, `bochs`, `cow`, and for reading `vhdx`, `parallels` and what is in `encryption`; `blocks` and `flat` are what some of them have in common.
//!
//! # Rules for formats
//!
//! **What is in an image is hostile.** A number from an image is checked before it is used: nothing panics, no table takes more
//! than 64 MiB, no loop goes on for longer than the disk is large, and nothing is read or written outside of the file.
//!
//! **After a crash an image is what it was at the last flush, or newer.** Data, and new clusters, are written at once
//! to places that the tables in the file do not lead to. The tables change in memory, and are written by a
//! flush: data and reference counts first, then, when the storage has flushed these, what leads to them, and only
//! after another flush of the storage is room that became free used again. So room may be lost in a crash, and nothing else.
//!
//! # Why imago is not beneath it
//!
//! The crate `imago` (0.2.6) reads and writes qcow2 and flat VMDK images, and was looked at first. It is not used, because
//!
//! * it writes tables in the right order but never asks the host to keep that order (no sync between its caches of
//!   reference counts and of L2 tables, nor between data and tables): after a power cut tables can lead
//!   to clusters that were never counted or never written (84 of 1000 images were corrupt in a test like that of this crate, which has none);
//! * who implements its traits, be it storage or a format, must write `unsafe` functions, which this crate does not have;
//! * it refuses images with zstd clusters, with extended L2 tables, or that were not closed, knows neither
//!   snapshots nor checks, and keeps header and reference counts to itself, so none of that can be added from outside;
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
pub use spec::{BadSpec, ImageSpec};
pub use unfinished::{abandon_unfinished, remove_left};
