//! What the options of `ring3 qemu` say of a run that those of `ring3 run` cannot.

use std::path::PathBuf;
use std::time::Duration;

/// See above.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QemuSettings {
    /// The machine is made and quits before its first instruction.
    pub(crate) dry_run: bool,
    /// What the machine's identity is to firmware and tools.
    pub(crate) uuid: Option<[u8; 16]>,
    /// A file with the number of the process, while the machine runs.
    pub(crate) pid_file: Option<PathBuf>,
    /// Let a process that does not hold the terminal have the machine.
    pub(crate) daemonize: bool,
    /// This is that process.
    pub(crate) is_daemon: bool,
    /// Streams of bytes, for serial ports and monitors.
    pub(crate) characters: Vec<Character>,
    /// By which people and tools drive the machine.
    pub(crate) monitors: Vec<Monitor>,
    /// One of them is there by `-nographic` alone, on standard input and output.
    pub(crate) has_implied_monitor: bool,
}

/// A character device of the host's: a stream of bytes to and from somewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Character {
    /// What the command line calls it.
    pub(crate) id: Option<String>,
    pub(crate) place: Place,
    /// Several have it, and the escape key goes from one to the next.
    pub(crate) is_shared: bool,
    /// What goes there goes to this file, too.
    pub(crate) log: Option<CharacterLog>,
}

/// A file with all that the guest has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CharacterLog {
    pub(crate) path: PathBuf,
    /// What is in the file stays.
    pub(crate) append: bool,
}

/// Where the bytes go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing has been said.
    #[default]
    Unknown,
    Null,
    Stdio,
    File {
        path: PathBuf,
        append: bool,
    },
    Pty,
    /// The named pipes `PATH.in` and `PATH.out`, or one for both directions.
    Pipe(PathBuf),
    Socket(SocketPlace),
}

/// A socket with streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketPlace {
    pub(crate) address: Address,
    /// Others connect to it.
    pub(crate) is_server: bool,
    /// The other side speaks the telnet protocol.
    pub(crate) telnet: bool,
    /// When to connect again after the other side has gone.
    pub(crate) reconnect: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Unix(PathBuf),
    /// A host and a port.
    Tcp(String, u16),
    /// A socket that whoever has started the program has opened.
    Descriptor(i32),
}

/// A monitor and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Monitor {
    /// Which of [`QemuSettings::characters`].
    pub(crate) character: usize,
    pub(crate) mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// For people: lines.
    Readline,
    /// For tools: QMP.
    Control,
}
