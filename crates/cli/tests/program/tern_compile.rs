//! Tern compiles programs, and itself: a disk has tcc and Tern's sources (`tests/guests/tern-source`). Its
//! `make` is compared with GNU make.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Directory, guest, output, read_ext2, ring3, system_program};
use crate::tern::{has_tern, tern_with_disk};

/// Boots `tern`, options for a system, with the disk, executes `command` in /usr/src, and returns what is on the
/// serial line.
#[track_caller]
fn compile(tern: &[&str], disk: &Path, command: &str) -> String {
    let mut machine = ring3();
    machine
        .arg("run")
        .args(tern)
        .args(["--memory", "128M", "--debug-exit", "0xf4", "--hda"])
        .arg(disk);
    machine.args(["--append", &format!("run=mount /dev/hda /usr; cd /usr/src; {command}")]);
    let output = machine.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Twice the guest's status, which is 0, and one.
    assert_eq!(output.status.code(), Some(1), "{text}");
    text
}

/// Returns a copy of the disk in this directory.
fn disk(directory: &Directory) -> Option<PathBuf> {
    let source = guest::file_if_there("tern-source.img").filter(|_| has_tern())?;
    let disk = directory.path("disk");
    fs::copy(source, &disk).unwrap();
    Some(disk)
}

#[test]
fn tern_compiles_a_program() {
    let directory = Directory::new();
    let Some(disk) = disk(&directory) else { return };
    let command = "cc -static -o /seq commands/seq.c && /seq 7 2 11";
    let text = compile(&["--tern"], &disk, command);
    assert!(text.contains("7\r\n9\r\n11\r\n"), "{text}");
}

/// Tern's make prints what GNU make prints, of right makefiles and of wrong ones; the times are those of files on an
/// ext2 disk.
#[test]
fn make_of_tern_does_what_gnu_make_does() {
    let command = "mount /dev/hda /mnt && sh /tests/make.sh /mnt/make";
    let Some(text) = tern_with_disk(command) else { return };
    let directory = Directory::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guest/tests/scripts/make.sh");
    let mut host = Command::new("sh");
    host.args([script, directory.path("make").to_str().unwrap()]).env("LC_ALL", "C");
    for of_another_make in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
        host.env_remove(of_another_make);
    }
    let wanted = String::from_utf8(output(&mut host)).unwrap();
    let text = text.replace("\r\n", "\n");
    assert!(wanted.contains("== other files and directories\n"), "{wanted}");
    assert!(text.contains(&wanted), "Tern: {text}\nthe host: {wanted}");
}

/// `make image` makes all of Tern, and then has nothing to do until a source changes. The same compiler on the
/// host makes the same files, and what was compiled inside boots and passes its tests.
#[test]
#[ignore = "takes twelve seconds of a processor; make test-long runs it"]
fn tern_recompiles_itself() {
    let directory = Directory::new();
    let Some(disk) = disk(&directory) else { return };
    let command = "make image >/log && make image && sleep 1 && touch lib/sort.c && make -n image";
    let text = compile(&["--tern"], &disk, command);
    assert!(text.contains("make: Nothing to be done for 'image'."), "{text}");
    let again: Vec<_> = text.lines().filter(|line| line.starts_with("tcc ")).collect();
    assert!(
        again.iter().any(|line| line.ends_with("-c -o build/objects/lib/sort.c.o lib/sort.c")),
        "{text}"
    );
    assert!(again.iter().all(|line| !line.contains(" -c ") || line.contains("sort.c")), "{text}");
    let [kernel, archive] =
        ["tern", "tern.img"].map(|file| read_ext2(&disk, &format!("/src/build/{file}")));

    // The sources of the disk, which may be older than those of the tree.
    let sources = directory.path("sources");
    fs::create_dir(&sources).unwrap();
    output(
        system_program("debugfs")
            .args(["-R", &format!("rdump /src {}", sources.display())])
            .arg(&disk),
    );
    fs::remove_dir_all(sources.join("src/build")).unwrap();
    let mut image = Command::new("make");
    image.args(["--silent", "image"]).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    image.arg(format!("CC={}", guest::file("tern-tcc").display()));
    image.arg(format!("BUILD={}", directory.path("build").display()));
    output(image.current_dir(sources.join("src")));
    assert!(kernel == fs::read(directory.path("build/tern")).unwrap(), "the kernels differ");
    assert!(
        archive == fs::read(directory.path("build/tern.img")).unwrap(),
        "the boot archives differ"
    );

    let [kernel, archive] = [("kernel", kernel), ("archive", archive)]
        .map(|(name, bytes)| directory.file(name, &bytes));
    let system = ["--kernel", kernel.to_str().unwrap(), "--initrd", archive.to_str().unwrap()];
    let text = compile(&system, &disk, "/bin/processes");
    assert!(text.contains("processes: all right"), "{text}");
}
