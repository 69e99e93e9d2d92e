//! Direct boot of kernels that follow the Multiboot Specification, version 0.6.96 (cited by its sections):
//! from an ELF file, or any file whose header says where it belongs, to the registers with which the kernel
//! starts.
//!
//! The contents of memory afterwards, without the ACPI tables of [`crate::acpi`] in the BIOS area:
//!
//! ```text
//! where the kernel belongs                 its segments
//! page after the kernel, at least 1 MiB    the modules, each from a page's start
//! page after those                         GDT, multiboot information and what it points to
//! ```
//!
//! A kernel file may contain anything: each field is compared with the length of the file and the size of
//! memory before it is used.

use ring3_core::memory::{Memory, RamLayout};
use thiserror::Error;
use tracing::warn;

use crate::elf_kernel::{ElfError, ElfKernel};
use crate::memory_map::{LOW_RAM_END, Range, memory_map};
use crate::placing::{Entry, GDT_LEN, Part, Placer, PlacingError};

/// The value that a kernel finds in EAX (3.2).
pub const BOOTED: u32 = 0x2bad_b002;

/// The reasons why a kernel cannot be booted.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MultibootError {
    /// Its header requires something that the machine does not have.
    #[error(
        "needs an unknown feature of its boot loader: the flags of its Multiboot header are {0:#x}"
    )]
    Unknown(u32),
    /// It is no ELF file, and its header does not say where it belongs.
    #[error("has a Multiboot header but cannot be loaded: {0}")]
    Unloadable(&'static str),
    /// The file cannot be read.
    #[error("has a Multiboot header but cannot be loaded: {0}")]
    Elf(#[from] ElfError),
    /// There is no place for it in memory.
    #[error(transparent)]
    Placing(#[from] PlacingError),
}

const MIB: u64 = 1 << 20;

const MAGIC: u32 = 0x1bad_b002;
/// The header is within this many bytes of the file (3.1.1).
const SEARCHED: usize = 8192;

// Flags of the header (3.1.2). Modules are always on pages and the information is always there.
/// The kernel wants a video mode. A machine without firmware has its text screen and cannot set another one.
const VIDEO_MODE: u32 = 1 << 2;
/// The text screen, in the header's field for the mode.
const MODE_TEXT: u32 = 1;
const ALIGN_AND_INFORMATION: u32 = 0b11;
/// The address fields are valid, and take precedence over the file's own format.
const ADDRESSES: u32 = 1 << 16;
/// The flags that a loader must understand.
const REQUIREMENTS: u32 = 0xffff;

/// The Multiboot header (3.1.1).
#[allow(clippy::struct_field_names)] // The names of the specification.
struct Header {
    /// Its offset in the file.
    offset: usize,
    flags: u32,
    header_addr: u32,
    load_addr: u32,
    load_end_addr: u32,
    bss_end_addr: u32,
    entry_addr: u32,
    mode_type: u32,
}

/// Returns whether `file` has a Multiboot header that says where it belongs. Then the format of the file says
/// nothing about the kernel.
pub(crate) fn is_addressed(file: &[u8]) -> bool {
    find_header(file).is_some_and(|header| header.flags & ADDRESSES != 0)
}

/// Returns whether `file` has a Multiboot header.
pub fn is_multiboot(file: &[u8]) -> bool {
    find_header(file).is_some()
}

fn find_header(file: &[u8]) -> Option<Header> {
    let searched = &file[..file.len().min(SEARCHED)];
    let word = |offset: usize| {
        let bytes = file.get(offset..offset + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    (0..searched.len()).step_by(4).find_map(|offset| {
        if word(offset)? != MAGIC {
            return None;
        }
        let flags = word(offset + 4)?;
        let sum = MAGIC.wrapping_add(flags).wrapping_add(word(offset + 8)?);
        // The address fields may be missing if the flag is not set.
        let address = |index: usize| word(offset + 12 + 4 * index).unwrap_or(0);
        (sum == 0).then(|| Header {
            offset,
            flags,
            header_addr: address(0),
            load_addr: address(1),
            load_end_addr: address(2),
            bss_end_addr: address(3),
            entry_addr: address(4),
            mode_type: address(5),
        })
    })
}

/// Loads the kernel in `file` and its modules, each a name and contents, into `memory`. If the machine `has_display`, the kernel is told
/// of the text screen.
pub fn load(
    memory: &mut Memory,
    file: &[u8],
    modules: &[(&str, &[u8])],
    command_line: &str,
    has_display: bool,
) -> Result<Entry, MultibootError> {
    let header = find_header(file).ok_or(MultibootError::Unloadable("the header is missing"))?;
    let unknown = header.flags & REQUIREMENTS & !(ALIGN_AND_INFORMATION | VIDEO_MODE);
    if unknown != 0 {
        return Err(MultibootError::Unknown(header.flags));
    }
    if header.flags & VIDEO_MODE != 0 && !(has_display && header.mode_type == MODE_TEXT) {
        let screen = if has_display { "with a text screen" } else { "without a screen" };
        warn!("the kernel asks for a video mode, which only firmware can set; it starts {screen}");
    }
    let (parts, eip) = if header.flags & ADDRESSES != 0 {
        addressed(file, &header)?
    } else {
        let kernel = ElfKernel::parse(file)?;
        (kernel.parts, kernel.entry as u32)
    };
    let mut placer = Placer::load(memory, &parts)?;
    let mut loaded = Vec::new();
    for (name, contents) in modules {
        let (start, end) = placer.put(contents)?;
        loaded.push((start, end, *name));
    }
    let (base, ram) = (placer.next() + GDT_LEN, placer.memory().ram());
    let block = information(base, ram, &loaded, command_line, has_display);
    Ok(placer.finish(&block, eip)?)
}

/// Reads a kernel whose header says where it belongs (3.1.3).
fn addressed<'a>(file: &'a [u8], header: &Header) -> Result<(Vec<Part<'a>>, u32), MultibootError> {
    let before = header.header_addr.checked_sub(header.load_addr);
    let first = before.and_then(|before| header.offset.checked_sub(before as usize));
    let first =
        first.ok_or(MultibootError::Unloadable("its first byte would lie before the file"))?;
    let bytes = &file[first..];
    // 0 stands for the whole file.
    let len = match header.load_end_addr.checked_sub(header.load_addr) {
        _ if header.load_end_addr == 0 => bytes.len(),
        Some(len) => len as usize,
        None => return Err(MultibootError::Unloadable("it ends before it begins")),
    };
    let bytes = bytes
        .get(..len)
        .ok_or(MultibootError::Unloadable("the file is shorter than its header says"))?;
    let bss = u64::from(header.bss_end_addr.saturating_sub(header.load_addr));
    let part = Part { start: header.load_addr.into(), bytes, len: bss.max(len as u64) };
    Ok((vec![part], header.entry_addr))
}

/// Offsets in the multiboot information (3.3).
mod field {
    pub(super) const FLAGS: usize = 0;
    pub(super) const MEM_LOWER: usize = 4;
    pub(super) const MEM_UPPER: usize = 8;
    pub(super) const CMDLINE: usize = 16;
    pub(super) const MODS_COUNT: usize = 20;
    pub(super) const MODS_ADDR: usize = 24;
    pub(super) const MMAP_LENGTH: usize = 44;
    pub(super) const MMAP_ADDR: usize = 48;
    pub(super) const BOOT_LOADER_NAME: usize = 64;
    /// 64 bits, of which the upper half is 0.
    pub(super) const FRAMEBUFFER_ADDR: usize = 88;
    pub(super) const FRAMEBUFFER_PITCH: usize = 96;
    pub(super) const FRAMEBUFFER_WIDTH: usize = 100;
    pub(super) const FRAMEBUFFER_HEIGHT: usize = 104;
    /// Bits of a character or pixel; the kind of screen is in the next byte.
    pub(super) const FRAMEBUFFER_BPP_AND_TYPE: usize = 108;
    /// The length of the information.
    pub(super) const END: usize = 120;
}

/// Which fields are valid: memory, command line, modules, memory map and the loader's name.
const VALID: u32 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 9;
/// The flag for the framebuffer. The flag for the VBE fields (bit 11) is never set: there is no firmware to
/// call.
const VALID_FRAMEBUFFER: u32 = 1 << 12;

/// The framebuffer fields for the screen in which the board leaves the display adapter: mode 3, whose size is
/// in characters.
const TEXT_SCREEN: [(usize, u32); 5] = [
    (field::FRAMEBUFFER_ADDR, 0xb_8000),
    (field::FRAMEBUFFER_PITCH, 160),
    (field::FRAMEBUFFER_WIDTH, 80),
    (field::FRAMEBUFFER_HEIGHT, 25),
    (field::FRAMEBUFFER_BPP_AND_TYPE, EGA_TEXT << 8 | 16),
];
const EGA_TEXT: u32 = 2;

/// Returns the multiboot information with everything that it points to, for address `base`.
fn information(
    base: u32,
    ram: RamLayout,
    modules: &[(u32, u32, &str)],
    command_line: &str,
    has_display: bool,
) -> Vec<u8> {
    let mut block = vec![0; field::END];
    // The first word of the command line is the kernel's name (3.3).
    let command_line = add_text(&mut block, base, &format!("kernel {command_line}"));
    let name = add_text(&mut block, base, concat!("ring3 ", env!("CARGO_PKG_VERSION")));
    let names: Vec<u32> =
        modules.iter().map(|(_, _, name)| add_text(&mut block, base, name)).collect();
    block.resize(block.len().next_multiple_of(4), 0);
    let modules_address = base + block.len() as u32;
    for ((start, end, _), name) in modules.iter().zip(names) {
        for word in [*start, *end, name, 0] {
            block.extend(word.to_le_bytes());
        }
    }
    let map_address = base + block.len() as u32;
    for range in memory_map(ram) {
        // The size of the following fields.
        block.extend((Range::ENTRY_LEN as u32).to_le_bytes());
        block.extend(range.entry());
    }
    let map_length = base + block.len() as u32 - map_address;
    let (valid, screen) =
        if has_display { (VALID | VALID_FRAMEBUFFER, &TEXT_SCREEN[..]) } else { (VALID, &[][..]) };
    let fields = [
        (field::FLAGS, valid),
        (field::MEM_LOWER, (LOW_RAM_END >> 10) as u32),
        (field::MEM_UPPER, (ram.low().saturating_sub(MIB) >> 10) as u32),
        (field::CMDLINE, command_line),
        (field::MODS_COUNT, modules.len() as u32),
        (field::MODS_ADDR, modules_address),
        (field::MMAP_LENGTH, map_length),
        (field::MMAP_ADDR, map_address),
        (field::BOOT_LOADER_NAME, name),
    ];
    for (offset, value) in fields.iter().chain(screen) {
        block[*offset..][..4].copy_from_slice(&value.to_le_bytes());
    }
    block
}

/// Adds a text with a zero byte at its end, and returns its address.
fn add_text(block: &mut Vec<u8>, base: u32, text: &str) -> u32 {
    let address = base + block.len() as u32;
    block.extend(text.as_bytes());
    block.push(0);
    address
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RAM: u64 = 4 * MIB;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Returns a file of 64 bytes whose header at 16 says that it belongs at 2 MiB, with bss.
    fn addressed_file() -> Vec<u8> {
        let flags = ADDRESSES | 3;
        let checksum = 0u32.wrapping_sub(MAGIC).wrapping_sub(flags);
        let header =
            [MAGIC, flags, checksum, 0x20_0010, 0x20_0000, 0x20_0040, 0x20_1000, 0x20_0030];
        let mut file = vec![0x90; 16];
        file.extend(words(&header));
        file.resize(64, 0xf4);
        file
    }

    /// Returns an ELF file with one segment at 1 MiB and the header in it.
    fn elf_file() -> Vec<u8> {
        let checksum = 0u32.wrapping_sub(MAGIC).wrapping_sub(3);
        let mut file = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend(words(&[0x0003_0002, 1, 0xc010_000c, 52, 0, 0, 0x0020_0034, 0x0028_0001, 0]));
        // Type, offset, virtual and physical address, sizes, flags, alignment.
        file.extend(words(&[1, 84, 0xc010_0000, 0x10_0000, 16, 0x100, 7, 4]));
        file.extend(words(&[MAGIC, 3, checksum, 0xf4f4_f4f4]));
        file
    }

    fn word(memory: &Memory, address: u32) -> u32 {
        u32::from_le_bytes(memory.load(address as usize))
    }

    fn text(memory: &Memory, address: u32) -> String {
        let bytes = memory.contents()[address as usize..].iter();
        bytes.take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
    }

    #[test]
    fn a_header_with_addresses_is_followed() {
        let mut memory = Memory::new(RAM).unwrap();
        let entry = load(&mut memory, &addressed_file(), &[], "quiet", false).unwrap();
        assert_eq!((entry.eip, entry.gdt_base), (0x20_0030, 0x20_1000));
        assert_eq!(memory.load::<4>(0x20_003c), [0xf4; 4]);
        let flags = word(&memory, entry.information);
        assert_eq!(flags, VALID);
        assert_eq!(text(&memory, word(&memory, entry.information + 16)), "kernel quiet");
        assert_eq!(word(&memory, entry.information + 8), 3072, "KiB of upper memory");
    }

    #[test]
    fn a_kernel_learns_of_the_text_screen() {
        let mut memory = Memory::new(RAM).unwrap();
        for has_display in [true, false] {
            let entry = load(&mut memory, &addressed_file(), &[], "", has_display).unwrap();
            let flags = word(&memory, entry.information);
            assert_eq!(flags >> 11 & 3, if has_display { 0b10 } else { 0 });
            let fields: Vec<_> =
                (88..120).step_by(4).map(|at| word(&memory, entry.information + at)).collect();
            let expected =
                if has_display { [0xb_8000, 0, 160, 80, 25, 0x0210, 0, 0] } else { [0; 8] };
            assert_eq!(fields, expected);
        }
    }

    #[test]
    fn an_elf_file_goes_to_its_physical_addresses() {
        let mut memory = Memory::new(RAM).unwrap();
        let modules = [("first", &[7; 5000][..]), ("second", &[7])];
        let entry = load(&mut memory, &elf_file(), &modules, "", false).unwrap();
        assert_eq!(entry.eip, 0x10_000c);
        assert_eq!(memory.load::<4>(0x10_000c), [0xf4; 4]);
        let at = entry.information;
        assert_eq!(word(&memory, at + 20), 2);
        let list = word(&memory, at + 24);
        let starts = [word(&memory, list), word(&memory, list + 16)];
        assert_eq!(starts, [0x10_1000, 0x10_3000]);
        assert_eq!(word(&memory, list + 4), 0x10_1000 + 5000);
        assert_eq!(text(&memory, word(&memory, list + 24)), "second");
        let (length, map) = (word(&memory, at + 44), word(&memory, at + 48));
        assert_eq!(length, 4 * 24);
        assert_eq!(word(&memory, map + length - 4), 1);
        assert_eq!(word(&memory, map + length - 20), 0x10_0000);
    }

    #[test]
    fn kernels_that_cannot_be_loaded_are_refused_with_a_reason() {
        let mut memory = Memory::new(RAM).unwrap();
        let mut result = |file: &[u8], modules: &[(&str, &[u8])]| {
            load(&mut memory, file, modules, "", false).unwrap_err()
        };
        let mut file = addressed_file();
        file.truncate(60);
        assert!(matches!(result(&file, &[]), MultibootError::Unloadable(_)));
        let mut file = addressed_file();
        file[16 + 16..][..4].copy_from_slice(&words(&[0xb0000]));
        file[16 + 12..][..4].copy_from_slice(&words(&[0xb0010]));
        file[16 + 20..][..4].copy_from_slice(&words(&[0xb0040]));
        assert!(matches!(
            result(&file, &[]),
            MultibootError::Placing(PlacingError::NoMemory { start: 0xb0000, .. })
        ));
        let large = vec![0; 4 << 20];
        let error = result(&addressed_file(), &[("", &large)]);
        assert!(matches!(error, MultibootError::Placing(PlacingError::TooLittleMemory { .. })));
        assert!(!is_multiboot(&[0; 100]) && !is_multiboot(&[]));
    }

    proptest! {
        #[test]
        fn any_file_is_parsed_without_a_panic(
            mut file in prop::sample::select(vec![addressed_file(), elf_file()]),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        ) {
            for (index, byte) in changes {
                let index = index.index(file.len());
                file[index] = byte;
            }
            let mut memory = Memory::new(RAM).unwrap();
            if let Ok(entry) = load(&mut memory, &file, &[], "", true) {
                prop_assert!(u64::from(entry.information) < RAM);
            }
        }
    }
}
