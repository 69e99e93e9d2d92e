//! Waits for descriptors, which the library names.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::time::Duration;

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, pollfd, timespec};

use super::library::{POLL_ERR, POLL_HUP, POLL_IN, POLL_OUT, POLL_PRI};

/// Waits for an event of these descriptors, for ever or for as long as `patience`. Returns how many have events.
pub(super) fn poll(polled: &mut [pollfd], patience: Option<Duration>) -> io::Result<c_int> {
    let patience = patience.map(|patience| timespec {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_nsec: patience.subsec_nanos().into(),
    });
    let patience = patience.as_ref().map_or(ptr::null(), ptr::from_ref);
    let count = polled.len() as libc::nfds_t;
    // SAFETY: the array has this many elements, and the time, if there is one, lives until the call has ended.
    let result = unsafe { libc::ppoll(polled.as_mut_ptr(), count, patience, ptr::null()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The library's events for which a descriptor is watched, and the same events of poll.
const EVENTS: [(c_int, i16); 5] = [
    (POLL_IN, POLLIN),
    (POLL_OUT, POLLOUT),
    (POLL_PRI, POLLPRI),
    (POLL_ERR, POLLERR),
    (POLL_HUP, POLLHUP),
];

/// Adds a descriptor of the library to those for which one waits. Returns its number.
pub(super) extern "C" fn add_poll(fd: c_int, events: c_int, polled: *mut c_void) -> c_int {
    // SAFETY: this is the vector that Slirp::work passes, and nothing else borrows it meanwhile.
    let polled = unsafe { &mut *polled.cast::<Vec<pollfd>>() };
    let known = EVENTS.iter().filter(|(theirs, _)| events & theirs != 0);
    let events = known.fold(0, |all, (_, ours)| all | ours);
    polled.push(pollfd { fd, events, revents: 0 });
    polled.len() as c_int - 1
}

/// Returns the events of the descriptor with this number, as the library calls them.
pub(super) extern "C" fn get_events(index: c_int, polled: *mut c_void) -> c_int {
    // SAFETY: as in add_poll.
    let polled = unsafe { &*polled.cast::<Vec<pollfd>>() };
    let Some(found) = usize::try_from(index).ok().and_then(|index| polled.get(index)) else {
        return 0;
    };
    let there = EVENTS.iter().filter(|(_, ours)| found.revents & ours != 0);
    there.fold(0, |all, (theirs, _)| all | theirs)
}
