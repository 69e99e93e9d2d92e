//! UEFI: OVMF in flash memory, with variables that stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::moving::{moves, quit};
use crate::support::guest::{CONSOLE, Guest, PROMPT, file, file_if_there};
use crate::support::qmp::Qmp;
use crate::support::{Directory, output, ring3};

const ESCAPE: &str = "\x1b";
/// The GUID of variables that belong to no vendor but to this test.
const GUID: &str = "11111111-2222-3333-4444-555555555555";
/// The GUID of variables that Linux lets be changed and removed, as those of its own crashes; it protects unknown ones.
const LINUX_GUID: &str = "cfc8fc79-be2e-4ddc-97f0-9f98bfe298a0";

/// Returns OVMF and an empty store of variables, if they are there.
fn ovmf() -> Option<[PathBuf; 2]> {
    let code = file_if_there("ovmf/OVMF_CODE_4M.fd")?;
    Some([code, file_if_there("ovmf/OVMF_VARS_4M.fd")?])
}

/// Starts a machine with OVMF and this file of variables, and with the options that `add_options` adds.
fn start(code: &Path, variables: &Path, add_options: impl FnOnce(&mut Command)) -> Guest {
    let mut command = ring3();
    command.args(["run", "--cpu", "qemu64", "--serial", "stdio", "--flash"]);
    command.arg(format!("{},readonly=on", code.display())).arg("--flash").arg(variables);
    add_options(&mut command);
    Guest::of(command)
}

/// Types a line into the shell of UEFI.
fn type_line(guest: &mut Guest, line: &str) {
    guest.type_keys(&format!("{line}\r"));
}

/// In the shell of UEFI a variable is set. It is in the file then, and in the machine that continues from a saved one,
/// whatever has become of the file. The firmware switches the machine off at the port that it has chosen for that.
#[test]
fn ovmf_keeps_variables_in_flash_memory() {
    let Some([code, empty]) = ovmf() else { return };
    let directory = Directory::new();
    let [variables, qmp, saved] = ["variables", "qmp", "saved"].map(|name| directory.path(name));
    fs::copy(&empty, &variables).unwrap();
    let mut guest = start(&code, &variables, |command| {
        command.arg("--qmp").arg(format!("unix:{}", qmp.display()));
    });
    guest.wait_for("startup.nsh");
    guest.type_keys(ESCAPE);
    guest.wait_for("Shell>");
    type_line(&mut guest, &format!("setvar Kept -guid {GUID} -bs -rt -nv =0x1234"));
    // The shell may show its prompt twice when it starts, but it does one thing after the other.
    let show = format!("dmpstore Kept -guid {GUID}");
    type_line(&mut guest, &show);
    guest.wait_for("DataSize");
    guest.wait_for("Shell>");
    let in_file = || fs::read(&variables).unwrap();
    let name: Vec<u8> = "Kept".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert!(in_file().windows(name.len()).any(|bytes| bytes == name));

    output(ring3().args(["snapshot", "save"]).arg(&qmp).arg(&saved));
    drop(guest);
    let before = in_file();
    fs::copy(&empty, &variables).unwrap();
    let mut command = ring3();
    command.args(["run", "--serial", "stdio", "--restore"]).arg(&saved);
    let mut guest = Guest::of(command);
    type_line(&mut guest, &show);
    guest.wait_for("DataSize");
    guest.wait_for("Shell>");
    assert!(in_file() == before, "the file is that of the saved machine");
    type_line(&mut guest, "reset -s");
    assert_eq!(guest.wait_for_the_end(), Some(0));
}

/// Sets a variable in the shell of UEFI, and waits until it is shown.
fn set(guest: &mut Guest, name: &str) {
    type_line(guest, &format!("setvar {name} -guid {GUID} -bs -rt -nv =0x12"));
    type_line(guest, &format!("dmpstore {name} -guid {GUID}"));
    guest.wait_for("DataSize");
    guest.wait_for("Shell>");
}

/// Starts a machine whose shell of UEFI waits for commands.
fn start_shell(code: &Path, variables: &Path, options: &[&str]) -> Guest {
    let mut guest = start(code, variables, |command| {
        command.args(options);
    });
    guest.wait_for("startup.nsh");
    guest.type_keys(ESCAPE);
    guest.wait_for("Shell>");
    guest
}

/// A machine with flash memory goes back to a saved one, with its variables and their file, and moves with them to
/// another process.
#[test]
#[ignore = "starts OVMF once more, and moves it"]
fn ovmf_goes_back_and_moves() {
    let Some([code, empty]) = ovmf() else { return };
    let directory = Directory::new();
    let [variables, socket, saved, there] =
        ["variables", "qmp", "saved", "there"].map(|name| directory.path(name));
    let place = format!("unix:{}", directory.path("move").display());
    let [qmp, other_qmp] = [&socket, &there].map(|path| format!("unix:{}", path.display()));
    fs::copy(&empty, &variables).unwrap();
    let mut guest = start_shell(&code, &variables, &["--qmp", &qmp]);
    let in_file = |name: &str| {
        let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
        fs::read(&variables).unwrap().windows(name.len()).any(|bytes| bytes == name)
    };
    set(&mut guest, "First");
    output(ring3().args(["snapshot", "save"]).arg(&socket).arg(&saved));
    set(&mut guest, "Second");
    assert!(in_file("First") && in_file("Second"));
    output(ring3().args(["snapshot", "load"]).arg(&socket).arg(&saved));
    assert!(in_file("First") && !in_file("Second"));

    let mut command = ring3();
    command.args(["run", "--serial", "stdio", "--incoming", &place, "--qmp", &other_qmp]);
    let mut moved = Guest::of(command);
    let _awaited = Qmp::connect(&there);
    let mut qmp = Qmp::connect(&socket);
    moves(&mut qmp, &place);
    quit(qmp, guest);
    set(&mut moved, "Third");
    assert!(in_file("First") && !in_file("Second") && in_file("Third"));
    type_line(&mut moved, "reset -s");
    assert_eq!(moved.wait_for_the_end(), Some(0));
}

/// The firmware's run is repeated from a recording, which contains the variables, and leaves their file as it is.
#[test]
#[ignore = "repeats a run of OVMF in the interpreter, too"]
fn a_recording_of_ovmf_is_repeated() {
    let Some([code, empty]) = ovmf() else { return };
    let directory = Directory::new();
    let [variables, recording] = ["variables", "recording"].map(|name| directory.path(name));
    fs::copy(&empty, &variables).unwrap();
    let option = recording.display().to_string();
    let mut guest = start_shell(&code, &variables, &["--record", &option]);
    set(&mut guest, "Recorded");
    type_line(&mut guest, "reset -s");
    assert_eq!(guest.wait_for_the_end(), Some(0));
    let before = fs::read(&variables).unwrap();
    for engine in ["auto", "interpreter"] {
        let mut replay = ring3();
        replay.args(["run", "--engine", engine, "--replay"]).arg(&recording);
        let shown = output(&mut replay);
        assert_eq!(String::from_utf8_lossy(&shown).matches("DataSize").count(), 1, "{engine}");
    }
    assert!(fs::read(&variables).unwrap() == before);
}

/// Starts Linux by the firmware, which finds the kernel in fw_cfg, with the file system of the firmware's variables.
fn start_linux(code: &Path, variables: &Path, kernel: &Path) -> Guest {
    start(code, variables, |command| {
        command.args(["--memory", "512M", "--append", &format!("{CONSOLE} reboot=efi")]);
        command.arg("--kernel").arg(kernel);
        for archive in ["initramfs-amd64.cpio.gz", "modules-amd64.cpio.gz"] {
            command.arg("--initrd").arg(file(archive));
        }
    })
}

/// Waits for the shell, and goes where the variables are.
fn enter_variables(guest: &mut Guest) {
    const THERE: &str = "/sys/firmware/efi/efivars";
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    let said =
        guest.command(&format!("modprobe efivarfs; mount -t efivarfs none {THERE}; echo $?"));
    assert_eq!(said, "0");
    guest.command(&format!("ln -s {THERE} /vars"));
}

/// 64-bit Linux writes variables by the runtime services of the firmware, whose code it calls where it has mapped it. They
/// are there after the guest has restarted itself, also by those services, and in a machine that starts later.
#[test]
#[ignore = "starts OVMF and Linux three times"]
fn linux_keeps_variables_in_flash_memory() {
    let (Some([code, empty]), Some(kernel)) = (ovmf(), file_if_there("linux-amd64/vmlinuz")) else {
        return;
    };
    let directory = Directory::new();
    let variables = directory.path("variables");
    fs::copy(&empty, &variables).unwrap();
    // Four bytes of attributes come first: the variable is kept, and there for the firmware and for Linux.
    let write = |name: &str, text: &str| {
        format!("printf '\\007\\000\\000\\000{text}' > /vars/{name}-{LINUX_GUID}; echo $?")
    };
    let read = |name: &str| format!("tail -c +5 /vars/{name}-{LINUX_GUID}; echo");
    let mut guest = start_linux(&code, &variables, &kernel);
    enter_variables(&mut guest);
    assert_eq!(guest.command(&write("First", "kept")), "0");
    assert_eq!(guest.command(&write("Second", "old")), "0");
    guest.type_line("reboot -f");
    enter_variables(&mut guest);
    assert_eq!(guest.command(&read("First")), "kept");
    assert_eq!(guest.command(&read("Second")), "old");
    assert_eq!(guest.command(&write("Second", "changed")), "0");
    guest.command(&format!("rm /vars/First-{LINUX_GUID}"));
    assert_eq!(guest.power_off(), Some(0));

    let mut guest = start_linux(&code, &variables, &kernel);
    enter_variables(&mut guest);
    assert_eq!(guest.command(&read("Second")), "changed");
    assert_eq!(guest.command(&format!("ls /vars | grep -c {LINUX_GUID}")), "1");
    assert_eq!(guest.power_off(), Some(0));
}

/// OVMF finds GRUB on the disk's EFI system partition, and GRUB starts Debian's kernel by its EFI stub. Linux finds
/// the tables of ACPI that OVMF has put into memory, and switches the machine off by them.
#[test]
#[ignore = "starts OVMF and Linux"]
fn ovmf_boots_linux_with_acpi() {
    let (Some([code, empty]), Some(disk)) = (ovmf(), file_if_there("disk-amd64.img")) else {
        return;
    };
    let directory = Directory::new();
    let variables = directory.path("variables");
    fs::copy(&empty, &variables).unwrap();
    let mut guest = start(&code, &variables, |command| {
        command.args(["--memory", "512M", "--drive"]);
        command.arg(format!("file={},snapshot=on,if=virtio", disk.display()));
    });
    guest.wait_for("BdsDxe: starting Boot");
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    assert_eq!(guest.command("uname -m; cat /sys/firmware/efi/fw_platform_size"), "x86_64\n64");
    let show = "(cd /sys/firmware/acpi/tables; ls -d APIC DSDT FACP HPET)";
    assert_eq!(guest.command(show), "APIC  DSDT  FACP  HPET");
    let ports = guest.command("grep PM1a_CNT_BLK /proc/ioports");
    assert!(ports.trim().starts_with("b004-b005"), "{ports}");
    assert_eq!(guest.power_off(), Some(0));
}

/// The same disk boots by SeaBIOS and GRUB for BIOSes.
#[test]
#[ignore = "the same with a 32-bit kernel is among the tests of boot loaders"]
fn grub_boots_64_bit_linux() {
    let Some(disk) = file_if_there("disk-amd64.img") else { return };
    let mut guest = Guest::start(|command| {
        command.args(["--cpu", "qemu64", "--boot", "c", "--drive"]);
        command.arg(format!("file={},snapshot=on", disk.display()));
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    assert_eq!(guest.command("uname -m; ls /sys/firmware/efi 2>&1 | wc -l"), "x86_64\n1");
    assert!(guest.command("cat /proc/cmdline").starts_with("BOOT_IMAGE=/vmlinuz"));
    assert_eq!(guest.power_off(), Some(0));
}

/// What cannot be flash memory is refused, each with one line.
#[test]
fn files_that_are_no_flash_memory_are_refused() {
    let directory = Directory::new();
    let odd = directory.file("odd", &[0xff; 5120]);
    let small = directory.file("small", &[0xff; 4096]);
    let large = directory.file("large", &vec![0xff; (16 << 20) + 4096]);
    let said = |arguments: &[&str]| {
        let said: std::process::Output =
            Command::output(ring3().arg("run").args(arguments)).unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!((said.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        text
    };
    let [odd, small, large] = [&odd, &small, &large].map(|path| path.to_str().unwrap());
    assert!(said(&["--flash", odd]).contains("must be a multiple of 4 KiB"));
    assert!(said(&["--flash", small]).contains("it has 4096 bytes"));
    assert!(said(&["--flash", large]).contains("64 KiB to 16 MiB"));
    let second = format!("file={small},if=pflash,index=1");
    assert!(said(&["--drive", &second]).contains("the first flash memory is missing"));
    let third = format!("{small},readonly=on");
    assert!(said(&["--flash", third.as_str()].repeat(3)).contains("room for 2"));
}
