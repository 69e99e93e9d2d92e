//! Frames over a connection: QEMU's `-netdev stream` and `-netdev socket`. The framing is that of `message`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io::{self, IoSlice, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use ring3_core::input::DeviceInput;
use ring3_core::net::Packet;
use ring3_socket::{SocketFile, listen_at};
use ring3_vm::networks::Network;
use ring3_vm::{Fetched, Source};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};
use tracing::{info, warn};

use crate::card::Card;
use crate::error::NetError;
use crate::message::{Message, Notice, Reader, Received};
use crate::outgoing::{MESSAGES_AT_ONCE, Outgoing, Queued, Sink};

/// How long the other end may take nothing before what is sent to it is lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// After so many bytes, what has come is to go on.
const AT_ONCE: usize = 128 << 10;

/// Where the other end is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamAddress {
    /// `HOST:PORT`.
    Tcp(String),
    /// The path of a socket.
    Unix(PathBuf),
}

impl fmt::Display for StreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamAddress::Tcp(address) => f.write_str(address),
            StreamAddress::Unix(path) => path.display().fmt(f),
        }
    }
}

/// What connection is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamOptions {
    /// Where.
    pub address: StreamAddress,
    /// Others connect, one at a time.
    pub is_server: bool,
    /// How long to wait before it is tried again, for a client: none to try only once.
    pub reconnect: Option<Duration>,
    /// Packets go unfinished and large where the other end understands that.
    pub headers: bool,
}

/// Listens at `address`. A Unix socket is for this user alone, and its file goes with what is returned beside the listener.
pub(crate) fn listen(address: &StreamAddress) -> Result<(Listener, Option<SocketFile>), NetError> {
    let refused = |source| NetError::Listen { address: address.to_string(), source };
    match address {
        StreamAddress::Tcp(text) => {
            let listener = TcpListener::bind(text.as_str()).map_err(refused)?;
            Ok((Listener::Tcp(listener), None))
        }
        StreamAddress::Unix(path) => {
            let (listener, file) = listen_at(path)?;
            listener.set_nonblocking(false).map_err(refused)?;
            Ok((Listener::Unix(listener), Some(file)))
        }
    }
}

/// Where others connect.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Waits for the next one. It fails when this was [cut](Listener::cut).
    pub(crate) fn accept(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.into()
            }
            Listener::Unix(listener) => listener.accept()?.0.into(),
        })
    }

    /// The descriptor to wait for.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }

    fn cut(&self) {
        // It is open.
        let _ = match self {
            Listener::Tcp(listener) => shutdown(listener, Shutdown::Both),
            Listener::Unix(listener) => shutdown(listener, Shutdown::Both),
        };
    }
}

/// Connects to `address`.
fn connect(address: &StreamAddress) -> io::Result<OwnedFd> {
    Ok(match address {
        StreamAddress::Tcp(text) => {
            let stream = TcpStream::connect(text.as_str())?;
            stream.set_nodelay(true)?;
            stream.into()
        }
        StreamAddress::Unix(path) => UnixStream::connect(path)?.into(),
    })
}

/// A connection to the other end.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) reader: Reader<ReceivingEnd>,
    /// [`Notice::Hello`] has come over it.
    pub(crate) was_greeted: bool,
}

/// Where it is read from.
#[derive(Debug)]
pub(crate) struct ReceivingEnd {
    socket: OwnedFd,
    /// Whoever reads waits until something comes.
    waits: bool,
}

impl Read for ReceivingEnd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let flags = if self.waits { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let (count, _) = recv(&self.socket, buffer, flags)?;
        Ok(count)
    }
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Connection> {
        let reader = Reader::new(ReceivingEnd { socket: socket.try_clone()?, waits: true });
        Ok(Connection { socket, reader, was_greeted: false })
    }
}

/// Where connections come from, one after the other, but for the first.
pub(crate) trait Connector: Send + 'static {
    /// The next one: none if there will be no more. While it waits for a time, it does so by [`Outgoing::wait`].
    fn next(&mut self, outgoing: &Outgoing<StreamSink>) -> Option<Connection>;
}

struct Server(Arc<Listener>);

impl Connector for Server {
    fn next(&mut self, outgoing: &Outgoing<StreamSink>) -> Option<Connection> {
        loop {
            match self.0.accept().and_then(Connection::new) {
                Ok(connection) => return Some(connection),
                // Cut, or without descriptors for a moment.
                Err(_) if outgoing.wait(Duration::from_millis(100)) => {}
                Err(_) => return None,
            }
        }
    }
}

struct Client(StreamOptions);

impl Connector for Client {
    fn next(&mut self, outgoing: &Outgoing<StreamSink>) -> Option<Connection> {
        let pause = self.0.reconnect?;
        loop {
            if let Ok(connection) = connect(&self.0.address).and_then(Connection::new) {
                return Some(connection);
            }
            if !outgoing.wait(pause) {
                return None;
            }
        }
    }
}

/// A listener that is there until this is dropped, and its file with it.
#[derive(Debug)]
struct Listening {
    listener: Arc<Listener>,
    _file: Option<SocketFile>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.listener.cut();
    }
}

/// Makes the connection of a network, or listens for it. Without [`StreamOptions::reconnect`] a client's must be there.
pub(crate) fn open(options: StreamOptions, card: Card) -> Result<Box<dyn Network>, NetError> {
    let headers = options.headers;
    if options.is_server {
        let (listener, file) = listen(&options.address)?;
        let listener = Arc::new(listener);
        let server = Server(listener.clone());
        return start_with(card, headers, None, server, Listening { listener, _file: file });
    }
    let first = match connect(&options.address).and_then(Connection::new) {
        Ok(first) => Some(first),
        Err(_) if options.reconnect.is_some() => None,
        Err(source) => {
            return Err(NetError::Connect { address: options.address.to_string(), source });
        }
    };
    start_with(card, headers, first, Client(options), ())
}

/// A network over a connection that is there, and then over those from `connector`. Packets go unfinished and large where the other end understands that.
pub(crate) fn start(
    card: Card,
    first: Connection,
    connector: impl Connector,
) -> Result<Box<dyn Network>, NetError> {
    start_with(card, true, Some(first), connector, ())
}

/// The same, with what goes with it.
fn start_with(
    card: Card,
    headers: bool,
    first: Option<Connection>,
    connector: impl Connector,
    receiving: impl fmt::Debug + Send + 'static,
) -> Result<Box<dyn Network>, NetError> {
    let outgoing = Outgoing::start(card.clone())?;
    let network = Queued::new(outgoing.clone(), receiving);
    let link = Link { card, outgoing, headers };
    // What the card sends from now on is not lost.
    let first = first.and_then(|connection| link.connect(connection));
    let thread = thread::Builder::new().name(format!("{} in", link.card.name()));
    thread.spawn(move || link.serve(first, connector)).map_err(NetError::Thread)?;
    Ok(Box::new(network))
}

/// A card and what it sends.
struct Link {
    card: Card,
    outgoing: Arc<Outgoing<StreamSink>>,
    headers: bool,
}

impl Link {
    /// Has the card send to `connection`: none if that cannot be used, or if there is no card any more.
    fn connect(&self, connection: Connection) -> Option<Incoming> {
        let Connection { socket, mut reader, was_greeted } = connection;
        reader.stream_mut().waits = false;
        let (card, outgoing) = (&self.card, &self.outgoing);
        let sink = match StreamSink::new(socket) {
            Ok(sink) => Arc::new(sink),
            Err(error) => {
                warn!("{}: a connection cannot be used: {error}", card.name());
                return None;
            }
        };
        if !outgoing.connect(&sink) {
            return None;
        }
        info!("{}: connected", card.name());
        if self.headers {
            outgoing.notify(if was_greeted { &Notice::Headers } else { &Notice::Hello });
            if let Some(address) = card.address() {
                outgoing.notify(&Notice::Address(address));
            }
        }
        let (card, outgoing) = (card.clone(), outgoing.clone());
        Some(Incoming { card, outgoing, headers: self.headers, sink, reader })
    }

    /// Hands over what comes, until there are no connections any more.
    fn serve(&self, first: Option<Incoming>, mut connector: impl Connector) {
        if let Some(first) = first {
            self.receive(first);
        }
        while let Some(connection) = connector.next(&self.outgoing) {
            if let Some(connected) = self.connect(connection) {
                self.receive(connected);
            }
        }
        self.card.ended();
    }

    /// Lets the machine fetch what comes by a connection, or hands it over, until that ends.
    fn receive(&self, incoming: Incoming) {
        let (whole, ended) = mpsc::channel();
        match self.card.attach(Box::new(Fetching { incoming, _whole: whole })) {
            // Nobody sends, so it waits until the connection is dropped.
            Ok(()) => drop(ended.recv()),
            Err(mut source) => while self.hand_over(&mut *source) {},
        }
    }

    /// Hands over what has come, and waits for more if that is all. False at the end.
    fn hand_over(&self, source: &mut dyn Source) -> bool {
        let mut bytes = 0;
        while bytes < AT_ONCE {
            match source.fetch() {
                Fetched::Input(DeviceInput::Packet(packet)) => {
                    bytes += packet.bytes.len();
                    self.card.take(packet);
                }
                Fetched::Input(_) => {}
                Fetched::Nothing => {
                    self.card.flush();
                    let descriptor = PollFd::from_borrowed_fd(source.descriptor(), PollFlags::IN);
                    // Interrupted, or without memory for a moment, it finds nothing.
                    let _ = poll(&mut [descriptor], None);
                    return true;
                }
                Fetched::Ended => return false,
            }
        }
        self.card.flush();
        true
    }
}

/// What comes by a connection to which the card sends, until this is dropped.
struct Incoming {
    card: Card,
    outgoing: Arc<Outgoing<StreamSink>>,
    headers: bool,
    sink: Arc<StreamSink>,
    reader: Reader<ReceivingEnd>,
}

impl Incoming {
    /// The next packet: none at the end.
    fn receive(&mut self) -> io::Result<Option<Packet>> {
        while let Some(received) = self.reader.receive()? {
            match received {
                Received::Packet(packet) => return Ok(Some(packet)),
                Received::Notice(Notice::Address(address)) => self.card.told_address(address),
                Received::Notice(Notice::Hello) if self.headers => {
                    self.outgoing.notify(&Notice::Headers);
                }
                Received::Notice(Notice::Failed(text)) => {
                    warn!("{}: the other side does not work: {text}", self.card.name());
                }
                Received::Notice(_) => {}
            }
        }
        Ok(None)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.sink.cut();
        self.outgoing.disconnect();
        info!("{}: disconnected", self.card.name());
    }
}

/// The same, as a machine fetches it. Fields are dropped in their order: who waits for the end sees that of the connection.
struct Fetching {
    incoming: Incoming,
    _whole: mpsc::Sender<Infallible>,
}

impl Source for Fetching {
    fn device(&self) -> &str {
        self.incoming.card.name()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.incoming.sink.0.as_fd()
    }

    fn fetch(&mut self) -> Fetched {
        let received = self.incoming.receive();
        let card = &self.incoming.card;
        match received {
            Ok(Some(packet)) => {
                card.note(&packet);
                Fetched::Input(DeviceInput::Packet(packet))
            }
            Ok(None) => Fetched::Ended,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Fetched::Nothing,
            // The other side has ended and not taken what was sent last.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Fetched::Ended,
            Err(error) => {
                warn!("{}: the connection is lost: {error}", card.name());
                Fetched::Ended
            }
        }
    }
}

/// The sending side of a connection.
#[derive(Debug)]
pub(crate) struct StreamSink(OwnedFd);

impl StreamSink {
    /// That of `socket`.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<StreamSink> {
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        Ok(StreamSink(socket))
    }
}

impl Sink for StreamSink {
    fn send(&self, messages: &mut VecDeque<Message>, waits: bool) -> io::Result<bool> {
        let waiting = if waits { SendFlags::empty() } else { SendFlags::DONTWAIT };
        while !messages.is_empty() {
            let batch = messages.iter().take(MESSAGES_AT_ONCE);
            let parts: Vec<_> = batch.flat_map(Message::parts).map(IoSlice::new).collect();
            let mut control = SendAncillaryBuffer::default();
            let flags = waiting | SendFlags::NOSIGNAL;
            let mut sent = match sendmsg(self.0.as_fd(), &parts, &mut control, flags) {
                Ok(sent) => sent,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            while let Some(first) = messages.front_mut() {
                let left = first.left();
                if sent < left {
                    first.advance(sent);
                    break;
                }
                sent -= left;
                messages.pop_front();
            }
        }
        Ok(true)
    }

    fn cut(&self) {
        // The other end may have done it already.
        let _ = shutdown(&self.0, Shutdown::Both);
    }

    fn message(&self, frame: Vec<u8>) -> Message {
        Message::frame(frame)
    }
}
