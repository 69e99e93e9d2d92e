//! The supervisor shares out memory between machines whose guests have more together than the host may give.

use std::time::Instant;

use serde_json::{Value, json};

use crate::supervisor::{Supervised, console, linux_lines};
use crate::support::guest::{Console, PROMPT, has_module};
use crate::support::wait_until;

const MIB: u64 = 1 << 20;
/// What a machine may touch between two looks at its limit.
const BETWEEN_LOOKS: u64 = 16 * MIB;

/// Guests that share a budget.
struct Guests {
    supervised: Supervised,
    shells: Vec<Console>,
    budget: u64,
    /// The most that the host has held for all of them.
    most: u64,
}

impl Guests {
    /// Starts `count` guests of `memory` MiB each with a budget of so many MiB.
    fn start(count: usize, memory: u64, budget: u64) -> Guests {
        let machine = |number: usize| {
            let lines =
                linux_lines().replace("memory = \"96M\"", &format!("memory = \"{memory}M\""));
            format!("[machine.g{number}]\n{lines}")
        };
        let machines: String = (0..count).map(machine).collect();
        let supervised = Supervised::new(&format!("[memory]\nbudget = \"{budget}M\"\n{machines}"));
        let shells = (0..count).map(|number| {
            let mut shell = console(&supervised.file(&format!("g{number}"), "serial"));
            shell.wait_for(PROMPT);
            shell.command(
                "dmesg -n 1; modprobe virtio_pci; modprobe virtio_balloon; mkdir /files; \
                 mount -t tmpfs -o size=100% none /files; seq 1 2000000 | head -c 4194304 > /one",
            );
            shell
        });
        let shells = shells.collect();
        Guests { supervised, shells, budget: budget * MIB, most: 0 }
    }

    /// Returns the machines' accounts, and checks that they are within the budget.
    fn accounts(&mut self) -> Vec<Value> {
        let parts: Value =
            serde_json::from_str(&self.supervised.execute(&["query", "--json"])).unwrap();
        let accounts: Vec<Value> =
            parts.as_array().unwrap().iter().map(|part| part["memory"].clone()).collect();
        let held = accounts.iter().filter_map(|account| account["held"].as_u64()).sum();
        self.most = self.most.max(held);
        let most = self.budget + accounts.len() as u64 * BETWEEN_LOOKS;
        assert!(held <= most, "the host holds {} MiB: {accounts:#?}", held / MIB);
        accounts
    }

    /// Waits until the accounts are as wanted.
    fn reach(&mut self, what: &str, is_wanted: impl Fn(&[Value]) -> bool) {
        wait_until(what, || is_wanted(&self.accounts()).then_some(()));
    }

    /// Lets a guest begin to write so many MiB, and then compute their sum.
    fn fill(&mut self, guest: usize, megabytes: u64) {
        let write = format!(
            "for i in $(seq {}); do cat /one; done > /files/all; md5sum < /files/all",
            megabytes / 4
        );
        self.shells[guest].be_patient();
        self.shells[guest].begin(&write);
    }

    /// Waits for that sum, which must be right.
    fn check(&mut self, guest: usize, megabytes: u64) {
        let shell = &mut self.shells[guest];
        let found = shell.end();
        let right = format!("for i in $(seq {}); do cat /one; done | md5sum", megabytes / 4);
        assert_eq!(found, shell.command(&right), "guest {guest}");
    }

    fn remove(&mut self, guest: usize) {
        self.shells[guest].command("rm /files/all");
    }
}

fn number(account: &Value, name: &str) -> u64 {
    account[name].as_u64().unwrap_or(0)
}

/// Two guests that have 512 MiB together do with 360 MiB of the host's: the second one waits for what the first one frees.
#[test]
fn a_guest_waits_for_memory_that_another_one_gives_back() {
    if !has_module("linux-686", "virtio_balloon") {
        return;
    }
    let mut guests = Guests::start(2, 256, 360);
    guests.fill(0, 160);
    guests.check(0, 160);
    guests.fill(1, 160);
    guests.reach("the second guest never waits", |accounts| accounts[1]["waits"] == true);
    let began = Instant::now();
    guests.remove(0);
    guests.check(1, 160);
    eprintln!(
        "the second guest is done {} ms after the first one frees memory",
        began.elapsed().as_millis()
    );
    guests.remove(1);
    guests.reach("guests do not get their memory back", |accounts| {
        accounts.iter().all(|account| number(account, "actual") == 256 * MIB)
    });
    eprintln!("the host has held {} MiB at most", guests.most / MIB);
    assert!(guests.supervised.execute(&["query"]).contains("memory"));
    // The next supervisor finds all as it is.
    guests.supervised.replace();
    guests.reach("the next supervisor shares nothing out", |accounts| {
        accounts.iter().all(|account| number(account, "limit") > 0)
    });
}

/// Eight guests of 512 MiB work on 2 GiB, three of them at a time.
#[test]
#[ignore = "takes minutes, and 2 GiB; make test-long runs it"]
fn eight_guests_work_on_a_half_of_their_memory() {
    const GUESTS: usize = 8;
    const WRITTEN: u64 = 300;
    if !has_module("linux-686", "virtio_balloon") {
        return;
    }
    let mut guests = Guests::start(GUESTS, 512, 2048);
    for turn in 0..GUESTS {
        let working: Vec<usize> = (turn..turn + 3).map(|guest| guest % GUESTS).collect();
        for guest in &working {
            guests.fill(*guest, WRITTEN);
        }
        for guest in &working {
            guests.accounts();
            guests.check(*guest, WRITTEN);
        }
        guests.accounts();
        let began = Instant::now();
        for guest in &working {
            guests.remove(*guest);
        }
        guests.reach("the host does not get its memory back", |accounts| {
            working.iter().all(|guest| number(&accounts[*guest], "held") < 200 * MIB)
        });
        eprintln!("turn {turn}: given back within {} ms", began.elapsed().as_millis());
    }
    eprintln!("the host has held {} MiB at most", guests.most / MIB);
    let sizes = json!(vec![512 * MIB; GUESTS]);
    assert_eq!(
        guests.accounts().iter().map(|account| account["size"].clone()).collect::<Value>(),
        sizes
    );
}
