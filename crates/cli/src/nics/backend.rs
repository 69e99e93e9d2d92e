//! The networks behind cards, in QEMU's words ("Invocation", -netdev).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use ring3_core::net::MacAddress;
use ring3_devices::nic;
use ring3_net::{Backend, DgramOptions, StreamAddress, StreamOptions};

use super::user::NatProperties;
use rustix::rand::{GetRandomFlags, getrandom};

use super::{BadNic, NicError};
use crate::qemu::properties::{Properties, switch};
use crate::starter;
use crate::switch::program;

/// The network behind a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Behind {
    Stream(StreamOptions),
    Dgram(DgramOptions),
    User(Box<NatProperties>),
    /// The name of the interface.
    Tap(String),
    Switch {
        /// The switch's socket, or None for the usual one.
        socket: Option<PathBuf>,
        /// Whether the machine starts a switch if there is none.
        starts: bool,
    },
}

impl Behind {
    /// Reads the properties of a network of this kind.
    pub(crate) fn parse(kind: &str, properties: Properties) -> Result<Behind, BadNic> {
        match kind {
            "user" => Ok(Behind::User(Box::new(NatProperties::new(properties)?))),
            "stream" => stream(properties),
            "dgram" => dgram(properties),
            "socket" => socket(properties),
            "tap" => tap(properties),
            "switch" => switched(properties),
            _ => Err(BadNic(
                "the network behind a card must be user, switch, stream, dgram, socket, tap or none".into(),
            )),
        }
    }

    /// Returns the address of card `index` of a machine if the user gives none. The many machines on a switch
    /// need different addresses, so it is random there.
    pub(crate) fn default_address(&self, index: u8) -> MacAddress {
        let mut address = nic::default_address(index);
        let mut random = [0; 3];
        if matches!(self, Behind::Switch { .. })
            && getrandom(&mut random, GetRandomFlags::empty()) == Ok(random.len())
        {
            address.0[3..].copy_from_slice(&random);
        }
        address
    }

    /// Returns the back-end that makes the network.
    pub(crate) fn backend(&self) -> Result<Backend, NicError> {
        Ok(match self {
            Behind::Stream(options) => Backend::Stream(options.clone()),
            Behind::Dgram(options) => Backend::Dgram(options.clone()),
            Behind::Tap(interface) => Backend::Tap(interface.clone()),
            Behind::Switch { socket, starts } => {
                let program = program(socket.as_deref(), *starts).map_err(NicError::Program)?;
                Backend::Switch(program)
            }
            Behind::User(nat) => {
                let arguments = ["nat".into(), nat.text.clone().into()];
                Backend::Nat(starter::program(false, arguments).map_err(NicError::Program)?)
            }
        })
    }
}

fn bad<T>(reason: &str) -> Result<T, BadNic> {
    Err(BadNic(reason.to_owned()))
}

/// Reads `HOST:PORT`. An empty host is this one.
fn tcp(text: &str) -> Result<StreamAddress, BadNic> {
    let wrong = || BadNic(format!("\"{text}\" is not an address: give HOST:PORT or unix:PATH"));
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let _: u16 = port.parse().map_err(|_| wrong())?;
    Ok(StreamAddress::Tcp(match host {
        "" => format!("127.0.0.1:{port}"),
        _ if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{port}"),
        _ => text.to_owned(),
    }))
}

/// Reads `HOST:PORT` as an address. An empty host is this one.
fn address(text: &str) -> Result<SocketAddr, BadNic> {
    let wrong = || BadNic(format!("\"{text}\" is not an address: give HOST:PORT"));
    let StreamAddress::Tcp(whole) = tcp(text).map_err(|_| wrong())? else { return Err(wrong()) };
    whole.to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(wrong)
}

fn seconds(properties: &mut Properties) -> Result<Option<Duration>, BadNic> {
    let millis = properties.take("reconnect-ms").map(|millis| (millis, 1));
    let given = millis.or_else(|| properties.take("reconnect").map(|seconds| (seconds, 1000)));
    let Some((text, unit)) = given else { return Ok(None) };
    let number =
        text.parse::<u32>().map_err(|_| BadNic("reconnect must be a number of seconds".into()))?;
    let pause = Duration::from_millis(u64::from(number) * unit);
    Ok((!pause.is_zero()).then_some(pause))
}

/// Returns whether packets may have unfinished checksums between two machines of ring3.
fn headers(properties: &mut Properties) -> Result<bool, BadNic> {
    Ok(properties.take("vnet-hdr").map_or(Ok(true), |value| switch("vnet-hdr", &value))?)
}

fn stream(mut properties: Properties) -> Result<Behind, BadNic> {
    let kind = properties.take("addr.type");
    let mut part = |key: &str| properties.take(key);
    let address = match (kind.as_deref(), part("addr")) {
        (None, Some(text)) => match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => StreamAddress::Unix(path.into()),
            _ => tcp(&text)?,
        },
        (Some("unix"), None) => match part("addr.path") {
            Some(path) => StreamAddress::Unix(path.into()),
            None => return bad("the socket's path is missing: add addr.path=PATH"),
        },
        (Some("inet"), None) => match (part("addr.host"), part("addr.port")) {
            (host, Some(port)) => tcp(&format!("{}:{port}", host.unwrap_or_default()))?,
            _ => return bad("the port is missing: add addr.port=PORT"),
        },
        _ => {
            return bad(
                "the other side's address is missing: add addr=HOST:PORT or addr=unix:PATH",
            );
        }
    };
    let server = properties.take("server");
    let is_server = server.map_or(Ok(false), |value| switch("server", &value))?;
    let (reconnect, headers) = (seconds(&mut properties)?, headers(&mut properties)?);
    if is_server && reconnect.is_some() {
        return bad("a server waits for connections: leave reconnect out");
    }
    properties.finish("addr, server, reconnect and vnet-hdr")?;
    Ok(Behind::Stream(StreamOptions { address, is_server, reconnect, headers }))
}

fn switched(mut properties: Properties) -> Result<Behind, BadNic> {
    let socket = properties.take("path").map(PathBuf::from);
    let starts = properties.take("start").map_or(Ok(true), |value| switch("start", &value))?;
    properties.finish("path, start")?;
    Ok(Behind::Switch { socket, starts })
}

fn dgram(mut properties: Properties) -> Result<Behind, BadNic> {
    let mut end = |side: &str| {
        let mut part = |key: &str| properties.take(&format!("{side}.{key}"));
        (part("type"), part("path"), part("host"), part("port"))
    };
    let (local, remote) = (end("local"), end("remote"));
    properties.finish("local.type, local.host, local.port, local.path, and the same for remote")?;
    let inet = |host: Option<String>, port: Option<String>| {
        address(&format!("{}:{}", host.unwrap_or_default(), port.unwrap_or_default()))
    };
    let options = match (local, remote) {
        (
            (Some(local_type), Some(local), None, None),
            (Some(remote_type), Some(remote), None, None),
        ) if local_type == "unix" && remote_type == "unix" => {
            DgramOptions::Unix { local: local.into(), remote: remote.into() }
        }
        ((local_type, None, local_host, local_port), (Some(remote_type), None, host, port))
            if remote_type == "inet" && local_type.as_ref().is_none_or(|kind| kind == "inet") =>
        {
            let remote = inet(host, port)?;
            match (remote, local_type) {
                (SocketAddr::V4(group), _) if group.ip().is_multicast() => {
                    let interface = local_host.map(|host| interface(&host)).transpose()?;
                    DgramOptions::Multicast { group, interface }
                }
                (remote, Some(_)) => {
                    DgramOptions::Udp { local: Some(inet(local_host, local_port)?), remote }
                }
                (_, None) => return bad("this side's address is missing: add local.type=inet,…"),
            }
        }
        _ => {
            return bad("give local.type=unix,local.path=PATH,remote.type=unix,remote.path=PATH, \
                 or local.type=inet,local.host=HOST,local.port=PORT and the same for remote");
        }
    };
    Ok(Behind::Dgram(options))
}

fn interface(text: &str) -> Result<Ipv4Addr, BadNic> {
    let wrong = || BadNic(format!("\"{text}\" is not an IPv4 address of this host"));
    match address(&format!("{text}:0")).map_err(|_| wrong())?.ip() {
        IpAddr::V4(interface) => Ok(interface),
        IpAddr::V6(_) => Err(wrong()),
    }
}

fn socket(mut properties: Properties) -> Result<Behind, BadNic> {
    let mut take = |key: &str| properties.take(key);
    let (listen, connect, mcast, udp) =
        (take("listen"), take("connect"), take("mcast"), take("udp"));
    let local = take("localaddr");
    let headers = headers(&mut properties)?;
    properties.finish("listen, connect, mcast, udp, localaddr and vnet-hdr")?;
    let stream = |address: &str, is_server| {
        let address = tcp(address)?;
        let options = StreamOptions { address, is_server, reconnect: None, headers };
        Ok(Behind::Stream(options))
    };
    match (listen, connect, mcast, udp, local) {
        (Some(address), None, None, None, None) => stream(&address, true),
        (None, Some(address), None, None, None) => stream(&address, false),
        (None, None, Some(group), None, local) => {
            let group: SocketAddrV4 = group
                .parse()
                .ok()
                .filter(|group: &SocketAddrV4| group.ip().is_multicast())
                .ok_or_else(|| {
                    BadNic(format!("mcast={group} is not an IPv4 multicast address with a port"))
                })?;
            let interface = local.map(|local| interface(&local)).transpose()?;
            Ok(Behind::Dgram(DgramOptions::Multicast { group, interface }))
        }
        (None, None, None, Some(remote), Some(local)) => {
            let (local, remote) = (Some(address(&local)?), address(&remote)?);
            Ok(Behind::Dgram(DgramOptions::Udp { local, remote }))
        }
        _ => bad("give one of listen=HOST:PORT, connect=HOST:PORT, mcast=ADDRESS:PORT, \
             and udp=HOST:PORT with localaddr=HOST:PORT"),
    }
}

fn tap(mut properties: Properties) -> Result<Behind, BadNic> {
    let name = properties.take("ifname");
    for key in ["script", "downscript"] {
        if properties.take(key).is_some_and(|script| script != "no") {
            return Err(BadNic(format!(
                "ring3 runs no scripts: create the interface first, and give {key}=no or leave it out"
            )));
        }
    }
    for key in ["vhost", "vnet_hdr"] {
        // These say how QEMU uses the host.
        properties.take(key);
    }
    properties.finish("ifname, script=no and downscript=no")?;
    match name {
        Some(name) if !name.is_empty() => Ok(Behind::Tap(name)),
        _ => bad("the interface's name is missing: add ifname=NAME"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Behind, BadNic> {
        let mut properties = Properties::parse(text, Some("type"));
        let kind = properties.take("type").unwrap();
        Behind::parse(&kind, properties)
    }

    fn stream(address: StreamAddress, is_server: bool, reconnect: Option<u64>) -> Behind {
        let reconnect = reconnect.map(Duration::from_secs);
        Behind::Stream(StreamOptions { address, is_server, reconnect, headers: true })
    }

    fn tcp(text: &str) -> StreamAddress {
        StreamAddress::Tcp(text.to_owned())
    }

    #[test]
    fn streams_are_read() {
        let unix = || StreamAddress::Unix("/a/b".into());
        let cases = [
            ("stream,addr=unix:/a/b,server=on", stream(unix(), true, None)),
            ("stream,addr.type=unix,addr.path=/a/b,reconnect=2", stream(unix(), false, Some(2))),
            ("stream,addr=:1234,server", stream(tcp("127.0.0.1:1234"), true, None)),
            (
                "stream,addr.type=inet,addr.host=::1,addr.port=5,server=off",
                stream(tcp("[::1]:5"), false, None),
            ),
            ("socket,listen=0.0.0.0:7", stream(tcp("0.0.0.0:7"), true, None)),
            ("socket,connect=:7", stream(tcp("127.0.0.1:7"), false, None)),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for bad in [
            "stream",
            "stream,addr=1234",
            "stream,addr=unix:",
            "stream,addr=:x",
            "stream,addr=:1,server=on,reconnect=1",
            "stream,addr=:1,reconnect=x",
            "stream,addr=:1,colour=red",
            "stream,addr.type=inet",
            "socket",
            "socket,listen=:1,connect=:1",
            "socket,udp=127.0.0.1:1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn datagrams_are_read() {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let udp = DgramOptions::Udp { local: Some(local(1)), remote: local(2) };
        let group: SocketAddrV4 = "239.0.0.1:3".parse().unwrap();
        let multicast = |interface| DgramOptions::Multicast { group, interface };
        let unix = DgramOptions::Unix { local: "a".into(), remote: "b".into() };
        let inet =
            "local.type=inet,local.host=127.0.0.1,local.port=1,remote.type=inet,remote.port=2";
        let cases = [
            (format!("dgram,{inet}"), udp.clone()),
            ("socket,udp=127.0.0.1:2,localaddr=:1".into(), udp),
            ("socket,mcast=239.0.0.1:3".into(), multicast(None)),
            (
                "dgram,remote.type=inet,remote.host=239.0.0.1,remote.port=3,local.type=inet,local.host=127.0.0.1".into(),
                multicast(Some(Ipv4Addr::LOCALHOST)),
            ),
            ("dgram,local.type=unix,local.path=a,remote.type=unix,remote.path=b".into(), unix),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(&text), Ok(Behind::Dgram(expected)), "{text}");
        }
        for bad in [
            "dgram",
            "dgram,local.type=unix,local.path=a",
            "dgram,remote.type=inet,remote.port=2",
            "dgram,local.type=unix,local.path=a,remote.type=inet,remote.port=2",
            "socket,mcast=127.0.0.1:3",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn taps_are_read() {
        let tap = Ok(Behind::Tap("tap0".into()));
        assert_eq!(parse("tap,ifname=tap0,script=no,downscript=no,vhost=off"), tap);
        for bad in ["tap", "tap,ifname=", "tap,ifname=tap0,script=/etc/qemu-ifup"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
