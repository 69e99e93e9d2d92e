//! A network card, as the network behind it sees it.

use std::fmt;
use std::sync::Arc;

use ring3_core::input::{DeviceInput, Input};
use ring3_core::net::{MacAddress, Packet};
use ring3_vm::{Sender, Source};

use crate::capture::Capture;
use crate::message::Carried;
use crate::outgoing::Outgoing;
use crate::stream::StreamSink;

/// A card to which packets are sent: that of a machine, or a port of a switch.
#[derive(Clone)]
pub struct Card {
    name: String,
    address: Option<MacAddress>,
    taker: Arc<dyn Taker>,
    capture: Option<Arc<Capture>>,
}

/// Who has a card.
pub(crate) trait Taker: Send + Sync {
    /// A packet has come for it. It may wait while there are too many of them.
    fn take(&self, packet: Packet);

    /// Has the machine [fetch](Source) its packets from `source` itself. Given back if it does not.
    fn attach(&self, source: Box<dyn Source>) -> Result<(), Box<dyn Source>> {
        Err(source)
    }

    /// For now no more packets come.
    fn flush(&self) {}

    /// What it sends is not too much any more.
    fn relieve(&self);

    /// The machine at the other end has a card with that address.
    fn told_address(&self, _address: MacAddress) {}

    /// The machine at the other end takes short cuts, which are to be handed over by `to`.
    fn takes_short_cuts(&self, _to: &Arc<Outgoing<StreamSink>>) {}

    /// What the machine at the other end sends to the one with the address `to` goes by the short cut from now on.
    fn told_turned(&self, _to: MacAddress) {}

    /// What has come to the machine at the other end by the short cut from the machine with the address `from`.
    fn told_carried(&self, _from: MacAddress, _carried: Carried) {}

    /// Nothing will ever come again.
    fn ended(&self) {}
}

/// A card of a machine.
struct OfMachine {
    name: String,
    sender: Sender,
}

impl OfMachine {
    fn send(&self, input: DeviceInput) {
        self.sender.send(Input::Device { name: self.name.clone(), input });
    }
}

impl Taker for OfMachine {
    fn take(&self, packet: Packet) {
        self.send(DeviceInput::Packet(packet));
    }

    fn attach(&self, source: Box<dyn Source>) -> Result<(), Box<dyn Source>> {
        self.sender.attach(source)
    }

    fn relieve(&self) {
        self.send(DeviceInput::Congestion(false));
    }
}

impl Card {
    /// The card `name` of the machine to whose door `sender` sends. What comes for it goes to `capture` too.
    pub fn new(name: &str, sender: Sender, capture: Option<Arc<Capture>>) -> Card {
        let taker = Arc::new(OfMachine { name: name.to_owned(), sender });
        Card { name: name.to_owned(), address: None, taker, capture }
    }

    /// The same with the address that it has, which is told to a switch.
    #[must_use]
    pub fn with_address(self, address: MacAddress) -> Card {
        Card { address: Some(address), ..self }
    }

    /// One of somebody else.
    pub(crate) fn of(name: &str, taker: Arc<dyn Taker>) -> Card {
        Card { name: name.to_owned(), address: None, taker, capture: None }
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its address, if it has one that it keeps.
    pub(crate) fn address(&self) -> Option<MacAddress> {
        self.address
    }

    /// Where a copy of all packets goes.
    pub(crate) fn capture(&self) -> Option<&Arc<Capture>> {
        self.capture.as_ref()
    }

    /// Sends it a packet, which waits while the card has too many of them.
    pub(crate) fn deliver(&self, packet: Packet) {
        self.note(&packet);
        self.take(packet);
    }

    /// The same with one that was [noted](Card::note).
    pub(crate) fn take(&self, packet: Packet) {
        self.taker.take(packet);
    }

    /// Has the machine fetch its packets from `source` itself, which [notes](Card::note) them. Given back if it does not: then the card is to [take](Card::take) them.
    pub(crate) fn attach(&self, source: Box<dyn Source>) -> Result<(), Box<dyn Source>> {
        self.taker.attach(source)
    }

    /// A packet comes for it.
    pub(crate) fn note(&self, packet: &Packet) {
        if let Some(capture) = &self.capture {
            capture.write(packet);
        }
    }

    /// For now nothing more is sent to it.
    pub(crate) fn flush(&self) {
        self.taker.flush();
    }

    /// What it sends is not too much any more.
    pub(crate) fn relieve(&self) {
        self.taker.relieve();
    }

    /// The card at the other end has that address.
    pub(crate) fn told_address(&self, address: MacAddress) {
        self.taker.told_address(address);
    }

    /// The machine at the other end takes short cuts, which are to be handed over by `to`.
    pub(crate) fn takes_short_cuts(&self, to: &Arc<Outgoing<StreamSink>>) {
        self.taker.takes_short_cuts(to);
    }

    /// What the machine at the other end sends to the one with the address `to` goes by the short cut from now on.
    pub(crate) fn told_turned(&self, to: MacAddress) {
        self.taker.told_turned(to);
    }

    /// That is what has come to the machine at the other end by the short cut from the machine with the address `from`.
    pub(crate) fn told_carried(&self, from: MacAddress, carried: Carried) {
        self.taker.told_carried(from, carried);
    }

    /// Nothing will ever be sent to it again.
    pub(crate) fn ended(&self) {
        self.taker.ended();
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Card").field(&self.name).finish()
    }
}
