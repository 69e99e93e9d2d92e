//! The one door by which anything from outside enters a machine.
//!
//! Everything that the guest's own execution does not determine is an
//! [`Input`]: host time, keys, bytes on a serial line. The machine takes inputs
//! only between two instructions and stamps each with the number of instructions
//! executed until then; a machine that is given the same inputs at the same
//! counts does the same again.

use serde::{Deserialize, Serialize};

use crate::clock::Time;
use crate::disk::{DiskAnswer, Medium};
use crate::net::Packet;
use crate::state::SavedState;

/// Something from outside for one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceInput {
    /// Bytes have come in on a serial line.
    Serial(Vec<u8>),
    /// A key was pressed or released.
    Key {
        /// Which.
        key: Key,
        /// It is down now.
        pressed: bool,
    },
    /// The mouse was moved or a button of it changed.
    Mouse(MouseMove),
    /// A drive has an answer.
    Disk(DiskAnswer),
    /// A person has changed the medium of a drive that takes removable ones.
    Medium {
        /// Which drive of the device, from 0.
        unit: u8,
        /// What is in it now.
        medium: Option<Medium>,
    },
    /// A person has pressed the eject button of a drive whose medium the guest holds: the guest is asked for it.
    EjectRequest {
        /// Which drive of the device, from 0.
        unit: u8,
    },
    /// A packet has come for a network card.
    Packet(Packet),
    /// The cable of a network card leads somewhere, or does not any more.
    Link(bool),
    /// The network behind a card is congested: it takes what the card has begun to send, and the card is to begin nothing more until it
    /// hears that this is over.
    Congestion(bool),
    /// A card was put into a PCI slot: what the controller of hot plug is told.
    CardAdded {
        /// PCI device number.
        slot: u8,
    },
    /// A person wants the card in a PCI slot back: the controller of hot plug asks the guest for it.
    CardWanted {
        /// PCI device number.
        slot: u8,
    },
    /// A person has pressed the power button for a moment.
    PowerButton,
}

/// A key of a PC keyboard, named by the code that scan code set 1 has for it: the make code, and E000h
/// more where that comes after E0h. Pause is E11Dh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key(pub u16);

/// What a mouse reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MouseMove {
    /// To the right, in counts.
    pub right: i32,
    /// Downwards.
    pub down: i32,
    /// The wheel, towards the user.
    pub wheel: i32,
    /// The left button is down now.
    pub left_button: bool,
    /// The middle one.
    pub middle_button: bool,
    /// The right one.
    pub right_button: bool,
}

/// Something from outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// For the device of that name.
    Device {
        /// [`Device::name`](crate::device::Device::name).
        name: String,
        /// What has come.
        input: DeviceInput,
    },
    /// The host's clock says `time`; from here on the virtual clock is to run at
    /// `picos_per_instruction`.
    HostTime {
        /// Host time since the machine was switched on.
        time: Time,
        /// The new rate of the virtual clock.
        picos_per_instruction: u64,
    },
    /// A person puts a card into a PCI slot.
    Plug {
        /// What the device is called from now on, which says the slot, too.
        name: String,
        /// What the card is, as the machine knows it.
        card: SavedState,
    },
    /// A person has pressed the reset button.
    Reset,
    /// A person has pressed the button of the non-maskable interrupt, as servers have one.
    Nmi,
    /// The person outside ends the run.
    Quit,
}

/// An input and when it came in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StampedInput {
    /// Instructions that the guest had executed.
    pub instructions: u64,
    /// Virtual time, which goes on while the guest waits and executes nothing.
    pub time: Time,
    /// What came in.
    pub input: Input,
}
