//! A client's disk in a session.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ring3_vhost::block::{config, feature};
use ring3_vhost::queue::{SIZE_MAX, Setting};
use ring3_vhost::session::{Device, Running, refused};
use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Error, Result};

use super::Grant;
use super::config::{LEN, configuration, features};
use super::ring::Ring;
use crate::inflight::Inflight;
use crate::request::Mode;

/// The device of a session: a disk to which the client has a right.
pub(super) struct Disk {
    grant: Grant,
    mode: Arc<Mode>,
    /// Whether the guest's driver has accepted flushes.
    flushes: bool,
    write_cache: bool,
    inflight: Option<Inflight>,
    /// The socket for news to the client.
    channel: Option<Arc<OwnedFd>>,
}

impl Disk {
    pub(super) fn new(grant: &Grant) -> Disk {
        let mode = Mode { writes: grant.writes, ..Mode::default() };
        Disk {
            grant: grant.clone(),
            mode: Arc::new(mode),
            flushes: false,
            write_cache: true,
            inflight: None,
            channel: None,
        }
    }

    /// Makes writes survive a failure of the host before they complete, if the guest does not use flushes or
    /// wants no cache (virtio 1.2, 5.2.5.2).
    fn set_mode(&self) {
        let writes_through = !self.flushes || !self.write_cache;
        self.mode.write_through.store(writes_through, Ordering::Relaxed);
    }
}

impl Running for Ring {
    fn stop(self, _next: u16) -> u16 {
        Ring::stop(self)
    }
}

impl Device for Disk {
    type Running = Ring;

    const MORE_PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
        .union(VhostUserProtocolFeatures::CONFIG)
        .union(VhostUserProtocolFeatures::BACKEND_REQ)
        .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD);

    fn queues(&self) -> usize {
        self.grant.queues.into()
    }

    fn features(&self) -> u64 {
        features(self.grant.writes)
    }

    fn set_features(&mut self, features: u64) {
        self.flushes = features & feature::FLUSH != 0;
        self.set_mode();
    }

    fn start(&mut self, index: usize, kick: &OwnedFd, setting: Setting) -> io::Result<Ring> {
        let tracker = match &self.inflight {
            None => None,
            Some(inflight) => {
                let tracker = inflight.queue(index as u16, setting.size);
                let no_room =
                    || io::Error::other("the memory for its requests in flight is too small");
                Some(tracker.ok_or_else(no_room)?)
            }
        };
        Ring::start(&self.grant, &self.mode, kick, tracker, setting)
    }

    fn reset(&mut self) {
        self.flushes = false;
        self.write_cache = true;
        self.set_mode();
        self.inflight = None;
    }

    fn configuration(&self, offset: u32, size: u32) -> Result<Vec<u8>> {
        let all = configuration(self.grant.device.size(), self.grant.queues, self.write_cache);
        let end = (offset as usize).saturating_add(size as usize);
        if end > LEN {
            return Err(Error::InvalidParam);
        }
        Ok(all[offset as usize..end].to_vec())
    }

    fn configure(&mut self, offset: u32, bytes: &[u8]) -> Result<()> {
        match (offset as usize, bytes) {
            (config::WRITE_CACHE, [wanted]) => {
                self.write_cache = *wanted != 0;
                self.set_mode();
                Ok(())
            }
            _ => Err(Error::InvalidParam),
        }
    }

    fn set_channel(&mut self, channel: OwnedFd) -> Result<()> {
        let channel = Arc::new(channel);
        self.grant.device.tell_at(&channel);
        self.channel = Some(channel);
        Ok(())
    }

    fn new_inflight(&self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (wanted.num_queues, wanted.queue_size);
        if queues > self.grant.queues || size > SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        let file = Inflight::create(queues, size).map_err(|error| refused(&error))?;
        let len = Inflight::len(queues, size);
        Ok((VhostUserInflight::new(len, 0, queues, size), file))
    }

    fn set_inflight(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let (queues, size) = (inflight.num_queues, inflight.queue_size);
        let is_long = inflight.mmap_size >= Inflight::len(queues, size);
        if queues > self.grant.queues || size > SIZE_MAX || !is_long {
            return Err(Error::InvalidParam);
        }
        let mapped = Inflight::map(file, inflight.mmap_offset, queues, size);
        self.inflight = Some(mapped.map_err(|error| refused(&error))?);
        Ok(())
    }
}
