//! Memory and registers of a running machine in an ELF core, which Debian's gdb reads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::gdb::{contains_in_order, kernel_with_names};
use crate::support::guest::Guest;
use crate::support::qmp::Qmp;
use crate::support::{Directory, output, ring3, system_program};
use crate::tern::has_tern;

/// A machine with Tern, whose names and lines gdb knows, at its prompt.
struct Machine {
    directory: Directory,
    guest: Guest,
    qmp: Qmp,
}

impl Machine {
    /// Starts it by a command that `change` may change.
    fn start(engine: &str, change: impl FnOnce(Command) -> Command) -> Machine {
        let directory = Directory::new();
        let archive = ring3_tern::TERN.expect("it is there").archive;
        let archive = directory.file("tern.img", archive);
        let mut command = ring3();
        command.args(["run", "--engine", engine, "--memory", "64M", "--kernel"]);
        command.arg(kernel_with_names().join("tern")).arg("--initrd").arg(archive);
        let socket = directory.path("qmp");
        command.arg("--qmp").arg(format!("unix:{}", socket.display()));
        let mut guest = Guest::of(change(command));
        guest.wait_for("# ");
        let qmp = Qmp::connect(&socket);
        Machine { directory, guest, qmp }
    }

    fn dump(&self, options: &[&str], to: &Path) -> Command {
        let mut command = ring3();
        command.arg("dump").args(options).arg(self.directory.path("qmp")).arg(to);
        command
    }

    fn end(mut self) {
        self.qmp.ask("cont", json!({}));
        self.guest.type_line("poweroff");
        assert_eq!(self.guest.wait_for_the_end(), Some(0));
    }

    /// Returns what the monitor says of a register, such as " eip=".
    fn register(&mut self, name: &str) -> u64 {
        let line = json!({"command-line": format!("print ${name}")});
        let said = self.qmp.done("human-monitor-command", line);
        let text = said.as_str().unwrap().trim().trim_start_matches("0x").to_owned();
        u64::from_str_radix(&text, 16).unwrap_or_else(|_| panic!("{text}"))
    }
}

/// Returns what gdb says after it has opened the core.
fn gdb(core: &Path, script: &[&str]) -> String {
    let mut gdb = system_program("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set pagination off"]);
    gdb.arg("-ex").arg(format!("file {}", kernel_with_names().join("tern.debug").display()));
    gdb.arg("-ex").arg(format!("core-file {}", core.display()));
    for command in script {
        gdb.args(["-ex", command]);
    }
    let said = gdb.output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    String::from_utf8_lossy(&said.stdout).into_owned() + &errors
}

fn is_read_by_gdb(engine: &str) {
    if !has_tern() {
        return;
    }
    let mut machine = Machine::start(engine, |command| command);
    machine.qmp.done("stop", json!({}));
    let registers = ["eip", "esp", "ebx", "cs"].map(|name| machine.register(name));
    let [core, plain] = ["core", "plain"].map(|name| machine.directory.path(name));
    output(&mut machine.dump(&["--paging"], &core));
    assert_eq!(machine.qmp.event("DUMP_COMPLETED")["result"]["status"], "completed");
    let said = gdb(
        &core,
        &[
            "p/x $eip",
            "p/x $esp",
            "p/x $ebx",
            "p/x $cs",
            "p/x *(unsigned *)0xc0100000",
            "p tsc_khz > 0",
            "bt",
            "info float",
        ],
    );
    let mut expected: Vec<String> =
        (1..).zip(registers).map(|(number, value)| format!("${number} = {value:#x}\n")).collect();
    expected.extend(["= 0x1badb002\n", "= 1\n", "#0 ", "R7: "].map(str::to_owned));
    contains_in_order(&said, &expected.iter().map(String::as_str).collect::<Vec<_>>());

    // At physical addresses; by QMP, without waiting.
    let protocol = format!("file:{}", plain.display());
    let arguments = json!({"paging": false, "protocol": protocol, "detach": true, "format": "elf"});
    machine.qmp.done("dump-guest-memory", arguments);
    let completed = machine.qmp.event("DUMP_COMPLETED");
    assert_eq!(completed["result"]["status"], "completed", "{completed}");
    let written = completed["result"]["completed"].as_u64().unwrap();
    assert!(written >= 64 << 20, "{completed}");
    assert_eq!(machine.qmp.done("query-dump", json!({})), completed["result"]);
    let said = gdb(&plain, &["p/x *(unsigned *)0x100000", "p/x $eip"]);
    contains_in_order(&said, &["= 0x1badb002\n", &format!("= {:#x}\n", registers[0])]);
    let mut readelf = system_program("readelf");
    let listed = String::from_utf8(output(readelf.arg("-ln").arg(&plain))).unwrap();
    contains_in_order(&listed, &["CORE (Core file)", "0x00000000 0x00000000", "NT_PRSTATUS"]);

    // A part of it, in the place of the file before.
    output(&mut machine.dump(&["--begin", "0x100000", "--length", "4096"], &plain));
    assert!(fs::metadata(&plain).unwrap().len() <= 8192);
    contains_in_order(&gdb(&plain, &["p/x *(unsigned *)0x100000"]), &["= 0x1badb002\n"]);
    machine.end();
}

#[test]
fn a_dump_of_the_translator_is_read_by_gdb() {
    is_read_by_gdb("translator");
}

#[test]
fn a_dump_of_the_interpreter_is_read_by_gdb() {
    is_read_by_gdb("interpreter");
}

/// The core of a Linux whose driver qemu_fw_cfg runs says how the data of the kernel are laid out.
pub(crate) fn has_the_note_of_linux(socket: &Path, directory: &Directory) {
    let core = directory.path("core");
    output(ring3().arg("dump").arg(socket).arg(&core));
    let listed = String::from_utf8(output(system_program("readelf").arg("-n").arg(&core))).unwrap();
    assert!(listed.contains("VMCOREINFO"), "{listed}");
    let core = fs::read(&core).unwrap();
    let layout = core[..64 << 10].windows(10).any(|part| part == b"OSRELEASE=");
    assert!(layout, "the kernel's note is incomplete");
}

/// Each reason is one line, and neither a part of the new file remains nor anything of the old one is lost.
#[test]
fn what_cannot_be_dumped_is_refused() {
    if !has_tern() {
        return;
    }
    let mut machine = Machine::start("auto", |command| {
        let mut shell = Command::new("sh");
        // Blocks of 512 bytes or 1 KiB, as the shell likes.
        shell.args(["-c", "ulimit -f 8192; exec \"$0\" \"$@\""]).arg(command.get_program());
        shell.args(command.get_args());
        shell
    });
    let place = machine.directory.path("place");
    fs::create_dir(&place).unwrap();
    let old = place.join("old");
    fs::write(&old, "as it was").unwrap();
    let full = "File too large";
    let cases: [(&[&str], PathBuf, &str); 5] = [
        (&[], old.clone(), full),
        (&["--paging"], place.join("new"), full),
        (&[], place.join("no/such"), "No such file or directory"),
        (&[], "/dev/full".into(), "/dev/full is not a file"),
        (&["--begin", "0x90000000", "--length", "16"], place.join("new"), "has no memory from"),
    ];
    for (options, to, part) in cases {
        let refused = machine.dump(options, &to).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{said}");
        let left: Vec<_> =
            fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [&*old], "{part}");
    }
    assert_eq!(fs::read(&old).unwrap(), b"as it was");
    let failed = machine.qmp.event("DUMP_COMPLETED");
    assert!(failed["error"].as_str().unwrap().contains(full), "{failed}");
    for (arguments, part) in [
        (json!({"paging": false, "protocol": "fd:x"}), "use file:PATH"),
        (json!({"paging": false, "protocol": "file:x", "format": "kdump-zlib"}), "use elf"),
        (json!({"paging": false, "protocol": "file:x", "begin": 0}), "belong together"),
    ] {
        machine.qmp.refused("dump-guest-memory", arguments, "GenericError", part);
    }
    let said = ring3().args(["dump"]).arg(place.join("none")).arg("x").output().unwrap();
    assert!(String::from_utf8(said.stderr).unwrap().contains("must run with --qmp unix:"));
    machine.end();
}
