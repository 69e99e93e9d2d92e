//! `ring3 img` ended by signals: the state of images that it was creating or changing.
//!
//! RING3_KILLS is the number of commands that are killed at random moments.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::images::Place;

/// Makes a source of whole MiB that takes a while to copy: bytes that cannot be compressed. Each MiB begins at another
/// place of the same random bytes.
fn source(path: &Path, len: usize) {
    const MIB: usize = 1 << 20;
    let mut state = 1_u64;
    let random: Vec<u8> = (0..MIB / 4)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .collect();
    let parts: Vec<_> = (0..len / MIB).map(|part| &random[part * 999..][..MIB]).collect();
    std::fs::write(path, parts.concat()).unwrap();
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn a_signal_leaves_no_hidden_files() {
    use std::os::unix::process::ExitStatusExt;
    for (name, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1)] {
        for line in
            ["convert -c -f raw -O qcow2 source new", "convert -c -f raw -O qcow2 source old"]
        {
            let place = Place::new();
            source(&place.path("source"), 64 << 20);
            std::fs::write(place.path("old"), "old").unwrap();
            let mut child = place.command(line).spawn().unwrap();
            assert!(place.comes(|place| !place.hidden().is_empty()), "nothing was begun");
            signal(&child, name);
            assert_eq!(child.wait().unwrap().signal(), Some(number), "{line}");
            assert_eq!(place.files(), ["old", "source"], "{line}");
            assert_eq!(std::fs::read(place.path("old")).unwrap(), b"old");
        }
    }
}

#[test]
fn a_signal_that_is_ignored_interrupts_nothing() {
    let place = Place::new();
    source(&place.path("source"), 8 << 20);
    let program = env!("CARGO_BIN_EXE_ring3");
    let line = format!("trap '' HUP; exec {program} img convert -c -f raw -O qcow2 source new");
    let mut child =
        Command::new("sh").args(["-c", &line]).current_dir(place.directory()).spawn().unwrap();
    assert!(place.comes(|place| !place.hidden().is_empty()), "nothing was begun");
    signal(&child, Signal::HUP);
    assert!(child.wait().unwrap().success());
    assert_eq!(place.files(), ["new", "source"]);
}

#[test]
fn the_next_command_removes_the_files_that_a_kill_left() {
    let place = Place::new();
    source(&place.path("source"), 64 << 20);
    for next in
        ["create -f qcow2 new 1M", "convert -f raw -O raw source new", "resize -f raw new +1M"]
    {
        let mut killed = place.command("convert -c -f raw -O qcow2 source new").spawn().unwrap();
        assert!(place.comes(|place| !place.hidden().is_empty()), "nothing was begun");
        signal(&killed, Signal::KILL);
        killed.wait().unwrap();
        assert_eq!(place.hidden().len(), 1);
        // The file of a running command stays.
        let mut running = place.command("convert -c -f raw -O qcow2 source new").spawn().unwrap();
        assert!(
            place.comes(|place| place.files().contains(&format!(".new.{}.0.new", running.id())))
        );
        place.img("create -f raw another 1M");
        std::fs::write(place.path("new"), vec![0; 1 << 20]).unwrap();
        place.img(next);
        let left = place.hidden();
        assert!(left.is_empty() || left == [format!(".new.{}.0.new", running.id())], "{left:?}");
        assert!(running.wait().unwrap().success());
        assert_eq!(place.hidden(), Vec::<String>::new());
    }
}

/// A command, and the states in which it may leave the image: the disk has one of these contents.
struct Case {
    line: &'static str,
    /// The image that the command creates or changes, and its format.
    target: &'static str,
    format: &'static str,
    /// Raw images, one of which the disk must be equal to afterwards; none if it may be between two.
    shows: &'static [&'static str],
}

const fn case(
    line: &'static str,
    target: &'static str,
    format: &'static str,
    shows: &'static [&'static str],
) -> Case {
    Case { line, target, format, shows }
}

const CASES: &[Case] = &[
    case("convert -f raw -O qcow2 new disk.qcow2", "disk.qcow2", "qcow2", &["old", "new"]),
    case("convert -c -f raw -O qcow2 new disk.qcow2", "disk.qcow2", "qcow2", &["old", "new"]),
    case("convert -W -f raw -O vdi new disk.vdi", "disk.vdi", "vdi", &["old", "new"]),
    case("convert -f raw -O vmdk new disk.vmdk", "disk.vmdk", "vmdk", &["old", "new"]),
    case("convert -f raw -O vpc new disk.vpc", "disk.vpc", "vpc", &["old", "new"]),
    case("convert -f raw -O qcow new disk.qcow", "disk.qcow", "qcow", &["old", "new"]),
    case("convert -f raw -O raw new disk.raw", "disk.raw", "raw", &["old", "new"]),
    case("dd -f raw -O qcow2 if=new of=disk.qcow2", "disk.qcow2", "qcow2", &["old", "new"]),
    case("convert -n -f raw -O qcow2 new disk.qcow2", "disk.qcow2", "qcow2", &[]),
    case("convert -n -f raw -O vdi new disk.vdi", "disk.vdi", "vdi", &[]),
    case("resize -f qcow2 disk.qcow2 +1G", "disk.qcow2", "qcow2", &["old"]),
    case("snapshot -c one disk.qcow2", "disk.qcow2", "qcow2", &["old"]),
    case("snapshot -d zero overlay.qcow2", "overlay.qcow2", "qcow2", &["new"]),
    case("check -r all disk.qcow2", "disk.qcow2", "qcow2", &["old"]),
    case("commit plain.qcow2", "plain.qcow2", "qcow2", &["new"]),
    case("rebase -b other.qcow2 -F qcow2 plain.qcow2", "plain.qcow2", "qcow2", &["new"]),
    case("rebase -f qcow2 -b '' plain.qcow2", "plain.qcow2", "qcow2", &["new"]),
];

/// Makes the images for [`CASES`]: `old` and `new` are the contents of their disks.
fn images(place: &Place) {
    const LEN: usize = 6 << 20;
    source(&place.path("old"), LEN);
    let old = std::fs::read(place.path("old")).unwrap();
    let mut new = old.clone();
    for at in (0..LEN).step_by(300_000) {
        new[at..(at + 100_000).min(LEN)].fill((at >> 8) as u8);
    }
    std::fs::write(place.path("new"), &new).unwrap();
    for format in ["qcow2", "vdi", "vmdk", "vpc", "qcow", "raw"] {
        let force = if format == "vpc" { "-o force_size=on " } else { "" };
        place.qemu(&format!("convert -f raw -O {format} {force}old disk.{format}"));
    }
    for name in ["plain.qcow2", "overlay.qcow2"] {
        place.qemu(&format!("convert -f raw -O qcow2 old base.{name}"));
        place.qemu(&format!("create -q -f qcow2 -b base.{name} -F qcow2 {name}"));
        place.img(&format!("convert -n -f raw -O qcow2 new {name}"));
    }
    place.qemu("snapshot -c zero overlay.qcow2");
    place.qemu("convert -f raw -O qcow2 old other.qcow2");
}

/// Checks the image that an interrupted command has left.
fn is_well(place: &Place, case: &Case, before: &str) {
    let Case { target, format, shows, .. } = case;
    let status = |arguments: &[&str]| {
        let mut command = Command::new("qemu-img");
        command.args(arguments).current_dir(place.directory()).stdout(Stdio::null());
        command.stderr(Stdio::null()).status().unwrap().code()
    };
    if *format == "qcow2" {
        // Clusters without a reference may be left. A table or cluster with one reference need not be marked
        // as such, which costs a copy at the next write; the opposite would be damage.
        let mut check = Command::new("qemu-img");
        let checked = check
            .args(["check", "-f", format, target])
            .current_dir(place.directory())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&checked.stderr).into_owned()
            + &String::from_utf8_lossy(&checked.stdout);
        let is_harmless = |line: &str| line.contains("OFLAG_COPIED") && line.contains("refcount=1");
        let mut errors = said.lines().filter(|line| line.starts_with("ERROR"));
        assert!(matches!(checked.status.code(), Some(0 | 2 | 3)), "{before}: {said}");
        assert!(errors.all(is_harmless), "{before}: {said}");
        let ours = place.command(&format!("check -f {format} {target}")).status().unwrap().code();
        assert!(matches!(ours, Some(0 | 3)), "{before}: check {ours:?}");
    }
    let is_one = shows
        .iter()
        .any(|raw| status(&["compare", "-q", "-f", format, "-F", "raw", target, raw]) == Some(0));
    assert!(is_one || shows.is_empty(), "{before}: it shows something else than {shows:?}");
}

#[test]
fn commands_that_are_killed_at_any_moment_leave_sound_images() {
    let count: u64 = std::env::var("RING3_KILLS")
        .ok()
        .map_or(51, |text| text.parse().expect("RING3_KILLS is a number"));
    let good = Place::new();
    images(&good);
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut ended = 0;
    for number in 0..count {
        let case = &CASES[number as usize % CASES.len()];
        let place = Place::new();
        for name in good.files() {
            std::fs::copy(good.path(&name), place.path(&name)).unwrap();
        }
        let names = place.files();
        let mut child = place.command(case.line).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random(60_000)));
        let name = [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL][random(4) as usize];
        signal(&child, name);
        let status = child.wait().unwrap();
        ended += u64::from(status.code().is_none());
        let before = format!("{} after {name:?}, {status}", case.line);
        // A signal that arrives before it is handled ends the program as usual, before the program has begun
        // anything.
        if name != Signal::KILL {
            assert_eq!(place.files(), names, "{before}");
        }
        is_well(&place, case, &before);
        place.img(&format!("create -q -f {} {} 1M", case.format, case.target));
        assert_eq!(place.files(), names, "{before}");
    }
    assert!(ended > 0, "none was ended in its midst");
}
