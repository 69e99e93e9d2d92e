//! Device registers whose values are known while translated code runs.

use super::Context;
use crate::access::DeviceAccess;
use crate::routines;

/// A device register or a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct DeviceRead {
    /// The linear address, a multiple of 4, or the number of the port; neither in an empty entry.
    pub(crate) at: u32,
    pub(crate) value: u32,
}

/// Number of registers that are known at a time, and of ports.
pub(crate) const DEVICE_READS: usize = 8;
/// The bits of the linear address that select the entry. The registers of the local APIC are at multiples
/// of 16.
pub(crate) const DEVICE_READ_BITS: u32 = 0x70;
/// The bits of a port's number that select the entry.
pub(crate) const PORT_READ_BITS: u32 = 0x7;

impl DeviceRead {
    /// An empty entry.
    pub(crate) const NONE: DeviceRead = DeviceRead { at: u32::MAX, value: 0 };
}

impl Context {
    /// Makes translated code that reads at `linear` find `value` there.
    pub(crate) fn note_device_read(&mut self, linear: u32, value: u32) {
        let place = (linear & DEVICE_READ_BITS) >> DEVICE_READ_BITS.trailing_zeros();
        self.device_reads[place as usize] = DeviceRead { at: linear, value };
        self.has_device_reads = true;
    }

    /// Makes translated code that reads a byte at `port` find `value` there.
    pub(crate) fn note_port_read(&mut self, port: u16, value: u8) {
        let (at, value) = (port.into(), value.into());
        self.port_reads[(at & PORT_READ_BITS) as usize] = DeviceRead { at, value };
        self.has_device_reads = true;
    }

    /// Completes an instruction after its `access`, which has read `value`.
    pub(crate) fn finish_access(&mut self, access: &DeviceAccess, value: u32) {
        access.finish(&mut self.gpr, value);
        self.device_value = value;
    }

    /// Forgets all values, since they may be different now.
    pub(crate) fn forget_device_reads(&mut self) {
        if std::mem::take(&mut self.has_device_reads) {
            self.device_reads = [DeviceRead::NONE; DEVICE_READS];
            self.port_reads = [DeviceRead::NONE; DEVICE_READS];
        }
    }

    /// Makes translated code, which was left for the execution of an instruction, continue at EIP. No other
    /// code that uses GS may run before that: the base of GS is still [`Context::window`].
    pub(crate) fn go_on_at_eip(&mut self) {
        self.set_window = self.window;
        self.target = routines::jump_by_table as *const () as u64;
    }
}
