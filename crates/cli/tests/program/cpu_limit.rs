//! `--cpu-limit`: a machine uses no more of the host's processor time than it may.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::Directory;
use crate::support::guest::{CONSOLE, Guest, PROMPT, WITH_MODULES, file, linux};
use crate::support::qmp::Qmp;

/// The unit of processor times in /proc: 100 a second on all hosts of Linux.
const TICK: Duration = Duration::from_millis(10);

/// Returns the processor time that a process has used.
fn used(process: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).expect("it is there");
    let (_, after) = text.rsplit_once(')').expect("a name is in parentheses");
    // Fields 14 and 15 of proc_pid_stat(5); the first one here is the third.
    let times = after.split_whitespace().skip(11).take(2);
    times.map(|ticks| TICK * ticks.parse::<u32>().expect("a number")).sum()
}

/// Starts a guest that has QMP at `qmp` in `directory` and works for ever.
fn busy(directory: &Directory, qmp: &str, options: &[&str]) -> Guest {
    let mut guest = Guest::start(|command| {
        command.args(["--append", CONSOLE]);
        command.arg("--kernel").arg(linux()).arg("--initrd").arg(file(WITH_MODULES[0]));
        command.arg("--qmp").arg(format!("unix:{}", directory.path(qmp).display())).args(options);
    });
    guest.wait_for(PROMPT);
    guest.begin("while true; do :; done");
    guest
}

#[test]
fn a_busy_machine_uses_no_more_than_it_may() {
    let directory = Directory::new();
    let guest = busy(&directory, "qmp", &[]);
    let mut qmp = Qmp::connect(&directory.path("qmp"));
    for percent in [10, 30] {
        qmp.done("x-ring3-limit-cpu", json!({"percent": percent}));
        let (began, before) = (Instant::now(), used(guest.id()));
        std::thread::sleep(Duration::from_secs(1));
        let used = used(guest.id()).saturating_sub(before);
        let allowed = began.elapsed() * percent / 100;
        eprintln!("{percent} %: {used:?} of {allowed:?}");
        // A slice may be longer than what is left, and times are counted in ticks.
        assert!(used <= allowed + 5 * TICK, "{percent} %: {used:?} of {allowed:?}");
        assert!(used > Duration::ZERO);
    }
    qmp.done("x-ring3-limit-cpu", json!({}));
    qmp.done("quit", json!({}));
    assert_eq!(guest.wait_for_the_end(), Some(0));
}
