use proptest::prelude::*;

use super::*;

const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
const OUT: [u8; 6] = [2, 0, 0, 0, 0, 0xff];
const ALL: [u8; 6] = [0xff; 6];
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];
const GUEST: PortKind = PortKind::Guest { filtered: true };
const OPEN: PortKind = PortKind::Guest { filtered: false };

struct Net {
    fabric: Fabric,
    now: Instant,
}

impl Net {
    fn new() -> Net {
        let now = Instant::now();
        Net { fabric: Fabric::new(0, now), now }
    }

    fn add(&mut self, kind: PortKind) -> PortId {
        self.fabric.add(kind, self.now)
    }

    fn send(&mut self, from: PortId, source: [u8; 6], to: [u8; 6]) -> Result<Vec<PortId>, Refusal> {
        let packet = Packet::frame([&to[..], &source, &[0; 48]].concat());
        let mut ports = Vec::new();
        self.fabric.forward(from, &packet, self.now, &mut ports).map(|()| ports)
    }
}

#[test]
fn guests_find_each_other_and_no_other_guest_hears_them() {
    let mut net = Net::new();
    let [a, b, other] = [GUEST; 3].map(|kind| net.add(kind));
    let uplink = net.add(PortKind::Uplink);
    assert_eq!(net.send(a, A, ALL), Ok(vec![b, other, uplink]));
    assert_eq!(net.send(other, [2, 0, 0, 0, 0, 7], ALL), Ok(vec![a, b, uplink]));
    // The switch does not know B: it may be the guest that has sent nothing yet, or be outside.
    assert_eq!(net.send(a, A, B), Ok(vec![b, uplink]));
    assert_eq!(net.send(b, B, A), Ok(vec![a]));
    assert_eq!(net.send(a, A, B), Ok(vec![b]));
    assert_eq!(net.send(a, A, OUT), Ok(vec![uplink]));
    assert_eq!(net.send(a, A, GROUP), Ok(vec![b, other, uplink]));
    assert_eq!(net.send(a, A, A), Err(Refusal::Nowhere));
    let counters = net.fabric.counters(a).unwrap();
    assert_eq!((counters.received, counters.received_bytes, counters.sent), (6, 360, 2));
    assert_eq!(counters.refused, BTreeMap::from([(Refusal::Nowhere, 1)]));
}

#[test]
fn a_guest_has_one_address_which_no_other_guest_can_take() {
    let mut net = Net::new();
    let [a, b] = [GUEST; 2].map(|kind| net.add(kind));
    let uplink = net.add(PortKind::Uplink);
    assert!(net.fabric.pin(a, MacAddress(A), net.now));
    assert!(!net.fabric.pin(b, MacAddress(A), net.now));
    assert!(!net.fabric.pin(b, MacAddress(GROUP), net.now));
    assert_eq!(net.send(a, B, ALL), Err(Refusal::Spoofed), "it has another one");
    assert_eq!(net.send(b, A, ALL), Err(Refusal::Spoofed), "its first one cannot be another's");
    assert_eq!(net.send(uplink, A, ALL), Err(Refusal::Spoofed), "nor can one outside be it");
    assert_eq!(net.send(uplink, OUT, ALL), Ok(vec![a, b]));
    assert_eq!(net.send(b, OUT, ALL), Err(Refusal::Spoofed), "nor it one outside");
    assert_eq!(net.send(b, B, A), Ok(vec![a]));
    assert_eq!(net.send(b, A, ALL), Err(Refusal::Spoofed));
    // The address stays there however long the guest sends nothing.
    net.now += 2 * AGEING;
    assert_eq!(net.send(uplink, OUT, A), Ok(vec![a]));
    // A guest that is gone leaves its address to others.
    net.fabric.remove(a);
    let again = net.add(GUEST);
    assert!(net.fabric.pin(again, MacAddress(A), net.now));
    assert_eq!(net.fabric.address(again), Some(MacAddress(A)));
}

#[test]
fn without_filters_it_is_a_learning_bridge() {
    let mut net = Net::new();
    let [a, b, c] = [OPEN; 3].map(|kind| net.add(kind));
    assert_eq!(net.send(a, A, B), Ok(vec![b, c]));
    assert_eq!(net.send(b, B, A), Ok(vec![a]));
    // B has moved.
    assert_eq!(net.send(c, B, A), Ok(vec![a]));
    assert_eq!(net.send(a, A, B), Ok(vec![c]));
    net.now += AGEING;
    assert_eq!(net.send(a, A, B), Ok(vec![b, c]), "it was not heard for long");
    // It cannot take addresses outside, either.
    let uplink = net.add(PortKind::Uplink);
    assert_eq!(net.send(uplink, OUT, A), Ok(vec![a]));
    assert_eq!(net.send(b, OUT, A), Err(Refusal::Spoofed));
}

#[test]
fn invalid_frames_are_dropped() {
    let mut net = Net::new();
    let [a, _] = [GUEST; 2].map(|kind| net.add(kind));
    assert_eq!(net.send(a, GROUP, ALL), Err(Refusal::Malformed));
    assert_eq!(net.send(a, A, [0x01, 0x80, 0xc2, 0, 0, 0]), Err(Refusal::Malformed));
    assert!(net.send(a, A, [0x01, 0x80, 0xc2, 0, 0, 16]).is_ok());
    let short = Packet::frame(vec![2; 11]);
    let mut to = Vec::new();
    assert_eq!(net.fabric.forward(a, &short, net.now, &mut to), Err(Refusal::Malformed));
    assert_eq!(net.send(PortId(99), A, ALL), Err(Refusal::Nowhere));
}

#[test]
fn a_guest_cannot_flood_all_others() {
    let mut net = Net::new();
    net.fabric = Fabric::new(100, net.now);
    let [a, b] = [GUEST; 2].map(|kind| net.add(kind));
    let sent = (0..1000).filter(|_| net.send(a, A, ALL).is_ok()).count();
    assert_eq!(sent, 100);
    assert_eq!(net.fabric.counters(a).unwrap().refused[&Refusal::Flood], 900);
    assert!(net.send(b, B, A).is_ok() && net.send(a, A, B).is_ok(), "all else goes on");
    net.now += Duration::from_secs(1);
    assert!(net.send(a, A, ALL).is_ok());
}

#[test]
fn addresses_do_not_fill_the_memory() {
    let mut net = Net::new();
    let (open, uplink) = (net.add(OPEN), net.add(PortKind::Uplink));
    for number in 0..20_000_u32 {
        let [_, x, y, z] = number.to_be_bytes();
        net.send(open, [2, 1, 0, x, y, z], ALL).unwrap();
        net.send(uplink, [2, 2, 0, x, y, z], ALL).unwrap();
    }
    let of =
        |net: &Net, port| net.fabric.places.values().filter(|place| place.port == port).count();
    assert_eq!(of(&net, open), ADDRESSES_OF_GUEST_MAX);
    assert_eq!(net.fabric.places.len(), ADDRESSES_MAX);
    net.now += AGEING;
    net.send(uplink, OUT, ALL).unwrap();
    assert_eq!(net.fabric.places.len(), 1, "what was old has made room");
}

proptest! {
    /// Whatever filtered guests send, none receives a packet for another one, and none sends from the address
    /// of another one.
    #[test]
    fn filters_cannot_be_evaded(packets in prop::collection::vec((0..3_usize, 0..5_u8, 0..5_u8), 1..200)) {
        let mut net = Net::new();
        let guests = [GUEST; 3].map(|kind| net.add(kind));
        net.add(PortKind::Uplink);
        let address = |number: u8| [2, 0, 0, 0, 0, number];
        for (guest, id) in guests.iter().enumerate() {
            prop_assert!(net.fabric.pin(*id, MacAddress(address(guest as u8)), net.now));
        }
        for (from, source, to) in packets {
            let result = net.send(guests[from], address(source), address(to));
            prop_assert_eq!(result.is_err_and(|why| why == Refusal::Spoofed), source != from as u8);
            for (guest, id) in guests.iter().enumerate() {
                let heard = net.send(guests[from], address(source), address(to));
                let hears = heard.is_ok_and(|ports| ports.contains(id));
                prop_assert!(!hears || (guest as u8 == to && source == from as u8));
            }
        }
    }
}
