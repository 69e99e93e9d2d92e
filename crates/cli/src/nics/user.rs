//! The properties of a NAT, in QEMU's words ("Invocation", -netdev user).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::path::PathBuf;
use std::str::FromStr;

use ring3_net::NatOptions;
use ring3_net::hostnet::slirp::{Ipv4Options, Ipv6Options};
use ring3_net::hostnet::{Forward, ForwardTarget, SlirpOptions};

use super::BadNic;
use crate::qemu::properties::{Properties, switch};

/// The names of a NAT's properties.
const KNOWN: &str = "net, host, dhcpstart, dns, ipv4, ipv6, ipv6-net, ipv6-host, ipv6-dns, restrict, hostname, domainname, dnssearch, tftp, \
     tftp-server-name, bootfile, hostfwd and guestfwd";

/// The properties of a NAT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NatProperties {
    /// Their text, for the process that runs the NAT.
    pub(crate) text: String,
    pub(crate) options: NatOptions,
}

impl FromStr for NatProperties {
    type Err = BadNic;

    fn from_str(text: &str) -> Result<NatProperties, BadNic> {
        NatProperties::new(Properties::parse(text, None))
    }
}

impl NatProperties {
    pub(crate) fn new(mut properties: Properties) -> Result<NatProperties, BadNic> {
        let text = properties.to_string();
        let (ipv4, ipv6) = (ipv4(&mut properties)?, ipv6(&mut properties)?);
        let mut take = |key: &str| properties.take(key);
        let restrict = take("restrict");
        let tftp = take("tftp").map(PathBuf::from);
        let network = SlirpOptions {
            is_restricted: restrict.map_or(Ok(false), |value| switch("restrict", &value))?,
            ipv4,
            ipv6,
            hostname: take("hostname"),
            domain: take("domainname"),
            search: Vec::new(),
            tftp,
            tftp_server_name: take("tftp-server-name"),
            bootfile: take("bootfile"),
        };
        let network = SlirpOptions { search: properties.take_all("dnssearch"), ..network };
        let forwards = properties.take_all("hostfwd");
        let guest_forwards = properties.take_all("guestfwd");
        properties.finish(KNOWN)?;
        let forwards = forwards.iter().map(|text| forward(text)).collect::<Result<_, _>>()?;
        let guest_forwards = guest_forwards.iter().map(|text| guest_forward(text, ipv4.as_ref()));
        let guest_forwards = guest_forwards.collect::<Result<_, _>>()?;
        Ok(NatProperties { text, options: NatOptions { network, forwards, guest_forwards } })
    }
}

fn is_on(properties: &mut Properties, key: &str) -> Result<bool, BadNic> {
    Ok(properties.take(key).map_or(Ok(true), |value| switch(key, &value))?)
}

/// Takes the addresses of IPv4. By default they are QEMU's: 10.0.2.0/24, with the host at 2, the name server
/// at 3 and guests from 15.
fn ipv4(properties: &mut Properties) -> Result<Option<Ipv4Options>, BadNic> {
    let is_there = is_on(properties, "ipv4")?;
    let text = properties.take("net").unwrap_or_else(|| "10.0.2.0/24".into());
    let (network, mask) = text.split_once('/').unwrap_or((&text, "24"));
    let wrong =
        || BadNic(format!("net={text} is not a network: give ADDRESS/BITS, such as 10.0.2.0/24"));
    let network: Ipv4Addr = network.parse().map_err(|_| wrong())?;
    let mask = match mask.parse::<Ipv4Addr>() {
        Ok(mask) => mask.to_bits(),
        Err(_) => match mask.parse::<u32>() {
            Ok(bits @ 1..=28) => !(u32::MAX >> bits),
            _ => return Err(wrong()),
        },
    };
    // A mask consists of ones and then zeros, and leaves room for the host, the name server and guests.
    if (!mask).wrapping_add(1) & !mask != 0 || !mask < 15 {
        return Err(wrong());
    }
    let network = network.to_bits() & mask;
    let mut taken = Vec::new();
    let mut address = |key: &str, default: u32| {
        let wrong = |text: &str| {
            BadNic(format!("{key}={text} is not in the network, or has another use there"))
        };
        let address = match properties.take(key) {
            Some(text) => text.parse::<Ipv4Addr>().map_err(|_| wrong(&text))?.to_bits(),
            None => network | (default & !mask),
        };
        let number = address & !mask;
        let is_there = address & mask == network && number != 0 && number != !mask;
        if !is_there || taken.contains(&address) {
            return Err(wrong(&Ipv4Addr::from_bits(address).to_string()));
        }
        taken.push(address);
        Ok(Ipv4Addr::from_bits(address))
    };
    let (host, nameserver) = (address("host", 2)?, address("dns", 3)?);
    // If 15 is the network's broadcast address, guests begin in the middle.
    let dhcp_start = address("dhcpstart", if !mask == 15 { 8 } else { 15 })?;
    let (network, netmask) = (Ipv4Addr::from_bits(network), Ipv4Addr::from_bits(mask));
    Ok(is_there.then_some(Ipv4Options { network, netmask, host, dhcp_start, nameserver }))
}

/// Takes the addresses of IPv6. By default they are QEMU's: fec0::/64, with the host at 2 and the name server
/// at 3.
fn ipv6(properties: &mut Properties) -> Result<Option<Ipv6Options>, BadNic> {
    let is_there = is_on(properties, "ipv6")?;
    let text = properties.take("ipv6-net").or_else(|| {
        let prefix = properties.take("ipv6-prefix")?;
        Some(format!("{prefix}/{}", properties.take("ipv6-prefixlen").unwrap_or("64".into())))
    });
    let text = text.unwrap_or_else(|| "fec0::/64".into());
    let wrong = || {
        BadNic(format!("ipv6-net={text} is not a network: give ADDRESS/BITS, such as fec0::/64"))
    };
    let (prefix, bits) = text.split_once('/').unwrap_or((&text, "64"));
    let prefix: Ipv6Addr = prefix.parse().map_err(|_| wrong())?;
    let prefix_len: u8 = bits.parse().ok().filter(|bits| *bits <= 126).ok_or_else(wrong)?;
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix_len)).unwrap_or(0);
    let network = prefix.to_bits() & mask;
    let mut address = |key: &str, default: u128| {
        let Some(text) = properties.take(key) else {
            return Ok(Ipv6Addr::from_bits(network | (default & !mask)));
        };
        let address = text.parse::<Ipv6Addr>().ok();
        let address = address.filter(|address| address.to_bits() & mask == network);
        address.ok_or_else(|| BadNic(format!("{key}={text} is not in the network")))
    };
    let (host, nameserver) = (address("ipv6-host", 2)?, address("ipv6-dns", 3)?);
    let prefix = Ipv6Addr::from_bits(network);
    Ok(is_there.then_some(Ipv6Options { prefix, prefix_len, host, nameserver }))
}

/// Reads `ADDRESS:PORT`. An empty address is `default`.
fn end(text: &str, default: Ipv4Addr) -> Option<SocketAddrV4> {
    let (address, port) = text.rsplit_once(':')?;
    let address = if address.is_empty() { default } else { address.parse().ok()? };
    let port = port.parse().ok().filter(|port| *port != 0)?;
    Some(SocketAddrV4::new(address, port))
}

/// Reads `[tcp|udp]:[ADDRESS]:PORT-[ADDRESS]:PORT`. Without an address, only this host can reach the host's
/// port.
fn forward(text: &str) -> Result<Forward, BadNic> {
    let parse = || {
        let (protocol, rest) = text.split_once(':')?;
        let is_udp = match protocol {
            "" | "tcp" => false,
            "udp" => true,
            _ => return None,
        };
        let (host, guest) = rest.split_once('-')?;
        let host = end(host, Ipv4Addr::LOCALHOST)?;
        Some(Forward { is_udp, host, guest: end(guest, Ipv4Addr::UNSPECIFIED)? })
    };
    parse().ok_or_else(|| {
        BadNic(format!(
            "hostfwd={text} is neither tcp:[ADDRESS]:PORT-[ADDRESS]:PORT, such as tcp::2222-:22, nor the same with udp"
        ))
    })
}

/// Reads `[tcp]:ADDRESS:PORT-unix:PATH` or `-cmd:COMMAND`.
fn guest_forward(
    text: &str,
    network: Option<&Ipv4Options>,
) -> Result<(SocketAddrV4, ForwardTarget), BadNic> {
    let parse = || {
        let rest = text.strip_prefix("tcp:").or_else(|| text.strip_prefix(':'))?;
        let (guest, target) = rest.split_once('-')?;
        let guest = end(guest, Ipv4Addr::UNSPECIFIED)?;
        let network = network?;
        if guest.ip().to_bits() & network.netmask.to_bits() != network.network.to_bits() {
            return None;
        }
        let target = match target.split_once(':')? {
            (_, "") => return None,
            ("unix", path) => ForwardTarget::Unix(path.into()),
            ("cmd", command) => ForwardTarget::Command(command.to_owned()),
            _ => return None,
        };
        Some((guest, target))
    };
    parse().ok_or_else(|| {
        BadNic(format!(
            "guestfwd={text} is neither tcp:ADDRESS:PORT-unix:PATH nor tcp:ADDRESS:PORT-cmd:COMMAND, with an address in the network"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> NatOptions {
        text.parse::<NatProperties>().unwrap_or_else(|error| panic!("{text}: {error}")).options
    }

    #[test]
    fn the_network_is_that_of_qemu() {
        let network = options("").network;
        let ipv4 = network.ipv4.unwrap();
        let last = [ipv4.network, ipv4.host, ipv4.nameserver, ipv4.dhcp_start];
        assert_eq!(last, [0, 2, 3, 15].map(|last| Ipv4Addr::new(10, 0, 2, last)));
        let ipv6 = network.ipv6.unwrap();
        assert_eq!((ipv6.prefix_len, ipv6.host.to_string()), (64, "fec0::2".into()));
        assert!(!network.is_restricted);
    }

    #[test]
    fn properties_are_read() {
        let text = "net=192.168.7.0/255.255.255.0,host=192.168.7.1,dns=192.168.7.9,ipv6=off,restrict=on,\
                    dnssearch=a,dnssearch=b,tftp=/srv,,x,bootfile=pxe,hostfwd=tcp::2222-:22,\
                    hostfwd=udp:0.0.0.0:53-192.168.7.20:5353,guestfwd=tcp:192.168.7.100:80-cmd:nc -U x";
        let NatOptions { network, forwards, guest_forwards } = options(text);
        let ipv4 = network.ipv4.unwrap();
        assert_eq!(ipv4.nameserver, Ipv4Addr::new(192, 168, 7, 9));
        assert_eq!((network.ipv6, network.is_restricted), (None, true));
        assert_eq!(network.search, ["a", "b"]);
        assert_eq!(network.tftp, Some("/srv,x".into()));
        let [ssh, dns] = forwards.as_slice() else { panic!("{forwards:?}") };
        assert_eq!((ssh.host, ssh.is_udp), ("127.0.0.1:2222".parse().unwrap(), false));
        assert_eq!(dns.guest, "192.168.7.20:5353".parse().unwrap());
        let command = ForwardTarget::Command("nc -U x".into());
        assert_eq!(guest_forwards, [("192.168.7.100:80".parse().unwrap(), command)]);
        // The process that runs the NAT must read the same properties.
        let again = text.parse::<NatProperties>().unwrap();
        assert_eq!(again.text.parse(), Ok(again));
    }

    #[test]
    fn impossible_networks_are_refused_with_a_reason() {
        for bad in [
            "net=10.0.2.0/29",
            "net=10.0.2.0/255.0.255.0",
            "net=x",
            "host=10.0.3.2",
            "host=10.0.2.255",
            "dns=10.0.2.2",
            "ipv6-net=fec0::/127",
            "ipv6-host=fec1::2",
            "hostfwd=2222-22",
            "hostfwd=tcp::0-:22",
            "hostfwd=sctp::2-:2",
            "guestfwd=tcp:10.0.3.1:80-cmd:cat",
            "guestfwd=tcp:10.0.2.100:80-tcp:1.2.3.4:5",
            "restrict=maybe",
            "smb=/srv",
        ] {
            assert!(bad.parse::<NatProperties>().is_err(), "{bad}");
        }
    }
}
