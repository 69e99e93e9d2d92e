//! Cards that are inserted into a machine's PCI slots and removed while it runs.
//!
//! The [`Config`] always lists the machine's present cards, so that a saved machine can be made again from
//! it. A new card comes by the door, as [`Input::Plug`], with everything that its device is made
//! of. To remove a card, the machine asks the guest for it, and removes it when the guest has given it up,
//! which depends only on the guest's own execution. So a recording repeats both.
//!
//! Each device that a card can be, such as `virtio-blk3`, has its slot.
//!
//! [`Input::Plug`]: ring3_core::input::Input::Plug

use std::sync::Arc;

use ring3_core::device::DeviceId;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::{Config, VirtioDisk};
use crate::control::Ended;
use crate::drives::{Drive, ErrorPolicy};

const STATE_NAME: &str = "card";
const STATE_VERSION: u32 = 1;

/// PCI device number of the first virtio disk; the others follow.
const FIRST_VIRTIO_DISK: u8 = 4;

/// A card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Card {
    /// A virtio disk.
    Disk(VirtioDisk),
}

impl Card {
    /// Returns the card in the form in which it comes by the door.
    pub(crate) fn save(&self) -> SavedState {
        SavedState::new(STATE_NAME, STATE_VERSION, self)
    }

    /// Makes a card from this form.
    pub(crate) fn load(saved: &SavedState) -> Result<Card, RestoreError> {
        saved.load(STATE_NAME, STATE_VERSION)
    }
}

/// A place for a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The device there.
    pub(crate) device: DeviceId,
    /// Its PCI device number.
    pub(crate) slot: u8,
    /// Its index among the cards of its kind.
    index: usize,
}

/// Returns the places for virtio disks, in the order in which they are filled.
fn disk_places() -> impl Iterator<Item = Place> {
    let devices = DeviceId::VIRTIO_BLK.into_iter().enumerate();
    devices.map(|(index, device)| Place { device, slot: virtio_disk_slot(index as u8), index })
}

/// Returns the PCI device number of virtio disk `index`.
pub(crate) fn virtio_disk_slot(index: u8) -> u8 {
    FIRST_VIRTIO_DISK + index
}

/// Returns all cards of a machine with this configuration.
pub(crate) fn all(config: &Config) -> impl Iterator<Item = (Place, Card)> {
    let disks = disk_places().zip(&config.virtio_disks);
    disks.filter_map(|(place, disk)| Some((place, Card::Disk(disk.clone()?))))
}

impl Place {
    /// Returns the place of the card `device`.
    pub(crate) fn of(device: DeviceId) -> Option<Place> {
        disk_places().find(|place| place.device == device)
    }

    /// Returns the place of the card in PCI slot `slot`.
    pub(crate) fn of_slot(slot: u8) -> Option<Place> {
        disk_places().find(|place| place.slot == slot)
    }

    /// Returns whether there is a card.
    pub(crate) fn is_taken(self, config: &Config) -> bool {
        config.virtio_disks.get(self.index).is_some_and(Option::is_some)
    }

    /// Notes in `config` that there is `card` now.
    pub(crate) fn put(self, config: &mut Config, card: Card) {
        let Card::Disk(disk) = card;
        let disks = &mut config.virtio_disks;
        disks.resize(disks.len().max(self.index + 1), None);
        disks[self.index] = Some(disk);
    }

    /// Notes in `config` that there is no card any more.
    pub(crate) fn clear(self, config: &mut Config) {
        if let Some(disk) = config.virtio_disks.get_mut(self.index) {
            *disk = None;
        }
    }

    /// Returns the first place for a disk that is free and not in `others`, or the one in PCI slot `slot`.
    pub(crate) fn free_for_disk(
        config: &Config,
        others: &[DeviceId],
        slot: Option<u8>,
    ) -> Result<Place, PlugError> {
        let is_free = |place: &Place| !place.is_taken(config) && !others.contains(&place.device);
        match slot {
            None => disk_places().find(is_free).ok_or(PlugError::Full),
            Some(slot) => disk_places()
                .find(|place| place.slot == slot)
                .filter(is_free)
                .ok_or(PlugError::Slot(slot)),
        }
    }
}

/// A virtio disk to be put into a running machine.
#[derive(Debug)]
pub struct NewDisk {
    /// Its id, by which people know it.
    pub id: Option<String>,
    /// Its PCI device number; without it, the first free one.
    pub slot: Option<u8>,
    /// The disk.
    pub disk: VirtioDisk,
    /// The drive that does its work.
    pub drive: Arc<dyn Drive>,
    /// The name by which people know the drive.
    pub node: Option<String>,
    /// The policy for errors of the host.
    pub errors: ErrorPolicy,
}

/// The reasons why a card is not put in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PlugError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// Another device has this id.
    #[error("another device has that id")]
    Id,
    /// All places are taken.
    #[error("a machine has at most 16 virtio disks")]
    Full,
    /// The slot cannot be used.
    #[error("PCI slot {0} is taken or cannot have a disk; disks use the slots 4 to 19")]
    Slot(u8),
}

/// The reasons why the guest is not asked for a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UnplugError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// There is no such card.
    #[error("there is no such card")]
    NoCard,
}

#[cfg(test)]
mod tests {
    use ring3_core::disk::Medium;
    use ring3_devices::virtio::block::DiskModel;
    use ring3_devices::virtio::pci::Interfaces;

    use super::*;

    fn disk() -> Card {
        let medium = Medium { sectors: 8, read_only: false };
        let model = DiskModel { medium, serial: String::new(), queues: 1 };
        Card::Disk(VirtioDisk { model, interfaces: Interfaces::default() })
    }

    #[test]
    fn places_are_filled_from_the_first_on() {
        let mut config = Config::default();
        let free = |config: &Config, others: &[DeviceId], slot| {
            Place::free_for_disk(config, others, slot).map(|place| (place.device, place.slot))
        };
        let disks = DeviceId::VIRTIO_BLK;
        assert_eq!(free(&config, &[], None), Ok((disks[0], 4)));
        assert_eq!(free(&config, &[disks[0]], None), Ok((disks[1], 5)));
        assert_eq!(free(&config, &[disks[0]], Some(4)), Err(PlugError::Slot(4)));
        Place::of(disks[2]).unwrap().put(&mut config, disk());
        assert_eq!(config.virtio_disks.len(), 3);
        assert_eq!(free(&config, &[], Some(6)), Err(PlugError::Slot(6)));
        assert_eq!(free(&config, &[], Some(3)), Err(PlugError::Slot(3)));
        for _ in 0..15 {
            let place = Place::free_for_disk(&config, &[], None).unwrap();
            place.put(&mut config, disk());
        }
        assert_eq!(free(&config, &[], None), Err(PlugError::Full));
        Place::of_slot(12).unwrap().clear(&mut config);
        assert_eq!(free(&config, &[], None), Ok((disks[8], 12)));
    }

    #[test]
    fn a_card_survives_saving_and_other_states_are_refused() {
        assert_eq!(Card::load(&disk().save()), Ok(disk()));
        assert!(Card::load(&SavedState::new("pit", 1, &())).is_err());
    }
}
