//! GDB goes back in replays: of Tern, with its names and lines, and of Debian's kernel in the middle of its boot.

use std::fs;
use std::process::{Child, Command, Stdio};

use crate::gdb::{Debugged, contains_in_order, end};
use crate::support::guest::add_linux;
use crate::support::{Directory, listens, ring3, system_program, wait_until};
use crate::tern::has_tern;

/// Starts the replay of `recording` that waits for a debugger at the socket `gdb` of `directory`.
pub(crate) fn replay(directory: &Directory, engine: &str, more: &[&str]) -> Child {
    let mut replay = ring3();
    replay.args(["run", "--serial", "null", "--stats", "--engine", engine, "--replay"]);
    replay.arg(directory.path("recording")).args(more);
    let socket = directory.path("gdb");
    replay.arg("--gdb").arg(format!("unix:{}", socket.display()));
    let child = replay.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("nobody listens for gdb", || listens(&socket).then_some(()));
    child
}

/// Returns the number before `name` in the counters that a run has printed.
#[track_caller]
pub(crate) fn counter(stats: &str, name: &str) -> u64 {
    let line = stats.lines().find(|line| line.ends_with(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name}: {stats}"))
}

fn goes_back_in_tern(engine: &'static str) {
    if !has_tern() {
        return;
    }
    let debugged = Debugged::new(engine);
    let mut machine = debugged.machine("log");
    let recorded = machine.arg("--record").arg(debugged.directory.path("recording"));
    assert_eq!(recorded.output().unwrap().status.code(), Some(1));
    let replay = replay(&debugged.directory, engine, &["--checkpoints", "1000000"]);
    let said = debugged.gdb(&[
        "p/x $eip",
        "break make_ready",
        "continue",
        "printf \"first %x %x\\n\", process, $esp",
        "continue",
        "continue",
        "reverse-continue",
        "reverse-continue",
        "printf \"again %x %x\\n\", process, $esp",
        "reverse-stepi",
        "bt",
        "stepi",
        "bt",
        // The run ends here, and the machine stays.
        "delete",
        "continue",
        // Who took a page?
        "watch pages_free",
        "reverse-continue",
        "bt 1",
        "set var pages_free = 1",
        "delete",
        "break kernel_main",
        "reverse-continue",
        "reverse-continue",
        "p/x $eip",
        "detach",
    ]);
    let first = said.lines().find_map(|line| line.strip_prefix("first ")).expect("it was said");
    let again = format!("again {first}\n");
    contains_in_order(
        &said,
        &[
            "= 0x10000c",
            "make_ready (",
            "first ",
            &again,
            "processes_start ()",
            "make_ready (",
            "No more reverse-execution history",
            "Hardware watchpoint 2: pages_free",
            "Old value = ",
            "New value = ",
            "#0 ",
            "kernel_main (",
            "No more reverse-execution history",
            "= 0x10000c",
            "detached",
        ],
    );
    assert!(said.contains("Cannot access memory"), "{said}");
    let (status, stats) = end(replay);
    assert_eq!(status, Some(1), "{stats}");
}

#[test]
fn a_debugger_of_the_translator_goes_back_in_tern() {
    goes_back_in_tern("translator");
}

#[test]
fn a_debugger_of_the_interpreter_goes_back_in_tern() {
    goes_back_in_tern("interpreter");
}

/// Instructions between two checkpoints, if the command line does not say otherwise.
const INTERVAL: u64 = 20_000_000;

/// In the middle of a boot, a step back repeats no more than what lies between two checkpoints.
#[test]
fn a_debugger_goes_back_in_the_middle_of_a_boot() {
    let directory = Directory::new();
    let mut record = ring3();
    record.args(["run", "--record"]).arg(directory.path("recording"));
    add_linux(&mut record, &["initramfs.cpio.gz"]);
    let script = directory.file("script", b"poweroff -f\n");
    record.stdin(fs::File::open(script).unwrap()).stderr(Stdio::piped());
    let recorded = record.args(["--stats"]).output().unwrap();
    let stats = String::from_utf8_lossy(&recorded.stderr);
    assert_eq!(recorded.status.code(), Some(0), "{stats}");
    let middle = counter(&stats, " instructions") / 2;

    let to = middle.to_string();
    let shown = ring3()
        .args(["run", "--serial", "null", "--to", &to, "--replay"])
        .arg(directory.path("recording"))
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.starts_with(&format!("after {middle} instructions:\n")), "{shown}");

    let replay = replay(&directory, "auto", &["--to", &to]);
    let said = gdb(
        &directory,
        &[
            "p/x $eip",
            "p/x $esp",
            "reverse-stepi",
            "reverse-stepi",
            "stepi",
            "stepi",
            "p/x $eip",
            "p/x $esp",
            "set $word = (unsigned *)((unsigned)$esp & ~3)",
            "p/x *$word",
            "watch -l *$word",
            "reverse-continue",
            "stepi",
            "p/x *$word",
            "delete",
            "detach",
        ],
    );
    let values: Vec<_> = said
        .lines()
        .filter(|line| line.starts_with('$'))
        .filter_map(|line| line.split_once(" = "))
        .map(|(_, value)| value)
        .collect();
    assert_eq!(values.len(), 6, "{said}");
    assert_eq!((values[0], values[1], values[4]), (values[2], values[3], values[5]), "{said}");
    contains_in_order(
        &said,
        &["Hardware watchpoint 1: -location *$word", "Old value = ", "detached"],
    );
    let eip = values[0].trim_start_matches("0x").to_uppercase();
    assert!(shown.to_uppercase().contains(&eip), "{eip} is not in {shown}");
    let (status, stats) = end(replay);
    assert_eq!(status, Some(0), "{stats}");
    let returns = counter(&stats, " returns to a checkpoint");
    let repeated = counter(&stats, " instructions repeated after them");
    assert!(returns >= 4 && repeated <= returns * INTERVAL, "{stats}");
}

/// Executes the commands of a script in gdb, without a file, and returns what it says.
pub(crate) fn gdb(directory: &Directory, script: &[&str]) -> String {
    let mut gdb: Command = system_program("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set pagination off", "-ex", "set architecture i386", "-ex"]);
    gdb.arg(format!("target remote {}", directory.path("gdb").display()));
    for command in script {
        gdb.args(["-ex", command]);
    }
    let said = gdb.output().unwrap();
    String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr)
}

#[test]
fn a_replay_stops_only_where_the_run_was() {
    let directory = Directory::new();
    let image = directory.file("kernel", &crate::support::kernel(&[0xf4]));
    let recording = directory.path("recording");
    let mut record = ring3();
    record.args(["run", "--deterministic", "--kernel"]).arg(image).arg("--record").arg(&recording);
    assert_eq!(record.stdin(Stdio::null()).output().unwrap().status.code(), Some(4));
    let to = |count: &str| {
        let mut replay = ring3();
        replay.args(["run", "--to", count, "--replay"]).arg(&recording);
        let output = replay.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), said)
    };
    let (status, shown, _) = to("0");
    assert_eq!(status, Some(0));
    assert!(shown.starts_with("after 0 instructions:\n") && shown.contains("00100000"), "{shown}");
    let (status, _, said) = to("1000");
    assert_eq!(status, Some(1));
    assert!(said.contains("cannot go to instruction 1000"), "{said}");
    assert!(said.contains("the run ends after 1\n"), "{said}");
}
