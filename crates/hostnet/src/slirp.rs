//! A network behind one address, made by libslirp without any rights. For what a guest sends, this process
//! uses sockets of its own. The guest gets addresses by DHCP and router advertisements, names by a relay to
//! the host's name server, and files by TFTP.
//!
//! libslirp is written in C and reads what hostile guests send, so it belongs into a process that can do
//! nothing else ([`sandbox`](crate::sandbox)). It receives only input that it is known to withstand: IPv4
//! datagrams with sound headers, reassembled if they came in fragments, IPv6 without fragments, and ARP.
//!
//! * `library`: the functions and structures of libslirp;
//! * `packet`: reads the headers of frames; `fragments`: reassembles datagrams;
//! * `echo`: answers echo requests that this user may not send;
//! * `clock`: the library's time, and the acknowledgements that it holds back;
//! * `polling`: waits for descriptors, which the library names.

mod clock;
mod echo;
mod fragments;
mod library;
mod packet;
mod polling;

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
use std::time::Duration;

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, in_addr, in6_addr, pollfd};
use thiserror::Error;
use tracing::{debug, warn};

use crate::library::NoLibrary;
use clock::Clock;
pub use echo::may_ping;
use fragments::Fragments;
use library::{CONFIGURATION_VERSION, Callbacks, Configuration, Functions, Handle, TimerCallback};
use packet::{ETHERNET_LEN, Ipv4, Ipv6, ether_type};
use polling::{add_poll, get_events, poll};

/// The largest frame in bytes: an IP datagram and its Ethernet header.
const FRAME_MAX: usize = ETHERNET_LEN + 65535;

/// The configuration of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlirpOptions {
    /// Whether the guest reaches nothing outside, except by forwarding.
    pub is_restricted: bool,
    /// The IPv4 addresses, or None for a network without IPv4.
    pub ipv4: Option<Ipv4Options>,
    /// The IPv6 addresses, or None for a network without IPv6.
    pub ipv6: Option<Ipv6Options>,
    /// The name that DHCP gives the guest.
    pub hostname: Option<String>,
    /// The domain that DHCP gives the guest.
    pub domain: Option<String>,
    /// Domains in which the guest should look for names.
    pub search: Vec<String>,
    /// A directory with files for TFTP.
    pub tftp: Option<PathBuf>,
    /// The name of the TFTP server that DHCP gives the guest.
    pub tftp_server_name: Option<String>,
    /// The file that DHCP tells the guest to boot.
    pub bootfile: Option<String>,
}

/// The IPv4 addresses, all of them in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Options {
    /// The network.
    pub network: Ipv4Addr,
    /// Its mask.
    pub netmask: Ipv4Addr,
    /// The address that stands for the host, which is the gateway.
    pub host: Ipv4Addr,
    /// The first address that DHCP gives to guests.
    pub dhcp_start: Ipv4Addr,
    /// The address that stands for the host's name server.
    pub nameserver: Ipv4Addr,
}

/// The IPv6 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Options {
    /// The network's prefix.
    pub prefix: Ipv6Addr,
    /// The length of the prefix in bits, up to 126.
    pub prefix_len: u8,
    /// The address that stands for the host.
    pub host: Ipv6Addr,
    /// The address that stands for the host's name server.
    pub nameserver: Ipv6Addr,
}

/// A port of the host that leads to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// Whether this forwards UDP instead of TCP.
    pub is_udp: bool,
    /// The host's end.
    pub host: SocketAddrV4,
    /// The guest's end. Without an address it is the first that DHCP gives.
    pub guest: SocketAddrV4,
}

/// The target behind an address that only the guest sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardTarget {
    /// A Unix socket, to which each connection of the guest opens a connection.
    Unix(PathBuf),
    /// A command that is started for each connection, which is its standard input and output.
    Command(String),
}

/// Why a network cannot be made.
#[derive(Debug, Error)]
pub enum SlirpError {
    /// libslirp is missing.
    #[error(transparent)]
    NoLibrary(#[from] NoLibrary),
    /// A text or path contains a zero byte.
    #[error("an option contains a zero byte: {0}")]
    Zero(#[from] NulError),
    /// libslirp refuses the network without saying why.
    #[error("libslirp refuses the network; check net=, host=, dns= and ipv6-prefix=")]
    Refused,
    /// The host refuses to open this port.
    #[error("cannot forward port {port}: {source}")]
    Forward {
        /// The port.
        port: SocketAddrV4,
        /// The system's error.
        source: io::Error,
    },
    /// The address for the guest is impossible.
    #[error(
        "cannot forward {0}: the address is not in the guest's network, or is already used there"
    )]
    GuestForward(SocketAddrV4),
}

/// A descriptor outside the network, which is watched together with the network's own.
#[derive(Debug)]
pub struct Watch<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// Whether to wait until there is something to read.
    pub reads: bool,
    /// Whether to wait until there is room to write.
    pub writes: bool,
}

/// A network made by libslirp.
pub struct Slirp {
    handle: NonNull<Handle>,
    functions: Functions,
    shared: Rc<Shared>,
    /// The descriptors for one call of poll; the vector is kept for the next call.
    polled: Vec<pollfd>,
    fragments: Fragments,
    is_restricted: bool,
    ipv4: Option<Ipv4Options>,
    ipv6: Option<Ipv6Options>,
    may_ping: bool,
    /// Whether the guest has said nothing since the library was last made to acknowledge.
    has_acknowledged: bool,
    /// Whether a warning was logged that echo requests of the guest are refused.
    has_told_of_echo: bool,
}

/// The data that the library's callbacks use.
struct Shared {
    clock: Clock,
    frames: RefCell<Vec<Vec<u8>>>,
    timers: RefCell<Vec<Timer>>,
}

struct Timer {
    callback: TimerCallback,
    argument: *mut c_void,
    /// When the timer is due, in milliseconds since the network began.
    due: Cell<Option<i64>>,
}

impl Shared {
    fn millis(&self) -> i64 {
        self.clock.now().as_millis() as i64
    }

    /// Returns a timer that is due, and clears it.
    fn take_due(&self) -> Option<(TimerCallback, *mut c_void)> {
        let now = self.millis();
        let timers = self.timers.borrow();
        let timer = timers.iter().find(|timer| timer.due.get().is_some_and(|due| due <= now))?;
        timer.due.set(None);
        Some((timer.callback, timer.argument))
    }

    /// Returns the number of milliseconds until the next timer is due.
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
    // The descriptors are collected anew for each call, and nobody else waits for them.
    register_poll_fd: ignore_descriptor,
    unregister_poll_fd: ignore_descriptor,
    notify: ignore,
};

impl Slirp {
    /// Makes a network.
    pub fn new(options: &SlirpOptions) -> Result<Slirp, SlirpError> {
        let functions = Functions::load()?;
        // SAFETY: the function is static, and takes the arguments that glib passes.
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
            clock: Clock::new(),
            frames: RefCell::default(),
            timers: RefCell::default(),
        });
        let opaque = Rc::as_ptr(&shared).cast_mut().cast::<c_void>();
        // SAFETY: the library copies the configuration and its texts. The callbacks are static, and the data
        // passed to them live as long as the network, since Slirp owns both.
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
            has_acknowledged: false,
            has_told_of_echo: false,
        })
    }

    /// Forwards a port of the host to the guest.
    pub fn forward(&mut self, forward: &Forward) -> Result<(), SlirpError> {
        let Forward { is_udp, host, guest } = *forward;
        // SAFETY: the network exists, and any numbers are allowed.
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

    /// Forwards the guest's connections to `guest`, an address in its network, to `target`.
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
        // SAFETY: the network exists. The library copies the address and the text, which ends with a zero.
        let status =
            unsafe { add(self.handle.as_ptr(), text.as_ptr(), &raw mut ip, guest.port().into()) };
        if status < 0 { Err(SlirpError::GuestForward(guest)) } else { Ok(()) }
    }

    /// Takes `frame` from the guest. Frames other than ARP and IP with a sound header are lost; fragments
    /// wait for the rest of their datagram.
    pub fn input(&mut self, frame: &[u8]) {
        self.input_at(frame, self.shared.clock.now());
    }

    /// Takes `frame` from the guest at the time `now` since the network began.
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
                // libslirp knows no extension headers, and cannot forward anything larger than a frame.
                let Some(ip) = Ipv6::of(frame).filter(|ip| !ip.is_fragment()) else { return };
                if !self.refuses_echo_v6(&ip, frame) {
                    self.hand_over(frame);
                }
            }
            _ => {}
        }
    }

    /// Passes a frame to the library.
    fn hand_over(&mut self, frame: &[u8]) {
        if frame.len() > FRAME_MAX {
            return;
        }
        self.has_acknowledged = false;
        let len = frame.len() as c_int;
        // SAFETY: the network exists, and the frame has this many bytes.
        unsafe { (self.functions.input)(self.handle.as_ptr(), frame.as_ptr(), len) };
    }

    /// Refuses an echo request to the outside where this user may not send any. Returns whether it has done
    /// so.
    fn refuses_echo(&mut self, ip: &Ipv4<'_>, frame: &[u8]) -> bool {
        let (Some(to), Some(ours)) = (ip.echo_to(), self.ipv4) else { return false };
        let is_here = to == ours.host || to == ours.nameserver;
        if self.may_ping || self.is_restricted || is_here {
            return false;
        }
        // Requests to groups get no answer (RFC 1122, 3.2.2).
        let broadcast = ours.network.to_bits() | !ours.netmask.to_bits();
        if !to.is_multicast() && !to.is_broadcast() && to.to_bits() != broadcast {
            if !std::mem::replace(&mut self.has_told_of_echo, true) {
                warn!(
                    "the guest cannot ping other hosts, because this user may not: the system's setting \
                     net.ipv4.ping_group_range does not include any group of this user"
                );
            }
            self.shared.frames.borrow_mut().push(echo::refuse(ip, frame, ours.host));
        }
        true
    }

    /// Refuses an IPv6 echo request to the outside, which the library does not send. Returns whether it has
    /// done so.
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

    /// Returns the frames for the guest.
    pub fn take_frames(&mut self) -> Vec<Vec<u8>> {
        self.shared.frames.take()
    }

    /// Does the pending work of the network. If `waits`, it first waits until there is work for the network
    /// or an event of `other`. If `network` is false the network is left alone, because it would only bring
    /// more for a guest that takes nothing. Returns whether there is something to read from `other`, or its
    /// end.
    pub fn work(&mut self, other: &Watch<'_>, network: bool, waits: bool) -> io::Result<bool> {
        self.polled.clear();
        let reads = if other.reads { POLLIN } else { 0 };
        let writes = if other.writes { POLLOUT } else { 0 };
        let fd = other.fd.as_raw_fd();
        self.polled.push(pollfd { fd, events: reads | writes, revents: 0 });
        let mut wish = u32::MAX;
        let polled = (&raw mut self.polled).cast::<c_void>();
        if network {
            // SAFETY: the network exists. add_poll receives the vector that it expects, and nothing else
            // borrows it meanwhile.
            unsafe { (self.functions.fill)(self.handle.as_ptr(), &raw mut wish, add_poll, polled) };
        }
        let holds_back = self.shared.clock.hears(wish) && !self.has_acknowledged;
        let timer = self.shared.next_due().filter(|_| network);
        let millis = timer.map_or(wish, |timer| wish.min(timer.try_into().unwrap_or(u32::MAX)));
        let patience = match millis {
            _ if !waits || holds_back => Some(Duration::ZERO),
            u32::MAX => None,
            _ => Some(Duration::from_millis(millis.into())),
        };
        let result = poll(&mut self.polled, patience);
        if network {
            self.poll_network(result.is_err(), Duration::ZERO);
            // Nothing has come that could take acknowledgements along.
            if waits && holds_back && matches!(result, Ok(0)) {
                self.acknowledge();
            }
            while let Some((callback, argument)) = self.shared.take_due() {
                // SAFETY: both belong to a timer that the library has not freed.
                unsafe { callback(argument) };
            }
        }
        match result {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Err(_) => return Ok(false),
            Ok(_) => {}
        }
        let is_ready = |other: &pollfd| other.revents & (POLLIN | POLLHUP | POLLERR) != 0;
        Ok(self.polled.first().is_some_and(is_ready))
    }

    /// Lets the library look at its timers, by a clock that is this much ahead, and, unless waiting for them `has_failed`, at
    /// the descriptors.
    fn poll_network(&mut self, has_failed: bool, ahead: Duration) {
        let polled = (&raw mut self.polled).cast::<c_void>();
        self.shared.clock.show(ahead, || {
            // SAFETY: the network exists. get_events receives the vector that it expects, and nothing else borrows it
            // meanwhile.
            unsafe {
                (self.functions.poll)(self.handle.as_ptr(), has_failed.into(), get_events, polled);
            }
        });
    }

    /// Lets the library send the acknowledgements that it holds back.
    fn acknowledge(&mut self) {
        self.has_acknowledged = true;
        for ahead in [clock::DELAY, Duration::ZERO] {
            self.poll_network(true, ahead);
        }
    }
}

impl Drop for Slirp {
    fn drop(&mut self) {
        // SAFETY: the network is not used after this.
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

/// Returns the data that a callback uses.
///
/// # Safety
/// `opaque` must be the pointer that [`Slirp::new`] passed to the library.
unsafe fn shared<'a>(opaque: *mut c_void) -> &'a Shared {
    // SAFETY: the network owns the data until it is cleaned up, and they are only borrowed for reading.
    unsafe { &*opaque.cast::<Shared>() }
}

extern "C" fn send_packet(bytes: *const c_void, len: usize, opaque: *mut c_void) -> isize {
    // SAFETY: the library passes this many bytes, and the pointer that it received.
    let (bytes, shared) =
        unsafe { (slice::from_raw_parts(bytes.cast::<u8>(), len), shared(opaque)) };
    shared.frames.borrow_mut().push(bytes.to_vec());
    len as isize
}

/// Logs the messages that glib would write to standard error. They are debug messages, since guests can cause
/// many.
extern "C" fn log(
    _domain: *const c_char,
    _level: c_int,
    message: *const c_char,
    _data: *mut c_void,
) {
    if !message.is_null() {
        // SAFETY: the library passes a text with a zero at its end.
        debug!("libslirp: {}", unsafe { CStr::from_ptr(message) }.to_string_lossy());
    }
}

extern "C" fn guest_error(message: *const c_char, _opaque: *mut c_void) {
    // SAFETY: the library passes a text with a zero at its end.
    let message = unsafe { CStr::from_ptr(message) };
    debug!("the guest: {}", message.to_string_lossy());
}

extern "C" fn clock_get_ns(opaque: *mut c_void) -> i64 {
    // SAFETY: the library passes the pointer that it received.
    unsafe { shared(opaque) }.clock.shown().as_nanos() as i64
}

/// Makes a timer. Timers are numbers from 1, which look like pointers to the library.
extern "C" fn timer_new(
    callback: TimerCallback,
    argument: *mut c_void,
    opaque: *mut c_void,
) -> *mut c_void {
    // SAFETY: the library passes the pointer that it received.
    let mut timers = unsafe { shared(opaque) }.timers.borrow_mut();
    timers.push(Timer { callback, argument, due: Cell::new(None) });
    ptr::without_provenance_mut(timers.len())
}

extern "C" fn timer_free(timer: *mut c_void, opaque: *mut c_void) {
    // The timer is no longer due, and its number is not used again.
    set_due(timer, None, opaque);
}

extern "C" fn timer_mod(timer: *mut c_void, millis: i64, opaque: *mut c_void) {
    set_due(timer, Some(millis), opaque);
}

fn set_due(timer: *mut c_void, due: Option<i64>, opaque: *mut c_void) {
    // SAFETY: the library passes the pointer that it received.
    let timers = unsafe { shared(opaque) }.timers.borrow();
    if let Some(timer) = timer.addr().checked_sub(1).and_then(|index| timers.get(index)) {
        timer.due.set(due);
    }
}

extern "C" fn ignore_descriptor(_fd: c_int, _opaque: *mut c_void) {}

extern "C" fn ignore(_opaque: *mut c_void) {}

#[cfg(test)]
mod tests;
