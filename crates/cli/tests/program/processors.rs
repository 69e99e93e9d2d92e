//! The supervisor shares out the time of processors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::supervisor::Supervised;
use crate::support::qmp::Qmp;
use crate::support::{Directory, kernel, ring3, wait_until};

/// JMP to itself
const BUSY: [u8; 2] = [0xeb, 0xfe];
const MACHINES: [(&str, u32); 4] = [("a", 100), ("b", 100), ("c", 200), ("d", 400)];

/// Starts busy machines that share a budget, or all processors, by their weights. `command` executes the program.
fn busy_machines(command: Command, budget: &str) -> (Supervised, [Qmp; 4]) {
    let directory = Directory::new();
    let kernel = json!(directory.file("kernel", &kernel(&BUSY)));
    let machine = |(name, weight): (&str, u32)| {
        format!("[machine.{name}]\nmemory = \"4M\"\nkernel = {kernel}\ncpu-weight = {weight}\n")
    };
    let machines = MACHINES.map(machine).concat();
    let configuration = format!("[cpu]\n{budget}\n{machines}");
    let supervised = Supervised::started_by(command, directory, &configuration);
    let monitors = MACHINES.map(|(name, _)| {
        supervised.reaches(name, "running");
        Qmp::connect(&supervised.file(name, "control"))
    });
    (supervised, monitors)
}

/// Waits until the limits of these machines are `wanted`, in hundredths of a processor, or less than one away.
fn limits_are(monitors: &mut [Qmp], wanted: &[f64]) {
    let what = format!("the limits are never {wanted:?}");
    wait_until(&what, || {
        let limit = |monitor: &mut Qmp| monitor.done("x-ring3-cpu", json!({}))["percent"].as_f64();
        let found: Vec<_> = monitors.iter_mut().map(limit).collect();
        let near = |(found, wanted): (&Option<f64>, &f64)| {
            found.unwrap_or(100.0) > wanted - 1.0 && found.unwrap_or(100.0) < wanted + 1.0
        };
        found.iter().zip(wanted).all(near).then_some(())
    });
}

/// Four busy machines, of which one is paused for some time and another one has a limit of its own later.
#[test]
fn busy_machines_share_by_their_weights() {
    let (supervised, mut monitors) = busy_machines(ring3(), "budget = 48");
    limits_are(&mut monitors, &[6.0, 6.0, 12.0, 24.0]);
    supervised.execute(&["pause", "d"]);
    limits_are(&mut monitors[..3], &[12.0, 12.0, 24.0]);
    supervised.execute(&["start", "d"]);
    limits_are(&mut monitors, &[6.0, 6.0, 12.0, 24.0]);
    supervised.execute(&["kill", "c"]);
    for (index, wanted) in [(0, 8.0), (1, 8.0), (3, 32.0)] {
        limits_are(&mut monitors[index..=index], &[wanted]);
    }
}

/// A control group with the controller for processors. It is removed when this is dropped.
struct Group(PathBuf);

impl Group {
    /// Makes a group, if the host allows it.
    fn make() -> Option<Group> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let highest =
            mounts.find(|fields| fields[2] == "cgroup2").map(|fields| fields[1].to_owned());
        let group = highest.and_then(|highest| {
            let _ = fs::write(Path::new(&highest).join("cgroup.subtree_control"), "+cpu");
            let directory = Path::new(&highest).join(format!("ring3-test-{}", process::id()));
            fs::create_dir(&directory).ok()?;
            let group = Group(directory);
            fs::metadata(group.0.join("cpu.weight")).is_ok().then_some(group)
        });
        if group.is_none() {
            ring3_skipped::host("no control group with the controller cpu can be made (cgroup v2)");
        }
        group
    }

    /// Returns a command that executes the program in this group.
    fn program(&self) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", "echo $$ >\"$0\"/cgroup.procs && exec \"$@\""]).arg(&self.0);
        command.arg(env!("CARGO_BIN_EXE_ring3"));
        command
    }

    /// Returns what a file of a machine's group says.
    fn of(&self, machine: &str, file: &str) -> String {
        let path = self.0.join(format!("machine-{machine}")).join(file);
        fs::read_to_string(path).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel removes a process from its group a moment after the process has ended.
        wait_until("a control group is not empty", || {
            for (machine, _) in MACHINES {
                let _ = fs::remove_dir(self.0.join(format!("machine-{machine}")));
            }
            fs::remove_dir(&self.0).ok()
        });
    }
}

/// The kernel knows the weights where the supervisor has a control group to divide.
#[test]
fn control_groups_have_the_weights_of_machines() {
    let Some(group) = Group::make() else { return };
    let (mut supervised, _monitors) = busy_machines(group.program(), "");
    let are_in_groups = |supervised: &Supervised| {
        for (machine, weight) in MACHINES {
            let thread = supervised.pid(machine).as_raw_nonzero().to_string();
            wait_until(&format!("{machine} has no group"), || {
                group.of(machine, "cgroup.threads").contains(&thread).then_some(())
            });
            assert_eq!(group.of(machine, "cpu.weight"), weight.to_string());
        }
    };
    are_in_groups(&supervised);
    // Another supervisor starts in the same group, whose other processes are those of machines, and has a machine to start.
    supervised.replace_by(group.program());
    supervised.signal("a", Signal::KILL);
    supervised.was_replaced("a", 1);
    are_in_groups(&supervised);
    supervised.execute(&["kill", "b"]);
    wait_until("the group of a machine that has ended stays", || {
        (!group.0.join("machine-b").exists()).then_some(())
    });
}

/// Prints how four busy machines share the processors, with and without control groups.
#[test]
#[ignore = "measures times, for which the host must be quiet; make test-long runs it"]
fn four_busy_machines_share_the_time_by_their_weights() {
    let group = Group::make();
    let commands = [
        Some(("without groups", ring3())),
        group.as_ref().map(|group| ("in groups", group.program())),
    ];
    for (place, command) in commands.into_iter().flatten() {
        shares_are_printed(command, &format!("all processors, {place}"), "");
    }
    shares_are_printed(ring3(), "one processor", "budget = 100");
}

fn shares_are_printed(command: Command, what: &str, budget: &str) {
    let (_supervised, mut monitors) = busy_machines(command, budget);
    std::thread::sleep(Duration::from_secs(5));
    let mut used = || {
        let nanos =
            |monitor: &mut Qmp| monitor.done("x-ring3-cpu", json!({}))["used-nanos"].as_u64();
        monitors.each_mut().map(nanos).map(Option::unwrap)
    };
    let (began, before) = (Instant::now(), used());
    std::thread::sleep(Duration::from_secs(20));
    let (elapsed, after) = (began.elapsed(), used());
    for (((name, weight), before), after) in MACHINES.into_iter().zip(before).zip(after) {
        let used = Duration::from_nanos(after - before);
        let part = 100.0 * used.as_secs_f64() / elapsed.as_secs_f64();
        eprintln!("{what}: {name} with weight {weight} used {part:.1} % of a processor");
    }
}
