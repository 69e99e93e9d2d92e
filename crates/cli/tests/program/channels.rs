//! Channels between programs in Linux and outside (virtio).

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::{fs, thread};

use serde_json::json;

use crate::support::guest::{
    CONSOLE, Guest, PROMPT, WITH_MODULES, add_kernel, file, has_module, linux,
};
use crate::support::qmp::Qmp;
use crate::support::{Directory, PATIENCE, output, ring3, wait_until};

/// How often a MiB is sent at once.
const TIMES: usize = 16;

/// Loads the driver, and makes the names of channels that udev would make, once all of them are there.
fn set_up(guest: &mut Guest, names: &[&str]) {
    guest.command(
        "dmesg -n 1; modprobe virtio_pci; modprobe virtio_console; mkdir -p /dev/virtio-ports",
    );
    for name in names {
        guest.command(&format!(
            "until grep -l '^{name}$' /sys/class/virtio-ports/*/name > /found 2>/dev/null; do sleep 0.1; done; \
             port=$(cat /found); port=${{port%/name}}; ln -s ../${{port##*/}} /dev/virtio-ports/{name}"
        ));
    }
}

/// Bytes that do not repeat.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

fn md5(directory: &Directory, bytes: &[u8]) -> String {
    let file = directory.file("bytes", bytes);
    let sum = String::from_utf8(output(Command::new("md5sum").arg(file))).unwrap();
    sum.split_whitespace().next().unwrap().to_owned()
}

fn connect(socket: &Path) -> UnixStream {
    let client = wait_until("nobody listens", || UnixStream::connect(socket).ok());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// Starts a guest with channels "talk" and "other" at sockets of these names in `directory`.
fn start(kernel: &str, directory: &Directory, options: &[&str]) -> Guest {
    let mut command = ring3();
    command.args(["run", "--serial", "stdio"]);
    add_kernel(&mut command, kernel);
    add_channels(&mut command, directory);
    let mut guest = Guest::of({
        command.args(options);
        command
    });
    guest.wait_for(PROMPT);
    set_up(&mut guest, &["talk", "other"]);
    guest
}

fn add_channels(command: &mut Command, directory: &Directory) {
    for name in ["talk", "other"] {
        let socket = directory.path(name);
        command.arg("--channel").arg(format!("{name}=unix:{}", socket.display()));
    }
}

/// Programs send each other a MiB in both directions. A client that does not read holds up only its channel, and what a
/// client has left unread is not for the next one.
#[test]
fn programs_in_linux_and_outside_talk() {
    for kernel in ["linux-686", "linux-amd64"] {
        if !has_module(kernel, "virtio_console") {
            continue;
        }
        let directory = Directory::new();
        let mut guest = start(kernel, &directory, &[]);
        let sent = bytes(1 << 20);
        let sum = md5(&directory, &sent);
        // What comes before a program has opened the channel waits for it.
        let mut client = connect(&directory.path("talk"));
        let for_guest = sent.clone();
        let sending = thread::spawn(move || {
            client.write_all(&for_guest).unwrap();
            client
        });
        let got = guest.command("head -c 1048576 /dev/virtio-ports/talk > /got; md5sum < /got");
        assert!(got.starts_with(&sum), "{got}");
        let mut client = sending.join().unwrap();

        // Linux keeps up to 8 MiB in the queue: 128 chains of 16 pages each.
        guest.command(&format!(
            "(for i in $(seq {TIMES}); do cat /got; done > /dev/virtio-ports/talk; touch /sent) & true"
        ));
        let mut start = [0; 1000];
        client.read_exact(&mut start).unwrap();
        assert_eq!(start[..], sent[..1000]);
        // While the first channel is full, the second one is not.
        let mut other = connect(&directory.path("other"));
        assert_eq!(guest.command("ls /sent 2>/dev/null; echo hello > /dev/virtio-ports/other"), "");
        let mut hello = [0; 6];
        other.read_exact(&mut hello).unwrap();
        assert_eq!(&hello, b"hello\n");
        let mut rest = vec![0; TIMES * sent.len() - 1000];
        client.read_exact(&mut rest).unwrap();
        assert!(rest == sent.repeat(TIMES)[1000..], "bytes are lost");
        guest.command("while [ ! -e /sent ]; do sleep 0.1; done");

        // The next client asks, and gets the answer to that.
        guest.command("(cat /got > /dev/virtio-ports/talk) & sleep 0.2");
        drop(client);
        guest.command("wait");
        let mut client = connect(&directory.path("talk"));
        client.write_all(b"question\n").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        guest.command(
            "exec 3<> /dev/virtio-ports/talk; read line <&3; echo \"$line: answer\" >&3; exec 3>&-",
        );
        let mut answer = [0; 17];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"question: answer\n");
        assert_eq!(guest.power_off(), Some(0));
        assert!(!directory.path("talk").exists(), "the socket is left");
    }
}

/// A saved machine knows of its clients no more, and a recorded one repeats what they did.
#[test]
fn machines_with_channels_are_saved_and_repeated() {
    if !has_module("linux-686", "virtio_console") {
        return;
    }
    let directory = Directory::new();
    let (socket, recording) = (directory.path("qmp"), directory.path("recording"));
    let qmp_at = format!("unix:{}", socket.display());
    let record = recording.display().to_string();
    let mut guest = start("linux-686", &directory, &["--qmp", &qmp_at, "--record", &record]);
    let mut client = connect(&directory.path("talk"));
    client.write_all(b"one\n").unwrap();
    let read = "exec 3<> /dev/virtio-ports/talk; read line <&3; echo \"got $line\"";
    assert_eq!(guest.command(read), "got one");
    // What is sent meanwhile is in the file, too.
    client.write_all(b"two\n").unwrap();
    let mut qmp = Qmp::connect(&socket);
    wait_until("it has come", || {
        let path = "devices/channels/device_type/channels/0/is_connected";
        let part = qmp.done("x-ring3-inspect", json!({"path": path}));
        (part["value"] == true).then_some(())
    });
    guest.command("sleep 0.2");
    let saved = directory.path("saved");
    qmp.done("snapshot-save", json!({"file": saved}));
    assert_eq!(guest.power_off(), Some(0));

    let mut command = ring3();
    command.args(["run", "--replay"]).arg(&recording);
    let replayed = String::from_utf8_lossy(&output(&mut command)).into_owned();
    assert!(replayed.contains("got one"), "{replayed}");

    for engine in ["auto", "interpreter"] {
        let mut command = ring3();
        command.args(["run", "--serial", "stdio", "--engine", engine, "--restore"]).arg(&saved);
        add_channels(&mut command, &directory);
        let mut guest = Guest::of(command);
        assert_eq!(guest.command("read line <&3; echo $line"), "two");
        let mut client = connect(&directory.path("talk"));
        client.write_all(b"three\n").unwrap();
        assert_eq!(guest.command("read line <&3; echo $line; echo four >&3"), "three");
        let mut four = [0; 5];
        client.read_exact(&mut four).unwrap();
        assert_eq!(&four, b"four\n");
        assert_eq!(guest.power_off(), Some(0));
    }

    let mut command = ring3();
    command.args(["run", "--restore"]).arg(&saved);
    command.arg("--channel").arg(format!("third=unix:{}", directory.path("third").display()));
    let refused = command.output().unwrap();
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{errors}");
    assert!(errors.contains("the machine has no channel third"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

/// The lines by which other programs give QEMU a guest agent.
#[test]
fn channels_have_qemus_names() {
    if !has_module("linux-686", "virtio_console") {
        return;
    }
    let directory = Directory::new();
    let socket = directory.path("agent");
    let mut command = ring3();
    command.args(["qemu", "-nographic", "-append", CONSOLE]);
    command.arg("-chardev");
    command.arg(format!("socket,path={},server=on,wait=off,id=qga0", socket.display()));
    command.args(["-device", "virtio-serial", "-device"]);
    command.arg("virtserialport,chardev=qga0,name=org.qemu.guest_agent.0");
    command.arg("-kernel").arg(linux()).arg("-initrd");
    // A later archive adds to the earlier one.
    let archives: Vec<u8> =
        WITH_MODULES.into_iter().flat_map(|name| fs::read(file(name)).unwrap()).collect();
    command.arg(directory.file("initrd", &archives));
    let mut guest = Guest::of(command);
    guest.wait_for(PROMPT);
    set_up(&mut guest, &["org.qemu.guest_agent.0"]);
    let mut client = connect(&socket);
    client.write_all(b"ping\n").unwrap();
    guest.command(
        "exec 3<> /dev/virtio-ports/org.qemu.guest_agent.0; read line <&3; echo $line >&3",
    );
    let mut pong = [0; 5];
    client.read_exact(&mut pong).unwrap();
    assert_eq!(&pong, b"ping\n");
    assert_eq!(guest.power_off(), Some(0));
}
