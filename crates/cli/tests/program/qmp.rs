//! Tools drive the machine: QEMU's own client library over the socket, and a pipe.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::support::qmp::Qmp;
use crate::support::{Directory, HALT_FOR_EVER, PATIENCE, kernel, listens, ring3, wait_until};
use serde_json::json;

/// QEMU's client library, from the Python Package Index.
const CLIENT: &str = "qemu.qmp==0.0.6";

/// Returns a Python with [`CLIENT`], in the target directory, where it is installed the first time. An error
/// says why it is not available.
fn python_with_client() -> Result<PathBuf, String> {
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("qmp-venv");
    let python = environment.join("bin/python");
    let run = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{command:?}: {error}"))?;
        let reason = || String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(reason()) }
    };
    if run(Command::new(&python).args(["-c", "import qemu.qmp"])).is_err() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", CLIENT]))?;
    }
    Ok(python)
}

#[test]
fn qemus_client_library_drives_the_machine() {
    let python = match python_with_client() {
        Ok(python) => python,
        Err(reason) => {
            ring3_skipped::package(format_args!("{CLIENT} cannot be installed: {reason}"));
            return;
        }
    };
    let directory = Directory::new();
    let kernel = directory.file("kernel", &kernel(HALT_FOR_EVER));
    let disk = directory.file("disk", &[0; 512]);
    let (socket, picture) = (directory.path("qmp"), directory.path("picture"));
    let mut machine = ring3()
        .arg("run")
        .arg("--kernel")
        .arg(kernel)
        .arg("--hda")
        .arg(&disk)
        .arg("--qmp")
        .arg(format!("unix:{}", socket.display()))
        .stdin(Stdio::null())
        .spawn()
        .expect("the program starts");
    wait_until("there is no socket", || {
        assert!(machine.try_wait().unwrap().is_none(), "the machine has ended");
        listens(&socket).then_some(())
    });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program/qmp.py");
    let mut command = Command::new(python);
    command.arg(script).args([&socket, &disk, &picture]).arg(PATIENCE.as_secs().to_string());
    let driven = command.status();
    if !driven.as_ref().is_ok_and(std::process::ExitStatus::success) {
        machine.kill().expect("the machine is there");
    }
    let ended = machine.wait().expect("the machine ends");
    assert!(driven.expect("Python starts").success());
    assert_eq!(ended.code(), Some(0));
    assert!(!socket.exists());
}

/// Starts `kernel` in a machine that is driven by its standard input and output. Returns the machine, its
/// input, and the lines of its output.
fn driven_by_stdio(
    kernel: &Path,
    arguments: impl FnOnce(&mut Command) -> &mut Command,
) -> (Child, ChildStdin, Lines<BufReader<ChildStdout>>) {
    let mut command = ring3();
    let mut machine = arguments(command.args(["run", "--qmp", "stdio", "--serial"]))
        .arg("--kernel")
        .arg(kernel)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let input = machine.stdin.take().unwrap();
    let lines = BufReader::new(machine.stdout.take().unwrap()).lines();
    (machine, input, lines)
}

#[test]
fn a_tool_can_use_standard_input_and_output() {
    let directory = Directory::new();
    let kernel = directory.file("kernel", &kernel(HALT_FOR_EVER));
    let serial = format!("file:{}", directory.path("serial").display());
    let (mut machine, mut input, output) = driven_by_stdio(&kernel, |command| command.arg(&serial));
    input.write_all(b"{\"execute\": \"qmp_capabilities\"}{\"execute\": \"quit\"}\n").unwrap();
    let lines: Vec<String> = output.map(Result::unwrap).collect();
    assert_eq!(machine.wait().unwrap().code(), Some(0));
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[0].starts_with("{\"QMP\""), "{lines:?}");
    assert_eq!(lines[1..3], ["{\"return\":{}}", "{\"return\":{}}"]);
    assert!(lines[3].contains("\"SHUTDOWN\"") && lines[3].contains("host-qmp-quit"), "{lines:?}");
}

#[test]
fn discs_and_diskettes_are_changed() {
    let directory = Directory::new();
    let kernel = directory.file("kernel", &kernel(HALT_FOR_EVER));
    let [one, two] = ["one", "two"].map(|name| directory.file(name, &[0; 2048]));
    let diskette = directory.file("diskette", &vec![0; 1_474_560]);
    let (mut machine, mut input, output) = driven_by_stdio(&kernel, |command| {
        command.args(["null", "--drive", "if=floppy", "--cdrom"]).arg(&one)
    });
    let change = |device, file: &Path| {
        let file = file.display();
        format!(
            "{{\"execute\": \"blockdev-change-medium\", \
             \"arguments\": {{\"device\": \"{device}\", \"filename\": \"{file}\"}}}}"
        )
    };
    let commands = [
        "{\"execute\": \"qmp_capabilities\"}".to_owned(),
        "{\"execute\": \"eject\", \"arguments\": {\"device\": \"ide-2\"}}".to_owned(),
        "{\"execute\": \"query-block\"}".to_owned(),
        change("ide-2", &two),
        change("floppy-0", &diskette),
        "{\"execute\": \"query-block\"}".to_owned(),
        "{\"execute\": \"quit\"}".to_owned(),
    ];
    input.write_all(commands.concat().as_bytes()).unwrap();
    let lines: Vec<String> = output.map(Result::unwrap).collect();
    assert_eq!(machine.wait().unwrap().code(), Some(0));
    let answers: Vec<_> = lines.iter().filter(|line| line.contains("\"return\"")).collect();
    assert_eq!(answers.len(), commands.len(), "{lines:?}");
    assert!(!answers[2].contains("inserted"), "{lines:?}");
    for file in [&two, &diskette] {
        assert!(answers[5].contains(file.to_str().unwrap()), "{lines:?}");
    }
}

#[test]
fn a_machine_that_is_off_can_be_kept() {
    // MOV DX, 604h; MOV AX, 2000h; OUT DX, AX; JMP to itself
    const POWER_OFF: &[u8] =
        &[0x66, 0xba, 0x04, 0x06, 0x66, 0xb8, 0x00, 0x20, 0x66, 0xef, 0xeb, 0xfe];
    let directory = Directory::new();
    let kernel = directory.file("kernel", &kernel(POWER_OFF));
    let (mut machine, mut input, mut lines) =
        driven_by_stdio(&kernel, |command| command.args(["null", "--paused", "--no-shutdown"]));
    for (command, parts) in [
        ("", &["\"QMP\""][..]),
        ("qmp_capabilities", &["return"]),
        ("cont", &["return", "RESUME", "guest-shutdown", "STOP"]),
        ("query-status", &["\"shutdown\""]),
        ("cont", &["system_reset"]),
        ("system_reset", &["return", "RESET"]),
        ("query-status", &["\"paused\""]),
        ("cont", &["return", "RESUME", "guest-shutdown", "STOP"]),
        ("quit", &["return", "host-qmp-quit"]),
    ] {
        if !command.is_empty() {
            write!(input, "{{\"execute\": \"{command}\"}}").unwrap();
        }
        for part in parts {
            let line = lines.next().unwrap().unwrap();
            assert!(line.contains(part), "{command}: {line}");
        }
    }
    assert_eq!(machine.wait().unwrap().code(), Some(0));
}

/// Sends "N" by COM1 at each non-maskable interrupt, with interrupts off: MOV [200010h], 00100040h; MOV
/// [200014h], 00108E00h (the gate); MOV WORD [200100h], 17h; MOV [200102h], 200000h; LIDT [200100h]; MOV ESP,
/// 210000h; MOV DX, 3F8h; MOV AL, 'r'; OUT DX, AL; HLT; JMP to the HLT; at 40h MOV AL, 'N'; OUT DX, AL; IRET.
const TELLS_NMIS: &[u8] = &[
    0xc7, 0x05, 0x10, 0x00, 0x20, 0x00, 0x40, 0x00, 0x10, 0x00, 0xc7, 0x05, 0x14, 0x00, 0x20, 0x00,
    0x00, 0x8e, 0x10, 0x00, 0x66, 0xc7, 0x05, 0x00, 0x01, 0x20, 0x00, 0x17, 0x00, 0xc7, 0x05, 0x02,
    0x01, 0x20, 0x00, 0x00, 0x00, 0x20, 0x00, 0x0f, 0x01, 0x1d, 0x00, 0x01, 0x20, 0x00, 0xbc, 0x00,
    0x00, 0x21, 0x00, 0x66, 0xba, 0xf8, 0x03, 0xb0, b'r', 0xee, 0xf4, 0xeb, 0xfd, 0x90, 0x90, 0x90,
    0xb0, b'N', 0xee, 0xcf,
];

#[test]
fn the_guest_is_interrupted_from_outside_and_a_replay_is_too() {
    let directory = Directory::new();
    let kernel = directory.file("kernel", &kernel(TELLS_NMIS));
    // With a local APIC, which has a pin for this interrupt, and without one; and with the interpreter.
    for options in [&["--cpu", "pentium4"][..], &["--cpu", "486"], &["--engine", "interpreter"]] {
        let (serial, recording) = (directory.path("serial"), directory.path("recording"));
        let mut machine = ring3()
            .args(["run", "-m4M", "--serial", &format!("file:{}", serial.display())])
            .args(["--qmp", &format!("unix:{}", directory.path("qmp").display()), "--record"])
            .arg(&recording)
            .args(options)
            .arg("--kernel")
            .arg(&kernel)
            .stdin(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut qmp = Qmp::connect(&directory.path("qmp"));
        let shown = |wanted: &str| {
            wait_until(wanted, || (std::fs::read_to_string(&serial).ok()? == wanted).then_some(()));
        };
        shown("r");
        qmp.done("inject-nmi", json!({}));
        shown("rN");
        // An NMI that arrives while the machine is paused is taken when it continues.
        qmp.done("stop", json!({}));
        qmp.done("human-monitor-command", json!({"command-line": "nmi"}));
        qmp.done("cont", json!({}));
        shown("rNN");
        qmp.done("quit", json!({}));
        assert_eq!(machine.wait().unwrap().code(), Some(0), "{options:?}");
        let mut again = ring3();
        let again = again.args(["run", "--serial", "stdio", "--replay"]).arg(&recording);
        let again = again.args(options.iter().filter(|_| options[0] == "--engine"));
        assert_eq!(crate::support::output(again.stdin(Stdio::null())), b"rNN", "{options:?}");
    }
}
