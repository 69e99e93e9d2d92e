//! What stands behind the drives of the machine.

use std::fmt::{self, Debug, Formatter};

use ring3_core::disk::{DiskError, DiskOperation};

/// The host's side of a drive: a file, memory, or whatever holds sectors.
pub trait Drive: Send {
    /// Does `operation`; the bytes read, none for other operations.
    fn execute(&mut self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError>;
}

/// The drives of a machine, each by the name of its device and its number there.
#[derive(Default)]
pub(crate) struct Drives(Vec<(String, u8, Box<dyn Drive>)>);

impl Debug for Drives {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(device, unit, _)| (device, unit))).finish()
    }
}

impl Drives {
    /// Attaches `drive`, in the place of the one that was there.
    pub(crate) fn attach(&mut self, device: &str, unit: u8, drive: Box<dyn Drive>) {
        self.0.retain(|(of, number, _)| (of.as_str(), *number) != (device, unit));
        self.0.push((device.to_owned(), unit, drive));
    }

    /// The drive `unit` of device `device`.
    pub(crate) fn find(&mut self, device: &str, unit: u8) -> Option<&mut (dyn Drive + 'static)> {
        let found =
            self.0.iter_mut().find(|(of, number, _)| (of.as_str(), *number) == (device, unit));
        found.map(|(_, _, drive)| drive.as_mut())
    }
}
