//! The host's limits, and hosts without some facilities: under each, the program works, or says in one line
//! what prevents it, with status 1. It never ends by a panic or a signal.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{Directory, HALT_FOR_EVER, kernel, pty, ring3, wait_until};
use rustix::termios::{Winsize, tcsetwinsize};

/// Runs `program` with these words in `directory`, after a shell has executed `set_up`.
fn under(set_up: &str, program: &Path, words: &[&str], directory: &Path) -> Output {
    Command::new("sh")
        .args(["-c", &format!("{set_up} \"$0\" \"$@\"")])
        .arg(program)
        .args(words)
        .current_dir(directory)
        .env_remove("RING3_LOG")
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .output()
        .expect("there is a shell")
}

/// Returns a guest that writes to the serial port for a while, and halts for good.
fn writer() -> Vec<u8> {
    let mut code = vec![
        0xb9, 0x00, 0x20, 0x00, 0x00, // MOV ECX, 8192
        0x66, 0xba, 0xf8, 0x03, //       MOV DX, 3F8h
        0xb0, b'x', //                   MOV AL, 'x'
        0xee, //                         OUT DX, AL
        0xe2, 0xfd, //                   LOOP to the OUT
    ];
    code.extend(HALT_FOR_EVER);
    code
}

/// Makes a directory with the files for the commands below.
fn directory() -> Directory {
    let directory = Directory::new();
    fill(&directory.path(""));
    directory
}

fn fill(directory: &Path) {
    std::fs::write(directory.join("kernel"), kernel(&writer())).unwrap();
    std::fs::write(directory.join("disk.img"), vec![0x55; 4 << 20]).unwrap();
}

fn program() -> PathBuf {
    ring3().get_program().into()
}

/// Commands, and the status of each if nothing prevents it.
const COMMANDS: &[(&str, i32)] = &[
    ("run --kernel kernel", 4),
    ("run --kernel kernel -m 8M --engine interpreter", 4),
    ("run --kernel kernel --engine translator", 4),
    (
        "run --kernel kernel --drive file=disk.img,if=virtio,snapshot=on --nic user --serial file:out",
        4,
    ),
    ("run --kernel kernel --qmp unix:qmp --display vnc:unix:vnc --no-reboot --replay kernel", 2),
    ("qemu -nographic -kernel kernel", 4),
    ("img create -f qcow2 new.qcow2 1G", 0),
    ("img info disk.img", 0),
    ("img convert -O qcow2 disk.img converted", 0),
    ("img check converted", 0),
    ("doctor", 0),
    ("netmodel", 0),
    ("switch --status --listen unix:none", 2),
    ("nat", 1),
    ("vblock ctl none quit", 1),
    ("help", 0),
    ("run disk.im", 1),
];

/// Asserts that each command works, or says in one line what prevents it.
fn all_survive(set_up: &str) {
    all_survive_at(&format!("{set_up} exec"), &program(), &directory().path(""));
}

/// Asserts the same for the program at this path, in this directory.
fn all_survive_at(set_up: &str, program: &Path, directory: &Path) {
    for (words, status) in COMMANDS {
        let words: Vec<_> = words.split(' ').collect();
        let output = under(set_up, program, &words, directory);
        let errors = String::from_utf8_lossy(&output.stderr);
        let what = format!("{set_up} ring3 {}: {:?}\n{errors}", words.join(" "), output.status);
        assert!(!errors.contains("panicked") && !errors.contains("allocation"), "{what}");
        assert_eq!(output.status.signal(), None, "{what}");
        if output.status.code() == Some(*status) {
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{what}");
        if words[0] == "doctor" {
            // doctor reports a failed check in its output, like all its results.
            continue;
        }
        let lines: Vec<_> = errors.lines().filter(|line| !line.contains(" WARN ")).collect();
        assert_eq!(lines.len(), 1, "{what}");
        assert!(lines[0].starts_with("ring3: "), "{what}");
    }
}

#[test]
fn few_addresses() {
    // With less room than the program and its libraries take, 50 MiB as tests compile it, the system's own loader
    // fails.
    for kib in [60_000, 70_000, 100_000, 150_000, 200_000, 300_000, 400_000, 500_000, 3_000_000] {
        all_survive(&format!("ulimit -v {kib};"));
    }
}

#[test]
fn little_data() {
    for kib in [10_000, 25_000, 40_000, 66_000, 100_000, 300_000] {
        all_survive(&format!("ulimit -d {kib};"));
    }
}

#[test]
fn few_descriptors() {
    for count in [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 20, 30] {
        // The system's own loader needs a descriptor to load libraries.
        if count > 3 {
            all_survive(&format!("ulimit -n {count};"));
        }
    }
}

#[test]
fn a_small_stack() {
    // Below some 50 KiB the system starts no program.
    for kib in ["64", "100", "256", "unlimited"] {
        all_survive(&format!("ulimit -s {kib};"));
    }
}

#[test]
fn no_locked_memory_and_no_core_files() {
    all_survive("ulimit -l 0; ulimit -c 0;");
}

#[test]
fn small_files() {
    for blocks in [0, 1, 8, 100, 10_000] {
        all_survive(&format!("ulimit -f {blocks};"));
    }
}

/// The limit does not hold for root, so the program runs as a user that has no other process, if root may
/// choose one.
#[test]
fn few_processes() {
    let as_another = "setpriv --reuid 61234 --regid 61234 --clear-groups";
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    std::fs::copy(program(), at("ring3")).unwrap();
    fill(place.path());
    for name in ["", "ring3", "kernel", "disk.img"] {
        std::fs::set_permissions(at(name), Permissions::from_mode(0o777)).unwrap();
    }
    let version = under(&format!("exec {as_another}"), &at("ring3"), &["--version"], place.path());
    if !version.status.success() {
        ring3_skipped::host(format_args!("no other user may execute the program: {version:?}"));
        return;
    }
    for count in [1, 2, 3, 4, 5, 8] {
        all_survive_at(
            &format!("ulimit -u {count}; exec {as_another}"),
            &at("ring3"),
            place.path(),
        );
    }
}

#[test]
fn closed_and_full_standard_streams() {
    for set_up in
        ["exec <&-;", "exec >&-;", "exec 2>&-;", "exec <&- >&- 2>&-;", "exec 2>/dev/full;"]
    {
        let directory = directory();
        for (words, status) in COMMANDS {
            let words: Vec<_> = words.split(' ').collect();
            let output = under(&format!("{set_up} exec"), &program(), &words, &directory.path(""));
            let ended = output.status.code();
            assert!(ended == Some(*status) || ended == Some(1), "{set_up} {words:?}: {output:?}");
        }
    }
    all_survive("exec >/dev/full;");
}

#[test]
fn an_environment_without_anything() {
    all_survive("unset TERM HOME PATH XDG_RUNTIME_DIR LANG LC_ALL USER;");
    all_survive(
        "export TERM=nonsense TMPDIR=/nonexistent HOME=/nonexistent XDG_RUNTIME_DIR=/nonexistent;",
    );
}

/// A reader that closes standard output early, as `head` does, does not want the rest.
#[test]
fn readers_that_close_early() {
    let directory = directory();
    for words in ["--help", "run --help", "doctor", "img info disk.img", "img --help", "netmodel"] {
        let mut child = ring3()
            .args(words.split(' '))
            .current_dir(directory.path(""))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code <= 1), "{words}: {output:?}");
        assert!(!errors.contains("panicked"), "{words}: {errors}");
        assert!(errors.lines().count() <= 1, "{words}: {errors}");
    }
}

/// Names that are not text are valid names; options that need text say so.
#[test]
fn names_that_are_not_utf_8() {
    let directory = Directory::new();
    let odd = OsStr::from_bytes(b"odd\xff\n");
    let at = |name: &OsStr| directory.path("").join(name);
    std::fs::write(at(odd), kernel(HALT_FOR_EVER)).unwrap();
    let run = |words: &[&OsStr]| {
        let output = ring3()
            .args(words)
            .current_dir(directory.path(""))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let run_with = |option: &str| run(&["run".as_ref(), option.as_ref(), odd]);
    let (status, errors) = run_with("--kernel");
    assert_eq!(status, Some(4), "{errors}");
    let (status, errors) = run(&["run".as_ref(), odd]);
    assert_eq!(status, Some(4), "{errors}");
    for option in ["--hda", "--cdrom", "--fda", "--bios"] {
        let (status, errors) = run_with(option);
        assert!(matches!(status, Some(1 | 4)), "{option}: {errors}");
    }
    for option in ["--append", "--drive", "--nic", "--name", "--serial", "-m"] {
        let (status, errors) = run_with(option);
        assert_eq!(status, Some(2), "{option}: {errors}");
        assert!(errors.contains("UTF-8"), "{option}: {errors}");
    }
    let (status, errors) = run(&["img".as_ref(), "info".as_ref(), odd]);
    assert_eq!(status, Some(0), "{errors}");
    for words in [&["qemu".as_ref(), odd][..], &["qemu".as_ref(), "-kernel".as_ref(), odd], &[odd]]
    {
        let (status, errors) = run(words);
        assert!(matches!(status, Some(1 | 2 | 4)), "{errors}");
        assert!(!errors.contains("panicked"), "{errors}");
    }
}

/// Terminals of any size, also of size zero, as some programs make them.
#[test]
fn tiny_terminals() {
    for (rows, columns) in [(0, 0), (1, 1), (1, 200), (200, 1), (2, 3), (500, 500)] {
        for term in [None, Some("dumb"), Some("xterm")] {
            let directory = directory();
            let (mut ours, theirs) = pty::open();
            let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            tcsetwinsize(&theirs, size).unwrap();
            let at_terminal = || Stdio::from(theirs.try_clone().unwrap());
            let mut command = ring3();
            command.env_remove("TERM").envs(term.map(|term| ("TERM", term)));
            let mut child = command
                .args(["run", "--display", "terminal", "--kernel", "kernel"])
                .current_dir(directory.path(""))
                .stdin(at_terminal())
                .stdout(at_terminal())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            // The program shows text, or asks the terminal a question.
            let mut shown = [0; 64];
            let _ = ours.read(&mut shown).unwrap();
            ours.write_all(b"h\x01h \x01x").unwrap();
            let mut reader = ours.try_clone().unwrap();
            std::thread::spawn(
                move || while reader.read(&mut [0; 4096]).is_ok_and(|len| len > 0) {},
            );
            let status = wait_until("the program does not end", || child.try_wait().unwrap());
            let mut errors = String::new();
            child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            assert_eq!(status.code(), Some(0), "{rows}x{columns} {term:?}: {errors}");
        }
    }
}

/// A directory without write permission does not prevent commands that write nothing there.
#[test]
fn a_directory_that_cannot_be_written_to() {
    let directory = directory();
    let kernel = directory.path("kernel");
    let mut command = ring3();
    let output = command
        .args(["run", "--kernel"])
        .arg(kernel)
        .current_dir(Path::new("/proc/self"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
}
