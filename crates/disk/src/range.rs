//! The operations that are possible with a medium.

use ring3_core::disk::{DiskError, DiskOperation, Medium, SECTOR_SIZE};

/// Upper bound of the sectors that one request may read. Devices ask for fewer.
const REQUEST_SECTORS_MAX: u32 = 0x1_0000;

/// Returns the number of bytes in `count` sectors.
pub(crate) fn bytes_of(count: u32) -> u64 {
    u64::from(count) * SECTOR_SIZE as u64
}

/// Refuses operations that reach beyond the end of `medium`, change a read-only one, concern a part of a
/// sector, or read more than one request may. The end of every other operation, in bytes, fits into 64 bits.
pub(crate) fn check(operation: &DiskOperation, medium: Medium) -> Result<(), DiskError> {
    let (sector, count, writes) = match operation {
        DiskOperation::Read { sector, count } => (*sector, u64::from(*count), false),
        DiskOperation::Write { sector, data } => {
            if !data.len().is_multiple_of(SECTOR_SIZE) {
                return Err(DiskError::OutOfRange);
            }
            (*sector, (data.len() / SECTOR_SIZE) as u64, true)
        }
        DiskOperation::Discard { sector, count }
        | DiskOperation::WriteZeroes { sector, count, .. } => (*sector, u64::from(*count), true),
        DiskOperation::Flush | DiskOperation::Eject => return Ok(()),
    };
    if writes && medium.read_only {
        return Err(DiskError::ReadOnly);
    }
    let may_be_read = writes || count <= u64::from(REQUEST_SECTORS_MAX);
    match sector.checked_add(count) {
        Some(end) if end <= medium.sectors && may_be_read => Ok(()),
        _ => Err(DiskError::OutOfRange),
    }
}
