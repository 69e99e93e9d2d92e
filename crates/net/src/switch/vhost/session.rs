//! What one machine says, from its connection to its end.
//!
//! A message that changes anything of a queue stops that queue, and starts it anew if it has all that it needs: so nothing changes
//! under a running one.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring3_vhost::event::of_client;
use ring3_vhost::memory::{Memory, Piece, SLOTS};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use super::features::Features;
use super::receiver::Receiver;
use super::ring::{Ring, SIZE_MAX, Setting};
use super::transmitter::Transmitter;
use super::worker::Worker;
use crate::card::Taker;
use crate::switch::port::Port;

/// The queues of a card: that for what it receives, and the other one (virtio 1.2, 5.1.2).
const QUEUES: usize = 2;
const TRANSMIT: usize = 1;

/// What a port does beyond the first version of the protocol.
const PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::REPLY_ACK
    .union(VhostUserProtocolFeatures::RESET_DEVICE)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);

/// See the module.
pub(super) struct Session {
    port: Arc<Port>,
    receiver: Arc<Receiver>,
    features: Features,
    memory: Memory,
    queues: [Queue; QUEUES],
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
    running: Option<Running>,
}

/// A queue that runs.
enum Running {
    Receive(Arc<Receiver>, Worker),
    Transmit(Arc<Transmitter>, Worker),
}

impl Queue {
    fn stop(&mut self) {
        match self.running.take() {
            None => {}
            Some(Running::Receive(receiver, worker)) => {
                // A broken one is nowhere.
                self.next = receiver.stop().unwrap_or(self.next);
                drop(worker);
            }
            Some(Running::Transmit(transmitter, worker)) => {
                transmitter.end();
                drop(worker);
                self.next = transmitter.position();
            }
        }
    }
}

impl Session {
    pub(super) fn new(port: Arc<Port>, receiver: Arc<Receiver>) -> Session {
        let (features, memory) = (Features::default(), Memory::default());
        Session { port, receiver, features, memory, queues: Default::default() }
    }

    /// What the machine has taken; nothing before it has.
    pub(super) fn features(&self) -> Features {
        self.features
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

    /// The same with what both queues have in common.
    fn change_all<T>(&mut self, act: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        self.queues.iter_mut().for_each(Queue::stop);
        let result = act(self)?;
        for index in 0..QUEUES {
            self.start(index)?;
        }
        Ok(result)
    }

    /// Starts a queue that is stopped, if it has all that it needs.
    fn start(&mut self, index: usize) -> Result<()> {
        let queue = &self.queues[index];
        // Without protocol features there is no message that enables a queue.
        let enabled = queue.enabled || !self.features.has_protocol();
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
            has_event_index: self.features.has_event_index(),
            call: queue.call.clone(),
            error: queue.error.clone(),
            memory: Arc::clone(self.memory.guest()),
        };
        let ring = Ring::new(setting).map_err(|error| cannot(&error))?;
        let features = self.features;
        let running = if index == TRANSMIT {
            let transmitter = Arc::new(Transmitter::new(ring, features, Arc::clone(&self.port)));
            let inside = Arc::clone(&transmitter);
            let worker = Worker::start("transmit queue", kick, move || inside.work());
            Running::Transmit(transmitter, worker.map_err(|error| cannot(&error))?)
        } else {
            self.receiver.start(ring, features);
            let (inside, port) = (Arc::clone(&self.receiver), Arc::clone(&self.port));
            let worker = Worker::start("receive queue", kick, move || {
                if inside.resume() {
                    port.relieve();
                }
            });
            Running::Receive(
                Arc::clone(&self.receiver),
                worker.map_err(|error| {
                    self.receiver.stop();
                    cannot(&error)
                })?,
            )
        };
        self.queues[index].running = Some(running);
        Ok(())
    }

    fn reset(&mut self) {
        for queue in &mut self.queues {
            queue.stop();
            *queue = Queue::default();
        }
        self.features = Features::default();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.queues.iter_mut().for_each(Queue::stop);
    }
}

/// A machine's descriptor.
fn event(file: Option<File>) -> Result<Option<Arc<OwnedFd>>> {
    of_client(file).map_err(Error::ReqHandlerError)
}

fn refused(error: &dyn Display) -> Error {
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
        Ok(Features::OFFERED.0)
    }

    fn set_features(&mut self, wanted: u64) -> Result<()> {
        if wanted & !Features::OFFERED.0 != 0 {
            return Err(Error::InvalidParam);
        }
        if wanted == self.features.0 {
            return Ok(());
        }
        self.change_all(|session| {
            session.features = Features(wanted);
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
        Ok(QUEUES as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.change(index, |queue| queue.enabled = enable)
    }

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(Error::InvalidOperation("the machine has the card's configuration"))
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(Error::InvalidOperation("the machine has the card's configuration"))
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("this is a network"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("no objects are shared"))
    }

    /// A network may lose packets: those in flight are not tracked.
    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(Error::InvalidOperation("packets in flight are not tracked"))
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("packets in flight are not tracked"))
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
