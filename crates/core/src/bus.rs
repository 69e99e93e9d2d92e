//! The port bus: from a port address to the device that answers there.

use thiserror::Error;

use crate::device::Device;
use crate::device::{Context, DeviceId, Width};

/// Ports that a device takes: `first` and the `count` - 1 that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Number of ports, at least 1.
    pub count: u16,
}

impl PortRange {
    /// The range of `count` ports from `first` on.
    pub const fn new(first: u16, count: u16) -> PortRange {
        PortRange { first, count }
    }

    /// True when `port` is one of them.
    pub const fn contains(self, port: u16) -> bool {
        port.wrapping_sub(self.first) < self.count
    }
}

/// Two devices want the same port.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("port {port:#x} of {newcomer} is taken by {owner}")]
pub struct PortConflict {
    port: u16,
    newcomer: &'static str,
    owner: &'static str,
}

/// The devices of a machine and the ports at which they answer.
#[derive(Default)]
pub struct Bus {
    devices: Vec<Box<dyn Device>>,
    ports: Vec<(PortRange, DeviceId)>,
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.devices.iter().map(|device| device.name())).finish()
    }
}

impl Bus {
    /// Adds `device` with the ports at which it answers.
    pub fn attach(
        &mut self,
        device: Box<dyn Device>,
        ports: &[PortRange],
    ) -> Result<DeviceId, PortConflict> {
        for range in ports {
            for port in (0..range.count).map(|offset| range.first.wrapping_add(offset)) {
                if let Some(owner) = self.owner(port) {
                    let owner = self.devices[owner.0 as usize].name();
                    return Err(PortConflict { port, newcomer: device.name(), owner });
                }
            }
        }
        let id = DeviceId(self.devices.len() as u16);
        self.ports.extend(ports.iter().map(|range| (*range, id)));
        self.devices.push(device);
        Ok(id)
    }

    /// The device that answers at `port`.
    pub fn owner(&self, port: u16) -> Option<DeviceId> {
        self.ports.iter().find(|(range, _)| range.contains(port)).map(|(_, id)| *id)
    }

    /// The device with that id, one that this bus gave.
    ///
    /// # Panics
    /// When the id is of another bus.
    pub fn device(&mut self, id: DeviceId) -> &mut dyn Device {
        self.devices[id.0 as usize].as_mut()
    }

    /// The same, to look at.
    ///
    /// # Panics
    /// When the id is of another bus.
    pub fn get(&self, id: DeviceId) -> &dyn Device {
        self.devices[id.0 as usize].as_ref()
    }

    /// Number of devices.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// True when there is no device.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// The device of that name.
    pub fn find(&self, name: &str) -> Option<DeviceId> {
        let index = self.devices.iter().position(|device| device.name() == name)?;
        Some(DeviceId(index as u16))
    }

    /// All devices in the order in which they were attached.
    pub fn devices(&mut self) -> impl Iterator<Item = (DeviceId, &mut dyn Device)> {
        let ids = (0..).map(DeviceId);
        ids.zip(self.devices.iter_mut().map(|device| device.as_mut() as &mut dyn Device))
    }

    /// The guest reads `width` at `port`. The context's device is set by this
    /// call. An access whose ports belong to different devices, or are wider than
    /// the one device at its first port reaches, is split into bytes as the ISA
    /// bus does; where nobody answers it reads ones.
    pub fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        if let Some(id) = self.sole_owner(port, width) {
            context.device = id;
            return self.devices[id.0 as usize].read_port(context, port, width) & width.mask();
        }
        (0..width.bytes()).fold(0, |value, offset| {
            let port = port.wrapping_add(offset);
            let byte = match self.owner(port) {
                Some(id) => {
                    context.device = id;
                    self.devices[id.0 as usize].read_port(context, port, Width::Byte) & 0xff
                }
                None => 0xff,
            };
            value | byte << (8 * offset)
        })
    }

    /// The guest writes `value` of `width` at `port`; split as in [`Bus::read_port`],
    /// dropped where nobody answers.
    pub fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        if let Some(id) = self.sole_owner(port, width) {
            context.device = id;
            return self.devices[id.0 as usize].write_port(
                context,
                port,
                width,
                value & width.mask(),
            );
        }
        for offset in 0..width.bytes() {
            let port = port.wrapping_add(offset);
            if let Some(id) = self.owner(port) {
                context.device = id;
                let byte = value >> (8 * offset) & 0xff;
                self.devices[id.0 as usize].write_port(context, port, Width::Byte, byte);
            }
        }
    }

    /// The device that owns all ports of the access.
    fn sole_owner(&self, port: u16, width: Width) -> Option<DeviceId> {
        let owner = self.owner(port)?;
        (1..width.bytes())
            .all(|offset| self.owner(port.wrapping_add(offset)) == Some(owner))
            .then_some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::TestBench;
    use crate::state::{RestoreError, SavedState};

    /// Remembers the last byte written to each of its ports.
    struct Latch(&'static str, [u32; 4]);

    impl Device for Latch {
        fn name(&self) -> &'static str {
            self.0
        }
        fn reset(&mut self, _: &mut Context<'_>) {
            self.1 = [0; 4];
        }
        fn read_port(&mut self, _: &mut Context<'_>, port: u16, _: Width) -> u32 {
            self.1[usize::from(port & 3)]
        }
        fn write_port(&mut self, _: &mut Context<'_>, port: u16, _: Width, value: u32) {
            self.1[usize::from(port & 3)] = value;
        }
        fn save(&self) -> SavedState {
            SavedState::new(self.name(), 1, &self.1)
        }
        fn restore(&mut self, state: &SavedState) -> Result<(), RestoreError> {
            self.1 = state.load(self.name(), 1)?;
            Ok(())
        }
    }

    #[test]
    fn accesses_reach_their_device_or_are_split() {
        let mut bus = Bus::default();
        bus.attach(Box::new(Latch("a", [0; 4])), &[PortRange::new(0x60, 2)]).unwrap();
        bus.attach(Box::new(Latch("b", [0; 4])), &[PortRange::new(0x62, 1)]).unwrap();
        let mut bench = TestBench::default();
        bus.write_port(&mut bench.context(), 0x60, Width::Word, 0xffff_1234);
        assert_eq!(bus.read_port(&mut bench.context(), 0x60, Width::Word), 0x1234);
        bus.write_port(&mut bench.context(), 0x60, Width::Dword, 0x4433_2211);
        assert_eq!(bus.read_port(&mut bench.context(), 0x60, Width::Dword), 0xff33_2211);
        assert_eq!(bus.read_port(&mut bench.context(), 0xffff, Width::Word), 0xffff);
    }

    #[test]
    fn conflicts_are_refused() {
        let mut bus = Bus::default();
        bus.attach(Box::new(Latch("a", [0; 4])), &[PortRange::new(0x60, 2)]).unwrap();
        let error =
            bus.attach(Box::new(Latch("b", [0; 4])), &[PortRange::new(0x5f, 4)]).unwrap_err();
        assert_eq!(error.to_string(), "port 0x60 of b is taken by a");
    }
}
