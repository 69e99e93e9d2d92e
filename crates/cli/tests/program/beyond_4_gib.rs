//! 64-bit Linux with memory above 4 GiB, from which programs get theirs first: devices read and write there, and the
//! machine is saved, goes back, moves and is repeated with it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;

use serde_json::json;

use crate::moving::{memory_of, moves, quit};
use crate::net::noise;
use crate::support::guest::{CONSOLE, Guest, PROMPT, file, file_if_there};
use crate::support::qmp::Qmp;
use crate::support::{Directory, output, ring3, wait_until};

const SIZE: u64 = 64 << 20;
/// More than a guest of these tests ever touches.
const TOUCHED: u64 = 768 << 20;

/// Starts a machine with 6 GiB and these options, and loads the drivers of its devices. The shell is a 32-bit program.
fn start(options: &[&str]) -> Option<Guest> {
    let kernel = file_if_there("linux-amd64/vmlinux")?;
    let modules = file_if_there("modules-amd64.cpio.gz")?;
    let mut command = ring3();
    command.args(["run", "--cpu", "qemu64", "--memory", "6G", "--serial", "stdio"]);
    command.args(["--append", CONSOLE, "--kernel"]).arg(kernel);
    command.arg("--initrd").arg(file("initramfs.cpio.gz")).arg("--initrd").arg(modules);
    let mut guest = Guest::of({
        command.args(options);
        command
    });
    guest.wait_for(PROMPT);
    let load = "dmesg -n 1; mkdir -p /mnt; for i in ata_piix sd_mod virtio_pci virtio_blk virtio_net e1000 \
                crc32c_generic ext4; do modprobe $i || echo no $i; done";
    assert_eq!(guest.command(load), "");
    Some(guest)
}

fn disk(directory: &Directory, name: &str) -> PathBuf {
    let path = directory.path(name);
    output(ring3().args(["img", "create", "-q", "-f", "raw"]).arg(&path).arg(SIZE.to_string()));
    path
}

/// Two free ports of the host.
fn ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// A file system on an IDE disk and on a virtio disk is read back from the disk, and streams go both ways through a virtio
/// card and an e1000.
#[test]
#[ignore = "moves much data in a large machine"]
fn devices_reach_memory_above_4_gib() {
    let directory = Directory::new();
    let [ide, virtio] = ["ide", "virtio"].map(|name| disk(&directory, name));
    let ports = ports();
    let drives = [
        format!("file={},format=raw", ide.display()),
        format!("file={},format=raw,if=virtio", virtio.display()),
    ];
    let nics = [
        format!("user,hostfwd=tcp:127.0.0.1:{}-:5000", ports[0]),
        format!("user,model=e1000,net=192.168.7.0/24,hostfwd=tcp:127.0.0.1:{}-:5000", ports[1]),
    ];
    let options =
        ["--drive", &drives[0], "--drive", &drives[1], "--nic", &nics[0], "--nic", &nics[1]];
    let Some(mut guest) = start(&options) else { return };
    let expected = guest.command("seq 200000 | md5sum");
    for device in ["sda", "vda"] {
        let work = format!(
            "mke2fs /dev/{device} > /tmp/log 2>&1 && mount -t ext4 /dev/{device} /mnt && \
             seq 200000 > /mnt/numbers && sync && echo 3 > /proc/sys/vm/drop_caches && md5sum < /mnt/numbers"
        );
        assert_eq!(guest.command(&work), expected, "{device}");
        // The zone that begins at 4 GiB has the pages of this file, which are those that the disk has written to.
        let pages = "awk '/^Node/ { zone = $4 } /nr_zone_(in)?active_file/ { pages[zone] += $2 } \
                     END { print (pages[\"Normal\"] > 200), pages[\"DMA32\"] + 0 }' /proc/zoneinfo";
        assert_eq!(guest.command(pages), "1 0", "{device}");
        guest.command("umount /mnt");
    }
    let addresses = "ip addr add 10.0.2.15/24 dev eth0; ip addr add 192.168.7.15/24 dev eth1; \
                     ip link set eth0 up; ip link set eth1 up; \
                     for i in 10.0.2.2 192.168.7.2; do until ping -c 1 $i > /tmp/log; do sleep 1; done; done";
    assert_eq!(guest.command(addresses), "");
    let sent = noise(4 << 20);
    guest.command("{ nc -ll -p 5000 -e cat & }");
    for port in ports {
        // The NAT accepts a connection before the guest does.
        let back = wait_until("the guest sends it back", || echo(port, &sent));
        assert!(back == sent, "port {port}");
    }
    assert!(memory_of(&guest) < TOUCHED, "{}", memory_of(&guest));
    assert_eq!(guest.power_off(), Some(0));
}

/// Sends bytes to a port of the host, and returns as many bytes as come back. None if there are fewer.
fn echo(port: u16, sent: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let mut writer = stream.try_clone().ok()?;
    thread::scope(|scope| {
        scope.spawn(move || writer.write_all(sent).and_then(|()| writer.shutdown(Shutdown::Write)));
        let mut received = vec![0; sent.len()];
        stream.read_exact(&mut received).ok().map(|()| received)
    })
}

/// Room that a file takes, in bytes.
fn room(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// Nobody needs the host's memory, or room in files, for memory that the guest has not touched.
#[test]
#[ignore = "works with all of a large machine's memory again and again"]
fn a_large_machine_is_saved_dumped_and_moved() {
    let directory = Directory::new();
    let sockets = ["qmp", "there"].map(|name| directory.path(name));
    let [saved, again, core, place, hot] =
        ["saved", "again", "core", "move", "hot"].map(|name| directory.path(name));
    let qmp = format!("unix:{}", sockets[0].display());
    let Some(mut guest) = start(&["--qmp", &qmp]) else { return };
    guest.command("seq 200000 > /tmp/kept; md5sum < /tmp/kept > /tmp/sum");
    let is_kept = |guest: &mut Guest| {
        assert_eq!(guest.command("md5sum < /tmp/kept | cmp - /tmp/sum && ls /tmp"), "kept  sum");
    };
    let before = memory_of(&guest);
    let save = |file: &Path| output(ring3().args(["snapshot", "save"]).arg(&sockets[0]).arg(file));
    save(&saved);
    guest.command("seq 100000 > /tmp/later; rm /tmp/kept");
    output(ring3().args(["snapshot", "load"]).arg(&sockets[0]).arg(&saved));
    is_kept(&mut guest);
    // Most of memory is in that file only.
    save(&again);
    output(ring3().arg("dump").arg(&sockets[0]).arg(&core));
    for file in [&saved, &again, &core] {
        assert!(room(file) < TOUCHED, "{}: {}", file.display(), room(file));
    }
    assert!(memory_of(&guest) <= before + (16 << 20), "{before} {}", memory_of(&guest));

    let mut client = Qmp::connect(&sockets[0]);
    fs::File::create(&hot).unwrap().set_len(SIZE).unwrap();
    let node = json!({"driver": "file", "filename": hot});
    client.done("blockdev-add", json!({"driver": "raw", "node-name": "hot", "file": node}));
    client.done("device_add", json!({"driver": "virtio-blk-pci", "id": "disk", "drive": "hot"}));
    let write = "until [ -e /dev/vda ]; do sleep 1; done; \
                 cat /tmp/kept /tmp/kept > /dev/vda; sync; echo 3 > /proc/sys/vm/drop_caches; \
                 head -c $(stat -c %s /tmp/kept) /dev/vda | md5sum | cmp - /tmp/sum && echo written";
    assert_eq!(guest.command(write), "written");
    client.done("device_del", json!({"id": "disk"}));
    client.event("DEVICE_DELETED");
    client.done("blockdev-del", json!({"node-name": "hot"}));

    let place = format!("unix:{}", place.display());
    let mut command = ring3();
    command.args(["run", "--serial", "stdio", "--incoming", &place, "--qmp"]);
    command.arg(format!("unix:{}", sockets[1].display()));
    let mut moved = Guest::of(command);
    let awaited = Qmp::connect(&sockets[1]);
    moves(&mut client, &place);
    quit(client, guest);
    is_kept(&mut moved);
    assert!(memory_of(&moved) < TOUCHED, "{}", memory_of(&moved));
    drop(awaited);
    assert_eq!(moved.power_off(), Some(0));
}

/// The last seconds of a run are kept in memory and repeated by both engines.
#[test]
#[ignore = "repeats a run of a large machine"]
fn the_last_seconds_of_a_large_machine_are_repeated() {
    let directory = Directory::new();
    let [socket, recording] = ["qmp", "recording"].map(|name| directory.path(name));
    let (qmp, last) =
        (format!("unix:{}", socket.display()), format!("2s,file={}", recording.display()));
    let options = ["--qmp", &qmp, "--record-last", &last];
    let Some(mut guest) = start(&options) else { return };
    // Its numbers are in memory above 4 GiB, and change.
    let work = "for i in $(seq 8); do seq 20000 > /tmp/numbers; md5sum /tmp/numbers; sleep 1; done";
    let sum = guest.command(&format!("{work}; echo fl''own"));
    assert!(sum.ends_with("flown"), "{sum}");
    Qmp::connect(&socket).done("record-save", json!({}));
    assert!(room(&recording) < TOUCHED, "{}", room(&recording));
    assert_eq!(guest.power_off(), Some(0));
    let shown = ["translator", "interpreter"].map(|engine| {
        let mut replay = ring3();
        replay.args(["run", "--engine", engine, "--replay"]).arg(&recording);
        let replayed = replay.stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&replayed.stderr);
        assert!(replayed.status.success(), "{engine}: {errors}");
        String::from_utf8_lossy(&replayed.stdout).replace('\r', "")
    });
    assert_eq!(shown[0], shown[1]);
    assert!(shown[0].contains("flown"), "{}", shown[0]);
}
