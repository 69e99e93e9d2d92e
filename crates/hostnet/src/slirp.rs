//! A network behind one address without any rights, by libslirp: what a guest sends is what this process does with sockets of its own, and the
//! guest is given addresses by DHCP and router advertisements, names by a relay to the host's server, and files by TFTP.
//!
//! libslirp is C and reads what hostile guests send, so it belongs into a process that can do nothing but that ([`sandbox`](crate::sandbox)), and it is
//! given only what it is known to stand: IPv4 datagrams with sound headers, put together if they came in fragments, IPv6 without fragments, and ARP.
//!
//! * `library`: its functions and structures;
//! * `packet`: what is read of frames; `fragments`: how they are put together;
//! * `echo`: what is answered to echo requests that this user may not send.

mod echo;
mod fragments;
mod library;
mod packet;

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, NulError, c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::slice;
use std::time::{Duration, Instant};

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, in_addr, in6_addr, pollfd};
use thiserror::Error;
use tracing::{debug, warn};

use crate::library::NoLibrary;
pub use echo::may_ping;
use fragments::Fragments;
use library::{
    CONFIGURATION_VERSION, Callbacks, Configuration, Functions, Handle, POLL_ERR, POLL_HUP,
    POLL_IN, POLL_OUT, POLL_PRI, TimerCallback,
};
use packet::{ETHERNET_LEN, Ipv4, Ipv6, ether_type};

/// The most bytes of a frame: an IP datagram and its Ethernet header.
const FRAME_MAX: usize = ETHERNET_LEN + 65535;

/// What the network is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlirpOptions {
    /// The guest reaches nothing outside, but for what is forwarded.
    pub is_restricted: bool,
    /// IPv4, unless there is none.
    pub ipv4: Option<Ipv4Options>,
    /// IPv6, unless there is none.
    pub ipv6: Option<Ipv6Options>,
    /// The name that DHCP gives the guest.
    pub hostname: Option<String>,
    /// The domain that DHCP gives it.
    pub domain: Option<String>,
    /// Domains in which it is to look for names.
    pub search: Vec<String>,
    /// A directory with files for TFTP.
    pub tftp: Option<PathBuf>,
    /// The name that DHCP gives for the server of TFTP.
    pub tftp_server_name: Option<String>,
    /// The file that the guest is to boot.
    pub bootfile: Option<String>,
}

/// Addresses of IPv4, all of them in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Options {
    /// The network.
    pub network: Ipv4Addr,
    /// Its mask.
    pub netmask: Ipv4Addr,
    /// What stands for the host, and is the gateway.
    pub host: Ipv4Addr,
    /// The first address that the guest is given.
    pub dhcp_start: Ipv4Addr,
    /// What stands for the host's server of names.
    pub nameserver: Ipv4Addr,
}

/// Addresses of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Options {
    /// The network's prefix.
    pub prefix: Ipv6Addr,
    /// Its bits, up to 126.
    pub prefix_len: u8,
    /// What stands for the host.
    pub host: Ipv6Addr,
    /// What stands for the host's server of names.
    pub nameserver: Ipv6Addr,
}

/// A port of the host that leads to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// UDP, in the place of TCP.
    pub is_udp: bool,
    /// The host's end.
    pub host: SocketAddrV4,
    /// The guest's. Without an address it is the first that DHCP gives.
    pub guest: SocketAddrV4,
}

/// What is behind an address that only the guest sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardTarget {
    /// A Unix socket, to which each connection of the guest makes one.
    Unix(PathBuf),
    /// A command, which is started for each connection and has it for its standard input and output.
    Command(String),
}

/// Why there is no such network.
#[derive(Debug, Error)]
pub enum SlirpError {
    /// Without libslirp there is none.
    #[error(transparent)]
    NoLibrary(#[from] NoLibrary),
    /// A text or path that cannot be.
    #[error("there is a zero in a text: {0}")]
    Zero(#[from] NulError),
    /// libslirp does not say why.
    #[error("libslirp refuses the network; look at net=, host=, dns= and ipv6-prefix=")]
    Refused,
    /// A port that cannot be had.
    #[error("cannot forward port {port}: {source}")]
    Forward {
        /// Which one.
        port: SocketAddrV4,
        /// Why.
        source: io::Error,
    },
    /// An address for the guest that cannot be.
    #[error("cannot forward {0}: it is not in the guest's network, or it is taken there")]
    GuestForward(SocketAddrV4),
}

/// A descriptor of somebody else that is waited for together with those of the network.
#[derive(Debug)]
pub struct Watch<'a> {
    /// Which one.
    pub fd: BorrowedFd<'a>,
    /// What for: something to read.
    pub reads: bool,
    /// Room to write.
    pub writes: bool,
}

/// The network.
pub struct Slirp {
    handle: NonNull<Handle>,
    functions: Functions,
    shared: Rc<Shared>,
    /// Descriptors for one call of poll, kept for the next.
    polled: Vec<pollfd>,
    fragments: Fragments,
    is_restricted: bool,
    ipv4: Option<Ipv4Options>,
    ipv6: Option<Ipv6Options>,
    may_ping: bool,
    /// It was said that a guest's echo requests are refused.
    has_told_of_echo: bool,
}

/// What the library's callbacks reach.
struct Shared {
    began: Instant,
    frames: RefCell<Vec<Vec<u8>>>,
    timers: RefCell<Vec<Timer>>,
}

struct Timer {
    callback: TimerCallback,
    argument: *mut c_void,
    /// Milliseconds since the network began.
    due: Cell<Option<i64>>,
}

impl Shared {
    fn millis(&self) -> i64 {
        self.began.elapsed().as_millis() as i64
    }

    /// The next timer that is due, which then is so no more.
    fn take_due(&self) -> Option<(TimerCallback, *mut c_void)> {
        let now = self.millis();
        let timers = self.timers.borrow();
        let timer = timers.iter().find(|timer| timer.due.get().is_some_and(|due| due <= now))?;
        timer.due.set(None);
        Some((timer.callback, timer.argument))
    }

    /// In how many milliseconds one will be.
    fn next_due(&self) -> Option<i64> {
        let now = self.millis();
        let timers = self.timers.borrow();
        timers.iter().filter_map(|timer| timer.due.get()).map(|due| (due - now).max(0)).min()
    }
}

static CALLBACKS: Callbacks = Callbacks {
    send_packet,
    guest_error,
    clock_get_ns,
    timer_new,
    timer_free,
    timer_mod,
    // All descriptors are asked for anew each time, and nobody else waits.
    register_poll_fd: ignore_descriptor,
    unregister_poll_fd: ignore_descriptor,
    notify: ignore,
};

impl Slirp {
    /// Makes one.
    pub fn new(options: &SlirpOptions) -> Result<Slirp, SlirpError> {
        let functions = Functions::load()?;
        // SAFETY: the function is there for ever, and takes what glib gives.
        unsafe { (functions.set_log)(log, ptr::null_mut()) };
        let text = |text: &Option<String>| text.as_deref().map(CString::new).transpose();
        let (hostname, domain) = (text(&options.hostname)?, text(&options.domain)?);
        let server_name = text(&options.tftp_server_name)?;
        let bootfile = text(&options.bootfile)?;
        let tftp = options.tftp.as_ref().map(|path| CString::new(path.as_os_str().as_bytes()));
        let tftp = tftp.transpose()?;
        let search = options.search.iter().map(|domain| CString::new(domain.as_str()));
        let search = search.collect::<Result<Vec<_>, _>>()?;
        let mut search: Vec<_> = search.iter().map(|domain| domain.as_ptr()).collect();
        search.push(ptr::null());
        let pointer =
            |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let none = Ipv4Addr::UNSPECIFIED;
        let ipv4 = options.ipv4.unwrap_or(Ipv4Options {
            network: none,
            netmask: none,
            host: none,
            dhcp_start: none,
            nameserver: none,
        });
        let none = Ipv6Addr::UNSPECIFIED;
        let ipv6 = options.ipv6.unwrap_or(Ipv6Options {
            prefix: none,
            prefix_len: 64,
            host: none,
            nameserver: none,
        });
        let configuration = Configuration {
            version: CONFIGURATION_VERSION,
            restricted: options.is_restricted.into(),
            has_ipv4: options.ipv4.is_some(),
            network: address(ipv4.network),
            netmask: address(ipv4.netmask),
            host: address(ipv4.host),
            has_ipv6: options.ipv6.is_some(),
            prefix6: address6(ipv6.prefix),
            prefix6_len: ipv6.prefix_len,
            host6: address6(ipv6.host),
            hostname: pointer(&hostname),
            tftp_server_name: pointer(&server_name),
            tftp_path: pointer(&tftp),
            bootfile: pointer(&bootfile),
            dhcp_start: address(ipv4.dhcp_start),
            nameserver: address(ipv4.nameserver),
            nameserver6: address6(ipv6.nameserver),
            search: if options.search.is_empty() { ptr::null() } else { search.as_ptr() },
            domain: pointer(&domain),
            mtu: 0,
            mru: 0,
            disable_host_loopback: false,
            enable_emulation: false,
        };
        let shared = Rc::new(Shared {
            began: Instant::now(),
            frames: RefCell::default(),
            timers: RefCell::default(),
        });
        let opaque = Rc::as_ptr(&shared).cast_mut().cast::<c_void>();
        // SAFETY: the library copies the configuration and its texts; the callbacks are there for ever, and what they are given
        // lives as long as the network, since Slirp has both.
        let handle =
            unsafe { (functions.new)(&raw const configuration, &raw const CALLBACKS, opaque) };
        let handle = NonNull::new(handle).ok_or(SlirpError::Refused)?;
        Ok(Slirp {
            handle,
            functions,
            shared,
            polled: Vec::new(),
            fragments: Fragments::default(),
            is_restricted: options.is_restricted,
            ipv4: options.ipv4,
            ipv6: options.ipv6,
            may_ping: echo::may_ping(),
            has_told_of_echo: false,
        })
    }

    /// Lets a port of the host lead to the guest.
    pub fn forward(&mut self, forward: &Forward) -> Result<(), SlirpError> {
        let Forward { is_udp, host, guest } = *forward;
        // SAFETY: the network is there, and any numbers will do.
        let status = unsafe {
            (self.functions.add_host_forward)(
                self.handle.as_ptr(),
                is_udp.into(),
                address(*host.ip()),
                host.port().into(),
                address(*guest.ip()),
                guest.port().into(),
            )
        };
        if status < 0 {
            return Err(SlirpError::Forward { port: host, source: io::Error::last_os_error() });
        }
        Ok(())
    }

    /// Lets connections of the guest to `guest`, an address in its network, lead to `target`.
    pub fn forward_guest(
        &mut self,
        guest: SocketAddrV4,
        target: &ForwardTarget,
    ) -> Result<(), SlirpError> {
        let mut ip = address(*guest.ip());
        let (text, add) = match target {
            ForwardTarget::Unix(path) => {
                (CString::new(path.as_os_str().as_bytes())?, self.functions.add_unix)
            }
            ForwardTarget::Command(command) => {
                (CString::new(command.as_str())?, self.functions.add_command)
            }
        };
        // SAFETY: the network is there; the text, which ends with a zero, is copied, and so is the address.
        let status =
            unsafe { add(self.handle.as_ptr(), text.as_ptr(), &raw mut ip, guest.port().into()) };
        if status < 0 { Err(SlirpError::GuestForward(guest)) } else { Ok(()) }
    }

    /// The guest sends `frame`. What is no ARP, and no IP with a sound header, is lost; what is a fragment waits for the others.
    pub fn input(&mut self, frame: &[u8]) {
        self.input_at(frame, self.shared.began.elapsed());
    }

    /// The same at the time `now` since the network began.
    fn input_at(&mut self, frame: &[u8], now: Duration) {
        match packet::ether_type(frame) {
            Some(ether_type::ARP) => self.hand_over(frame),
            Some(ether_type::IPV4) => {
                let Some(ip) = Ipv4::of(frame) else { return };
                let Some(whole) = self.fragments.take(frame, &ip, now) else { return };
                let Some(ip) = Ipv4::of(&whole) else { return };
                if !self.refuses_echo(&ip, &whole) {
                    self.hand_over(&whole);
                }
            }
            Some(ether_type::IPV6) => {
                // libslirp knows no extension headers, and can send nothing on that is larger than a frame.
                let Some(ip) = Ipv6::of(frame).filter(|ip| !ip.is_fragment()) else { return };
                if !self.refuses_echo_v6(&ip, frame) {
                    self.hand_over(frame);
                }
            }
            _ => {}
        }
    }

    /// Gives the library a frame.
    fn hand_over(&mut self, frame: &[u8]) {
        if frame.len() > FRAME_MAX {
            return;
        }
        let len = frame.len() as c_int;
        // SAFETY: the network is there, and the frame has so many bytes.
        unsafe { (self.functions.input)(self.handle.as_ptr(), frame.as_ptr(), len) };
    }

    /// Refuses an echo request to the outside where this user may send none.
    fn refuses_echo(&mut self, ip: &Ipv4<'_>, frame: &[u8]) -> bool {
        let (Some(to), Some(ours)) = (ip.echo_to(), self.ipv4) else { return false };
        let is_here = to == ours.host || to == ours.nameserver;
        if self.may_ping || self.is_restricted || is_here {
            return false;
        }
        // Nobody is told of what was for many (RFC 1122, 3.2.2).
        let broadcast = ours.network.to_bits() | !ours.netmask.to_bits();
        if !to.is_multicast() && !to.is_broadcast() && to.to_bits() != broadcast {
            if !std::mem::replace(&mut self.has_told_of_echo, true) {
                warn!(
                    "a guest cannot ping hosts outside, as this user may not: the system's setting \
                     net.ipv4.ping_group_range has none of this user's groups"
                );
            }
            self.shared.frames.borrow_mut().push(echo::refuse(ip, frame, ours.host));
        }
        true
    }

    /// Refuses an echo request by IPv6 to the outside, which the library does not send.
    fn refuses_echo_v6(&mut self, ip: &Ipv6<'_>, frame: &[u8]) -> bool {
        let (Some(to), Some(ours)) = (ip.echo_to(), self.ipv6) else { return false };
        let mask = u128::MAX.checked_shl(128 - u32::from(ours.prefix_len)).unwrap_or(0);
        let is_here = (to.to_bits() ^ ours.prefix.to_bits()) & mask == 0;
        let is_local = is_here || to.is_unicast_link_local() || to.is_multicast();
        if self.is_restricted || is_local {
            return false;
        }
        self.shared.frames.borrow_mut().push(echo::refuse_v6(ip, frame, ours.host));
        true
    }

    /// What is there for the guest.
    pub fn take_frames(&mut self) -> Vec<Vec<u8>> {
        self.shared.frames.take()
    }

    /// Does what there is to do for the network, if `waits` after waiting until there is something to do for it or for `other`. With `network`
    /// false the network is left alone, as it would only have more for a guest that takes nothing. True if there is something to read from `other`, or its
    /// end.
    pub fn work(&mut self, other: &Watch<'_>, network: bool, waits: bool) -> io::Result<bool> {
        self.polled.clear();
        let reads = if other.reads { POLLIN } else { 0 };
        let writes = if other.writes { POLLOUT } else { 0 };
        let fd = other.fd.as_raw_fd();
        self.polled.push(pollfd { fd, events: reads | writes, revents: 0 });
        let mut timeout = if waits { u32::MAX } else { 0 };
        let polled = (&raw mut self.polled).cast::<c_void>();
        if network {
            // SAFETY: the network is there; add_poll is given the vector that it takes, and nobody else has it meanwhile.
            unsafe {
                (self.functions.fill)(self.handle.as_ptr(), &raw mut timeout, add_poll, polled);
            };
        }
        let timer = self.shared.next_due().filter(|_| network);
        let timeout =
            timer.map_or(timeout, |timer| timeout.min(timer.try_into().unwrap_or(u32::MAX)));
        let timeout = c_int::try_from(timeout).unwrap_or(-1);
        let count = self.polled.len() as libc::nfds_t;
        // SAFETY: the vector has so many.
        let result = unsafe { libc::poll(self.polled.as_mut_ptr(), count, timeout) };
        let error = io::Error::last_os_error();
        let has_failed = result < 0;
        if network {
            let polled = (&raw mut self.polled).cast::<c_void>();
            // SAFETY: as above.
            unsafe {
                (self.functions.poll)(self.handle.as_ptr(), has_failed.into(), get_events, polled);
            }
            while let Some((callback, argument)) = self.shared.take_due() {
                // SAFETY: they are a timer's that the library has not freed.
                unsafe { callback(argument) };
            }
        }
        if has_failed && error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        let is_ready = |other: &pollfd| other.revents & (POLLIN | POLLHUP | POLLERR) != 0;
        Ok(!has_failed && self.polled.first().is_some_and(is_ready))
    }
}

impl Drop for Slirp {
    fn drop(&mut self) {
        // SAFETY: it is not used after this.
        unsafe { (self.functions.cleanup)(self.handle.as_ptr()) };
    }
}

impl fmt::Debug for Slirp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slirp").finish_non_exhaustive()
    }
}

fn address(address: Ipv4Addr) -> in_addr {
    in_addr { s_addr: u32::from_ne_bytes(address.octets()) }
}

fn address6(address: Ipv6Addr) -> in6_addr {
    in6_addr { s6_addr: address.octets() }
}

/// What the callbacks are given.
///
/// # Safety
/// `opaque` must be what [`Slirp::new`] has given the library.
unsafe fn shared<'a>(opaque: *mut c_void) -> &'a Shared {
    // SAFETY: the network has it until it is cleaned up, and it is never borrowed but for reading.
    unsafe { &*opaque.cast::<Shared>() }
}

extern "C" fn send_packet(bytes: *const c_void, len: usize, opaque: *mut c_void) -> isize {
    // SAFETY: the library gives so many bytes, and what it was given.
    let (bytes, shared) =
        unsafe { (slice::from_raw_parts(bytes.cast::<u8>(), len), shared(opaque)) };
    shared.frames.borrow_mut().push(bytes.to_vec());
    len as isize
}

/// What glib would write to standard error. Guests can have it say much.
extern "C" fn log(
    _domain: *const c_char,
    _level: c_int,
    message: *const c_char,
    _data: *mut c_void,
) {
    if !message.is_null() {
        // SAFETY: the library gives a text with a zero at its end.
        debug!("libslirp: {}", unsafe { CStr::from_ptr(message) }.to_string_lossy());
    }
}

extern "C" fn guest_error(message: *const c_char, _opaque: *mut c_void) {
    // SAFETY: the library gives a text with a zero at its end.
    let message = unsafe { CStr::from_ptr(message) };
    debug!("the guest: {}", message.to_string_lossy());
}

extern "C" fn clock_get_ns(opaque: *mut c_void) -> i64 {
    // SAFETY: the library gives what it was given.
    unsafe { shared(opaque) }.began.elapsed().as_nanos() as i64
}

/// Timers are numbers from 1, which look like pointers to the library.
extern "C" fn timer_new(
    callback: TimerCallback,
    argument: *mut c_void,
    opaque: *mut c_void,
) -> *mut c_void {
    // SAFETY: the library gives what it was given.
    let mut timers = unsafe { shared(opaque) }.timers.borrow_mut();
    timers.push(Timer { callback, argument, due: Cell::new(None) });
    ptr::without_provenance_mut(timers.len())
}

extern "C" fn timer_free(timer: *mut c_void, opaque: *mut c_void) {
    // It is not due any more; its number is not given again.
    set_due(timer, None, opaque);
}

extern "C" fn timer_mod(timer: *mut c_void, millis: i64, opaque: *mut c_void) {
    set_due(timer, Some(millis), opaque);
}

fn set_due(timer: *mut c_void, due: Option<i64>, opaque: *mut c_void) {
    // SAFETY: the library gives what it was given.
    let timers = unsafe { shared(opaque) }.timers.borrow();
    if let Some(timer) = timer.addr().checked_sub(1).and_then(|index| timers.get(index)) {
        timer.due.set(due);
    }
}

extern "C" fn ignore_descriptor(_fd: c_int, _opaque: *mut c_void) {}

extern "C" fn ignore(_opaque: *mut c_void) {}

/// The library's words for what a descriptor is watched for, and poll's.
const EVENTS: [(c_int, i16); 5] = [
    (POLL_IN, POLLIN),
    (POLL_OUT, POLLOUT),
    (POLL_PRI, POLLPRI),
    (POLL_ERR, POLLERR),
    (POLL_HUP, POLLHUP),
];

extern "C" fn add_poll(fd: c_int, events: c_int, polled: *mut c_void) -> c_int {
    // SAFETY: it is the vector that Slirp::work gives, which nobody else has meanwhile.
    let polled = unsafe { &mut *polled.cast::<Vec<pollfd>>() };
    let known = EVENTS.iter().filter(|(theirs, _)| events & theirs != 0);
    let events = known.fold(0, |all, (_, ours)| all | ours);
    polled.push(pollfd { fd, events, revents: 0 });
    polled.len() as c_int - 1
}

extern "C" fn get_events(index: c_int, polled: *mut c_void) -> c_int {
    // SAFETY: as in add_poll.
    let polled = unsafe { &*polled.cast::<Vec<pollfd>>() };
    let Some(found) = usize::try_from(index).ok().and_then(|index| polled.get(index)) else {
        return 0;
    };
    let there = EVENTS.iter().filter(|(_, ours)| found.revents & ours != 0);
    there.fold(0, |all, (theirs, _)| all | theirs)
}

#[cfg(test)]
mod tests;
