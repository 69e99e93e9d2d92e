//! What one client says, from its connection to its end.
//!
//! A message that changes anything of a queue stops that queue, with all its requests complete, and starts it anew if it has all that
//! it needs: so nothing changes under a running one.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ring3_vhost::event::of_client;
use ring3_vhost::memory::{Memory, Piece, SLOTS};
use tracing::warn;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use super::Grant;
use super::config::{LEN, configuration, features};
use super::ring::{Ring, Setting};
use crate::inflight::Inflight;
use crate::request::Mode;
use crate::virtio_blk::{config, feature};

/// The most descriptors of a queue: what QEMU permits.
const SIZE_MAX: u16 = 1024;

/// What this server does beyond the first version of the protocol.
const PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    .union(VhostUserProtocolFeatures::RESET_DEVICE)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);

/// See the module.
pub(super) struct Session {
    grant: Grant,
    mode: Arc<Mode>,
    features: u64,
    write_cache: bool,
    memory: Memory,
    inflight: Option<Inflight>,
    queues: Vec<Queue>,
}

/// What was said of a queue.
#[derive(Default)]
struct Queue {
    size: u16,
    /// Addresses in the client: descriptors, available ring, used ring.
    addresses: Option<[u64; 3]>,
    next: u16,
    enabled: bool,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    error: Option<Arc<OwnedFd>>,
    ring: Option<Ring>,
}

impl Queue {
    fn stop(&mut self) {
        if let Some(ring) = self.ring.take() {
            self.next = ring.stop();
        }
    }
}

impl Session {
    pub(super) fn new(grant: &Grant) -> Session {
        let mode = Mode { writes: grant.writes, ..Mode::default() };
        Session {
            grant: grant.clone(),
            mode: Arc::new(mode),
            features: 0,
            write_cache: true,
            memory: Memory::default(),
            inflight: None,
            queues: (0..grant.queues).map(|_| Queue::default()).collect(),
        }
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue> {
        self.queues.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    /// Stops a queue, changes it, and starts it if it is complete.
    fn change(&mut self, index: u32, act: impl FnOnce(&mut Queue)) -> Result<()> {
        let queue = self.queue(index)?;
        queue.stop();
        act(queue);
        self.start(index as usize)
    }

    /// The same with what all queues have in common.
    fn change_all<T>(&mut self, act: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        self.queues.iter_mut().for_each(Queue::stop);
        let result = act(self)?;
        for index in 0..self.queues.len() {
            self.start(index)?;
        }
        Ok(result)
    }

    /// Starts a queue that is stopped, if it has all that it needs.
    fn start(&mut self, index: usize) -> Result<()> {
        let queue = &self.queues[index];
        // Without protocol features there is no message that enables a queue.
        let enabled = queue.enabled || self.features & feature::PROTOCOL == 0;
        let (true, Some(addresses), Some(kick)) = (enabled, queue.addresses, &queue.kick) else {
            return Ok(());
        };
        if self.memory.is_empty() || queue.size == 0 {
            return Ok(());
        }
        let refused = |why: &str| {
            let error = format!("queue {index} cannot run: {why}");
            Error::ReqHandlerError(io::Error::other(error))
        };
        let [Some(descriptors), Some(available), Some(used)] =
            addresses.map(|address| self.memory.guest_address(address))
        else {
            return Err(refused("its rings are not in memory"));
        };
        let tracker = match &self.inflight {
            None => None,
            Some(inflight) => {
                let tracker = inflight.queue(index as u16, queue.size);
                Some(tracker.ok_or_else(|| refused("no room for its requests in flight"))?)
            }
        };
        let setting = Setting {
            size: queue.size,
            descriptors,
            available,
            used,
            next: queue.next,
            has_event_index: self.features & feature::EVENT_INDEX != 0,
            kick: Arc::clone(kick),
            call: queue.call.clone(),
            error: queue.error.clone(),
            tracker,
            memory: Arc::clone(self.memory.guest()),
        };
        let ring = Ring::start(&self.grant.device, &self.mode, setting);
        self.queues[index].ring = Some(ring.map_err(|error| refused(&error.to_string()))?);
        Ok(())
    }

    fn reset(&mut self) {
        for queue in &mut self.queues {
            queue.stop();
            *queue = Queue::default();
        }
        self.features = 0;
        self.inflight = None;
        self.set_write_cache(true);
    }

    /// A guest that knows no flushes, or wants no cache, is not told of a write before it is kept (virtio 1.2, 5.2.5.2).
    fn set_write_cache(&mut self, write_cache: bool) {
        self.write_cache = write_cache;
        let flushes = self.features & feature::FLUSH != 0;
        self.mode.write_through.store(!flushes || !write_cache, Ordering::Relaxed);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.queues.iter_mut().for_each(Queue::stop);
    }
}

/// A client's descriptor.
fn event(file: Option<File>) -> Result<Option<Arc<OwnedFd>>> {
    of_client(file).map_err(Error::ReqHandlerError)
}

fn refused(error: &dyn std::fmt::Display) -> Error {
    Error::ReqHandlerError(io::Error::other(error.to_string()))
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(features(self.grant.writes))
    }

    fn set_features(&mut self, wanted: u64) -> Result<()> {
        if wanted & !features(self.grant.writes) != 0 {
            return Err(Error::InvalidParam);
        }
        if wanted == self.features {
            return Ok(());
        }
        self.change_all(|session| {
            session.features = wanted;
            session.set_write_cache(session.write_cache);
            Ok(())
        })
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        self.change_all(|session| {
            let mut memory = Memory::default();
            for (region, file) in regions.iter().zip(files) {
                memory.add(Piece::of(region), file).map_err(|error| refused(&error))?;
            }
            session.memory = memory;
            Ok(None)
        })
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).ok().filter(|size| *size <= SIZE_MAX);
        let size = size.filter(|size| size.is_power_of_two()).ok_or(Error::InvalidParam)?;
        self.change(index, |queue| queue.size = size)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.change(index, |queue| queue.addresses = Some([descriptor, available, used]))
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let next = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.change(index, |queue| queue.next = next)
    }

    /// The specification has the queue stop until it has a kick again.
    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let queue = self.queue(index)?;
        queue.stop();
        queue.kick = None;
        Ok(VhostUserVringState::new(index, u32::from(queue.next)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = event(fd)?;
        if kick.is_none() {
            warn!("{} has no kick for a queue, which does not run", self.grant.client);
        }
        self.change(u32::from(index), |queue| queue.kick = kick)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = event(fd)?;
        self.change(u32::from(index), |queue| queue.call = call)
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let error = event(fd)?;
        self.change(u32::from(index), |queue| queue.error = error)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(PROTOCOL)
    }

    fn set_protocol_features(&mut self, wanted: u64) -> Result<()> {
        if wanted & !PROTOCOL.bits() == 0 { Ok(()) } else { Err(Error::InvalidParam) }
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.change(index, |queue| queue.enabled = enable)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let queues = self.queues.len() as u16;
        let all = configuration(self.grant.device.size(), queues, self.write_cache);
        let end = (offset as usize).saturating_add(size as usize);
        if end > LEN {
            return Err(Error::InvalidParam);
        }
        Ok(all[offset as usize..end].to_vec())
    }

    fn set_config(
        &mut self,
        offset: u32,
        bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        match (offset as usize, bytes) {
            (config::WRITE_CACHE, [wanted]) => {
                self.set_write_cache(*wanted != 0);
                Ok(())
            }
            _ => Err(Error::InvalidParam),
        }
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("this is a disk"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("no objects are shared"))
    }

    fn get_inflight_fd(
        &mut self,
        inflight: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (inflight.num_queues, inflight.queue_size);
        if usize::from(queues) > self.queues.len() || size > SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        let file = Inflight::create(queues, size).map_err(|error| refused(&error))?;
        let len = Inflight::len(queues, size);
        Ok((VhostUserInflight::new(len, 0, queues, size), file))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let (queues, size) = (inflight.num_queues, inflight.queue_size);
        let is_long = inflight.mmap_size >= Inflight::len(queues, size);
        if usize::from(queues) > self.queues.len() || size > SIZE_MAX || !is_long {
            return Err(Error::InvalidParam);
        }
        let mapped = Inflight::map(file, inflight.mmap_offset, queues, size);
        let mapped = mapped.map_err(|error| refused(&error))?;
        self.change_all(|session| {
            session.inflight = Some(mapped);
            Ok(())
        })
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(SLOTS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let piece = Piece::of(region);
        self.change_all(|session| {
            session.memory.add(piece, file).map_err(|error| refused(&error))?;
            Ok(None)
        })
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let piece = Piece::of(region);
        self.change_all(|session| session.memory.remove(piece).map_err(|error| refused(&error)))
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("there is no state to be moved"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("there is no state to be moved"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("the device has no memory of its own"))
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("writes are not logged"))
    }
}
