//! The part of the DSDT by which cards come and go; [`ring3_devices::pci_hotplug`] has the registers.
//!
//! ```text
//! Device (S04_) { _ADR, _SUN: the slot; _EJ0: gives it up }      one for each slot that can have a card
//! Method (DVNT, 2): tells the slots of which Arg0 has the bit that Arg1 happens there
//! Method (PCNT): asks the registers which they are
//! Method (\_GPE._E01): the event
//! ```

use acpi_tables::Aml;
use acpi_tables::aml::{
    Acquire, And, Arg, Device, EISAName, Field, FieldAccessType, FieldEntry, FieldLockRule,
    FieldUpdateRule, IO, If, Method, MethodCall, Mutex, Name, Notify, OpRegion, OpRegionSpace,
    Path, Release, ResourceTemplate, Scope, Store, ZERO,
};
use ring3_devices::pci_hotplug::{EVENT_BLOCK, REGISTERS, SLOTS};

use super::dsdt::{Encoded, encoded};

/// Notifications of a device (ACPI 6.5, table 5.165): the bus must be checked at its slot, and the device
/// must be given up.
const DEVICE_CHECK: u8 = 1;
const EJECT_REQUEST: u8 = 3;

const FOR_EVER: u16 = 0xffff;

/// Returns the objects that belong into the PCI bus.
pub(super) fn slots() -> Vec<Encoded> {
    let region = OpRegion::new(
        Path::new("PCST"),
        OpRegionSpace::SystemIO,
        &REGISTERS.first,
        &REGISTERS.count,
    );
    let fields = Field::new(
        Path::new("PCST"),
        FieldAccessType::DWord,
        FieldLockRule::NoLock,
        FieldUpdateRule::WriteAsZeroes,
        vec![
            FieldEntry::Named(*b"PCIU", 32),
            FieldEntry::Named(*b"PCID", 32),
            FieldEntry::Named(*b"B0EJ", 32),
            FieldEntry::Reserved(32),
            FieldEntry::Named(*b"BNUM", 32),
        ],
    );
    let lock = Mutex::new(Path::new("BLCK"), 0);
    let mut parts = vec![encoded(&region), encoded(&fields), encoded(&lock), ports()];
    parts.extend(SLOTS.map(slot));
    parts.extend([give_up(), notify(), look()]);
    parts
}

/// `\_GPE._E01`: cards have come, or must be given up.
pub(super) fn event() -> Encoded {
    let acquire = Acquire::new(Path::new("\\_SB_.PCI0.BLCK"), FOR_EVER);
    let look = MethodCall::new(Path::new("\\_SB_.PCI0.PCNT"), Vec::new());
    let release = Release::new(Path::new("\\_SB_.PCI0.BLCK"));
    let event = Method::new(Path::new("_E01"), 0, false, vec![&acquire, &look, &release]);
    encoded(&Scope::new(Path::new("\\_GPE"), vec![&event]))
}

/// The ports of the registers, so that no card is put there ("PNP0C02": resources of the board itself).
fn ports() -> Encoded {
    let [registers, events] = [REGISTERS, EVENT_BLOCK]
        .map(|range| IO::new(range.first, range.first, 1, range.count as u8));
    let resources = ResourceTemplate::new(vec![&registers, &events]);
    let resources = Name::new(Path::new("_CRS"), &resources);
    let hardware_id = Name::new(Path::new("_HID"), &EISAName::new("PNP0C02"));
    encoded(&Device::new(Path::new("PHPR"), vec![&hardware_id, &resources]))
}

/// Returns the name of a slot below the bus, made from its device number.
fn name(slot: u8) -> Path {
    Path::new(&format!("S{slot:02X}_"))
}

fn bit(slot: u8) -> u32 {
    1 << slot
}

/// Returns a slot (ACPI 6.5, 6.1.1, 6.1.11 and 6.3.3).
fn slot(slot: u8) -> Encoded {
    let address = Name::new(Path::new("_ADR"), &(u32::from(slot) << 16));
    let number = Name::new(Path::new("_SUN"), &slot);
    let bit = bit(slot);
    let give_up = MethodCall::new(Path::new("PCEJ"), vec![&bit]);
    let eject = Method::new(Path::new("_EJ0"), 1, false, vec![&give_up]);
    encoded(&Device::new(name(slot), vec![&address, &number, &eject]))
}

/// `PCEJ`: gives up the slots whose bits are set in Arg0.
fn give_up() -> Encoded {
    let acquire = Acquire::new(Path::new("BLCK"), FOR_EVER);
    let (bus, register) = (Path::new("BNUM"), Path::new("B0EJ"));
    let select = Store::new(&bus, &ZERO);
    let eject = Store::new(&register, &Arg(0));
    let release = Release::new(Path::new("BLCK"));
    let parts: Vec<&dyn Aml> = vec![&acquire, &select, &eject, &release];
    encoded(&Method::new(Path::new("PCEJ"), 1, false, parts))
}

fn notify() -> Encoded {
    let tests = SLOTS.map(|slot| {
        let bit = bit(slot);
        let is_meant = And::new(&ZERO, &Arg(0), &bit);
        let name = name(slot);
        let tell = Notify::new(&name, &Arg(1));
        encoded(&If::new(&is_meant, vec![&tell]))
    });
    let tests: Vec<_> = tests.collect();
    let tests = tests.iter().map(|test| test as &dyn Aml).collect();
    encoded(&Method::new(Path::new("DVNT"), 2, false, tests))
}

fn look() -> Encoded {
    let (bus, added, wanted) = (Path::new("BNUM"), Path::new("PCIU"), Path::new("PCID"));
    let select = Store::new(&bus, &ZERO);
    let (check, request) = (DEVICE_CHECK, EJECT_REQUEST);
    let come = MethodCall::new(Path::new("DVNT"), vec![&added, &check]);
    let go = MethodCall::new(Path::new("DVNT"), vec![&wanted, &request]);
    encoded(&Method::new(Path::new("PCNT"), 0, false, vec![&select, &come, &go]))
}
