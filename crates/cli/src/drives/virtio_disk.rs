//! What the command line can say of virtio disks alone.

use ring3_devices::virtio::block::QUEUES_MAX;
use ring3_devices::virtio::pci::Interfaces;

use super::Interface;
use super::properties::{BadProperties, DriveProperties, switch};

/// What can be said of a virtio disk alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VirtioProperties {
    /// What QMP calls the device; what it calls the drive, if that is not said.
    pub(crate) id: Option<String>,
    pub(crate) serial: Option<String>,
    /// 1 to 16.
    pub(crate) queues: u16,
    /// The drivers that it is for.
    pub(crate) interfaces: Interfaces,
}

impl Default for VirtioProperties {
    fn default() -> VirtioProperties {
        VirtioProperties { id: None, serial: None, queues: 1, interfaces: Interfaces::default() }
    }
}

impl VirtioProperties {
    /// Sets property `key`, if it is one of a virtio disk.
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
    /// Refuses what does not go together.
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
