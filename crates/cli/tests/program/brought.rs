//! Disks that programs and guests bring to the servers of a supervisor.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::supervisor::{Supervised, bring_launcher, console, linux_lines};
use crate::support::guest::{
    CONSOLE, Console, PROMPT, WITH_MODULES, file, file_if_there, has_module, linux,
};
use crate::support::{Directory, HALT_FOR_EVER, kernel, output, ring3, wait_until};

/// Sends a line to a socket, and returns the answer.
fn say(socket: &Path, line: &Value) -> String {
    let mut stream = wait_until("the socket is not there", || UnixStream::connect(socket).ok());
    writeln!(stream, "{line}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

#[test]
fn providers_and_clients_come_back_with_their_server() {
    let directory = Directory::new();
    File::create(directory.path("root")).unwrap().set_len(1 << 20).unwrap();
    let mut supervised = Supervised::in_directory(
        directory,
        "[server.disks]\nkind = \"vblock\"\ndevice.root = { file = \"root\", format = \"raw\" }\n\
         provider.tool = { clients = [\"me\"], reconnect-delay = 7, socket = \"tool\" }\n\
         client.me = { devices = [\"root:r\", \"tool.x\"] }\n",
    );
    let (provider, client) =
        (supervised.directory.path("tool"), supervised.file("disks", "client:me"));
    let control = supervised.file("disks", "control");
    let delete = json!({ "execute": "device-del", "arguments": { "device": "x" } });
    let grant = |client: &str| {
        let arguments = json!({ "client": client, "device": "x", "access": "r" });
        json!({ "execute": "grant", "arguments": arguments })
    };
    let query = json!({ "execute": "query-devices", "arguments": {} });
    let works = |supervised: &Supervised| {
        supervised.reaches("disks", "running");
        assert!(say(&provider, &delete).contains("has no device \\\"x\\\""));
        assert!(say(&provider, &grant("me")).contains("has no device \\\"x\\\""));
        assert!(say(&provider, &grant("you")).contains("may not give a right"));
        let seen = say(&client, &query);
        assert!(seen.contains("\"root\"") && seen.contains("\"r\""), "{seen}");
        let providers = query_providers(&control);
        assert_eq!(providers[0]["reconnect-delay"], 7);
        let right = json!([{ "client": "me", "device": "tool.x", "access": "rw" }]);
        assert_eq!(providers[0]["rights"], right);
    };
    works(&supervised);
    for restarts in 1..3 {
        supervised.signal("disks", Signal::KILL);
        supervised.was_replaced("disks", restarts);
        works(&supervised);
        supervised.replace();
        works(&supervised);
    }
    let two = ["launch", "two", "--kind", "vblock"];
    let refused = |key: &str| supervised.refused(&[&two[..], &[key]].concat());
    assert!(refused("provider.p={clients = [\"x\"]}").contains("names the client \"x\""));
    assert!(refused("provider.p={sockets = \"x\"}").contains("unknown field `sockets`"));
    assert!(refused("provider.p=x").contains("invalid type"));
    assert!(refused("client.p={devices = [\"x\"]}").contains("has no device \"x\""));
    supervised.execute(&[&two[..], &["provider.p={}", "client.c={devices = [\"p.d\"]}"]].concat());
    assert!(say(&supervised.file("two", "provider:p"), &delete).contains("has no device"));
    assert_eq!(say(&supervised.file("two", "client:c"), &query).trim(), "{\"return\":[]}");
}

/// Returns the providers of a server.
fn query_providers(control: &Path) -> Value {
    let mut command = ring3();
    command.args(["vblock", "ctl"]).arg(control).arg("query-providers");
    serde_json::from_slice(&output(&mut command)).unwrap()
}

/// Brings what a guest needs that brings disks into it, and returns its shell.
fn bringing(supervised: &Supervised, name: &str) -> Console {
    let mut shell = console(&supervised.file(name, "serial"));
    shell.wait_for(PROMPT);
    bring_launcher(&mut shell);
    // nbdkit reserves 192 MiB of zeros, of which it uses little: more than the guest's memory.
    shell.command(
        "modprobe virtio_blk; modprobe virtio_net; echo 1 > /proc/sys/vm/overcommit_memory",
    );
    shell
}

const SERVE: &str = "guest_launcher serve root /dev/vda > /tmp/serve 2>&1 & true";

/// The guest of machine `a` launches another machine and brings its disk, on which that one has several requests at a time.
/// `a` is killed meanwhile, and brings the disk again. Guests without the rights are refused.
#[test]
fn a_guest_launches_a_machine_and_brings_its_disk() {
    let Some(nbd) = file_if_there("nbd.cpio.gz") else { return };
    if !has_module("linux-686", "virtio_console") {
        return;
    }
    let directory = Directory::new();
    File::create(directory.path("store")).unwrap().set_len(64 << 20).unwrap();
    let halt = json!(directory.file("halt", &kernel(HALT_FOR_EVER)));
    let [root, modules] = WITH_MODULES.map(file);
    let lines = linux_lines();
    let text = format!(
        "[server.disks]\nkind = \"vblock\"\ndevice.store = {{ file = \"store\", format = \"raw\" }}\n\
         [machine.a]\nmemory = \"96M\"\nkernel = {}\ninitrd = {}\nappend = \"{CONSOLE}\"\n\
         launches = [\"b\"]\nprovides = \"disks\"\ndisk = [\"disks:store\"]\n\
         [machine.b]\n{lines}start = false\n\
         [machine.c]\n{lines}launches = [\"b\"]\n\
         [machine.reader]\nmemory = \"4M\"\nkernel = {halt}\ndisk = [\"disks:a.root:r\"]\n\
         [machine.near]\nmemory = \"4M\"\nkernel = {halt}\ndisk = [\"disks:a.root:rw,direct=on\"]\n",
        json!(linux()),
        json!([root, modules, nbd])
    );
    let mut supervised = Supervised::in_directory(directory, &text);
    let mut a = bringing(&supervised, "a");
    let ask = |shell: &mut Console, words: &str| {
        shell.command(&format!("guest_launcher {words} 2>&1; echo $?"))
    };
    wait_until("there is no channel", || ask(&mut a, "query").contains("[]").then_some(()));
    assert_eq!(ask(&mut a, "launch b"), "{\"return\":{\"name\":\"b.1.a\"}}\n0");
    let refused = ask(&mut a, "grant b.1.a root");
    assert!(refused.contains("its provider must bring it first"), "{refused}");
    assert_eq!(supervised.query("reader")["state"], "waiting", "its disk is not there");
    a.command(SERVE);
    wait_until("the disk does not come", || {
        ask(&mut a, "grant b.1.a root rw").ends_with('0').then_some(())
    });
    supervised.reaches("reader", "running");
    supervised.reaches("near", "running");
    for (words, reason) in [
        ("grant b.1.a root", "has this disk already"),
        ("grant b root", "no machine and no server"),
        ("grant c root", "no machine and no server"),
        ("grant b.1.a other", "its provider must bring it first"),
    ] {
        let refused = ask(&mut a, words);
        assert!(refused.contains(reason) && refused.ends_with('1'), "{words}: {refused}");
    }
    assert!(ask(&mut a, "start b.1.a").ends_with('0'));
    let mut b = console(&supervised.file("b.1.a", "serial"));
    b.wait_for(PROMPT);
    b.command("dmesg -n 1; modprobe virtio_pci; modprobe virtio_blk");
    assert_eq!(b.command("cat /sys/block/vda/size"), (64 << 11).to_string());

    // Four writers, each of which has a quarter of the disk.
    b.command(
        "for i in 0 1 2 3; do seq $((i + 1))000000 $((i + 1))300000 | head -c 2097152 > /d$i; done",
    );
    let write = "for i in 0 1 2 3; do \
        (for n in 1 2 3; do dd if=/d$i of=/dev/vda bs=64k seek=$((i * 256)) oflag=direct conv=fsync 2>/dev/null || echo bad; done; \
        echo done >> /done) & done; true";
    b.command(write);
    supervised.signal("a", Signal::KILL);
    wait_until("there are never four requests at a time", || {
        let numbers = b.command("cat /sys/block/vda/inflight");
        let mut numbers = numbers.split_whitespace().map(|number| number.parse::<u32>().unwrap());
        (numbers.nth(1).unwrap() >= 4).then_some(())
    });
    supervised.was_replaced("a", 1);
    let mut a = bringing(&supervised, "a");
    a.command(SERVE);
    wait_until("the writers do not end", || {
        (b.command("grep -c done /done 2>/dev/null") == "4").then_some(())
    });
    // Then the server dies, and the supervisor.
    supervised.signal("disks", Signal::KILL);
    supervised.replace();
    let sums = "echo 3 > /proc/sys/vm/drop_caches; for i in 0 1 2 3; do \
        dd if=/dev/vda bs=64k skip=$((i * 256)) count=32 2>/dev/null | md5sum | cmp - /tmp/s$i && echo same; done";
    b.command("for i in 0 1 2 3; do md5sum < /d$i > /tmp/s$i; done");
    assert_eq!(b.command(sums), "same\nsame\nsame\nsame");
    assert_eq!(b.command("dmesg | grep -ci 'i/o error'"), "0");
    for part in ["b.1.a", "reader", "near"] {
        supervised.reaches(part, "running");
        assert_eq!(supervised.query(part)["restarts"], 0);
    }
    // What is in the image of the machine that has brought the disk.
    let first = b.command("cut -c1-32 /tmp/s1");
    a.command("sync");
    let store = fs::read(supervised.directory.path("store")).unwrap();
    let copy = supervised.directory.file("copy", &store[16 << 20..][..2 << 20]);
    let taken = String::from_utf8(output(Command::new("md5sum").arg(&copy))).unwrap();
    assert!(taken.starts_with(&first), "{taken} {first}");

    // A machine that is launched again under the same name has nothing from before.
    assert!(ask(&mut a, "revoke b.1.a root").ends_with('0'));
    wait_until("the disk stays", || (b.command("ls /sys/block | grep -c vd") == "0").then_some(()));
    assert!(ask(&mut a, "grant b.1.a root r").ends_with('0'));
    assert!(ask(&mut a, "kill b.1.a").ends_with('0'));
    supervised.reaches("b.1.a", "ended");
    assert!(ask(&mut a, "remove b.1.a").ends_with('0'));
    assert!(ask(&mut a, "launch b").ends_with('0'));
    assert!(ask(&mut a, "grant b.1.a root rw").ends_with('0'));
    assert!(supervised.file("b.1.a", "disks:a.root").exists());

    let mut c = bringing(&supervised, "c");
    assert!(ask(&mut c, "serve root /dev/null").contains("may not bring disks"));
    wait_until("there is no channel", || ask(&mut c, "launch b").contains("b.1.c").then_some(()));
    assert!(ask(&mut c, "grant b.1.c root").contains("brings no disks"));
    assert!(ask(&mut c, "grant b.1.a root").contains("no machine and no server"));
    assert!(supervised.refused(&["remove", "a"]).contains("\"a\" is needed by"));
}
