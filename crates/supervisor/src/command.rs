//! The commands of users and tools.
//!
//! The protocol is that of QMP (QEMU, "QEMU Machine Protocol Specification"): each message is a JSON object on one
//! line. The supervisor greets with `{"QMP": …}` and answers `{"execute": NAME, "arguments": {…}}` with
//! `{"return": …}` or `{"error": …}`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::definition::{Definition, Disk, Name, Network, Restart};
use crate::memory::Account;

/// A command.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(
    tag = "execute",
    content = "arguments",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Command {
    /// Does nothing. Clients of QMP begin with this command.
    #[serde(rename = "qmp_capabilities")]
    Capabilities {},
    /// Lists all parts, or one.
    Query {
        /// The part, or None for all.
        name: Option<Name>,
    },
    /// Lists all parts with what they use of the host.
    Usage {},
    /// Defines a part and starts its process. The guest of a machine waits until it is started.
    Launch {
        /// The name.
        name: Name,
        /// The definition.
        definition: Box<Definition>,
    },
    /// Starts a part, or lets the guest of a machine that waits go on.
    Start {
        /// The part.
        name: Name,
    },
    /// Lets the guest of a machine wait.
    Pause {
        /// The machine.
        name: Name,
    },
    /// Ends a part in an orderly manner: a guest is asked to switch off. After a time it is ended all the same.
    Stop {
        /// The part.
        name: Name,
        /// Whether the answer comes when it has ended, and not at once.
        #[serde(default)]
        wait: bool,
    },
    /// Kills the process of a part. It is not started again.
    Kill {
        /// The part.
        name: Name,
    },
    /// Forgets a part that does not run, with its log.
    Remove {
        /// The part.
        name: Name,
    },
    /// Gives a machine a right to a disk, which appears in a guest that runs. One with properties of its own comes with
    /// the machine's next start.
    Grant {
        /// The machine.
        machine: Name,
        /// The disk.
        disk: Disk,
    },
    /// Takes a machine's right to a disk away. A guest that runs is asked for its card first, and has two seconds.
    Revoke {
        /// The machine.
        machine: Name,
        /// The server.
        server: Name,
        /// The device.
        device: Name,
    },
    /// Connects a machine to a network. A card appears in a guest that runs; one with properties of its own comes with the
    /// machine's next start.
    Connect {
        /// The machine.
        machine: Name,
        /// The network.
        network: Network,
    },
    /// Takes a card out of a machine. A guest that runs is asked for it first, and has two seconds.
    Disconnect {
        /// The machine.
        machine: Name,
        /// The switch.
        switch: Name,
    },
    /// Gives a disk another size, of which the guests are told that use it.
    Resize {
        /// The server.
        server: Name,
        /// The device.
        device: Name,
        /// The new size in bytes.
        size: u64,
        /// Whether it may become smaller.
        #[serde(default)]
        shrink: bool,
    },
    /// Gives a guest that runs more memory, or takes back what it was given.
    Memory {
        /// The machine.
        machine: Name,
        /// How many bytes it should have.
        size: u64,
    },
    /// Changes what is done when a part has ended.
    RestartPolicy {
        /// The part.
        name: Name,
        /// What is done.
        policy: Restart,
    },
    /// Returns the end of a part's log.
    Log {
        /// The part.
        name: Name,
    },
    /// Turns the connection into a list of events, one a line. No further commands are read.
    Events {},
    /// Ends the supervisor.
    Quit {
        /// Whether parts go on, for the next supervisor. Otherwise they are stopped first.
        #[serde(default)]
        leave: bool,
    },
}

/// The state of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It does not run.
    Ended,
    /// It waits for parts that it needs.
    Waiting,
    /// Its process was started and has not answered yet.
    Starting,
    /// Its guest waits.
    Paused,
    /// It runs.
    Running,
    /// It was told to end.
    Stopping,
    /// It has failed, and will be started again after a pause.
    BackingOff,
}

/// A part, as `query` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// The name.
    pub name: Name,
    /// `machine`, `vblock`, `switch`, `console` or `web`.
    pub kind: String,
    /// The state.
    pub state: State,
    /// The number of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// How often the process was started again since the part was defined.
    pub restarts: u64,
    /// Why it last ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// What is done when it ends.
    pub restart: Restart,
    /// What a machine has of the host's memory, if the supervisor shares out a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Account>,
    /// The Unix sockets of a machine's serial lines, COM1 first. Lines that are elsewhere have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub serial: Vec<Option<PathBuf>>,
}

/// What a part uses of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Usage {
    /// The part.
    pub status: Status,
    /// The time of processors that its processes have used, in nanoseconds.
    pub processor_nanos: u64,
    /// The memory that they have at present, in bytes.
    pub memory: u64,
    /// The bytes that a guest has read from its disks, or a server from those of the host. None if that is not known.
    pub disk_read: Option<u64>,
    /// The bytes that it has written there.
    pub disk_written: Option<u64>,
    /// The bytes that a guest has received from its networks.
    pub network_received: Option<u64>,
    /// The bytes that it has sent there.
    pub network_sent: Option<u64>,
}
