//! PCI configuration space by mechanism #1, and the chipset's own functions in it.
//!
//! The chipset is Intel's 440FX with the PIIX: the host bridge at 00:00.0, the ISA bridge
//! at 00:01.0 and the power management function at 00:01.3. Registers as in the PCI Local
//! Bus Specification 2.1, sections 3.2.2.3.2 (mechanism #1) and 6 (configuration space), and in the data sheets
//! 290549 (82441FX), 290550 (PIIX3) and 290562 (PIIX4). Of the chip-specific
//! registers there are those that something behind them answers for; the others read 0.
//!
//! ```
//! use ring3_core::device::{Device, TestBench, Width};
//! use ring3_devices::pci::Pci;
//!
//! let (mut bench, mut pci) = (TestBench::default(), Pci::new(0x600));
//! pci.write_port(&mut bench.context(), 0xcf8, Width::Dword, 0x8000_0000);
//! assert_eq!(pci.read_port(&mut bench.context(), 0xcfc, Width::Dword), 0x1237_8086);
//! ```

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, Output, Width};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::acpi_pm::SCI_IRQ;
use crate::bytewise;

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
    /// Interrupt line, one byte: software notes the IRQ there.
    pub const INTERRUPT_LINE: u8 = 0x3c;
    /// Interrupt pin, one byte: 1 for INTA#.
    pub const INTERRUPT_PIN: u8 = 0x3d;
}

const MULTI_FUNCTION: u8 = 0x80;
/// The errors in the status register's high byte, each cleared by a one (6.2.3).
const STATUS_ERRORS: u8 = 0xf8;

/// The 82441FX, PCI and memory controller.
fn host_bridge() -> ConfigSpace {
    let identity = Identity { vendor: 0x8086, device: 0x1237, revision: 2, class: 0x060000 };
    let mut space = ConfigSpace::new(identity);
    // Memory access and bus mastering are wired on; parity and SERR# responses are free.
    space.set(registers::COMMAND, &[0x06, 0x00]);
    space.make_writable(registers::COMMAND, &[0x40, 0x01]);
    space.set(registers::STATUS, &[0x80, 0x02]);
    space.make_clearable(registers::STATUS, &[0, STATUS_ERRORS]);
    space
}

/// The PIIX3's function 0, bridge to the ISA bus.
fn isa_bridge() -> ConfigSpace {
    const PIRQ_ROUTE_CONTROL: u8 = 0x60;
    const NOT_ROUTED: u8 = 0x80;
    let identity = Identity { vendor: 0x8086, device: 0x7000, revision: 0, class: 0x060100 };
    let mut space = ConfigSpace::new(identity);
    // I/O, memory and bus mastering are wired on; special cycles are free.
    space.set(registers::COMMAND, &[0x07, 0x00]);
    space.make_writable(registers::COMMAND, &[0x08, 0x00]);
    space.set(registers::STATUS, &[0x00, 0x02]);
    space.make_clearable(registers::STATUS, &[0, STATUS_ERRORS]);
    space.set(registers::HEADER_TYPE, &[MULTI_FUNCTION]);
    // Which IRQ each of PIRQA# to PIRQD# is routed to, bit 7 for none.
    space.set(PIRQ_ROUTE_CONTROL, &[NOT_ROUTED; 4]);
    space.make_writable(PIRQ_ROUTE_CONTROL, &[0x8f; 4]);
    space
}

/// The PIIX4's function 3, power management, whose registers are at port `acpi_base`
/// for good: guests read the base, but the ports do not move.
fn power_management(acpi_base: u16) -> ConfigSpace {
    const PM_BASE: u8 = 0x40;
    const PM_MISCELLANEOUS: u8 = 0x80;
    const IO_SPACE: u16 = 1;
    const PM_IO_ENABLE: u8 = 1;
    let identity = Identity { vendor: 0x8086, device: 0x7113, revision: 3, class: 0x068000 };
    let mut space = ConfigSpace::new(identity);
    // I/O space enable, which concerns the SMBus only.
    space.make_writable(registers::COMMAND, &[0x01, 0x00]);
    space.set(registers::STATUS, &[0x80, 0x02]);
    space.make_clearable(registers::STATUS, &[0, STATUS_ERRORS]);
    space.set(registers::INTERRUPT_LINE, &[SCI_IRQ]);
    space.make_writable(registers::INTERRUPT_LINE, &[0xff]);
    space.set(registers::INTERRUPT_PIN, &[1]);
    space.set(PM_BASE, &(acpi_base & 0xffc0 | IO_SPACE).to_le_bytes());
    space.set(PM_MISCELLANEOUS, &[PM_IO_ENABLE]);
    space
}

const ADDRESS_PORT: u16 = 0xcf8;
/// A byte port between the bytes of the address register, which only answers dwords.
const RESET_CONTROL_PORT: u16 = 0xcf9;
const DATA_PORT: u16 = 0xcfc;
const PORT_COUNT: u16 = 8;

/// Configuration cycles are enabled (3.2.2.3.2).
const ADDRESS_ENABLE: u32 = 1 << 31;
/// Enable, bus, device, function and register; the other bits read 0.
const ADDRESS_BITS: u32 = 0x80ff_fffc;

/// A change to 1 resets the processor.
const RESET_CPU: u8 = 1 << 2;
/// RCPU, the kind of reset (SRST) and, of later chips, the full power cycle. There is
/// one kind of reset here.
const RESET_CONTROL_BITS: u8 = 0x0e;

const VERSION: u32 = 1;

/// The state as it is saved.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    address: u32,
    reset_control: u8,
    /// The registers of each function, in the order of [`Pci::functions`].
    functions: Vec<Vec<u8>>,
}

/// A function of bus 0.
#[derive(Debug, Clone)]
struct Function {
    /// Device in bits 7:3, function in bits 2:0.
    address: u8,
    config: ConfigSpace,
}

/// PCI configuration access and the reset control register, device `pci`.
#[derive(Debug)]
pub struct Pci {
    acpi_base: u16,
    address: u32,
    reset_control: u8,
    functions: Vec<Function>,
}

impl Pci {
    /// The chipset, with its power management registers at port `acpi_base`, a
    /// multiple of 64.
    pub fn new(acpi_base: u16) -> Pci {
        let functions =
            [(0, 0, host_bridge()), (1, 0, isa_bridge()), (1, 3, power_management(acpi_base))].map(
                |(device, function, config)| Function { address: device << 3 | function, config },
            );
        Pci { acpi_base, address: 0, reset_control: 0, functions: functions.into() }
    }

    /// The ports at which the board attaches the device.
    pub fn ports(&self) -> [PortRange; 1] {
        [PortRange::new(ADDRESS_PORT, PORT_COUNT)]
    }

    /// The function that the address register selects, if there is one.
    fn selected(&mut self) -> Option<&mut ConfigSpace> {
        let bus = self.address >> 16 & 0xff;
        if self.address & ADDRESS_ENABLE == 0 || bus != 0 {
            return None;
        }
        let address = (self.address >> 8) as u8;
        self.functions
            .iter_mut()
            .find(|function| function.address == address)
            .map(|function| &mut function.config)
    }

    /// The register that an access at `port`, one of the data ports, concerns.
    fn register(&self, port: u16) -> u8 {
        (self.address & 0xfc) as u8 | (port & 3) as u8
    }

    fn write_reset_control(&mut self, context: &mut Context<'_>, value: u8) {
        let before = std::mem::replace(&mut self.reset_control, value & RESET_CONTROL_BITS);
        if value & !before & RESET_CPU != 0 {
            context.output(Output::Reset);
        }
    }
}

impl Device for Pci {
    fn name(&self) -> &'static str {
        "pci"
    }

    fn reset(&mut self, _context: &mut Context<'_>) {
        *self = Pci::new(self.acpi_base);
    }

    fn read_port(&mut self, _context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        if port >= DATA_PORT {
            let register = self.register(port);
            return self.selected().map_or(width.mask(), |config| config.read(register, width));
        }
        if port == ADDRESS_PORT && width == Width::Dword {
            return self.address;
        }
        bytewise::read(port, width, |port| match port {
            RESET_CONTROL_PORT => self.reset_control,
            _ => 0xff,
        })
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        if port >= DATA_PORT {
            let register = self.register(port);
            if let Some(config) = self.selected() {
                config.write(register, width, value);
            }
        } else if port == ADDRESS_PORT && width == Width::Dword {
            self.address = value & ADDRESS_BITS;
        } else {
            bytewise::write(port, width, value, |port, byte| {
                if port == RESET_CONTROL_PORT {
                    self.write_reset_control(context, byte);
                }
            });
        }
    }

    fn save(&self) -> SavedState {
        let functions = self.functions.iter().map(|function| function.config.save()).collect();
        let state = State { address: self.address, reset_control: self.reset_control, functions };
        SavedState::new(self.name(), VERSION, &state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.name(), VERSION)?;
        if state.address & !ADDRESS_BITS != 0 || state.reset_control & !RESET_CONTROL_BITS != 0 {
            return Err(saved.damaged("reserved register bits are set"));
        }
        let mut functions = self.functions.clone();
        let fits = functions.len() == state.functions.len()
            && functions
                .iter_mut()
                .zip(&state.functions)
                .all(|(function, registers)| function.config.restore(registers));
        if !fits {
            return Err(saved.damaged("it is of a machine with other PCI functions"));
        }
        self.functions = functions;
        self.address = state.address;
        self.reset_control = state.reset_control;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hammer::{blows, hammer};
    use ring3_core::device::TestBench;

    const ACPI_BASE: u16 = 0x600;

    struct Machine {
        bench: TestBench,
        pci: Pci,
    }

    impl Machine {
        fn new() -> Machine {
            Machine { bench: TestBench::default(), pci: Pci::new(ACPI_BASE) }
        }

        fn read_port(&mut self, port: u16, width: Width) -> u32 {
            self.pci.read_port(&mut self.bench.context(), port, width)
        }

        fn write_port(&mut self, port: u16, width: Width, value: u32) {
            self.pci.write_port(&mut self.bench.context(), port, width, value);
        }

        fn select(&mut self, device: u32, function: u32, register: u32) {
            let address = ADDRESS_ENABLE | device << 11 | function << 8 | register & 0xfc;
            self.write_port(ADDRESS_PORT, Width::Dword, address);
        }

        fn read(&mut self, device: u32, function: u32, register: u32, width: Width) -> u32 {
            self.select(device, function, register);
            self.read_port(DATA_PORT + (register & 3) as u16, width)
        }

        fn write(&mut self, device: u32, function: u32, register: u32, width: Width, value: u32) {
            self.select(device, function, register);
            self.write_port(DATA_PORT + (register & 3) as u16, width, value);
        }
    }

    #[test]
    fn a_bus_scan_finds_the_chipset() {
        let mut machine = Machine::new();
        let mut found = Vec::new();
        for (device, function) in (0..32).flat_map(|d| (0..8).map(move |f| (d, f))) {
            let id = machine.read(device, function, 0, Width::Dword);
            if id != 0xffff_ffff {
                let class = machine.read(device, function, 8, Width::Dword) >> 8;
                found.push((device, function, id, class));
            }
        }
        let expected = [
            (0, 0, 0x1237_8086, 0x060000),
            (1, 0, 0x7000_8086, 0x060100),
            (1, 3, 0x7113_8086, 0x068000),
        ];
        assert_eq!(found, expected);
        assert_eq!(machine.read(0, 0, 0x0e, Width::Byte), 0);
        assert_eq!(machine.read(1, 0, 0x0e, Width::Byte), MULTI_FUNCTION.into());
    }

    #[test]
    fn a_driver_recognizes_mechanism_1() {
        let mut machine = Machine::new();
        machine.write_port(0xcfb, Width::Byte, 1);
        machine.write_port(ADDRESS_PORT, Width::Dword, 0xff00_00ff);
        assert_eq!(machine.read_port(ADDRESS_PORT, Width::Dword), 0x8000_00fc);
        assert_eq!(machine.read_port(ADDRESS_PORT, Width::Byte), 0xff);
    }

    #[test]
    fn without_enable_or_on_another_bus_nobody_answers() {
        let mut machine = Machine::new();
        machine.write_port(ADDRESS_PORT, Width::Dword, 0);
        assert_eq!(machine.read_port(DATA_PORT, Width::Dword), 0xffff_ffff);
        machine.write_port(ADDRESS_PORT, Width::Dword, ADDRESS_ENABLE | 1 << 16);
        assert_eq!(machine.read_port(DATA_PORT + 2, Width::Word), 0xffff);
    }

    #[test]
    fn narrow_accesses_reach_their_bytes() {
        let mut machine = Machine::new();
        assert_eq!(machine.read(0, 0, 1, Width::Byte), 0x80);
        assert_eq!(machine.read(0, 0, 2, Width::Word), 0x1237);
        machine.write(1, 0, 0x62, Width::Byte, 0xfb);
        assert_eq!(machine.read(1, 0, 0x60, Width::Dword), 0x808b_8080);
    }

    #[test]
    fn the_board_presets_the_power_management_base() {
        let mut machine = Machine::new();
        machine.write(1, 3, 0x40, Width::Dword, 0xb001);
        assert_eq!(machine.read(1, 3, 0x40, Width::Dword), u32::from(ACPI_BASE) | 1);
        assert_eq!(machine.read(1, 3, 0x80, Width::Byte), 1);
    }

    #[test]
    fn a_rising_reset_bit_resets_once() {
        let mut machine = Machine::new();
        machine.write_port(RESET_CONTROL_PORT, Width::Byte, 0x02);
        assert_eq!(machine.bench.outputs, []);
        machine.write_port(RESET_CONTROL_PORT, Width::Byte, 0x06);
        assert_eq!(machine.bench.outputs, [Output::Reset]);
        machine.write_port(RESET_CONTROL_PORT, Width::Byte, 0x0e);
        assert_eq!(machine.bench.outputs.len(), 1);
        assert_eq!(machine.read_port(RESET_CONTROL_PORT, Width::Byte), 0x0e);
        machine.write_port(RESET_CONTROL_PORT, Width::Byte, 0);
        machine.write_port(ADDRESS_PORT, Width::Word, 0x0eff);
        assert_eq!(machine.bench.outputs.len(), 2, "a word is two bytes");
    }

    #[test]
    fn masks_decide_what_software_changes() {
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
    fn states_of_other_machines_are_refused() {
        let mut machine = Machine::new();
        machine.write(1, 0, 0x60, Width::Byte, 11);
        let before = machine.pci.save();
        for (address, functions) in [
            (0, vec![]),
            (0, vec![vec![0; 256]; 3]),
            (0, vec![vec![0; 7]; 3]),
            (3, machine.pci.functions.iter().map(|function| function.config.save()).collect()),
        ] {
            let state = State { address, reset_control: 0, functions };
            let saved = SavedState::new("pci", VERSION, &state);
            assert!(matches!(machine.pci.restore(&saved), Err(RestoreError::Damaged { .. })));
            assert_eq!(machine.pci.save(), before);
        }
    }

    #[test]
    fn a_restored_chipset_has_the_guest_s_routing() {
        let mut machine = Machine::new();
        machine.write(1, 0, 0x60, Width::Byte, 11);
        let saved = machine.pci.save();
        machine.pci = Pci::new(ACPI_BASE);
        machine.pci.restore(&saved).unwrap();
        assert_eq!(machine.read_port(DATA_PORT, Width::Byte), 11);
        machine.pci.reset(&mut machine.bench.context());
        assert_eq!(machine.read(1, 0, 0x60, Width::Byte), 0x80);
    }

    proptest! {
        #[test]
        fn any_treatment_leaves_a_state_that_can_be_saved(
            blows in blows(&[0xcf8, 0xcf9, 0xcfa, 0xcfc, 0xcfd, 0xcfe, 0xcff]),
            address in prop::sample::select(vec![0u32, 0x800, 0xb00]),
            register in any::<u8>(),
        ) {
            let mut machine = Machine::new();
            machine.select(0, 0, 0);
            machine.pci.address |= address | u32::from(register & 0xfc);
            hammer(&mut machine.pci, &mut Pci::new(ACPI_BASE), blows);
        }
    }
}
