//! Creation of images.

use super::{
    BLOCK, COOKIE, DIFFERENCING, DYNAMIC, FIXED, FOOTER_LEN, GEOMETRY_MAX, HEADER_COOKIE,
    HEADER_LEN, Parent, SIZE_MAX, checksum,
};
use crate::bytes::random_uuid;
use crate::error::{Fault, Result};
use crate::storage::Storage;

/// The kind of an image.
#[derive(Debug)]
pub(crate) enum Subformat {
    /// All sectors in order.
    Fixed,
    /// Blocks that take room when they are written.
    Dynamic,
    /// Blocks that take room when they are written, on a backing image that contains the others.
    Differencing(Parent),
}

/// Returns the geometry for a disk of this number of sectors ("Appendix: CHS Calculation").
fn geometry(sectors: u64) -> u32 {
    let sectors = sectors.min(GEOMETRY_MAX);
    let (mut heads, mut per_track, mut tracks);
    if sectors >= 65535 * 16 * 63 {
        (heads, per_track) = (16, 255);
        tracks = sectors / per_track;
    } else {
        per_track = 17;
        tracks = sectors / per_track;
        heads = tracks.div_ceil(1024).max(4);
        if tracks >= heads * 1024 || heads > 16 {
            (heads, per_track) = (16, 31);
            tracks = sectors / per_track;
        }
        if tracks >= heads * 1024 {
            per_track = 63;
            tracks = sectors / per_track;
        }
    }
    ((tracks / heads) << 16 | heads << 8 | per_track) as u32
}

/// Makes an image of `size` bytes.
pub(crate) fn create(storage: &dyn Storage, size: u64, subformat: &Subformat) -> Result<()> {
    let size = size.next_multiple_of(512);
    if size > SIZE_MAX {
        return Err(Fault::refused(format!("a VHD image has at most {SIZE_MAX} bytes")));
    }
    let (kind, is_fixed) = match subformat {
        Subformat::Fixed => (FIXED, true),
        Subformat::Dynamic => (DYNAMIC, false),
        Subformat::Differencing(parent) if parent.size != size => {
            return Err(Fault::refused(format!(
                "a differencing VHD image must be as large as its parent, which has {} bytes",
                parent.size
            )));
        }
        Subformat::Differencing(_) => (DIFFERENCING, false),
    };
    let mut footer = vec![0; FOOTER_LEN];
    let mut put = |at: usize, bytes: &[u8]| footer[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, COOKIE);
    put(8, &2_u32.to_be_bytes());
    put(12, &0x0001_0000_u32.to_be_bytes());
    put(16, &(if is_fixed { u64::MAX } else { FOOTER_LEN as u64 }).to_be_bytes());
    // This creator tells readers that the size counts, and not the geometry.
    put(28, b"qem2");
    put(32, &0x0005_0003_u32.to_be_bytes());
    put(36, b"Wi2k");
    put(40, &size.to_be_bytes());
    put(48, &size.to_be_bytes());
    put(56, &geometry(size / 512).to_be_bytes());
    put(60, &kind.to_be_bytes());
    put(68, &random_uuid()?);
    let sum = checksum(&footer, 64);
    footer[64..68].copy_from_slice(&sum.to_be_bytes());
    if is_fixed {
        storage.write_at(&footer, size)?;
        return Ok(storage.flush()?);
    }
    let after_header = (FOOTER_LEN + HEADER_LEN) as u64;
    let mut header = vec![0; HEADER_LEN];
    let paths = match subformat {
        Subformat::Differencing(parent) => parent.put(&mut header, after_header),
        _ => vec![],
    };
    let entries = size.div_ceil(BLOCK);
    let table = after_header + paths.len() as u64;
    let table_len = (entries * 4).next_multiple_of(512);
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, HEADER_COOKIE);
    put(8, &u64::MAX.to_be_bytes());
    put(16, &table.to_be_bytes());
    put(24, &0x0001_0000_u32.to_be_bytes());
    put(28, &(entries as u32).to_be_bytes());
    put(32, &(BLOCK as u32).to_be_bytes());
    let sum = checksum(&header, 36);
    header[36..40].copy_from_slice(&sum.to_be_bytes());
    storage.write_at(&header, FOOTER_LEN as u64)?;
    storage.write_at(&paths, after_header)?;
    storage.write_at(&vec![0xff; table_len as usize], table)?;
    storage.write_at(&footer, table + table_len)?;
    storage.flush()?;
    storage.write_at(&footer, 0)?;
    Ok(storage.flush()?)
}
