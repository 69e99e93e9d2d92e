//! The threads of the server, and its clients.
//!
//! Each client has a thread that reads its messages and answers them. Another thread waits for the machine's
//! events and sends them to all clients. Both write to a client under its lock, which is held from a command
//! to its answer. So a client receives the answer to a command before the events that the command causes.
//! Commands are executed one after the other, from whichever client they come.

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

use ring3_gdb::Place;
use ring3_host::listener::{ListenError, Listener};
use ring3_host::socket::{SocketError, SocketFile};
use ring3_host::stream::hang_up;
use ring3_host::telnet;
use ring3_vm::Control;
use ring3_vm::control::Event;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::Value;
use tracing::{debug, warn};

use crate::characters::Characters;
use crate::commands::{Facts, Machine};
use crate::debuggers::Debuggers;
use crate::framing::Framer;
use crate::monitor;
use crate::networks::Networks;
use crate::news::News;
use crate::protocol;
use crate::session::{self, Session};

/// How long a client may take no output before it is disconnected.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the end of the process waits until the last event is sent.
const PARTING: Duration = Duration::from_secs(2);
/// How long to wait after a client could not be accepted, for example when descriptors have run out.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// The most clients at a time; others are disconnected.
const CLIENTS_MAX: usize = 32;

/// The protocol that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// QMP, for tools.
    Machine,
    /// Lines of text, for people (QEMU, "QEMU Monitor").
    Human,
}

/// A server with threads of its own. It serves until its machine has ended.
#[derive(Debug)]
pub struct Server {
    /// The clients. They belong to their threads: ending the server must not wait for a node to flush its
    /// data to a server that is gone.
    clients: Weak<Clients>,
    debuggers: Arc<Debuggers>,
    /// Disconnected when all clients have received the event that the machine has ended.
    told: Receiver<()>,
    /// Closed at the same time.
    stopped: Arc<UnixStream>,
    /// The sockets, which are removed with the server.
    sockets: Mutex<Vec<SocketFile>>,
}

impl Server {
    /// Makes a server for the machine behind `control`, without clients.
    pub fn new(control: &Control, facts: Facts) -> io::Result<Server> {
        let (stop, stopped) = UnixStream::pair()?;
        let (news, heard) = News::new();
        let machine = Machine::new(control.clone(), facts, news)?;
        let clients =
            Arc::new(Clients { machine, state: Mutex::default(), turn: Mutex::default() });
        let debuggers = clients.machine.debuggers().clone();
        let executing = Arc::downgrade(&clients);
        debuggers.set_monitor(Arc::new(move |line: &str| {
            executing.upgrade().map_or_else(String::new, |clients| clients.execute(line))
        }));
        let listening = Arc::downgrade(&clients);
        thread::Builder::new().name("qmp news".into()).spawn(move || {
            // The machine with the other end of this channel belongs to the clients.
            for message in heard {
                let Some(clients) = listening.upgrade() else { return };
                clients.tell(&message);
            }
        })?;
        let events = control.subscribe();
        let (telling, told) = mpsc::channel();
        let teller = clients;
        let clients = Arc::downgrade(&teller);
        thread::Builder::new().name("qmp events".into()).spawn(move || {
            for event in events {
                let asked = teller.machine.asked();
                asked.signal.store(teller.machine.control.was_signalled(), Ordering::Relaxed);
                if event == Event::Arrived && !teller.machine.mover().note_arrival() {
                    continue;
                }
                let message = protocol::event(&event, asked);
                teller.tell(&message);
            }
            teller.end();
            let _: (UnixStream, Sender<()>) = (stop, telling);
        })?;
        Ok(Server {
            clients,
            debuggers,
            told,
            stopped: Arc::new(stopped),
            sockets: Mutex::default(),
        })
    }

    /// Has `maker` make the networks that clients add. Without one, or after the first one, this does nothing.
    pub fn make_networks_by(&self, maker: Arc<dyn Networks>) {
        if let Some(clients) = self.clients.upgrade() {
            clients.machine.make_networks_by(maker);
        }
    }

    /// Has `maker` make the character devices that clients add. Without one, or after the first one, this does nothing.
    pub fn make_characters_by(&self, maker: Arc<dyn Characters>) {
        if let Some(clients) = self.clients.upgrade() {
            clients.machine.make_characters_by(maker);
        }
    }

    /// Serves the tools that connect to a new Unix socket at `path`. The socket is removed with the server.
    pub fn on_socket(control: &Control, path: &Path, facts: Facts) -> Result<Server, ListenError> {
        let refused = |source| SocketError::Refused { path: path.to_owned(), source };
        let server = Server::new(control, facts).map_err(refused)?;
        server.listen(Listener::unix(path)?, Protocol::Machine, false).map_err(refused)?;
        Ok(server)
    }

    /// Serves the one tool that writes to `input` and reads from `output`, such as standard input and output.
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

    /// Serves the clients that connect to `listener` as well, by the telnet protocol if `telnet` is true.
    pub fn listen(
        &self,
        mut listener: Listener,
        protocol: Protocol,
        telnet: bool,
    ) -> io::Result<()> {
        lock(&self.sockets).extend(listener.take_file());
        let stopped = self.stopped.clone();
        // The server of a machine that has ended serves nobody.
        let Some(clients) = self.clients.upgrade() else { return Ok(()) };
        let accept = move || accept_clients(&listener, &stopped, &clients, protocol, telnet);
        thread::Builder::new().name("monitor".into()).spawn(accept)?;
        Ok(())
    }

    /// Serves one more client, which writes to `input` and reads from `output`.
    pub fn talk(
        &self,
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
        protocol: Protocol,
    ) -> io::Result<()> {
        self.handle().talk(input, output, protocol)
    }

    /// Serves debuggers at `place`.
    ///
    /// # Errors
    /// If the place cannot be used.
    pub fn debug_at(&self, control: &Control, place: &Place) -> Result<(), ListenError> {
        self.debuggers.serve(control, place)
    }

    /// Returns a handle that adds clients later.
    pub fn handle(&self) -> Handle {
        Handle(self.clients.clone())
    }

    /// Waits until the clients know that the machine has ended, at most for two seconds. The machine must
    /// have ended.
    pub fn finish(self) {
        // Nothing is sent on this channel: it is disconnected, or the wait times out.
        let _ = self.told.recv_timeout(PARTING);
        self.debuggers.stop();
    }
}

/// Adds clients to a server, which may have ended.
#[derive(Debug, Clone)]
pub struct Handle(Weak<Clients>);

impl Handle {
    /// Serves one client, as [`Server::talk`] does.
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

/// The machine and its clients.
#[derive(Debug)]
struct Clients {
    machine: Machine,
    state: Mutex<State>,
    /// The lock that is held while a command is executed.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    clients: Vec<Arc<Mutex<Client>>>,
    /// Whether no more clients are accepted.
    ended: bool,
}

/// Locks a mutex. A thread that panicked has left the state consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clients {
    /// Sends an event to the clients that want events.
    fn tell(&self, event: &Value) {
        let clients = lock(&self.state).clients.clone();
        for client in clients {
            let mut client = lock(&client);
            if client.session.as_ref().is_some_and(Session::wants_events) {
                client.write(event);
            }
        }
    }

    /// Disconnects all clients permanently.
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

    /// Adds a client, if there is room for it.
    fn enter(&self, client: Client) -> Option<Arc<Mutex<Client>>> {
        let mut state = lock(&self.state);
        if state.ended || state.clients.len() >= CLIENTS_MAX {
            return None;
        }
        let client = Arc::new(Mutex::new(client));
        state.clients.push(client.clone());
        Some(client)
    }

    /// Talks with one client until it disconnects or the machine ends. `connection` is closed at the end.
    fn talk(
        &self,
        mut input: impl Read,
        output: Box<dyn Write + Send>,
        connection: Option<File>,
        protocol: Protocol,
    ) {
        let session = (protocol == Protocol::Machine).then(Session::default);
        let Some(client) = self.enter(Client { output: Some(output), connection, session }) else {
            debug!("a client is refused: {CLIENTS_MAX} are connected, or the machine has ended");
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
            Ok(()) => debug!("the client is disconnected"),
            Err(error) => debug!("the client cannot be read: {error}"),
        }
        lock(&client).hang_up();
        lock(&self.state).clients.retain(|other| !Arc::ptr_eq(other, &client));
    }

    /// Executes a line of a person, and returns the answer.
    fn execute(&self, line: &str) -> String {
        let _turn = lock(&self.turn);
        monitor::execute(&self.machine, line)
    }

    /// Answers messages until the input ends.
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

    /// Executes the lines that a person types, until the input ends.
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
                    let text = self.execute(&line);
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

/// Reads, and continues after signals.
fn read(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match input.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// A connected client.
struct Client {
    /// The output, or None after the client was disconnected.
    output: Option<Box<dyn Write + Send>>,
    connection: Option<File>,
    /// The session of a tool.
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

    /// Sends bytes. A client that does not take them is disconnected.
    fn send(&mut self, bytes: &[u8]) {
        let Some(output) = &mut self.output else { return };
        if let Err(error) = output.write_all(bytes).and_then(|()| output.flush()) {
            match error.kind() {
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                    debug!("the client is disconnected: {error}");
                }
                _ => warn!("a client that does not read its messages is disconnected: {error}"),
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

/// Talks with the clients that connect, until the other end of `stopped` is closed.
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
                warn!("no more clients can connect: {error}");
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
            // The client has disconnected in the meantime.
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
