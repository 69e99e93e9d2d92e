//! Packets as lines of text for people, in the manner of tcpdump.
//!
//! ```
//! let mut packet = vec![0xff; 6];
//! packet.extend([0x52, 0x54, 0, 0x12, 0x34, 0x56, 0x08, 0x06]);
//! packet.extend([0, 1, 8, 0, 6, 4, 0, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56, 10, 0, 2, 15]);
//! packet.extend([0, 0, 0, 0, 0, 0, 10, 0, 2, 2]);
//! assert_eq!(ring3_net::describe::describe(&packet), "ARP, who-has 10.0.2.2 tell 10.0.2.15");
//! ```
//!
//! Packets may have anything in them. Each is one line of bounded length, without control characters.

mod dhcp;
mod dns;
mod fields;

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    ArpPacketSlice, IpNumber, LaxIpPayloadSlice, LaxLinkExtSlice, LaxNetSlice, LaxSlicedPacket,
    TcpSlice, TransportSlice, UdpSlice,
};
use ring3_core::net::MacAddress;

use fields::Fields;

/// Ports of DHCP (RFC 2131, 4.1) and of DNS (RFC 1035, 4.2), also of the one for local names (RFC 6762).
const DHCP: [u16; 2] = [67, 68];
const DNS: [u16; 2] = [53, 5353];

/// Describes an Ethernet frame, which may be larger than one and cut anywhere.
pub fn describe(bytes: &[u8]) -> String {
    let Ok(packet) = LaxSlicedPacket::from_ethernet(bytes) else {
        return format!("a packet of {} bytes, which is cut", bytes.len());
    };
    let mut text = String::new();
    for tag in &packet.link_exts {
        if let LaxLinkExtSlice::Vlan(tag) = tag {
            // Writing to a string cannot fail.
            let _ = write!(text, "vlan {}, ", tag.vlan_identifier().value());
        }
    }
    match &packet.net {
        Some(LaxNetSlice::Arp(arp)) => arp_text(&mut text, arp),
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let ends = [header.source_addr(), header.destination_addr()].map(IpAddr::V4);
            text.push_str("IP ");
            internet_text(&mut text, ends, ip.payload(), packet.transport.as_ref());
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let ends = [header.source_addr(), header.destination_addr()].map(IpAddr::V6);
            text.push_str("IP6 ");
            internet_text(&mut text, ends, ip.payload(), packet.transport.as_ref());
        }
        None => {
            let mut fields = Fields::new(bytes);
            let ends = [fields.take(), fields.take()].map(|end| end.map(MacAddress));
            let kind = fields.word().unwrap_or_default();
            if let [Some(to), Some(from)] = ends {
                let _ = write!(text, "{from} > {to}, type {kind:#06x}, length {}", bytes.len());
            }
        }
    }
    text
}

fn arp_text(text: &mut String, arp: &ArpPacketSlice<'_>) {
    let address = |bytes: &[u8]| match <[u8; 4]>::try_from(bytes) {
        Ok(bytes) => Ipv4Addr::from(bytes).to_string(),
        Err(_) => "?".to_owned(),
    };
    let [sender, target] = [arp.sender_protocol_addr(), arp.target_protocol_addr()].map(address);
    let _ = match arp.operation().0 {
        1 => write!(text, "ARP, who-has {target} tell {sender}"),
        2 => match <[u8; 6]>::try_from(arp.sender_hw_addr()) {
            Ok(card) => write!(text, "ARP, {sender} is-at {}", MacAddress(card)),
            Err(_) => write!(text, "ARP, {sender} is at no Ethernet address"),
        },
        operation => write!(text, "ARP, operation {operation}"),
    };
}

/// Describes what an Internet packet carries between `ends`.
fn internet_text(
    text: &mut String,
    ends: [IpAddr; 2],
    payload: &LaxIpPayloadSlice<'_>,
    transport: Option<&TransportSlice<'_>>,
) {
    let [from, to] = ends;
    let _ = match transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let (source, destination) = (tcp.source_port(), tcp.destination_port());
            write!(text, "{from}.{source} > {to}.{destination}: ").map(|()| tcp_text(text, tcp))
        }
        Some(TransportSlice::Udp(udp)) => {
            let (source, destination) = (udp.source_port(), udp.destination_port());
            write!(text, "{from}.{source} > {to}.{destination}: ").map(|()| udp_text(text, udp))
        }
        Some(TransportSlice::Icmpv4(icmp)) => {
            let rest = icmp.bytes5to8();
            let what = icmp_text(icmp.type_u8(), icmp.code_u8(), rest);
            write!(text, "{from} > {to}: ICMP {what}, length {}", icmp.slice().len())
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            let what = icmp6_text(icmp.type_u8(), icmp.code_u8(), icmp.slice());
            write!(text, "{from} > {to}: ICMP6, {what}, length {}", icmp.slice().len())
        }
        None => {
            let IpNumber(number) = payload.ip_number;
            let part = if payload.fragmented { " a fragment of" } else { "" };
            write!(text, "{from} > {to}:{part} protocol {number}, length {}", payload.payload.len())
        }
    };
}

fn tcp_text(text: &mut String, tcp: &TcpSlice<'_>) {
    let flags = [
        (tcp.fin(), 'F'),
        (tcp.syn(), 'S'),
        (tcp.rst(), 'R'),
        (tcp.psh(), 'P'),
        (tcp.urg(), 'U'),
        (tcp.ack(), '.'),
    ];
    let set: String =
        flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect();
    let (sequence, len) = (tcp.sequence_number(), tcp.payload().len());
    let _ = write!(text, "Flags [{set}], seq {sequence}");
    if len > 0 {
        let _ = write!(text, ":{}", sequence.wrapping_add(len as u32));
    }
    if tcp.ack() {
        let _ = write!(text, ", ack {}", tcp.acknowledgment_number());
    }
    let _ = write!(text, ", win {}, length {len}", tcp.window_size());
}

fn udp_text(text: &mut String, udp: &UdpSlice<'_>) {
    let payload = udp.payload();
    let is_at = |ports: [u16; 2]| {
        ports.contains(&udp.source_port()) || ports.contains(&udp.destination_port())
    };
    let known = if is_at(DHCP) {
        dhcp::describe(payload)
    } else if is_at(DNS) {
        dns::describe(payload)
    } else {
        None
    };
    if let Some(known) = known {
        let _ = write!(text, "{known}, ");
    } else {
        text.push_str("UDP, ");
    }
    let _ = write!(text, "length {}", payload.len());
}

/// Describes an ICMP message (RFC 792).
fn icmp_text(kind: u8, code: u8, rest: [u8; 4]) -> String {
    let [a, b, c, d] = rest;
    let (id, sequence) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    match (kind, code) {
        (0, _) => format!("echo reply, id {id}, seq {sequence}"),
        (8, _) => format!("echo request, id {id}, seq {sequence}"),
        (3, 0) => "network unreachable".to_owned(),
        (3, 1) => "host unreachable".to_owned(),
        (3, 2) => "protocol unreachable".to_owned(),
        (3, 3) => "port unreachable".to_owned(),
        (3, 4) => format!("fragmentation needed, mtu {sequence}"),
        (3, _) => format!("unreachable, code {code}"),
        (5, _) => format!("redirect to {}", Ipv4Addr::from(rest)),
        (11, _) => "time exceeded".to_owned(),
        _ => format!("type {kind}, code {code}"),
    }
}

/// Describes an ICMPv6 message (RFC 4443, RFC 4861) by its type, code and bytes.
fn icmp6_text(kind: u8, code: u8, bytes: &[u8]) -> String {
    let mut fields = Fields::new(bytes);
    let _: Option<[u8; 4]> = fields.take();
    let rest: [u8; 4] = fields.take().unwrap_or_default();
    let target =
        fields.take().map_or("?".to_owned(), |bytes: [u8; 16]| Ipv6Addr::from(bytes).to_string());
    let [a, b, c, d] = rest;
    let (id, sequence) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    match kind {
        1 => format!("unreachable, code {code}"),
        2 => format!("packet too big, mtu {}", u32::from_be_bytes(rest)),
        3 => "time exceeded".to_owned(),
        128 => format!("echo request, id {id}, seq {sequence}"),
        129 => format!("echo reply, id {id}, seq {sequence}"),
        133 => "router solicitation".to_owned(),
        134 => "router advertisement".to_owned(),
        135 => format!("neighbor solicitation, who has {target}"),
        136 => format!("neighbor advertisement, tgt is {target}"),
        143 => "multicast listener report v2".to_owned(),
        _ => format!("type {kind}, code {code}"),
    }
}

#[cfg(test)]
mod tests;
