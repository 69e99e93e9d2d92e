//! Runs that are repeated: deterministic ones, recordings, and event logs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::guest::{CONSOLE, add_linux, file, file_if_there};
use crate::support::{Directory, HALT_FOR_EVER, kernel, ring3};

/// The user's input to Debian: it computes, waits and reads its clock and its counts of interrupts.
const SCRIPT: &[u8] = b"dmesg -n 1\n\
    date\n\
    seq 3000 | sort -r | awk '{ s += $1 / 7 } END { print s }'\n\
    sleep 2; date; cat /proc/uptime /proc/interrupts\n\
    poweroff -f\n";

/// Runs `command` with standard input from this file.
fn run(command: &mut Command, stdin: &Path) -> Output {
    let stdin = fs::File::open(stdin).expect("it was written");
    let output = command.stdin(stdin).stderr(Stdio::piped()).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Debian starts on each engine, and the recordings repeat both runs.
#[test]
fn debian_runs_alike_on_each_engine_and_in_each_repetition() {
    let directory = Directory::new();
    let script = directory.file("script", SCRIPT);
    let (log, recording) = (directory.path("log"), directory.path("recording"));
    let debian = |engine: &str| {
        let mut command = ring3();
        command.args(["run", "--deterministic", "--engine", engine]);
        add_linux(&mut command, &["initramfs.cpio.gz"]);
        command.args(["--checkpoint", "500000000", "--event-log"]).arg(&log);
        command
    };
    let first = run(debian("auto").arg("--record").arg(&recording), &script);
    let first_log = fs::read_to_string(&log).expect("there is a log");
    let shown = String::from_utf8_lossy(&first.stdout);
    assert!(shown.contains("Sat Jan  1 00:00:"), "{shown}");
    for part in ["input com1: ", " interrupt 0x", " checkpoint memory ", "end: the guest has"] {
        assert!(first_log.contains(part), "no {part:?}");
    }

    let second = run(&mut debian("interpreter"), &script);
    assert_eq!(shown, String::from_utf8_lossy(&second.stdout));
    let same = |other: &str| {
        let differs = first_log.lines().zip(other.lines()).find(|(one, other)| one != other);
        assert_eq!(differs, None);
        assert_eq!(first_log.len(), other.len());
    };
    same(&fs::read_to_string(&log).expect("there is a log"));

    let mut replay = ring3();
    replay.args(["run", "--checkpoint", "500000000", "--event-log"]).arg(&log);
    let replayed = run(replay.arg("--replay").arg(&recording), &script);
    assert_eq!(shown, String::from_utf8_lossy(&replayed.stdout));
    same(&fs::read_to_string(&log).expect("there is a log"));
}

/// Asserts that both engines execute the recorded run at `recording`, which sends `sent`, in the same way.
#[track_caller]
fn assert_verifies(recording: &Path, sent: &[u8]) {
    let mut command = ring3();
    let output = command.args(["run", "--verify", "--replay"]).arg(recording).output();
    let output = output.expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("the translator cannot run on this host") {
        ring3_skipped::host("this host does not allow the translator");
        return;
    }
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), sent), "{said}");
}

/// Debian's 64-bit kernel and programs on a processor with AVX2, which both engines execute in lock-step.
#[test]
#[ignore = "executes all of a boot in the interpreter, too; make test-long runs it"]
fn both_engines_execute_debian_in_64_bit_mode_alike() {
    let Some(kernel) = file_if_there("linux-amd64/vmlinuz") else { return };
    let directory = Directory::new();
    let script = directory.file(
        "script",
        b"dmesg -n 1\n\
        seq 3000 | sort -r | awk '{ s += $1 / 7 } END { print s }'\n\
        gzip -c /bin/busybox | gunzip | cmp - /bin/busybox && echo the same\n\
        find / -xdev -type f | head -400 | xargs md5sum | sha256sum\n\
        for i in 3 2 1; do (sleep 0.$i; echo $((i * 7))) & done; wait; cat /proc/interrupts\n\
        poweroff -f\n",
    );
    let mut command = ring3();
    command.args(["run", "--verify", "--cpu", "x86-64-v3", "--append", CONSOLE, "--kernel"]);
    command.arg(kernel).arg("--initrd").arg(file("initramfs-amd64.cpio.gz"));
    let output = command.stdin(fs::File::open(script).unwrap()).output().unwrap();
    let [shown, said] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    if said.contains("the translator cannot run on this host") {
        ring3_skipped::host("this host does not allow the translator");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{said}");
    for part in ["643071", "the same", "21", "reboot: Power down"] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
}

/// Code that waits for bytes on COM1, and sends each of them back until it is a q; then it switches the
/// machine off.
#[rustfmt::skip]
const ECHO: &[u8] = &[
    0x66, 0xba, 0xfd, 0x03, 0xec, // MOV DX, 3FDh; IN AL, DX
    0xa8, 0x01, 0x74, 0xf7, //       TEST AL, 1; JZ to the MOV
    0x66, 0xba, 0xf8, 0x03, 0xec, // MOV DX, 3F8h; IN AL, DX
    0xee, //                         OUT DX, AL
    0x3c, b'q', 0x75, 0xed, //       CMP AL, 'q'; JNE to the first MOV
    0x66, 0xba, 0x04, 0x06, //       MOV DX, 604h
    0x66, 0xb8, 0x00, 0x20, //       MOV AX, 2000h
    0x66, 0xef, 0xeb, 0xfe, //       OUT DX, AX; JMP to itself
];

#[test]
fn a_normal_run_is_repeated_from_its_recording() {
    let directory = Directory::new();
    let script = directory.file("script", b"what comes in, q");
    let (image, recording) = (directory.file("kernel", &kernel(ECHO)), directory.path("recording"));
    let mut record = ring3();
    record.args(["run", "--kernel"]).arg(image).arg("--record").arg(&recording);
    let recorded = run(&mut record, &script);
    assert_eq!(recorded.stdout, b"what comes in, q");
    let replayed = run(ring3().args(["run", "--replay"]).arg(&recording), Path::new("/dev/null"));
    assert_eq!(replayed.stdout, recorded.stdout);
    assert_verifies(&recording, &recorded.stdout);

    let whole = fs::read(&recording).expect("there is a recording");
    let cut = directory.file("cut", &whole[..whole.len() - 1]);
    let output = ring3().args(["run", "--replay"]).arg(&cut).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("the recording is incomplete and ends here"), "{said}");
}

#[test]
fn runs_that_cannot_be_repeated_are_refused_with_a_reason() {
    let directory = Directory::new();
    let no_recording = directory.file("kernel", &kernel(HALT_FOR_EVER));
    let output =
        ring3().args(["run", "--replay"]).arg(&no_recording).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("this is not a recording of ring3"), "{said}");
    for wrong in [
        ["--replay", "r", "--kernel", "k"],
        ["--replay", "r", "--memory", "1G"],
        ["--verify", "--engine", "interpreter", "--deterministic"],
    ] {
        let output = ring3().arg("run").args(wrong).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

/// Two runs of the same engine, one of them in lock-step.
#[test]
fn a_pipe_that_is_closed_is_a_script() {
    let directory = Directory::new();
    let image = directory.file("kernel", &kernel(ECHO));
    let mut logs = Vec::new();
    let recording = directory.path("recording");
    for options in [&["--deterministic"][..], &["--verify"]] {
        let log = directory.path("log");
        let mut command = ring3();
        command.args(["run", "--kernel"]).arg(&image).args(options);
        command.arg("--record").arg(&recording);
        command.args(["--checkpoint", "5", "--event-log"]).arg(&log);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut stdin = child.stdin.take().expect("it was asked for");
        std::io::Write::write_all(&mut stdin, b"a scriptq").expect("it reads");
        drop(stdin);
        let output = child.wait_with_output().expect("it is our child");
        let said = String::from_utf8_lossy(&output.stderr);
        if options == ["--verify"] && said.contains("the translator cannot run on this host") {
            ring3_skipped::host("this host does not allow the translator");
            return;
        }
        assert_eq!(
            (output.status.code(), &output.stdout[..]),
            (Some(0), &b"a scriptq"[..]),
            "{said}"
        );
        logs.push(fs::read_to_string(&log).expect("there is a log"));
        assert_verifies(&recording, b"a scriptq");
    }
    assert!(logs[0].lines().count() >= 10);
    assert_eq!(logs[0], logs[1]);
}

/// Two logs are compared: of the same input, and of others.
#[test]
fn logs_are_compared() {
    let directory = Directory::new();
    let image = directory.file("kernel", &kernel(ECHO));
    let log = |name: &str, sent: &[u8]| {
        let (script, log) = (directory.file("script", sent), directory.path(name));
        let mut command = ring3();
        command.args(["run", "--deterministic", "--kernel"]).arg(&image);
        run(command.args(["--checkpoint", "5", "--event-log"]).arg(&log), &script);
        log
    };
    let logs = [log("first", b"abcq"), log("same", b"abcq"), log("other", b"abdq")];
    let compare = |second: &Path| {
        let compared = ring3().arg("diff-log").arg(&logs[0]).arg(second).output().unwrap();
        let said = [compared.stdout, compared.stderr].concat();
        (compared.status.code(), String::from_utf8(said).unwrap())
    };
    let (status, said) = compare(&logs[1]);
    assert!(status == Some(0) && said.starts_with("the logs are equal: "), "{said}");
    let (status, said) = compare(&logs[2]);
    assert!(status == Some(5) && said.starts_with("the logs differ from line "), "{said}");
    let [first, other] = ["- ", "+ "].map(|sign| {
        said.lines().filter(|line| line.starts_with(sign)).collect::<Vec<_>>().concat()
    });
    assert!(first.contains("\"abcq\"") && other.contains("\"abdq\""), "{said}");
    let (status, said) = compare(&directory.path("none"));
    assert!(status == Some(1) && said.starts_with("ring3: cannot read "), "{said}");
}
