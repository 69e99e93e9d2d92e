//! The one door by which anything from outside enters a machine.
//!
//! Everything that the guest's own execution does not determine is an
//! [`Input`]: host time, keys, bytes on a serial line. The machine takes inputs
//! only between two instructions and stamps each with the number of instructions
//! executed until then; a machine that is given the same inputs at the same
//! counts does the same again.

use serde::{Deserialize, Serialize};

use crate::clock::Time;

/// Something from outside for one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceInput {
    /// Bytes have come in on a serial line.
    Serial(Vec<u8>),
}

/// Something from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The person outside ends the run.
    Quit,
}

/// An input and when it came in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StampedInput {
    /// Instructions that the guest had executed.
    pub instructions: u64,
    /// What came in.
    pub input: Input,
}
