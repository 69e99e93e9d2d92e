//! The configuration of a machine.

use ring3_core::device::DeviceId;
use ring3_core::disk::Medium;
use ring3_core::memory::RAM_MAX;
use ring3_core::net::MacAddress;
use ring3_devices::floppy::DriveKind;
use ring3_devices::ide::DriveModel;
use ring3_devices::pci::rom::RomImage;
use ring3_devices::virtio::balloon::BalloonModel;
use ring3_devices::virtio::block::DiskModel;
use ring3_devices::virtio::channels::{BadChannels, ChannelsModel};
use ring3_devices::virtio::memory::ExtraMemoryModel;
use ring3_devices::virtio::pci::Interfaces;
use ring3_x86::cpuid::{Features, Model};
use ring3_x86::guest_tools::GuestTools;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::extra_memory;
use crate::file_bytes::FileBytes;
use crate::linux::seed::SEED_LEN;
use crate::smbios::Smbios;

/// The configuration of a machine: everything that its board is built from. It can be kept beside a saved
/// state, and whoever has it can build the same machine again.
///
/// ```
/// use ring3_vm::Config;
///
/// let config = Config { memory_bytes: 64 << 20, ..Config::default() };
/// assert_eq!(config.serial_ports, 1);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The model of the processor.
    pub cpu: Model,
    /// The tools that software finds by CPUID.
    pub guest_tools: GuestTools,
    /// The identity of the machine, which its software finds in SMBIOS tables. The bytes are in the order in
    /// which they are written (RFC 9562, 4).
    pub uuid: Option<[u8; 16]>,
    /// What else the SMBIOS tables say. Without this and an identity there are none.
    pub smbios: Smbios,
    /// Size of RAM in bytes, a multiple of 4 KiB from 1 MiB to 32 GiB. What does not fit below the last
    /// GiB before 4 GiB is from there on.
    pub memory_bytes: u64,
    /// The time of the machine's clock at power-on, in seconds since 1970.
    pub rtc_base: u64,
    /// Whether virtual time is a function of the instructions executed alone, and does not follow the host's:
    /// then the same inputs at the same points make the same run.
    pub deterministic: bool,
    /// The random seed of a Linux kernel that is started without firmware ([`crate::linux::seed`]). After
    /// each reset the kernel gets another one, made from this one.
    pub rng_seed: Option<[u8; SEED_LEN]>,
    /// Number of serial ports, COM1 to COM4.
    pub serial_ports: u8,
    /// Which serial cards there are: the devices of [`DeviceId::PCI_SERIAL`](ring3_core::device::DeviceId::PCI_SERIAL).
    pub serial_cards: [bool; DeviceId::PCI_SERIAL.len()],
    /// Whether there is a display adapter.
    pub display: bool,
    /// The IDE drives: primary master and slave, secondary master and slave.
    /// [`Vm::attach_drive`](crate::Vm::attach_drive) attaches the host's side of them, as units 0 to 3 of
    /// [`DeviceId::IDE`](ring3_core::device::DeviceId::IDE).
    pub ide: [Option<DriveModel>; 4],
    /// The virtio disks, up to 16, each a PCI function of its own; None for one that was taken out. The
    /// host's side of each is attached as unit 0 of its device of
    /// [`DeviceId::VIRTIO_BLK`](ring3_core::device::DeviceId::VIRTIO_BLK).
    pub virtio_disks: Vec<Option<VirtioDisk>>,
    /// The network cards, up to 8: the devices of [`DeviceId::NIC`](ring3_core::device::DeviceId::NIC); None for
    /// one that was taken out. [`Vm::attach_network`](crate::Vm::attach_network) attaches the network of one.
    pub nics: Vec<Option<Nic>>,
    /// The memory balloon, by which the guest gives memory back; None for no such device.
    pub balloon: Option<BalloonModel>,
    /// Memory that comes and goes while the machine runs; None for no room for such.
    pub extra_memory: Option<ExtraMemoryModel>,
    /// The channels between programs in the guest and outside.
    pub channels: ChannelsModel,
    /// The diskette drives A and B: units 0 and 1 of
    /// [`DeviceId::FLOPPY`](ring3_core::device::DeviceId::FLOPPY).
    pub diskettes: [Option<DisketteDrive>; 2],
    /// The chips of flash memory that firmware is in, if it is not in a ROM: at most two, the first one with the end of the
    /// firmware's image. [`Vm::attach_drive`](crate::Vm::attach_drive) attaches the files to which their changes go, as
    /// units of [`DeviceId::FLASH`](ring3_core::device::DeviceId::FLASH).
    pub flash: Vec<Medium>,
    /// Where firmware looks for a system, the first place first. If it is empty, firmware decides.
    pub boot_order: Vec<BootDevice>,
    /// The order until the first reset of the machine, if it differs: to install a system from a disc, and
    /// then start it.
    pub boot_once: Vec<BootDevice>,
    /// Whether firmware lets people choose where to boot from.
    pub boot_menu: bool,
    /// Whether there is a high precision event timer, if the machine [has APICs](Config::has_apics).
    pub hpet: bool,
    /// The number of the device by which the guest learns that the machine has become another one
    /// ([`ring3_devices::vmgenid`]); None for no such device.
    pub generation: Option<[u8; 16]>,
    /// Whether there is the device of kvm-unit-tests ([`ring3_devices::test_device`]).
    pub test_device: bool,
    /// What the machine does when the guest says that its system has failed
    /// ([`ring3_devices::pvpanic`]); None for no device by which it could say so.
    pub on_panic: Option<OnPanic>,
    /// Whether the guest can say where its note for debuggers is, by a file in fw_cfg
    /// ([`FwCfg::add_note`](ring3_devices::fw_cfg::FwCfg::add_note)).
    pub note: bool,
    /// Files that the guest finds in fw_cfg besides those of the machine.
    pub fw_cfg_files: Vec<FwCfgFile>,
    /// The port at which a write ends the run, for tests that run in the guest; None for no such port.
    pub debug_exit_port: Option<u16>,
    /// Whether a reset of the machine by the guest, or a triple fault, starts the guest again; if not, it
    /// ends the run.
    pub reboots: bool,
    /// Whether the machine stands still after the guest has switched it off, until it is reset from outside;
    /// if not, the run ends.
    pub stays_when_off: bool,
    /// Whether a guest that has halted with interrupts disabled, so that only a reset or an NMI can wake it
    /// up, ends the run; if not, it waits for a reset from outside.
    pub ends_when_stuck: bool,
}

impl Config {
    /// Returns whether there is an I/O APIC: wherever the processor can have a local one.
    pub fn has_apics(&self) -> bool {
        self.cpu.features().contains(Features::APIC)
    }

    /// Returns whether there is a high precision event timer. Its interrupts go to the I/O APIC.
    pub fn has_hpet(&self) -> bool {
        self.hpet && self.has_apics()
    }

    /// Returns the most bytes of memory that the machine may come to have.
    pub fn most_memory(&self) -> u64 {
        let extra = self.extra_memory.map_or(0, |model| model.region);
        self.memory_bytes.saturating_add(extra)
    }

    /// Checks the memory that comes and goes.
    pub(crate) fn check_extra_memory(&self) -> Result<(), ConfigError> {
        let Some(model) = self.extra_memory else { return Ok(()) };
        if !model.is_possible() || self.most_memory() > RAM_MAX {
            return Err(ConfigError::ExtraMemory);
        }
        let end = extra_memory::region(self).map_or(0, |region| region.end);
        if end > 1 << self.cpu.physical_address_bits() {
            return Err(ConfigError::ExtraMemoryTooHigh(self.cpu));
        }
        Ok(())
    }

    /// Returns the network cards that there are.
    pub fn cards(&self) -> impl Iterator<Item = (DeviceId, &Nic)> {
        let places = DeviceId::NIC.into_iter().zip(&self.nics);
        places.filter_map(|(device, nic)| Some((device, nic.as_ref()?)))
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cpu: Model::default(),
            guest_tools: GuestTools::default(),
            uuid: None,
            smbios: Smbios::default(),
            memory_bytes: 128 << 20,
            rtc_base: 0,
            deterministic: false,
            rng_seed: None,
            serial_ports: 1,
            serial_cards: [false; DeviceId::PCI_SERIAL.len()],
            display: false,
            ide: [const { None }; 4],
            virtio_disks: Vec::new(),
            nics: Vec::new(),
            balloon: None,
            extra_memory: None,
            channels: ChannelsModel::default(),
            diskettes: [None; 2],
            flash: Vec::new(),
            boot_order: Vec::new(),
            boot_once: Vec::new(),
            boot_menu: false,
            hpet: true,
            generation: None,
            test_device: false,
            on_panic: None,
            note: false,
            fw_cfg_files: Vec::new(),
            debug_exit_port: None,
            reboots: true,
            stays_when_off: false,
            ends_when_stuck: false,
        }
    }
}

impl Config {
    /// Notes that the guest has learned of another size of a virtio disk, which a saved machine keeps.
    pub(crate) fn note_size(&mut self, device: DeviceId, sectors: u64) {
        let index = DeviceId::VIRTIO_BLK.iter().position(|disk| *disk == device);
        let disk = index.and_then(|index| self.virtio_disks.get_mut(index));
        if let Some(Some(disk)) = disk {
            disk.model.medium.sectors = sectors;
        }
    }
}

/// What a machine does when the guest says that its system has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnPanic {
    /// It goes on: the guest may reset it.
    Continue,
    /// It stands still until somebody outside lets it go on.
    Pause,
    /// The run ends.
    End,
}

/// A file in fw_cfg.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FwCfgFile {
    /// Its name, at most 55 bytes; by custom it begins with `opt/`.
    pub name: String,
    /// Its contents.
    #[serde(with = "serde_bytes")]
    pub contents: Vec<u8>,
}

/// A virtio disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtioDisk {
    /// Its properties.
    pub model: DiskModel,
    /// The drivers that it supports.
    pub interfaces: Interfaces,
}

/// A network card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Its address.
    pub mac: MacAddress,
    /// The kind of card.
    pub model: NicModel,
    /// The program in its ROM, by which firmware boots from the network. Cards on the ISA bus have none.
    #[serde(default)]
    pub rom: Option<RomImage>,
}

/// The kinds of network cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NicModel {
    /// A virtio card.
    Virtio(VirtioNic),
    /// An Intel 82540EM.
    E1000,
    /// A Realtek RTL8029AS.
    Rtl8029,
    /// A Novell NE2000 on the ISA bus.
    Ne2000Isa {
        /// The first of its 32 ports.
        port: u16,
        /// Its IRQ line.
        irq: u8,
    },
}

impl NicModel {
    /// An NE2000 with the usual jumpers: port 300h, and IRQ 5. IRQ 9, which is as usual, belongs to ACPI
    /// here.
    pub const NE2000_ISA: NicModel = NicModel::Ne2000Isa { port: 0x300, irq: 5 };
}

/// The properties of a virtio card that others do not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtioNic {
    /// The drivers that it supports.
    pub interfaces: Interfaces,
    /// See [`NetModel::mtu`](ring3_devices::virtio::net::NetModel::mtu).
    pub mtu: Option<u16>,
    /// See [`NetModel::pairs`](ring3_devices::virtio::net::NetModel::pairs).
    pub pairs: u16,
}

impl Default for VirtioNic {
    fn default() -> VirtioNic {
        VirtioNic { interfaces: Interfaces::default(), mtu: None, pairs: 1 }
    }
}

/// A diskette drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisketteDrive {
    /// Its kind.
    pub kind: DriveKind,
    /// The diskette in it.
    pub medium: Option<Medium>,
}

/// A place where firmware can look for a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BootDevice {
    /// A diskette drive, 0 or 1.
    Diskette(u8),
    /// An IDE drive, 0 to 3.
    Ide(u8),
    /// A virtio disk, from 0.
    Virtio(u8),
    /// The network behind a card, from 0, through the card's ROM.
    Network(u8),
}

/// The software that the processor executes first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Software {
    /// Firmware, which looks for a system on the drives.
    Firmware {
        /// Its image.
        #[serde(with = "serde_bytes")]
        image: Vec<u8>,
        /// The image of the display adapter's firmware (VGA BIOS).
        #[serde(with = "serde_bytes")]
        video: Option<Vec<u8>>,
        /// A kernel that it starts, instead of a system on the drives.
        #[serde(default)]
        kernel: Option<Kernel>,
    },
    /// A kernel, which is put into memory and started without firmware.
    Kernel(Kernel),
}

impl Software {
    /// Returns the kernel, if there is no firmware.
    pub fn kernel(&self) -> Option<&Kernel> {
        match self {
            Software::Kernel(kernel) => Some(kernel),
            Software::Firmware { .. } => None,
        }
    }

    /// Returns the kernel, whether firmware starts it or not.
    pub fn any_kernel(&self) -> Option<&Kernel> {
        match self {
            Software::Kernel(kernel) => Some(kernel),
            Software::Firmware { kernel, .. } => kernel.as_ref(),
        }
    }

    /// Returns the files of the kernel, itself first.
    pub(crate) fn files(&mut self) -> impl Iterator<Item = &mut FileBytes> {
        let kernel = match self {
            Software::Kernel(kernel) => Some(kernel),
            Software::Firmware { kernel, .. } => kernel.as_mut(),
        };
        kernel.into_iter().flat_map(|kernel| {
            let modules = kernel.modules.iter_mut().map(|module| &mut module.contents);
            std::iter::once(&mut kernel.image).chain(modules)
        })
    }
}

/// A kernel that is started from files of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// The contents of the kernel file: a Linux bzImage, or a kernel with a Multiboot header.
    pub image: FileBytes,
    /// Files that it gets: the initial RAM disk of Linux, which can be several files one after the other, or
    /// the modules of a Multiboot kernel.
    pub modules: Vec<Module>,
    /// Its command line.
    pub command_line: String,
}

/// A file for a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// The text that describes it to a Multiboot kernel: by custom its path and arguments.
    pub name: String,
    /// Its contents.
    pub contents: FileBytes,
}

/// The reasons why there can be no machine with a configuration.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// The processor cannot address so much memory.
    #[error(
        "the processor {model} cannot reach more than {} MiB of memory: give it less, or choose another processor",
        most >> 20
    )]
    Memory {
        /// The processor's model.
        model: Model,
        /// The most bytes.
        most: u64,
    },
    /// A PC has at most four serial ports.
    #[error("a machine has at most 4 serial ports, not {0}")]
    SerialPorts(u8),
    /// The memory that comes and goes is not in whole blocks, or there would be too much memory.
    #[error(
        "memory that comes and goes has blocks of 2 MiB, and a machine has at most {} GiB with it",
        RAM_MAX >> 30
    )]
    ExtraMemory,
    /// The processor cannot address the memory that comes and goes.
    #[error(
        "the processor {0} does not reach the memory that is to come: choose one for 64 bits with --cpu"
    )]
    ExtraMemoryTooHigh(Model),
    /// There are too many virtio disks.
    #[error("a machine has at most 16 virtio disks, not {0}")]
    VirtioDisks(usize),
    /// There are too many network cards.
    #[error("a machine has at most 8 network cards, not {0}")]
    Nics(usize),
    /// The channels cannot have these names.
    #[error(transparent)]
    Channels(#[from] BadChannels),
    /// A file in fw_cfg cannot have that name.
    #[error(
        "the name of a file in fw_cfg must have 1 to 55 bytes, none of them zero, unlike {0:?}"
    )]
    FwCfgName(String),
    /// Two files in fw_cfg have the same name.
    #[error("fw_cfg already has a file {0}; choose another name")]
    FwCfgTwice(String),
    /// There are too many files for fw_cfg.
    #[error("fw_cfg has no room for {0} files")]
    FwCfgFiles(usize),
    /// A text for the SMBIOS tables has the byte that ends strings there.
    #[error("a text in SMBIOS tables cannot have a byte 0")]
    SmbiosText,
    /// The structure with OEM strings cannot have these.
    #[error("SMBIOS tables have room for 255 OEM strings, none of them empty")]
    SmbiosOemStrings,
    /// The SMBIOS tables are too long.
    #[error(
        "the SMBIOS tables would have {0} bytes, more than there is room for: give shorter texts"
    )]
    SmbiosLength(usize),
}

#[cfg(test)]
mod tests {
    use ring3_core::state::SavedState;

    use super::*;

    #[test]
    fn a_configuration_survives_saving() {
        let config = Config { serial_ports: 4, debug_exit_port: Some(0xf4), ..Config::default() };
        let saved = SavedState::new("config", 1, &config);
        assert_eq!(saved.load("config", 1), Ok(config));
    }

    #[test]
    fn a_misspelt_field_is_refused_and_a_missing_one_has_its_default() {
        let saved = SavedState::new("config", 1, &[("memory", 1)].into_iter().collect::<Fields>());
        assert!(saved.load::<Config>("config", 1).is_err());
        let saved =
            SavedState::new("config", 1, &[("memory_bytes", 1)].into_iter().collect::<Fields>());
        let expected = Config { memory_bytes: 1, ..Config::default() };
        assert_eq!(saved.load("config", 1), Ok(expected));
    }

    type Fields = std::collections::BTreeMap<&'static str, u64>;
}
