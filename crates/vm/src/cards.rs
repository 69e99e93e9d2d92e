//! Cards that are inserted into a machine's PCI slots and removed while it runs.
//!
//! The [`Config`] always lists the machine's present cards, so that a saved machine can be made again from
//! it. A new card comes by the door, as [`Input::Plug`], with everything that its device is made
//! of. To remove a card, the machine asks the guest for it, and removes it when the guest has given it up,
//! which depends only on the guest's own execution. So a recording repeats both.
//!
//! Each device that a card can be, such as `virtio-blk3` or `nic1`, has its slot.
//!
//! [`Input::Plug`]: ring3_core::input::Input::Plug

use std::sync::Arc;

use ring3_core::device::DeviceId;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::{Config, Nic, NicModel, VirtioDisk};
use crate::control::Ended;
use crate::drives::{Drive, ErrorPolicy};
use crate::networks::Network;
use crate::serial_lines::SerialLine;

const STATE_NAME: &str = "card";
const STATE_VERSION: u32 = 1;

/// PCI device numbers of the first two network cards; the others follow the second one.
const FIRST_NIC: u8 = 3;
const SECOND_NIC: u8 = 20;
/// PCI device number of the first virtio disk; the others follow.
const FIRST_VIRTIO_DISK: u8 = 4;
/// PCI device number of the first serial card; the other one follows.
const FIRST_SERIAL: u8 = 30;

/// A card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Card {
    /// A virtio disk.
    Disk(VirtioDisk),
    /// A network card on the PCI bus.
    Nic(Nic),
    /// A serial card.
    Serial,
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

    /// Returns whether it is on the PCI bus, and so can come and go.
    fn is_on_pci(&self) -> bool {
        !matches!(self, Card::Nic(Nic { model: NicModel::Ne2000Isa { .. }, .. }))
    }

    fn kind(&self) -> Kind {
        match self {
            Card::Disk(_) => Kind::Disk,
            Card::Nic(_) => Kind::Nic,
            Card::Serial => Kind::Serial,
        }
    }
}

/// The kinds of cards, each with places of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Virtio disks.
    Disk,
    /// Network cards.
    Nic,
    /// Serial cards.
    Serial,
}

impl Kind {
    /// Returns its places, in the order in which they are filled.
    fn places(self) -> impl Iterator<Item = Place> {
        let devices = match self {
            Kind::Disk => DeviceId::VIRTIO_BLK.as_slice(),
            Kind::Nic => DeviceId::NIC.as_slice(),
            Kind::Serial => DeviceId::PCI_SERIAL.as_slice(),
        };
        (0..).zip(devices).map(move |(index, device)| {
            let slot = match self {
                Kind::Disk => virtio_disk_slot(index),
                Kind::Nic => nic_slot(index),
                Kind::Serial => FIRST_SERIAL + index,
            };
            Place { device: *device, slot, kind: self, index: index.into() }
        })
    }
}

/// A place for a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The device there.
    pub(crate) device: DeviceId,
    /// Its PCI device number.
    pub(crate) slot: u8,
    /// The cards that it can have.
    kind: Kind,
    /// Its index among the places of its kind.
    index: usize,
}

/// Returns the PCI device number of network card `index`.
pub(crate) fn nic_slot(index: u8) -> u8 {
    match index {
        0 => FIRST_NIC,
        _ => SECOND_NIC + index - 1,
    }
}

/// Returns the PCI device number of virtio disk `index`.
pub(crate) fn virtio_disk_slot(index: u8) -> u8 {
    FIRST_VIRTIO_DISK + index
}

/// Returns all cards of a machine with this configuration.
pub(crate) fn all(config: &Config) -> impl Iterator<Item = (Place, Card)> {
    let disks = Kind::Disk.places().zip(&config.virtio_disks);
    let disks = disks.filter_map(|(place, disk)| Some((place, Card::Disk(disk.clone()?))));
    let nics = Kind::Nic.places().zip(&config.nics);
    let nics = nics.filter_map(|(place, nic)| Some((place, Card::Nic(nic.clone()?))));
    let serial = Kind::Serial.places().filter(|place| place.is_taken(config));
    let serial = serial.map(|place| (place, Card::Serial));
    nics.filter(|(_, card)| card.is_on_pci()).chain(disks).chain(serial)
}

/// Returns the places of all kinds.
fn all_places() -> impl Iterator<Item = Place> {
    [Kind::Disk, Kind::Nic, Kind::Serial].into_iter().flat_map(Kind::places)
}

impl Place {
    /// Returns the place of the card `device`.
    pub(crate) fn of(device: DeviceId) -> Option<Place> {
        all_places().find(|place| place.device == device)
    }

    /// Returns the place of the card in PCI slot `slot`.
    pub(crate) fn of_slot(slot: u8) -> Option<Place> {
        all_places().find(|place| place.slot == slot)
    }

    /// Returns its index among the places of its kind.
    pub(crate) fn index(self) -> usize {
        self.index
    }

    /// Returns whether there is a card.
    pub(crate) fn is_taken(self, config: &Config) -> bool {
        match self.kind {
            Kind::Disk => config.virtio_disks.get(self.index).is_some_and(Option::is_some),
            Kind::Nic => config.nics.get(self.index).is_some_and(Option::is_some),
            Kind::Serial => config.serial_cards.get(self.index).is_some_and(|is_there| *is_there),
        }
    }

    /// Returns whether `card` can be put there while there is none.
    pub(crate) fn fits(self, card: &Card) -> bool {
        card.kind() == self.kind && card.is_on_pci()
    }

    /// Notes in `config` that there is `card` now.
    pub(crate) fn put(self, config: &mut Config, card: Card) {
        match card {
            Card::Disk(disk) => put_at(&mut config.virtio_disks, self.index, disk),
            Card::Nic(nic) => put_at(&mut config.nics, self.index, nic),
            Card::Serial => config.serial_cards[self.index] = true,
        }
    }

    /// Notes in `config` that there is no card any more.
    pub(crate) fn clear(self, config: &mut Config) {
        match self.kind {
            Kind::Disk => drop(config.virtio_disks.get_mut(self.index).and_then(Option::take)),
            Kind::Nic => drop(config.nics.get_mut(self.index).and_then(Option::take)),
            Kind::Serial => config.serial_cards[self.index] = false,
        }
    }

    /// Returns the first place for a card of this kind that is free and not in `others`, or the one in PCI slot
    /// `slot`.
    pub(crate) fn free(
        kind: Kind,
        config: &Config,
        others: &[DeviceId],
        slot: Option<u8>,
    ) -> Result<Place, PlugError> {
        let is_free = |place: &Place| !place.is_taken(config) && !others.contains(&place.device);
        match slot {
            None => kind.places().find(is_free).ok_or(match kind {
                Kind::Disk => PlugError::FullOfDisks,
                Kind::Nic => PlugError::FullOfNics,
                Kind::Serial => PlugError::FullOfSerial,
            }),
            Some(slot) => {
                let there = kind.places().find(|place| place.slot == slot);
                there.filter(is_free).ok_or(match kind {
                    Kind::Disk => PlugError::SlotOfDisk(slot),
                    Kind::Nic => PlugError::SlotOfNic(slot),
                    Kind::Serial => PlugError::SlotOfSerial(slot),
                })
            }
        }
    }
}

/// Puts `card` at `index` of `cards`.
fn put_at<T: Clone>(cards: &mut Vec<Option<T>>, index: usize, card: T) {
    cards.resize(cards.len().max(index + 1), None);
    cards[index] = Some(card);
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

/// A network card to be put into a running machine.
#[derive(Debug)]
pub struct NewNic {
    /// Its place, which [`Control::place_for`](crate::Control::place_for) has returned.
    pub device: DeviceId,
    /// Its id, by which people know it.
    pub id: Option<String>,
    /// The card, which must be one on the PCI bus.
    pub nic: Nic,
    /// The network behind it.
    pub network: Box<dyn Network>,
    /// The name by which people know the network.
    pub network_id: Option<String>,
}

/// A serial card to be put into a running machine.
#[derive(Debug)]
pub struct NewSerial {
    /// Its place, which [`Control::place_for`](crate::Control::place_for) has returned.
    pub device: DeviceId,
    /// Its id, by which people know it.
    pub id: Option<String>,
    /// The line behind it.
    pub line: Box<dyn SerialLine>,
    /// The name by which people know the line's other end.
    pub character: Option<String>,
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
    /// All places for disks are taken.
    #[error("a machine has at most 16 virtio disks")]
    FullOfDisks,
    /// All places for network cards are taken.
    #[error("a machine has at most 8 network cards")]
    FullOfNics,
    /// The slot cannot be used.
    #[error("PCI slot {0} is taken or cannot have a disk; disks use the slots 4 to 19")]
    SlotOfDisk(u8),
    /// The slot cannot be used.
    #[error(
        "PCI slot {0} is taken or cannot have a network card; these use the slots 3 and 20 to 26"
    )]
    SlotOfNic(u8),
    /// All places for serial cards are taken.
    #[error("a machine has at most 2 serial cards")]
    FullOfSerial,
    /// The slot cannot be used.
    #[error("PCI slot {0} is taken or cannot have a serial card; these use the slots 30 and 31")]
    SlotOfSerial(u8),
    /// Another card was put there meanwhile, or the card is not one for the PCI bus.
    #[error("the place of the card is taken")]
    Taken,
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
    use ring3_core::net::MacAddress;
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
            Place::free(Kind::Disk, config, others, slot).map(|place| (place.device, place.slot))
        };
        let disks = DeviceId::VIRTIO_BLK;
        assert_eq!(free(&config, &[], None), Ok((disks[0], 4)));
        assert_eq!(free(&config, &[disks[0]], None), Ok((disks[1], 5)));
        assert_eq!(free(&config, &[disks[0]], Some(4)), Err(PlugError::SlotOfDisk(4)));
        Place::of(disks[2]).unwrap().put(&mut config, disk());
        assert_eq!(config.virtio_disks.len(), 3);
        assert_eq!(free(&config, &[], Some(6)), Err(PlugError::SlotOfDisk(6)));
        assert_eq!(free(&config, &[], Some(3)), Err(PlugError::SlotOfDisk(3)));
        for _ in 0..15 {
            let place = Place::free(Kind::Disk, &config, &[], None).unwrap();
            place.put(&mut config, disk());
        }
        assert_eq!(free(&config, &[], None), Err(PlugError::FullOfDisks));
        Place::of_slot(12).unwrap().clear(&mut config);
        assert_eq!(free(&config, &[], None), Ok((disks[8], 12)));
    }

    fn nic(model: NicModel) -> Nic {
        Nic { mac: MacAddress([0x52, 0x54, 0, 0, 0, 1]), model, rom: None }
    }

    #[test]
    fn network_cards_have_places_of_their_own() {
        let mut config =
            Config { nics: vec![Some(nic(NicModel::NE2000_ISA))], ..Config::default() };
        assert_eq!(all(&config).count(), 0, "that card is not on PCI");
        for index in 1..8 {
            let place = Place::free(Kind::Nic, &config, &[], None).unwrap();
            assert_eq!((place.device, place.slot), (DeviceId::NIC[index], 19 + index as u8));
            assert!(place.fits(&Card::Nic(nic(NicModel::E1000))) && !place.fits(&disk()));
            assert!(!place.fits(&Card::Nic(nic(NicModel::NE2000_ISA))));
            place.put(&mut config, Card::Nic(nic(NicModel::E1000)));
        }
        let full = Place::free(Kind::Nic, &config, &[], None);
        assert_eq!(full, Err(PlugError::FullOfNics));
        assert_eq!(Place::free(Kind::Nic, &config, &[], Some(9)), Err(PlugError::SlotOfNic(9)));
        Place::of_slot(22).unwrap().clear(&mut config);
        assert_eq!(config.cards().count(), 7);
        let others = [DeviceId::NIC[3]];
        assert_eq!(Place::free(Kind::Nic, &config, &others, None), Err(PlugError::FullOfNics));
        assert_eq!(Place::free(Kind::Nic, &config, &[], Some(22)).unwrap().device, others[0]);
    }

    #[test]
    fn serial_cards_have_two_places() {
        let mut config = Config::default();
        for (device, slot) in DeviceId::PCI_SERIAL.into_iter().zip([30, 31]) {
            let place = Place::free(Kind::Serial, &config, &[], None).unwrap();
            assert_eq!((place.device, place.slot), (device, slot));
            assert!(place.fits(&Card::Serial) && !place.fits(&disk()));
            place.put(&mut config, Card::Serial);
        }
        let free = |config: &Config, slot| Place::free(Kind::Serial, config, &[], slot);
        assert_eq!(free(&config, None), Err(PlugError::FullOfSerial));
        assert_eq!(free(&config, Some(29)), Err(PlugError::SlotOfSerial(29)));
        assert_eq!(all(&config).count(), 2);
        Place::of_slot(30).unwrap().clear(&mut config);
        assert_eq!(config.serial_cards, [false, true]);
        assert_eq!(Card::load(&Card::Serial.save()), Ok(Card::Serial));
    }

    #[test]
    fn a_card_survives_saving_and_other_states_are_refused() {
        assert_eq!(Card::load(&disk().save()), Ok(disk()));
        assert!(Card::load(&SavedState::new("pit", 1, &())).is_err());
    }
}
