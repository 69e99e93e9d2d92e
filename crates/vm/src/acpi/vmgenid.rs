//! The part of the DSDT that tells where the VM generation ID is, and when it changes;
//! [`ring3_devices::vmgenid`] has the number.
//!
//! ```text
//! Device (\_SB_.VGEN) { _HID, _CID, _DDN: how drivers know it; ADDR: the address of the number; _CRS }
//! Method (\_GPE._E10): the event
//! ```

use acpi_tables::aml::{
    Device, Memory32Fixed, Method, Name, Notify, Package, Path, ResourceTemplate, Scope, ZERO,
};
use ring3_devices::vmgenid::{ADDRESS, FIRST_EVENT, SIZE};

use super::dsdt::{Encoded, encoded};

/// The notification (ACPI 6.5, table 5.166: the first one that the device itself defines).
const CHANGED: u8 = 0x80;

/// Returns the device, and the method of its event.
pub(super) fn objects() -> [Encoded; 2] {
    let hardware_id = Name::new(Path::new("_HID"), &"QEMUVGID");
    let compatible_id = Name::new(Path::new("_CID"), &"VM_Gen_Counter");
    let description = Name::new(Path::new("_DDN"), &"VM_Gen_Counter");
    // The lower half of the address, and the upper one.
    let (low, high) = (ADDRESS as u32, ZERO);
    let address = Name::new(Path::new("ADDR"), &Package::new(vec![&low, &high]));
    let place = Memory32Fixed::new(false, low, SIZE as u32);
    let resources = Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&place]));
    let device = Device::new(
        Path::new("VGEN"),
        vec![&hardware_id, &compatible_id, &description, &address, &resources],
    );
    let path = Path::new("\\_SB_.VGEN");
    let tell = Notify::new(&path, &CHANGED);
    let event = Method::new(Path::new(&format!("_E{FIRST_EVENT:02X}")), 0, false, vec![&tell]);
    [
        encoded(&Scope::new(Path::new("_SB_"), vec![&device])),
        encoded(&Scope::new(Path::new("\\_GPE"), vec![&event])),
    ]
}
