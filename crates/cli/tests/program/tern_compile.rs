//! Tern compiles programs, and itself: a disk has tcc and Tern's sources (`tests/guests/tern-source`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Directory, guest, output, read_ext2, ring3, system_program};
use crate::tern::has_tern;

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

/// The same compiler on the host makes the same files, and what was compiled inside boots and passes its tests.
#[test]
#[ignore = "takes twelve seconds of a processor; make test-long runs it"]
fn tern_recompiles_itself() {
    let directory = Directory::new();
    let Some(disk) = disk(&directory) else { return };
    compile(&["--tern"], &disk, "sh tools/image tcc build");
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
    let mut image = Command::new("sh");
    image
        .args(["tools/image".as_ref(), guest::file("tern-tcc").as_os_str()])
        .arg(directory.path("build"));
    output(image.current_dir(sources.join("src")).env("HOSTCC", "gcc"));
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
