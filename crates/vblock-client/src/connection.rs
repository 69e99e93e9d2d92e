//! The connection with the server, and with the next one after its end.
//!
//! A thread keeps the connection: it sends all messages, and then waits for the server's end. The server
//! sends nothing by itself.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ring3_host::polling::Polling;
use ring3_vhost::block::{LOOKS_FOR, SECTOR, config, feature};
use ring3_vhost::event::signal;
use ring3_vhost::memory::sealed;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
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

/// The disk that the server offers, and its features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offer {
    features: u64,
    pub(super) sectors: u64,
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

/// The settings that each server gets.
struct Terms {
    path: PathBuf,
    file: File,
    memory: Arc<GuestRegionMmap>,
    inflight: Option<(VhostUserInflight, File)>,
}

impl Connection {
    /// Connects to the server at `path`, for the first time.
    pub(super) fn start(path: &Path) -> Result<(Connection, Arc<Shared>), ClientError> {
        let file = sealed("ring3 disk", MEMORY)?;
        let mapping = MmapRegion::from_file(FileOffset::new(file.try_clone()?, 0), MEMORY as usize);
        let region = GuestRegionMmap::new(mapping.map_err(io::Error::other)?, GuestAddress(0));
        let memory =
            Arc::new(region.ok_or_else(|| io::Error::other("its memory cannot be mapped"))?);
        let mut terms = Terms { path: path.to_owned(), file, memory, inflight: None };

        let (stream, frontend, offer) = terms.connect(None)?;
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
        let shared = Shared { path, state: Mutex::new(state), changed: Condvar::new(), link };
        let shared = Arc::new(shared);
        terms.set_up(&frontend, &shared)?;

        let ending = Arc::<Ending>::default();
        let keeper =
            Keeper { terms, shared: Arc::clone(&shared), ending: Arc::clone(&ending), offer };
        let thread = thread::Builder::new().name("disk server".to_owned());
        let thread = thread.spawn(move || keeper.keep(stream, frontend))?;
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
    fn keep(mut self, stream: UnixStream, frontend: Frontend) {
        let mut connected = Some((stream, frontend));
        let mut was_told = false;
        loop {
            if let Some((stream, frontend)) = connected.take() {
                was_told = false;
                self.watch(stream);
                drop(frontend);
            }
            if self.pause() {
                return;
            }
            match self.reconnect() {
                Ok(both) => {
                    info!("connected again to the server at {}", self.terms.path.display());
                    connected = Some(both);
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
    fn watch(&mut self, mut stream: UnixStream) {
        let shared = &self.shared;
        {
            let mut ending = self.ending.state.lock().unwrap_or_else(PoisonError::into_inner);
            if ending.0 {
                return;
            }
            ending.1 = stream.try_clone().ok();
        }
        shared.link.is_there.store(true, Ordering::Relaxed);
        // This server has not seen earlier kicks.
        shared.link.kick();
        shared.link.wake();
        if stream.set_read_timeout(Some(SLOW)).is_ok() {
            self.wait_until_closed(&mut stream);
        }
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

    /// Waits for the end of the connection. Meanwhile logs when the server stops answering requests, and when
    /// it answers again.
    fn wait_until_closed(&self, stream: &mut UnixStream) {
        let path = self.terms.path.display();
        let mut is_slow = false;
        loop {
            match stream.read(&mut [0]) {
                Ok(1) => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(_) | Err(_) => return,
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

    /// Waits for [`RETRY`]. Returns whether the thread must end.
    fn pause(&self) -> bool {
        let ending = self.ending.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ending.changed.wait_timeout_while(ending, RETRY, |ending| !ending.0);
        waited.unwrap_or_else(PoisonError::into_inner).0.0
    }

    fn reconnect(&mut self) -> Result<(UnixStream, Frontend), ClientError> {
        let (stream, frontend, _) = self.terms.connect(Some(self.offer))?;
        self.terms.set_up(&frontend, &self.shared)?;
        Ok((stream, frontend))
    }
}

impl Terms {
    fn unsuitable(&self, why: &dyn Display) -> ClientError {
        ClientError::Unsuitable { path: self.path.clone(), why: why.to_string() }
    }

    /// Connects to the server, and finds out what it offers, see [`Terms::negotiate`].
    fn connect(
        &mut self,
        before: Option<Offer>,
    ) -> Result<(UnixStream, Frontend, Offer), ClientError> {
        let stream = UnixStream::connect(&self.path)
            .map_err(|source| ClientError::Connect { path: self.path.clone(), source })?;
        let (frontend, offer) = self.negotiate(&stream, before)?;
        Ok((stream, frontend, offer))
    }

    /// Finds out what the server offers. It must not differ from the offer of an earlier server.
    fn negotiate(
        &mut self,
        stream: &UnixStream,
        before: Option<Offer>,
    ) -> Result<(Frontend, Offer), ClientError> {
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
        let wanted = protocol & (needed | VhostUserProtocolFeatures::REPLY_ACK);
        frontend.set_protocol_features(wanted).map_err(fails)?;
        if wanted.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        let none = [0; config::END];
        let flags = VhostUserConfigFlags::empty();
        let told = frontend.get_config(0, config::END as u32, flags, &none).map_err(fails)?.1;
        if told.len() < none.len() {
            return Err(self.unsuitable(&"its configuration is too short"));
        }
        let number =
            |at: usize| u32::from_le_bytes(told[at..at + 4].try_into().expect("four bytes"));
        let only = |bit: u64, value: u32| if features & bit != 0 { value } else { 0 };
        let sectors =
            u64::from(number(config::CAPACITY)) | u64::from(number(config::CAPACITY + 4)) << 32;
        // A server whose limit is below a page could serve nobody, so the limit is taken as a page.
        let most = match only(feature::SIZE_MAX, number(config::SIZE_MAX)) {
            0 => DATA,
            most => (most as usize).clamp(4096, DATA),
        };
        let offer = Offer {
            features,
            sectors,
            read_only: features & feature::READ_ONLY != 0,
            flushes: features & feature::FLUSH != 0,
            part: most / SECTOR as usize * SECTOR as usize,
            discard: only(feature::DISCARD, number(config::DISCARD)),
            write_zeroes: only(feature::WRITE_ZEROES, number(config::WRITE_ZEROES)),
        };
        match before {
            Some(before) if before.sectors != sectors => {
                return Err(self.unsuitable(&"its disk has another size"));
            }
            _ if sectors == 0 || sectors > u64::MAX / SECTOR => {
                return Err(self.unsuitable(&"the size of its disk is not valid"));
            }
            _ => {}
        }
        if self.inflight.is_none() {
            let wanted = VhostUserInflight::new(0, 0, 1, SIZE);
            let inflight = frontend.get_inflight_fd(&wanted).map_err(fails)?;
            self.inflight = Some(inflight);
        }
        Ok((frontend, offer))
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
