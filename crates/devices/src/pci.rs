//! PCI: the configuration registers of a function, and configuration mechanism #1.
//!
//! From the PCI Local Bus Specification 2.1, sections 3.2.2.3.2 (mechanism #1) and 6 (configuration
//! space). A PCI device is a `Function` or more, each with a [`ConfigSpace`], and answers
//! [`read_config`](ring3_core::device::Device::read_config); the board has a [`ConfigAddress`], which makes
//! configuration accesses of the port accesses at CF8h to CFFh.
//!
//! ```
//! use ring3_core::device::Width;
//! use ring3_devices::pci::{ConfigAddress, ConfigCycle};
//!
//! let mut address = ConfigAddress::default();
//! assert!(address.write(0xcf8, Width::Dword, 0x8000_0904));
//! let cycle = address.cycle(0xcfe, Width::Word);
//! assert_eq!(cycle, Some(ConfigCycle { slot: 1, function: 1, offset: 6 }));
//! ```

use ring3_core::device::{Context, Width};

use crate::bytewise;

mod function;
pub mod rom;

pub(crate) use function::Function;
#[cfg(test)]
pub(crate) use function::base_register;

/// Size of a function's configuration space in bytes.
pub const CONFIG_SPACE_LEN: usize = 256;

/// What a function is: the registers by which software recognizes it (6.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Vendor ID, register 00h.
    pub vendor: u16,
    /// Device ID, register 02h.
    pub device: u16,
    /// Revision ID, register 08h.
    pub revision: u8,
    /// Class code, registers 0Bh (bits 23:16) to 09h (bits 7:0).
    pub class: u32,
}

/// The configuration registers of one function: bytes, each with the bits of it that software
/// may write and the bits that it clears by writing ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSpace {
    bytes: [u8; CONFIG_SPACE_LEN],
    writable: [u8; CONFIG_SPACE_LEN],
    write_one_to_clear: [u8; CONFIG_SPACE_LEN],
}

impl ConfigSpace {
    /// A function of which all registers are 0 and read-only, but for its identity.
    pub fn new(identity: Identity) -> ConfigSpace {
        let mut space = ConfigSpace {
            bytes: [0; CONFIG_SPACE_LEN],
            writable: [0; CONFIG_SPACE_LEN],
            write_one_to_clear: [0; CONFIG_SPACE_LEN],
        };
        space.set(registers::VENDOR, &identity.vendor.to_le_bytes());
        space.set(registers::DEVICE, &identity.device.to_le_bytes());
        let class = identity.class << 8 | u32::from(identity.revision);
        space.set(registers::REVISION, &class.to_le_bytes());
        space
    }

    /// Gives the registers from `offset` on these values, whatever software may write:
    /// what the hardware itself does.
    ///
    /// # Panics
    /// When they reach past the end, as for the two calls below.
    pub fn set(&mut self, offset: u8, values: &[u8]) {
        self.bytes[usize::from(offset)..][..values.len()].copy_from_slice(values);
    }

    /// Lets software write those bits of the registers from `offset` on that are 1 in `masks`.
    pub fn make_writable(&mut self, offset: u8, masks: &[u8]) {
        self.writable[usize::from(offset)..][..masks.len()].copy_from_slice(masks);
    }

    /// Lets software clear those bits of the registers from `offset` on that are 1 in
    /// `masks`, by writing ones to them.
    pub fn make_clearable(&mut self, offset: u8, masks: &[u8]) {
        self.write_one_to_clear[usize::from(offset)..][..masks.len()].copy_from_slice(masks);
    }

    /// The `width` at `offset`; FFh past the end.
    pub fn read(&self, offset: u8, width: Width) -> u32 {
        bytewise::read(offset.into(), width, |offset| {
            self.bytes.get(usize::from(offset)).copied().unwrap_or(0xff)
        })
    }

    /// Software writes `value` of `width` at `offset`. What is past the end is dropped.
    pub fn write(&mut self, offset: u8, width: Width, value: u32) {
        bytewise::write(offset.into(), width, value, |offset, value| {
            let offset = usize::from(offset);
            if offset < CONFIG_SPACE_LEN {
                let writable = self.writable[offset];
                let kept = self.bytes[offset] & !writable;
                let cleared = value & self.write_one_to_clear[offset];
                self.bytes[offset] = (kept | value & writable) & !cleared;
            }
        });
    }

    /// The memory address that the base address register at `offset` gives, if the function answers there; 0 means that it has none yet (6.2.5.1).
    pub(crate) fn memory_address(&self, offset: u8) -> Option<u32> {
        let address = self.read(offset, Width::Dword) & !0xf;
        (self.read(registers::COMMAND, Width::Word) & command::MEMORY != 0 && address != 0)
            .then_some(address)
    }

    /// Claims the `len` addresses from there on as region `region` of the device that is called, or gives them up.
    pub(crate) fn claim_memory(&self, context: &mut Context<'_>, region: u8, offset: u8, len: u64) {
        match self.memory_address(offset) {
            Some(address) => context.claim_memory(region, address.into(), len),
            None => context.release(region),
        }
    }

    /// The registers for a saved state.
    pub fn save(&self) -> Vec<u8> {
        self.bytes.to_vec()
    }

    /// Takes saved registers over. False, and nothing done, when there are not
    /// [`CONFIG_SPACE_LEN`] of them or when bits differ that software cannot change.
    pub fn restore(&mut self, saved: &[u8]) -> bool {
        let Ok(bytes) = <[u8; CONFIG_SPACE_LEN]>::try_from(saved) else { return false };
        let differs = (0..CONFIG_SPACE_LEN).any(|offset| {
            let changeable = self.writable[offset] | self.write_one_to_clear[offset];
            (bytes[offset] ^ self.bytes[offset]) & !changeable != 0
        });
        if !differs {
            self.bytes = bytes;
        }
        !differs
    }
}

/// Offsets of the registers that every function has (6.1, figure 6-1).
pub mod registers {
    /// Vendor ID, two bytes.
    pub const VENDOR: u8 = 0x00;
    /// Device ID, two bytes.
    pub const DEVICE: u8 = 0x02;
    /// Command, two bytes.
    pub const COMMAND: u8 = 0x04;
    /// Status, two bytes.
    pub const STATUS: u8 = 0x06;
    /// Revision ID, one byte; three bytes of class code follow.
    pub const REVISION: u8 = 0x08;
    /// Header type, one byte: bit 7 says that the device has several functions.
    pub const HEADER_TYPE: u8 = 0x0e;
    /// The first of six base addresses, of four bytes each (6.2.5).
    pub const BASE_ADDRESS: u8 = 0x10;
    /// Subsystem vendor ID, two bytes; two of subsystem ID follow.
    pub const SUBSYSTEM_VENDOR: u8 = 0x2c;
    /// The base address of the expansion ROM, four bytes (6.2.5.2).
    pub const EXPANSION_ROM: u8 = 0x30;
    /// Interrupt line, one byte: software notes the IRQ there.
    pub const INTERRUPT_LINE: u8 = 0x3c;
    /// Interrupt pin, one byte: 1 for INTA#.
    pub const INTERRUPT_PIN: u8 = 0x3d;
}

/// Bits of the command register (6.2.2).
pub mod command {
    /// The function answers at its ports.
    pub const IO: u32 = 1 << 0;
    /// It answers at its memory addresses.
    pub const MEMORY: u32 = 1 << 1;
    /// It may access memory itself.
    pub const MASTER: u32 = 1 << 2;
    /// It must not assert its interrupt pin (PCI Local Bus Specification 3.0, 6.2.2).
    pub const INTERRUPT_DISABLE: u32 = 1 << 10;
}

/// Header type of a device with several functions (6.2.1).
pub const MULTI_FUNCTION: u8 = 0x80;
/// The errors in the status register's high byte, each cleared by a one (6.2.3).
pub const STATUS_ERRORS: u8 = 0xf8;

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const DATA_PORTS: u16 = 4;

/// Configuration cycles are enabled (3.2.2.3.2).
const ADDRESS_ENABLE: u32 = 1 << 31;
/// Enable, bus, device, function and register; the other bits read 0.
const ADDRESS_BITS: u32 = 0x80ff_fffc;

/// The register CONFIG_ADDRESS at port CF8h, and what it selects behind the ports of CONFIG_DATA.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigAddress(u32);

/// A configuration access on bus 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigCycle {
    /// Device number, 0 to 31.
    pub slot: u8,
    /// Function number, 0 to 7.
    pub function: u8,
    /// The first register, aligned as the width of the access asks.
    pub offset: u8,
}

impl ConfigAddress {
    /// The register from a saved value. Nothing when it has bits that it cannot have.
    pub fn from_saved(value: u32) -> Option<ConfigAddress> {
        (value & !ADDRESS_BITS == 0).then_some(ConfigAddress(value))
    }

    /// The value of the register.
    pub fn value(&self) -> u32 {
        self.0
    }

    /// The register, when the guest reads it: only as a dword, for the bytes are other registers.
    pub fn read(&self, port: u16, width: Width) -> Option<u32> {
        (port == ADDRESS_PORT && width == Width::Dword).then_some(self.0)
    }

    /// The guest writes at `port`. True when that was this register.
    pub fn write(&mut self, port: u16, width: Width, value: u32) -> bool {
        let is_ours = port == ADDRESS_PORT && width == Width::Dword;
        if is_ours {
            self.0 = value & ADDRESS_BITS;
        }
        is_ours
    }

    /// True when an access of `width` at `port` is one of CONFIG_DATA, which the board answers: aligned, as
    /// the bus makes all others single bytes.
    pub fn is_data(port: u16, width: Width) -> bool {
        port.wrapping_sub(DATA_PORT) < DATA_PORTS && port.is_multiple_of(width.bytes())
    }

    /// Returns whether any port of an access is one of CONFIG_ADDRESS or CONFIG_DATA.
    pub fn is_touched(port: u16, width: Width) -> bool {
        let in_either = |port: u16| (ADDRESS_PORT..DATA_PORT + DATA_PORTS).contains(&port);
        (0..width.bytes()).any(|offset| in_either(port.wrapping_add(offset)))
    }

    /// The configuration access that one of `width` at `port`, for which [`ConfigAddress::is_data`] holds, makes.
    /// Nothing when the register does not enable it or another bus is meant: there is only bus 0.
    pub fn cycle(&self, port: u16, width: Width) -> Option<ConfigCycle> {
        let bus = self.0 >> 16 & 0xff;
        let selects = ConfigAddress::is_data(port, width) && self.0 & ADDRESS_ENABLE != 0;
        (selects && bus == 0).then_some(ConfigCycle {
            slot: (self.0 >> 11 & 0x1f) as u8,
            function: (self.0 >> 8 & 7) as u8,
            offset: (self.0 & 0xfc) as u8 | (port & 3) as u8,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_recognizes_mechanism_1() {
        let mut address = ConfigAddress::default();
        assert!(!address.write(0xcfb, Width::Byte, 1));
        assert!(address.write(ADDRESS_PORT, Width::Dword, 0xff00_00ff));
        assert_eq!(address.read(ADDRESS_PORT, Width::Dword), Some(0x8000_00fc));
        assert_eq!(address.read(ADDRESS_PORT, Width::Byte), None);
        assert_eq!(ConfigAddress::from_saved(address.value()), Some(address));
        assert_eq!(ConfigAddress::from_saved(3), None);
    }

    #[test]
    fn without_enable_or_on_another_bus_no_function_answers() {
        let mut address = ConfigAddress::default();
        assert_eq!(address.cycle(DATA_PORT, Width::Dword), None);
        address.write(ADDRESS_PORT, Width::Dword, ADDRESS_ENABLE | 1 << 16);
        assert_eq!(address.cycle(DATA_PORT + 2, Width::Word), None);
    }

    #[test]
    fn aligned_accesses_reach_their_bytes() {
        let mut address = ConfigAddress::default();
        address.write(ADDRESS_PORT, Width::Dword, ADDRESS_ENABLE | 31 << 11 | 7 << 8 | 0xf8);
        let cycle = |port, width| address.cycle(port, width).map(|cycle| cycle.offset);
        assert_eq!(cycle(DATA_PORT + 3, Width::Byte), Some(0xfb));
        assert_eq!(cycle(DATA_PORT + 2, Width::Word), Some(0xfa));
        assert_eq!(cycle(DATA_PORT + 1, Width::Word), None);
        assert_eq!(cycle(DATA_PORT + 2, Width::Dword), None);
        assert_eq!(cycle(ADDRESS_PORT, Width::Dword), None);
        let cycle = address.cycle(DATA_PORT, Width::Dword).unwrap();
        assert_eq!((cycle.slot, cycle.function), (31, 7));
    }

    #[test]
    fn masks_decide_which_bits_software_changes() {
        let identity = Identity { vendor: 1, device: 2, revision: 3, class: 0x040506 };
        let mut space = ConfigSpace::new(identity);
        space.set(0x40, &[0xff, 0xff]);
        space.make_writable(0x40, &[0x0f]);
        space.make_clearable(0x41, &[0xf0]);
        space.write(0x40, Width::Word, 0x3000);
        assert_eq!(space.read(0x40, Width::Word), 0xcff0);
        space.write(0, Width::Dword, 0);
        assert_eq!(space.read(0, Width::Dword), 0x0002_0001);
        assert_eq!(space.read(8, Width::Dword), 0x0405_0603);
        space.write(0xfe, Width::Dword, 0xffff_ffff);
        assert_eq!(space.read(0xfe, Width::Dword), 0xffff_0000);
    }

    #[test]
    fn registers_that_cannot_be_are_refused() {
        let identity = Identity { vendor: 1, device: 2, revision: 3, class: 0x040506 };
        let mut space = ConfigSpace::new(identity);
        space.make_writable(0x40, &[0x0f]);
        space.write(0x40, Width::Byte, 0xff);
        let saved = space.save();
        let mut other = ConfigSpace::new(identity);
        assert!(!other.restore(&saved), "its registers are read-only");
        assert!(!space.restore(&saved[1..]));
        assert!(space.restore(&saved));
    }
}
