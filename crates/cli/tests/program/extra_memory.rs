//! 64-bit Linux gets more memory while it runs, uses it, and gives it back (virtio-mem).

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::hotplug::Recorded;
use crate::moving::{awaited, memory_of, moves, quit};
use crate::supervisor::{Supervised, console};
use crate::support::guest::{CONSOLE, Guest, PROMPT, add_kernel, file, has_module};
use crate::support::qmp::Qmp;
use crate::support::{Directory, ring3, wait_until};

const MIB: u64 = 1 << 20;
const GENERIC: &str = "GenericError";
/// The device in QEMU's object model.
const DEVICE: &str = "/machine/peripheral/vmem0";

/// Returns whether the guests' files have what these tests need.
fn is_possible() -> bool {
    has_module("linux-amd64", "virtio_mem")
}

/// Returns the command of a machine that may come to have 3 GiB and 256 MiB, with QMP at `qmp` in `directory`.
fn machine(directory: &Directory) -> Command {
    let mut command = ring3();
    command.args(["run", "--memory", "256M", "--max-memory", "3328M", "--serial", "stdio"]);
    add_kernel(&mut command, "linux-amd64");
    add_qmp(&mut command, &directory.path("qmp"));
    command
}

fn add_qmp(command: &mut Command, socket: &Path) {
    command.arg("--qmp").arg(format!("unix:{}", socket.display()));
}

/// The commands by which a guest uses what it gets, so that it can give all of it back.
const PREPARE: &str = "dmesg -n 1; mkdir -p /mnt; \
                       echo online_movable > /sys/devices/system/memory/auto_online_blocks; \
                       for i in virtio_pci virtio_mem; do modprobe $i; done";

fn start(directory: &Directory) -> (Guest, Qmp) {
    let mut guest = Guest::of(machine(directory));
    guest.wait_for(PROMPT);
    assert_eq!(guest.command(PREPARE), "");
    (guest, Qmp::connect(&directory.path("qmp")))
}

/// Shows `MemTotal`, in KiB.
const TOTAL: &str = "awk '/^MemTotal:/ { print $2 }' /proc/meminfo";

/// Returns the memory that the guest counts, in MiB.
fn total(guest: &mut Guest) -> u64 {
    guest.command(TOTAL).parse::<u64>().expect("a number") >> 10
}

fn get(qmp: &mut Qmp, property: &str) -> Value {
    qmp.done("qom-get", json!({"path": DEVICE, "property": property}))
}

/// Asks for so many MiB.
fn request(qmp: &mut Qmp, mib: u64) {
    let value = mib * MIB;
    qmp.done("qom-set", json!({"path": DEVICE, "property": "requested-size", "value": value}));
}

/// Asks for so many MiB, and waits until the guest has them.
fn reach(qmp: &mut Qmp, mib: u64) {
    request(qmp, mib);
    wait_until("the guest has another size", || (get(qmp, "size") == mib * MIB).then_some(()));
}

/// Commands that fill so many MiB of a file in memory, and show its sum.
fn fill(mib: u64) -> String {
    format!(
        "dd if=/dev/zero bs=1M count={mib} 2>/dev/null | tr '\\0' x > /mnt/file; md5sum < /mnt/file"
    )
}

/// The guest's memory grows and shrinks, and the host holds what the guest uses.
#[test]
fn memory_comes_and_goes() {
    if !is_possible() {
        return;
    }
    let directory = Directory::new();
    let (mut guest, mut qmp) = start(&directory);
    let before = total(&mut guest);
    reach(&mut qmp, 512);
    let more = total(&mut guest);
    assert!((before + 512..before + 520).contains(&more), "{before} {more}");
    let told = qmp.event("MEMORY_DEVICE_SIZE_CHANGE");
    assert_eq!(told["qom-path"], DEVICE);
    let listed = &qmp.done("query-memory-devices", json!({}))[0];
    assert_eq!(listed["type"], "virtio-mem");
    assert_eq!(
        (&listed["data"]["size"], &listed["data"]["max-size"], &listed["data"]["memaddr"]),
        (&json!(512 * MIB), &json!(3072 * MIB), &json!(1_u64 << 32))
    );
    let sizes = qmp.done("query-memory-size-summary", json!({}));
    assert_eq!(sizes, json!({"base-memory": 256 * MIB, "plugged-memory": 512 * MIB}));
    assert_eq!(qmp.done("x-ring3-memory", json!({}))["size"], 768 * MIB);

    // More than fits into the memory that the machine began with.
    let held = memory_of(&guest);
    guest.command("mount -t tmpfs -o size=400M none /mnt");
    guest.command(&fill(300));
    let full = memory_of(&guest);
    assert!(full >= held + 280 * MIB, "{held} {full}");
    guest.command("rm /mnt/file");
    reach(&mut qmp, 0);
    let less = total(&mut guest);
    assert!(less <= before, "{before} {less}");
    let left = memory_of(&guest);
    assert!(left <= full - 200 * MIB, "{full} {left}");
    // What comes again is as if it had never been there. A restarted system has none until its driver asks for it.
    reach(&mut qmp, 256);
    assert!(total(&mut guest) >= before + 256);
    qmp.done("system_reset", json!({}));
    guest.wait_for(PROMPT);
    assert_eq!(get(&mut qmp, "size"), 0);
    assert_eq!(total(&mut guest), before);
    guest.command(PREPARE);
    wait_until("nothing comes", || (get(&mut qmp, "size") == 256 * MIB).then_some(()));
    assert_eq!(guest.power_off(), Some(0));
}

/// Where nothing is plugged, a guest reads ones, what it writes is lost, and the host holds nothing for it.
#[test]
fn memory_that_is_not_there_takes_no_room() {
    if !is_possible() {
        return;
    }
    let directory = Directory::new();
    let mut guest = Guest::of(machine(&directory));
    guest.wait_for(PROMPT);
    guest.command("mknod /dev/mem c 1 1 2>/dev/null");
    let held = memory_of(&guest);
    let touch = "for i in 1 2 8 bf; do a=0x1${i}0000000; devmem $a 32 7; devmem $a 64; done";
    let touch = touch.replace("1 2 8 bf", "0 2 8");
    assert_eq!(guest.command(&touch), ["0xFFFFFFFFFFFFFFFF"; 3].join("\n"));
    assert!(memory_of(&guest) < held + 8 * MIB);
    assert_eq!(guest.power_off(), Some(0));
}

#[test]
fn impossible_sizes_are_refused() {
    let directory = Directory::new();
    let socket = directory.path("qmp");
    let mut command = ring3();
    command.args([
        "run",
        "--memory",
        "128M",
        "--max-memory",
        "256M",
        "--paused",
        "--serial",
        "stdio",
    ]);
    add_kernel(&mut command, "linux-686");
    add_qmp(&mut command, &socket);
    let mut guest = Guest::of(command);
    let mut qmp = Qmp::connect(&socket);
    let set = |value: Value| json!({"path": DEVICE, "property": "requested-size", "value": value});
    for (value, part) in [
        (json!(130 * MIB), "more than the 134217728 bytes"),
        (json!(3 * MIB), "not a multiple of 2097152"),
        (json!(-1), "a number of bytes"),
        (json!("x"), "a number of bytes"),
    ] {
        qmp.refused("qom-set", set(value), GENERIC, part);
    }
    let size = json!({"path": DEVICE, "property": "size", "value": 0});
    qmp.refused("qom-set", size, GENERIC, "cannot be set");
    for mib in [100, 257] {
        let value = json!({"value": mib * MIB});
        qmp.refused("x-ring3-resize-memory", value, GENERIC, "from 128 MiB");
    }
    // It is rounded up to blocks. A system without a driver, such as this one, leaves everything as it is.
    qmp.done("x-ring3-resize-memory", json!({"value": 129 * MIB}));
    assert_eq!(get(&mut qmp, "requested-size"), 2 * MIB);
    qmp.done("cont", json!({}));
    guest.wait_for(PROMPT);
    assert_eq!(get(&mut qmp, "size"), 0);
    assert_eq!(guest.power_off(), Some(0));
    let fails = |options: &[&str]| {
        let ended = ring3().arg("run").args(options).output().unwrap();
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    for most in ["128M", "200M", "64M"] {
        let (status, errors) = fails(&["--memory", "128M", "--max-memory", most]);
        assert_eq!(status, Some(2));
        assert!(errors.contains("by a multiple of 128M"), "{errors}");
    }
    let (status, errors) =
        fails(&["--memory", "128M", "--max-memory", "256M", "--cpu", "486", "--serial", "null"]);
    assert_eq!(status, Some(1));
    assert!(errors.contains("choose one for 64 bits with --cpu"), "{errors}");
}

/// A machine is saved, continues on both engines, and moves, with what it has been given, and gives that back there.
#[test]
fn a_machine_that_is_saved_or_moves_keeps_its_memory() {
    if !is_possible() {
        return;
    }
    let directory = Directory::new();
    let (mut guest, mut qmp) = start(&directory);
    let before = total(&mut guest);
    reach(&mut qmp, 256);
    guest.command("mount -t tmpfs -o size=400M none /mnt");
    let sum = guest.command(&fill(200));
    let saved = directory.path("saved");
    qmp.done("snapshot-save", json!({"file": saved}));
    let give_back = |guest: &mut Guest, qmp: &mut Qmp| {
        assert_eq!(guest.command("md5sum < /mnt/file"), sum);
        assert_eq!(get(qmp, "size"), 256 * MIB);
        guest.command("rm /mnt/file");
        reach(qmp, 0);
        assert!(total(guest) <= before);
        reach(qmp, 128);
        assert!(total(guest) >= before + 128);
    };
    let place = format!("unix:{}", directory.path("move").display());
    let socket = directory.path("there");
    let mut moved = awaited(&place, &socket, &[]);
    let mut there = Qmp::connect(&socket);
    moves(&mut qmp, &place);
    quit(qmp, guest);
    give_back(&mut moved, &mut there);
    assert_eq!(moved.power_off(), Some(0));
    for engine in ["translator", "interpreter"] {
        let socket = directory.path(engine);
        let mut command = ring3();
        command.args(["run", "--engine", engine, "--serial", "stdio", "--restore"]).arg(&saved);
        add_qmp(&mut command, &socket);
        let mut guest = Guest::of(command);
        give_back(&mut guest, &mut Qmp::connect(&socket));
        assert_eq!(guest.power_off(), Some(0));
    }
}

/// A recording contains what was asked for; what the guest does with it repeats.
#[test]
#[ignore = "runs 64-bit Linux four times"]
fn a_recording_repeats_the_run() {
    if !is_possible() {
        return;
    }
    let more = format!("while [ $({TOTAL}) -lt 300000 ]; do sleep 1; done");
    let less = format!("while [ $({TOTAL}) -gt 300000 ]; do sleep 1; done");
    let script = format!(
        "{PREPARE}\nmount -t tmpfs -o size=400M none /mnt\n{more}; {}\ngrep -c . /proc/zoneinfo; rm /mnt/file\n{less}\n{TOTAL}\n\
         poweroff -f\n",
        fill(150)
    );
    for deterministic in [true, false] {
        let directory = Directory::new();
        let command = machine(&directory);
        let mut recorded = Recorded::of(command, &directory, script.as_bytes(), deterministic);
        reach(&mut recorded.qmp, 128);
        wait_until("the guest fills no memory", || {
            let memory = recorded.qmp.done("x-ring3-memory", json!({}));
            (memory["held"].as_u64() > Some(200 * MIB)).then_some(())
        });
        request(&mut recorded.qmp, 0);
        let told = ["128 MiB should be there", "0 MiB should be there"];
        recorded.assert_repeats(&told, &[]);
    }
}

/// QEMU's options make the same device, with a size from the start.
#[test]
fn options_of_qemu_add_memory() {
    if !is_possible() {
        return;
    }
    let mut command = ring3();
    command.args(["qemu", "-m", "256M,maxmem=2G", "-cpu", "qemu64", "-serial", "stdio"]);
    command.args(["-object", "memory-backend-ram,id=mem0,size=1G", "-display", "none"]);
    command.args(["-device", "virtio-mem-pci,id=vm0,memdev=mem0,requested-size=128M"]);
    command.arg("-kernel").arg(file("linux-amd64/vmlinux")).args(["-append", CONSOLE, "-initrd"]);
    let archives = ["initramfs-amd64.cpio.gz", "modules-amd64.cpio.gz"];
    let archives = archives.map(|name| file(name).display().to_string());
    command.arg(archives.join(","));
    let mut guest = Guest::of(command);
    guest.wait_for(PROMPT);
    let before = total(&mut guest);
    guest.command(PREPARE);
    let wait = format!("while [ $({TOTAL}) -lt {} ]; do sleep 1; done", (before + 128) << 10);
    assert_eq!(guest.command(&wait), "");
    assert_eq!(guest.power_off(), Some(0));
}

/// `ring3 ctl memory` does it for the machines of a supervisor, whose budget counts what they have.
#[test]
fn the_supervisor_gives_and_takes_memory() {
    if !is_possible() {
        return;
    }
    let initrd = json!(["initramfs-amd64.cpio.gz", "modules-amd64.cpio.gz"].map(file));
    let kernel = json!(file("linux-amd64/vmlinux"));
    let supervised = Supervised::new(&format!(
        "[memory]\nbudget = \"640M\"\n[machine.web]\nmemory = \"256M\"\nmax-memory = \"1280M\"\n\
         kernel = {kernel}\ninitrd = {initrd}\nappend = \"{CONSOLE}\"\n"
    ));
    let mut shell = console(&supervised.file("web", "serial"));
    shell.wait_for(PROMPT);
    shell.command(PREPARE);
    let account = || supervised.query("web")["memory"].clone();
    supervised.execute(&["memory", "web", "512M"]);
    wait_until("no memory comes", || (account()["size"] == 512 * MIB).then_some(()));
    let kib = || format!("[ $({TOTAL}) -gt 400000 ] && echo more || echo less");
    assert_eq!(shell.command(&kib()), "more");
    supervised.execute(&["memory", "web", "256M"]);
    wait_until("no memory goes", || (account()["size"] == 256 * MIB).then_some(()));
    assert_eq!(shell.command(&kib()), "less");
    let refused = supervised.ctl(&["memory", "web", "2G"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(errors.contains("from 256 MiB (--memory) to 1280 MiB (--max-memory)"), "{errors}");
}

/// Devices that do not reach memory above 4 GiB themselves are served by copies, for which Linux makes room at its start.
#[test]
fn old_devices_work_on_what_has_come() {
    if !is_possible() {
        return;
    }
    let directory = Directory::new();
    let image = directory.path("image");
    std::fs::File::create(&image).unwrap().set_len(64 * MIB).unwrap();
    let mut command = machine(&directory);
    command.arg("--drive").arg(format!("file={},format=raw", image.display()));
    let mut guest = Guest::of(command);
    guest.wait_for(PROMPT);
    guest.command(PREPARE);
    reach(&mut Qmp::connect(&directory.path("qmp")), 256);
    let work = "for i in ata_piix sd_mod crc32c_generic ext4; do modprobe $i; done; \
                mke2fs /dev/sda > /tmp/log 2>&1; mount -t ext4 /dev/sda /mnt; seq 500000 > /mnt/numbers; sync; \
                echo 3 > /proc/sys/vm/drop_caches; md5sum < /mnt/numbers";
    let sum = guest.command(work);
    assert_eq!(sum, guest.command("seq 500000 | md5sum"));
    // The file is in the zone of what has come.
    let pages = "awk '/^Node/ { zone = $4 } /nr_zone_(in)?active_file/ { pages[zone] += $2 } \
                 END { print (pages[\"Movable\"] > 600) }' /proc/zoneinfo";
    assert_eq!(guest.command(pages), "1");
    assert_eq!(guest.command("umount /mnt; dmesg | grep -ci 'i/o error'"), "0");
    assert_eq!(guest.power_off(), Some(0));
}
