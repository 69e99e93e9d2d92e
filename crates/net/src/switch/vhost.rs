//! Ports with shared memory (vhost-user-net): the switch copies a packet from the sender's memory straight
//! into the receiver's.
//!
//! A machine that connects here, one of QEMU for example, gives the switch its guest's memory and the two
//! queues of its card. A packet is copied only once if its receiver has such a port too and accepts it as it
//! is: large and unfinished, if the guest's driver has said so. All other packets go as between other ports:
//! those that need work, go to several receivers, must wait, or come from a port of another kind.
//!
//! * [`port_device`]: the port in a [session](ring3_vhost::session); `features`: the features that a machine
//!   is offered;
//! * [`ring`]: a queue in its memory; [`worker`]: the thread that a kick wakes;
//! * [`transmitter`], [`receiver`]: the two queues; [`frame`]: a packet in its sender's memory; `pieces`:
//!   parts of memory.
//!
//! # Machines are hostile
//!
//! A queue that makes no sense is given up and not read again. The parts of a packet that decide about it,
//! its addresses and the work left to do, are copied before they are examined, and that copy is passed on: a
//! guest that changes its memory meanwhile changes only the payload. The work for one guest is bounded by the
//! size of its queue, and each port has threads of its own.

mod features;
mod frame;
mod pieces;
mod port_device;
mod receiver;
mod ring;
mod transmitter;
mod worker;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use ring3_host::socket::{SocketFile, listen_at};
use ring3_vhost::conversation::talk;
use ring3_vhost::session::Session;
use tracing::warn;

use super::port::{Newcomer, Switch};
use super::server::take_in;
use crate::card::CardOwner;
use crate::error::NetError;
pub(crate) use frame::Frame;
use port_device::PortDevice;
use receiver::Copying;
pub(crate) use receiver::Receiver;

/// A socket to which machines connect that share their memory.
#[derive(Debug)]
pub struct VhostServer {
    switch: Switch,
    listener: UnixListener,
    file: Mutex<Option<SocketFile>>,
}

impl VhostServer {
    /// Listens at `path` for machines of `switch`.
    pub fn listen(path: &Path, switch: Switch) -> Result<VhostServer, NetError> {
        let (listener, file) = listen_at(path)?;
        listener.set_nonblocking(false).map_err(NetError::Conversation)?;
        Ok(VhostServer { switch, listener, file: Mutex::new(Some(file)) })
    }

    /// Lets machines in for as long as the process lives.
    pub fn serve(&self) -> ! {
        let accept = || match self.listener.accept() {
            Ok((stream, _)) => Ok(stream),
            Err(error) => Err(NetError::Conversation(error)),
        };
        take_in(&self.switch, accept, |stream, newcomer, number| {
            self.take(stream, newcomer, number)
        })
    }

    /// Removes the socket's file, so that nobody else can connect.
    pub fn close(&self) {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn take(&self, stream: UnixStream, newcomer: Newcomer, number: u64) -> Result<(), NetError> {
        let name = format!("shared {number}");
        let receiver = Arc::<Receiver>::default();
        let copying = Box::new(Copying(Arc::clone(&receiver)));
        self.switch.add_shared(&name, newcomer, &receiver, |port| {
            let (receiver, name) = (Arc::clone(&receiver), name.clone());
            let thread = thread::Builder::new().name(name.clone());
            let talking = move || {
                let device = PortDevice::new(Arc::clone(&port), receiver);
                let session = Session::new(&name, device);
                if let Err(error) = talk(stream, session) {
                    warn!("{name} cannot be connected: {error}");
                }
                port.ended();
            };
            thread.spawn(talking).map_err(NetError::Thread)?;
            Ok(copying)
        })
    }
}

#[cfg(test)]
mod tests;
