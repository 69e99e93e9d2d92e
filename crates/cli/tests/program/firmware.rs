//! Machines that start with firmware.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::guest::Guest;
use crate::support::{Directory, ring3, seabios};
use ring3_devices::acpi_pm::{CONTROL_BLOCK, DEFAULT_BASE, SLEEP_ENABLE, SLP_TYP_S5};

/// Runs `command` until a line of its output contains `wanted`, and returns all lines so far.
fn lines_until(command: &mut Command, wanted: &str) -> String {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the program starts");
    let stdout = child.stdout.take().expect("it was asked for");
    let mut lines = String::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.expect("firmware writes text");
        let _ = writeln!(lines, "{line}");
        if line.contains(wanted) {
            break;
        }
    }
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    lines
}

#[test]
fn seabios_reaches_its_boot_phase() {
    let Some(bios) = seabios() else { return };
    let mut command = ring3();
    command.args(["run", "-m16M", "--serial=file:/dev/null", "--debugcon=stdio", "--bios"]);
    let lines = lines_until(command.arg(bios), "Booting from Hard Disk");
    for part in [
        "Running on QEMU (i440fx)",
        "Found QEMU fw_cfg",
        "QEMU fw_cfg DMA interface supported",
        "PCI: init bdf=00:01.0 id=8086:7000",
        "Using pmtimer, ioport 0x608",
        "ACPI: parse DSDT",
        "PS2 keyboard initialized",
        // The ACPI tables are in two pages below the end.
        "0000000000100000 - 0000000000ffe000 = 1 RAM",
        "Booting from Hard Disk",
    ] {
        assert!(lines.contains(part), "{part:?} is not in {lines}");
    }
}

/// U-Boot reaches its prompt at the serial port, and its command for MTRRs finds them and changes one. It
/// needs either no display, or one with a ROM.
#[test]
fn u_boot_reaches_its_prompt() {
    const IMAGE: &str = "/usr/lib/u-boot/qemu-x86/u-boot.rom";
    const PROMPT: &str = "=> ";
    if !Path::new(IMAGE).is_file() {
        return ring3_skipped::package(format_args!(
            "{IMAGE} is missing: install the package u-boot-qemu"
        ));
    }
    let mut guest = Guest::start(|command| {
        command.args(["--vga", "none", "--nic", "none", "--bios", IMAGE]);
    });
    guest.wait_for("DRAM:  128 MiB");
    guest.wait_for(PROMPT);
    guest.type_line("mtrr set 0 Back 0 8000000");
    guest.wait_for(PROMPT);
    for (command, register) in [("mtrr enable 0", "Y     Back"), ("mtrr disable 0", "N     Back")] {
        guest.type_line(command);
        guest.wait_for(PROMPT);
        guest.type_line("mtrr");
        guest.wait_for(&format!("\n0   {register}"));
        guest.wait_for("\n7   N     Uncacheable");
        guest.wait_for(PROMPT);
    }
}

/// Returns a firmware image whose last 64 KiB begin with `code`, to which the reset vector jumps.
fn image(code: &[u8]) -> Vec<u8> {
    const SIZE: usize = 128 << 10;
    let mut image = vec![0xff; SIZE];
    image[SIZE - 0x10000..][..code.len()].copy_from_slice(code);
    image[SIZE - 16..][..5].copy_from_slice(&[0xea, 0, 0, 0, 0xf0]); // JMP F000:0000
    image
}

/// Returns 16-bit code that enables the ports of the power management function and switches the machine off.
fn power_off() -> Vec<u8> {
    let mut code = Vec::new();
    for (register, value) in [(0x8000_0b40, u32::from(DEFAULT_BASE)), (0x8000_0b80, 1)] {
        code.extend([0x66, 0xb8]); //                    MOV EAX, register
        code.extend(u32::to_le_bytes(register));
        code.extend([0xba, 0xf8, 0x0c, 0x66, 0xef]); //  MOV DX, CF8h; OUT DX, EAX
        code.extend([0x66, 0xb8]); //                    MOV EAX, value
        code.extend(u32::to_le_bytes(value));
        code.extend([0xba, 0xfc, 0x0c, 0x66, 0xef]); //  MOV DX, CFCh; OUT DX, EAX
    }
    let control = SLEEP_ENABLE | u16::from(SLP_TYP_S5) << 10;
    code.push(0xba); //                                  MOV DX, PM1a_CNT
    code.extend((DEFAULT_BASE + CONTROL_BLOCK).to_le_bytes());
    code.push(0xb8); //                                  MOV AX, SLP_EN and SLP_TYP
    code.extend(control.to_le_bytes());
    code.extend([0xef, 0xeb, 0xfe]); //                  OUT DX, AX; JMP to itself
    code
}

#[test]
fn a_reset_of_the_processor_or_of_the_machine_keeps_memory() {
    let directory = Directory::new();
    // Counts its starts at 0000:0500 and prints the count to the debug console. The first start ends in a
    // reset of the processor, the second in one of the machine, and the third switches off.
    let mut code = vec![
        0x31, 0xc0, 0x8e, 0xd8, //        XOR AX, AX; MOV DS, AX
        0xfe, 0x06, 0x00, 0x05, //        INC BYTE [500h]
        0xa0, 0x00, 0x05, 0x04, b'0', //  MOV AL, [500h]; ADD AL, '0'
        0xba, 0x02, 0x04, 0xee, //        MOV DX, 402h; OUT DX, AL
        0x3c, b'1', 0x75, 0x06, //        CMP AL, '1'; JNE
        0xb0, 0xfe, 0xe6, 0x64, //        MOV AL, FEh; OUT 64h, AL
        0xeb, 0xfe, //                    JMP to itself
        0x3c, b'2', 0x75, 0x08, //        CMP AL, '2'; JNE
        0xba, 0xf9, 0x0c, 0xb0, 0x06, //  MOV DX, CF9h; MOV AL, 6
        0xee, 0xeb, 0xfe, //              OUT DX, AL; JMP to itself
    ];
    code.extend(power_off());
    let bios = directory.file("bios", &image(&code));
    let mut command = ring3();
    command.args(["run", "-m2M", "--debugcon=stdio", "--stats", "--bios"]).arg(bios);
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "123");
    assert!(String::from_utf8_lossy(&output.stderr).contains(" 2 resets"), "{output:?}");
}

/// A machine with nothing to boot but firmware, which could not tell anybody that it finds nothing, ends with
/// advice. (Without firmware of the user's choice, it would boot Tern.)
#[test]
fn a_machine_without_anything_to_boot_is_reported() {
    let run = |arguments: &[&str]| {
        let output = ring3().arg("run").args(arguments).stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let Some(bios) = seabios() else { return };
    let directory = Directory::new();
    let disk = directory.file("empty", &vec![0; 1 << 20]);
    let bios = format!("--bios={}", bios.display());
    let hda = format!("--hda={}", disk.display());
    for (arguments, parts) in [
        (&[&*bios][..], &["nothing to boot", "--hda"][..]),
        (&[&*bios, &hda], &["found no system to boot", "empty", "--kernel"]),
    ] {
        let (status, errors) = run(arguments);
        assert_eq!(status, Some(4), "{errors}");
        for part in parts {
            assert!(errors.contains(part), "{part} is not in {errors}");
        }
    }
}

/// If somebody watches, the run continues.
#[test]
fn users_who_watch_learn_that_firmware_finds_nothing_to_boot() {
    let Some(bios) = seabios() else { return };
    let directory = Directory::new();
    let disk = directory.file("empty", &vec![0; 1 << 20]);
    let mut child = ring3()
        .args(["run", "-m16M", "--serial=null", "--display"])
        .arg(format!("vnc:unix:{}", directory.path("vnc").display()))
        .arg("--bios")
        .arg(bios)
        .arg("--hda")
        .arg(disk)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let line = BufReader::new(child.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(line.contains("the firmware has found no operating system on the drives"), "{line}");
    assert_eq!(child.try_wait().unwrap(), None);
    child.kill().unwrap();
    child.wait().unwrap();
}
