//! NBD in guests. One guest provides a disk: it runs a server on its own disk, which `ring3 vblock` uses as a
//! device, and another guest has its file system there. The provider can die in the middle. Another guest is
//! the client of a server that it reaches by its network.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::guest::{Guest, PROMPT, WITH_MODULES, add_linux, file_if_there};
use crate::support::{Directory, output, read_ext2, ring3, system_program, wait_until};

const SIZE: u64 = 64 << 20;

/// Starts a guest with Linux and the contents of these archives.
fn linux(initrds: &[PathBuf], options: &[&str]) -> Guest {
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        for initrd in initrds {
            command.arg("--initrd").arg(initrd);
        }
        command.args(options);
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1; for i in virtio_pci virtio_blk virtio_net crc32c_generic ext4; do modprobe $i; done");
    guest
}

/// The way by which a guest provides a disk.
enum Way {
    /// The server connects to this port of the host, which leads to the guest.
    Port(u16),
    /// The guest connects to the server's socket for it.
    Socket(PathBuf),
}

/// Starts a guest that serves `disk`.
fn provider(nbd: &Path, disk: &Path, way: &Way) -> Guest {
    let drive = format!("file={},format=raw,if=virtio", disk.display());
    let (nic, serve) = match way {
        Way::Port(port) => {
            // The port of a killed provider is free when its NAT has ended.
            wait_until("the port is taken", || TcpListener::bind(("127.0.0.1", *port)).ok());
            let nic = format!("user,hostfwd=tcp:127.0.0.1:{port}-:10809");
            (nic, "nbdkit file /dev/vda && echo serves")
        }
        Way::Socket(path) => {
            let nic = format!("user,guestfwd=tcp:10.0.2.100:1-unix:{}", path.display());
            // One connection for the server, and one for a machine to which it introduces this guest.
            let serve = "for i in 1 2; do mkfifo /tmp/$i; \
                         (echo '{\"execute\": \"serve\", \"arguments\": {\"device\": \"disk\"}}'; \
                         nbdkit -s file /dev/vda </tmp/$i) | nc 10.0.2.100 1 >/tmp/$i 2>/dev/null & \
                         done; echo serves";
            (nic, serve)
        }
    };
    let mut guest = linux(&[nbd.to_owned()], &["--drive", &drive, "--nic", &nic]);
    // nbdkit reserves 192 MiB of zeros, of which it uses little: more than the guest's memory.
    let network = "echo 1 > /proc/sys/vm/overcommit_memory; ip addr add 10.0.2.15/24 dev eth0; ip link set eth0 up; ip route add default via 10.0.2.2";
    assert_eq!(guest.command(&format!("{network}; {serve}")), "serves");
    guest
}

/// The server for disks, which is killed when this value is dropped.
struct Vblock(Child);

impl Drop for Vblock {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server whose disk `disk`, for the client `vm`, is the provider's at `port`. The disk is added
/// while the server runs.
fn vblock(directory: &Directory, port: u16) -> Vblock {
    let mut command = ring3();
    command.args(["vblock", "--control", "ctl"]).current_dir(directory.path(""));
    let server = Vblock(command.stdin(Stdio::null()).spawn().expect("the program starts"));
    let ctl = |arguments: &[&str]| {
        output(ring3().args(["vblock", "ctl"]).arg(directory.path("ctl")).args(arguments));
    };
    wait_until("the server does not listen", || UnixStream::connect(directory.path("ctl")).ok());
    let file = format!("file=nbd://127.0.0.1:{port}/?reconnect-delay=300");
    ctl(&["device-add", "name=disk", &file, "format=raw"]);
    let socket = format!("socket={}", directory.path("vm").display());
    ctl(&["grant", "client=vm", "device=disk", "access=rw", &socket]);
    server
}

/// Starts a server to which guests bring a disk `disk` for the client `vm`.
fn vblock_with_socket(directory: &Directory) -> Vblock {
    let mut command = ring3();
    command.args(["vblock", "--provider", "guest=provider,reconnect-delay=300"]);
    command.args(["--client", "vm=guest.disk:rw,socket=vm"]).current_dir(directory.path(""));
    Vblock(command.stdin(Stdio::null()).spawn().expect("the program starts"))
}

/// A guest fills the disk of another one, which is killed `kills` times meanwhile. The provider has a socket, or a
/// port of the host.
fn work_on_a_guests_disk(kills: u32, has_socket: bool) {
    let Some(nbd) = file_if_there("nbd.cpio.gz") else { return };
    let directory = Directory::new();
    let disk = directory.path("disk");
    File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let path = directory.path("provider");
    let way = if has_socket { Way::Socket(path.clone()) } else { Way::Port(port) };
    let brought = has_socket.then(|| vblock_with_socket(&directory));
    if has_socket {
        wait_until("the server does not listen", || UnixStream::connect(&path).ok());
    }
    let mut server = provider(&nbd, &disk, &way);
    let vblock = brought.unwrap_or_else(|| vblock(&directory, port));
    wait_until("the disk does not come", || directory.path("vm").exists().then_some(()));
    let drive = format!("vblock={},if=virtio", directory.path("vm").display());
    let mut user = linux(&[], &["--drive", &drive]);
    assert_eq!(user.command("cat /sys/block/vda/size"), (SIZE / 512).to_string());
    user.command("mkdir -p /mnt; mke2fs /dev/vda >/tmp/log 2>&1 && mount -t ext4 /dev/vda /mnt");
    // The guest's writes that are not synced are in its memory, or in the provider's, which is lost.
    user.begin(
        "for i in 1 2 3 4 5 6; do seq $((i * 50000)) > /mnt/n$i; \
         dd if=/dev/urandom of=/mnt/r$i bs=64k count=32 2>/dev/null; sync; sleep 1; done; \
         md5sum /mnt/[nr]* > /tmp/sums; cp /tmp/sums /mnt/; echo $(wc -l < /tmp/sums)",
    );
    for _ in 0..kills {
        std::thread::sleep(Duration::from_secs(2));
        // Dropping it kills it.
        drop(server);
        server = provider(&nbd, &disk, &way);
    }
    assert_eq!(user.end(), "12");
    let again =
        "umount /mnt && mount -t ext4 /dev/vda /mnt && md5sum -c /tmp/sums 2>&1 | grep -c OK";
    assert_eq!(user.command(again), "12");
    assert_eq!(user.command("umount /mnt; dmesg | grep -ci 'i/o error'"), "0");
    assert_eq!(user.power_off(), Some(0));
    drop(vblock);
    server.command("sync");
    assert_eq!(server.power_off(), Some(0));

    output(system_program("e2fsck").arg("-fn").arg(&disk));
    let numbers: Vec<u8> = (1..=300_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    assert!(read_ext2(&disk, "/n6") == numbers);
    // The sums that the guest computed, of data in the provider's image.
    let sums = String::from_utf8(read_ext2(&disk, "/sums")).unwrap();
    assert_eq!(sums.lines().count(), 12);
    for line in sums.lines() {
        let (sum, name) = line.split_once("  /mnt").expect("a sum and a name");
        let copy = directory.file("copy", &read_ext2(&disk, name));
        let taken = String::from_utf8(output(Command::new("md5sum").arg(&copy))).unwrap();
        assert_eq!(taken.split_whitespace().next(), Some(sum), "{name}");
    }
}

#[test]
fn a_guest_provides_the_disk_of_another_one() {
    work_on_a_guests_disk(0, false);
}

#[test]
fn a_guest_brings_its_disk_to_the_server_and_dies() {
    work_on_a_guests_disk(1, true);
}

#[test]
fn a_guest_whose_provider_is_killed_sees_a_pause_and_no_error() {
    work_on_a_guests_disk(2, false);
}

/// The server introduces a guest to the provider of its disk, and then has nothing to do with what they exchange: it
/// is stopped meanwhile. It can still end that.
#[test]
fn a_guest_reaches_its_provider_without_the_server() {
    let Some(nbd) = file_if_there("nbd.cpio.gz") else { return };
    let directory = Directory::new();
    let disk = directory.path("disk");
    File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let mut command = ring3();
    command.args(["vblock", "--provider", "guest=provider", "--control", "ctl"]);
    command.args(["--client", "vm=guest.disk:rw", "--client-socket", "vm=vm"]);
    let vblock = command.current_dir(directory.path("")).stdin(Stdio::null()).spawn();
    let vblock = Vblock(vblock.expect("the program starts"));
    let pid = Pid::from_raw(vblock.0.id().cast_signed()).unwrap();
    let ctl = |arguments: &[&str]| {
        let mut command = ring3();
        command.args(["vblock", "ctl"]).arg(directory.path("ctl")).args(arguments);
        String::from_utf8(output(&mut command)).unwrap()
    };
    let path = directory.path("provider");
    wait_until("the server does not listen", || UnixStream::connect(&path).ok());
    let mut provider = provider(&nbd, &disk, &Way::Socket(path));
    wait_until("the disk does not come", || {
        ctl(&["query-clients"]).contains("guest.disk").then_some(())
    });
    wait_until("there is one connection", || {
        (provider.command("pidof nbdkit | wc -w") == "2").then_some(())
    });
    let drive = format!("vblock={},direct=guest.disk,if=virtio", directory.path("vm").display());
    let mut user = linux(&[], &["--drive", &drive]);
    kill_process(pid, Signal::STOP).unwrap();
    assert_eq!(user.command("cat /sys/block/vda/size"), (SIZE / 512).to_string());
    user.command("mke2fs /dev/vda >/tmp/log 2>&1; mkdir -p /mnt; mount -t ext4 /dev/vda /mnt");
    user.command("seq 200000 >/mnt/n; umount /mnt; echo 3 >/proc/sys/vm/drop_caches");
    assert_eq!(user.command("mount -t ext4 /dev/vda /mnt; tail -n1 /mnt/n; umount /mnt"), "200000");
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(provider.command("pidof nbdkit | wc -w"), "2");
    ctl(&["revoke", "client=vm", "device=guest.disk"]);
    wait_until("the connection does not end", || {
        (provider.command("pidof nbdkit | wc -w") == "1").then_some(())
    });
    drop(user);
    provider.command("sync");
    assert_eq!(provider.power_off(), Some(0));
    output(system_program("e2fsck").arg("-fn").arg(&disk));
}

/// Debian's nbd-client and the kernel's driver use the server's NBD front-end, which they reach through the
/// NAT.
#[test]
fn a_guest_mounts_a_disk_over_its_network() {
    let Some(nbd) = file_if_there("nbd.cpio.gz") else { return };
    let directory = Directory::new();
    output(
        ring3().args(["img", "create", "-q", "-f", "qcow2"]).arg(directory.path("disk")).arg("64M"),
    );
    let mut command = ring3();
    command.args(["vblock", "--control", "ctl", "--device", "disk,file=disk,format=qcow2"]);
    command.args(["--client", "guest=disk:rw", "--nbd", "guest=127.0.0.1:0"]);
    let server = command.current_dir(directory.path("")).stdin(Stdio::null()).spawn();
    let server = Vblock(server.expect("the program starts"));
    let ctl = |arguments: &[&str]| {
        let mut command = ring3();
        command.args(["vblock", "ctl"]).arg(directory.path("ctl")).args(arguments);
        String::from_utf8(output(&mut command)).unwrap()
    };
    wait_until("the server does not listen", || UnixStream::connect(directory.path("ctl")).ok());
    let clients = ctl(&["query-clients"]);
    let (_, port) = clients.split_once("nbd://127.0.0.1:").expect("the address is told");
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let mut guest = linux(&[nbd], &["--nic", "user"]);
    let connect = format!(
        "modprobe nbd; ip addr add 10.0.2.15/24 dev eth0; ip link set eth0 up; \
         nbd-client 10.0.2.2 {port} /dev/nbd0 -N disk > /tmp/log 2>&1 || cat /tmp/log; cat /sys/block/nbd0/size"
    );
    assert_eq!(guest.command(&connect), (SIZE / 512).to_string());
    let fill = "mkdir -p /mnt; mke2fs /dev/nbd0 > /tmp/log 2>&1 && mount -t ext4 /dev/nbd0 /mnt; \
                for i in 1 2 3 4; do seq $((i * 50000)) > /mnt/n$i; dd if=/dev/urandom of=/mnt/r$i bs=64k count=32 2>/dev/null; done; \
                md5sum /mnt/[nr]* > /tmp/sums; umount /mnt && mount -t ext4 /dev/nbd0 /mnt && md5sum -c /tmp/sums 2>&1 | grep -c OK";
    assert_eq!(guest.command(fill), "8");
    let end = "umount /mnt; nbd-client -d /dev/nbd0; dmesg | grep -ci 'i/o error'";
    assert_eq!(guest.command(end), "0");
    assert_eq!(guest.power_off(), Some(0));
    drop(server);
    let raw = directory.path("raw");
    output(
        ring3()
            .args(["img", "convert", "-q", "-f", "qcow2", "-O", "raw"])
            .arg(directory.path("disk"))
            .arg(&raw),
    );
    output(system_program("e2fsck").arg("-fn").arg(&raw));
    let numbers: Vec<u8> = (1..=200_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    assert!(read_ext2(&raw, "/n4") == numbers);
}
