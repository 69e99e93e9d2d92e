//! The threads of the server, and its clients.
//!
//! Each client has a thread that reads its messages and answers them. Another one waits for what happens
//! to the machine and tells all of them. Both write to a client under its lock, which is held from a command to its
//! answer: so a client has the answer to a command before the events that the command makes. Commands are done one after the other,
//! whoever sends them.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use ring3_host::listener::{ListenError, Listener};
use ring3_host::socket::{SocketError, SocketFile};
use ring3_host::stream::hang_up;
use ring3_host::telnet;
use ring3_vm::Control;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::Value;
use tracing::{debug, warn};

use crate::commands::{Facts, Machine};
use crate::framing::Framer;
use crate::monitor;
use crate::protocol;
use crate::session::{self, Session};

/// A client that takes nothing for so long is hung up on.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the end of the process waits for the last event to be told.
const PARTING: Duration = Duration::from_secs(2);
/// How long to wait after a client could not be accepted, as when descriptors have run out.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// Clients at once at most; others are hung up on.
const CLIENTS_MAX: usize = 32;

/// What is spoken with a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// QMP, with tools.
    Machine,
    /// Lines of text, with people (QEMU, "QEMU Monitor").
    Human,
}

/// A server with threads of its own. It serves until its machine has ended.
#[derive(Debug)]
pub struct Server {
    /// They belong to their threads: whoever ends the server must not wait for what a node has to flush to a server that is gone.
    clients: Weak<Clients>,
    /// Disconnected when all clients have been told that the machine has ended.
    told: Receiver<()>,
    /// Closed then, too.
    stopped: Arc<UnixStream>,
    /// They are removed with the server.
    sockets: Mutex<Vec<SocketFile>>,
}

impl Server {
    /// A server for the machine behind `control` that has no clients yet.
    pub fn new(control: &Control, facts: Facts) -> io::Result<Server> {
        let (stop, stopped) = UnixStream::pair()?;
        let machine = Machine::new(control.clone(), facts)?;
        let clients =
            Arc::new(Clients { machine, state: Mutex::default(), turn: Mutex::default() });
        let events = control.subscribe();
        let (telling, told) = mpsc::channel();
        let teller = clients;
        let clients = Arc::downgrade(&teller);
        thread::Builder::new().name("qmp events".into()).spawn(move || {
            for event in events {
                let asked = teller.machine.asked();
                asked.signal.store(teller.machine.control.was_signalled(), Ordering::Relaxed);
                let message = protocol::event(&event, asked);
                teller.tell(&message);
            }
            teller.end();
            let _: (UnixStream, Sender<()>) = (stop, telling);
        })?;
        Ok(Server { clients, told, stopped: Arc::new(stopped), sockets: Mutex::default() })
    }

    /// Serves the tools that connect to a new Unix socket at `path`. The socket is removed with the server.
    pub fn on_socket(control: &Control, path: &Path, facts: Facts) -> Result<Server, ListenError> {
        let refused = |source| SocketError::Refused { path: path.to_owned(), source };
        let server = Server::new(control, facts).map_err(refused)?;
        server.listen(Listener::unix(path)?, Protocol::Machine, false).map_err(refused)?;
        Ok(server)
    }

    /// Serves the one tool that sends by `input` and reads `output`, such as standard input and output.
    pub fn on_streams(
        control: &Control,
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
        facts: Facts,
    ) -> io::Result<Server> {
        let server = Server::new(control, facts)?;
        server.talk(input, output, Protocol::Machine)?;
        Ok(server)
    }

    /// Serves those who connect to `listener`, too, by the telnet protocol where that is so.
    pub fn listen(
        &self,
        mut listener: Listener,
        protocol: Protocol,
        telnet: bool,
    ) -> io::Result<()> {
        lock(&self.sockets).extend(listener.take_file());
        let stopped = self.stopped.clone();
        // A machine that has ended serves nobody.
        let Some(clients) = self.clients.upgrade() else { return Ok(()) };
        let accept = move || accept_clients(&listener, &stopped, &clients, protocol, telnet);
        thread::Builder::new().name("monitor".into()).spawn(accept)?;
        Ok(())
    }

    /// Serves the one who sends by `input` and reads `output`, too.
    pub fn talk(
        &self,
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
        protocol: Protocol,
    ) -> io::Result<()> {
        self.handle().talk(input, output, protocol)
    }

    /// By which clients are let in later.
    pub fn handle(&self) -> Handle {
        Handle(self.clients.clone())
    }

    /// Waits until the clients know that the machine has ended, which it has; no longer than two seconds.
    pub fn finish(self) {
        // Nothing is sent: it is disconnected, or it takes too long.
        let _ = self.told.recv_timeout(PARTING);
    }
}

/// Lets clients in, of a server that may have ended.
#[derive(Debug, Clone)]
pub struct Handle(Weak<Clients>);

impl Handle {
    /// See [`Server::talk`].
    pub fn talk(
        &self,
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
        protocol: Protocol,
    ) -> io::Result<()> {
        let Some(clients) = self.0.upgrade() else { return Ok(()) };
        let talk = move || clients.talk(input, Box::new(output), None, protocol);
        thread::Builder::new().name("monitor".into()).spawn(talk)?;
        Ok(())
    }
}

/// The machine and who is connected.
#[derive(Debug)]
struct Clients {
    machine: Machine,
    state: Mutex<State>,
    /// Held while a command is done.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    clients: Vec<Arc<Mutex<Client>>>,
    /// There are no more clients.
    ended: bool,
}

/// A thread that panicked has left the state as whole as any other.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clients {
    /// Tells the clients of an event that want to know.
    fn tell(&self, event: &Value) {
        let clients = lock(&self.state).clients.clone();
        for client in clients {
            let mut client = lock(&client);
            if client.session.as_ref().is_some_and(Session::wants_events) {
                client.write(event);
            }
        }
    }

    /// Hangs up for good.
    fn end(&self) {
        let clients = {
            let mut state = lock(&self.state);
            state.ended = true;
            state.clients.clone()
        };
        for client in clients {
            lock(&client).hang_up();
        }
    }

    /// Lets a client in, if it can be.
    fn enter(&self, client: Client) -> Option<Arc<Mutex<Client>>> {
        let mut state = lock(&self.state);
        if state.ended || state.clients.len() >= CLIENTS_MAX {
            return None;
        }
        let client = Arc::new(Mutex::new(client));
        state.clients.push(client.clone());
        Some(client)
    }

    /// Talks with one client until it or the machine has had enough. `connection` is what to hang up.
    fn talk(
        &self,
        mut input: impl Read,
        output: Box<dyn Write + Send>,
        connection: Option<File>,
        protocol: Protocol,
    ) {
        let session = (protocol == Protocol::Machine).then(Session::default);
        let Some(client) = self.enter(Client { output: Some(output), connection, session }) else {
            debug!("a client was turned away: there are {CLIENTS_MAX}, or the machine has ended");
            return;
        };
        let ended = match protocol {
            Protocol::Machine => {
                lock(&client).write(&protocol::greeting());
                self.converse(&mut input, &client)
            }
            Protocol::Human => self.converse_with_a_person(&mut input, &client),
        };
        match ended {
            Ok(()) => debug!("the client has gone"),
            Err(error) => debug!("the client cannot be read: {error}"),
        }
        lock(&client).hang_up();
        lock(&self.state).clients.retain(|other| !Arc::ptr_eq(other, &client));
    }

    /// Answers messages to their end.
    fn converse(&self, input: &mut impl Read, client: &Mutex<Client>) -> io::Result<()> {
        let mut framer = Framer::default();
        let mut buffer = [0; 4096];
        loop {
            let length = read(input, &mut buffer)?;
            if length == 0 {
                return Ok(());
            }
            for message in buffer[..length].iter().filter_map(|byte| framer.push(*byte)) {
                let mut client = lock(client);
                match (message, &mut client.session) {
                    (Ok(message), Some(session)) => {
                        let answer = {
                            let _turn = lock(&self.turn);
                            session.answer(&self.machine, &message)
                        };
                        client.write(&answer);
                    }
                    (Ok(_), None) => {}
                    (Err(too_long), _) => {
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

    /// Does what the lines say that a person types, to their end.
    fn converse_with_a_person(
        &self,
        input: &mut impl Read,
        client: &Mutex<Client>,
    ) -> io::Result<()> {
        let mut editor = monitor::Editor::default();
        lock(client).send(monitor::banner().as_bytes());
        let mut buffer = [0; 4096];
        loop {
            let length = read(input, &mut buffer)?;
            if length == 0 {
                return Ok(());
            }
            for byte in &buffer[..length] {
                let (echo, line) = editor.take(*byte);
                let mut client = lock(client);
                client.send(&echo);
                if let Some(line) = line {
                    let text = {
                        let _turn = lock(&self.turn);
                        monitor::execute(&self.machine, &line)
                    };
                    client.send(text.replace('\n', "\r\n").as_bytes());
                    client.send(monitor::PROMPT.as_bytes());
                }
                if client.output.is_none() {
                    return Ok(());
                }
            }
        }
    }
}

/// Reads though signals come.
fn read(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match input.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Who is connected.
struct Client {
    /// Nothing once it was hung up on.
    output: Option<Box<dyn Write + Send>>,
    connection: Option<File>,
    /// That of a tool.
    session: Option<Session>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Client {
    /// Sends a message.
    fn write(&mut self, message: &Value) {
        self.send(format!("{message}\r\n").as_bytes());
    }

    /// Sends bytes; a client that does not take them is hung up on.
    fn send(&mut self, bytes: &[u8]) {
        let Some(output) = &mut self.output else { return };
        if let Err(error) = output.write_all(bytes).and_then(|()| output.flush()) {
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
            hang_up(connection);
        }
    }
}

/// Talks with those who connect, until `stopped` is closed at its other end.
fn accept_clients(
    listener: &Listener,
    stopped: &UnixStream,
    clients: &Arc<Clients>,
    protocol: Protocol,
    telnet: bool,
) {
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
            Ok(connection) => {
                if let Err(error) =
                    serve(OwnedFd::from(connection).into(), clients, protocol, telnet)
                {
                    debug!("a client cannot be served: {error}");
                }
            }
            // It has gone in the meantime.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                debug!("cannot accept a client: {error}");
                thread::sleep(AFTER_ERROR);
            }
        }
    }
}

/// Starts a thread for one client.
fn serve(
    connection: File,
    clients: &Arc<Clients>,
    protocol: Protocol,
    telnet: bool,
) -> io::Result<()> {
    set_socket_timeout(connection.as_fd(), Timeout::Send, Some(PATIENCE))?;
    let (mut output, hung_up) = (connection.try_clone()?, connection.try_clone()?);
    let clients = clients.clone();
    let talk = move || {
        if !telnet {
            return clients.talk(connection, Box::new(output), Some(hung_up), protocol);
        }
        if output.write_all(&telnet::GREETING).is_ok() {
            let input = telnet::Reader::new(connection);
            clients.talk(input, Box::new(telnet::Writer(output)), Some(hung_up), protocol);
        }
    };
    thread::Builder::new().name("monitor client".into()).spawn(talk)?;
    Ok(())
}
