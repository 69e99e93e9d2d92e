//! The address of an export: doc/uri.md of the NBD project, with additional parameters, and QEMU's older
//! form.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::Source;

/// The port that servers use by default.
const PORT: u16 = 10809;
/// How long requests wait by default for a server to come back.
const RECONNECT: Duration = Duration::from_secs(60);

/// The address of a server.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
    /// Somebody else makes the connections.
    Other(Arc<dyn Source>),
}

impl PartialEq for Place {
    fn eq(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Tcp { host, port }, Place::Tcp { host: other, port: at }) => {
                (host, port) == (other, at)
            }
            (Place::Unix(path), Place::Unix(other)) => path == other,
            (Place::Other(source), Place::Other(other)) => Arc::ptr_eq(source, other),
            _ => false,
        }
    }
}

/// The times to wait for a server. They are parameters of the URI, in whole seconds, named as in QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waits {
    /// `open-timeout`: how long to wait for a server when the export is opened.
    pub(super) open: Duration,
    /// `reconnect-delay`: how long requests wait for a server to come back. With 0 a lost connection stays
    /// lost.
    pub(super) reconnect: Duration,
    /// `timeout`: how long a server may send nothing while it owes an answer. Then the connection is lost.
    /// None means for ever.
    pub(super) answer: Option<Duration>,
}

impl Default for Waits {
    fn default() -> Waits {
        Waits { open: Duration::ZERO, reconnect: RECONNECT, answer: None }
    }
}

/// The address of an export, and the times to wait for its server.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Address {
    pub(super) place: Place,
    pub(super) export: String,
    pub(super) waits: Waits,
}

/// The text is no address of an export.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "give an address as nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH, with reconnect-delay=, open-timeout= and timeout= in seconds"
)]
pub(super) struct BadAddress;

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        if let Some(rest) = text.strip_prefix("nbd+unix://") {
            let (export, query) = rest.split_once('?').ok_or(BadAddress)?;
            let (waits, socket) = parameters(query)?;
            let socket = socket.filter(|socket| !socket.is_empty()).ok_or(BadAddress)?;
            let export = unescape(export.strip_prefix('/').unwrap_or(export)).ok_or(BadAddress)?;
            return Ok(Address { place: Place::Unix(socket.into()), export, waits });
        }
        if let Some(rest) = text.strip_prefix("nbd://") {
            let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
            let (waits, _) = parameters(query)?;
            let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
            let export = unescape(export).ok_or(BadAddress)?;
            return Ok(Address { place: tcp(host)?, export, waits });
        }
        let rest = text.strip_prefix("nbd:").ok_or(BadAddress)?;
        let (place, export) = rest.split_once(":exportname=").unwrap_or((rest, ""));
        let place = match place.strip_prefix("unix:") {
            Some("") => return Err(BadAddress),
            Some(path) => Place::Unix(path.into()),
            None => tcp(place)?,
        };
        Ok(Address { place, export: export.to_owned(), waits: Waits::default() })
    }
}

/// Returns the times and the socket among the parameters after the question mark.
fn parameters(query: &str) -> Result<(Waits, Option<String>), BadAddress> {
    let (mut waits, mut socket) = (Waits::default(), None);
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        // QEMU's schema (`BlockdevOptionsNbd`) has 32-bit numbers too.
        let seconds = || {
            let seconds: u32 = value.parse().map_err(|_| BadAddress)?;
            Ok(Duration::from_secs(seconds.into()))
        };
        match name {
            "socket" => socket = Some(unescape(value).ok_or(BadAddress)?),
            "open-timeout" => waits.open = seconds()?,
            "reconnect-delay" => waits.reconnect = seconds()?,
            "timeout" => waits.answer = Some(seconds()?).filter(|time| !time.is_zero()),
            // Later versions of the protocol may have other parameters.
            _ => {}
        }
    }
    Ok((waits, socket))
}

/// Returns the place that `host`, `host:port` or `[::1]:port` means.
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
            let waits = Waits::default();
            assert_eq!(
                text.parse(),
                Ok(Address { place, export: export.to_owned(), waits }),
                "{text}"
            );
        }
        let found: Address =
            "nbd://h/e?reconnect-delay=0&open-timeout=5&x=y&timeout=7".parse().unwrap();
        let [open, answer] = [5, 7].map(Duration::from_secs);
        assert_eq!(found.waits, Waits { open, reconnect: Duration::ZERO, answer: Some(answer) });
        assert_eq!(found.export, "e");
        for bad in [
            "nbd",
            "nbd://h:x",
            "nbd+unix:///e",
            "nbd+unix:///?socket=",
            "nbd:unix:",
            "nbd://h/%4",
            "nbd://[::1",
            "nbd://h/e?timeout=x",
            "nbd://h/e?timeout=99999999999",
        ] {
            assert_eq!(bad.parse::<Address>(), Err(BadAddress), "{bad}");
        }
    }
}
