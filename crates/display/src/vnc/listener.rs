//! The addresses at which a VNC server listens.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::str::FromStr;

use ring3_host::socket::SocketError;
use ring3_host::stream::Stream;
use thiserror::Error;

/// The TCP port of display 0 (RFC 6143, section 1).
const FIRST_PORT: u16 = 5900;

/// An address at which a server can listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket with this path.
    Unix(PathBuf),
    /// A TCP port of this host that other hosts cannot reach.
    Loopback(SocketAddr),
}

/// Why a text is not an address to listen at.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    /// The text has another form.
    #[error(
        "{0:?} is no address for VNC; write unix:PATH, or :N or 127.0.0.1:N for display N (TCP port 5900 + N)"
    )]
    Form(String),
    /// The display's number is too high.
    #[error("there is no display {0}; the highest is {highest}", highest = u16::MAX - FIRST_PORT)]
    Display(String),
    /// Other hosts would reach the address.
    #[error(
        "VNC is not served at {0}: it has neither password nor encryption, and whoever reaches it has the machine; \
         serve it at 127.0.0.1 and reach it through ssh -L"
    )]
    Open(String),
}

impl FromStr for Address {
    type Err = AddressError;

    /// Reads `unix:PATH`, `:N`, `127.0.0.1:N`, `localhost:N` or `[::1]:N`, where N is the display's number,
    /// which is the TCP port less 5900.
    fn from_str(text: &str) -> Result<Address, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(AddressError::Form(text.to_owned()));
            }
            return Ok(Address::Unix(path.into()));
        }
        let form = || AddressError::Form(text.to_owned());
        let (host, display) = text.rsplit_once(':').ok_or_else(form)?;
        if display.is_empty() || !display.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(form());
        }
        let port = display.parse().ok().and_then(|display| FIRST_PORT.checked_add(display));
        let port = port.ok_or_else(|| AddressError::Display(display.to_owned()))?;
        let host: IpAddr = match host {
            "" | "localhost" => Ipv4Addr::LOCALHOST.into(),
            "[::1]" => Ipv6Addr::LOCALHOST.into(),
            _ => host.parse().map_err(|_| AddressError::Open(host.to_owned()))?,
        };
        if !host.is_loopback() {
            return Err(AddressError::Open(host.to_string()));
        }
        Ok(Address::Loopback(SocketAddr::new(host, port)))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Loopback(address) => {
                let display = address.port().saturating_sub(FIRST_PORT);
                match address.ip() {
                    IpAddr::V4(ip) => write!(f, "{ip}:{display}"),
                    IpAddr::V6(ip) => write!(f, "[{ip}]:{display}"),
                }
            }
        }
    }
}

/// Why a server cannot listen at an address.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another program listens there.
    #[error(
        "cannot serve VNC at {0}: it is in use; choose another one, or end the program that listens there"
    )]
    InUse(Address),
    /// The host does not allow it.
    #[error("cannot serve VNC at {address}: {source}")]
    Host {
        /// The address.
        address: Address,
        /// The host's error.
        source: io::Error,
    },
}

/// Waits for VNC clients.
#[derive(Debug)]
pub struct Listener {
    inner: ring3_host::listener::Listener,
    address: Address,
}

impl Listener {
    /// Listens at `address`. If a dead process has left a Unix socket there, it is replaced. Only the user of
    /// this process may connect to a Unix socket.
    pub fn bind(address: &Address) -> Result<Listener, ListenError> {
        let in_use = || ListenError::InUse(address.clone());
        let refused = |source| ListenError::Host { address: address.clone(), source };
        let inner = match address {
            Address::Unix(path) => {
                ring3_host::listener::Listener::unix(path).map_err(|error| match error {
                    SocketError::InUse(_) | SocketError::NoSocket(_) => in_use(),
                    SocketError::Refused { source, .. } => refused(source),
                })
            }
            Address::Loopback(address) => {
                ring3_host::listener::Listener::tcp(address).map_err(|error| match error.kind() {
                    io::ErrorKind::AddrInUse => in_use(),
                    _ => refused(error),
                })
            }
        };
        Ok(Listener { inner: inner?, address: address.clone() })
    }

    /// Returns the address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the next client that has already come, or [`io::ErrorKind::WouldBlock`] if there is none.
    pub(crate) fn accept(&self) -> io::Result<Stream> {
        self.inner.accept()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn tcp(text: &str) -> String {
        match text.parse() {
            Ok(Address::Loopback(address)) => address.to_string(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn displays_are_numbered_from_port_5900() {
        assert_eq!(tcp(":0"), "127.0.0.1:5900");
        assert_eq!(tcp("127.0.0.1:1"), "127.0.0.1:5901");
        assert_eq!(tcp("localhost:99"), "127.0.0.1:5999");
        assert_eq!(tcp("[::1]:2"), "[::1]:5902");
        assert_eq!(tcp(":59635"), "127.0.0.1:65535");
        for text in ["127.0.0.1:7", "[::1]:7", "unix:/a/b"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_addresses_have_different_errors() {
        let error = |text: &str| text.parse::<Address>().unwrap_err();
        for text in ["", "1", "unix:", ":", ":x", ":+1", "127.0.0.1:1,password"] {
            assert_eq!(error(text), AddressError::Form(text.into()));
        }
        assert_eq!(error(":59636"), AddressError::Display("59636".into()));
        assert_eq!(error(":99999999999"), AddressError::Display("99999999999".into()));
        assert_eq!(error("0.0.0.0:1"), AddressError::Open("0.0.0.0".into()));
        assert_eq!(error("example.org:1"), AddressError::Open("example.org".into()));
    }

    #[test]
    fn a_socket_in_use_is_left_alone_and_a_dead_one_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vnc");
        let address = Address::Unix(path.clone());
        let listener = Listener::bind(&address).unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::InUse(_))));
        drop(listener);
        assert!(!path.exists());

        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a socket that nobody listens at");
        Listener::bind(&address).unwrap();
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vnc");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&Address::Unix(path.clone())), Err(ListenError::InUse(_))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
}
