//! Tern, the system in `guest/`, tests itself from inside (`guest/tests`).

use std::process::{Command, Output, Stdio};

use crate::support::{Directory, output, ring3, system_program};

/// The most wake-ups and instructions of an idle Tern in ten seconds.
const IDLE_WAKE_UPS: u64 = 20;
const IDLE_INSTRUCTIONS: u64 = 1_500_000;

/// Returns whether Tern is there. Without a compiler for it, this prints a note.
pub(crate) fn has_tern() -> bool {
    if ring3_tern::TERN.is_none() {
        ring3_skipped::package(format_args!("Tern is missing: install make and gcc"));
    }
    ring3_tern::TERN.is_some()
}

/// Executes `command` in Tern, on a machine with further `arguments`, and returns what is on its serial line.
/// The command must succeed: its status is that of the machine. Returns None if Tern is missing.
#[track_caller]
pub(crate) fn tern(command: &str, arguments: &[&str]) -> Option<String> {
    has_tern().then(|| serial_output(&machine(command, arguments).output().unwrap()))
}

/// Returns what starts the machine of [`tern`].
fn machine(command: &str, arguments: &[&str]) -> Command {
    let mut machine = ring3();
    machine.args(["run", "--tern", "--memory", "64M", "--debug-exit", "0xf4", "--append"]);
    machine.arg(format!("run={command}")).args(arguments);
    machine
}

/// Returns what is on the serial line of a machine that has ended with Tern's status 0.
#[track_caller]
fn serial_output(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Twice the guest's number and one.
    assert_eq!(output.status.code(), Some(1), "{text}");
    text
}

/// Without a disk or a kernel, Tern boots to a shell.
#[test]
fn tern_boots_if_nothing_else_is_given() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let keys = directory.file("keys", b"echo $((6*7)) >/a; cat /a; ls /dev | grep tty; poweroff\n");
    for engine in ["translator", "interpreter"] {
        let mut machine = ring3();
        machine.args(["run", "--deterministic", "--engine", engine]);
        machine.stdin(std::fs::File::open(&keys).unwrap());
        let output = machine.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(text.contains("\n42\r\n") && text.contains("ttyS0"), "{text}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("so Tern boots"), "{said}");
    }
}

/// An idle Tern sleeps: its clock does not tick, and what is to be done now and then is done at once. One run has ten
/// seconds more of virtual time than the other.
#[test]
fn an_idle_tern_is_seldom_woken() {
    if !has_tern() {
        return;
    }
    let start = |engine: &str, seconds: u32| {
        let arguments = ["--deterministic", "--engine", engine, "--stats"];
        let mut command = machine(&format!("sleep {seconds}"), &arguments);
        // The host sleeps as long as the guest, so all of them run at the same time.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let both = ["translator", "interpreter"].map(|engine| [4, 14].map(|it| start(engine, it)));
    for runs in both {
        let [short, long] = runs.map(|run| {
            let output = run.wait_with_output().unwrap();
            serial_output(&output);
            String::from_utf8_lossy(&output.stderr).into_owned()
        });
        let more = |name: &str| number(&long, name) - number(&short, name);
        let (halts, instructions) = (more("exits: halt"), more("instructions"));
        assert!((1..=IDLE_WAKE_UPS).contains(&halts), "{halts} times: {long}");
        assert!(instructions <= IDLE_INSTRUCTIONS, "{instructions} instructions: {long}");
    }
}

/// Returns the counter `name` of `ring3 run --stats`.
#[track_caller]
fn number(stats: &str, name: &str) -> u64 {
    let of = |line: &str| line.trim().strip_suffix(name)?.trim().parse().ok();
    stats.lines().find_map(of).unwrap_or_else(|| panic!("no {name}: {stats}"))
}

/// QEMU boots the same files, and prints the same.
#[test]
fn tern_prints_the_same_in_qemu() {
    let Some(system) = ring3_tern::TERN.filter(|_| has_tern()) else { return };
    let directory = Directory::new();
    let kernel = directory.file("tern", system.kernel);
    let archive = directory.file("tern.img", system.archive);
    let command = "sh /tests/commands.sh";
    let mut machine = Command::new("qemu-system-i386");
    machine.args(["-m", "64", "-display", "none", "-serial", "stdio", "-no-reboot"]);
    machine.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-kernel"]).arg(kernel);
    machine.arg("-initrd").arg(archive).args(["-append", &format!("run={command}")]);
    let there = serial_output(&machine.stdin(Stdio::null()).output().expect("QEMU is installed"));
    assert_eq!(Some(there), tern(command, &[]));
}

/// So do Bochs and v86, by GRUB from a disc, as far as they are installed: the tests do not install them.
#[test]
fn tern_boots_in_other_emulators() {
    if !has_tern() {
        return;
    }
    let mut command = ring3();
    let text = output(command.args(["bench", "boot", "--guest", "tern", "--all", "--runs", "1"]));
    let text = String::from_utf8(text).unwrap();
    for name in ["ring3", "interpreter", "QEMU (TCG)", "Bochs", "v86"] {
        let row = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        match row.split_once(" is left out: ") {
            Some((_, how)) => ring3_skipped::host(format_args!("{name} is missing: {how}")),
            None => assert_eq!(row.split_whitespace().count(), 4, "{text}"),
        }
    }
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

/// As `ring3 bench driver` has it done; here the other end is in Tern, too. Frames have a channel, a length and bytes.
#[test]
fn scripts_come_to_tern_by_a_connection() {
    let script = "suite hash 1; cat /none; exit 3\\n";
    let length = script.len() - 1;
    let command = format!(
        "benchdriverserver & sleep 1; (printf '\\0\\0\\0\\{length:03o}{script}'; sleep 1) | nc 127.0.0.1 1235"
    );
    let Some(text) = tern(&command, &[]) else { return };
    let text = text.replace("\r\n", "\n");
    assert!(text.contains("\0\0\0\0\0\x01\0\0\0"), "{text:?}");
    assert!(text.contains("hash "), "{text:?}");
    assert!(text.contains("\x02\0\0\0\x26cat: /none: No such file or directory\n"), "{text:?}");
    assert!(text.contains("\0\0\0\0\x01\x03"), "{text:?}");
}

#[test]
fn random_messages_do_tern_no_harm() {
    let Some(text) = tern("fuzz 100000", &[]) else { return };
    assert!(text.contains("and all works"), "{text}");
}

/// A million of them, on each engine.
#[test]
#[ignore = "takes minutes; `make test-long` runs it"]
fn a_million_random_messages_do_tern_no_harm() {
    for engine in ["translator", "interpreter"] {
        let Some(text) = tern("fuzz 1000000", &["--engine", engine]) else { return };
        assert!(text.contains("and all works"), "{engine}: {text}");
    }
}

/// Executes a test with an ATA disk that has an empty ext2, and returns what is on the serial line.
#[track_caller]
pub(crate) fn tern_with_disk(command: &str) -> Option<String> {
    let directory = Directory::new();
    let disk = directory.path("disk");
    std::fs::File::create(&disk).unwrap().set_len(32 << 20).unwrap();
    output(system_program("mke2fs").args(["-q", "-F", "-t", "ext2"]).arg(&disk));
    let text = tern(command, &["--hda", disk.to_str().unwrap()])?;
    output(system_program("e2fsck").args(["-f", "-n"]).arg(&disk));
    Some(text)
}

/// In deterministic time, the half minute for which a script may keep a service waiting takes an instant.
#[test]
fn scripts_decide_what_comes_of_a_service_that_has_failed() {
    let Some(text) = tern("sh /tests/policy.sh clock", &["--deterministic"]) else { return };
    assert!(text.contains("clock: all scripts have decided"), "{text}");
    let heard = "clock exit 1\r\nclock exception-14 2\r\nclock killed 3\r\nclock refused 4\r\n";
    assert!(text.contains(heard), "{text}");
}

#[test]
fn tern_replaces_a_driver_that_fails_while_files_are_copied() {
    let Some(text) = tern_with_disk("/tests/faults.sh ata /dev/hda") else { return };
    assert!(text.contains("ata: all faults survived, 8 restarts"), "{text}");
}

/// The file system waits for an answer for 15 seconds, in which the machine sleeps.
#[test]
fn tern_takes_no_late_answer_of_a_driver_for_another() {
    let Some(text) = tern_with_disk("/tests/late.sh ata /dev/hda") else { return };
    assert!(text.contains("ata: late answers are ignored"), "{text}");
}

/// Returns what starts a deterministic machine of [`tern`] with further lines in blocks of `/etc/services`.
fn machine_with_lines(
    directory: &Directory,
    system: ring3_tern::System,
    lines: &[(&str, &str)],
    command: &str,
) -> Command {
    let archive = lines.iter().fold(system.archive.to_vec(), |archive, (block, line)| {
        ring3_tern::with_line(&archive, block, line).expect("there is this block")
    });
    let mut machine = ring3();
    machine.args(["run", "--memory", "64M", "--debug-exit", "0xf4", "--deterministic"]);
    machine.arg("--kernel").arg(directory.file("tern", system.kernel));
    machine.arg("--initrd").arg(directory.file("tern.img", &archive));
    machine.args(["--append", &format!("run={command}")]);
    machine
}

/// Programs wait for a driver that is to be replaced, but not for one that is not.
#[test]
fn nobody_waits_for_a_driver_of_tern_that_stays_down() {
    let Some(system) = ring3_tern::TERN.filter(|_| has_tern()) else { return };
    let directory = Directory::new();
    let lines = [("service console", "on-failure leave"), ("service ata", "on-failure leave")];
    let disk = directory.file("disk", &[0xa5_u8].repeat(1 << 16));
    let mut machine = machine_with_lines(&directory, system, &lines, "sh /tests/left.sh");
    let text = serial_output(&machine.arg("--hda").arg(&disk).output().unwrap());
    assert!(text.contains("left: nobody waits for a driver that stays down"), "{text}");
}

#[test]
fn a_driver_of_tern_reaches_ports_in_four_ways() {
    let Some(text) = tern_with_disk("/tests/ways.sh ata /dev/hda") else { return };
    assert!(text.contains("ata: right in all ways"), "{text}");
}

/// Each trap, kernel call, destination, port, interrupt line and grant that a process has no right to, and each
/// piece of memory: an error, and a line of the kernel's log. With the rights of users, and with calls whose rights
/// to ports, lines, memory and grants it lacks.
#[test]
fn what_a_process_of_tern_has_no_right_to_is_refused() {
    let Some(system) = ring3_tern::TERN.filter(|_| has_tern()) else { return };
    let more = [
        ("users", "calls setgrants safecopy devio sdevio vdevio irqctl mapphysical umap"),
        ("users", "traps receive sendrec notify senda"),
    ];
    // The kernel does not log all of them if they are many, so the machine waits now and then, and both do at once.
    let directories = [Directory::new(), Directory::new()];
    let runs = [(&directories[0], &[][..]), (&directories[1], &more)].map(|(directory, lines)| {
        let mut machine = machine_with_lines(directory, system, lines, "rights");
        machine.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    for run in runs {
        let text = serial_output(&run.wait_with_output().unwrap());
        assert!(text.contains("rights: whatever they leave out is refused"), "{text}");
    }
}

/// All four ways obey the same rights. The cycles are those of deterministic time, so they are the same anywhere: a
/// direct call, with its check of the port, takes at most 43 % of a message's, as in Table 1 of Pessolani et al., and
/// where the processor checks, an access takes exactly what it takes where nothing is checked.
#[test]
fn each_way_to_ports_obeys_the_rights_of_a_driver() {
    const ACCESSES: [&str; 6] = ["in8", "in16", "in32", "out8", "out16", "out32"];
    const STRINGS: [&str; 7] = ["ins8", "ins16", "ins32", "outs8", "outs16", "outs32", "vector"];
    let measured = ["translator", "interpreter"].map(|engine| {
        let arguments = ["--deterministic", "--engine", engine];
        let text = tern("sh /tests/hal.sh", &arguments)?;
        assert!(text.contains("hal: each way obeys the rights"), "{engine}: {text}");
        Some(text)
    });
    let [Some(text), Some(other)] = measured else { return };
    let cycles = |text: &str, way: &str, access: &str| -> u32 {
        let start = format!("{way} {access} 10 ");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&start));
        let cycles = lines.filter_map(|line| line.trim().parse().ok()).min();
        cycles.unwrap_or_else(|| panic!("no {start:?} in {text}"))
    };
    let of = |way, access| {
        let here = cycles(&text, way, access);
        assert_eq!(here, cycles(&other, way, access), "{way}, {access}: on each engine");
        here
    };
    let direct_beside_message = |access| {
        let (direct, message) = (of("direct", access), of("message", access));
        assert!(direct * 100 <= message * 43, "{access}: {direct}, {message}");
    };
    direct_beside_message("nothing");
    for access in ACCESSES {
        direct_beside_message(access);
        let [direct, trap, message] = ["direct", "trap", "message"].map(|way| of(way, access));
        assert!(of("kernel", access) < direct && direct < trap && trap < message, "{text}");
    }
    for access in ACCESSES.iter().chain(&STRINGS) {
        assert_eq!(of("bitmap", access), of("kernel", access), "{access}");
    }
}
