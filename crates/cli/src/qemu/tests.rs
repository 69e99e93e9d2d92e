//! Command lines as people write them, and what becomes of them.

use ring3_core::net::MacAddress;
use ring3_vm::drives::Cache;
use ring3_vm::{NicModel, VirtioNic};

use super::*;
use crate::args::Engine;
use crate::drives::{BootOptions, Interface};
use crate::nics::CardProperties;
use crate::nics::backend::Behind;
use crate::rtc::RtcBase;

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[track_caller]
fn run(line: &str) -> RunArguments {
    match translate(words(line), false) {
        Ok(run) => {
            run.check().unwrap_or_else(|error| panic!("{line}: {error}"));
            run
        }
        Err(error) => panic!("{line}: {error}"),
    }
}

#[track_caller]
fn refused(line: &str) -> String {
    translate(words(line), false).expect_err(line).to_string()
}

#[test]
fn a_kernel_on_the_serial_line() {
    let run = run(
        "qemu-system-i386 -kernel bzImage -initrd rootfs.cpio.gz -m 256M -nographic -no-reboot \
        -monitor none -nic none -smp 1 -append console=ttyS0",
    );
    assert_eq!(run.kernel.as_deref(), Some("bzImage".as_ref()));
    assert_eq!(run.initrd, ["rootfs.cpio.gz"].map(std::path::PathBuf::from));
    assert_eq!((run.append.as_str(), run.memory.bytes), ("console=ttyS0", 256 << 20));
    assert_eq!((run.serial, run.display), (vec![SerialTarget::Stdio], DisplayTarget::None));
    assert!(run.no_reboot && run.vga == Vga::Std);
    assert_eq!(run.cpu, Model::Pentium4);
}

#[test]
fn an_installation_from_a_cd() {
    let run = run(
        "/usr/bin/qemu-system-x86_64 -hda disk.img -cdrom install.iso -boot d -m 1G -vnc :1 -rtc base=localtime",
    );
    assert_eq!(run.drives.hda.as_deref(), Some("disk.img".as_ref()));
    assert_eq!(run.drives.cdrom.as_deref(), Some("install.iso".as_ref()));
    assert_eq!((run.drives.boot.order.as_str(), run.rtc), ("d", Some(RtcBase::LocalTime)));
    assert_eq!(run.display, "vnc::1".parse().unwrap());
    assert_eq!((run.serial, run.cpu), (vec![SerialTarget::Null], Model::Max));
    let run = self::run("-hda d -cdrom c -boot order=nc,once=d,menu=on,strict=off");
    let expected = BootOptions { order: "nc".into(), once: "d".into(), menu: true };
    assert_eq!(run.drives.boot, expected);
}

#[test]
fn network_cards() {
    let run = run(
        "-device virtio-net-pci,netdev=b,mac=52:54:00:00:00:02,host_mtu=9000,id=card,vectors=0 \
        -netdev user,id=a,hostfwd=tcp::2222-:22 -netdev socket,id=b,connect=:4444 \
        -device ne2k_isa,netdev=a,iobase=0x320,irq=3 -nic tap,ifname=tap0,id=c,model=virtio-net-pci",
    );
    let cards = run.nics.cards();
    let [tap, socket, user] = cards.as_slice() else { panic!("{cards:?}") };
    assert_eq!(tap.network.behind, Behind::Tap("tap0".into()));
    assert!(matches!(socket.network.behind, Behind::Stream(_)));
    assert_eq!(socket.mac, Some(MacAddress([0x52, 0x54, 0, 0, 0, 2])));
    let model = VirtioNic { mtu: Some(9000), ..VirtioNic::default() };
    assert_eq!(socket.model, NicModel::Virtio(model));
    assert_eq!(user.model, NicModel::Ne2000Isa { port: 0x320, irq: 3 });
    let ids = cards.iter().map(|card| (card.id.as_deref(), card.network.id.as_deref()));
    let named = [(None, Some("c")), (Some("card"), Some("b")), (None, Some("a"))];
    assert_eq!(ids.collect::<Vec<_>>(), named);
    assert!(matches!(&user.network.behind, Behind::User(nat) if nat.options.forwards.len() == 1));
    assert_eq!(self::run("-net none").nics.cards(), Vec::<&CardProperties>::new());
}

#[test]
fn time_by_instructions_is_deterministic() {
    let repetition = run("disk.img -icount shift=auto,sleep=on,rr=record,rrfile=file").repetition;
    assert!(repetition.deterministic);
    assert_eq!(repetition.record.as_deref(), Some("file".as_ref()));
    assert!(run("disk.img -icount 7").repetition.deterministic);
    assert!(!run("disk.img").repetition.deterministic);
    assert!(refused("-icount shift=11").contains("from 0 to 10"));
    assert!(refused("-icount shift=1,rr=replay,rrfile=f").contains("--replay FILE"));
    assert!(refused("-icount shift=1,rr=record").contains("rrfile=FILE"));
}

#[test]
fn a_disk_alone() {
    let run = run("disk.img");
    assert_eq!(run.drives.hda.as_deref(), Some("disk.img".as_ref()));
    assert_eq!(run.drives.boot.order, "cad");
}

#[test]
fn virtio_disks_have_their_drives_by_name() {
    let run = run("-device virtio-blk-pci,drive=two,num-queues=4,disable-legacy=auto \
        -drive if=none,id=one,file=a -drive if=none,id=two,file=b,format=qcow2 -drive file=c,if=virtio,id=three \
        -device virtio-blk,drive=one,serial=x,disable-legacy=on,id=disk");
    // Without -device it is attached at once.
    let disks: Vec<_> = run.drives.drive.iter().collect();
    assert!(disks.iter().all(|disk| disk.interface == Interface::Virtio));
    let files: Vec<_> = disks.iter().filter_map(|disk| disk.file.as_deref()).collect();
    assert_eq!(files, ["c", "b", "a"].map(std::path::Path::new));
    assert_eq!(disks[1].virtio.queues, 4);
    assert_eq!(disks[2].virtio.serial.as_deref(), Some("x"));
    assert!(!disks[2].virtio.interfaces.legacy);
}

#[test]
fn a_disk_of_a_server_is_a_driver() {
    let run = run("-drive if=virtio,driver=virtio-blk-vhost-user,path=a.sock,read-only=on");
    let disk = &run.drives.drive[0];
    assert_eq!(disk.vblock.as_deref(), Some("a.sock".as_ref()));
    assert!(disk.read_only && disk.file.is_none() && disk.format.is_none());
}

#[test]
fn a_disk_of_a_server_is_a_device_on_a_socket() {
    let run =
        run("-object memory-backend-memfd,id=ram,size=512M,share=on -M pc,memory-backend=ram \
        -device vhost-user-blk-pci,chardev=c,id=disk,num-queues=2,vectors=0,config-wce=on \
        -chardev socket,id=c,path=a.sock,reconnect=1");
    let disk = &run.drives.drive[0];
    assert_eq!(disk.vblock.as_deref(), Some("a.sock".as_ref()));
    assert_eq!(disk.interface, Interface::Virtio);
    assert_eq!((disk.virtio.id.as_deref(), disk.virtio.queues), (Some("disk"), 2));
}

#[test]
fn a_test_kernel_that_exits() {
    let run = run("--kernel test.bin --display none --serial mon:stdio -no-reboot \
        -device isa-debug-exit,iobase=0xf4,iosize=0x04 -machine pc-i440fx-7.2,accel=kvm:tcg -cpu 486");
    assert_eq!((run.debug_exit, run.cpu), (Some(0xf4), Model::I486));
    assert_eq!(run.serial, [SerialTarget::Stdio]);
    assert_eq!(self::run("-device isa-debug-exit").debug_exit, Some(0x501));
    let run = self::run("-device pc-testdev -no-hpet -fw_cfg opt/a,string=b -fw_cfg name=c,file=d");
    assert!(run.board.test_device && !run.board.hpet);
    let names: Vec<_> = run.board.fw_cfg.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["opt/a", "c"]);
    assert!(!self::run("-machine pc,hpet=off").board.hpet);
    assert!(self::run("-machine pc,hpet=on").board.hpet);
}

#[test]
fn engines_are_accelerators() {
    assert_eq!(run("-accel tcg").engine, Engine::Auto);
    assert_eq!(run("-accel interpreter").engine, Engine::Interpreter);
    assert_eq!(run("-M pc,accel=kvm:translator").engine, Engine::Translator);
}

#[test]
fn a_machine_for_tools() {
    let run = run(
        "-name guest=one,debug-threads=on -S -no-shutdown -qmp unix:/tmp/q,server=on,wait=off -nodefaults -vga std \
        -serial none -M pc,usb=off -accel tcg,thread=single -global isa-debugcon.iobase=0x402 \
        -debugcon file:log",
    );
    assert_eq!((run.name.as_deref(), run.paused), (Some("one"), true));
    assert!(run.no_shutdown && !run.no_reboot);
    assert_eq!(run.qmp, Some(QmpTarget::Socket("/tmp/q".into())));
    assert_eq!((run.vga, run.serial), (Vga::Std, vec![SerialTarget::None]));
    assert_eq!(run.debugcon, DebugTarget::File("log".into()));
    assert_eq!(self::run("-nodefaults").vga, Vga::None);
    let name = |line: &str| self::run(line).name;
    assert_eq!(name("-name debug-threads=on,guest=a,,b").as_deref(), Some("a,b"));
    assert_eq!(name("-name process=x"), None);
}

#[test]
fn several_serial_ports() {
    let run = run("-serial null -serial none -serial unix:a,,b,server,nowait -serial none");
    let expected = [SerialTarget::Null, SerialTarget::Null, SerialTarget::Socket("a,b".into())];
    assert_eq!(run.serial, expected);
    let files = self::run("-display none -serial file:a -serial pty").serial;
    assert_eq!(files, [SerialTarget::File("a".into()), SerialTarget::Pty]);
}

#[test]
fn drives_by_their_properties() {
    let run = run("-drive file=a,,b,format=raw,cache=none,aio=threads,id=d0,index=1,snapshot=on \
        -drive if=floppy,file=f,unit=1,readonly=on -drive file=cd.iso,media=cdrom,readonly -drive bus=1,unit=1,file=x");
    let drives = run.drives.drive;
    let hard_disk = DriveProperties::default();
    assert_eq!(
        drives,
        [
            DriveProperties {
                id: Some("d0".to_owned()),
                file: Some("a,b".into()),
                index: Some(1),
                format: Some(ring3_block::Format::Raw),
                snapshot: true,
                cache: Cache { direct: true, ..Cache::default() },
                ..hard_disk.clone()
            },
            DriveProperties {
                file: Some("f".into()),
                interface: Interface::Floppy,
                index: Some(1),
                read_only: true,
                ..hard_disk.clone()
            },
            DriveProperties {
                file: Some("cd.iso".into()),
                is_cdrom: true,
                read_only: true,
                ..hard_disk.clone()
            },
            DriveProperties { file: Some("x".into()), index: Some(3), ..hard_disk },
        ]
    );
}

#[test]
fn the_window_is_the_terminal_where_there_is_one() {
    let display = |line: &str| translate(words(line), true).unwrap().display;
    assert_eq!(display("-hda d"), DisplayTarget::Terminal);
    for line in ["-serial stdio", "-nographic", "-display none", "-nodefaults", "-vnc none"] {
        assert_eq!(display(line), DisplayTarget::None, "{line}");
    }
    assert_eq!(run("-curses").display, DisplayTarget::Terminal);
    assert_eq!(run("-display vnc=unix:/s").display, "vnc:unix:/s".parse().unwrap());
}

#[test]
fn what_cannot_be_is_refused_by_its_name() {
    for (line, part) in [
        ("-soundhw all", "-soundhw is not known"),
        ("-m", "-m needs a value"),
        ("-m 8G", "-m 8G: a machine has between"),
        ("-m 512,slots=2", "slots is not known"),
        ("-smp 2", "-smp 2: the machine has one processor"),
        ("-enable-kvm", "-enable-kvm: there is no KVM"),
        ("-accel kvm", "no KVM"),
        ("-M q35", "-M q35: the machine is a pc"),
        ("-cpu Icelake-Server", "-cpu Icelake-Server: there are the models 486, pentium"),
        ("-cpu max,+sse", "single features"),
        ("-no-acpi", "-no-acpi: ACPI"),
        ("-net user", "-net user: only none is known"),
        ("-nic user,model=rtl8139", "model is virtio"),
        ("-netdev user", "add id=NAME"),
        ("-netdev user,id=n", "no card has the network n"),
        ("-device virtio-net-pci,netdev=n", "there is no such network"),
        ("-device virtio-net-pci", "add netdev=ID"),
        (
            "-netdev user,id=n -device virtio-net-pci,netdev=n,romfile=a.rom,bootindex=x",
            "bootindex is",
        ),
        ("-netdev user,id=n -device ne2k_isa,netdev=n,romfile=a.rom", "cards on PCI"),
        ("-monitor stdio", "by -qmp"),
        ("-display gtk", "there is no window"),
        ("-vnc 0.0.0.0:1", "not served at 0.0.0.0"),
        ("-vnc :1,password=on", "no options"),
        ("-serial tcp::4444,server", "-serial tcp::4444,server: give stdio"),
        ("-serial unix:/s", "add server=on"),
        ("-qmp tcp:localhost:4444", "give stdio or unix:PATH"),
        ("-drive file=a,if=scsi", "if=ide, if=floppy, if=virtio"),
        ("-drive file=a,if=none", "add id=NAME"),
        ("-device virtio-blk-pci", "add drive=ID"),
        ("-device virtio-blk-pci,drive=d", "there is no such drive"),
        ("-device virtio-blk-pci,drive=d,num-queues=0", "from 1 to 16"),
        ("-device virtio-blk-pci,drive=d,iothread=x", "iothread is not known"),
        ("-device vhost-user-blk-pci", "add chardev=ID"),
        ("-device vhost-user-blk-pci,chardev=c", "-chardev socket,id=c,path=SOCKET"),
        ("-chardev socket,id=c,path=s", "add -device vhost-user-blk-pci,chardev=c"),
        ("-chardev socket,id=c,path=s -chardev socket,id=c,path=t", "two of the id c"),
        ("-chardev socket,id=c,path=s,server=on", "add server=off"),
        ("-chardev pty,id=c", "socket, for vhost-user-blk-pci"),
        ("-object rng-random,id=r", "memory-backend-memfd"),
        ("-drive file=a,format=qcow9", "no image format \"qcow9\""),
        ("-drive file=a,index=0,bus=0", "either index"),
        ("-drive file=a,index=300", "index is a number"),
        ("-drive file=a,size=1", "size is not known"),
        ("-boot x", "the letters are"),
        ("-boot splash=a", "splash is not known"),
        ("-device e1000e", "the only devices that can be added"),
        ("-device isa-debug-exit,iobase=x", "an I/O port"),
        ("-name a,b=c", "b is not known"),
        ("-rtc base=tomorrow", "base=utc"),
        ("-rtc clock=vm", "clock=host"),
        ("-S", "without -qmp"),
        ("-append x", "name one with -kernel"),
        ("-debugcon stdio", "port 402h"),
        ("-vga qxl", "std"),
        ("-parallel stdio", "no parallel port"),
        ("qemu-system-arm -m 1", "qemu-system-arm: the machine is a PC"),
    ] {
        let says = refused(line);
        assert!(says.contains(part), "{line}: {says}");
    }
}

#[test]
fn the_help_lists_every_option_once() {
    let help = help();
    for option in OPTIONS {
        let lines = help
            .lines()
            .filter(|line| line.split_whitespace().next() == Some(&format!("-{}", option.name)));
        assert_eq!(lines.count(), 1, "-{}", option.name);
    }
}
