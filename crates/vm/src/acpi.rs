//! The ACPI tables of a machine that boots without firmware.
//!
//! They tell an operating system what the board has: the fixed power-management
//! hardware, the PCI bus and the devices on the ISA bus that it cannot find
//! by itself. They lie in the BIOS area, E0000h to FFFFFh, where the ACPI
//! specification (6.5, 5.2.5.1) has an operating system search for the RSDP, so
//! that a kernel which is not told its address finds it too.
//!
//! ```text
//! RSDP ──► XSDT ──► FADT ──┬─► FACS
//!                          └─► DSDT (AML: \_S5, PCI0 and the ISA devices)
//! ```
//!
//! There is no MADT, for there is no APIC: Linux then uses the two 8259A.

use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Device, EISAName, IO, Interrupt, Name, Package, Path,
    ResourceTemplate, Scope,
};
use acpi_tables::facs::FACS;
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace as GasAddressSpace, GAS};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, aml};
use ring3_core::memory::{Memory, MemoryError};
use ring3_devices::acpi_pm;

/// First byte of the BIOS area; the RSDP is here.
pub const BIOS_AREA: u64 = 0xe0000;
/// The end of the BIOS area: the first byte after it.
pub const BIOS_AREA_END: u64 = 0x10_0000;

/// The reset control register of the PCI chipset (82371SB data sheet, "RC").
const RESET_CONTROL: u64 = 0xcf9;
/// Full reset: processor, and all devices.
const RESET_FULL: u8 = 0x0e;

/// Where the CMOS memory keeps the century.
const CMOS_CENTURY: u8 = 0x32;

/// Guest-physical addresses that PCI devices may take: from the largest RAM to
/// where the I/O APIC of later machines begins.
const PCI_WINDOW: (u32, u32) = (0xc000_0000, 0xfebf_ffff);

const OEM_ID: [u8; 6] = *b"RING3 ";
const OEM_TABLE_ID: [u8; 8] = *b"RING3PC ";
const OEM_REVISION: u32 = 1;

/// Tables start on such boundaries. The FACS asks for it (ACPI 6.5, 5.2.10); for
/// the RSDP 16 would do.
const ALIGNMENT: u64 = 64;

/// Writes the tables into the BIOS area of `memory` and returns the address of the RSDP.
pub fn install(memory: &mut Memory) -> Result<u64, MemoryError> {
    let rsdp_address = BIOS_AREA;
    let facs_address = (rsdp_address + Rsdp::len() as u64).next_multiple_of(ALIGNMENT);
    let dsdt_address = (facs_address + FACS::len() as u64).next_multiple_of(ALIGNMENT);
    let dsdt = dsdt();
    let fadt_address = (dsdt_address + dsdt.len() as u64).next_multiple_of(ALIGNMENT);
    let fadt = bytes(&fadt(facs_address as u32, dsdt_address as u32).finalize());
    let xsdt_address = (fadt_address + fadt.len() as u64).next_multiple_of(ALIGNMENT);
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    xsdt.add_entry(fadt_address);

    memory.load_image(rsdp_address, &bytes(&Rsdp::new(OEM_ID, xsdt_address)))?;
    memory.load_image(facs_address, &bytes(&FACS::new()))?;
    memory.load_image(dsdt_address, dsdt.as_slice())?;
    memory.load_image(fadt_address, &fadt)?;
    memory.load_image(xsdt_address, &bytes(&xsdt))?;
    Ok(rsdp_address)
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// The Fixed ACPI Description Table (ACPI 6.5, 5.2.9): where the fixed hardware
/// is. SMI_CMD stays 0: there is no system management mode, ACPI is always on.
fn fadt(facs: u32, dsdt: u32) -> FADTBuilder {
    /// IAPC_BOOT_ARCH: there are devices on an ISA bus.
    const LEGACY_DEVICES: u16 = 1 << 0;
    /// IAPC_BOOT_ARCH: there is a keyboard controller at ports 60h and 64h.
    const HAS_8042: u16 = 1 << 1;
    /// Latencies (in microseconds) beyond which the processor has no C2 or C3 state.
    const NO_C2: u16 = 101;
    const NO_C3: u16 = 1001;

    let pm_base = u32::from(acpi_pm::DEFAULT_BASE);
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .firmware_ctrl_32(facs)
        .dsdt_32(dsdt)
        .preferred_pm_profile(PmProfile::Desktop)
        .flag(Flags::Wbinvd)
        .flag(Flags::ProcC1)
        .flag(Flags::SlpButton) // set means: none in the fixed hardware
        .flag(Flags::FixRtc) // set means: the RTC has no wake status there
        .flag(Flags::TmrValExt)
        .flag(Flags::ResetRegSup);
    fadt.sci_int = u16::from(acpi_pm::SCI_IRQ).into();
    fadt.pm1a_evt_blk = (pm_base + u32::from(acpi_pm::EVENT_BLOCK)).into();
    fadt.pm1_evt_len = 4;
    fadt.pm1a_cnt_blk = (pm_base + u32::from(acpi_pm::CONTROL_BLOCK)).into();
    fadt.pm1_cnt_len = 2;
    fadt.pm_tmr_blk = (pm_base + u32::from(acpi_pm::TIMER_BLOCK)).into();
    fadt.pm_tmr_len = 4;
    fadt.p_lvl2_lat = NO_C2.into();
    fadt.p_lvl3_lat = NO_C3.into();
    fadt.century = CMOS_CENTURY;
    fadt.iapc_boot_arch = (LEGACY_DEVICES | HAS_8042).into();
    fadt.reset_reg =
        GAS::new(GasAddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, RESET_CONTROL);
    fadt.reset_value = RESET_FULL;
    fadt
}

/// The Differentiated System Description Table: the devices, in AML.
fn dsdt() -> Sdt {
    /// The revision from which AML integers have 64 bits (ACPI 6.5, 5.2.11.1).
    const REVISION: u8 = 2;
    const HEADER_LENGTH: u32 = 36;

    let mut aml = Vec::new();
    soft_off().to_aml_bytes(&mut aml);
    system_bus(&mut aml);
    let mut dsdt = Sdt::new(*b"DSDT", HEADER_LENGTH, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    dsdt.append_slice(&aml);
    dsdt
}

/// `\_S5`: what to write to the PM1 control registers to switch the machine off
/// (ACPI 6.5, 7.4.2).
fn soft_off() -> Name {
    let package = Package::new(vec![&acpi_pm::SLP_TYP_S5, &aml::ZERO, &aml::ZERO, &aml::ZERO]);
    Name::new(Path::new("_S5_"), &package)
}

/// `\_SB`: the PCI bus, with the ISA bridge at 00:01.0 and what is behind it.
fn system_bus(aml: &mut Vec<u8>) {
    /// Device 1, function 0 (ACPI 6.5, 6.1.1).
    const ISA_BRIDGE: u32 = 1 << 16;

    let rtc = isa_device("RTC_", "PNP0B00", &[IO::new(0x70, 0x70, 1, 2)], 8);
    let keyboard =
        isa_device("KBD_", "PNP0303", &[IO::new(0x60, 0x60, 1, 1), IO::new(0x64, 0x64, 1, 1)], 1);
    let com1 = isa_device("COM1", "PNP0501", &[IO::new(0x3f8, 0x3f8, 8, 8)], 4);
    let isa_address = Name::new(Path::new("_ADR"), &ISA_BRIDGE);
    let isa = Device::new(Path::new("ISA_"), vec![&isa_address, &rtc, &keyboard, &com1]);

    let (cacheable, writable) = (AddressSpaceCacheable::NotCacheable, true);
    let (first, last) = PCI_WINDOW;
    let memory = AddressSpace::<u32>::new_memory(cacheable, writable, first, last, None);
    // Ports CF8h to CFFh are the bridge's own, for configuration.
    let resources = Name::new(
        Path::new("_CRS"),
        &ResourceTemplate::new(vec![
            &AddressSpace::<u16>::new_bus_number(0, 0),
            &IO::new(0xcf8, 0xcf8, 1, 8),
            &AddressSpace::<u16>::new_io(0, 0xcf7, None),
            &AddressSpace::<u16>::new_io(0xd00, 0xffff, None),
            &memory,
        ]),
    );
    let hardware_id = Name::new(Path::new("_HID"), &EISAName::new("PNP0A03"));
    let unique_id = Name::new(Path::new("_UID"), &aml::ZERO);
    let pci0 = Device::new(Path::new("PCI0"), vec![&hardware_id, &unique_id, &resources, &isa]);
    Scope::new(Path::new("_SB_"), vec![&pci0]).to_aml_bytes(aml);
}

/// AML that is encoded already, for the crate's `Device` only borrows its parts.
struct Encoded(Vec<u8>);

impl Aml for Encoded {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        sink.vec(&self.0);
    }
}

/// A device `name` of Plug and Play id `id` that answers at `ports` and raises `irq`, by edges.
fn isa_device(name: &str, id: &str, ports: &[IO], irq: u32) -> Encoded {
    let (consumer, edge, active_low, shared) = (true, true, false, false);
    let irq = Interrupt::new(consumer, edge, active_low, shared, irq);
    let mut resources: Vec<&dyn Aml> = ports.iter().map(|range| range as &dyn Aml).collect();
    resources.push(&irq);
    let hardware_id = Name::new(Path::new("_HID"), &EISAName::new(id));
    let resources = Name::new(Path::new("_CRS"), &ResourceTemplate::new(resources));
    Encoded(bytes(&Device::new(Path::new(name), vec![&hardware_id, &resources])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed() -> (Memory, u64) {
        let mut memory = Memory::new(1 << 20).unwrap();
        let rsdp = install(&mut memory).unwrap();
        (memory, rsdp)
    }

    fn u32_at(memory: &Memory, address: u64) -> u32 {
        u32::from_le_bytes(memory.load(address as usize))
    }

    fn u64_at(memory: &Memory, address: u64) -> u64 {
        u64::from_le_bytes(memory.load(address as usize))
    }

    /// The table at `address`, after its signature, place and checksum were looked at.
    fn table(memory: &Memory, address: u64, signature: [u8; 4]) -> &[u8] {
        assert_eq!(memory.load::<4>(address as usize), signature);
        let length = u64::from(u32_at(memory, address + 4));
        assert!(address >= BIOS_AREA && address + length <= BIOS_AREA_END);
        let table = &memory.contents()[address as usize..(address + length) as usize];
        if signature != *b"FACS" {
            assert_eq!(table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        }
        table
    }

    #[test]
    fn an_operating_system_finds_its_way_from_the_rsdp() {
        let (memory, rsdp) = installed();
        assert_eq!(rsdp % 16, 0);
        assert_eq!(&memory.load::<8>(rsdp as usize), b"RSD PTR ");
        for length in [20, 36] {
            let bytes = &memory.contents()[rsdp as usize..][..length];
            assert_eq!(bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        }
        let xsdt = u64_at(&memory, rsdp + 24);
        assert_eq!(table(&memory, xsdt, *b"XSDT").len(), 36 + 8);
        let fadt = u64_at(&memory, xsdt + 36);
        table(&memory, fadt, *b"FACP");
        let facs = u64::from(u32_at(&memory, fadt + 36));
        assert_eq!(facs % 64, 0);
        table(&memory, facs, *b"FACS");
        table(&memory, u64::from(u32_at(&memory, fadt + 40)), *b"DSDT");
    }

    #[test]
    fn the_fadt_says_where_the_fixed_hardware_is() {
        let (memory, rsdp) = installed();
        let fadt = table(&memory, u64_at(&memory, u64_at(&memory, rsdp + 24) + 36), *b"FACP");
        assert_eq!(fadt[46..48], [9, 0], "SCI_INT");
        assert_eq!(fadt[48..52], [0; 4], "SMI_CMD");
        assert_eq!(fadt[56..60], [0x00, 0x06, 0, 0], "PM1a_EVT_BLK");
        assert_eq!(fadt[64..68], [0x04, 0x06, 0, 0], "PM1a_CNT_BLK");
        assert_eq!(fadt[76..80], [0x08, 0x06, 0, 0], "PM_TMR_BLK");
        assert_eq!(fadt[88..92], [4, 2, 0, 4], "lengths");
        assert_eq!(fadt[108], 0x32, "CENTURY");
        assert_eq!(fadt[116..129], [1, 8, 0, 1, 0xf9, 0x0c, 0, 0, 0, 0, 0, 0, 0x0e], "RESET_REG");
    }

    #[test]
    fn the_dsdt_has_soft_off() {
        let dsdt = dsdt();
        // Name (_S5, Package (4) { SLP_TYP_S5, 0, 0, 0 }); ACPI 6.5, 20.2.
        let mut expected = vec![0x08, b'_', b'S', b'5', b'_', 0x12];
        let elements = [bytes(&acpi_pm::SLP_TYP_S5), vec![0, 0, 0]].concat();
        expected.extend([elements.len() as u8 + 2, 4]);
        expected.extend(elements);
        assert!(dsdt.as_slice()[36..].starts_with(&expected));
    }
}
