//! `-device` and `-vga`: the devices of QEMU, and which of them ring3 has, ignores with a warning, or lacks.

use ring3_devices::virtio::balloon::BalloonModel;

use crate::args::{self, Vga};
use crate::board::{BadProperties, BalloonProperties, GenerationId};

use super::properties::{switch, unknown};
use super::{
    Properties, Reason, Translation, characters, drives, extra_memory, machine, network, reason,
    served, set,
};

/// What happens to a device. The function for a known device gets the driver's name and the properties.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Taken(fn(&mut Translation, &str, &mut Properties) -> Result<(), Reason>),
    /// The device is missing, but a guest works without it.
    Warned(&'static str),
    Missing(&'static str),
}

/// A device of QEMU: its driver's name (or the beginning of several names, which then ends in a star; or
/// their end, after a star), its bus, and a description.
pub(super) struct Device {
    pub(super) name: &'static str,
    pub(super) bus: &'static str,
    pub(super) about: &'static str,
    pub(super) kind: Kind,
}

const fn taken(
    name: &'static str,
    bus: &'static str,
    about: &'static str,
    take: fn(&mut Translation, &str, &mut Properties) -> Result<(), Reason>,
) -> Device {
    Device { name, bus, about, kind: Kind::Taken(take) }
}

const fn warned(name: &'static str, why: &'static str) -> Device {
    Device { name, bus: "", about: "", kind: Kind::Warned(why) }
}

const fn missing(name: &'static str, why: &'static str) -> Device {
    Device { name, bus: "", about: "", kind: Kind::Missing(why) }
}

const NO_BUS: &str = "there is no such controller, and no device that needs it";
const NO_USB: &str = "there is no USB: leave it out; keyboard and mouse are on PS/2";
const NO_SCSI: &str = "there is no SCSI, AHCI or NVMe: give ide-hd, ide-cd or virtio-blk-pci";
const NO_SOUND: &str = "there is no sound card: leave it out";
const NO_CARD: &str =
    "there is no such network card: give e1000, ne2k_pci, ne2k_isa or virtio-net-pci";
const NO_BRIDGE: &str =
    "there are no bridges and no PCI Express: leave it out, and put the device on pci.0";
const NO_CONSOLE: &str =
    "there is no virtio console: give -serial, or virtserialport for what is no terminal";
const STD: &str = "the display adapter is std instead, a VGA with the linear modes of Bochs";

/// All known devices, beginning with those that ring3 has.
pub(super) const DEVICES: &[Device] = &[
    taken("virtio-blk-pci", "PCI", "virtio disk", disk),
    taken("virtio-blk", "PCI", "virtio disk", disk),
    taken("vhost-user-blk-pci", "PCI", "virtio disk of a server", served_disk),
    taken("vhost-user-blk", "PCI", "virtio disk of a server", served_disk),
    taken("ide-hd", "IDE", "hard disk", disk),
    taken("ide-cd", "IDE", "CD-ROM and DVD-ROM drive", disk),
    taken("ide-drive", "IDE", "hard disk", disk),
    taken("floppy", "floppy-bus", "diskette drive", disk),
    taken("virtio-net-pci", "PCI", "virtio network card", card),
    taken("virtio-net", "PCI", "virtio network card", card),
    taken("e1000", "PCI", "Intel 82540EM", card),
    taken("e1000-82540em", "PCI", "Intel 82540EM", card),
    taken("ne2k_pci", "PCI", "Realtek RTL8029AS", card),
    taken("ne2k_isa", "ISA", "Novell NE2000", card),
    taken("isa-serial", "ISA", "16550A", |all, _, properties| {
        characters::serial_device(all, properties)
    }),
    taken("pci-serial", "PCI", "16550A", |all, _, properties| {
        characters::serial_card(all, properties)
    }),
    taken("isa-debugcon", "ISA", "port for the firmware's messages", |all, _, properties| {
        characters::debugcon_device(all, properties)
    }),
    taken("isa-debug-exit", "ISA", "port that ends the run", debug_exit),
    taken("pc-testdev", "ISA", "devices for tests of virtual machines", |all, _, _| {
        set(&mut all.run.board.test_device, true)
    }),
    taken("virtio-balloon-pci", "PCI", "virtio memory balloon", balloon),
    taken("virtio-balloon", "PCI", "virtio memory balloon", balloon),
    taken("virtio-mem-pci", "PCI", "memory that comes and goes", extra_memory::device),
    taken("virtio-serial-pci", "PCI", "virtio serial controller", channel_controller),
    taken("virtio-serial", "PCI", "virtio serial controller", channel_controller),
    taken("virtserialport", "virtio-serial-bus", "channel to a program", |all, _, properties| {
        characters::channel_device(all, properties)
    }),
    taken("pvpanic", "ISA", "port by which a failed system says so", machine::pvpanic),
    taken("vmgenid", "", "VM generation ID", generation_id),
    taken("vmcoreinfo", "", "place of the guest's note for debuggers", |all, _, _| {
        set(&mut all.run.board.vmcoreinfo, true)
    }),
    taken("VGA", "PCI", "VGA with linear modes", |all, _, _| set(&mut all.vga, Some(Vga::Std))),
    taken("isa-vga", "ISA", "VGA with linear modes", |all, _, _| set(&mut all.vga, Some(Vga::Std))),
    // Devices without which a guest works, or which it finds elsewhere.
    warned("piix3-usb-uhci", NO_BUS),
    warned("piix4-usb-uhci", NO_BUS),
    warned("ich9-usb-*", NO_BUS),
    warned("usb-ehci", NO_BUS),
    warned("nec-usb-xhci", NO_BUS),
    warned("qemu-xhci", NO_BUS),
    warned("pci-ohci", NO_BUS),
    warned("virtio-rng*", "the guest has its own sources of random numbers"),
    warned("virtio-keyboard*", "the keyboard is on PS/2"),
    warned("virtio-mouse*", "the mouse is on PS/2"),
    warned("virtio-tablet*", "the mouse is on PS/2"),
    warned("pvpanic-pci", "give -device pvpanic, by which panics of the guest are reported"),
    warned("isa-parallel", "there is no parallel port"),
    warned("vmport", "the guest does not see VMware's interface"),
    warned("cirrus-vga", STD),
    warned("isa-cirrus-vga", STD),
    warned("qxl-vga", STD),
    warned("qxl", STD),
    warned("vmware-svga", STD),
    warned("virtio-vga*", STD),
    warned("virtio-gpu*", STD),
    warned("secondary-vga", STD),
    warned("bochs-display", STD),
    warned("ramfb", STD),
    // Devices without which the machine would be another one.
    missing("usb-*", NO_USB),
    missing("ccid-card-*", NO_USB),
    missing("ahci", NO_SCSI),
    missing("ich9-ahci", NO_SCSI),
    missing("nvme*", NO_SCSI),
    missing("scsi-*", NO_SCSI),
    missing("lsi53c*", NO_SCSI),
    missing("megasas*", NO_SCSI),
    missing("mptsas*", NO_SCSI),
    missing("am53c974", NO_SCSI),
    missing("dc390", NO_SCSI),
    missing("pvscsi", NO_SCSI),
    missing("virtio-scsi*", NO_SCSI),
    missing("vhost-user-scsi*", NO_SCSI),
    missing("sdhci-pci", NO_SCSI),
    missing("sd-card", NO_SCSI),
    missing("intel-hda", NO_SOUND),
    missing("ich9-intel-hda", NO_SOUND),
    missing("hda-*", NO_SOUND),
    missing("AC97", NO_SOUND),
    missing("ES1370", NO_SOUND),
    missing("sb16", NO_SOUND),
    missing("adlib", NO_SOUND),
    missing("gus", NO_SOUND),
    missing("cs4231a", NO_SOUND),
    missing("virtio-sound*", NO_SOUND),
    missing("rtl8139", NO_CARD),
    missing("pcnet", NO_CARD),
    missing("e1000e", NO_CARD),
    missing("e1000-82544gc", NO_CARD),
    missing("e1000-82545em", NO_CARD),
    missing("i825*", NO_CARD),
    missing("igb", NO_CARD),
    missing("tulip", NO_CARD),
    missing("vmxnet3", NO_CARD),
    missing("rocker", NO_CARD),
    missing("pci-bridge*", NO_BRIDGE),
    missing("pcie-*", NO_BRIDGE),
    missing("i82801b11-bridge", NO_BRIDGE),
    missing("ioh3420", NO_BRIDGE),
    missing("x3130-upstream", NO_BRIDGE),
    missing("xio3130-downstream", NO_BRIDGE),
    missing("pxb*", NO_BRIDGE),
    missing("cxl-*", NO_BRIDGE),
    missing("virtconsole", NO_CONSOLE),
    missing("pci-serial-*", "a card has one port: give -device pci-serial,chardev=ID for each"),
    missing("vfio-*", "devices of the host cannot be passed through"),
    missing("virtio-9p*", "files cannot be shared with the guest"),
    missing("vhost-user-fs*", "files cannot be shared with the guest"),
    missing("vhost-vsock*", "there are no virtio sockets: give -nic user"),
    missing("tpm-*", "there is no TPM: leave it out"),
    missing("i6300esb", "there is no watchdog: leave it out"),
    missing("ib700", "there is no watchdog: leave it out"),
    missing("ivshmem*", "memory cannot be shared with other machines"),
    missing("intel-iommu", "there is no IOMMU: leave it out"),
    missing("amd-iommu", "there is no IOMMU: leave it out"),
    missing("virtio-iommu*", "there is no IOMMU: leave it out"),
    missing("loader", "give the file with -kernel or -bios"),
    missing("generic-sdhci", NO_SCSI),
    missing("isa-applesmc", "there is no Apple SMC: leave it out"),
    missing("isa-ipmi*", "there is no BMC: leave it out"),
    missing("ipmi-*", "there is no BMC: leave it out"),
    missing("edu", "there is no such device: leave it out"),
    missing("pc-dimm", "give -device virtio-mem-pci,memdev=ID, whose memory comes and goes"),
    missing("nvdimm", "there is no NVDIMM: leave it out"),
    missing("hyperv-*", "the guest does not see Hyper-V's interface: leave it out"),
    missing("*-cpu", "the machine has only one processor: leave it out"),
];

/// Returns the entry of `driver` in [`DEVICES`].
pub(super) fn find(driver: &str) -> Option<&'static Device> {
    DEVICES.iter().find(|device| {
        match (device.name.strip_suffix('*'), device.name.strip_prefix('*')) {
            (Some(start), _) => driver.starts_with(start),
            (_, Some(end)) => driver.ends_with(end),
            (None, None) => driver == device.name,
        }
    })
}

/// `-device`.
pub(super) fn device(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse_either(value, Some("driver"))?;
    let driver = properties.take("driver").unwrap_or_default();
    let Some(device) = find(&driver) else {
        return reason("there is no such device: \"ring3 qemu -device help\" lists all devices");
    };
    match device.kind {
        Kind::Taken(take) => take(all, &driver, &mut properties),
        Kind::Warned(why) => {
            if why == STD {
                all.vga = Some(Vga::Std);
            }
            all.warn(why);
            Ok(())
        }
        Kind::Missing(why) => reason(why),
    }
}

/// `-vga`.
pub(super) fn vga(all: &mut Translation, value: &str) -> Result<(), Reason> {
    match value {
        "std" | "default" => set(&mut all.vga, Some(Vga::Std)),
        "none" => set(&mut all.vga, Some(Vga::None)),
        "cirrus" | "qxl" | "vmware" | "virtio" => {
            all.warn(STD);
            set(&mut all.vga, Some(Vga::Std))
        }
        _ => reason("the display adapter must be std or none"),
    }
}

fn disk(all: &mut Translation, driver: &str, properties: &mut Properties) -> Result<(), Reason> {
    drives::device(all, driver, properties)
}

fn served_disk(all: &mut Translation, _: &str, properties: &mut Properties) -> Result<(), Reason> {
    served::device(all, properties)
}

fn card(all: &mut Translation, driver: &str, properties: &mut Properties) -> Result<(), Reason> {
    properties.add("model", driver);
    network::card(all, properties)
}

fn debug_exit(all: &mut Translation, _: &str, properties: &mut Properties) -> Result<(), Reason> {
    /// QEMU's default port for this device.
    const DEBUG_EXIT: u16 = 0x501;
    let mut port = DEBUG_EXIT;
    properties.for_each(|key, value| match key {
        "iobase" => set(&mut port, args::port(value).map_err(|error| error.to_string())?),
        // The device has four ports, but programs write only to the first.
        "iosize" | "id" => Ok(()),
        _ => unknown(key, "iobase and iosize"),
    })?;
    set(&mut all.run.debug_exit, Some(port))
}

fn balloon(all: &mut Translation, _: &str, properties: &mut Properties) -> Result<(), Reason> {
    let (mut id, mut model) = (None, BalloonModel::default());
    properties.for_each(|key, value| match key {
        "id" => set(&mut id, Some(value.to_owned())),
        "deflate-on-oom" => set(&mut model.deflate_on_oom, switch(key, value)?),
        "free-page-reporting" => set(&mut model.free_page_reporting, switch(key, value)?),
        // These say where the device is, and which drivers it is for, all of which it serves. There are no hints of free
        // pages, which concern moves alone.
        "addr"
        | "bus"
        | "disable-legacy"
        | "disable-modern"
        | "free-page-hint"
        | "iothread"
        | "page-poison"
        | "guest-stats-polling-interval" => Ok(()),
        _ => unknown(key, "deflate-on-oom and free-page-reporting"),
    })?;
    if all.run.board.balloon.model.is_some() {
        return reason("the machine has one memory balloon at most");
    }
    set(&mut all.run.board.balloon, BalloonProperties { model: Some(model), id })
}

/// The device through which channels lead. It is there if there are channels.
fn channel_controller(
    _: &mut Translation,
    _: &str,
    properties: &mut Properties,
) -> Result<(), Reason> {
    properties.for_each(|key, _| match key {
        "addr" | "bus" | "disable-legacy" | "disable-modern" | "id" | "ioeventfd" | "iothread"
        | "max_ports" | "vectors" => Ok(()),
        _ => unknown(key, "id, addr and max_ports"),
    })
}

/// `-balloon`, of QEMU before 5.0.
pub(super) fn old_balloon(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse(value, Some("type"));
    match properties.take("type").as_deref() {
        Some("none") => Ok(()),
        Some("virtio") => balloon(all, "virtio-balloon-pci", &mut properties),
        _ => reason("the balloon must be virtio or none"),
    }
}

fn generation_id(
    all: &mut Translation,
    _: &str,
    properties: &mut Properties,
) -> Result<(), Reason> {
    let mut number = GenerationId::Auto;
    properties.for_each(|key, value| match key {
        "guid" => {
            set(&mut number, value.parse().map_err(|error: BadProperties| error.to_string())?)
        }
        "id" => Ok(()),
        _ => unknown(key, "guid"),
    })?;
    set(&mut all.run.board.generation_id, number)
}
