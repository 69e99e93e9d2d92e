//! A limit for the time of a conversation, however slowly the other end sends and receives.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// A socket that is read and written until a deadline, after which both fail as timed out.
#[derive(Debug)]
pub struct Deadline<'a> {
    socket: BorrowedFd<'a>,
    end: Instant,
}

impl<'a> Deadline<'a> {
    /// Returns `socket` with a deadline after `duration` from now.
    pub fn new(socket: &'a impl AsFd, duration: Duration) -> Deadline<'a> {
        Deadline { socket: socket.as_fd(), end: Instant::now() + duration }
    }

    /// Calls `act` until it succeeds, waiting for `events` each time that it would block.
    fn when<T>(
        &self,
        events: PollFlags,
        mut act: impl FnMut() -> Result<T, Errno>,
    ) -> io::Result<T> {
        loop {
            match act() {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                result => return Ok(result?),
            }
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            let left =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.socket, events)], Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Read for Deadline<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.when(PollFlags::IN, || {
            recv(self.socket, &mut *buffer, RecvFlags::DONTWAIT).map(|(count, _)| count)
        })
    }
}

impl Write for Deadline<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.when(PollFlags::OUT, || {
            send(self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    /// Each read and each write is quick, but all of them together are not.
    #[test]
    fn slow_ends_do_not_make_it_longer() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let sender = thread::spawn(move || {
            while theirs.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let mut bytes = Vec::new();
        let mut stream = Deadline::new(&ours, Duration::from_millis(200));
        let error = stream.read_to_end(&mut bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(!bytes.is_empty() && bytes.len() <= 21);
        drop(ours);
        sender.join().unwrap();

        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut stream = Deadline::new(&ours, Duration::from_millis(50));
        let error = stream.write_all(&vec![0; 8 << 20]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
