//! The DSDT: the devices of the board, in AML (ACPI 6.5, 20).

use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, And, Arg, BufferData, CreateDWordField, Device, EISAName,
    Field, FieldAccessType, FieldEntry, FieldLockRule, FieldUpdateRule, IO, Interrupt, Method,
    Name, OpRegion, OpRegionSpace, Or, Package, PackageBuilder, Path, ResourceTemplate, Return,
    Scope, Store,
};
use acpi_tables::sdt::Sdt;
use acpi_tables::{Aml, aml};
use ring3_devices::acpi_pm;

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID, bytes};
use super::{hotplug, isa, vmgenid};
use crate::config::Config;

/// Guest-physical addresses that PCI devices may take: from the end of the largest RAM to the I/O APIC of
/// later machines.
pub(crate) const PCI_WINDOW: (u32, u32) = (0xc000_0000, 0xfebf_ffff);

/// The Differentiated System Description Table: the devices of a machine with this configuration, in AML.
pub(super) fn dsdt(config: &Config) -> Sdt {
    /// The revision from which AML integers have 64 bits (ACPI 6.5, 5.2.11.1).
    const REVISION: u8 = 2;
    const HEADER_LENGTH: u32 = 36;

    let mut aml = Vec::new();
    soft_off().to_aml_bytes(&mut aml);
    system_bus(&mut aml, config);
    hotplug::event().to_aml_bytes(&mut aml);
    if config.generation.is_some() {
        for object in vmgenid::objects() {
            object.to_aml_bytes(&mut aml);
        }
    }
    let mut dsdt = Sdt::new(*b"DSDT", HEADER_LENGTH, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    dsdt.append_slice(&aml);
    dsdt
}

/// `\_S5`: the values that switch the machine off when they are written to the PM1 control registers (ACPI
/// 6.5, 7.4.2).
fn soft_off() -> Name {
    let package = Package::new(vec![&acpi_pm::SLP_TYP_S5, &aml::ZERO, &aml::ZERO, &aml::ZERO]);
    Name::new(Path::new("_S5_"), &package)
}

/// `\_SB`: the PCI bus, with the ISA bridge at 00:01.0 and the devices behind it.
fn system_bus(aml: &mut Vec<u8>, config: &Config) {
    /// Device 1, function 0 (ACPI 6.5, 6.1.1).
    const ISA_BRIDGE: u32 = 1 << 16;

    let devices = isa::devices(config);
    let isa_address = Name::new(Path::new("_ADR"), &ISA_BRIDGE);
    let routes = encoded(&OpRegion::new(
        Path::new("PRR_"),
        OpRegionSpace::PCIConfig,
        &PIRQ_ROUTE_CONTROL,
        &LINKS.len(),
    ));
    let route_fields = Field::new(
        Path::new("PRR_"),
        FieldAccessType::Byte,
        FieldLockRule::NoLock,
        FieldUpdateRule::Preserve,
        LINKS.map(|link| FieldEntry::Named(link.route, 8)).to_vec(),
    );
    let mut parts: Vec<&dyn Aml> = vec![&isa_address, &routes, &route_fields];
    parts.extend(devices.iter().map(|device| device as &dyn Aml));
    let isa = Device::new(Path::new("ISA_"), parts);

    let (cacheable, writable) = (AddressSpaceCacheable::NotCacheable, true);
    let (first, last) = PCI_WINDOW;
    let memory = AddressSpace::<u32>::new_memory(cacheable, writable, first, last, None);
    // Ports CF8h to CFFh belong to the bridge itself, for configuration.
    let resources = Name::new(
        Path::new("_CRS"),
        &ResourceTemplate::new(vec![
            &AddressSpace::<u16>::new_bus_number(0, 0),
            &IO::new(0xcf8, 0xcf8, 1, 8),
            &AddressSpace::<u16>::new_io(0, 0xcf7, None),
            &AddressSpace::<u16>::new_io(0xd00, 0xffff, None),
            &memory,
        ]),
    );
    let hardware_id = Name::new(Path::new("_HID"), &EISAName::new("PNP0A03"));
    let unique_id = Name::new(Path::new("_UID"), &aml::ZERO);
    let routing = interrupt_routing();
    let mut parts: Vec<&dyn Aml> = vec![&hardware_id, &unique_id, &resources, &isa, &routing];
    let slots = hotplug::slots();
    parts.extend(slots.iter().map(|part| part as &dyn Aml));
    let pci0 = Device::new(Path::new("PCI0"), parts);
    let links = LINKS.map(interrupt_link);
    let mut parts: Vec<&dyn Aml> = vec![&pci0];
    parts.extend(links.iter().map(|link| link as &dyn Aml));
    Scope::new(Path::new("_SB_"), parts).to_aml_bytes(aml);
}

/// Offset of PIRQRCA in the configuration space of the ISA bridge (82371SB data sheet).
const PIRQ_ROUTE_CONTROL: usize = 0x60;
/// The bit of these registers that says that the input is not routed.
const NOT_ROUTED: u8 = 0x80;
/// The lines to which the router can be set here: those that no ISA device of the board uses.
pub(super) const ROUTABLE: [u8; 3] = [5, 10, 11];

/// One of the router's inputs PIRQA to PIRQD, in AML.
#[derive(Debug, Clone, Copy)]
struct LinkNames {
    number: u8,
    /// The device, below `\_SB`.
    device: &'static str,
    /// The name of its route control register, and the path to that.
    route: [u8; 4],
    route_path: &'static str,
}

const LINKS: [LinkNames; 4] = [
    LinkNames { number: 0, device: "LNKA", route: *b"PRQA", route_path: "\\_SB_.PCI0.ISA_.PRQA" },
    LinkNames { number: 1, device: "LNKB", route: *b"PRQB", route_path: "\\_SB_.PCI0.ISA_.PRQB" },
    LinkNames { number: 2, device: "LNKC", route: *b"PRQC", route_path: "\\_SB_.PCI0.ISA_.PRQC" },
    LinkNames { number: 3, device: "LNKD", route: *b"PRQD", route_path: "\\_SB_.PCI0.ISA_.PRQD" },
];

/// `_PRT`: the links to which the interrupt pins of the slots are wired (ACPI 6.5, 6.2.13), as in
/// [`IrqLines::set_pci`](ring3_core::lines::IrqLines::set_pci).
fn interrupt_routing() -> Encoded {
    const SLOTS: u32 = 32;
    const PINS: u32 = 4;
    const ALL_FUNCTIONS: u32 = 0xffff;
    let mut table = PackageBuilder::new();
    for (slot, pin) in (1..SLOTS).flat_map(|slot| (0..PINS).map(move |pin| (slot, pin))) {
        let link = LINKS[((slot - 1 + pin) % PINS) as usize];
        let address = slot << 16 | ALL_FUNCTIONS;
        let path = Path::new(link.device);
        table.add_element(&Package::new(vec![&address, &(pin as u8), &path, &aml::ZERO]));
    }
    encoded(&Name::new(Path::new("_PRT"), &table))
}

/// A device that stands for an input of the router (ACPI 6.5, 6.2.2 and 6.2.16). It says to which line the
/// input is routed, and routes it to another one.
fn interrupt_link(link: LinkNames) -> Encoded {
    /// The offset of the number in an extended interrupt descriptor (ACPI 6.5, 6.4.3.6).
    const NUMBER: u8 = 5;
    const LINE_BITS: u8 = 0x0f;
    const PRESENT: u8 = 0x0b;

    let hardware_id = Name::new(Path::new("_HID"), &EISAName::new("PNP0C0F"));
    let unique_id = Name::new(Path::new("_UID"), &link.number);
    let route = Path::new(link.route_path);
    let line = Path::new("LINE");
    let (consumer, edge, active_low, shared) = (true, false, false, true);
    let interrupt = Interrupt::new(consumer, edge, active_low, shared, 0);
    let possible = Name::new(Path::new("_PRS"), &possible_interrupts());
    let present = Return::new(&PRESENT);
    let status = Method::new(Path::new("_STA"), 0, false, vec![&present]);
    let off = Or::new(&route, &route, &NOT_ROUTED);
    let disable = Method::new(Path::new("_DIS"), 0, false, vec![&off]);
    let buffer = Path::new("BUF_");
    let template = ResourceTemplate::new(vec![&interrupt]);
    let named_buffer = Name::new(Path::new("BUF_"), &template);
    let current_line = CreateDWordField::new(&line, &buffer, &NUMBER);
    let masked = And::new(&line, &route, &LINE_BITS);
    let result = Return::new(&buffer);
    let current = Method::new(
        Path::new("_CRS"),
        0,
        true,
        vec![&named_buffer, &current_line, &masked, &result],
    );
    let wanted_line = CreateDWordField::new(&line, &Arg(0), &NUMBER);
    let store = Store::new(&route, &line);
    let set = Method::new(Path::new("_SRS"), 1, true, vec![&wanted_line, &store]);
    let parts: Vec<&dyn Aml> =
        vec![&hardware_id, &unique_id, &possible, &status, &disable, &current, &set];
    encoded(&Device::new(Path::new(link.device), parts))
}

/// The resource template with one extended interrupt descriptor that lists all possible lines; the crate's
/// descriptor has room for one.
fn possible_interrupts() -> Encoded {
    const DESCRIPTOR: u8 = 0x89;
    /// Consumer, level triggered, active high, shared.
    const FLAGS: u8 = 0b1001;
    const END_TAG: [u8; 2] = [0x79, 0];
    let mut template = vec![DESCRIPTOR];
    template.extend((2 + 4 * ROUTABLE.len() as u16).to_le_bytes());
    template.extend([FLAGS, ROUTABLE.len() as u8]);
    template.extend(ROUTABLE.map(|line| u32::from(line).to_le_bytes()).as_flattened());
    template.extend(END_TAG);
    encoded(&BufferData::new(template))
}

/// AML that is encoded already, since the crate's `Device` only borrows its parts.
pub(super) struct Encoded(Vec<u8>);

impl Aml for Encoded {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        sink.vec(&self.0);
    }
}

pub(super) fn encoded(part: &dyn Aml) -> Encoded {
    Encoded(bytes(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dsdt_has_soft_off() {
        let dsdt = dsdt(&Config::default());
        // Name (_S5, Package (4) { SLP_TYP_S5, 0, 0, 0 }); ACPI 6.5, 20.2.
        let mut expected = vec![0x08, b'_', b'S', b'5', b'_', 0x12];
        let elements = [bytes(&acpi_pm::SLP_TYP_S5), vec![0, 0, 0]].concat();
        expected.extend([elements.len() as u8 + 2, 4]);
        expected.extend(elements);
        assert!(dsdt.as_slice()[36..].starts_with(&expected));
    }

    #[test]
    fn every_pin_of_every_slot_is_wired_as_on_the_board() {
        use ring3_core::lines::IrqLines;

        let routing = bytes(&interrupt_routing());
        for (slot, pin) in (1..32u8).flat_map(|slot| (0..4u8).map(move |pin| (slot, pin))) {
            let mut lines = IrqLines::default();
            for input in 0..4 {
                lines.route(input, Some(8 + input));
            }
            lines.set_pci(slot, pin, true);
            let link = (0..4).find(|input| lines.is_high(8 + input)).unwrap();
            let address = u32::from(slot) << 16 | 0xffff;
            let path = Path::new(LINKS[usize::from(link)].device);
            let entry = bytes(&Package::new(vec![&address, &pin, &path, &aml::ZERO]));
            assert!(routing.windows(entry.len()).any(|bytes| bytes == entry));
        }
    }
}
