//! Tern, the small operating system in `guest/`, as this crate's build has compiled it: a Multiboot kernel
//! and the archive of files that it gets as a module. A machine boots it without a file of the host.
//!
//! ```
//! if let Some(tern) = ring3_tern::TERN {
//!     assert!(tern.kernel.starts_with(b"\x7fELF"));
//!     assert!(tern.archive.starts_with(b"070701"));
//! }
//! ```

#![forbid(unsafe_code)]

mod archive;

pub use archive::{with_file, with_line, with_services};

/// The two files of a system.
#[derive(Debug, Clone, Copy)]
pub struct System {
    /// The kernel: an ELF file with a Multiboot header.
    pub kernel: &'static [u8],
    /// The boot archive, a cpio archive in the format "newc": the kernel's only module.
    pub archive: &'static [u8],
}

/// Tern, or None if it could not be built, for want of `make` or a C compiler.
#[cfg(has_tern)]
pub const TERN: Option<System> = Some(System {
    kernel: include_bytes!(concat!(env!("OUT_DIR"), "/tern/tern")),
    archive: include_bytes!(concat!(env!("OUT_DIR"), "/tern/tern.img")),
});

/// Tern, or None if it could not be built, for want of `make` or a C compiler.
#[cfg(not(has_tern))]
pub const TERN: Option<System> = None;
