//! A driver of virtio-blk over vhost-user, like that of a machine, and a server in a process of its own.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestRegionMmap,
    MmapRegion,
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub(crate) const READ: u32 = 0;
pub(crate) const WRITE: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

pub(crate) const FEATURE_READ_ONLY: u64 = 1 << 5;
const FEATURE_INDIRECT: u64 = 1 << 28;
const FEATURE_EVENT_INDEX: u64 = 1 << 29;

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of descriptors in a queue.
pub(crate) const SIZE: u16 = 64;
/// Number of bytes of guest memory.
pub(crate) const MEMORY: u64 = 4 << 20;
/// The guest-physical address of guest memory, which differs from its offset in the file.
pub(crate) const BASE: u64 = 0x10_0000;
/// Number of bytes for the rings of a queue. The rings of one queue follow those of another.
const RINGS: u64 = 0x4000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Offset of the requests. Each has its data, a header and a status.
const REQUESTS: u64 = 0x4_0000;
/// Number of bytes for the data of a request.
pub(crate) const DATA: u64 = 0x4000;
const SLOT: u64 = DATA + 0x100;

/// A machine with its memory, which outlives servers.
pub(crate) struct Machine {
    pub(crate) memory: GuestMemoryMmap,
    file: File,
    features: u64,
    inflight: Option<(VhostUserInflight, File)>,
    pub(crate) queues: Vec<Queue>,
}

pub(crate) struct Queue {
    index: u16,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    available: u16,
    used: u16,
    /// The heads that are free. Each stands for up to four descriptors.
    free: Vec<u16>,
}

pub(crate) fn memory_file(len: u64, seals: bool) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("guest", flags).unwrap());
    file.set_len(len).unwrap();
    if seals {
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    }
    file
}

impl Machine {
    pub(crate) fn new(queues: u16) -> Machine {
        let file = memory_file(MEMORY, true);
        let mapping =
            MmapRegion::from_file(FileOffset::new(file.try_clone().unwrap(), 0), MEMORY as usize);
        let region = GuestRegionMmap::new(mapping.unwrap(), GuestAddress(BASE)).unwrap();
        let queue = |index| Queue {
            index,
            kick: EventFd::new(EFD_NONBLOCK).unwrap(),
            call: EventFd::new(EFD_NONBLOCK).unwrap(),
            available: 0,
            used: 0,
            free: (0..SIZE / 4).map(|slot| slot * 4).collect(),
        };
        Machine {
            memory: GuestMemoryMmap::from_regions(vec![region]).unwrap(),
            file,
            features: 0,
            inflight: None,
            queues: (0..queues).map(queue).collect(),
        }
    }

    pub(crate) fn region(&self, file: &File) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: BASE,
            memory_size: MEMORY,
            userspace_addr: self.user(BASE),
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        }
    }

    fn user(&self, guest: u64) -> u64 {
        self.memory.get_host_address(GuestAddress(guest)).unwrap() as u64
    }

    /// Connects like a machine that starts, or that has lost its server.
    pub(crate) fn connect(&mut self, socket: &Path) -> vhost::Result<Frontend> {
        let queues = self.queues.len() as u64;
        let started = Instant::now();
        let mut frontend = loop {
            match Frontend::connect(socket, queues) {
                Ok(frontend) => break frontend,
                Err(error) => assert!(started.elapsed() < PATIENCE, "{error}"),
            }
            sleep(Duration::from_millis(5));
        };
        frontend.set_owner()?;
        self.features = frontend.get_features()?;
        frontend.set_features(self.features)?;
        let protocol = frontend.get_protocol_features()?;
        frontend.set_protocol_features(protocol)?;
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        if protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD) {
            if self.inflight.is_none() {
                let wanted = VhostUserInflight::new(0, 0, queues as u16, SIZE);
                self.inflight = Some(frontend.get_inflight_fd(&wanted)?);
            }
            let (inflight, file) = self.inflight.as_ref().unwrap();
            frontend.set_inflight_fd(inflight, file.as_raw_fd())?;
        }
        frontend.set_mem_table(&[self.region(&self.file)])?;
        for queue in &self.queues {
            let index = usize::from(queue.index);
            let rings = queue.rings();
            frontend.set_vring_num(index, SIZE)?;
            let setting = VringConfigData {
                queue_max_size: SIZE,
                queue_size: SIZE,
                flags: 0,
                desc_table_addr: self.user(rings),
                avail_ring_addr: self.user(rings + AVAILABLE),
                used_ring_addr: self.user(rings + USED),
                log_addr: None,
            };
            // QEMU, too, continues at the used index after a server has gone.
            frontend.set_vring_base(index, queue.used_index(&self.memory))?;
            frontend.set_vring_addr(index, &setting)?;
            frontend.set_vring_call(index, &queue.call)?;
            frontend.set_vring_kick(index, &queue.kick)?;
            frontend.set_vring_enable(index, true)?;
            // The server must look at requests that were made available while there was none.
            queue.kick.write(1).unwrap();
        }
        Ok(frontend)
    }

    pub(crate) fn features(&self) -> u64 {
        self.features
    }

    /// Makes a request: `data` are given to the device, or the device may write `len` bytes. Returns the
    /// head.
    pub(crate) fn submit(
        &mut self,
        queue: usize,
        kind: u32,
        sector: u64,
        data: &[u8],
        len: u32,
    ) -> u16 {
        let has_table = self.features & FEATURE_INDIRECT != 0;
        let queue = &mut self.queues[queue];
        let head = queue.free.pop().expect("a free slot");
        let slot = queue.slot(head);
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        let memory = &self.memory;
        memory.write_slice(&header, GuestAddress(slot + DATA)).unwrap();
        memory.write_obj(0xff_u8, GuestAddress(slot + DATA + 0x20)).unwrap();
        memory.write_slice(data, GuestAddress(slot)).unwrap();
        let (next, write) = (1, 2);
        let mut chain = vec![(slot + DATA, 16, 0)];
        match (data.len() as u32, len) {
            (0, 0) => {}
            (0, len) => chain.push((slot, len, write)),
            // The data are in two buffers.
            (given, _) => chain.extend([
                (slot, given / 2, 0),
                (slot + u64::from(given / 2), given - given / 2, 0),
            ]),
        }
        chain.push((slot + DATA + 0x20, 1, write));
        // Every other request has an indirect table.
        let uses_table = has_table && head.is_multiple_of(8);
        let (table, first) =
            if uses_table { (slot + DATA + 0x40, 0) } else { (queue.rings(), head) };
        for (index, (at, len, flags)) in (0..).zip(&chain) {
            let is_last = usize::from(index) == chain.len() - 1;
            let flags = flags | if is_last { 0 } else { next };
            let descriptor = Descriptor::new(*at, *len, flags, first + index + 1);
            let place = GuestAddress(table + u64::from(first + index) * 16);
            memory.write_obj(descriptor, place).unwrap();
        }
        if uses_table {
            let descriptor = Descriptor::new(table, chain.len() as u32 * 16, 4, 0);
            let place = GuestAddress(queue.rings() + u64::from(head) * 16);
            memory.write_obj(descriptor, place).unwrap();
        }
        queue.offer(memory, head);
        head
    }

    /// Tells the server of all requests so far.
    pub(crate) fn kick(&self, queue: usize) {
        self.queues[queue].kick.write(1).unwrap();
    }

    /// Returns the next completed request: its head, its status, and the number of bytes that the device has
    /// written. Returns None if there is none now.
    pub(crate) fn completed(&mut self, queue: usize) -> Option<(u16, u8, u32)> {
        let queue = &mut self.queues[queue];
        if queue.used_index(&self.memory) == queue.used {
            return None;
        }
        let at = queue.rings() + USED + 4 + u64::from(queue.used % SIZE) * 8;
        let [head, len]: [u32; 2] = self.memory.read_obj(GuestAddress(at)).unwrap();
        queue.used = queue.used.wrapping_add(1);
        if self.features & FEATURE_EVENT_INDEX != 0 {
            let event = queue.rings() + AVAILABLE + 4 + u64::from(SIZE) * 2;
            self.memory.store(queue.used, GuestAddress(event), Ordering::SeqCst).unwrap();
        }
        let head = head as u16;
        assert!(head.is_multiple_of(4) && head < SIZE && !queue.free.contains(&head), "{head}");
        queue.free.push(head);
        let status = self.memory.read_obj(GuestAddress(queue.slot(head) + DATA + 0x20)).unwrap();
        Some((head, status, len))
    }

    /// Waits for the next completed request.
    pub(crate) fn wait(&mut self, queue: usize) -> (u16, u8, u32) {
        let started = Instant::now();
        loop {
            if let Some(completed) = self.completed(queue) {
                return completed;
            }
            // Only a call tells of further requests.
            while self.queues[queue].call.read().is_err() {
                assert!(started.elapsed() < PATIENCE, "the server answers");
                sleep(Duration::from_micros(50));
            }
        }
    }

    /// Makes one request and waits for it. Returns its status, and the first `len` bytes of its data.
    pub(crate) fn act(&mut self, kind: u32, sector: u64, data: &[u8], len: u32) -> (u8, Vec<u8>) {
        let head = self.submit(0, kind, sector, data, len);
        self.kick(0);
        let (completed, status, _) = self.wait(0);
        assert_eq!(completed, head);
        (status, self.data(0, head, len as usize))
    }

    pub(crate) fn data(&self, queue: usize, head: u16, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let at = GuestAddress(self.queues[queue].slot(head));
        self.memory.read_slice(&mut bytes, at).unwrap();
        bytes
    }

    pub(crate) fn has_room(&self, queue: usize) -> bool {
        !self.queues[queue].free.is_empty()
    }
}

impl Queue {
    pub(crate) fn rings(&self) -> u64 {
        BASE + u64::from(self.index) * RINGS
    }

    fn slot(&self, head: u16) -> u64 {
        let slot = u64::from(self.index) * u64::from(SIZE / 4) + u64::from(head / 4);
        BASE + REQUESTS + slot * SLOT
    }

    fn used_index(&self, memory: &GuestMemoryMmap) -> u16 {
        memory.load(GuestAddress(self.rings() + USED + 2), Ordering::Acquire).unwrap()
    }

    fn offer(&mut self, memory: &GuestMemoryMmap, head: u16) {
        let ring = self.rings() + AVAILABLE;
        let at = GuestAddress(ring + 4 + u64::from(self.available % SIZE) * 2);
        memory.write_obj(head, at).unwrap();
        self.available = self.available.wrapping_add(1);
        memory.store(self.available, GuestAddress(ring + 2), Ordering::SeqCst).unwrap();
    }
}

/// Opens an image, again if it is in use: a process that another test is about to start holds all locks of
/// this one for a moment.
pub(crate) fn patiently<T, E: std::fmt::Display>(mut open: impl FnMut() -> Result<T, E>) -> T {
    let started = Instant::now();
    loop {
        match open() {
            Ok(opened) => return opened,
            Err(error) => {
                let may_pass = error.to_string().contains("is in use");
                assert!(may_pass && started.elapsed() < PATIENCE, "{error}");
            }
        }
        sleep(Duration::from_millis(5));
    }
}

/// Returns the configuration of the disk.
pub(crate) fn configuration(frontend: &mut Frontend) -> Vec<u8> {
    let (_, bytes) = frontend.get_config(0, 60, VhostUserConfigFlags::WRITABLE, &[0; 60]).unwrap();
    bytes
}

/// A server in a process of its own: the test program once more, which its environment tells what to do.
pub(crate) struct Process(Child);

impl Process {
    /// Serves `image` at `socket`.
    pub(crate) fn start(image: &Path, socket: &Path) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "support::server_process", "--ignored", "--nocapture"]);
        command.env("VBLOCK_IMAGE", image).env("VBLOCK_SOCKET", socket);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Process(command.spawn().unwrap())
    }

    /// Kills the process, and waits for its end.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This is no test, but the server that [`Process::start`] starts.
#[test]
#[ignore = "the server that other tests start"]
fn server_process() {
    let path = |name: &str| PathBuf::from(std::env::var_os(name).expect("started by a test"));
    let server = ring3_vblock::Server::default();
    let (file, socket) = (path("VBLOCK_IMAGE"), path("VBLOCK_SOCKET"));
    let options = ring3_vblock::DeviceOptions {
        file,
        format: None,
        read_only: false,
        no_external_files: false,
    };
    patiently(|| server.add_device("disk", &options));
    let vhost_user = ring3_vblock::VhostUserOptions { socket, queues: 2 };
    server.grant("vm", "disk", ring3_vblock::Access::ReadWrite, Some(&vhost_user)).unwrap();
    loop {
        std::thread::park();
    }
}

/// Returns a descriptor of another kind than the server expects.
pub(crate) fn other_descriptor() -> OwnedFd {
    File::open("/proc/self/exe").unwrap().into()
}
