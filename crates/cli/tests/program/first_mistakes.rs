//! First mistakes: command lines of people who come from QEMU, VirtualBox, User Mode Linux, v86 or
//! containers, or who have not read the book. Each line is a case: the words, the exit status, and a part of
//! the answer.

mod others;

use std::process::Stdio;

use crate::support::{Directory, HALT_FOR_EVER, kernel, output, ring3};

/// The working directory has the files `kernel`, `kernel64`, `disk.img` (empty), `disc.iso`, `floppy.img`,
/// `vmlinuz.gz`, `initrd.gz`, `disk.ova`, `text` and the directory `directory`.
const CASES: &[(&str, i32, &str)] = &[
    // Nothing, or help.
    ("", 2, "Usage: ring3 <COMMAND>"),
    ("help", 0, "run"),
    ("help run", 0, "--kernel <FILE>"),
    ("run help", 1, "\"ring3 run --help\" lists the options"),
    ("run -h", 0, "Examples:"),
    ("run -help", 2, "the option here is --help"),
    ("-version", 2, "--version"),
    ("version", 2, "\"ring3 --version\""),
    // Words in place of a command.
    ("boot", 2, "\"ring3 run\" runs a machine"),
    ("start", 2, "\"ring3 run\" runs a machine"),
    ("startvm win95", 2, "ring3 run disk.img"),
    ("createvm --name x", 2, "machines are not stored"),
    ("disk.img", 2, "ring3 run disk.img boots it"),
    ("runn disk.img", 2, "'run'"),
    ("ps", 2, "a process of its own"),
    ("pull debian", 2, "boots a file"),
    ("qemu-system-i386 -m 512", 2, "\"ring3 qemu\""),
    ("qemu-img create a 1G", 2, "\"ring3 img\""),
    ("create disk.qcow2 1G", 2, "ring3 img create"),
    ("install debian.iso", 2, "ring3 run disc.iso --hda disk.img"),
    ("--kernel kernel", 2, "ring3 run --kernel"),
    ("-hda disk.img", 2, "ring3 run -hda"),
    // A file without an option.
    ("run kernel", 4, "halted with interrupts disabled"),
    ("run kernel --append console=ttyS0", 4, "halted with interrupts disabled"),
    ("run kernel initrd.gz", 4, "halted with interrupts disabled"),
    ("run --replay x --to soon", 2, "soon is not a whole number"),
    ("run --replay x --to -5", 2, "-5: negative numbers are not allowed"),
    ("run --replay x --gdb stdio --checkpoints 0", 2, "must be at least 1"),
    ("run disk.img", 4, "no boot loader on disk.img"),
    ("run disc.iso", 4, "no boot loader on disc.iso"),
    ("run floppy.img", 4, "no boot loader on floppy.img"),
    ("run disc.iso --hda disk.img", 4, "no boot loader on disk.img, disc.iso"),
    ("run disk.img disc.iso floppy.img", 4, "disc.iso, floppy.img, disk.img"),
    ("run floppy.img floppy.img floppy.img", 1, "both drives have one"),
    ("run kernel64 --cpu max", 1, "is for 64-bit processors"),
    ("run kernel kernel", 1, "a machine starts only one"),
    ("run kernel --kernel kernel", 1, "a machine starts only one"),
    ("run kernel --boot d", 1, "leave --boot out"),
    ("run vmlinuz.gz", 1, "is compressed: unpack it with gunzip first"),
    ("run initrd.cpio", 1, "without a kernel"),
    ("run disk.ova", 1, "is an archive: unpack it"),
    ("run text", 1, "say what it is with --hda"),
    ("run directory", 1, "is a directory"),
    ("run /dev/null", 1, "say what it is with --hda"),
    ("run nothing.img", 1, "there is no file nothing.img"),
    ("run debian:12", 1, "boots a disk, a disc"),
    ("run ubd0=root_fs mem=128M", 1, "--drive file=root_fs,if=virtio"),
    ("run mem=128M", 1, "--mem 128M"),
    ("run disk.img --replay recording", 2, "cannot be used with"),
    // The wrong option for a file.
    ("run --kernel disk.img", 1, "give it with --hda"),
    ("run --kernel disc.iso", 1, "give it with --cdrom"),
    ("run --kernel floppy.img", 1, "give it with --fda"),
    ("run --kernel text", 1, "is not a Linux kernel"),
    ("run --kernel vmlinuz.gz", 1, "unpack it with gunzip"),
    ("run --initrd initrd.gz", 2, "add --kernel FILE"),
    ("run --append quiet", 2, "add --kernel FILE"),
    ("run --drive disk.img", 2, "file=disk.img"),
    ("run --hda disk.img,format=raw", 1, "--drive file="),
    ("run --hda", 2, "a value is required"),
    ("run --nic", 2, "a value is required"),
    // QEMU's options.
    ("run -kernel kernel", 2, "the option here is --kernel"),
    ("run -kernel kernel", 2, "\"ring3 qemu -kernel …\""),
    ("run -hda disk.img", 2, "the option here is --hda"),
    ("run -hda", 2, "the option here is --hda"),
    ("run -cdrom disc.iso -boot d", 2, "the option here is --cdrom"),
    ("run -drive file=disk.img", 2, "the option here is --drive"),
    ("run -nographic disk.img", 2, "leave it out"),
    ("run --nographic disk.img", 2, "the serial port is on this terminal"),
    ("run -vnc :0", 2, "--display vnc"),
    ("run --vnc :0", 2, "vnc::0"),
    ("run -smp 2", 2, "one processor"),
    ("run --smp 2", 2, "one processor"),
    ("run -s -S", 2, "--gdb tcp::1234"),
    ("run --gdb 1234", 2, "tcp::PORT"),
    ("run --debugger", 2, "--gdb unix:PATH"),
    ("run -S", 2, "--paused"),
    ("run -enable-kvm", 2, "needs no rights and no module"),
    ("run --accel kvm", 2, "needs no rights and no module"),
    ("run -M q35", 2, "440FX"),
    ("run --machine q35", 2, "440FX"),
    ("run -net nic -net user", 2, "--nic user"),
    ("run --netdev user,id=n", 2, "--nic user"),
    ("run --device e1000", 2, "--nic"),
    ("run --monitor stdio", 2, "--qmp unix:PATH"),
    ("run -daemonize", 2, "in the foreground"),
    ("run -curses", 2, "--display terminal"),
    ("run -usb", 2, "no USB"),
    ("run -soundhw sb16", 2, "no such device"),
    ("run -nic user", 2, "the option here is --nic"),
    ("run -serial mon:stdio", 2, "the option here is --serial"),
    ("run -memory 512", 2, "the option here is --memory"),
    ("run -no-reboot", 2, "the option here is --no-reboot"),
    ("run -whatever", 2, "\"ring3 qemu -whatever …\""),
    ("run --enable-kvm", 2, "needs no rights and no module"),
    ("run --daemonize", 2, "in the foreground"),
    // Other programs' options.
    ("run --memory-size 64 --hda disk.img", 2, "-m SIZE"),
    ("run --ram 64", 2, "-m SIZE"),
    ("run --cmdline quiet kernel", 2, "--append TEXT"),
    ("run --iso disc.iso", 2, "--cdrom FILE"),
    ("run --disk disk.img", 2, "--hda FILE"),
    ("run --floppy floppy.img", 2, "--fda FILE"),
    ("run --bzimage kernel", 2, "--kernel FILE"),
    ("run --headless disk.img", 2, "leave it out"),
    ("run -p 8080:80 disk.img", 2, "hostfwd"),
    ("run -it debian", 2, "the first serial port is on the terminal"),
    ("run -v /home:/home debian", 2, "--nic user"),
    ("run -d disk.img", 2, "in the foreground"),
    ("run --rm debian", 2, "for containers"),
    ("run --uefi disc.iso", 2, "--bios FILE"),
    ("run --verbose disk.img", 2, "--log info"),
    ("run --config machine.conf", 2, "no files with options"),
    // Typing errors.
    ("run --kernle kernel", 2, "'--kernel'"),
    ("run --memroy 64M", 2, "'--memory'"),
    ("run --cdrm disc.iso", 2, "'--cdrom'"),
    ("run --kernel kernel --engine translater", 2, "translator"),
    // Sizes.
    ("run -m 512MB kernel", 4, "halted"),
    ("run -m 64MiB kernel", 4, "halted"),
    ("run -m 64m kernel", 4, "halted"),
    ("run -m 1g kernel", 4, "halted"),
    ("run -m 65536K kernel", 4, "halted"),
    ("run -m=64M kernel", 4, "halted"),
    ("run -m64 kernel", 4, "halted"),
    ("run -m 64G kernel", 2, "from 1M to 32G"),
    ("run --memory 64G kernel", 2, "to 32G of memory"),
    ("run -m 536870912 kernel", 2, "a number without a unit is in MiB"),
    ("run -m 0 kernel", 2, "from 1M to 32G"),
    ("run -m 1.5G kernel", 2, "512M, 2G"),
    ("run -m lots kernel", 2, "512M, 2G"),
    // Questions about the values of an option.
    ("run --nic help", 0, "user"),
    ("run --nic help", 0, "hostfwd=tcp::2222-:22"),
    ("run --nic ?", 0, "switch"),
    ("run --nic=help", 0, "tap"),
    ("run --drive help", 0, "if=ide|floppy|virtio"),
    ("run --drive ?", 0, "cache="),
    ("run --cpu help", 0, "pentium4"),
    ("run --cpu ?", 0, "486"),
    ("run --display help", 0, "terminal"),
    ("run --serial help", 0, "unix:PATH"),
    ("run --boot help", 0, "order=LETTERS"),
    ("run --engine help", 0, "interpreter"),
    ("run --vga help", 0, "std"),
    ("run --rtc help", 0, "localtime"),
    ("run --memory help", 0, "512M"),
    ("run --qmp help", 0, "unix:PATH"),
    ("run --debugcon help", 0, "file:PATH"),
    ("run --log help", 0, "RING3_LOG"),
    ("img create -f help disk 1M", 0, "qcow2"),
    ("img create -f qcow2 -o help new 1M", 0, "cluster_size"),
    ("img convert -O qcow2 -o ? disk.img new", 0, "cluster_size"),
    ("img convert -O help disk.img new", 0, "vmdk"),
    ("switch --uplink help", 0, "--uplink tap,ifname=tap0"),
    ("switch --uplink ?", 0, "Kinds:"),
    ("switch --uplink mouse", 2, "for '--uplink <PROPERTIES>'"),
    ("switch --uplink user,hostfwd=help", 2, "--uplink"),
    ("switch --uplink", 2, "a value is required"),
    // Values of other programs.
    ("run --cpu host kernel", 2, "486, pentium"),
    ("run --cpu qemu32 kernel", 2, "486, pentium"),
    ("run --display gtk kernel", 2, "terminal or vnc:WHERE"),
    ("run --serial mon:stdio kernel", 2, "stdio"),
    ("run --vga cirrus kernel", 2, "std"),
    ("run --nic bridge kernel", 2, "user, switch"),
    ("run --nic nat kernel", 2, "user, switch"),
    ("run --nic user,model=rtl8139 kernel", 2, "e1000"),
    ("run --nic user,hostfwd=2222:22 kernel", 2, "hostfwd"),
    ("run --drive file=disk.img,if=scsi", 2, "ide, floppy, virtio or pflash"),
    ("run --drive file=disk.img,format=qcow", 1, "disk.img"),
    ("run --boot cdrom disk.img", 2, "order=LETTERS"),
];

#[test]
fn each_mistake_is_answered_with_advice() {
    let directory = Directory::new();
    directory.file("kernel", &kernel(HALT_FOR_EVER));
    let mut for_64_bits = kernel(HALT_FOR_EVER);
    for_64_bits[0x236] = 1;
    directory.file("kernel64", &for_64_bits);
    directory.file("disk.img", &vec![0; 4 << 20]);
    output(
        ring3()
            .args(["img", "create", "-q", "-f", "qcow2"])
            .arg(directory.path("empty.qcow2"))
            .arg("4M"),
    );
    let mut disc = vec![0; 1 << 20];
    disc[0x8001..0x8006].copy_from_slice(b"CD001");
    directory.file("disc.iso", &disc);
    directory.file("floppy.img", &vec![0; 1440 << 10]);
    directory.file("vmlinuz.gz", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3]);
    directory.file("initrd.gz", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3]);
    directory.file("initrd.cpio", b"07070100000000");
    let mut archive = vec![0; 10240];
    archive[257..262].copy_from_slice(b"ustar");
    directory.file("disk.ova", &archive);
    directory.file("text", b"#!/bin/sh\n");
    std::fs::create_dir(directory.path("directory")).unwrap();
    let mut wrong = String::new();
    for (words, status, piece) in CASES.iter().chain(others::CASES) {
        let mut command = ring3();
        command.args(words.split_whitespace()).current_dir(directory.path(""));
        let output = command.stdin(Stdio::null()).output().expect("the program starts");
        let [errors, text] =
            [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text));
        let said = if *status == 0 { &text } else { &errors };
        if output.status.code() != Some(*status) || !said.contains(piece) {
            use std::fmt::Write;
            let _ = writeln!(
                wrong,
                "ring3 {words}\n  {:?}, not {status} with {piece:?}:\n{errors}{text}",
                output.status
            );
        }
        // Help is long, but an error takes few lines, apart from the processor's state.
        if *status == 1 {
            assert_eq!(errors.lines().count(), 1, "ring3 {words}:\n{errors}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
