//! A thread that listens for clients, and that can be ended together with all its connections.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ring3_host::admission::{Admission, Admitted, Room};
use ring3_host::listener::Listener;
use ring3_host::stream::{Stream, hang_up};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::warn;

use crate::error::Error;

/// How long the threads of cut connections may take to end before they are left behind.
const PARTING: Duration = Duration::from_secs(5);

/// The time without a request after which a client may have to go when there are too many.
pub(crate) const IDLE: Duration = Duration::from_secs(60);

/// The thread that listens. When this is dropped, the thread and all its connections end.
#[derive(Debug)]
pub(crate) struct Front {
    ending: Ending,
    /// One end of a pair, whose other end tells the thread to end when this one is dropped.
    stop: Option<UnixStream>,
    /// Disconnected when the thread has ended, and all threads of connections with it.
    ended: Receiver<()>,
}

impl Front {
    /// Starts a thread that calls `serve`, which must not panic.
    pub(crate) fn start(
        name: &str,
        serve: impl FnOnce(&Ending) + Send + 'static,
    ) -> Result<Front, Error> {
        let (stop, stopped) = UnixStream::pair().map_err(Error::Thread)?;
        let (alive, ended) = mpsc::channel();
        let ending =
            Ending { stopped: Arc::new(stopped), shared: Arc::default(), parted: Arc::default() };
        ending.lock().alive = Some(alive);
        let thread = thread::Builder::new().name(name.to_owned());
        let inside = ending.clone();
        thread
            .spawn(move || {
                serve(&inside);
                inside.lock().alive = None;
            })
            .map_err(Error::Thread)?;
        Ok(Front { ending, stop: Some(stop), ended })
    }

    /// Starts a thread that listens at `listener`. For each client another thread calls `talk`, which must
    /// not panic. `room` limits the number of clients.
    pub(crate) fn serve_all(
        name: &str,
        listener: Listener,
        room: Room,
        talk: impl Fn(Stream, &Connection) + Send + Sync + 'static,
    ) -> Result<Front, Error> {
        let (of_clients, talk) = (name.to_owned(), Arc::new(talk));
        let admission = Admission::new(room);
        Front::start(name, move |ending| {
            while let Some(stream) = ending.accept(&listener, &of_clients) {
                let admitted = match admission.admit(&stream) {
                    Ok(Some(admitted)) => admitted,
                    Ok(None) => {
                        warn!(
                            "{of_clients}: too many clients are connected; another one is refused"
                        );
                        continue;
                    }
                    Err(error) => {
                        warn!("{of_clients}: a client cannot be served: {error}");
                        continue;
                    }
                };
                let Some(mut connection) = ending.connect(&stream) else { continue };
                connection.admitted = Some(admitted);
                let talk = Arc::clone(&talk);
                let thread = thread::Builder::new().name(of_clients.clone());
                if let Err(error) = thread.spawn(move || talk(stream, &connection)) {
                    warn!("{of_clients}: a client cannot be served: {error}");
                }
            }
        })
    }

    /// Returns the number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.ending.lock().connections.len()
    }

    /// Cuts the connections with the name `name`. One can wait for their threads by the returned value.
    pub(crate) fn cut(&self, name: &str) -> Cut {
        for connection in &self.ending.lock().connections {
            if connection.name.as_deref() == Some(name) {
                connection.cut();
            }
        }
        Cut { ending: self.ending.clone(), name: name.to_owned() }
    }
}

/// Connections that were cut, but whose threads may still be busy.
#[derive(Debug)]
pub(crate) struct Cut {
    ending: Ending,
    name: String,
}

impl Cut {
    /// Waits until the connections have ended, for [`PARTING`] at most.
    pub(crate) fn wait(self) {
        let is_there = |state: &mut State| {
            state.connections.iter().any(|open| open.name.as_deref() == Some(&*self.name))
        };
        let state = self.ending.lock();
        let waited = self.ending.parted.wait_timeout_while(state, PARTING, is_there);
        if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            warn!("a client of {} does not end in time; it is left behind", self.name);
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.ending.lock().ended = true;
        self.stop = None;
        for connection in &self.ending.lock().connections {
            connection.cut();
        }
        // No message ever comes. Either the channel is disconnected in time, or a thread takes too long.
        if self.ended.recv_timeout(PARTING) == Err(mpsc::RecvTimeoutError::Timeout) {
            warn!("a client's thread does not end in time; it is left behind");
        }
    }
}

/// The part of [`Front`] that the threads use.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    stopped: Arc<UnixStream>,
    shared: Arc<Mutex<State>>,
    /// Signals that a connection has ended.
    parted: Arc<Condvar>,
}

#[derive(Debug, Default)]
struct State {
    ended: bool,
    next: u64,
    connections: Vec<Open>,
    /// The thread that listens drops this sender at its end. Each connection has a clone.
    alive: Option<Sender<()>>,
}

#[derive(Debug)]
struct Open {
    number: u64,
    name: Option<String>,
    stream: OwnedFd,
}

impl Open {
    fn cut(&self) {
        hang_up(&self.stream);
    }
}

impl Ending {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a client of `name`. Returns None when the thread must end.
    pub(crate) fn accept(&self, listener: &Listener, name: &str) -> Option<Stream> {
        use ErrorKind::{ConnectionAborted, WouldBlock};
        while self.wait_for(listener) {
            match listener.accept() {
                Ok(stream) => return Some(stream),
                // The client has gone in the meantime.
                Err(error) if matches!(error.kind(), WouldBlock | ConnectionAborted) => {}
                Err(error) => {
                    warn!("{name}: no more clients can connect: {error}");
                    return None;
                }
            }
        }
        None
    }

    /// Waits for a client. Returns false when the thread must end.
    fn wait_for(&self, listener: &impl AsFd) -> bool {
        loop {
            let mut fds =
                [PollFd::new(listener, PollFlags::IN), PollFd::new(&*self.stopped, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) if !fds[1].revents().is_empty() => return false,
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(error) => {
                    warn!("no more clients can connect: {error}");
                    return false;
                }
            }
        }
    }

    /// Registers a connection until the returned value is dropped. Returns None if the thread must end, or if
    /// the host has no more descriptors.
    pub(crate) fn connect(&self, stream: &impl AsFd) -> Option<Connection> {
        let stream = stream.as_fd().try_clone_to_owned().ok()?;
        let mut state = self.lock();
        if state.ended {
            return None;
        }
        state.next += 1;
        let number = state.next;
        state.connections.push(Open { number, name: None, stream });
        let alive = state.alive.clone();
        Some(Connection { ending: self.clone(), number, admitted: None, _alive: alive })
    }
}

/// A registered connection.
#[derive(Debug)]
pub(crate) struct Connection {
    ending: Ending,
    number: u64,
    /// The connection's place among the clients that were let in, if their number is limited.
    admitted: Option<Admitted>,
    _alive: Option<Sender<()>>,
}

impl Connection {
    /// Notes that the client has said what it wants, or has made a request.
    pub(crate) fn is_active(&self) {
        if let Some(admitted) = &self.admitted {
            admitted.is_active();
        }
    }

    /// Registers another connection with the same client as [`Ending::connect`] does, unless there are `most`
    /// already.
    pub(crate) fn beside(&self, stream: &impl AsFd, most: usize) -> Option<Connection> {
        let has_room = self.ending.lock().connections.len() < most;
        has_room.then(|| self.ending.connect(stream)).flatten()
    }

    /// Gives the connection a name, by which it can be [cut](Front::cut).
    pub(crate) fn name(&self, name: &str) {
        let mut state = self.ending.lock();
        if let Some(open) = state.connections.iter_mut().find(|open| open.number == self.number) {
            open.name = Some(name.to_owned());
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.ending.lock().connections.retain(|open| open.number != self.number);
        self.ending.parted.notify_all();
    }
}
