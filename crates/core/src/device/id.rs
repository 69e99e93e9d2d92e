//! The ids of all devices that a machine can have.

use std::fmt::{self, Debug, Display, Formatter};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A device that a machine can have. Its id is the same in every machine, whatever else that machine has.
///
/// Everything that concerns a device says by this id which one it is: accesses, timers, IRQ and DMA lines,
/// inputs and outputs, drives and networks. The [name](DeviceId::name) stands for the device in saved states
/// and recordings, which outlive the program, and where people read or write it. So names stay, while ids may
/// change from one version to the next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub struct DeviceId(u8);

/// The names of the devices, by their ids. Devices are reset in this order. The host bridge is first, since
/// other devices may map memory over what it maps.
const NAMES: [&str; DeviceId::COUNT] = [
    "i440fx",
    "piix3",
    "acpi_pm",
    "pit",
    "rtc",
    "hpet",
    "i8042",
    "port92",
    "com1",
    "com2",
    "com3",
    "com4",
    "pci-serial0",
    "pci-serial1",
    "floppy",
    "ide",
    "vga",
    "nic0",
    "nic1",
    "nic2",
    "nic3",
    "nic4",
    "nic5",
    "nic6",
    "nic7",
    "debug_console",
    "debug_exit",
    "test_device",
    "fw_cfg",
    "flash",
    "pci_hotplug",
    "vmgenid",
    "pvpanic",
    "virtio-blk0",
    "virtio-blk1",
    "virtio-blk2",
    "virtio-blk3",
    "virtio-blk4",
    "virtio-blk5",
    "virtio-blk6",
    "virtio-blk7",
    "virtio-blk8",
    "virtio-blk9",
    "virtio-blk10",
    "virtio-blk11",
    "virtio-blk12",
    "virtio-blk13",
    "virtio-blk14",
    "virtio-blk15",
    "balloon",
    "channels",
    "virtio-mem",
    "io_apic",
    "local_apic",
    "dma",
    "fpu_error",
    "pic",
];

impl DeviceId {
    /// Number of devices that a machine can have.
    pub const COUNT: usize = 57;

    /// The host bridge.
    pub const I440FX: DeviceId = DeviceId::known("i440fx");
    /// The ISA bridge.
    pub const PIIX3: DeviceId = DeviceId::known("piix3");
    /// Power management.
    pub const ACPI_PM: DeviceId = DeviceId::known("acpi_pm");
    /// The interval timer, an 8254.
    pub const PIT: DeviceId = DeviceId::known("pit");
    /// The real-time clock, an MC146818.
    pub const RTC: DeviceId = DeviceId::known("rtc");
    /// The high precision event timers.
    pub const HPET: DeviceId = DeviceId::known("hpet");
    /// The controller of keyboard and mouse.
    pub const I8042: DeviceId = DeviceId::known("i8042");
    /// Port 92h.
    pub const PORT92: DeviceId = DeviceId::known("port92");
    /// The serial ports COM1 to COM4.
    pub const COM: [DeviceId; 4] = DeviceId::row("com1");
    /// The serial cards on PCI.
    pub const PCI_SERIAL: [DeviceId; 2] = DeviceId::row("pci-serial0");
    /// All serial ports, by the numbers of [`Output::Serial`](super::Output::Serial): those of a PC, and behind them the
    /// cards.
    pub const SERIAL: [DeviceId; 6] = DeviceId::row("com1");
    /// The controller of the diskette drives.
    pub const FLOPPY: DeviceId = DeviceId::known("floppy");
    /// The controller of the IDE drives.
    pub const IDE: DeviceId = DeviceId::known("ide");
    /// The display adapter.
    pub const VGA: DeviceId = DeviceId::known("vga");
    /// The network cards, whatever models they are.
    pub const NIC: [DeviceId; 8] = DeviceId::row("nic0");
    /// The port to which firmware writes messages.
    pub const DEBUG_CONSOLE: DeviceId = DeviceId::known("debug_console");
    /// The port that ends the run.
    pub const DEBUG_EXIT: DeviceId = DeviceId::known("debug_exit");
    /// The device of kvm-unit-tests.
    pub const TEST_DEVICE: DeviceId = DeviceId::known("test_device");
    /// The files that the machine gives its software.
    pub const FW_CFG: DeviceId = DeviceId::known("fw_cfg");
    /// The flash memory with the firmware.
    pub const FLASH: DeviceId = DeviceId::known("flash");
    /// The controller for cards that come and go.
    pub const PCI_HOTPLUG: DeviceId = DeviceId::known("pci_hotplug");
    /// The VM generation ID.
    pub const VMGENID: DeviceId = DeviceId::known("vmgenid");
    /// The port by which the guest says that its system has failed.
    pub const PVPANIC: DeviceId = DeviceId::known("pvpanic");
    /// The virtio disks.
    pub const VIRTIO_BLK: [DeviceId; 16] = DeviceId::row("virtio-blk0");
    /// The memory balloon.
    pub const BALLOON: DeviceId = DeviceId::known("balloon");
    /// The device through which channels lead.
    pub const CHANNELS: DeviceId = DeviceId::known("channels");
    /// Memory that comes and goes.
    pub const EXTRA_MEMORY: DeviceId = DeviceId::known("virtio-mem");
    /// The I/O APIC.
    pub const IO_APIC: DeviceId = DeviceId::known("io_apic");
    /// The local APIC.
    pub const LOCAL_APIC: DeviceId = DeviceId::known("local_apic");
    /// The two DMA controllers.
    pub const DMA: DeviceId = DeviceId::known("dma");
    /// The circuit for FERR# and IGNNE#.
    pub const FPU_ERROR: DeviceId = DeviceId::known("fpu_error");
    /// The two 8259A.
    pub const PIC: DeviceId = DeviceId::known("pic");

    /// Returns the device with this name, if a machine can have it.
    pub const fn named(name: &str) -> Option<DeviceId> {
        let mut id = 0;
        while id < NAMES.len() {
            if is_same(NAMES[id], name) {
                return Some(DeviceId(id as u8));
            }
            id += 1;
        }
        None
    }

    /// Returns the name of the device: short, unique, and the same in all versions.
    pub const fn name(self) -> &'static str {
        NAMES[self.index()]
    }

    /// Returns all devices that a machine can have.
    pub fn all() -> impl Iterator<Item = DeviceId> {
        (0..DeviceId::COUNT as u8).map(DeviceId)
    }

    /// Returns a number below [`DeviceId::COUNT`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the device `name` of the constants above.
    const fn known(name: &str) -> DeviceId {
        DeviceId::named(name).expect("the table has all these names")
    }

    /// Returns the device `first` of the constants above and those that follow it in the table.
    const fn row<const N: usize>(first: &str) -> [DeviceId; N] {
        let mut row = [DeviceId::known(first); N];
        let mut place = 0;
        while place < N {
            row[place].0 += place as u8;
            place += 1;
        }
        row
    }
}

/// Compares two strings; `==` cannot yet be used for constants.
const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut place = 0;
    while place < a.len() {
        if a[place] != b[place] {
            return false;
        }
        place += 1;
    }
    true
}

impl Display for DeviceId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Debug for DeviceId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceId").field(&self.name()).finish()
    }
}

impl From<DeviceId> for &'static str {
    fn from(id: DeviceId) -> &'static str {
        id.name()
    }
}

/// No machine has a device with this name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no device {0}")]
pub struct NoDevice(String);

impl TryFrom<String> for DeviceId {
    type Error = NoDevice;

    fn try_from(name: String) -> Result<DeviceId, NoDevice> {
        DeviceId::named(&name).ok_or(NoDevice(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_found_by_its_name() {
        assert_eq!(DeviceId::all().count(), DeviceId::COUNT);
        for id in DeviceId::all() {
            assert_eq!(DeviceId::named(id.name()), Some(id));
        }
        assert_eq!(DeviceId::named("nic8"), None);
        assert_eq!(DeviceId::COM.map(DeviceId::name), ["com1", "com2", "com3", "com4"]);
        assert_eq!(DeviceId::SERIAL[4..], DeviceId::PCI_SERIAL);
        assert_eq!(DeviceId::NIC.map(DeviceId::name)[7], "nic7");
        assert_eq!(DeviceId::VIRTIO_BLK.map(DeviceId::name)[15], "virtio-blk15");
    }

    #[test]
    fn a_saved_state_has_the_name_of_the_device() {
        let saved = ciborium::Value::serialized(&DeviceId::IDE).unwrap();
        assert_eq!(saved, ciborium::Value::Text("ide".to_owned()));
        assert_eq!(saved.deserialized::<DeviceId>().unwrap(), DeviceId::IDE);
        let unknown = ciborium::Value::Text("sound".to_owned());
        assert!(unknown.deserialized::<DeviceId>().is_err());
    }
}
