//! Command lines as people write them, and their translations.

use ring3_core::net::MacAddress;
use ring3_vm::drives::Cache;
use ring3_vm::{NicModel, VirtioNic};

use super::settings::{Address, Mode, Monitor, Place, SocketPlace};
use super::*;
use crate::args::Engine;
use crate::board::OnPanic;
use crate::drives::{BootOptions, DriveProperties, Interface};
use crate::nics::CardProperties;
use crate::nics::backend::Behind;
use crate::rtc::RtcBase;

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[track_caller]
fn with_warnings(line: &str) -> (RunArguments, Vec<String>) {
    match translate(words(line), false) {
        Ok(Wanted::Run(run, warnings)) => {
            run.check().unwrap_or_else(|error| panic!("{line}: {error}"));
            (*run, warnings)
        }
        other => panic!("{line}: {other:?}"),
    }
}

#[track_caller]
fn run(line: &str) -> RunArguments {
    with_warnings(line).0
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
    assert_eq!(run.cpu, Some(Model::Pentium4));
}

/// The modules of a Multiboot kernel keep their arguments, in which two commas stand for one.
#[test]
fn modules_have_arguments() {
    let line = ["-kernel", "xen", "-initrd", "vmlinuz console=hvc0 a=1,,2,root.cpio.gz"];
    let Ok(Wanted::Run(run, _)) = translate(line.to_vec(), false) else { panic!("{line:?}") };
    let modules = ["vmlinuz console=hvc0 a=1,2", "root.cpio.gz"];
    assert_eq!(run.initrd, modules.map(std::path::PathBuf::from));
}

/// As in QEMU, the name of the program decides whether the host's processor, or all that there is, has a 64-bit mode.
#[test]
fn models_have_a_64_bit_mode_by_the_name_of_the_program() {
    for (model, expected) in [
        ("host", Model::X86_64_V3),
        ("max", Model::X86_64_V3),
        ("core2duo", Model::X86_64_V2),
        ("IvyBridge", Model::X86_64_V2),
        ("Haswell-noTSX", Model::X86_64_V3),
        ("x86-64-v3", Model::X86_64_V3),
        ("EPYC-Rome-v2", Model::X86_64_V3),
    ] {
        let cpu = |program: &str| run(&format!("{program} -cpu {model} -hda d")).cpu;
        assert_eq!(cpu("qemu-system-x86_64"), Some(expected), "{model}");
        assert_eq!(cpu("qemu-system-i386"), Some(Model::Max), "{model}");
    }
    assert_eq!(run("-cpu host -hda d").cpu, Some(Model::Max));
    assert_eq!(run("-cpu Haswell -hda d").cpu, Some(Model::X86_64_V3));
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
    assert_eq!((run.serial, run.cpu), (vec![SerialTarget::Null], Some(Model::Qemu64)));
    let run = self::run("-hda d -cdrom c -boot order=nc,once=d,menu=on,strict=on");
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
    // Without -device, the drive is attached at once.
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
    assert_eq!((run.debug_exit, run.cpu), (Some(0xf4), Some(Model::I486)));
    assert_eq!(run.serial, [SerialTarget::Character(0)]);
    assert_eq!(run.qemu.monitors, [Monitor { character: 0, mode: Mode::Readline }]);
    assert_eq!(self::run("-device isa-debug-exit").debug_exit, Some(0x501));
    let run = self::run("-device pc-testdev -no-hpet -fw_cfg opt/a,string=b -fw_cfg name=c,file=d");
    assert!(run.board.test_device && !run.board.hpet);
    assert_eq!(run.board.generation_id, GenerationId::Off);
    let given = "-device vmgenid,guid=324e6eaf-d1d1-4bf6-bf41-b9bb6c91fb87,id=g";
    assert!(matches!(self::run(given).board.generation_id, GenerationId::Number(_)));
    assert!(!run.board.vmcoreinfo && self::run("-device vmcoreinfo").board.vmcoreinfo);
    assert_eq!(self::run("-device vmgenid").board.generation_id, GenerationId::Auto);
    let names: Vec<_> = run.board.fw_cfg.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["opt/a", "c"]);
    assert!(!self::run("-machine pc,hpet=off").board.hpet);
    assert!(self::run("-machine pc,hpet=on").board.hpet);
}

#[test]
fn panics_have_the_device_and_the_action() {
    let panic = |arguments: &str| {
        let run = run(arguments);
        (run.board.on_panic, run.qemu.status_of_panic)
    };
    assert_eq!(panic("-action panic=pause"), (None, None));
    let end = (Some(OnPanic::End), Some(Status::Ended));
    assert_eq!(panic("-device pvpanic"), end);
    assert_eq!(panic("-device pvpanic,ioport=0x505,events=1 -action panic=shutdown"), end);
    let failure = (Some(OnPanic::End), Some(Status::HostError));
    assert_eq!(panic("-action panic=exit-failure -device pvpanic"), failure);
    assert_eq!(panic("-device pvpanic -action panic=none").0, Some(OnPanic::Continue));
    assert_eq!(panic("-device pvpanic -action reboot=reset,panic=pause").0, Some(OnPanic::Pause));
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
    let socket = SocketPlace {
        address: Address::Unix("/tmp/q".into()),
        is_server: true,
        telnet: false,
        reconnect: None,
    };
    assert_eq!(run.qemu.characters[0].place, Place::Socket(socket));
    assert_eq!(run.qemu.monitors, [Monitor { character: 0, mode: Mode::Control }]);
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
    let display = |line: &str| match translate(words(line), true).unwrap() {
        Wanted::Run(run, _) => run.display,
        Wanted::Text(text) => panic!("{text}"),
    };
    assert_eq!(display("-hda d"), DisplayTarget::Terminal);
    for line in [
        "-serial stdio",
        "-monitor stdio",
        "-qmp stdio",
        "-daemonize",
        "-nographic",
        "-display none",
        "-nodefaults",
        "-vnc none",
    ] {
        assert_eq!(display(line), DisplayTarget::None, "{line}");
    }
    assert_eq!(run("-curses").display, DisplayTarget::Terminal);
    // libvirt writes it like this.
    let vnc = run("-vnc vnc=unix:/s,audiodev=audio1").display;
    assert_eq!(vnc, "vnc:unix:/s".parse().unwrap());
    assert_eq!(run("-display vnc=unix:/s").display, "vnc:unix:/s".parse().unwrap());
}

#[test]
fn unsupported_options_are_refused_by_name() {
    for (line, part) in [
        ("-nonsense", "-nonsense is unknown"),
        ("-soundhw all", "-soundhw all: there is no sound card"),
        ("-m", "-m needs a value"),
        ("-m 64G", "give at most -m 32G"),
        ("-m 512,colour=2", "no property colour"),
        ("-accel nothing", "no accelerator nothing"),
        ("-M microvm", "-M microvm: the machine is a pc"),
        ("-cpu Zilog", "there is no such model; the models are 486"),
        ("-nic user,model=rtl8139", "there is no such network card"),
        ("-net nic,model=pcnet -net user", "there is no such network card"),
        ("-net nic", "no network behind the card"),
        ("-net nic -net nic -net user", "there are no hubs"),
        ("-netdev user", "add id=NAME"),
        ("-netdev vde,id=n", "there is no vde"),
        ("-device virtio-net-pci,netdev=n", "there is no such network"),
        ("-device virtio-net-pci", "add netdev=ID"),
        (
            "-netdev user,id=n -device virtio-net-pci,netdev=n,romfile=a.rom,bootindex=x",
            "bootindex must be",
        ),
        ("-netdev user,id=n -device ne2k_isa,netdev=n,romfile=a.rom", "PCI cards"),
        ("-monitor stdio -serial stdio", "several options use standard input"),
        ("-mon chardev=c", "give -chardev KIND,id=c"),
        ("-chardev null,id=c -chardev null,id=c", "two character devices have the id c"),
        ("-chardev pty,id=c -serial chardev:c -mon c", "add mux=on"),
        ("-vnc :1,password=on", "no password here"),
        ("-serial udp::4444", "cannot use datagrams"),
        ("-serial /dev/ttyS0", "ports of the host"),
        ("-serial tcp:10.0.0.1:4444,server", "no clients from other hosts"),
        ("-drive file=a,if=scsi", "there is no SCSI"),
        ("-drive file=fat:rw:directory", "vvfat"),
        ("-hda fat:directory", "vvfat"),
        ("-cdrom http://x/y.iso", "fetch the file"),
        ("-drive file=a,if=none", "add id=NAME"),
        ("-device virtio-blk-pci", "add drive=ID"),
        ("-device virtio-blk-pci,drive=d", "there is no such drive"),
        ("-device virtio-blk-pci,drive=d,num-queues=0", "from 1 to 16"),
        ("-device virtio-blk-pci,drive=d,colour=x", "no property colour"),
        ("-device virtio-blk-pci,drive=d,logical_block_size=4096", "sectors always have 512 bytes"),
        ("-device vhost-user-blk-pci", "add chardev=ID"),
        ("-device vhost-user-blk-pci,chardev=c", "-chardev socket,id=c,path=SOCKET"),
        (
            "-chardev socket,id=c,path=s,server=on -device vhost-user-blk-pci,chardev=c",
            "server=off",
        ),
        ("-drive file=a,format=qcow9", "no image format \"qcow9\""),
        ("-drive file=a,index=0,bus=0", "either index"),
        ("-drive file=a,index=300", "index must be a number"),
        ("-drive file=a,size=1", "no property size"),
        ("-blockdev file,filename=a", "add node-name=NAME"),
        ("-blockdev raw,node-name=a,file=b", "there is no node b"),
        ("-boot x", "the letters are"),
        ("-device e1000e", "there is no such network card"),
        ("-device nothing", "there is no such device"),
        ("-device isa-debug-exit,iobase=x", "an I/O port"),
        ("-device pvpanic,ioport=0x506", "0x505"),
        ("-action panic=weep", "exit-failure"),
        ("-name a,b=c", "no property b"),
        ("-uuid 1-2", "a UUID looks like"),
        ("-smbios type=1,asset=1", "there is no property asset"),
        ("-rtc base=tomorrow", "base=utc"),
        ("-S", "without -qmp, -monitor or -gdb"),
        ("-append x", "name one with -kernel"),
        ("-debugcon stdio", "port 402h"),
        ("-vga voodoo", "std"),
        ("-parallel stdio", "no parallel port"),
        ("-daemonize -serial stdio", "-daemonize: a daemon has no standard"),
        ("qemu-system-arm -m 1", "qemu-system-arm: the machine is a PC"),
    ] {
        let says = refused(line);
        assert!(says.contains(part), "{line}: {says}");
    }
}

#[test]
fn all_unsupported_options_are_reported_at_once() {
    let says = refused(
        "-hda d -soundhw hda -device usb-tablet -nonsense value -smp 2 -tpmdev x -device virtio-blk,drive=none -m 90G",
    );
    let named = [
        "-soundhw",
        "-device usb-tablet",
        "-nonsense",
        "-tpmdev",
        "virtio-blk,drive=none",
        "-m 90G",
    ];
    assert_eq!(says.lines().count(), named.len() + 1, "{says}");
    assert!(says.starts_with("6 options cannot be met:"), "{says}");
    for (line, option) in says.lines().skip(1).zip([
        "-soundhw",
        "-device",
        "-nonsense",
        "-tpmdev",
        "-m 90G",
        "-device",
    ]) {
        assert!(line.trim_start().starts_with(option), "{says}");
    }
}

#[test]
fn ignored_options_are_reported_once() {
    for (line, part) in [
        ("-enable-kvm", "-enable-kvm: ring3 executes"),
        ("-accel kvm", "-accel kvm: ring3 executes"),
        ("-smp 2", "-smp 2: the machine has only one processor"),
        ("-smp cores=2,threads=2", "only one processor"),
        ("-M q35", "-M q35: the machine is a pc"),
        ("-cpu max,+avx2", "it lacks avx2"),
        ("-cpu pentium3,-sse", "has sse nevertheless"),
        ("-cpu EPYC-Rome-v2", "the model here is x86-64-v3"),
        ("qemu-system-i386 -cpu EPYC", "the model here is max"),
        ("-cpu x86-64-v2-AES", "the model here is x86-64-v2"),
        ("-no-acpi", "-no-acpi: ACPI"),
        ("-vga cirrus", "std"),
        ("-display gtk", "there is no window"),
        ("-vnc 0.0.0.0:1", "no clients from other hosts"),
        ("-netdev user,id=n", "no card uses it"),
        ("-net user", "no card uses it"),
        ("-usb", "there is no USB"),
        ("-device qemu-xhci", "no such controller"),
        ("-global nothing.x=1", "no device here has this property"),
        ("-smbios type=17,serial=1", "serial=1: structures of type 17"),
        ("-smbios file=f", "structures cannot be given as bytes"),
        ("-d int", "RING3_LOG"),
        ("qemu-system-x86_64 -cpu pentium3 -hda d", "has no 64-bit mode"),
    ] {
        let (_, warnings) = with_warnings(line);
        let of_it = warnings.iter().filter(|warning| warning.contains(part));
        assert_eq!(of_it.count(), 1, "{line}: {warnings:?}");
    }
    for silent in [
        "qemu-system-x86_64 -hda d",
        "-accel kvm -accel tcg",
        "-M pc,accel=kvm:tcg,usb=off,vmport=off",
        "-cpu host,kvm=off,+sse2,-avx2",
        "-k de -msg timestamp=on -overcommit mem-lock=off -no-user-config -nodefaults",
        "-uuid 550e8400-e29b-41d4-a716-446655440000 -no-fd-bootchk -no-hpet -rtc base=utc,driftfix=slew",
        "-smbios type=0,uefi=on -smbios type=1,serial=1 -smbios type=11,value=a,path=b",
        "-boot order=dc,menu=on,strict=on,reboot-timeout=5 -global PIIX4_PM.disable_s3=1",
        "-smp 1,sockets=1,cores=1,threads=1,maxcpus=2",
        "qemu-system-x86_64 -cpu host -accel tcg",
    ] {
        assert_eq!(with_warnings(silent).1, Vec::<String>::new(), "{silent}");
    }
}

#[test]
fn block_nodes_are_drives_with_other_names() {
    let run = run(
        r#"-blockdev {"driver":"file","filename":"a","node-name":"f","auto-read-only":true,"discard":"unmap"}
        -blockdev {"node-name":"q","read-only":true,"driver":"qcow2","file":"f","cache":{"direct":true}}
        -blockdev driver=raw,node-name=r,file.driver=file,file.filename=b
        -device {"driver":"ide-hd","bus":"ide.1","unit":1,"drive":"q","id":"disk","bootindex":2,"serial":"S"}
        -device virtio-blk-pci,drive=r,bus=pci.0,addr=0x4,id=v,bootindex=1,write-cache=off -device ide-cd,bus=ide.0,id=cd"#,
    );
    let [ide, virtio, cd] = run.drives.drive.as_slice() else { panic!("{:?}", run.drives.drive) };
    assert_eq!(
        (ide.file.as_deref(), ide.format),
        (Some("a".as_ref()), Some(ring3_block::Format::Qcow2))
    );
    assert!(ide.read_only && ide.cache.direct && ide.is_node && ide.discard);
    assert_eq!((ide.index, ide.boot_index, ide.id.as_deref()), (Some(3), Some(2), Some("q")));
    assert_eq!((ide.ide.id.as_deref(), ide.ide.serial.as_deref()), (Some("disk"), Some("S")));
    assert_eq!((virtio.file.as_deref(), virtio.boot_index), (Some("b".as_ref()), Some(1)));
    assert!(!virtio.cache.writeback && virtio.interface == Interface::Virtio);
    assert!(cd.is_cdrom && cd.file.is_none() && cd.index == Some(0));
}

#[test]
fn the_oldest_network_options_are_a_card() {
    let run = run(
        "-net nic,model=ne2k_pci,macaddr=52:54:00:00:00:09 -net user,hostfwd=tcp::2222-:22 -net nic,vlan=1 -net tap,vlan=1,ifname=t,script=no",
    );
    let [first, second] = run.nics.cards()[..] else { panic!("{:?}", run.nics) };
    assert_eq!(first.model, NicModel::Rtl8029);
    assert_eq!(first.mac, Some(MacAddress([0x52, 0x54, 0, 0, 0, 9])));
    assert!(matches!(&first.network.behind, Behind::User(nat) if nat.options.forwards.len() == 1));
    assert_eq!((second.model, &second.network.behind), (NicModel::E1000, &Behind::Tap("t".into())));
}

#[test]
fn serial_ports_and_monitors_share_places() {
    let line = "-chardev stdio,id=c,mux=on,signal=off -mon chardev=c,mode=readline -serial chardev:c \
        -serial telnet::4444,server,nowait -monitor unix:m,server=on -qmp tcp:localhost:4445,server -device isa-serial,chardev=n -chardev null,id=n";
    let run = run(line);
    assert_eq!(
        run.serial,
        [SerialTarget::Character(0), SerialTarget::Character(1), SerialTarget::Character(4)]
    );
    let places: Vec<_> = run.qemu.characters.iter().map(|character| &character.place).collect();
    assert_eq!((places[0], places[4]), (&Place::Stdio, &Place::Null));
    assert!(run.qemu.characters[0].is_shared);
    let Place::Socket(telnet) = places[1] else { panic!("{places:?}") };
    assert!(
        telnet.telnet
            && telnet.is_server
            && telnet.address == Address::Tcp("127.0.0.1".into(), 4444)
    );
    let modes: Vec<_> = run.qemu.monitors.iter().map(|at| (at.character, at.mode)).collect();
    assert_eq!(modes, [(0, Mode::Readline), (2, Mode::Readline), (3, Mode::Control)]);
    // As in QEMU, both share the terminal.
    let nographic = self::run("-nographic");
    assert_eq!(nographic.serial, [SerialTarget::Character(0)]);
    assert_eq!(nographic.qemu.monitors.len(), 1);
    assert_eq!(self::run("-nographic -serial null").qemu.monitors.len(), 1);
    assert_eq!(self::run("-nographic -serial stdio").qemu.monitors.len(), 0);
    assert_eq!(self::run("-nographic -daemonize").serial, [SerialTarget::Null]);
}

#[test]
fn questions_are_answered_in_qemus_form() {
    let text = |line: &str| match translate(words(line), false) {
        Ok(Wanted::Text(text)) => text,
        other => panic!("{line}: {other:?}"),
    };
    for line in ["-version", "--version", "qemu-system-i386 -hda d -version"] {
        assert!(text(line).starts_with("QEMU emulator version 9.0.0 (ring3 "), "{line}");
    }
    assert!(text("-machine help").contains("\npc                   Standard PC"));
    assert!(text("-M ?").contains("(default)"));
    assert!(text("-cpu help").starts_with("Available CPUs:\nx86 486"));
    assert!(text("-accel help").contains("\ntcg\n"));
    assert!(text("-netdev help").contains("\nuser\n"));
    assert!(text("-device help").contains("name \"virtio-blk-pci\", bus PCI"));
    assert!(text("-device ide-hd,help").contains("  serial=<str>\n"));
    assert!(text("-device usb-tablet,help").contains("there is no USB"));
    assert!(text("-m 1G -help").contains("usage: ring3 qemu"));
    assert!(
        translate(words("-name help"), false).is_ok_and(|wanted| matches!(wanted, Wanted::Run(..)))
    );
}

#[test]
fn the_table_is_in_order_and_help_lists_it_once() {
    let help = help::options();
    for pair in options::OPTIONS.windows(2) {
        let [first, second] = pair else { continue };
        assert_ne!(first.name, second.name);
    }
    for option in options::OPTIONS.iter().filter(|option| !options::HIDDEN.contains(&option.name)) {
        let lines = help
            .lines()
            .filter(|line| line.split_whitespace().next() == Some(&format!("-{}", option.name)));
        assert_eq!(lines.count(), 1, "-{}", option.name);
    }
    // Devices that can be added have properties that tools may ask for.
    for device in devices::DEVICES {
        if let devices::Kind::Taken(_) = device.kind {
            let has = !ring3_qmp::device_properties(device.name).is_empty();
            assert!(
                has || ["ide-drive", "isa-vga", "pc-testdev", "vmcoreinfo"].contains(&device.name),
                "{}",
                device.name
            );
        }
    }
}

/// Returns the book's tables of options and devices.
fn tables() -> String {
    let options =
        || options::OPTIONS.iter().filter(|option| !options::HIDDEN.contains(&option.name));
    let names = |wanted: fn(&Kind) -> bool| {
        let found = options().filter(|option| wanted(&option.kind));
        found.map(|option| format!("`-{}`", option.name)).collect::<Vec<_>>().join(", ")
    };
    let reasons = |wanted: fn(&Kind) -> Option<&'static str>| {
        let found = options().filter_map(|option| Some((option.name, wanted(&option.kind)?)));
        found.map(|(name, why)| format!("| `-{name}` | {why} |")).collect::<Vec<_>>().join("\n")
    };
    let device = |device: &devices::Device| match device.kind {
        devices::Kind::Taken(_) => {
            let properties = ring3_qmp::device_properties(device.name);
            let names: Vec<_> = properties.iter().map(|(name, _)| format!("`{name}`")).collect();
            let names =
                if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
            format!("| `{}` | {}{names} |", device.name, device.about)
        }
        devices::Kind::Warned(why) => {
            format!("| `{}` | accepted with a warning: {why} |", device.name)
        }
        devices::Kind::Missing(why) => format!("| `{}` | refused: {why} |", device.name),
    };
    let devices: Vec<_> = devices::DEVICES.iter().map(device).collect();
    format!(
        "Accepted: {}.\n\nAccepted without effect: {}.\n\n| accepted with a warning | |\n| --- | --- |\n{}\n\n\
        | refused | |\n| --- | --- |\n{}\n\n| device | |\n| --- | --- |\n{}\n",
        names(|kind| matches!(kind, Kind::Taken(_))),
        names(|kind| matches!(kind, Kind::Ignored)),
        reasons(|kind| if let Kind::Warned(why) = kind { Some(why) } else { None }),
        reasons(|kind| if let Kind::Missing(why) = kind { Some(why) } else { None }),
        devices.join("\n"),
    )
}

#[test]
fn the_book_has_the_tables() {
    let book = include_str!("../../../../book/src/qemu.md");
    let (_, there) = book.split_once("<!-- tables -->\n\n").unwrap_or_default();
    let wanted = tables();
    assert!(there == wanted, "let book/src/qemu.md end with this:\n<!-- tables -->\n\n{wanted}");
}
