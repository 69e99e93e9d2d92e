//! Takes from a process all rights except those that a network behind NAT needs.
//!
//! The process reads input of hostile guests with a library in C. An attacker who has taken the process over
//! should find nothing of use:
//!
//! | taken | by |
//! | --- | --- |
//! | descriptors that were inherited | [`close_inherited`], before anything else |
//! | capabilities, and all ways to new ones | capset, `PR_SET_NO_NEW_PRIVS` |
//! | access of others to its memory, and core files | `PR_SET_DUMPABLE`, `RLIMIT_CORE` |
//! | more than [`ADDRESSES_MAX`] of addresses, and processes | `RLIMIT_AS`, `RLIMIT_NPROC` |
//! | files, except for reading those that are named | Landlock, where the kernel has it |
//! | listening for TCP, signals to others, abstract sockets | Landlock |
//! | system calls that the library does not need, sockets except TCP, UDP and ping | seccomp |
//!
//! If the host denies a step (some containers deny seccomp), the caller is told and the other steps are still
//! taken. The rights are taken from the calling thread, so a process should call this before it starts other
//! threads.

mod system_calls;

use std::io;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use ring3_sandbox::Shortfall;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

/// The most bytes of addresses that the process may have. The library keeps some 256 KiB for each connection,
/// and there are at most as many connections as descriptors.
const ADDRESSES_MAX: u64 = 1 << 30;

/// The newest version of Landlock whose rights are handled here. V6 has the scopes.
const LANDLOCK: ABI = ABI::V6;

/// The rights that the process keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Files that it may read, and directories with all files beneath them. Paths that do not exist are left
    /// out.
    pub readable: Vec<PathBuf>,
    /// Whether it may connect to Unix sockets. Landlock and seccomp cannot tell these apart, so it may
    /// connect to all of this user's.
    pub connects_to_unix_sockets: bool,
}

/// A step that takes some rights.
type Step = fn(&Sandbox) -> Result<(), String>;

impl Sandbox {
    /// Takes all other rights from this thread, and limits its process. Returns the steps that the host
    /// denies.
    pub fn enter(&self) -> Vec<Shortfall> {
        let steps: [(&'static str, Step); 5] = [
            ("limits", |_| limit().map_err(|error| error.to_string())),
            ("capabilities", |_| drop_capabilities().map_err(|error| error.to_string())),
            ("no new privileges", |_| set_no_new_privs(true).map_err(|error| error.to_string())),
            ("Landlock", Sandbox::deny_files),
            // This step is the last, because the others need system calls that it denies.
            ("seccomp", system_calls::limit),
        ];
        let shortfalls = steps.into_iter().filter_map(|(mechanism, take)| {
            let why = take(self).err()?;
            Some(Shortfall::new(mechanism, why))
        });
        shortfalls.collect()
    }

    fn deny_files(&self) -> Result<(), String> {
        let rules = self.readable.iter().filter_map(|path| {
            let place = PathFd::new(path).ok()?;
            Some(Ok::<_, RulesetError>(PathBeneath::new(place, AccessFs::ReadFile)))
        });
        let status = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(LANDLOCK))
            .and_then(|rules| rules.handle_access(AccessNet::BindTcp))
            .and_then(|rules| rules.scope(Scope::from_all(LANDLOCK)))
            .and_then(Ruleset::create)
            .and_then(|created| created.add_rules(rules))
            .and_then(RulesetCreated::restrict_self)
            .map_err(|error| error.to_string())?;
        match status.ruleset {
            RulesetStatus::NotEnforced => Err("this kernel has none".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Closes all descriptors except standard input, output and error.
///
/// This is for the beginning of a process, before anything in it owns a descriptor.
pub fn close_inherited() -> io::Result<()> {
    // SAFETY: nothing in this process owns a descriptor beyond standard error yet. The system would report
    // the use of one that is closed here.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn limit() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    lower(Resource::Core, 0)?;
    lower(Resource::Nproc, 0)?;
    lower(Resource::As, ADDRESSES_MAX)
}

/// Lowers a limit permanently.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let most = getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

fn drop_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(set_capabilities(None, sets)?)
}

#[cfg(test)]
mod tests;
