//! Address line 20 of the processor, which devices can keep low.
//!
//! The keyboard controller and port 92h drive it. While the line is low, the processor masks bit 20 when it
//! translates addresses, and its TLB holds masked addresses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::device::DeviceId;

/// The line to the processor's A20M# pin. Devices drive it
/// ([`Context::drive_a20`](crate::device::Context::drive_a20)) through an OR gate: the line is low while all
/// its drivers drive it low, and pulled up where nothing drives it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<DeviceId, bool>", into = "BTreeMap<DeviceId, bool>")]
pub struct A20Line {
    /// The level to which each device drives the line.
    drivers: BTreeMap<DeviceId, bool>,
    /// Whether some device drives the line and none drives it high. This is cached because it is needed after
    /// each access to a device.
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
    /// Makes `device` drive its input of the gate high or low.
    pub fn drive(&mut self, device: DeviceId, high: bool) {
        self.drivers.insert(device, high);
        self.is_low = !self.drivers.values().any(|high| *high);
    }

    /// Returns the level of the line.
    pub fn is_high(&self) -> bool {
        !self.is_low
    }

    /// Returns the devices that drive the line.
    pub fn drivers(&self) -> impl Iterator<Item = DeviceId> {
        self.drivers.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_driver_is_enough_to_hold_it_high() {
        let (a, b) = (DeviceId::I8042, DeviceId::PORT92);
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
