//! The ACPI tables of the machine.
//!
//! They tell an operating system what the board has: the fixed power-management
//! hardware, the PCI bus with the routing of its interrupts, and the devices on the ISA bus that it cannot find
//! by itself.
//!
//! ```text
//! RSDP ──► RSDT, XSDT ─┬► FADT ──┬─► FACS
//!                      │         └─► DSDT (AML: \_S5, PCI0, its interrupt links and the ISA devices)
//!                      ├► MADT
//!                      └► HPET
//! ```
//!
//! The tables are made with pointers that count from the beginning of their file, and with a list of the
//! places of these pointers. In a machine that boots without firmware the tables lie in the BIOS area, E0000h
//! to FFFFFh, where the ACPI specification (6.5, 5.2.5.1) makes an operating system search for the RSDP; so a
//! kernel that is not told its address finds it too. Firmware is given files and a script for its linker
//! (QEMU's `etc/table-loader`, whose format is described in SeaBIOS's `romfile_loader.h`).
//!
//! The AML of the DSDT is in `acpi/dsdt.rs`, with the devices on the ISA bus in `acpi/isa.rs`, cards that come
//! and go in `acpi/hotplug.rs`, and the VM generation ID in `acpi/vmgenid.rs`; the MADT is in `acpi/madt.rs`.
//! Without APICs there is no MADT: systems then use the two 8259A.

mod dsdt;
mod hotplug;
mod isa;
mod madt;
mod srat;
mod vmgenid;

use acpi_tables::Aml;
use acpi_tables::facs::FACS;
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace as GasAddressSpace, GAS};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
pub(crate) use dsdt::PCI_WINDOW;
use ring3_core::memory::{Memory, MemoryError};
use ring3_devices::acpi_pm;
use ring3_devices::fw_cfg::FwCfg;
use ring3_devices::{hpet, pci_hotplug};

use crate::checksum::make_sum_zero;
use crate::config::Config;

/// First byte of the BIOS area; the RSDP is here.
pub const BIOS_AREA: u64 = 0xe0000;
/// The end of the BIOS area: the first byte after it.
pub const BIOS_AREA_END: u64 = 0x10_0000;

/// The reset control register of the PCI chipset (82371SB data sheet, "RC").
const RESET_CONTROL: u64 = 0xcf9;
/// Full reset: processor, and all devices.
const RESET_FULL: u8 = 0x0e;

/// The CMOS register with the century.
const CMOS_CENTURY: u8 = 0x32;

const OEM_ID: [u8; 6] = *b"RING3 ";
const OEM_TABLE_ID: [u8; 8] = *b"RING3PC ";
const OEM_REVISION: u32 = 1;

/// Tables start on such boundaries. The FACS asks for it (ACPI 6.5, 5.2.10); for
/// the RSDP 16 would do.
const ALIGNMENT: usize = 64;

/// Offsets in the FADT of its pointers to the FACS and the DSDT (ACPI 6.5, table 5.9).
const FADT_FIRMWARE_CTRL: usize = 36;
const FADT_DSDT: usize = 40;
/// Offsets in the FADT of the ports of power management: PM1a_EVT_BLK, PM1a_CNT_BLK and PM_TMR_BLK.
const FADT_PORTS: [usize; 3] = [56, 64, 76];

/// The tables. All pointers count from the beginning of `file`.
struct Tables {
    /// All tables except the RSDP.
    file: Vec<u8>,
    rsdp: Vec<u8>,
    links: Vec<Link>,
    checksums: Vec<Checksum>,
    /// Where the numbers of the ports of power management are in `file`.
    ports: Vec<usize>,
}

/// The two pieces of memory whose addresses are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    Rsdp,
    Tables,
}

/// A pointer to something in the file of tables.
struct Link {
    piece: Piece,
    offset: usize,
    /// Its size in bytes.
    size: u8,
}

/// A byte that makes the sum over a range 0.
struct Checksum {
    piece: Piece,
    offset: usize,
    start: usize,
    len: usize,
}

/// The offset of the checksum in every table with the usual header (ACPI 6.5, 5.2.6).
const HEADER_CHECKSUM: usize = 9;
/// Length of that header.
const HEADER_LEN: usize = 36;

impl Tables {
    /// Returns the tables of a machine with this configuration, whose ports of power management begin at `pm_base`.
    fn new(config: &Config, pm_base: u16) -> Tables {
        let mut tables = Tables {
            file: Vec::new(),
            rsdp: Vec::new(),
            links: Vec::new(),
            checksums: Vec::new(),
            ports: Vec::new(),
        };
        // The FACS has no checksum.
        let facs = tables.add(&bytes(&FACS::new()));
        let dsdt = tables.add_with_checksum(dsdt::dsdt(config).as_slice());
        let fadt = fadt(facs as u32, dsdt as u32, config, pm_base);
        let fadt = tables.add_with_checksum(&bytes(&fadt.finalize()));
        tables.ports.extend(FADT_PORTS.map(|offset| fadt + offset));
        tables.link(Piece::Tables, fadt + FADT_FIRMWARE_CTRL, 4);
        tables.link(Piece::Tables, fadt + FADT_DSDT, 4);
        let mut entries = vec![fadt];
        if config.has_apics() {
            entries.push(tables.add_with_checksum(madt::madt().as_slice()));
        }
        if config.has_hpet() {
            entries.push(tables.add_with_checksum(hpet().as_slice()));
        }
        if let Some(srat) = srat::srat(config) {
            entries.push(tables.add_with_checksum(srat.as_slice()));
        }
        tables.add_roots(&entries);
        tables
    }

    /// Adds the RSDT and the XSDT, with these tables as their entries, and the RSDP.
    fn add_roots(&mut self, entries: &[usize]) {
        const RSDT_REVISION: u8 = 1;
        const RSDP_RSDT: usize = 16;
        const RSDP_XSDT: usize = 24;
        let len = HEADER_LEN as u32;
        let mut rsdt = Sdt::new(*b"RSDT", len, RSDT_REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
        let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
        for entry in entries {
            rsdt.append_slice(&(*entry as u32).to_le_bytes());
            xsdt.add_entry(*entry as u64);
        }
        let rsdt = self.add_with_checksum(rsdt.as_slice());
        let xsdt = self.add_with_checksum(&bytes(&xsdt));
        for index in 0..entries.len() {
            self.link(Piece::Tables, rsdt + HEADER_LEN + 4 * index, 4);
            self.link(Piece::Tables, xsdt + HEADER_LEN + 8 * index, 8);
        }
        self.rsdp = bytes(&Rsdp::new(OEM_ID, xsdt as u64));
        self.rsdp[RSDP_RSDT..][..4].copy_from_slice(&(rsdt as u32).to_le_bytes());
        self.link(Piece::Rsdp, RSDP_RSDT, 4);
        self.link(Piece::Rsdp, RSDP_XSDT, 8);
        // The checksum of the first 20 bytes, and that of all bytes (ACPI 6.5, 5.2.5.3).
        self.leave_sum(Checksum { piece: Piece::Rsdp, offset: 8, start: 0, len: 20 });
        let len = self.rsdp.len();
        self.leave_sum(Checksum { piece: Piece::Rsdp, offset: 32, start: 0, len });
    }

    /// Adds a table, and returns its offset in the file.
    fn add(&mut self, table: &[u8]) -> usize {
        let start = self.file.len().next_multiple_of(ALIGNMENT);
        self.file.resize(start, 0);
        self.file.extend(table);
        start
    }

    /// Adds a table with the usual header, and returns its offset in the file.
    fn add_with_checksum(&mut self, table: &[u8]) -> usize {
        let start = self.add(table);
        let offset = start + HEADER_CHECKSUM;
        let piece = Piece::Tables;
        self.leave_sum(Checksum { piece, offset, start, len: table.len() });
        start
    }

    /// Leaves a sum to [`place`](Self::place) or to firmware's linker. Its byte is 0 until then: the linker of OVMF
    /// sums up all bytes of the range without looking whether a sum is there already, as that of SeaBIOS does.
    fn leave_sum(&mut self, checksum: Checksum) {
        self.piece(checksum.piece)[checksum.offset] = 0;
        self.checksums.push(checksum);
    }

    fn link(&mut self, piece: Piece, offset: usize, size: u8) {
        self.links.push(Link { piece, offset, size });
    }

    fn piece(&mut self, piece: Piece) -> &mut [u8] {
        match piece {
            Piece::Rsdp => &mut self.rsdp,
            Piece::Tables => &mut self.file,
        }
    }

    /// Adjusts the pointers for a file at address `base`.
    fn place(&mut self, base: u64) {
        for Link { piece, offset, size } in std::mem::take(&mut self.links) {
            let pointer = &mut self.piece(piece)[offset..][..usize::from(size)];
            let mut value = [0; 8];
            value[..pointer.len()].copy_from_slice(pointer);
            let value = u64::from_le_bytes(value) + base;
            pointer.copy_from_slice(&value.to_le_bytes()[..pointer.len()]);
        }
        for Checksum { piece, offset, start, len } in std::mem::take(&mut self.checksums) {
            let bytes = self.piece(piece);
            make_sum_zero(&mut bytes[start..start + len], offset - start);
        }
    }

    /// Returns the script for the firmware's linker.
    fn script(&self) -> Vec<u8> {
        const ALLOCATE: u32 = 1;
        const ADD_POINTER: u32 = 2;
        const ADD_CHECKSUM: u32 = 3;
        const HIGH_MEMORY: u8 = 1;
        const F_SEGMENT: u8 = 2;
        const RSDP_ALIGNMENT: u32 = 16;

        let mut script = Vec::new();
        for (piece, alignment, zone) in [
            (Piece::Tables, ALIGNMENT as u32, HIGH_MEMORY),
            (Piece::Rsdp, RSDP_ALIGNMENT, F_SEGMENT),
        ] {
            command(&mut script, ALLOCATE, &[piece], &alignment.to_le_bytes(), &[zone]);
        }
        for Link { piece, offset, size } in &self.links {
            let offset = (*offset as u32).to_le_bytes();
            command(&mut script, ADD_POINTER, &[*piece, Piece::Tables], &offset, &[*size]);
        }
        for Checksum { piece, offset, start, len } in &self.checksums {
            let numbers = [*offset, *start, *len].map(|number| (number as u32).to_le_bytes());
            command(&mut script, ADD_CHECKSUM, &[*piece], numbers.as_flattened(), &[]);
        }
        script
    }
}

/// The names of the files that firmware finds.
const RSDP_FILE: &str = "etc/acpi/rsdp";
const TABLES_FILE: &str = "etc/acpi/tables";
const SCRIPT_FILE: &str = "etc/table-loader";

/// Adds a command of 128 bytes to the linker's script.
fn command(script: &mut Vec<u8>, code: u32, files: &[Piece], numbers: &[u8], last: &[u8]) {
    const COMMAND_LEN: usize = 128;
    const NAME_LEN: usize = 56;
    let end = script.len() + COMMAND_LEN;
    script.extend(code.to_le_bytes());
    for file in files {
        let name = match file {
            Piece::Rsdp => RSDP_FILE,
            Piece::Tables => TABLES_FILE,
        };
        script.extend(name.as_bytes());
        script.resize(script.len() + NAME_LEN - name.len(), 0);
    }
    script.extend(numbers);
    script.extend(last);
    script.resize(end, 0);
}

/// Writes the tables of a machine with this configuration into the BIOS area of `memory`, and returns the
/// address of the RSDP.
pub fn install(memory: &mut Memory, config: &Config) -> Result<u64, MemoryError> {
    let mut tables = Tables::new(config, acpi_pm::DEFAULT_BASE);
    let rsdp = BIOS_AREA;
    let file = (rsdp + tables.rsdp.len() as u64).next_multiple_of(ALIGNMENT as u64);
    tables.place(file);
    memory.load_image(rsdp, &tables.rsdp)?;
    memory.load_image(file, &tables.file)?;
    Ok(rsdp)
}

/// Gives the tables of a machine with this configuration to firmware, which chooses their place, and that of the ports
/// of power management before it reads them.
pub(crate) fn give_to_firmware(fw_cfg: &mut FwCfg, config: &Config) {
    let tables = Tables::new(config, 0);
    fw_cfg.add_file(SCRIPT_FILE, tables.script());
    fw_cfg.add_file_with_ports(TABLES_FILE, tables.file, tables.ports);
    fw_cfg.add_file(RSDP_FILE, tables.rsdp);
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// Returns the table with the address of the high precision event timer ("IA-PC HPET Specification" 1.0a,
/// 3.2.4).
fn hpet() -> Sdt {
    const REVISION: u8 = 1;
    const NUMBER: u8 = 0;
    const NO_PAGE_PROTECTION: u8 = 0;
    let address =
        GAS::new(GasAddressSpace::SystemMemory, 64, 0, AccessSize::Undefined, hpet::ADDRESS);
    let len = HEADER_LEN as u32;
    let mut table = Sdt::new(*b"HPET", len, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    table.append_slice(&hpet::BLOCK_ID.to_le_bytes());
    table.append_slice(&bytes(&address));
    table.append_slice(&[NUMBER]);
    table.append_slice(&hpet::MINIMUM_TICK.to_le_bytes());
    table.append_slice(&[NO_PAGE_PROTECTION]);
    table
}

/// The Fixed ACPI Description Table (ACPI 6.5, 5.2.9): the addresses of the fixed hardware. SMI_CMD stays 0:
/// there is no system management mode, and ACPI is always on.
fn fadt(facs: u32, dsdt: u32, config: &Config, pm_base: u16) -> FADTBuilder {
    /// IAPC_BOOT_ARCH: there are devices on an ISA bus.
    const LEGACY_DEVICES: u16 = 1 << 0;
    /// IAPC_BOOT_ARCH: there is a keyboard controller at ports 60h and 64h.
    const HAS_8042: u16 = 1 << 1;
    /// IAPC_BOOT_ARCH: there is no VGA, so systems must not probe for its registers and memory.
    const NO_VGA: u16 = 1 << 2;
    /// Latencies (in microseconds) beyond which the processor has no C2 or C3 state.
    const NO_C2: u16 = 101;
    const NO_C3: u16 = 1001;

    let pm_base = u32::from(pm_base);
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
    fadt.gpe0_blk = u32::from(pci_hotplug::EVENT_BLOCK.first).into();
    fadt.gpe0_blk_len = pci_hotplug::EVENT_BLOCK.count as u8;
    if config.generation.is_some() {
        let block = ring3_devices::vmgenid::EVENT_BLOCK;
        fadt.gpe1_blk = u32::from(block.first).into();
        fadt.gpe1_blk_len = block.count as u8;
        fadt.gpe1_base = ring3_devices::vmgenid::FIRST_EVENT;
    }
    fadt.p_lvl2_lat = NO_C2.into();
    fadt.p_lvl3_lat = NO_C3.into();
    fadt.century = CMOS_CENTURY;
    let vga = if config.display { 0 } else { NO_VGA };
    fadt.iapc_boot_arch = (LEGACY_DEVICES | HAS_8042 | vga).into();
    fadt.reset_reg =
        GAS::new(GasAddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, RESET_CONTROL);
    fadt.reset_value = RESET_FULL;
    fadt
}

#[cfg(test)]
mod tests {
    use ring3_x86::cpuid::Model;

    use super::*;

    fn installed() -> (Memory, u64) {
        let mut memory = Memory::new(1 << 20).unwrap();
        let rsdp = install(&mut memory, &Config::default()).unwrap();
        (memory, rsdp)
    }

    fn u32_at(memory: &Memory, address: u64) -> u32 {
        u32::from_le_bytes(memory.load(address as usize))
    }

    fn u64_at(memory: &Memory, address: u64) -> u64 {
        u64::from_le_bytes(memory.load(address as usize))
    }

    /// Returns the table at `address`, after checking its signature, place and checksum.
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
    fn all_tables_can_be_reached_from_the_rsdp() {
        let (memory, rsdp) = installed();
        assert_eq!(rsdp % 16, 0);
        assert_eq!(&memory.load::<8>(rsdp as usize), b"RSD PTR ");
        for length in [20, 36] {
            let bytes = &memory.contents()[rsdp as usize..][..length];
            assert_eq!(bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        }
        let xsdt = u64_at(&memory, rsdp + 24);
        assert_eq!(table(&memory, xsdt, *b"XSDT").len(), 36 + 3 * 8);
        table(&memory, u64_at(&memory, xsdt + 44), *b"APIC");
        let hpet = table(&memory, u64_at(&memory, xsdt + 52), *b"HPET");
        assert_eq!(hpet[36..40], [0x01, 0xa2, 0x86, 0x80], "the block's ID");
        assert_eq!(hpet[40..52], [0, 64, 0, 0, 0, 0, 0xd0, 0xfe, 0, 0, 0, 0], "its address");
        assert_eq!(hpet[52..], [0, 0x88, 0x13, 0], "number, shortest period, protection");
        let fadt = u64_at(&memory, xsdt + 36);
        table(&memory, fadt, *b"FACP");
        let facs = u64::from(u32_at(&memory, fadt + 36));
        assert_eq!(facs % 64, 0);
        table(&memory, facs, *b"FACS");
        table(&memory, u64::from(u32_at(&memory, fadt + 40)), *b"DSDT");
    }

    #[test]
    fn a_machine_without_apics_does_not_describe_them() {
        let mut memory = Memory::new(1 << 20).unwrap();
        let config = Config { cpu: Model::I486, ..Config::default() };
        let rsdp = install(&mut memory, &config).unwrap();
        assert_eq!(table(&memory, u64_at(&memory, rsdp + 24), *b"XSDT").len(), 36 + 8);
    }

    /// Executes the script as firmware does, with the tables at 200000h and the RSDP at F0000h.
    fn linked() -> (Memory, u64) {
        const FILES: [(&str, u64); 2] = [(TABLES_FILE, 0x20_0000), (RSDP_FILE, 0xf0000)];
        let tables = Tables::new(&Config::default(), acpi_pm::DEFAULT_BASE);
        let mut memory = Memory::new(4 << 20).unwrap();
        memory.load_image(FILES[0].1, &tables.file).unwrap();
        memory.load_image(FILES[1].1, &tables.rsdp).unwrap();
        let place = |name: &[u8]| {
            let name = std::str::from_utf8(name).unwrap().trim_end_matches('\0');
            FILES.iter().find(|(file, _)| *file == name).unwrap().1
        };
        let mut allocated = Vec::new();
        for command in tables.script().chunks(128) {
            let number = |offset: usize| {
                u64::from(u32::from_le_bytes(command[offset..offset + 4].try_into().unwrap()))
            };
            let file = place(&command[4..60]);
            match number(0) {
                1 => allocated.push(file),
                2 => {
                    assert!(allocated.contains(&file));
                    let address = file + number(116);
                    let mut pointer = vec![0; command[120].into()];
                    memory.read(address, &mut pointer);
                    let mut value = [0; 8];
                    value[..pointer.len()].copy_from_slice(&pointer);
                    let value = u64::from_le_bytes(value) + place(&command[60..116]);
                    memory.write(address, &value.to_le_bytes()[..pointer.len()]);
                }
                3 => {
                    let mut range = vec![0; number(68) as usize];
                    memory.read(file + number(64), &mut range);
                    let sum = range.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
                    let mut byte = [0];
                    memory.read(file + number(60), &mut byte);
                    memory.write(file + number(60), &[byte[0].wrapping_sub(sum)]);
                }
                code => panic!("{code} is no command"),
            }
        }
        (memory, 0xf0000)
    }

    #[test]
    fn firmware_links_the_same_tables() {
        let (memory, rsdp) = linked();
        for length in [20, 36] {
            let bytes = &memory.contents()[rsdp as usize..][..length];
            assert_eq!(bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        }
        let rsdt = u64::from(u32_at(&memory, rsdp + 16));
        let xsdt = u64_at(&memory, rsdp + 24);
        let fadt = u64::from(u32_at(&memory, rsdt + 36));
        assert_eq!(fadt, u64_at(&memory, xsdt + 36));
        let madt = u64_at(&memory, xsdt + 44);
        assert_eq!(madt, u64::from(u32_at(&memory, rsdt + 40)));
        let roots = [(rsdt, *b"RSDT"), (xsdt, *b"XSDT")];
        for (address, signature) in roots.into_iter().chain([(fadt, *b"FACP"), (madt, *b"APIC")]) {
            summed(&memory, address, signature);
        }
        assert_eq!(u32_at(&memory, fadt + 36) % 64, 0, "FACS");
        let dsdt = u64::from(u32_at(&memory, fadt + 40));
        assert!(summed(&memory, dsdt, *b"DSDT") > 1000);
    }

    /// Some firmware takes the byte of a sum for 0 when it computes the sum, and some subtracts what is there.
    #[test]
    fn firmware_finds_zeros_where_sums_are_to_be() {
        let mut tables = Tables::new(&Config::default(), 0);
        let places: Vec<(Piece, usize)> =
            tables.checksums.iter().map(|sum| (sum.piece, sum.offset)).collect();
        assert!(places.len() >= 8, "two of the RSDP; RSDT, XSDT, FADT, MADT, HPET and DSDT");
        for (piece, offset) in places {
            assert_eq!(tables.piece(piece)[offset], 0, "{piece:?}, {offset}");
        }
    }

    /// Checks the signature and the checksum of a table, and returns its length.
    fn summed(memory: &Memory, address: u64, signature: [u8; 4]) -> usize {
        assert_eq!(memory.load::<4>(address as usize), signature);
        let length = u32_at(memory, address + 4) as usize;
        let table = &memory.contents()[address as usize..][..length];
        assert_eq!(table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        length
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
        assert_eq!(fadt[80..84], [0xe0, 0xaf, 0, 0], "GPE0_BLK");
        assert_eq!(fadt[88..93], [4, 2, 0, 4, 4], "lengths");
        assert_eq!(fadt[108], 0x32, "CENTURY");
        assert_eq!(fadt[109..111], [7, 0], "IAPC_BOOT_ARCH");
        assert_eq!(fadt[116..129], [1, 8, 0, 1, 0xf9, 0x0c, 0, 0, 0, 0, 0, 0, 0x0e], "RESET_REG");
    }
}
