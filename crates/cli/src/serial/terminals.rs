//! Pseudoterminals, which have their names before anybody can ask for them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use super::{SerialError, SerialTarget};
use crate::args::RunArguments;
use crate::qemu::settings::Place;

/// A pseudoterminal that passes every byte as it is.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// Our end.
    pub(crate) master: OwnedFd,
    /// The end of others. The line stays up, and as it was set, as long as it is held open.
    pub(crate) other: OwnedFd,
    /// The path by which others open their end.
    pub(crate) name: String,
}

impl Terminal {
    /// A new one.
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

/// Whose a pseudoterminal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// The serial port of that number, 0 for COM1.
    Port(usize),
    /// The character device of that number.
    Character(usize),
}

/// The pseudoterminals of a command line that nobody has yet. They are made before tools are let in, which are told their names
/// (`query-chardev`).
#[derive(Debug, Default)]
pub(crate) struct Terminals(BTreeMap<Owner, Terminal>);

impl Terminals {
    /// Makes those that `arguments` ask for.
    pub(crate) fn open(arguments: &RunArguments) -> Result<Terminals, SerialError> {
        let targets = arguments.serial_targets();
        let ports = targets.iter().enumerate();
        let ports = ports.filter(|(_, target)| **target == SerialTarget::Pty);
        let characters = arguments.qemu.characters.iter().enumerate();
        let characters = characters.filter(|(_, character)| character.place == Place::Pty);
        let owners = ports.map(|(index, _)| Owner::Port(index));
        let owners = owners.chain(characters.map(|(index, _)| Owner::Character(index)));
        owners.map(|owner| Ok((owner, Terminal::open()?))).collect::<Result<_, _>>().map(Terminals)
    }

    /// The name of the one of `owner`.
    pub(crate) fn name(&self, owner: Owner) -> Option<&str> {
        self.0.get(&owner).map(|terminal| terminal.name.as_str())
    }

    /// The one of `owner`, made now if it was not made before.
    pub(crate) fn take(&mut self, owner: Owner) -> Result<Terminal, SerialError> {
        self.0.remove(&owner).map_or_else(Terminal::open, Ok)
    }
}
