//! A descriptor by which threads wake the one of a connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

/// It can be read while it has been rung and not [quietened](Bell::quieten).
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn ring(&self) {
        // It fails where it has been rung 2^64 times, and then it can be read anyway.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn quieten(&self) {
        // It fails where it has not been rung.
        let _ = read(&self.0, &mut [0; 8]);
    }

    #[cfg(test)]
    pub(super) fn is_quiet(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
