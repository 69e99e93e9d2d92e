//! The directory of a supervisor: its socket, its record, and a directory for each part.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::definition::{Client, Definitions, Disk, Machine, Name, OptionValue, Provider};
use crate::error::Error;

/// The rights of others to the directory.
const RIGHTS_OF_OTHERS: u32 = 0o077;

/// See the module.
#[derive(Debug, Clone)]
pub struct Place {
    directory: PathBuf,
}

impl Place {
    /// Returns the place at `directory`, or the usual one: `ring3` in `$XDG_RUNTIME_DIR`, or `/tmp/ring3-UID`.
    pub fn new(directory: Option<&Path>) -> Place {
        let usual = || match env::var_os("XDG_RUNTIME_DIR") {
            Some(directory) if !directory.is_empty() => PathBuf::from(directory).join("ring3"),
            _ => env::temp_dir().join(format!("ring3-{}", rustix::process::geteuid().as_raw())),
        };
        let directory = directory.map_or_else(usual, Path::to_owned);
        // Processes of parts have other working directories.
        Place { directory: std::path::absolute(&directory).unwrap_or(directory) }
    }

    /// Makes the directory if it is not there. Nobody else may have rights to it: who can connect to the sockets
    /// in it can do whatever this user can.
    pub fn prepare(&self) -> Result<(), Error> {
        let failed = |source| Error::Directory { path: self.directory.clone(), source };
        make_directory(&self.directory).map_err(failed)?;
        let found = fs::symlink_metadata(&self.directory).map_err(failed)?;
        let is_own = found.uid() == rustix::process::geteuid().as_raw();
        if !found.is_dir() || !is_own || found.mode() & RIGHTS_OF_OTHERS != 0 {
            return Err(Error::Strangers(self.directory.clone()));
        }
        Ok(())
    }

    /// Returns the directory itself.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the socket for commands.
    pub fn control(&self) -> PathBuf {
        self.directory.join("supervisor")
    }

    /// Returns the file with the record of all parts.
    pub(crate) fn record(&self) -> PathBuf {
        self.directory.join("record.json")
    }

    /// Returns the directory with those of all parts.
    pub fn parts(&self) -> PathBuf {
        self.directory.join("parts")
    }

    /// Returns the place of a part.
    pub fn part(&self, name: &Name) -> PartPlace {
        PartPlace { directory: self.parts().join(name.as_str()) }
    }
}

/// Returns the socket of a provider of the server of disks `server`.
pub(crate) fn provider_socket(
    server: &Name,
    name: &Name,
    provider: &Provider,
    all: &Definitions,
    place: &Place,
) -> PathBuf {
    given_socket(server, provider.socket.as_deref(), all)
        .unwrap_or_else(|| place.part(server).provider(name))
}

/// Returns the socket at which a client of the server of disks `server` learns of its disks.
pub(crate) fn client_socket(
    server: &Name,
    name: &Name,
    client: &Client,
    all: &Definitions,
    place: &Place,
) -> PathBuf {
    given_socket(server, client.socket.as_deref(), all)
        .unwrap_or_else(|| place.part(server).client(name))
}

/// Returns the path that a server's definition gives a socket, if it does. Other processes than the server use it, too.
fn given_socket(server: &Name, socket: Option<&Path>, all: &Definitions) -> Option<PathBuf> {
    let directory = all.get(server).and_then(|server| server.common().directory.as_deref());
    socket.map(|socket| directory.unwrap_or(Path::new("/")).join(socket))
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

impl Machine {
    /// Returns the Unix sockets of the serial lines, COM1 first. Lines that are elsewhere have none.
    pub(crate) fn serial_sockets(&self, place: &PartPlace) -> Vec<Option<PathBuf>> {
        let socket = |target: &OptionValue| match target {
            OptionValue::Text(text) => {
                let path = Path::new(text.strip_prefix("unix:")?);
                let directory = self.common.directory.as_deref().unwrap_or(Path::new("/"));
                Some(directory.join(path))
            }
            _ => None,
        };
        match self.options.get("serial") {
            None => vec![Some(place.serial())],
            Some(OptionValue::List(targets)) => targets.iter().map(socket).collect(),
            Some(target) => vec![socket(target)],
        }
    }
}

/// The directory of a part.
#[derive(Debug, Clone)]
pub struct PartPlace {
    directory: PathBuf,
}

impl PartPlace {
    /// Makes the directory if it is not there.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        make_directory(&self.directory)
    }

    /// Removes the directory with all that is in it.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.directory)
    }

    /// Returns the directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the socket by which the supervisor talks with the process: a machine's QMP, a server's commands or, of
    /// the server of a page, its status.
    pub fn control(&self) -> PathBuf {
        self.directory.join("control")
    }

    /// Returns the socket at which a switch tells its counters.
    pub(crate) fn status(&self) -> PathBuf {
        self.directory.join("status")
    }

    /// Returns the socket of a server of consoles at which clients may look, and not type.
    pub fn watch(&self) -> PathBuf {
        self.directory.join("watch")
    }

    /// Returns the usual file with the token of a page.
    pub fn token(&self) -> PathBuf {
        self.directory.join("token")
    }

    /// Returns the file with the last words of the process.
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Returns the socket of a machine's first serial line.
    pub fn serial(&self) -> PathBuf {
        self.directory.join("serial")
    }

    /// Returns the socket of a machine's screen (VNC).
    pub fn screen(&self) -> PathBuf {
        self.directory.join("screen")
    }

    /// Returns the socket of one of a machine's disks.
    pub(crate) fn disk(&self, disk: &Disk) -> PathBuf {
        self.directory.join(format!("{}:{}", disk.server, disk.device))
    }

    /// Returns the socket of the channel by which a machine's guest launches others.
    pub(crate) fn launcher(&self) -> PathBuf {
        self.directory.join("launcher")
    }

    /// Returns the usual socket of a provider of a server of disks.
    fn provider(&self, name: &Name) -> PathBuf {
        self.directory.join(format!("provider:{name}"))
    }

    /// Returns the usual socket of a client of a server of disks.
    fn client(&self, name: &Name) -> PathBuf {
        self.directory.join(format!("client:{name}"))
    }

    /// Returns the socket of a switch.
    pub(crate) fn network(&self) -> PathBuf {
        self.directory.join("network")
    }
}
