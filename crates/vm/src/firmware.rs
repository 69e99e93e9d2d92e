//! Firmware: its image in the machine, and what the machine tells it.
//!
//! The image lies so that it ends at 4 GiB, where the processor starts after a reset (F000:FFF0 with the base FFFF0000h), and
//! the host bridge shows its last 128 KiB below 1 MiB. What firmware cannot find out by itself it
//! asks the [`FwCfg`] for.

use std::io;
use std::path::{Path, PathBuf};

use ring3_core::memory::{Area, Memory, PAGE_SIZE};
use ring3_devices::fw_cfg::{FwCfg, key};
use ring3_devices::i440fx::ROM_MAX;
use thiserror::Error;

use crate::acpi;
use crate::board::nic_slot;
use crate::cards::virtio_disk_slot;
use crate::config::{BootDevice, Config};

/// Firmware is one of these files where distributions put SeaBIOS, the largest variant first.
pub const NAMES: [&str; 3] = ["bios-256k.bin", "bios.bin", "seabios.bin"];
/// The same of the display adapter's firmware.
pub const VIDEO_NAMES: [&str; 1] = ["vgabios-stdvga.bin"];
/// The directories, below each of the system's data directories.
const DIRECTORIES: [&str; 3] = ["seabios", "qemu", "qemu-firmware"];

/// Where Debian has the ROMs of network cards.
const DEBIAN_ROMS: &str = "/usr/lib/ipxe/qemu";

/// Why there is no firmware.
#[derive(Debug, Error)]
pub enum FirmwareError {
    /// The size of the display adapter's firmware cannot be.
    #[error("its display adapter's firmware has {0} bytes; there is room for 1 to 131072")]
    BadVideoSize(usize),
    /// The size of the image cannot be.
    #[error(
        "is no firmware: an image has 64 KiB to 16 MiB, a multiple of 4 KiB, and this one {0} bytes"
    )]
    BadSize(usize),
}

/// The places where the host may have one of the files `names`, the first name everywhere first, by the XDG Base Directory Specification: below `data_home`
/// and each of `data_dirs`, or below the usual ones when that is empty.
pub fn places(names: &[&str], data_home: Option<&Path>, data_dirs: &[PathBuf]) -> Vec<PathBuf> {
    let usual = ["/usr/local/share", "/usr/share"].map(PathBuf::from);
    let dirs = if data_dirs.is_empty() { &usual[..] } else { data_dirs };
    let homes = data_home.into_iter().chain(dirs.iter().map(PathBuf::as_path));
    let directories: Vec<_> =
        homes.flat_map(|home| DIRECTORIES.map(|directory| home.join(directory))).collect();
    names.iter().flat_map(|name| directories.iter().map(move |dir| dir.join(name))).collect()
}

/// The places of the ROM `name` of a network card: those, and that where Debian's iPXE is.
pub fn rom_places(name: &str, data_home: Option<&Path>, data_dirs: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = places(&[name], data_home, data_dirs);
    all.push(Path::new(DEBIAN_ROMS).join(name));
    all
}

/// The first of `places` that there is, with its contents.
pub fn read_first(places: &[PathBuf]) -> Option<(PathBuf, io::Result<Vec<u8>>)> {
    let path = places.iter().find(|path| path.is_file())?;
    Some((path.clone(), std::fs::read(path)))
}

/// Puts the image into an area of its own.
pub(crate) fn load(memory: &mut Memory, image: &[u8]) -> Result<Area, FirmwareError> {
    const LEAST: usize = 64 << 10;
    let len = image.len();
    if len < LEAST || len as u64 > ROM_MAX || !(len as u64).is_multiple_of(PAGE_SIZE) {
        return Err(FirmwareError::BadSize(len));
    }
    Ok(area_of(memory, image, len as u64))
}

/// Puts the image of the display adapter's firmware into an area of its own.
pub(crate) fn load_video(memory: &mut Memory, image: &[u8]) -> Result<Area, FirmwareError> {
    const MOST: usize = 128 << 10;
    if !(1..=MOST).contains(&image.len()) {
        return Err(FirmwareError::BadVideoSize(image.len()));
    }
    // The base address register says its size, a power of two.
    Ok(area_of(memory, image, (image.len() as u64).next_power_of_two()))
}

fn area_of(memory: &mut Memory, image: &[u8], size: u64) -> Area {
    let area = memory.add_area(size);
    memory.write_area(area, 0, image);
    area
}

/// Where firmware is to look for a system, by the names of Open Firmware that SeaBIOS has for them.
fn boot_order(devices: &[BootDevice]) -> Vec<u8> {
    let names = devices.iter().map(|device| match device {
        BootDevice::Diskette(unit) => format!("/pci@i0cf8/isa@1/fdc@03f0/floppy@{unit}"),
        BootDevice::Ide(unit) => format!("/pci@i0cf8/ide@1,1/drive@{}/disk@{}", unit / 2, unit % 2),
        // By the class of the function; the number is in hexadecimal.
        BootDevice::Virtio(unit) => {
            format!("/pci@i0cf8/scsi@{:x}/disk@0,0", virtio_disk_slot(*unit))
        }
        BootDevice::Network(card) => format!("/pci@i0cf8/ethernet@{:x}", nic_slot(*card)),
    });
    let mut text = names.collect::<Vec<_>>().join("\n");
    text.push('\0');
    text.into_bytes()
}

/// Types of the ranges in the memory map (ACPI 6.5, 15).
const E820_RAM: u32 = 1;

/// What the machine of `config` tells its firmware.
pub(crate) fn describe(config: &Config) -> FwCfg {
    let mut fw_cfg = FwCfg::default();
    fw_cfg.set(key::PROCESSORS, 1u16.to_le_bytes().to_vec());
    fw_cfg.set(key::MAX_PROCESSORS, 1u16.to_le_bytes().to_vec());
    fw_cfg.set(key::BOOT_MENU, u16::from(config.boot_menu).to_le_bytes().to_vec());
    let mut map = Vec::new();
    map.extend(0u64.to_le_bytes());
    map.extend(config.memory_bytes.to_le_bytes());
    map.extend(E820_RAM.to_le_bytes());
    fw_cfg.add_file("etc/e820", map);
    if !config.boot_once.is_empty() {
        let (once, then) = (boot_order(&config.boot_once), boot_order(&config.boot_order));
        fw_cfg.add_changing_file("bootorder", once, then);
    } else if !config.boot_order.is_empty() {
        fw_cfg.add_file("bootorder", boot_order(&config.boot_order));
    }
    acpi::give_to_firmware(&mut fw_cfg, config);
    fw_cfg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_ends_where_its_area_ends() {
        let mut memory = Memory::new(1 << 20).unwrap();
        let mut image = vec![0; 128 << 10];
        *image.last_mut().unwrap() = 9;
        let area = load(&mut memory, &image).unwrap();
        assert_eq!(area.size(), 128 << 10);
        assert_eq!(memory.area(area).last(), Some(&9));
    }

    #[test]
    fn firmware_is_told_of_drives_by_their_places() {
        let order = [
            BootDevice::Ide(3),
            BootDevice::Virtio(12),
            BootDevice::Network(1),
            BootDevice::Diskette(0),
        ];
        let expected = "/pci@i0cf8/ide@1,1/drive@1/disk@1\n\
                        /pci@i0cf8/scsi@10/disk@0,0\n\
                        /pci@i0cf8/ethernet@14\n\
                        /pci@i0cf8/isa@1/fdc@03f0/floppy@0\0";
        assert_eq!(boot_order(&order), expected.as_bytes());
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let mut memory = Memory::new(1 << 20).unwrap();
        for len in [0, 4096, (64 << 10) + 1, (16 << 20) + 4096] {
            assert!(load(&mut memory, &vec![0; len]).is_err());
        }
    }

    #[test]
    fn the_largest_variant_is_looked_for_everywhere_first() {
        let places = places(&NAMES, Some(Path::new("/home/me/share")), &[]);
        assert_eq!(places[0], Path::new("/home/me/share/seabios/bios-256k.bin"));
        assert!(places.contains(&PathBuf::from("/usr/share/seabios/bios-256k.bin")));
        let [large, small] = ["/usr/share/qemu/bios-256k.bin", "/usr/share/seabios/bios.bin"]
            .map(|path| places.iter().position(|place| place == Path::new(path)).unwrap());
        assert!(large < small);
        let own = super::places(&NAMES, None, &[PathBuf::from("/opt/share")]);
        assert!(own.iter().all(|place| place.starts_with("/opt/share")));
    }
}
