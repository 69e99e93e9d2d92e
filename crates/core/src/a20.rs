//! Address line 20 of the processor, which devices can keep low.
//!
//! The keyboard controller and port 92h drive it. While it is low, the processor masks bit 20 where it translates
//! addresses, and its TLB holds masked addresses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::device::DeviceId;

/// The line to the processor's A20M# pin. Devices drive it
/// ([`Context::drive_a20`](crate::device::Context::drive_a20)) through an OR gate: it is low while all of them
/// drive it low, and pulled up where none drives it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct A20Line(BTreeMap<DeviceId, bool>);

impl A20Line {
    /// `device` drives its input of the gate high or low.
    pub fn drive(&mut self, device: DeviceId, high: bool) {
        self.0.insert(device, high);
    }

    /// The level of the line.
    pub fn is_high(&self) -> bool {
        self.0.is_empty() || self.0.values().any(|high| *high)
    }

    /// The devices that drive it.
    pub fn drivers(&self) -> impl Iterator<Item = DeviceId> {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_driver_is_enough_to_hold_it_high() {
        let (a, b) = (DeviceId(1), DeviceId(2));
        let mut line = A20Line::default();
        assert!(line.is_high());
        for ([first, second], expected) in
            [([false, true], true), ([false, false], false), ([true, false], true)]
        {
            line.drive(a, first);
            line.drive(b, second);
            assert_eq!(line.is_high(), expected);
        }
        assert_eq!(line.drivers().collect::<Vec<_>>(), [a, b]);
    }
}
