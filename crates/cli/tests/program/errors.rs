//! The program's error messages and exit statuses.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use crate::support::{Directory, HALT_FOR_EVER, kernel, ring3};

/// Runs the program and returns its exit status and its standard error.
fn run<A: AsRef<OsStr>>(arguments: &[A]) -> (i32, String) {
    let output = ring3()
        .arg("run")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let errors = String::from_utf8(output.stderr).expect("messages are text");
    (output.status.code().expect("the program ends by itself"), errors)
}

/// Asserts that the program ends with status 1 and one line that contains `parts`.
#[track_caller]
fn refuses<A: AsRef<OsStr>>(arguments: &[A], parts: &[&str]) {
    let (status, errors) = run(arguments);
    assert_eq!(status, 1, "{errors}");
    assert!(errors.starts_with("ring3: "), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    for part in parts {
        assert!(errors.contains(part), "{part:?} is not in {errors:?}");
    }
}

/// Asserts that the program calls the command line wrong, with `parts` in its message.
#[track_caller]
fn misused(arguments: &[&str], parts: &[&str]) {
    let (status, errors) = run(arguments);
    assert_eq!(status, 2, "{errors}");
    for part in parts {
        assert!(errors.contains(part), "{part:?} is not in {errors:?}");
    }
}

#[test]
fn a_missing_kernel_is_named() {
    refuses(&["--kernel", "/no/such/kernel"], &["/no/such/kernel", "No such file"]);
}

#[test]
fn a_missing_initial_ram_disk_is_named() {
    let directory = Directory::new();
    let kernel = directory.file("kernel", &kernel(HALT_FOR_EVER));
    let arguments = ["--kernel".as_ref(), kernel.as_os_str(), "--initrd=/no/such".as_ref()];
    refuses(&arguments, &["initial RAM disk", "/no/such", "No such file"]);
}

#[test]
fn two_networks_of_one_name_are_refused() {
    let nic = ["--nic", "user,id=lan", "--nic", "user,id=lan"];
    refuses(&nic, &["two networks have the id \"lan\"; give each its own id"]);
}

#[test]
fn a_directory_is_not_a_kernel() {
    refuses(&["--kernel", "/"], &["cannot read the kernel /:", "directory"]);
}

#[test]
fn files_that_are_not_kernels_are_recognized() {
    let directory = Directory::new();
    let text = directory.file("text", &b"not a kernel ".repeat(100));
    refuses(
        &["--kernel".as_ref(), text.as_os_str()],
        &["text is not a Linux kernel (bzImage): the boot signature is missing"],
    );
}

#[test]
fn a_kernel_that_was_cut_off_is_damaged() {
    let directory = Directory::new();
    let mut cut = kernel(HALT_FOR_EVER);
    // This cuts off more than the last paragraph, which the file need not fill.
    cut.truncate(cut.len() - 16);
    let cut = directory.file("cut", &cut);
    refuses(&["--kernel".as_ref(), cut.as_os_str()], &["cut is damaged"]);
}

#[test]
fn an_error_for_too_little_memory_states_the_needed_size() {
    let directory = Directory::new();
    let kernel = directory.file("kernel", &kernel(HALT_FOR_EVER));
    refuses(
        &["--kernel".as_ref(), kernel.as_os_str(), "-m1".as_ref()],
        &["kernel needs at least 2 MiB", "the machine has 1 MiB", "--memory"],
    );
}

#[test]
fn a_command_line_too_long_is_refused() {
    let directory = Directory::new();
    let kernel = directory.file("kernel", &kernel(HALT_FOR_EVER));
    let append = format!("--append={}", "x".repeat(256));
    refuses(
        &["--kernel".as_ref(), kernel.as_os_str(), append.as_ref()],
        &["at most 255 bytes, but this one has 256"],
    );
}

#[test]
fn a_serial_file_that_cannot_be_made_is_named() {
    let directory = Directory::new();
    let kernel = directory.file("kernel", &kernel(HALT_FOR_EVER));
    let serial = format!("--serial=file:{}", directory.path("missing/serial").display());
    refuses(
        &["--kernel".as_ref(), kernel.as_os_str(), serial.as_ref()],
        &["cannot write the serial port's output to ", "missing/serial", "No such file"],
    );
}

/// Every option that takes a file, with a file that cannot be used. D is a directory of the test's own with
/// the files `kernel`, `short` (700 bytes), `locked` (nobody may read it), `odd` (not the size of a
/// diskette), `disk`, and `used`, a socket at which somebody listens.
const UNUSABLE_FILES: &[(&str, &[&str])] = &[
    ("--kernel D/none", &["cannot read the kernel", "No such file"]),
    ("--kernel D", &["cannot read the kernel", "directory"]),
    ("--kernel D/locked", &["cannot read the kernel", "locked", "Permission denied"]),
    ("--bios D/none", &["cannot read the firmware", "No such file"]),
    ("--kernel D/kernel --initrd D", &["initial RAM disk", "directory"]),
    ("--kernel D/kernel --nic user,romfile=D/none", &["cannot read the ROM", "No such file"]),
    ("--kernel D/kernel --nic user,romfile=D/short", &["short is no expansion ROM", "55 AA"]),
    ("--kernel D/kernel --hda D/none", &["there is no image"]),
    ("--kernel D/kernel --hda D", &["is neither a file nor a block device"]),
    ("--kernel D/kernel --hda /dev/null", &["is neither a file nor a block device"]),
    ("--kernel D/kernel --hda D/locked", &["no permission to read and write", "read-only"]),
    ("--kernel D/kernel --snapshot --hdb D/locked", &["no permission to read"]),
    ("--kernel D/kernel --hda D/short", &["700 bytes", "cut short"]),
    ("--kernel D/kernel --cdrom D/short", &["700 bytes", "2048-byte sectors"]),
    ("--kernel D/kernel --fda D/odd", &["odd", "diskette"]),
    ("--kernel D/kernel --drive file=D/none,if=floppy", &["there is no image"]),
    ("--kernel D/kernel --hda D/disk --hdb D/disk", &["in use"]),
    ("--kernel D/kernel --serial file:D", &["serial port's output", "directory"]),
    ("--kernel D/kernel --serial file:D/locked", &["serial port's output", "Permission denied"]),
    ("--kernel D/kernel --serial unix:D/used", &["used", "in use by another process"]),
    ("--kernel D/kernel --serial unix:D/short", &["is not a socket"]),
    ("--kernel D/kernel --debugcon file:D", &["firmware's messages", "directory"]),
    ("--kernel D/kernel --log-file D", &["cannot write the log", "directory"]),
    ("--kernel D/kernel --qmp unix:D/used", &["used", "in use by another process"]),
    ("--kernel D/kernel --display vnc:unix:D/used", &["used", "in use"]),
];

#[test]
fn files_that_cannot_be_used_are_named_in_one_line() {
    use std::os::unix::fs::PermissionsExt;

    let directory = Directory::new();
    directory.file("kernel", &kernel(HALT_FOR_EVER));
    directory.file("short", &[0; 700]);
    directory.file("odd", &vec![0; 4 << 20]);
    directory.file("disk", &[0; 512]);
    let locked = directory.file("locked", &[0; 512]);
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o0)).unwrap();
    // Root may read every file.
    let may_read_all = std::fs::read(&locked).is_ok();
    let _used = std::os::unix::net::UnixListener::bind(directory.path("used")).unwrap();
    for (line, parts) in UNUSABLE_FILES {
        if may_read_all && line.contains("locked") {
            continue;
        }
        let place = directory.path("").display().to_string();
        let words = line.split(' ').map(|word| {
            let word = word.replace("D/", &place);
            if word == "D" || word.ends_with(":D") { word.replace('D', &place) } else { word }
        });
        refuses(&words.collect::<Vec<_>>(), parts);
    }
}

#[test]
fn a_tcp_port_in_use_is_reported() {
    // The listener holds the port of a display.
    let (display, _listener) = (1..1000)
        .find_map(|display| {
            let listener = std::net::TcpListener::bind(("127.0.0.1", 5900 + display)).ok()?;
            Some((display, listener))
        })
        .expect("some port is free");
    let directory = Directory::new();
    let kernel = directory.file("kernel", &kernel(HALT_FOR_EVER));
    let display = format!("--display=vnc::{display}");
    refuses(
        &["--kernel".as_ref(), kernel.as_os_str(), display.as_ref()],
        &["cannot serve VNC", "it is in use"],
    );
}

#[test]
fn missing_and_wrong_firmware_is_named() {
    refuses(&["--bios", "/no/such/bios"], &["firmware", "/no/such/bios", "No such file"]);
    let directory = Directory::new();
    let text = directory.file("text", b"not a firmware");
    refuses(&["--bios".as_ref(), text.as_os_str()], &["text is not a firmware image", "14 bytes"]);
}

/// With firmware and a kernel, the message must name the one that is wrong.
#[test]
fn a_kernel_that_firmware_cannot_start_is_named() {
    let directory = Directory::new();
    let text = directory.file("text", b"not a firmware");
    let file = |name: &str, contents: &[u8]| directory.file(name, contents).into_os_string();
    let linux = file("linux", &crate::support::kernel(&[0xf4]));
    let words = [0x1bad_b002_u32, 0, 0x1bad_b002_u32.wrapping_neg()];
    let multiboot = file("multiboot", words.map(u32::to_le_bytes).as_flattened());
    let both = |kernel: &OsStr, bios: &OsStr, parts: &[&str]| {
        refuses(&["--kernel".as_ref(), kernel, "--bios".as_ref(), bios], parts);
    };
    both(&linux, text.as_os_str(), &["text is not a firmware image", "14 bytes"]);
    both(&multiboot, text.as_os_str(), &["multiboot", "leave --bios out"]);
    let image = file("image", &vec![0; 64 << 10]);
    both(text.as_os_str(), &image, &["text is not a Linux kernel"]);
}

/// A translator reserves much address space. If the process may have only little (`ulimit -v`), the
/// interpreter runs alone, unless the command line asks for the translator.
#[test]
fn without_addresses_only_the_interpreter_runs() {
    let directory = Directory::new();
    let kernel = directory.file("kernel", &kernel(HALT_FOR_EVER));
    let limited = |engine: &str| {
        let output = Command::new("sh")
            .args(["-c", "ulimit -v 3000000; exec \"$0\" \"$@\""])
            .arg(ring3().get_program())
            .args(["run", "--log", "info", "--engine", engine, "--kernel"])
            .arg(&kernel)
            .stdin(Stdio::null())
            .output()
            .expect("there is a shell");
        let errors = String::from_utf8(output.stderr).expect("messages are text");
        (output.status.code(), errors)
    };
    let (status, errors) = limited("auto");
    assert_eq!(status, Some(4), "{errors}");
    let said = errors
        .lines()
        .filter(|line| line.contains("using the interpreter instead of the translator"));
    assert_eq!(said.count(), 1, "{errors}");
    let (status, errors) = limited("translator");
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("the translator cannot run on this host"), "{errors}");
    assert!(errors.contains("--engine interpreter"), "{errors}");
}

#[test]
fn without_firmware_the_error_names_the_package_to_install() {
    let directory = Directory::new();
    let output = ring3()
        .args(["run", "--nic=user"])
        .env("XDG_DATA_HOME", directory.path("none"))
        .env("XDG_DATA_DIRS", directory.path("none"))
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let errors = String::from_utf8(output.stderr).expect("messages are text");
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("install SeaBIOS") && errors.contains("--bios"), "{errors}");
}

#[test]
fn wrong_command_lines_have_a_status_of_their_own() {
    misused(&["--initrd=i"], &["add --kernel FILE", "Usage:"]);
    misused(&["--kernel=k", "--boot=d"], &["--boot", "cannot be used"]);
    misused(&["--kernel=k", "--debugcon=tty"], &["tty", "file:PATH"]);
    misused(&["--kernel=k", "--no-such-option"], &["--no-such-option"]);
    misused(&["--kernel=k", "--memory=64G"], &["64G", "from 1M to 32G"]);
    misused(&["--kernel=k", "--memory=much"], &["much", "512M"]);
    misused(&["--kernel=k", "--serial=tty"], &["tty", "file:PATH"]);
    misused(&["--kernel=k", "--display=window"], &["window", "none"]);
    misused(&["--serial=null"; 5], &["at most four"]);
    misused(&["--engine=kvm"], &["kvm", "translator", "interpreter"]);
    misused(&["--rtc=base=never"], &["base=utc"]);
    misused(&["--seed=dice"], &["dice"]);
    misused(&["--log=ring3_vm=loud"], &["error, warn, info"]);
    misused(&["--debug-exit=0x10000"], &["I/O port"]);
    misused(&["--paused"], &["--qmp"]);
    misused(&["--drive=file=a,if=scsi"], &["ide, floppy, virtio or pflash"]);
    misused(&["--drive=file=a,cache=fast"], &["writethrough"]);
    misused(&["--drive=file=a,throttling.bps-total=1M"], &["\"1M\""]);
    misused(&["--boot=x"], &["order=LETTERS"]);
    misused(&["--cpu=Z80"], &["486", "max"]);
}

#[test]
fn qemus_options_are_refused_by_their_names() {
    let qemu = |arguments: &[&str]| {
        let output = ring3().arg("qemu").args(arguments).stdin(Stdio::null()).output();
        let output = output.expect("the program starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (arguments, says) in [
        (&["-frobnicate"][..], "ring3: -frobnicate is unknown; "),
        (&["-hda"], "ring3: -hda needs a value\n"),
        (&["-soundhw", "all"], "ring3: -soundhw all: there is no sound card"),
    ] {
        let (status, errors) = qemu(arguments);
        assert_eq!(status, Some(2), "{errors}");
        assert!(errors.starts_with(says) && errors.lines().count() == 1, "{errors}");
    }
    let (status, errors) = qemu(&["-kernel", "/no/such/kernel", "-display", "none"]);
    assert_eq!(status, Some(1));
    assert!(errors.starts_with("ring3: cannot read the kernel /no/such/kernel"), "{errors}");
    assert_eq!(qemu(&["-help"]), (Some(0), String::new()));
}

#[test]
fn help_and_version_are_there() {
    let help = ring3().args(["run", "--help"]).output().expect("the program starts");
    assert!(help.status.success());
    let help = String::from_utf8(help.stdout).expect("help is text");
    for part in ["Examples:", "Ctrl-A x", "Exit status:", "RING3_LOG"] {
        assert!(help.contains(part), "{part:?} is not in the help");
    }
    let version = ring3().arg("--version").output().expect("the program starts");
    let version = String::from_utf8(version.stdout).expect("the version is text");
    let rest = version.strip_prefix(concat!("ring3 ", env!("CARGO_PKG_VERSION")));
    assert!(matches!(rest, Some(rest) if rest == "\n" || rest.starts_with("+g")), "{version}");
}

#[test]
fn each_command_has_a_manual_page() {
    let directory = Directory::new();
    let pages = directory.path("man1");
    let made = ring3().arg("man").arg(&pages).output().expect("the program starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let help = ring3().arg("--help").output().expect("the program starts");
    let help = String::from_utf8(help.stdout).expect("help is text");
    let (_, commands) = help.split_once("Commands:\n").expect("help lists commands");
    let commands = commands.lines().take_while(|line| !line.is_empty());
    for command in commands.filter_map(|line| line.split_whitespace().next()) {
        let page = pages.join(format!("ring3-{command}.1"));
        let is_help = command == "help";
        assert!(is_help || page.metadata().is_ok_and(|page| page.len() > 0), "{command}");
    }

    let file = directory.file("file", b"");
    let refused = ring3().arg("man").arg(file.join("man1")).output().expect("the program starts");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the pages cannot be written there"));
}

#[test]
fn completions_can_be_read_by_the_shell() {
    let script = ring3().args(["completions", "bash"]).output().expect("the program starts");
    let directory = Directory::new();
    let script = directory.file("ring3.bash", &script.stdout);
    // The words that the shell proposes after "ring3 ru".
    let complete = "source \"$1\"; COMP_WORDS=(ring3 ru); COMP_CWORD=1; _ring3 ring3 ru ring3; \
                    echo \"${COMPREPLY[@]}\"";
    let proposed = Command::new("bash").args(["-c", complete, "bash"]).arg(script).output();
    assert_eq!(String::from_utf8_lossy(&proposed.expect("bash starts").stdout).trim(), "run");
}

#[test]
fn a_qmp_socket_that_cannot_be_made_is_reported() {
    let directory = Directory::new();
    let kernel = directory.file("kernel", &kernel(HALT_FOR_EVER));
    let precious = directory.file("precious", b"data");
    let run = |place: &OsStr, parts: &[&str]| {
        let mut qmp = OsStr::new("unix:").to_owned();
        qmp.push(place);
        refuses(&["--kernel".as_ref(), kernel.as_os_str(), "--qmp".as_ref(), &qmp], parts);
    };
    run(precious.as_os_str(), &["precious", "not a socket", "remove it"]);
    let used = directory.path("used");
    let listener = std::os::unix::net::UnixListener::bind(&used).unwrap();
    run(used.as_os_str(), &["used", "in use by another process"]);
    drop(listener);
    run("/no/such/socket".as_ref(), &["/no/such/socket", "No such file"]);
    misused(&["--kernel", "k", "--qmp", "stdio"], &["--qmp stdio", "--serial"]);
    misused(&["--kernel", "k", "--qmp", "tcp:1"], &["unix:PATH"]);
}

#[test]
fn measuring_without_guests() {
    let directory = Directory::new();
    let output = ring3()
        .args(["bench", "work", "--guests"])
        .arg(directory.path("none"))
        .output()
        .expect("the program starts");
    let errors = String::from_utf8(output.stderr).expect("messages are text");
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("make guests"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}
