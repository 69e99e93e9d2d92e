//! `ring3 bench driver` executes a script in guests and on the host, and stores its output.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::guest::{CONSOLE, file, linux};
use crate::support::{Directory, ring3, wait_until};
use crate::tern::has_tern;

/// Each benchmark of the network, one twice; both channels; and a status.
const SCRIPT: &str = "suite loop 5; echo complaint >&2; suite loop 5\n\
                      suite io_network_latency 2 $SERVER && suite io_network_throughput 2 $SERVER\n";

fn bench(directory: &Directory, script: &str, plan: &str) -> Output {
    directory.file("script", script.as_bytes());
    let plan = directory.file("plan.toml", plan.as_bytes());
    ring3().args(["bench", "driver"]).arg(plan).output().expect("the program starts")
}

/// Returns the lines of standard output, whose times depend on the host.
fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let without_time =
        |line: &str| line.find(" measurements").map_or(line, |at| &line[..at]).to_owned();
    text.lines().map(without_time).collect()
}

/// A configuration whose machine does not start, and the others go on.
#[test]
fn a_script_runs_in_guests_and_on_the_host() {
    let directory = Directory::new();
    let (kernel, initrd) = (linux(), file("suite.cpio.gz"));
    let plan = format!(
        "script = 'script'\nresults = 'results'\n\
         [[configuration]]\nname = 'broken'\nkind = 'translator'\noptions = ['--nonsense']\n\
         [[configuration]]\nname = 'native'\nkind = 'native'\npath = '{}'\n\
         [[configuration]]\nname = 'translator'\nkind = 'translator'\n\
         [[guest]]\nname = 'debian'\nkernel = '{}'\ninitrd = '{}'\n\
         append = '{CONSOLE} benchdriver=1235'\n",
        initrd.parent().expect("it is in a directory").display(),
        kernel.display(),
        initrd.display(),
    );
    let output = bench(&directory, SCRIPT, &plan);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "ring3: 1 of 3 runs have failed\n");
    let shown = lines(&output);
    assert_eq!(shown.len(), 3, "{output:?}");
    assert!(shown[0].starts_with("broken, debian, round 1: the machine has ended"), "{shown:?}");
    assert!(shown[0].contains("--nonsense"), "{shown:?}");
    assert_eq!(shown[1], "native, host, round 1: 4");
    assert_eq!(shown[2], "translator, debian, round 1: 4");

    let read = |name: &str| fs::read_to_string(directory.path("results").join(name)).unwrap();
    let checksums = |name: &str| -> Vec<String> {
        let first_two = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        read(name).lines().map(first_two).collect()
    };
    assert_eq!(checksums("native-host.out"), checksums("translator-debian.out"));
    assert_eq!(read("native-host.err"), "complaint\n");
    assert_eq!(read("translator-debian.err"), "complaint\n");
    let rows: Vec<_> = ["native,host", "translator,debian"]
        .iter()
        .flat_map(|pair| {
            ["loop,1,1", "loop,1,2", "io_network_latency,1,1", "io_network_throughput,1,1"]
                .map(|measurement| format!("{pair},{measurement}"))
        })
        .collect();
    let text = read("measurements.csv");
    let stored: Vec<_> = text
        .lines()
        .skip(1)
        .map(|line| line.split(',').take(5).collect::<Vec<_>>().join(","))
        .collect();
    assert_eq!(stored, rows);
}

const NATIVE: &str = "script = 'script'\nresults = 'results'\n\
                      [[configuration]]\nname = 'native'\nkind = 'native'\n";

#[test]
fn failing_scripts_are_named() {
    let directory = Directory::new();
    let output = bench(&directory, "echo loop 0 1 3 2; exit 7\n", NATIVE);
    assert_eq!(output.status.code(), Some(1));
    let shown = lines(&output);
    assert!(shown[0].contains("has ended with status 7: see ") && shown.len() == 1, "{shown:?}");
    let stored = fs::read_to_string(directory.path("results/measurements.csv")).unwrap();
    assert!(stored.lines().last().unwrap().starts_with("native,host,loop,1,1,3,2,1,"), "{stored}");

    let output = bench(&directory, "sleep 1000\n", &format!("script_seconds = 1\n{NATIVE}"));
    assert!(lines(&output)[0].contains("has not ended in 1 seconds"), "{output:?}");
}

/// Tern has the same results as Linux has, and needs no files.
#[test]
fn a_script_runs_in_tern() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let kinds = ["translator", "interpreter", "deterministic", "qemu"];
    let configurations =
        kinds.map(|kind| format!("[[configuration]]\nname = '{kind}'\nkind = '{kind}'\n"));
    let plan = format!(
        "script = 'script'\nresults = 'results'\n\
         [[configuration]]\nname = 'native'\nkind = 'native'\npath = '{}'\n{}\
         [[guest]]\nname = 'virtio'\ntern = true\n\
         [[guest]]\nname = 'ne2k'\ntern = true\ncard = 'ne2k_pci'\nport = 2000\n",
        file("suite").parent().expect("it is in a directory").display(),
        configurations.concat(),
    );
    let output = bench(&directory, SCRIPT, &plan);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let read = |name: &str| fs::read_to_string(directory.path("results").join(name)).unwrap();
    let checksums = |name: &str| -> Vec<String> {
        let first_two = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        read(name).lines().map(first_two).collect()
    };
    let mut expected = vec![String::from("native, host, round 1: 4")];
    for kind in kinds {
        for guest in ["virtio", "ne2k"] {
            expected.push(format!("{kind}, {guest}, round 1: 4"));
            let pair = format!("{kind}-{guest}");
            assert_eq!(checksums("native-host.out"), checksums(&format!("{pair}.out")), "{pair}");
            assert_eq!(read(&format!("{pair}.err")), "complaint\n", "{pair}");
        }
    }
    assert_eq!(lines(&output), expected);
}

/// Returns the living descendants of the process `id`.
fn descendants(id: u32) -> Vec<u32> {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten() {
        let children = read(format!("{}/children", thread.path().display()));
        for child in children.split_whitespace().map(|word| word.parse().expect("a process")) {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

/// Returns whether the process `id` executes anything: one that has ended may wait for its parent (state Z).
fn is_alive(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// Whoever ends the driver leaves no machine behind, and none of the processes that belong to one.
#[test]
fn all_machines_end_with_the_driver() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    directory.file("script", b"echo here; sleep 1000\n");
    for (signal, kind) in
        [(Signal::TERM, "qemu"), (Signal::INT, "translator"), (Signal::TERM, "native")]
    {
        let plan = format!(
            "script = 'script'\nresults = '{kind}'\n[[configuration]]\nname = 'it'\nkind = '{kind}'\n\
             [[guest]]\nname = 'tern'\ntern = true\n"
        );
        let plan = directory.file("plan.toml", plan.as_bytes());
        let mut child = ring3()
            .args(["bench", "driver"])
            .arg(plan)
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        let guest = if kind == "native" { "host" } else { "tern" };
        let shown = directory.path(&format!("{kind}/it-{guest}.out"));
        let processes = wait_until("no script runs", || {
            let found = descendants(child.id());
            // The output is stored at the end of the script; the console is there from the start.
            let console = directory.path(&format!("{kind}/it-tern.console"));
            let is_running =
                kind == "native" || fs::read_to_string(&console).is_ok_and(|it| !it.is_empty());
            (shown.exists() && is_running && !found.is_empty()).then_some(found)
        });
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        let status = child.wait().expect("it ends");
        assert_eq!(status.signal(), Some(signal.as_raw()), "{kind}");
        wait_until("a process goes on", || {
            processes.iter().all(|process| !is_alive(*process)).then_some(())
        });
    }
}

#[test]
fn wrong_plans_end_in_one_line() {
    let directory = Directory::new();
    for (plan, complaint) in [
        ("script = 'none'\nresults = 'r'\nconfiguration = []\n", "none cannot be read"),
        ("script = 1\n", "plan.toml: line 1: "),
        (&format!("round = 1\n{NATIVE}"), "unknown field `round`"),
        (&NATIVE.replace("kind = 'native'", "kind = 'qemu'"), "there is no guest"),
    ] {
        let output = bench(&directory, "", plan);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(complaint) && said.lines().count() == 1, "{said}");
    }
}
