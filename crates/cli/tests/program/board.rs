//! The devices that Debian's kernel finds on the board, and programs that test machines from inside.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::guest::{CONSOLE, Guest, PROMPT, WITH_MODULES, add_linux, file, linux};
use crate::support::qmp::Qmp;
use crate::support::{Directory, ring3, seabios};
use serde_json::json;

fn output(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

/// ACPI must list the mouse, or Linux does not look for it at its controller.
#[test]
fn debian_finds_the_mouse_and_sees_it_move() {
    let directory = Directory::new();
    let socket = directory.path("qmp");
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        command.arg(format!("--qmp=unix:{}", socket.display()));
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    guest.command("modprobe psmouse");
    // Linux looks for the mouse in the background.
    let devices = guest.command(
        "for i in $(seq 100); do grep -q 'Handlers=.*mouse' /proc/bus/input/devices && break; sleep 0.1; done; \
         cat /proc/bus/input/devices",
    );
    assert!(devices.contains("Mouse"), "{devices}");

    // /dev/input/mice returns packets of the PS/2 mouse: buttons, and the movement to the right and up.
    guest.begin("dd if=/dev/input/mice bs=3 count=1 2>/dev/null | od -t d1 -A n");
    let mut qmp = Qmp::connect(&socket);
    let moves = [("x", 7), ("y", -5)]
        .map(|(axis, value)| json!({"type": "rel", "data": {"axis": axis, "value": value}}));
    qmp.done("input-send-event", json!({"events": moves}));
    let moved = guest.end();
    let moved: Vec<_> = moved.split_whitespace().collect();
    assert_eq!(moved[1..], ["7", "5"], "{moved:?}");
    assert_eq!(guest.power_off(), Some(0));
}

/// Starts a guest by QEMU's options, with these more.
fn start_as_qemu(bios: Option<&Path>, options: &[&str]) -> Guest {
    let mut command = ring3();
    command.args(["qemu", "-m", "128", "-nographic", "-monitor", "none", "-no-reboot"]);
    command.args(options).args(["-append", CONSOLE, "-kernel"]);
    command.arg(linux()).arg("-initrd").arg(file("initramfs.cpio.gz"));
    command.args(bios.iter().flat_map(|bios| [Path::new("-bios"), bios]));
    let mut guest = Guest::of(command);
    guest.wait_for(PROMPT);
    guest
}

/// Asserts that the kernel has found an HPET, or works without it.
#[track_caller]
fn assert_hpet(guest: &mut Guest, is_there: bool) {
    let clocks =
        guest.command("cat /sys/devices/system/clocksource/clocksource0/available_clocksource");
    let told = guest.command("dmesg | grep -c '^.*hpet.*counter'");
    assert_eq!(clocks.split_whitespace().any(|clock| clock == "hpet"), is_there, "{clocks}");
    assert_eq!(told != "0", is_there, "{told}");
}

/// The identity of the machine and the HPET that QEMU's command lines add or remove. Without firmware the
/// machine itself provides the tables in which systems look for them. SeaBIOS puts the tables that it gets
/// there.
#[test]
fn debian_finds_what_a_qemu_command_line_asks_for() {
    const UUID: &str = "550e8400-e29b-41d4-a716-446655440000";
    let seabios = seabios();
    let firmware = [None, seabios.as_deref()];
    // Without -bios, a machine with a kernel has no firmware.
    for bios in firmware.into_iter().take(1 + usize::from(seabios.is_some())) {
        let mut guest = start_as_qemu(bios, &["-machine", "pc,hpet=on", "-uuid", UUID]);
        let told =
            guest.command("for name in product_uuid sys_vendor chassis_vendor; do cat /sys/class/dmi/id/$name; done");
        assert_eq!(told.split_whitespace().collect::<Vec<_>>(), [UUID, "ring3", "ring3"]);
        assert_hpet(&mut guest, true);
        assert_eq!(guest.power_off(), Some(0));
    }
    // `debian_finds_no_hpet_where_there_is_none` is the case of a machine without firmware.
    let mut guest = start_as_qemu(seabios.as_deref(), &["-machine", "pc,hpet=off"]);
    assert_hpet(&mut guest, false);
    assert_eq!(guest.power_off(), Some(0));
}

/// The texts that tools choose for the SMBIOS tables, with firmware and without.
#[test]
fn debian_reads_the_texts_of_a_qemu_command_line() {
    const OPTIONS: [&str; 8] = [
        "-smbios",
        "type=1,manufacturer=Maker,,Inc.,serial=ds=nocloud;s=http://10.0.2.2:8000/,family=Kin",
        "-smbios",
        "type=0,vendor=Coder,release=4.5",
        "-smbios",
        "type=2,asset=Tag",
        "-smbios",
        "type=3,sku=Case",
    ];
    const OEM: [&str; 2] = ["-smbios", "type=11,value=first,value=second"];
    let seabios = seabios();
    let firmware = [None, seabios.as_deref()];
    for bios in firmware.into_iter().take(1 + usize::from(seabios.is_some())) {
        let mut guest = start_as_qemu(bios, &[&OPTIONS[..], &OEM].concat());
        let told = guest.command(
            "(cd /sys/class/dmi; for name in sys_vendor product_serial product_family bios_vendor bios_release \
             board_asset_tag board_vendor product_name; do cat id/$name; done)",
        );
        let expected = [
            "Maker,Inc.",
            "ds=nocloud;s=http://10.0.2.2:8000/",
            "Kin",
            "Coder",
            "4.5",
            "Tag",
            "ring3",
            "PC (i440FX + PIIX3)",
        ];
        assert_eq!(told.lines().collect::<Vec<_>>(), expected);
        let tables = guest.command("tr '\\0' ' ' < /sys/firmware/dmi/tables/DMI");
        assert!(tables.contains("first second") && tables.contains("Case"), "{tables:?}");
        assert_eq!(guest.power_off(), Some(0));
    }
}

/// Starts a guest with modules and with options for the kernel.
fn boot(command_line: &str, options: &[&str]) -> Guest {
    let mut guest = Guest::start(|command| {
        command.arg("--kernel").arg(linux()).args(options);
        command.arg("--append").arg(format!("{CONSOLE} {command_line}"));
        for archive in WITH_MODULES {
            command.arg("--initrd").arg(file(archive));
        }
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    guest
}

/// Linux asks the device that ACPI names, and finds the files of the machine and of the user there.
#[test]
fn debian_reads_files_of_fw_cfg_without_firmware() {
    let directory = Directory::new();
    let path = directory.file("secret", b"from a file");
    let from_file = format!("--fw-cfg=name=opt/org.example/file,file={}", path.display());
    let mut guest = boot("quiet", &["--fw-cfg=name=opt/org.example/text,string=a,,b", &from_file]);
    guest.command("modprobe qemu_fw_cfg");
    let files = "cd /sys/firmware/qemu_fw_cfg/by_name/opt/org.example; cat text/raw; echo; cat file/raw; cd";
    assert_eq!(guest.command(files), "a,b\nfrom a file");
    assert_eq!(guest.command("wc -c < /sys/firmware/qemu_fw_cfg/by_name/etc/e820/raw"), "20");
    assert_eq!(guest.power_off(), Some(0));
}

/// The HPET serves as a clock, and as the timer that wakes up the processor, by the line of the interval
/// timer, which has none of its own then.
#[test]
fn debian_takes_the_hpet_for_its_clock_and_its_timer() {
    let mut guest = boot("clocksource=hpet nolapic_timer", &[]);
    let clock = "cat /sys/devices/system/clocksource/clocksource0/current_clocksource";
    assert_eq!(guest.command(clock), "hpet");
    let count = "grep -E '^ *0:.*timer' /proc/interrupts | awk '{print $2}'";
    let before: u64 = guest.command(count).parse().expect("a number");
    assert_eq!(guest.command("sleep 1; echo awake"), "awake");
    let after: u64 = guest.command(count).parse().expect("a number");
    assert!(after > before, "{before} interrupts, then {after}");
    let device = guest.command("cat /proc/timer_list | grep 'Clock Event Device: hpet'");
    assert!(!device.is_empty());
    assert_eq!(guest.power_off(), Some(0));
}

#[test]
fn debian_finds_no_hpet_where_there_is_none() {
    let mut guest = boot("quiet", &["--hpet=off"]);
    let clocks = "cat /sys/devices/system/clocksource/clocksource0/available_clocksource";
    let clocks = guest.command(clocks);
    // Whether the ACPI timer is among them depends on the host's load, since Linux compares it with the 8254.
    assert!(clocks.contains("tsc") && !clocks.contains("hpet"), "{clocks}");
    assert_eq!(guest.power_off(), Some(0));
}

/// Returns a kernel that checks for what kvm-unit-tests need. It ends the run with the number of the first
/// missing thing, or with 10h.
fn kvm_unit_test() -> Vec<u8> {
    const ADDRESS: u32 = 0x10_0000;
    const MAGIC: u32 = 0x1bad_b002;
    const FLAGS: u32 = 1 << 16;
    const CODE: &[u8] = &[
        0xbc, 0x00, 0x00, 0x18, 0x00, //                         MOV ESP, 180000h
        0xbb, 0x01, 0x00, 0x00,
        0x00, //                         MOV EBX, 1: fw_cfg has the number of processors
        0x66, 0xba, 0x10, 0x05, //                               MOV DX, 510h
        0x66, 0xb8, 0x05, 0x00, 0x66, 0xef, //                   MOV AX, 5; OUT DX, AX
        0x42, 0xec, 0x88, 0xc1, 0xec, 0x88,
        0xc5, //             INC EDX; IN AL, DX; MOV CL, AL; IN AL, DX; MOV CH, AL
        0x66, 0x83, 0xf9, 0x01, 0x75, 0x66, //                   CMP CX, 1; JNE fail
        0x43, //                                                 INC EBX: the test device has a register
        0xb8, 0x78, 0x56, 0x34, 0x12, 0xe7,
        0xe0, //             MOV EAX, 12345678h; OUT E0h, EAX
        0xb0, 0xab, 0xe6, 0xe1, 0xe5,
        0xe8, //                   MOV AL, ABh; OUT E1h, AL; IN EAX, E8h
        0x3d, 0x78, 0xab, 0x34, 0x12, 0x75, 0x51, //             CMP EAX, 1234AB78h; JNE fail
        0x43, //                                                 INC EBX: and memory
        0xbf, 0x00, 0x00, 0x00, 0xff, //                         MOV EDI, FF000000h
        0xc7, 0x47, 0x20, 0xfe, 0xca, 0x00, 0x00, //             MOV DWORD [EDI+20h], CAFEh
        0x81, 0x7f, 0x20, 0xfe, 0xca, 0x00, 0x00, 0x75,
        0x3b, // CMP DWORD [EDI+20h], CAFEh; JNE fail
        0x43, //                                                 INC EBX: and raises interrupts
        0xbf, 0x00, 0x00, 0xc0, 0xfe, //                         MOV EDI, FEC00000h
        0xc7, 0x07, 0x2c, 0x00, 0x00,
        0x00, //                   MOV DWORD [EDI], 2Ch: input 14
        0xc7, 0x47, 0x10, 0x41, 0x00, 0x00, 0x00, //             MOV DWORD [EDI+10h], 41h
        0xc7, 0x07, 0x2d, 0x00, 0x00, 0x00, //                   MOV DWORD [EDI], 2Dh
        0xc7, 0x47, 0x10, 0x00, 0x00, 0x00, 0x00, //             MOV DWORD [EDI+10h], 0
        0x66, 0xba, 0x0e, 0x20, //                               MOV DX, 200Eh
        0xb0, 0x01, 0xee, 0xb0, 0x00,
        0xee, //                   MOV AL, 1; OUT DX, AL; MOV AL, 0; OUT DX, AL
        0xf7, 0x05, 0x20, 0x02, 0xe0, 0xfe, //                   TEST DWORD [FEE00220h], 2
        0x02, 0x00, 0x00, 0x00, 0x74, 0x05, //                   JZ fail
        0xbb, 0x10, 0x00, 0x00, 0x00, //                         MOV EBX, 10h
        0x89, 0xd8, 0xe7, 0xf4,
        0xf4, //                         fail: MOV EAX, EBX; OUT F4h, EAX; HLT
    ];
    let sum = MAGIC.wrapping_add(FLAGS).wrapping_neg();
    let header = [MAGIC, FLAGS, sum, ADDRESS, ADDRESS, 0, 0, ADDRESS + 32];
    [header.map(u32::to_le_bytes).as_flattened(), CODE].concat()
}

/// Uses the command line that kvm-unit-tests have for QEMU.
#[test]
fn kvm_unit_tests_find_their_items_in_fw_cfg() {
    let directory = Directory::new();
    let kernel = directory.file("test.flat", &kvm_unit_test());
    let line = "-nodefaults -device pc-testdev -device isa-debug-exit,iobase=0xf4,iosize=0x4 -vnc none -serial stdio \
                -display none -m 16 -kernel";
    let run = |engine: &[&str], line: &str| {
        let mut command = ring3();
        command.arg("qemu").args(engine).args(line.split_whitespace()).arg(&kernel);
        output(command.stdin(Stdio::null())).status.code()
    };
    for engine in ["interpreter", "tcg"] {
        assert_eq!(run(&["-accel", engine], line), Some(0x21), "{engine}");
    }
    let without = line.replace("-device pc-testdev", "");
    assert_eq!(run(&[], &without), Some(2 * 2 + 1), "there is a test device nobody asked for");
}
