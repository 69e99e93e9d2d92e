//! The table of QEMU's options (QEMU, "Invocation"), and what becomes of each here.
//!
//! What makes no difference is taken in silence ([`Kind::Ignored`]), or with a word of warning where somebody may
//! miss it ([`Kind::Warned`]). What would make the machine another one and is missing is refused ([`Kind::Missing`]),
//! by its name and with what there is in its place.

use crate::args::Vga;
use crate::display::DisplayTarget;
use crate::serial::SerialTarget;

use super::{
    Reason, Translation, characters, devices, drives, fd_sets, machine, models, network,
    readconfig, reason, served, set,
};

/// What is done with an option and its value, which is empty where it takes none.
pub(super) type Handler = fn(&mut Translation, &str) -> Result<(), Reason>;

/// What becomes of an option.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Taken(Handler),
    /// It makes no difference here.
    Ignored,
    /// It is taken, for this reason without effect.
    Warned(&'static str),
    /// It is refused, for this reason.
    Missing(&'static str),
}

/// An option of QEMU: its name without the hyphen, what its value is called if it has one, and what it means.
pub(super) struct QemuOption {
    pub(super) name: &'static str,
    pub(super) value: Option<&'static str>,
    pub(super) kind: Kind,
}

const fn flag(name: &'static str, handler: Handler) -> QemuOption {
    QemuOption { name, value: None, kind: Kind::Taken(handler) }
}

const fn option(name: &'static str, value: &'static str, handler: Handler) -> QemuOption {
    QemuOption { name, value: Some(value), kind: Kind::Taken(handler) }
}

const fn other(name: &'static str, value: Option<&'static str>, kind: Kind) -> QemuOption {
    QemuOption { name, value, kind }
}

const NO_WINDOW: &str = "there is no window: without -nographic the screen is in the terminal; -vnc :N shows it elsewhere";
const NO_AUDIO: &str = "there is no sound card: leave it out";
const NO_FLASH: &str = "there is no flash memory: firmware is a file of -bios";
const NO_SHARING: &str =
    "files are not shared with the guest: give it a disk with them, or fetch them by -nic user";
const NO_XEN: &str = "there is no Xen: leave it out";
const NO_SCSI: &str = "there is no such drive: give -drive with if=ide, if=virtio or if=floppy";
const NO_STATES: &str = "states of machines are not loaded: \"ring3 run --replay\" repeats a run";
const NO_GDB: &str =
    "there is no server for gdb; the monitor shows registers and memory (-monitor stdio)";
const NOT_WHOLE: &str = "start ring3 with the rights that it is to have";

/// Options that the program gives itself, and those of its tests, which are nothing for people.
pub(super) const HIDDEN: [&str; 2] = ["daemonized", "dry-run"];

/// All options, in the order of their names.
pub(super) const OPTIONS: &[QemuOption] = &[
    option("accel", "tcg|translator|interpreter|kvm", machine::accelerator),
    other(
        "acpitable",
        Some("…"),
        Kind::Missing("the ACPI tables are the machine's own: leave it out"),
    ),
    option("action", "reboot=shutdown|reset,shutdown=pause|poweroff,…", machine::action),
    option("add-fd", "set=SET,fd=DESCRIPTOR", fd_sets::add),
    other("alt-grab", None, Kind::Ignored),
    option("append", "TEXT", |all, value| set(&mut all.run.append, value.to_owned())),
    other("async-teardown", None, Kind::Ignored),
    other("audio", Some("…"), Kind::Missing(NO_AUDIO)),
    other("audio-help", None, Kind::Missing(NO_AUDIO)),
    other("audiodev", Some("…"), Kind::Warned("there is no sound card that could use it")),
    other("balloon", Some("none"), Kind::Ignored),
    option("bios", "FILE", |all, value| set(&mut all.run.bios, Some(value.into()))),
    option("blockdev", "driver=DRIVER,node-name=NAME,…", drives::blockdev),
    option("boot", "[order=LETTERS][,once=LETTERS][,menu=on]", machine::boot),
    option("cdrom", "FILE", |all, value| drives::short(all, value, |run| &mut run.drives.cdrom)),
    option("chardev", "KIND,id=ID,…", characters::chardev),
    other("chroot", Some("DIRECTORY"), Kind::Missing(NOT_WHOLE)),
    other("compat", Some("…"), Kind::Ignored),
    option("cpu", "MODEL[,+FEATURE][,-FEATURE]", models::cpu),
    other("ctrl-grab", None, Kind::Ignored),
    flag("curses", |all, _| set(&mut all.display, Some(DisplayTarget::Terminal))),
    option("D", "FILE", |all, value| set(&mut all.run.log_file, Some(value.into()))),
    other(
        "d",
        Some("ITEM,…"),
        Kind::Warned("what is logged says RING3_LOG, such as RING3_LOG=info"),
    ),
    flag("daemonize", |all, _| set(&mut all.run.qemu.daemonize, true)),
    flag("daemonized", |all, _| set(&mut all.run.qemu.is_daemon, true)),
    option("debugcon", "stdio|file:PATH|null", characters::debugcon),
    option("device", "DRIVER[,PROPERTY=VALUE]…", devices::device),
    other("dfilter", Some("RANGE,…"), Kind::Ignored),
    option("display", "none|curses|vnc=WHERE", characters::display),
    option(
        "drive",
        "file=FILE[,if=ide|floppy|virtio|none][,index=N][,media=disk|cdrom]…",
        drives::drive,
    ),
    flag("dry-run", |all, _| set(&mut all.run.qemu.dry_run, true)),
    other("dtb", Some("FILE"), Kind::Missing("a PC has no device tree: leave it out")),
    other("dump-vmstate", Some("FILE"), Kind::Missing(NO_STATES)),
    other("echr", Some("KEY"), Kind::Warned("the escape key is Ctrl-A")),
    flag("enable-kvm", |all, _| machine::accelerator(all, "kvm")),
    other("enable-sync-profile", None, Kind::Ignored),
    option("fda", "FILE", |all, value| drives::short(all, value, |run| &mut run.drives.fda)),
    option("fdb", "FILE", |all, value| drives::short(all, value, |run| &mut run.drives.fdb)),
    other("fsdev", Some("…"), Kind::Missing(NO_SHARING)),
    other("full-screen", None, Kind::Warned(NO_WINDOW)),
    option("fw_cfg", "[name=]NAME,file=FILE|string=TEXT", |all, value| {
        all.run.board.fw_cfg.push(value.parse().map_err(|error| format!("{error}"))?);
        Ok(())
    }),
    other("g", Some("WxH"), Kind::Warned("a PC's system chooses its resolution itself")),
    other("gdb", Some("WHERE"), Kind::Warned(NO_GDB)),
    option("global", "DRIVER.PROPERTY=VALUE", machine::global),
    option("hda", "FILE", |all, value| drives::short(all, value, |run| &mut run.drives.hda)),
    option("hdb", "FILE", |all, value| drives::short(all, value, |run| &mut run.drives.hdb)),
    option("hdc", "FILE", |all, value| drives::short(all, value, |run| &mut run.drives.hdc)),
    option("hdd", "FILE", |all, value| drives::short(all, value, |run| &mut run.drives.hdd)),
    option("icount", "shift=auto|N[,rr=record,rrfile=FILE]", machine::icount),
    other("incoming", Some("…"), Kind::Missing(NO_STATES)),
    other("hdachs", Some("…"), Kind::Ignored),
    option("initrd", "FILE[,FILE]…", machine::initrd),
    other(
        "iscsi",
        Some("…"),
        Kind::Missing("disks behind iSCSI are not served: nbd:// is, and \"ring3 vblock\""),
    ),
    other("k", Some("LANGUAGE"), Kind::Ignored),
    option("kernel", "FILE", |all, value| set(&mut all.run.kernel, Some(value.into()))),
    option("L", "DIRECTORY", |all, value| {
        all.data.push(value.into());
        Ok(())
    }),
    other("loadvm", Some("NAME"), Kind::Missing(NO_STATES)),
    flag("localtime", |all, _| machine::rtc(all, "base=localtime")),
    option("m", "SIZE", machine::memory),
    option("M", "pc", machine::machine),
    option("machine", "pc", machine::machine),
    other("mem-path", Some("DIRECTORY"), Kind::Ignored),
    other("mem-prealloc", None, Kind::Ignored),
    option("mon", "chardev=ID[,mode=readline|control]", characters::mon),
    option("monitor", "stdio|none|unix:…|tcp:…|telnet:…|chardev:ID", characters::monitor),
    other("msg", Some("timestamp=on"), Kind::Ignored),
    other("mtdblock", Some("FILE"), Kind::Missing(NO_FLASH)),
    option("name", "TEXT", machine::name),
    option("net", "none|nic|user|tap|socket[,…]", network::net),
    option("netdev", "user|stream|dgram|socket|tap,id=ID[,…]", network::netdev),
    option(
        "nic",
        "user|stream|dgram|socket|tap|none[,model=e1000|virtio|ne2k_pci|ne2k_isa][,mac=ADDRESS][,…]",
        network::nic,
    ),
    flag("no-acpi", |all, _| {
        machine::acpi(all, false);
        Ok(())
    }),
    other("no-fd-bootchk", None, Kind::Ignored),
    other("no-frame", None, Kind::Ignored),
    flag("no-hpet", |all, _| set(&mut all.run.board.hpet, false)),
    other("no-kqemu", None, Kind::Ignored),
    other("no-kvm", None, Kind::Ignored),
    other("no-kvm-irqchip", None, Kind::Ignored),
    other("no-kvm-pit", None, Kind::Ignored),
    other("no-quit", None, Kind::Ignored),
    flag("no-reboot", |all, _| set(&mut all.run.no_reboot, true)),
    flag("no-shutdown", |all, _| set(&mut all.run.no_shutdown, true)),
    other("no-user-config", None, Kind::Ignored),
    flag("nodefaults", |all, _| set(&mut all.no_defaults, true)),
    other("nodefconfig", None, Kind::Ignored),
    flag("nographic", |all, _| set(&mut all.no_graphic, true)),
    other("numa", Some("…"), Kind::Warned("all memory is near the one processor")),
    option("object", "memory-backend-memfd,id=ID,size=SIZE,share=on", served::object),
    other("only-migratable", None, Kind::Ignored),
    other(
        "option-rom",
        Some("FILE"),
        Kind::Missing("ROMs are those of network cards: romfile=FILE with -device"),
    ),
    option("overcommit", "mem-lock=off,cpu-pm=off", machine::overcommit),
    option("parallel", "none", |_, value| match value {
        "none" | "null" => Ok(()),
        _ => reason("there is no parallel port"),
    }),
    other("pflash", Some("FILE"), Kind::Missing(NO_FLASH)),
    option("pidfile", "FILE", |all, value| set(&mut all.run.qemu.pid_file, Some(value.into()))),
    other(
        "plugin",
        Some("…"),
        Kind::Missing("there are no plug-ins: \"ring3 run --event-log\" tells of a run"),
    ),
    other("portrait", None, Kind::Warned("the screen is not turned")),
    other(
        "preconfig",
        None,
        Kind::Missing("a machine is made from its command line: -S has it wait"),
    ),
    option("qmp", "unix:PATH,server=on,wait=off|tcp:HOST:PORT,server=on|stdio", characters::qmp),
    option("qmp-pretty", "the same", characters::qmp),
    other("qtest", Some("…"), Kind::Missing("there is no qtest: leave it out")),
    other("qtest-log", Some("…"), Kind::Missing("there is no qtest: leave it out")),
    option("readconfig", "FILE", readconfig::read),
    other("redir", Some("…"), Kind::Missing("give hostfwd=tcp::PORT-:PORT with -nic user")),
    other("rotate", Some("DEGREES"), Kind::Warned("the screen is not turned")),
    option("rtc", "base=utc|localtime|DATE", machine::rtc),
    option("run-with", "async-teardown=on", machine::run_with),
    other("runas", Some("USER"), Kind::Missing(NOT_WHOLE)),
    flag("S", |all, _| set(&mut all.run.paused, true)),
    other("s", None, Kind::Warned(NO_GDB)),
    other(
        "sandbox",
        Some("on[,…]"),
        Kind::Warned("the machine is in no sandbox but that of its process"),
    ),
    other("sd", Some("FILE"), Kind::Missing(NO_SCSI)),
    other("sdl", None, Kind::Warned(NO_WINDOW)),
    other("seed", Some("NUMBER"), Kind::Ignored),
    option(
        "serial",
        "stdio|mon:stdio|null|none|file:PATH|pty|unix:…|tcp:…|telnet:…|chardev:ID",
        |all, value| {
            let target = characters::serial(all, value)?;
            all.serial.push(target);
            Ok(())
        },
    ),
    other("set", Some("…"), Kind::Missing("give the property with the option itself")),
    other("shim", Some("FILE"), Kind::Missing("a kernel starts without firmware: leave it out")),
    other("show-cursor", None, Kind::Ignored),
    other("singlestep", None, Kind::Warned("an instruction is as exact in a block as alone")),
    other("smbios", Some("…"), Kind::Warned("firmware tells of the machine what it knows itself")),
    option("smp", "1", machine::processors),
    flag("snapshot", |all, _| set(&mut all.run.drives.snapshot, true)),
    other("soundhw", Some("…"), Kind::Missing(NO_AUDIO)),
    other("spice", Some("…"), Kind::Missing("the screen is served by -vnc :N")),
    option("startdate", "DATE", machine::rtc),
    flag("std-vga", |all, _| set(&mut all.vga, Some(Vga::Std))),
    other("tb-size", Some("N"), Kind::Ignored),
    other("tdf", None, Kind::Ignored),
    other("tpmdev", Some("…"), Kind::Missing("there is no TPM: leave it out")),
    other(
        "trace",
        Some("…"),
        Kind::Warned("what is logged says RING3_LOG, such as RING3_LOG=info"),
    ),
    other("usb", None, Kind::Warned("there is no USB; keyboard and mouse are on PS/2")),
    option("usbdevice", "tablet|mouse|keyboard", |_, _| {
        reason("there is no USB: leave it out; keyboard and mouse are on PS/2")
    }),
    option("uuid", "UUID", machine::uuid),
    option("vga", "std|none", devices::vga),
    other("virtfs", Some("…"), Kind::Missing(NO_SHARING)),
    other("virtfs_synth", None, Kind::Missing(NO_SHARING)),
    other("virtioconsole", Some("…"), Kind::Missing("give -serial")),
    option("vnc", "WHERE", |all, value| {
        let display = characters::vnc(all, value)?;
        set(&mut all.display, Some(display))
    }),
    other("watchdog", Some("…"), Kind::Missing("there is no watchdog: leave it out")),
    other("watchdog-action", Some("…"), Kind::Ignored),
    other("win2k-hack", None, Kind::Ignored),
    other("writeconfig", Some("FILE"), Kind::Missing("write the command line into a script")),
    other("xen-attach", None, Kind::Missing(NO_XEN)),
    other("xen-domid", Some("ID"), Kind::Missing(NO_XEN)),
    other("xen-domid-restrict", None, Kind::Missing(NO_XEN)),
];

/// Where a serial port goes that is not spoken of, with -nographic and without.
pub(super) fn default_serial(no_graphic: bool) -> SerialTarget {
    // On QEMU's window otherwise, which there is not.
    if no_graphic { SerialTarget::Stdio } else { SerialTarget::Null }
}
