//! Puts the image of firmware into the machine.
//!
//! The image ends at 4 GiB, where the processor starts after a reset (F000:FFF0 with the base FFFF0000h), and
//! the host bridge also shows its last 128 KiB below 1 MiB. The machine tells firmware what it cannot find
//! out by itself ([`crate::facts`]).

use std::io;
use std::path::{Path, PathBuf};

use ring3_core::disk::{Medium, SECTOR_SIZE};
use ring3_core::memory::{Area, Memory, MemoryError, PAGE_SIZE};
use ring3_devices::flash::{BLOCK_LEN, CHIPS};
use ring3_devices::i440fx::ROM_MAX;
use thiserror::Error;

use crate::machine::VmError;

/// The names under which distributions install SeaBIOS, the largest variant first.
pub const NAMES: [&str; 3] = ["bios-256k.bin", "bios.bin", "seabios.bin"];
/// The names under which they install the display adapter's firmware.
pub const VIDEO_NAMES: [&str; 1] = ["vgabios-stdvga.bin"];
/// The directories of these files, below each of the system's data directories.
const DIRECTORIES: [&str; 3] = ["seabios", "qemu", "qemu-firmware"];

/// The directory in which Debian installs the ROMs of network cards.
const DEBIAN_ROMS: &str = "/usr/lib/ipxe/qemu";

/// The reasons why there is no firmware.
#[derive(Debug, Error)]
pub enum FirmwareError {
    /// The size of the display adapter's firmware is not possible.
    #[error(
        "comes with firmware for the display adapter of {0} bytes, which must have 1 to 131072"
    )]
    BadVideoSize(usize),
    /// The size of the image is not possible.
    #[error(
        "is not a firmware image: it has {0} bytes, but must have 64 KiB to 16 MiB, a multiple of 4 KiB"
    )]
    BadSize(usize),
    /// The chips of flash memory are not those of the image.
    #[error("is not in the flash memory of the machine")]
    BadFlash,
}

/// Returns the paths at which the host may have one of the files `names`, by the XDG Base Directory
/// Specification: below `data_home` and each of `data_dirs`, or below the usual ones if that is empty. In
/// each directory the first name comes first.
pub fn places(names: &[&str], data_home: Option<&Path>, data_dirs: &[PathBuf]) -> Vec<PathBuf> {
    let usual = ["/usr/local/share", "/usr/share"].map(PathBuf::from);
    let dirs = if data_dirs.is_empty() { &usual[..] } else { data_dirs };
    let homes = data_home.into_iter().chain(dirs.iter().map(PathBuf::as_path));
    let directories: Vec<_> =
        homes.flat_map(|home| DIRECTORIES.map(|directory| home.join(directory))).collect();
    names.iter().flat_map(|name| directories.iter().map(move |dir| dir.join(name))).collect()
}

/// Returns the paths for the ROM `name` of a network card: those of [`places`], and that of Debian's iPXE.
pub fn rom_places(name: &str, data_home: Option<&Path>, data_dirs: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = places(&[name], data_home, data_dirs);
    all.push(Path::new(DEBIAN_ROMS).join(name));
    all
}

/// Returns the first of `places` that exists, with its contents.
pub fn read_first(places: &[PathBuf]) -> Option<(PathBuf, io::Result<Vec<u8>>)> {
    let path = places.iter().find(|path| path.is_file())?;
    Some((path.clone(), std::fs::read(path)))
}

/// Puts the image into an area of its own.
pub(crate) fn load(memory: &mut Memory, image: &[u8]) -> Result<Area, VmError> {
    const LEAST: usize = 64 << 10;
    let len = image.len();
    if len < LEAST || len as u64 > ROM_MAX || !(len as u64).is_multiple_of(PAGE_SIZE) {
        return Err(FirmwareError::BadSize(len).into());
    }
    Ok(area_of(memory, image, len as u64)?)
}

/// Checks that `chips` of flash memory contain an image of `len` bytes.
pub(crate) fn check_flash(chips: &[Medium], len: usize) -> Result<(), FirmwareError> {
    let bytes = |chip: &Medium| {
        let bytes = chip.sectors.checked_mul(SECTOR_SIZE as u64)?;
        (bytes > 0 && bytes.is_multiple_of(BLOCK_LEN)).then_some(bytes)
    };
    let all = chips.iter().try_fold(0_u64, |sum, chip| sum.checked_add(bytes(chip)?));
    let fits = chips.is_empty() || chips.len() <= CHIPS && all == Some(len as u64);
    if fits { Ok(()) } else { Err(FirmwareError::BadFlash) }
}

/// Puts the image of the display adapter's firmware into an area of its own.
pub(crate) fn load_video(memory: &mut Memory, image: &[u8]) -> Result<Area, VmError> {
    const MOST: usize = 128 << 10;
    if !(1..=MOST).contains(&image.len()) {
        return Err(FirmwareError::BadVideoSize(image.len()).into());
    }
    // The base address register shows the size, which must be a power of two.
    Ok(area_of(memory, image, (image.len() as u64).next_power_of_two())?)
}

fn area_of(memory: &mut Memory, image: &[u8], size: u64) -> Result<Area, MemoryError> {
    let area = memory.add_area(size)?;
    memory.write_area(area, 0, image);
    Ok(area)
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
    fn a_file_that_is_not_firmware_is_refused() {
        let mut memory = Memory::new(1 << 20).unwrap();
        for len in [0, 4096, (64 << 10) + 1, (16 << 20) + 4096] {
            assert!(load(&mut memory, &vec![0; len]).is_err());
        }
    }

    #[test]
    fn flash_memory_has_the_whole_image() {
        let chip = |sectors| Medium { sectors, read_only: false };
        let fits = |chips: &[Medium], len| check_flash(chips, len).is_ok();
        assert!(fits(&[], 1 << 16) && fits(&[chip(128), chip(8)], 136 * 512));
        assert!(!fits(&[chip(128)], 1 << 20) && !fits(&[chip(129)], 129 * 512));
        assert!(!fits(&[chip(0)], 0) && !fits(&[chip(u64::MAX / 8)], 0));
        assert!(!fits(&[chip(8); 3], 24 * 512));
    }

    #[test]
    fn the_largest_variant_is_searched_for_in_all_directories_first() {
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
