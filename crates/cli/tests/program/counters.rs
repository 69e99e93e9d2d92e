//! `--stats` and its counterparts for tools: what the machine, its drives and its network cards have done.

use std::fs::{self, File};

use serde_json::{Value, json};

use crate::support::guest::{Guest, PROMPT, WITH_MODULES, add_linux};
use crate::support::qmp::Qmp;
use crate::support::{Directory, ring3};
use crate::tern::has_tern;

/// Returns the counter `name` of an answer to `query-stats`.
fn counter(of: &Value, name: &str) -> u64 {
    let stats = of["stats"].as_array().unwrap_or_else(|| panic!("no stats in {of}"));
    let found = stats.iter().find(|one| one["name"] == name);
    found.and_then(|one| one["value"].as_u64()).unwrap_or_else(|| panic!("no {name} in {of}"))
}

/// Returns the number with which the line of `text` that contains `what` begins.
#[track_caller]
fn line(text: &str, what: &str) -> u64 {
    let line = text.lines().find(|line| line.contains(what));
    let word = line.and_then(|line| line.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no {what} in {text}"))
}

#[test]
fn drives_and_cards_have_counts_of_their_own() {
    let directory = Directory::new();
    let disk = directory.file("disk.img", &vec![0; 4 << 20]);
    let (socket, stats) = (directory.path("qmp"), directory.path("stats"));
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        command.args(["--nic", "user", "--stats", "--hda"]).arg(&disk);
        command.arg("--qmp").arg(format!("unix:{}", socket.display()));
        command.stderr(File::create(&stats).unwrap());
    });
    guest.wait_for(PROMPT);
    let mut qmp = Qmp::connect(&socket);
    let shown = guest.command(
        "dmesg -n 1; modprobe virtio_pci; modprobe virtio_net; ip link set eth0 up; \
         ip addr add 10.0.2.15/24 dev eth0; ping -c 3 10.0.2.2; \
         modprobe ata_piix; modprobe sd_mod; sleep 1; dd if=/dev/sda of=/dev/null bs=64k count=64",
    );
    assert!(shown.contains("3 packets received"), "{shown}");
    let all = qmp.done("query-stats", json!({"target": "vm"}));
    let card = &all[1];
    assert_eq!(card["qom-path"], "/machine/peripheral/nic0", "{all}");
    for direction in ["sent", "received"] {
        let of = |what| counter(card, &format!("{direction}-{what}"));
        assert!(of("packets") >= 3 && of("bytes") >= 3 * 64 && of("time") > 0, "{all}");
    }
    let drives = qmp.done("query-blockstats", json!({}));
    let reads = &drives[0]["stats"];
    assert!(reads["rd_bytes"].as_u64() >= Some(4 << 20), "{drives}");
    assert!(reads["rd_total_time_ns"].as_u64() > Some(0), "{drives}");
    // Only what is found by samples can be more than there was.
    let machine = &all[0];
    let activities: u64 = machine["stats"].as_array().unwrap().iter().filter_map(activity).sum();
    assert!(activities >= counter(machine, "host-time"), "{all}");
    assert!(counter(machine, "activity-the-guests-code") > 0, "{all}");
    assert_eq!(guest.power_off(), Some(0));
    let text = fs::read_to_string(&stats).unwrap();
    assert!(line(&text, "reads by ") >= 8, "{text}");
    assert!(line(&text, "packets sent by ") >= 3 && line(&text, "packets received by ") >= 3);
    let shares = shares(&text);
    for name in
        ["the guest's code", "asleep", "files and connections", "inputs, clocks and requests"]
    {
        assert!(shares.iter().any(|(found, _)| *found == name), "no {name} in {text}");
    }
    let sum: f64 = shares.iter().map(|(_, share)| share).sum();
    // Each is rounded down to a hundredth.
    assert!((99.0..=100.01).contains(&sum), "{sum} % in {text}");
}

/// Returns the time of an activity among the counters.
fn activity(counter: &Value) -> Option<u64> {
    counter["name"].as_str()?.strip_prefix("activity-")?;
    counter["value"].as_u64()
}

/// Returns the activities in the output of `--stats` with their shares, in per cent.
fn shares(text: &str) -> Vec<(&str, f64)> {
    text.lines()
        .filter_map(|line| {
            let (share, name) = line.trim().split_once(" % ")?;
            Some((name, share.parse().ok()?))
        })
        .collect()
}

/// What the engines do besides the guest's code is known of the one that does it.
#[test]
fn tern_shows_what_the_engine_does() {
    if !has_tern() {
        return;
    }
    let has_translator = ring3().arg("doctor").output().unwrap().status.success();
    for (engine, translates) in [("interpreter", false), ("auto", has_translator)] {
        let mut machine = ring3();
        machine.args(["run", "--tern", "--engine", engine, "--deterministic", "--stats"]);
        machine.args(["--debug-exit", "0xf4", "--append", "run=seq 1 2000 | sort | cksum"]);
        let output = machine.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let shares = shares(&text);
        let has = |name: &str| shares.iter().any(|(found, _)| *found == name);
        let has_device = shares.iter().any(|(found, _)| found.starts_with("device "));
        assert!(has("the guest's code") && has_device, "{text}");
        assert_eq!(has("translating"), translates, "{text}");
    }
}
