//! Encrypted disks: QEMU's options for their passwords have the same effects here.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::support::{Directory, ring3, seabios};

/// Sends "in the clear" by COM1, and ends the machine with status 33 by the port of isa-debug-exit: MOV SI,
/// 7C17h; CLD; LODSB; TEST AL, AL; JZ to the end; MOV DX, 3F8h; OUT DX, AL; JMP back; the end: MOV DX, F4h;
/// MOV AL, 10h; OUT DX, AL; JMP to itself.
const BOOT: &[u8] = b"\xbe\x17\x7c\xfc\xac\x84\xc0\x74\x06\xba\xf8\x03\xee\xeb\xf5\xba\xf4\x00\xb0\x10\xee\xeb\xfein the clear\n\0";

const PASSWORD: &str = "swordfish";

/// The options of `qemu-img convert` that make each image, and the image as a read-only drive.
const DRIVES: &[(&str, &str)] = &[
    (
        "-O luks -o key-secret=s,iter-time=10",
        "-drive file=disk,if=virtio,readonly=on,format=luks,key-secret=s",
    ),
    (
        "-O luks -o key-secret=s,iter-time=10",
        "-drive driver=luks,file.driver=file,file.filename=disk,key-secret=s,if=ide,snapshot=on",
    ),
    (
        "-O qcow2 -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
        "-drive file=disk,format=qcow2,if=virtio,readonly=on,encrypt.key-secret=s",
    ),
    (
        "-O qcow2 -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
        "-blockdev driver=file,filename=disk,node-name=f,read-only=on -blockdev \
         {\"driver\":\"qcow2\",\"file\":\"f\",\"node-name\":\"d\",\"read-only\":true,\"encrypt\":{\"format\":\"luks\",\"key-secret\":\"s\"}} \
         -device virtio-blk-pci,drive=d",
    ),
];

/// Forms of the password. The vector and data of the second form are made by: openssl enc -aes-256-cbc -K (32
/// times 31) -iv (16 times 32).
const SECRETS: &[&str] = &[
    "secret,id=s,data=swordfish",
    "secret,id=s,file=password",
    "secret,id=s,format=base64,data=c3dvcmRmaXNo",
    "{\"qom-type\":\"secret\",\"id\":\"s\",\"format\":\"base64\",\"file\":\"password.base64\"}",
    "secret,id=s,keyid=master,iv=MjIyMjIyMjIyMjIyMjIyMg==,format=base64,data=7BhTeH/M80a+LUQic2oVgg==",
];

/// Runs the machine of `program` with these options.
fn machine(program: &mut Command, directory: &Directory, options: &str) -> Output {
    program
        .current_dir(directory.path(""))
        .args("-m 64 -nic none -display none -monitor none".split(' '));
    program.args("-serial stdio -no-reboot -device isa-debug-exit,iobase=0xf4,iosize=4".split(' '));
    program.args(["-object", "secret,id=master,file=key"]);
    program
        .args(options.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

fn qemu() -> Option<Command> {
    if Command::new("qemu-system-i386").arg("--version").stdout(Stdio::null()).status().is_ok() {
        return Some(Command::new("qemu-system-i386"));
    }
    ring3_skipped::package("qemu-system-i386 is missing: install the package qemu-system-x86");
    None
}

fn as_qemu() -> Command {
    let mut command = ring3();
    command.arg("qemu");
    command
}

/// Makes a directory with the raw disk, and with files of passwords.
fn directory() -> Directory {
    let directory = Directory::new();
    let mut disk = vec![0; 1 << 20];
    disk[..BOOT.len()].copy_from_slice(BOOT);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    directory.file("raw", &disk);
    directory.file("password", PASSWORD.as_bytes());
    directory.file("password.base64", b"c3dvcmRmaXNo\n");
    directory.file("key", &[0x31; 32]);
    directory
}

/// Puts the image of the raw disk into the directory. qemu-img makes each once for all tests, because it computes for
/// two seconds to measure how fast it derives keys.
fn make(made: &'static str, directory: &Directory) {
    static MADE: Mutex<BTreeMap<&str, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut images = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(image) = images.get(made) {
        directory.file("disk", image);
        return;
    }
    // qemu-img can fail to measure how fast it derives keys; see `.cargo/config.toml`.
    let is_made = (0..100).any(|_| {
        let mut convert = Command::new("qemu-img");
        convert.args(["convert", "--object", SECRETS[0], "-f", "raw"]).args(made.split(' '));
        convert.args([directory.path("raw"), directory.path("disk")]);
        let made = convert.output().expect("qemu-img starts");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success() || said.contains("accurate CPU usage"), "{said}");
        made.status.success()
    });
    assert!(is_made, "the host has no time for qemu-img");
    images.insert(made, std::fs::read(directory.path("disk")).expect("it was made"));
}

#[test]
fn encrypted_images_boot_as_in_qemu() {
    if seabios().is_none() {
        return;
    }
    let directory = directory();
    let mut last = "";
    for (index, (made, drive)) in DRIVES.iter().enumerate() {
        if *made != last {
            make(made, &directory);
            last = made;
        }
        // The first drive is tried with every form of the password, each other one with a single form.
        let secrets = if index == 0 { SECRETS } else { &SECRETS[index..=index] };
        for secret in secrets {
            let options = format!("-object {secret} {drive}");
            for mut program in [Some(as_qemu()), qemu()].into_iter().flatten() {
                let ended = machine(&mut program, &directory, &options);
                let shown = String::from_utf8_lossy(&ended.stdout);
                let is_read = ended.status.code() == Some(33) && shown.contains("in the clear");
                assert!(is_read, "{program:?}: {ended:?}");
            }
        }
    }
}

/// A wrong password and the like end in one line, with QEMU and with ring3.
#[test]
fn wrong_passwords_are_explained() {
    let (made, drive) = DRIVES[0];
    let directory = directory();
    make(made, &directory);
    for (secret, drive, status, says) in [
        ("secret,id=s,data=wrong", drive, 1, "password"),
        ("secret,id=s,file=nothing", drive, 1, "cannot read nothing"),
        ("secret,id=s,format=base64,data=swordfish", drive, 1, "base64"),
        ("secret,id=other,data=swordfish", drive, 2, "-object secret,id=s,file=FILE"),
        ("secret,id=s", drive, 2, "secret,id=NAME,file=FILE"),
        ("secret,id=s,data=swordfish,format=hex", drive, 2, "raw or base64"),
        ("secret,id=master,data=swordfish", drive, 2, "already"),
        (
            "secret,id=s,data=swordfish,keyid=none,iv=MjIyMjIyMjIyMjIyMjIyMg==",
            drive,
            1,
            "No secret with id 'none'",
        ),
        (
            "secret,id=s,data=swordfish",
            "-drive file=disk,format=luks,if=virtio,readonly=on",
            1,
            "key-secret",
        ),
    ] {
        let options = format!("-object {secret} {drive}");
        for (mut program, is_ours) in [(Some(as_qemu()), true), (qemu(), false)] {
            let Some(program) = &mut program else { continue };
            let ended = machine(program, &directory, &options);
            if is_ours {
                let said = String::from_utf8_lossy(&ended.stderr);
                assert_eq!(ended.status.code(), Some(status), "{options}: {said}");
                assert!(said.contains(says), "{options}: {said}");
                assert!(status != 1 || said.lines().count() == 1, "{options}: {said}");
            } else {
                assert_eq!(ended.status.code(), Some(1), "{options}: {ended:?}");
            }
        }
    }
}
