//! The SMBIOS tables of a machine that was given an identity. `dmidecode` shows them, and so does Linux in
//! `/sys/class/dmi/id` (DMTF DSP0134, "SMBIOS Reference Specification" 2.8.0).
//!
//! In a machine without firmware they are in the BIOS area, where systems look for their entry point.
//! Firmware gets them as files of fw_cfg with the names that QEMU uses (`etc/smbios/`), and adds the table
//! about itself (type 0).

use ring3_core::memory::{Memory, MemoryError, RamLayout};
use ring3_devices::fw_cfg::FwCfg;

use crate::checksum::make_sum_zero;
use crate::config::Config;

/// The address of the entry point in a machine without firmware. Systems look for it at multiples of 16 bytes
/// from here on (5.2.1).
const ENTRY_POINT: u32 = 0xf_0000;
/// The address of the tables in such a machine.
const TABLES: u32 = 0xf_0020;

const ANCHOR_FILE: &str = "etc/smbios/smbios-anchor";
const TABLES_FILE: &str = "etc/smbios/smbios-tables";

const MANUFACTURER: &str = "ring3";
const PRODUCT: &str = "PC (i440FX + PIIX3)";

/// The size of the entry point, with two checksums: over all of it, and from its second part on.
const ENTRY_POINT_LEN: usize = 0x1f;
const INTERMEDIATE: usize = 0x10;

/// Structures one after the other, and the data about them in the entry point.
#[derive(Debug, Default)]
struct Tables {
    bytes: Vec<u8>,
    /// The type of each structure.
    kinds: Vec<u8>,
    longest: usize,
}

impl Tables {
    /// Returns the tables of a machine with this identity and memory.
    fn new(uuid: [u8; 16], memory_bytes: u64) -> Tables {
        let mut tables = Tables::default();
        tables.add_system(uuid);
        tables.add_chassis();
        tables.add_processor();
        tables.add_memory(memory_bytes);
        // The result of the start: no errors (type 32); and the end of the tables (type 127).
        tables.add(32, &[0; 7], &[]);
        tables.add(127, &[], &[]);
        tables
    }

    /// Adds a structure of type `kind`: `body` is the part between its header and its strings (6.1.2, 6.1.3).
    fn add(&mut self, kind: u8, body: &[u8], strings: &[&str]) {
        const HEADER_LEN: usize = 4;
        let start = self.bytes.len();
        // The type, and a number among the structures of this type, which stand together.
        let number = self.kinds.iter().rev().take_while(|other| **other == kind).count();
        let handle = u16::from(kind) << 8 | number as u16;
        self.bytes.extend([kind, (HEADER_LEN + body.len()) as u8]);
        self.bytes.extend(handle.to_le_bytes());
        self.bytes.extend(body);
        for string in strings {
            self.bytes.extend(string.as_bytes());
            self.bytes.push(0);
        }
        if strings.is_empty() {
            self.bytes.push(0);
        }
        self.bytes.push(0);
        self.kinds.push(kind);
        self.longest = self.longest.max(self.bytes.len() - start);
    }

    /// System information (7.2).
    fn add_system(&mut self, uuid: [u8; 16]) {
        const POWER_SWITCH: u8 = 6;
        let [a, b, c, d, e, f, g, h, rest @ ..] = uuid;
        // Manufacturer, product and version; there is no serial number.
        let mut body = vec![1, 2, 3, 0];
        // The first three fields of the identity are little-endian here, and big-endian in its written form
        // (7.2.1).
        body.extend([d, c, b, a, f, e, h, g]);
        body.extend(rest);
        // There is no stock-keeping unit and no family.
        body.extend([POWER_SWITCH, 0, 0]);
        self.add(1, &body, &[MANUFACTURER, PRODUCT, env!("CARGO_PKG_VERSION")]);
    }

    /// The enclosure (7.4): of none of the listed kinds.
    fn add_chassis(&mut self) {
        const OTHER: u8 = 1;
        const SAFE: u8 = 3;
        const NONE: u8 = 3;
        let mut body = vec![1, OTHER, 0, 0, 0, SAFE, SAFE, SAFE, NONE];
        // OEM-defined value, height, cords, and contained elements.
        body.extend([0; 9]);
        self.add(3, &body, &[MANUFACTURER]);
    }

    /// The processor (7.5).
    fn add_processor(&mut self) {
        const CENTRAL: u8 = 3;
        const OTHER: u8 = 1;
        const ENABLED_AND_POPULATED: u8 = 0x41;
        const UNKNOWN: u8 = 2;
        const NO_HANDLE: [u8; 2] = [0xff; 2];
        // Socket, kind and family, maker, CPUID (left out), version, voltage, clocks in MHz.
        let mut body = vec![1, CENTRAL, OTHER, 2];
        body.extend([0; 8]);
        body.extend([0, 0, 0, 0, 0, 0, 0, 0, ENABLED_AND_POPULATED, OTHER]);
        // The caches are left out, and so are serial number, asset tag and part number; one core with one
        // thread.
        body.extend([NO_HANDLE; 3].concat());
        body.extend([0, 0, 0, 1, 1, 1, UNKNOWN, 0, OTHER, 0]);
        self.add(4, &body, &["CPU 0", MANUFACTURER]);
    }

    /// Memory: an array with a device (7.17, 7.18), and its addresses (7.20).
    fn add_memory(&mut self, memory_bytes: u64) {
        const ON_BOARD: u8 = 3;
        const SYSTEM_MEMORY: u8 = 3;
        const NO_CORRECTION: u8 = 3;
        const NO_ERRORS: [u8; 2] = [0xfe, 0xff];
        const ARRAY: [u8; 2] = [0, 16];
        const DIMM: u8 = 9;
        const RAM: u8 = 7;
        const OTHER: [u8; 2] = [2, 0];
        let kib = (memory_bytes >> 10) as u32;
        let mut body = vec![ON_BOARD, SYSTEM_MEMORY, NO_CORRECTION];
        body.extend(kib.to_le_bytes());
        body.extend(NO_ERRORS);
        body.extend(1u16.to_le_bytes());
        // The size is in the fields above, so not here.
        body.extend([0; 8]);
        self.add(16, &body, &[]);

        // Sizes of whole MiB are given in MiB, others in KiB, in 15 bits; larger ones in 32 bits at the end,
        // in MiB.
        let mib = (memory_bytes >> 20) as u32;
        let (size, extended) = match (memory_bytes % (1 << 20), mib) {
            (0, ..0x7fff) => (mib as u16, 0),
            (1.., ..32) => (0x8000 | kib as u16, 0),
            _ => (0x7fff, mib),
        };
        let mut body = [ARRAY, NO_ERRORS, [64, 0], [64, 0], size.to_le_bytes()].concat();
        body.extend([DIMM, 0, 1, 0, RAM]);
        body.extend(OTHER);
        // Speed, maker, serial number, asset tag, part number, ranks.
        body.extend([0; 7]);
        body.extend(extended.to_le_bytes());
        // The configured speed, and voltages.
        body.extend([0; 8]);
        self.add(17, &body, &["DIMM 0"]);

        for range in RamLayout::of(memory_bytes).ranges().iter().filter(|range| !range.is_empty()) {
            let kib = |address: u64| (address >> 10) as u32;
            let mut body = Vec::new();
            body.extend(kib(range.start).to_le_bytes());
            body.extend(kib(range.end - 1).to_le_bytes());
            body.extend(ARRAY);
            body.push(1);
            body.extend([0; 16]);
            self.add(19, &body, &[]);
        }
    }

    /// Returns the 32-bit entry point for tables at `address` (5.2.1).
    fn entry_point(&self, address: u32) -> [u8; ENTRY_POINT_LEN] {
        const MAJOR: u8 = 2;
        const MINOR: u8 = 8;
        let mut entry = [0; ENTRY_POINT_LEN];
        entry[..4].copy_from_slice(b"_SM_");
        entry[5..8].copy_from_slice(&[ENTRY_POINT_LEN as u8, MAJOR, MINOR]);
        entry[8..10].copy_from_slice(&(self.longest as u16).to_le_bytes());
        entry[16..21].copy_from_slice(b"_DMI_");
        entry[22..24].copy_from_slice(&(self.bytes.len() as u16).to_le_bytes());
        entry[24..28].copy_from_slice(&address.to_le_bytes());
        entry[28..30].copy_from_slice(&(self.kinds.len() as u16).to_le_bytes());
        entry[30] = MAJOR << 4 | MINOR;
        make_sum_zero(&mut entry[INTERMEDIATE..], 21 - INTERMEDIATE);
        make_sum_zero(&mut entry, 4);
        entry
    }
}

/// Puts the tables of a machine with this configuration into its memory, if it has an identity.
pub(crate) fn install(memory: &mut Memory, config: &Config) -> Result<(), MemoryError> {
    let Some(uuid) = config.uuid else { return Ok(()) };
    let tables = Tables::new(uuid, config.memory_bytes);
    memory.load_image(u64::from(ENTRY_POINT), &tables.entry_point(TABLES))?;
    memory.load_image(u64::from(TABLES), &tables.bytes)
}

/// Gives the tables to firmware, which chooses their place.
pub(crate) fn give_to_firmware(fw_cfg: &mut FwCfg, config: &Config) {
    let Some(uuid) = config.uuid else { return };
    let tables = Tables::new(uuid, config.memory_bytes);
    fw_cfg.add_file(ANCHOR_FILE, tables.entry_point(0).to_vec());
    fw_cfg.add_file(TABLES_FILE, tables.bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::sum;

    /// Returns the structures: their types, bodies with headers, and strings.
    fn structures(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>, Vec<String>)> {
        let mut found = Vec::new();
        while let [kind, len, ..] = *bytes {
            let (body, mut rest) = bytes.split_at(usize::from(len));
            let mut strings = Vec::new();
            loop {
                let end = rest.iter().position(|byte| *byte == 0).unwrap();
                let string = String::from_utf8(rest[..end].to_vec()).unwrap();
                rest = &rest[end + 1..];
                if string.is_empty() && !(strings.is_empty() && rest.first() == Some(&0)) {
                    break;
                }
                strings.push(string);
            }
            found.push((kind, body.to_vec(), strings));
            bytes = rest;
        }
        found
    }

    #[test]
    fn structures_have_the_sizes_of_the_specification() {
        let uuid = std::array::from_fn(|index| index as u8);
        for memory_bytes in [1 << 20, (16 << 20) + 4096, 128 << 20, 3 << 30] {
            let tables = Tables::new(uuid, memory_bytes);
            let found = structures(&tables.bytes);
            let shapes: Vec<_> = found.iter().map(|(kind, body, _)| (*kind, body.len())).collect();
            let wanted =
                [(1, 27), (3, 22), (4, 42), (16, 23), (17, 40), (19, 31), (32, 11), (127, 4)];
            assert_eq!(shapes, wanted);
            assert_eq!(tables.kinds.len(), wanted.len());
            let device = &found[4].1;
            let told = match u16::from_le_bytes([device[12], device[13]]) {
                0x7fff => u64::from(u32::from_le_bytes(device[28..32].try_into().unwrap())) << 20,
                kib @ 0x8000.. => u64::from(kib & 0x7fff) << 10,
                mib => u64::from(mib) << 20,
            };
            assert_eq!(told, memory_bytes);
            let (system, strings) = (&found[0].1, &found[0].2);
            assert_eq!(system[8..24], [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15]);
            assert_eq!(strings[0], MANUFACTURER);
        }
    }

    #[test]
    fn ram_above_4_gib_has_a_range_of_its_own() {
        let tables = Tables::new([7; 16], 5 << 30);
        let found = structures(&tables.bytes);
        let ranges = found.iter().filter(|(kind, ..)| *kind == 19).map(|(_, body, _)| &body[4..12]);
        let dwords = ranges.map(|bytes| {
            let dword = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            (dword(0), dword(4))
        });
        let expected = [(0, (3 << 20) - 1), (4 << 20, (6 << 20) - 1)];
        assert_eq!(dwords.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_entry_point_has_a_checksum() {
        let tables = Tables::new([7; 16], 64 << 20);
        let entry = tables.entry_point(TABLES);
        assert_eq!((sum(&entry), sum(&entry[INTERMEDIATE..])), (0, 0));
        assert_eq!(entry[24..28], TABLES.to_le_bytes());
        assert!(usize::from(u16::from_le_bytes([entry[8], entry[9]])) < tables.bytes.len());
    }
}
