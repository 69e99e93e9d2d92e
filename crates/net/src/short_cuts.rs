//! The machine's side of a switch's short cuts.
//!
//! Packets from one guest to another pass through the switch until it has seen some of them. Then it gives
//! both machines the ends of a connection of their own, and no other process has to wake up for these packets
//! any more. The protection of the switch's filter holds there too: each end knows the other one's address,
//! and accepts only packets from that address to its own. Packets to others, or to all, still go through the
//! switch. When a short cut ends, all packets do again, and all short cuts end with the connection to the
//! switch.
//!
//! The switch offers a short cut after 16 packets. Packets keep their order: the sender tells the switch at
//! which point it turns to the short cut, the switch passes that on after the packets that came before, and
//! only then the receiver reads from the short cut. Receivers report to the switch, for its counters.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring3_core::input::DeviceInput;
use ring3_core::net::{MacAddress, Packet};
use ring3_vm::networks::Network;
use ring3_vm::{Fetched, Source};
use tracing::{debug, warn};

use crate::card::Card;
use crate::error::NetError;
use crate::message::{Carried, Notice, Received};
use crate::outgoing::{Outgoing, Queued};
use crate::stream::{Connection, FetchedMessage, Incoming, StreamSink};

/// Upper bound of a card's short cuts: each has a thread, and is examined whenever the machine looks for
/// packets.
const SHORT_CUTS_MAX: usize = 16;

/// How often the switch is told what the short cuts have carried.
const REPORT: Duration = Duration::from_millis(10);

/// Number of refused packets that are dropped before the machine continues with something else.
const REFUSED_AT_ONCE: u64 = 64;

/// The short cuts of a card.
#[derive(Debug)]
pub(crate) struct ShortCuts {
    card: Card,
    address: MacAddress,
    all: Mutex<Vec<ShortCut>>,
}

/// A short cut.
struct ShortCut {
    to: MacAddress,
    outgoing: Arc<Outgoing<StreamSink>>,
    /// Whether something was sent that has yet to go out.
    has_sent: bool,
    /// The receiving end, while packets that the other machine has sent before still come by the switch.
    incoming: Option<Box<ShortCutSource>>,
}

impl fmt::Debug for ShortCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShortCut").field(&self.to).finish()
    }
}

/// A short cut must not be dropped while the lock on all of them is held.
impl Drop for ShortCut {
    fn drop(&mut self) {
        self.outgoing.close();
    }
}

impl ShortCuts {
    /// Returns an empty set of short cuts for `card`, if it has an address that does not change.
    pub(crate) fn of(card: &Card) -> Option<Arc<ShortCuts>> {
        let address = card.address()?;
        Some(Arc::new(ShortCuts { card: card.clone(), address, all: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ShortCut>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a short cut by `socket` to the machine with the address `to`. The switch at `switch` is told how
    /// many packets it carries.
    pub(crate) fn add(
        self: &Arc<Self>,
        to: MacAddress,
        socket: OwnedFd,
        switch: &Arc<Outgoing<StreamSink>>,
    ) {
        if let Err(error) = self.try_to_add(to, socket, switch) {
            // The other machine sees that the connection has ended.
            warn!(
                "{}: packets to {to} go through the switch, because a direct connection failed: {error}",
                self.card.name()
            );
        }
    }

    fn try_to_add(
        self: &Arc<Self>,
        to: MacAddress,
        socket: OwnedFd,
        switch: &Arc<Outgoing<StreamSink>>,
    ) -> Result<(), NetError> {
        drop(self.take(|short_cut| short_cut.to == to));
        if self.lock().len() >= SHORT_CUTS_MAX {
            return Ok(());
        }
        let connection = Connection::new(socket).map_err(NetError::Conversation)?;
        let outgoing = Outgoing::start(self.card.clone())?;
        let mut short_cut =
            ShortCut { to, outgoing: outgoing.clone(), has_sent: false, incoming: None };
        let incoming = Incoming::new(self.card.clone(), outgoing, connection);
        let Some(incoming) = incoming.map_err(NetError::Conversation)? else { return Ok(()) };
        short_cut.outgoing.notify(&Notice::Headers);
        short_cut.incoming = Some(Box::new(ShortCutSource {
            incoming,
            short_cuts: self.clone(),
            from: to,
            switch: switch.clone(),
            carried: Carried::default(),
            told: Instant::now(),
        }));
        // Packets that were sent before go out before this notice.
        if switch.notify(&Notice::Turned(to)) {
            self.lock().push(short_cut);
        }
        Ok(())
    }

    /// Starts to receive by the short cut from the machine with the address `from`: all packets that it has
    /// sent by the switch have come.
    pub(crate) fn open(&self, from: MacAddress) {
        let mut short_cuts = self.lock();
        let short_cut = short_cuts.iter_mut().find(|short_cut| short_cut.to == from);
        let Some(incoming) = short_cut.and_then(|short_cut| short_cut.incoming.take()) else {
            return;
        };
        drop(short_cuts);
        // A machine that is ending drops it, and needs none.
        if self.card.attach(incoming).is_ok() {
            debug!("{}: connected directly to {from}", self.card.name());
        }
    }

    fn take(&self, is_meant: impl Fn(&ShortCut) -> bool) -> Option<ShortCut> {
        let mut short_cuts = self.lock();
        let index = short_cuts.iter().position(is_meant)?;
        Some(short_cuts.remove(index))
    }

    /// Sends a packet by the short cut to its destination. Returns the packet if there is none.
    fn send(&self, packet: Packet) -> Option<Packet> {
        let mut short_cuts = self.lock();
        let to = packet.destination();
        let Some(short_cut) = short_cuts.iter_mut().find(|short_cut| Some(short_cut.to) == to)
        else {
            return Some(packet);
        };
        if short_cut.outgoing.is_connected() {
            short_cut.outgoing.push(packet);
            short_cut.has_sent = true;
            return None;
        }
        // The other machine is gone.
        drop(short_cuts);
        drop(self.take(|short_cut| Some(short_cut.to) == to));
        Some(packet)
    }

    fn flush(&self) {
        for short_cut in self.lock().iter_mut().filter(|short_cut| short_cut.has_sent) {
            short_cut.outgoing.flush();
            short_cut.has_sent = false;
        }
    }

    fn are_congested(&self) -> bool {
        self.lock().iter().any(|short_cut| short_cut.outgoing.is_congested())
    }

    /// Ends all short cuts.
    pub(crate) fn clear(&self) {
        let short_cuts = std::mem::take(&mut *self.lock());
        drop(short_cuts);
    }
}

/// The receiving end of a short cut.
struct ShortCutSource {
    incoming: Incoming,
    short_cuts: Arc<ShortCuts>,
    /// The address of the machine at the other end.
    from: MacAddress,
    switch: Arc<Outgoing<StreamSink>>,
    /// The packets that the switch has not been told of yet, and when it was last told.
    carried: Carried,
    told: Instant,
}

impl ShortCutSource {
    fn tell(&mut self) {
        let carried = std::mem::take(&mut self.carried);
        if carried != Carried::default() {
            self.switch.notify(&Notice::Carried(self.from, carried));
        }
        self.told = Instant::now();
    }

    /// Returns whether `packet` may come by this short cut.
    fn allows(&self, packet: &Packet) -> bool {
        packet.source() == Some(self.from) && packet.destination() == Some(self.short_cuts.address)
    }
}

impl Source for ShortCutSource {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.incoming.descriptor()
    }

    fn fetch(&mut self) -> Fetched {
        for _ in 0..REFUSED_AT_ONCE {
            match self.incoming.fetch() {
                FetchedMessage::Message(Received::Packet(packet)) if self.allows(&packet) => {
                    self.carried.packets += 1;
                    self.carried.bytes += packet.bytes.len() as u64;
                    self.short_cuts.card.note(&packet);
                    return Fetched::Input(DeviceInput::Packet(packet));
                }
                FetchedMessage::Message(Received::Packet(_)) => self.carried.refused += 1,
                // The notice was about the stream itself.
                FetchedMessage::Message(Received::Notice(_)) => {}
                FetchedMessage::Nothing => {
                    if self.carried != Carried::default() && self.told.elapsed() >= REPORT {
                        self.tell();
                    }
                    return Fetched::Nothing;
                }
                FetchedMessage::Ended => return Fetched::Ended,
            }
        }
        Fetched::Nothing
    }
}

impl Drop for ShortCutSource {
    fn drop(&mut self) {
        self.tell();
        let outgoing = self.incoming.outgoing();
        drop(self.short_cuts.take(|short_cut| Arc::ptr_eq(&short_cut.outgoing, outgoing)));
    }
}

/// A network with short cuts.
#[derive(Debug)]
pub(crate) struct Shortened<R: fmt::Debug> {
    network: Queued<StreamSink, R>,
    short_cuts: Arc<ShortCuts>,
}

impl<R: fmt::Debug> Shortened<R> {
    /// Returns a network that sends packets without a short cut to `network`.
    pub(crate) fn new(network: Queued<StreamSink, R>, short_cuts: Arc<ShortCuts>) -> Shortened<R> {
        Shortened { network, short_cuts }
    }
}

impl<R: fmt::Debug + Send> Network for Shortened<R> {
    fn send(&mut self, packet: Packet) {
        if let Some(packet) = self.short_cuts.send(packet) {
            self.network.send(packet);
        }
    }

    fn flush(&mut self) {
        self.short_cuts.flush();
        self.network.flush();
    }

    fn is_congested(&mut self) -> bool {
        // When one of the two is no longer congested, both are asked again.
        self.short_cuts.are_congested() || self.network.is_congested()
    }
}

impl<R: fmt::Debug> Drop for Shortened<R> {
    fn drop(&mut self) {
        self.short_cuts.clear();
    }
}
