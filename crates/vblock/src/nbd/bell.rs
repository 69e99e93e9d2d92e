//! A descriptor by which other threads wake a connection's thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

/// An event descriptor. It is readable after [`Bell::ring`], until [`Bell::quieten`].
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn ring(&self) {
        // This fails only if the counter is full, and then the descriptor is readable anyway.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn quieten(&self) {
        // This fails if the bell has not been rung.
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
