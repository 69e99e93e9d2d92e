//! The devices that a command line or a tool can name, with their properties, as types of QEMU's object
//! model.

/// A type of device.
pub(crate) struct DeviceType {
    pub(crate) name: &'static str,
    /// The parent type.
    pub(crate) parent: &'static str,
    /// The names of its properties, and the properties' types.
    pub(crate) properties: &'static [(&'static str, &'static str)],
    /// Whether such a device can be added while the machine runs.
    pub(crate) hotpluggable: bool,
}

const VIRTIO_DISK: &[(&str, &str)] = &[
    ("drive", "str"),
    ("serial", "str"),
    ("num-queues", "uint16"),
    ("disable-legacy", "OnOffAuto"),
    ("disable-modern", "bool"),
    ("bootindex", "int32"),
    ("write-cache", "OnOffAuto"),
    ("rerror", "BlockdevOnError"),
    ("werror", "BlockdevOnError"),
    ("addr", "int32"),
];
const SERVED_DISK: &[(&str, &str)] = &[
    ("chardev", "str"),
    ("num-queues", "uint16"),
    ("disable-legacy", "OnOffAuto"),
    ("disable-modern", "bool"),
    ("addr", "int32"),
];
const IDE_DRIVE: &[(&str, &str)] = &[
    ("drive", "str"),
    ("unit", "uint32"),
    ("serial", "str"),
    ("model", "str"),
    ("bootindex", "int32"),
    ("write-cache", "OnOffAuto"),
    ("rerror", "BlockdevOnError"),
    ("werror", "BlockdevOnError"),
];
const FLOPPY: &[(&str, &str)] = &[("drive", "str"), ("unit", "uint32"), ("bootindex", "int32")];
const CARD: &[(&str, &str)] = &[
    ("netdev", "str"),
    ("mac", "str"),
    ("romfile", "str"),
    ("bootindex", "int32"),
    ("addr", "int32"),
];
const VIRTIO_CARD: &[(&str, &str)] = &[
    ("netdev", "str"),
    ("mac", "str"),
    ("host_mtu", "uint16"),
    ("disable-legacy", "OnOffAuto"),
    ("disable-modern", "bool"),
    ("romfile", "str"),
    ("bootindex", "int32"),
    ("addr", "int32"),
];
const CHANNEL: &[(&str, &str)] = &[("chardev", "str"), ("name", "str"), ("nr", "uint32")];
const BALLOON: &[(&str, &str)] = &[
    ("deflate-on-oom", "bool"),
    ("free-page-reporting", "bool"),
    ("addr", "int32"),
    ("guest-stats", "guest statistics"),
    ("guest-stats-polling-interval", "int"),
];
const EXTRA_MEMORY: &[(&str, &str)] = &[
    ("memdev", "link<memory-backend>"),
    ("requested-size", "size"),
    ("size", "size"),
    ("block-size", "size"),
    ("addr", "int32"),
];
const ISA_CARD: &[(&str, &str)] =
    &[("netdev", "str"), ("mac", "str"), ("iobase", "uint32"), ("irq", "uint32")];
const SERIAL: &[(&str, &str)] = &[("chardev", "str"), ("index", "uint32")];
const SERIAL_CARD: &[(&str, &str)] = &[("chardev", "str"), ("addr", "int32")];
const CONSOLE: &[(&str, &str)] = &[("chardev", "str"), ("iobase", "uint32")];
const GENERATION: &[(&str, &str)] = &[("guid", "str")];
const EXIT: &[(&str, &str)] = &[("iobase", "uint32"), ("iosize", "uint32")];

const fn device(
    name: &'static str,
    parent: &'static str,
    properties: &'static [(&'static str, &'static str)],
    hotpluggable: bool,
) -> DeviceType {
    DeviceType { name, parent, properties, hotpluggable }
}

/// All types of devices.
pub(crate) const DEVICES: &[DeviceType] = &[
    device("virtio-blk-pci", "virtio-pci", VIRTIO_DISK, true),
    device("virtio-blk", "virtio-pci", VIRTIO_DISK, true),
    device("vhost-user-blk-pci", "virtio-pci", SERVED_DISK, false),
    device("vhost-user-blk", "virtio-pci", SERVED_DISK, false),
    device("ide-hd", "ide-device", IDE_DRIVE, false),
    device("ide-cd", "ide-device", IDE_DRIVE, false),
    device("floppy", "device", FLOPPY, false),
    device("virtio-net-pci", "virtio-pci", VIRTIO_CARD, true),
    device("virtio-net", "virtio-pci", VIRTIO_CARD, true),
    device("e1000", "pci-device", CARD, true),
    device("e1000-82540em", "pci-device", CARD, true),
    device("ne2k_pci", "pci-device", CARD, true),
    device("ne2k_isa", "isa-device", ISA_CARD, false),
    device("virtio-balloon-pci", "virtio-pci", BALLOON, false),
    device("virtio-balloon", "virtio-pci", BALLOON, false),
    device("virtio-mem-pci", "virtio-pci", EXTRA_MEMORY, false),
    device("virtio-serial-pci", "virtio-pci", &[("addr", "int32"), ("max_ports", "uint32")], false),
    device("virtio-serial", "virtio-pci", &[("addr", "int32"), ("max_ports", "uint32")], false),
    device("virtserialport", "device", CHANNEL, false),
    device("isa-serial", "isa-device", SERIAL, false),
    device("pci-serial", "pci-device", SERIAL_CARD, true),
    device("isa-debugcon", "isa-device", CONSOLE, false),
    device("isa-debug-exit", "isa-device", EXIT, false),
    device("pc-testdev", "isa-device", &[], false),
    device("pvpanic", "isa-device", &[("ioport", "uint16"), ("events", "uint8")], false),
    device("vmgenid", "device", GENERATION, false),
    device("vmcoreinfo", "device", &[], false),
    device("VGA", "pci-device", &[("addr", "int32")], false),
    device("i440FX", "pci-device", &[], false),
    device("PIIX3", "pci-device", &[], false),
    device("piix3-ide", "pci-device", &[], false),
    device("PIIX4_PM", "pci-device", &[], false),
    device("isa-fdc", "isa-device", &[], false),
    device("i8042", "isa-device", &[], false),
    device("mc146818rtc", "isa-device", &[], false),
    device("isa-pit", "isa-device", &[], false),
    device("isa-i8259", "isa-device", &[], false),
    device("ioapic", "sys-bus-device", &[], false),
];

/// Types without instances of their own: name and parent.
pub(crate) const ABSTRACT: &[(&str, &str)] = &[
    ("object", ""),
    ("device", "object"),
    ("sys-bus-device", "device"),
    ("pci-device", "device"),
    ("isa-device", "device"),
    ("ide-device", "device"),
    ("virtio-pci", "pci-device"),
    ("cpu", "device"),
    ("machine", "object"),
    ("accel", "object"),
];

/// Returns the names and types of the properties of the device with driver `name`. The result is empty if
/// there is no such device.
pub fn device_properties(name: &str) -> Vec<(&'static str, &'static str)> {
    let found = DEVICES.iter().find(|device| device.name == name);
    found.map(|device| device.properties.to_vec()).unwrap_or_default()
}
