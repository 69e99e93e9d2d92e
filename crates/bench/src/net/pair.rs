//! Boots two guests and joins their networks.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use super::super::children::spawn;
use super::super::monitor::Monitor;
use super::super::peer::{Kind, PROMPT, Peer, processor_time, wake_ups};
use super::super::{BenchError, Settings};
use super::card::{Card, SHARES};
use super::traffic::{SERVER, Traffic};

/// A way of joining two guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) kind: Kind,
    pub(super) by_switch: bool,
}

pub(super) const WAYS: [Way; 3] = [
    Way { kind: Kind::Translator, by_switch: false },
    Way { kind: Kind::Qemu, by_switch: false },
    Way { kind: Kind::Translator, by_switch: true },
];

impl Way {
    pub(super) fn name(self) -> String {
        let by = if self.by_switch { ", switch" } else { "" };
        format!("{}{by}", self.kind.name())
    }
}

/// How long a switch may take until machines can connect to it.
const START: Duration = Duration::from_secs(10);

/// A switch in a process of its own. It ends when this is dropped.
struct Switch(Child);

impl Switch {
    fn start(socket: &Path) -> Result<Switch, BenchError> {
        let failed = |error| BenchError::Start("ring3 switch", error);
        let mut address = OsString::from("unix:");
        address.push(socket);
        let mut command = Command::new(env::current_exe().map_err(failed)?);
        command.args(["switch", "--listen"]).arg(address).args(["--broadcasts", "0"]);
        let switch = Switch(spawn(&mut command).map_err(failed)?);
        let until = Instant::now() + START;
        while !socket.exists() {
            if Instant::now() > until {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(switch)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two booted guests, of which the client starts the traffic. The switch exists as long as they do.
pub(super) struct Pair {
    pub(super) way: Way,
    pub(super) card: &'static Card,
    /// The card's name, with the size of packets if that has been set.
    pub(super) card_name: String,
    /// The machines; the client is the first one.
    pub(super) machines: [Machine; 2],
    switch: Option<Switch>,
}

/// One of the two machines.
pub(super) struct Machine {
    pub(super) peer: Peer,
    /// The connection that reports the machine's counters. Only machines of this program have one.
    pub(super) monitor: Option<Monitor>,
}

impl Pair {
    /// Boots both machines; `socket` is where they connect.
    pub(super) fn boot(
        settings: &Settings,
        way: Way,
        card: &'static Card,
        socket: &Path,
    ) -> Result<Pair, BenchError> {
        let switch = if way.by_switch { Some(Switch::start(socket)?) } else { None };
        let kernel = settings.guest("linux-686/vmlinuz")?;
        let initrd = settings.guest("suite.cpio.gz")?;
        let boot = |number: u32| {
            let is_server = if number == 1 && !way.by_switch { "on" } else { "off" };
            let mut netdev = OsString::from(format!(
                "stream,id=network,server={is_server},addr.type=unix,addr.path="
            ));
            netdev.push(socket);
            let device = format!("{},netdev=network,mac=52:54:00:12:34:0{number}", card.device);
            let mut options = vec!["-netdev".into(), netdev, "-device".into(), device.into()];
            let qmp = socket.with_extension(number.to_string());
            if way.kind == Kind::Translator {
                let mut target = OsString::from("unix:");
                target.push(&qmp);
                target.push(",server=on,wait=off");
                options.extend(["-qmp".into(), target]);
            }
            let mut peer = way.kind.boot_kernel(&kernel, &initrd, &options)?;
            peer.wait_for(PROMPT)?;
            let modules = card.modules;
            peer.work(&format!(
                "dmesg -n 1; modprobe -a {modules}; ip addr add 10.0.0.{number}/24 dev eth0; ip link set eth0 up"
            ))?;
            let is_ours = way.kind == Kind::Translator;
            let monitor = is_ours.then(|| Monitor::connect(&qmp)).transpose()?;
            Ok::<_, BenchError>(Machine { peer, monitor })
        };
        let mut server = boot(1)?;
        server.peer.work("suite --network serve > /tmp/served &")?;
        let mut client = boot(2)?;
        // After this the machines have found each other, and their drivers have settled.
        client.peer.work(&format!("ping -c 3 {SERVER}"))?;
        Ok(Pair { way, card, card_name: card.name.into(), machines: [client, server], switch })
    }

    /// Makes both guests send packets of up to `bytes` bytes from now on.
    pub(super) fn set_packet_size(&mut self, bytes: u32) -> Result<(), BenchError> {
        for machine in &mut self.machines {
            machine.peer.work(&format!("ip link set eth0 mtu {bytes}"))?;
        }
        self.card_name = format!("{}/{bytes}", self.card.name);
        Ok(())
    }

    /// Returns how many packets or records of `traffic` are sent.
    pub(super) fn count(&self, traffic: &Traffic) -> u32 {
        (traffic.count * self.card.share / SHARES).max(1)
    }

    /// Returns how often a thread of the switch has been woken, and its processor time in seconds. Both are 0
    /// without a switch.
    pub(super) fn switch(&self) -> Result<(u64, f64), BenchError> {
        let Some(Switch(process)) = &self.switch else { return Ok((0, 0.0)) };
        let both = || Ok((wake_ups(process)?, processor_time(process)?));
        both().map_err(|error| BenchError::Time("ring3 switch", error))
    }

    /// Sends `traffic`. Returns the seconds for a packet or record, and the share of packets that were lost.
    pub(super) fn measure(&mut self, traffic: &Traffic) -> Result<(f64, f64), BenchError> {
        let count = self.count(traffic);
        let (none, _) = self.send(traffic, 0)?;
        let (time, lost) = self.send(traffic, count)?;
        let done = f64::from(count.saturating_sub(lost).max(1));
        Ok(((time - none).max(0.0) / done, f64::from(lost) / f64::from(count)))
    }

    /// Sends `count` packets or records. Returns the seconds that pass, and how many are lost.
    pub(super) fn send(&mut self, traffic: &Traffic, count: u32) -> Result<(f64, u32), BenchError> {
        let (time, text) = self.machines[0].peer.wait_for_work(&traffic.command(count))?;
        let Some(again) = outcome(&text, count) else {
            return Err(BenchError::NotRun(traffic.name(), self.way.kind.name(), text));
        };
        // Other traffic sends lost packets again, so that all of it arrives.
        Ok((time, if traffic.may_lose() { again } else { 0 }))
    }
}

/// Returns the second number that the program has printed, if the first one is `count`.
fn outcome(text: &str, count: u32) -> Option<u32> {
    text.lines().find_map(|line| {
        let words: [&str; 3] = line.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
        let is_right = words[0] == "network" && words[1] == count.to_string();
        is_right.then(|| words[2].parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_found_among_other_things() {
        let text = "suite --network 10.0.0.1 flood 64 30\r\nnetwork 30 2\r\n";
        assert_eq!(outcome(text, 30), Some(2));
        assert_eq!(outcome(text, 31), None);
        assert_eq!(outcome("suite: connect: Connection refused\r\n", 30), None);
    }
}
