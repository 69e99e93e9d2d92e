//! Guests on networks: behind the NAT, with each other, with a guest of QEMU, and on an interface of the
//! host.
//!
//! Forwards listen on the host's loopback interface. Tests that need names or an interface of their own run
//! in a network namespace, in which there is nothing else. If users may create no namespaces, those tests are
//! skipped with a note.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::support::guest::{self, CONSOLE, Guest, PROMPT, WITH_MODULES, add_linux, file};
use crate::support::namespace::{has_namespaces, in_namespace};
use crate::support::{Directory, kernel, output, ring3, wait_until};

/// Returns ring3's options for Linux with the modules for its network cards.
fn linux() -> Vec<String> {
    let mut command = Command::new("");
    add_linux(&mut command, &WITH_MODULES);
    command.get_args().map(|argument| argument.to_str().unwrap().to_owned()).collect()
}

/// Returns these options for a shell.
fn quoted_linux() -> String {
    linux().iter().map(|option| format!("'{option}'")).collect::<Vec<_>>().join(" ")
}

/// The commands by which a guest loads the driver of its card.
const DRIVERS: &str =
    "dmesg -n 1; modprobe virtio_pci; modprobe virtio_net; ip link set eth0 up 2>/dev/null";

/// The script that udhcpc calls when it gets an address (busybox, examples/udhcp/simple.script).
const UDHCPC: &str = r#"printf '%s\n' '#!/bin/sh' '[ "$1" = bound ] || exit 0' \
'ip addr add $ip/$mask dev $interface; ip route add default via $router' \
'echo nameserver $dns > /etc/resolv.conf; echo $boot_file > /tmp/boot_file' > /tmp/udhcpc; \
chmod +x /tmp/udhcpc; udhcpc -i eth0 -q -n -s /tmp/udhcpc > /tmp/log 2>&1 || cat /tmp/log"#;

/// Starts a guest with these options, and loads the driver of its card.
fn start(options: &[&str]) -> Guest {
    let mut guest = Guest::start(|command| {
        command.args(linux()).args(options);
    });
    guest.wait_for(PROMPT);
    guest.command(DRIVERS);
    guest
}

/// Returns incompressible bytes, from a xorshift generator.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next()).collect();
    bytes.truncate(len);
    bytes
}

fn md5(path: &Path) -> String {
    let sum = String::from_utf8(output(Command::new("md5sum").arg(path))).unwrap();
    sum.split_whitespace().next().unwrap().to_owned()
}

/// Returns tshark's lines for the packets in `pcap` that match `filter`.
fn packets(pcap: &Path, filter: &str) -> Vec<String> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-o", "tcp.check_checksum:true", "-Y", filter, "-r"]).arg(pcap);
    String::from_utf8(output(&mut tshark)).unwrap().lines().map(str::to_owned).collect()
}

/// A guest gets an address, resolves a name, and loads files by HTTP and TFTP.
#[test]
fn a_guest_works_behind_the_nat() {
    if !has_namespaces() {
        return;
    }
    let directory = Directory::new();
    let served = directory.file("served", &noise(3_000_000));
    let pcap = directory.path("pcap");
    let (root, arp) = (served.parent().unwrap(), directory.path("arp"));
    directory.file("resolv.conf", b"nameserver 127.0.0.1\n");
    let nics = format!(
        "--nic user,tftp={root},bootfile=served,hostname=moon,pcap={pcap} \
         --nic user,net=192.168.7.0/24,restrict=on,ipv6=off,pcap={arp},pcap-filter=arp",
        root = root.display(),
        pcap = pcap.display(),
        arp = arp.display(),
    );
    let script = format!(
        "cd {root}; mount --bind resolv.conf /etc/resolv.conf; \
         python3 -m http.server --bind 127.0.0.1 8080 >web.log 2>&1 & \
         dnsmasq --no-daemon --user=root --conf-file=/dev/null --no-resolv --no-hosts --pid-file= \
         --listen-address=127.0.0.1 --bind-interfaces --address=/files.test/10.0.2.2 >names.log 2>&1 & \
         {ring3} run --serial stdio {linux} {nics}",
        root = root.display(),
        ring3 = env!("CARGO_BIN_EXE_ring3"),
        linux = quoted_linux(),
    );
    let mut guest = Guest::of(in_namespace(&script));
    guest.wait_for(PROMPT);
    guest.command(DRIVERS);
    assert_eq!(guest.command(UDHCPC), "");
    let address = guest.command("ip -4 addr show dev eth0 | grep -o 'inet [0-9.]*'");
    assert_eq!(address, "inet 10.0.2.15");
    assert_eq!(guest.command("cat /tmp/boot_file"), "served");
    assert!(guest.command("ping -c 3 10.0.2.2").contains("3 packets received"));
    // The guest sends fragments, from which the NAT makes datagrams again.
    let large = guest.command("ping -c 2 -s 40000 10.0.2.2; ping -c 1 -s 65500 10.0.2.2");
    assert!(
        large.contains("2 packets received") && large.contains("1 packets received"),
        "{large}"
    );
    assert!(guest.command("nslookup -type=a files.test").contains("10.0.2.2"));
    let sum = md5(&served);
    let fetch = "wget -q -O - http://files.test:8080/served | md5sum";
    assert!(guest.command(fetch).starts_with(&sum));
    assert!(guest.command("tftp -g -l - -r served 10.0.2.2 | md5sum").starts_with(&sum));
    // IPv6, with an address from a router advertisement.
    let has_address =
        "for i in $(seq 50); do ip addr show dev eth0 | grep -q 'fec0::' && break; sleep 0.2; done";
    guest.command(has_address);
    assert!(guest.command("ping6 -c 2 fec0::2").contains("2 packets received"));
    // The other card reaches only its gateway.
    guest.command("ip link set eth1 up; ip addr add 192.168.7.20/24 dev eth1");
    assert!(guest.command("ping -c 1 192.168.7.2").contains("1 packets received"));
    let refused = guest.command("nc 192.168.7.2 8080 < /dev/null || echo refused");
    assert!(refused.ends_with("refused"), "{refused}");
    assert_eq!(guest.power_off(), Some(0));

    let offer = packets(&pcap, "dhcp.option.dhcp == 2");
    assert!(!offer.is_empty() && offer[0].contains("Offer"), "{offer:?}");
    assert_eq!(packets(&pcap, "icmp.type == 0").len(), 6);
    assert!(!packets(&pcap, "dns.a == 10.0.2.2").is_empty());
    assert!(!packets(&pcap, "tftp.opcode == 3").is_empty());
    assert_eq!(packets(&pcap, "_ws.malformed || ip.dst == 192.168.7.2"), [""; 0]);
    let all = packets(&arp, "frame");
    assert!(all.len() >= 2 && packets(&arp, "arp").len() == all.len(), "{all:?}");
}

/// A guest that writes to each page from 2 MiB to 578 MiB, which the host takes some time to free, and resets
/// its machine to end the run: MOV EDI, 200000h; MOV ECX, 24000h; (MOV DWORD [EDI], 1; ADD EDI, 1000h; LOOP);
/// MOV AL, FEh; OUT 64h, AL; HLT.
const TOUCH_AND_RESET: &[u8] = &[
    0xbf, 0x00, 0x00, 0x20, 0x00, 0xb9, 0x00, 0x40, 0x02, 0x00, 0xc7, 0x07, 0x01, 0x00, 0x00, 0x00,
    0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, 0xe2, 0xf2, 0xb0, 0xfe, 0xe6, 0x64, 0xf4,
];

/// A machine that ends logs nothing about its networks, whatever they are.
#[test]
fn a_normal_end_prints_nothing() {
    let directory = Directory::new();
    let code = directory.file("kernel", &kernel(TOUCH_AND_RESET));
    let socket = directory.path("socket").display().to_string();
    // The switch keeps its socket until it has had no machine for a while.
    let stream = format!("stream,server=on,addr=unix:{}", directory.path("stream").display());
    for nic in ["user".to_owned(), format!("switch,path={socket}"), stream] {
        let mut command = ring3();
        command.args(["run", "--memory", "600M", "--serial", "null", "--no-reboot", "--kernel"]);
        command.arg(&code).args(["--nic", &nic, "--nic", "user"]);
        // A switch has the log open, too, until it has had no machine for a while.
        let log = directory.path("log");
        command.stdin(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        let status = command.status().unwrap();
        let said = fs::read_to_string(log).unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(0), ""), "{nic}");
    }
}

/// Sends `bytes` to `port` and returns the answer up to its end.
fn converse(port: u16, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let mut writer = stream.try_clone()?;
    thread::scope(|scope| {
        scope.spawn(move || {
            // If the connection is lost, reading fails, too.
            let _ = writer.write_all(bytes);
            let _ = writer.shutdown(std::net::Shutdown::Write);
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map(|_| answer)
    })
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns the processes of the NAT of machine `id`, which another process starts for it.
fn nats(id: u32) -> Vec<i32> {
    let [starter] = children(id)[..] else { panic!("not one process starts the NAT") };
    children(starter as u32)
}

/// Returns the children of process `id`.
fn children(id: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{id}/task")).expect("it runs");
    let of_task = |task: io::Result<fs::DirEntry>| {
        fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default()
    };
    let all: Vec<String> = tasks.map(of_task).collect();
    all.iter().flat_map(|ids| ids.split_whitespace()).map(|id| id.parse().unwrap()).collect()
}

/// A port of the host leads to the guest, also after the NAT was killed.
#[test]
fn a_nat_that_is_killed_is_started_again() {
    let port = free_port();
    let nic = format!("user,hostfwd=tcp:127.0.0.1:{port}-:7,guestfwd=tcp:10.0.2.100:7-cmd:cat");
    let mut guest = start(&["--nic", &nic]);
    guest.command("ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2");
    guest.command("(nc -ll -p 7 -e cat &)");
    let bytes = noise(500_000);
    let echoes = || converse(port, &bytes).is_ok_and(|answer| answer == bytes);
    wait_until("the guest does not answer", || echoes().then_some(()));
    for _ in 0..2 {
        let there = nats(guest.id());
        let [nat] = there.as_slice() else { panic!("{there:?}") };
        let nat = rustix::process::Pid::from_raw(*nat).unwrap();
        rustix::process::kill_process(nat, rustix::process::Signal::KILL).unwrap();
        wait_until("there is no other NAT", || {
            nats(guest.id()).iter().find(|id| **id != nat.as_raw_nonzero().get()).copied()
        });
        assert_eq!(
            guest.command("ping -c 30 -i 0.1 10.0.2.2 | grep -q 'bytes from' && echo back"),
            "back"
        );
        wait_until("the guest does not answer any more", || echoes().then_some(()));
    }
    assert_eq!(guest.command("echo hello | nc 10.0.2.100 7"), "hello");
    // No process is left behind.
    let nat = nats(guest.id())[0];
    assert_eq!(guest.power_off(), Some(0));
    wait_until("the NAT cannot be ended", || {
        (!Path::new(&format!("/proc/{nat}")).exists()).then_some(())
    });
}

/// Both guests send data to each other and compare them; their addresses are `192.168.5.N`.
fn transfer(guests: &mut [Guest; 2], bytes: usize) {
    for (number, guest) in guests.iter_mut().enumerate() {
        guest.command(&format!("ip addr add 192.168.5.{}/24 dev eth0", number + 1));
        guest.command(&format!("head -c {bytes} /dev/urandom > /tmp/sent"));
    }
    for (from, to) in [(0, 1), (1, 0)] {
        guests[to].begin("nc -l -p 1234 | md5sum");
        let sum = guests[from].command("md5sum < /tmp/sent");
        let address = format!("192.168.5.{}", to + 1);
        // Repeats this until the other guest listens.
        let send = format!(
            "for i in $(seq 100); do nc {address} 1234 < /tmp/sent && break; sleep 0.2; done"
        );
        assert_eq!(
            guests[from]
                .command(&send)
                .replace("nc: can't connect to remote host (192.168.5.2): Connection refused", "")
                .trim(),
            ""
        );
        assert_eq!(guests[to].end(), sum);
        let ping = guests[from].command(&format!("ping -c 3 {address}"));
        assert!(ping.contains("3 packets received"), "{ping}");
    }
}

/// Two guests of ring3 are connected. Large packets and unfinished checksums reach the other one unchanged,
/// unless this is switched off.
#[test]
fn two_guests_are_connected() {
    let directory = Directory::new();
    for (headers, name) in [("on", "whole"), ("off", "cut")] {
        let (socket, pcap) = (directory.path(name), directory.path("pcap"));
        let address = format!("stream,addr=unix:{},vnet-hdr={headers}", socket.display());
        let server = format!("{address},server=on,pcap={}", pcap.display());
        let client = format!("{address},reconnect=1,mac=52:54:00:12:34:57");
        let mut guests = [start(&["--nic", &server]), start(&["--nic", &client])];
        transfer(&mut guests, 5_000_000);
        for guest in guests {
            assert_eq!(guest.power_off(), Some(0));
        }
        let large = packets(&pcap, "eth.src == 52:54:00:12:34:57 && frame.len > 1514");
        assert_eq!(large.is_empty(), headers == "off", "{headers}");
    }
}

/// Returns the number of echo replies that Linux has received: the eleventh word of its ICMP counters.
fn echo_replies(guest: &mut Guest) -> u32 {
    let counters = "awk '/^Icmp: [0-9]/ { print $11 }' /proc/net/snmp";
    guest.command(counters).trim().parse().unwrap()
}

/// A guest sends echo requests before the answers to earlier ones have arrived, as many as there is room for.
/// None is lost between virtio cards, over a cable or a switch.
#[test]
fn a_flood_loses_nothing_between_virtio_cards() {
    const COUNT: u32 = 5000;
    let directory = Directory::new();
    let [stream, switch] = ["stream", "switch"].map(|name| directory.path(name));
    let [stream, switch] = [stream.display(), switch.display()];
    let cable = ["server=on", "reconnect=1"].map(|end| format!("stream,addr=unix:{stream},{end}"));
    for ends in [cable, [(); 2].map(|()| format!("switch,path={switch}"))] {
        let mut number = 0;
        let [mut server, mut client] = ends.map(|end| {
            number += 1;
            let mut guest = Guest::start(|command| {
                add_linux(command, &["suite.cpio.gz"]);
                command.arg("--nic").arg(format!("{end},mac=52:54:00:12:34:0{number}"));
            });
            guest.wait_for(PROMPT);
            guest.command(DRIVERS);
            guest.command(&format!("ip addr add 10.0.0.{number}/24 dev eth0"));
            guest
        });
        server.command("(suite --network serve > /dev/null 2>&1 &)");
        client.command("ping -c 1 10.0.0.1");
        for bytes in [64, 1400] {
            let before = echo_replies(&mut client);
            let result = client.command(&format!("suite --network 10.0.0.1 flood {bytes} {COUNT}"));
            assert!(result.starts_with(&format!("network {COUNT} ")), "{result}");
            // The flood takes late replies for lost ones, and any are late where the other guest's process does not
            // get the host's processor.
            wait_until("replies are lost", || {
                let received = echo_replies(&mut client) - before;
                assert!(received <= COUNT, "{received} replies");
                (received == COUNT).then_some(())
            });
        }
        for guest in [server, client] {
            assert_eq!(guest.power_off(), Some(0));
        }
    }
}

/// An RTL8029AS and an NE2000 are connected, each with Debian's driver for it.
#[test]
fn cards_of_other_models_are_connected() {
    let directory = Directory::new();
    let address = format!("stream,addr=unix:{}", directory.path("socket").display());
    let server = format!("{address},server=on,model=rtl8029");
    let client =
        format!("{address},reconnect=1,model=ne2000,iobase=0x320,irq=10,mac=52:54:00:12:34:57");
    let mut guests = [start(&["--nic", &server]), start(&["--nic", &client])];
    let has_card = "ip link set eth0 up && dmesg | grep -o 'NE2000 found at 0x320, using IRQ 10'";
    guests[0].command("modprobe ne2k-pci; ip link set eth0 up");
    let found = guests[1].command(&format!("modprobe ne io=0x320 irq=10; {has_card}"));
    assert_eq!(found, "NE2000 found at 0x320, using IRQ 10");
    transfer(&mut guests, 1_000_000);
    for guest in guests {
        assert_eq!(guest.power_off(), Some(0));
    }
}

/// A guest of ring3 and one of QEMU are connected, whichever of them listens.
#[test]
fn a_guest_of_qemu_is_connected() {
    let directory = Directory::new();
    let socket = directory.path("socket");
    let port = free_port();
    let unix = format!("addr.type=unix,addr.path={}", socket.display());
    for (ours, theirs) in [
        (format!("stream,{unix},server=on"), format!("stream,{unix},server=off")),
        (format!("socket,connect=127.0.0.1:{port}"), format!("socket,listen=127.0.0.1:{port}")),
    ] {
        let qemu = || {
            // QEMU takes only one file.
            let both = directory
                .file("initrd", &WITH_MODULES.map(|name| fs::read(file(name)).unwrap()).concat());
            let mut guest = Guest::of_qemu(|| {
                let mut qemu = Command::new("qemu-system-i386");
                qemu.args(["-accel", "tcg", "-display", "none", "-serial", "stdio"]);
                qemu.args(["-no-reboot", "-m", "128", "-append", CONSOLE, "-netdev"]);
                qemu.arg(format!("{theirs},id=n"));
                qemu.args(["-device", "virtio-net-pci,netdev=n,mac=52:54:00:00:00:02"]);
                qemu.arg("-kernel").arg(guest::linux()).arg("-initrd").arg(&both);
                qemu
            });
            guest.command(DRIVERS);
            guest
        };
        let pcap = directory.path("pcap");
        let nic = format!("{ours},pcap={}", pcap.display());
        // The guest that listens must start first.
        let mut guests = if ours.contains("server=on") {
            let first = start(&["--nic", &nic]);
            [first, qemu()]
        } else {
            let first = qemu();
            let second = start(&["--nic", &nic]);
            [second, first]
        };
        transfer(&mut guests, 1_000_000);
        for guest in guests {
            assert_eq!(guest.power_off(), Some(0));
        }
        assert!(!packets(&pcap, "tcp.port == 1234").is_empty());
        // A Linux that computes a checksum itself sends 0xFFFF instead of 0 (its `skb_checksum_help`). Both
        // stand for zero in one's complement, so receivers accept either; RFC 1624, section 3, would have 0.
        let bad = "tcp.checksum.status == \"Bad\" && !tcp.checksum.ffff";
        let wrong = format!("eth.src == 52:54:00:00:00:02 && (frame.len > 1514 || {bad})");
        assert_eq!(packets(&pcap, &wrong), [""; 0]);
    }
}

/// The host and a guest communicate over an interface of the host.
#[test]
fn a_guest_is_on_a_tap_device() {
    if !has_namespaces() {
        return;
    }
    if !in_namespace("ip tuntap add tap0 mode tap").status().is_ok_and(|status| status.success()) {
        ring3_skipped::host("there can be no tap devices (/dev/net/tun)");
        return;
    }
    let directory = Directory::new();
    let served = directory.file("served", &noise(5_000_000));
    let script = format!(
        "ip tuntap add tap0 mode tap; ip addr add 192.168.5.1/24 dev tap0; ip link set tap0 up; \
         cd {root}; python3 -m http.server --bind 192.168.5.1 8080 >web.log 2>&1 & \
         {ring3} run --serial stdio {linux} --nic tap,ifname=tap0",
        root = served.parent().unwrap().display(),
        ring3 = env!("CARGO_BIN_EXE_ring3"),
        linux = quoted_linux(),
    );
    let mut guest = Guest::of(in_namespace(&script));
    guest.wait_for(PROMPT);
    guest.command(DRIVERS);
    guest.command("ip addr add 192.168.5.2/24 dev eth0");
    assert!(guest.command("ping -c 3 192.168.5.1").contains("3 packets received"));
    let fetch = "wget -q -O /tmp/served http://192.168.5.1:8080/served; md5sum < /tmp/served";
    assert!(guest.command(fetch).starts_with(&md5(&served)));
    assert_eq!(guest.power_off(), Some(0));
}

/// The user's input to a guest behind the NAT, with cards of all kinds and disks of most.
const SCRIPT: &[u8] =
    b"dmesg -n 1; for i in virtio_pci virtio_net e1000 ne2k-pci virtio_blk ata_piix sd_mod sr_mod; \
    do modprobe $i; done\n\
    for i in eth1 eth2; do ip link set $i up; ip addr add 10.0.2.16/24 dev $i; ping -c 1 -I $i 10.0.2.2; \
    ip link set $i down; ip addr flush dev $i; done; ip link set eth0 up\n\
    ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2\n\
    ping -c 3 10.0.2.2; tftp -g -l - -r served 10.0.2.2 | md5sum\n\
    until [ -b /dev/sda -a -b /dev/sr0 ]; do sleep 0.1; done\n\
    for i in sda sr0 vda; do dd if=/dev/$i bs=64k count=16 2> /dev/null | md5sum; \
    echo new | dd of=/dev/$i conv=fsync; done\n\
    cat /proc/net/dev /proc/interrupts; hwclock; poweroff -f\n";

/// A recording contains the network's packets and what was read from disks, and its replay needs neither. All devices
/// take part, and after each 500 million instructions memory and state are equal.
#[test]
fn a_recording_has_the_network() {
    let directory = Directory::new();
    let script = directory.file("script", SCRIPT);
    let served = directory.file("served", &noise(100_000));
    let recording = directory.path("recording");
    let nic = format!("user,tftp={}", served.parent().unwrap().display());
    let (disk, log) = (directory.file("disk", &noise(1 << 20)), directory.path("log"));
    let [disc, disk_name] = [&file("grub.iso"), &disk].map(|path| path.display().to_string());
    let virtio = format!("file={disk_name},if=virtio,format=raw,snapshot=on");
    let run = |options: &[&str], more: Vec<String>| {
        let stdin = fs::File::open(&script).unwrap();
        let mut command = ring3();
        command.arg("run").args(options).args(more).stdin(stdin).stderr(Stdio::piped());
        command.args(["--checkpoint", "500000000", "--event-log"]).arg(&log);
        let output = command.output().expect("the program starts");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8(output.stdout).unwrap(), fs::read_to_string(&log).unwrap())
    };
    let path = recording.to_str().unwrap();
    for options in [
        &["--record", path, "--nic", &nic][..],
        &["--deterministic", "--record", path, "--nic", &nic],
    ] {
        let mut machine = linux();
        machine.extend(
            ["--nic", "user,model=e1000", "--nic", "user,model=rtl8029", "--vga", "std", "--cdrom"]
                .map(str::to_owned),
        );
        machine.extend([disc.as_str(), "--drive", &virtio, "--drive"].map(str::to_owned));
        machine.push(format!("file={disk_name},if=ide,format=raw,snapshot=on"));
        let (shown, first) = run(options, machine);
        assert!(shown.contains("3 packets received") && shown.contains(&md5(&served)), "{shown}");
        assert_eq!(shown.matches("1 packets received").count(), 2, "{shown}");
        assert_eq!(shown.matches(&md5(&disk)).count(), 2, "{shown}");
        let (again, log) = run(&["--replay", path], vec![]);
        assert_eq!(again, shown);
        let differs = first.lines().zip(log.lines()).find(|(one, other)| one != other);
        assert_eq!((differs, first.len()), (None, log.len()));
    }
}

/// If a network cannot be used, one line says why.
#[test]
fn impossible_networks_are_refused_with_a_reason() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let forward = format!("user,hostfwd=tcp::{port}-:22");
    for (nic, status, wanted) in [
        (forward.as_str(), 1, "cannot forward port 127.0.0.1"),
        ("tap,ifname=ring3none", 1, "ip tuntap add ring3none"),
        ("stream,addr=unix:/no/such/socket", 1, "start the other side first"),
        ("user,pcap=/no/such/directory/file", 1, "/no/such/directory/file"),
        ("user,pcap=/dev/null,pcap-filter=no filter", 1, "is not a capture filter"),
        ("user,net=10.0.0.0/31", 2, "net=10.0.0.0/31"),
        ("user,model=rtl8139", 2, "model must be"),
    ] {
        let output =
            ring3().arg("run").args(linux()).args(["--nic", nic]).stdin(Stdio::null()).output();
        let output = output.expect("the program starts");
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{nic}: {told}");
        assert!(told.contains(wanted), "{nic}: {told}");
        assert!(status == 2 || told.lines().count() == 1, "{nic}: {told}");
    }
    let output = ring3().args(["nat", "restrict=on"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--listen"));
}
