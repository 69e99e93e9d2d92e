//! The chip of an NE2000: National's DP8390D network interface controller.
//!
//! By its data sheet "DP8390D/NS32490D NIC Network Interface Controller" (July 1995), which the sections here are of, and application note 937 about
//! loopback. It sees a [`Buffer`] by two DMA channels: the *local* one stores packets that come in and fetches those that go out, the *remote*
//! one moves data to and from the host, by the card's data port.
//!
//! The wire takes no time and has no errors: where the network behind it is not congested, a packet has gone out when the command is written. What comes while the receive buffer has no room for it
//! waits, as on a network with flow control, where a receive buffer as it is set up could ever have that room; else it is missed.

use std::collections::VecDeque;

use ring3_core::net::MacAddress;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::buffer::Buffer;
use super::registers::{command, interrupt, receive, received, transmit, transmitted};

mod loopback;
mod pages;
mod remote;

/// Bytes of a page of the buffer.
const PAGE: usize = 256;
/// What is stored before a packet, and after it.
const HEADER_LEN: usize = 4;
const CHECK_LEN: usize = 4;
/// The fewest bytes of a packet on the wire without its check sequence.
const PACKET_MIN: usize = 60;
/// The most: with a VLAN tag.
pub(super) const PACKET_MAX: usize = 1518;
/// Pages that one of those takes.
const PAGES_MAX: usize = pages_of(PACKET_MAX);

/// Counters count no further (10.5).
const COUNTER_MAX: u8 = 192;
/// From here on they ask to be read.
const COUNTER_HALF: u8 = 128;
/// Which counter is which.
const CHECK_ERRORS: usize = 1;
const MISSED_PACKETS: usize = 2;

/// Pages that a packet of `len` bytes takes.
const fn pages_of(len: usize) -> usize {
    (HEADER_LEN + len + CHECK_LEN).div_ceil(PAGE)
}

/// The registers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Dp8390 {
    command: u8,
    /// It takes no part in the network, from a stop to the next start.
    is_stopped: bool,
    interrupt_status: u8,
    interrupt_mask: u8,
    data_configuration: u8,
    transmit_configuration: u8,
    transmit_status: u8,
    receive_configuration: u8,
    receive_status: u8,
    page_start: u8,
    page_stop: u8,
    /// The first page that has not been read.
    boundary: u8,
    /// The first page for the next packet.
    current: u8,
    transmit_page: u8,
    transmit_count: u16,
    remote_address: u16,
    remote_count: u16,
    local_address: u16,
    /// The next packet pointers of the remote and the local DMA, for tests of the chip alone.
    next_pointers: [u8; 2],
    physical: [u8; 6],
    multicast: [u8; 8],
    counters: [u8; 3],
    /// What was received last in a loopback, and which byte is read next.
    fifo: [u8; 8],
    fifo_position: u8,
    /// The last packet has filled the ring: [`Dp8390::current`] has come to the boundary from behind.
    is_full: bool,
    /// A packet was missed since software has read one.
    is_overflown: bool,
    /// Packets have come, or were read, since software has last cleared their interrupt.
    has_moved: bool,
    /// Software has cleared that, and it stays until all packets are read.
    clears_when_empty: bool,
    /// Packets for which there is no room yet, from what has come as one.
    waiting: VecDeque<ByteBuf>,
}

impl Dp8390 {
    /// The chip when its reset pin was driven (10.6); the other registers stay as they were.
    pub(super) fn reset(&mut self) {
        self.command = command::ABORT | command::STOP;
        self.is_stopped = true;
        self.interrupt_mask = 0;
        self.transmit_configuration &= !transmit::LOOPBACK;
        self.waiting.clear();
        self.clears_when_empty = false;
    }

    /// The level of its interrupt pin.
    pub(super) fn interrupts(&self) -> bool {
        self.interrupt_status & self.interrupt_mask != 0
    }

    /// It takes no packets from the network.
    fn is_off_line(&self) -> bool {
        self.is_stopped || self.transmit_configuration & transmit::LOOPBACK != 0
    }

    /// Packets are stored, and not only looked at.
    fn stores(&self) -> bool {
        !self.is_off_line() && self.receive_configuration & receive::MONITOR == 0
    }

    /// False while there is no room for any packet, and room will come.
    pub(super) fn takes_packets(&self) -> bool {
        let may_store = self.room_for(PAGES_MAX).is_some() || !self.will_have_room(PAGES_MAX);
        self.waiting.is_empty() && (!self.stores() || may_store)
    }

    /// The page after `page` in the ring (7.0, "Linking Receive Buffer Pages").
    fn page_after(&self, page: u8) -> u8 {
        let next = page.wrapping_add(1);
        if next == self.page_stop { self.page_start } else { next }
    }

    /// The page after `pages` more, if those are free.
    fn room_for(&self, pages: usize) -> Option<u8> {
        if self.is_full {
            return None;
        }
        let limit = self.limit();
        (0..pages).try_fold(self.current, |page, index| {
            let is_free = index == 0 || page != limit;
            is_free.then(|| self.page_after(page))
        })
    }

    /// The page of the boundary. Linux keeps it a page before the next packet, and where that is the first page of the ring, it is outside of it: the chip would go round and
    /// overwrite what was not read, as soon as there is more on the wire than fits into the ring.
    fn limit(&self) -> u8 {
        if self.boundary.wrapping_add(1) == self.page_start {
            self.page_stop.wrapping_sub(1)
        } else {
            self.boundary
        }
    }

    /// The ring can have `pages` free pages.
    fn will_have_room(&self, pages: usize) -> bool {
        usize::from(self.page_stop.saturating_sub(self.page_start)) > pages
    }

    /// A packet has come, without its check sequence.
    pub(super) fn take(&mut self, buffer: &mut Buffer, packet: &[u8]) {
        if self.is_off_line() {
            return;
        }
        self.waiting.push_back(ByteBuf::from(packet));
        self.receive_waiting(buffer);
    }

    /// Receives the packets that wait, as far as there is room.
    pub(super) fn receive_waiting(&mut self, buffer: &mut Buffer) {
        if self.is_off_line() {
            self.waiting.clear();
        }
        while let Some(packet) = self.waiting.front() {
            let pages = pages_of(packet.len());
            if self.stores() && self.room_for(pages).is_none() && self.will_have_room(pages) {
                return;
            }
            if let Some(packet) = self.waiting.pop_front() {
                self.receive(buffer, packet.into_vec());
            }
        }
    }

    /// Receives a packet (7.0).
    fn receive(&mut self, buffer: &mut Buffer, mut packet: Vec<u8>) {
        let Some(&destination) = packet.first_chunk() else { return };
        let destination = MacAddress(destination);
        if !self.accepts(destination) {
            return;
        }
        let is_runt = packet.len() < ring3_core::net::HEADER_LEN;
        if is_runt && self.receive_configuration & receive::RUNTS == 0 {
            return;
        }
        if !is_runt && packet.len() < PACKET_MIN {
            // Systems leave it to their card to fill a packet up.
            packet.resize(PACKET_MIN, 0);
        }
        let group = if destination.is_group() { received::GROUP } else { 0 };
        if !self.stores() {
            self.receive_status = received::INTACT | received::DISABLED | group;
            self.count(MISSED_PACKETS);
        } else if let Some(next) = self.room_for(pages_of(packet.len())) {
            self.receive_status = received::INTACT | group;
            self.store(buffer, &packet, next);
            self.interrupt_status |= interrupt::RECEIVED;
            self.has_moved = true;
            self.clears_when_empty = false;
        } else {
            self.receive_status = received::MISSED | group;
            self.is_overflown = true;
            self.count(MISSED_PACKETS);
            self.interrupt_status |= interrupt::OVERWRITE | interrupt::RECEIVE_ERROR;
        }
    }

    /// Stores a packet in the ring, which goes on at page `next` (7.0, "Storage Format").
    fn store(&mut self, buffer: &mut Buffer, packet: &[u8], next: u8) {
        let [low, high] = ((packet.len() + CHECK_LEN) as u16).to_le_bytes();
        self.local_address = u16::from(self.current) << 8;
        self.put(buffer, &[self.receive_status, next, low, high]);
        self.put(buffer, packet);
        self.put(buffer, &crc32fast::hash(packet).to_le_bytes());
        self.current = next;
        self.is_full = next == self.limit();
    }

    /// The local DMA puts `bytes` into the ring.
    fn put(&mut self, buffer: &mut Buffer, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = bytes.len().min(self.bytes_to_stop(self.local_address));
            let (part, rest) = bytes.split_at(len);
            let place = buffer.ram_mut(self.local_address, len);
            place.copy_from_slice(&part[..place.len()]);
            self.local_address = self.address_after(self.local_address, len);
            bytes = rest;
        }
    }

    /// Bytes from `address` to where the ring, or else all of the addresses, end.
    fn bytes_to_stop(&self, address: u16) -> usize {
        match (u16::from(self.page_stop) << 8).wrapping_sub(address) {
            0 => 1 << 16,
            bytes => bytes.into(),
        }
    }

    /// The address `len` bytes after `address`, no more than where the ring ends; there it begins anew.
    fn address_after(&self, address: u16, len: usize) -> u16 {
        let next = address.wrapping_add(len as u16);
        if next == u16::from(self.page_stop) << 8 { u16::from(self.page_start) << 8 } else { next }
    }

    /// The address filters (4.0, "Address Recognition Logic").
    fn accepts(&self, destination: MacAddress) -> bool {
        let configuration = self.receive_configuration;
        if destination == MacAddress::BROADCAST {
            configuration & receive::BROADCAST != 0
        } else if destination.is_group() {
            // The highest six bits of the check sequence, of which the bits come in the other order.
            let hash = (!crc32fast::hash(&destination.0)).reverse_bits() >> 26;
            let is_member = self.multicast[hash as usize / 8] >> (hash % 8) & 1 != 0;
            configuration & receive::MULTICAST != 0 && is_member
        } else {
            configuration & receive::PROMISCUOUS != 0 || destination.0 == self.physical
        }
    }

    /// Counter `counter` goes on by one (10.5).
    fn count(&mut self, counter: usize) {
        let count = &mut self.counters[counter];
        *count = (*count + 1).min(COUNTER_MAX);
        if *count >= COUNTER_HALF {
            self.interrupt_status |= interrupt::COUNTER;
        }
    }

    /// The boundary was moved: packets were read.
    fn set_boundary(&mut self, boundary: u8) {
        self.boundary = boundary;
        self.is_full = false;
        self.is_overflown = false;
        self.has_moved = true;
        self.note_empty();
    }

    /// There are packets that were not read. Software keeps the boundary at the next one, or a page before it.
    fn has_unread(&self) -> bool {
        let is_read =
            self.boundary == self.current || self.page_after(self.boundary) == self.current;
        self.is_full || !is_read
    }

    /// If all packets were read: their interrupt is cleared, where software wants that.
    fn note_empty(&mut self) {
        if self.clears_when_empty && !self.has_unread() {
            self.clears_when_empty = false;
            self.interrupt_status &= !interrupt::RECEIVED;
        }
    }

    /// Software clears interrupts. Drivers handle a few packets and clear their interrupt, and rely on the next packet for those that they have left or
    /// that have just come. On a wire that takes no time that one may be long in coming, or wait for room itself. So the interrupt of packets
    /// stays while there are any, unless software clears it and reads nothing.
    fn clear_interrupts(&mut self, bits: u8) {
        let is_left = !self.is_stopped && self.has_moved && self.has_unread();
        let stays = bits & interrupt::RECEIVED != 0 && is_left;
        if stays {
            self.clears_when_empty = true;
        }
        self.has_moved &= bits & interrupt::RECEIVED == 0;
        self.interrupt_status &= !bits | if stays { interrupt::RECEIVED } else { 0 };
    }

    /// A packet is to be transmitted.
    pub(super) fn is_transmitting(&self) -> bool {
        self.command & command::TRANSMIT != 0
    }

    /// Transmits what is in the buffer (8.0). The packet, if it goes out on a wire that is there.
    pub(super) fn transmit(&mut self, buffer: &Buffer, has_carrier: bool) -> Option<Vec<u8>> {
        self.command &= !command::TRANSMIT;
        let start = u16::from(self.transmit_page) << 8;
        let mut packet = buffer.bytes(start, self.transmit_count);
        self.local_address = start.wrapping_add(self.transmit_count);
        self.interrupt_status |= interrupt::TRANSMITTED;
        if self.transmit_configuration & transmit::LOOPBACK != 0 {
            self.loop_back(packet);
            return None;
        }
        if !has_carrier {
            self.transmit_status =
                transmitted::WELL | transmitted::CARRIER_LOST | transmitted::HEARTBEAT_MISSING;
            return None;
        }
        self.transmit_status = transmitted::WELL;
        if self.transmit_configuration & transmit::INHIBIT_CHECK != 0 {
            packet.truncate(packet.len().saturating_sub(CHECK_LEN));
        }
        Some(packet)
    }

    /// False for what no treatment can lead to.
    pub(super) fn is_possible(&self) -> bool {
        self.fifo_position < 8
            && self.counters.iter().all(|count| *count <= COUNTER_MAX)
            && self.waiting.iter().all(|packet| packet.len() <= PACKET_MAX)
            && self.waiting.len() <= super::FRAMES_MAX
            && self.interrupt_status & interrupt::RESET == 0
    }
}
