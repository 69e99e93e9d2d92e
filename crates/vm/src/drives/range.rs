//! Which operations a medium can do at all.

use ring3_core::disk::{DiskError, DiskOperation, Medium, SECTOR_SIZE};

/// The most sectors that one request may read: a device asks for less.
const REQUEST_SECTORS_MAX: u32 = 0x1_0000;

/// Bytes of `count` sectors.
pub(super) fn bytes_of(count: u32) -> u64 {
    u64::from(count) * SECTOR_SIZE as u64
}

/// Refuses what leaves `medium`, changes one that is for reading, is no whole number of sectors, or would read more than it may at once. What is
/// left has an end, in bytes, that is no larger than the largest number.
pub(super) fn check(operation: &DiskOperation, medium: Medium) -> Result<(), DiskError> {
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
