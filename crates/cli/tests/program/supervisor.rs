//! The supervisor starts machines and servers in order, replaces those that die or hang, and may itself die.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};

use crate::console::Client;
use crate::libvirt::ECHO_UNTIL_OFF;
use crate::support::guest::{CONSOLE, Console, PROMPT, WITH_MODULES, file, has_module, linux};
use crate::support::screen::Screen;
use crate::support::{Directory, HALT_FOR_EVER, PATIENCE, kernel, output, ring3, wait_until};
use crate::terminal::ECHO;

/// A supervisor in a directory of its own. All that it owns is killed when this is dropped.
pub(crate) struct Supervised {
    pub(crate) directory: Directory,
    /// The supervisor's directory. The paths of sockets are short, so it is not in the test's own.
    pub(crate) run: tempfile::TempDir,
    pub(crate) supervisor: Child,
}

impl Supervised {
    pub(crate) fn new(configuration: &str) -> Supervised {
        Supervised::in_directory(Directory::new(), configuration)
    }

    pub(crate) fn in_directory(directory: Directory, configuration: &str) -> Supervised {
        Supervised::started_by(ring3(), directory, configuration)
    }

    /// The same for a command that executes the program with the arguments that follow.
    pub(crate) fn started_by(
        command: Command,
        directory: Directory,
        configuration: &str,
    ) -> Supervised {
        fs::write(directory.path("parts.toml"), configuration).unwrap();
        let run = tempfile::tempdir().unwrap();
        let supervisor = Supervised::start(command, &directory, &run.path().join("r"));
        let supervised = Supervised { directory, run, supervisor };
        supervised.answers();
        supervised
    }

    fn start(mut command: Command, directory: &Directory, run: &Path) -> Child {
        command.args(["supervisor", "parts.toml", "--directory"]).arg(run);
        command.current_dir(directory.path("")).stdin(Stdio::null()).spawn().unwrap()
    }

    fn answers(&self) {
        wait_until("the supervisor does not answer", || {
            self.ctl(&["query"]).output().unwrap().status.success().then_some(())
        });
    }

    /// Kills the supervisor, and starts another one.
    pub(crate) fn replace(&mut self) {
        self.replace_by(ring3());
    }

    /// The same by such a command.
    pub(crate) fn replace_by(&mut self, command: Command) {
        self.supervisor.kill().unwrap();
        self.supervisor.wait().unwrap();
        self.supervisor = Supervised::start(command, &self.directory, &self.run.path().join("r"));
        self.answers();
    }

    pub(crate) fn ctl(&self, arguments: &[&str]) -> Command {
        let mut ctl = ring3();
        ctl.args(["ctl", "--directory"]).arg(self.run.path().join("r")).args(arguments);
        ctl.current_dir(self.directory.path(""));
        ctl
    }

    pub(crate) fn execute(&self, arguments: &[&str]) -> String {
        String::from_utf8(output(&mut self.ctl(arguments))).unwrap()
    }

    /// Returns the complaint about a command.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output = self.ctl(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }

    pub(crate) fn query(&self, name: &str) -> Value {
        serde_json::from_str(&self.execute(&["query", "--json", name])).unwrap()
    }

    pub(crate) fn reaches(&self, name: &str, state: &str) {
        wait_until(&format!("{name} is never {state}"), || {
            (self.query(name)["state"] == state).then_some(())
        });
    }

    pub(crate) fn pid(&self, name: &str) -> Pid {
        let pid = self.query(name)["pid"].as_i64().unwrap();
        Pid::from_raw(pid as i32).unwrap()
    }

    pub(crate) fn signal(&self, name: &str, signal: Signal) {
        kill_process(self.pid(name), signal).unwrap();
    }

    /// Waits until the process of a part was replaced `times` times.
    pub(crate) fn was_replaced(&self, name: &str, times: u64) {
        wait_until(&format!("{name} is not replaced"), || {
            let part = self.query(name);
            (part["restarts"] == times && part["state"] == "running").then_some(())
        });
    }

    pub(crate) fn file(&self, part: &str, name: &str) -> PathBuf {
        self.run.path().join("r/parts").join(part).join(name)
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // Machines of a test that failed must not go on.
        let parts = self.ctl(&["query", "--json"]).output().unwrap();
        let parts: Value = serde_json::from_slice(&parts.stdout).unwrap_or_default();
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
        for pid in parts.as_array().into_iter().flatten().filter_map(|part| part["pid"].as_i64()) {
            if let Some(pid) = Pid::from_raw(pid as i32) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Connects to the serial line of a guest with a shell.
pub(crate) fn console(socket: &Path) -> Console {
    let line = wait_until("there is no serial line", || UnixStream::connect(socket).ok());
    Console::new(line.try_clone().unwrap(), line)
}

/// Returns the lines of a definition that make a machine boot Linux.
pub(crate) fn linux_lines() -> String {
    let initrd = json!(WITH_MODULES.map(file));
    format!(
        "memory = \"96M\"\nkernel = {}\ninitrd = {initrd}\nappend = \"{CONSOLE}\"\n",
        json!(linux())
    )
}

/// The work of a guest in the tests of chaos: it writes to its disk and reads that back, and sends the same to the next
/// guest, which answers with the checksum. It goes on until /stop exists, and counts its rounds and what was wrong.
const WORK: &str = r"
disk() {
    rounds=0 wrong=0
    while [ ! -e /stop ]; do
        dd if=/data of=/dev/vda bs=64k conv=fsync 2>/dev/null || wrong=$((wrong + 1))
        echo 3 > /proc/sys/vm/drop_caches
        [ $(dd if=/dev/vda bs=64k count=64 2>/dev/null | md5sum | cut -c1-32) = $sum ] || wrong=$((wrong + 1))
        rounds=$((rounds + 1))
    done
    echo disk $rounds $wrong >> /result
}
send() {
    rounds=0
    while [ ! -e /stop ]; do
        nc 10.0.0.$next 5000 < /data && rounds=$((rounds + 1))
    done
    echo send $rounds >> /result
}
receive() {
    rounds=0 wrong=0
    while [ ! -e /quiet ]; do
        nc -l -p 5000 < /never > /come || continue
        [ $(wc -c < /come) = 0 ] && continue
        [ $(md5sum < /come | cut -c1-32) = $sum ] || wrong=$((wrong + 1))
        rounds=$((rounds + 1))
    done
    echo receive $rounds $wrong >> /result
}";

/// Three guests write to disks, and send to each other in a ring, while the servers, that of consoles too, and the
/// supervisor are killed or stopped `kills` times at random moments. The machines go on all the time, nothing is lost, and
/// somebody at a terminal has the console of another machine in the end, as in the beginning.
fn chaos(kills: u32) {
    const GUESTS: [&str; 3] = ["one", "two", "three"];
    let directory = Directory::new();
    let lines = linux_lines();
    let parts = (1..).zip(GUESTS).map(|(number, name)| {
        let image = directory.path(&format!("{name}.img"));
        fs::File::create(image).unwrap().set_len(16 << 20).unwrap();
        let device = format!("device.{name} = {{ file = \"{name}.img\", format = \"raw\" }}\n");
        let machine = format!(
            "[machine.{name}]\n{lines}disk = [\"disks:{name}\"]\n\
             network = [\"lan,mac=52:54:00:00:00:0{number}\"]\nstop-timeout = 1\n"
        );
        (device, machine)
    });
    let (devices, machines): (Vec<_>, Vec<_>) = parts.unzip();
    let (devices, machines) = (devices.concat(), machines.concat());
    let echo = json!(directory.file("echo", &kernel(ECHO)));
    let mut supervised = Supervised::in_directory(
        directory,
        &format!(
            "[server.disks]\nkind = \"vblock\"\ndeadline = 1\n{devices}\
             [server.lan]\nkind = \"switch\"\ndeadline = 1\n\
             [machine.echo]\nmemory = \"4M\"\nkernel = {echo}\nstop-timeout = 0\n{machines}"
        ),
    );
    let mut shells = GUESTS.map(|name| {
        let mut shell = console(&supervised.file(name, "serial"));
        shell.wait_for(PROMPT);
        shell
    });
    let pids = GUESTS.map(|name| supervised.pid(name));
    // All have the same data, which one of them makes.
    for (number, shell) in (1..).zip(&mut shells) {
        shell.command("dmesg -n 1; modprobe virtio_pci; modprobe virtio_blk; modprobe virtio_net");
        shell.command(&format!(
            "ip link set eth0 up; ip addr add 10.0.0.{number}/24 dev eth0; next=$(({number} % 3 + 1))"
        ));
        shell.command("mkfifo /never; sleep 100000 > /never & true");
        shell.command("seq 1 700000 | head -c 4194304 > /data; sum=$(md5sum < /data | cut -c1-32)");
        for line in WORK.trim().lines() {
            shell.type_line(line);
        }
        shell.command("true");
    }
    for shell in &mut shells {
        shell.command("(disk & receive & sleep 1; send) > /dev/null 2>&1 & true");
    }
    // Serial lines have one client each. This server finds only that of the last machine free.
    supervised.execute(&["launch", "console", "--kind", "console", "deadline=1"]);
    let mut terminal = ring3();
    terminal.args(["console", "echo", "--directory"]).arg(supervised.run.path().join("r"));
    let mut terminal = Screen::of(terminal);
    terminal.wait_for("echo serial0: running, you type");
    let seed = std::env::var("RING3_CHAOS_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut random: u64 = seed;
    // A linear congruential generator (Knuth, MMIX); its upper bits are the better ones.
    let mut below = |bound: u64| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (random >> 33) % bound
    };
    for kill in 0..kills {
        std::thread::sleep(Duration::from_millis(below(300)));
        terminal.look();
        let victim = ["disks", "lan", "console", "supervisor"][below(4) as usize];
        if victim == "supervisor" {
            supervised.replace();
            continue;
        }
        let Some(pid) = supervised.query(victim)["pid"].as_i64() else { continue };
        let Some(pid) = Pid::from_raw(pid as i32) else { continue };
        let signal = if below(8) == 0 { Signal::STOP } else { Signal::KILL };
        // It may have been replaced at this moment.
        let _ = kill_process(pid, signal);
        wait_until(&format!("{victim} is not replaced after kill {kill} of seed {seed}"), || {
            let part = supervised.query(victim);
            let is_new = part["pid"] != pid.as_raw_nonzero().get();
            (is_new && part["state"] == "running").then_some(())
        });
    }
    let mut client = Client::connect(&supervised, "console", "control");
    wait_until("the terminal does not come back", || {
        terminal.look();
        client.console("echo", "serial0")["owner"].is_number().then_some(())
    });
    terminal.type_until("here again", "here again");
    for shell in &mut shells {
        shell.be_patient();
        shell.command("touch /stop");
    }
    for (name, shell) in GUESTS.iter().zip(&mut shells) {
        let result = wait_until(&format!("the work of {name} does not end"), || {
            let result = shell.command("cat /result 2>/dev/null");
            (result.contains("disk") && result.contains("send")).then_some(result)
        });
        let [disk, wrong] = numbers(&result, "disk ");
        let [sent] = numbers(&result, "send ");
        assert!(disk > 0 && wrong == 0 && sent > 0, "{name}: {result}");
        println!("{name}: {}", result.replace('\n', ", "));
    }
    for shell in &mut shells {
        // The last listener leaves after one more connection.
        shell
            .command("touch /quiet; echo > /dev/null; (sleep 1; nc 127.0.0.1 5000 < /data) & true");
    }
    for (name, shell) in GUESTS.iter().zip(&mut shells) {
        let result = wait_until(&format!("{name} does not end listening"), || {
            let result = shell.command("cat /result");
            result.contains("receive").then_some(result)
        });
        let [received, wrong] = numbers(&result, "receive ");
        assert!(received > 0 && wrong == 0, "{name}: {result}");
        let complaints =
            shell.command("dmesg | grep -ci -e 'i/o error' -e 'blocked for more' ; true");
        assert_eq!(complaints, "0", "{name}: {}", shell.command("dmesg | tail -n 20"));
    }
    assert_eq!(
        GUESTS.map(|name| supervised.pid(name)),
        pids,
        "the machines have gone on all the time"
    );
    supervised.execute(&["quit"]);
    let status = wait_until("the supervisor ends", || supervised.supervisor.try_wait().unwrap());
    assert!(status.success(), "{status}");
    for part in ["one", "two", "three", "echo", "disks", "lan", "console"] {
        assert!(!supervised.file(part, "control").exists(), "{part} leaves its socket");
    }
}

/// Returns the numbers behind `word` in a result.
fn numbers<const N: usize>(result: &str, word: &str) -> [u64; N] {
    let line = result.lines().find_map(|line| line.strip_prefix(word));
    let line = line.unwrap_or_else(|| panic!("{word}is missing in {result}"));
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{result}"))
}

#[test]
fn nothing_is_lost_in_a_little_chaos() {
    chaos(12);
}

#[test]
#[ignore = "takes half an hour; `make chaos` runs it"]
fn nothing_is_lost_in_chaos() {
    chaos(std::env::var("RING3_CHAOS_KILLS").map_or(1000, |kills| kills.parse().unwrap()));
}

#[test]
fn machines_are_launched_paused_started_and_ended_by_command() {
    let supervised = Supervised::new("");
    let kernel = format!("kernel={}", linux().display());
    let launch = ["launch", "b", "memory=64M", "append=console=ttyS0", "deadline=0", &kernel];
    supervised.execute(&launch);
    assert_eq!(supervised.query("b")["state"], "paused");
    assert!(supervised.refused(&launch).contains("\"b\" already"));
    supervised.execute(&["start", "b"]);
    let mut shell = console(&supervised.file("b", "serial"));
    // It has no root file system.
    shell.wait_for("Linux version");
    supervised.execute(&["pause", "b"]);
    assert_eq!(supervised.query("b")["state"], "paused");
    assert!(supervised.refused(&["remove", "b"]).contains("runs; stop it first"));
    // A machine that waits is ended at once.
    supervised.execute(&["stop", "b"]);
    let ended = supervised.query("b");
    assert_eq!((&ended["state"], &ended["pid"]), (&json!("ended"), &Value::Null));
    supervised.execute(&["start", "b"]);
    supervised.execute(&["kill", "b"]);
    supervised.reaches("b", "ended");
    supervised.execute(&["remove", "b"]);
    assert!(supervised.refused(&["start", "b"]).contains("no machine and no server \"b\""));
    assert!(!supervised.file("b", "").exists());
}

/// A guest that switches its machine off has not failed; a machine that dies has.
#[test]
fn machines_are_started_again_by_their_policy() {
    let supervised = Supervised::new(&format!("[machine.one]\n{}start = false\n", linux_lines()));
    supervised.execute(&["start", "one"]);
    supervised.signal("one", Signal::KILL);
    supervised.was_replaced("one", 1);
    assert_eq!(supervised.query("one")["ended"], "killed by signal 9");
    let power_off = || {
        let mut shell = console(&supervised.file("one", "serial"));
        shell.wait_for(PROMPT);
        shell.type_line("exit");
    };
    power_off();
    supervised.reaches("one", "ended");
    assert_eq!(supervised.query("one")["ended"], "the guest has switched off");
    supervised.execute(&["restart-policy", "one", "always"]);
    supervised.execute(&["start", "one"]);
    power_off();
    supervised.was_replaced("one", 2);
    supervised.execute(&["restart-policy", "one", "never"]);
    supervised.signal("one", Signal::KILL);
    supervised.reaches("one", "ended");
    assert_eq!(supervised.query("one")["restarts"], 2);
}

#[test]
fn mistakes_are_answered_with_a_reason() {
    let supervised = Supervised::new("[server.lan]\nkind = \"switch\"\n");
    for (command, reason) in [
        (&["start", "nobody"][..], "there is no machine and no server \"nobody\""),
        (&["pause", "lan"], "\"lan\" is not a machine"),
        (&["launch", "lan"], "there is a machine or a server \"lan\" already"),
        (&["launch", "m", "memry=3"], "unexpected argument '--memry'"),
        (&["launch", "m", "kernel=/nowhere"], "/nowhere"),
        (&["launch", "m", "disk=disks:root"], "\"m\" needs \"disks\", which is not defined"),
        (&["launch", "m", "disk=lan:root"], "\"lan\" is not a server of disks"),
        (&["launch", "m", "qmp=x"], "the supervisor itself gives machines the option \"qmp\""),
        (&["launch", "m", "disk=root"], "is not SERVER:DEVICE"),
        (&["grant", "lan", "disks:root"], "\"lan\" is not a machine"),
    ] {
        let said = supervised.refused(command);
        assert!(said.contains(reason), "{command:?}: {said}");
    }
    let mut second = ring3();
    second.args(["supervisor", "--directory"]).arg(supervised.run.path().join("r"));
    let said = String::from_utf8(second.output().unwrap().stderr).unwrap();
    assert!(said.contains("is in use by another process"), "{said}");
    let bad = supervised.directory.file("bad.toml", b"[machine.x]\nneeds = [\"y\"]\n");
    let bad = ring3().args(["supervisor", "--directory", "elsewhere"]).arg(bad).output().unwrap();
    let said = String::from_utf8(bad.stderr).unwrap();
    assert!(said.contains("\"x\" needs \"y\", which is not defined"), "{said}");
    let absent = ring3().args(["ctl", "--directory", "/nowhere", "query"]).output().unwrap();
    let said = String::from_utf8(absent.stderr).unwrap();
    assert!(said.contains("start one with \"ring3 supervisor\""), "{said}");
}

/// A disk that is granted appears in the guest, and one that is revoked disappears: one of the machine's definition, and one
/// that came later.
#[test]
fn disks_are_granted_to_a_guest_that_runs_and_revoked() {
    let directory = Directory::new();
    for (name, megabytes) in [("a", 1), ("b", 2)] {
        fs::File::create(directory.path(name)).unwrap().set_len(megabytes << 20).unwrap();
    }
    let mut supervised = Supervised::in_directory(
        directory,
        &format!(
            "[server.disks]\nkind = \"vblock\"\ndevice.a = {{ file = \"a\", format = \"raw\" }}\n\
             device.b = {{ file = \"b\", format = \"raw\" }}\n\
             [machine.one]\n{}disk = [\"disks:a\"]\nstop-timeout = 1\n",
            linux_lines()
        ),
    );
    let mut shell = console(&supervised.file("one", "serial"));
    shell.wait_for(PROMPT);
    shell.command("dmesg -n 1; modprobe virtio_pci; modprobe virtio_blk");
    let mut has = |disks: &str| {
        wait_until(&format!("the disks are never {disks:?}"), || {
            let there = shell
                .command("(cd /sys/block; for disk in vd*; do cat $disk/size; done) 2>/dev/null");
            (there.split_whitespace().collect::<Vec<_>>().join(" ") == disks).then_some(())
        });
    };
    has("2048");
    supervised.execute(&["grant", "one", "disks:b:r"]);
    has("2048 4096");
    assert!(supervised.refused(&["grant", "one", "disks:b:r"]).contains("has this disk already"));
    supervised.execute(&["resize", "disks:b", "3M"]);
    has("2048 6144");
    let said = supervised.refused(&["resize", "disks:b", "2M"]);
    assert!(said.contains("shrink"), "{said}");
    supervised.execute(&["resize", "--shrink", "disks:b", "2M"]);
    has("2048 4096");
    supervised.execute(&["revoke", "one", "disks:a"]);
    has("4096");
    // The next supervisor knows of it, too.
    supervised.replace();
    supervised.execute(&["revoke", "one", "disks:b"]);
    has("");
    supervised.execute(&["grant", "one", "disks:b"]);
    has("4096");
    shell.command("dd if=/dev/zero of=/dev/vda bs=1M count=2 conv=fsync");
    supervised.execute(&["stop", "one"]);
    assert!(supervised.refused(&["revoke", "one", "disks:a"]).contains("no right"));
}

#[test]
fn guests_that_run_are_connected_to_networks_and_disconnected() {
    let mut supervised = Supervised::new(&format!(
        "[server.lan]\nkind = \"switch\"\n[server.wan]\nkind = \"switch\"\n\
         [machine.one]\n{}network = [\"lan\"]\nstop-timeout = 1\n",
        linux_lines()
    ));
    let mut shell = console(&supervised.file("one", "serial"));
    shell.wait_for(PROMPT);
    shell.command("dmesg -n 1; modprobe virtio_pci; modprobe virtio_net");
    let mut has = |cards: &str| {
        wait_until(&format!("the cards are never {cards:?}"), || {
            let there = shell.command("ls /sys/class/net | grep eth");
            (there.split_whitespace().collect::<Vec<_>>().join(" ") == cards).then_some(())
        });
    };
    has("eth0");
    supervised.execute(&["connect", "one", "wan"]);
    has("eth0 eth1");
    let said = supervised.refused(&["connect", "one", "wan"]);
    assert!(said.contains("has a card on \"wan\" already"), "{said}");
    // Also those of the machine's definition, and after the supervisor was replaced.
    supervised.execute(&["disconnect", "one", "lan"]);
    has("eth1");
    supervised.replace();
    supervised.execute(&["disconnect", "one", "wan"]);
    has("");
    let said = supervised.refused(&["disconnect", "one", "wan"]);
    assert!(said.contains("has no card on \"wan\""), "{said}");
    supervised.execute(&["connect", "one", "wan"]);
    has("eth0");
    let said = supervised.refused(&["connect", "one", "one"]);
    assert!(said.contains("needs itself") || said.contains("not a switch"), "{said}");
}

/// Launches and kills machines, `times` times: nothing of them is left, in the supervisor or in its directory.
fn launches_leave_nothing(times: u32) {
    let supervised = Supervised::new("");
    let kernel = supervised.directory.file("kernel", &kernel(HALT_FOR_EVER));
    let kernel = format!("kernel={}", kernel.display());
    let pid = supervised.supervisor.id();
    let launch = |times: u32| {
        for _ in 0..times {
            supervised.execute(&["launch", "m", "memory=4M", &kernel]);
            supervised.execute(&["start", "m"]);
            supervised.execute(&["kill", "m"]);
            supervised.reaches("m", "ended");
            supervised.execute(&["remove", "m"]);
        }
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = kib.trim().trim_end_matches(" kB").parse().unwrap();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        assert_eq!(children, "", "it has children");
        (descriptors, kib)
    };
    let (descriptors, kib) = launch(10);
    let (mut later, later_kib) = launch(times);
    // The connection of the last command may still be there.
    wait_until("descriptors are left", || {
        later = later.min(fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count());
        (later <= descriptors).then_some(())
    });
    assert!(later_kib < kib + 512, "{kib} KiB became {later_kib} KiB");
    let left: Vec<_> = fs::read_dir(supervised.run.path().join("r/parts")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn twenty_launches_leave_nothing() {
    launches_leave_nothing(20);
}

#[test]
#[ignore = "takes minutes; make test-long runs it"]
fn a_thousand_launches_leave_nothing() {
    launches_leave_nothing(1000);
}

#[test]
fn fifty_machines_run_at_once() {
    let directory = Directory::new();
    let kernel = json!(directory.file("kernel", &kernel(HALT_FOR_EVER)));
    let machine = |number: u32| {
        format!(
            "[machine.m{number}]\nmemory = \"4M\"\nkernel = {kernel}\nnetwork = [\"lan\"]\nstop-timeout = 0\n"
        )
    };
    let machines: Vec<String> = (0..50).map(machine).collect();
    let mut supervised = Supervised::in_directory(
        directory,
        &format!("[server.lan]\nkind = \"switch\"\n{}", machines.concat()),
    );
    let all_run = |supervised: &Supervised| {
        wait_until("they do not all run", || {
            let parts = supervised.execute(&["query", "--json"]);
            let parts: Value = serde_json::from_str(&parts).unwrap();
            let running = |part: &&Value| part["state"] == "running";
            (parts.as_array().unwrap().iter().filter(running).count() == 51).then_some(())
        });
    };
    all_run(&supervised);
    supervised.replace();
    // One that has not answered the new supervisor yet would be killed by "quit".
    all_run(&supervised);
    assert_eq!(supervised.query("m49")["restarts"], 0);
    supervised.execute(&["quit"]);
    let status = wait_until("the supervisor ends", || supervised.supervisor.try_wait().unwrap());
    assert!(status.success(), "{status}");
    for number in 0..50 {
        assert!(!supervised.file(&format!("m{number}"), "control").exists());
    }
}

/// Tools get the events of all machines and servers.
/// A supervisor that takes over machines ends them as gently as the one that has started them, even if the end is ordered
/// before they have answered it, and carries on an end that the other one had begun.
#[test]
fn an_end_after_a_takeover_asks_the_guest_first() {
    let directory = Directory::new();
    let polite = json!(directory.file("polite", &kernel(ECHO_UNTIL_OFF)));
    let stubborn = json!(directory.file("stubborn", &kernel(HALT_FOR_EVER)));
    let mut supervised = Supervised::in_directory(
        directory,
        &format!(
            "[machine.polite]\nmemory = \"4M\"\nkernel = {polite}\n\
             [machine.stubborn]\nmemory = \"4M\"\nkernel = {stubborn}\nstop-timeout = 2\n"
        ),
    );
    console(&supervised.file("polite", "serial")).wait_for("ring3");
    supervised.reaches("stubborn", "running");
    let pid = supervised.pid("stubborn");
    supervised.execute(&["stop", "--no-wait", "stubborn"]);
    supervised.reaches("stubborn", "stopping");
    supervised.replace();
    supervised.execute(&["stop", "polite"]);
    assert_eq!(supervised.query("polite")["ended"], "the guest has switched off");
    wait_until("the machine is not ended", || test_kill_process(pid).is_err().then_some(()));
    supervised.reaches("stubborn", "ended");
    assert_eq!(supervised.query("stubborn")["ended"], "it was told to end");
}

#[test]
fn events_tell_what_happens() {
    let supervised = Supervised::new("[server.lan]\nkind = \"switch\"\n");
    supervised.reaches("lan", "running");
    let socket = supervised.run.path().join("r/supervisor");
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    writeln!(stream, "{}", json!({ "execute": "events" })).unwrap();
    let mut lines = BufReader::new(stream).lines();
    // The greeting, and the answer.
    for key in ["QMP", "return"] {
        assert!(lines.next().unwrap().unwrap().contains(key));
    }
    supervised.signal("lan", Signal::KILL);
    let mut seen = Vec::new();
    while !seen.contains(&"running".to_owned()) {
        let event: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(event["data"]["name"], "lan");
        let what =
            if event["event"] == "STATE" { &event["data"]["state"] } else { &event["event"] };
        seen.push(what.as_str().unwrap().to_owned());
    }
    assert_eq!(seen, ["ENDED", "backing-off", "waiting", "starting", "running"]);
}

/// The program by which guests launch machines.
const GUEST_LAUNCHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/guest_launcher");

/// Brings the program into a guest, with the driver that it needs.
pub(crate) fn bring_launcher(shell: &mut Console) {
    shell.command("dmesg -n 1; modprobe virtio_pci; modprobe virtio_console");
    shell.type_line("cat > /bin/guest_launcher <<'END'");
    fs::read_to_string(GUEST_LAUNCHER).unwrap().lines().for_each(|line| shell.type_line(line));
    shell.type_line("END");
    shell.command("chmod +x /bin/guest_launcher");
}

/// The guest of one machine launches another, with a disk, and controls it; one that has no right is refused, and so
/// is all that goes beyond the right.
#[test]
fn guests_launch_machines_within_their_rights() {
    if !has_module("linux-686", "virtio_console") {
        return;
    }
    let directory = Directory::new();
    fs::File::create(directory.path("root")).unwrap().set_len(1 << 20).unwrap();
    let lines = linux_lines();
    let text = format!(
        "[server.disks]\nkind = \"vblock\"\ndevice.root = {{ file = \"root\", format = \"raw\" }}\n\
         [machine.a]\n{lines}launches = [\"b\"]\n[machine.c]\n{lines}\n\
         [machine.b]\n{lines}start = false\ndisk = [\"disks:root:rw\"]\n"
    );
    let supervised = Supervised::in_directory(directory, &text);
    let mut shell = console(&supervised.file("a", "serial"));
    shell.wait_for(PROMPT);
    bring_launcher(&mut shell);
    let mut ask = |words: &str| shell.command(&format!("guest_launcher {words}; echo $?"));
    wait_until("there is no channel", || ask("query").contains("[]").then_some(()));
    assert!(ask("launch c").contains("may not launch"));
    assert!(ask("start b").contains("no machine and no server"), "it has not launched this one");
    assert_eq!(ask("launch b"), "{\"return\":{\"name\":\"b.1.a\"}}\n0");
    assert_eq!(supervised.query("b.1.a")["state"], "paused");
    assert_eq!(supervised.query("b")["state"], "ended");
    assert!(ask("launch b").contains("may have 1 machines at a time"));
    assert!(ask("start b.1.a").ends_with('0'));
    let mut launched = console(&supervised.file("b.1.a", "serial"));
    launched.wait_for(PROMPT);
    launched.command("dmesg -n 1; modprobe virtio_pci; modprobe virtio_blk");
    assert_eq!(launched.command("cat /sys/block/vda/size"), "2048");
    assert!(ask("query").contains("{\"name\":\"b.1.a\",\"state\":\"running\"}"));
    assert!(ask("remove b.1.a").contains("runs; stop it first"));
    ask("kill b.1.a");
    supervised.reaches("b.1.a", "ended");
    assert!(ask("remove b.1.a").ends_with('0'));
    assert!(ask("query").contains("[]"));

    let mut shell = console(&supervised.file("c", "serial"));
    shell.wait_for(PROMPT);
    bring_launcher(&mut shell);
    let refused = shell.command("guest_launcher launch b; echo $?");
    assert!(refused.contains("may not launch others") && refused.ends_with('1'), "{refused}");
}
