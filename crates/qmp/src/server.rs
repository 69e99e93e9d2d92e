//! The threads of the server, and its one client.
//!
//! One thread takes a client after the other, reads its messages and answers them. Another one waits for what happens
//! to the machine and tells the client. Both write to the client under a lock, which is held from a command to its
//! answer: so a client has the answer to a command before the events that the command makes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ring3_vm::Control;
use ring3_vm::socket::{self, SocketError, SocketFile};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde_json::Value;
use tracing::{debug, warn};

use crate::commands::Machine;
use crate::framing::Framer;
use crate::protocol;
use crate::session::{self, Session};

/// A client that takes nothing for so long is hung up on.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the end of the process waits for the last event to be told.
const PARTING: Duration = Duration::from_secs(2);

/// A QMP server with threads of its own. It serves until its machine has ended.
#[derive(Debug)]
pub struct Server {
    /// Disconnected when the client has been told that the machine has ended.
    told: Receiver<()>,
    socket: Option<SocketFile>,
}

impl Server {
    /// Serves the clients that connect to a new Unix socket at `path`, one after the other. `name` is what people call the
    /// machine. The socket is removed with the server.
    pub fn on_socket(
        control: &Control,
        path: &Path,
        name: Option<String>,
    ) -> Result<Server, SocketError> {
        let refused = |source| SocketError::Refused { path: path.to_owned(), source };
        let (listener, socket) = socket::listen_at(path)?;
        let (stop, stopped) = UnixStream::pair().map_err(refused)?;
        let (clients, told) = start(control, name, Some(stop)).map_err(refused)?;
        let accept = move || accept_clients(&listener, &stopped, &clients);
        thread::Builder::new().name("qmp".into()).spawn(accept).map_err(refused)?;
        Ok(Server { told, socket: Some(socket) })
    }

    /// Serves the one client that sends by `input` and reads `output`, such as standard input and output.
    pub fn on_streams(
        control: &Control,
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
        name: Option<String>,
    ) -> io::Result<Server> {
        let (clients, told) = start(control, name, None)?;
        let talk = move || clients.talk(input, Box::new(output), None);
        thread::Builder::new().name("qmp".into()).spawn(talk)?;
        Ok(Server { told, socket: None })
    }

    /// Waits until the client knows that the machine has ended, which it has; no longer than two seconds.
    pub fn finish(self) {
        // Nothing is sent: it is disconnected, or it takes too long.
        let _ = self.told.recv_timeout(PARTING);
        drop(self.socket);
    }
}

/// Starts the thread that tells of events. `stop` is closed when it ends.
fn start(
    control: &Control,
    name: Option<String>,
    stop: Option<UnixStream>,
) -> io::Result<(Arc<Clients>, Receiver<()>)> {
    let machine = Machine::new(control.clone(), name)?;
    let clients = Arc::new(Clients { machine, state: Mutex::default() });
    let events = control.subscribe();
    let (telling, told) = mpsc::channel();
    let teller = clients.clone();
    thread::Builder::new().name("qmp events".into()).spawn(move || {
        for event in events {
            let message = protocol::event(&event, teller.machine.asked());
            teller.tell(&message);
        }
        teller.end();
        let _: (Option<UnixStream>, Sender<()>) = (stop, telling);
    })?;
    Ok((clients, told))
}

/// The machine and who is connected.
#[derive(Debug)]
struct Clients {
    machine: Machine,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    client: Option<Client>,
    /// There are no more clients.
    ended: bool,
}

impl Clients {
    /// A thread that panicked has left the state as whole as any other.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the client of an event, if it wants to know.
    fn tell(&self, event: &Value) {
        let mut state = self.lock();
        if let Some(client) = &mut state.client
            && client.session.wants_events()
        {
            client.write(event);
        }
    }

    /// Hangs up for good.
    fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        if let Some(client) = &mut state.client {
            client.hang_up();
        }
    }

    /// Talks with one client until it or the machine has had enough. `connection` is what to hang up.
    fn talk(
        &self,
        mut input: impl Read,
        output: Box<dyn Write + Send>,
        connection: Option<UnixStream>,
    ) {
        {
            let mut state = self.lock();
            if state.ended {
                return;
            }
            let client = Client { output: Some(output), connection, session: Session::default() };
            state.client.insert(client).write(&protocol::greeting());
        }
        match self.converse(&mut input) {
            Ok(()) => debug!("the client has gone"),
            Err(error) => debug!("the client cannot be read: {error}"),
        }
        self.lock().client = None;
    }

    /// Answers messages to their end.
    fn converse(&self, input: &mut impl Read) -> io::Result<()> {
        let mut framer = Framer::default();
        let mut buffer = [0; 4096];
        loop {
            let bytes = match input.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => &buffer[..length],
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for message in bytes.iter().filter_map(|byte| framer.push(*byte)) {
                let mut state = self.lock();
                let Some(client) = &mut state.client else { return Ok(()) };
                match message {
                    Ok(message) => {
                        let answer = client.session.answer(&self.machine, &message);
                        client.write(&answer);
                    }
                    Err(too_long) => {
                        client.write(&session::too_long(too_long));
                        client.hang_up();
                    }
                }
                if client.output.is_none() {
                    return Ok(());
                }
            }
        }
    }
}

/// Who is connected.
struct Client {
    /// Nothing once it was hung up on.
    output: Option<Box<dyn Write + Send>>,
    connection: Option<UnixStream>,
    session: Session,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Client {
    /// Sends a message; a client that does not take it is hung up on.
    fn write(&mut self, message: &Value) {
        let Some(output) = &mut self.output else { return };
        let line = format!("{message}\r\n");
        if let Err(error) = output.write_all(line.as_bytes()).and_then(|()| output.flush()) {
            match error.kind() {
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                    debug!("the client has gone: {error}");
                }
                _ => warn!("hung up on a client that does not take its messages: {error}"),
            }
            self.hang_up();
        }
    }

    fn hang_up(&mut self) {
        self.output = None;
        if let Some(connection) = self.connection.take() {
            // It may have done so itself.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Talks with those who connect, one after the other, until `stopped` is closed at its other end.
fn accept_clients(listener: &UnixListener, stopped: &UnixStream, clients: &Clients) {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => return,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                warn!("no more clients: {error}");
                return;
            }
        }
        match listener.accept() {
            Ok((connection, _)) => {
                if let Err(error) = serve(&connection, clients) {
                    warn!("a client cannot be served: {error}");
                }
            }
            // It has gone in the meantime.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                warn!("no more clients: {error}");
                return;
            }
        }
    }
}

fn serve(connection: &UnixStream, clients: &Clients) -> io::Result<()> {
    connection.set_nonblocking(false)?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let output = Box::new(connection.try_clone()?);
    clients.talk(connection, output, Some(connection.try_clone()?));
    Ok(())
}
