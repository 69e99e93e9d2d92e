//! One image of a chain.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::Mapping;
use crate::error::{Fault, Result};
use crate::format::{Below, Driver, Extent, Format, Kind, Nothing};
use crate::nbd::Nbd;

/// An image and the images below it.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) path: PathBuf,
    pub(super) format: Format,
    pub(super) driver: Box<dyn Driver>,
    pub(super) below: Option<Arc<Layer>>,
    /// The NBD server that exports the image, if there is one.
    pub(super) server: Option<Arc<Nbd>>,
}

impl Layer {
    pub(super) fn beneath(&self) -> &dyn Below {
        match &self.below {
            Some(layer) => &**layer,
            None => &Nothing,
        }
    }

    /// Reads a range that is within the disk.
    pub(super) fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        self.driver.read(bytes, offset, self.beneath())
    }

    /// Returns the contents of the bytes from `offset` on, in this image or in those below.
    pub(super) fn map(&self, offset: u64, max: u64) -> Result<Mapping> {
        let (mut layer, mut depth, mut max) = (self, 0, max);
        loop {
            let found = |kind, len| Mapping { start: offset, len, depth, kind };
            let left = layer.driver.size().saturating_sub(offset);
            if left == 0 {
                // This image is shorter than the one above, and the range is after its end.
                return Ok(found(Kind::Absent, max));
            }
            max = max.min(left);
            let Extent { kind, len } = layer.driver.extent(offset, max)?;
            let len = len.clamp(1, max);
            match (kind, &layer.below) {
                (Kind::Absent, Some(below)) => {
                    (layer, depth, max) = (below, depth + 1, len);
                }
                _ => return Ok(found(kind, len)),
            }
        }
    }
}

impl Below for Layer {
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let there = self.driver.size().saturating_sub(offset).min(bytes.len() as u64) as usize;
        let (inside, behind) = bytes.split_at_mut(there);
        behind.fill(0);
        if inside.is_empty() {
            return Ok(());
        }
        Layer::read(self, inside, offset).map_err(|fault| {
            Fault::Io(io::Error::other(format!("backing file {}: {fault}", self.path.display())))
        })
    }

    fn size(&self) -> u64 {
        self.driver.size()
    }
}
