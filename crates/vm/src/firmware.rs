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
use crate::config::Config;

/// Firmware is one of these files where distributions put SeaBIOS, the largest variant first.
const NAMES: [&str; 3] = ["bios-256k.bin", "bios.bin", "seabios.bin"];
/// The directories, below each of the system's data directories.
const DIRECTORIES: [&str; 3] = ["seabios", "qemu", "qemu-firmware"];

/// Why there is no firmware.
#[derive(Debug, Error)]
pub enum FirmwareError {
    /// The size of the image cannot be.
    #[error(
        "is no firmware: an image has 64 KiB to 16 MiB, a multiple of 4 KiB, and this one {0} bytes"
    )]
    BadSize(usize),
}

/// The places where the host may have SeaBIOS, by the XDG Base Directory Specification: below `data_home`
/// and each of `data_dirs`, or below the usual ones when that is empty.
pub fn places(data_home: Option<&Path>, data_dirs: &[PathBuf]) -> Vec<PathBuf> {
    let usual = ["/usr/local/share", "/usr/share"].map(PathBuf::from);
    let dirs = if data_dirs.is_empty() { &usual[..] } else { data_dirs };
    let homes = data_home.into_iter().chain(dirs.iter().map(PathBuf::as_path));
    let directories: Vec<_> =
        homes.flat_map(|home| DIRECTORIES.map(|directory| home.join(directory))).collect();
    NAMES.iter().flat_map(|name| directories.iter().map(move |dir| dir.join(name))).collect()
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
    let area = memory.add_area(len as u64);
    memory.write_area(area, 0, image);
    Ok(area)
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
    acpi::give_to_firmware(&mut fw_cfg);
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
    fn what_is_no_image_is_refused() {
        let mut memory = Memory::new(1 << 20).unwrap();
        for len in [0, 4096, (64 << 10) + 1, (16 << 20) + 4096] {
            assert!(load(&mut memory, &vec![0; len]).is_err());
        }
    }

    #[test]
    fn the_largest_variant_is_looked_for_everywhere_first() {
        let places = places(Some(Path::new("/home/me/share")), &[]);
        assert_eq!(places[0], Path::new("/home/me/share/seabios/bios-256k.bin"));
        assert!(places.contains(&PathBuf::from("/usr/share/seabios/bios-256k.bin")));
        let [large, small] = ["/usr/share/qemu/bios-256k.bin", "/usr/share/seabios/bios.bin"]
            .map(|path| places.iter().position(|place| place == Path::new(path)).unwrap());
        assert!(large < small);
        let own = super::places(None, &[PathBuf::from("/opt/share")]);
        assert!(own.iter().all(|place| place.starts_with("/opt/share")));
    }
}
