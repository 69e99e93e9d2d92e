//! The lines behind serial cards, which come and go with the cards.
//!
//! A card sends bytes as outputs. Bytes for it are inputs, [`DeviceInput::Serial`], from whoever has a sender of the machine's
//! door. So a replay needs no line, and the guest's bytes go nowhere then. The ports of a PC, which stay, are the
//! [`Console`](crate::Console)'s.
//!
//! [`DeviceInput::Serial`]: ring3_core::input::DeviceInput::Serial

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;

use ring3_core::device::DeviceId;

/// The line behind a serial card. When it is dropped, the card is gone, and nothing more may be sent to it.
pub trait SerialLine: Debug + Send {
    /// Takes bytes of the guest. It never waits for a peer.
    ///
    /// # Errors
    /// When the host cannot write them. The run ends then.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// The lines of a machine, by their cards.
#[derive(Debug, Default)]
pub(crate) struct SerialLines(BTreeMap<DeviceId, Attached>);

#[derive(Debug)]
struct Attached {
    /// The name by which people know the other end, if it has one.
    character: Option<String>,
    line: Box<dyn SerialLine>,
}

impl SerialLines {
    /// Attaches `line` to `card`, in the place of the present one. People know its other end as `character`.
    pub(crate) fn attach(
        &mut self,
        card: DeviceId,
        character: Option<String>,
        line: Box<dyn SerialLine>,
    ) {
        self.0.insert(card, Attached { character, line });
    }

    /// Detaches the line of `card`, which closes it.
    pub(crate) fn detach(&mut self, card: DeviceId) {
        self.0.remove(&card);
    }

    /// Returns the name by which people know the other end of the line of `card`.
    pub(crate) fn character(&self, card: DeviceId) -> Option<&str> {
        self.0.get(&card)?.character.as_deref()
    }

    /// Returns the line of the serial port with this number, if it is one of a card.
    pub(crate) fn get(&mut self, port: u8) -> Option<&mut (dyn SerialLine + 'static)> {
        let card = DeviceId::SERIAL.get(usize::from(port))?;
        Some(&mut *self.0.get_mut(card)?.line)
    }
}
