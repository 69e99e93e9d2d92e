//! DMA on the ISA bus: the request lines and the bytes that pass between devices and the DMA controller.
//!
//! A device raises its request line ([`Context::request_dma`](crate::device::Context::request_dma)). After
//! that call the board makes the DMA controller serve the lines that are high: it calls
//! [`Device::dma`](crate::device::Device::dma) with the bytes until the device lowers its line or the count
//! of the channel ends. While a channel is not set up, its request waits.

use serde::{Deserialize, Serialize};

use crate::device::DeviceId;

/// The DMA request lines, DRQ 0 to DRQ 7. DRQ 4 connects the two controllers and belongs to no device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Drivers", into = "Drivers")]
pub struct DmaRequests {
    drivers: Drivers,
    /// A bit for each line that is high.
    lines: u8,
}

/// For each line, the device that drives it high.
type Drivers = [Option<DeviceId>; DmaRequests::COUNT as usize];

impl From<Drivers> for DmaRequests {
    fn from(drivers: Drivers) -> DmaRequests {
        let bit = |(line, driver): (usize, &Option<DeviceId>)| u8::from(driver.is_some()) << line;
        let lines = drivers.iter().enumerate().map(bit).fold(0, |lines, bit| lines | bit);
        DmaRequests { drivers, lines }
    }
}

impl From<DmaRequests> for Drivers {
    fn from(requests: DmaRequests) -> Drivers {
        requests.drivers
    }
}

impl DmaRequests {
    /// Number of lines.
    pub const COUNT: u8 = 8;

    /// Makes device `device` drive line `channel` (0 to 7; others are ignored) high, or stop driving it.
    pub fn set(&mut self, device: DeviceId, channel: u8, high: bool) {
        if let Some(driver) = self.drivers.get_mut(usize::from(channel)) {
            if high {
                *driver = Some(device);
                self.lines |= 1 << channel;
            } else if *driver == Some(device) {
                *driver = None;
                self.lines &= !(1 << channel);
            }
        }
    }

    /// Returns the device that drives line `channel` high.
    pub fn driver(&self, channel: u8) -> Option<DeviceId> {
        *self.drivers.get(usize::from(channel))?
    }

    /// Returns a bit for each line that is high.
    pub fn lines(&self) -> u8 {
        self.lines
    }

    /// Returns whether no line is high.
    pub fn are_none(&self) -> bool {
        self.lines == 0
    }

    /// Returns the devices that drive lines high.
    pub fn drivers(&self) -> impl Iterator<Item = DeviceId> {
        self.drivers.iter().flatten().copied()
    }
}

/// The bytes that a channel still has to transfer. A device moves as many as it can, from the first on;
/// terminal count comes with the last one.
#[derive(Debug)]
pub enum DmaBytes<'a> {
    /// The device provides the bytes (a "write" to memory, or a "verify").
    FromDevice(&'a mut [u8]),
    /// The device takes the bytes (a "read" from memory).
    ToDevice(&'a [u8]),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_belongs_to_the_device_that_drives_it() {
        let (a, b) = (DeviceId::FLOPPY, DeviceId::IDE);
        let mut requests = DmaRequests::default();
        requests.set(a, 2, true);
        requests.set(b, 2, false);
        requests.set(b, 5, true);
        requests.set(b, 8, true);
        assert_eq!((requests.lines(), requests.driver(2)), (1 << 2 | 1 << 5, Some(a)));
        requests.set(a, 2, false);
        assert_eq!(requests.drivers().collect::<Vec<_>>(), [b]);
        assert_eq!(requests.driver(8), None);
        let restored = DmaRequests::from(Drivers::from(requests.clone()));
        assert_eq!((restored.lines(), restored), (1 << 5, requests));
    }
}
