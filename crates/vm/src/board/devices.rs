//! The devices of a board and their places, and cards that are inserted and removed while it runs.

use ring3_core::bus::{Bus, PortConflict, PortRange};
use ring3_core::clock::Time;
use ring3_core::device::{Device, DeviceId};
use ring3_core::input::DeviceInput;
use ring3_core::memory::{Area, Memory, RamLayout};
use ring3_devices::acpi_pm::{self, AcpiPm};
use ring3_devices::debug_ports::{DebugConsole, DebugExit};
use ring3_devices::dma8237::Dma8237;
use ring3_devices::e1000::E1000;
use ring3_devices::flash::Flash;
use ring3_devices::floppy::{self, Floppy};
use ring3_devices::fpu_error::FpuError;
use ring3_devices::fw_cfg::FwCfg;
use ring3_devices::hpet::Hpet;
use ring3_devices::i440fx::I440fx;
use ring3_devices::i8042::I8042;
use ring3_devices::ide::Ide;
use ring3_devices::ne2000::{self, Rtl8029};
use ring3_devices::pci::ConfigAddress;
use ring3_devices::pci_hotplug::PciHotplug;
use ring3_devices::pci_serial::PciSerial;
use ring3_devices::piix3::Piix3;
use ring3_devices::pit::Pit;
use ring3_devices::port92::Port92;
use ring3_devices::pvpanic::Pvpanic;
use ring3_devices::rtc::Rtc;
use ring3_devices::test_device::TestDevice;
use ring3_devices::uart16550::{COM_PORTS, Speed, Uart16550};
use ring3_devices::vga::Vga;
use ring3_devices::virtio::balloon::Balloon;
use ring3_devices::virtio::block::Block;
use ring3_devices::virtio::channels::Channels;
use ring3_devices::virtio::memory::ExtraMemory;
use ring3_devices::virtio::net::{Net, NetModel};
use ring3_devices::virtio::pci::{Interfaces, VirtioPci};
use ring3_devices::vmgenid::Vmgenid;

use super::{Board, Wires};
use crate::cards::{self, Card, Place};
use crate::config::{Config, Nic, NicModel, VirtioNic};
use crate::extra_memory;
use crate::interrupts::Interrupts;

/// The chipset's PCI functions: device and function number.
const HOST_BRIDGE: (u8, u8) = (0, 0);
const ISA_BRIDGE: (u8, u8) = (1, 0);
const IDE: (u8, u8) = (1, 1);
pub(super) const POWER_MANAGEMENT: (u8, u8) = (1, 3);
const DISPLAY: (u8, u8) = (2, 0);
/// PCI device number of the memory balloon, behind all cards.
const BALLOON: u8 = 27;
/// PCI device number of the device through which channels lead.
const CHANNELS: u8 = 28;
/// PCI device number of the device for memory that comes and goes.
const EXTRA_MEMORY: u8 = 29;
/// The number of the first serial card among the serial ports, behind COM4.
const FIRST_SERIAL: u8 = COM_PORTS.len() as u8;
/// Number of interrupt pins of a PCI device.
const PINS: u8 = 4;

/// CMOS registers that describe the machine.
mod cmos {
    /// The kinds of the diskette drives.
    pub(super) const DISKETTE_TYPES: u8 = 0x10;
    /// The equipment byte.
    pub(super) const EQUIPMENT: u8 = 0x14;
    /// Bits of it: an x87, a keyboard, and a display with firmware of its own.
    pub(super) const EQUIPMENT_OF_ALL: u8 = 0x06;
}

/// The memory of a display adapter.
#[derive(Debug)]
pub struct VideoParts {
    /// Video memory.
    pub memory: Area,
    /// The image of its firmware.
    pub rom: Option<Area>,
}

impl Board {
    /// Makes the board of a machine with this configuration, whose software finds the contents of `fw_cfg`.
    /// `rom` is the image of the firmware; without firmware the chipset is as firmware leaves it. `video` is
    /// the display adapter's memory, if there is one, with the image of its firmware.
    pub fn new(
        config: &Config,
        rom: Option<Area>,
        fw_cfg: FwCfg,
        video: Option<&VideoParts>,
    ) -> Result<Board, PortConflict> {
        let is_set_up = rom.is_none();
        let mut board = Board {
            interrupts: Interrupts::new(config.has_apics()),
            is_set_up,
            dma: Dma8237::default(),
            fpu_error: FpuError::default(),
            bus: Bus::default(),
            wires: Wires::default(),
            config_address: ConfigAddress::default(),
            off_the_bus: Vec::new(),
        };
        board.index_off_the_bus();
        board.attach_pci(I440fx::new(rom), &[], HOST_BRIDGE)?;
        let piix3 = Piix3::new(is_set_up);
        let ports = piix3.ports();
        board.attach_pci(piix3, &ports, ISA_BRIDGE)?;
        board.attach_pci(AcpiPm::new(is_set_up), &[], POWER_MANAGEMENT)?;
        let pit = Pit::default();
        let ports = pit.ports();
        board.attach(pit, &ports)?;
        let mut rtc = Rtc::new(config.rtc_base);
        rtc.set_memory_size(RamLayout::of(config.memory_bytes));
        let diskette_kinds = config.diskettes.map(|drive| drive.map(|drive| drive.kind));
        rtc.set_cmos(cmos::DISKETTE_TYPES, floppy::cmos_drive_types(diskette_kinds));
        rtc.set_cmos(
            cmos::EQUIPMENT,
            cmos::EQUIPMENT_OF_ALL | floppy::cmos_equipment(diskette_kinds),
        );
        let ports = rtc.ports();
        board.attach(rtc, &ports)?;
        if config.has_hpet() {
            board.attach(Hpet::default(), &[])?;
        }
        let keyboard = I8042::default();
        let ports = keyboard.ports();
        board.attach(keyboard, &ports)?;
        let port92 = Port92::default();
        let ports = port92.ports();
        board.attach(port92, &ports)?;
        for port in COM_PORTS.into_iter().take(config.serial_ports.into()) {
            let serial = Uart16550::new(port, Speed::Unlimited);
            let ports = serial.ports();
            board.attach(serial, &ports)?;
        }
        let media = config.diskettes.map(|drive| drive.and_then(|drive| drive.medium));
        let floppy = Floppy::new(diskette_kinds, media);
        let ports = floppy.ports();
        board.attach(floppy, &ports)?;
        board.attach_pci(Ide::new(&config.ide), &[], IDE)?;
        if let Some(&VideoParts { memory, rom }) = video {
            let vga = Vga::new(memory, rom);
            let ports = vga.ports();
            board.attach_pci(vga, &ports, DISPLAY)?;
        }
        for (id, nic) in config.cards() {
            if let NicModel::Ne2000Isa { port, irq } = nic.model {
                let card = ne2000::Isa::new(id, nic.mac, port, irq);
                let ports = card.ports();
                board.attach(card, &ports)?;
            }
        }
        if let Some(model) = config.balloon {
            let balloon = VirtioPci::new(BALLOON, Interfaces::default(), Balloon::new(model));
            board.attach_pci(balloon, &[], (BALLOON, 0))?;
        }
        if !config.channels.names.is_empty() {
            let channels = Channels::new(config.channels.clone());
            let channels = VirtioPci::new(CHANNELS, Interfaces::default(), channels);
            board.attach_pci(channels, &[], (CHANNELS, 0))?;
        }
        if let Some((model, region)) = config.extra_memory.zip(extra_memory::region(config)) {
            let interfaces = Interfaces { legacy: false, modern: true };
            let memory = ExtraMemory::new(model, region.start);
            let memory = VirtioPci::new(EXTRA_MEMORY, interfaces, memory);
            board.attach_pci(memory, &[], (EXTRA_MEMORY, 0))?;
        }
        board.attach(DebugConsole, &DebugConsole.ports())?;
        if let Some(port) = config.debug_exit_port {
            let exit = DebugExit::new(port);
            board.attach(exit, &exit.ports())?;
        }
        if config.test_device {
            let device = TestDevice::default();
            let ports = device.ports();
            board.attach(device, &ports)?;
        }
        if let (Some(rom), false) = (rom, config.flash.is_empty()) {
            board.attach(Flash::new(rom, &config.flash), &[])?;
        }
        let ports = fw_cfg.ports();
        board.attach(fw_cfg, &ports)?;
        let hotplug = PciHotplug::default();
        let ports = hotplug.ports();
        board.attach(hotplug, &ports)?;
        if let Some(number) = config.generation {
            let vmgenid = Vmgenid::new(number);
            let ports = vmgenid.ports();
            board.attach(vmgenid, &ports)?;
        }
        if config.on_panic.is_some() {
            board.attach(Pvpanic, &Pvpanic.ports())?;
        }
        for (place, card) in cards::all(config) {
            board.put_card(place, card);
        }
        Ok(board)
    }

    /// Puts a card into its place, which must be empty.
    fn put_card(&mut self, place: Place, card: Card) {
        let Place { device, slot, .. } = place;
        self.bus.plug(match card {
            Card::Disk(disk) => {
                let block = Block::new(device, disk.model);
                Box::new(VirtioPci::new(slot, disk.interfaces, block))
            }
            Card::Nic(Nic { mac, model, rom }) => match model {
                NicModel::Virtio(VirtioNic { interfaces, mtu, pairs }) => {
                    let net = Net::new(device, NetModel { mac, mtu, pairs });
                    Box::new(VirtioPci::new(slot, interfaces, net).with_rom(rom))
                }
                NicModel::E1000 => Box::new(E1000::new(device, mac, slot).with_rom(rom)),
                NicModel::Rtl8029 => Box::new(Rtl8029::new(device, mac, slot).with_rom(rom)),
                // It is on another bus.
                NicModel::Ne2000Isa { .. } => return,
            },
            Card::Serial => {
                let index = FIRST_SERIAL + place.index() as u8;
                Box::new(PciSerial::new(device, index, slot, Speed::Unlimited))
            }
        });
        self.bus.attach_function(device, slot, 0);
    }

    /// Puts a card into its place while the machine runs, and tells the guest. Does nothing if there is a
    /// card already.
    pub(crate) fn plug(&mut self, memory: &mut Memory, now: Time, place: Place, card: Card) {
        if self.bus.has(place.device) {
            return;
        }
        self.put_card(place, card);
        self.call(memory, now, place.device, |device, context| device.reset(context));
        let added = DeviceInput::CardAdded { slot: place.slot };
        self.input(memory, now, DeviceId::PCI_HOTPLUG, added);
    }

    /// Takes out the card at `place`. Returns false if there is none.
    pub(crate) fn unplug(&mut self, memory: &mut Memory, now: Time, place: Place) -> bool {
        let Place { device, slot, .. } = place;
        let was_there = self.bus.unplug(device).is_some();
        if was_there {
            self.wires.timers.cancel_all(device);
            for pin in 0..PINS {
                self.wires.irq.set_pci(slot, pin, false);
            }
            self.settle(memory, now);
        }
        was_there
    }

    /// Tells the firmware configuration device where the ports of power management are.
    pub(super) fn tell_of_power_management(&mut self, memory: &mut Memory, now: Time) {
        let base = self.peek_config(memory, now, POWER_MANAGEMENT, acpi_pm::PM_BASE);
        let port = base as u16 & acpi_pm::PM_BASE_BITS;
        self.input(memory, now, DeviceId::FW_CFG, DeviceInput::PowerManagement { port });
    }

    /// Puts a device on the bus, at fixed ports.
    fn attach(
        &mut self,
        device: impl Device + 'static,
        ports: &[PortRange],
    ) -> Result<DeviceId, PortConflict> {
        self.bus.attach(Box::new(device), ports)
    }

    /// Puts a device on the bus, at fixed ports, that is also a PCI function with this device and function
    /// number.
    fn attach_pci(
        &mut self,
        device: impl Device + 'static,
        ports: &[PortRange],
        (slot, function): (u8, u8),
    ) -> Result<DeviceId, PortConflict> {
        let id = self.attach(device, ports)?;
        self.bus.attach_function(id, slot, function);
        Ok(id)
    }
}
