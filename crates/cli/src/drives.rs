//! The drives of the machine: their options, and the files behind them.

use std::path::{Path, PathBuf};

use clap::Args;
use ring3_block::{Secret, forbid_external_files};
use ring3_core::device::DeviceId;
use ring3_core::disk::{DiskError, DiskOperation, DriveId, Medium, SECTOR_SIZE};
use ring3_devices::virtio::block::DiskModel;
use ring3_devices::{flash, floppy, ide};
use ring3_disk::{
    Access, BlockSize, ClientError, ImageError, ImageFile, ImageOptions, Overlay, Served,
};
use ring3_vm::drives::{
    Attachment, DetectZeroes, Drive, DriveNames, Empty, ErrorPolicy, LimitError, Limits,
};
use ring3_vm::{BootDevice, Config, DisketteDrive, Nic, VirtioDisk, Vm};
use thiserror::Error;

use crate::secrets::{self, BadSecret, SecretObject};

mod help;
mod properties;
mod virtio_disk;

pub(crate) use properties::{BootOptions, DriveProperties, FlashProperties, KNOWN};
pub(crate) use virtio_disk::VirtioProperties;

/// The properties that only IDE drives have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct IdeProperties {
    /// The name of the device for QMP.
    pub(crate) id: Option<String>,
    pub(crate) serial: Option<String>,
    pub(crate) model: Option<String>,
}

/// The interface to which a drive is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interface {
    Ide,
    Floppy,
    Virtio,
    /// Flash memory with firmware.
    Flash,
}

impl Interface {
    /// Returns the name of the interface.
    fn name(self) -> &'static str {
        match self {
            Interface::Ide => "ide",
            Interface::Floppy => "floppy",
            Interface::Virtio => "virtio",
            Interface::Flash => "pflash",
        }
    }

    /// Returns drive `unit` of this interface.
    fn drive(self, unit: u8) -> DriveId {
        match self {
            Interface::Ide => DriveId::new(DeviceId::IDE, unit),
            Interface::Floppy => DriveId::new(DeviceId::FLOPPY, unit),
            // Each virtio disk is a device of its own.
            Interface::Virtio => DriveId::new(DeviceId::VIRTIO_BLK[usize::from(unit)], 0),
            Interface::Flash => DriveId::new(DeviceId::FLASH, unit),
        }
    }

    fn units(self) -> u8 {
        match self {
            Interface::Ide => ide::UNITS,
            Interface::Floppy => 2,
            Interface::Virtio => DeviceId::VIRTIO_BLK.len() as u8,
            Interface::Flash => flash::CHIPS as u8,
        }
    }
}

/// The options for drives.
#[derive(Debug, Args)]
#[command(next_help_heading = "Drives")]
pub(crate) struct DriveArguments {
    /// A disk image or block device as the first hard disk (primary master)
    #[arg(long, value_name = "FILE")]
    pub(crate) hda: Option<PathBuf>,

    /// The second hard disk (primary slave)
    #[arg(long, value_name = "FILE")]
    pub(crate) hdb: Option<PathBuf>,

    /// The third hard disk (secondary master)
    #[arg(long, value_name = "FILE", conflicts_with = "cdrom")]
    pub(crate) hdc: Option<PathBuf>,

    /// The fourth hard disk (secondary slave)
    #[arg(long, value_name = "FILE")]
    pub(crate) hdd: Option<PathBuf>,

    /// The image of a CD or DVD (secondary master)
    #[arg(long, value_name = "FILE")]
    pub(crate) cdrom: Option<PathBuf>,

    /// The image of a diskette in drive A
    #[arg(long, value_name = "FILE")]
    pub(crate) fda: Option<PathBuf>,

    /// The image of a diskette in drive B
    #[arg(long, value_name = "FILE")]
    pub(crate) fdb: Option<PathBuf>,

    /// Flash memory with firmware, such as OVMF's, which may keep its variables there: FILE or FILE,readonly=on. May be given
    /// twice: the first file ends at 4 GiB, and the second one, with the variables, is before it
    #[arg(long, value_name = "FILE[,PROPERTIES]", conflicts_with_all = ["bios", "tern"])]
    pub(crate) flash: Vec<FlashProperties>,

    /// A drive with these properties, such as file=FILE,if=virtio; "--drive help" lists them
    #[arg(long, value_name = "PROPERTIES", long_help = help::DRIVE)]
    pub(crate) drive: Vec<DriveProperties>,

    /// Throw away the guest's writes to its disks when the run ends
    #[arg(long)]
    pub(crate) snapshot: bool,

    /// Open no file that an image names: neither backing files nor files with parts of its data. Use it for
    /// images that a guest or a stranger has written; external-files=off does this for one drive
    #[arg(long)]
    pub(crate) no_external_files: bool,

    /// The order of the drives from which firmware boots, as letters: a and b for the diskettes, c for hard
    /// disks, d for CDs, n for networks. order=LETTERS,once=LETTERS,menu=on gives another order until the
    /// first reset, and a menu
    #[arg(long, value_name = "ORDER", default_value = "", hide_default_value = true)]
    #[arg(conflicts_with = "kernel")]
    pub(crate) boot: BootOptions,

    /// Passwords that `ring3 qemu` has names for.
    #[arg(skip)]
    pub(crate) secrets: Vec<SecretObject>,
}

/// The reasons why the drives cannot be opened.
#[derive(Debug, Error)]
pub(crate) enum DriveError {
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Server(#[from] ClientError),
    #[error(
        "vblock=SOCKET names a hard disk (if=ide or if=virtio) of a server, which keeps its file, format and snapshots: leave these out"
    )]
    Served,
    /// There is nobody who could introduce the machine.
    #[error(
        "direct=DEVICE needs vblock=SOCKET, the machine's own socket at the server (--client-socket)"
    )]
    Direct,
    #[error("two drives have index {index} of {device}; give each its own index")]
    Taken { device: &'static str, index: u8 },
    #[error("two drives have the id \"{0}\"; give each its own id")]
    Id(String),
    #[error("{device} has room for {room} drives; leave some out")]
    Full { device: &'static str, room: u8 },
    #[error(
        "detect-zeroes=unmap frees room in the image, which discard=off forbids: give discard=on, or detect-zeroes=on"
    )]
    KeepsRoom,
    #[error(transparent)]
    Limits(#[from] LimitError),
    #[error("cannot read the password-file {path}: {source}", path = .path.display())]
    Password { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Secret(#[from] BadSecret),
    #[error(
        "there is no image {file}; to give properties, write --drive file={file}", file = .0.display()
    )]
    Properties(PathBuf),
    #[error("a drive for a hard disk needs a file: give file=FILE")]
    NoFile,
    #[error("{path} is no image of flash memory: its size must be a multiple of 4 KiB", path = .0.display())]
    NoFlash(PathBuf),
    #[error("the first flash memory is missing: give its file with --flash or index=0")]
    NoFirstFlash,
    #[error("flash memory has a file, which is not on a server: give file=FILE")]
    ServedFlash,
    #[error("cannot read the flash memory: {0}")]
    Flash(#[source] DiskError),
    #[error("{path} does not have the size of a diskette (360K, 720K, 1200K, 1440K or 2880K)", path = .0.display())]
    NoDiskette(PathBuf),
}

/// How much of flash memory is read at once: 1 MiB.
const FLASH_READ_SECTORS: usize = (1 << 20) / SECTOR_SIZE;

/// The drives of a machine, with their files open.
#[derive(Default)]
pub(crate) struct Drives(Vec<Attached>);

struct Attached {
    interface: Interface,
    unit: u8,
    id: Option<String>,
    is_node: bool,
    boot_index: Option<u32>,
    is_cdrom: bool,
    diskette: Option<floppy::DriveKind>,
    virtio: VirtioProperties,
    ide: IdeProperties,
    medium: Option<Medium>,
    drive: Box<dyn Drive>,
    /// Whether the guest may report sectors that it no longer needs.
    trims: bool,
    limits: Limits,
    errors: ErrorPolicy,
}

impl Attached {
    fn boot_device(&self) -> Option<BootDevice> {
        match self.interface {
            Interface::Ide => Some(BootDevice::Ide(self.unit)),
            Interface::Virtio => Some(BootDevice::Virtio(self.unit)),
            Interface::Floppy => Some(BootDevice::Diskette(self.unit)),
            Interface::Flash => None,
        }
    }
}

impl Drives {
    /// Opens the files that `arguments` name.
    pub(crate) fn open(arguments: &DriveArguments) -> Result<Drives, DriveError> {
        let mut drives = Drives::default();
        let file = |interface, index, is_cdrom, file: &Option<PathBuf>| {
            file.as_ref().map(|file| DriveProperties {
                file: Some(file.clone()),
                interface,
                index: Some(index),
                is_cdrom,
                ..DriveProperties::default()
            })
        };
        let short = [
            file(Interface::Ide, 0, false, &arguments.hda),
            file(Interface::Ide, 1, false, &arguments.hdb),
            file(Interface::Ide, 2, false, &arguments.hdc),
            file(Interface::Ide, 3, false, &arguments.hdd),
            file(Interface::Ide, 2, true, &arguments.cdrom),
            file(Interface::Floppy, 0, false, &arguments.fda),
            file(Interface::Floppy, 1, false, &arguments.fdb),
        ];
        // Drives with a place of their own take it first.
        let flash = arguments.flash.iter().map(|flash| flash.0.clone());
        let long = arguments.drive.iter().cloned().chain(flash);
        let (placed, others): (Vec<_>, Vec<_>) =
            short.into_iter().flatten().chain(long).partition(|drive| drive.index.is_some());
        if arguments.no_external_files {
            forbid_external_files();
        }
        for properties in placed.iter().chain(&others) {
            drives.add(properties, arguments)?;
        }
        // Firmware tries the drives of a kind in this order.
        drives.0.sort_by_key(|attached| (attached.interface == Interface::Virtio, attached.unit));
        // Virtio disks get consecutive numbers.
        let virtio = drives.0.iter_mut().filter(|at| at.interface == Interface::Virtio);
        for (attached, unit) in virtio.zip(0..) {
            attached.unit = unit;
        }
        Ok(drives)
    }

    fn add(
        &mut self,
        properties: &DriveProperties,
        all: &DriveArguments,
    ) -> Result<(), DriveError> {
        let interface = properties.interface;
        let device = interface.name();
        let is_taken = |unit| self.0.iter().any(|at| (at.interface, at.unit) == (interface, unit));
        let unit = match properties.index {
            Some(index) if index >= interface.units() => {
                return Err(DriveError::Full { device, room: interface.units() });
            }
            Some(index) if is_taken(index) => return Err(DriveError::Taken { device, index }),
            Some(index) => index,
            None => (0..interface.units())
                .find(|unit| !is_taken(*unit))
                .ok_or(DriveError::Full { device, room: interface.units() })?,
        };
        if properties.detect_zeroes == DetectZeroes::Unmap && !properties.discard {
            return Err(DriveError::KeepsRoom);
        }
        properties.limits.check().map_err(LimitError::Bad)?;
        let is_cdrom = properties.takes_discs();
        let is_snapshot = properties.snapshot || all.snapshot;
        let drive = match (&properties.file, &properties.vblock) {
            (_, Some(socket)) => {
                let is_image = properties.file.is_some() || properties.format.is_some();
                if interface == Interface::Flash {
                    return Err(DriveError::ServedFlash);
                }
                if is_image || is_snapshot || is_cdrom || interface == Interface::Floppy {
                    return Err(DriveError::Served);
                }
                match &properties.direct {
                    Some(device) => {
                        Box::new(ImageFile::introduced(socket, device, properties.read_only)?)
                    }
                    None => {
                        Box::new(Served::connect(socket, properties.read_only)?) as Box<dyn Drive>
                    }
                }
            }
            _ if properties.direct.is_some() => return Err(DriveError::Direct),
            (Some(path), None) => {
                if path.to_string_lossy().contains(',') && !path.exists() {
                    return Err(DriveError::Properties(path.clone()));
                }
                open(path, properties, &all.secrets, is_snapshot)?
            }
            (None, None) if is_cdrom || interface == Interface::Floppy => Box::new(Empty),
            (None, None) => return Err(DriveError::NoFile),
        };
        let medium = drive.medium();
        let diskette = match (interface, medium, &properties.file) {
            (Interface::Floppy, Some(medium), Some(path)) => Some(
                floppy::DriveKind::for_image(medium.sectors)
                    .ok_or_else(|| DriveError::NoDiskette(path.clone()))?,
            ),
            (Interface::Floppy, ..) => Some(floppy::DriveKind::Mb1_44),
            (Interface::Ide | Interface::Virtio | Interface::Flash, ..) => None,
        };
        if let (Interface::Flash, Some(medium), Some(path)) = (interface, medium, &properties.file)
            && (medium.sectors == 0
                || !(medium.sectors * SECTOR_SIZE as u64).is_multiple_of(flash::BLOCK_LEN))
        {
            return Err(DriveError::NoFlash(path.clone()));
        }
        let virtio = properties.virtio.clone();
        let ide = properties.ide.clone();
        let id = properties.id.clone();
        if let Some(id) = id.clone().filter(|id| self.0.iter().any(|at| at.id.as_ref() == Some(id)))
        {
            return Err(DriveError::Id(id));
        }
        let DriveProperties { limits, errors, discard: trims, is_node, boot_index, .. } =
            *properties;
        self.0.push(Attached {
            interface,
            unit,
            id,
            is_node,
            boot_index,
            is_cdrom,
            diskette,
            virtio,
            ide,
            medium,
            drive,
            trims,
            limits,
            errors,
        });
        Ok(())
    }

    /// Enters the drives into `config`. `first` has the devices that firmware tries before those of the boot
    /// order, with their positions.
    pub(crate) fn describe(
        &self,
        arguments: &DriveArguments,
        mut first: Vec<(u32, BootDevice)>,
        config: &mut Config,
    ) {
        for attached in &self.0 {
            let slot = usize::from(attached.unit);
            match (attached.interface, attached.diskette, attached.medium) {
                (Interface::Floppy, Some(kind), medium) => {
                    config.diskettes[slot] = Some(DisketteDrive { kind, medium });
                }
                (Interface::Ide, _, medium) => {
                    let (kind, model) = match (attached.is_cdrom, medium) {
                        (false, Some(medium)) => (ide::DriveKind::Disk(medium), "RING3 HARDDISK"),
                        (_, medium) => (ide::DriveKind::CdRom(medium), "RING3 DVD-ROM"),
                    };
                    let IdeProperties { serial, model: name, .. } = attached.ide.clone();
                    let serial = serial.unwrap_or_else(|| format!("R3{:05}", attached.unit + 1));
                    let model = ide::DriveModel {
                        kind,
                        model: name.unwrap_or_else(|| model.to_owned()),
                        serial,
                        trims: attached.trims,
                    };
                    config.ide[slot] = Some(model);
                }
                (Interface::Virtio, _, Some(medium)) => {
                    let VirtioProperties { serial, queues, interfaces, .. } =
                        attached.virtio.clone();
                    let serial = serial.unwrap_or_default();
                    let model = DiskModel { medium, serial, queues };
                    config.virtio_disks.push(Some(VirtioDisk { model, interfaces }));
                }
                (Interface::Flash, _, Some(medium)) => config.flash.push(medium),
                (Interface::Floppy | Interface::Virtio | Interface::Flash, ..) => {}
            }
        }
        config.boot_menu = arguments.boot.menu;
        let placed = self.0.iter().filter_map(|at| Some((at.boot_index?, at.boot_device()?)));
        first.extend(placed);
        first.sort_by_key(|(place, _)| *place);
        config.boot_order = first.into_iter().map(|(_, device)| device).collect();
        if !arguments.boot.once.is_empty() {
            config.boot_once = config.boot_order.clone();
            config.boot_once.extend(self.boot_devices(&arguments.boot.once, config));
        }
        config.boot_order.extend(self.boot_devices(&arguments.boot.order, config));
    }

    /// Returns the firmware in flash memory, the last chip first, or None without flash memory.
    pub(crate) fn firmware(&self) -> Result<Option<Vec<u8>>, DriveError> {
        const ROM_MAX_SECTORS: u64 = ring3_devices::i440fx::ROM_MAX / SECTOR_SIZE as u64;
        let chips = || self.0.iter().filter(|at| at.interface == Interface::Flash);
        if chips().next().is_none() {
            return Ok(None);
        }
        if chips().zip(0..).any(|(chip, unit)| chip.unit != unit) {
            return Err(DriveError::NoFirstFlash);
        }
        let mut image = Vec::new();
        for chip in chips().rev() {
            // What is too large is refused by its length.
            let sectors = chip.medium.map_or(0, |medium| medium.sectors).min(ROM_MAX_SECTORS + 1);
            for sector in (0..sectors).step_by(FLASH_READ_SECTORS) {
                let count = (sectors - sector).min(FLASH_READ_SECTORS as u64) as u32;
                let read = chip.drive.execute(&DiskOperation::Read { sector, count });
                image.extend(read.map_err(DriveError::Flash)?);
            }
        }
        Ok(Some(image))
    }

    /// Returns the drives and network cards that `letters` stand for, in their order.
    fn boot_devices(&self, letters: &str, config: &Config) -> Vec<BootDevice> {
        let mut devices = Vec::new();
        for letter in letters.bytes() {
            if letter == b'n' {
                let has_rom = |nic: &Option<Nic>| nic.as_ref().is_some_and(|nic| nic.rom.is_some());
                let cards = (0..).zip(&config.nics).filter(|(_, nic)| has_rom(nic));
                devices.extend(cards.map(|(index, _)| BootDevice::Network(index)));
            }
            let of_letter = |attached: &&Attached| match (letter, attached.interface) {
                (b'a', Interface::Floppy) => attached.unit == 0,
                (b'b', Interface::Floppy) => attached.unit == 1,
                (b'c', Interface::Ide) => !attached.is_cdrom,
                (b'c', Interface::Virtio) => true,
                (b'd', Interface::Ide) => attached.is_cdrom,
                _ => false,
            };
            devices.extend(self.0.iter().filter(of_letter).filter_map(Attached::boot_device));
        }
        devices
    }

    /// Attaches the drives to their devices.
    pub(crate) fn attach(self, vm: &mut Vm) -> Result<(), DriveError> {
        for Attached { interface, unit, id, is_node, virtio, ide, drive, limits, errors, .. } in
            self.0
        {
            let at = interface.drive(unit);
            if let Some(id) =
                virtio.id.or_else(|| id.clone()).filter(|_| interface == Interface::Virtio)
            {
                vm.name_card(at.device, id);
            }
            let device_id = ide.id;
            let names = if is_node {
                DriveNames { drive: None, node: id, device: device_id }
            } else {
                DriveNames { drive: id, node: None, device: device_id }
            };
            vm.attach_drive(at, Attachment { drive: drive.into(), names, limits, errors })?;
        }
        Ok(())
    }
}

fn open(
    path: &Path,
    properties: &DriveProperties,
    secrets: &[SecretObject],
    snapshot: bool,
) -> Result<Box<dyn Drive>, DriveError> {
    let DriveProperties {
        format, read_only, cache, detect_zeroes, discard, no_external_files, ..
    } = *properties;
    let is_cdrom = properties.takes_discs();
    let block = if is_cdrom { BlockSize::CdRom } else { BlockSize::Disk };
    let access = if is_cdrom || read_only { Access::ReadOnly } else { Access::ReadWrite };
    let secret = match (&properties.key_secret, &properties.password_file) {
        (Some(id), _) => Some(secrets::find(secrets, id)?),
        (None, file) => file.as_deref().map(password).transpose()?,
    };
    let options = ImageOptions {
        format,
        access,
        block,
        cache,
        detect_zeroes,
        discard,
        no_external_files,
        secret,
        shows: None,
    };
    if snapshot && !is_cdrom {
        return Ok(Box::new(Overlay::open(path, options)?));
    }
    Ok(Box::new(ImageFile::open(path, options)?))
}

/// Reads the password in a file: all of it except the end of its line.
fn password(path: &Path) -> Result<Secret, DriveError> {
    let bytes = std::fs::read(path)
        .map_err(|source| DriveError::Password { path: path.to_owned(), source })?;
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    Ok(Secret::new(line))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct CommandLine {
        #[command(flatten)]
        drives: DriveArguments,
        /// The option with which --boot conflicts.
        #[arg(id = "kernel", long)]
        _kernel: Option<String>,
    }

    #[test]
    fn drives_of_a_kind_are_tried_in_the_order_of_their_units() {
        let line = ["ring3", "--boot", "d", "--drive", "media=cdrom,index=3"];
        let line = [&line[..], &["--drive", "media=cdrom", "--drive", "media=cdrom,index=1"]];
        let arguments = CommandLine::try_parse_from(line.concat()).unwrap().drives;
        let mut config = Config::default();
        Drives::open(&arguments).unwrap().describe(&arguments, Vec::new(), &mut config);
        assert_eq!(config.boot_order, [0, 1, 3].map(BootDevice::Ide));
    }
}
