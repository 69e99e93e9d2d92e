//! A thread that listens for clients, and can be ended with all that they do.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ring3_host::admission::{Admission, Admitted, Room};
use ring3_host::listener::Listener;
use ring3_host::stream::{Stream, hang_up};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::warn;

use crate::error::Error;

/// How long a client that is told to go may take. It can make no more than its own thread wait.
const PARTING: Duration = Duration::from_secs(5);

/// After so long without a request, a client may have to go where there are too many.
pub(crate) const IDLE: Duration = Duration::from_secs(60);

/// The thread. It ends when this is dropped, and so do all its connections.
#[derive(Debug)]
pub(crate) struct Front {
    ending: Ending,
    /// Closed when the thread has ended.
    stop: Option<UnixStream>,
    /// Disconnected when it has, and all threads of connections with it.
    ended: Receiver<()>,
}

impl Front {
    /// Starts it with what it is to do. It must not panic.
    pub(crate) fn start(
        name: &str,
        serve: impl FnOnce(&Ending) + Send + 'static,
    ) -> Result<Front, Error> {
        let (stop, stopped) = UnixStream::pair().map_err(Error::Thread)?;
        let (alive, ended) = mpsc::channel();
        let ending = Ending { stopped: Arc::new(stopped), shared: Arc::default() };
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

    /// Starts it with a thread for each client that comes to `listener`, as many at a time as there is `room` for, which does `talk`. That must not panic.
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
                        warn!("{of_clients} has too many clients; another one is refused");
                        continue;
                    }
                    Err(error) => {
                        warn!("a client of {of_clients} cannot be served: {error}");
                        continue;
                    }
                };
                let Some(mut connection) = ending.connect(&stream) else { continue };
                connection.admitted = Some(admitted);
                let talk = Arc::clone(&talk);
                let thread = thread::Builder::new().name(of_clients.clone());
                if let Err(error) = thread.spawn(move || talk(stream, &connection)) {
                    warn!("a client of {of_clients} cannot be served: {error}");
                }
            }
        })
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.ending.lock().connections.len()
    }

    /// Cuts the connections that are called `name`.
    pub(crate) fn cut(&self, name: &str) {
        for connection in &self.ending.lock().connections {
            if connection.name.as_deref() == Some(name) {
                connection.cut();
            }
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
        // Nothing is sent: it is disconnected, or it takes too long.
        if self.ended.recv_timeout(PARTING) == Err(mpsc::RecvTimeoutError::Timeout) {
            warn!("a client does not let go; its thread is left behind");
        }
    }
}

/// The thread's side.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    stopped: Arc<UnixStream>,
    shared: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    ended: bool,
    next: u64,
    connections: Vec<Open>,
    /// Dropped by the thread at its end; connections have others.
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

    /// Waits for a client of `name`; none when it is to end.
    pub(crate) fn accept(&self, listener: &Listener, name: &str) -> Option<Stream> {
        use ErrorKind::{ConnectionAborted, WouldBlock};
        while self.wait_for(listener) {
            match listener.accept() {
                Ok(stream) => return Some(stream),
                // It has gone in the meantime.
                Err(error) if matches!(error.kind(), WouldBlock | ConnectionAborted) => {}
                Err(error) => {
                    warn!("no more clients for {name}: {error}");
                    return None;
                }
            }
        }
        None
    }

    /// Waits for a client; false when it is to end.
    fn wait_for(&self, listener: &impl AsFd) -> bool {
        loop {
            let mut fds =
                [PollFd::new(listener, PollFlags::IN), PollFd::new(&*self.stopped, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) if !fds[1].revents().is_empty() => return false,
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(error) => {
                    warn!("no more clients: {error}");
                    return false;
                }
            }
        }
    }

    /// There is a connection, until this is dropped; none when it is to end.
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

/// A connection that is known.
#[derive(Debug)]
pub(crate) struct Connection {
    ending: Ending,
    number: u64,
    /// It is one of those that are let in as far as there is room.
    admitted: Option<Admitted>,
    _alive: Option<Sender<()>>,
}

impl Connection {
    /// The client has said what it wants, or asks for something.
    pub(crate) fn is_active(&self) {
        if let Some(admitted) = &self.admitted {
            admitted.is_active();
        }
    }

    /// Names it, so that it can be cut by that.
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
    }
}
