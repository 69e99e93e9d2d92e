//! The devices on the ISA bus, in AML: those that no system can find by itself, with the ports and lines that
//! the board gives them.
//!
//! Ports and lines are the small descriptors that all versions of ACPI have (ACPI 6.5, 6.4.2), so systems
//! that know only version 1 find them too.

use acpi_tables::aml::{BufferData, Device, EISAName, Name, Path};
use ring3_devices::debug_ports::DEBUG_CONSOLE_PORT;
use ring3_devices::floppy::DriveKind;
use ring3_devices::hpet;
use ring3_devices::pvpanic;
use ring3_devices::uart16550::{COM_PORTS, ComPort};

use super::dsdt::{Encoded, encoded};
use crate::config::Config;

/// Returns the devices of a machine with this configuration.
pub(super) fn devices(config: &Config) -> Vec<Encoded> {
    let mut all = vec![
        device("PIC_", "PNP0000", Resources::new().ports(0x20, 2).ports(0xa0, 2).irq(2)),
        device(
            "DMAC",
            "PNP0200",
            Resources::new().ports(0x00, 0x10).ports(0x81, 0x0f).ports(0xc0, 0x20).dma(4),
        ),
        device("TIMR", "PNP0100", Resources::new().ports(0x40, 4).irq(0)),
        device("SPKR", "PNP0800", Resources::new().ports(0x61, 1)),
        device("RTC_", "PNP0B00", Resources::new().ports(0x70, 2).irq(8)),
        device("FPU_", "PNP0C04", Resources::new().ports(0xf0, 1).irq(13)),
        device("KBD_", "PNP0303", Resources::new().ports(0x60, 1).ports(0x64, 1).irq(1)),
        // The ports of the controller belong to the keyboard.
        device("MOU_", "PNP0F13", Resources::new().irq(12)),
        device("MBRD", "PNP0C02", motherboard()),
        fw_cfg(),
    ];
    if config.has_hpet() {
        let resources = Resources::new().memory(hpet::ADDRESS as u32, hpet::SIZE as u32);
        all.push(device("HPET", "PNP0103", resources));
    }
    if config.on_panic.is_some() {
        all.push(pvpanic());
    }
    if config.diskettes.iter().any(Option::is_some) {
        all.push(diskette_controller(config.diskettes.map(|drive| drive.map(|drive| drive.kind))));
    }
    all.extend(COM_PORTS.into_iter().take(config.serial_ports.into()).map(serial_port));
    all
}

/// The ports of the board itself: POST codes, system control port A, the APM ports of the chipset, the
/// edge/level control of the interrupt controllers, and the debug console.
fn motherboard() -> Resources {
    let ports = Resources::new().ports(0x80, 1).ports(0x92, 1).ports(0xb2, 2).ports(0x4d0, 2);
    ports.ports(DEBUG_CONSOLE_PORT, 1)
}

/// fw_cfg, under the name by which drivers know QEMU's (QEMU, docs/specs/fw_cfg.rst).
fn fw_cfg() -> Encoded {
    /// Present, enabled and working, and not for people to see (ACPI 6.5, 6.3.7).
    const HIDDEN: u8 = 0x0b;
    let hardware_id = Name::new(Path::new("_HID"), &"QEMU0002");
    let status = Name::new(Path::new("_STA"), &HIDDEN);
    let resources = Resources::new().ports(0x510, 12).named();
    encoded(&Device::new(Path::new("FWCF"), vec![&hardware_id, &status, &resources]))
}

/// The device by which the guest says that its system has failed, as QEMU describes it.
fn pvpanic() -> Encoded {
    /// Present, enabled, for people to see, and working (ACPI 6.5, 6.3.7).
    const PRESENT: u8 = 0x0f;
    let hardware_id = Name::new(Path::new("_HID"), &pvpanic::ACPI_ID);
    let status = Name::new(Path::new("_STA"), &PRESENT);
    let resources = Resources::new().ports(pvpanic::PORT, 1).named();
    encoded(&Device::new(Path::new("PEVT"), vec![&hardware_id, &status, &resources]))
}

/// The diskette controller, and the drives that it has (ACPI 6.5, 9.8.1).
fn diskette_controller(drives: [Option<DriveKind>; 2]) -> Encoded {
    /// A tape drive: never.
    const NO_TAPE: u32 = 2;
    let [a, b] = drives.map(|drive| u32::from(drive.is_some()));
    let presence = [a, b, 0, 0, NO_TAPE].map(u32::to_le_bytes).as_flattened().to_vec();
    let presence = Name::new(Path::new("_FDE"), &BufferData::new(presence));
    let hardware_id = Name::new(Path::new("_HID"), &EISAName::new("PNP0700"));
    let resources = Resources::new().ports(0x3f0, 6).ports(0x3f7, 1).irq(6).dma(2).named();
    encoded(&Device::new(Path::new("FDC0"), vec![&hardware_id, &resources, &presence]))
}

/// A serial port: one of several devices of the same kind. It shares its line with another one.
fn serial_port(port: ComPort) -> Encoded {
    let resources = Resources::new().ports(port.base, 8).shared_irq(port.irq).named();
    let hardware_id = Name::new(Path::new("_HID"), &EISAName::new("PNP0501"));
    let unique_id = Name::new(Path::new("_UID"), &port.index);
    let name = port.id.name().to_uppercase();
    encoded(&Device::new(Path::new(&name), vec![&hardware_id, &unique_id, &resources]))
}

/// A device `name` of Plug and Play id `id` with these resources.
fn device(name: &str, id: &str, resources: Resources) -> Encoded {
    let hardware_id = Name::new(Path::new("_HID"), &EISAName::new(id));
    encoded(&Device::new(Path::new(name), vec![&hardware_id, &resources.named()]))
}

/// A resource template (ACPI 6.5, 6.4).
struct Resources(Vec<u8>);

impl Resources {
    fn new() -> Resources {
        Resources(Vec::new())
    }

    /// Adds the `count` ports from `first` on (6.4.2.5); all 16 bits of an address are decoded.
    fn ports(mut self, first: u16, count: u8) -> Resources {
        const ALIGNMENT: u8 = 1;
        let [low, high] = first.to_le_bytes();
        self.0.extend([0x47, 1, low, high, low, high, ALIGNMENT, count]);
        self
    }

    /// Adds IRQ line `line`, triggered by edges and used by no other device (6.4.2.1).
    fn irq(mut self, line: u8) -> Resources {
        let [low, high] = (1u16 << line).to_le_bytes();
        self.0.extend([0x22, low, high]);
        self
    }

    /// Adds IRQ line `line`, triggered by edges, active high, and shared with others.
    fn shared_irq(mut self, line: u8) -> Resources {
        const EDGE: u8 = 1 << 0;
        const SHARED: u8 = 1 << 4;
        let [low, high] = (1u16 << line).to_le_bytes();
        self.0.extend([0x23, low, high, EDGE | SHARED]);
        self
    }

    /// Adds DMA channel `channel`, with transfers of bytes, not as a bus master (6.4.2.2).
    fn dma(mut self, channel: u8) -> Resources {
        self.0.extend([0x2a, 1 << channel, 0]);
        self
    }

    /// Adds the `len` guest-physical addresses from `first` on, for reading and writing (6.4.3.4).
    fn memory(mut self, first: u32, len: u32) -> Resources {
        const WRITABLE: u8 = 1;
        self.0.extend([0x86, 9, 0, WRITABLE]);
        self.0.extend(first.to_le_bytes());
        self.0.extend(len.to_le_bytes());
        self
    }

    /// Returns `_CRS` with these resources.
    fn named(mut self) -> Name {
        // The end tag, with a checksum of 0, which counts as correct (6.4.2.9).
        self.0.extend([0x79, 0]);
        Name::new(Path::new("_CRS"), &BufferData::new(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::bytes;
    use super::*;
    use crate::config::{DisketteDrive, OnPanic};
    use ring3_x86::cpuid::Model;

    fn described(config: &Config) -> Vec<u8> {
        devices(config).iter().flat_map(|device| bytes(device)).collect()
    }

    fn has(aml: &[u8], part: &[u8]) -> bool {
        aml.windows(part.len()).any(|bytes| bytes == part)
    }

    /// The ids to which drivers bind on a standard PC.
    #[test]
    fn the_devices_of_a_pc_have_their_ids() {
        let aml = described(&Config::default());
        for id in [
            "PNP0000", "PNP0100", "PNP0103", "PNP0200", "PNP0303", "PNP0501", "PNP0800", "PNP0B00",
            "PNP0C02", "PNP0C04", "PNP0F13",
        ] {
            assert!(has(&aml, &bytes(&EISAName::new(id))), "{id}");
        }
        assert!(has(&aml, b"QEMU0002\0"));
    }

    #[test]
    fn the_hpet_can_be_left_out() {
        let without = [
            Config { hpet: false, ..Config::default() },
            Config { cpu: Model::I486, ..Config::default() },
        ];
        for config in without {
            assert!(!has(&described(&config), b"HPET"));
        }
    }

    #[test]
    fn a_guest_can_say_that_it_has_failed_where_that_is_asked_for() {
        for on_panic in [None, Some(OnPanic::Continue)] {
            let aml = described(&Config { on_panic, ..Config::default() });
            assert_eq!(has(&aml, b"QEMU0001\0"), on_panic.is_some());
        }
    }

    #[test]
    fn there_are_as_many_serial_ports_as_the_machine_has() {
        for count in 0..=4 {
            let aml = described(&Config { serial_ports: count, ..Config::default() });
            let there = [b"COM1", b"COM2", b"COM3", b"COM4"].map(|name| has(&aml, name));
            assert_eq!(there, std::array::from_fn(|index| index < count.into()), "{count}");
        }
    }

    #[test]
    fn a_diskette_controller_says_which_drives_it_has() {
        let drive = Some(DisketteDrive { kind: DriveKind::Mb1_44, medium: None });
        for diskettes in [[None; 2], [drive, None], [None, drive], [drive; 2]] {
            let aml = described(&Config { diskettes, ..Config::default() });
            assert_eq!(has(&aml, b"FDC0"), diskettes != [None; 2]);
            let presence = diskettes.map(|drive| [u8::from(drive.is_some()), 0, 0, 0]);
            let presence = [presence.as_flattened(), &[0; 8], &[2, 0, 0, 0]].concat();
            assert_eq!(has(&aml, &presence), diskettes != [None; 2], "{diskettes:?}");
        }
    }

    #[test]
    fn resources_are_small_descriptors() {
        let resources = Resources::new().ports(0x3f0, 6).irq(6).shared_irq(4).dma(2).named();
        let expected = [
            &[0x47, 1, 0xf0, 3, 0xf0, 3, 1, 6][..],
            &[0x22, 0x40, 0],
            &[0x23, 0x10, 0, 0x11],
            &[0x2a, 4, 0],
            &[0x79, 0],
        ];
        assert!(bytes(&resources).ends_with(&expected.concat()));
    }
}
