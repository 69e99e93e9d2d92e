//! The back-ends of serial ports and monitors for which `ring3 qemu` has more options than `ring3 run`:
//! character devices, which a port and monitors can share.

mod mux;
mod open;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};

use ring3_core::device::DeviceId;
use ring3_display::tty::Stderr;
use ring3_display::vnc;
use ring3_host::listener::{ListenError, Listener, inherited};
use ring3_host::socket::SocketError;
use ring3_host::stream::Stream;
use ring3_qmp::{CharacterInfo, Protocol, Server};
use ring3_vm::{Control, Sender};
use thiserror::Error;
use tracing::warn;

use crate::args::RunArguments;
use crate::display::DisplayTarget;
use crate::qemu::settings::{Address, Character, CharacterLog, Mode, Place, SocketPlace};
use crate::serial::cards::Slot;
use crate::serial::terminals::{Owner, Terminal, Terminals};
use crate::serial::{Line, Port, SerialError, SerialTarget, Taker};
pub(crate) use mux::Mux;
pub(crate) use open::{Close, Connections, connections, port};

/// Upper bound of the pieces of input that wait for a monitor.
const PIECES_WAITING: usize = 64;

/// The reasons why a character device cannot be opened.
#[derive(Debug, Error)]
pub(crate) enum CharacterError {
    #[error(transparent)]
    Serial(#[from] SerialError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("cannot connect to {place}: {source}")]
    Connect { place: String, source: io::Error },
    #[error("cannot open {place}: {source}")]
    Open { place: String, source: io::Error },
    #[error("cannot start a monitor: {0}")]
    Monitor(#[source] io::Error),
}

impl CharacterError {
    /// Returns the kind of the host's error, as far as there is one.
    pub(crate) fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            CharacterError::Open { source, .. } | CharacterError::Connect { source, .. } => {
                Some(source.kind())
            }
            CharacterError::Listen(ListenError::Socket(SocketError::Refused {
                source, ..
            })) => Some(source.kind()),
            _ => None,
        }
    }
}

/// Returns the place of a character device in QEMU's notation.
pub(crate) fn shown(place: &Place) -> String {
    match place {
        Place::Unknown | Place::Null => "null".to_owned(),
        Place::Stdio => "stdio".to_owned(),
        Place::File { path, .. } => format!("file:{}", path.display()),
        Place::Pty => "pty".to_owned(),
        Place::Pipe(path) => format!("pipe:{}", path.display()),
        Place::Socket(socket) => {
            let server = if socket.is_server { ",server=on" } else { "" };
            match &socket.address {
                Address::Unix(path) => format!("unix:{}{server}", path.display()),
                Address::Tcp(host, port) => {
                    let kind = if socket.telnet { "telnet" } else { "tcp" };
                    format!("{kind}:{host}:{port}{server}")
                }
                Address::Descriptor(number) => format!("fd:{number}{server}"),
            }
        }
    }
}

/// Returns the name of character device `index`.
fn label(character: &Character, index: usize) -> String {
    character.id.clone().unwrap_or_else(|| format!("char{index}"))
}

/// Returns the facts that tools may ask for: the name and UUID, the character devices of `arguments`, some of
/// which are at `terminals`, and the screen.
pub(crate) fn facts(arguments: &RunArguments, terminals: &Terminals) -> ring3_qmp::Facts {
    let terminal = |owner| terminals.name(owner).map(|name| format!("pty:{name}"));
    let mut characters = Vec::new();
    for (index, target) in arguments.serial_targets().iter().enumerate() {
        let name = match target {
            SerialTarget::Pty => terminal(Owner::Port(index)),
            _ => None,
        };
        let Some(place) = name.or_else(|| target.place()) else { continue };
        characters.push(CharacterInfo { label: format!("serial{index}"), place });
    }
    for (index, card) in arguments.serial_card.iter().enumerate() {
        let place = match &card.target {
            SerialTarget::Pty => terminal(Owner::Card(index)),
            target => target.place(),
        };
        let label = DeviceId::PCI_SERIAL.get(index).map(|device| device.name().to_owned());
        characters.extend(label.zip(place).map(|(label, place)| CharacterInfo { label, place }));
    }
    for (index, character) in arguments.qemu.characters.iter().enumerate() {
        let place = terminal(Owner::Character(index)).unwrap_or_else(|| shown(&character.place));
        characters.push(CharacterInfo { label: label(character, index), place });
    }
    let screen = match &arguments.display {
        DisplayTarget::Vnc(vnc::Address::Unix(path)) => Some(format!("unix:{}", path.display())),
        DisplayTarget::Vnc(vnc::Address::Loopback(address)) => Some(address.to_string()),
        DisplayTarget::Terminal | DisplayTarget::None => None,
    };
    ring3_qmp::Facts {
        name: arguments.name.clone(),
        uuid: arguments.board.uuid(),
        characters,
        screen,
    }
}

/// The character devices of a machine that something uses.
#[derive(Debug, Default)]
pub(crate) struct Characters {
    /// The devices that serial ports use, by number.
    ports: Vec<Option<Arc<Port>>>,
    /// The receiver of standard input.
    pub(crate) stdin: Option<Arc<dyn Taker>>,
    /// The other ends of pseudoterminals, held open while no program has them open.
    held: Vec<OwnedFd>,
}

impl Characters {
    /// Opens the character devices of `arguments`; pseudoterminals are among `terminals`. `server` serves the
    /// monitors; input for serial ports goes to `sender`.
    pub(crate) fn open(
        arguments: &RunArguments,
        sender: &Sender,
        server: Option<&Server>,
        terminals: &mut Terminals,
        cards: &[Arc<Slot>],
    ) -> Result<Characters, CharacterError> {
        let mut characters = Characters::default();
        let serial: Vec<_> = (0..).zip(arguments.serial_targets()).collect();
        for (index, character) in arguments.qemu.characters.iter().enumerate() {
            let wanted = SerialTarget::Character(index);
            let ports = serial.iter().filter(|(_, target)| *target == wanted);
            let ports = ports
                .map(|(port, _)| -> Arc<dyn Taker> { Arc::new(Line::new(*port, sender.clone())) });
            let lines = arguments.serial_card.iter().zip(cards);
            let lines = lines.filter(|(card, _)| card.target == wanted);
            let lines = lines.map(|(_, slot)| -> Arc<dyn Taker> { slot.clone() });
            let ports: Vec<_> = ports.chain(lines).collect();
            let monitors = arguments.qemu.monitors.iter().filter(|at| at.character == index);
            let monitors: Vec<_> = monitors.map(|at| at.mode).collect();
            let terminal = || {
                let terminal = terminals.take(Owner::Character(index))?;
                let label = label(character, index);
                // Programs look for QEMU's words.
                let line = format!("char device redirected to {} (label {label})", terminal.name);
                let _ = writeln!(Stderr, "{line}");
                Ok(terminal)
            };
            let port = match (ports.as_slice(), monitors.as_slice()) {
                ([], []) => None,
                ([], [mode]) if !character.is_shared => {
                    if let Some(server) = server {
                        let control = sender.control();
                        characters.serve(server, *mode, character, &control, terminal)?;
                    }
                    None
                }
                _ => {
                    let all = (ports.as_slice(), monitors.as_slice());
                    Some(characters.share(character, all, sender, server, terminal)?)
                }
            };
            characters.ports.push(port);
        }
        Ok(characters)
    }

    /// Returns the host's side of character device `index`.
    pub(crate) fn port(&self, index: usize) -> Option<Arc<Port>> {
        self.ports.get(index).cloned().flatten()
    }

    /// Serves a monitor that shares its place with nothing else.
    fn serve(
        &mut self,
        server: &Server,
        mode: Mode,
        character: &Character,
        control: &Control,
        terminal: impl FnOnce() -> Result<Terminal, CharacterError>,
    ) -> Result<(), CharacterError> {
        if let Some(CharacterLog { path, .. }) = &character.log {
            let path = path.display();
            warn!("nothing is copied to {path}: only the output of serial ports can be copied");
        }
        let protocol = protocol(mode);
        if let Place::Socket(SocketPlace { address, is_server: true, telnet, .. }) =
            &character.place
        {
            let listener = listener(address)?;
            return server.listen(listener, protocol, *telnet).map_err(CharacterError::Monitor);
        }
        let (input, output): (Box<dyn Read + Send>, Box<dyn Write + Send>) = match &character.place
        {
            Place::Unknown | Place::Null => return Ok(()),
            Place::Stdio if mode == Mode::Control => {
                let output = crate::output::stdout().map_err(CharacterError::Monitor)?;
                (Box::new(io::stdin()), Box::new(output))
            }
            Place::Stdio => {
                // A person types there, and has a key that ends the machine.
                let (taker, input) = feed(control.clone());
                self.stdin = Some(Arc::new(taker));
                (
                    Box::new(input),
                    Box::new(crate::output::stdout().map_err(CharacterError::Monitor)?),
                )
            }
            place => {
                let (input, output, held) = open::stream(place, terminal)?;
                self.held.extend(held);
                (Box::new(input), Box::new(output))
            }
        };
        server.talk(input, output, protocol).map_err(CharacterError::Monitor)
    }

    /// Opens a place for the lines `ports` of serial ports and for monitors. If several of them share it, the escape key
    /// switches between them.
    fn share(
        &mut self,
        character: &Character,
        (ports, monitors): (&[Arc<dyn Taker>], &[Mode]),
        sender: &Sender,
        server: Option<&Server>,
        terminal: impl FnOnce() -> Result<Terminal, CharacterError>,
    ) -> Result<Arc<Port>, CharacterError> {
        // What is typed at a terminal goes through the multiplexer, which knows the escape key.
        if !character.is_shared
            && character.place != Place::Stdio
            && let Some(line) = ports.first()
        {
            return Ok(Arc::new(open::port(character, line, terminal)?));
        }
        let mux = Arc::new(Mux::new(sender.clone()));
        let taker: Arc<dyn Taker> = mux.clone();
        let port = Arc::new(open::port(character, &taker, terminal)?);
        if character.place == Place::Stdio {
            self.stdin = Some(taker);
        }
        for line in ports {
            mux.add(line.clone(), None);
        }
        for mode in monitors {
            let Some(server) = server.map(Server::handle) else { continue };
            let (taker, input) = feed(sender.control());
            let output = PortWriter(port.clone());
            let protocol = protocol(*mode);
            mux.add(
                Arc::new(taker),
                // A monitor greets when the user switches to it for the first time.
                Some(Box::new(move || {
                    if let Err(error) = server.talk(input, output, protocol) {
                        warn!("cannot start a monitor: {error}");
                    }
                })),
            );
        }
        mux.show_help_at(port.clone());
        Ok(port)
    }
}

fn protocol(mode: Mode) -> Protocol {
    match mode {
        Mode::Readline => Protocol::Human,
        Mode::Control => Protocol::Machine,
    }
}

/// Opens a socket to which others connect.
fn listener(address: &Address) -> Result<Listener, ListenError> {
    match address {
        Address::Unix(path) => Ok(Listener::unix(path)?),
        Address::Tcp(host, port) => Listener::tcp_of_this_host(host, *port),
        Address::Descriptor(number) => Listener::inherited(*number),
    }
}

/// Connects to a socket of others.
fn connect(address: &Address) -> io::Result<File> {
    Ok(File::from(match address {
        Address::Unix(path) => Stream::unix(path)?.into(),
        Address::Tcp(host, port) => Stream::tcp((host.as_str(), *port))?.into(),
        Address::Descriptor(number) => inherited(*number)?,
    }))
}

/// The writing end of a monitor's input, for a monitor that shares a place or has the terminal.
#[derive(Debug)]
struct Feed(SyncSender<Vec<u8>>, Control);

/// The reading end of [`Feed`].
#[derive(Debug)]
struct FeedReader {
    pieces: Receiver<Vec<u8>>,
    rest: Vec<u8>,
}

fn feed(control: Control) -> (Feed, FeedReader) {
    let (sender, pieces) = mpsc::sync_channel(PIECES_WAITING);
    (Feed(sender, control), FeedReader { pieces, rest: Vec::new() })
}

/// Ctrl-C, which ends a program in a terminal.
const INTERRUPT: u8 = 3;

impl Taker for Feed {
    fn offer(&self, bytes: &[u8]) -> bool {
        if bytes.contains(&INTERRUPT) {
            self.1.quit();
        }
        !matches!(self.0.try_send(bytes.to_vec()), Err(TrySendError::Full(_)))
    }
}

impl Read for FeedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            let Ok(piece) = self.pieces.recv() else { return Ok(0) };
            self.rest = piece;
        }
        let length = self.rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.rest[..length]);
        self.rest.drain(..length);
        Ok(length)
    }
}

/// The output of a monitor that shares a place.
struct PortWriter(Arc<Port>);

impl Write for PortWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
