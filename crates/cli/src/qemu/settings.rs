//! Settings of a run that `ring3 qemu` has options for and `ring3 run` has not.

use std::path::PathBuf;
use std::time::Duration;

use ring3_devices::virtio::memory::ExtraMemoryModel;

use crate::status::Status;

/// The settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QemuSettings {
    /// The size of memory that a machine must have that comes from another process.
    pub(crate) incoming_memory: Option<u64>,
    /// Whether the machine is built, and quits before its first instruction.
    pub(crate) dry_run: bool,
    /// A file for the number of the process while the machine runs.
    pub(crate) pid_file: Option<PathBuf>,
    /// Whether a process without a terminal runs the machine.
    pub(crate) daemonize: bool,
    /// Whether this is that process.
    pub(crate) is_daemon: bool,
    /// Streams of bytes, for serial ports and monitors.
    pub(crate) characters: Vec<Character>,
    /// The monitors, by which people and tools drive the machine.
    pub(crate) monitors: Vec<Monitor>,
    /// Whether one of them is there only because of `-nographic`, on standard input and output.
    pub(crate) has_implied_monitor: bool,
    /// Memory that comes and goes.
    pub(crate) extra_memory: Option<ExtraMemory>,
    /// The exit status, if the guest's system fails and that ends the run; None for the one of `ring3 run`.
    pub(crate) status_of_panic: Option<Status>,
}

/// Memory that comes and goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExtraMemory {
    pub(crate) model: ExtraMemoryModel,
    /// The id by which people know the device.
    pub(crate) id: Option<String>,
}

/// A character device: a stream of bytes to and from a place on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Character {
    /// Its id on the command line.
    pub(crate) id: Option<String>,
    pub(crate) place: Place,
    /// Whether several users share it; the escape key switches between them.
    pub(crate) is_shared: bool,
    /// A file that gets a copy of the output.
    pub(crate) log: Option<CharacterLog>,
}

/// A file with all output of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CharacterLog {
    pub(crate) path: PathBuf,
    /// Whether the present contents of the file are kept.
    pub(crate) append: bool,
}

/// The place of a character device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// No option has defined the device.
    #[default]
    Unknown,
    Null,
    Stdio,
    File {
        path: PathBuf,
        append: bool,
    },
    Pty,
    /// The named pipes `PATH.in` and `PATH.out`, or one pipe for both directions.
    Pipe(PathBuf),
    Socket(SocketPlace),
}

/// A stream socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketPlace {
    pub(crate) address: Address,
    /// Whether others connect to it.
    pub(crate) is_server: bool,
    /// Whether the other side speaks the telnet protocol.
    pub(crate) telnet: bool,
    /// The pause before connecting again after the other side has gone.
    pub(crate) reconnect: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Unix(PathBuf),
    /// A host and a port.
    Tcp(String, u16),
    /// A socket that the parent process has opened.
    Descriptor(i32),
}

/// A monitor and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Monitor {
    /// The index into [`QemuSettings::characters`].
    pub(crate) character: usize,
    pub(crate) mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// For people, who type lines.
    Readline,
    /// For tools: QMP.
    Control,
}
