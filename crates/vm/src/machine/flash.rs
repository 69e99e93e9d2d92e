//! The files behind the flash memory of a machine that was saved.

use ring3_core::device::DeviceId;
use ring3_core::disk::{DiskError, DiskOperation, DriveId, SECTOR_SIZE};

use crate::machine::Vm;

impl Vm {
    /// Writes the contents of the flash memory to the drives behind it, except to those that are write-protected. A machine
    /// that was saved has its own contents, whatever has become of the files since.
    pub fn write_flash(&self) -> Result<(), DiskError> {
        let Some(rom) = self.rom else { return Ok(()) };
        // The first chip is at the end.
        let mut rest = self.memory.area(rom);
        for (unit, chip) in (0..).zip(&self.config.flash) {
            let (before, contents) =
                rest.split_at(rest.len() - chip.sectors as usize * SECTOR_SIZE);
            rest = before;
            if let (false, Some(drive)) =
                (chip.read_only, self.drives.of(DriveId::new(DeviceId::FLASH, unit)))
            {
                drive.execute(&DiskOperation::Write { sector: 0, data: contents.to_vec() })?;
            }
        }
        Ok(())
    }
}
