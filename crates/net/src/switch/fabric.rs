//! Decides where packets go: the switch without its sockets and threads.
//!
//! A *guest* is a machine at a port, which the switch does not trust. It has one address, which is *pinned*:
//! the one that its machine has told, or else the first one that it sends from. So it cannot send in the name
//! of another guest, nor attract the packets of another guest to its port. As the switch knows where each
//! guest is, it sends packets to unknown addresses to *uplinks* alone, behind which there may be many
//! addresses: no guest sees packets for others. Filters can be switched off; then a guest's port is like one
//! of any learning bridge (IEEE 802.1D, 7.7 to 7.9).
//!
//! Two guests that have sent each other some packets get a *short cut* if both accept one: see `short_cuts`.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use ring3_core::net::{MacAddress, Packet};

use super::limit::Limit;
use crate::message::Carried;

/// Upper bounds of the addresses that are remembered, in all and for a guest whose filter is off.
const ADDRESSES_MAX: usize = 8192;
const ADDRESSES_OF_GUEST_MAX: usize = 256;

/// How long an address is remembered without a packet from it (IEEE 802.1D, 7.9.2).
pub const AGEING: Duration = Duration::from_secs(300);

/// How often old addresses are removed when there is no room, since that takes a while.
const SWEEP: Duration = Duration::from_secs(1);

/// Number of packets from one guest to another after which they get a short cut.
const WORTH_SHORT_CUT: u32 = 16;

/// This address and the fifteen after it are for bridges themselves, which never forward them (IEEE 802.1D,
/// 7.12.6).
const RESERVED: [u8; 5] = [0x01, 0x80, 0xc2, 0x00, 0x00];

/// The number of a port. Each is used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u64);

/// The kind of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortKind {
    /// One machine.
    Guest {
        /// Whether it may only use its own address, and sees no packets of others.
        filtered: bool,
    },
    /// The way to other networks.
    Uplink,
}

/// The reasons why a packet goes nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// It has no source, or one that no card can have, or it goes to bridges.
    Malformed,
    /// Its source is the address of another guest.
    Spoofed,
    /// There were too many packets to all recently.
    Flood,
    /// Its destination is behind the port from which it came, or nowhere.
    Nowhere,
}

/// The counters of a port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that came from it, and their bytes.
    pub received: u64,
    /// See [`Counters::received`].
    pub received_bytes: u64,
    /// Packets that went to it, and their bytes.
    pub sent: u64,
    /// See [`Counters::sent`].
    pub sent_bytes: u64,
    /// Packets from it that went nowhere, by reason.
    pub refused: BTreeMap<Refusal, u64>,
}

#[derive(Debug)]
struct Port {
    kind: PortKind,
    pinned: Option<MacAddress>,
    /// Number of addresses that are remembered to be behind it.
    places: usize,
    /// The limit of the packets to all that it may send.
    limit: Limit,
    counters: Counters,
    /// If it accepts short cuts: the number of packets it has sent to each other port to which it has no
    /// short cut.
    short_cuts: Option<BTreeMap<PortId, u32>>,
}

impl Port {
    /// Returns the address at this end of a short cut, if it can have any. With several addresses others
    /// could not tell who sends a packet.
    fn end(&self) -> Option<MacAddress> {
        let is_held = self.kind == PortKind::Guest { filtered: true };
        self.pinned.filter(|_| is_held && self.short_cuts.is_some())
    }
}

#[derive(Debug, Clone, Copy)]
struct Place {
    port: PortId,
    seen: Instant,
}

/// The ports, and the addresses behind them.
#[derive(Debug)]
pub struct Fabric {
    ports: BTreeMap<PortId, Port>,
    places: HashMap<MacAddress, Place>,
    next: u64,
    /// When old addresses were last removed.
    swept: Instant,
    /// Number of packets to all that a guest may send in a second.
    broadcasts: u32,
}

impl Fabric {
    /// Returns a fabric without ports, where a guest may send `broadcasts` packets to all in a second; 0 is
    /// no limit.
    pub fn new(broadcasts: u32, now: Instant) -> Fabric {
        let (ports, places) = (BTreeMap::new(), HashMap::new());
        Fabric { ports, places, next: 0, swept: now, broadcasts }
    }

    /// Adds a port.
    pub fn add(&mut self, kind: PortKind, now: Instant) -> PortId {
        let id = PortId(self.next);
        self.next += 1;
        let most = if kind == PortKind::Uplink { 0 } else { self.broadcasts };
        let (limit, counters) = (Limit::new(most, now), Counters::default());
        let short_cuts = None;
        self.ports.insert(id, Port { kind, pinned: None, places: 0, limit, counters, short_cuts });
        id
    }

    /// Removes a port, and forgets the addresses behind it.
    pub fn remove(&mut self, id: PortId) {
        self.ports.remove(&id);
        self.places.retain(|_, place| place.port != id);
        for short_cuts in self.ports.values_mut().filter_map(|port| port.short_cuts.as_mut()) {
            short_cuts.remove(&id);
        }
    }

    /// Notes that the machine at a port accepts short cuts.
    pub fn takes_short_cuts(&mut self, id: PortId) {
        if let Some(port) = self.ports.get_mut(&id) {
            port.short_cuts.get_or_insert_default();
        }
    }

    /// Counts a packet that goes from one port to another and to no others. Returns the addresses of both if
    /// they are to have a short cut now; this happens once.
    pub fn short_cut(&mut self, from: PortId, to: PortId) -> Option<[MacAddress; 2]> {
        let receiver = self.ports.get(&to)?.end()?;
        let sender = self.ports.get_mut(&from)?;
        let address = sender.end()?;
        let count = sender.short_cuts.as_mut()?.entry(to).or_default();
        *count = count.saturating_add(1);
        if *count != WORTH_SHORT_CUT {
            return None;
        }
        // One short cut serves both directions.
        let other = self.ports.get_mut(&to)?.short_cuts.as_mut()?;
        other.insert(from, WORTH_SHORT_CUT);
        Some([address, receiver])
    }

    /// Returns the port with the address `address`, if `id` has a short cut to it.
    pub fn end_of_short_cut(&self, id: PortId, address: MacAddress) -> Option<PortId> {
        let other = self.places.get(&address)?.port;
        let counts = self.ports.get(&id)?.short_cuts.as_ref()?;
        counts.get(&other).is_some_and(|count| *count >= WORTH_SHORT_CUT).then_some(other)
    }

    /// Adds the counts that the machine at port `to` reports for its short cut from the machine with the
    /// address `from`.
    pub(crate) fn carried(&mut self, to: PortId, from: MacAddress, carried: &Carried) {
        let Some(from) = self.end_of_short_cut(to, from) else { return };
        let Carried { packets, bytes, refused } = *carried;
        if let Some(receiver) = self.ports.get_mut(&to) {
            add(&mut receiver.counters.sent, packets);
            add(&mut receiver.counters.sent_bytes, bytes);
        }
        if let Some(sender) = self.ports.get_mut(&from) {
            add(&mut sender.counters.received, packets.saturating_add(refused));
            add(&mut sender.counters.received_bytes, bytes);
            if refused > 0 {
                add(sender.counters.refused.entry(Refusal::Spoofed).or_default(), refused);
            }
        }
    }

    /// Pins the address that a guest's machine reports. Returns false if it belongs to another port, or can
    /// be no card's; then nothing changes.
    pub fn pin(&mut self, id: PortId, address: MacAddress, now: Instant) -> bool {
        let is_free = self.find(address, now).is_none_or(|place| place.port == id);
        let port = self.ports.get_mut(&id).filter(|port| port.kind != PortKind::Uplink);
        let Some(port) = port.filter(|_| is_free && !address.is_group()) else { return false };
        if let Some(before) = port.pinned.replace(address) {
            self.forget(before);
        }
        self.remember(address, Place { port: id, seen: now });
        true
    }

    /// Returns the counters of a port.
    pub fn counters(&self, id: PortId) -> Option<&Counters> {
        self.ports.get(&id).map(|port| &port.counters)
    }

    /// Returns the address of the guest at a port, if it is known.
    pub fn address(&self, id: PortId) -> Option<MacAddress> {
        self.ports.get(&id)?.pinned
    }

    /// Appends to `to` the ports to which a packet from port `from` goes. Appends nothing if it goes nowhere.
    pub fn forward(
        &mut self,
        from: PortId,
        packet: &Packet,
        now: Instant,
        to: &mut Vec<PortId>,
    ) -> Result<(), Refusal> {
        self.forward_start(from, packet, packet.bytes.len() as u64, now, to)
    }

    /// Does the same as [`Fabric::forward`] for a packet of `len` bytes of which `start` is the beginning,
    /// with both addresses.
    pub fn forward_start(
        &mut self,
        from: PortId,
        start: &Packet,
        len: u64,
        now: Instant,
        to: &mut Vec<PortId>,
    ) -> Result<(), Refusal> {
        let result = self.choose(from, start, now, to);
        if let Some(port) = self.ports.get_mut(&from) {
            add(&mut port.counters.received, 1);
            add(&mut port.counters.received_bytes, len);
            if let Err(refusal) = result {
                add(port.counters.refused.entry(refusal).or_default(), 1);
            }
        }
        for id in to {
            if let Some(port) = self.ports.get_mut(id) {
                add(&mut port.counters.sent, 1);
                add(&mut port.counters.sent_bytes, len);
            }
        }
        result
    }

    fn choose(
        &mut self,
        from: PortId,
        packet: &Packet,
        now: Instant,
        to: &mut Vec<PortId>,
    ) -> Result<(), Refusal> {
        let source = packet.source().filter(|source| !source.is_group());
        let (Some(source), Some(destination)) = (source, packet.destination()) else {
            return Err(Refusal::Malformed);
        };
        if destination.0[..5] == RESERVED && destination.0[5] < 16 {
            return Err(Refusal::Malformed);
        }
        self.learn(from, source, now)?;
        if !destination.is_group()
            && let Some(place) = self.find(destination, now)
        {
            if place.port == from {
                return Err(Refusal::Nowhere);
            }
            to.push(place.port);
            return Ok(());
        }
        let sender = self.ports.get_mut(&from).ok_or(Refusal::Nowhere)?;
        if !sender.limit.allows(now) {
            return Err(Refusal::Flood);
        }
        let hears = |port: &Port| match port.kind {
            PortKind::Uplink => true,
            PortKind::Guest { filtered } => {
                destination.is_group() || !filtered || port.pinned.is_none()
            }
        };
        let others = self.ports.iter().filter(|(id, port)| **id != from && hears(port));
        let before = to.len();
        to.extend(others.map(|(id, _)| *id));
        if to.len() == before { Err(Refusal::Nowhere) } else { Ok(()) }
    }

    /// Notes that `source` is behind port `from`, if that is allowed.
    fn learn(&mut self, from: PortId, source: MacAddress, now: Instant) -> Result<(), Refusal> {
        let port = self.ports.get(&from).ok_or(Refusal::Nowhere)?;
        let filtered = port.kind == PortKind::Guest { filtered: true };
        if filtered && port.pinned.is_none() {
            return if self.pin(from, source, now) { Ok(()) } else { Err(Refusal::Spoofed) };
        }
        if filtered && port.pinned != Some(source) {
            return Err(Refusal::Spoofed);
        }
        let is_uplink = port.kind == PortKind::Uplink;
        match self.find(source, now) {
            Some(place) if place.port == from => {}
            // Nobody takes over a guest's address, and no guest takes over one behind an uplink.
            Some(place) if self.is_pinned(place.port, source) => return Err(Refusal::Spoofed),
            Some(place) if !is_uplink && self.is_uplink(place.port) => {
                return Err(Refusal::Spoofed);
            }
            // The address has moved, or is new.
            _ => {}
        }
        let is_known = self.places.contains_key(&source);
        if is_known || self.has_room(from, is_uplink, now) {
            self.remember(source, Place { port: from, seen: now });
        }
        Ok(())
    }

    fn remember(&mut self, address: MacAddress, place: Place) {
        self.forget(address);
        if let Some(port) = self.ports.get_mut(&place.port) {
            port.places += 1;
            self.places.insert(address, place);
        }
    }

    fn forget(&mut self, address: MacAddress) {
        if let Some(place) = self.places.remove(&address)
            && let Some(port) = self.ports.get_mut(&place.port)
        {
            port.places -= 1;
        }
    }

    fn is_pinned(&self, port: PortId, address: MacAddress) -> bool {
        self.address(port) == Some(address)
    }

    fn is_uplink(&self, port: PortId) -> bool {
        self.ports.get(&port).is_some_and(|port| port.kind == PortKind::Uplink)
    }

    /// Returns where `address` is, if there was a packet from it recently or it is pinned.
    fn find(&self, address: MacAddress, now: Instant) -> Option<Place> {
        let place = *self.places.get(&address)?;
        let is_old = now.saturating_duration_since(place.seen) >= AGEING;
        (!is_old || self.is_pinned(place.port, address)).then_some(place)
    }

    /// Returns whether there is room for another address behind port `from`. Now and then it removes old
    /// addresses to make room.
    fn has_room(&mut self, from: PortId, is_uplink: bool, now: Instant) -> bool {
        let is_full = self.places.len() >= ADDRESSES_MAX;
        if is_full && now.saturating_duration_since(self.swept) >= SWEEP {
            self.swept = now;
            let known: Vec<_> = self.places.keys().copied().collect();
            for address in known {
                if self.find(address, now).is_none() {
                    self.forget(address);
                }
            }
        }
        let of_port = self.ports.get(&from).map_or(0, |port| port.places);
        self.places.len() < ADDRESSES_MAX && (is_uplink || of_port < ADDRESSES_OF_GUEST_MAX)
    }
}

/// Adds to a counter without overflow: the end of a short cut may report any number.
fn add(count: &mut u64, more: u64) {
    *count = count.saturating_add(more);
}

#[cfg(test)]
mod tests;
