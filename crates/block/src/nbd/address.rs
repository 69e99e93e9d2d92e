//! How an export is named: doc/uri.md of the NBD project, and QEMU's older form.

use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// The port of servers that have not chosen another one.
const PORT: u16 = 10809;

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// An export of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) place: Place,
    pub(super) export: String,
}

/// It is none.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("give an address as nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH")]
pub(super) struct BadAddress;

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        if let Some(rest) = text.strip_prefix("nbd+unix://") {
            let (export, query) = rest.split_once('?').ok_or(BadAddress)?;
            let socket =
                query.split('&').find_map(|pair| pair.strip_prefix("socket=")).ok_or(BadAddress)?;
            let socket = unescape(socket).ok_or(BadAddress)?;
            let export = unescape(export.strip_prefix('/').unwrap_or(export)).ok_or(BadAddress)?;
            return if socket.is_empty() {
                Err(BadAddress)
            } else {
                Ok(Address { place: Place::Unix(socket.into()), export })
            };
        }
        if let Some(rest) = text.strip_prefix("nbd://") {
            let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
            return Ok(Address { place: tcp(host)?, export: unescape(export).ok_or(BadAddress)? });
        }
        let rest = text.strip_prefix("nbd:").ok_or(BadAddress)?;
        let (place, export) = rest.split_once(":exportname=").unwrap_or((rest, ""));
        let place = match place.strip_prefix("unix:") {
            Some("") => return Err(BadAddress),
            Some(path) => Place::Unix(path.into()),
            None => tcp(place)?,
        };
        Ok(Address { place, export: export.to_owned() })
    }
}

/// `host`, `host:port`, `[::1]:port`.
fn tcp(text: &str) -> Result<Place, BadAddress> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(BadAddress)?;
            (host, rest.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Ok(PORT), |port| port.parse().map_err(|_| BadAddress))?;
    let host = if host.is_empty() { "localhost" } else { host };
    Ok(Place::Tcp { host: host.to_owned(), port })
}

/// Undoes the percent-encoding of a URI (RFC 3986, 2.1).
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (high, low) = (digit()?, digit()?);
        bytes.push((high << 4 | low) as u8);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let tcp = |host: &str, port| Place::Tcp { host: host.to_owned(), port };
        for (text, place, export) in [
            ("nbd://h", tcp("h", 10809), ""),
            ("nbd://h:7/a%20b", tcp("h", 7), "a b"),
            ("nbd://[::1]:7/x", tcp("::1", 7), "x"),
            ("nbd+unix:///e?socket=/s%25", Place::Unix("/s%".into()), "e"),
            ("nbd+unix://?socket=s", Place::Unix("s".into()), ""),
            ("nbd:h:7", tcp("h", 7), ""),
            ("nbd:unix:/s:exportname=e", Place::Unix("/s".into()), "e"),
        ] {
            assert_eq!(text.parse(), Ok(Address { place, export: export.to_owned() }), "{text}");
        }
        for bad in [
            "nbd",
            "nbd://h:x",
            "nbd+unix:///e",
            "nbd+unix:///?socket=",
            "nbd:unix:",
            "nbd://h/%4",
            "nbd://[::1",
        ] {
            assert_eq!(bad.parse::<Address>(), Err(BadAddress), "{bad}");
        }
    }
}
