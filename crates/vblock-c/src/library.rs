//! The devices of a client, and the operations that a program has begun.

use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use libc::{EAGAIN, EINVAL, EIO, ENODEV, EROFS};
use ring3_vblock_client::lobby::{Device, Event, Lobby};
use ring3_vblock_client::{Act as Request, Disk, Waiting};
use ring3_vhost::block::SECTOR;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::buffers::Buffers;

/// Upper bound of the bytes in a request; longer operations are divided.
const PART: usize = 64 << 10;

/// The time between two attempts to reach a server that is away.
const RETRY: Duration = Duration::from_millis(50);

/// A device that the client has or had.
#[derive(Debug)]
struct Known {
    name: CString,
    /// None while it is gone.
    there: Option<Device>,
    /// From the first operation on.
    disk: Option<Arc<Disk>>,
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Read,
    Write,
    Flush,
}

/// An operation: the parts of a transfer, each in a request of its own, or a flush.
#[derive(Debug)]
struct Operation {
    /// The number by which a thread waits for it. Without one the completion function is called.
    waiter: Option<u64>,
    act: Act,
    disk: Arc<Disk>,
    sector: u64,
    /// The address of its buffer, which is in use until the end. A flush has none.
    buffer: usize,
    len: usize,
    /// The data to be written.
    bytes: Vec<u8>,
    /// Offset of the first part that was not begun.
    next: usize,
    /// The parts under way, with their offsets.
    parts: Vec<(usize, Waiting)>,
    error: c_int,
}

impl Operation {
    fn new(act: Act, disk: Arc<Disk>) -> Operation {
        Operation {
            waiter: None,
            act,
            disk,
            sector: 0,
            buffer: 0,
            len: 0,
            bytes: Vec::new(),
            next: 0,
            parts: Vec::new(),
            error: 0,
        }
    }

    /// Begins as many parts as there is room for.
    fn begin(&mut self) {
        while self.error == 0 && self.next < self.len {
            let count = PART.min(self.len - self.next);
            let sector = self.sector + self.next as u64 / SECTOR;
            let begun = match self.act {
                Act::Read => self.disk.begin(Request::Read(count), sector),
                Act::Write => {
                    let bytes = &self.bytes[self.next..self.next + count];
                    self.disk.begin(Request::Write(bytes), sector)
                }
                Act::Flush => self.disk.begin_flush(),
            };
            match begun {
                None => return,
                Some(Ok(waiting)) => self.parts.push((self.next, waiting)),
                Some(Err(_)) => self.error = EIO,
            }
            self.next += count;
        }
    }

    /// Notes the parts that are complete. Returns whether all are.
    fn look(&mut self, buffers: &Buffers) -> bool {
        let Operation { act, buffer, error, .. } = self;
        self.parts.retain_mut(|(at, waiting)| match waiting.look() {
            None => true,
            Some(result) => {
                match result {
                    Ok(bytes) if *act == Act::Read => buffers.write(*buffer, *at, &bytes),
                    Ok(_) => {}
                    Err(_) => *error = EIO,
                }
                false
            }
        });
        if self.disk.is_over() {
            self.error = EIO;
            // Nobody answers these any more.
            self.parts.clear();
        }
        self.begin();
        self.parts.is_empty() && (self.error != 0 || self.next >= self.len)
    }
}

/// The state of the library.
#[derive(Debug)]
pub(crate) struct Library {
    socket: PathBuf,
    /// None while the server is away.
    lobby: Option<Lobby>,
    devices: Vec<Known>,
    operations: Vec<Operation>,
    /// The results of operations for which a thread waits.
    done: BTreeMap<u64, c_int>,
    next_waiter: u64,
    pub(crate) buffers: Buffers,
}

impl Library {
    pub(crate) fn connect(socket: &Path) -> io::Result<Library> {
        let mut lobby = Lobby::connect(socket)?;
        let devices = lobby.devices()?;
        let mut library = Library {
            socket: socket.to_owned(),
            lobby: Some(lobby),
            devices: Vec::new(),
            operations: Vec::new(),
            done: BTreeMap::new(),
            next_waiter: 0,
            buffers: Buffers::default(),
        };
        for device in devices {
            library.note(Event::Added(device));
        }
        Ok(library)
    }

    fn note(&mut self, event: Event) {
        let (name, there) = match event {
            Event::Added(device) | Event::Resized(device) => (device.device.clone(), Some(device)),
            Event::Removed(name) => (name, None),
        };
        let is_this = |known: &&mut Known| known.name.as_bytes() == name.as_bytes();
        match self.devices.iter_mut().find(is_this) {
            Some(known) => {
                if there.is_none()
                    && let Some(disk) = known.disk.take()
                {
                    disk.give_up();
                }
                known.there = there;
            }
            None => {
                // A server's name has no zeros.
                if let Ok(name) = CString::new(name) {
                    self.devices.push(Known { name, there, disk: None });
                }
            }
        }
    }

    /// Takes the news of the server. If it has gone, connects to the next one, when there is one.
    pub(crate) fn take_news(&mut self) {
        while let Some(lobby) = &mut self.lobby {
            match lobby.event() {
                Ok(Some(event)) => self.note(event),
                Ok(None) => return,
                Err(_) => self.lobby = None,
            }
        }
        let Ok(mut lobby) = Lobby::connect(&self.socket) else { return };
        let Ok(devices) = lobby.devices() else { return };
        self.lobby = Some(lobby);
        let is_there = |known: &Known| {
            devices.iter().any(|device| device.device.as_bytes() == known.name.as_bytes())
        };
        let gone = self.devices.iter().filter(|known| !is_there(known));
        let gone = gone.filter_map(|known| known.there.as_ref());
        let gone: Vec<_> = gone.map(|device| device.device.clone()).collect();
        for name in gone {
            self.note(Event::Removed(name));
        }
        for device in devices {
            self.note(Event::Added(device));
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.devices.len()
    }

    pub(crate) fn name(&self, number: usize) -> Option<&CString> {
        self.devices.get(number).map(|known| &known.name)
    }

    /// Returns the number of blocks of a device, and the bytes in each.
    pub(crate) fn geometry(&self, number: usize) -> Option<(u64, u64)> {
        let device = self.devices.get(number)?.there.as_ref()?;
        Some((device.size / SECTOR, SECTOR))
    }

    /// Returns a disk, with which it may have to connect first.
    fn disk(&mut self, number: usize) -> Result<Arc<Disk>, c_int> {
        let known = self.devices.get_mut(number).ok_or(ENODEV)?;
        let device = known.there.as_ref().ok_or(ENODEV)?;
        if let Some(disk) = &known.disk {
            return Ok(Arc::clone(disk));
        }
        let (socket, name) = (self.socket.clone(), device.device.clone());
        let disk = Arc::<OnceLock<Weak<Disk>>>::default();
        let itself = Arc::clone(&disk);
        let dial = move || -> io::Result<UnixStream> {
            let opened = Lobby::connect(&socket)?.open(&name, false);
            if opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Other)
                && let Some(disk) = itself.get().and_then(Weak::upgrade)
            {
                // The server is there, and refuses: the right was taken, so nobody needs to wait.
                disk.give_up();
            }
            opened.map(UnixStream::from)
        };
        let opened = Arc::new(Disk::over(Path::new(&device.device), dial).map_err(|_| EIO)?);
        let _ = disk.set(Arc::downgrade(&opened));
        known.disk = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Begins a transfer. If a thread waits for it, returns the number by which it asks for the result.
    pub(crate) fn transfer(
        &mut self,
        number: usize,
        act: Act,
        buffer: usize,
        offset: u64,
        len: usize,
        waits: bool,
    ) -> Result<u64, c_int> {
        let disk = self.disk(number)?;
        let end = offset.checked_add(len as u64).ok_or(EINVAL)?;
        let is_whole = offset.is_multiple_of(SECTOR) && (len as u64).is_multiple_of(SECTOR);
        if !is_whole || end > disk.sectors() * SECTOR {
            return Err(EINVAL);
        }
        if act == Act::Write && disk.is_read_only() {
            return Err(EROFS);
        }
        if !self.buffers.begin(buffer, len) {
            return Err(EINVAL);
        }
        let bytes = if act == Act::Write { self.buffers.read(buffer, len) } else { Vec::new() };
        let sector = offset / SECTOR;
        let begun = self
            .start(Operation { sector, buffer, len, bytes, ..Operation::new(act, disk) }, waits);
        begun.inspect_err(|_| self.buffers.end(buffer))
    }

    /// Begins a flush, for which a thread waits.
    pub(crate) fn flush(&mut self, number: usize) -> Result<u64, c_int> {
        let disk = self.disk(number)?;
        self.start(Operation { len: 1, ..Operation::new(Act::Flush, disk) }, true)
    }

    fn start(&mut self, mut operation: Operation, waits: bool) -> Result<u64, c_int> {
        operation.begin();
        if !waits && operation.next == 0 && operation.len > 0 {
            return Err(EAGAIN);
        }
        let number = self.next_waiter;
        if waits {
            self.next_waiter += 1;
            operation.waiter = Some(number);
        }
        self.operations.push(operation);
        Ok(number)
    }

    /// Returns the result of an operation for which a thread waits, once it is complete.
    pub(crate) fn take_result(&mut self, waiter: u64) -> Option<c_int> {
        self.done.remove(&waiter)
    }

    /// Notes the operations that have ended. Returns the buffers of those for which no thread waits, and their
    /// errors.
    pub(crate) fn ended(&mut self) -> Vec<(usize, c_int)> {
        let mut ended = Vec::new();
        for mut operation in std::mem::take(&mut self.operations) {
            if !operation.look(&self.buffers) {
                self.operations.push(operation);
                continue;
            }
            if operation.act != Act::Flush {
                self.buffers.end(operation.buffer);
            }
            match operation.waiter {
                Some(waiter) => drop(self.done.insert(waiter, operation.error)),
                None => ended.push((operation.buffer, operation.error)),
            }
        }
        ended
    }

    /// Returns the disks with operations under way.
    pub(crate) fn waits(&self) -> Vec<Arc<Disk>> {
        self.operations.iter().map(|operation| Arc::clone(&operation.disk)).collect()
    }

    /// Lets operations fail whose server is away.
    pub(crate) fn give_up(&self) {
        self.devices.iter().filter_map(|known| known.disk.as_ref()).for_each(|disk| disk.give_up());
    }

    /// Returns the descriptor at which news come, unless the server is away.
    pub(crate) fn news(&self) -> io::Result<Option<OwnedFd>> {
        self.lobby.as_ref().map(|lobby| lobby.as_fd().try_clone_to_owned()).transpose()
    }
}

/// Waits until one of `disks` may have completed an operation, or there may be news: at the descriptor, or, if the
/// server is away, because it has come back.
pub(crate) fn wait(
    disks: &[Arc<Disk>],
    news: Option<&OwnedFd>,
    end: Option<Instant>,
) -> io::Result<()> {
    let mut fds: Vec<_> = news.into_iter().map(|news| PollFd::new(news, PollFlags::IN)).collect();
    for disk in disks {
        let Some(fd) = disk.arm() else { return Ok(()) };
        fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
    }
    let left = end.map(|end| end.saturating_duration_since(Instant::now()));
    let most = if news.is_none() { Some(RETRY) } else { None };
    let left = left.into_iter().chain(most).min();
    let left = left.map(|left| Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: left.subsec_nanos().into(),
    });
    match poll(&mut fds, left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
