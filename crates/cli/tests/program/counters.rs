//! `--stats` and its counterparts for tools: what the machine, its drives and its network cards have done.

use std::fs::{self, File};

use serde_json::{Value, json};

use crate::support::Directory;
use crate::support::guest::{Guest, PROMPT, WITH_MODULES, add_linux};
use crate::support::qmp::Qmp;

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
    assert_eq!(guest.power_off(), Some(0));
    let text = fs::read_to_string(&stats).unwrap();
    assert!(line(&text, "reads by ") >= 8, "{text}");
    assert!(line(&text, "packets sent by ") >= 3 && line(&text, "packets received by ") >= 3);
}
