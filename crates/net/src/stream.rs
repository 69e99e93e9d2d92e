//! Frames over a connection: QEMU's `-netdev stream` and `-netdev socket`. `message` defines the framing.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::slice;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use ring3_core::input::DeviceInput;
use ring3_host::listener::{Listener, for_this_host};
use ring3_host::socket::SocketFile;
use ring3_host::stream::Stream;
use ring3_vm::networks::Network;
use ring3_vm::{Fetched, Source};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_domain};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recv, recvmsg, sendmsg, shutdown,
};
use tracing::{info, warn};

use crate::card::Card;
use crate::error::NetError;
use crate::message::{Message, Notice, Reader, Received};
use crate::outgoing::{MESSAGES_AT_ONCE, Outgoing, Queued, Sink};
use crate::short_cuts::{ShortCuts, Shortened};

/// How long the other end may take nothing before packets sent to it are lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// Number of received bytes after which the machine gets them before more are read.
const AT_ONCE: usize = 128 << 10;

/// Upper bound of the descriptors that have come and wait for their notice.
const DESCRIPTORS_MAX: usize = 16;

/// The address of the other end.
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

/// The options of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamOptions {
    /// The address of the other end, or the one at which this end listens.
    pub address: StreamAddress,
    /// Whether this end listens. Others connect, one at a time.
    pub is_server: bool,
    /// For a client: the time after which it tries again to connect. Without it, it tries only once.
    pub reconnect: Option<Duration>,
    /// Whether packets are sent unfinished and large if the other end understands that.
    pub headers: bool,
}

/// Listens at `address`. A Unix socket is for this user alone.
pub(crate) fn listen(address: &StreamAddress) -> Result<Listener, NetError> {
    match address {
        StreamAddress::Tcp(text) => Listener::tcp(text.as_str())
            .map_err(|source| NetError::Listen { address: address.to_string(), source }),
        StreamAddress::Unix(path) => Ok(Listener::unix(path)?),
    }
}

/// Listens at `address` for `what`, which other hosts must not reach.
pub(crate) fn listen_on_this_host(
    what: &'static str,
    address: &StreamAddress,
) -> Result<Listener, NetError> {
    if let StreamAddress::Tcp(text) = address {
        let refused = |source| NetError::Listen { address: address.to_string(), source };
        for place in text.to_socket_addrs().map_err(refused)? {
            for_this_host(what, place)?;
        }
    }
    listen(address)
}

/// Connects to `address`.
fn connect(address: &StreamAddress) -> io::Result<OwnedFd> {
    Ok(match address {
        StreamAddress::Tcp(text) => Stream::tcp(text.as_str())?,
        StreamAddress::Unix(path) => Stream::unix(path)?,
    }
    .into())
}

/// A connection to the other end.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) reader: Reader<ReceivingEnd>,
    /// Whether [`Notice::Hello`] has come over it.
    pub(crate) was_greeted: bool,
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(crate) struct ReceivingEnd {
    socket: OwnedFd,
    /// Whether reading waits until something comes.
    waits: bool,
    /// Descriptors that have come with the bytes, if they are accepted.
    descriptors: Option<VecDeque<OwnedFd>>,
}

impl ReceivingEnd {
    /// Returns the receiving side of `socket`; reading fails if nothing has come yet.
    pub(crate) fn without_waiting(socket: OwnedFd) -> ReceivingEnd {
        ReceivingEnd { socket, waits: false, descriptors: None }
    }

    /// Takes the descriptor that has come first.
    fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.as_mut()?.pop_front()
    }
}

impl Read for ReceivingEnd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let flags = if self.waits { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let Some(descriptors) = &mut self.descriptors else {
            let (count, _) = recv(&self.socket, buffer, flags)?;
            return Ok(count);
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                let room = DESCRIPTORS_MAX.saturating_sub(descriptors.len());
                descriptors.extend(rights.take(room));
            }
        }
        Ok(received.bytes)
    }
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Connection> {
        let end = ReceivingEnd { socket: socket.try_clone()?, waits: true, descriptors: None };
        let reader = Reader::new(end);
        Ok(Connection { socket, reader, was_greeted: false })
    }
}

/// The source of a network's connections, one after the other, apart from the first.
pub(crate) trait Connector: Send + 'static {
    /// Returns the next connection; None if there will be no more. Any pause uses [`Outgoing::wait`].
    fn next(&mut self, outgoing: &Outgoing<StreamSink>) -> Option<Connection>;
}

struct Server(Arc<Listener>);

impl Connector for Server {
    fn next(&mut self, outgoing: &Outgoing<StreamSink>) -> Option<Connection> {
        loop {
            match self.0.wait().and_then(|stream| Connection::new(stream.into())) {
                Ok(connection) => return Some(connection),
                // The listener was cut, or there are no descriptors for a moment.
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

/// A listener that exists until this is dropped. Its file is removed with it.
#[derive(Debug)]
struct Listening {
    listener: Arc<Listener>,
    _file: Option<SocketFile>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.listener.close();
    }
}

/// Makes the connection of a network, or listens for it. Without [`StreamOptions::reconnect`] the server of a
/// client must exist now.
pub(crate) fn open(options: StreamOptions, card: Card) -> Result<Box<dyn Network>, NetError> {
    let headers = options.headers;
    if options.is_server {
        let mut listener = listen(&options.address)?;
        let file = listener.take_file();
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

/// Returns a network over the connection `first`, and then over those from `connector`. Packets are sent
/// unfinished and large if the other end understands that.
pub(crate) fn start(
    card: Card,
    first: Connection,
    connector: impl Connector,
) -> Result<Box<dyn Network>, NetError> {
    start_with(card, true, Some(first), connector, ())
}

/// Does the same as [`start`] with the objects that belong to the network.
fn start_with(
    card: Card,
    headers: bool,
    first: Option<Connection>,
    connector: impl Connector,
    receiving: impl fmt::Debug + Send + 'static,
) -> Result<Box<dyn Network>, NetError> {
    let outgoing = Outgoing::start(card.clone())?;
    let network = Queued::new(outgoing.clone(), receiving);
    let short_cuts = if headers { ShortCuts::of(&card) } else { None };
    let network: Box<dyn Network> = match short_cuts.clone() {
        Some(short_cuts) => Box::new(Shortened::new(network, short_cuts)),
        None => Box::new(network),
    };
    let link = Link { card, outgoing, headers, short_cuts };
    // Packets that the card sends from now on are not lost.
    let first = first.and_then(|connection| link.connect(connection));
    let thread = thread::Builder::new().name(format!("{} in", link.card.name()));
    thread.spawn(move || link.serve(first, connector)).map_err(NetError::Thread)?;
    Ok(network)
}

/// A card, and the queue of the packets that it sends.
struct Link {
    card: Card,
    outgoing: Arc<Outgoing<StreamSink>>,
    headers: bool,
    /// Its short cuts, if it takes any.
    short_cuts: Option<Arc<ShortCuts>>,
}

impl Link {
    /// Makes the card send to `connection`. Returns None if the connection cannot be used, or if the card is
    /// gone.
    fn connect(&self, connection: Connection) -> Option<Linked> {
        let (card, outgoing) = (&self.card, &self.outgoing);
        let was_greeted = connection.was_greeted;
        // Only sockets of this host carry descriptors.
        let is_local = matches!(socket_domain(&connection.socket), Ok(AddressFamily::UNIX));
        let short_cuts = self.short_cuts.clone().filter(|_| is_local);
        let incoming = match Incoming::new(card.clone(), outgoing.clone(), connection) {
            Ok(incoming) => incoming?,
            Err(error) => {
                warn!("{}: a connection cannot be used: {error}", card.name());
                return None;
            }
        };
        info!("{}: connected", card.name());
        if self.headers {
            outgoing.notify(if was_greeted { &Notice::Headers } else { &Notice::Hello });
            if let Some(address) = card.address() {
                outgoing.notify(&Notice::Address(address));
            }
            if short_cuts.is_some() {
                outgoing.notify(&Notice::ShortCuts);
            }
        }
        let mut linked = Linked { incoming, headers: self.headers, short_cuts };
        if linked.short_cuts.is_some() {
            linked.incoming.take_descriptors();
        }
        Some(linked)
    }

    /// Hands over the packets that arrive, until there are no more connections.
    fn serve(&self, first: Option<Linked>, mut connector: impl Connector) {
        let mut is_wanted = first.is_none_or(|first| self.receive(first));
        while is_wanted && let Some(connection) = connector.next(&self.outgoing) {
            if let Some(connected) = self.connect(connection) {
                is_wanted = self.receive(connected);
            }
        }
        self.card.ended();
    }

    /// Lets the machine fetch the packets that arrive over a connection, or hands them over, until the
    /// connection ends. Returns false if the machine has dropped it, as an ending machine does; it wants no
    /// other one.
    fn receive(&self, linked: Linked) -> bool {
        let (told, ended) = mpsc::channel();
        let end = End { has_come: false, told };
        match self.card.attach(Box::new(Fetching { linked, end })) {
            Ok(()) => ended.recv().is_ok(),
            Err(mut source) => {
                while self.hand_over(&mut *source) {}
                true
            }
        }
    }

    /// Hands over the packets that have arrived, and waits for more. Returns false at the end.
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
                    // If poll() was interrupted, or had no memory for a moment, the next round finds nothing.
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

/// The receiving side of a connection to which the card sends, until this is dropped.
pub(crate) struct Incoming {
    card: Card,
    outgoing: Arc<Outgoing<StreamSink>>,
    sink: Arc<StreamSink>,
    reader: Reader<ReceivingEnd>,
}

/// The result of looking for a packet or notice.
pub(crate) enum FetchedMessage {
    Message(Received),
    /// Nothing has come yet.
    Nothing,
    /// Nothing will ever come again.
    Ended,
}

impl Incoming {
    /// Makes `outgoing` send to `connection`, for `card`. Returns None if the card is gone.
    pub(crate) fn new(
        card: Card,
        outgoing: Arc<Outgoing<StreamSink>>,
        connection: Connection,
    ) -> io::Result<Option<Incoming>> {
        let Connection { socket, mut reader, .. } = connection;
        reader.stream_mut().waits = false;
        let sink = Arc::new(StreamSink::new(socket)?);
        let is_open = outgoing.connect(&sink);
        Ok(is_open.then_some(Incoming { card, outgoing, sink, reader }))
    }

    /// Keeps descriptors that come, for their notices.
    fn take_descriptors(&mut self) {
        self.reader.stream_mut().descriptors = Some(VecDeque::new());
    }

    /// Returns the queue for the other direction.
    pub(crate) fn outgoing(&self) -> &Arc<Outgoing<StreamSink>> {
        &self.outgoing
    }

    /// Returns the descriptor that can be read when something has come.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.sink.0.as_fd()
    }

    /// Takes the next packet or notice, without waiting.
    pub(crate) fn fetch(&mut self) -> FetchedMessage {
        match self.reader.receive() {
            Ok(Some(received)) => FetchedMessage::Message(received),
            Ok(None) => FetchedMessage::Ended,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => FetchedMessage::Nothing,
            // The other side has ended without taking the last packets.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => FetchedMessage::Ended,
            Err(error) => {
                warn!("{}: the connection is lost: {error}", self.card.name());
                FetchedMessage::Ended
            }
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.sink.cut();
        self.outgoing.disconnect();
    }
}

/// The receiving side of a network's connection.
struct Linked {
    incoming: Incoming,
    headers: bool,
    /// Its short cuts, if it takes any.
    short_cuts: Option<Arc<ShortCuts>>,
}

impl Linked {
    /// Handles a notice of the other side.
    fn heed(&mut self, notice: Notice) {
        let Incoming { card, outgoing, reader, .. } = &mut self.incoming;
        match notice {
            Notice::Address(address) => card.told_address(address),
            Notice::Hello if self.headers => {
                outgoing.notify(&Notice::Headers);
            }
            Notice::Failed(text) => {
                warn!("{}: the network does not work: {text}", card.name());
            }
            Notice::ShortCuts => card.takes_short_cuts(outgoing),
            Notice::ShortCut(to) => {
                let socket = reader.stream_mut().take_descriptor();
                if let (Some(short_cuts), Some(socket)) = (&self.short_cuts, socket) {
                    short_cuts.add(to, socket, outgoing);
                }
            }
            Notice::Turned(address) => match &self.short_cuts {
                Some(short_cuts) => short_cuts.open(address),
                None => card.told_turned(address),
            },
            Notice::Carried(from, carried) => card.told_carried(from, carried),
            Notice::Hello | Notice::Headers => {}
        }
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        if let Some(short_cuts) = &self.short_cuts {
            short_cuts.clear();
        }
        info!("{}: disconnected", self.incoming.card.name());
    }
}

/// The receiving side, as a machine fetches from it. The fields are dropped in their order, so whoever waits
/// for the end sees that of the connection.
struct Fetching {
    linked: Linked,
    end: End,
}

/// Tells those who wait for the end of a connection that it has ended, when it is dropped. If it has not
/// ended they are not told: the machine has dropped it.
struct End {
    has_come: bool,
    told: mpsc::Sender<()>,
}

impl Drop for End {
    fn drop(&mut self) {
        if self.has_come {
            // Nobody waits if the source was returned.
            let _ = self.told.send(());
        }
    }
}

impl Source for Fetching {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.linked.incoming.descriptor()
    }

    fn fetch(&mut self) -> Fetched {
        loop {
            match self.linked.incoming.fetch() {
                FetchedMessage::Message(Received::Packet(packet)) => {
                    self.linked.incoming.card.note(&packet);
                    return Fetched::Input(DeviceInput::Packet(packet));
                }
                FetchedMessage::Message(Received::Notice(notice)) => self.linked.heed(notice),
                FetchedMessage::Nothing => return Fetched::Nothing,
                FetchedMessage::Ended => {
                    self.end.has_come = true;
                    return Fetched::Ended;
                }
            }
        }
    }
}

/// The sending side of a connection.
#[derive(Debug)]
pub(crate) struct StreamSink(OwnedFd);

impl StreamSink {
    /// Returns the sending side of `socket`.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<StreamSink> {
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        Ok(StreamSink(socket))
    }
}

impl Sink for StreamSink {
    fn send(&self, messages: &mut VecDeque<Message>, waits: bool) -> io::Result<bool> {
        let waiting = if waits { SendFlags::empty() } else { SendFlags::DONTWAIT };
        while !messages.is_empty() {
            // A message with a descriptor is sent alone.
            let descriptor = messages.front().and_then(Message::descriptor);
            let together =
                |message: &&Message| descriptor.is_none() && message.descriptor().is_none();
            let others = messages.iter().skip(1).take(MESSAGES_AT_ONCE - 1).take_while(together);
            let batch = messages.front().into_iter().chain(others);
            let parts: Vec<_> = batch.flat_map(Message::parts).map(IoSlice::new).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if let Some(descriptor) = &descriptor {
                // There is room for one descriptor.
                control.push(SendAncillaryMessage::ScmRights(slice::from_ref(descriptor)));
            }
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
        // The other end may have closed it already.
        let _ = shutdown(&self.0, Shutdown::Both);
    }

    fn message(&self, frame: Vec<u8>) -> Message {
        Message::frame(frame)
    }
}
