//! The configuration space of a virtio function: its identity, base address registers and capabilities (virtio 1.2, 4.1.2 and 4.1.4).

use super::super::DeviceType;
use super::super::msix;
use super::super::transport::LEGACY_CONFIG;
use super::Interfaces;
use crate::pci::{Function, Identity, command};

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
const STATUS_HAS_CAPABILITIES: u16 = 1 << 4;

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

/// The PCI function.
pub(super) fn function(
    interfaces: Interfaces,
    device_type: &impl DeviceType,
    vectors: u16,
) -> Function {
    let id = device_type.id();
    let (device, revision) = if interfaces.legacy {
        (transitional_device(id), 0)
    } else {
        (MODERN_DEVICE.wrapping_add(id), 1)
    };
    let class = device_type.class();
    let mut function = Function::new(Identity { vendor: VENDOR, device, revision, class })
        .command(command::IO | command::MEMORY | command::MASTER | command::INTERRUPT_DISABLE)
        .status(STATUS_HAS_CAPABILITIES)
        .writable(LATENCY_TIMER, &[0xff])
        // Drivers of version 0.9.5 know the type by the subsystem (0.9.5, 2.1).
        .subsystem(VENDOR, id)
        .interrupt()
        .memory(MSIX, msix::LEN as u32)
        .fixed(CAPABILITIES_POINTER, &[MSIX_CAPABILITY]);
    if interfaces.legacy {
        function = function.ports(LEGACY_PORTS, legacy_len(device_type));
    }
    function = with_msix(function, vectors, interfaces.modern);
    if interfaces.modern {
        function = with_modern(function.memory(MEMORY, MEMORY_LEN as u32), device_type);
    }
    function
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

fn with_msix(function: Function, vectors: u16, has_more: bool) -> Function {
    let next = if has_more { COMMON_CAPABILITY } else { 0 };
    let [low, high] = (vectors - 1).to_le_bytes();
    let places = [u32::from(MSIX), msix::PENDING_OFFSET as u32 | u32::from(MSIX)];
    function
        .fixed(MSIX_CAPABILITY, &[CAPABILITY_MSIX, next, low, high])
        .writable(MSIX_CONTROL, &[0, 0xc0])
        .fixed(MSIX_CAPABILITY + 4, places.map(u32::to_le_bytes).as_flattened())
}

fn with_modern(function: Function, device_type: &impl DeviceType) -> Function {
    let (short, long) = (CAPABILITY_LEN, LONG_CAPABILITY_LEN);
    let config_len = device_type.config().len() as u64;
    let notify_len = NOTIFY_STRIDE * device_type.queue_sizes().len() as u64;
    // Where each capability is, the next one, its length and kind, and what it describes.
    let capabilities = [
        (COMMON_CAPABILITY, INTERRUPT_CAPABILITY, short, kind::COMMON, COMMON, COMMON_LEN),
        (
            INTERRUPT_CAPABILITY,
            DEVICE_CAPABILITY,
            short,
            kind::INTERRUPT_STATUS,
            INTERRUPT_STATUS,
            1,
        ),
        (DEVICE_CAPABILITY, NOTIFY_CAPABILITY, short, kind::DEVICE, DEVICE, config_len),
        (NOTIFY_CAPABILITY, WINDOW_CAPABILITY, long, kind::NOTIFY, NOTIFY, notify_len),
        (WINDOW_CAPABILITY, 0, long, kind::WINDOW, 0, 0),
    ];
    let function = capabilities.into_iter().fold(function, |function, capability| {
        let (place, next, len, kind, offset, region_len) = capability;
        let range = [offset, region_len].map(|field| (field as u32).to_le_bytes());
        function
            .fixed(place, &[CAPABILITY_VENDOR, next, len, kind, MEMORY])
            .fixed(place + 8, range.as_flattened())
    });
    function
        .fixed(NOTIFY_CAPABILITY + 16, &(NOTIFY_STRIDE as u32).to_le_bytes())
        .fixed(WINDOW_BAR, &[0])
        .writable(WINDOW_BAR, &[0xff])
        .writable(WINDOW_OFFSET, &[0xff; 4])
        .writable(WINDOW_LENGTH, &[0xff; 4])
}
