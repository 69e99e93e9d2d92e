//! Control groups by which the kernel itself shares out processors, where the supervisor has been given one to divide: systemd
//! does so for units with `Delegate=cpu` (Linux, `Documentation/admin-guide/cgroup-v2.rst`).
//!
//! Each machine has a group with its weight. The groups are *threaded*, so that the supervisor may stay in the one above:
//! systemd could not start it there again otherwise, after it was killed and while its machines go on.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use ring3_host::control_groups::{Version, of_this_process};

use crate::definition::Name;

/// The weights that the kernel knows.
const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=10_000;

/// The group of the supervisor, below which machines have theirs.
#[derive(Debug, Clone)]
pub(crate) struct Groups(PathBuf);

impl Groups {
    /// Returns the supervisor's group, if it may be divided: it has the controller `cpu`, and the supervisor is alone in it,
    /// since nothing has been started yet.
    pub(crate) fn find() -> Option<Groups> {
        let mut own = of_this_process("cpu").into_iter();
        let (directory, _) = own.find(|(_, version)| *version == Version::Two)?;
        let words = |file: &str| fs::read_to_string(directory.join(file)).ok();
        let has_controller = words("cgroup.controllers")?.split_whitespace().any(|it| it == "cpu");
        // A group with threaded ones below lists their processes among its own, but not their threads.
        let is_own = |thread: &str| Path::new("/proc/self/task").join(thread).exists();
        let is_alone = words("cgroup.threads")?.lines().all(is_own);
        // The highest group of all cannot be had, whoever is in it.
        let is_highest = !directory.join("cgroup.type").exists();
        (has_controller && is_alone && !is_highest).then_some(Groups(directory))
    }

    /// Puts the process of a machine into a group with this weight.
    pub(super) fn put(&self, machine: &Name, pid: i32, weight: u32) -> io::Result<()> {
        let group = self.of(machine);
        match fs::create_dir(&group) {
            Ok(()) => write(&group, "cgroup.type", "threaded")?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        write(&self.0, "cgroup.subtree_control", "+cpu")?;
        let weight = weight.clamp(*WEIGHTS.start(), *WEIGHTS.end());
        write(&group, "cpu.weight", &weight.to_string())?;
        write(&group, "cgroup.procs", &pid.to_string())
    }

    /// Removes the group of a machine without a process.
    pub(crate) fn remove(&self, machine: &Name) {
        // It may have a process again, or none has ever been there.
        let _ = fs::remove_dir(self.of(machine));
    }

    fn of(&self, machine: &Name) -> PathBuf {
        self.0.join(format!("machine-{machine}"))
    }
}

fn write(group: &Path, file: &str, value: &str) -> io::Result<()> {
    fs::write(group.join(file), value)
}
