//! Direct Linux boot: from a bzImage to the registers with which it starts.
//!
//! The kernel comes without firmware, boot loader or disk, by the 32-bit boot
//! protocol (Linux, Documentation/arch/x86/boot.rst and zero-page.rst, cited
//! here as boot.rst): the loader puts the kernel's protected-mode code at 1 MiB, the
//! initial RAM disk high in memory, and fills `struct boot_params`, the "zero page".
//!
//! The contents of memory afterwards, without the ACPI tables of [`crate::acpi`]:
//!
//! ```text
//!     1000h  GDT with the two flat segments that the protocol asks for
//!     7000h  zero page
//!     8000h  random seed
//!    20000h  command line
//!   100000h  the kernel's protected-mode code
//!  pref_address .. + init_size   what the kernel unpacks itself to
//!  top of RAM, downwards         initial RAM disk
//! ```
//!
//! Firmware starts kernels that begin in real mode: see [`by_firmware`].
//!
//! The fields are written at their offsets, with the names of boot.rst. The crate that has them as structures
//! (linux-loader) also requires its own guest memory.
//!
//! A kernel file may contain anything: each field is compared with the length of the file and the size of
//! memory before it is used.

pub(crate) mod by_firmware;
pub(crate) mod screen_info;
pub mod seed;

pub use by_firmware::needs_firmware;
use ring3_core::memory::{Memory, MemoryError, PAGE_SIZE, RamLayout};
use thiserror::Error;

use crate::memory_map::{LOW_RAM_END, Range, memory_map};

/// The files and options of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct LinuxImage<'a> {
    /// The contents of the kernel file, a bzImage.
    pub kernel: &'a [u8],
    /// The contents of the initial RAM disk (one or more cpio archives), if any.
    pub initrd: Option<&'a [u8]>,
    /// The kernel's command line.
    pub command_line: &'a str,
}

/// The state in which the kernel starts (boot.rst, "32-bit Boot Protocol"): protected mode with paging and
/// interrupts off, flat segments, and all registers 0 except these. The kernel sets up a stack of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The address where execution starts.
    pub eip: u32,
    /// The address of the zero page.
    pub esi: u32,
    /// Linear address of the GDT.
    pub gdt_base: u32,
    /// Limit of the GDT in bytes, as LGDT takes it.
    pub gdt_limit: u16,
    /// Selector for CS: code, execute and read, base 0, limit 4 GiB.
    pub code_selector: u16,
    /// Selector for DS, ES and SS: data, read and write, base 0, limit 4 GiB.
    pub data_selector: u16,
}

/// The reasons why a kernel cannot be booted.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LinuxError {
    /// The file is no Linux kernel.
    #[error("is not a Linux kernel (bzImage): {0}")]
    NotLinux(&'static str),
    /// The kernel is from before Linux 2.6.22, or its code belongs below 1 MiB.
    #[error("starts in real mode (boot protocol {}.{:02}), which needs firmware", .0 >> 8, .0 & 0xff)]
    NeedsFirmware(u16),
    /// The file is shorter than its header says.
    #[error("is damaged: it has {found} bytes, but its header says {wanted}")]
    Truncated {
        /// The length that the file must have, in bytes.
        wanted: u64,
        /// Its actual length.
        found: u64,
    },
    /// The command line is longer than the kernel accepts.
    #[error("accepts a command line of at most {limit} bytes, but this one has {length}")]
    CommandLineTooLong {
        /// Length of the command line in bytes.
        length: usize,
        /// The largest length that the kernel accepts.
        limit: usize,
    },
    /// The machine has too little memory for the kernel and its initial RAM disk.
    #[error("needs at least {} MiB of memory to start, but the machine has {} MiB",
        .needed.div_ceil(MIB), .available / MIB)]
    TooLittleMemory {
        /// The memory that is needed, in bytes.
        needed: u64,
        /// The memory that there is.
        available: u64,
    },
    /// There is no place for the initial RAM disk where the kernel can reach it.
    #[error("cannot reach an initial RAM disk of {length} bytes: it must end below {limit:#x}")]
    InitrdOutOfReach {
        /// Length of the initial RAM disk in bytes.
        length: u64,
        /// The guest-physical address below which it must end.
        limit: u64,
    },
    /// Memory refuses a write. [`load`] has checked all sizes, so this is not expected.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

const MIB: u64 = 1 << 20;

const GDT: u64 = 0x1000;
const ZERO_PAGE: u64 = 0x7000;
const COMMAND_LINE: u64 = 0x2_0000;
/// The address where boot.rst requires the protected-mode code of a bzImage to be loaded and entered.
pub(crate) const HIGH_LOAD_ADDRESS: u64 = 0x10_0000;

/// The GDT of boot.rst, "32-bit Boot Protocol": `__BOOT_CS` is 10h, `__BOOT_DS` is 18h.
/// Descriptors as in SDM vol. 3, 3.4.5: base 0, limit FFFFFh pages, 32 bits, present.
const GDT_ENTRIES: [u64; 4] = [0, 0, 0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
pub(crate) const BOOT_CS: u16 = 0x10;
pub(crate) const BOOT_DS: u16 = 0x18;

/// Offsets in the kernel file, and in the zero page, of the fields of the setup
/// header (boot.rst, "The Real-Mode Kernel Header").
mod header {
    pub(super) const START: usize = 0x1f1;
    pub(super) const SETUP_SECTS: usize = 0x1f1;
    pub(super) const SYSSIZE: usize = 0x1f4;
    pub(super) const BOOT_FLAG: usize = 0x1fe;
    /// The second byte of a short jump over the header: the header's length from the next byte on.
    pub(super) const JUMP: usize = 0x201;
    pub(super) const MAGIC: usize = 0x202;
    pub(super) const VERSION: usize = 0x206;
    pub(super) const TYPE_OF_LOADER: usize = 0x210;
    pub(super) const LOADFLAGS: usize = 0x211;
    pub(super) const CODE32_START: usize = 0x214;
    pub(super) const RAMDISK_IMAGE: usize = 0x218;
    pub(super) const RAMDISK_SIZE: usize = 0x21c;
    pub(super) const CMD_LINE_PTR: usize = 0x228;
    pub(super) const INITRD_ADDR_MAX: usize = 0x22c;
    pub(super) const CMDLINE_SIZE: usize = 0x238;
    /// Protocol 2.09 and later.
    pub(super) const SETUP_DATA: usize = 0x250;
    /// Protocol 2.10 and later.
    pub(super) const PREF_ADDRESS: usize = 0x258;
    /// Protocol 2.10 and later.
    pub(super) const INIT_SIZE: usize = 0x260;
    /// The end of the fields that every header of protocol 2.06 and later has.
    pub(super) const LEAST_END: usize = 0x23c;
    /// The end up to which the header can grow: other fields of the zero page follow.
    pub(super) const GREATEST_END: usize = 0x290;
}

/// Offsets in the zero page of fields outside of the setup header (zero-page.rst).
mod zero_page {
    pub(super) const ACPI_RSDP_ADDR: usize = 0x070;
    pub(super) const E820_ENTRIES: usize = 0x1e8;
    pub(super) const E820_TABLE: usize = 0x2d0;
}

const BOOT_FLAG: u16 = 0xaa55;
const MAGIC: &[u8] = b"HdrS";
/// The first protocol version with `cmdline_size`.
const OLDEST_VERSION: u16 = 0x0206;
/// The first protocol version with `pref_address` and `init_size`.
const VERSION_WITH_INIT_SIZE: u16 = 0x020a;
/// `loadflags`: the protected-mode code belongs at 1 MiB (a bzImage, not a zImage).
const LOADED_HIGH: u8 = 1 << 0;
/// `type_of_loader` of a loader that has no number of its own.
const UNDEFINED_LOADER: u8 = 0xff;
const SECTOR: u64 = 512;

/// Loads `image` into `memory`, with the address of the ACPI tables' RSDP if there are any, and returns the
/// state in which it starts.
pub fn load(
    memory: &mut Memory,
    image: &LinuxImage<'_>,
    rsdp: Option<u64>,
) -> Result<Entry, LinuxError> {
    let kernel = Kernel::parse(image.kernel)?;
    let limit = kernel.command_line_limit();
    if image.command_line.len() > limit {
        return Err(LinuxError::CommandLineTooLong { length: image.command_line.len(), limit });
    }
    let initrd = image.initrd.unwrap_or_default();
    let initrd_address = kernel.place_initrd(initrd.len() as u64, memory.ram().low())?;

    let mut page = [0; PAGE_SIZE as usize];
    page[header::START..kernel.header_end].copy_from_slice(kernel.header());
    page[header::TYPE_OF_LOADER] = UNDEFINED_LOADER;
    put(&mut page, header::CODE32_START, &(HIGH_LOAD_ADDRESS as u32).to_le_bytes());
    put(&mut page, header::CMD_LINE_PTR, &(COMMAND_LINE as u32).to_le_bytes());
    if !initrd.is_empty() {
        put(&mut page, header::RAMDISK_IMAGE, &(initrd_address as u32).to_le_bytes());
        put(&mut page, header::RAMDISK_SIZE, &(initrd.len() as u32).to_le_bytes());
    }
    // Linux 4.20 and later read it; for earlier ones it is padding.
    put(&mut page, zero_page::ACPI_RSDP_ADDR, &rsdp.unwrap_or(0).to_le_bytes());
    put_memory_map(&mut page, memory.ram());

    memory.load_image(GDT, GDT_ENTRIES.map(u64::to_le_bytes).as_flattened())?;
    memory.load_image(ZERO_PAGE, &page)?;
    memory.load_image(COMMAND_LINE, image.command_line.as_bytes())?;
    memory.load_image(COMMAND_LINE + image.command_line.len() as u64, &[0])?;
    memory.load_image(HIGH_LOAD_ADDRESS, kernel.protected_mode_code)?;
    memory.load_image(initrd_address, initrd)?;
    Ok(Entry {
        eip: HIGH_LOAD_ADDRESS as u32,
        esi: ZERO_PAGE as u32,
        gdt_base: GDT as u32,
        gdt_limit: size_of_val(&GDT_ENTRIES) as u16 - 1,
        code_selector: BOOT_CS,
        data_selector: BOOT_DS,
    })
}

/// The parts of a kernel file that was checked.
struct Kernel<'a> {
    /// The file up to the protected-mode code: at least [`header::LEAST_END`] bytes.
    setup: &'a [u8],
    /// The end of the setup header, in `setup` and within [`header::GREATEST_END`].
    header_end: usize,
    protected_mode_code: &'a [u8],
    version: u16,
}

impl<'a> Kernel<'a> {
    fn parse(file: &'a [u8]) -> Result<Kernel<'a>, LinuxError> {
        if file.len() < header::LEAST_END {
            return Err(LinuxError::NotLinux("the file is too short"));
        }
        if u16_at(file, header::BOOT_FLAG) != BOOT_FLAG {
            return Err(LinuxError::NotLinux("the boot signature is missing"));
        }
        if &file[header::MAGIC..header::MAGIC + MAGIC.len()] != MAGIC {
            return Err(LinuxError::NotLinux("the setup header's \"HdrS\" is missing"));
        }
        let version = u16_at(file, header::VERSION);
        if version < OLDEST_VERSION || file[header::LOADFLAGS] & LOADED_HIGH == 0 {
            return Err(LinuxError::NeedsFirmware(version));
        }
        // 0 means 4 (boot.rst); the boot sector is added.
        let setup_sectors = match file[header::SETUP_SECTS] {
            0 => 4,
            sectors => u64::from(sectors),
        };
        let code_start = (setup_sectors + 1) * SECTOR;
        let code_end = code_start + u64::from(u32_at(file, header::SYSSIZE)) * 16;
        let file_length = file.len() as u64;
        // The size is in paragraphs of 16 bytes, and the file need not fill the last one.
        let least_length = code_end.saturating_sub(15).max(code_start);
        if file_length < least_length {
            return Err(LinuxError::Truncated { wanted: least_length, found: file_length });
        }
        let code_end = code_end.min(file_length);
        let (setup, rest) = file.split_at(code_start as usize);
        let protected_mode_code = &rest[..(code_end - code_start) as usize];
        if protected_mode_code.is_empty() {
            return Err(LinuxError::NotLinux("it has no protected-mode code"));
        }
        let header_end = header::MAGIC + usize::from(file[header::JUMP]);
        let least_end = if version < VERSION_WITH_INIT_SIZE {
            header::LEAST_END
        } else {
            header::INIT_SIZE + 4
        };
        if header_end < least_end {
            return Err(LinuxError::NotLinux("the setup header is too short for its version"));
        }
        let header_end = header_end.min(header::GREATEST_END);
        Ok(Kernel { setup, header_end, protected_mode_code, version })
    }

    fn header(&self) -> &[u8] {
        &self.setup[header::START..self.header_end]
    }

    /// Returns the length of the longest command line in bytes, without the zero byte at its end.
    fn command_line_limit(&self) -> usize {
        let room = LOW_RAM_END - COMMAND_LINE - 1;
        u64::from(u32_at(self.setup, header::CMDLINE_SIZE)).min(room) as usize
    }

    /// Returns the first address that the kernel does not use until it knows of the initial RAM disk.
    fn end(&self) -> u64 {
        let code_end = HIGH_LOAD_ADDRESS + self.protected_mode_code.len() as u64;
        if self.version < VERSION_WITH_INIT_SIZE {
            return code_end;
        }
        let pref_address = u64_at(self.setup, header::PREF_ADDRESS);
        let init_size = u64::from(u32_at(self.setup, header::INIT_SIZE));
        code_end.max(pref_address.saturating_add(init_size))
    }

    /// Returns the address for an initial RAM disk of `length` bytes in a machine with `ram` bytes below 4 GiB: as high
    /// as possible, so that it is out of the kernel's way.
    fn place_initrd(&self, length: u64, ram: u64) -> Result<u64, LinuxError> {
        let pages = length.next_multiple_of(PAGE_SIZE);
        let start_limit = self.end().checked_next_multiple_of(PAGE_SIZE).unwrap_or(u64::MAX);
        let needed = start_limit.saturating_add(pages);
        if needed > ram {
            return Err(LinuxError::TooLittleMemory { needed, available: ram });
        }
        let limit = u64::from(u32_at(self.setup, header::INITRD_ADDR_MAX)) + 1;
        if length > 0 && needed > limit {
            return Err(LinuxError::InitrdOutOfReach { length, limit });
        }
        let end = if length > 0 { ram.min(limit) } else { ram };
        Ok((end - end % PAGE_SIZE) - pages)
    }
}

/// Writes the memory map.
fn put_memory_map(page: &mut [u8], ram: RamLayout) {
    let map = memory_map(ram);
    page[zero_page::E820_ENTRIES] = map.len() as u8;
    let mut offset = zero_page::E820_TABLE;
    for range in map {
        put(page, offset, &range.entry());
        offset += Range::ENTRY_LEN;
    }
}

fn put(page: &mut [u8], offset: usize, bytes: &[u8]) {
    page[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn field<const N: usize>(file: &[u8], offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&file[offset..offset + N]);
    bytes
}

fn u16_at(file: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(field(file, offset))
}

fn u32_at(file: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(field(file, offset))
}

fn u64_at(file: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(field(file, offset))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const RAM: u64 = 64 * MIB;
    const INITRD_ADDR_MAX: u32 = 0x2ff_ffff;

    /// Returns the smallest file that is a kernel: one setup sector, and 32 bytes of code that unpack to 2
    /// MiB at 16 MiB.
    fn kernel() -> Vec<u8> {
        kernel_of(&[0xcc; 32])
    }

    /// Returns a kernel with other code, which starts at 1 MiB.
    pub(crate) fn kernel_of(code: &[u8]) -> Vec<u8> {
        let paragraphs = code.len().div_ceil(16);
        let mut file = vec![0; 1024];
        file[header::SETUP_SECTS] = 1;
        put(&mut file, header::SYSSIZE, &(paragraphs as u32).to_le_bytes());
        put(&mut file, header::BOOT_FLAG, &BOOT_FLAG.to_le_bytes());
        file[header::JUMP] = 0x6a;
        put(&mut file, header::MAGIC, MAGIC);
        put(&mut file, header::VERSION, &0x020fu16.to_le_bytes());
        file[header::LOADFLAGS] = LOADED_HIGH;
        put(&mut file, header::INITRD_ADDR_MAX, &INITRD_ADDR_MAX.to_le_bytes());
        put(&mut file, header::CMDLINE_SIZE, &2047u32.to_le_bytes());
        put(&mut file, header::PREF_ADDRESS, &(16 * MIB).to_le_bytes());
        put(&mut file, header::INIT_SIZE, &(2 * MIB as u32).to_le_bytes());
        file.extend(code);
        file.resize(1024 + 16 * paragraphs, 0);
        file
    }

    fn load_file(kernel: &[u8]) -> Result<Entry, LinuxError> {
        load_with(kernel, None, RAM)
    }

    fn load_with(kernel: &[u8], initrd: Option<&[u8]>, ram: u64) -> Result<Entry, LinuxError> {
        let mut memory = Memory::new(ram).unwrap();
        load(&mut memory, &LinuxImage { kernel, initrd, command_line: "" }, None)
    }

    #[test]
    fn all_parts_are_where_the_boot_protocol_requires_them() {
        let mut memory = Memory::new(RAM).unwrap();
        let kernel = kernel();
        let image =
            LinuxImage { kernel: &kernel, initrd: Some(&[7; 5000]), command_line: "console=x" };
        let entry = load(&mut memory, &image, Some(0xe0000)).unwrap();

        assert_eq!((entry.eip, entry.esi), (0x10_0000, 0x7000));
        assert_eq!((entry.gdt_limit, entry.code_selector, entry.data_selector), (31, 0x10, 0x18));
        let gdt = entry.gdt_base as usize;
        assert_eq!(u64::from_le_bytes(memory.load(gdt + 0x10)), 0x00cf_9b00_0000_ffff);
        assert_eq!(u64::from_le_bytes(memory.load(gdt + 0x18)), 0x00cf_9300_0000_ffff);
        assert_eq!(memory.load::<33>(0x10_0000)[31..], [0xcc, 0]);
        assert_eq!(&memory.load::<10>(0x2_0000), b"console=x\0");

        let page = &memory.contents()[0x7000..0x8000];
        assert_eq!(page[..0x70], [0; 0x70]);
        assert_eq!(u64_at(page, zero_page::ACPI_RSDP_ADDR), 0xe0000);
        assert_eq!(&page[header::MAGIC..][..4], MAGIC);
        assert_eq!(page[header::TYPE_OF_LOADER], 0xff);
        assert_eq!(u32_at(page, header::CMD_LINE_PTR), 0x2_0000);
        // Two pages that end at the limit of the kernel, in the middle of RAM.
        assert_eq!(u32_at(page, header::RAMDISK_IMAGE), 0x2ff_e000);
        assert_eq!(u32_at(page, header::RAMDISK_SIZE), 5000);
        assert_eq!(memory.load::<5001>(0x2ff_e000)[4999..], [7, 0]);
    }

    #[test]
    fn the_memory_map_is_ram_without_the_areas_of_firmware() {
        let mut page = [0; 4096];
        put_memory_map(&mut page, RamLayout::of(RAM));
        assert_eq!(page[zero_page::E820_ENTRIES], 4);
        let entry = |n: usize| {
            let at = zero_page::E820_TABLE + 20 * n;
            (u64_at(&page, at), u64_at(&page, at + 8), u32_at(&page, at + 16))
        };
        assert_eq!(entry(0), (0, 0x9fc00, 1));
        assert_eq!(entry(1), (0x9fc00, 0x400, 2));
        assert_eq!(entry(2), (0xe0000, 0x20000, 2));
        assert_eq!(entry(3), (0x100000, RAM - 0x100000, 1));
        put_memory_map(&mut page, RamLayout::of(5 << 30));
        assert_eq!(page[zero_page::E820_ENTRIES], 5);
        let entry = |n: usize| u64_at(&page, zero_page::E820_TABLE + 20 * n + 8);
        assert_eq!([3, 4].map(entry), [(3 << 30) - 0x100000, 2 << 30]);
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let message = |kernel: &[u8]| load_file(kernel).unwrap_err().to_string();
        assert_eq!(message(b""), "is not a Linux kernel (bzImage): the file is too short");
        assert_eq!(
            message(&[0; 4096]),
            "is not a Linux kernel (bzImage): the boot signature is missing"
        );
        let mut other = kernel();
        other[header::MAGIC] = b'h';
        assert!(message(&other).contains("HdrS"));
        let mut old = kernel();
        old[header::VERSION] = 5;
        assert_eq!(message(&old), "starts in real mode (boot protocol 2.05), which needs firmware");
        let mut low = kernel();
        low[header::LOADFLAGS] = 0;
        assert!(message(&low).contains("real mode"));
        let mut short_header = kernel();
        short_header[header::JUMP] = 0x40;
        assert!(message(&short_header).contains("too short for its version"));
        let mut no_code = kernel();
        no_code[header::SYSSIZE] = 0;
        assert!(message(&no_code).contains("no protected-mode code"));
        let mut cut = kernel();
        cut.truncate(1040);
        assert_eq!(load_file(&cut), Err(LinuxError::Truncated { wanted: 1041, found: 1040 }));
    }

    #[test]
    fn the_last_paragraph_of_the_code_may_be_cut_short() {
        let mut cut = kernel();
        cut.truncate(1041);
        assert!(load_file(&cut).is_ok());
    }

    #[test]
    fn an_error_for_too_little_memory_states_the_needed_size() {
        assert!(load_with(&kernel(), None, 18 * MIB).is_ok());
        let error = load_with(&kernel(), None, 17 * MIB).unwrap_err();
        assert_eq!(
            error.to_string(),
            "needs at least 18 MiB of memory to start, but the machine has 17 MiB"
        );
        let error = load_with(&kernel(), Some(&[0; 1]), 18 * MIB).unwrap_err();
        assert!(error.to_string().contains("at least 19 MiB"));
        let mut greedy = kernel();
        put(&mut greedy, header::PREF_ADDRESS, &[0xff; 8]);
        assert!(matches!(load_file(&greedy), Err(LinuxError::TooLittleMemory { .. })));
    }

    #[test]
    fn an_initrd_must_end_where_the_kernel_can_reach_it() {
        let mut near = kernel();
        put(&mut near, header::INITRD_ADDR_MAX, &(17 * MIB as u32).to_le_bytes());
        assert!(load_file(&near).is_ok(), "without an initial RAM disk the limit is no matter");
        let error = load_with(&near, Some(&[0; 1]), RAM).unwrap_err();
        assert_eq!(error, LinuxError::InitrdOutOfReach { length: 1, limit: 17 * MIB + 1 });
    }

    #[test]
    fn the_command_line_has_a_limit() {
        let kernel = kernel();
        let mut memory = Memory::new(RAM).unwrap();
        let mut load_line = |command_line: &str| {
            load(&mut memory, &LinuxImage { kernel: &kernel, initrd: None, command_line }, None)
        };
        assert!(load_line(&"x".repeat(2047)).is_ok());
        assert_eq!(
            load_line(&"x".repeat(2048)),
            Err(LinuxError::CommandLineTooLong { length: 2048, limit: 2047 })
        );
    }

    #[test]
    fn a_damaged_header_never_panics() {
        let kernel = kernel();
        for offset in header::START..header::GREATEST_END {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut file = kernel.clone();
                file[offset] = value;
                let _ = load_file(&file);
                file.truncate(offset);
                let _ = load_file(&file);
            }
        }
    }
}
