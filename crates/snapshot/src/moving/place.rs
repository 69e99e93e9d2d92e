//! The places through which machines move.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// The host of a TCP port for which none is given.
const THIS_HOST: &str = "127.0.0.1";

/// A place through which a machine moves, as on QEMU's command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port of this host.
    Tcp {
        /// A name or address of this host.
        host: String,
        /// The port.
        port: u16,
    },
    /// A file, from which the machine is read later.
    File(PathBuf),
}

/// The text names no place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "\"{0}\" names no place for a machine: give unix:PATH, tcp:PORT, tcp:HOST:PORT or file:PATH"
)]
pub struct BadPlace(String);

impl FromStr for Place {
    type Err = BadPlace;

    fn from_str(text: &str) -> Result<Place, BadPlace> {
        let bad = || BadPlace(text.to_owned());
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Place::Unix(path.into())),
            Some(("file", path)) if !path.is_empty() => Ok(Place::File(path.into())),
            Some(("tcp", address)) => {
                let (host, port) = address.rsplit_once(':').unwrap_or(("", address));
                let host = if host.is_empty() { THIS_HOST } else { host };
                let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(bad)?;
                Ok(Place::Tcp { host: host.to_owned(), port })
            }
            _ => Err(bad()),
        }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
            Place::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
            Place::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        for text in ["unix:/run/a:b", "tcp:127.0.0.1:4444", "file:saved"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        for text in ["tcp:4444", "tcp::4444"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), "tcp:127.0.0.1:4444");
        }
        for text in ["", "unix:", "file:", "tcp:", "tcp:x:0", "tcp:x:65536", "exec:cat", "/run/a"] {
            assert!(text.parse::<Place>().unwrap_err().to_string().contains("file:PATH"), "{text}");
        }
    }
}
