//! Cards that come and go while the machine runs.

use ring3_core::device::DeviceId;
use ring3_core::disk::DriveId;
use ring3_core::input::{DeviceInput, Input};
use ring3_core::state::SavedState;
use tracing::{info, warn};

use crate::cards::{Card, Kind, NewDisk, NewNic, NewSerial, Place, PlugError, UnplugError};
use crate::control::Event;
use crate::door::Door;
use crate::drives::{Attachment, DriveNames};
use crate::event_log::LoggedEvent;
use crate::machine::Vm;

impl Vm {
    /// Puts a disk into a slot, with its drive.
    pub(super) fn plug_disk(&mut self, new: NewDisk) -> Result<(), PlugError> {
        let NewDisk { id, slot, disk, drive, node, errors } = new;
        self.check_id(id.as_deref())?;
        let Place { device, .. } = Place::free(Kind::Disk, &self.config, &self.leaving, slot)?;
        let names = DriveNames { node, ..DriveNames::default() };
        let attachment = Attachment { names, errors, ..Attachment::new(drive) };
        self.drives.attach(DriveId::new(device, 0), attachment);
        self.plug_named(device, id, &Card::Disk(disk));
        Ok(())
    }

    /// Returns whether people know the network card `card` by `id`: by its own id, the name of its device, or the id of
    /// its network.
    pub(super) fn is_called(&self, card: DeviceId, id: &str) -> bool {
        let ids = [self.ids.get(&card).map(String::as_str), self.networks.id(card)];
        card.name() == id || ids.contains(&Some(id))
    }

    /// Checks that no card has this id.
    fn check_id(&self, id: Option<&str>) -> Result<(), PlugError> {
        let is_taken = id.is_some_and(|id| self.ids.values().any(|other| other == id));
        if is_taken { Err(PlugError::Id) } else { Ok(()) }
    }

    /// Returns the first free place for a card of this kind, or the one in PCI slot `slot`. The card with this `id`
    /// can be put there unless another one is faster.
    pub(super) fn place_for(
        &self,
        kind: Kind,
        id: Option<&str>,
        slot: Option<u8>,
    ) -> Result<DeviceId, PlugError> {
        self.check_id(id)?;
        Ok(Place::free(kind, &self.config, &self.leaving, slot)?.device)
    }

    /// Puts a network card into its slot, with its network.
    pub(super) fn plug_nic(&mut self, new: NewNic) -> Result<(), PlugError> {
        let NewNic { device, id, nic, network, network_id } = new;
        let card = Card::Nic(nic);
        self.check_place(device, id.as_deref(), &card)?;
        self.networks.attach(device, network_id, network);
        self.plug_named(device, id, &card);
        Ok(())
    }

    /// Puts a serial card into its slot, with its line.
    pub(super) fn plug_serial(&mut self, new: NewSerial) -> Result<(), PlugError> {
        let NewSerial { device, id, line, character } = new;
        self.check_place(device, id.as_deref(), &Card::Serial)?;
        self.serial_lines.attach(device, character, line);
        self.plug_named(device, id, &Card::Serial);
        Ok(())
    }

    /// Checks that `card`, with that `id`, can be put into the place of `device`.
    fn check_place(
        &self,
        device: DeviceId,
        id: Option<&str>,
        card: &Card,
    ) -> Result<(), PlugError> {
        self.check_id(id)?;
        let place = Place::of(device).filter(|place| place.fits(card));
        let is_free = place.is_some_and(|place| !place.is_taken(&self.config));
        if is_free && !self.leaving.contains(&device) { Ok(()) } else { Err(PlugError::Taken) }
    }

    /// Puts `card` into its place, and notes its id.
    fn plug_named(&mut self, device: DeviceId, id: Option<String>, card: &Card) {
        if let Some(id) = id {
            self.name_card(device, id);
        }
        // An input of a device never ends the run.
        self.take_input(Input::Plug { device, card: card.save() });
    }

    /// Asks the guest for the card on the PCI bus with this id, this name of its device, or this id of its network.
    pub(super) fn ask_for_card(&mut self, id: &str) -> Result<(), UnplugError> {
        let named = self.ids.iter().find(|(_, other)| *other == id);
        let mut nics = DeviceId::NIC.into_iter();
        let device = named
            .map(|(device, _)| *device)
            .or_else(|| DeviceId::named(id))
            .or_else(|| nics.find(|nic| self.is_called(*nic, id)));
        let place = device.and_then(Place::of);
        let place = place.filter(|place| place.is_taken(&self.config));
        let Place { slot, .. } = place.ok_or(UnplugError::NoCard)?;
        let input = DeviceInput::CardWanted { slot };
        self.take_input(Input::Device { device: DeviceId::PCI_HOTPLUG, input });
        Ok(())
    }

    /// Puts in a card that has come by the door. A card that is not possible is dropped.
    pub(super) fn put_in(&mut self, device: DeviceId, card: &SavedState) {
        let place = Place::of(device).filter(|place| !place.is_taken(&self.config));
        let card = Card::load(card).ok();
        let card = card.filter(|card| place.is_some_and(|place| place.fits(card)));
        let (Some(place), Some(card)) = (place, card) else {
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
            door.drop_sources_of(device);
            let network = self.networks.id(device).map(str::to_owned);
            self.networks.detach(device);
            self.serial_lines.detach(device);
            let id = self.ids.remove(&device).or(network);
            door.tell(&Event::CardGone { device, id });
        }
    }
}
