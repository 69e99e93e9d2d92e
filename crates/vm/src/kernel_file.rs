//! Recognizes, by its first bytes, a file that is to be started as a kernel.

use ring3_x86::cpuid::Model;
use thiserror::Error;

use crate::multiboot;

/// The message about kernels, and about guests, that need long mode.
pub const FOR_64_BITS: &str = "is for 64-bit processors: use a 32-bit system, such as the kernel of Debian's package \
     linux-image-686, or, slowly, --cpu qemu64";

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelFile {
    /// A Linux kernel with a boot protocol for PCs, such as a bzImage.
    Linux,
    /// Such a kernel for 64-bit processors.
    Linux64,
    /// A kernel with a Multiboot header.
    Multiboot,
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
    /// A kernel with a header of Multiboot 2 only.
    #[error(
        "has a header of Multiboot 2 and none of Multiboot 1: let GRUB start it, from a CD image that grub-mkrescue makes"
    )]
    Multiboot2,
    /// An ELF file without a header for a boot loader.
    #[error(
        "is an ELF file without a Multiboot header, such as Linux's vmlinux: give the bzImage that was made from it"
    )]
    Elf,
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

/// The magic number of Multiboot 2 (Multiboot2 Specification, 3.1.1). It is at a multiple of 8, within this
/// many bytes of the file.
const MULTIBOOT2: [u8; 4] = 0xe852_50d6_u32.to_le_bytes();
const MULTIBOOT2_SEARCHED: usize = 32768;

/// ELF: the magic number, the class of 64-bit files, and machines (`e_machine`).
const ELF: &[u8] = b"\x7fELF";
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
        KernelFile::Linux64 if !model.has_long_mode() => Err(NoKernel::For64Bits),
        KernelFile::Linux | KernelFile::Linux64 | KernelFile::Multiboot | KernelFile::Unknown => {
            Ok(())
        }
    }
}

/// Returns the kind of `file`.
pub fn recognize(file: &[u8]) -> KernelFile {
    let word = |at: usize| Some(u16::from_le_bytes([*file.get(at)?, *file.get(at + 1)?]));
    let has = |at: usize, bytes: &[u8]| file.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    if has(header::MAGIC, b"HdrS") {
        let has_flags = word(header::VERSION) >= Some(VERSION_WITH_XLOADFLAGS);
        let flags = word(header::XLOADFLAGS).filter(|_| has_flags).unwrap_or(0);
        let is_64 = flags & XLF_KERNEL_64 != 0;
        return if is_64 { KernelFile::Linux64 } else { KernelFile::Linux };
    }
    if multiboot::is_multiboot(file) && !multiboot::needs_64_bits(file) {
        return KernelFile::Multiboot;
    }
    let is_for_64_bits = file.get(4) == Some(&ELFCLASS64) && word(18) == Some(EM_X86_64);
    if has(0, ELF) && is_for_64_bits {
        return KernelFile::Other(NoKernel::For64Bits);
    }
    let mut searched = file[..file.len().min(MULTIBOOT2_SEARCHED)].chunks_exact(8);
    let other = if searched.any(|chunk| chunk.starts_with(&MULTIBOOT2)) {
        NoKernel::Multiboot2
    } else if has(0, ELF) {
        if word(18) == Some(EM_386) { NoKernel::Elf } else { NoKernel::OtherProcessor }
    } else if has(0x38, b"ARM\x64") || has(0x30, b"RISCV") {
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

    #[track_caller]
    fn for_64_bits(found: KernelFile) {
        assert_eq!(found, KernelFile::Other(NoKernel::For64Bits));
    }

    #[test]
    fn elf_files_are_classified() {
        let header = multiboot_header(3);
        for_64_bits(recognize(&elf(2, EM_X86_64, &[(0x200, &header)])));
        for_64_bits(recognize(&elf(2, EM_X86_64, &[])));
        assert_eq!(recognize(&elf(1, EM_386, &[(0x200, &header)])), KernelFile::Multiboot);
        // With addresses in the header, the file's class says nothing about the code.
        let addressed = multiboot_header(1 << 16);
        assert_eq!(recognize(&elf(2, EM_X86_64, &[(0x200, &addressed)])), KernelFile::Multiboot);
        let other = |file: &[u8]| match recognize(file) {
            KernelFile::Other(other) => other,
            found => panic!("{found:?}"),
        };
        assert_eq!(other(&elf(1, EM_386, &[])), NoKernel::Elf);
        assert_eq!(other(&elf(2, 183, &[])), NoKernel::OtherProcessor);
        assert_eq!(other(&elf(1, EM_386, &[(0x100, &MULTIBOOT2)])), NoKernel::Multiboot2);
        assert_eq!(other(&elf(2, EM_X86_64, &[(0x100, &MULTIBOOT2)])), NoKernel::For64Bits);
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
