//! The backing image of a differencing image ("Identification of the Parent Hard Disk Image").

use std::fs;
use std::path::{Path, absolute};
use std::time::{Duration, UNIX_EPOCH};

use super::{disk_size, identity, read_footer};
use crate::bytes::{be32, be64};
use crate::error::{Fault, Result};
use crate::format::{BackingName, Identity};
use crate::storage::{Access, HostFile, Storage, read_padded};

/// Offset of the locators in the header ("Parent Locator Entry"), their number, and the bytes in each.
const LOCATORS: usize = 576;
const LOCATOR_COUNT: usize = 8;
const LOCATOR_LEN: usize = 24;
/// Types of locators: a Windows path relative to the image, and an absolute one, in little-endian UTF-16.
const RELATIVE: &[u8; 4] = b"W2ru";
const ABSOLUTE: &[u8; 4] = b"W2ku";
/// Offset of the backing image's file name in the header, in big-endian UTF-16, and its number of bytes.
const NAME: usize = 64;
const NAME_LEN: usize = 512;
/// Upper bound of the bytes in a path.
const PATH_MAX: usize = 4096;
/// The time 2000-01-01 00:00:00 UTC, from which this format counts seconds.
const EPOCH: Duration = Duration::from_secs(946_684_800);

/// Returns the path and the identity of the backing image that `header` names.
pub(super) fn named(storage: &dyn Storage, header: &[u8]) -> Result<(String, Identity)> {
    let identity = header[40..56].try_into().expect("16 bytes");
    let text = |units: Vec<u16>| {
        let units: Vec<u16> = units.into_iter().take_while(|unit| *unit != 0).collect();
        String::from_utf16_lossy(&units).replace('\\', "/")
    };
    let locators = &header[LOCATORS..LOCATORS + LOCATOR_COUNT * LOCATOR_LEN];
    for code in [RELATIVE, ABSOLUTE] {
        for locator in locators.chunks(LOCATOR_LEN) {
            let (len, at) = (be32(locator, 8) as usize, be64(locator, 16));
            if &locator[..4] == code && len <= PATH_MAX {
                let mut bytes = vec![0; len];
                read_padded(storage, &mut bytes, at)?;
                let units =
                    bytes.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
                let path = text(units.collect());
                // A path with a drive letter means nothing on this host.
                if code == RELATIVE || path.starts_with('/') {
                    return Ok((path.trim_start_matches("./").to_owned(), identity));
                }
            }
        }
    }
    let name = header[NAME..NAME + NAME_LEN].chunks_exact(2);
    let name = text(name.map(|unit| u16::from_be_bytes([unit[0], unit[1]])).collect());
    let name = name.rsplit('/').next().unwrap_or_default().to_owned();
    if name.is_empty() {
        Err(Fault::damaged("it does not name its parent"))
    } else {
        Ok((name, identity))
    }
}

/// The backing image of a new image.
#[derive(Debug)]
pub(crate) struct Parent {
    identity: Identity,
    /// When the backing image was last written, in seconds since [`EPOCH`].
    modified: u32,
    /// The size of its disk in bytes.
    pub(super) size: u64,
    name: String,
    paths: Vec<(&'static [u8; 4], String)>,
}

impl Parent {
    /// Returns the backing image that `backing` names, for an image at `image`.
    pub(crate) fn of(image: &Path, backing: &BackingName) -> Result<Parent> {
        if backing.format.as_deref().is_some_and(|format| format != "vpc") {
            return Err(Fault::refused("the parent of a VHD image must be a VHD image (vpc)"));
        }
        let path = backing.path(image)?;
        let refused = |error: &dyn ToString| Fault::refused(error.to_string());
        // The file is only read here, and another process may be using it.
        let access = Access { shares: true, ..Access::default() };
        let storage = HostFile::open(&path, access).map_err(|error| refused(&error))?;
        let footer = read_footer(&storage)?;
        let since = fs::metadata(&path)?.modified()?.duration_since(UNIX_EPOCH + EPOCH);
        let modified = since.map_or(0, |since| u32::try_from(since.as_secs()).unwrap_or(u32::MAX));
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let given = backing.name.strip_prefix("file:").unwrap_or(&backing.name);
        let mut paths = vec![];
        if !given.starts_with('/') {
            paths.push((RELATIVE, format!("./{}", given.trim_start_matches("./"))));
        }
        if let Some(full) = absolute(&path)?.to_str() {
            paths.push((ABSOLUTE, full.to_owned()));
        }
        for (_, path) in &paths {
            if path.contains('\\') || path.len() * 2 > PATH_MAX {
                return Err(Fault::refused(format!(
                    "a VHD image cannot store the name of its parent: {path}"
                )));
            }
        }
        let (identity, size) = (identity(&footer), disk_size(&footer));
        Ok(Parent { identity, modified, size, name: name.unwrap_or_default(), paths })
    }

    /// Describes the backing image in a header, whose locators lead to paths from byte `at` of the file on.
    /// Returns these paths, as whole sectors.
    pub(super) fn put(&self, header: &mut [u8], at: u64) -> Vec<u8> {
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(40, &self.identity);
        put(56, &self.modified.to_be_bytes());
        // A longer name is cut off, because readers have the paths.
        let units = self.name.encode_utf16().take(NAME_LEN / 2 - 1);
        put(NAME, &units.flat_map(u16::to_be_bytes).collect::<Vec<u8>>());
        let mut data = vec![];
        for (index, (code, path)) in self.paths.iter().enumerate() {
            let bytes: Vec<u8> =
                path.replace('/', "\\").encode_utf16().flat_map(u16::to_le_bytes).collect();
            let place = at + data.len() as u64;
            let sectors = bytes.len().div_ceil(512);
            let locator = LOCATORS + index * LOCATOR_LEN;
            put(locator, *code);
            put(locator + 4, &(sectors as u32).to_be_bytes());
            put(locator + 8, &(bytes.len() as u32).to_be_bytes());
            put(locator + 16, &place.to_be_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(512), 0);
        }
        data
    }
}
