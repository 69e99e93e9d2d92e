//! Servers of disks and switches share out their bandwidth between machines by weights.

use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::supervisor::{Supervised, console, linux_lines};
use crate::support::guest::{Console, PROMPT};
use crate::support::qmp::Qmp;
use crate::support::{Directory, wait_until};

const MACHINES: [(&str, u32); 4] = [("a", 100), ("b", 100), ("c", 200), ("d", 400)];
/// The bytes a second that all of them share.
const BANDWIDTH: u64 = 8 << 20;

struct Lab {
    supervised: Supervised,
    monitors: [Qmp; 4],
    shells: [Console; 4],
}

impl Lab {
    /// Starts machines, each with a disk and a card, and one more, called sink.
    fn start() -> Lab {
        let directory = Directory::new();
        let image = json!(directory.file("disk", &vec![1; 4 << 20]));
        let lines = linux_lines();
        let device =
            |name: &str| format!("device.{name} = {{ file = {image}, read-only = true }}\n");
        let devices: String = MACHINES.map(|(name, _)| device(name)).concat();
        let machine = |(name, weight): (&str, u32)| {
            format!(
                "[machine.{name}]\n{lines}disk = [\"disks:{name}:r\"]\nnetwork = [\"lan\"]\n\
                 disk-weight = {weight}\nnetwork-weight = {weight}\n"
            )
        };
        let machines = MACHINES.map(machine).concat();
        let supervised = Supervised::in_directory(
            directory,
            &format!(
                "[server.disks]\nkind = \"vblock\"\nbandwidth = \"8M\"\n{devices}\
                 [server.lan]\nkind = \"switch\"\nbandwidth = \"8M\"\n\
                 {machines}[machine.sink]\n{lines}network = [\"lan\"]\n"
            ),
        );
        let shell = |name: &str| {
            supervised.reaches(name, "running");
            console(&supervised.file(name, "serial"))
        };
        let mut shells = MACHINES.map(|(name, _)| shell(name));
        let mut sink = shell("sink");
        for (number, shell) in (1..).zip(shells.iter_mut().chain([&mut sink])) {
            shell.type_line("");
            shell.wait_for(PROMPT);
            shell.command(
                "dmesg -n 1; for i in virtio_pci virtio_blk virtio_net; do modprobe $i; done",
            );
            shell.command(&format!(
                "ip link set eth0 up; ip addr add 10.0.0.{number}/24 dev eth0; mkfifo never; \
                 sleep 10000 >never & true"
            ));
        }
        for number in 1..=4 {
            sink.command(&format!("(nc -l -p 500{number} <never >/dev/null) & true"));
        }
        let monitors = MACHINES.map(|(name, _)| Qmp::connect(&supervised.file(name, "control")));
        Lab { supervised, monitors, shells }
    }

    /// Counts what the machines transfer in some seconds, and returns the parts of each in hundredths of all, and of all
    /// in hundredths of the bandwidth.
    fn parts(&mut self, counter: &str) -> ([u64; 4], u64) {
        let mut count = || {
            let bytes = |monitor: &mut Qmp| {
                monitor.done("x-ring3-usage", json!({}))[counter].as_u64().unwrap()
            };
            (std::time::Instant::now(), self.monitors.each_mut().map(bytes))
        };
        let (began, before) = count();
        thread::sleep(Duration::from_secs(4));
        let (ended, after) = count();
        let moved = [0, 1, 2, 3].map(|index| after[index] - before[index]);
        let all: u64 = moved.iter().sum();
        let could = (ended - began).as_millis() as u64 * BANDWIDTH / 1000;
        (moved.map(|moved| moved * 100 / all.max(1)), all * 100 / could)
    }

    /// Waits until the machines have these parts, or nearly, and have nearly all of the bandwidth together.
    fn have(&mut self, counter: &str, wanted: [u64; 4]) {
        let mut last = String::new();
        let what = format!("{counter}: the parts are never {wanted:?}");
        wait_until(&what, || {
            let (parts, all) = self.parts(counter);
            let said = format!("{counter}: {parts:?} of {all} %");
            if said != last {
                eprintln!("{said}");
                last = said;
            }
            let is_near = parts.iter().zip(wanted).all(|(part, wanted)| part.abs_diff(wanted) <= 3);
            (is_near && (85..=103).contains(&all)).then_some(())
        });
    }
}

#[test]
fn machines_share_disks_and_networks_by_their_weights() {
    let mut lab = Lab::start();
    for shell in &mut lab.shells {
        shell.command(
            "(while :; do dd if=/dev/vda of=/dev/null bs=32k iflag=direct 2>/dev/null; done) & pid=$!",
        );
    }
    lab.have("disk-read", [12, 12, 25, 50]);
    // Another server knows the weights, too.
    lab.supervised.signal("disks", rustix::process::Signal::KILL);
    lab.supervised.was_replaced("disks", 1);
    lab.have("disk-read", [12, 12, 25, 50]);
    lab.supervised.execute(&["pause", "d"]);
    lab.have("disk-read", [25, 25, 50, 0]);
    lab.supervised.execute(&["start", "d"]);
    for shell in &mut lab.shells {
        shell.command("kill $pid");
    }
    for (number, shell) in (1..).zip(&mut lab.shells) {
        shell.command(&format!("(nc 10.0.0.5 500{number} </dev/zero) & pid=$!"));
    }
    lab.have("network-sent", [12, 12, 25, 50]);
    lab.supervised.execute(&["pause", "c"]);
    lab.have("network-sent", [16, 16, 0, 66]);
}
