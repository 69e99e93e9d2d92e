//! Device registers whose values are known while translated code runs.

use super::Context;
use crate::routines;

/// A device register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct DeviceRead {
    /// Its linear address, a multiple of 4; another number in an empty entry.
    pub(crate) linear: u32,
    pub(crate) value: u32,
}

/// Number of registers that are known at a time.
pub(crate) const DEVICE_READS: usize = 8;
/// The bits of the linear address that select the entry. The registers of the local APIC are at multiples
/// of 16.
pub(crate) const DEVICE_READ_BITS: u32 = 0x70;

impl DeviceRead {
    /// An empty entry.
    pub(crate) const NONE: DeviceRead = DeviceRead { linear: 1, value: 0 };
}

impl Context {
    /// Makes translated code that reads at `linear` find `value` there.
    pub(crate) fn note_device_read(&mut self, linear: u32, value: u32) {
        let place = (linear & DEVICE_READ_BITS) >> DEVICE_READ_BITS.trailing_zeros();
        self.device_reads[place as usize] = DeviceRead { linear, value };
        self.has_device_reads = true;
    }

    /// Forgets all values, since they may be different now.
    pub(crate) fn forget_device_reads(&mut self) {
        if std::mem::take(&mut self.has_device_reads) {
            self.device_reads = [DeviceRead::NONE; DEVICE_READS];
        }
    }

    /// Makes translated code, which was left for the execution of an instruction, continue at EIP. No other
    /// code that uses GS may run before that: the base of GS is still [`Context::window`].
    pub(crate) fn go_on_at_eip(&mut self) {
        self.set_window = self.window;
        self.target = routines::jump_by_table as *const () as u64;
    }
}
