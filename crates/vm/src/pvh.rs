//! Direct boot of kernels by PVH (Xen, `docs/misc/pvh.pandoc`, and `public/arch-x86/hvm/start_info.h`): ELF files
//! with a note that says where they start, in protected mode. Linux is one, in the file `vmlinux`.
//!
//! The contents of memory afterwards are those of [`crate::multiboot`]: the kernel where it belongs, then its
//! initial RAM disk and what it is told, each from a page's start.

use ring3_core::memory::Memory;
use thiserror::Error;

use crate::elf_kernel::{ElfError, ElfKernel};
use crate::memory_map::memory_map;
use crate::placing::{Entry, GDT_LEN, Placer, PlacingError};

/// The reasons why a kernel cannot be booted.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PvhError {
    /// It does not say how it starts.
    #[error(
        "is an ELF file with neither a Multiboot header nor a note for PVH: if it is Linux's vmlinux, give the bzImage \
         that was made from it, or build it with CONFIG_PVH"
    )]
    NoNote,
    /// The file cannot be read.
    #[error("cannot be loaded: {0}")]
    Elf(#[from] ElfError),
    /// There is no place for it in memory.
    #[error(transparent)]
    Placing(#[from] PlacingError),
}

/// `hvm_start_info`: its magic number, its version with a memory map, and its length in bytes.
const MAGIC: u32 = 0x336e_c578;
const VERSION: u32 = 1;
const START_INFO_LEN: u32 = 56;
/// The length of `hvm_modlist_entry`.
const MODULE_LEN: u32 = 32;

/// Loads the kernel in `file` into `memory`, with its initial RAM disk if that is not empty, and with the address
/// of the ACPI tables' RSDP.
pub(crate) fn load(
    memory: &mut Memory,
    file: &[u8],
    initrd: &[u8],
    command_line: &str,
    rsdp: u64,
) -> Result<Entry, PvhError> {
    let kernel = ElfKernel::parse(file)?;
    let eip = kernel.pvh_entry().ok_or(PvhError::NoNote)?;
    let mut placer = Placer::load(memory, &kernel.parts)?;
    let mut module = None;
    if !initrd.is_empty() {
        module = Some(placer.put(initrd)?.0);
    }
    let map = memory_map(placer.memory().ram());

    let base = placer.next() + GDT_LEN;
    let modules = base + START_INFO_LEN;
    let ranges = modules + if module.is_some() { MODULE_LEN } else { 0 };
    let words =
        |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut ranges_bytes = Vec::new();
    for range in &map {
        ranges_bytes.extend(range.entry());
        // Reserved.
        ranges_bytes.extend([0; 4]);
    }
    let command_line_at = ranges + ranges_bytes.len() as u32;

    let mut information = Vec::new();
    for word in [MAGIC, VERSION, 0, u32::from(module.is_some())] {
        information.extend(word.to_le_bytes());
    }
    let pointers = [modules.into(), command_line_at.into(), rsdp, ranges.into(), map.len() as u64];
    information.extend(words(&pointers));
    if let Some(start) = module {
        information.extend(words(&[start.into(), initrd.len() as u64, 0, 0]));
    }
    information.extend(ranges_bytes);
    information.extend(command_line.as_bytes());
    information.push(0);
    Ok(placer.finish(&information, eip)?)
}

#[cfg(test)]
mod tests {
    use elf::abi::{PT_LOAD, PT_NOTE};
    use proptest::prelude::*;

    use crate::elf_kernel::tests::{contents_at, elf64, pvh_note_of};

    use super::*;

    const RAM: u64 = 4 << 20;

    /// Returns a kernel of four bytes at 2 MiB that starts at its third byte.
    fn kernel() -> Vec<u8> {
        let at = contents_at(2);
        let note = pvh_note_of(0x20_0002);
        let len = note.len() as u64;
        let headers = [
            (PT_LOAD, [at + len, 0xffff_8000_0020_0000, 0x20_0000, 4, 0x2000]),
            (PT_NOTE, [at, 0, 0, len, len]),
        ];
        elf64(&headers, 0xffff_8000_0020_0000, &[&note[..], &[1, 2, 3, 4]].concat())
    }

    fn words<const N: usize>(memory: &Memory, address: u64) -> [u64; N] {
        std::array::from_fn(|index| u64::from_le_bytes(memory.load(address as usize + 8 * index)))
    }

    #[test]
    fn a_kernel_is_told_what_there_is() {
        let mut memory = Memory::new(RAM).unwrap();
        let entry = load(&mut memory, &kernel(), &[7; 5000], "quiet", 0xe_0000).unwrap();
        assert_eq!((entry.eip, entry.gdt_base), (0x20_0002, 0x20_4000));
        assert_eq!(memory.load::<5>(0x20_0000), [1, 2, 3, 4, 0]);
        let [magic, flags, modules, command_line, rsdp, map, ranges] =
            words(&memory, entry.information.into());
        assert_eq!((magic, flags), (1 << 32 | u64::from(MAGIC), 1 << 32));
        assert_eq!(words(&memory, modules), [0x20_2000, 5000, 0, 0]);
        assert_eq!(memory.load::<6>(command_line as usize), *b"quiet\0");
        assert_eq!((rsdp, ranges), (0xe_0000, 4));
        assert_eq!(words(&memory, map + 3 * 24), [0x10_0000, RAM - 0x10_0000, 1]);
        let entry = load(&mut memory, &kernel(), &[], "", 0).unwrap();
        assert_eq!(words::<2>(&memory, entry.information.into())[1], 0, "no modules");
    }

    #[test]
    fn kernels_that_cannot_be_loaded_are_refused_with_a_reason() {
        let mut memory = Memory::new(RAM).unwrap();
        let mut refused = |file: &[u8], initrd: &[u8]| {
            load(&mut memory, file, initrd, "", 0).unwrap_err().to_string()
        };
        assert!(refused(&elf64(&[(PT_LOAD, [0; 5])], 0, &[]), &[]).contains("CONFIG_PVH"));
        assert!(refused(&kernel()[..150], &[]).contains("not a valid ELF file"));
        assert!(refused(&kernel(), &vec![1; 4 << 20]).contains("needs at least 7 MiB"));
        let mut high = kernel();
        high[64 + 24 + 4..][..4].copy_from_slice(&[1, 0, 0, 0]);
        assert!(refused(&high, &[]).contains("no free memory"));
        let mut endless = kernel();
        endless[64 + 40..][..8].copy_from_slice(&[0xff; 8]);
        assert!(refused(&endless, &[]).contains("no free memory"));
    }

    proptest! {
        #[test]
        fn any_file_is_parsed_without_a_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        ) {
            let mut file = kernel();
            for (index, byte) in changes {
                let index = index.index(file.len());
                file[index] = byte;
            }
            let mut memory = Memory::new(RAM).unwrap();
            if let Ok(entry) = load(&mut memory, &file, &[1], "", 0) {
                prop_assert!(u64::from(entry.information) < RAM);
            }
        }
    }
}
