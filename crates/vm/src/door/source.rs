//! Sources from outside that the machine's own thread reads.
//!
//! A thread that only hands on what it reads would have to wake up for each packet, and then to wake the
//! machine: a guest that waits for an answer would wait for both. So where a descriptor of the host says that
//! something has come, the machine reads it itself, and sleeps until there is something.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ring3_core::input::DeviceInput;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// A source of inputs for a device.
pub trait Source: Send {
    /// Returns the descriptor that can be read when something has come.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Takes the next input, without waiting.
    fn fetch(&mut self) -> Fetched;
}

/// The result of reading a [`Source`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// An input. There may be more.
    Input(DeviceInput),
    /// Nothing has come yet.
    Nothing,
    /// Nothing will ever come again: the source is dropped.
    Ended,
}

impl fmt::Debug for dyn Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

/// Wakes a machine that sleeps by descriptors.
#[derive(Debug, Clone)]
pub(super) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell(Arc::new(counter)))
    }

    pub(super) fn ring(&self) {
        // The write fails only if 2^64 earlier ones were never read.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Sleeps until this is rung or one of `descriptors` can be read, at most for `duration`.
    pub(super) fn sleep(&self, descriptors: &[BorrowedFd<'_>], duration: Option<Duration>) {
        let descriptors = descriptors.iter().copied().chain([self.0.as_fd()]);
        let mut waited_for: Vec<_> =
            descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // A time that is too long to be represented means for ever.
        let timeout = duration.and_then(|duration| Timespec::try_from(duration).ok());
        // An interrupted sleep is merely shorter.
        let _ = poll(&mut waited_for, timeout.as_ref());
        // The read returns nothing if this was not rung.
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use ring3_core::device::DeviceId;
    use ring3_core::input::Input;

    use super::*;
    use crate::door::{CAPACITY, Door, door};

    const COM1: DeviceId = DeviceId::COM[0];

    /// A source in which each byte is an input for a device.
    struct Bytes(UnixStream);

    impl Source for Bytes {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        fn fetch(&mut self) -> Fetched {
            let mut byte = [0];
            match self.0.read(&mut byte) {
                Ok(0) => Fetched::Ended,
                Ok(_) => Fetched::Input(DeviceInput::Serial(byte.to_vec())),
                Err(_) => Fetched::Nothing,
            }
        }
    }

    fn connected() -> (UnixStream, Box<Bytes>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (ours, Box::new(Bytes(theirs)))
    }

    fn take(door: &mut Door) -> Option<Input> {
        door.take(|_| true)
    }

    fn input(byte: u8) -> Input {
        Input::Device { device: COM1, input: DeviceInput::Serial(vec![byte]) }
    }

    #[test]
    fn a_sleeping_machine_wakes_up_and_fetches_input() {
        let (sender, mut door) = door();
        let (mut ours, source) = connected();
        let thread = thread::spawn(move || {
            sender.attach(COM1, source).unwrap();
            thread::sleep(Duration::from_millis(20));
            ours.write_all(&[1, 2]).unwrap();
            (sender, ours)
        });
        door.wait(None, |_| true);
        assert_eq!([take(&mut door), take(&mut door)], [1, 2].map(|byte| Some(input(byte))));
        let (sender, _ours) = thread.join().unwrap();
        // Inputs that threads send wake it, too.
        let thread = thread::spawn(move || sender.send(Input::Quit));
        door.wait(None, |_| true);
        assert_eq!(take(&mut door), Some(Input::Quit));
        thread.join().unwrap();
    }

    #[test]
    fn input_without_room_waits_in_its_source() {
        let (sender, mut door) = door();
        let (mut ours, source) = connected();
        sender.attach(COM1, source).unwrap();
        ours.write_all(&[7; CAPACITY]).unwrap();
        ours.write_all(&[8]).unwrap();
        // No input is taken, so it sleeps as long as it may.
        door.wait(Some(door.host_time().plus_nanos(20_000_000)), |_| false);
        for _ in 0..CAPACITY {
            assert_eq!(take(&mut door), Some(input(7)));
        }
        assert_eq!(take(&mut door), None);
        door.wait(None, |_| true);
        assert_eq!(take(&mut door), Some(input(8)));
    }

    #[test]
    fn a_source_that_has_ended_is_dropped() {
        let (sender, mut door) = door();
        let (mut ours, source) = connected();
        sender.attach(COM1, source).unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        door.fetch();
        assert_eq!(ours.read(&mut [0]).unwrap(), 0);
        drop(door);
        assert!(sender.attach(COM1, connected().1).is_err());
    }
}
