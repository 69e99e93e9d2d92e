//! The rules of Landlock: which files a process may open, and to which ports it may connect.

use std::os::fd::OwnedFd;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
};

use crate::{Access, Files, Ports, Rights};

/// The newest version of Landlock whose rights are handled here.
const VERSION: ABI = ABI::V6;

/// What is taken from a process that may open any file.
fn never() -> BitFlags<AccessFs> {
    AccessFs::Execute
        | AccessFs::MakeBlock
        | AccessFs::MakeChar
        | AccessFs::MakeDir
        | AccessFs::MakeFifo
        | AccessFs::MakeSym
        | AccessFs::RemoveDir
}

impl Access {
    fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Access::Read => AccessFs::ReadFile.into(),
            Access::List => AccessFs::ReadDir.into(),
            Access::Remove => AccessFs::RemoveFile.into(),
            Access::Change => {
                AccessFs::ReadFile
                    | AccessFs::ReadDir
                    | AccessFs::WriteFile
                    | AccessFs::Truncate
                    | AccessFs::IoctlDev
                    | AccessFs::MakeReg
                    | AccessFs::MakeSock
                    | AccessFs::RemoveFile
                    | AccessFs::Refer
            }
        }
    }
}

impl Rights {
    /// Returns the rule set, by which a thread is restricted later, or a message if this kernel has none.
    pub(crate) fn rules(&self) -> Result<Option<OwnedFd>, String> {
        if landlock_version().is_none() {
            return Err("this kernel has none".to_owned());
        }
        self.rule_set().map_err(|error| error.to_string())
    }

    fn rule_set(&self) -> Result<Option<OwnedFd>, RulesetError> {
        let handled = match &self.files {
            Files::Any => never(),
            Files::These(_) => AccessFs::from_all(VERSION),
        };
        let mut rules =
            Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(handled)?;
        if self.tcp != Ports::Any {
            rules = rules.handle_access(AccessNet::ConnectTcp)?;
        }
        if !self.listens {
            rules = rules.handle_access(AccessNet::BindTcp)?;
        }
        if self.files != Files::Any {
            rules = rules.scope(Scope::AbstractUnixSocket)?;
        }
        let mut created = rules.create()?;
        if let Files::These(places) = &self.files {
            for (path, access) in places {
                let Ok(place) = PathFd::new(path) else { continue };
                let mut rights = access.rights();
                if !path.is_dir() {
                    rights &= AccessFs::from_file(VERSION);
                }
                created = created.add_rule(PathBeneath::new(place, rights))?;
            }
        }
        if let Ports::These(ports) = &self.tcp {
            for port in ports {
                created = created.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
            }
        }
        Ok(created.into())
    }
}

/// Returns the kernel's version of Landlock, or None if it has none.
pub fn landlock_version() -> Option<u32> {
    /// `LANDLOCK_CREATE_RULESET_VERSION` (Linux, include/uapi/linux/landlock.h).
    const VERSION: u32 = 1;
    // SAFETY: with this flag the call only returns a number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, VERSION) };
    u32::try_from(version).ok().filter(|version| *version > 0)
}
