//! Serial cards on PCI: those of the command line, and those that clients of the monitors add, with the character devices
//! that these make for them.

use std::io::{self, ErrorKind, Write};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring3_core::device::DeviceId;
use ring3_display::tty::Stderr;
use ring3_qmp::{Character as QmpCharacter, Characters as QmpCharacters};
use ring3_vm::serial_lines::SerialLine;
use ring3_vm::{Sender, Vm};

use super::clients::Clients;
use super::terminals::{Owner, Terminal, Terminals};
use super::{BadSerialTarget, Line, Port, SerialError, SerialTarget, Taker};
use crate::args::RunArguments;
use crate::characters::{CharacterError, Characters, port};
use crate::output::Output;
use crate::qemu::characters::character;
use crate::qemu::properties::Properties;
use crate::qemu::settings::{Address, Place, SocketPlace};
use crate::sandbox::Mode;

/// The number of serial cards that a machine can have.
pub(crate) const CARDS_MAX: usize = DeviceId::PCI_SERIAL.len();

/// A serial card of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SerialCardTarget {
    pub(crate) target: SerialTarget,
    /// The id by which people know the card.
    pub(crate) id: Option<String>,
}

impl FromStr for SerialCardTarget {
    type Err = BadCardTarget;

    fn from_str(text: &str) -> Result<SerialCardTarget, BadCardTarget> {
        match text.parse() {
            Ok(SerialTarget::Stdio | SerialTarget::None) | Err(BadSerialTarget) => {
                Err(BadCardTarget)
            }
            Ok(target) => Ok(SerialCardTarget { target, id: None }),
        }
    }
}

/// The reason why a `--serial-card` is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("give \"null\", \"file:PATH\", \"unix:PATH\" or \"pty\"")]
pub(crate) struct BadCardTarget;

/// The way from a back-end to the card that it is connected to, if it is connected to one.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Line>>);

impl Slot {
    /// Locks the line. A thread that panicked has left it consistent.
    fn lock(&self) -> MutexGuard<'_, Option<Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taker for Slot {
    fn offer(&self, bytes: &[u8]) -> bool {
        self.lock().as_ref().is_some_and(|line| line.offer(bytes))
    }
}

/// A back-end that is connected to a card. When it is dropped, the back-end waits for another card.
#[derive(Debug)]
struct Connected {
    port: Arc<Port>,
    slot: Arc<Slot>,
}

impl SerialLine for Connected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.port.write(bytes)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.slot.lock().take();
    }
}

/// Returns the ways to the cards of the command line, whose inputs go to `sender`.
pub(crate) fn slots(arguments: &RunArguments, sender: &Sender) -> Vec<Arc<Slot>> {
    let cards = arguments.serial_card.iter().zip(DeviceId::PCI_SERIAL);
    cards.map(|(_, device)| Arc::new(Slot(Mutex::new(Some(line(device, sender)))))).collect()
}

/// Returns the line to the card `device`.
fn line(device: DeviceId, sender: &Sender) -> Line {
    let index = DeviceId::SERIAL.into_iter().position(|other| other == device);
    Line::new(index.unwrap_or(0), sender.clone())
}

/// The host's side of the serial cards of the command line.
#[derive(Debug, Default)]
pub(crate) struct SerialCards(Vec<Card>);

#[derive(Debug)]
struct Card {
    port: Arc<Port>,
    slot: Arc<Slot>,
    id: Option<String>,
    /// The name of the character device.
    character: Option<String>,
}

impl SerialCards {
    /// Opens the back-ends of the cards of `arguments`, whose inputs go to `slots`. Some are among `characters`, and some
    /// pseudoterminals among `terminals`.
    pub(crate) fn open(
        arguments: &RunArguments,
        slots: Vec<Arc<Slot>>,
        characters: &Characters,
        terminals: &mut Terminals,
    ) -> Result<SerialCards, SerialError> {
        let mut cards = Vec::new();
        let all = arguments.serial_card.iter().zip(DeviceId::PCI_SERIAL).zip(slots);
        for (number, ((SerialCardTarget { target, id }, device), slot)) in all.enumerate() {
            let mut character = None;
            let port = Arc::new(match target {
                SerialTarget::Character(index) => {
                    character =
                        arguments.qemu.characters.get(*index).and_then(|known| known.id.clone());
                    let port = characters.port(*index).unwrap_or_else(|| Arc::new(Port::Null));
                    cards.push(Card { port, slot, id: id.clone(), character });
                    continue;
                }
                SerialTarget::Null | SerialTarget::None | SerialTarget::Stdio => Port::Null,
                SerialTarget::File(path) => {
                    let fails = |source| SerialError::File { path: path.clone(), source };
                    Port::Output(Output::create(path).map_err(fails)?)
                }
                SerialTarget::Socket(path) => {
                    Port::Clients(Clients::on_socket(path, slot.clone())?)
                }
                SerialTarget::Pty => {
                    let terminal = terminals.take(Owner::Card(number))?;
                    // A failure is ignored: without standard error nobody can read the name.
                    let _ = writeln!(Stderr, "ring3: {device} is {}", terminal.name);
                    Port::Clients(Clients::on_terminal(terminal, slot.clone())?)
                }
            });
            cards.push(Card { port, slot, id: id.clone(), character });
        }
        Ok(SerialCards(cards))
    }

    /// Attaches them to `vm`.
    pub(crate) fn attach(self, vm: &mut Vm) {
        let cards = self.0.into_iter().zip(DeviceId::PCI_SERIAL);
        for (Card { port, slot, id, character }, device) in cards {
            vm.attach_serial(device, character, Box::new(Connected { port, slot }));
            if let Some(id) = id {
                vm.name_card(device, id);
            }
        }
    }
}

/// The maker of the character devices of clients.
#[derive(Debug)]
pub(crate) struct LaterCharacters {
    /// Bytes from the devices go to its door.
    sender: Sender,
    sandbox: Mode,
}

impl LaterCharacters {
    /// Makes character devices for the machine with the door of `sender`, which runs in such a sandbox.
    pub(crate) fn new(sender: Sender, sandbox: Mode) -> Arc<LaterCharacters> {
        Arc::new(LaterCharacters { sender, sandbox })
    }

    /// Explains why a device cannot be opened.
    fn explain(&self, error: &CharacterError) -> String {
        match error.kind() {
            Some(ErrorKind::PermissionDenied) if self.sandbox != Mode::Off => format!(
                "{error}; the sandbox leaves a machine that runs the directories of --sandbox auto,files=DIRECTORY"
            ),
            _ => error.to_string(),
        }
    }
}

impl QmpCharacters for LaterCharacters {
    fn open(&self, properties: &str) -> Result<Arc<dyn QmpCharacter>, String> {
        let properties = Properties::parse_either(properties, Some("backend"))?;
        let wanted = character(properties, &mut |_| {})?;
        let reason = match &wanted.place {
            Place::Stdio => "standard input and output can be given on the command line alone",
            Place::Pipe(_) => "a pipe can be given on the command line alone: give a socket",
            Place::Socket(SocketPlace { address: Address::Descriptor(_), .. }) => {
                "a descriptor can be given on the command line alone: give path, or host and port"
            }
            Place::Pty if self.sandbox != Mode::Off => {
                "the sandbox keeps a machine that runs from making a pseudoterminal: give socket, or start the machine \
                 with --sandbox off"
            }
            _ if wanted.is_shared => "nothing can share it: leave mux out",
            _ => "",
        };
        if !reason.is_empty() {
            return Err(reason.to_owned());
        }
        let mut place = crate::characters::shown(&wanted.place);
        let slot = Arc::new(Slot::default());
        let taker: Arc<dyn Taker> = slot.clone();
        let terminal = || {
            let terminal = Terminal::open()?;
            place = format!("pty:{}", terminal.name);
            Ok(terminal)
        };
        let port = port(&wanted, &taker, terminal).map_err(|error| self.explain(&error))?;
        Ok(Arc::new(Later { port: Arc::new(port), slot, place, sender: self.sender.clone() }))
    }
}

/// A character device of a client.
#[derive(Debug)]
struct Later {
    port: Arc<Port>,
    slot: Arc<Slot>,
    place: String,
    sender: Sender,
}

impl QmpCharacter for Later {
    fn place(&self) -> &str {
        &self.place
    }

    fn is_used(&self) -> bool {
        self.slot.lock().is_some()
    }

    fn connect(&self, device: DeviceId) -> Option<Box<dyn SerialLine>> {
        let mut slot = self.slot.lock();
        if slot.is_some() {
            return None;
        }
        *slot = Some(line(device, &self.sender));
        Some(Box::new(Connected { port: self.port.clone(), slot: self.slot.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use ring3_core::input::{DeviceInput, Input};

    use super::*;

    #[test]
    fn targets_are_read() {
        let read = |text: &str| text.parse::<SerialCardTarget>().map(|card| card.target);
        assert_eq!(read("pty"), Ok(SerialTarget::Pty));
        assert_eq!(read("unix:a"), Ok(SerialTarget::Socket("a".into())));
        for bad in ["stdio", "none", "", "file:", "tty"] {
            assert_eq!(read(bad), Err(BadCardTarget), "{bad:?}");
        }
    }

    #[test]
    fn a_device_serves_one_card_after_the_other_and_closes() {
        let path = std::env::temp_dir().join(format!("ring3-chardev-{}", std::process::id()));
        let (sender, mut door) = ring3_vm::door();
        let maker = LaterCharacters::new(sender, Mode::Off);
        let properties = serde_json::json!({"backend": "socket", "path": path, "server": true});
        let device = maker.open(&properties.to_string()).unwrap();
        assert_eq!(device.place(), format!("unix:{},server=on", path.display()));
        let mut client = UnixStream::connect(&path).unwrap();
        for card in DeviceId::PCI_SERIAL {
            let mut line = device.connect(card).unwrap();
            assert!(device.is_used() && device.connect(card).is_none());
            client.write_all(b"x").unwrap();
            door.wait(None, |_| true);
            let input = DeviceInput::Serial(b"x".to_vec());
            assert_eq!(door.take(|_| true), Some(Input::Device { device: card, input }));
            line.write(b"y").unwrap();
            let mut seen = [0];
            client.read_exact(&mut seen).unwrap();
            assert_eq!(&seen, b"y");
        }
        assert!(!device.is_used());
        drop(device);
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "it hangs up");
        assert!(!path.exists());
    }

    #[test]
    fn what_only_a_command_line_can_give_is_refused() {
        let (sender, _door) = ring3_vm::door();
        let maker = LaterCharacters::new(sender, Mode::Auto);
        for (properties, part) in [
            ("stdio", "command line"),
            ("pipe,path=/a", "socket"),
            ("socket,fd=3", "path"),
            ("pty", "--sandbox off"),
            ("null,mux=on", "mux"),
            ("udp,host=a", "datagrams"),
            ("file", "path=FILE"),
            ("null,colour=red", "colour"),
        ] {
            let error = maker.open(properties).unwrap_err();
            assert!(error.contains(part), "{properties}: {error}");
        }
        assert!(maker.open("null").is_ok());
    }
}
