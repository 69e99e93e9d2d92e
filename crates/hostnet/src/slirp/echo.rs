//! Refuses echo requests to the outside that cannot be sent: those of IPv4 on a host where this user may not
//! send any, and all of IPv6.
//!
//! In place of an echo request that it may not send, libslirp sends a datagram to the UDP port "echo", which
//! hardly any host has open, and it drops those of IPv6 (4.7). So the guest would wait in vain. Instead it is
//! answered that the destination is unreachable because communication is administratively prohibited (RFC 792
//! and RFC 1812, 5.2.7.1; RFC 4443, 3.1).

use std::net::{Ipv4Addr, Ipv6Addr};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use super::packet::{ETHERNET_LEN, Ipv4, Ipv6, checksum, protocol, set_checksum};

/// The types of "destination unreachable", with their codes.
const UNREACHABLE: [u8; 2] = [3, 13];
const UNREACHABLE_V6: [u8; 2] = [1, 1];
/// The time to live of the answers.
const TTL: u8 = 64;
/// The most bytes of the request that an answer quotes, so that the answer fits everywhere (RFC 1812,
/// 4.3.2.3; RFC 4443, 3.1).
const QUOTE_MAX: usize = 576 - 28;
const QUOTE_V6_MAX: usize = 1280 - 48;

/// Returns whether this user may send echo requests, which Linux allows to the groups in
/// net.ipv4.ping_group_range.
pub fn may_ping() -> bool {
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    socket_with(family, kind, SocketFlags::CLOEXEC, Some(ipproto::ICMP)).is_ok()
}

/// Makes the frame by which the host with the address `from` refuses the echo request `request`.
pub(super) fn refuse(request: &Ipv4<'_>, frame: &[u8], from: Ipv4Addr) -> Vec<u8> {
    let quote = &frame[ETHERNET_LEN..][..request.header_len() + request.payload().len()];
    let quote = &quote[..quote.len().min(QUOTE_MAX)];
    let mut icmp = [&UNREACHABLE[..], &[0; 6], quote].concat();
    let sum = checksum(&[&icmp]);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let len = (20 + icmp.len()) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(len.to_be_bytes());
    ip.extend([0, 0, 0, 0, TTL, protocol::ICMP, 0, 0]);
    ip.extend(from.octets());
    ip.extend(request.source());
    set_checksum(&mut ip);
    [&back(frame)[..], &ip, &icmp].concat()
}

/// Makes the frame by which the host with the address `from` refuses the IPv6 echo request `request`.
pub(super) fn refuse_v6(request: &Ipv6<'_>, frame: &[u8], from: Ipv6Addr) -> Vec<u8> {
    let quote = &request.ip()[..request.ip().len().min(QUOTE_V6_MAX)];
    let mut icmp = [&UNREACHABLE_V6[..], &[0; 6], quote].concat();
    let len = icmp.len() as u16;
    let (from, to) = (from.octets(), request.source().octets());
    // The checksum covers a pseudo header that is not sent (RFC 8200, 8.1).
    let behind = [0, 0, 0, protocol::ICMPV6];
    let sum = checksum(&[&from, &to, &u32::from(len).to_be_bytes(), &behind, &icmp]);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut ip = vec![0x60, 0, 0, 0];
    ip.extend(len.to_be_bytes());
    ip.extend([protocol::ICMPV6, TTL]);
    ip.extend(from);
    ip.extend(to);
    [&back(frame)[..], &ip, &icmp].concat()
}

/// Returns the Ethernet header of an answer to `frame`.
fn back(frame: &[u8]) -> [u8; ETHERNET_LEN] {
    let mut header = [0; ETHERNET_LEN];
    header[..6].copy_from_slice(&frame[6..12]);
    header[6..12].copy_from_slice(&frame[..6]);
    header[12..].copy_from_slice(&frame[12..ETHERNET_LEN]);
    header
}
