//! Registers of devices whose values are known while translated code runs.

use super::Context;

/// A register of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct DeviceRead {
    /// Its linear address, a multiple of 4; something else where nothing is known.
    pub(crate) linear: u32,
    pub(crate) value: u32,
}

/// So many are known.
pub(crate) const DEVICE_READS: usize = 8;
/// The bits of its linear address that are the place of one: those of the local APIC are at multiples of 16.
pub(crate) const DEVICE_READ_BITS: u32 = 0x70;

impl DeviceRead {
    /// Nothing is known.
    pub(crate) const NONE: DeviceRead = DeviceRead { linear: 1, value: 0 };
}

impl Context {
    /// Translated code that reads at `linear` finds `value` there.
    pub(crate) fn note_device_read(&mut self, linear: u32, value: u32) {
        let place = (linear & DEVICE_READ_BITS) >> DEVICE_READ_BITS.trailing_zeros();
        self.device_reads[place as usize] = DeviceRead { linear, value };
    }

    /// What is read may be something else now.
    pub(crate) fn forget_device_reads(&mut self) {
        self.device_reads = [DeviceRead::NONE; DEVICE_READS];
    }
}
