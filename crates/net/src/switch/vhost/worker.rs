//! A thread that does something whenever it is kicked.

use std::io;
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};

use ring3_vhost::event::signal;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use tracing::warn;

/// See the module. The thread ends when this is dropped, which waits for the end of the present call.
#[derive(Debug)]
pub(super) struct Worker {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

const KICK: u64 = 0;
const STOP: u64 = 1;

impl Worker {
    /// Starts a thread that calls `act` at once, and after each kick.
    pub(super) fn start(
        name: &str,
        kick: &OwnedFd,
        mut act: impl FnMut() + Send + 'static,
    ) -> io::Result<Worker> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Edge-triggered: a client's descriptor is never read, so it cannot make this thread wait.
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&events, kick, epoll::EventData::new_u64(KICK), edge)?;
        epoll::add(&events, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut list = Vec::with_capacity(2);
            loop {
                act();
                list.clear();
                match epoll::wait(&events, rustix::buffer::spare_capacity(&mut list), None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => {
                        warn!("a queue cannot go on: {error}");
                        return;
                    }
                }
                if list.iter().any(|event| event.data.u64() == STOP) {
                    return;
                }
            }
        })?;
        Ok(Worker { stop, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        signal(&self.stop);
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}
