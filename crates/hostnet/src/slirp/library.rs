//! The functions and structures of libslirp that this crate uses (libslirp.h of 4.2 and later, version 1 of
//! its configuration).

use std::ffi::{c_char, c_int, c_void};

use libc::{in_addr, in6_addr};
use libloading::Library;

use crate::library::{NoLibrary, Wanted};

const LIBSLIRP: Wanted = Wanted {
    what: "a network behind NAT",
    library: "libslirp",
    package: "libslirp0",
    names: &["libslirp.so.0"],
};

/// `Slirp`, which is opaque outside the library.
#[repr(C)]
pub(super) struct Handle([u8; 0]);

/// The version of [`Configuration`].
pub(super) const CONFIGURATION_VERSION: u32 = 1;

/// `SlirpConfig`, up to the fields of version 1.
#[repr(C)]
pub(super) struct Configuration {
    pub(super) version: u32,
    pub(super) restricted: c_int,
    pub(super) has_ipv4: bool,
    pub(super) network: in_addr,
    pub(super) netmask: in_addr,
    pub(super) host: in_addr,
    pub(super) has_ipv6: bool,
    pub(super) prefix6: in6_addr,
    pub(super) prefix6_len: u8,
    pub(super) host6: in6_addr,
    pub(super) hostname: *const c_char,
    pub(super) tftp_server_name: *const c_char,
    pub(super) tftp_path: *const c_char,
    pub(super) bootfile: *const c_char,
    pub(super) dhcp_start: in_addr,
    pub(super) nameserver: in_addr,
    pub(super) nameserver6: in6_addr,
    /// Null, or an array of pointers that ends with a null pointer.
    pub(super) search: *const *const c_char,
    pub(super) domain: *const c_char,
    /// 0 means the default.
    pub(super) mtu: usize,
    pub(super) mru: usize,
    pub(super) disable_host_loopback: bool,
    pub(super) enable_emulation: bool,
}

pub(super) type TimerCallback = unsafe extern "C" fn(*mut c_void);

/// `SlirpCb`, up to the fields of version 1 of the configuration.
#[repr(C)]
pub(super) struct Callbacks {
    pub(super) send_packet: extern "C" fn(*const c_void, usize, *mut c_void) -> isize,
    pub(super) guest_error: extern "C" fn(*const c_char, *mut c_void),
    pub(super) clock_get_ns: extern "C" fn(*mut c_void) -> i64,
    pub(super) timer_new: extern "C" fn(TimerCallback, *mut c_void, *mut c_void) -> *mut c_void,
    pub(super) timer_free: extern "C" fn(*mut c_void, *mut c_void),
    pub(super) timer_mod: extern "C" fn(*mut c_void, i64, *mut c_void),
    pub(super) register_poll_fd: extern "C" fn(c_int, *mut c_void),
    pub(super) unregister_poll_fd: extern "C" fn(c_int, *mut c_void),
    pub(super) notify: extern "C" fn(*mut c_void),
}

/// `GLogFunc` of glib.
pub(super) type Log = extern "C" fn(*const c_char, c_int, *const c_char, *mut c_void);
pub(super) type AddPoll = extern "C" fn(c_int, c_int, *mut c_void) -> c_int;
pub(super) type GetEvents = extern "C" fn(c_int, *mut c_void) -> c_int;

// The events for which a descriptor is watched.
pub(super) const POLL_IN: c_int = 1 << 0;
pub(super) const POLL_OUT: c_int = 1 << 1;
pub(super) const POLL_PRI: c_int = 1 << 2;
pub(super) const POLL_ERR: c_int = 1 << 3;
pub(super) const POLL_HUP: c_int = 1 << 4;

/// The library's functions.
pub(super) struct Functions {
    pub(super) new:
        unsafe extern "C" fn(*const Configuration, *const Callbacks, *mut c_void) -> *mut Handle,
    pub(super) cleanup: unsafe extern "C" fn(*mut Handle),
    pub(super) fill: unsafe extern "C" fn(*mut Handle, *mut u32, AddPoll, *mut c_void),
    pub(super) poll: unsafe extern "C" fn(*mut Handle, c_int, GetEvents, *mut c_void),
    pub(super) input: unsafe extern "C" fn(*mut Handle, *const u8, c_int),
    pub(super) add_host_forward:
        unsafe extern "C" fn(*mut Handle, c_int, in_addr, c_int, in_addr, c_int) -> c_int,
    pub(super) add_command:
        unsafe extern "C" fn(*mut Handle, *const c_char, *mut in_addr, c_int) -> c_int,
    pub(super) add_unix:
        unsafe extern "C" fn(*mut Handle, *const c_char, *mut in_addr, c_int) -> c_int,
    /// `g_log_set_default_handler` of glib, which the library uses.
    pub(super) set_log: unsafe extern "C" fn(Log, *mut c_void) -> *mut c_void,
    /// The library that contains the functions.
    _library: Library,
}

impl Functions {
    /// Loads the library and finds its functions.
    pub(super) fn load() -> Result<Functions, NoLibrary> {
        let library = LIBSLIRP.load()?;
        let missing = |error| LIBSLIRP.missing(error);
        // SAFETY: the types are those of libslirp.h.
        unsafe {
            Ok(Functions {
                new: *library.get("slirp_new").map_err(missing)?,
                cleanup: *library.get("slirp_cleanup").map_err(missing)?,
                fill: *library.get("slirp_pollfds_fill").map_err(missing)?,
                poll: *library.get("slirp_pollfds_poll").map_err(missing)?,
                input: *library.get("slirp_input").map_err(missing)?,
                add_host_forward: *library.get("slirp_add_hostfwd").map_err(missing)?,
                add_command: *library.get("slirp_add_exec").map_err(missing)?,
                add_unix: *library.get("slirp_add_unix").map_err(missing)?,
                set_log: *library.get("g_log_set_default_handler").map_err(missing)?,
                _library: library,
            })
        }
    }
}
