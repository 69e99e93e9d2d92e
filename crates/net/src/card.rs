//! The card of a machine, as the network behind it sees it.

use std::fmt;
use std::sync::Arc;

use ring3_core::input::{DeviceInput, Input};
use ring3_core::net::Packet;
use ring3_vm::Sender;

use crate::capture::Capture;

/// A card to which packets are sent.
#[derive(Clone)]
pub struct Card {
    name: String,
    sender: Sender,
    capture: Option<Arc<Capture>>,
}

impl Card {
    /// The card `name` of the machine to whose door `sender` sends. What comes for it goes to `capture` too.
    pub fn new(name: &str, sender: Sender, capture: Option<Arc<Capture>>) -> Card {
        Card { name: name.to_owned(), sender, capture }
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where a copy of all packets goes.
    pub(crate) fn capture(&self) -> Option<&Arc<Capture>> {
        self.capture.as_ref()
    }

    /// Sends it a packet, which waits while the card has too many of them.
    pub(crate) fn deliver(&self, packet: Packet) {
        if let Some(capture) = &self.capture {
            capture.write(&packet);
        }
        self.send(DeviceInput::Packet(packet));
    }

    /// What it sends is not too much any more.
    pub(crate) fn relieve(&self) {
        self.send(DeviceInput::Congestion(false));
    }

    fn send(&self, input: DeviceInput) {
        self.sender.send(Input::Device { name: self.name.clone(), input });
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Card").field(&self.name).finish()
    }
}
