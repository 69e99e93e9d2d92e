//! Kernels that start in real mode, by firmware: each boot protocol, and programs in the form of such kernels
//! that Debian has.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{Directory, output as output_of, ring3, seabios};

/// Where the setup header of these kernels must have ended, and their code begins.
const SETUP_CODE: usize = 0x240;

/// Real-mode code that sends its command line and the first byte of the protected-mode code to COM1, and
/// switches the machine off.
const TELL: &[u8] = &[
    0x81, 0x3e, 0x20, 0x00, 0x3f, 0xa3, // CMP WORD [20h], A33Fh
    0x74, 0x0e, //                         JE old
    0x66, 0xa1, 0x28, 0x02, //             MOV EAX, [228h]
    0x66, 0xc1, 0xe8, 0x04, //             SHR EAX, 4
    0x8e, 0xc0, //                         MOV ES, AX
    0x31, 0xf6, //                         XOR SI, SI
    0xeb, 0x06, //                         JMP print
    0x8b, 0x36, 0x22, 0x00, //             old: MOV SI, [22h]
    0x1e, 0x07, //                         PUSH DS; POP ES
    0xba, 0xf8, 0x03, //                   print: MOV DX, 3F8h
    0x26, 0xac, //                         next: LODSB from ES
    0x84, 0xc0, //                         TEST AL, AL
    0x74, 0x03, //                         JZ code
    0xee, //                               OUT DX, AL
    0xeb, 0xf7, //                         JMP next
    0xb8, 0xff, 0xff, //                   code: MOV AX, FFFFh
    0xbe, 0x10, 0x00, //                   MOV SI, 10h
    0xf6, 0x06, 0x11, 0x02, 0x01, //       TEST BYTE [211h], 1
    0x75, 0x05, //                         JNZ high
    0xb8, 0x00, 0x10, //                   MOV AX, 1000h
    0x31, 0xf6, //                         XOR SI, SI
    0x8e, 0xc0, //                         high: MOV ES, AX
    0x26, 0xac, 0xee, //                   LODSB from ES; OUT DX, AL
    0xba, 0x04, 0x06, //                   MOV DX, 604h
    0xb8, 0x00, 0x20, //                   MOV AX, 2000h
    0xef, 0xf4, //                         OUT DX, AX; HLT
];

/// Returns a kernel with this boot protocol whose real-mode code is [`TELL`], and whose protected-mode code
/// is the letter k.
fn kernel(version: u16, loadflags: u8) -> Vec<u8> {
    let mut file = vec![0; 3 * 512];
    let fields: [(usize, &[u8]); 8] = [
        (0x1f1, &[2]),                          // setup_sects
        (0x1fe, &0xaa55u16.to_le_bytes()),      // boot_flag
        (0x200, &[0xeb, 0x3e]),                 // jump over the header
        (0x202, b"HdrS"),                       // header
        (0x206, &version.to_le_bytes()),        // version
        (0x211, &[loadflags]),                  // loadflags
        (0x22c, &0x3fff_ffffu32.to_le_bytes()), // initrd_addr_max
        (0x238, &255u32.to_le_bytes()),         // cmdline_size
    ];
    for (offset, bytes) in fields.into_iter().chain([(SETUP_CODE, TELL)]) {
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    file.push(b'k');
    file
}

/// Runs the machine with this kernel.
fn run(kernel: &Path, options: &[&str]) -> Output {
    let mut command = ring3();
    command.args(["run", "--memory=32M", "--kernel"]).arg(kernel).args(options);
    command.stdin(Stdio::null()).output().expect("the program starts")
}

#[track_caller]
fn assert_says(output: &Output, expected: &str) {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(expected), "{said}");
}

#[test]
fn each_protocol_starts_where_it_belongs_with_its_command_line() {
    if seabios().is_none() {
        return;
    }
    let directory = Directory::new();
    for (version, loadflags) in
        [(0x200, 0), (0x200, 1), (0x201, 0), (0x202, 1), (0x203, 1), (0x205, 1), (0x206, 0)]
    {
        let path = directory.file("kernel", &kernel(version, loadflags));
        assert_says(&run(&path, &["--append=quiet splash"]), "quiet splashk");
    }
}

#[test]
fn bios_makes_firmware_start_a_kernel_that_needs_none() {
    let Some(bios) = seabios() else { return };
    let directory = Directory::new();
    let path = directory.file("kernel", &kernel(0x20f, 1));
    let bios = format!("--bios={}", bios.display());
    assert_says(&run(&path, &["--append=by firmware", &bios]), "by firmwarek");
}

/// Returns a file of a Debian package. If the host does not have it, this prints a note, and the test passes.
fn of_package(path: &str, package: &str) -> Option<PathBuf> {
    let path = PathBuf::from(path);
    if path.is_file() && seabios().is_some() {
        return Some(path);
    }
    ring3_skipped::package(format_args!(
        "{} is missing: install the package {package}",
        path.display()
    ));
    None
}

/// Returns a diskette whose boot sector reads the sector before the last one by the BIOS and sends the text
/// there to COM1.
fn diskette(text: &str) -> Vec<u8> {
    const READER: &[u8] = &[
        0xfa, //                   CLI
        0x31, 0xc0, //             XOR AX, AX
        0x8e, 0xd8, 0x8e, 0xc0, // MOV DS, AX; MOV ES, AX
        0x8e, 0xd0, //             MOV SS, AX
        0xbc, 0x00, 0x7c, //       MOV SP, 7C00h
        0xfb, //                   STI
        0xb8, 0x01, 0x02, //       MOV AX, 0201h: read one sector
        0xbb, 0x00, 0x80, //       MOV BX, 8000h
        0xb9, 0x11, 0x4f, //       MOV CX, 4F11h: cylinder 79, sector 17
        0xb6, 0x01, //             MOV DH, 1
        0xcd, 0x13, //             INT 13h
        0xba, 0xf8, 0x03, //       MOV DX, 3F8h
        0xbe, 0x00, 0x80, //       MOV SI, 8000h
        0xac, //                   next: LODSB
        0x84, 0xc0, //             TEST AL, AL
        0x74, 0x03, //             JZ off
        0xee, //                   OUT DX, AL
        0xeb, 0xf8, //             JMP next
        0xba, 0x04, 0x06, //       off: MOV DX, 604h
        0xb8, 0x00, 0x20, //       MOV AX, 2000h
        0xef, 0xf4, //             OUT DX, AX; HLT
    ];
    const SECTORS: usize = 2880;
    let mut image = vec![0; SECTORS * 512];
    image[..READER.len()].copy_from_slice(READER);
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    image[(SECTORS - 2) * 512..][..text.len()].copy_from_slice(text.as_bytes());
    image
}

/// Protocol 2.03; the diskette is its initial RAM disk.
#[test]
fn memdisk_boots_a_diskette_from_memory() {
    let Some(memdisk) = of_package("/usr/lib/syslinux/memdisk", "syslinux-common") else { return };
    let directory = Directory::new();
    let image = directory.file("diskette", &diskette("from a diskette"));
    let output = run(&memdisk, &["--append=floppy", &format!("--initrd={}", image.display())]);
    assert_says(&output, "from a diskette");
}

/// Protocol 2.07 without an entry in protected mode; its command line is a script.
#[test]
fn ipxe_executes_its_command_line() {
    let Some(ipxe) = of_package("/usr/lib/ipxe/ipxe.lkrn", "ipxe") else { return };
    let reset = run(&ipxe, &["--no-reboot", "--append=reboot"]);
    assert_eq!(reset.status.code(), Some(0), "{reset:?}");
    let nothing = run(&ipxe, &["--no-reboot", "--append=exit"]);
    assert_eq!(nothing.status.code(), Some(4), "{nothing:?}");
}

/// Protocol 2.03: GRUB as a kernel, which writes to the serial port and switches the machine off by the ACPI
/// tables.
#[test]
fn grub_starts_as_a_kernel() {
    let Some(start) = of_package("/usr/lib/grub/i386-pc/lnxboot.img", "grub-pc-bin") else {
        return;
    };
    let directory = Directory::new();
    let script = "serial --unit=0\nterminal_output serial\necho started by GRUB\nhalt\n";
    let script = directory.file("script", script.as_bytes());
    let core = directory.path("core");
    let mut mkimage = Command::new("grub-mkimage");
    mkimage.args(["-O", "i386-pc", "-p", "/"]).arg("-o").arg(&core).arg("-c").arg(script);
    output_of(mkimage.args(["serial", "terminal", "echo", "halt"]));
    let file = [std::fs::read(start), std::fs::read(core)].map(|file| file.expect("it is there"));
    let path = directory.file("kernel", &file.concat());
    assert_says(&run(&path, &[]), "started by GRUB");
}
