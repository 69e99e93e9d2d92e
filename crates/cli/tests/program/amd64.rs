//! Debian's 64-bit kernel in 64-bit mode, and what shows a machine from outside: gdb, the monitor, and dumps.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::gdb::contains_in_order;
use crate::support::guest::{CONSOLE, Guest, PROMPT, file, file_if_there};
use crate::support::qmp::Qmp;
use crate::support::{Directory, output, ring3, system_program};

/// Where the program is.
const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;
/// Its first instruction.
const ENTRY: u64 = BASE + HEADERS;
const TEXT: &[u8] = b"64 bits\n";

/// Its code: it writes the text and ends.
const CODE: [u8; 33] = [
    0xbf, 0x01, 0x00, 0x00, 0x00, //             MOV EDI, 1
    0x48, 0x8d, 0x35, 0x15, 0x00, 0x00, 0x00, // LEA RSI, [RIP+21]: behind the code
    0xba, 0x08, 0x00, 0x00, 0x00, //             MOV EDX, 8: the length
    0xb8, 0x01, 0x00, 0x00, 0x00, //             MOV EAX, 1: write
    0x0f, 0x05, //                               SYSCALL
    0xb8, 0x3c, 0x00, 0x00, 0x00, //             MOV EAX, 60: exit
    0x31, 0xff, //                               XOR EDI, EDI
    0x0f, 0x05, //                               SYSCALL
];

/// Returns an ELF file with this program of 64-bit code.
fn program() -> Vec<u8> {
    let code = [&CODE[..], TEXT].concat();
    let len = HEADERS + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]); // an executable for x86-64
    file.extend([ENTRY, 64, 0].map(u64::to_le_bytes).as_flattened());
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]); // to be loaded, read and executed
    file.extend([0, BASE, BASE, len, len, 4096].map(u64::to_le_bytes).as_flattened());
    file.extend(code);
    file
}

/// The kernel starts by PVH, so it need not unpack itself (tests/guests/unpack). The shell is a 32-bit program, in
/// compatibility mode, and starts a 64-bit one.
#[test]
fn debians_kernel_boots_in_64_bit_mode() {
    let Some(kernel) = file_if_there("linux-amd64/vmlinux") else { return };
    let directory = Directory::new();
    let [gdb, qmp] = ["gdb", "qmp"].map(|name| directory.path(name));
    let mut command = ring3();
    command.args(["run", "--cpu", "qemu64", "--memory", "5G"]);
    command.args(["--serial", "stdio", "--append", CONSOLE, "--kernel"]).arg(kernel);
    command.arg("--initrd").arg(file("initramfs.cpio.gz"));
    command.arg("--gdb").arg(format!("unix:{}", gdb.display()));
    command.arg("--qmp").arg(format!("unix:{}", qmp.display()));
    let mut guest = Guest::of(command);
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    assert_eq!(guest.command("uname -m"), "x86_64");
    assert_eq!(guest.command("cat /proc/cmdline"), CONSOLE);
    let rsdp = guest.command("dmesg | grep 'ACPI: RSDP'");
    assert!(rsdp.contains("RING3"), "{rsdp}");
    let octal: Vec<_> = program().iter().map(|byte| format!("\\{byte:03o}")).collect();
    let octal = octal.concat();
    guest.command(&format!("printf '{octal}' > /tmp/program; chmod +x /tmp/program"));
    assert_eq!(guest.command("/tmp/program; echo $?"), "64 bits\n0");
    is_translated(&mut guest, &mut Qmp::connect(&qmp));
    let flags = guest.command("grep -m 1 flags /proc/cpuinfo");
    for flag in ["lm", "syscall", "nx", "pdpe1gb", "fsgsbase", "smep", "smap", "cx16", "rdtscp"] {
        assert!(flags.split(' ').any(|word| word == flag), "no {flag} in {flags}");
    }
    // What does not fit below 3 GiB is above 4 GiB, where programs are first.
    let ram = guest.command("grep 'System RAM' /proc/iomem");
    assert!(ram.contains("100000000-17fffffff"), "{ram}");
    assert_eq!(guest.command("awk '/MemTotal/ { print ($2 > 4900000) }' /proc/meminfo"), "1");
    guest.command("seq 200000 > /tmp/numbers");
    is_debugged(&mut guest, &gdb, &mut Qmp::connect(&qmp));
    is_dumped(&mut Qmp::connect(&qmp), &directory);

    let saved = directory.path("saved");
    output(ring3().args(["snapshot", "save"]).arg(&qmp).arg(&saved));
    drop(guest);
    let mut command = ring3();
    command.args(["run", "--serial", "stdio", "--restore"]).arg(saved);
    let calls = directory.path("calls");
    command.args(["--trace", "syscalls", "--trace-file"]).arg(&calls);
    let mut guest = Guest::of(command);
    guest.type_line("");
    guest.wait_for(PROMPT);
    assert_eq!(guest.command("awk '{ s += $1 } END { print s }' /tmp/numbers"), "20000100000");
    guest.command("/tmp/program");
    assert_eq!(guest.power_off(), Some(0));
    let calls = fs::read_to_string(calls).unwrap();
    // The 32-bit shell starts the 64-bit program.
    let expected =
        ["execve(\"/tmp/program\"", " write(1, \"64 bits\\n\", 8) = 8 <", " exit(0)", " reboot("];
    contains_in_order(&calls, &expected);
}

/// Returns the counters with these names.
fn counts<const COUNT: usize>(qmp: &mut Qmp, names: [&str; COUNT]) -> [u64; COUNT] {
    let stats = qmp.done("query-stats", json!({"target": "vm"}));
    let all = stats[0]["stats"].as_array().unwrap();
    names.map(|name| {
        let counter = all.iter().find(|counter| counter["name"] == name);
        counter.and_then(|counter| counter["value"].as_u64()).expect(name)
    })
}

/// Of the instructions of 32-bit programs, few are interpreted.
fn is_translated(guest: &mut Guest, qmp: &mut Qmp) {
    const NAMES: [&str; 2] = ["instructions", "engine-instructions-interpreted"];
    let before = counts(qmp, NAMES);
    assert_eq!(
        guest.command("seq 30000 | awk '{ s += $1 * $1 } END { print s }'"),
        "9000450005000"
    );
    let [executed, interpreted] = counts(qmp, NAMES);
    let (executed, interpreted) = (executed - before[0], interpreted - before[1]);
    let has_translator = ring3().arg("doctor").output().unwrap().status.success();
    assert!(!has_translator || interpreted < executed / 20, "{interpreted} of {executed}");
}

/// Programs are at other addresses each time that they start, where little of their code is worth its translation.
#[test]
fn programs_that_start_are_mostly_interpreted() {
    const PROGRAMS: u64 = 60;
    const NAMES: [&str; 2] =
        ["engine-blocks-translated", "engine-instructions-of-cold-code-interpreted"];
    let Some(kernel) = file_if_there("linux-amd64/vmlinux") else { return };
    if !ring3().arg("doctor").output().unwrap().status.success() {
        return;
    }
    let directory = Directory::new();
    let qmp = directory.path("qmp");
    let mut command = ring3();
    command.args(["run", "--cpu", "qemu64", "--serial", "stdio", "--append", CONSOLE, "--kernel"]);
    command.arg(kernel).arg("--initrd").arg(file("initramfs-amd64.cpio.gz"));
    command.arg("--qmp").arg(format!("unix:{}", qmp.display()));
    let mut guest = Guest::of(command);
    guest.wait_for(PROMPT);
    // The shell executes its own programs without a start.
    guest.command("cp /bin/busybox /tmp/uname");
    let start = format!("for i in $(seq {PROGRAMS}); do /tmp/uname; done | uniq -c");
    let is_done = |guest: &mut Guest| {
        let counted = guest.command(&start);
        assert_eq!(counted.trim(), format!("{PROGRAMS} Linux"));
    };
    is_done(&mut guest);
    let mut qmp = Qmp::connect(&qmp);
    let before = counts(&mut qmp, NAMES);
    is_done(&mut guest);
    let [blocks, interpreted] = counts(&mut qmp, NAMES);
    let (blocks, interpreted) = (blocks - before[0], interpreted - before[1]);
    println!("{blocks} blocks, {interpreted} instructions of cold code");
    assert!(blocks < 60 * PROGRAMS, "{blocks} blocks");
    assert!((1000 * PROGRAMS..100_000 * PROGRAMS).contains(&interpreted), "{interpreted}");
    assert_eq!(guest.power_off(), Some(0));
}

/// Calls gdb with these commands, and returns what it says.
pub(crate) fn gdb(commands: &[&str]) -> String {
    let mut gdb = system_program("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set pagination off"]);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    let said = gdb.output().unwrap();
    String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr)
}

/// gdb stops at the program's first instruction, and where the kernel reads the program's text and what is on its own
/// stack. The program does not notice it.
fn is_debugged(guest: &mut Guest, socket: &Path, qmp: &mut Qmp) {
    // What is typed waits until gdb lets the machine go on.
    qmp.done("stop", json!({}));
    guest.type_line("/tmp/program; echo st''atus $?");
    let text = ENTRY + CODE.len() as u64;
    let said = gdb(&[
        &format!("target remote {}", socket.display()),
        "p $efer",
        &format!("hbreak *{ENTRY:#x}"),
        "continue",
        "p/x $rip",
        "p/x $cs",
        "x/1i $rip",
        "stepi",
        "p $rdi",
        "set $r15 = 0x123456789abcdef0",
        "p/x $r15",
        "monitor print $r15",
        "delete",
        &format!("rwatch *(char *){text:#x}"),
        "continue",
        "p/x (unsigned long)$rip >> 32",
        "p/x $k_gs_base",
        "delete",
        "rwatch -location *(long *)$rsp",
        "continue",
        "p/x (unsigned long)$gs_base >> 47",
        "p $cr4",
        "p $xmm15",
        "monitor info tlb",
        "detach",
    ]);
    let expected = [
        "[ NXE LMA LME SCE ]",
        &format!("{ENTRY:#x}\n"),
        "= 0x33\n",
        "mov    $0x1,%edi",
        "= 1\n",
        "= 0x123456789abcdef0\n",
        "Hardware read watchpoint",
        "= 0xffffffff\n",
        "= 0x0\n",
        "Hardware read watchpoint",
        "= 0x1ffff\n",
        " PAE ",
        "v4_float",
        "detached",
    ];
    contains_in_order(&said, &expected);
    // What the monitor says goes to standard error: a page of the program, and pages of the kernel.
    contains_in_order(&said, &["0x123456789abcdef0\n", "\n0000000000400000: ", "\nffff8"]);
    guest.wait_for("64 bits\nstatus 0\n");
    guest.wait_for(PROMPT);
}

/// A core of the machine has the registers that the monitor shows, and memory at the kernel's addresses.
fn is_dumped(qmp: &mut Qmp, directory: &Directory) {
    qmp.done("stop", json!({}));
    let mut value = |of: &str| {
        let line = json!({"command-line": format!("print {of}")});
        qmp.done("human-monitor-command", line).as_str().unwrap().trim().to_owned()
    };
    let [ip, stack] = ["$rip", "$rsp"].map(&mut value);
    let line = json!({"command-line": "x/1gx $rip"});
    let said = qmp.done("human-monitor-command", line);
    let (_, code) = said.as_str().unwrap().trim().split_once(": ").unwrap();
    let core = directory.path("core");
    output(ring3().args(["dump", "--paging"]).arg(directory.path("qmp")).arg(&core));
    let said = gdb(&[
        &format!("core-file {}", core.display()),
        "p/x $rip",
        "p/x $rsp",
        "p/x *(unsigned long *)$rip",
        "p $xmm15",
        "info float",
    ]);
    let code = format!("= {:#x}\n", u64::from_str_radix(&code[2..], 16).unwrap());
    let [ip, stack] = [ip, stack].map(|value| format!("= {value}\n"));
    contains_in_order(&said, &[&ip, &stack, &code, "v4_float", "Control Word:        0x037f"]);
    qmp.done("cont", json!({}));
}
