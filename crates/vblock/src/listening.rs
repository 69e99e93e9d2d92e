//! A thread that listens for clients, and can be ended with all that they do.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::warn;

use crate::error::Error;

/// How long a client that is told to go may take. It can make no more than its own thread wait.
const PARTING: Duration = Duration::from_secs(5);

/// A connection that can be cut.
#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn cut(&self) {
        // It may be gone already.
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// What can be connected.
pub(crate) trait Cuttable {
    /// Another handle of the same connection.
    fn handle(&self) -> io::Result<Handle>;
}

/// A handle by which a connection is cut.
pub(crate) struct Handle(Stream);

impl Cuttable for UnixStream {
    fn handle(&self) -> io::Result<Handle> {
        Ok(Handle(Stream::Unix(self.try_clone()?)))
    }
}

impl Cuttable for TcpStream {
    fn handle(&self) -> io::Result<Handle> {
        Ok(Handle(Stream::Tcp(self.try_clone()?)))
    }
}

/// What connections come from.
pub(crate) trait Listener: AsFd {
    /// What they are.
    type Stream: Cuttable + Send + 'static;
    /// The next one.
    fn next(&self) -> io::Result<Self::Stream>;
}

impl Listener for UnixListener {
    type Stream = UnixStream;
    fn next(&self) -> io::Result<UnixStream> {
        self.accept().map(|(stream, _)| stream)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    fn next(&self) -> io::Result<TcpStream> {
        self.accept().map(|(stream, _)| stream)
    }
}

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

    /// Starts it with a thread for each client that comes to `listener`, at most `most` at a time, which does `talk`. That must not panic.
    pub(crate) fn serve_all<L: Listener + Send + 'static>(
        name: &str,
        listener: L,
        most: usize,
        talk: impl Fn(L::Stream, &Connection) + Send + Sync + 'static,
    ) -> Result<Front, Error> {
        let (of_clients, talk) = (name.to_owned(), Arc::new(talk));
        Front::start(name, move |ending| {
            while let Some(stream) = ending.accept(&listener, &of_clients) {
                if ending.lock().connections.len() >= most {
                    warn!("{of_clients} has {most} clients; another one is refused");
                    continue;
                }
                let Some(connection) = ending.connect(&stream) else { continue };
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
                connection.stream.cut();
            }
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.ending.lock().ended = true;
        self.stop = None;
        for connection in &self.ending.lock().connections {
            connection.stream.cut();
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
    stream: Stream,
}

impl Ending {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a client of `name`; none when it is to end.
    pub(crate) fn accept<L: Listener>(&self, listener: &L, name: &str) -> Option<L::Stream> {
        use ErrorKind::{ConnectionAborted, WouldBlock};
        while self.wait_for(listener) {
            match listener.next() {
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
    pub(crate) fn connect(&self, stream: &impl Cuttable) -> Option<Connection> {
        let Ok(Handle(stream)) = stream.handle() else { return None };
        let mut state = self.lock();
        if state.ended {
            return None;
        }
        state.next += 1;
        let number = state.next;
        state.connections.push(Open { number, name: None, stream });
        let alive = state.alive.clone();
        Some(Connection { ending: self.clone(), number, _alive: alive })
    }
}

/// A connection that is known.
#[derive(Debug)]
pub(crate) struct Connection {
    ending: Ending,
    number: u64,
    _alive: Option<Sender<()>>,
}

impl Connection {
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
