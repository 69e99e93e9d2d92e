//! Machines are saved in files and continue from there, with their disks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use serde_json::json;

use crate::support::guest::{Guest, PROMPT, WITH_MODULES, add_linux, file};
use crate::support::qmp::Qmp;
use crate::support::{Directory, output, ring3, system_program, wait_until};
use crate::tern::has_tern;

/// A machine that runs Tern.
fn tern(arguments: &[&str], socket: &Path) -> Guest {
    let mut command = ring3();
    command.args(["run", "--memory", "64M", "--tern", "--qmp"]);
    command.arg(format!("unix:{}", socket.display())).args(arguments);
    at_the_prompt(Guest::of(command))
}

/// The machine in `file`, on this engine.
fn restored(file: &Path, engine: &str, arguments: &[&str]) -> Guest {
    let mut command = ring3();
    command.args(["run", "--engine", engine, "--restore"]).arg(file).args(arguments);
    Guest::of(command)
}

fn at_the_prompt(mut guest: Guest) -> Guest {
    guest.wait_for("# ");
    guest
}

/// Executes a line in Tern's shell, and returns what it prints.
fn tell(guest: &mut Guest, line: &str) -> String {
    guest.type_line(&format!("{line}; echo do''ne"));
    let shown = guest.wait_for("done\n");
    guest.wait_for("# ");
    shown.split_once('\n').expect("the echo of the line").1.to_owned()
}

fn off(mut guest: Guest) {
    guest.type_line("poweroff");
    assert_eq!(guest.wait_for_the_end(), Some(0));
}

/// Kills the machine, and waits until it has let go of its disks.
fn kill(guest: Guest) {
    let id = Pid::from_raw(guest.id().cast_signed()).unwrap();
    kill_process(id, Signal::KILL).unwrap();
    assert_eq!(guest.wait_for_the_end(), None);
}

fn save(socket: &Path, file: &Path) {
    output(ring3().args(["snapshot", "save"]).arg(socket).arg(file));
}

/// Makes a raw image with an empty ext2.
fn raw_disk(directory: &Directory) -> PathBuf {
    let disk = directory.path("raw");
    fs::File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    output(system_program("mke2fs").args(["-q", "-F", "-t", "ext2"]).arg(&disk));
    disk
}

fn qcow2_disk(directory: &Directory) -> PathBuf {
    let disk = directory.path("disk.qcow2");
    let mut convert = ring3();
    convert.args(["img", "convert", "-O", "qcow2"]).arg(raw_disk(directory)).arg(&disk);
    output(&mut convert);
    disk
}

/// Returns what a command that must fail says, in one line.
#[track_caller]
fn refused(command: &mut std::process::Command, status: i32) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{said}");
    said
}

/// The file is made by one engine and continues on the other. The machine is killed meanwhile, after it has
/// written more to its disk.
#[test]
fn a_machine_continues_with_the_disk_of_that_moment() {
    if !has_tern() {
        return;
    }
    for (first, second) in [("translator", "interpreter"), ("interpreter", "translator")] {
        let directory = Directory::new();
        let (socket, file) = (directory.path("qmp"), directory.path("saved"));
        let disk = qcow2_disk(&directory);
        let disk = disk.to_str().unwrap();
        let mut guest = tern(&["--engine", first, "--hda", disk], &socket);
        tell(&mut guest, "mount /dev/hda /mnt && echo early >/mnt/file && variable=kept");
        save(&socket, &file);
        tell(&mut guest, "echo late >/mnt/file && sync");
        kill(guest);
        // A second time, without a change of the disk, and then for good.
        for (arguments, found) in [(&["--snapshot"][..], "early"), (&[], "early")] {
            let mut guest = restored(&file, second, arguments);
            assert_eq!(
                tell(&mut guest, "cat /mnt/file; echo $variable"),
                format!("{found}\nkept\n")
            );
            tell(&mut guest, "echo other >/mnt/file && umount /mnt");
            off(guest);
        }
        // No machine has changed the file from which its memory was mapped.
        output(ring3().args(["snapshot", "check"]).arg(&file));
        let info = output(ring3().args(["snapshot", "info"]).arg(&file));
        let info = String::from_utf8(info).unwrap();
        assert!(info.contains("memory: 64 MiB") && info.contains(disk), "{info}");
        output(ring3().args(["snapshot", "delete"]).arg(&file));
        assert!(!file.exists());
        let listed = output(ring3().args(["img", "snapshot", "-l", disk]));
        assert!(listed.is_empty(), "{}", String::from_utf8_lossy(&listed));
        output(ring3().args(["img", "check", disk]));
        let mut guest = tern(&["--hda", disk], &socket);
        assert_eq!(tell(&mut guest, "mount /dev/hda /mnt && cat /mnt/file"), "other\n");
        off(guest);
    }
}

/// A machine whose disk has got another size is saved with it.
#[test]
fn a_disk_keeps_the_size_that_it_has_got() {
    let directory = Directory::new();
    let (socket, file) = (directory.path("qmp"), directory.path("saved"));
    let disk = qcow2_disk(&directory);
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        command.args(["--drive", &format!("file={},if=virtio,id=disk", disk.display())]);
        command.arg("--qmp").arg(format!("unix:{}", socket.display()));
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1; modprobe virtio_pci; modprobe virtio_blk");
    Qmp::connect(&socket).done("block_resize", json!({"device": "disk", "size": 32 << 20}));
    assert_eq!(guest.command("cat /sys/block/vda/size"), "65536");
    save(&socket, &file);
    kill(guest);
    let mut guest = restored(&file, "interpreter", &[]);
    guest.command("echo 1 | dd of=/dev/vda seek=65535 conv=fsync 2>/dev/null");
    assert_eq!(guest.command("cat /sys/block/vda/size"), "65536");
    assert_eq!(guest.power_off(), Some(0));
}

/// A machine whose memory is still in a file is saved under the name of that file, again and again.
#[test]
fn a_restored_machine_is_saved_in_its_own_file() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let (socket, file) = (directory.path("qmp"), directory.path("saved"));
    let mut guest = tern(&[], &socket);
    tell(&mut guest, "seq 1 20000 >/tmp/file; cksum /tmp/file >/tmp/sum; rounds=");
    save(&socket, &file);
    kill(guest);
    let monitor = format!("unix:{}", socket.display());
    for (engine, rounds) in
        [("translator", "x\n"), ("interpreter", "xx\n"), ("translator", "xxx\n")]
    {
        let mut guest = restored(&file, engine, &["--qmp", &monitor]);
        assert_eq!(tell(&mut guest, "rounds=x$rounds; echo $rounds"), rounds);
        save(&socket, &file);
        assert_eq!(tell(&mut guest, "cksum /tmp/file | diff - /tmp/sum"), "");
        kill(guest);
        output(ring3().args(["snapshot", "check"]).arg(&file));
    }
}

/// Until a machine runs, little of its file is read, whatever the sizes of its memory and its RAM disk.
#[test]
fn a_machine_runs_before_its_file_is_read() {
    let directory = Directory::new();
    let (socket, file) = (directory.path("qmp"), directory.path("saved"));
    let mut command = ring3();
    command.args(["run", "--memory", "512M", "--serial", "stdio", "--qmp"]);
    command.arg(format!("unix:{}", socket.display()));
    add_linux(&mut command, &WITH_MODULES);
    let mut guest = Guest::of(command);
    guest.wait_for(PROMPT);
    save(&socket, &file);
    kill(guest);
    for engine in ["translator", "interpreter"] {
        let mut guest = restored(&file, engine, &[]);
        assert_eq!(guest.command("echo on"), "on");
        let counts = fs::read_to_string(format!("/proc/{}/io", guest.id())).unwrap();
        let read = counts.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
        // Pages that are mapped are not counted.
        assert!(read.parse::<u64>().unwrap() < 1 << 20, "{counts}");
        if engine == "translator" {
            // A reset needs all of it.
            guest.type_line("echo b >/proc/sysrq-trigger");
            guest.wait_for(PROMPT);
            assert_eq!(guest.command("echo anew"), "anew");
        }
        kill(guest);
    }
}

fn load(socket: &Path, file: &Path) {
    output(ring3().args(["snapshot", "load"]).arg(socket).arg(file));
}

/// A machine goes back while it runs, with its disk, as often as it likes. Its terminal, a client of QMP and
/// its network stay connected. What it could be saved as before, it can be saved as again.
#[test]
fn a_running_machine_goes_back_with_its_disk() {
    if !has_tern() {
        return;
    }
    for engine in ["translator", "interpreter"] {
        let directory = Directory::new();
        let (socket, file) = (directory.path("qmp"), directory.path("saved"));
        let disk = qcow2_disk(&directory);
        let disk = disk.to_str().unwrap();
        let mut guest = tern(&["--engine", engine, "--hda", disk, "--nic", "user"], &socket);
        let mut qmp = Qmp::connect(&socket);
        tell(&mut guest, "until ifconfig virtio_net | grep -q 'by DHCP'; do sleep 0.1; done");
        tell(&mut guest, "mount /dev/hda /mnt && echo early >/mnt/file && variable=kept");
        save(&socket, &file);
        for round in 0..3 {
            tell(&mut guest, "echo late >/mnt/file && sync && variable=lost; ping -c 1 10.0.2.2");
            match round {
                0 => load(&socket, &file),
                1 => drop(qmp.done("snapshot-load", json!({"file": file}))),
                _ => {
                    let line = format!("loadvm {}", file.display());
                    let said = qmp.done("human-monitor-command", json!({"command-line": line}));
                    assert_eq!(said, "");
                }
            }
            assert_eq!(tell(&mut guest, "cat /mnt/file; echo $variable"), "early\nkept\n");
            let shown = tell(&mut guest, "ping -c 1 10.0.2.2");
            assert!(shown.contains("1 sent, 1 answered"), "{shown}");
        }
        // A paused machine stays so.
        tell(&mut guest, "variable=lost");
        qmp.done("stop", json!({}));
        qmp.done("snapshot-load", json!({"file": file}));
        assert_eq!(qmp.done("query-status", json!({}))["status"], "paused");
        qmp.done("cont", json!({}));
        assert_eq!(tell(&mut guest, "echo $variable"), "kept\n");
        tell(&mut guest, "echo last >/mnt/file && sync");
        save(&socket, &file);
        tell(&mut guest, "echo lost >/mnt/file && sync");
        load(&socket, &file);
        assert_eq!(tell(&mut guest, "cat /mnt/file; umount /mnt"), "last\n");
        off(guest);
        output(ring3().args(["snapshot", "check"]).arg(&file));
        output(ring3().args(["img", "check", disk]));
    }
}

/// Linux goes back, with what it has written over an image, and to a compressed file. Tern goes back on both
/// engines, see above.
#[test]
fn linux_goes_back_with_what_it_has_written_over_an_image() {
    let directory = Directory::new();
    let (socket, file) = (directory.path("qmp"), directory.path("saved"));
    let disk = directory.path("disk");
    fs::File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        command.args(["--snapshot", "--drive"]);
        command.arg(format!("file={},if=virtio,format=raw", disk.display()));
        command.arg("--qmp").arg(format!("unix:{}", socket.display()));
    });
    guest.wait_for(PROMPT);
    guest.command("modprobe virtio_pci; modprobe virtio_blk; echo early | dd of=/dev/vda");
    guest.command("mkdir /early; sync; echo 3 >/proc/sys/vm/drop_caches");
    output(ring3().args(["snapshot", "save", "--compress"]).arg(&socket).arg(&file));
    guest.command("mkdir /late; echo later | dd of=/dev/vda; sync");
    load(&socket, &file);
    assert_eq!(guest.command("head -n 1 /dev/vda; echo /early /late*"), "early\n/early /late*");
    // Saved in the middle of the disk's work, it does the rest here and, on the other engine, elsewhere.
    guest.command(
        "(dd if=/dev/urandom of=want bs=64k count=64 2>/dev/null; \
         for i in 1 2 3 4 5 6 7 8; do dd if=want of=/dev/vda bs=64k conv=fsync 2>/dev/null; done; \
         echo 3 >/proc/sys/vm/drop_caches; \
         dd if=/dev/vda bs=64k count=64 2>/dev/null | cmp - want && echo same >got) & sleep 0.1",
    );
    save(&socket, &file);
    load(&socket, &file);
    let mut elsewhere = restored(&file, "interpreter", &["--serial", "stdio"]);
    for guest in [&mut guest, &mut elsewhere] {
        wait_until("the disk has everything", || {
            (guest.command("cat got 2>/dev/null") == "same").then_some(())
        });
    }
    assert_eq!(elsewhere.power_off(), Some(0));
    assert_eq!(guest.power_off(), Some(0));
    assert!(fs::read(&disk).unwrap().iter().all(|byte| *byte == 0));
}

/// Whatever cannot be loaded is refused in one line, and the machine goes on with its disk.
#[test]
fn a_running_machine_that_cannot_go_back_says_why_and_goes_on() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let (socket, file) = (directory.path("qmp"), directory.path("saved"));
    let disk = qcow2_disk(&directory);
    let disk = disk.to_str().unwrap();
    let mut guest = tern(&["--hda", disk], &socket);
    tell(&mut guest, "mount /dev/hda /mnt && echo early >/mnt/file && sync");
    let [cut, lost] = ["cut", "lost"].map(|name| directory.path(name));
    save(&socket, &lost);
    let mut qmp = Qmp::connect(&socket);
    save(&socket, &file);
    let whole = fs::read(&file).unwrap();
    fs::write(&cut, &whole[..whole.len() - 1]).unwrap();
    let named = fs::read(&lost).unwrap();
    qmp.done("snapshot-delete", json!({"file": lost}));
    fs::write(&lost, named).unwrap();
    let refuses = |file: &Path, part: &str| {
        let said = refused(ring3().args(["snapshot", "load"]).arg(&socket).arg(file), 1);
        assert!(said.contains(part) && said.lines().count() == 1, "{said}");
    };
    refuses(&cut, "is damaged");
    refuses(&directory.path("missing"), "No such file");
    refuses(Path::new(disk), "is not a saved machine");
    tell(&mut guest, "echo late >/mnt/file && sync");
    refuses(&lost, "has no snapshot");
    assert_eq!(tell(&mut guest, "cat /mnt/file && umount /mnt"), "late\n");
    off(guest);
    for (arguments, part) in [
        (&["--nic", "user"][..], "other network cards"),
        (&["--serial", "stdio", "--serial", "null"], "serial ports"),
        (&["--deterministic"], "deterministic"),
        (&["--record", "REC"], "the run is recorded"),
        (&[], "not of the one that runs"),
    ] {
        let _ = fs::remove_file(&socket);
        let recording = directory.path("recording");
        let arguments: Vec<_> = arguments
            .iter()
            .map(|word| if *word == "REC" { recording.to_str().unwrap() } else { *word })
            .collect();
        let mut guest = tern(&arguments, &socket);
        refuses(&file, part);
        assert_eq!(tell(&mut guest, "echo on"), "on\n");
        off(guest);
    }
}

/// What was written over an image with `snapshot=on` is in the file; a compressed one is smaller.
#[test]
fn what_was_written_over_an_image_is_kept() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let (socket, disk) = (directory.path("qmp"), raw_disk(&directory));
    let before = fs::read(&disk).unwrap();
    let drive = format!("file={},if=virtio,snapshot=on", disk.display());
    let mut guest = tern(&["--drive", &drive], &socket);
    tell(&mut guest, "mount /dev/vda /mnt && seq 1 20000 >/mnt/file && sync && cksum /mnt/file");
    let expected = tell(&mut guest, "cksum /mnt/file");
    let files = ["plain", "packed"].map(|name| directory.path(name));
    save(&socket, &files[0]);
    output(ring3().args(["snapshot", "save", "--compress"]).arg(&socket).arg(&files[1]));
    kill(guest);
    let room = |file: &Path| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(file).unwrap());
    assert!(room(&files[1]) < room(&files[0]) / 2);
    for file in &files {
        output(ring3().args(["snapshot", "check"]).arg(file));
        let mut guest = restored(file, "translator", &[]);
        assert_eq!(tell(&mut guest, "cksum /mnt/file"), expected);
        off(guest);
    }
    assert!(fs::read(&disk).unwrap() == before);
}

/// Wherever a machine is killed that replaces its file, the file is whole, and nothing else stays for long.
#[test]
fn a_file_is_whole_whenever_its_machine_is_killed() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let (socket, file) = (directory.path("qmp"), directory.path("saved"));
    let guest = tern(&[], &socket);
    save(&socket, &file);
    kill(guest);
    for millis in [0, 3, 10, 30, 100] {
        let _ = fs::remove_file(&socket);
        let guest = tern(&[], &socket);
        let mut saving = ring3();
        let mut saving = saving.args(["snapshot", "save"]).arg(&socket).arg(&file).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(millis));
        kill(guest);
        saving.wait().unwrap();
        output(ring3().args(["snapshot", "check"]).arg(&file));
    }
    let _ = fs::remove_file(&socket);
    let guest = tern(&[], &socket);
    save(&socket, &file);
    kill(guest);
    let hidden = fs::read_dir(file.parent().unwrap()).unwrap();
    let hidden = hidden
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
    assert_eq!(hidden.count(), 0);
}

#[test]
fn a_machine_that_cannot_be_saved_or_restored_says_why() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let (socket, file) = (directory.path("qmp"), directory.path("saved"));
    let said = refused(ring3().args(["snapshot", "save"]).arg(&socket).arg(&file), 1);
    assert!(said.contains("--qmp unix:"), "{said}");
    let (raw, disk) = (raw_disk(&directory), directory.path("disk.qcow2"));
    let guest = tern(&["--hda", raw.to_str().unwrap()], &socket);
    let said = refused(ring3().args(["snapshot", "save"]).arg(&socket).arg(&file), 1);
    assert!(said.contains("convert it to qcow2") && said.contains(raw.to_str().unwrap()), "{said}");
    kill(guest);
    let _ = (fs::remove_file(&socket), qcow2_disk(&directory));
    let guest = tern(&["--hda", disk.to_str().unwrap()], &socket);
    save(&socket, &file);
    let restore = |file: &Path, more: &[&str]| {
        let mut command = ring3();
        command.args(["run", "--restore"]).arg(file).args(more);
        command
    };
    let said = refused(&mut restore(&file, &[]), 1);
    assert!(said.contains("in use by another process"), "{said}");
    kill(guest);
    let said = refused(&mut restore(&file, &["--nic", "user"]), 1);
    assert!(said.contains("0 network cards"), "{said}");
    let said = refused(&mut restore(&file, &["--serial", "null", "--serial", "null"]), 1);
    assert!(said.contains("has 1 serial ports, but --serial is given 2 times"), "{said}");
    refused(&mut restore(&file, &["--memory", "32M"]), 2);
    let said = refused(&mut restore(&raw, &[]), 1);
    assert!(said.contains("is not a saved machine"), "{said}");
    let said = refused(&mut restore(&directory.path("missing"), &[]), 1);
    assert!(said.contains("No such file"), "{said}");
    let kept = fs::read(&file).unwrap();
    fs::write(&file, &kept[..kept.len() / 2]).unwrap();
    let said = refused(&mut restore(&file, &[]), 1);
    assert!(said.contains("is damaged"), "{said}");
    fs::write(&file, &kept).unwrap();
    output(ring3().args(["img", "snapshot", "-d", "1"]).arg(&disk));
    let said = refused(&mut restore(&file, &[]), 1);
    assert!(said.contains("snapshot"), "{said}");
    fs::remove_file(&disk).unwrap();
    let said = refused(&mut restore(&file, &[]), 1);
    assert!(said.contains("there is no image") && said.lines().count() == 1, "{said}");
}

/// Two copies of a machine get addresses of their own, and their kernels take new random numbers. A copy that
/// continues as the same machine does neither.
#[test]
fn copies_with_new_identities_differ() {
    let directory = Directory::new();
    let (socket, file) = (directory.path("qmp"), directory.path("saved"));
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        command.args(["--nic", "user,model=virtio", "--nic", "user,model=rtl8029"]);
        command.arg("--qmp").arg(format!("unix:{}", socket.display()));
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1; for i in virtio_pci virtio_net ne2k-pci; do modprobe $i; done");
    let forked = "dmesg | grep -c 'due to virtual machine fork'";
    let addresses = "modprobe -r virtio_net ne2k-pci; modprobe virtio_net; modprobe ne2k-pci; \
                     cat /sys/class/net/eth*/address";
    let before = guest.command(addresses);
    assert_eq!(before.lines().count(), 2, "{before}");
    save(&socket, &file);
    kill(guest);
    for engine in ["translator", "interpreter"] {
        let continued = |more: &[&str]| {
            let mut guest = restored(&file, engine, more);
            let found = (guest.command(forked), guest.command(addresses));
            assert_eq!(guest.power_off(), Some(0));
            found
        };
        assert_eq!(continued(&[]), ("0".to_owned(), before.clone()));
        let copies = [(); 2].map(|()| continued(&["--new-identity"]));
        for (forks, addresses) in &copies {
            assert_eq!(forks, "1");
            for (old, new) in before.lines().zip(addresses.lines()) {
                assert!(old != new && old[..8] == new[..8], "{old} {new}");
            }
        }
        assert_ne!(copies[0].1, copies[1].1);
        let nic = "user,mac=52:54:00:00:00:77";
        let (_, given) = continued(&["--new-identity", "--nic", nic]);
        assert!(given.starts_with("52:54:00:00:00:77"), "{given}");
    }
}

/// The benchmark continues machines with both engines, and they share what they have not changed.
#[test]
#[ignore = "boots six machines; make test-long runs it"]
fn the_benchmark_restores_machines_that_share_memory() {
    let guests = file("initramfs.cpio.gz");
    let mut bench = ring3();
    bench.args(["bench", "restore", "--runs", "1", "--memory", "256", "--machines", "3"]);
    // Without QEMU, which takes longer.
    bench.arg("--guests").arg(guests.parent().unwrap()).env("PATH", "");
    let text = String::from_utf8(output(&mut bench)).unwrap();
    for engine in ["ring3 ", "interpreter "] {
        let mut rows = text.lines().filter_map(|line| line.strip_prefix(engine));
        let times = rows.next().unwrap_or_default();
        assert!(times.contains("256 MiB"), "{text}");
        let memory = rows.next().unwrap_or_default().split_whitespace();
        let [all, booted] = memory.map(|word| word.parse::<u32>().unwrap()).collect::<Vec<_>>()[..]
        else {
            panic!("{text}");
        };
        assert!(0 < all && all < 3 * booted, "{text}");
    }
}
