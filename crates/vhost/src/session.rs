//! The session with a client: the effects of its messages, from its connection to its end.
//!
//! A message that changes a queue stops this queue first, with all its requests complete. Then the queue
//! starts again if its description is complete. So nothing changes under a running queue.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tracing::warn;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use crate::event::of_client;
use crate::memory::{Memory, Piece, SLOTS};
use crate::queue::{SIZE_MAX, Setting, feature};

/// The device behind a client's queues.
pub trait Device {
    /// A running queue.
    type Running: Running;

    /// The features of the protocol that the device supports beyond those of all devices.
    const MORE_PROTOCOL: VhostUserProtocolFeatures;

    /// Returns the number of queues.
    fn queues(&self) -> usize;

    /// Returns the features that the device offers.
    fn features(&self) -> u64;

    /// Accepts the features that the client has chosen. No queue runs.
    fn set_features(&mut self, features: u64);

    /// Starts queue `index`. The device looks at the queue whenever `kick` is readable.
    fn start(
        &mut self,
        index: usize,
        kick: &OwnedFd,
        setting: Setting,
    ) -> io::Result<Self::Running>;

    /// Returns to the initial state. No queue runs.
    fn reset(&mut self);

    /// Returns a part of the configuration.
    fn configuration(&self, _offset: u32, _size: u32) -> Result<Vec<u8>> {
        Err(Error::InvalidOperation("the client has the configuration"))
    }

    /// Writes to a part of the configuration.
    fn configure(&mut self, _offset: u32, _bytes: &[u8]) -> Result<()> {
        Err(Error::InvalidOperation("the client has the configuration"))
    }

    /// Accepts a socket, by which the client [is told](crate::event::tell_configuration) of changes of the
    /// configuration.
    fn set_channel(&mut self, _channel: OwnedFd) -> Result<()> {
        Err(Error::InvalidOperation("the device says nothing by itself"))
    }

    /// Returns a memory file in which another server will find the requests in flight.
    fn new_inflight(&self, _wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(Error::InvalidOperation("what is in flight is not tracked"))
    }

    /// Accepts the memory in which an earlier server has noted its requests in flight. No queue runs.
    fn set_inflight(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("what is in flight is not tracked"))
    }
}

/// A running queue.
pub trait Running {
    /// Completes all requests and stops the queue. Returns the next index of its available ring, or `next`,
    /// with which it began, if that index can no longer be read.
    fn stop(self, next: u16) -> u16;
}

/// A session with a client.
#[derive(Debug)]
pub struct Session<D: Device> {
    name: String,
    device: D,
    features: u64,
    memory: Memory,
    queues: Vec<Queue<D::Running>>,
}

/// The client's description of a queue.
#[derive(Debug)]
struct Queue<R> {
    size: u16,
    /// Addresses in the client's process: descriptors, available ring, used ring.
    addresses: Option<[u64; 3]>,
    next: u16,
    enabled: bool,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    error: Option<Arc<OwnedFd>>,
    running: Option<R>,
}

impl<R> Default for Queue<R> {
    fn default() -> Queue<R> {
        Queue {
            size: 0,
            addresses: None,
            next: 0,
            enabled: false,
            kick: None,
            call: None,
            error: None,
            running: None,
        }
    }
}

impl<R: Running> Queue<R> {
    fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            self.next = running.stop(self.next);
        }
    }
}

impl<D: Device> Session<D> {
    /// The features of the protocol that this server supports: those of all devices, and those of this
    /// device.
    const PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::REPLY_ACK
        .union(VhostUserProtocolFeatures::RESET_DEVICE)
        .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
        .union(D::MORE_PROTOCOL);

    /// Returns a session with a client that log messages call `name`.
    pub fn new(name: &str, device: D) -> Session<D> {
        let queues = (0..device.queues()).map(|_| Queue::default()).collect();
        Session { name: name.to_owned(), device, features: 0, memory: Memory::default(), queues }
    }

    /// Returns whether the client has accepted protocol features. Then a queue runs only after a message has
    /// enabled it.
    pub(crate) fn has_protocol(&self) -> bool {
        self.features & feature::PROTOCOL != 0
    }

    pub(crate) fn set_channel(&mut self, channel: OwnedFd) -> Result<()> {
        self.device.set_channel(channel)
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue<D::Running>> {
        self.queues.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    /// Stops a queue, changes it, and starts it again if its description is complete.
    fn change(&mut self, index: u32, act: impl FnOnce(&mut Queue<D::Running>)) -> Result<()> {
        let queue = self.queue(index)?;
        queue.stop();
        act(queue);
        self.start(index as usize)
    }

    /// Stops all queues, changes something that they share, and starts them again as far as their
    /// descriptions are complete.
    fn change_all<T>(&mut self, act: impl FnOnce(&mut Session<D>) -> Result<T>) -> Result<T> {
        self.queues.iter_mut().for_each(Queue::stop);
        let result = act(self)?;
        for index in 0..self.queues.len() {
            self.start(index)?;
        }
        Ok(result)
    }

    /// Starts a queue that is stopped, if its description is complete and it is enabled.
    fn start(&mut self, index: usize) -> Result<()> {
        let queue = &self.queues[index];
        let enabled = queue.enabled || !self.has_protocol();
        let (true, Some(addresses), Some(kick)) = (enabled, queue.addresses, &queue.kick) else {
            return Ok(());
        };
        if self.memory.is_empty() || queue.size == 0 {
            return Ok(());
        }
        let cannot = |why: &dyn Display| refused(&format!("queue {index} cannot run: {why}"));
        let [Some(descriptors), Some(available), Some(used)] =
            addresses.map(|address| self.memory.guest_address(address))
        else {
            return Err(cannot(&"its rings are not in memory"));
        };
        let setting = Setting {
            size: queue.size,
            descriptors,
            available,
            used,
            next: queue.next,
            has_event_index: self.features & feature::EVENT_INDEX != 0,
            call: queue.call.clone(),
            error: queue.error.clone(),
            memory: Arc::clone(self.memory.guest()),
        };
        let running = self.device.start(index, kick, setting).map_err(|error| cannot(&error))?;
        self.queues[index].running = Some(running);
        Ok(())
    }

    fn reset(&mut self) {
        for queue in &mut self.queues {
            queue.stop();
            *queue = Queue::default();
        }
        self.features = 0;
        self.device.reset();
    }
}

impl<D: Device> Drop for Session<D> {
    fn drop(&mut self) {
        self.queues.iter_mut().for_each(Queue::stop);
    }
}

/// Returns a client's event descriptor.
fn event(file: Option<File>) -> Result<Option<Arc<OwnedFd>>> {
    of_client(file).map_err(Error::ReqHandlerError)
}

/// Returns an error that ends the connection for the given reason.
pub fn refused(error: &dyn Display) -> Error {
    Error::ReqHandlerError(io::Error::other(error.to_string()))
}

impl<D: Device> VhostUserBackendReqHandlerMut for Session<D> {
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
        Ok(self.device.features())
    }

    fn set_features(&mut self, wanted: u64) -> Result<()> {
        if wanted & !self.device.features() != 0 {
            return Err(Error::InvalidParam);
        }
        if wanted == self.features {
            return Ok(());
        }
        self.change_all(|session| {
            session.features = wanted;
            session.device.set_features(wanted);
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

    /// The specification wants the queue to stop until the client sets its kick again.
    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let queue = self.queue(index)?;
        queue.stop();
        queue.kick = None;
        Ok(VhostUserVringState::new(index, u32::from(queue.next)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = event(fd)?;
        if kick.is_none() {
            warn!("{} has no kick for a queue, which does not run", self.name);
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
        Ok(Session::<D>::PROTOCOL)
    }

    fn set_protocol_features(&mut self, wanted: u64) -> Result<()> {
        if wanted & !Session::<D>::PROTOCOL.bits() == 0 { Ok(()) } else { Err(Error::InvalidParam) }
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
        self.device.configuration(offset, size)
    }

    fn set_config(
        &mut self,
        offset: u32,
        bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        self.device.configure(offset, bytes)
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("this is no display"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("no objects are shared"))
    }

    fn get_inflight_fd(
        &mut self,
        inflight: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        self.device.new_inflight(inflight)
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        self.change_all(|session| session.device.set_inflight(inflight, file))
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
