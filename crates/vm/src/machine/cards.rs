//! Cards that come and go while the machine runs.

use ring3_core::input::{DeviceInput, Input};
use ring3_core::state::SavedState;
use ring3_devices::pci_hotplug;
use tracing::{info, warn};

use crate::cards::{Card, NewDisk, Place, PlugError, UnplugError};
use crate::control::Event;
use crate::door::Door;
use crate::drives::DriveNames;
use crate::event_log::What;
use crate::machine::Vm;

impl Vm {
    /// Puts a disk into a slot, with its drive.
    pub(super) fn plug_disk(&mut self, new: NewDisk) -> Result<(), PlugError> {
        let NewDisk { id, slot, disk, drive, node, errors } = new;
        if id.as_ref().is_some_and(|id| self.ids.values().any(|other| other == id)) {
            return Err(PlugError::Id);
        }
        let Place { name, .. } = Place::free_for_disk(&self.config, &self.leaving, slot)?;
        self.drives.attach(name, 0, drive);
        self.drives.name(name, 0, DriveNames { node, ..DriveNames::default() });
        self.drives.set_error_policy(name, 0, errors);
        if let Some(id) = id {
            self.name_card(name, id);
        }
        let card = Card::Disk(disk).save();
        // An input of a device never ends the run.
        self.take_input(Input::Plug { name: name.to_owned(), card });
        Ok(())
    }

    /// Asks the guest for the card with this id.
    pub(super) fn ask_for_card(&mut self, id: &str) -> Result<(), UnplugError> {
        let named = self.ids.iter().find(|(_, other)| *other == id);
        let place = named.and_then(|(name, _)| Place::of(name));
        let place = place.filter(|place| place.is_taken(&self.config));
        let Place { slot, .. } = place.ok_or(UnplugError::NoCard)?;
        let input = DeviceInput::CardWanted { slot };
        self.take_input(Input::Device { name: pci_hotplug::NAME.to_owned(), input });
        Ok(())
    }

    /// Puts in a card that has come by the door. A card that is not possible is dropped.
    pub(super) fn put_in(&mut self, name: &str, card: &SavedState) {
        let place = Place::of(name).filter(|place| !place.is_taken(&self.config));
        let (Some(place), Ok(card)) = (place, Card::load(card)) else {
            return warn!("the card {name} cannot be plugged in: its slot is taken");
        };
        info!("{name} is plugged into PCI slot {}", place.slot);
        place.put(&mut self.config, card.clone());
        let now = self.now();
        self.board.plug(&mut self.memory, now, place, card);
    }

    /// Takes out the card in PCI slot `slot`, which the guest has given up.
    pub(super) fn take_out(&mut self, slot: u8) {
        let now = self.now();
        let was_there = self.board.unplug(&mut self.memory, now, slot);
        let Some(place) = Place::of_slot(slot).filter(|_| was_there) else { return };
        info!("{} is removed from PCI slot {slot}", place.name);
        place.clear(&mut self.config);
        self.tell_log(&What::Unplug(place.name));
        self.drives.let_go(place.name);
        self.leaving.push(place.name);
    }

    /// Tells the subscribers of the cards that are out and have no more requests under way.
    pub(super) fn tell_of_cards(&mut self, door: &mut Door) {
        let drives = &self.drives;
        let gone: Vec<_> = self.leaving.extract_if(.., |name| !drives.is_waiting(name)).collect();
        for name in gone {
            self.drives.detach(name);
            let id = self.ids.remove(name);
            door.tell(&Event::CardGone { device: name.to_owned(), id });
        }
    }
}
