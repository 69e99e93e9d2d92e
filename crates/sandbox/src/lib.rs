//! Takes from a whole process, whose threads run already, the rights that it does not need.
//!
//! A machine's process reads hostile input: what the guest does, images, packets, and clients' requests.
//! Somebody who has taken it over should find as little of use as possible:
//!
//! | taken | by |
//! | --- | --- |
//! | new privileges by set-user-ID programs | `PR_SET_NO_NEW_PRIVS` |
//! | all capabilities except those over files' owners and modes | capset(2) |
//! | files, except those that [`Rights`] name | Landlock, where the kernel has it |
//! | connecting and listening by TCP, except as [`Rights`] says; abstract sockets | Landlock, from versions 4 and 6 |
//! | programs, other processes, and all system calls that are not in one table | seccomp |
//!
//! Descriptors that are open stay usable: the caller opens files and sockets first, and then calls
//! [`Rights::keep_only`]. A system call that is denied fails as one that is not permitted (EPERM), is
//! counted ([`denials()`]), and does nothing else. So a call that is missing in the table makes one request
//! fail, and does not lose the work of a guest.
//!
//! * [`files`]: the rules of Landlock;
//! * [`system_calls`]: the table of system calls; [`filter`]: the parts of a filter for them;
//! * [`threads`]: does in every thread what the kernel does thread by thread;
//! * [`mod@denials`]: counts what is denied.

mod denials;
mod files;
pub mod filter;
mod system_calls;
mod threads;

use std::fmt;
use std::path::PathBuf;

pub use denials::{Denial, denials};
pub use files::landlock_version;
pub use system_calls::is_allowed as has_seccomp;

/// What a process may do with the files beneath a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read them.
    Read,
    /// List their directory.
    List,
    /// Read, write, make, rename and remove them, and list their directory.
    Change,
    /// Remove them, as a process does at its end with the sockets that it has made.
    Remove,
}

/// The files that a process may open by their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Files {
    /// Those that its user may open. Even so it executes no file, and makes neither directories nor devices.
    Any,
    /// These files, and all files beneath these directories. Paths that do not exist are left out.
    These(Vec<(PathBuf, Access)>),
}

/// The ports of other processes to which a process may connect by TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    /// All of them.
    Any,
    /// These.
    These(Vec<u16>),
}

/// The rights that a process keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// The files that it may open.
    pub files: Files,
    /// The ports to which it may connect.
    pub tcp: Ports,
    /// Whether it may connect to Unix sockets. The kernel cannot tell these apart, so it may connect to all
    /// to which its user may.
    pub connects_to_unix_sockets: bool,
    /// Whether it may make sockets of these kinds at which it listens.
    pub listens: bool,
}

impl Default for Rights {
    /// The rights of a process that opens nothing more.
    fn default() -> Rights {
        Rights {
            files: Files::These(Vec::new()),
            tcp: Ports::These(Vec::new()),
            connects_to_unix_sockets: false,
            listens: false,
        }
    }
}

/// A right that the host does not let a process give up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// The mechanism that would have taken it.
    pub mechanism: &'static str,
    why: String,
}

impl Shortfall {
    /// Makes a shortfall of a mechanism, with the reason.
    pub fn new(mechanism: &'static str, why: String) -> Shortfall {
        Shortfall { mechanism, why }
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.mechanism, self.why)
    }
}

impl Rights {
    /// Takes all other rights from all threads of this process, for good. Returns the mechanisms that the
    /// host denies; the others work nevertheless.
    pub fn keep_only(&self) -> Vec<Shortfall> {
        let mut shortfalls = Vec::new();
        let mut note = |mechanism, why| shortfalls.push(Shortfall::new(mechanism, why));
        let rules = self.rules().unwrap_or_else(|why| {
            note("Landlock", why);
            None
        });
        if let Err(error) = threads::restrict_all(rules.as_ref()) {
            note("threads", error.to_string());
        }
        // This step is the last, because the others need system calls that it denies.
        if let Err(why) = self.limit_system_calls() {
            note("seccomp", why);
        }
        shortfalls
    }

    /// Whether it may make sockets of the internet.
    fn uses_tcp(&self) -> bool {
        self.tcp != Ports::These(Vec::new())
    }

    /// Whether it may change files by their names.
    fn changes_files(&self) -> bool {
        match &self.files {
            Files::Any => true,
            Files::These(places) => places.iter().any(|(_, access)| *access == Access::Change),
        }
    }

    /// Whether it may remove files by their names.
    fn removes_files(&self) -> bool {
        match &self.files {
            Files::Any => true,
            Files::These(places) => {
                places.iter().any(|(_, access)| !matches!(access, Access::Read | Access::List))
            }
        }
    }
}

#[cfg(test)]
mod tests;
