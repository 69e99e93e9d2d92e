//! The machine's side of a switch's short cuts.
//!
//! Packets from one guest to another pass through the switch until it has seen some of them: then it gives both machines the ends of a connection of their own,
//! and no other process has to wake up for them any more. What the switch's filter is for holds there too: each end knows which address the other one
//! has, and takes only packets from that to its own. Whatever is for others, or for all, goes through the switch as ever; so does everything again when a short
//! cut ends, and all of them end with the connection to the switch.
//!
//! The switch offers one after 16 packets. Packets keep their order: the sender tells the switch where it turns to
//! the short cut, the switch passes that on behind the packets that came before, and the receiver
//! reads the short cut only then. Receivers report to the switch, for its counters.

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
use crate::stream::{Came, Connection, Incoming, StreamSink};

/// Short cuts of a card at most: each has a thread, and is looked at whenever the machine looks for packets.
const WAYS_MAX: usize = 16;

/// How often the switch is told what they have carried.
const REPORT: Duration = Duration::from_millis(10);

/// So many packets that may not come by a short cut are thrown away before the machine goes on with something else.
const REFUSED_AT_ONCE: u64 = 64;

/// The short cuts of a card.
#[derive(Debug)]
pub(crate) struct ShortCuts {
    card: Card,
    address: MacAddress,
    ways: Mutex<Vec<Way>>,
}

/// One of them.
struct Way {
    to: MacAddress,
    outgoing: Arc<Outgoing<StreamSink>>,
    /// Something was sent that has to go out.
    has_sent: bool,
    /// What comes by it, while what the other machine has sent before still comes by the switch.
    incoming: Option<Box<ShortCut>>,
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Way").field(&self.to).finish()
    }
}

/// It is not dropped while the others are locked.
impl Drop for Way {
    fn drop(&mut self) {
        self.outgoing.close();
    }
}

impl ShortCuts {
    /// None yet for `card`, if it has an address that it keeps.
    pub(crate) fn of(card: &Card) -> Option<Arc<ShortCuts>> {
        let address = card.address()?;
        Some(Arc::new(ShortCuts { card: card.clone(), address, ways: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Way>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on packets go to the machine with the address `to` by `socket`, and come from it. The switch at `switch` is told how many.
    pub(crate) fn add(
        self: &Arc<Self>,
        to: MacAddress,
        socket: OwnedFd,
        switch: &Arc<Outgoing<StreamSink>>,
    ) {
        if let Err(error) = self.try_to_add(to, socket, switch) {
            // The other machine sees that it has ended.
            warn!("{}: what goes to {to} goes through the switch: {error}", self.card.name());
        }
    }

    fn try_to_add(
        self: &Arc<Self>,
        to: MacAddress,
        socket: OwnedFd,
        switch: &Arc<Outgoing<StreamSink>>,
    ) -> Result<(), NetError> {
        drop(self.take(|way| way.to == to));
        if self.lock().len() >= WAYS_MAX {
            return Ok(());
        }
        let connection = Connection::new(socket).map_err(NetError::Conversation)?;
        let outgoing = Outgoing::start(self.card.clone())?;
        let mut way = Way { to, outgoing: outgoing.clone(), has_sent: false, incoming: None };
        let incoming = Incoming::new(self.card.clone(), outgoing, connection);
        let Some(incoming) = incoming.map_err(NetError::Conversation)? else { return Ok(()) };
        way.outgoing.notify(&Notice::Headers);
        way.incoming = Some(Box::new(ShortCut {
            incoming,
            all: self.clone(),
            from: to,
            switch: switch.clone(),
            carried: Carried::default(),
            told: Instant::now(),
        }));
        // What was sent before this goes before it.
        if switch.notify(&Notice::Turned(to)) {
            self.lock().push(way);
        }
        Ok(())
    }

    /// What the machine with the address `from` has sent by the switch has come: what it sends by the short cut comes after that.
    pub(crate) fn open(&self, from: MacAddress) {
        let mut ways = self.lock();
        let way = ways.iter_mut().find(|way| way.to == from);
        let Some(incoming) = way.and_then(|way| way.incoming.take()) else { return };
        drop(ways);
        // A machine that has ended drops it, and needs none.
        if self.card.attach(incoming).is_ok() {
            debug!("{}: there is a short cut to {from}", self.card.name());
        }
    }

    fn take(&self, is_meant: impl Fn(&Way) -> bool) -> Option<Way> {
        let mut ways = self.lock();
        let index = ways.iter().position(is_meant)?;
        Some(ways.remove(index))
    }

    /// Sends a packet by the short cut to its destination: given back where there is none.
    fn send(&self, packet: Packet) -> Option<Packet> {
        let mut ways = self.lock();
        let to = packet.destination();
        let Some(way) = ways.iter_mut().find(|way| Some(way.to) == to) else {
            return Some(packet);
        };
        if way.outgoing.is_connected() {
            way.outgoing.push(packet);
            way.has_sent = true;
            return None;
        }
        // The other machine has gone.
        drop(ways);
        drop(self.take(|way| Some(way.to) == to));
        Some(packet)
    }

    fn flush(&self) {
        for way in self.lock().iter_mut().filter(|way| way.has_sent) {
            way.outgoing.flush();
            way.has_sent = false;
        }
    }

    fn are_congested(&self) -> bool {
        self.lock().iter().any(|way| way.outgoing.is_congested())
    }

    /// All of them end.
    pub(crate) fn clear(&self) {
        let ways = std::mem::take(&mut *self.lock());
        drop(ways);
    }
}

/// What comes by one.
struct ShortCut {
    incoming: Incoming,
    all: Arc<ShortCuts>,
    /// The machine at the other end has this address.
    from: MacAddress,
    switch: Arc<Outgoing<StreamSink>>,
    /// What the switch has not been told, and when it was told something.
    carried: Carried,
    told: Instant,
}

impl ShortCut {
    fn tell(&mut self) {
        let carried = std::mem::take(&mut self.carried);
        if carried != Carried::default() {
            self.switch.notify(&Notice::Carried(self.from, carried));
        }
        self.told = Instant::now();
    }

    /// It may have come this way.
    fn allows(&self, packet: &Packet) -> bool {
        packet.source() == Some(self.from) && packet.destination() == Some(self.all.address)
    }
}

impl Source for ShortCut {
    fn device(&self) -> &str {
        self.all.card.name()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.incoming.descriptor()
    }

    fn fetch(&mut self) -> Fetched {
        for _ in 0..REFUSED_AT_ONCE {
            match self.incoming.fetch() {
                Came::Received(Received::Packet(packet)) if self.allows(&packet) => {
                    self.carried.packets += 1;
                    self.carried.bytes += packet.bytes.len() as u64;
                    self.all.card.note(&packet);
                    return Fetched::Input(DeviceInput::Packet(packet));
                }
                Came::Received(Received::Packet(_)) => self.carried.refused += 1,
                // It was about the stream itself.
                Came::Received(Received::Notice(_)) => {}
                Came::Nothing => {
                    if self.carried != Carried::default() && self.told.elapsed() >= REPORT {
                        self.tell();
                    }
                    return Fetched::Nothing;
                }
                Came::Ended => return Fetched::Ended,
            }
        }
        Fetched::Nothing
    }
}

impl Drop for ShortCut {
    fn drop(&mut self) {
        self.tell();
        let outgoing = self.incoming.outgoing();
        drop(self.all.take(|way| Arc::ptr_eq(&way.outgoing, outgoing)));
    }
}

/// A network with short cuts.
#[derive(Debug)]
pub(crate) struct Shortened<R: fmt::Debug> {
    network: Queued<StreamSink, R>,
    short_cuts: Arc<ShortCuts>,
}

impl<R: fmt::Debug> Shortened<R> {
    /// What has no short cut goes to `network`.
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
        // When the one is so no longer, the others are asked again.
        self.short_cuts.are_congested() || self.network.is_congested()
    }
}

impl<R: fmt::Debug> Drop for Shortened<R> {
    fn drop(&mut self) {
        self.short_cuts.clear();
    }
}
