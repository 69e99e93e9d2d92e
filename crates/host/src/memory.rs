//! How much memory the host can still give to this process.
//!
//! The kernel does not refuse memory in time: when it has none, it ends processes. So whoever wants to stop before
//! that asks here, from time to time. The files are opened once, so that a process in a sandbox can read them later.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::control_groups::{self, Version};

/// Upper bound of the bytes in a file that is read.
const FILE_MAX: usize = 16 << 10;
/// A limit of version 1 of control groups that is no limit is at least this.
const NO_LIMIT: u64 = 1 << 60;

/// What limits the memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The memory of the host.
    Host,
    /// The sum of what all processes of the host may ask for (`vm.overcommit_memory=2`).
    Commit,
    /// A control group.
    Group,
}

/// How much memory there is still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// What the least room comes from.
    pub limit: Limit,
    /// The number of bytes.
    pub bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct HostMemory {
    info: Option<File>,
    /// Whether the kernel refuses memory that was not promised.
    is_strict: bool,
    groups: Vec<Group>,
}

impl HostMemory {
    /// Opens what tells of the host's memory. Whatever is not there limits nothing.
    pub fn open() -> HostMemory {
        let strict = fs::read_to_string("/proc/sys/vm/overcommit_memory");
        HostMemory {
            info: File::open("/proc/meminfo").ok(),
            is_strict: strict.is_ok_and(|mode| mode.trim() == "2"),
            groups: groups(),
        }
    }

    /// Returns the least of what the limits leave, or None if none is known.
    pub fn room(&self) -> Option<Room> {
        self.rooms().into_iter().min_by_key(|room| room.bytes)
    }

    /// Returns what each limit leaves.
    pub fn rooms(&self) -> Vec<Room> {
        let info = self.info.as_ref().and_then(read).unwrap_or_default();
        let value = |name: &str| Some(field(&info, name)? << 10);
        let swap = value("SwapFree:").unwrap_or(0);
        let host = value("MemAvailable:").map(|available| available.saturating_add(swap));
        let commit = || Some(value("CommitLimit:")?.saturating_sub(value("Committed_AS:")?));
        let commit = if self.is_strict { commit() } else { None };
        let groups = self.groups.iter().filter_map(|group| group.room(swap));
        [(Limit::Host, host), (Limit::Commit, commit)]
            .into_iter()
            .filter_map(|(limit, bytes)| Some((limit, bytes?)))
            .chain(groups.map(|bytes| (Limit::Group, bytes)))
            .map(|(limit, bytes)| Room { limit, bytes })
            .collect()
    }
}

/// A control group that this process is in (Linux, `Documentation/admin-guide/cgroup-v2.rst`, and
/// `cgroup-v1/memory.rst`).
#[derive(Debug)]
struct Group {
    most: File,
    now: File,
    statistics: Option<File>,
    /// The most that it may swap out, and what it has; only of version 2.
    swap: Option<(File, File)>,
    version: Version,
}

impl Group {
    /// Opens the group in `directory`. None if it does not limit memory.
    fn open(directory: &Path, version: Version) -> Option<Group> {
        let open = |name: &str| File::open(directory.join(name)).ok();
        Some(match version {
            Version::Two => Group {
                most: open("memory.max")?,
                now: open("memory.current")?,
                statistics: open("memory.stat"),
                swap: open("memory.swap.max").zip(open("memory.swap.current")),
                version,
            },
            Version::One => Group {
                most: open("memory.limit_in_bytes")?,
                now: open("memory.usage_in_bytes")?,
                statistics: open("memory.stat"),
                swap: None,
                version,
            },
        })
    }

    /// Returns how many bytes it has left, where the host has `swap` bytes to swap out to. None if it has no limit.
    fn room(&self, swap: u64) -> Option<u64> {
        let number = |file: &File| read(file)?.trim().parse::<u64>().ok();
        let most = number(&self.most).filter(|most| *most < NO_LIMIT)?;
        let left = most.saturating_sub(number(&self.now)?);
        // What was read from files, and can be read again, makes room.
        let statistics = self.statistics.as_ref().and_then(read).unwrap_or_default();
        let prefix = if self.version == Version::One { "total_" } else { "" };
        let files = ["inactive_file", "active_file"]
            .iter()
            .filter_map(|name| field(&statistics, &format!("{prefix}{name}")));
        let swap = match &self.swap {
            // A file that says "max" has no number.
            Some((most, now)) => {
                let most = number(most).unwrap_or(u64::MAX);
                swap.min(most.saturating_sub(number(now).unwrap_or(0)))
            }
            None => 0,
        };
        Some(files.fold(left.saturating_add(swap), u64::saturating_add))
    }
}

/// Returns the control groups that this process is in and that may limit its memory.
fn groups() -> Vec<Group> {
    let directories = control_groups::of_this_process("memory");
    directories.iter().filter_map(|(path, version)| Group::open(path, *version)).collect()
}

/// Returns the number behind `name` and a blank at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let (_, value) = lines.find(|(found, _)| *found == name)?;
    value.trim_start().split(' ').next()?.parse().ok()
}

/// Reads the beginning of a file whose contents the kernel makes anew each time.
fn read(file: &File) -> Option<String> {
    let mut bytes = vec![0; FILE_MAX];
    let len = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(len);
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_leaves_what_it_may_still_take_and_can_drop() {
        let directory = std::env::temp_dir().join(format!("ring3-groups-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        write("memory.stat", "anon 5\nfile 400\ninactive_file 100\nactive_file 20\n");
        let group = Group::open(&directory, Version::Two).unwrap();
        assert_eq!(group.room(0), None);
        write("memory.max", "1000\n");
        assert_eq!(group.room(50), Some(300 + 120));
        write("memory.max", "600\n");
        assert_eq!(group.room(50), Some(120));
        write("memory.swap.max", "40\n");
        write("memory.swap.current", "30\n");
        let group = Group::open(&directory, Version::Two).unwrap();
        assert_eq!(group.room(50), Some(130));
        assert_eq!(group.room(5), Some(125));
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.usage_in_bytes", "700\n");
        let group = Group::open(&directory, Version::One).unwrap();
        assert_eq!(group.room(50), None);
        write("memory.limit_in_bytes", "800\n");
        write("memory.stat", "inactive_file 1\ntotal_inactive_file 7\n");
        assert_eq!(group.room(50), Some(107));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn this_host_says_what_it_has() {
        let rooms = HostMemory::open().rooms();
        assert!(rooms.iter().any(|room| room.limit == Limit::Host && room.bytes > 0), "{rooms:?}");
    }
}
