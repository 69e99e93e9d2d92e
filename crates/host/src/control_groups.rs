//! The control groups of this process (Linux, `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1`).

use std::fs;
use std::path::{Path, PathBuf};

/// A version of control groups. A host may have both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller.
    One,
    /// One hierarchy for all controllers.
    Two,
}

/// Returns the directories of all control groups that this process is in and that may have `controller`, from its own up
/// to the highest one that it sees.
pub fn of_this_process(controller: &str) -> Vec<(PathBuf, Version)> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    directories(controller, &read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

/// Returns the same for a process whose `/proc/self/cgroup` and `/proc/self/mountinfo` are these.
fn directories(controller: &str, groups: &str, mounts: &str) -> Vec<(PathBuf, Version)> {
    let mut found = Vec::new();
    for mount in mounts.lines() {
        let Some((before, after)) = mount.split_once(" - ") else { continue };
        let before: Vec<&str> = before.split(' ').collect();
        let [_, _, _, root, place, ..] = before[..] else { continue };
        let version = match after.split(' ').collect::<Vec<_>>()[..] {
            ["cgroup2", ..] => Version::Two,
            ["cgroup", _, options] if options.split(',').any(|option| option == controller) => {
                Version::One
            }
            _ => continue,
        };
        let path = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_it = match version {
                Version::Two => number == "0" && controllers.is_empty(),
                Version::One => controllers.split(',').any(|other| other == controller),
            };
            is_it.then_some(path)
        });
        // In a container the path may be one that is not mounted there.
        let inside = path.and_then(|path| Path::new(path).strip_prefix(root).ok());
        let mut inside = inside.unwrap_or(Path::new(""));
        loop {
            found.push((Path::new(place).join(inside), version));
            match inside.parent() {
                Some(parent) => inside = parent,
                None => break,
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_from_the_own_one_upwards() {
        let mounts = "\
            21 1 0:18 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw\n\
            30 21 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n\
            31 21 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            32 21 0:29 /docker/7 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let groups = "5:cpu:/a\n4:memory:/docker/7/own\n0::/user.slice/x:y\n";
        let two = |path: &str| (PathBuf::from(path), Version::Two);
        let one = |path: &str| (PathBuf::from(path), Version::One);
        assert_eq!(
            directories("memory", groups, mounts),
            [
                two("/sys/fs/cgroup/unified/user.slice/x:y"),
                two("/sys/fs/cgroup/unified/user.slice"),
                two("/sys/fs/cgroup/unified/"),
                one("/sys/fs/cgroup/memory/own"),
                one("/sys/fs/cgroup/memory/"),
            ]
        );
        let elsewhere = "4:memory:/other\n";
        assert!(directories("memory", elsewhere, mounts).contains(&one("/sys/fs/cgroup/memory/")));
        assert_eq!(directories("memory", "", "rubbish\n - \n"), []);
    }
}
