//! The buses, which find the device that answers at a port, a guest-physical address or a PCI function.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::device::{Context, Device, DeviceId, Width};

/// A range of ports that a device takes: `first` and the `count` - 1 ports after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Number of ports, at least 1.
    pub count: u16,
}

impl PortRange {
    /// Makes the range of `count` ports from `first` on.
    pub const fn new(first: u16, count: u16) -> PortRange {
        PortRange { first, count }
    }

    /// Returns whether `port` is in this range.
    pub const fn contains(self, port: u16) -> bool {
        port.wrapping_sub(self.first) < self.count
    }
}

/// Where a device answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decoded {
    /// At a range of ports.
    Ports(PortRange),
    /// At a range of guest-physical addresses.
    Memory {
        /// The first address.
        start: u64,
        /// The number of addresses.
        len: u64,
    },
    /// Nowhere.
    Nothing,
}

/// A device's request to answer somewhere from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The device.
    pub device: DeviceId,
    /// The device's region, numbered as the device likes, for example by base address register.
    pub region: u8,
    /// Where the device answers.
    pub decoded: Decoded,
}

/// The error for two devices that want the same port.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("port {port:#x} of {newcomer} is taken by {owner}")]
pub struct PortConflict {
    port: u16,
    newcomer: &'static str,
    owner: &'static str,
}

/// Returns the ports of `claim`, if it claims ports.
fn ports_of(claim: Claim) -> Option<PortRange> {
    if let Decoded::Ports(range) = claim.decoded { Some(range) } else { None }
}

/// The devices of a machine and the ports at which they answer.
pub struct Bus {
    /// The devices that this machine has, by [`DeviceId::index`].
    devices: [Option<Box<dyn Device>>; DeviceId::COUNT],
    ports: Vec<(PortRange, DeviceId)>,
    /// The owner of each port according to `ports` and `claims`. The table is empty until they name any port.
    by_port: Vec<Option<DeviceId>>,
    /// The claims of devices, the oldest first.
    claims: Vec<Claim>,
    /// For each function on PCI bus 0: its device number, its function number, and the device.
    functions: Vec<(u8, u8, DeviceId)>,
}

impl Default for Bus {
    fn default() -> Bus {
        Bus {
            devices: [const { None }; DeviceId::COUNT],
            ports: Vec::new(),
            by_port: Vec::new(),
            claims: Vec::new(),
            functions: Vec::new(),
        }
    }
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.devices.iter().flatten().map(|device| device.name())).finish()
    }
}

impl Bus {
    /// Adds `device` with the ports at which it answers.
    ///
    /// # Panics
    /// When the machine has this device already.
    pub fn attach(
        &mut self,
        device: Box<dyn Device>,
        ports: &[PortRange],
    ) -> Result<DeviceId, PortConflict> {
        for range in ports {
            for port in (0..range.count).map(|offset| range.first.wrapping_add(offset)) {
                if let Some(owner) = self.attached(port) {
                    let owner = self.get(owner).name();
                    return Err(PortConflict { port, newcomer: device.name(), owner });
                }
            }
        }
        let id = self.plug(device);
        self.ports.extend(ports.iter().map(|range| (*range, id)));
        for range in ports {
            self.index_ports(*range);
        }
        Ok(id)
    }

    /// Finds the owners of the ports of `range` again, since they may have changed.
    fn index_ports(&mut self, range: PortRange) {
        self.by_port.resize(1 << u16::BITS, None);
        for port in (0..range.count).map(|offset| range.first.wrapping_add(offset)) {
            self.by_port[usize::from(port)] = self.attached(port).or_else(|| self.claimed(port));
        }
    }

    /// Returns the device that was attached at `port`.
    fn attached(&self, port: u16) -> Option<DeviceId> {
        self.ports.iter().find(|(range, _)| range.contains(port)).map(|(_, id)| *id)
    }

    /// Returns the device whose claim of `port` is the oldest.
    fn claimed(&self, port: u16) -> Option<DeviceId> {
        let claims =
            |claim: &&Claim| matches!(claim.decoded, Decoded::Ports(range) if range.contains(port));
        self.claims.iter().find(claims).map(|claim| claim.device)
    }

    /// Adds `device`, which answers where it claims to, and returns its id.
    ///
    /// # Panics
    /// Panics if the machine has this device already.
    pub fn plug(&mut self, device: Box<dyn Device>) -> DeviceId {
        let id = device.id();
        let place = &mut self.devices[id.index()];
        assert!(place.is_none(), "one device is in the place of another");
        *place = Some(device);
        id
    }

    /// Removes a device, which then answers nowhere any more.
    pub fn unplug(&mut self, id: DeviceId) -> Option<Box<dyn Device>> {
        let is_its = |claim: &Claim| claim.device == id;
        let attached = self.ports.extract_if(.., |(_, owner)| *owner == id).map(|(range, _)| range);
        let claimed = self.claims.extract_if(.., |claim| is_its(claim)).filter_map(ports_of);
        let ports: Vec<_> = attached.chain(claimed).collect();
        for range in ports {
            self.index_ports(range);
        }
        self.functions.retain(|(_, _, owner)| *owner != id);
        self.devices[id.index()].take()
    }

    /// Returns the device that answers at `port`. Devices that were attached at the port precede all claims;
    /// among claims, the oldest counts.
    pub fn owner(&self, port: u16) -> Option<DeviceId> {
        self.by_port.get(usize::from(port)).copied().flatten()
    }

    /// Adds a claim, which replaces the device's older claim of the same region.
    pub fn claim(&mut self, claim: Claim) {
        let is_old = |old: &mut Claim| (old.device, old.region) == (claim.device, claim.region);
        let old: Vec<_> = self.claims.extract_if(.., is_old).collect();
        if claim.decoded != Decoded::Nothing {
            self.claims.push(claim);
        }
        for range in old.into_iter().chain([claim]).filter_map(ports_of) {
            self.index_ports(range);
        }
    }

    /// Drops all claims, which a reset does before it resets the devices.
    pub fn forget_claims(&mut self) {
        for range in std::mem::take(&mut self.claims).into_iter().filter_map(ports_of) {
            self.index_ports(range);
        }
    }

    /// Returns all claims, for a saved machine.
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Makes device `id` answer for the configuration space of function `function` (0 to 7) of PCI device
    /// number `slot` (0 to 31) on bus 0.
    pub fn attach_function(&mut self, id: DeviceId, slot: u8, function: u8) {
        self.functions.push((slot, function, id));
    }

    /// Performs the guest's read of `width` at `offset` of the configuration space of a function on PCI bus
    /// 0. A function that does not exist reads as ones.
    pub fn read_config(
        &mut self,
        context: &mut Context<'_>,
        slot: u8,
        function: u8,
        offset: u8,
        width: Width,
    ) -> u32 {
        let Some(id) = self.function(slot, function) else { return width.mask() };
        context.device = id;
        self.device(id).read_config(context, function, offset, width) & width.mask()
    }

    /// Performs the guest's write of `value` of `width` to configuration space. A write to a function that
    /// does not exist is dropped.
    pub fn write_config(
        &mut self,
        context: &mut Context<'_>,
        slot: u8,
        function: u8,
        offset: u8,
        width: Width,
        value: u32,
    ) {
        if let Some(id) = self.function(slot, function) {
            context.device = id;
            let value = value & width.mask();
            self.device(id).write_config(context, function, offset, width, value);
        }
    }

    fn function(&self, slot: u8, function: u8) -> Option<DeviceId> {
        let found = |entry: &&(u8, u8, DeviceId)| (entry.0, entry.1) == (slot, function);
        self.functions.iter().find(found).map(|(_, _, id)| *id)
    }

    /// Performs the guest's read of `width` at guest-physical address `address`, where no memory is. An
    /// address that no device owns reads as ones.
    pub fn read_memory(&mut self, context: &mut Context<'_>, address: u64, width: Width) -> u32 {
        let Some((id, region, offset)) = self.memory_owner(address) else { return width.mask() };
        context.device = id;
        self.device(id).read_memory(context, region, offset, width) & width.mask()
    }

    /// Performs the guest's write of `value` of `width` at guest-physical address `address`, where no memory
    /// is. A write to an address that no device owns is dropped.
    pub fn write_memory(
        &mut self,
        context: &mut Context<'_>,
        address: u64,
        width: Width,
        value: u32,
    ) {
        if let Some((id, region, offset)) = self.memory_owner(address) {
            context.device = id;
            let value = value & width.mask();
            self.device(id).write_memory(context, region, offset, width, value);
        }
    }

    /// Returns the device that answers at guest-physical address `address`, its region there and the offset
    /// in the region. Where several devices claim the address, the oldest claim counts.
    pub fn memory_owner(&self, address: u64) -> Option<(DeviceId, u8, u64)> {
        self.claims.iter().find_map(|claim| match claim.decoded {
            Decoded::Memory { start, len } if address.wrapping_sub(start) < len => {
                Some((claim.device, claim.region, address - start))
            }
            _ => None,
        })
    }

    /// Returns the device with this id.
    ///
    /// # Panics
    /// Panics if [there is none](Bus::has).
    pub fn device(&mut self, id: DeviceId) -> &mut dyn Device {
        self.devices[id.index()].as_mut().expect("the device is there").as_mut()
    }

    /// Returns the device with this id, to be read only.
    ///
    /// # Panics
    /// Panics if [there is none](Bus::has).
    pub fn get(&self, id: DeviceId) -> &dyn Device {
        self.devices[id.index()].as_ref().expect("the device is there").as_ref()
    }

    /// Returns whether there is a device with this id.
    pub fn has(&self, id: DeviceId) -> bool {
        self.devices[id.index()].is_some()
    }

    /// Returns all devices in the order of their ids.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &dyn Device)> {
        DeviceId::all().zip(&self.devices).filter_map(|(id, device)| Some((id, device.as_deref()?)))
    }

    /// Returns the byte at `port`, under the conditions of [`Device::peek_port`]. Ports that no device owns
    /// read as ones.
    pub fn peek_port(&self, port: u16) -> Option<u8> {
        self.owner(port).map_or(Some(0xff), |id| self.get(id).peek_port(port))
    }

    /// Performs the guest's read of `width` at `port`, and sets the context's device. An access is split into
    /// bytes, as the ISA bus does, if its ports belong to different devices or reach beyond those of the
    /// device at its first port. Ports that no device owns read as ones.
    pub fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        if let Some(id) = self.sole_owner(port, width) {
            context.device = id;
            return self.device(id).read_port(context, port, width) & width.mask();
        }
        (0..width.bytes()).fold(0, |value, offset| {
            let port = port.wrapping_add(offset);
            let byte = match self.owner(port) {
                Some(id) => {
                    context.device = id;
                    self.device(id).read_port(context, port, Width::Byte) & 0xff
                }
                None => 0xff,
            };
            value | byte << (8 * offset)
        })
    }

    /// Performs the guest's write of `value` of `width` at `port`. It is split as in [`Bus::read_port`], and
    /// dropped at ports that no device owns.
    pub fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        if let Some(id) = self.sole_owner(port, width) {
            context.device = id;
            return self.device(id).write_port(context, port, width, value & width.mask());
        }
        for offset in 0..width.bytes() {
            let port = port.wrapping_add(offset);
            if let Some(id) = self.owner(port) {
                context.device = id;
                let byte = value >> (8 * offset) & 0xff;
                self.device(id).write_port(context, port, Width::Byte, byte);
            }
        }
    }

    /// Begins the guest's repeated reads of `width` at `port`. Returns how many of them were done
    /// at once, which fill the start of `bytes`: as many as the device does (see
    /// [`Device::read_port_string`]), or all of them at ports that no device owns.
    pub fn read_port_string(&mut self, port: u16, width: Width, bytes: &mut [u8]) -> usize {
        if self.is_free(port, width) {
            bytes.fill(0xff);
            return bytes.len() / usize::from(width.bytes());
        }
        let Some(id) = self.sole_owner(port, width) else { return 0 };
        self.device(id).read_port_string(port, width, bytes)
    }

    /// Begins the guest's writes of `bytes` to `port`, `width` at a time. Returns how many of them were done
    /// at once, under the conditions of [`Bus::read_port_string`].
    pub fn write_port_string(&mut self, port: u16, width: Width, bytes: &[u8]) -> usize {
        if self.is_free(port, width) {
            return bytes.len() / usize::from(width.bytes());
        }
        let Some(id) = self.sole_owner(port, width) else { return 0 };
        self.device(id).write_port_string(port, width, bytes)
    }

    /// Returns whether no device owns any of the ports of the access.
    fn is_free(&self, port: u16, width: Width) -> bool {
        (0..width.bytes()).all(|offset| self.owner(port.wrapping_add(offset)).is_none())
    }

    /// Returns the device that owns all ports of the access.
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

    const A: DeviceId = DeviceId::PIT;
    const B: DeviceId = DeviceId::RTC;
    const C: DeviceId = DeviceId::VIRTIO_BLK[0];

    /// Remembers the last byte written to each of its ports.
    struct Latch(DeviceId, [u32; 4]);

    impl Device for Latch {
        fn id(&self) -> DeviceId {
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
        bus.attach(Box::new(Latch(A, [0; 4])), &[PortRange::new(0x60, 2)]).unwrap();
        bus.attach(Box::new(Latch(B, [0; 4])), &[PortRange::new(0x62, 1)]).unwrap();
        let mut bench = TestBench::default();
        bus.write_port(&mut bench.context(), 0x60, Width::Word, 0xffff_1234);
        assert_eq!(bus.read_port(&mut bench.context(), 0x60, Width::Word), 0x1234);
        bus.write_port(&mut bench.context(), 0x60, Width::Dword, 0x4433_2211);
        assert_eq!(bus.read_port(&mut bench.context(), 0x60, Width::Dword), 0xff33_2211);
        assert_eq!(bus.read_port(&mut bench.context(), 0xffff, Width::Word), 0xffff);
    }

    #[test]
    fn strings_at_ports_of_nobody_are_done_at_once() {
        let mut bus = Bus::default();
        bus.attach(Box::new(Latch(A, [0; 4])), &[PortRange::new(0x60, 2)]).unwrap();
        for (port, width, count) in [
            (0x5e, Width::Word, 4),
            (0x5f, Width::Word, 0),
            (0x61, Width::Dword, 0),
            (0x62, Width::Dword, 2),
            (0xffff, Width::Byte, 8),
        ] {
            let mut bytes = [0; 8];
            assert_eq!(bus.read_port_string(port, width, &mut bytes), count, "{port:x}");
            assert_eq!(bytes, [if count > 0 { 0xff } else { 0 }; 8], "{port:x}");
            assert_eq!(bus.write_port_string(port, width, &bytes), count, "{port:x}");
        }
    }

    #[test]
    fn claims_move_and_give_way_to_attached_devices() {
        let mut bus = Bus::default();
        let a = bus.attach(Box::new(Latch(A, [0; 4])), &[PortRange::new(0x60, 4)]).unwrap();
        let b = bus.attach(Box::new(Latch(B, [0; 4])), &[]).unwrap();
        let ports = |first| Decoded::Ports(PortRange::new(first, 4));
        bus.claim(Claim { device: b, region: 0, decoded: ports(0x60) });
        assert_eq!(bus.owner(0x61), Some(a));
        bus.claim(Claim { device: b, region: 0, decoded: ports(0x62) });
        assert_eq!((bus.owner(0x61), bus.owner(0x65)), (Some(a), Some(b)));
        let memory = Decoded::Memory { start: 0xa0000, len: 0x20000 };
        bus.claim(Claim { device: b, region: 1, decoded: memory });
        let c = bus.attach(Box::new(Latch(C, [0; 4])), &[]).unwrap();
        bus.claim(Claim { device: c, region: 0, decoded: ports(0x64) });
        assert_eq!((bus.owner(0x65), bus.owner(0x67)), (Some(b), Some(c)));
        bus.claim(Claim { device: b, region: 0, decoded: Decoded::Nothing });
        assert_eq!((bus.owner(0x63), bus.owner(0x65)), (Some(a), Some(c)));
        bus.forget_claims();
        assert_eq!((bus.owner(0x63), bus.owner(0x65)), (Some(a), None));
        bus.claim(Claim { device: b, region: 1, decoded: memory });
        assert_eq!(bus.memory_owner(0xb8000), Some((b, 1, 0x18000)));
        assert_eq!((bus.memory_owner(0x9ffff), bus.memory_owner(0xc0000)), (None, None));
        let mut bench = TestBench::default();
        assert_eq!(bus.read_memory(&mut bench.context(), 0xc0000, Width::Word), 0xffff);
    }

    #[test]
    fn a_card_that_is_taken_out_answers_nowhere() {
        let mut bus = Bus::default();
        bus.attach(Box::new(Latch(A, [0; 4])), &[]).unwrap();
        assert!(!bus.has(C) && bus.devices().count() == 1);
        for value in [7, 9] {
            assert_eq!(bus.plug(Box::new(Latch(C, [value; 4]))), C);
            bus.attach_function(C, 5, 0);
            let decoded = Decoded::Ports(PortRange::new(0x60, 4));
            bus.claim(Claim { device: C, region: 0, decoded });
            let mut bench = TestBench::default();
            assert_eq!(bus.read_port(&mut bench.context(), 0x60, Width::Byte), value);
            assert!(bus.has(C));
            assert_eq!(bus.unplug(C).map(|device| device.id()), Some(C));
            assert_eq!(bus.read_port(&mut bench.context(), 0x60, Width::Byte), 0xff);
            assert_eq!(bus.read_config(&mut bench.context(), 5, 0, 0, Width::Byte), 0xff);
            assert!(!bus.has(C));
        }
        assert!(bus.unplug(C).is_none());
    }

    #[test]
    fn conflicts_are_refused() {
        let mut bus = Bus::default();
        bus.attach(Box::new(Latch(A, [0; 4])), &[PortRange::new(0x60, 2)]).unwrap();
        let error = bus.attach(Box::new(Latch(B, [0; 4])), &[PortRange::new(0x5f, 4)]).unwrap_err();
        assert_eq!(error.to_string(), "port 0x60 of rtc is taken by pit");
    }
}
