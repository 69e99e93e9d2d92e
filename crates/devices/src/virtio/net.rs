//! A network card (virtio 1.2, 5.1).
//!
//! Packets go as the driver gives them: a checksum that is still to be computed and a packet that is still to be cut (5.1.6.2) are left to the network, which may be a
//! card that can do without. What comes in is done for a driver that has not accepted it, and is lost where the driver has no queue.
//! Where it has only too few buffers the packet waits, and the network with it.

use std::collections::VecDeque;

use ring3_core::device::DeviceId;
use ring3_core::input::DeviceInput;
use ring3_core::net::{HEADER_LEN, MacAddress, OFFLOAD_HEADER_LEN, Offloads, PACKET_MAX, Packet};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use super::features::VERSION_1;
use super::queue::{Chain, Queue};
use super::segments::{self, gather, take_front};
use super::{DeviceType, Work};

mod control;
mod filter;

use filter::Filter;

/// The most pairs of queues that a device can have.
pub const PAIRS_MAX: u16 = 8;

/// Device ID (5.1.1).
const ID: u16 = 1;
/// An Ethernet controller.
const CLASS: u32 = 0x020000;
/// Descriptors of a queue. Many small buffers for what comes take one of these each.
const RECEIVE_SIZE: u16 = 1024;
const TRANSMIT_SIZE: u16 = 256;
const CONTROL_SIZE: u16 = 64;

/// Features (5.1.3).
mod features {
    pub(super) const CHECKSUM: u64 = 1 << 0;
    pub(super) const GUEST_CHECKSUM: u64 = 1 << 1;
    pub(super) const CONTROL_GUEST_OFFLOADS: u64 = 1 << 2;
    pub(super) const MTU: u64 = 1 << 3;
    pub(super) const MAC: u64 = 1 << 5;
    pub(super) const GUEST_TSO4: u64 = 1 << 7;
    pub(super) const GUEST_TSO6: u64 = 1 << 8;
    pub(super) const GUEST_ECN: u64 = 1 << 9;
    pub(super) const HOST_TSO4: u64 = 1 << 11;
    pub(super) const HOST_TSO6: u64 = 1 << 12;
    pub(super) const HOST_ECN: u64 = 1 << 13;
    pub(super) const MERGEABLE_BUFFERS: u64 = 1 << 15;
    pub(super) const STATUS: u64 = 1 << 16;
    pub(super) const CONTROL_QUEUE: u64 = 1 << 17;
    pub(super) const CONTROL_RECEIVE: u64 = 1 << 18;
    pub(super) const CONTROL_RECEIVE_EXTRA: u64 = 1 << 20;
    pub(super) const MULTIPLE_QUEUES: u64 = 1 << 22;
    pub(super) const CONTROL_MAC: u64 = 1 << 23;

    /// Those that the driver may switch on and off (5.1.6.5.6).
    pub(super) const GUEST_OFFLOADS: u64 = GUEST_CHECKSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN;
}

/// In the status of the device configuration (5.1.4): the cable leads somewhere.
const STATUS_LINK_UP: u16 = 1 << 0;

/// Bytes of the number of buffers, which is behind the rest of a packet's header (5.1.6).
const BUFFER_COUNT_LEN: usize = 2;

const VERSION: u32 = 1;

/// A network card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetModel {
    /// Its address.
    pub mac: MacAddress,
    /// The largest packet without its Ethernet header that the driver is told to send, 68 to 65535, if it is told.
    pub mtu: Option<u16>,
    /// How many pairs of queues it has, 1 to [`PAIRS_MAX`].
    pub pairs: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    filter: Filter,
    link_up: bool,
    /// The network takes nothing more now.
    congested: bool,
    /// How many pairs of queues the driver uses.
    pairs: u16,
    /// What it wants of [`features::GUEST_OFFLOADS`], of those that it has accepted.
    guest_offloads: u64,
    /// What has come and found no buffer.
    waiting: VecDeque<Packet>,
}

/// The device type of a network card.
#[derive(Debug)]
pub struct Net {
    device: DeviceId,
    model: NetModel,
    state: State,
}

/// What became of a packet that has come.
enum Delivery {
    Done,
    /// There are too few buffers for it.
    Waits(Packet),
}

impl Net {
    /// The device type of `model`, for the device `device`, such as one of [`DeviceId::NIC`].
    pub fn new(device: DeviceId, model: NetModel) -> Net {
        let state = State {
            filter: Filter::new(model.mac),
            link_up: true,
            congested: false,
            pairs: 1,
            guest_offloads: features::GUEST_OFFLOADS,
            waiting: VecDeque::new(),
        };
        Net { device, model, state }
    }

    fn pair_count(&self) -> u16 {
        self.model.pairs.clamp(1, PAIRS_MAX)
    }

    /// The control queue comes after all others that the driver knows of (5.1.2).
    fn control_queue(&self, features: u64) -> u16 {
        if features & features::MULTIPLE_QUEUES != 0 { 2 * self.pair_count() } else { 2 }
    }

    /// What the driver does for itself of what comes in.
    fn guest_offloads(&self, features: u64) -> Offloads {
        let accepted = features & self.state.guest_offloads;
        Offloads {
            checksum: accepted & features::GUEST_CHECKSUM != 0,
            tcp_v4: accepted & features::GUEST_TSO4 != 0,
            tcp_v6: accepted & features::GUEST_TSO6 != 0,
            congestion: accepted & features::GUEST_ECN != 0,
        }
    }

    /// Sends what is in queue `index`.
    fn transmit(&mut self, work: &mut Work<'_, '_>, index: u16) {
        let Some(size) = work.queues.get(usize::from(index)).map(Queue::size) else { return };
        let header_len = header_len(work.features);
        // A driver cannot have more than that in it: without an end what is written there could feed it.
        for _ in 0..size {
            let queue = &mut work.queues[usize::from(index)];
            if self.state.congested {
                return queue.hold_notifications(work.context.memory);
            }
            let Some(chain) = queue.pop(work.context.memory) else { return };
            let head = chain.head;
            let packet = read_packet(work, chain, header_len);
            if let Some(packet) = packet.filter(|_| self.state.link_up) {
                work.context.send_packet(packet);
            }
            work.queues[usize::from(index)].push(work.context.memory, head, 0);
        }
    }

    /// The queue to which a packet that comes goes: packets of a stream go to the same one.
    fn receive_queue(&self, packet: &Packet) -> u16 {
        if self.state.pairs == 1 {
            return 0;
        }
        // The addresses and ports of IPv4 and IPv6 without options are among these bytes, and lengths and checksums of IPv4 are not.
        let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let stream = packet.bytes.iter().skip(26).take(32).take(match packet.bytes.get(12) {
            Some(0x86) => 32,
            _ => 12,
        });
        let hash = stream.fold(0x811c_9dc5, mix);
        2 * (hash % u32::from(self.state.pairs)) as u16
    }

    /// A packet has come.
    fn receive(&mut self, work: &mut Work<'_, '_>, packet: Packet) {
        if !self.state.link_up || packet.bytes.len() < HEADER_LEN {
            return;
        }
        if packet.destination().is_none_or(|address| !self.state.filter.passes(address)) {
            return;
        }
        let offloads = self.guest_offloads(work.features);
        let mut ready = VecDeque::new();
        packet.without_offloads(offloads, |packet| ready.push_back(packet));
        self.state.waiting.append(&mut ready);
        self.deliver(work);
    }

    /// Gives the driver what has come, as far as it has buffers.
    fn deliver(&mut self, work: &mut Work<'_, '_>) {
        while let Some(packet) = self.state.waiting.pop_front() {
            let index = self.receive_queue(&packet);
            match give(work, usize::from(index), packet) {
                Delivery::Done => {}
                Delivery::Waits(packet) => return self.state.waiting.push_front(packet),
            }
        }
    }
}

/// Bytes of the header before each packet (5.1.6, 5.1.6.1).
fn header_len(features: u64) -> usize {
    let counts_buffers = features & (VERSION_1 | features::MERGEABLE_BUFFERS) != 0;
    OFFLOAD_HEADER_LEN + if counts_buffers { BUFFER_COUNT_LEN } else { 0 }
}

/// The packet in `chain`, if there is one.
fn read_packet(work: &Work<'_, '_>, chain: Chain, header_len: usize) -> Option<Packet> {
    let mut readable = chain.readable;
    let mut header = [0; OFFLOAD_HEADER_LEN + BUFFER_COUNT_LEN];
    if !take_front(work.context.memory, &mut readable, &mut header[..header_len]) {
        return None;
    }
    if segments::len(&readable) > PACKET_MAX as u64 {
        return None;
    }
    let bytes = gather(work.context.memory, &readable);
    Packet::with_offload_header(*header.first_chunk()?, bytes)
}

/// Gives a packet to the driver, in one chain of queue `index`, or in as many as it takes where the driver merges them. It is lost
/// where the queue is not in use, and where it does not fit.
fn give(work: &mut Work<'_, '_>, index: usize, packet: Packet) -> Delivery {
    let merges = work.features & features::MERGEABLE_BUFFERS != 0;
    let header_len = header_len(work.features);
    let queue = &mut work.queues[index];
    if !queue.is_running() || queue.is_broken() {
        return Delivery::Done;
    }
    let needed = (header_len + packet.bytes.len()) as u64;
    let mut chains: Vec<Chain> = Vec::new();
    let mut room = 0;
    while room < needed {
        let Some(chain) = queue.pop(work.context.memory) else {
            queue.put_back(chains.len() as u16);
            return if queue.is_broken() { Delivery::Done } else { Delivery::Waits(packet) };
        };
        room += segments::len(&chain.writable);
        chains.push(chain);
        if room < needed && !merges {
            queue.put_back(1);
            return Delivery::Done;
        }
    }
    let mut header = [0; OFFLOAD_HEADER_LEN + BUFFER_COUNT_LEN];
    header[..OFFLOAD_HEADER_LEN].copy_from_slice(&packet.offload_header());
    header[OFFLOAD_HEADER_LEN..].copy_from_slice(&(chains.len() as u16).to_le_bytes());
    let mut rest = [&header[..header_len], &packet.bytes[..]];
    for chain in chains {
        let mut written = 0;
        for mut segment in chain.writable {
            for part in &mut rest {
                let (now, later) = part.split_at(part.len().min(segment.len as usize));
                work.context.memory.write(segment.address, now);
                *part = later;
                written += now.len() as u32;
                segment.len -= now.len() as u32;
                segment.address = segment.address.wrapping_add(now.len() as u64);
            }
        }
        queue.push(work.context.memory, chain.head, written);
    }
    Delivery::Done
}

impl DeviceType for Net {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn id(&self) -> u16 {
        ID
    }

    fn class(&self) -> u32 {
        CLASS
    }

    fn features(&self) -> u64 {
        let mut all = features::GUEST_OFFLOADS
            | features::CHECKSUM
            | features::HOST_TSO4
            | features::HOST_TSO6
            | features::HOST_ECN
            | features::CONTROL_GUEST_OFFLOADS
            | features::MAC
            | features::MERGEABLE_BUFFERS
            | features::STATUS
            | features::CONTROL_QUEUE
            | features::CONTROL_RECEIVE
            | features::CONTROL_RECEIVE_EXTRA
            | features::CONTROL_MAC;
        if self.model.mtu.is_some() {
            all |= features::MTU;
        }
        if self.pair_count() > 1 {
            all |= features::MULTIPLE_QUEUES;
        }
        all
    }

    fn queue_sizes(&self) -> Vec<u16> {
        let mut all = [RECEIVE_SIZE, TRANSMIT_SIZE].repeat(self.pair_count().into());
        all.push(CONTROL_SIZE);
        all
    }

    /// `struct virtio_net_config` (5.1.4), up to the MTU.
    fn config(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(12);
        all.extend(self.state.filter.address().0);
        let status = if self.state.link_up { STATUS_LINK_UP } else { 0 };
        let mtu = self.model.mtu.unwrap_or_default();
        all.extend([status, self.pair_count(), mtu].map(u16::to_le_bytes).as_flattened());
        all
    }

    /// A legacy driver gives the card its address here (5.1.4.1).
    fn write_config(&mut self, work: &mut Work<'_, '_>, offset: usize, value: u8) {
        let mut address = self.state.filter.address();
        if let Some(byte) = address.0.get_mut(offset)
            && work.features & VERSION_1 == 0
        {
            *byte = value;
            self.state.filter.set_address(address);
        }
    }

    fn notify(&mut self, work: &mut Work<'_, '_>, queue: u16) {
        if queue == self.control_queue(work.features) {
            self.control(work, queue);
        } else if queue & 1 == 1 {
            self.transmit(work, queue);
        } else {
            self.deliver(work);
        }
    }

    fn input(&mut self, work: &mut Work<'_, '_>, input: DeviceInput) {
        match input {
            DeviceInput::Packet(packet) => self.receive(work, packet),
            DeviceInput::Link(is_up) => {
                work.config_changed = self.state.link_up != is_up;
                self.state.link_up = is_up;
            }
            DeviceInput::Congestion(is_there) => {
                self.state.congested = is_there;
                for pair in 0..self.pair_count() {
                    self.transmit(work, 2 * pair + 1);
                }
            }
            _ => {}
        }
    }

    fn takes_input(&self) -> bool {
        self.state.waiting.is_empty()
    }

    fn reset(&mut self, _work: &mut Work<'_, '_>) {
        self.state.filter = Filter::new(self.model.mac);
        self.state.pairs = 1;
        self.state.guest_offloads = features::GUEST_OFFLOADS;
        self.state.waiting.clear();
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.device.name(), VERSION, &self.state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.device.name(), VERSION)?;
        let is_possible = (1..=self.pair_count()).contains(&state.pairs)
            && state.filter.is_possible()
            // One packet has come that was cut.
            && state.waiting.len() <= PACKET_MAX
            && state.waiting.iter().all(Packet::is_sound);
        if !is_possible {
            return Err(saved.damaged("it cannot be that of this network card"));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
