//! The configuration space of a virtio function: its identity, base address registers and capabilities (virtio 1.2, 4.1.2 and 4.1.4).

use super::super::DeviceType;
use super::super::msix;
use super::super::transport::LEGACY_CONFIG;
use super::Interfaces;
use crate::pci::rom::RomImage;
use crate::pci::{ConfigSpace, Identity, STATUS_ERRORS, registers};

/// Base address registers, which are the names of the claimed regions, too.
pub(super) const LEGACY_PORTS: u8 = 0;
pub(super) const MSIX: u8 = 1;
pub(super) const MEMORY: u8 = 4;

/// What is in memory: a page for each structure.
pub(super) const REGION_LEN: u64 = 0x1000;
pub(super) const COMMON: u64 = 0;
pub(super) const INTERRUPT_STATUS: u64 = REGION_LEN;
pub(super) const DEVICE: u64 = 2 * REGION_LEN;
pub(super) const NOTIFY: u64 = 3 * REGION_LEN;
pub(super) const MEMORY_LEN: u64 = 4 * REGION_LEN;
/// Bytes between the places where two queues are notified.
pub(super) const NOTIFY_STRIDE: u64 = 4;
/// Bytes of the common configuration.
const COMMON_LEN: u64 = 56;

/// Red Hat's vendor ID, which all virtio devices have, and the first device IDs of version 1 and before.
const VENDOR: u16 = 0x1af4;
const MODERN_DEVICE: u16 = 0x1040;
const TRANSITIONAL_DEVICE: u16 = 0x1000;

// Registers that not all functions have (PCI 3.0, 6.1).
const CAPABILITIES_POINTER: u8 = 0x34;
const LATENCY_TIMER: u8 = 0x0d;
const STATUS_HAS_CAPABILITIES: u8 = 1 << 4;

/// Capability IDs (PCI 3.0, appendix H).
const CAPABILITY_VENDOR: u8 = 0x09;
const CAPABILITY_MSIX: u8 = 0x11;

// Where the capabilities are.
const MSIX_CAPABILITY: u8 = 0x40;
const COMMON_CAPABILITY: u8 = 0x50;
const INTERRUPT_CAPABILITY: u8 = 0x60;
const DEVICE_CAPABILITY: u8 = 0x70;
const NOTIFY_CAPABILITY: u8 = 0x80;
const WINDOW_CAPABILITY: u8 = 0x98;

/// Message control of MSI-X, two bytes.
pub(super) const MSIX_CONTROL: u8 = MSIX_CAPABILITY + 2;
// The access by the configuration space alone: what is accessed, and its data.
pub(super) const WINDOW_BAR: u8 = WINDOW_CAPABILITY + 4;
pub(super) const WINDOW_OFFSET: u8 = WINDOW_CAPABILITY + 8;
pub(super) const WINDOW_LENGTH: u8 = WINDOW_CAPABILITY + 12;
pub(super) const WINDOW_DATA: u8 = WINDOW_CAPABILITY + 16;

/// Types of virtio's capabilities (4.1.4), which are vendor-specific ones.
mod kind {
    pub(super) const COMMON: u8 = 1;
    pub(super) const NOTIFY: u8 = 2;
    pub(super) const INTERRUPT_STATUS: u8 = 3;
    pub(super) const DEVICE: u8 = 4;
    pub(super) const WINDOW: u8 = 5;
}

/// Bytes of a vendor-specific capability, and of those with one more field.
const CAPABILITY_LEN: u8 = 16;
const LONG_CAPABILITY_LEN: u8 = 20;

/// How many legacy ports there are, a power of two.
pub(super) fn legacy_len(device_type: &impl DeviceType) -> u16 {
    let len = usize::from(LEGACY_CONFIG[1]) + device_type.config().len();
    len.next_power_of_two() as u16
}

/// Where the base address register of that number is.
pub(super) fn base_register(number: u8) -> u8 {
    registers::BASE_ADDRESS + 4 * number
}

/// Lets software give a base address register of `len` bytes an address; its fixed bits are `kind`.
fn make_base(space: &mut ConfigSpace, register: u8, len: u32, kind: u8) {
    let offset = base_register(register);
    space.set(offset, &[kind]);
    space.make_writable(offset, &(!(len - 1)).to_le_bytes());
}

/// The function's configuration space after a reset.
pub(super) fn config_space(
    interfaces: Interfaces,
    device_type: &impl DeviceType,
    vectors: u16,
    rom: Option<&RomImage>,
) -> ConfigSpace {
    let id = device_type.id();
    let (device, revision) = if interfaces.legacy {
        (transitional_device(id), 0)
    } else {
        (MODERN_DEVICE.wrapping_add(id), 1)
    };
    let class = device_type.class();
    let mut space = ConfigSpace::new(Identity { vendor: VENDOR, device, revision, class });
    // Ports, memory, bus mastering; interrupts by the pin can be switched off.
    space.make_writable(registers::COMMAND, &[0x07, 0x04]);
    space.set(registers::STATUS, &[STATUS_HAS_CAPABILITIES, 0]);
    space.make_clearable(registers::STATUS, &[0, STATUS_ERRORS]);
    space.make_writable(LATENCY_TIMER, &[0xff]);
    // Drivers of version 0.9.5 know the type by the subsystem (0.9.5, 2.1).
    space.set(registers::SUBSYSTEM_VENDOR, [VENDOR, id].map(u16::to_le_bytes).as_flattened());
    space.set(registers::INTERRUPT_PIN, &[1]);
    space.make_writable(registers::INTERRUPT_LINE, &[0xff]);
    if interfaces.legacy {
        make_base(&mut space, LEGACY_PORTS, legacy_len(device_type).into(), 1);
    }
    make_base(&mut space, MSIX, msix::LEN as u32, 0);
    if let Some(rom) = rom {
        rom.add_register(&mut space);
    }
    space.set(CAPABILITIES_POINTER, &[MSIX_CAPABILITY]);
    add_msix(&mut space, vectors, interfaces.modern);
    if interfaces.modern {
        make_base(&mut space, MEMORY, MEMORY_LEN as u32, 0);
        add_modern(&mut space, device_type);
    }
    space
}

/// The device IDs of transitional devices that have a number of their own (4.1.2.1).
fn transitional_device(id: u16) -> u16 {
    TRANSITIONAL_DEVICE
        + match id {
            // Network, block, balloon, console, SCSI host, entropy.
            1 => 0,
            2 => 1,
            5 => 2,
            3 => 3,
            8 => 4,
            4 => 5,
            9 => 9,
            other => other & 0x3f,
        }
}

fn add_msix(space: &mut ConfigSpace, vectors: u16, has_more: bool) {
    let next = if has_more { COMMON_CAPABILITY } else { 0 };
    let [low, high] = (vectors - 1).to_le_bytes();
    space.set(MSIX_CAPABILITY, &[CAPABILITY_MSIX, next, low, high]);
    space.make_writable(MSIX_CONTROL, &[0, 0xc0]);
    let places = [u32::from(MSIX), msix::PENDING_OFFSET as u32 | u32::from(MSIX)];
    space.set(MSIX_CAPABILITY + 4, places.map(u32::to_le_bytes).as_flattened());
}

fn add_modern(space: &mut ConfigSpace, device_type: &impl DeviceType) {
    let mut add = |place: u8, next: u8, len: u8, kind: u8, offset: u64, region_len: u64| {
        space.set(place, &[CAPABILITY_VENDOR, next, len, kind, MEMORY]);
        let range = [offset, region_len].map(|field| (field as u32).to_le_bytes());
        space.set(place + 8, range.as_flattened());
    };
    let short = CAPABILITY_LEN;
    add(COMMON_CAPABILITY, INTERRUPT_CAPABILITY, short, kind::COMMON, COMMON, COMMON_LEN);
    let next = DEVICE_CAPABILITY;
    add(INTERRUPT_CAPABILITY, next, short, kind::INTERRUPT_STATUS, INTERRUPT_STATUS, 1);
    let len = device_type.config().len() as u64;
    add(DEVICE_CAPABILITY, NOTIFY_CAPABILITY, short, kind::DEVICE, DEVICE, len);
    let long = LONG_CAPABILITY_LEN;
    let len = NOTIFY_STRIDE * device_type.queue_sizes().len() as u64;
    add(NOTIFY_CAPABILITY, WINDOW_CAPABILITY, long, kind::NOTIFY, NOTIFY, len);
    add(WINDOW_CAPABILITY, 0, long, kind::WINDOW, 0, 0);
    space.set(NOTIFY_CAPABILITY + 16, &(NOTIFY_STRIDE as u32).to_le_bytes());
    space.set(WINDOW_BAR, &[0]);
    space.make_writable(WINDOW_BAR, &[0xff]);
    space.make_writable(WINDOW_OFFSET, &[0xff; 4]);
    space.make_writable(WINDOW_LENGTH, &[0xff; 4]);
}
