//! `ring3 qemu` as a program: monitors, serial ports and their back-ends, and machines in the background.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::support::qmp::Qmp;
use crate::support::{Directory, HALT_FOR_EVER, PATIENCE, kernel, ring3, wait_until};
use serde_json::json;

/// Sends "ring3" by COM1, and then echoes all input from there: MOV DX, 3F8h; five times MOV AL, …; OUT DX,
/// AL; then MOV DX, 3FDh; IN AL, DX; TEST AL, 1; JZ back; MOV DX, 3F8h; IN AL, DX; OUT DX, AL; JMP back.
const ECHO: &[u8] = &[
    0x66, 0xba, 0xf8, 0x03, 0xb0, b'r', 0xee, 0xb0, b'i', 0xee, 0xb0, b'n', 0xee, 0xb0, b'g', 0xee,
    0xb0, b'3', 0xee, 0x66, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xf7, 0x66, 0xba, 0xf8, 0x03,
    0xec, 0xee, 0xeb, 0xef,
];

/// Returns `ring3 qemu` with a kernel of this code, in `directory`.
fn machine(directory: &Directory, code: &[u8]) -> Command {
    directory.file("kernel", &kernel(code));
    let mut command = ring3();
    command
        .current_dir(directory.path("."))
        .args(["qemu", "-m", "16", "-nic", "none", "-kernel", "kernel"]);
    command
}

/// Returns the program's output when `input` is its standard input.
fn answer(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    output
}

#[test]
fn a_monitor_is_on_standard_input_and_output() {
    let directory = Directory::new();
    let commands = "info status\ninfo registers\nxp/4xb 0x100000\nx/2i $eip\ngva2gpa 0x100000\npmemsave 0x100000 4 memory\n\
        info pci\ninfo network\ninfo chardev\ninfo mtree\ninfo qtree\ninfo name\ninfo uuid\nquit\n";
    let output = answer(
        machine(&directory, HALT_FOR_EVER)
            .args(["-monitor", "stdio", "-S", "-name", "one", "-uuid"])
            .args(["550e8400-e29b-41d4-a716-446655440000", "-serial", "null"]),
        commands.as_bytes(),
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in [
        "monitor",
        "VM status: paused",
        "eip 00100000",
        "0000000000100000: 0xfa 0xf4 0xeb 0xfd\r\n",
        "cli\r\n",
        "hlt\r\n",
        "gpa: 0x100000",
        "Host bridge: PCI device 8086:1237",
        "serial0: filename=null",
        "io-apic",
        "isa-serial",
        "one\r\n",
        "550e8400-e29b-41d4-a716-446655440000",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(fs::read(directory.path("memory")).unwrap(), HALT_FOR_EVER);
}

#[test]
fn the_terminal_has_the_serial_port_and_the_monitor() {
    let directory = Directory::new();
    for options in [
        &["-nographic"][..],
        &["-serial", "mon:stdio", "-display", "none"],
        &["-display", "none", "-chardev", "stdio,id=c,mux=on", "-serial", "chardev:c", "-mon", "c"],
    ] {
        let input = b"hello\x01h\x01cinfo status\n\x01cagain\x01cquit\n";
        let output = answer(machine(&directory, ECHO).args(options), input);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        for part in ["ring3", "Ctrl-A c", "(qemu) ", "VM status: running"] {
            assert!(text.contains(part), "{options:?}: {part}: {text}");
        }
    }
    // The escape key ends the machine, too.
    let output = answer(machine(&directory, ECHO).arg("-nographic"), b"\x01x");
    assert_eq!(output.status.code(), Some(0));
}

/// Returns a port of this host that is free at the moment.
fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Reads until `part` has arrived.
#[track_caller]
fn read_until(source: &mut impl Read, part: &[u8]) -> Vec<u8> {
    let mut seen = Vec::new();
    while !seen.windows(part.len()).any(|window| window == part) {
        let mut bytes = [0; 256];
        let length = source.read(&mut bytes).expect("it can be read");
        assert_ne!(length, 0, "{:?}", String::from_utf8_lossy(&seen));
        seen.extend(&bytes[..length]);
    }
    seen
}

fn end(mut machine: Child, monitor: &Path) {
    let mut qmp = Qmp::connect(monitor);
    qmp.done("quit", json!({}));
    assert_eq!(machine.wait().unwrap().code(), Some(0));
}

#[test]
fn serial_ports_speak_telnet_and_plain_tcp_and_connect_themselves() {
    let directory = Directory::new();
    let (telnet, plain) = (free_port(), free_port());
    let other_side = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let there = other_side.local_addr().unwrap().port();
    for (place, telnet_port) in [
        (format!("telnet::{telnet},server,nowait"), Some(telnet)),
        (format!("tcp::{plain},server=on,wait=off"), Some(plain)),
        (format!("tcp:127.0.0.1:{there}"), None),
    ] {
        let machine = machine(&directory, ECHO)
            .args([
                "-display",
                "none",
                "-monitor",
                "none",
                "-qmp",
                "unix:qmp,server=on,wait=off",
                "-serial",
                &place,
            ])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut client = match telnet_port {
            Some(port) => {
                wait_until("nobody listens", || TcpStream::connect(("127.0.0.1", port)).ok())
            }
            None => other_side.accept().unwrap().0,
        };
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let greeting = read_until(&mut client, b"ring3");
        assert_eq!(greeting.starts_with(&[255]), place.starts_with("telnet"), "{place}");
        // A telnet command, and a byte 255 that is none.
        let sent =
            if place.starts_with("telnet") { &b"\xff\xfd\x01ok\xff\xff."[..] } else { b"ok\xff." };
        client.write_all(sent).unwrap();
        let echo = read_until(&mut client, b".");
        let expected: &[u8] = if place.starts_with("telnet") { b"ok\xff\xff." } else { b"ok\xff." };
        assert_eq!(echo, expected, "{place}");
        end(machine, &directory.path("qmp"));
        assert!(!directory.path("qmp").exists());
    }
}

#[test]
fn a_link_with_the_name_of_a_qemu_program_starts_itself_by_that_name() {
    let directory = Directory::new();
    let link = directory.path("qemu-system-i386");
    fs::hard_link(env!("CARGO_BIN_EXE_ring3"), &link).unwrap();
    directory.file("kernel", &kernel(HALT_FOR_EVER));
    let machine = || {
        let mut command = Command::new(&link);
        let words = "-m 16 -kernel kernel -display none -serial null -S";
        command.env_remove("RING3_LOG").current_dir(directory.path(".")).args(words.split(' '));
        command
    };
    // The network behind a card is the same program in another process.
    let words = ["-nic", "user", "-monitor", "stdio"];
    let output = answer(machine().args(words), b"info network\nquit\n");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    // A machine in the background is, too.
    let words = ["-nic", "none", "-daemonize", "-qmp", "unix:qmp,server=on"];
    let output = answer(machine().args(words), b"");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    Qmp::connect(&directory.path("qmp")).done("quit", json!({}));
}

#[test]
fn several_monitors_have_several_sockets() {
    let directory = Directory::new();
    let port = free_port();
    let machine = machine(&directory, HALT_FOR_EVER)
        .args([
            "-display",
            "none",
            "-serial",
            "null",
            "-qmp",
            "unix:a,server,nowait",
            "-qmp",
            "unix:b,server,nowait",
        ])
        .args([
            "-monitor",
            "unix:m,server,nowait",
            "-qmp",
            &format!("tcp:localhost:{port},server=on,wait=off"),
        ])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut clients = [Qmp::connect(&directory.path("a")), Qmp::connect(&directory.path("b"))];
    let mut person = UnixStream::connect(directory.path("m")).unwrap();
    let mut remote = TcpStream::connect(("127.0.0.1", port)).unwrap();
    read_until(&mut remote, b"QMP");
    read_until(&mut person, b"(qemu) ");
    person.write_all(b"stop\n").unwrap();
    for client in &mut clients {
        client.event("STOP");
        assert_eq!(client.done("query-status", json!({}))["status"], "paused");
    }
    let schema = clients[0].done("query-qmp-schema", json!({}));
    assert!(schema.as_array().unwrap().len() > 100);
    assert_eq!(clients[1].done("query-pci", json!({}))[0]["devices"][0]["id"]["vendor"], 0x8086);
    let objects = clients[0].done("qom-list", json!({"path": "/machine"}));
    assert!(objects.as_array().unwrap().iter().any(|object| object["name"] == "peripheral"));
    clients[0].refused(
        "qom-get",
        json!({"path": "/nowhere", "property": "type"}),
        "DeviceNotFound",
        "not found",
    );
    end(machine, &directory.path("b"));
    for socket in ["a", "b", "m"] {
        assert!(!directory.path(socket).exists(), "{socket}");
    }
}

#[test]
fn a_machine_in_the_background_outlives_the_program() {
    let directory = Directory::new();
    let daemon = |extra: &[&str]| {
        let mut command = machine(&directory, HALT_FOR_EVER);
        command
            .args(["-daemonize", "-display", "none", "-serial", "null", "-pidfile", "pid"])
            .args(extra);
        // A pipe that the machine keeps open would never end.
        answer(&mut command, b"")
    };
    let output = daemon(&["-qmp", "unix:qmp,server=on,wait=off"]);
    assert_eq!((output.status.code(), output.stderr), (Some(0), vec![]));
    let pid: u32 = fs::read_to_string(directory.path("pid")).unwrap().trim().parse().unwrap();
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    let mut qmp = Qmp::connect(&directory.path("qmp"));
    assert_eq!(qmp.done("query-status", json!({}))["running"], true);
    // Nobody else can use its files while it runs.
    let output = daemon(&[]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("a running machine uses"), "{errors}");
    qmp.done("quit", json!({}));
    wait_until("the machine does not end", || (!directory.path("pid").exists()).then_some(()));
    // The program that was started reports the errors.
    let output = daemon(&["-hda", "no-such-file"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("no-such-file") && errors.lines().count() == 1, "{errors}");
    assert!(!directory.path("pid").exists());
}
