//! The supervisor shares out the time of processors.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::supervisor::Supervised;
use crate::support::qmp::Qmp;
use crate::support::{Directory, kernel, wait_until};

/// JMP to itself
const BUSY: [u8; 2] = [0xeb, 0xfe];
const MACHINES: [(&str, u32); 4] = [("a", 100), ("b", 100), ("c", 200), ("d", 400)];

/// Starts busy machines that share a budget, or all processors, by their weights.
fn busy_machines(budget: &str) -> (Supervised, [Qmp; 4]) {
    let directory = Directory::new();
    let kernel = json!(directory.file("kernel", &kernel(&BUSY)));
    let machine = |(name, weight): (&str, u32)| {
        format!("[machine.{name}]\nmemory = \"4M\"\nkernel = {kernel}\ncpu-weight = {weight}\n")
    };
    let machines = MACHINES.map(machine).concat();
    let configuration = format!("[cpu]\n{budget}\n{machines}");
    let supervised = Supervised::in_directory(directory, &configuration);
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
    let (supervised, mut monitors) = busy_machines("budget = 48");
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

/// Prints how four busy machines share the processors of a host that has nothing else to do.
#[test]
#[ignore = "measures times, for which the host must be quiet; make test-long runs it"]
fn four_busy_machines_share_the_time_by_their_weights() {
    for (budget, what) in [("", "all processors"), ("budget = 100", "one processor")] {
        let (_supervised, mut monitors) = busy_machines(budget);
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
}
