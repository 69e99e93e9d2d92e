//! Disks of several parts, each of which is in a file of its own.

use super::descriptor::Descriptor;
use crate::error::{Fault, Result};
use crate::format::{BackingName, Below, Details, Driver, Extent, Kind};

/// A disk of several parts. Those without a driver are zeros.
#[derive(Debug)]
pub(super) struct Extents {
    parts: Vec<Piece>,
    size: u64,
    create_type: String,
    backing: Option<BackingName>,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    len: u64,
    driver: Option<Box<dyn Driver>>,
}

/// The image below a part of the disk.
struct Shifted<'a> {
    below: &'a dyn Below,
    by: u64,
}

impl Below for Shifted<'_> {
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        self.below.read(bytes, self.by + offset)
    }

    fn size(&self) -> u64 {
        self.below.size().saturating_sub(self.by)
    }
}

impl Extents {
    pub(super) fn new(
        parts: Vec<(u64, Option<Box<dyn Driver>>)>,
        descriptor: &Descriptor,
    ) -> Result<Extents> {
        let mut size = 0_u64;
        let mut pieces = Vec::new();
        for (len, driver) in parts {
            pieces.push(Piece { start: size, len, driver });
            size = size
                .checked_add(len)
                .filter(|size| i64::try_from(*size).is_ok())
                .ok_or_else(|| Fault::damaged("its parts are too large"))?;
        }
        let (create_type, backing) = (descriptor.create_type.clone(), descriptor.backing());
        Ok(Extents { parts: pieces, size, create_type, backing })
    }

    /// Returns the part that contains byte `offset`, which must be within the disk.
    fn part(&self, offset: u64) -> &Piece {
        let index = self.parts.partition_point(|part| part.start + part.len <= offset);
        &self.parts[index]
    }

    /// Calls `act` for each part of a range, with the part, the offset in it, and the bytes of the range that
    /// belong to it.
    fn each(
        &self,
        offset: u64,
        len: u64,
        mut act: impl FnMut(&Piece, u64, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let part = self.part(offset + done);
            let inside = offset + done - part.start;
            let count = (part.len - inside).min(len - done);
            act(part, inside, done as usize..(done + count) as usize)?;
            done += count;
        }
        Ok(())
    }
}

fn zeros_only() -> Fault {
    Fault::refused("this part of the disk is always zero and cannot be written")
}

impl Driver for Extents {
    fn size(&self) -> u64 {
        self.size
    }

    fn extent(&self, offset: u64, max: u64) -> Result<Extent> {
        let part = self.part(offset);
        let inside = offset - part.start;
        let max = max.min(part.len - inside);
        match &part.driver {
            None => Ok(Extent { kind: Kind::Zero { at: None }, len: max }),
            Some(driver) => {
                let extent = driver.extent(inside, max)?;
                // The map of an image can only give offsets in its first file.
                let kind = match extent.kind {
                    Kind::Data { .. } => Kind::Data { at: None },
                    Kind::Zero { .. } => Kind::Zero { at: None },
                    Kind::Absent => Kind::Absent,
                };
                Ok(Extent { kind, len: extent.len.min(max) })
            }
        }
    }

    fn read(&self, bytes: &mut [u8], offset: u64, below: &dyn Below) -> Result<()> {
        self.each(offset, bytes.len() as u64, |part, inside, range| match &part.driver {
            None => {
                bytes[range].fill(0);
                Ok(())
            }
            Some(driver) => {
                driver.read(&mut bytes[range], inside, &Shifted { below, by: part.start })
            }
        })
    }

    fn write(&self, bytes: &[u8], offset: u64, below: &dyn Below) -> Result<()> {
        self.each(offset, bytes.len() as u64, |part, inside, range| {
            let driver = part.driver.as_ref().ok_or_else(zeros_only)?;
            driver.write(&bytes[range], inside, &Shifted { below, by: part.start })
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, below: &dyn Below) -> Result<()> {
        self.each(offset, len, |part, inside, range| match &part.driver {
            None => Ok(()),
            Some(driver) => {
                driver.write_zeroes(inside, range.len() as u64, &Shifted { below, by: part.start })
            }
        })
    }

    fn write_zeroes_in_place(&self, offset: u64, len: u64, below: &dyn Below) -> Result<()> {
        self.each(offset, len, |part, inside, range| match &part.driver {
            None => Ok(()),
            Some(driver) => {
                let below = Shifted { below, by: part.start };
                driver.write_zeroes_in_place(inside, range.len() as u64, &below)
            }
        })
    }

    fn flush(&self) -> Result<()> {
        self.parts
            .iter()
            .filter_map(|part| part.driver.as_ref())
            .try_for_each(|driver| driver.flush())
    }

    fn is_behind(&self) -> bool {
        self.parts.iter().filter_map(|part| part.driver.as_ref()).any(|driver| driver.is_behind())
    }

    fn details(&self) -> Details {
        let specific = vec![("create type", self.create_type.clone())];
        Details { specific, ..Details::default() }
    }

    fn backing(&self) -> Option<BackingName> {
        self.backing.clone()
    }

    fn allocated(&self) -> Option<u64> {
        self.parts
            .iter()
            .filter_map(|part| part.driver.as_ref())
            .map(|driver| driver.allocated())
            .sum()
    }
}
