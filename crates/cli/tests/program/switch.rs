//! Guests on a switch: they reach each other over IPv4 and IPv6, cannot use another's address, and continue
//! when the switch is killed. The same holds for guests that share their memory with it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::guest::{CONSOLE, Guest, PROMPT, WITH_MODULES, add_linux, file, linux};
use crate::support::{Directory, output, ring3, wait_until};

/// A switch, which is killed when this value is dropped.
pub(crate) struct Switch(Child);

impl Switch {
    /// Starts a switch that listens at `socket`, and waits until it does.
    pub(crate) fn start(socket: &Path, options: &[&str]) -> Switch {
        let mut command = ring3();
        command.args(["switch", "--listen"]).arg(format!("unix:{}", socket.display()));
        let mut switch = Switch(command.args(options).spawn().expect("the program starts"));
        wait_until("the switch listens", || {
            assert!(switch.0.try_wait().unwrap().is_none(), "the switch has ended");
            std::os::unix::net::UnixStream::connect(socket).ok()
        });
        switch
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a guest on the switch at `socket` with the addresses 10.0.0.`number` and fd00::`number`.
pub(crate) fn guest(socket: &Path, number: u8) -> Guest {
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        command
            .arg("--nic")
            .arg(format!("switch,path={},mac=52:54:00:00:00:0{number}", socket.display()));
    });
    set_up(&mut guest, number);
    guest
}

pub(crate) fn set_up(guest: &mut Guest, number: u8) {
    guest.wait_for(PROMPT);
    prepare(guest, number);
}

/// Gives a guest that is at its prompt these addresses.
fn prepare(guest: &mut Guest, number: u8) {
    guest.command("dmesg -n 1; modprobe virtio_pci; modprobe virtio_net");
    // A program whose input this is never sees its end.
    guest.command("mkfifo never; sleep 10000 > never & true");
    guest.command(&format!(
        "echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad; ip link set eth0 up; \
         ip addr add 10.0.0.{number}/24 dev eth0; ip -6 addr add fd00::{number}/64 dev eth0"
    ));
}

/// Starts such a guest in QEMU, with memory that it shares with the switch at `socket`.
fn sharing_guest(directory: &Directory, socket: &Path, number: u8) -> Guest {
    // QEMU takes only one file.
    let parts = WITH_MODULES.map(|name| fs::read(file(name)).unwrap());
    let archive = directory.file(&format!("initrd{number}"), &parts.concat());
    let mut guest = Guest::of_qemu(|| {
        let mut qemu = Command::new("qemu-system-i386");
        qemu.args(["-accel", "tcg", "-display", "none", "-serial", "stdio", "-no-reboot"]);
        qemu.args(["-m", "128", "-object", "memory-backend-memfd,id=ram,size=128M,share=on"]);
        qemu.args(["-machine", "memory-backend=ram", "-append", CONSOLE, "-chardev"]);
        qemu.arg(format!("socket,id=s,path={},reconnect=1", socket.display()));
        qemu.args(["-netdev", "vhost-user,id=n,chardev=s", "-device"]);
        // With MSI-X vectors QEMU 7.2.22 has a segmentation fault as soon as the driver begins.
        qemu.arg(format!("virtio-net-pci,netdev=n,vectors=0,mac=52:54:00:00:00:0{number}"));
        qemu.arg("-kernel").arg(linux()).arg("-initrd").arg(&archive);
        qemu
    });
    prepare(&mut guest, number);
    guest
}

/// Sends some MB by TCP from one guest to the other, whose address is `to`.
fn transfer(from: &mut Guest, receiver: &mut Guest, to: &str) {
    let sum = from.command("dd if=/dev/urandom of=sent bs=64k count=48 2>/dev/null; md5sum < sent");
    receiver.command("rm -f sum; (nc -l -p 5000 < never | md5sum > sum) & sleep 1");
    from.command(&format!("nc {to} 5000 < sent"));
    let received = wait_until("all has come", || {
        let sum = receiver.command("cat sum");
        (!sum.is_empty()).then_some(sum)
    });
    assert_eq!(received, sum);
}

/// Returns the line of `ring3 switch --status` for the port with this address.
fn status(socket: &Path, number: u8) -> String {
    let path = format!("{}.status", socket.display());
    let shown =
        String::from_utf8(output(ring3().args(["switch", "--status", "--status-socket", &path])))
            .unwrap();
    let address = format!("52:54:00:00:00:0{number}");
    let line = shown.lines().find(|line| line.contains(&address));
    line.unwrap_or_else(|| panic!("{shown}")).to_owned()
}

#[test]
fn guests_reach_each_other_and_cannot_take_the_address_of_another_guest() {
    let directory = Directory::new();
    let socket = directory.path("switch");
    let _switch = Switch::start(&socket, &[]);
    let [mut first, mut second, mut third] = [1, 2, 3].map(|number| guest(&socket, number));
    for address in ["10.0.0.2", "fd00::2"] {
        let answer = first.command(&format!("ping -c 3 -s 5000 {address} | grep received"));
        assert!(answer.contains("3 packets received"), "{answer}");
    }
    // A guest that uses another's address is cut off, and receives none of the packets for that address.
    third.command(
        "ip link set eth0 down; ip link set eth0 address 52:54:00:00:00:02; ip link set eth0 up",
    );
    let answer = third.command("ping -c 2 -W 2 10.0.0.1 | grep received");
    assert!(answer.contains(" 0 packets received"), "{answer}");
    let heard = "cat /sys/class/net/eth0/statistics/rx_packets";
    let before: u64 = third.command(heard).parse().unwrap();
    let answer = first.command("ping -c 20 -i 0.1 10.0.0.2 | grep received");
    assert!(answer.contains("20 packets received"), "{answer}");
    let after: u64 = third.command(heard).parse().unwrap();
    assert!(after - before < 20, "{before} {after}");
    assert!(status(&socket, 3).contains("spoofed"), "{}", status(&socket, 3));
    second.command("true");
}

/// Sends 20 MiB from `second` to `first`, which has 10.0.0.1, and calls `act` in the middle of it.
fn send_while(first: &mut Guest, second: &mut Guest, act: impl FnOnce()) {
    let make = "dd if=/dev/urandom of=sent bs=64k count=320 2>/dev/null; md5sum < sent";
    let sum = second.command(make);
    first.command("(nc -l -p 5000 < never > come; md5sum < come > sum) & sleep 1");
    second.begin("nc 10.0.0.1 5000 < sent; echo done");
    wait_until("something has come", || {
        let bytes: u64 = first.command("stat -c %s come").parse().unwrap();
        (bytes > 100_000).then_some(())
    });
    act();
    second.end();
    let received = wait_until("all has come", || {
        let sum = first.command("cat sum");
        (!sum.is_empty()).then_some(sum)
    });
    assert_eq!(received, sum);
}

#[test]
fn guests_continue_when_the_switch_is_killed() {
    let directory = Directory::new();
    let socket = directory.path("switch");
    let switch = Switch::start(&socket, &[]);
    let [mut first, mut second] = [1, 2].map(|number| guest(&socket, number));
    // The machines start another switch by themselves.
    send_while(&mut first, &mut second, || drop(switch));
    assert!(status(&socket, 1).contains("machine"), "this is another switch");
    // The switch ends after the last machine.
    drop((first, second));
    wait_until("the switch ends", || (!socket.exists()).then_some(()));
}

/// Guests of QEMU, which share their memory with the switch, and one of ring3.
#[test]
fn guests_share_their_memory_with_the_switch() {
    let directory = Directory::new();
    let (socket, shared) = (directory.path("switch"), directory.path("shared"));
    let _switch = Switch::start(&socket, &["--vhost-user", shared.to_str().unwrap()]);
    let mut first = sharing_guest(&directory, &shared, 1);
    let mut second = sharing_guest(&directory, &shared, 2);
    let mut third = guest(&socket, 3);
    transfer(&mut first, &mut second, "10.0.0.2");
    transfer(&mut second, &mut first, "fd00::1");
    transfer(&mut first, &mut third, "10.0.0.3");
    transfer(&mut third, &mut second, "fd00::2");
    // Each packet is too large for a frame, and arrives in parts.
    let answer = first.command("ping -c 3 -s 5000 10.0.0.2 | grep received");
    assert!(answer.contains("3 packets received"), "{answer}");
    assert!(status(&socket, 1).starts_with("shared"), "{}", status(&socket, 1));
    second.command(
        "ip link set eth0 down; ip link set eth0 address 52:54:00:00:00:03; ip link set eth0 up",
    );
    let answer = second.command("ping -c 2 -W 2 10.0.0.1 | grep received");
    assert!(answer.contains(" 0 packets received"), "{answer}");
    assert!(status(&socket, 2).contains("spoofed"), "{}", status(&socket, 2));
    let answer = first.command("ping -c 2 10.0.0.3 | grep received");
    assert!(answer.contains("2 packets received"), "{answer}");
    drop((first, second));
    wait_until("their ports have gone", || {
        let path = format!("{}.status", socket.display());
        let shown = output(ring3().args(["switch", "--status", "--status-socket", &path]));
        (!String::from_utf8(shown).unwrap().contains("shared")).then_some(())
    });
}

#[test]
fn guests_that_share_their_memory_continue_when_the_switch_is_killed() {
    let directory = Directory::new();
    let (socket, shared) = (directory.path("switch"), directory.path("shared"));
    let options = ["--vhost-user", shared.to_str().unwrap()];
    let switch = Switch::start(&socket, &options);
    let [mut first, mut second] = [1, 2].map(|number| sharing_guest(&directory, &shared, number));
    let mut next = None;
    send_while(&mut first, &mut second, || {
        drop(switch);
        next = Some(Switch::start(&socket, &options));
    });
}

#[test]
fn impossible_networks_are_refused_with_a_reason() {
    let refused = |arguments: &[&str]| {
        let mut command = ring3();
        let output = command.arg("switch").args(arguments).stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let directory = Directory::new();
    let socket = directory.path("switch");
    let listen = format!("unix:{}", socket.display());
    let _switch = Switch::start(&socket, &[]);
    assert!(
        refused(&["--listen", &listen]).contains("in use"),
        "{}",
        refused(&["--listen", &listen])
    );
    for open in ["0.0.0.0:0", "[::]:0"] {
        let said = refused(&["--listen", open]);
        assert!(said.contains("a switch must not be reachable from other hosts"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let elsewhere = format!("unix:{}", directory.path("other").display());
    assert!(
        refused(&["--listen", &elsewhere, "--uplink", "mouse"])
            .contains("'mouse' for '--uplink <PROPERTIES>'")
    );
    let status = directory.path("nobody").display().to_string();
    assert!(refused(&["--status", "--status-socket", &status]).contains("no switch"));
}
