//! A machine's process keeps only the rights that it needs (`--sandbox`), and works with them.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use ring3_skipped::host;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::guest::{Guest, WITH_MODULES, add_linux};
use crate::support::qmp::Qmp;
use crate::support::{Directory, output, ring3, wait_until};
use crate::tern::has_tern;

/// Returns whether this host has everything for `--sandbox on`.
fn has_sandbox() -> bool {
    let said = String::from_utf8(ring3().arg("doctor").output().unwrap().stdout).unwrap();
    let has = said.contains("(--sandbox auto): in a sandbox\n");
    if !has {
        host("it lacks seccomp or Landlock");
    }
    has
}

/// Returns a line about each thread of process `id` that keeps rights.
fn threads_with_rights(id: u32) -> Vec<String> {
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{id}/task")).expect("it runs") {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap_or_default();
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_default().trim().to_owned()
        };
        let (privileges, filters) = (value("NoNewPrivs:"), value("Seccomp:"));
        // CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER.
        let kept = u64::from_str_radix(&value("CapEff:"), 16).unwrap_or(u64::MAX);
        if privileges != "1" || filters != "2" || kept & !0xf != 0 {
            found.push(format!("{}: {privileges} {filters} {kept:x}", value("Name:")));
        }
    }
    found
}

/// What the log says at the end, if nothing was missing.
const NOTHING_DENIED: &str = "the sandbox has denied no system call";

/// Debian uses a disk and a network, and nothing that ring3 does for it is denied.
#[test]
fn a_guest_runs_in_the_sandbox() {
    if !has_sandbox() {
        return;
    }
    let directory = Directory::new();
    let (disk, log) = (directory.path("disk"), directory.path("log"));
    fs::File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        command.args(["--sandbox", "on", "--nic", "user", "--log", "ring3=debug,warn"]);
        command.arg("--log-file").arg(&log);
        command.arg("--drive").arg(format!("file={},if=virtio,format=raw", disk.display()));
    });
    guest.command(
        "modprobe virtio_pci; modprobe virtio_net; modprobe virtio_blk; ip link set eth0 up",
    );
    guest.command("ip addr add 10.0.2.15/24 dev eth0");
    assert_eq!(threads_with_rights(guest.id()), Vec::<String>::new());
    let ping = "ping -c 30 -i 0.1 10.0.2.2 | grep -q 'bytes from' && echo there";
    assert_eq!(guest.command(ping), "there");
    let written = "dd if=/dev/urandom of=/dev/vda bs=64k count=64 2>/dev/null; sync; \
        echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vda bs=64k count=64 2>/dev/null | md5sum";
    let sum = guest.command(written);
    assert_eq!(sum.split(' ').next(), Some(md5(&disk, 4 << 20).as_str()));
    assert_eq!(guest.power_off(), Some(0));
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains(NOTHING_DENIED), "{log}");
}

fn md5(path: &Path, len: usize) -> String {
    let bytes = fs::read(path).unwrap();
    let part = path.with_extension("part");
    fs::write(&part, &bytes[..len]).unwrap();
    let sum = output(std::process::Command::new("md5sum").arg(&part));
    String::from_utf8(sum).unwrap().split(' ').next().unwrap().to_owned()
}

/// Clients may name files in the directory that the user gives them, and nowhere else; the machine is saved
/// there, and goes on in another sandbox.
#[test]
fn clients_use_files_of_their_directory_alone() {
    if !has_sandbox() || !has_tern() {
        return;
    }
    let (own, other) = (Directory::new(), Directory::new());
    let (socket, log) = (own.path("qmp"), other.path("log"));
    let mut command = ring3();
    command
        .args(["run", "--tern", "-m", "64M", "--log", "ring3=debug,warn", "--log-file"])
        .arg(&log);
    command.arg("--sandbox").arg(format!("on,files={}", own.path("").display()));
    command.arg("--qmp").arg(format!("unix:{}", socket.display()));
    let mut guest = Guest::of(command);
    guest.wait_for("# ");
    assert_eq!(threads_with_rights(guest.id()), Vec::<String>::new());
    let mut qmp = Qmp::connect(&socket);
    let picture = |directory: &Directory| json!({ "filename": directory.path("picture") });
    qmp.done("screendump", picture(&own));
    qmp.refused("screendump", picture(&other), "GenericError", "Permission denied");
    assert!(own.path("picture").exists() && !other.path("picture").exists());
    let saved = own.path("saved");
    output(ring3().args(["snapshot", "save"]).arg(&socket).arg(&saved));
    guest.type_line("poweroff");
    assert_eq!(guest.wait_for_the_end(), Some(0));
    // The socket is gone.
    assert!(!socket.exists());
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains(NOTHING_DENIED), "{said}");
    let mut command = ring3();
    command.args(["run", "--sandbox", "on", "--restore"]).arg(&saved);
    command.args(["--log", "ring3=debug,warn", "--log-file"]).arg(&log);
    let mut guest = Guest::of(command);
    guest.type_line("echo wo''rks");
    guest.wait_for("works");
    guest.type_line("poweroff");
    assert_eq!(guest.wait_for_the_end(), Some(0));
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains(NOTHING_DENIED), "{said}");
}

#[test]
fn the_sandbox_can_be_left_out() {
    if !has_tern() {
        return;
    }
    let mut command = ring3();
    command.args(["run", "--tern", "-m", "64M", "--sandbox", "off"]);
    let mut guest = Guest::of(command);
    guest.wait_for("# ");
    assert!(!threads_with_rights(guest.id()).is_empty());
    guest.type_line("poweroff");
    assert_eq!(guest.wait_for_the_end(), Some(0));
}

/// The servers beside machines keep no more, and remove their sockets at the end as ever.
#[test]
fn servers_run_in_the_sandbox() {
    if !has_sandbox() {
        return;
    }
    let directory = Directory::new();
    let disk = directory.path("disk");
    fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    let (first, second) = (directory.path("switch"), directory.path("vblock"));
    let mut switch = ring3();
    switch.args(["switch", "--listen"]).arg(format!("unix:{}", first.display()));
    let mut vblock = ring3();
    vblock.arg("vblock").arg("--device").arg(format!("disk,file={},format=raw", disk.display()));
    vblock.arg("--client").arg(format!("guest=disk:rw,socket={}", second.display()));
    for (mut command, socket) in [(switch, first), (vblock, second)] {
        let mut server =
            command.env("RING3_LOG", "ring3=debug").stderr(Stdio::piped()).spawn().unwrap();
        wait_until("the server keeps rights", || {
            threads_with_rights(server.id()).is_empty().then_some(())
        });
        assert!(socket.exists());
        kill_process(Pid::from_raw(server.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
        let mut said = String::new();
        server.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(server.wait().unwrap().success(), "{said}");
        assert!(said.contains(NOTHING_DENIED), "{said}");
        assert!(!socket.exists());
    }
}

/// A signal ends the machine as ever, and it removes the files that it has made.
#[test]
fn a_signal_ends_a_machine_in_the_sandbox() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let socket = directory.path("serial");
    let mut command = ring3();
    command.args(["run", "--tern", "-m", "64M", "--serial", "null", "--serial"]);
    command.arg(format!("unix:{}", socket.display()));
    let guest = Guest::of(command);
    let limited = || threads_with_rights(guest.id()).is_empty().then_some(());
    wait_until("the machine keeps rights", limited);
    kill_process(Pid::from_raw(guest.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(guest.wait_for_the_end(), None);
    assert!(!socket.exists());
}
