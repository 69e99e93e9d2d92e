//! The ROMs of network cards, by which firmware boots from the network.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ring3_devices::pci::rom::{IMAGE_MAX, RomError, RomImage};
use ring3_vm::{NicModel, firmware};
use thiserror::Error;
use tracing::info;

use super::BadNic;
use crate::data_directories::data_directories;
use crate::qemu::properties::Properties;

/// The ROM of a card, and its position in the boot order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RomProperties {
    pub(crate) file: RomFile,
    /// Firmware tries devices with such a number, the lowest first, before those of the boot order.
    pub(crate) boot_index: Option<u32>,
}

/// The file with a ROM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum RomFile {
    /// The ROM for the model, if it is installed and there is firmware to start it.
    #[default]
    Installed,
    /// No ROM.
    None,
    /// This file.
    At(PathBuf),
}

/// The reasons why a card does not have its ROM.
#[derive(Debug, Error)]
pub(crate) enum RomFileError {
    #[error("cannot read the ROM {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} {source}", path = .path.display())]
    Image { path: PathBuf, source: RomError },
}

/// Returns the name of iPXE's file for a model, as QEMU's packages have it.
fn installed_name(model: NicModel) -> Option<&'static str> {
    match model {
        NicModel::Virtio(_) => Some("pxe-virtio.rom"),
        NicModel::E1000 => Some("pxe-e1000.rom"),
        NicModel::Rtl8029 => Some("pxe-ne2k_pci.rom"),
        // Firmware looks for ROMs only on PCI.
        NicModel::Ne2000Isa { .. } => None,
    }
}

impl RomProperties {
    /// Takes the properties of the ROM of a card of this model.
    pub(crate) fn take(properties: &mut Properties, model: NicModel) -> Result<Self, BadNic> {
        let file = match properties.take("romfile") {
            None => RomFile::Installed,
            Some(path) if path.is_empty() => RomFile::None,
            Some(path) => RomFile::At(path.into()),
        };
        let wrong = || BadNic("bootindex must be a number from 0".into());
        let boot_index = properties.take("bootindex").map(|text| text.parse().map_err(|_| wrong()));
        let boot_index = boot_index.transpose()?;
        let needs_rom = matches!(file, RomFile::At(_)) || boot_index.is_some();
        if needs_rom && installed_name(model).is_none() {
            let reason = "romfile and bootindex are properties of PCI cards: give another model";
            return Err(BadNic(reason.into()));
        }
        Ok(RomProperties { file, boot_index })
    }

    /// Reads the ROM of a card of this model, in a machine with or without firmware.
    pub(crate) fn read(
        &self,
        model: NicModel,
        has_firmware: bool,
    ) -> Result<Option<RomImage>, RomFileError> {
        let path = match &self.file {
            RomFile::Installed if has_firmware => installed_name(model).and_then(installed),
            RomFile::At(path) => Some(path.clone()),
            RomFile::Installed | RomFile::None => None,
        };
        path.map(|path| read(&path)).transpose()
    }
}

/// Returns the path of the installed ROM with this name.
fn installed(name: &str) -> Option<PathBuf> {
    let (home, dirs) = data_directories();
    let places = firmware::rom_places(name, home.as_deref(), &dirs);
    let found = places.into_iter().find(|path| path.is_file());
    if let Some(path) = &found {
        info!("found {}", path.display());
    } else {
        info!("there is no {name}: install ipxe-qemu to boot from the network");
    }
    found
}

fn read(path: &Path) -> Result<RomImage, RomFileError> {
    let mut bytes = Vec::new();
    // One byte more than the largest image has shows that a file is too large.
    let file = File::open(path);
    let got = file.and_then(|file| file.take(IMAGE_MAX as u64 + 1).read_to_end(&mut bytes));
    got.map_err(|source| RomFileError::Read { path: path.to_owned(), source })?;
    RomImage::new(bytes).map_err(|source| RomFileError::Image { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str, model: NicModel) -> Result<RomProperties, BadNic> {
        RomProperties::take(&mut Properties::parse(text, None), model)
    }

    #[test]
    fn properties_are_read() {
        let all = take("romfile=a.rom,bootindex=2", NicModel::Rtl8029).unwrap();
        assert_eq!(all, RomProperties { file: RomFile::At("a.rom".into()), boot_index: Some(2) });
        assert_eq!(take("", NicModel::Rtl8029), Ok(RomProperties::default()));
        assert_eq!(take("romfile=", NicModel::NE2000_ISA).unwrap().file, RomFile::None);
        for (text, model) in [
            ("romfile=a.rom", NicModel::NE2000_ISA),
            ("bootindex=1", NicModel::NE2000_ISA),
            ("bootindex=-1", NicModel::Rtl8029),
        ] {
            assert!(take(text, model).is_err(), "{text}");
        }
    }

    #[test]
    fn files_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rom");
        let rom = RomProperties { file: RomFile::At(path.clone()), boot_index: None };
        let error = rom.read(NicModel::Rtl8029, true).unwrap_err().to_string();
        assert!(error.contains("cannot read the ROM"), "{error}");
        std::fs::write(&path, b"MZ").unwrap();
        let error = rom.read(NicModel::Rtl8029, true).unwrap_err().to_string();
        assert!(error.ends_with("55 AA"), "{error}");
        std::fs::write(&path, b"\x55\xaa\x01").unwrap();
        assert_eq!(rom.read(NicModel::Rtl8029, false).unwrap().unwrap().bytes(), b"\x55\xaa\x01");
        let none = RomProperties { file: RomFile::None, boot_index: None };
        assert_eq!(none.read(NicModel::Rtl8029, true).unwrap(), None);
        assert_eq!(RomProperties::default().read(NicModel::Rtl8029, false).unwrap(), None);
    }
}
