//! The properties that only virtio disks have.

use ring3_devices::virtio::block::QUEUES_MAX;
use ring3_devices::virtio::pci::Interfaces;

use super::Interface;
use super::properties::{BadProperties, DriveProperties, switch};

/// The properties that only virtio disks have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VirtioProperties {
    /// The name of the device for QMP; by default the name of the drive.
    pub(crate) id: Option<String>,
    pub(crate) serial: Option<String>,
    /// The number of queues, from 1 to 16.
    pub(crate) queues: u16,
    /// The interfaces for drivers.
    pub(crate) interfaces: Interfaces,
}

impl Default for VirtioProperties {
    fn default() -> VirtioProperties {
        VirtioProperties { id: None, serial: None, queues: 1, interfaces: Interfaces::default() }
    }
}

impl VirtioProperties {
    /// Sets property `key`, if virtio disks have it.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<Result<(), BadProperties>> {
        let enable = |is_disabled: Result<bool, BadProperties>, place: &mut bool| {
            is_disabled.map(|is_disabled| *place = !is_disabled)
        };
        Some(match key {
            "serial" => {
                self.serial = Some(value.to_owned());
                Ok(())
            }
            "num-queues" => {
                let queues = value.parse().ok().filter(|n| (1..=QUEUES_MAX).contains(n));
                let wrong = || BadProperties::Value {
                    key: "num-queues",
                    expected: "a number from 1 to 16",
                    value: value.to_owned(),
                };
                queues.ok_or_else(wrong).map(|queues| self.queues = queues)
            }
            "disable-legacy" => {
                enable(switch("disable-legacy", value), &mut self.interfaces.legacy)
            }
            "disable-modern" => {
                enable(switch("disable-modern", value), &mut self.interfaces.modern)
            }
            _ => return None,
        })
    }
}

impl DriveProperties {
    /// Refuses properties that contradict each other.
    pub(crate) fn check(&self) -> Result<(), BadProperties> {
        let Interfaces { legacy, modern } = self.virtio.interfaces;
        if self.interface != Interface::Virtio && self.virtio != VirtioProperties::default() {
            Err(BadProperties::NotVirtio)
        } else if !legacy && !modern {
            Err(BadProperties::NoInterface)
        } else {
            Ok(())
        }
    }
}
