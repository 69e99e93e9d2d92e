//! The one door through which every event from outside enters a machine.
//!
//! Everything that the guest's own execution does not determine is an [`Input`]: host time, keys, bytes on a
//! serial line. The machine takes inputs only between two instructions and stamps each with the number of
//! instructions executed until then. A machine that receives the same inputs at the same counts runs in the
//! same way again.

use serde::{Deserialize, Serialize};

use crate::balloon::BalloonRequest;
use crate::channel::ChannelEvent;
use crate::clock::Time;
use crate::device::DeviceId;
use crate::disk::{DiskAnswer, Medium};
use crate::net::Packet;
use crate::state::SavedState;

/// An event from outside for one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceInput {
    /// Bytes have arrived on a serial line.
    Serial(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A key was pressed or released.
    Key {
        /// The key.
        key: Key,
        /// Whether the key is down now.
        pressed: bool,
    },
    /// The mouse was moved, or one of its buttons has changed.
    Mouse(MouseMove),
    /// A drive has an answer.
    Disk(DiskAnswer),
    /// A person has changed the medium of a drive that takes removable ones.
    Medium {
        /// The drive's number at the device, from 0.
        unit: u8,
        /// The medium that is in the drive now.
        medium: Option<Medium>,
    },
    /// A person has pressed the eject button of a drive whose medium the guest has locked. The guest is asked
    /// to release the medium.
    EjectRequest {
        /// The drive's number at the device, from 0.
        unit: u8,
    },
    /// A packet has arrived for a network card.
    Packet(Packet),
    /// The cable of a network card was connected (true) or disconnected (false).
    Link(bool),
    /// The network behind a card is congested (true) or no longer congested (false). A congested network
    /// takes the packets that the card has begun to send, but the card must begin no others until the
    /// congestion is over.
    Congestion(bool),
    /// A card was put into a PCI slot; this tells the hot-plug controller.
    CardAdded {
        /// PCI device number.
        slot: u8,
    },
    /// A person wants to remove the card in a PCI slot. The hot-plug controller asks the guest to release it.
    CardWanted {
        /// PCI device number.
        slot: u8,
    },
    /// The other end of a channel does something.
    Channel {
        /// Number of the channel, from 0.
        channel: u8,
        /// What it does.
        event: ChannelEvent,
    },
    /// Somebody outside wants something of the memory balloon.
    Balloon(BalloonRequest),
    /// Of the memory that comes and goes, somebody outside wants so much to be there.
    ExtraMemory {
        /// The number of bytes.
        bytes: u64,
    },
    /// A person has pressed the power button briefly.
    PowerButton,
    /// The machine has become another one, with this generation ID.
    Generation([u8; 16]),
    /// The ports of power management begin here; this tells the firmware configuration device, whose tables name
    /// them.
    PowerManagement {
        /// The first port.
        port: u16,
    },
}

/// A key of a PC keyboard, identified by its code in scan code set 1: the make code, plus E000h for keys
/// whose make code follows E0h. Pause is E11Dh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key(pub u16);

/// A mouse report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MouseMove {
    /// Movement to the right, in counts.
    pub right: i32,
    /// Movement downwards, in counts.
    pub down: i32,
    /// Movement of the wheel towards the user, in counts.
    pub wheel: i32,
    /// Whether the left button is down now.
    pub left_button: bool,
    /// Whether the middle button is down now.
    pub middle_button: bool,
    /// Whether the right button is down now.
    pub right_button: bool,
}

/// The host's clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostClocks {
    /// The time-stamp counter of the host's processor.
    pub time_stamp: u64,
    /// Seconds since 1970-01-01 00:00:00 UTC, modulo 2^32.
    pub seconds: u32,
    /// Microseconds in that second.
    pub microseconds: u32,
}

/// An event from outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// An event for one device.
    Device {
        /// The device. The field has the name that recordings of all versions use.
        #[serde(rename = "name")]
        device: DeviceId,
        /// The event.
        input: DeviceInput,
    },
    /// The host's clock says `time`. From here on the virtual clock runs at `picos_per_instruction`.
    HostTime {
        /// Host time since the machine was switched on.
        time: Time,
        /// The new rate of the virtual clock.
        picos_per_instruction: u64,
    },
    /// The guest reads the host's clocks, which a guest tool allows, and finds these values.
    HostClocks(HostClocks),
    /// A person puts a card into a PCI slot.
    Plug {
        /// The device that the card is from now on, which also identifies the slot.
        #[serde(rename = "name")]
        device: DeviceId,
        /// The card, as the machine describes it.
        card: SavedState,
    },
    /// A person has pressed the reset button.
    Reset,
    /// A person has pressed the NMI button, which servers have.
    Nmi,
    /// The machine was kept as it is here, for a recording that may begin here. What the processor remembers of
    /// page tables is forgotten, as a machine that begins here has no memory of them.
    Checkpoint,
    /// A person ends the run.
    Quit,
}

/// An input, and when it arrived.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StampedInput {
    /// Number of instructions that the guest had executed.
    pub instructions: u64,
    /// Virtual time, which also passes while the guest waits and executes nothing.
    pub time: Time,
    /// The input itself.
    pub input: Input,
}

impl StampedInput {
    /// Returns the number of instructions with which a machine must have come so far that it has taken this
    /// input. Most inputs come between two instructions, but a guest that asks for the host's clocks gets them
    /// in the instruction by which it asks.
    pub fn taken_by(&self) -> u64 {
        let is_asked_for = matches!(self.input, Input::HostClocks(_));
        self.instructions.saturating_add(is_asked_for.into())
    }

    /// Returns whether these are the host's clocks, for which the guest has asked after `instructions`
    /// instructions.
    pub fn is_read_after(&self, instructions: u64) -> bool {
        self.instructions == instructions && matches!(self.input, Input::HostClocks(_))
    }
}

#[cfg(test)]
mod tests {
    use ciborium::cbor;

    use super::*;
    use crate::disk::DiskError;

    /// Recordings outlive the program, so their format must not change with it.
    #[test]
    fn recordings_of_earlier_versions_are_read() {
        let card = SavedState::new("card", 1, &());
        let serial = DeviceInput::Serial(b"hi".to_vec());
        let serial = Input::Device { device: DeviceId::COM[0], input: serial };
        let answer = |result| {
            let input = DeviceInput::Disk(DiskAnswer { tag: 7, result });
            Input::Device { device: DeviceId::IDE, input }
        };
        let bytes = ciborium::Value::Bytes(b"hi".to_vec());
        let numbers = || cbor!([104, 105]).unwrap();
        let disk = |result| cbor!({"Device" => {"name" => "ide", "input" => {"Disk" => {"tag" => 7, "result" => result}}}});
        let failed = cbor!({"Err" => "NoSpace"}).unwrap();
        let com = |bytes| cbor!({"Device" => {"name" => "com1", "input" => {"Serial" => bytes}}});
        let plug = cbor!({"Plug" => {"name" => "virtio-blk3", "card" => card}});
        // What is written now, and, where it differs, as versions 1 and 2 have it.
        for (recorded, earlier, input) in [
            (com(bytes.clone()), Some(com(numbers())), serial),
            (
                disk(cbor!({"Ok" => bytes}).unwrap()),
                Some(disk(cbor!({"Ok" => numbers()}).unwrap())),
                answer(Ok(b"hi".to_vec())),
            ),
            (disk(failed), None, answer(Err(DiskError::NoSpace))),
            (plug, None, Input::Plug { device: DeviceId::VIRTIO_BLK[3], card }),
        ] {
            let recorded = recorded.unwrap();
            assert_eq!(ciborium::Value::serialized(&input).unwrap(), recorded);
            for recorded in [Some(recorded), earlier.map(Result::unwrap)].into_iter().flatten() {
                let mut file = Vec::new();
                ciborium::into_writer(&recorded, &mut file).unwrap();
                assert_eq!(ciborium::from_reader::<Input, _>(&file[..]).unwrap(), input);
            }
        }
    }
}
