//! Recognizes, by its first bytes, a file that is to be started as a kernel.

use ring3_x86::cpuid::Model;
use thiserror::Error;

use crate::{multiboot, multiboot2};

/// The message about kernels, and about guests, that need long mode.
pub const FOR_64_BITS: &str = "is for 64-bit processors: use --cpu x86-64-v2, or a 32-bit system, such as the \
     kernel of Debian's package linux-image-686";

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelFile {
    /// A Linux kernel with a boot protocol for PCs, such as a bzImage.
    Linux,
    /// Such a kernel for 64-bit processors.
    Linux64,
    /// A kernel with a Multiboot header.
    Multiboot,
    /// A kernel with a Multiboot2 header.
    Multiboot2,
    /// An ELF file for PCs, which may say by a note how it starts ([`crate::pvh`]).
    Elf,
    /// A known kind of file, but no kernel that can be started here.
    Other(NoKernel),
    /// An unknown kind of file.
    Unknown,
}

/// The kinds of files that are no kernel for this machine, with advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NoKernel {
    /// A kernel for 64-bit processors.
    #[error("{FOR_64_BITS}")]
    For64Bits,
    /// A kernel or program for something that is no PC.
    #[error("is for a processor other than a PC's")]
    OtherProcessor,
    /// A file that a program can unpack.
    #[error("is compressed: unpack it with {0} first")]
    Compressed(&'static str),
}

/// Linux's setup header (boot.rst, "The Real-Mode Kernel Header").
mod header {
    pub(super) const MAGIC: usize = 0x202;
    pub(super) const VERSION: usize = 0x206;
    /// Protocol 2.12 and later.
    pub(super) const XLOADFLAGS: usize = 0x236;
}
/// The first protocol version with `xloadflags`.
const VERSION_WITH_XLOADFLAGS: u16 = 0x020c;
/// `xloadflags`: the kernel has a 64-bit entry point, which no 32-bit kernel has.
const XLF_KERNEL_64: u16 = 1 << 0;

/// ELF: the magic number, classes, and machines (`e_machine`).
const ELF: &[u8] = b"\x7fELF";
const ELFCLASS32: u8 = 1;
const ELFCLASS64: u8 = 2;
const EM_386: u16 = 3;
const EM_X86_64: u16 = 62;

/// The first bytes of compressed files, and the programs that unpack them.
const COMPRESSED: [(&[u8], &str); 6] = [
    (&[0x1f, 0x8b], "gunzip"),
    (b"\xfd7zXZ\0", "unxz"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "unzstd"),
    (b"BZh", "bunzip2"),
    (&[0x02, 0x21, 0x4c, 0x18], "unlz4"),
    (b"PK\x03\x04", "unzip"),
];

/// Refuses files that are known to be no kernel for a machine with a processor of model `model`.
pub(crate) fn check(file: &[u8], model: Model) -> Result<(), NoKernel> {
    match recognize(file) {
        KernelFile::Other(other) => Err(other),
        kind if needs_long_mode(kind, file) && !model.has_long_mode() => Err(NoKernel::For64Bits),
        _ => Ok(()),
    }
}

/// Returns whether `file` begins as an ELF file of this class, for this processor.
fn is_elf(file: &[u8], class: u8, machine: u16) -> bool {
    file.starts_with(ELF)
        && file.get(4) == Some(&class)
        && file.get(18..20) == Some(&machine.to_le_bytes())
}

/// Returns whether a kernel of this kind is for 64-bit processors. All ELF files start in 32-bit code; nobody
/// makes one of 64 bits for other processors.
fn needs_long_mode(kind: KernelFile, file: &[u8]) -> bool {
    let is_addressed = match kind {
        KernelFile::Linux64 => return true,
        KernelFile::Multiboot => multiboot::is_addressed(file),
        KernelFile::Multiboot2 => multiboot2::is_addressed(file),
        KernelFile::Elf => false,
        KernelFile::Linux | KernelFile::Other(_) | KernelFile::Unknown => return false,
    };
    !is_addressed && is_elf(file, ELFCLASS64, EM_X86_64)
}

/// Returns whether a kernel of the file's kind starts without firmware, and cannot be started by it.
pub fn starts_without_firmware(file: &[u8]) -> bool {
    matches!(recognize(file), KernelFile::Multiboot | KernelFile::Multiboot2 | KernelFile::Elf)
}

/// Returns whether `file` is known to be a kernel of 32 bits.
pub fn is_for_32_bits(file: &[u8]) -> bool {
    let kind = recognize(file);
    !matches!(kind, KernelFile::Other(_) | KernelFile::Unknown) && !needs_long_mode(kind, file)
}

/// Returns the kind of `file`, of which the first bytes will do. Of two headers the older one counts, except in an
/// ELF file of 64 bits, which Multiboot 1 did not know.
pub fn recognize(file: &[u8]) -> KernelFile {
    let word = |at: usize| Some(u16::from_le_bytes([*file.get(at)?, *file.get(at + 1)?]));
    let has = |at: usize, bytes: &[u8]| file.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    if has(header::MAGIC, b"HdrS") {
        let has_flags = word(header::VERSION) >= Some(VERSION_WITH_XLOADFLAGS);
        let flags = word(header::XLOADFLAGS).filter(|_| has_flags).unwrap_or(0);
        let is_64 = flags & XLF_KERNEL_64 != 0;
        return if is_64 { KernelFile::Linux64 } else { KernelFile::Linux };
    }
    let is_64 = is_elf(file, ELFCLASS64, EM_X86_64);
    let is_multiboot = multiboot::is_multiboot(file);
    if is_multiboot && (!is_64 || multiboot::is_addressed(file)) {
        return KernelFile::Multiboot;
    }
    if multiboot2::is_multiboot2(file) {
        return KernelFile::Multiboot2;
    }
    if is_multiboot {
        return KernelFile::Multiboot;
    }
    if is_64 || is_elf(file, ELFCLASS32, EM_386) {
        return KernelFile::Elf;
    }
    let other = if has(0, ELF) || has(0x38, b"ARM\x64") || has(0x30, b"RISCV") {
        NoKernel::OtherProcessor
    } else if let Some((_, program)) = COMPRESSED.iter().find(|(magic, _)| has(0, magic)) {
        NoKernel::Compressed(program)
    } else {
        return KernelFile::Unknown;
    };
    KernelFile::Other(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file with these bytes at these offsets.
    fn file(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut file = vec![0; 0x400];
        for (at, bytes) in parts {
            file[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        file
    }

    /// Returns an ELF file of this class and machine, without segments.
    fn elf(class: u8, machine: u16, more: &[(usize, &[u8])]) -> Vec<u8> {
        let ident = [0x7f, b'E', b'L', b'F', class, 1, 1];
        let machine = machine.to_le_bytes();
        let size = if class == 2 { 64u16 } else { 52 }.to_le_bytes();
        let at = if class == 2 { 52 } else { 40 };
        let parts: [(usize, &[u8]); 5] =
            [(0, &ident), (16, &[2, 0]), (18, &machine), (20, &[1]), (at, &size)];
        file(&[&parts[..], more].concat())
    }

    /// Returns a Multiboot header with these flags.
    fn multiboot_header(flags: u32) -> Vec<u8> {
        let magic = 0x1bad_b002u32;
        let sum = 0u32.wrapping_sub(magic).wrapping_sub(flags);
        [magic, flags, sum].into_iter().flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn a_linux_kernel_states_whether_it_has_64_bits() {
        let linux = |version: u16, flags: u16| {
            let (version, flags) = (version.to_le_bytes(), flags.to_le_bytes());
            recognize(&file(&[(0x202, b"HdrS"), (0x206, &version), (0x236, &flags)]))
        };
        assert_eq!(linux(0x20c, 1), KernelFile::Linux64);
        assert_eq!(linux(0x20f, 0x7f), KernelFile::Linux64);
        assert_eq!(linux(0x20f, 0x7e), KernelFile::Linux);
        // Before version 2.12 the field was padding.
        assert_eq!(linux(0x20b, 1), KernelFile::Linux);
        assert_eq!(linux(0x200, 1), KernelFile::Linux);
        assert_eq!(recognize(&file(&[(0x202, b"HdrS")])[..0x206]), KernelFile::Linux);
    }

    /// Returns a Multiboot2 header without tags but the last one.
    fn multiboot2_header() -> Vec<u8> {
        let magic = 0xe852_50d6_u32;
        let sum = 0u32.wrapping_sub(magic).wrapping_sub(24);
        [magic, 0, 24, sum, 0, 8].into_iter().flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn elf_files_are_classified() {
        let header = multiboot_header(3);
        let kind = |class, machine, more: &[(usize, &[u8])]| {
            let file = elf(class, machine, more);
            let for_64_bits = check(&file, Model::default()) == Err(NoKernel::For64Bits);
            assert!(for_64_bits || check(&file, Model::default()) == check(&file, Model::Qemu64));
            (recognize(&file), for_64_bits)
        };
        let [one, two] = [(0x200, &header[..]), (0x100, &multiboot2_header()[..])];
        assert_eq!(kind(2, EM_X86_64, &[one]), (KernelFile::Multiboot, true));
        assert_eq!(kind(2, EM_X86_64, &[]), (KernelFile::Elf, true));
        assert_eq!(kind(1, EM_386, &[one]), (KernelFile::Multiboot, false));
        // With addresses in the header, the file's class says nothing about the code.
        let addressed = (0x200, &multiboot_header(1 << 16)[..]);
        assert_eq!(kind(2, EM_X86_64, &[addressed, two]), (KernelFile::Multiboot, false));
        assert_eq!(kind(1, EM_386, &[]), (KernelFile::Elf, false));
        assert_eq!(kind(1, EM_386, &[two]), (KernelFile::Multiboot2, false));
        assert_eq!(kind(1, EM_386, &[one, two]), (KernelFile::Multiboot, false));
        assert_eq!(kind(2, EM_X86_64, &[two]), (KernelFile::Multiboot2, true));
        assert_eq!(kind(2, EM_X86_64, &[one, two]), (KernelFile::Multiboot2, true));
        let other = |file: &[u8]| match recognize(file) {
            KernelFile::Other(other) => other,
            found => panic!("{found:?}"),
        };
        assert_eq!(other(&elf(2, 183, &[])), NoKernel::OtherProcessor);
        assert_eq!(other(&file(&[(0x38, b"ARM\x64")])), NoKernel::OtherProcessor);
        assert_eq!(other(&file(&[(0, &[0x1f, 0x8b, 8])])), NoKernel::Compressed("gunzip"));
    }

    #[test]
    fn unknown_files_are_reported_as_unknown() {
        for unknown in [&[][..], &[0x7f, b'E'], &[0; 0x1000], b"#!/bin/sh"] {
            assert_eq!(recognize(unknown), KernelFile::Unknown);
        }
        assert_eq!(recognize(b"\x7fELF"), KernelFile::Other(NoKernel::OtherProcessor));
    }
}
