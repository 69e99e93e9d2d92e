//! Cards that come and go while the machine runs.

use ring3_core::device::DeviceId;
use ring3_core::disk::DriveId;
use ring3_core::input::{DeviceInput, Input};
use ring3_core::state::SavedState;
use tracing::{info, warn};

use crate::cards::{Card, NewDisk, Place, PlugError, UnplugError};
use crate::control::Event;
use crate::door::Door;
use crate::drives::{Attachment, DriveNames};
use crate::event_log::LoggedEvent;
use crate::machine::Vm;

impl Vm {
    /// Puts a disk into a slot, with its drive.
    pub(super) fn plug_disk(&mut self, new: NewDisk) -> Result<(), PlugError> {
        let NewDisk { id, slot, disk, drive, node, errors } = new;
        if id.as_ref().is_some_and(|id| self.ids.values().any(|other| other == id)) {
            return Err(PlugError::Id);
        }
        let Place { device, .. } = Place::free_for_disk(&self.config, &self.leaving, slot)?;
        let names = DriveNames { node, ..DriveNames::default() };
        let attachment = Attachment { names, errors, ..Attachment::new(drive) };
        self.drives.attach(DriveId::new(device, 0), attachment);
        if let Some(id) = id {
            self.name_card(device, id);
        }
        let card = Card::Disk(disk).save();
        // An input of a device never ends the run.
        self.take_input(Input::Plug { device, card });
        Ok(())
    }

    /// Asks the guest for the card with this id.
    pub(super) fn ask_for_card(&mut self, id: &str) -> Result<(), UnplugError> {
        let named = self.ids.iter().find(|(_, other)| *other == id);
        let place = named.and_then(|(device, _)| Place::of(*device));
        let place = place.filter(|place| place.is_taken(&self.config));
        let Place { slot, .. } = place.ok_or(UnplugError::NoCard)?;
        let input = DeviceInput::CardWanted { slot };
        self.take_input(Input::Device { device: DeviceId::PCI_HOTPLUG, input });
        Ok(())
    }

    /// Puts in a card that has come by the door. A card that is not possible is dropped.
    pub(super) fn put_in(&mut self, device: DeviceId, card: &SavedState) {
        let place = Place::of(device).filter(|place| !place.is_taken(&self.config));
        let (Some(place), Ok(card)) = (place, Card::load(card)) else {
            return warn!("the card {device} cannot be plugged in: its slot is taken");
        };
        info!("{device} is plugged into PCI slot {}", place.slot);
        place.put(&mut self.config, card.clone());
        let now = self.now();
        self.board.plug(&mut self.memory, now, place, card);
    }

    /// Takes out the card in PCI slot `slot`, which the guest has given up.
    pub(super) fn take_out(&mut self, slot: u8) {
        let now = self.now();
        let Some(place) = Place::of_slot(slot) else { return };
        if !self.board.unplug(&mut self.memory, now, place) {
            return;
        }
        info!("{} is removed from PCI slot {slot}", place.device);
        place.clear(&mut self.config);
        self.tell_log(&LoggedEvent::Unplug(place.device));
        self.drives.let_go(place.device);
        self.leaving.push(place.device);
    }

    /// Tells the subscribers of the cards that are out and have no more requests under way.
    pub(super) fn tell_of_cards(&mut self, door: &mut Door) {
        let drives = &self.drives;
        let gone: Vec<_> =
            self.leaving.extract_if(.., |device| !drives.is_waiting(*device)).collect();
        for device in gone {
            self.note_new_medium(DriveId::new(device, 0));
            self.drives.detach(device);
            let id = self.ids.remove(&device);
            door.tell(&Event::CardGone { device, id });
        }
    }
}
