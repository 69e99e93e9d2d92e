//! A network card, as seen by the network behind it.

use std::fmt;
use std::sync::Arc;

use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, Input};
use ring3_core::net::{MacAddress, Packet};
use ring3_vm::{Sender, Source};

use crate::capture::Capture;
use crate::message::Carried;
use crate::outgoing::Outgoing;
use crate::stream::StreamSink;

/// A card to which packets are sent: one of a machine, or a port of a switch.
#[derive(Clone)]
pub struct Card {
    name: String,
    address: Option<MacAddress>,
    owner: Arc<dyn CardOwner>,
    capture: Option<Arc<Capture>>,
}

/// The owner of a card, which takes its packets.
pub(crate) trait CardOwner: Send + Sync {
    /// Takes a packet for the card. May wait while there are too many.
    fn take(&self, packet: Packet);

    /// Makes the machine [fetch](Source) its packets from `source` itself. Returns `source` if the machine
    /// does not.
    fn attach(&self, source: Box<dyn Source>) -> Result<(), Box<dyn Source>> {
        Err(source)
    }

    /// Notes that no more packets come for now.
    fn flush(&self) {}

    /// Tells the card that it may send again.
    fn relieve(&self);

    /// Notes that the machine at the other end has a card with this address.
    fn told_address(&self, _address: MacAddress) {}

    /// Notes that the machine at the other end takes short cuts, which are handed over by `to`.
    fn takes_short_cuts(&self, _to: &Arc<Outgoing<StreamSink>>) {}

    /// Notes that the machine at the other end now sends its packets to the machine with the address `to` by
    /// the short cut.
    fn told_turned(&self, _to: MacAddress) {}

    /// Notes the packets that have come to the machine at the other end by the short cut from the machine
    /// with the address `from`.
    fn told_carried(&self, _from: MacAddress, _carried: Carried) {}

    /// Notes that no packets will ever come again.
    fn ended(&self) {}
}

/// A card of a machine.
struct OfMachine {
    device: DeviceId,
    sender: Sender,
}

impl OfMachine {
    fn send(&self, input: DeviceInput) {
        self.sender.send(Input::Device { device: self.device, input });
    }
}

impl CardOwner for OfMachine {
    fn take(&self, packet: Packet) {
        self.send(DeviceInput::Packet(packet));
    }

    fn attach(&self, source: Box<dyn Source>) -> Result<(), Box<dyn Source>> {
        self.sender.attach(self.device, source)
    }

    fn relieve(&self) {
        self.send(DeviceInput::Congestion(false));
    }
}

impl Card {
    /// Returns the card `device` of the machine to whose door `sender` sends. Packets for the card are also
    /// written to `capture`.
    pub fn new(device: DeviceId, sender: Sender, capture: Option<Arc<Capture>>) -> Card {
        let owner = Arc::new(OfMachine { device, sender });
        Card { name: device.to_string(), address: None, owner, capture }
    }

    /// Sets the card's own address, which a switch is told.
    #[must_use]
    pub fn with_address(self, address: MacAddress) -> Card {
        Card { address: Some(address), ..self }
    }

    /// Returns a card of another owner, `owner`.
    pub(crate) fn of(name: &str, owner: Arc<dyn CardOwner>) -> Card {
        Card { name: name.to_owned(), address: None, owner, capture: None }
    }

    /// Returns its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns its address, if it has one that does not change.
    pub(crate) fn address(&self) -> Option<MacAddress> {
        self.address
    }

    /// Returns the capture to which copies of all packets go.
    pub(crate) fn capture(&self) -> Option<&Arc<Capture>> {
        self.capture.as_ref()
    }

    /// Sends a packet to the card. Waits while the card has too many.
    pub(crate) fn deliver(&self, packet: Packet) {
        self.note(&packet);
        self.take(packet);
    }

    /// Sends a packet to the card that was [noted](Card::note) before.
    pub(crate) fn take(&self, packet: Packet) {
        self.owner.take(packet);
    }

    /// Makes the machine fetch its packets from `source` itself, which [notes](Card::note) them. Returns
    /// `source` if the machine does not; then the packets must be [taken](Card::take).
    pub(crate) fn attach(&self, source: Box<dyn Source>) -> Result<(), Box<dyn Source>> {
        self.owner.attach(source)
    }

    /// Notes a packet that comes for the card.
    pub(crate) fn note(&self, packet: &Packet) {
        if let Some(capture) = &self.capture {
            capture.write(packet);
        }
    }

    /// Notes that no more packets are sent to the card for now.
    pub(crate) fn flush(&self) {
        self.owner.flush();
    }

    /// Tells the card that it may send again.
    pub(crate) fn relieve(&self) {
        self.owner.relieve();
    }

    /// Notes that the card at the other end has this address.
    pub(crate) fn told_address(&self, address: MacAddress) {
        self.owner.told_address(address);
    }

    /// Notes that the machine at the other end takes short cuts, which are handed over by `to`.
    pub(crate) fn takes_short_cuts(&self, to: &Arc<Outgoing<StreamSink>>) {
        self.owner.takes_short_cuts(to);
    }

    /// Notes that the machine at the other end now sends its packets to the machine with the address `to` by
    /// the short cut.
    pub(crate) fn told_turned(&self, to: MacAddress) {
        self.owner.told_turned(to);
    }

    /// Notes the packets that have come to the machine at the other end by the short cut from the machine
    /// with the address `from`.
    pub(crate) fn told_carried(&self, from: MacAddress, carried: Carried) {
        self.owner.told_carried(from, carried);
    }

    /// Notes that no packets will ever be sent to the card again.
    pub(crate) fn ended(&self) {
        self.owner.ended();
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Card").field(&self.name).finish()
    }
}
