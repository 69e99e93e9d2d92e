//! The ports of a switch, and the packets between them.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::num::NonZero;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ring3_core::net::{MacAddress, Packet};
use ring3_host::admission::{Admission, Admitted, Room};
use ring3_host::turns::Share;
use ring3_vm::networks::Network;
use tracing::{info, warn};

use super::fabric::{Fabric, PortId, PortKind};
use super::shares::{MachineShare, Shares};
use super::status::{PortStatus, SwitchStatus};
use super::vhost::{Frame, Receiver};
use crate::card::{Card, CardOwner};
use crate::error::NetError;
use crate::message::{Carried, Notice};
use crate::outgoing::Outgoing;
use crate::stream::StreamSink;

/// How long a sender waits for a slow receiver.
const PATIENCE: Duration = Duration::from_secs(1);

/// Upper bounds of the machines: each takes two or three threads. Machines that have sent something stay,
/// however quiet they are.
const ROOM: Room = Room { all: 256, of_a_peer: 64, idle: None };

/// The options of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchOptions {
    /// Whether guests may only use their own addresses, and see no packets of others.
    pub filtered: bool,
    /// Packets to all that a guest may send in a second; 0 is no limit.
    pub broadcasts: u32,
    /// Whether two guests that send each other many packets get a connection of their own, if they are
    /// filtered.
    pub short_cuts: bool,
    /// The bytes a second that all guests together may send, if there is a limit. Then there are no short cuts.
    pub bandwidth: Option<NonZero<u64>>,
}

impl Default for SwitchOptions {
    fn default() -> SwitchOptions {
        SwitchOptions { filtered: true, broadcasts: 1000, short_cuts: true, bandwidth: None }
    }
}

/// A switch. It exists as long as this, or one of its ports, does.
#[derive(Debug, Clone)]
pub struct Switch {
    shared: Arc<Shared>,
    options: SwitchOptions,
    admission: Arc<Admission>,
    shares: Option<Arc<Shares>>,
}

/// A machine that was let in.
#[derive(Debug, Default)]
pub(super) struct Newcomer {
    admitted: Option<Arc<Admitted>>,
    /// What it may send, if there is a limit.
    share: Option<Arc<Share>>,
}

#[derive(Debug)]
struct Shared {
    fabric: Mutex<Fabric>,
    senders: RwLock<BTreeMap<PortId, Arc<PortSender>>>,
    /// By port: the queues by which short cuts are handed over to the machines that accept them. None if
    /// there must be no short cuts.
    short_cut_queues: Option<Mutex<BTreeMap<PortId, Arc<Outgoing<StreamSink>>>>>,
}

/// The sending side of a port.
struct PortSender {
    name: String,
    kind: PortKind,
    network: Mutex<Box<dyn Network>>,
    /// The receive queue in the guest's memory, if it shares that.
    receiver: Option<Arc<Receiver>>,
    /// The guest's place among the machines that were let in.
    _admitted: Option<Arc<Admitted>>,
    /// Whether it has too much queued.
    is_slow: Mutex<bool>,
    changed: Condvar,
}

impl Debug for PortSender {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PortSender").field(&self.name).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PortSender {
    fn send(&self, packet: Packet) {
        lock(&self.network).send(packet);
    }

    fn flush(&self) {
        let mut network = lock(&self.network);
        network.flush();
        // Whoever is woken by this needs the same lock first.
        let mut is_slow = lock(&self.is_slow);
        *is_slow = network.is_congested();
        // A network that has given its packets up relieves nobody.
        if !*is_slow {
            self.changed.notify_all();
        }
    }

    /// Waits while too much is queued, but not for ever.
    fn wait(&self) {
        let is_slow = lock(&self.is_slow);
        drop(self.changed.wait_timeout_while(is_slow, PATIENCE, |is_slow| *is_slow));
    }

    fn relieve(&self) {
        *lock(&self.is_slow) = false;
        self.changed.notify_all();
    }
}

#[cfg(test)]
impl Port {
    /// Returns whether those who send to this port wait.
    pub(super) fn is_slow(&self) -> bool {
        self.shared.sender(self.id).is_some_and(|sender| *lock(&sender.is_slow))
    }
}

impl Shared {
    fn sender(&self, id: PortId) -> Option<Arc<PortSender>> {
        self.senders.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn remove(&self, id: PortId) {
        lock(&self.fabric).remove(id);
        if let Some(queues) = &self.short_cut_queues {
            lock(queues).remove(&id);
        }
        let sender = self.senders.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if let Some(sender) = sender {
            // Nobody needs to wait for it.
            sender.relieve();
            info!("{} is disconnected", sender.name);
        }
    }

    /// Gives the machines at two ports, which have these addresses, a connection of their own.
    fn give_short_cut(&self, ports: [PortId; 2], addresses: [MacAddress; 2]) {
        let Some(queues) = &self.short_cut_queues else { return };
        // With this lock, neither machine hears that the other one has turned to the short cut before it has
        // it.
        let queues = lock(queues);
        let [Some(one), Some(other)] = ports.map(|id| queues.get(&id)) else { return };
        match UnixStream::pair() {
            Ok((end_of_one, end_of_other)) => {
                one.hand_over(&Notice::ShortCut(addresses[1]), end_of_one.into());
                other.hand_over(&Notice::ShortCut(addresses[0]), end_of_other.into());
            }
            Err(error) => {
                let [one, other] = addresses;
                warn!("{one} and {other} cannot be connected directly: {error}");
            }
        }
    }
}

impl Switch {
    /// Returns a switch without ports.
    pub fn new(options: SwitchOptions) -> Switch {
        let fabric = Mutex::new(Fabric::new(options.broadcasts, Instant::now()));
        let has_short_cuts = options.short_cuts && options.bandwidth.is_none();
        let short_cut_queues = has_short_cuts.then(Mutex::default);
        let shared = Arc::new(Shared { fabric, senders: RwLock::default(), short_cut_queues });
        let shares = options.bandwidth.map(|bandwidth| Arc::new(Shares::new(bandwidth)));
        Switch { shared, options, admission: Admission::new(ROOM), shares }
    }

    /// Says what machines may send. All others have the usual weight and no limit. Returns false if there is no bandwidth to
    /// be shared.
    pub fn share(&self, machines: &[MachineShare]) -> bool {
        if let Some(shares) = &self.shares {
            shares.set(machines);
        }
        self.shares.is_some()
    }

    /// Adds a port for a guest, called `name`. `open` makes the guest's network for the card that it gets.
    pub(super) fn add_guest(
        &self,
        name: &str,
        newcomer: Newcomer,
        open: impl FnOnce(Card) -> Result<Box<dyn Network>, NetError>,
    ) -> Result<(), NetError> {
        self.add(name, self.guest(), newcomer, None, |port| open(Card::of(name, port)))
    }

    /// Adds a port for a guest that shares its memory, with the receive queue `receiver`. Packets that are
    /// not copied there go to the network that `open` makes.
    pub(super) fn add_shared(
        &self,
        name: &str,
        newcomer: Newcomer,
        receiver: &Arc<Receiver>,
        open: impl FnOnce(Arc<Port>) -> Result<Box<dyn Network>, NetError>,
    ) -> Result<(), NetError> {
        self.add(name, self.guest(), newcomer, Some(Arc::clone(receiver)), open)
    }

    fn guest(&self) -> PortKind {
        PortKind::Guest { filtered: self.options.filtered }
    }

    /// Adds a port for a way to other networks.
    pub fn add_uplink(
        &self,
        name: &str,
        open: impl FnOnce(Card) -> Result<Box<dyn Network>, NetError>,
    ) -> Result<(), NetError> {
        let nobody = Newcomer::default();
        self.add(name, PortKind::Uplink, nobody, None, |port| open(Card::of(name, port)))
    }

    fn add(
        &self,
        name: &str,
        kind: PortKind,
        Newcomer { admitted, share }: Newcomer,
        receiver: Option<Arc<Receiver>>,
        open: impl FnOnce(Arc<Port>) -> Result<Box<dyn Network>, NetError>,
    ) -> Result<(), NetError> {
        let id = lock(&self.shared.fabric).add(kind, Instant::now());
        let pending = Mutex::default();
        let unheard = Mutex::new(admitted.clone());
        let has_spoken = AtomicBool::new(false);
        let opened = OnceLock::new();
        let shared = self.shared.clone();
        let port = Port { shared, id, share, opened, pending, unheard, has_spoken };
        let port = Arc::new(port);
        let network = match open(Arc::clone(&port)) {
            Ok(network) => Mutex::new(network),
            Err(error) => {
                self.shared.remove(id);
                // Its threads find that it is gone.
                let _ = port.opened.set(());
                return Err(error);
            }
        };
        let (is_slow, changed) = (Mutex::new(false), Condvar::new());
        let sender = Arc::new(PortSender {
            name: name.to_owned(),
            kind,
            network,
            receiver,
            _admitted: admitted,
            is_slow,
            changed,
        });
        self.shared.senders.write().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        let _ = port.opened.set(());
        // The guest may have left before its port was complete.
        if lock(&self.shared.fabric).counters(id).is_none() {
            self.shared.remove(id);
        }
        info!("{name} is connected");
        Ok(())
    }

    /// Lets in the machine at the other end of `connection`. Returns None if there are too many.
    pub(super) fn admit(&self, connection: impl AsFd) -> Result<Option<Newcomer>, NetError> {
        let share = self.shares.as_ref().map(|shares| shares.of(&connection));
        let admitted = self.admission.admit(connection).map_err(NetError::Conversation)?;
        Ok(admitted.map(|admitted| Newcomer { admitted: Some(Arc::new(admitted)), share }))
    }

    /// Returns the number of guests that are connected.
    pub fn guests(&self) -> usize {
        let senders = self.shared.senders.read().unwrap_or_else(PoisonError::into_inner);
        senders.values().filter(|sender| sender.kind != PortKind::Uplink).count()
    }

    /// Returns the counters of all ports.
    pub fn status(&self) -> SwitchStatus {
        let senders = self.shared.senders.read().unwrap_or_else(PoisonError::into_inner).clone();
        let fabric = lock(&self.shared.fabric);
        let ports = senders.iter().filter_map(|(id, sender)| {
            let counters = fabric.counters(*id)?;
            Some(PortStatus::new(&sender.name, sender.kind, fabric.address(*id), counters))
        });
        SwitchStatus { ports: ports.collect() }
    }
}

/// The receiving side of a port.
pub(super) struct Port {
    shared: Arc<Shared>,
    id: PortId,
    /// What the machine may send, if there is a limit.
    share: Option<Arc<Share>>,
    /// Set when others can send to this port. Before, nothing that its machine sends is taken: an answer
    /// would be lost.
    opened: OnceLock<()>,
    /// Ports to which something was sent, each with whether the sender waits for it.
    pending: Mutex<Vec<(Arc<PortSender>, bool)>>,
    /// The guest's place, which is to be told when the machine first sends something.
    unheard: Mutex<Option<Arc<Admitted>>>,
    has_spoken: AtomicBool,
}

impl Port {
    /// Notes that the machine has sent something, once answers can reach it.
    fn hear(&self) {
        self.opened.wait();
        if !self.has_spoken.swap(true, Ordering::Relaxed)
            && let Some(admitted) = lock(&self.unheard).take()
        {
            admitted.is_active();
        }
    }

    /// Waits until the machine may send a packet of `len` bytes. Those before it go on meanwhile. Returns false if the
    /// machine has gone.
    fn has_turn(&self, len: usize) -> bool {
        let Some(share) = &self.share else { return true };
        let has_gone = || {
            self.flush();
            lock(&self.shared.fabric).counters(self.id).is_none()
        };
        let Some(turn) = share.begin(has_gone) else { return false };
        turn.end(len as u64);
        true
    }

    /// Takes a packet that is in its sender's memory, and copies it from there to its destination.
    pub(super) fn take_frame(&self, frame: &Frame<'_>) {
        self.hear();
        if !self.has_turn(frame.len()) {
            return;
        }
        // If the beginning does not decide what to do, the whole packet may; one that is malformed is counted
        // as such.
        let Some(start) = frame.start() else {
            return self.take(frame.to_packet().unwrap_or_default());
        };
        let mut to = Vec::new();
        let len = frame.len() as u64;
        let result =
            lock(&self.shared.fabric).forward_start(self.id, &start, len, Instant::now(), &mut to);
        if result.is_err() {
            return;
        }
        if let [id] = to[..]
            && let Some(sender) = self.shared.sender(id)
            && sender.receiver.as_ref().is_some_and(|receiver| receiver.copy(&start, frame))
        {
            return self.note(sender, true);
        }
        if let Some(packet) = frame.to_packet() {
            self.send(packet, to);
        }
    }

    fn send(&self, packet: Packet, mut to: Vec<PortId>) {
        let waits = to.len() == 1;
        let mut packet = Some(packet);
        while let Some(id) = to.pop() {
            let Some(sender) = self.shared.sender(id) else { continue };
            let copy = if to.is_empty() { packet.take() } else { packet.clone() };
            let Some(copy) = copy else { break };
            sender.send(copy);
            self.note(sender, waits);
        }
    }

    /// Notes that something was sent to a port.
    fn note(&self, sender: Arc<PortSender>, waits: bool) {
        let mut pending = lock(&self.pending);
        match pending.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &sender)) {
            Some((_, is_waited_for)) => *is_waited_for |= waits,
            None => pending.push((sender, waits)),
        }
    }
}

impl CardOwner for Port {
    fn take(&self, packet: Packet) {
        self.hear();
        if !self.has_turn(packet.bytes.len()) {
            return;
        }
        let mut to = Vec::new();
        let now = Instant::now();
        let mut fabric = lock(&self.shared.fabric);
        if fabric.forward(self.id, &packet, now, &mut to).is_err() {
            return;
        }
        let short_cut = match to[..] {
            [to] => fabric.short_cut(self.id, to).map(|addresses| ([self.id, to], addresses)),
            _ => None,
        };
        drop(fabric);
        self.send(packet, to);
        if let Some((ports, addresses)) = short_cut {
            self.shared.give_short_cut(ports, addresses);
        }
    }

    fn flush(&self) {
        let pending = std::mem::take(&mut *lock(&self.pending));
        for (sender, _) in &pending {
            sender.flush();
        }
        for (sender, _) in pending.iter().filter(|(_, waits)| *waits) {
            sender.wait();
        }
    }

    fn relieve(&self) {
        if let Some(sender) = self.shared.sender(self.id) {
            sender.relieve();
        }
    }

    fn told_address(&self, address: MacAddress) {
        self.hear();
        if !lock(&self.shared.fabric).pin(self.id, address, Instant::now()) {
            warn!("a machine claims the address {address}, which another machine has");
        }
    }

    fn takes_short_cuts(&self, to: &Arc<Outgoing<StreamSink>>) {
        if let Some(queues) = &self.shared.short_cut_queues {
            lock(queues).insert(self.id, to.clone());
            lock(&self.shared.fabric).takes_short_cuts(self.id);
        }
    }

    fn told_turned(&self, to: MacAddress) {
        let fabric = lock(&self.shared.fabric);
        let ends = (fabric.address(self.id), fabric.end_of_short_cut(self.id, to));
        drop(fabric);
        if let (Some(address), Some(to)) = ends
            && let Some(queues) = &self.shared.short_cut_queues
            && let Some(outgoing) = lock(queues).get(&to)
        {
            // After all packets that have come from there before.
            outgoing.notify(&Notice::Turned(address));
        }
    }

    fn told_carried(&self, from: MacAddress, carried: Carried) {
        lock(&self.shared.fabric).carried(self.id, from, &carried);
    }

    fn ended(&self) {
        self.shared.remove(self.id);
    }
}
