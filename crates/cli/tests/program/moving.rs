//! Machines move to other processes while their guests work: with memory, disks and connections.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::dumps;
use crate::support::guest::{Guest, PROMPT, WITH_MODULES, add_linux, file};
use crate::support::qmp::Qmp;
use crate::support::{Directory, ring3, wait_until};
use crate::switch::{self, Switch};
use crate::vblock::Server;

/// Prepares a guest for what the tests do.
const SET_UP: &str = "dmesg -n 1; for i in virtio_pci virtio_blk virtio_net; do modprobe $i; done";

fn start(socket: &Path, options: &[&str]) -> Guest {
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        command.arg("--qmp").arg(format!("unix:{}", socket.display())).args(options);
    });
    guest.wait_for(PROMPT);
    guest.command(SET_UP);
    guest
}

/// Waits for a machine at `place`.
pub(crate) fn awaited(place: &str, socket: &Path, options: &[&str]) -> Guest {
    let mut command = ring3();
    command.args(["run", "--serial", "stdio", "--incoming", place, "--qmp"]);
    command.arg(format!("unix:{}", socket.display())).args(options);
    Guest::of(command)
}

/// Begins to move the machine to `place`.
fn begin(qmp: &mut Qmp, place: &str) {
    qmp.done("migrate", json!({"uri": place}));
}

/// Waits for the end of the move, and returns what is known of it.
fn ended(qmp: &mut Qmp) -> Value {
    wait_until("the move ends", || {
        let info = qmp.done("query-migrate", json!({}));
        let status = info["status"].as_str().expect("it has begun");
        (!["setup", "active", "device"].contains(&status)).then_some(info)
    })
}

/// Moves the machine to `place`.
#[track_caller]
pub(crate) fn moves(qmp: &mut Qmp, place: &str) {
    begin(qmp, place);
    let info = ended(qmp);
    assert_eq!(info["status"], "completed", "{info}");
    eprintln!("{info}");
    let status = qmp.done("query-status", json!({}));
    assert_eq!(status, json!({"running": false, "status": "postmigrate"}));
    qmp.refused("cont", json!({}), "GenericError", "has moved");
    qmp.refused("migrate", json!({"uri": place}), "GenericError", "has moved");
    qmp.refused("snapshot-save", json!({"file": "saved"}), "GenericError", "has moved");
}

/// Returns how many bytes of the host the memory of a guest takes, to which the translator maps a file.
pub(crate) fn memory_of(guest: &Guest) -> u64 {
    let files = fs::read_dir(format!("/proc/{}/fd", guest.id())).unwrap();
    let memory = files.filter_map(|file| {
        let file = file.unwrap().path();
        let name = fs::read_link(&file).ok()?;
        let is_memory = name.to_string_lossy().contains("memfd:guest memory");
        is_memory.then(|| fs::metadata(&file).unwrap().blocks() * 512)
    });
    memory.sum()
}

/// Ends the machine, which has moved.
pub(crate) fn quit(mut qmp: Qmp, guest: Guest) {
    qmp.done("quit", json!({}));
    assert_eq!(guest.wait_for_the_end(), Some(0));
}

#[test]
fn an_idle_guest_moves_by_sockets_and_by_a_file() {
    let directory = Directory::new();
    let socket = |number: usize| directory.path(&format!("qmp{number}"));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let places = [
        format!("unix:{}", directory.path("move").display()),
        format!("tcp:127.0.0.1:{port}"),
        format!("file:{}", directory.path("moved").display()),
    ];
    let mut guest = start(&socket(0), &[]);
    guest.command("variable=kept; seq 1 200000 > file; md5sum < file > sum; modprobe qemu_fw_cfg");
    let events = json!({"capabilities": [{"capability": "events", "state": true}]});
    for (number, place) in places.iter().enumerate() {
        let mut qmp = Qmp::connect(&socket(number));
        let next = socket(number + 1);
        let (mut came, mut waiting) = (None, None);
        if !place.starts_with("file:") {
            came = Some(awaited(place, &next, &["--engine", "translator"]));
            let mut client = Qmp::connect(&next);
            let status = client.done("query-status", json!({}));
            assert_eq!(status, json!({"running": false, "status": "inmigrate"}));
            client.refused("query-block", json!({}), "GenericError", "not arrived");
            assert_eq!(client.done("query-migrate", json!({}))["status"], "setup");
            waiting = Some(client);
        }
        // Clients are told only if they want to be.
        let tells = number == 1;
        let before = memory_of(&guest);
        if tells {
            qmp.done("migrate-set-capabilities", events.clone());
            waiting.as_mut().unwrap().done("migrate-set-capabilities", events.clone());
        }
        moves(&mut qmp, place);
        if tells {
            let status = |qmp: &mut Qmp| qmp.event("MIGRATION")["status"].take();
            assert_eq!([(); 2].map(|()| status(&mut qmp)), ["setup", "active"]);
            assert_eq!(qmp.event("MIGRATION_PASS"), json!({"pass": 1}));
            assert_eq!([(); 2].map(|()| status(&mut qmp)), ["device", "completed"]);
            assert_eq!(status(waiting.as_mut().unwrap()), "completed");
        } else if number == 0 {
            assert!(!qmp.has_event("MIGRATION"));
        }
        if let Some(mut waiting) = waiting {
            assert_eq!(waiting.done("query-migrate", json!({}))["status"], "completed");
        }
        // Memory that the guest has never touched takes no room, at neither end.
        let after = memory_of(&guest);
        assert!(before < 96 << 20 && after < before + (8 << 20), "{before} {after}");
        if let Some(came) = &came {
            let there = memory_of(came);
            assert!(there < before + (8 << 20), "{before} {there}");
        }
        let came = came.unwrap_or_else(|| awaited(place, &next, &["--engine", "interpreter"]));
        quit(qmp, std::mem::replace(&mut guest, came));
        let kept = guest.command("echo $variable; md5sum < file | cmp - sum && echo same");
        assert_eq!(kept, "kept\nsame", "{place}");
    }
    dumps::has_the_note_of_linux(&socket(places.len()), &directory);
    assert_eq!(guest.power_off(), Some(0));
}

/// A disk, a stream from another guest and memory change while the machine moves, twice.
#[test]
fn a_busy_guest_moves_with_its_disk_and_its_connections() {
    let directory = Directory::new();
    let lan = directory.path("switch");
    let _switch = Switch::start(&lan, &[]);
    let disk = directory.path("disk");
    fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let drive = format!("file={},if=virtio,format=raw", disk.display());
    let nic = format!("switch,path={},mac=52:54:00:00:00:01", lan.display());
    let socket = |number: usize| directory.path(&format!("qmp{number}"));
    let mut first = start(&socket(0), &["--drive", &drive, "--nic", &nic]);
    first.type_line("");
    switch::set_up(&mut first, 1);
    let mut second = switch::guest(&lan, 2);
    let make = "dd if=/dev/urandom of=sent bs=64k count=800 2>/dev/null; md5sum < sent";
    let sum = second.command(make);
    first.command(
        "(nc -l -p 5000 < never | md5sum > come) & \
         (for i in 1 2 3 4 5 6 7 8; do dd if=/dev/urandom bs=64k count=64 2>/dev/null; done > written; \
          for i in 1 2 3 4 5 6; do dd if=written of=/dev/vda bs=64k conv=fsync 2>/dev/null; done; \
          echo 3 > /proc/sys/vm/drop_caches; md5sum < written > want; \
          dd if=/dev/vda bs=64k count=512 2>/dev/null | md5sum > got) & sleep 1",
    );
    second.begin("nc 10.0.0.1 5000 < sent; echo done");
    for number in 0..2 {
        let place = format!("unix:{}", directory.path(&format!("move{number}")).display());
        let next = socket(number + 1);
        let came = awaited(&place, &next, &["--nic", &nic]);
        Qmp::connect(&next);
        let mut qmp = Qmp::connect(&socket(number));
        moves(&mut qmp, &place);
        quit(qmp, std::mem::replace(&mut first, came));
    }
    assert_eq!(second.end(), "done");
    assert_eq!(result(&mut first, "come"), sum);
    assert_eq!(result(&mut first, "got"), result(&mut first, "want"));
    let answer = second.command("ping -c 3 10.0.0.1 | grep received");
    assert!(answer.contains("3 packets received"), "{answer}");
    assert_eq!(first.power_off(), Some(0));
}

/// A disk of a server goes to the other process by the server's socket, while the guest writes to it, and keeps
/// its limits and its name.
#[test]
fn a_guest_moves_with_the_disk_of_a_server() {
    let directory = Directory::new();
    let disk = directory.path("disk");
    fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    let arguments = ["--device", "disk,file=disk,format=raw", "--client", "vm=disk:rw,socket=vm"];
    let _server = Server::start(&directory.path(""), &arguments, "vm");
    let vm = directory.path("vm");
    let drive = format!("vblock={},if=virtio,id=data,throttling.bps-total=100000000", vm.display());
    let socket = |number: usize| directory.path(&format!("qmp{number}"));
    let mut guest = start(&socket(0), &["--drive", &drive]);
    guest.command(
        "dd if=/dev/urandom of=written bs=64k count=128 2>/dev/null; \
         (for i in 1 2 3 4 5 6 7 8; do dd if=written of=/dev/vda bs=64k conv=fsync 2>/dev/null; done; \
          echo 3 > /proc/sys/vm/drop_caches; md5sum < written > want; \
          dd if=/dev/vda bs=64k count=128 2>/dev/null | md5sum > got) & sleep 0.1",
    );
    let place = format!("unix:{}", directory.path("move").display());
    let came = awaited(&place, &socket(1), &[]);
    let mut there = Qmp::connect(&socket(1));
    let mut qmp = Qmp::connect(&socket(0));
    moves(&mut qmp, &place);
    quit(qmp, std::mem::replace(&mut guest, came));
    let drives = there.done("query-block", json!({}));
    assert_eq!(drives[0]["inserted"]["bps"], 100_000_000, "{drives}");
    assert_eq!(drives[0]["device"], "data", "{drives}");
    assert_eq!(result(&mut guest, "got"), result(&mut guest, "want"));
    assert_eq!(guest.power_off(), Some(0));
}

/// Waits until `file` has something, and returns it.
fn result(guest: &mut Guest, file: &str) -> String {
    wait_until("all has come", || {
        let sum = guest.command(&format!("cat {file} 2>/dev/null"));
        (!sum.is_empty()).then_some(sum)
    })
}

fn kill(guest: Guest) {
    let id = Pid::from_raw(guest.id().cast_signed()).unwrap();
    kill_process(id, Signal::KILL).unwrap();
    assert_eq!(guest.wait_for_the_end(), None);
}

#[test]
fn a_guest_that_does_not_move_goes_on_with_its_disk() {
    let directory = Directory::new();
    let disk = directory.path("disk");
    fs::File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    let drive = format!("file={},if=virtio,format=raw", disk.display());
    let (socket, next) = (directory.path("qmp"), directory.path("next"));
    let place = format!("unix:{}", directory.path("move").display());
    let mut guest = start(&socket, &["--drive", &drive]);
    let mut qmp = Qmp::connect(&socket);
    qmp.refused("migrate", json!({"uri": "exec:cat"}), "GenericError", "unix:PATH");
    qmp.refused(
        "migrate-set-parameters",
        json!({"downtime-limit": 2_000_001}),
        "GenericError",
        "2000000",
    );
    // Nobody is there.
    begin(&mut qmp, &place);
    let info = ended(&mut qmp);
    assert_eq!(info["status"], "failed");
    assert!(info["error-desc"].as_str().unwrap().contains("--incoming"), "{info}");
    // It is cancelled, and then the other end is killed, while only a part has come.
    let slow = json!({"max-bandwidth": 1_000_000, "downtime-limit": 20});
    qmp.done("migrate-set-parameters", slow.clone());
    assert_eq!(qmp.done("query-migrate-parameters", json!({})), slow);
    for is_killed in [false, true] {
        let came = awaited(&place, &next, &[]);
        Qmp::connect(&next);
        begin(&mut qmp, &place);
        qmp.refused("migrate", json!({"uri": place}), "GenericError", "in progress");
        wait_until("something has been sent", || {
            let sent = qmp.done("query-migrate", json!({}))["ram"]["transferred"].as_u64();
            (sent > Some(100_000)).then_some(())
        });
        if is_killed {
            kill(came);
        } else {
            qmp.done("migrate_cancel", json!({}));
            assert_eq!(came.wait_for_the_end(), Some(1));
        }
        let status = ended(&mut qmp)["status"].take();
        assert_eq!(status, if is_killed { "failed" } else { "cancelled" });
        assert_eq!(qmp.done("query-status", json!({}))["status"], "running");
        let written = guest.command("echo text | dd of=/dev/vda conv=fsync 2>/dev/null; echo $?");
        assert_eq!(written, "0");
    }
    // The disk is not there at the other end, and then not here either.
    qmp.done("migrate-set-parameters", json!({"max-bandwidth": 0}));
    let came = awaited(&place, &next, &[]);
    Qmp::connect(&next);
    let away = directory.path("away");
    fs::rename(&disk, &away).unwrap();
    begin(&mut qmp, &place);
    wait_until("it fails at the other end", || (!path_of(&place).exists()).then_some(()));
    assert_eq!(came.wait_for_the_end(), Some(1));
    let info = ended(&mut qmp);
    let why = info["error-desc"].as_str().unwrap();
    assert!(why.contains("cannot take the machine") && why.ends_with("with cont"), "{info}");
    let stands = json!({"running": false, "status": "io-error"});
    assert_eq!(qmp.done("query-status", json!({})), stands);
    qmp.refused("cont", json!({}), "GenericError", "cannot be opened again");
    qmp.refused("migrate", json!({"uri": place}), "GenericError", "without its disks");
    let saved = json!({"file": directory.path("saved")});
    qmp.refused("snapshot-save", saved, "GenericError", "without its disks");
    fs::rename(&away, &disk).unwrap();
    qmp.done("cont", json!({}));
    assert_eq!(qmp.done("query-status", json!({}))["status"], "running");
    assert_eq!(guest.command("sync; head -c 4 /dev/vda"), "text");
    assert_eq!(guest.power_off(), Some(0));
}

fn path_of(place: &str) -> PathBuf {
    place.strip_prefix("unix:").expect("it is a socket").into()
}

/// Returns what a command that must fail says, in one line.
#[track_caller]
fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    said
}

#[test]
fn what_is_no_machine_is_refused_in_one_line() {
    let directory = Directory::new();
    let file = directory.file("file", b"nothing that could be a machine of ring3");
    let (moved, socket) = (directory.path("moved"), directory.path("qmp"));
    let mut guest = start(&socket, &[]);
    guest.command("true");
    let mut qmp = Qmp::connect(&socket);
    moves(&mut qmp, &format!("file:{}", moved.display()));
    quit(qmp, guest);
    let run = |place: String| refused(ring3().args(["run", "--incoming", &place]));
    let of = |path: &Path| format!("file:{}", path.display());
    assert!(run(of(&file)).contains("is not a machine of ring3"));
    assert!(run(of(&directory.path("nothing"))).contains("cannot use"));
    assert!(run(of(&directory.path(""))).contains("Is a directory"));
    assert!(run("tcp:192.0.2.1:4444".to_owned()).contains("192.0.2.1"));
    let mut qemu = ring3();
    qemu.args(["qemu", "-nographic", "-m", "64", "-incoming", &of(&moved)]);
    assert!(refused(&mut qemu).contains("bytes of memory instead of 67108864"));
    let whole = fs::read(&moved).unwrap();
    let cut = directory.file("cut", &whole[..whole.len() / 2]);
    assert!(run(of(&cut)).contains("before the machine is complete"));
    let other = [&whole[..16], &[1], &whole[17..]].concat();
    let other = directory.file("other", &other);
    assert!(run(of(&other)).contains("version 1"));
}

/// The benchmark moves machines, whose guests answer where they have come to.
#[test]
fn the_benchmark_moves_machines() {
    let mut bench = ring3();
    bench.args(["bench", "move", "--runs", "1", "--memory", "128"]);
    // Without QEMU, which takes longer.
    let guests = file("initramfs.cpio.gz");
    bench.arg("--guests").arg(guests.parent().unwrap()).env("PATH", "");
    let output = bench.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for work in ["idle", "busy"] {
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let words = lines.find(|words| words.starts_with(&["ring3", work])).unwrap_or_default();
        let numbers: Vec<u32> = words.iter().filter_map(|word| word.parse().ok()).collect();
        // Of each way: how long it stood still, the whole time, and what was sent.
        let [_, unix, by_unix, _, tcp, by_tcp] = numbers[..] else { panic!("{text}") };
        assert!([unix, by_unix, tcp, by_tcp].iter().all(|number| *number > 0), "{text}");
    }
}
