//! VMDK, VMware's format ("VMware Virtual Disk Format 1.1").
//!
//! Numbers are little-endian, and offsets are in sectors. Images in one sparse file are read, written and
//! made. Images of several files, flat or sparse, are read and written. Stream-optimized images are only
//! read. An image may have a backing image.
//!
//! * [`descriptor`]: the text that lists the parts of an image;
//! * [`sparse`]: a sparse file; [`extents`]: an image of several files.

mod descriptor;
mod extents;
mod sparse;

use std::path::Path;

use crate::error::{Fault, Result};
use crate::external::External;
use crate::flat::Flat;
use crate::format::Driver;
use crate::storage::{Access, HostFile, Storage};
use descriptor::{Descriptor, Part};
use extents::Extents;

pub(crate) use sparse::create;

/// Upper bound of the bytes in a descriptor.
const DESCRIPTOR_MAX: u64 = 64 << 10;
/// Number of bytes in a sector.
const SECTOR: u64 = 512;
/// The first bytes of a sparse file.
const MAGIC: &[u8; 4] = b"KDMV";
/// The first bytes of a descriptor.
const TEXT: &[u8] = b"# Disk DescriptorFile";

/// Returns whether `head` is the beginning of an image of this format.
pub(crate) fn is_one(head: &[u8]) -> bool {
    head.starts_with(MAGIC) || head.starts_with(TEXT)
}

/// Opens the image in `storage`, and with the same `access` the other files that belong to it.
pub(crate) fn open(
    storage: Box<dyn Storage>,
    access: Access,
    external: External<'_>,
) -> Result<Box<dyn Driver>> {
    let size = storage.size()?;
    let mut head = vec![0; size.min(DESCRIPTOR_MAX) as usize];
    storage.read_at(&mut head, 0)?;
    if head.starts_with(MAGIC) {
        return sparse::open(storage, None, access.writes);
    }
    if !head.starts_with(TEXT) {
        return Err(Fault::refused("it is not a VMDK image"));
    }
    let descriptor = Descriptor::parse(&head)?;
    let directory = storage.path().map(|path| path.parent().unwrap_or(Path::new("")).to_owned());
    let directory = directory.ok_or_else(|| Fault::unsupported("it consists of several files"))?;
    let open = |name: &str, writes: bool| -> Result<Box<dyn Storage>> {
        external.ask("a file with a part of its data", name)?;
        let file = HostFile::open(&directory.join(name), Access { writes, ..access });
        Ok(Box::new(file.map_err(|error| Fault::refused(error.to_string()))?))
    };
    let mut parts: Vec<(u64, Option<Box<dyn Driver>>)> = Vec::new();
    for (sectors, part) in &descriptor.parts {
        let len = sectors.checked_mul(SECTOR).filter(|len| i64::try_from(*len).is_ok());
        let len = len.ok_or_else(|| {
            Fault::damaged(format!("its descriptor has a part of {sectors} sectors"))
        })?;
        let driver: Option<Box<dyn Driver>> = match part {
            Part::Zero => None,
            Part::Flat { name, start } => {
                let file = open(name, access.writes)?;
                let start =
                    start.checked_mul(SECTOR).filter(|start| *start <= i64::MAX as u64 - len);
                let start = start.ok_or_else(|| {
                    Fault::damaged("a part begins too far from the start of its file")
                })?;
                if file.size()? < start + len {
                    return Err(Fault::damaged(format!(
                        "{name} is shorter than its part of the disk"
                    )));
                }
                Some(Box::new(Flat::new(file, start, len, vec![])))
            }
            Part::Sparse { name } => {
                let driver =
                    sparse::open(open(name, access.writes)?, Some(*sectors), access.writes)?;
                if driver.size() < len {
                    return Err(Fault::damaged(format!(
                        "{name} is shorter than its part of the disk"
                    )));
                }
                Some(driver)
            }
        };
        parts.push((len, driver));
    }
    Ok(Box::new(Extents::new(parts, &descriptor)?))
}
