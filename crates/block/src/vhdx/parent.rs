//! The name of the image on which a differencing image stands ([MS-VHDX] 2.6.2.6).

use super::{Guid, guid, guid_at};
use crate::bytes::{le16, le32};
use crate::error::{Fault, Result};
use crate::format::Identity;

/// The type of a locator for VHDX images (2.6.2.6.3), which is the only type.
const VHDX: Guid =
    guid(0xb04aefb7, 0xd19e, 0x4a81, [0xb7, 0x89, 0x25, 0xb8, 0xe9, 0x44, 0x59, 0x13]);
/// Number of bytes in a locator's header, and in an entry.
const HEADER_LEN: usize = 20;
const ENTRY_LEN: usize = 12;

/// The backing image.
#[derive(Debug)]
pub(super) struct Parent {
    /// The path, relative to the image's directory.
    pub(super) name: String,
    /// The DataWriteGuids that the backing image may have. While two images are merged there are two.
    pub(super) identities: Vec<Identity>,
}

impl Parent {
    /// Reads the metadata item `locator`.
    pub(super) fn of(locator: &[u8]) -> Result<Parent> {
        if locator.len() < HEADER_LEN {
            return Err(Fault::damaged("its parent locator is cut short"));
        }
        if guid_at(locator, 0) != VHDX {
            return Err(Fault::unsupported("its parent is not a VHDX image"));
        }
        let entries = locator[HEADER_LEN..].chunks_exact(ENTRY_LEN);
        let count = usize::from(le16(locator, 18));
        if entries.len() < count {
            return Err(Fault::damaged(format!("its parent locator has {count} entries")));
        }
        let entries: Vec<_> = entries
            .take(count)
            .map(|entry| {
                let key = text(locator, le32(entry, 0), le16(entry, 8))?;
                Ok((key, text(locator, le32(entry, 4), le16(entry, 10))?))
            })
            .collect::<Result<_>>()?;
        let value =
            |name: &str| entries.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let linkages = ["parent_linkage", "parent_linkage2"];
        let identities: Vec<Identity> = linkages
            .into_iter()
            .filter_map(value)
            .map(|text| {
                identity(text).ok_or_else(|| {
                    Fault::damaged(format!("the identity of its parent, {text:?}, is not valid"))
                })
            })
            .collect::<Result<_>>()?;
        if identities.is_empty() {
            return Err(Fault::damaged("its parent locator does not identify the parent"));
        }
        let absolute = || value("volume_path").or_else(|| value("absolute_win32_path"));
        let name = match value("relative_path") {
            Some(path) => path.replace('\\', "/"),
            // An absolute path of Windows means nothing here, but the image may be in the same directory.
            None => {
                absolute().and_then(|path| path.rsplit('\\').next()).unwrap_or_default().to_owned()
            }
        };
        if name.is_empty() || name.ends_with('/') {
            return Err(Fault::damaged("it does not name its parent"));
        }
        // Whatever the path is, it must name a file: no address, and nothing that begins at the root.
        Ok(Parent { name: format!("./{}", name.trim_start_matches("./")), identities })
    }
}

/// Returns the UTF-16 text of `len` bytes at `at`.
fn text(locator: &[u8], at: u32, len: u16) -> Result<String> {
    let wrong = || {
        Fault::damaged(format!("its parent locator has no valid text of {len} bytes at {at:#x}"))
    };
    let bytes = locator.get(at as usize..).and_then(|rest| rest.get(..usize::from(len)));
    let (units, rest) = bytes.filter(|bytes| !bytes.is_empty()).ok_or_else(wrong)?.as_chunks();
    let units: Vec<u16> = units.iter().map(|unit| u16::from_le_bytes(*unit)).collect();
    if !rest.is_empty() || units.contains(&0) {
        return Err(wrong());
    }
    String::from_utf16(&units).map_err(|_| wrong())
}

/// Returns the GUID that a text such as `{83ed0ec3-24c8-49a6-a959-5e4bf1288bfb}` states.
fn identity(text: &str) -> Option<Identity> {
    let text = text.strip_prefix('{')?.strip_suffix('}')?;
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    if lengths != [8, 4, 4, 4, 12] || !parts.concat().bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let number = |part: &str| u64::from_str_radix(part, 16).ok();
    let end = number(parts[3])? << 48 | number(parts[4])?;
    let (a, b, c) = (number(parts[0])? as u32, number(parts[1])? as u16, number(parts[2])? as u16);
    Some(guid(a, b, c, end.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINKAGE: &str = "{83ed0ec3-24c8-49a6-a959-5E4BF1288BFB}";

    fn locator(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = VHDX.to_vec();
        bytes.extend([0, 0, entries.len() as u8, 0]);
        let mut texts = Vec::new();
        let start = HEADER_LEN + entries.len() * ENTRY_LEN;
        for (key, value) in entries {
            let mut put = |text: &str| {
                let at = (start + texts.len()) as u32;
                texts.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
                (at, text.encode_utf16().count() as u16 * 2)
            };
            let ((key_at, key_len), (value_at, value_len)) = (put(key), put(value));
            bytes.extend(key_at.to_le_bytes());
            bytes.extend(value_at.to_le_bytes());
            bytes.extend(key_len.to_le_bytes());
            bytes.extend(value_len.to_le_bytes());
        }
        bytes.extend(texts);
        bytes
    }

    fn name(path: (&str, &str)) -> Result<String> {
        Parent::of(&locator(&[path, ("parent_linkage", LINKAGE)])).map(|parent| parent.name)
    }

    #[test]
    fn paths_are_those_of_files_of_this_host() {
        for (key, path, expected) in [
            ("relative_path", r"..\base.vhdx", "./../base.vhdx"),
            ("relative_path", r".\base.vhdx", "./base.vhdx"),
            ("relative_path", r"\etc\shadow", ".//etc/shadow"),
            ("relative_path", "nbd://host/disk", "./nbd://host/disk"),
            ("relative_path", "json:{}", "./json:{}"),
            ("absolute_win32_path", r"\\?\C:\machines\base.vhdx", "./base.vhdx"),
            ("volume_path", r"\\?\Volume{26A21BDA}\base.vhdx", "./base.vhdx"),
        ] {
            assert_eq!(name((key, path)).unwrap(), expected);
        }
        for path in [r"a\", "", "a\0b"] {
            assert!(name(("relative_path", path)).is_err(), "{path:?}");
        }
        assert!(name(("path", "base.vhdx")).is_err());
    }

    #[test]
    fn identities_are_guids() {
        let bytes = [
            0xc3, 0x0e, 0xed, 0x83, 0xc8, 0x24, 0xa6, 0x49, 0xa9, 0x59, 0x5e, 0x4b, 0xf1, 0x28,
            0x8b, 0xfb,
        ];
        assert_eq!(identity(LINKAGE), Some(bytes));
        for bad in [
            "",
            "{}",
            "83ed0ec3-24c8-49a6-a959-5e4bf1288bfb",
            "{83ed0ec3-24c8-49a6-a959-5e4bf1288bf+}",
        ] {
            assert_eq!(identity(bad), None, "{bad}");
        }
        let both =
            [("relative_path", "a"), ("parent_linkage2", LINKAGE), ("parent_linkage", LINKAGE)];
        assert_eq!(Parent::of(&locator(&both)).unwrap().identities, [bytes; 2]);
        assert!(Parent::of(&locator(&[("relative_path", "a")])).is_err());
    }

    #[test]
    fn a_locator_that_is_cut_short_is_refused() {
        let whole = locator(&[("relative_path", "base.vhdx"), ("parent_linkage", LINKAGE)]);
        for len in 0..whole.len() {
            assert!(Parent::of(&whole[..len]).is_err(), "{len}");
        }
        let mut other = whole;
        other[0] ^= 1;
        assert!(Parent::of(&other).is_err());
    }
}
