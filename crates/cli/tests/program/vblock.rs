//! `ring3 vblock` serves guests of ring3 and of QEMU, which do not notice that it is killed again and again,
//! and other programs by NBD.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::guest::{CONSOLE, Guest, PROMPT, WITH_MODULES, add_linux, file, linux};
use crate::support::{Directory, output, read_ext2, ring3, system_program, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// A server, which is killed when this value is dropped.
pub(crate) struct Server(Child);

impl Server {
    /// Starts a server in `directory`, and waits until `socket` is there.
    pub(crate) fn start(directory: &Path, arguments: &[&str], socket: &str) -> Server {
        let mut command = ring3();
        command.arg("vblock").args(arguments).current_dir(directory);
        Server::of(&mut command, &directory.join(socket))
    }

    /// Returns the server that `command` starts, when it listens at `socket`.
    fn of(command: &mut Command, socket: &Path) -> Server {
        let mut server = Server(command.stdin(Stdio::null()).spawn().expect("the program starts"));
        wait_until("the server listens", || {
            assert!(server.0.try_wait().unwrap().is_none(), "the server has ended");
            // A socket that an earlier server has left behind accepts no connection.
            std::os::unix::net::UnixStream::connect(socket).ok()
        });
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the program `name`, if it is installed. If not, this prints a note, and the test passes.
fn program(name: &str, package: &str) -> Option<Command> {
    let there = Command::new(name).arg("--version").stdout(Stdio::null()).status();
    if there.is_ok() {
        return Some(Command::new(name));
    }
    ring3_skipped::package(format_args!("{name} is missing: install the package {package}"));
    None
}

fn ctl(directory: &Directory, arguments: &[&str]) -> Result<String, String> {
    let mut command = ring3();
    command.args(["vblock", "ctl"]).arg(directory.path("ctl")).args(arguments);
    let output = command.output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        assert_eq!(output.status.code(), Some(1));
        Err(text(output.stderr))
    }
}

fn create(directory: &Directory, format: &str) -> PathBuf {
    let path = directory.path("disk");
    output(ring3().args(["img", "create", "-q", "-f", format]).arg(&path).arg("64M"));
    path
}

const MODULES: &str = "dmesg -n 1; mkdir -p /mnt; \
                       for i in ata_piix sd_mod virtio_pci virtio_blk crc32c_generic ext4; do modprobe $i; done";

/// Makes a file system on `disk`, fills it and computes sums, and compares them when all data are read again.
fn work(guest: &mut Guest, disk: &str) {
    guest.command(&format!("mke2fs {disk} >/tmp/log 2>&1 && mount -t ext4 {disk} /mnt"));
    let fill = "for i in 1 2 3 4 5; do seq $((i * 50000)) > /mnt/n$i; \
                dd if=/dev/urandom of=/mnt/r$i bs=64k count=32 2>/dev/null; sync; done; md5sum /mnt/[nr]* > /tmp/sums; \
                cp /tmp/sums /mnt/; echo $(wc -l < /tmp/sums)";
    assert_eq!(guest.command(fill).lines().last(), Some("10"));
    let again = format!(
        "umount /mnt && mount -t ext4 {disk} /mnt && md5sum -c /tmp/sums 2>&1 | grep -c OK"
    );
    assert_eq!(guest.command(&again), "10");
    assert_eq!(guest.command("umount /mnt; dmesg | grep -ci 'i/o error'"), "0");
}

/// Kills a server and starts the next one, again and again until `done`.
fn kill_again_and_again(directory: &Path, arguments: &[&str], done: &AtomicBool) -> (Server, u32) {
    let mut kills = 0;
    let mut server = Server::start(directory, arguments, "vm");
    while !done.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_secs(1));
        drop(server);
        kills += 1;
        server = Server::start(directory, arguments, "vm");
    }
    (server, kills)
}

fn check_disk(disk: &Path, format: &str) {
    if format != "raw" {
        let status = ring3().args(["img", "check", "-q", "-f", format]).arg(disk).status().unwrap();
        // Clusters without a reference may be left (3), but there must be no error (2).
        assert!(matches!(status.code(), Some(0 | 3)), "{status}");
    }
    let raw = disk.with_extension("raw");
    output(
        Command::new("qemu-img").args(["convert", "-f", format, "-O", "raw"]).arg(disk).arg(&raw),
    );
    output(system_program("e2fsck").arg("-fn").arg(&raw));
    let numbers: Vec<u8> = (1..=250_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    assert!(read_ext2(&raw, "/n5") == numbers);
}

#[test]
fn a_guest_works_while_its_server_is_killed_every_second() {
    for (format, interface, disk) in [("qcow2", "virtio", "/dev/vda"), ("qcow2", "ide", "/dev/sda")]
    {
        let directory = Directory::new();
        let image = create(&directory, format);
        let device = format!("disk,file=disk,format={format}");
        let arguments = ["--device", &device, "--client", "vm=disk:rw,socket=vm"];
        let place = directory.path("");
        let first = Server::start(&place, &arguments, "vm");
        let mut guest = Guest::start(|command| {
            add_linux(command, &WITH_MODULES);
            let socket = directory.path("vm");
            let drive = format!("vblock={},if={interface}", socket.display());
            command.args(["--drive", &drive]);
        });
        guest.wait_for(PROMPT);
        guest.command(MODULES);
        drop(first);
        let done = AtomicBool::new(false);
        let (server, kills) = thread::scope(|scope| {
            let killer = scope.spawn(|| kill_again_and_again(&place, &arguments, &done));
            work(&mut guest, disk);
            done.store(true, Ordering::Relaxed);
            killer.join().unwrap()
        });
        assert!(kills > 0);
        assert_eq!(guest.power_off(), Some(0));
        drop(server);
        check_disk(&image, format);
    }
}

/// QEMU uses the same server with this command line. While the server is stopped, the guest waits, and the
/// log says for which server.
#[test]
fn a_command_line_of_qemu_finds_its_server() {
    let directory = Directory::new();
    create(&directory, "raw");
    let place = directory.path("");
    let arguments = ["--device", "disk,file=disk,format=raw", "--client", "vm=disk:rw,socket=vm"];
    let server = Server::start(&place, &arguments, "vm");
    let mut command = ring3();
    let log = directory.path("log");
    command.stderr(fs::File::create(&log).unwrap());
    command.arg("qemu").args("-nodefaults -serial stdio -m 128".split(' '));
    command.args(["-append", CONSOLE, "-kernel"]).arg(linux());
    command.arg("-initrd").arg(file("suite.cpio.gz"));
    command.args("-object memory-backend-memfd,id=ram,size=128M,share=on".split(' '));
    command.args("-machine memory-backend=ram -device vhost-user-blk-pci,chardev=c".split(' '));
    let socket = directory.path("vm");
    command.arg("-chardev").arg(format!("socket,id=c,path={},reconnect=1", socket.display()));
    let mut guest = Guest::of(command);
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1; modprobe -a virtio_pci virtio_blk");
    let copied = guest.command(
        "seq 100000 > /tmp/n; dd if=/tmp/n of=/dev/vda bs=4k conv=fsync 2>/dev/null; wc -c < /tmp/n",
    );
    let pid = Pid::from_child(&server.0);
    kill_process(pid, Signal::STOP).unwrap();
    guest.begin("dd if=/dev/vda of=/dev/null bs=4k count=1 skip=5000 2>/dev/null; echo read $?");
    wait_until("the log names the server", || {
        let said = fs::read_to_string(&log).unwrap();
        said.contains("vm has not answered for 5s").then_some(())
    });
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(guest.end(), "read 0");
    assert_eq!(guest.power_off(), Some(0));
    let numbers: Vec<u8> = (1..=100_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    assert_eq!(copied, numbers.len().to_string());
    assert!(fs::read(directory.path("disk")).unwrap().starts_with(&numbers));
}

/// The user's input to Linux: single requests, and several at a time.
const SCRIPT: &[u8] = b"dmesg -n 1\n\
    for i in virtio_pci virtio_blk crc32c_generic ext4; do modprobe $i; done\n\
    mke2fs /dev/vda | tail -n 1; mkdir -p /mnt; mount -t ext4 /dev/vda /mnt\n\
    for i in 1 2 3 4; do (seq $((i * 20000)) > /mnt/n$i; sync) & done; wait\n\
    echo 3 > /proc/sys/vm/drop_caches; for i in 1 2 3 4; do md5sum /mnt/n$i > /tmp/$i & done; wait; cat /tmp/[1-4]\n\
    umount /mnt; poweroff -f\n";

/// A recording contains the server's answers: both kinds of run repeat without a server.
#[test]
fn runs_are_repeated_without_the_server() {
    for deterministic in [true, false] {
        let directory = Directory::new();
        create(&directory, "qcow2");
        let script = directory.file("script", SCRIPT);
        let [log, recording] = ["log", "recording"].map(|name| directory.path(name));
        let arguments = ["--device", "disk,file=disk", "--client", "vm=disk:rw,socket=vm"];
        let server = Server::start(&directory.path(""), &arguments, "vm");
        let mut command = ring3();
        command.args(["run", "--memory", "128M", "--serial", "stdio"]);
        add_linux(&mut command, &WITH_MODULES);
        command.arg("--drive");
        command.arg(format!("if=virtio,vblock={}", directory.path("vm").display()));
        if deterministic {
            command.arg("--deterministic");
        }
        command.arg("--record").arg(&recording).arg("--event-log").arg(&log);
        let shown = output(command.stdin(std::fs::File::open(&script).unwrap()));
        let text = String::from_utf8_lossy(&shown);
        assert_eq!(text.matches("  /mnt/n").count(), 4, "{text}");
        drop(server);
        let first_log = std::fs::read_to_string(&log).unwrap();
        assert!(first_log.contains("input virtio-blk0: request"));
        let mut replay = ring3();
        replay.arg("run").arg("--replay").arg(&recording).args(["--serial", "stdio"]);
        let again = output(replay.arg("--event-log").arg(&log).stdin(Stdio::null()));
        assert!(again == shown, "what the guest shows, deterministic: {deterministic}");
        let second_log = std::fs::read_to_string(&log).unwrap();
        // All inputs and interrupts have the same positions.
        let what = |log: &str| {
            let lines = log.lines().filter(|line| !line.contains(" checkpoint "));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(what(&first_log) == what(&second_log), "deterministic: {deterministic}");
    }
}

#[test]
fn a_guest_of_qemu_works_while_its_server_is_killed() {
    if program("qemu-system-i386", "qemu-system-x86").is_none() {
        return;
    }
    let directory = Directory::new();
    let image = create(&directory, "raw");
    let initrd = directory.path("initrd");
    let parts = WITH_MODULES.map(|part| std::fs::read(file(part)).unwrap());
    std::fs::write(&initrd, parts.concat()).unwrap();
    let client = "vm=disk:rw,socket=vm,num-queues=2";
    let arguments =
        ["--device", "disk,file=disk,format=raw", "--client", client, "--control", "ctl"];
    let place = directory.path("");
    let first = Server::start(&place, &arguments, "vm");
    let mut guest = Guest::of_qemu(|| {
        let mut qemu = Command::new("qemu-system-i386");
        qemu.args(["-accel", "tcg", "-m", "128M", "-display", "none", "-no-reboot"]);
        qemu.args(["-serial", "stdio", "-append", CONSOLE]);
        qemu.args(["-object", "memory-backend-memfd,id=mem,size=128M,share=on"]);
        qemu.args(["-machine", "memory-backend=mem"]);
        qemu.args(["-chardev", "socket,id=c,path=vm,reconnect=1"]);
        qemu.args(["-device", "vhost-user-blk-pci,chardev=c,num-queues=2"]);
        qemu.arg("-kernel").arg(linux()).arg("-initrd").arg(&initrd);
        qemu.current_dir(&place);
        qemu
    });
    guest.command(MODULES);
    ctl(&directory, &["device-resize", "name=disk", "size=96M"]).unwrap();
    wait_until("the guest never sees the new size", || {
        (guest.command("cat /sys/block/vda/size") == "196608").then_some(())
    });
    let done = AtomicBool::new(false);
    let (server, _) = thread::scope(|scope| {
        let killer = scope.spawn(|| {
            // QEMU tries to reconnect once a second.
            let mut server = first;
            let mut kills = 0;
            while !done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_secs(4));
                drop(server);
                kills += 1;
                server = Server::start(&place, &arguments, "vm");
            }
            (server, kills)
        });
        work(&mut guest, "/dev/vda");
        done.store(true, Ordering::Relaxed);
        killer.join().unwrap()
    });
    assert_eq!(guest.power_off(), Some(0));
    drop(server);
    check_disk(&image, "raw");
}

#[test]
fn other_programs_use_exports() {
    if program("nbdinfo", "libnbd-bin").is_none() {
        return;
    }
    let directory = Directory::new();
    let image = create(&directory, "qcow2");
    let arguments = [
        "--device=disk,file=disk,format=qcow2",
        "--client=vm=disk:rw",
        "--nbd=vm=nbd",
        "--client=backup=disk:r",
        "--nbd=backup=127.0.0.1:0",
        "--control=ctl",
    ];
    let mut server = Server::start(&directory.path(""), &arguments, "ctl");
    let uri = format!("nbd+unix:///disk?socket={}", directory.path("nbd").display());
    let source: Vec<u8> = (0..8 << 20_u32).map(|i| ((i >> 9) ^ (i * 7)) as u8).collect();
    let file = directory.file("source", &source);
    output(Command::new("nbdcopy").args(["--connections=4", "--requests=32"]).arg(&file).arg(&uri));
    let copy = directory.path("copy");
    output(Command::new("nbdcopy").arg(&uri).arg(&copy));
    assert!(std::fs::read(&copy).unwrap()[..source.len()] == source);
    output(Command::new("qemu-img").args(["compare", "-f", "raw", "-F", "raw", &uri]).arg(&copy));
    let commands =
        ["write -P 5 1M 64k", "discard 2M 1M", "write -z 4M 1M", "write -z -u 5M 1M", "flush"];
    let mut io = Command::new("qemu-io");
    io.args(["-f", "raw"]).args(commands.iter().flat_map(|command| ["-c", command])).arg(&uri);
    output(&mut io);
    let map = output(Command::new("nbdinfo").args(["--map", &uri]));
    let map = String::from_utf8(map).unwrap();
    // Sectors that were never written take no room.
    assert!(map.lines().last().unwrap().contains("hole,zero"), "{map}");

    // A client that may only read learns this, cannot write, and reads the data of the other one.
    let clients = ctl(&directory, &["query-clients"]).unwrap();
    let at = clients.find("nbd://127.0.0.1:").expect("it is told");
    let backup: String = clients[at..].chars().take_while(|c| *c != '"').collect();
    let list = output(Command::new("nbdinfo").args(["--list", &backup]));
    let list = String::from_utf8(list).unwrap();
    assert!(list.contains("export=\"disk\"") && list.contains("is_read_only: true"), "{list}");
    output(Command::new("qemu-img").args(["compare", "-f", "raw", "-F", "raw", &backup, &uri]));
    let mut write = Command::new("qemu-io");
    write.args(["-f", "raw", "-c", "write 0 512", &backup]);
    assert!(!write.output().unwrap().status.success());

    // A revoked right is no longer valid.
    ctl(&directory, &["revoke", "client=backup", "device=disk"]).unwrap();
    assert!(!Command::new("nbdinfo").arg(&backup).output().unwrap().status.success());
    ctl(&directory, &["grant", "client=backup", "device=disk", "access=r"]).unwrap();
    output(Command::new("nbdinfo").arg(&backup));
    ctl(&directory, &["quit"]).unwrap();
    let status = wait_until("the server ends", || server.0.try_wait().unwrap());
    assert!(status.success());
    output(ring3().args(["img", "check", "-q"]).arg(&image));
}

/// A server that ends waits until the provider of a disk can keep the last writes, and says so. Told once
/// more, it ends at once.
#[test]
fn a_server_can_be_ended_while_its_provider_is_dead() {
    let Some(mut nbdkit) = program("nbdkit", "nbdkit") else { return };
    let directory = Directory::new();
    let at = directory.path("provider");
    let provider = Server::of(nbdkit.arg("-fU").arg(&at).args(["memory", "1M"]), &at);
    let file = format!("nbd+unix:///?socket={}&reconnect-delay=300", at.display());
    let (ctl_at, log) = (directory.path("ctl"), directory.path("log"));
    let mut command = ring3();
    command.args(["vblock", "--control"]).arg(&ctl_at).arg("--client=user=disk:rw");
    command.arg("--nbd").arg(format!("user={}", directory.path("nbd").display()));
    command.arg("--device").arg(format!("disk,file={file},format=raw"));
    let mut server = Server::of(command.stderr(fs::File::create(&log).unwrap()), &ctl_at);
    let uri = format!("nbd+unix:///disk?socket={}", directory.path("nbd").display());
    output(Command::new("qemu-io").args(["-t", "unsafe", "-f", "raw", "-c", "write 0 64k", &uri]));
    drop(provider);
    ctl(&directory, &["quit"]).unwrap();
    let read_log = || fs::read_to_string(&log).unwrap();
    let waits = format!("waiting until disk ({file}) can keep the last writes");
    wait_until("it says for what it waits", || read_log().contains(&waits).then_some(()));
    assert!(server.0.try_wait().unwrap().is_none(), "it does not wait");
    ctl(&directory, &["quit"]).unwrap();
    let status = wait_until("the server ends", || server.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(1));
    let said = read_log();
    let lost = format!("ended before the last writes to disk ({file}) were kept");
    assert!(said.lines().last().unwrap().contains(&lost), "{said}");
}

/// timeout(1) and terminals send a signal twice. A user who has not been told yet that the server waits has
/// not chosen to lose anything.
#[test]
fn two_signals_at_once_lose_nothing() {
    let directory = Directory::new();
    create(&directory, "qcow2");
    for _ in 0..10 {
        let (ctl_at, log) = (directory.path("ctl"), directory.path("log"));
        let mut command = ring3();
        command.arg("vblock").arg("--control").arg(&ctl_at).arg("--device");
        command.arg(format!("disk,file={}", directory.path("disk").display()));
        let mut server = Server::of(command.stderr(fs::File::create(&log).unwrap()), &ctl_at);
        for _ in 0..3 {
            let _ = kill_process(Pid::from_child(&server.0), Signal::TERM);
        }
        let status = wait_until("the server ends", || server.0.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{}", fs::read_to_string(&log).unwrap());
        fs::remove_file(&ctl_at).unwrap_or_default();
    }
}

#[test]
fn wrong_arguments_are_explained() {
    let directory = Directory::new();
    create(&directory, "raw");
    let fails = |arguments: &[&str]| {
        let mut command = ring3();
        let output = command.arg("vblock").args(arguments).current_dir(directory.path("")).output();
        let output = output.unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let device = "--device=disk,file=disk,format=raw";
    for (arguments, says) in [
        (vec![], "nothing to serve"),
        (vec!["--device=disk,file=none", "--control=c"], "there is no image none"),
        (vec!["--device=disk"], "give [name=]NAME,file=FILE"),
        (vec![device, device, "--control=c"], "already"),
        (vec![device, "--client=vm=other:r,socket=s"], "no device \"other\""),
        (vec![device, "--client=vm=disk:r,socket=/no/such/directory"], "cannot listen"),
        (vec![device, "--client=vm=disk:w"], "CLIENT=DEVICE:rw"),
        (
            vec![device, "--client=vm=disk:r", "--nbd=vm=8.8.8.8:10809"],
            "must not be reachable from other hosts",
        ),
        (
            vec!["--device=disk,file=disk,readonly=on", "--client=vm=disk:rw,socket=s"],
            "for reading only",
        ),
    ] {
        let said = fails(&arguments);
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    let error = ctl(&directory, &["query-devices"]).unwrap_err();
    assert!(error.contains("no server answers"), "{error}");

    let _server = Server::start(&directory.path(""), &[device, "--control=ctl"], "ctl");
    let error = ctl(&directory, &["device-add", "name=disk", "file=disk"]).unwrap_err();
    assert!(error.contains("already"), "{error}");
    let error = ctl(&directory, &["dance"]).unwrap_err();
    assert!(error.contains("not a command"), "{error}");
    assert!(ctl(&directory, &["query-devices"]).unwrap().contains("\"raw\""));
    // A second server for the image, and a machine without a right.
    assert!(fails(&[device, "--control=ctl2"]).contains("in use"));
    let socket = directory.path("vm");
    let drive = format!("vblock={},if=virtio", socket.display());
    let run = ring3().args(["run", "--drive", &drive]).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(
        said.contains("cannot connect to a vblock server") && said.lines().count() == 1,
        "{said}"
    );
}

/// Linux sees the new size of a disk while it reads and writes, and the other engine repeats the run.
#[test]
fn a_guest_sees_that_its_disk_gets_another_size() {
    let directory = Directory::new();
    let image = create(&directory, "raw");
    let place = directory.path("");
    let rights = ["--client", "vm=disk:rw,socket=vm", "--control", "ctl"];
    let device = ["--device", "disk,file=disk,format=raw"];
    let arguments = [&device[..], &rights].concat();
    let server = Server::start(&place, &arguments, "vm");
    let (recording, log) = (directory.path("recording"), directory.path("log"));
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        let drive = format!("vblock={},if=virtio", directory.path("vm").display());
        command.args(["--drive", &drive]);
        command.arg("--record").arg(&recording).arg("--event-log").arg(&log);
    });
    guest.wait_for(PROMPT);
    guest.command(MODULES);
    let has = |guest: &mut Guest, sectors: &str| {
        wait_until(&format!("the disk never has {sectors} sectors"), || {
            (guest.command("cat /sys/block/vda/size") == sectors).then_some(())
        });
    };
    has(&mut guest, "131072");
    let resize = |size: &str, more: &[&str]| {
        ctl(&directory, &[&["device-resize", "name=disk", size], more].concat())
    };
    guest.command("dd if=/dev/zero of=/dev/vda bs=64k count=1000 conv=fsync 2>/dev/null & true");
    resize("size=96M", &[]).unwrap();
    has(&mut guest, "196608");
    assert_eq!(guest.command("wait; echo $?"), "0");
    // The last sector of the new part can be used.
    guest.command("yes | head -c 512 | dd of=/dev/vda seek=196607 conv=fsync 2>/dev/null");
    assert!(fs::read(&image).unwrap().ends_with(b"y\ny\n"));
    // A new server, whose disk has another size: the machine learns of it when it connects.
    drop(server);
    fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(128 << 20).unwrap();
    let server = Server::start(&place, &arguments, "vm");
    has(&mut guest, "262144");

    assert!(resize("size=32M", &[]).unwrap_err().contains("give shrink=on"));
    assert!(resize("size=1000", &["shrink=on"]).unwrap_err().contains("a multiple of 512"));
    let reads = "for i in 1 2 3 4 5 6 7 8; do dd if=/dev/vda of=/dev/null iflag=direct bs=64k skip=1000 \
                 >/dev/null 2>&1; done & true";
    guest.command(reads);
    resize("size=32M", &["shrink=on"]).unwrap();
    has(&mut guest, "65536");
    guest.command("wait");
    assert_eq!(fs::metadata(&image).unwrap().len(), 32 << 20);
    // What is left can be used, and nothing else.
    let read = "dd if=/dev/vda of=/dev/null bs=512 iflag=direct count=1 2>/dev/null";
    assert_eq!(guest.command(&format!("{read} skip=65535; echo $?")), "0");
    assert_eq!(guest.command("dd if=/dev/vda bs=1M 2>/dev/null | wc -c"), (32 << 20).to_string());
    guest.type_line("poweroff -f");
    let (status, shown) = guest.end_of_run();
    assert_eq!(status, Some(0));
    let told = fs::read_to_string(&log).unwrap();
    for sectors in [196_608, 262_144, 65_536] {
        assert!(told.contains(&format!("{sectors} sectors")), "{sectors} in the log");
    }
    drop(server);
    fs::remove_file(&image).unwrap();
    let mut replay = ring3();
    replay.arg("run").arg("--replay").arg(&recording).args(["--serial", "stdio"]);
    let again = output(replay.args(["--engine", "interpreter"]).stdin(Stdio::null()));
    let again = String::from_utf8_lossy(&again).replace('\r', "");
    assert!(again == shown, "the interpreter shows the same");
}
