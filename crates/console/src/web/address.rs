//! Where the page is served.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// An address at which the page can be served. Other hosts reach none of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket with this path.
    Unix(PathBuf),
    /// A TCP port of this host.
    Loopback(SocketAddr),
}

/// Why a text is no address for the page.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadAddress {
    /// It has another form.
    #[error("\"{0}\" is no address for the page; give 127.0.0.1:PORT, [::1]:PORT or unix:PATH")]
    Form(String),
    /// Other hosts would reach it.
    #[error(
        "the page is not served at {0}: nothing encrypts it, and whoever reads it on its way has the machines; \
         give 127.0.0.1:PORT or unix:PATH, and reach it through ssh -L"
    )]
    Open(String),
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        let form = || BadAddress::Form(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(form()) } else { Ok(Address::Unix(path.into())) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(form)?;
        if !port.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(form());
        }
        let port = port.parse().map_err(|_| form())?;
        let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let ip: IpAddr = match plain {
            "localhost" => Ipv4Addr::LOCALHOST.into(),
            "" => return Err(form()),
            plain => plain.parse().map_err(|_| BadAddress::Open(host.to_owned()))?,
        };
        if !ip.is_loopback() {
            return Err(BadAddress::Open(host.to_owned()));
        }
        Ok(Address::Loopback(SocketAddr::new(ip, port)))
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Loopback(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_is_served() {
        for good in ["127.0.0.1:8080", "[::1]:1", "127.0.0.2:0", "unix:/run/page"] {
            assert_eq!(good.parse::<Address>().unwrap().to_string(), good);
        }
        assert_eq!("localhost:80".parse::<Address>().unwrap().to_string(), "127.0.0.1:80");
        for open in ["0.0.0.0:80", "[::]:80", "192.168.1.1:80", "example.org:80", "*:80"] {
            assert!(matches!(open.parse::<Address>(), Err(BadAddress::Open(_))), "{open}");
        }
        for bad in ["", "8080", ":8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "unix:"] {
            assert!(matches!(bad.parse::<Address>(), Err(BadAddress::Form(_))), "{bad}");
        }
    }
}
