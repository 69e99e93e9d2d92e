//! Registers of devices whose values are known while translated code runs.

use super::Context;
use crate::routines;

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
        self.has_device_reads = true;
    }

    /// What is read may be something else now.
    pub(crate) fn forget_device_reads(&mut self) {
        if std::mem::take(&mut self.has_device_reads) {
            self.device_reads = [DeviceRead::NONE; DEVICE_READS];
        }
    }

    /// Has translated code, which was left to have an instruction executed, go on at EIP, before any other code runs
    /// for which GS is set: its base is still [`Context::window`].
    pub(crate) fn go_on_at_eip(&mut self) {
        self.set_window = self.window;
        self.target = routines::jump_by_table as *const () as u64;
    }
}
