//! `--profile`: samples of where the guest is.

use std::fs;
use std::process::Command;

use crate::support::guest::{CONSOLE, Guest, file, linux};
use crate::support::{Directory, kernel, output, ring3};
use crate::tern::tern;

/// Calls a function that calls one that executes LOOP a million times, and switches off. Both keep a frame pointer.
#[rustfmt::skip]
const NESTED: &[u8] = &[
    0xbc, 0x00, 0x00, 0x20, 0x00, //       100000: MOV ESP, 200000h
    0x31, 0xed, //                         100005: XOR EBP, EBP
    0xe8, 0x14, 0x00, 0x00, 0x00, //       100007: CALL 100020
    0x66, 0xba, 0x04, 0x06, //             10000C: MOV DX, 604h
    0x66, 0xb8, 0x00, 0x20, 0x66, 0xef, // 100010: MOV AX, 2000h; OUT DX, AX
    0xeb, 0xfe, //                         100016: JMP to itself
    0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
    0x55, 0x89, 0xe5, //                   100020: PUSH EBP; MOV EBP, ESP
    0xe8, 0x08, 0x00, 0x00, 0x00, //       100023: CALL 100030
    0x5d, 0xc3, //                         100028: POP EBP; RET
    0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
    0x55, 0x89, 0xe5, //                   100030: PUSH EBP; MOV EBP, ESP
    0xb9, 0x40, 0x42, 0x0f, 0x00, //       100033: MOV ECX, 1000000
    0xe2, 0xfe, //                         100038: LOOP to itself
    0x5d, 0xc3, //                         10003A: POP EBP; RET
];

const SYMBOLS: &[u8] = b"00100000 T start\n00100020 t outer\n00100030 t inner\n";

/// Runs the kernel in `directory` with further options, and returns the contents of the profile.
fn profile(directory: &Directory, options: &str, name: &str) -> String {
    let mut command = ring3();
    command.args(["run", "--serial", "none", "--profile", name]).args(options.split(' '));
    output(command.current_dir(directory.path(".")));
    fs::read_to_string(directory.path(name)).unwrap()
}

#[test]
fn functions_have_their_callers() {
    let directory = Directory::new();
    directory.file("kernel", &kernel(NESTED));
    directory.file("System.map", SYMBOLS);
    for engine in ["interpreter", "auto"] {
        let options = format!(
            "--kernel kernel --engine {engine} --deterministic --profile-rate 100000 --symbols System.map"
        );
        let folded = profile(&directory, &options, "out.folded");
        // A million instructions of a nanosecond each, a sample every ten microseconds.
        assert_eq!(folded, "supervisor;start;outer;inner 100\n", "{engine}");
        let picture = profile(&directory, &options, "out.svg");
        assert!(picture.contains("<title>inner: 100 samples, 100.00 %</title>"), "{picture}");
        let unnamed = options.replace(" --symbols System.map", "");
        let folded = profile(&directory, &unnamed, "out.folded");
        assert!(folded.contains("supervisor;0x0010000c;0x00100028;0x00100038 "), "{folded}");
    }
}

/// A recorded run is looked at afterwards, as often as one likes.
#[test]
fn a_recorded_run_has_the_same_profile_each_time() {
    let directory = Directory::new();
    directory.file("kernel", &kernel(NESTED));
    let record = "--kernel kernel --record recording --profile-rate 100000";
    let first = profile(&directory, record, "out.folded");
    assert!(first.starts_with("supervisor;"), "{first}");
    for engine in ["interpreter", "auto"] {
        let replay = format!("--replay recording --engine {engine} --profile-rate 100000");
        assert_eq!(profile(&directory, &replay, "out.folded"), first, "{engine}");
    }
}

#[test]
fn a_profile_that_cannot_be_written_is_refused_before_the_run() {
    let directory = Directory::new();
    directory.file("kernel", &kernel(NESTED));
    for (options, status, expected) in [
        ("--profile out.png", 2, ".folded or .svg"),
        ("--profile out.svg --profile-rate 0", 2, "1..=100000"),
        ("--profile-rate 10", 2, "--profile <FILE>"),
        ("--profile out.svg --verify", 2, "leave it or --profile out"),
        ("--profile nowhere/out.svg", 1, "cannot write the profile to nowhere/out.svg"),
        ("--profile out.svg --symbols missing", 1, "cannot read the symbols of missing"),
    ] {
        let mut command = ring3();
        command.args(["run", "--kernel", "kernel"]).args(options.split(' '));
        let refused = command.current_dir(directory.path(".")).output().unwrap();
        let message = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(status), "{options}: {message}");
        assert!(message.contains(expected), "{options}: {message}");
    }
}

/// Returns the sum of the samples of all stacks that begin with `activity`.
fn samples(folded: &str, activity: &str) -> u64 {
    let of_activity = folded.lines().filter(|line| line.starts_with(activity));
    of_activity.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn tern_has_the_same_profile_on_both_engines() {
    let directory = Directory::new();
    let path = directory.path("out.folded");
    let of = |engine| {
        let options = ["--deterministic", "--engine", engine, "--profile", path.to_str().unwrap()];
        tern("seq 1 3000 | sort | cksum; sleep 1", &options)?;
        Some(fs::read_to_string(&path).unwrap())
    };
    let Some(folded) = of("interpreter") else { return };
    assert_eq!(of("auto").unwrap(), folded);
    assert!(samples(&folded, "user;") >= 5 && samples(&folded, "supervisor;") > 3, "{folded}");
    assert!(samples(&folded, "idle") > 900, "{folded}");
}

/// perf finds the names of translated code, where the host lets it take samples.
#[test]
fn perf_names_translated_code() {
    if !ring3().arg("doctor").output().unwrap().status.success() {
        return ring3_skipped::host("this host does not allow the translator");
    }
    let directory = Directory::new();
    // Long enough for many samples of the host.
    let code = NESTED.iter().position(|byte| *byte == 0xb9).unwrap();
    let mut longer = NESTED.to_vec();
    longer[code + 1..code + 5].copy_from_slice(&300_000_000_u32.to_le_bytes());
    directory.file("kernel", &kernel(&longer));
    directory.file("System.map", SYMBOLS);
    let mut perf = Command::new("perf");
    perf.args(["record", "--event", "cpu-clock:u", "--output", "perf.data", "--"]);
    perf.arg(env!("CARGO_BIN_EXE_ring3"));
    perf.args(["run", "--kernel", "kernel", "--serial", "none", "--perf-map"]);
    perf.args(["--symbols", "System.map"]).current_dir(directory.path("."));
    let Ok(recorded) = perf.output() else {
        return ring3_skipped::package("perf is missing: install linux-perf");
    };
    let message = String::from_utf8_lossy(&recorded.stderr);
    if !recorded.status.success() || !directory.path("perf.data").exists() {
        return ring3_skipped::host(format_args!("perf takes no samples here: {message}"));
    }
    let mut report = Command::new("perf");
    report.args(["report", "--stdio", "--input", "perf.data"]).current_dir(directory.path("."));
    let shown = String::from_utf8(output(&mut report)).unwrap();
    if shown.contains("no samples") {
        return ring3_skipped::host("perf takes no samples here");
    }
    assert!(shown.contains("guest:supervisor:inner+0x8"), "{shown}\n{message}");
}

/// Debian's kernel keeps frame pointers, and tells its symbols to root.
#[test]
fn debian_shows_what_its_kernel_does() {
    let directory = Directory::new();
    let start = |add_options: &dyn Fn(&mut Command)| {
        Guest::start(|command| {
            command.arg("--kernel").arg(linux()).arg("--initrd").arg(file("initramfs.cpio.gz"));
            command.args(["--append", &format!("{CONSOLE} nokaslr")]);
            add_options(command);
        })
    };
    let mut guest = start(&|_| {});
    let symbols = guest.command("grep -i ' t ' /proc/kallsyms");
    assert_eq!(guest.power_off(), Some(0));
    assert!(symbols.lines().count() > 10_000, "{}", symbols.lines().count());
    let map = directory.file("System.map", symbols.as_bytes());
    let path = directory.path("out.folded");
    let mut guest = start(&|command| {
        command.arg("--profile").arg(&path).arg("--symbols").arg(&map);
    });
    guest.command("dd if=/dev/zero of=/dev/null bs=64k count=20000; sleep 1");
    assert_eq!(guest.power_off(), Some(0));
    let folded = fs::read_to_string(&path).unwrap();
    assert!(samples(&folded, "user;") > 0 && samples(&folded, "idle") > 500, "{folded}");
    let zeros = folded.lines().find(|line| line.contains(";vfs_read;") && line.contains("zero"));
    assert!(zeros.is_some(), "{folded}");
}
