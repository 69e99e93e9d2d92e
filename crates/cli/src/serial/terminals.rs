//! Pseudoterminals. They are opened, and so have names, before anybody can ask for the names.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use super::{SerialError, SerialTarget};
use crate::args::RunArguments;
use crate::qemu::settings::Place;

/// A pseudoterminal that passes all bytes unchanged.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// ring3's end.
    pub(crate) master: OwnedFd,
    /// The other programs' end. While it is held open, the line stays up and keeps its settings.
    pub(crate) other: OwnedFd,
    /// The path by which other programs open their end.
    pub(crate) name: String,
}

impl Terminal {
    /// Opens a new pseudoterminal.
    pub(crate) fn open() -> Result<Terminal, SerialError> {
        Terminal::make().map_err(SerialError::Pty)
    }

    fn make() -> io::Result<Terminal> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let other = rustix::fs::open(&name, flags, Mode::empty())?;
        let mut attributes = tcgetattr(&other)?;
        attributes.make_raw();
        tcsetattr(&other, OptionalActions::Now, &attributes)?;
        Ok(Terminal { master, other, name: name.to_string_lossy().into_owned() })
    }
}

/// The user of a pseudoterminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// The serial port with this number, 0 for COM1.
    Port(usize),
    /// The serial card with this number.
    Card(usize),
    /// The character device with this number.
    Character(usize),
}

/// The pseudoterminals of a command line that have not been taken yet. They are opened before tools may
/// connect, since tools are told their names (`query-chardev`).
#[derive(Debug, Default)]
pub(crate) struct Terminals(BTreeMap<Owner, Terminal>);

impl Terminals {
    /// Opens the pseudoterminals for which `arguments` ask.
    pub(crate) fn open(arguments: &RunArguments) -> Result<Terminals, SerialError> {
        let targets = arguments.serial_targets();
        let ports = targets.iter().enumerate();
        let ports = ports.filter(|(_, target)| **target == SerialTarget::Pty);
        let characters = arguments.qemu.characters.iter().enumerate();
        let characters = characters.filter(|(_, character)| character.place == Place::Pty);
        let cards = arguments.serial_card.iter().enumerate();
        let cards = cards.filter(|(_, card)| card.target == SerialTarget::Pty);
        let owners = ports.map(|(index, _)| Owner::Port(index));
        let owners = owners.chain(cards.map(|(index, _)| Owner::Card(index)));
        let owners = owners.chain(characters.map(|(index, _)| Owner::Character(index)));
        owners.map(|owner| Ok((owner, Terminal::open()?))).collect::<Result<_, _>>().map(Terminals)
    }

    /// Returns the name of `owner`'s pseudoterminal.
    pub(crate) fn name(&self, owner: Owner) -> Option<&str> {
        self.0.get(&owner).map(|terminal| terminal.name.as_str())
    }

    /// Takes `owner`'s pseudoterminal, or opens one if there is none yet.
    pub(crate) fn take(&mut self, owner: Owner) -> Result<Terminal, SerialError> {
        self.0.remove(&owner).map_or_else(Terminal::open, Ok)
    }
}
