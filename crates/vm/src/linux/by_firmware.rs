//! Kernels that firmware starts: in real mode, by the boot protocols from 2.00 on (boot.rst, "The Real-Mode
//! Kernel Header" to "Running the Kernel").
//!
//! The real-mode code of such a kernel calls the BIOS, so there must be one. Such kernels are zImages,
//! kernels from before Linux 2.6.22, and programs that only look like kernels, such as memdisk and iPXE. The
//! machine tells firmware by fw_cfg where the parts belong. SeaBIOS knows nothing of kernels, but finds a ROM
//! ([`mod@rom`]) that loads them; other firmware reads the items itself.
//!
//! ```text
//!                         zImage, or before 2.02    others
//! real-mode code          90000h                    10000h
//! command line            below 9A000h              20000h
//! protected-mode code     10000h (zImage), 100000h  100000h
//! initial RAM disk        top of RAM, downwards     the same
//! ```

mod rom;

pub(crate) use rom::rom;

use ring3_core::memory::PAGE_SIZE;

use super::{
    BOOT_FLAG, HIGH_LOAD_ADDRESS, LOADED_HIGH, LinuxError, MAGIC, SECTOR, UNDEFINED_LOADER, header,
    put, u16_at, u32_at,
};

/// The parts of a kernel, and their addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The real-mode code, with the fields that a boot loader fills in.
    pub(crate) setup: Vec<u8>,
    /// Its address, at the start of a segment.
    pub(crate) setup_address: u32,
    /// The offset in the file of the protected-mode code, and its address.
    pub(crate) code_start: usize,
    pub(crate) code_address: u32,
    pub(crate) initrd_address: u32,
    /// The command line, with a zero byte at its end.
    pub(crate) command_line: Vec<u8>,
    pub(crate) command_line_address: u32,
}

/// The end of the command line of old kernels.
const OLD_COMMAND_LINE_END: u32 = 0x9_a000;
/// The largest size of an old kernel's real-mode code with its boot sector.
const OLD_SETUP_MAX: usize = 0x8000;
const OLD_SETUP: u32 = 0x9_0000;
const SETUP: u32 = 0x1_0000;
const COMMAND_LINE: u32 = 0x2_0000;
/// The address of a zImage's code.
const LOW_LOAD_ADDRESS: u32 = 0x1_0000;
/// The longest command line before protocol 2.06.
const OLD_COMMAND_LINE_MAX: usize = 255;
/// The last address of an initial RAM disk before protocol 2.03.
const OLD_INITRD_MAX: u32 = 0x37ff_ffff;
/// More than firmware uses at the top of memory.
const OF_FIRMWARE: u64 = 1 << 20;
/// The mark that tells an old kernel that it has a command line. The command line's offset in the segment of
/// the real-mode code follows the mark.
const OLD_COMMAND_LINE_MARK: u16 = 0xa33f;
mod old {
    pub(super) const MARK: usize = 0x20;
    pub(super) const OFFSET: usize = 0x22;
}
const OLDEST: u16 = 0x0200;
/// The first protocol whose real-mode code has a heap.
const WITH_HEAP: u16 = 0x0201;
/// The first protocol whose command line can be anywhere.
const WITH_COMMAND_LINE_POINTER: u16 = 0x0202;
const WITH_INITRD_MAX: u16 = 0x0203;
const WITH_COMMAND_LINE_SIZE: u16 = 0x0206;
/// The first protocol by which all kernels can start in protected mode, whatever they say about their entry.
const ALWAYS_32_BITS: u16 = 0x020a;
/// `loadflags`: there is a heap.
const CAN_USE_HEAP: u8 = 1 << 7;
const HEAP_END_PTR: usize = 0x224;

/// Returns whether `file` is a kernel that starts in real mode and needs firmware for it.
pub fn needs_firmware(file: &[u8]) -> bool {
    let Some(version) = version(file) else { return false };
    let is_high = file.get(header::LOADFLAGS).is_some_and(|flags| flags & LOADED_HIGH != 0);
    let entry = file.get(header::CODE32_START..header::CODE32_START + 4);
    let has_usual_entry = entry == Some(&(HIGH_LOAD_ADDRESS as u32).to_le_bytes());
    version < WITH_COMMAND_LINE_SIZE || !is_high || version < ALWAYS_32_BITS && !has_usual_entry
}

/// Returns the version of the boot protocol, if it is 2.00 or later.
fn version(file: &[u8]) -> Option<u16> {
    let is_kernel = file.len() >= header::CODE32_START + 4
        && u16_at(file, header::BOOT_FLAG) == BOOT_FLAG
        && &file[header::MAGIC..][..MAGIC.len()] == MAGIC;
    is_kernel.then(|| u16_at(file, header::VERSION)).filter(|version| *version >= OLDEST)
}

/// Decides where the parts of a kernel belong in a machine with `ram` bytes, with an initial RAM disk of
/// `initrd_len` bytes (0 for none). The kernel's file has `file_len` bytes and begins with those of `file`,
/// which are all of it or more than any real-mode code has.
pub(crate) fn plan(
    file: &[u8],
    file_len: u64,
    initrd_len: u64,
    command_line: &str,
    ram: u64,
) -> Result<Plan, LinuxError> {
    let version = version(file)
        .ok_or(LinuxError::NotLinux("it has no setup header of boot protocol 2.00 or later"))?;
    let sectors = match file[header::SETUP_SECTS] {
        0 => 4,
        sectors => u64::from(sectors),
    };
    let code_start = (sectors + 1) * SECTOR;
    let wanted = code_start.max(0x240);
    let Some(setup) = file.get(..code_start as usize).filter(|setup| setup.len() >= 0x240) else {
        return Err(LinuxError::Truncated { wanted, found: file_len });
    };
    let mut setup = setup.to_vec();
    let is_high = setup[header::LOADFLAGS] & LOADED_HIGH != 0;
    let is_old = !is_high || version < WITH_COMMAND_LINE_POINTER;

    let limit = if version < WITH_COMMAND_LINE_SIZE {
        OLD_COMMAND_LINE_MAX
    } else {
        (u32_at(&setup, header::CMDLINE_SIZE) as usize).min(0xfff)
    };
    if command_line.len() > limit {
        return Err(LinuxError::CommandLineTooLong { length: command_line.len(), limit });
    }
    let command_line = [command_line.as_bytes(), &[0]].concat();
    let (setup_address, command_line_address) = if is_old {
        let len = command_line.len().next_multiple_of(16) as u32;
        (OLD_SETUP, OLD_COMMAND_LINE_END - len)
    } else {
        (SETUP, COMMAND_LINE)
    };
    if is_old && setup.len() > OLD_SETUP_MAX {
        return Err(LinuxError::NotLinux("its real-mode code is too long for its protocol"));
    }
    let code_address = if is_high { HIGH_LOAD_ADDRESS as u32 } else { LOW_LOAD_ADDRESS };
    let code_len = file_len - code_start;
    let code_end = u64::from(code_address) + code_len;
    if !is_high && code_end > OLD_SETUP.into() {
        return Err(LinuxError::NotLinux("its code is too long for a zImage"));
    }
    let initrd_max = if version < WITH_INITRD_MAX {
        OLD_INITRD_MAX
    } else {
        u32_at(&setup, header::INITRD_ADDR_MAX)
    };
    let initrd_address = place_initrd(initrd_len, code_end, initrd_max, ram)?;

    setup[header::TYPE_OF_LOADER] = UNDEFINED_LOADER;
    if initrd_len > 0 {
        put(&mut setup, header::RAMDISK_IMAGE, &initrd_address.to_le_bytes());
        put(&mut setup, header::RAMDISK_SIZE, &(initrd_len as u32).to_le_bytes());
    }
    let command_line_offset = (command_line_address - setup_address) as u16;
    if version >= WITH_HEAP {
        setup[header::LOADFLAGS] |= CAN_USE_HEAP;
        // The field counts from the end of the boot sector. There must be room for a stack after the heap.
        let heap_end = stack_pointer(setup_address, command_line_address) - 0x200 - 0x200;
        put(&mut setup, HEAP_END_PTR, &heap_end.to_le_bytes());
    }
    if version >= WITH_COMMAND_LINE_POINTER {
        put(&mut setup, header::CMD_LINE_PTR, &command_line_address.to_le_bytes());
    } else {
        put(&mut setup, old::MARK, &OLD_COMMAND_LINE_MARK.to_le_bytes());
        put(&mut setup, old::OFFSET, &command_line_offset.to_le_bytes());
    }
    let code_start = code_start as usize;
    Ok(Plan {
        setup,
        setup_address,
        code_start,
        code_address,
        initrd_address,
        command_line,
        command_line_address,
    })
}

/// Returns the stack pointer: the stack begins below the command line.
fn stack_pointer(setup_address: u32, command_line_address: u32) -> u16 {
    (command_line_address - setup_address - 16) as u16
}

/// Returns the address for an initial RAM disk of `len` bytes whose last address is at most `max`, beyond
/// `code_end`.
fn place_initrd(len: u64, code_end: u64, max: u32, ram: u64) -> Result<u32, LinuxError> {
    let pages = len.next_multiple_of(PAGE_SIZE);
    let first = code_end.max(HIGH_LOAD_ADDRESS).next_multiple_of(PAGE_SIZE);
    let needed = first + pages + OF_FIRMWARE;
    if needed > ram {
        return Err(LinuxError::TooLittleMemory { needed, available: ram });
    }
    let end = (ram - OF_FIRMWARE).min(u64::from(max) + 1);
    let end = end - end % PAGE_SIZE;
    match end.checked_sub(pages) {
        _ if len == 0 => Ok(0),
        Some(start) if start >= first => Ok(start as u32),
        _ => Err(LinuxError::InitrdOutOfReach { length: len, limit: u64::from(max) + 1 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAM: u64 = 64 << 20;
    const INITRD: u64 = 5000;

    /// Returns a kernel for this protocol with two sectors of setup code and 40 bytes of code.
    pub(super) fn kernel(version: u16, loadflags: u8) -> Vec<u8> {
        let mut file = vec![0; 3 * 512];
        file[header::SETUP_SECTS] = 2;
        put(&mut file, header::BOOT_FLAG, &BOOT_FLAG.to_le_bytes());
        put(&mut file, header::MAGIC, MAGIC);
        put(&mut file, header::VERSION, &version.to_le_bytes());
        file[header::LOADFLAGS] = loadflags;
        put(&mut file, header::CODE32_START, &0x10_0000u32.to_le_bytes());
        put(&mut file, header::INITRD_ADDR_MAX, &0x2ff_ffff_u32.to_le_bytes());
        put(&mut file, header::CMDLINE_SIZE, &500u32.to_le_bytes());
        file.extend([0xcc; 40]);
        file
    }

    /// Plans with all bytes of the kernel.
    pub(super) fn plan_all(
        file: &[u8],
        initrd_len: u64,
        command_line: &str,
        ram: u64,
    ) -> Result<Plan, LinuxError> {
        plan(file, file.len() as u64, initrd_len, command_line, ram)
    }

    fn planned(version: u16, loadflags: u8) -> Plan {
        plan_all(&kernel(version, loadflags), INITRD, "quiet", RAM).unwrap()
    }

    #[test]
    fn each_protocol_has_its_places() {
        // Protocol, loadflags: real-mode code, protected-mode code, command line, end of the RAM disk's room.
        for (version, flags, setup, code, line, initrd_end) in [
            (0x200, 0, 0x90000, 0x10000, 0x99ff0, RAM - OF_FIRMWARE),
            (0x201, 1, 0x90000, 0x100000, 0x99ff0, RAM - OF_FIRMWARE),
            (0x202, 0, 0x90000, 0x10000, 0x99ff0, RAM - OF_FIRMWARE),
            (0x202, 1, 0x10000, 0x100000, 0x20000, RAM - OF_FIRMWARE),
            (0x203, 1, 0x10000, 0x100000, 0x20000, 0x300_0000),
            (0x20f, 1, 0x10000, 0x100000, 0x20000, 0x300_0000),
        ] {
            let plan = planned(version, flags);
            assert_eq!(plan.setup_address, setup, "{version:x}");
            assert_eq!(plan.code_address, code, "{version:x}");
            assert_eq!(plan.command_line_address, line, "{version:x}");
            assert_eq!(u64::from(plan.initrd_address), initrd_end - 8192, "{version:x}");
            assert_eq!((plan.code_start, &*plan.command_line), (1536, &b"quiet\0"[..]));
        }
    }

    #[test]
    fn each_protocol_has_its_fields() {
        for (version, flags) in [(0x200, 0), (0x201, 1), (0x202, 1), (0x203, 1), (0x206, 1)] {
            let Plan { setup, initrd_address, .. } = planned(version, flags);
            assert_eq!(setup[header::TYPE_OF_LOADER], 0xff);
            assert_eq!(u32_at(&setup, header::RAMDISK_IMAGE), initrd_address);
            assert_eq!(u32_at(&setup, header::RAMDISK_SIZE), 5000);
            let has_heap = setup[header::LOADFLAGS] & CAN_USE_HEAP != 0;
            assert_eq!(has_heap, version >= 0x201);
            let is_marked = u16_at(&setup, old::MARK) == 0xa33f;
            assert_eq!(is_marked, version < 0x202);
            if is_marked {
                assert_eq!(u16_at(&setup, old::OFFSET), 0x9ff0);
            } else {
                assert_eq!(u32_at(&setup, header::CMD_LINE_PTR), 0x20000);
                assert_eq!(u16_at(&setup, HEAP_END_PTR), 0xfbf0);
            }
        }
    }

    #[test]
    fn no_sectors_of_setup_code_are_four() {
        let mut file = kernel(0x204, 1);
        file[header::SETUP_SECTS] = 0;
        file.resize(4 << 10, 0x90);
        assert_eq!(plan_all(&file, 0, "", RAM).unwrap().code_start, 5 * 512);
    }

    #[test]
    fn kernels_that_start_in_protected_mode_need_no_firmware() {
        for (version, flags, needs) in [
            (0x1ff, 0, false), // no kernel
            (0x200, 0, true),
            (0x205, 1, true),
            (0x206, 1, false),
            (0x206, 0, true),
            (0x20f, 0, true),
            (0x20f, 1, false),
        ] {
            assert_eq!(needs_firmware(&kernel(version, flags)), needs, "{version:x} {flags}");
        }
        // As iPXE has it.
        let mut file = kernel(0x207, 1);
        put(&mut file, header::CODE32_START, &[0; 4]);
        assert!(needs_firmware(&file));
        put(&mut file, header::VERSION, &0x20au16.to_le_bytes());
        assert!(!needs_firmware(&file));
        assert!(!needs_firmware(b""));
    }

    #[test]
    fn parts_that_do_not_fit_are_refused_with_a_reason() {
        let refused =
            |file: &[u8], initrd, line: &str, ram| plan_all(file, initrd, line, ram).unwrap_err();
        let long = "x".repeat(256);
        let limit = LinuxError::CommandLineTooLong { length: 256, limit: 255 };
        assert_eq!(refused(&kernel(0x205, 1), 0, &long, RAM), limit);
        assert!(plan_all(&kernel(0x206, 1), 0, &long, RAM).is_ok());
        let mut large = kernel(0x204, 0);
        large.resize(600 << 10, 0);
        assert!(refused(&large, 0, "", RAM).to_string().contains("too long for a zImage"));
        let mut wide = kernel(0x201, 1);
        wide.resize(40 << 10, 0);
        wide[header::SETUP_SECTS] = 70;
        assert!(refused(&wide, 0, "", RAM).to_string().contains("real-mode code is too long"));
        let memory = refused(&kernel(0x204, 1), 3 << 20, "", 4 << 20);
        assert!(matches!(memory, LinuxError::TooLittleMemory { .. }), "{memory}");
        let mut near = kernel(0x204, 1);
        put(&mut near, header::INITRD_ADDR_MAX, &0x10_0000u32.to_le_bytes());
        let reach = refused(&near, 1, "", RAM);
        assert!(matches!(reach, LinuxError::InitrdOutOfReach { .. }), "{reach}");
    }

    #[test]
    fn a_damaged_header_never_panics() {
        for base in [kernel(0x200, 0), kernel(0x203, 1), kernel(0x20f, 1)] {
            for offset in header::START..0x240 {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut file = base.clone();
                    file[offset] = value;
                    let _ = (plan_all(&file, 1, "quiet", RAM), needs_firmware(&file));
                    file.truncate(offset);
                    let _ = (plan_all(&file, 1, "quiet", 1 << 20), needs_firmware(&file));
                }
            }
        }
    }
}
