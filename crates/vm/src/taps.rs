//! Copies of the packets between the network cards and their networks, for those who look on.
//!
//! A tap never makes the machine wait: one that is not read loses packets, which are counted. It sees all
//! packets that a guest sends and receives, also those of a run that is repeated, with the machine's time.

use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};

use ring3_core::clock::Time;
use ring3_core::device::DeviceId;
use ring3_core::net::Packet;

use crate::control::{Control, Ended, Request};

/// Upper bound of the packets that wait in a tap.
const WAITING_MAX: usize = 256;

/// A packet in a tap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tapped {
    /// Virtual time.
    pub time: Time,
    /// The card.
    pub card: DeviceId,
    /// Whether the guest has sent it, rather than received.
    pub is_sent: bool,
    /// The packet.
    pub packet: Packet,
    /// Number of packets before it that the tap has lost.
    pub lost: u64,
}

/// The machine's end of a tap.
#[derive(Debug)]
pub struct Tap {
    to: SyncSender<Tapped>,
    /// The only card that counts, if there is one.
    card: Option<DeviceId>,
    lost: u64,
}

impl Control {
    /// Returns a tap for the packets of the card `card`, or of all cards, from now on. It ends with the machine.
    pub fn tap(&self, card: Option<DeviceId>) -> Result<Receiver<Tapped>, Ended> {
        let (to, packets) = mpsc::sync_channel(WAITING_MAX);
        self.ask(|reply| Request::Tap(Tap { to, card, lost: 0 }, reply))?;
        Ok(packets)
    }
}

/// All taps of a machine.
#[derive(Debug, Default)]
pub(crate) struct Taps(Vec<Tap>);

impl Taps {
    /// Adds a tap.
    pub(crate) fn add(&mut self, tap: Tap) {
        self.0.push(tap);
    }

    /// Shows a packet to all taps.
    #[inline]
    pub(crate) fn show(&mut self, time: Time, card: DeviceId, is_sent: bool, packet: &Packet) {
        if !self.0.is_empty() {
            self.0.retain_mut(|tap| tap.take(time, card, is_sent, packet));
        }
    }
}

impl Tap {
    /// Takes a packet. Returns false if nobody looks on any more.
    fn take(&mut self, time: Time, card: DeviceId, is_sent: bool, packet: &Packet) -> bool {
        if self.card.is_some_and(|wanted| wanted != card) {
            return true;
        }
        let lost = self.lost;
        let packet = packet.clone();
        match self.to.try_send(Tapped { time, card, is_sent, packet, lost }) {
            Ok(()) => self.lost = 0,
            Err(TrySendError::Full(_)) => self.lost += 1,
            Err(TrySendError::Disconnected(_)) => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_that_is_not_read_loses_packets() {
        let mut taps = Taps::default();
        let (to, packets) = mpsc::sync_channel(2);
        taps.add(Tap { to, card: Some(DeviceId::NIC[0]), lost: 0 });
        let mut show = |card: usize, byte| {
            taps.show(Time::ZERO, DeviceId::NIC[card], true, &Packet::frame(vec![byte]));
        };
        for byte in 0..5 {
            show(0, byte);
            show(1, 9);
        }
        let taken: Vec<_> = packets.try_iter().map(|tapped| tapped.packet.bytes[0]).collect();
        assert_eq!(taken, [0, 1]);
        show(0, 5);
        let tapped = packets.try_recv().unwrap();
        assert_eq!((tapped.packet.bytes[0], tapped.lost), (5, 3));
        drop(packets);
        show(0, 6);
        assert!(taps.0.is_empty());
    }
}
