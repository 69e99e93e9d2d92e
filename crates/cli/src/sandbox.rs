//! `--sandbox`: the rights that the machine's process keeps while the guest runs.
//!
//! Everything that the command line names is open by then. [`rights`] says what may be opened later, option
//! by option.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use ring3_display::vnc;
use ring3_gdb::Place as GdbPlace;
use ring3_net::{DgramOptions, StreamAddress};
use ring3_sandbox::{Access, Files, Ports, Rights, denials, has_seccomp, landlock_version};
use ring3_vm::Vm;
use thiserror::Error;
use tracing::{debug, warn};

use crate::args::{QmpTarget, RunArguments};
use crate::channels::ChannelPlace;
use crate::display::DisplayTarget;
use crate::nics::backend::Behind;
use crate::qemu::properties::Properties;
use crate::qemu::settings::{Address, Place, SocketPlace};
use crate::serial::SerialTarget;

/// The value of `--sandbox`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SandboxProperties {
    pub(crate) mode: Mode,
    /// Directories, to whose files clients are limited.
    pub(crate) files: Vec<PathBuf>,
}

/// Whether rights are given up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// None are.
    Off,
    /// All must be.
    On,
    /// Those that the host allows to give up.
    #[default]
    Auto,
}

/// The reason why a `--sandbox` is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum BadSandbox {
    #[error(
        "give on, off or auto, and with on or auto ,files=DIRECTORY for each directory whose files clients may use"
    )]
    Mode,
    #[error("{0}")]
    Properties(String),
}

impl FromStr for SandboxProperties {
    type Err = BadSandbox;

    fn from_str(text: &str) -> Result<SandboxProperties, BadSandbox> {
        let mut properties = Properties::parse(text, Some("mode"));
        let mode = match properties.take("mode").as_deref() {
            Some("on") => Mode::On,
            Some("off") => Mode::Off,
            Some("auto") => Mode::Auto,
            _ => return Err(BadSandbox::Mode),
        };
        let files: Vec<_> = properties.take_all("files").into_iter().map(PathBuf::from).collect();
        properties.finish("mode and files").map_err(BadSandbox::Properties)?;
        if mode == Mode::Off && !files.is_empty() {
            return Err(BadSandbox::Mode);
        }
        Ok(SandboxProperties { mode, files })
    }
}

/// The reason why there is no sandbox.
#[derive(Debug, Error)]
#[error("the sandbox is not whole: {0}; give --sandbox auto to run with what this host has")]
pub(crate) struct SandboxError(String);

impl SandboxProperties {
    /// Finds out in time whether the host has what is asked for.
    pub(crate) fn check(&self) -> Result<(), SandboxError> {
        let lacks = |what: &str| Err(SandboxError(format!("this host has no {what}")));
        match self.mode {
            Mode::On if !has_seccomp() => lacks("seccomp"),
            Mode::On if landlock_version().is_none() => lacks("Landlock"),
            _ => Ok(()),
        }
    }
}

/// Gives up all rights but those that `vm` and `arguments` need.
pub(crate) fn enter(arguments: &RunArguments, vm: &Vm) -> Result<(), SandboxError> {
    let mode = arguments.sandbox.mode;
    if mode == Mode::Off {
        return Ok(());
    }
    let rights = rights(arguments, vm);
    debug!("the sandbox leaves {rights:?}");
    match keep_only(&rights) {
        Some(lacks) if mode == Mode::On => Err(SandboxError(lacks)),
        _ => Ok(()),
    }
}

/// Gives up all other rights. Logs and returns what the host lacks, if it lacks anything.
fn keep_only(rights: &Rights) -> Option<String> {
    let shortfalls: Vec<_> = rights.keep_only().iter().map(ToString::to_string).collect();
    let lacks = (!shortfalls.is_empty()).then(|| shortfalls.join(", "));
    if let Some(lacks) = &lacks {
        debug!("the sandbox is not whole: {lacks}");
    }
    lacks
}

/// Gives up all rights but those that a switch needs that listens at `sockets` and has `uplinks`, as far as
/// the host allows.
pub(crate) fn enter_as_switch<'a>(
    sockets: impl Iterator<Item = &'a Path>,
    uplinks: impl Iterator<Item = &'a Behind>,
) {
    let mut needs = Needs::default();
    sockets.for_each(|path| needs.beside(path, Access::Remove));
    uplinks.for_each(|behind| needs.for_network(behind));
    needs.keep_only();
}

/// Gives up all rights but those that a server of disks needs that listens at `sockets`, as far as the host
/// allows. Its images may connect to servers again if it `reconnects`; clients with a control socket name files.
pub(crate) fn enter_as_disk_server<'a>(
    sockets: impl Iterator<Item = &'a Path>,
    later: impl Iterator<Item = &'a Path>,
    reconnects: bool,
    has_control: bool,
) {
    let mut needs = Needs::default();
    sockets.for_each(|path| needs.beside(path, Access::Remove));
    for path in later {
        needs.beside(path, Access::Change);
        needs.rights.listens = true;
    }
    if reconnects {
        needs.for_servers();
    }
    if has_control {
        needs.for_clients(&[]);
    }
    needs.keep_only();
}

/// Gives up all rights but those that a server of consoles needs that listens beside `socket`, as far as the host allows:
/// it connects to machines and to the supervisor, and reads the logs in `parts`.
pub(crate) fn enter_as_console(parts: &Path, socket: &Path) {
    let mut needs = Needs::default();
    needs.beside(socket, Access::Remove);
    needs.beside(&parts.join("any"), Access::Read);
    needs.rights.connects_to_unix_sockets = true;
    needs.keep_only();
}

/// Gives up all rights but those that the server of a page needs, as far as the host allows: it connects to machines, to
/// the server of consoles and to the supervisor, and lists the images in `media`. It may listen at `sockets`.
pub(crate) fn enter_as_page<'a>(media: Option<&Path>, sockets: impl IntoIterator<Item = &'a Path>) {
    let mut needs = Needs::default();
    if let Some(media) = media {
        needs.beside(&media.join("any"), Access::List);
    }
    sockets.into_iter().for_each(|path| needs.beside(path, Access::Remove));
    needs.rights.connects_to_unix_sockets = true;
    needs.keep_only();
}

/// Logs the system calls that were denied.
pub(crate) fn report() {
    let denied: Vec<_> = denials().iter().map(ToString::to_string).collect();
    if denied.is_empty() {
        debug!("the sandbox has denied no system call");
    } else {
        warn!(
            "the sandbox has denied system calls: {}; \"ring3 run --sandbox off\" runs without it",
            denied.join(", ")
        );
    }
}

/// Returns the rights that are needed while the guest runs, and when the run ends.
fn rights(arguments: &RunArguments, vm: &Vm) -> Rights {
    let mut needs = Needs::default();
    needs.for_sockets(arguments);
    needs.for_characters(arguments);
    for card in arguments.nics.cards() {
        needs.for_network(&card.network.behind);
    }
    if let Some(path) = &arguments.qemu.pid_file {
        needs.beside(path, Access::Remove);
    }
    if let Some(directory) = &arguments.memory_path {
        // A reset, and a machine that is loaded, take new memory.
        needs.beside(&directory.join("memory"), Access::Change);
    }
    if let Some(last) = &arguments.repetition.record_last {
        needs.beside(&last.path(), Access::Change);
    }
    if let Some(path) = arguments.observed.written_at_the_end() {
        needs.beside(&path, Access::Change);
    }
    if vm.drives().iter().any(|(_, drive)| drive.reconnects()) {
        needs.for_servers();
    }
    let is_driven = arguments.has_monitor() || arguments.gdb.is_some();
    if is_driven {
        needs.for_clients(&arguments.sandbox.files);
    }
    needs.for_names();
    needs.rights
}

/// The files that are read to find the addresses of hosts. A link's target may be replaced by a new file.
const RESOLVER: [&str; 8] = [
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/services",
    "/run/systemd/resolve",
    "/run/NetworkManager",
];

/// Rights that are being collected.
#[derive(Debug, Default)]
struct Needs {
    rights: Rights,
}

impl Needs {
    /// Adds the files of the directory of `path`.
    fn beside(&mut self, path: &Path, access: Access) {
        if let Files::These(places) = &mut self.rights.files {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let place = (parent.unwrap_or(Path::new(".")).to_owned(), access);
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }

    fn connects_to(&mut self, port: Option<u16>) {
        match (&mut self.rights.tcp, port) {
            (Ports::These(ports), Some(port)) => ports.push(port),
            (tcp, _) => *tcp = Ports::Any,
        }
    }

    /// The sockets at which the machine listens are removed when it ends. A screen in the terminal uses that.
    fn for_sockets(&mut self, arguments: &RunArguments) {
        let serial = arguments.serial_lines().filter_map(|target| match target {
            SerialTarget::Socket(path) => Some(path),
            _ => None,
        });
        let qmp = arguments.qmp.iter().filter_map(|target| match target {
            QmpTarget::Socket(path) => Some(path),
            QmpTarget::Stdio => None,
        });
        let gdb = arguments.gdb.iter().filter_map(|place| match place {
            GdbPlace::Unix(path) => Some(path),
            _ => None,
        });
        let vnc = match &arguments.display {
            DisplayTarget::Vnc(vnc::Address::Unix(path)) => Some(path),
            _ => None,
        };
        if arguments.display == DisplayTarget::Terminal
            && let Files::These(places) = &mut self.rights.files
        {
            // Its size is asked for there, and if standard input is something else, keys are read there.
            places.push(("/dev/tty".into(), Access::Change));
        }
        let channels = arguments.board.channel.iter().filter_map(|channel| match &channel.place {
            ChannelPlace::Socket(path) => Some(path),
            ChannelPlace::Character(_) => None,
        });
        for path in serial.chain(channels).chain(qmp).chain(vnc) {
            self.beside(path, Access::Remove);
        }
        for path in gdb {
            // The debugger of a replay can connect only when the machine stands where it is wanted.
            let is_later = arguments.repetition.replay.is_some();
            self.beside(path, if is_later { Access::Change } else { Access::Remove });
        }
    }

    fn for_characters(&mut self, arguments: &RunArguments) {
        for character in &arguments.qemu.characters {
            let Place::Socket(SocketPlace { address, is_server, reconnect, .. }) = &character.place
            else {
                continue;
            };
            match address {
                Address::Unix(path) if *is_server => self.beside(path, Access::Remove),
                Address::Unix(_) if reconnect.is_some() => {
                    self.rights.connects_to_unix_sockets = true;
                }
                Address::Tcp(_, port) if !is_server && reconnect.is_some() => {
                    self.connects_to(Some(*port));
                }
                _ => {}
            }
        }
    }

    fn for_network(&mut self, behind: &Behind) {
        match behind {
            Behind::Stream(stream) => match &stream.address {
                StreamAddress::Unix(path) if stream.is_server => {
                    self.beside(path, Access::Remove);
                }
                StreamAddress::Unix(_) if stream.reconnect.is_some() => {
                    self.rights.connects_to_unix_sockets = true;
                }
                StreamAddress::Tcp(address) if stream.reconnect.is_some() => {
                    let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
                    self.connects_to(port);
                }
                _ => {}
            },
            Behind::Dgram(DgramOptions::Unix { local, .. }) => self.beside(local, Access::Remove),
            Behind::Switch { .. } => self.rights.connects_to_unix_sockets = true,
            Behind::Dgram(_) | Behind::User(_) | Behind::Tap(_) => {}
        }
    }

    /// Gives up all other rights, as far as the host allows.
    fn keep_only(mut self) {
        self.for_names();
        keep_only(&self.rights);
    }

    /// Connections to servers of disks are made again when they are lost.
    fn for_servers(&mut self) {
        self.rights.connects_to_unix_sockets = true;
        self.rights.tcp = Ports::Any;
    }

    /// Clients name files, sockets and ports in their commands: for pictures, saved machines, disks,
    /// migration.
    fn for_clients(&mut self, directories: &[PathBuf]) {
        self.rights.connects_to_unix_sockets = true;
        self.rights.tcp = Ports::Any;
        self.rights.listens = true;
        match &mut self.rights.files {
            Files::These(places) if !directories.is_empty() => {
                places.extend(directories.iter().map(|path| (path.clone(), Access::Change)));
            }
            files => *files = Files::Any,
        }
    }

    /// Connections to hosts need their addresses.
    fn for_names(&mut self) {
        if self.rights.tcp != Ports::These(Vec::new())
            && let Files::These(places) = &mut self.rights.files
        {
            places.extend(RESOLVER.map(|path| (path.into(), Access::Read)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        let read = |text: &str| text.parse::<SandboxProperties>();
        assert_eq!(read("auto"), Ok(SandboxProperties::default()));
        let (files, mode) = (vec!["/a".into(), "b".into()], Mode::On);
        assert_eq!(read("on,files=/a,files=b"), Ok(SandboxProperties { mode, files }));
        let off = SandboxProperties { mode: Mode::Off, files: vec![] };
        assert_eq!(read("off"), Ok(off));
        for bad in ["", "yes", "on,off", "off,files=/a", "on,ports=3"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
