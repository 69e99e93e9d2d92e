//! The connection with the server, and with the next one after its end.
//!
//! A thread keeps the connection: it sends all messages, and then waits for the server's end. The server says
//! by itself only that the configuration has changed, at a socket of its own.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring3_host::polling::Polling;
use ring3_vhost::block::{LOOKS_FOR, SECTOR, config, feature};
use ring3_vhost::event::{CONFIGURATION_CHANGED, signal};
use ring3_vhost::memory::sealed;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tracing::{info, warn};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryRegion, GuestRegionMmap, MemoryRegionAddress, MmapRegion,
};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::ring::{DATA, MEMORY, PARTS, Ring, SIZE};
use crate::{ClientError, Shared, State};

/// The time between two attempts to reach a server.
const RETRY: Duration = Duration::from_millis(50);
/// The time for which requests may wait for a server that is there before a warning says so.
const SLOW: Duration = Duration::from_secs(5);
/// The time after a change of the configuration in which others are not looked at.
const BETWEEN_CHANGES: Duration = Duration::from_millis(10);
/// How long a server may take to answer a message.
const PATIENCE: Duration = Duration::from_secs(10);

/// The features that are accepted if the server offers them.
const USED: u64 = feature::SIZE_MAX
    | feature::READ_ONLY
    | feature::FLUSH
    | feature::DISCARD
    | feature::WRITE_ZEROES
    | feature::EVENT_INDEX
    | feature::PROTOCOL
    | feature::VERSION_1;

/// Why a server whose disk has no possible size is unsuitable.
const NO_SIZE: &str = "the size of its disk is not valid";

/// The disk that the server offers, and its features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offer {
    features: u64,
    pub(super) read_only: bool,
    pub(super) flushes: bool,
    /// Upper bound of the data bytes in a request.
    pub(super) part: usize,
    /// Upper bounds of the sectors that one request discards, or fills with zeros; 0 if the server has no
    /// such request.
    pub(super) discard: u32,
    pub(super) write_zeroes: u32,
}

/// The descriptors by which both sides wake each other.
pub(super) struct Link {
    kick: EventFd,
    call: EventFd,
    /// Wakes the owners of requests that have a `Waiting`, after a thread has taken the server's call.
    bell: OwnedFd,
    is_there: AtomicBool,
}

impl Link {
    /// Tells the server that there are requests in the ring. If there is none, the thread kicks the next one.
    pub(super) fn kick(&self) {
        let _ = self.kick.write(1);
    }

    /// Waits until the server calls, or another server is there.
    pub(super) fn wait_for_call(&self) {
        let call = self.call();
        // An interruption only ends the wait early.
        let _ = poll(&mut [PollFd::from_borrowed_fd(call, PollFlags::IN)], None);
        self.forget_call();
    }

    /// Returns the descriptor that is readable after the server has called, or if another server is there.
    #[allow(unsafe_code)]
    pub(super) fn call(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self.call` is, which is as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.call.as_raw_fd()) }
    }

    /// Returns the descriptor that is readable after [`Link::ring`].
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Rings the bell, since a thread has taken a call that may be for the owners of requests.
    pub(super) fn ring(&self) {
        signal(&self.bell);
    }

    /// Makes the bell quiet again.
    pub(super) fn forget_bell(&self) {
        // The read fails if the bell was not rung.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// Forgets the calls so far.
    pub(super) fn forget_call(&self) {
        // The read fails if there was no call.
        let _ = self.call.read();
    }

    /// Ends the wait for a call, though the server has not called.
    pub(super) fn wake(&self) {
        let _ = self.call.write(1);
    }

    /// Returns whether there is a server now.
    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }
}

/// The connection, with the thread that keeps it.
pub(super) struct Connection {
    offer: Offer,
    ending: Arc<Ending>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Ending {
    /// Whether the thread must end, and the open socket.
    state: Mutex<(bool, Option<UnixStream>)>,
    changed: Condvar,
}

/// An open connection.
struct Line {
    stream: UnixStream,
    frontend: Frontend,
    /// The socket at which the server says that the configuration has changed, if it does.
    channel: Option<UnixStream>,
}

/// A configuration (struct virtio_blk_config).
struct Configuration([u8; config::END]);

impl Configuration {
    fn number(&self, at: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|index| self.0[at + index]))
    }

    /// Returns the size of the disk in sectors, if a disk can have it.
    fn sectors(&self) -> Option<u64> {
        let low = u64::from(self.number(config::CAPACITY));
        let sectors = low | u64::from(self.number(config::CAPACITY + 4)) << 32;
        (1..=u64::MAX / SECTOR).contains(&sectors).then_some(sectors)
    }
}

/// Makes a connection with a server.
pub(super) type Dial = Box<dyn Fn() -> io::Result<UnixStream> + Send>;

/// The settings that each server gets.
struct Terms {
    path: PathBuf,
    dial: Dial,
    file: File,
    memory: Arc<GuestRegionMmap>,
    inflight: Option<(VhostUserInflight, File)>,
}

impl Connection {
    /// Connects to the server at `path`, for the first time.
    pub(super) fn start(path: &Path, dial: Dial) -> Result<(Connection, Arc<Shared>), ClientError> {
        let file = sealed("ring3 disk", MEMORY)?;
        let mapping = MmapRegion::from_file(FileOffset::new(file.try_clone()?, 0), MEMORY as usize);
        let region = GuestRegionMmap::new(mapping.map_err(io::Error::other)?, GuestAddress(0));
        let memory =
            Arc::new(region.ok_or_else(|| io::Error::other("its memory cannot be mapped"))?);
        let mut terms = Terms { path: path.to_owned(), dial, file, memory, inflight: None };

        let (line, offer, sectors) = terms.connect(None)?;
        let link = Link {
            kick: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?,
            call: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(io::Error::from)?,
            is_there: AtomicBool::new(false),
        };
        let ring = Ring::new(Arc::clone(&terms.memory), offer.features & feature::EVENT_INDEX != 0);
        let polling = Polling::up_to(LOOKS_FOR);
        let complete = [None; crate::ring::SLOTS as usize];
        let state = State {
            ring,
            complete,
            asked: complete.map(|_| None),
            has_watcher: false,
            looked_after: 0,
            gave_up: false,
            polling,
            sleepers: 0,
        };
        let path = path.to_owned();
        let shared = Shared {
            path,
            state: Mutex::new(state),
            changed: Condvar::new(),
            link,
            sectors: AtomicU64::new(sectors),
            resized: Mutex::default(),
        };
        let shared = Arc::new(shared);
        terms.set_up(&line.frontend, &shared)?;

        let ending = Arc::<Ending>::default();
        let keeper =
            Keeper { terms, shared: Arc::clone(&shared), ending: Arc::clone(&ending), offer };
        let thread = thread::Builder::new().name("disk server".to_owned());
        let thread = thread.spawn(move || keeper.keep(line))?;
        let connection = Connection { offer, ending, thread: Some(thread) };
        Ok((connection, shared))
    }

    pub(super) fn offer(&self) -> Offer {
        self.offer
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.ending.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        if let Some(stream) = &state.1 {
            // This fails if the server has already gone.
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.ending.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Keeper {
    terms: Terms,
    shared: Arc<Shared>,
    ending: Arc<Ending>,
    offer: Offer,
}

impl Keeper {
    fn keep(mut self, line: Line) {
        let mut connected = Some(line);
        let mut was_told = false;
        loop {
            if let Some(line) = connected.take() {
                was_told = false;
                self.watch(line);
            }
            if self.pause(RETRY) {
                return;
            }
            match self.reconnect() {
                Ok(line) => {
                    info!("connected again to the server at {}", self.terms.path.display());
                    connected = Some(line);
                }
                Err(error @ ClientError::Unsuitable { .. }) if !was_told => {
                    warn!("{error}");
                    was_told = true;
                }
                // The server is not there yet.
                Err(_) => {}
            }
        }
    }

    /// Waits for the end of the server.
    fn watch(&mut self, line: Line) {
        let shared = &self.shared;
        {
            let mut ending = self.ending.state.lock().unwrap_or_else(PoisonError::into_inner);
            if ending.0 {
                return;
            }
            ending.1 = line.stream.try_clone().ok();
        }
        shared.link.is_there.store(true, Ordering::Relaxed);
        // This server has not seen earlier kicks.
        shared.link.kick();
        shared.link.wake();
        self.wait_until_closed(line);
        let shared = &self.shared;
        shared.link.is_there.store(false, Ordering::Relaxed);
        // If the machine has given up meanwhile, requests that wait will never be complete.
        shared.wake_everybody();
        let mut ending = self.ending.state.lock().unwrap_or_else(PoisonError::into_inner);
        ending.1 = None;
        if !ending.0 {
            warn!(
                "the connection to the server at {} is lost; waiting for a new one",
                self.terms.path.display()
            );
        }
    }

    /// Waits for the end of the connection. Meanwhile notes another size of the disk, and logs when the server
    /// stops answering requests, and when it answers again.
    fn wait_until_closed(&self, mut line: Line) {
        let path = self.terms.path.display();
        let patience = Timespec { tv_sec: SLOW.as_secs() as i64, tv_nsec: 0 };
        let mut is_slow = false;
        let mut looked = Instant::now();
        loop {
            let mut news = line.channel.as_ref().map(|channel| PollFd::new(channel, PollFlags::IN));
            let mut fds = vec![PollFd::new(&line.stream, PollFlags::IN)];
            fds.extend(news.take());
            let ready = match poll(&mut fds, Some(&patience)) {
                Ok(ready) => ready > 0,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
            };
            if !fds[0].revents().is_empty() {
                match line.stream.read(&mut [0]) {
                    Ok(1) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Ok(_) | Err(_) => return,
                }
            } else if ready {
                // A server that says this all the time must not keep the thread busy.
                if self.pause(BETWEEN_CHANGES.saturating_sub(looked.elapsed())) {
                    return;
                }
                looked = Instant::now();
                if let Err(error) = self.note_change(&mut line) {
                    warn!("{error}; the size of its disk stays as it is");
                    line.channel = None;
                }
            }
            let was_slow = std::mem::replace(&mut is_slow, self.shared.lock().waits_for(SLOW));
            match (was_slow, is_slow) {
                (false, true) => {
                    warn!(
                        "the server at {path} has not answered for {SLOW:?}; the guest is waiting"
                    );
                }
                (true, false) => info!("the server at {path} answers again"),
                _ => {}
            }
        }
    }

    /// Takes the server's messages, and then the new size of the disk.
    fn note_change(&self, line: &mut Line) -> Result<(), ClientError> {
        let Some(channel) = &mut line.channel else { return Ok(()) };
        let changed = CONFIGURATION_CHANGED.map(u32::to_le_bytes);
        let mut message = changed;
        match channel.read(message.as_flattened_mut()) {
            // Messages that follow find nothing new.
            Ok(_) if message == changed => {}
            Ok(_) => {
                return Err(self.terms.unsuitable(&"it sends messages that nobody has asked for"));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(self.terms.unsuitable(&error)),
        }
        let sectors = self.terms.configuration(&mut line.frontend)?.sectors();
        let sectors = sectors.ok_or_else(|| self.terms.unsuitable(&NO_SIZE))?;
        self.shared.note_size(sectors);
        Ok(())
    }

    /// Waits for `time`. Returns whether the thread must end.
    fn pause(&self, time: Duration) -> bool {
        let ending = self.ending.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ending.changed.wait_timeout_while(ending, time, |ending| !ending.0);
        waited.unwrap_or_else(PoisonError::into_inner).0.0
    }

    fn reconnect(&mut self) -> Result<Line, ClientError> {
        let (line, _, sectors) = self.terms.connect(Some(self.offer))?;
        self.terms.set_up(&line.frontend, &self.shared)?;
        self.shared.note_size(sectors);
        Ok(line)
    }
}

impl Terms {
    fn unsuitable(&self, why: &dyn Display) -> ClientError {
        ClientError::Unsuitable { path: self.path.clone(), why: why.to_string() }
    }

    /// Connects to the server, and finds out what it offers, see [`Terms::negotiate`].
    fn connect(&mut self, before: Option<Offer>) -> Result<(Line, Offer, u64), ClientError> {
        let stream = (self.dial)()
            .map_err(|source| ClientError::Connect { path: self.path.clone(), source })?;
        self.negotiate(stream, before)
    }

    /// Finds out what the server offers, and how many sectors its disk has. The offer must not differ from that
    /// of an earlier server.
    fn negotiate(
        &mut self,
        stream: UnixStream,
        before: Option<Offer>,
    ) -> Result<(Line, Offer, u64), ClientError> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut frontend = Frontend::from_stream(stream.try_clone()?, 1);
        let fails = |error: vhost::Error| self.unsuitable(&error);
        frontend.set_owner().map_err(fails)?;
        let offered = frontend.get_features().map_err(fails)?;
        if offered & feature::VERSION_1 == 0 || offered & feature::PROTOCOL == 0 {
            return Err(
                self.unsuitable(&"it does not support virtio version 1 with a configuration")
            );
        }
        let features = before.map_or(offered & USED, |before| before.features);
        if features & !offered != 0 || (features ^ offered) & feature::READ_ONLY != 0 {
            return Err(
                self.unsuitable(&"it lacks features of the previous server, or gives other rights")
            );
        }
        frontend.set_features(features).map_err(fails)?;
        let protocol = frontend.get_protocol_features().map_err(fails)?;
        let needed = VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        if !protocol.contains(needed) {
            return Err(
                self.unsuitable(&"it does not track requests in flight for the next server")
            );
        }
        let optional =
            VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::BACKEND_REQ;
        let wanted = protocol & (needed | optional);
        frontend.set_protocol_features(wanted).map_err(fails)?;
        if wanted.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        let channel = if wanted.contains(VhostUserProtocolFeatures::BACKEND_REQ) {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            frontend.set_backend_request_fd(&theirs).map_err(fails)?;
            Some(ours)
        } else {
            None
        };
        let told = self.configuration(&mut frontend)?;
        let only = |bit: u64, value: u32| if features & bit != 0 { value } else { 0 };
        let sectors = told.sectors().ok_or_else(|| self.unsuitable(&NO_SIZE))?;
        // A server whose limit is below a page could serve nobody, so the limit is taken as a page.
        let most = match only(feature::SIZE_MAX, told.number(config::SIZE_MAX)) {
            0 => DATA,
            most => (most as usize).clamp(4096, DATA),
        };
        let offer = Offer {
            features,
            read_only: features & feature::READ_ONLY != 0,
            flushes: features & feature::FLUSH != 0,
            part: most / SECTOR as usize * SECTOR as usize,
            discard: only(feature::DISCARD, told.number(config::DISCARD)),
            write_zeroes: only(feature::WRITE_ZEROES, told.number(config::WRITE_ZEROES)),
        };
        if self.inflight.is_none() {
            let wanted = VhostUserInflight::new(0, 0, 1, SIZE);
            let inflight = frontend.get_inflight_fd(&wanted).map_err(fails)?;
            self.inflight = Some(inflight);
        }
        Ok((Line { stream, frontend, channel }, offer, sectors))
    }

    /// Asks for the configuration of the server's disk.
    fn configuration(&self, frontend: &mut Frontend) -> Result<Configuration, ClientError> {
        let none = [0; config::END];
        let flags = VhostUserConfigFlags::empty();
        let told = frontend.get_config(0, config::END as u32, flags, &none);
        let told = told.map_err(|error| self.unsuitable(&error))?.1;
        let bytes = told.try_into();
        bytes
            .map(Configuration)
            .map_err(|_| self.unsuitable(&"its configuration has another length"))
    }

    /// Gives the server the shared memory and the queue.
    fn set_up(&self, frontend: &Frontend, shared: &Shared) -> Result<(), ClientError> {
        let fails = |error: vhost::Error| self.unsuitable(&error);
        let mut frontend = frontend.clone();
        if let Some((inflight, file)) = &self.inflight {
            frontend.set_inflight_fd(inflight, file.as_raw_fd()).map_err(fails)?;
        }
        let host = |at: u64| -> Result<u64, ClientError> {
            let address = self.memory.get_host_address(MemoryRegionAddress(at));
            address.map(|address| address as u64).map_err(|error| self.unsuitable(&error))
        };
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: host(0)?,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).map_err(fails)?;
        frontend.set_vring_num(0, SIZE).map_err(fails)?;
        let [descriptors, available, used] = PARTS;
        let setting = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: host(descriptors)?,
            used_ring_addr: host(used)?,
            avail_ring_addr: host(available)?,
            log_addr: None,
        };
        frontend.set_vring_base(0, shared.lock().ring.used_index()).map_err(fails)?;
        frontend.set_vring_addr(0, &setting).map_err(fails)?;
        frontend.set_vring_call(0, &shared.link.call).map_err(fails)?;
        frontend.set_vring_kick(0, &shared.link.kick).map_err(fails)?;
        frontend.set_vring_enable(0, true).map_err(fails)
    }
}
