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
#[serde(from = "BTreeMap<DeviceId, bool>", into = "BTreeMap<DeviceId, bool>")]
pub struct A20Line {
    /// Who drives it, and how.
    drivers: BTreeMap<DeviceId, bool>,
    /// Somebody drives it, and nobody high: after each access to a device this is asked.
    is_low: bool,
}

impl From<BTreeMap<DeviceId, bool>> for A20Line {
    fn from(drivers: BTreeMap<DeviceId, bool>) -> A20Line {
        let is_low = !drivers.is_empty() && !drivers.values().any(|high| *high);
        A20Line { drivers, is_low }
    }
}

impl From<A20Line> for BTreeMap<DeviceId, bool> {
    fn from(line: A20Line) -> BTreeMap<DeviceId, bool> {
        line.drivers
    }
}

impl A20Line {
    /// `device` drives its input of the gate high or low.
    pub fn drive(&mut self, device: DeviceId, high: bool) {
        self.drivers.insert(device, high);
        self.is_low = !self.drivers.values().any(|high| *high);
    }

    /// The level of the line.
    pub fn is_high(&self) -> bool {
        !self.is_low
    }

    /// The devices that drive it.
    pub fn drivers(&self) -> impl Iterator<Item = DeviceId> {
        self.drivers.keys().copied()
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
        line.drive(a, false);
        let restored = A20Line::from(BTreeMap::from(line.clone()));
        assert!(!restored.is_high() && restored == line);
        assert!(A20Line::from(BTreeMap::new()).is_high());
    }
}
