//! The table of QEMU's options (QEMU, "Invocation"), and what ring3 does with each.
//!
//! Options that make no difference are accepted silently ([`Kind::Ignored`]), or with a warning if somebody
//! may miss their effect ([`Kind::Warned`]). Options for missing parts without which the machine would be
//! another one are refused ([`Kind::Missing`]), with what to use instead.

use crate::args::Vga;
use crate::display::DisplayTarget;
use crate::serial::SerialTarget;

use super::{
    Reason, Translation, characters, devices, drives, fd_sets, machine, models, network,
    readconfig, reason, served, set,
};

/// A function that handles an option and its value, which is empty if the option takes none.
pub(super) type Handler = fn(&mut Translation, &str) -> Result<(), Reason>;

/// What ring3 does with an option.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Taken(Handler),
    /// It makes no difference here.
    Ignored,
    /// It has no effect, for this reason.
    Warned(&'static str),
    /// It is refused, for this reason.
    Missing(&'static str),
}

/// An option of QEMU: its name without the hyphen, the name of its value if it takes one, and what ring3 does
/// with it.
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

const NO_WINDOW: &str = "there is no window: without -nographic the screen is shown in the terminal; -vnc :N shows it elsewhere";
const NO_AUDIO: &str = "there is no sound card: leave it out";
const NO_FLASH: &str =
    "there is no such flash memory: give the firmware's file with -pflash or -bios";
const NO_SHARING: &str = "files cannot be shared with the guest: give it a disk with them, or let it fetch them by -nic user";
const NO_XEN: &str = "there is no Xen: leave it out";
const NO_SCSI: &str = "there is no such drive: give -drive with if=ide, if=virtio or if=floppy";
const NO_STATES: &str =
    "QEMU's saved machines cannot be loaded; \"ring3 run --restore\" continues one of ring3";
const NOT_WHOLE: &str = "start ring3 itself with the intended rights";

/// Options that the program passes to itself, and options of its tests, which are not for people.
pub(super) const HIDDEN: [&str; 2] = ["daemonized", "dry-run"];

/// All options, in the order of their names.
pub(super) const OPTIONS: &[QemuOption] = &[
    option("accel", "tcg|translator|interpreter|kvm", machine::accelerator),
    other(
        "acpitable",
        Some("…"),
        Kind::Missing("the machine's ACPI tables are fixed: leave it out"),
    ),
    option("action", "reboot=shutdown|reset,shutdown=pause|poweroff,…", machine::action),
    option("add-fd", "set=SET,fd=DESCRIPTOR", fd_sets::add),
    other("alt-grab", None, Kind::Ignored),
    option("append", "TEXT", |all, value| set(&mut all.run.append, value.to_owned())),
    other("async-teardown", None, Kind::Ignored),
    other("audio", Some("…"), Kind::Missing(NO_AUDIO)),
    other("audio-help", None, Kind::Missing(NO_AUDIO)),
    other("audiodev", Some("…"), Kind::Warned("there is no sound card that could use it")),
    option("balloon", "virtio|none", devices::old_balloon),
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
        Kind::Warned("RING3_LOG selects what is logged, such as RING3_LOG=info"),
    ),
    flag("daemonize", |all, _| set(&mut all.run.qemu.daemonize, true)),
    flag("daemonized", |all, _| set(&mut all.run.qemu.is_daemon, true)),
    option("debugcon", "stdio|file:PATH|null", characters::debugcon),
    option("device", "DRIVER[,PROPERTY=VALUE]…", devices::device),
    other("dfilter", Some("RANGE,…"), Kind::Ignored),
    option("display", "none|curses|vnc=WHERE", characters::display),
    option(
        "drive",
        "file=FILE[,if=ide|floppy|virtio|pflash|none][,index=N][,media=disk|cdrom]…",
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
    other("g", Some("WxH"), Kind::Warned("the guest chooses the resolution itself")),
    option("gdb", "tcp:[HOST]:PORT|unix:PATH|stdio|none", machine::gdb),
    option("global", "DRIVER.PROPERTY=VALUE", machine::global),
    option("hda", "FILE", |all, value| drives::short(all, value, |run| &mut run.drives.hda)),
    option("hdb", "FILE", |all, value| drives::short(all, value, |run| &mut run.drives.hdb)),
    option("hdc", "FILE", |all, value| drives::short(all, value, |run| &mut run.drives.hdc)),
    option("hdd", "FILE", |all, value| drives::short(all, value, |run| &mut run.drives.hdd)),
    option("icount", "shift=auto|N[,rr=record,rrfile=FILE]", machine::icount),
    option("incoming", "unix:PATH|tcp:HOST:PORT|file:PATH", machine::incoming),
    other("hdachs", Some("…"), Kind::Ignored),
    option("initrd", "FILE[,FILE]…", machine::initrd),
    other(
        "iscsi",
        Some("…"),
        Kind::Missing("there is no driver for iSCSI: serve the disk by NBD or \"ring3 vblock\""),
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
    option("mem-path", "DIRECTORY", |all, value| set(&mut all.run.memory_path, Some(value.into()))),
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
    other("numa", Some("…"), Kind::Warned("there is one processor, to which all memory is near")),
    option("object", "memory-backend-memfd,id=ID,size=SIZE,share=on", served::object),
    other("only-migratable", None, Kind::Ignored),
    other(
        "option-rom",
        Some("FILE"),
        Kind::Missing("only network cards have ROMs: give romfile=FILE with -device"),
    ),
    option("overcommit", "mem-lock=off,cpu-pm=off", machine::overcommit),
    option("parallel", "none", |_, value| match value {
        "none" | "null" => Ok(()),
        _ => reason("there is no parallel port"),
    }),
    option("pflash", "FILE", drives::pflash),
    option("pidfile", "FILE", |all, value| set(&mut all.run.qemu.pid_file, Some(value.into()))),
    other(
        "plugin",
        Some("…"),
        Kind::Missing("there are no plug-ins; \"ring3 run --event-log\" logs the events of a run"),
    ),
    other("portrait", None, Kind::Warned("the screen cannot be rotated")),
    other(
        "preconfig",
        None,
        Kind::Missing(
            "the command line describes the whole machine: with -S it waits before it starts",
        ),
    ),
    option("qmp", "unix:PATH,server=on,wait=off|tcp:HOST:PORT,server=on|stdio", characters::qmp),
    option("qmp-pretty", "the same", characters::qmp),
    other("qtest", Some("…"), Kind::Missing("there is no qtest: leave it out")),
    other("qtest-log", Some("…"), Kind::Missing("there is no qtest: leave it out")),
    option("readconfig", "FILE", readconfig::read),
    other("redir", Some("…"), Kind::Missing("give hostfwd=tcp::PORT-:PORT with -nic user")),
    other("rotate", Some("DEGREES"), Kind::Warned("the screen cannot be rotated")),
    option("rtc", "base=utc|localtime|DATE", machine::rtc),
    option("run-with", "async-teardown=on", machine::run_with),
    other("runas", Some("USER"), Kind::Missing(NOT_WHOLE)),
    flag("S", |all, _| set(&mut all.run.paused, true)),
    flag("s", |all, _| machine::gdb(all, "tcp::1234")),
    option("sandbox", "on|off[,…]", machine::sandbox),
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
    other("set", Some("…"), Kind::Missing("give the property in the option that it is for")),
    other("shim", Some("FILE"), Kind::Missing("a kernel starts without firmware: leave it out")),
    other("show-cursor", None, Kind::Ignored),
    other("singlestep", None, Kind::Warned("execution in blocks is as exact as in single steps")),
    option("smbios", "type=0|1|2|3|11[,PROPERTY=TEXT]…", machine::smbios),
    option("smp", "1", machine::processors),
    flag("snapshot", |all, _| set(&mut all.run.drives.snapshot, true)),
    other("soundhw", Some("…"), Kind::Missing(NO_AUDIO)),
    other("spice", Some("…"), Kind::Missing("there is no SPICE: -vnc :N shows the screen")),
    option("startdate", "DATE", machine::rtc),
    flag("std-vga", |all, _| set(&mut all.vga, Some(Vga::Std))),
    other("tb-size", Some("N"), Kind::Ignored),
    other("tdf", None, Kind::Ignored),
    other("tpmdev", Some("…"), Kind::Missing("there is no TPM: leave it out")),
    other(
        "trace",
        Some("…"),
        Kind::Warned("RING3_LOG selects what is logged, such as RING3_LOG=info"),
    ),
    other("usb", None, Kind::Warned("there is no USB; keyboard and mouse are on PS/2")),
    option("usbdevice", "tablet|mouse|keyboard", |_, _| {
        reason("there is no USB: leave it out; keyboard and mouse are on PS/2")
    }),
    option("uuid", "UUID", machine::uuid),
    option("vga", "std|none", devices::vga),
    other("virtfs", Some("…"), Kind::Missing(NO_SHARING)),
    other("virtfs_synth", None, Kind::Missing(NO_SHARING)),
    other("virtioconsole", Some("…"), Kind::Missing("there are no virtio ports: give -serial")),
    option("vnc", "WHERE", |all, value| {
        let display = characters::vnc(all, value)?;
        set(&mut all.display, Some(display))
    }),
    other("watchdog", Some("…"), Kind::Missing("there is no watchdog: leave it out")),
    other("watchdog-action", Some("…"), Kind::Ignored),
    other("win2k-hack", None, Kind::Ignored),
    other("writeconfig", Some("FILE"), Kind::Missing("keep the command line in a script")),
    other("xen-attach", None, Kind::Missing(NO_XEN)),
    other("xen-domid", Some("ID"), Kind::Missing(NO_XEN)),
    other("xen-domid-restrict", None, Kind::Missing(NO_XEN)),
];

/// Returns the target of a serial port that the command line does not mention, with -nographic or without.
pub(super) fn default_serial(no_graphic: bool) -> SerialTarget {
    // Otherwise the port is in QEMU's window, which ring3 does not have.
    if no_graphic { SerialTarget::Stdio } else { SerialTarget::Null }
}
