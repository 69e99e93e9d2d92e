//! Tap devices: network interfaces of the host whose other end is a file descriptor (Linux,
//! Documentation/networking/tuntap.rst).

use std::ffi::{c_char, c_int, c_short, c_uint};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Setter, Updater, ioctl};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use thiserror::Error;

/// Bytes of the header before each packet, [`libc`]'s `virtio_net_hdr`.
pub const HEADER_LEN: usize = 10;

// The values of linux/if_tun.h. The sizes in these numbers are those of a pointer's target, which the kernel
// has never examined.
const TUNSETIFF: u32 = 0x400454ca;
const TUNSETOFFLOAD: u32 = 0x400454d0;
const TUNSETVNETHDRSZ: u32 = 0x400454d8;
const IFF_TAP: c_short = 0x0002;
const IFF_NO_PI: c_short = 0x1000;
const IFF_VNET_HDR: c_short = 0x4000;
const TUN_F_CSUM: c_uint = 0x01;
const TUN_F_TSO4: c_uint = 0x02;
const TUN_F_TSO6: c_uint = 0x04;
const TUN_F_TSO_ECN: c_uint = 0x08;

/// Bytes of an interface's name, with the zero at its end (IFNAMSIZ).
const NAME_MAX: usize = 16;

/// `struct ifreq` with flags in it.
#[repr(C)]
struct InterfaceRequest {
    name: [c_char; NAME_MAX],
    flags: c_short,
    rest: [u8; 22],
}

/// Why a tap device cannot be opened.
#[derive(Debug, Error)]
pub enum TapError {
    /// The system has no tap devices, or does not allow them.
    #[error(
        "cannot open /dev/net/tun: {0}; tap devices need the module tun and a file that this user can open"
    )]
    Device(#[source] io::Error),
    /// The name is impossible for an interface.
    #[error(
        "\"{0}\" cannot be a network interface: its name must have 1 to 15 bytes, without / and spaces"
    )]
    Name(String),
    /// There is no interface with this name.
    #[error(
        "there is no network interface {0}; root can make one for you: ip tuntap add {0} mode tap user $USER && ip link set {0} up"
    )]
    NotThere(String),
    /// The interface belongs to another user.
    #[error(
        "this user may not use the network interface {0}; root can make one for you: ip tuntap add NAME mode tap user $USER"
    )]
    Forbidden(String),
    /// Another process has attached to the interface.
    #[error("the network interface {0} is in use by another process")]
    InUse(String),
    /// The interface is of another kind, or the system refuses.
    #[error(
        "cannot attach to the network interface {name}: {source}; is it a tap device of one queue?"
    )]
    Refused {
        /// The name of the interface.
        name: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Our end of a tap device. Reading and writing never wait.
#[derive(Debug)]
pub struct Tap {
    file: File,
}

impl Tap {
    /// Attaches to the interface `name`, which must exist.
    pub fn open(name: &str) -> Result<Tap, TapError> {
        let is_printable = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
        if name.is_empty() || name.len() >= NAME_MAX || !name.bytes().all(is_printable) {
            return Err(TapError::Name(name.to_owned()));
        }
        // For root the system would create an interface, which nobody would find.
        let flags = SocketFlags::CLOEXEC;
        let any = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        let any = any.map_err(|error| TapError::Device(error.into()))?;
        if name_to_index(&any, name).is_err() {
            return Err(TapError::NotThere(name.to_owned()));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")
            .map_err(TapError::Device)?;
        let tap = Tap { file };
        tap.attach(name).map_err(|error| match error {
            Errno::PERM | Errno::ACCESS => TapError::Forbidden(name.to_owned()),
            Errno::BUSY => TapError::InUse(name.to_owned()),
            error => TapError::Refused { name: name.to_owned(), source: error.into() },
        })?;
        Ok(tap)
    }

    fn attach(&self, name: &str) -> Result<(), Errno> {
        let mut request = InterfaceRequest {
            name: [0; NAME_MAX],
            flags: IFF_TAP | IFF_NO_PI | IFF_VNET_HDR,
            rest: [0; 22],
        };
        for (to, from) in request.name.iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        let header_len = HEADER_LEN as c_int;
        let offloads = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
        // SAFETY: the calls take, in this order, a `struct ifreq` that they may change, a pointer to an int,
        // and a number.
        unsafe {
            ioctl(&self.file, Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request))?;
            ioctl(&self.file, Setter::<TUNSETVNETHDRSZ, c_int>::new(header_len))?;
            ioctl(&self.file, IntegerSetter::<TUNSETOFFLOAD>::new_usize(offloads as usize))
        }
    }

    /// Receives the next packet and its header into `buffer`, and returns the number of bytes of both. If
    /// there is none, this fails with [`WouldBlock`](io::ErrorKind::WouldBlock).
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(buffer)
    }

    /// Sends a packet with its header.
    pub fn send(&self, header: &[u8; HEADER_LEN], packet: &[u8]) -> io::Result<()> {
        (&self.file).write_vectored(&[IoSlice::new(header), IoSlice::new(packet)]).map(|_| ())
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_existing_interfaces_are_opened() {
        for bad in ["", "a/b", "a b", "0123456789abcdef"] {
            assert!(matches!(Tap::open(bad), Err(TapError::Name(_))), "{bad:?}");
        }
        let error = Tap::open("ring3none").unwrap_err();
        assert!(error.to_string().contains("ip tuntap add ring3none"), "{error}");
        // This interface exists, and is not a tap device.
        let error = Tap::open("lo").unwrap_err();
        assert!(!matches!(error, TapError::NotThere(_)), "{error}");
    }
}
