//! Memory type range registers (SDM vol. 3, 13.11).
//!
//! They determine how caches treat ranges of physical memory. There are no caches here, so the registers hold
//! their values without an effect; but a write that the manual forbids raises its exception.

use serde::{Deserialize, Serialize};

/// IA32_MTRRCAP: eight variable ranges, fixed ranges, and write-combining (SDM vol. 3, figure 13-5).
const CAPABILITIES: u64 = VARIABLE_RANGES as u64 | 1 << 8 | 1 << 10;
const VARIABLE_RANGES: usize = 8;
const FIXED_RANGES: usize = 11;
/// IA32_MTRR_DEF_TYPE: the enables of fixed ranges and of all ranges.
const FIXED_ENABLED: u64 = 1 << 10;
const ENABLED: u64 = 1 << 11;
/// IA32_MTRR_PHYSMASKn: the range is valid.
const VALID: u64 = 1 << 11;
/// Write-protected, and write-back.
const WRITE_PROTECTED: u64 = 5;
const WRITE_BACK: u64 = 6;

/// The registers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mtrrs {
    default_type: u64,
    fixed: [u64; FIXED_RANGES],
    variable: [Range; VARIABLE_RANGES],
}

/// IA32_MTRR_PHYSBASEn and IA32_MTRR_PHYSMASKn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Range {
    base: u64,
    mask: u64,
}

/// One of the registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mtrr {
    /// IA32_MTRRCAP.
    Capabilities,
    /// IA32_MTRR_DEF_TYPE.
    DefaultType,
    /// IA32_MTRR_FIX64K_00000 to IA32_MTRR_FIX4K_F8000.
    Fixed(usize),
    /// IA32_MTRR_PHYSBASEn.
    Base(usize),
    /// IA32_MTRR_PHYSMASKn.
    Mask(usize),
}

impl Mtrr {
    /// Returns the register with this MSR number (SDM vol. 3, table 13-9).
    pub(crate) fn of(number: u32) -> Option<Mtrr> {
        let offset = |first: u32| (number - first) as usize;
        Some(match number {
            0xfe => Mtrr::Capabilities,
            0x200..=0x20f if number.is_multiple_of(2) => Mtrr::Base(offset(0x200) / 2),
            0x200..=0x20f => Mtrr::Mask(offset(0x200) / 2),
            0x250 => Mtrr::Fixed(0),
            0x258..=0x259 => Mtrr::Fixed(1 + offset(0x258)),
            0x268..=0x26f => Mtrr::Fixed(3 + offset(0x268)),
            0x2ff => Mtrr::DefaultType,
            _ => return None,
        })
    }
}

impl Mtrrs {
    /// Sets the registers as firmware leaves them for an operating system. Memory is write-back below `hole`
    /// and above 4 GiB, and uncached in the display's area and from `hole`, a guest-physical address, to 4
    /// GiB; the addresses of firmware itself are write-protected. The size from `hole` to 4 GiB is a power of
    /// two.
    pub fn set_as_firmware_does(&mut self, hole: u32, address_bits: u32) {
        let each = |kind: u64| kind * 0x0101_0101_0101_0101;
        self.fixed = [each(WRITE_PROTECTED); FIXED_RANGES];
        self.fixed[..2].fill(each(WRITE_BACK));
        self.fixed[2] = 0;
        let to_4_gib = (1 << 32) - u64::from(hole);
        let addresses = (1 << address_bits) - 1;
        self.variable = Default::default();
        self.variable[0] =
            Range { base: hole.into(), mask: addresses & !(to_4_gib - 1) & !0xfff | VALID };
        self.default_type = ENABLED | FIXED_ENABLED | WRITE_BACK;
    }

    pub(crate) fn read(&self, register: Mtrr) -> u64 {
        match register {
            Mtrr::Capabilities => CAPABILITIES,
            Mtrr::DefaultType => self.default_type,
            Mtrr::Fixed(number) => self.fixed[number],
            Mtrr::Base(number) => self.variable[number].base,
            Mtrr::Mask(number) => self.variable[number].mask,
        }
    }

    /// Writes a register. Returns false and writes nothing if this raises #GP: for reserved bits, invalid
    /// memory types, or a read-only register.
    pub(crate) fn write(&mut self, register: Mtrr, value: u64, address_bits: u32) -> bool {
        let pages = (1 << address_bits) - 0x1000;
        let is_type = |value: u64| is_memory_type(value as u8);
        let (place, is_valid) = match register {
            Mtrr::Capabilities => return false,
            Mtrr::DefaultType => {
                let bits = ENABLED | FIXED_ENABLED | 0xff;
                (&mut self.default_type, value & !bits == 0 && is_type(value))
            }
            Mtrr::Fixed(number) => {
                let is_valid = value.to_le_bytes().into_iter().all(is_memory_type);
                (&mut self.fixed[number], is_valid)
            }
            Mtrr::Base(number) => {
                let is_valid = value & !(pages | 0xff) == 0 && is_type(value);
                (&mut self.variable[number].base, is_valid)
            }
            Mtrr::Mask(number) => (&mut self.variable[number].mask, value & !(pages | VALID) == 0),
        };
        if is_valid {
            *place = value;
        }
        is_valid
    }
}

/// Returns whether `kind` is UC, WC, WT, WP or WB (SDM vol. 3, table 13-8).
fn is_memory_type(kind: u8) -> bool {
    matches!(kind, 0 | 1 | 4..=6)
}
