//! What parts use of the host: processors, memory, disks and networks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::rc::Rc;

use rustix::param::clock_ticks_per_second;
use serde_json::{Value, json};
use tokio::task::{spawn_blocking, spawn_local};

use crate::command::{State, Usage};
use crate::part::Part;
use crate::supervisor::House;

/// What the processes of a group have used: nanoseconds of processors, and bytes of memory.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    nanos: u64,
    memory: u64,
}

/// Returns what all parts use. Those that do not run use nothing.
pub(crate) async fn of_all(house: &House, parts: Vec<Rc<Part>>) -> Vec<Usage> {
    let leaders: BTreeSet<_> =
        parts.iter().filter_map(|part| part.status(&house.place).pid).collect();
    // To count memory takes milliseconds.
    let groups = spawn_blocking(move || groups(&leaders)).await.unwrap_or_default();
    let answers: Vec<_> = parts.iter().map(|part| spawn_local(counters(Rc::clone(part)))).collect();
    let mut all = Vec::new();
    for (part, answer) in parts.into_iter().zip(answers) {
        let status = part.status(&house.place);
        // A process of a part leads the group of all that it has started.
        let group = status.pid.and_then(|pid| groups.get(&pid)).copied().unwrap_or_default();
        let counters = answer.await.unwrap_or_default();
        let count = |name: &str| counters[name].as_u64();
        let (read, written) = match status.pid {
            Some(pid) if status.kind != "machine" => disk_bytes(pid),
            _ => (count("disk-read"), count("disk-written")),
        };
        all.push(Usage {
            status,
            processor_nanos: group.nanos,
            memory: group.memory,
            disk_read: read,
            disk_written: written,
            network_received: count("network-received"),
            network_sent: count("network-sent"),
        });
    }
    all
}

/// Returns what a machine says of its disks and networks.
async fn counters(part: Rc<Part>) -> Value {
    if !part.is_machine() || !matches!(part.state(), State::Running | State::Paused) {
        return Value::Null;
    }
    part.ask_soon("x-ring3-usage", json!({})).await.unwrap_or_default()
}

/// Returns what the processes in the groups of `leaders` use.
fn groups(leaders: &BTreeSet<i32>) -> BTreeMap<i32, Group> {
    let mut groups: BTreeMap<i32, Group> = BTreeMap::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let is_process = process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        // A process may have ended meanwhile.
        if is_process
            && let Ok(text) = fs::read_to_string(process.path().join("stat"))
            && let Some((group, nanos)) = process_of(&text)
            && leaders.contains(&group)
        {
            let all = groups.entry(group).or_default();
            all.nanos += nanos;
            all.memory += memory(&process.path());
        }
    }
    groups
}

/// Reads the file `stat` of a process (proc_pid_stat(5)): its group, and how long processors have worked for it.
fn process_of(text: &str) -> Option<(i32, u64)> {
    // The second field is a name, in which anything may be.
    let rest = text.rsplit_once(") ")?.1;
    let fields: Vec<&str> = rest.split(' ').collect();
    // The first of these is the third of the file.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let group = fields.get(2)?.parse().ok()?;
    let ticks = field(14)? + field(15)?;
    Some((group, ticks.saturating_mul(1_000_000_000 / clock_ticks_per_second().max(1))))
}

/// Returns the bytes of memory of the process at `path`. A page that it has mapped several times, as the translator does,
/// counts once, and one that it shares with others by its share (proc_pid_smaps(5), `Pss`).
fn memory(path: &Path) -> u64 {
    let text = fs::read_to_string(path.join("smaps_rollup")).unwrap_or_default();
    let kibibytes = text.lines().find_map(|line| line.strip_prefix("Pss:")?.strip_suffix("kB"));
    kibibytes.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_default() << 10
}

/// Returns how many bytes a process has read from disks, and written there (proc_pid_io(5)).
fn disk_bytes(pid: i32) -> (Option<u64>, Option<u64>) {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let count = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
    (count("read_bytes: "), count("write_bytes: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_told_apart_by_their_groups() {
        let text =
            "12 (a) b (c) S 1 7 7 0 -1 0 0 0 0 0 3 4 0 0 20 0 1 0 5 4096 10 18446744073709551615 1";
        assert_eq!(process_of(text), Some((7, 7 * 1_000_000_000 / clock_ticks_per_second())));
        for bad in ["", "1 (x", "1 (x) S", "1 (x) S 1 2 3"] {
            assert!(process_of(bad).is_none(), "{bad}");
        }
        let own = rustix::process::getpgrp().as_raw_nonzero().get();
        assert!(groups(&[own].into())[&own].memory > 0);
        assert!(groups(&BTreeSet::new()).is_empty());
    }
}
