//! Tern, the system in `guest/`, tests itself from inside (`guest/tests`).

use crate::support::{Directory, output, ring3, system_program};

/// Executes `command` in Tern, on a machine with further `arguments`, and returns what is on its serial line.
/// The command must succeed: its status is that of the machine. Without a compiler for Tern, this prints a
/// note and returns None.
#[track_caller]
fn tern(command: &str, arguments: &[&str]) -> Option<String> {
    let Some(tern) = ring3_tern::TERN else {
        ring3_skipped::package(format_args!("Tern is missing: install make and gcc-multilib"));
        return None;
    };
    let directory = Directory::new();
    let [kernel, archive] = ["tern", "tern.img"].map(|name| directory.path(name));
    std::fs::write(&kernel, tern.kernel).unwrap();
    std::fs::write(&archive, tern.archive).unwrap();
    let mut machine = ring3();
    machine.args(["run", "--memory", "64M", "--debug-exit", "0xf4", "--append"]);
    machine.arg(format!("run={command}")).args(arguments);
    machine.arg("--kernel").arg(kernel).arg("--initrd").arg(archive);
    let output = machine.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Twice the guest's number and one.
    assert_eq!(output.status.code(), Some(1), "{command}: {text}");
    Some(text)
}

#[test]
fn processes_of_tern_do_what_posix_says() {
    for engine in ["translator", "interpreter"] {
        let Some(text) = tern("/bin/processes", &["--engine", engine]) else { return };
        assert!(text.contains("processes: all right"), "{engine}: {text}");
    }
}

#[test]
fn the_shell_and_commands_of_tern_print_what_they_should() {
    let Some(text) = tern("sh /tests/commands.sh", &[]) else { return };
    assert!(text.contains("commands: all right"), "{text}");
}

#[test]
fn random_messages_do_tern_no_harm() {
    let Some(text) = tern("fuzz 100000", &[]) else { return };
    assert!(text.contains("and all works"), "{text}");
}

/// Executes a test with an ATA disk that has an empty ext2, and returns what is on the serial line.
#[track_caller]
fn tern_with_disk(command: &str) -> Option<String> {
    let directory = Directory::new();
    let disk = directory.path("disk");
    std::fs::File::create(&disk).unwrap().set_len(32 << 20).unwrap();
    output(system_program("mke2fs").args(["-q", "-F", "-t", "ext2"]).arg(&disk));
    let text = tern(command, &["--hda", disk.to_str().unwrap()])?;
    output(system_program("e2fsck").args(["-f", "-n"]).arg(&disk));
    Some(text)
}

#[test]
fn tern_replaces_a_driver_that_fails_while_files_are_copied() {
    let Some(text) = tern_with_disk("/tests/faults.sh ata /dev/hda") else { return };
    assert!(text.contains("ata: all faults survived, 8 restarts"), "{text}");
}

#[test]
fn a_driver_of_tern_reaches_ports_in_four_ways() {
    let Some(text) = tern_with_disk("/tests/ways.sh ata /dev/hda") else { return };
    assert!(text.contains("ata: right in all ways"), "{text}");
}
