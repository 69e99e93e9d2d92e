//! `--guest-tools`: functions of the machine that programs in the guest call by CPUID; and `--histogram`, which
//! counts instructions from outside.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::guest::{Guest, add_linux};
use crate::support::{Directory, kernel, output, ring3};
use crate::tern::tern;

/// Reads the host's clocks, sends ECX, which has the seconds, to the debug console, and switches off. Without an
/// answer it sends nothing.
#[rustfmt::skip]
const SECONDS: &[u8] = &[
    0xb8, b'Q', b'E', b'M', b'U', //             MOV EAX, "QEMU"
    0xba, b't', b'i', b'm', b'e', //             MOV EDX, "time"
    0x31, 0xc9, 0x31, 0xdb, //                   XOR ECX, ECX; XOR EBX, EBX
    0xf9, 0x0f, 0xa2, //                         STC; CPUID
    0x72, 0x12, //                               JC off
    0xbf, 0x04, 0x00, 0x00, 0x00, //             MOV EDI, 4
    0x66, 0xba, 0x02, 0x04, //                   MOV DX, 402h
    0x88, 0xc8, 0xee, //                         next: MOV AL, CL; OUT DX, AL
    0xc1, 0xe9, 0x08, //                         SHR ECX, 8
    0x4f, //                                     DEC EDI
    0x75, 0xf7, //                               JNZ next
    0x66, 0xba, 0x04, 0x06, //                   off: MOV DX, 604h
    0x66, 0xb8, 0x00, 0x20, 0x66, 0xef, //       MOV AX, 2000h; OUT DX, AX
    0xeb, 0xfe, //                               JMP to itself
];

fn run(directory: &Directory, options: &str) -> Vec<u8> {
    let mut command = ring3();
    command.arg("run").args(["--serial", "none", "--debugcon", "stdio"]);
    command.args(options.split_whitespace()).current_dir(directory.path("."));
    output(&mut command)
}

#[test]
fn host_time_is_read_if_it_is_allowed_and_repeats_in_a_replay() {
    let directory = Directory::new();
    directory.file("kernel", &kernel(SECONDS));
    let now = || {
        let date = output(Command::new("date").arg("+%s"));
        String::from_utf8(date).unwrap().trim().parse::<u64>().unwrap()
    };
    for engine in ["interpreter", "auto"] {
        let before = now();
        let options =
            format!("--kernel kernel --engine {engine} --guest-tools host-time --record recording");
        let sent = run(&directory, &options);
        let seconds = u32::from_le_bytes(sent.as_slice().try_into().expect("four bytes"));
        assert!((before..=now()).contains(&seconds.into()), "{seconds}");
        assert_eq!(run(&directory, &format!("--replay recording --engine {engine}")), sent);
        assert_eq!(run(&directory, &format!("--kernel kernel --engine {engine}")), b"");
    }
}

#[test]
fn a_tool_that_does_not_exist_is_refused() {
    let directory = Directory::new();
    let path = directory.file("kernel", &kernel(SECONDS));
    let mut command = ring3();
    command.args(["run", "--guest-tools", "host-time,telepathy", "--kernel"]).arg(path);
    let refused = command.output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(message.contains("telepathy") && message.contains("host-time"), "{message}");
}

/// Executes LOOP 100,000 times, and switches off.
#[rustfmt::skip]
const LOOP: &[u8] = &[
    0xb9, 0xa0, 0x86, 0x01, 0x00, //       100000: MOV ECX, 100000
    0xe2, 0xfe, //                         100005: LOOP to itself
    0x66, 0xba, 0x04, 0x06, //             100007: MOV DX, 604h
    0x66, 0xb8, 0x00, 0x20, 0x66, 0xef, // 10000B: MOV AX, 2000h; OUT DX, AX
    0xeb, 0xfe, //                         100011: JMP to itself
];

#[test]
fn a_histogram_is_written_as_a_table_for_programs_and_as_a_picture() {
    let directory = Directory::new();
    directory.file("kernel", &kernel(LOOP));
    directory.file("System.map", b"00100000 T start\n");
    let mut of_engines = Vec::new();
    for engine in ["interpreter", "auto"] {
        for extension in ["csv", "json", "svg"] {
            let options = format!(
                "--kernel kernel --engine {engine} --deterministic --histogram out.{extension} \
                    --symbols System.map"
            );
            run(&directory, &options);
        }
        let read = |name: &str| fs::read_to_string(directory.path(name)).unwrap();
        let report: Value = serde_json::from_str(&read("out.json")).unwrap();
        let executed = report["instructions"].as_u64().unwrap();
        assert!((100_004..100_010).contains(&executed), "{report}");
        assert_eq!(report["user"], 0);
        let first = &report["forms"][0];
        assert!(first["name"].as_str().unwrap().starts_with("LOOP rel8"), "{report}");
        assert_eq!(
            (&first["supervisor"], &first["group"]),
            (&100_000.into(), &"control transfer".into())
        );
        let hottest = &report["blocks"][0];
        assert_eq!(hottest["symbol"], "start+0x5", "{report}");
        let table = read("out.csv");
        let total = format!("all,\"instructions\",,{executed},0,{executed}");
        assert_eq!(table.lines().nth(1), Some(total.as_str()));
        assert!(table.contains("block,\"0x00100005 start+0x5\""), "{table}");
        let picture = read("out.svg");
        assert!(picture.starts_with("<svg") && picture.contains("LOOP rel8"), "{picture}");
        of_engines.push((report["groups"].clone(), report["forms"].clone()));
    }
    assert_eq!(of_engines[0], of_engines[1]);
}

#[test]
fn a_histogram_that_cannot_be_written_is_refused_before_the_run() {
    let directory = Directory::new();
    directory.file("kernel", &kernel(LOOP));
    directory.file("stripped", b"nothing");
    for (options, status, expected) in [
        ("--histogram out.png", 2, ".csv, .json or .svg"),
        ("--symbols stripped", 2, "--histogram"),
        ("--histogram nowhere/out.csv", 1, "cannot write the histogram to nowhere/out.csv"),
        ("--histogram out.csv --symbols missing", 1, "cannot read the symbols of missing"),
        ("--histogram out.csv --symbols stripped", 1, "no symbols in stripped"),
    ] {
        let mut command = ring3();
        command.args(["run", "--kernel", "kernel"]).args(options.split(' '));
        let refused = command.current_dir(directory.path(".")).output().unwrap();
        let message = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(status), "{options}: {message}");
        assert!(message.contains(expected), "{options}: {message}");
        assert_eq!(refused.stdout, b"", "{options}");
    }
}

/// Returns the counts of the kernel and of programs in the last line of `hist`.
fn totals(shown: &str) -> (u64, u64) {
    let line = shown.lines().rev().find(|line| line.trim_end().ends_with(" instructions"));
    let line = line.unwrap_or_else(|| panic!("no total in {shown}"));
    let mut words = line.split_ascii_whitespace().map(|word| word.parse().unwrap_or(0));
    (words.next().unwrap(), words.next().unwrap())
}

#[test]
fn tern_counts_the_instructions_of_a_command() {
    let of = |engine| {
        let options = ["--guest-tools", "histogram", "--deterministic", "--engine", engine];
        tern("hist seq 1 300", &options)
    };
    let Some(shown) = of("interpreter") else { return };
    assert!(shown.contains("\n300\r\n") && shown.contains(" MOV r32, r/m32"), "{shown}");
    let (kernel, programs) = totals(&shown);
    assert!(kernel > 1000 && programs > 1000, "{shown}");
    assert_eq!(of("auto").unwrap(), shown);
}

/// `hist` is also a program for Linux (`guest/commands/hist.c`).
#[test]
fn linux_counts_the_instructions_of_a_command() {
    const BUILD: &str = "mkdir -p root/bin && gcc -m32 -O2 -static -o root/bin/hist \"$0\" &&
        cd root && find . | cpio --quiet --create --format=newc > ../hist.cpio";
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest/commands/hist.c");
    let directory = Directory::new();
    output(Command::new("sh").args(["-c", BUILD]).arg(source).current_dir(directory.path(".")));
    let mut guest = Guest::start(|command| {
        command.args(["--guest-tools", "histogram"]);
        add_linux(command, &["initramfs.cpio.gz"]);
        command.arg("--initrd").arg(directory.path("hist.cpio"));
    });
    let shown = guest.command("hist seq 300 2>&1");
    assert!(shown.contains("300") && shown.contains(" MOV r32, r/m32"), "{shown}");
    let (kernel, programs) = totals(&shown);
    assert!(kernel > 1000 && programs > 1000, "{shown}");
    let missing = guest.command("hist nothing; echo $?");
    assert!(missing.contains("127"), "{missing}");
}
