//! The SMBIOS tables of a machine that was given an identity, or texts for them. `dmidecode` shows them, and so
//! does Linux in `/sys/class/dmi/id` (DMTF DSP0134, "SMBIOS Reference Specification" 2.8.0).
//!
//! In a machine without firmware they are in the BIOS area, where systems look for their entry point.
//! Firmware gets them as files of fw_cfg with the names that QEMU uses (`etc/smbios/`), and adds the table
//! about itself (type 0) if it is not among them.

use std::collections::BTreeMap;

use ring3_core::memory::{Memory, RamLayout};
use ring3_devices::fw_cfg::FwCfg;
use serde::{Deserialize, Serialize};

use crate::acpi::BIOS_AREA_END;
use crate::checksum::make_sum_zero;
use crate::config::{Config, ConfigError};
use crate::machine::VmError;

/// The address of the entry point in a machine without firmware. Systems look for it at multiples of 16 bytes
/// from here on (5.2.1).
const ENTRY_POINT: u32 = 0xf_0000;
/// The address of the tables in such a machine, and the most bytes that they can have there. Firmware gets no
/// more, so that a machine is possible with it and without.
const TABLES: u32 = 0xf_0020;
const TABLES_MAX: usize = BIOS_AREA_END as usize - TABLES as usize;

const ANCHOR_FILE: &str = "etc/smbios/smbios-anchor";
const TABLES_FILE: &str = "etc/smbios/smbios-tables";

const MANUFACTURER: &str = "ring3";
const PRODUCT: &str = "PC (i440FX + PIIX3)";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The handle of the enclosure, the only structure of its type.
const CHASSIS: [u8; 2] = [0, 3];

/// The most strings of a structure: their numbers have 8 bits, and 0 stands for none (6.1.3).
const STRINGS_MAX: usize = 255;

/// The size of the entry point, with two checksums: over all of it, and from its second part on.
const ENTRY_POINT_LEN: usize = 0x1f;
const INTERMEDIATE: usize = 0x10;

/// A text in the tables that the maker of a machine can choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say where the texts are")]
pub enum SmbiosText {
    FirmwareVendor,
    FirmwareVersion,
    FirmwareDate,
    SystemManufacturer,
    SystemProduct,
    SystemVersion,
    SystemSerial,
    SystemSku,
    SystemFamily,
    BoardManufacturer,
    BoardProduct,
    BoardVersion,
    BoardSerial,
    BoardAsset,
    BoardLocation,
    ChassisManufacturer,
    ChassisVersion,
    ChassisSerial,
    ChassisAsset,
    ChassisSku,
}

/// What the SMBIOS tables of a machine say besides its identity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Smbios {
    /// Texts; an empty one is left out. There is a structure about firmware or the board if it has a text.
    pub texts: BTreeMap<SmbiosText, String>,
    /// The firmware's release, major and minor, for a structure about it.
    pub release: Option<(u8, u8)>,
    /// Whether that structure says that the firmware is UEFI's.
    pub is_uefi: bool,
    /// Strings for software of the machine's maker (type 11), in their order.
    pub oem_strings: Vec<String>,
}

impl Smbios {
    /// Returns the text for this place, or the one that it has if nobody has chosen one.
    fn text(&self, place: SmbiosText, otherwise: &'static str) -> &str {
        self.texts.get(&place).map_or(otherwise, String::as_str)
    }

    /// Returns whether a structure exists that is left out if nothing is known about it.
    fn has_any(&self, places: &[SmbiosText]) -> bool {
        places.iter().any(|place| self.texts.contains_key(place))
    }

    /// Returns why these texts cannot be in tables.
    fn check(&self) -> Result<(), ConfigError> {
        let mut texts = self.texts.values().chain(&self.oem_strings);
        if texts.any(|text| text.contains('\0')) {
            return Err(ConfigError::SmbiosText);
        }
        let oem_strings = self.oem_strings.len();
        if oem_strings > STRINGS_MAX || self.oem_strings.iter().any(String::is_empty) {
            return Err(ConfigError::SmbiosOemStrings);
        }
        Ok(())
    }
}

/// The strings of a structure.
#[derive(Debug, Default)]
struct Strings<'text>(Vec<&'text str>);

impl<'text> Strings<'text> {
    /// Adds a text, and returns its number. An empty one has the number that stands for none.
    fn add(&mut self, text: &'text str) -> u8 {
        if text.is_empty() {
            return 0;
        }
        self.0.push(text);
        self.0.len() as u8
    }
}

/// Structures one after the other, and the data about them in the entry point.
#[derive(Debug, Default)]
struct Tables {
    bytes: Vec<u8>,
    /// The type of each structure.
    kinds: Vec<u8>,
    longest: usize,
}

impl Tables {
    /// Returns the tables of the machine with this configuration, if it has any.
    fn of(config: &Config) -> Result<Option<Tables>, ConfigError> {
        if config.uuid.is_none() && config.smbios == Smbios::default() {
            return Ok(None);
        }
        config.smbios.check()?;
        // Zeros say that there is no identity (7.2.1).
        let uuid = config.uuid.unwrap_or_default();
        let tables = Tables::new(uuid, &config.smbios, config.memory_bytes);
        if tables.bytes.len() > TABLES_MAX {
            return Err(ConfigError::SmbiosLength(tables.bytes.len()));
        }
        Ok(Some(tables))
    }

    /// Returns the tables of a machine with this identity, these texts and this memory.
    fn new(uuid: [u8; 16], smbios: &Smbios, memory_bytes: u64) -> Tables {
        let mut tables = Tables::default();
        tables.add_firmware(smbios);
        tables.add_system(uuid, smbios);
        tables.add_board(smbios);
        tables.add_chassis(smbios);
        tables.add_processor();
        tables.add_oem_strings(&smbios.oem_strings);
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

    /// The firmware (7.1), if anything is said about it. Firmware that finds no such structure adds its own.
    fn add_firmware(&mut self, smbios: &Smbios) {
        use SmbiosText::{FirmwareDate, FirmwareVendor, FirmwareVersion};
        const FEATURES_UNKNOWN: u64 = 1 << 3;
        const FEATURES_HAVE_TARGETED_CONTENT: u8 = 1 << 2;
        const UEFI: u8 = 1 << 3;
        const VIRTUAL_MACHINE: u8 = 1 << 4;
        const NO_EMBEDDED_CONTROLLER: [u8; 2] = [0xff; 2];
        let is_there = smbios.has_any(&[FirmwareVendor, FirmwareVersion, FirmwareDate]);
        if !is_there && smbios.release.is_none() && !smbios.is_uefi {
            return;
        }
        let mut strings = Strings::default();
        let vendor = strings.add(smbios.text(FirmwareVendor, MANUFACTURER));
        let mut body = vec![vendor, strings.add(smbios.text(FirmwareVersion, VERSION))];
        // The segment of its address: the BIOS area's last 64 KiB.
        body.extend(((ENTRY_POINT >> 4) as u16).to_le_bytes());
        body.push(strings.add(smbios.text(FirmwareDate, "")));
        // The size of its ROM, in units of 64 KiB, less one.
        body.push(0);
        body.extend(FEATURES_UNKNOWN.to_le_bytes());
        let uefi = if smbios.is_uefi { UEFI } else { 0 };
        body.extend([0, FEATURES_HAVE_TARGETED_CONTENT | VIRTUAL_MACHINE | uefi]);
        // A release of 255.255 stands for none.
        let (major, minor) = smbios.release.unwrap_or((0xff, 0xff));
        body.extend([major, minor]);
        body.extend(NO_EMBEDDED_CONTROLLER);
        self.add(0, &body, &strings.0);
    }

    /// System information (7.2).
    fn add_system(&mut self, uuid: [u8; 16], smbios: &Smbios) {
        use SmbiosText::{
            SystemFamily, SystemManufacturer, SystemProduct, SystemSerial, SystemSku, SystemVersion,
        };
        const POWER_SWITCH: u8 = 6;
        let [a, b, c, d, e, f, g, h, rest @ ..] = uuid;
        let mut strings = Strings::default();
        let texts = [
            smbios.text(SystemManufacturer, MANUFACTURER),
            smbios.text(SystemProduct, PRODUCT),
            smbios.text(SystemVersion, VERSION),
            smbios.text(SystemSerial, ""),
        ];
        let mut body = texts.map(|text| strings.add(text)).to_vec();
        // The first three fields of the identity are little-endian here, and big-endian in its written form
        // (7.2.1).
        body.extend([d, c, b, a, f, e, h, g]);
        body.extend(rest);
        body.push(POWER_SWITCH);
        body.push(strings.add(smbios.text(SystemSku, "")));
        body.push(strings.add(smbios.text(SystemFamily, "")));
        self.add(1, &body, &strings.0);
    }

    /// The board (7.3), if anything is said about it.
    fn add_board(&mut self, smbios: &Smbios) {
        use SmbiosText::{
            BoardAsset, BoardLocation, BoardManufacturer, BoardProduct, BoardSerial, BoardVersion,
        };
        const HOSTS_OTHERS: u8 = 1;
        const MOTHERBOARD: u8 = 10;
        let places =
            [BoardManufacturer, BoardProduct, BoardVersion, BoardSerial, BoardAsset, BoardLocation];
        if !smbios.has_any(&places) {
            return;
        }
        let mut strings = Strings::default();
        let [manufacturer, product, version, serial, asset, location] = places.map(|place| {
            let otherwise = if place == BoardManufacturer { MANUFACTURER } else { "" };
            strings.add(smbios.text(place, otherwise))
        });
        let mut body = vec![manufacturer, product, version, serial, asset, HOSTS_OTHERS, location];
        // The enclosure's handle; and no contained structures.
        body.extend([CHASSIS, [MOTHERBOARD, 0]].concat());
        self.add(2, &body, &strings.0);
    }

    /// The enclosure (7.4): of none of the listed kinds.
    fn add_chassis(&mut self, smbios: &Smbios) {
        use SmbiosText::{
            ChassisAsset, ChassisManufacturer, ChassisSerial, ChassisSku, ChassisVersion,
        };
        const OTHER: u8 = 1;
        const SAFE: u8 = 3;
        const NONE: u8 = 3;
        let mut strings = Strings::default();
        let mut body = vec![strings.add(smbios.text(ChassisManufacturer, MANUFACTURER)), OTHER];
        body.extend(
            [ChassisVersion, ChassisSerial, ChassisAsset]
                .map(|place| strings.add(smbios.text(place, ""))),
        );
        body.extend([SAFE, SAFE, SAFE, NONE]);
        // OEM-defined value, height, cords, and contained elements.
        body.extend([0; 8]);
        body.push(strings.add(smbios.text(ChassisSku, "")));
        self.add(3, &body, &strings.0);
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

    /// Strings for software of the machine's maker (7.12).
    fn add_oem_strings(&mut self, strings: &[String]) {
        if !strings.is_empty() {
            let strings: Vec<_> = strings.iter().map(String::as_str).collect();
            self.add(11, &[strings.len() as u8], &strings);
        }
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

/// Puts the tables of a machine with this configuration into its memory, if it has any.
pub(crate) fn install(memory: &mut Memory, config: &Config) -> Result<(), VmError> {
    let Some(tables) = Tables::of(config)? else { return Ok(()) };
    memory.load_image(u64::from(ENTRY_POINT), &tables.entry_point(TABLES))?;
    memory.load_image(u64::from(TABLES), &tables.bytes)?;
    Ok(())
}

/// Gives the tables to firmware, which chooses their place.
pub(crate) fn give_to_firmware(fw_cfg: &mut FwCfg, config: &Config) -> Result<(), ConfigError> {
    if let Some(tables) = Tables::of(config)? {
        fw_cfg.add_file(ANCHOR_FILE, tables.entry_point(0).to_vec());
        fw_cfg.add_file(TABLES_FILE, tables.bytes);
    }
    Ok(())
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
            let tables = Tables::new(uuid, &Smbios::default(), memory_bytes);
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
    fn texts_are_where_the_specification_has_them() {
        use SmbiosText as Text;
        let places = [
            [Text::FirmwareVendor, Text::FirmwareVersion, Text::FirmwareDate].as_slice(),
            &[
                Text::SystemManufacturer,
                Text::SystemProduct,
                Text::SystemVersion,
                Text::SystemSerial,
                Text::SystemSku,
                Text::SystemFamily,
            ],
            &[
                Text::BoardManufacturer,
                Text::BoardProduct,
                Text::BoardVersion,
                Text::BoardSerial,
                Text::BoardAsset,
                Text::BoardLocation,
            ],
            &[
                Text::ChassisManufacturer,
                Text::ChassisVersion,
                Text::ChassisSerial,
                Text::ChassisAsset,
                Text::ChassisSku,
            ],
        ];
        // The places of their numbers.
        let offsets =
            [[4, 5, 8].as_slice(), &[4, 5, 6, 7, 25, 26], &[4, 5, 6, 7, 8, 10], &[4, 6, 7, 8, 21]];
        let texts = places.concat().into_iter().map(|place| (place, format!("{place:?}")));
        let oem_strings = vec!["one".to_owned(), "two".to_owned()];
        let smbios =
            Smbios { texts: texts.collect(), release: Some((3, 4)), is_uefi: true, oem_strings };
        let tables = Tables::new([7; 16], &smbios, 64 << 20);
        let found = structures(&tables.bytes);
        for (index, (kind, body, strings)) in found.iter().take(4).enumerate() {
            assert_eq!((usize::from(*kind), body.len()), (index, [24, 27, 15, 22][index]));
            for (place, offset) in places[index].iter().zip(offsets[index]) {
                let number = usize::from(body[*offset]);
                assert_eq!(strings[number - 1], format!("{place:?}"));
            }
        }
        assert_eq!((found[0].1[19] & 0x18, &found[0].1[20..22]), (0x18, &[3, 4][..]));
        assert_eq!(found[2].1[11..13], found[3].1[2..4], "the board is in the enclosure");
        let (_, body, strings) = found.iter().find(|(kind, ..)| *kind == 11).unwrap();
        assert_eq!((body[4], strings), (2, &smbios.oem_strings));
    }

    #[test]
    fn an_empty_text_is_left_out() {
        let texts = [(SmbiosText::SystemProduct, String::new())].into();
        let tables = Tables::new([7; 16], &Smbios { texts, ..Smbios::default() }, 64 << 20);
        let (_, body, strings) = &structures(&tables.bytes)[0];
        assert_eq!(
            (&body[4..8], &strings[..]),
            (&[1, 0, 2, 0][..], &["ring3", VERSION].map(str::to_owned)[..])
        );
    }

    #[test]
    fn what_fits_in_no_table_is_refused() {
        let refused = |smbios: Smbios| Tables::of(&Config { smbios, ..Config::default() }).err();
        let serial = |text: &str| Smbios {
            texts: [(SmbiosText::SystemSerial, text.to_owned())].into(),
            ..Smbios::default()
        };
        let oem = |strings: &[&str]| Smbios {
            oem_strings: strings.iter().map(|text| (*text).to_owned()).collect(),
            ..Smbios::default()
        };
        assert_eq!(refused(serial("1")), None);
        assert_eq!(refused(serial("1\0")), Some(ConfigError::SmbiosText));
        assert!(matches!(
            refused(serial(&"x".repeat(TABLES_MAX))),
            Some(ConfigError::SmbiosLength(_))
        ));
        assert_eq!(refused(oem(&["x"; STRINGS_MAX])), None);
        assert_eq!(refused(oem(&["x"; STRINGS_MAX + 1])), Some(ConfigError::SmbiosOemStrings));
        assert_eq!(refused(oem(&["a", ""])), Some(ConfigError::SmbiosOemStrings));
        assert!(Tables::of(&Config::default()).is_ok_and(|tables| tables.is_none()));
    }

    #[test]
    fn ram_above_4_gib_has_a_range_of_its_own() {
        let tables = Tables::new([7; 16], &Smbios::default(), 5 << 30);
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
        let tables = Tables::new([7; 16], &Smbios::default(), 64 << 20);
        let entry = tables.entry_point(TABLES);
        assert_eq!((sum(&entry), sum(&entry[INTERMEDIATE..])), (0, 0));
        assert_eq!(entry[24..28], TABLES.to_le_bytes());
        assert!(usize::from(u16::from_le_bytes([entry[8], entry[9]])) < tables.bytes.len());
    }
}
