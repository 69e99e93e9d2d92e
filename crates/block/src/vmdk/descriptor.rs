//! The descriptor: specification, "The Descriptor File".

use crate::error::{Fault, Result};
use crate::format::BackingName;

/// Upper bound of the parts of an image.
const PARTS_MAX: usize = 4096;

/// A part of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// The sectors in order in a file, from sector `start` of the file on.
    Flat { name: String, start: u64 },
    /// A sparse file.
    Sparse { name: String },
    /// Zeros.
    Zero,
}

/// The contents of a descriptor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) create_type: String,
    /// The name of the backing image.
    pub(super) parent: Option<String>,
    /// The number of sectors of each part, and the part.
    pub(super) parts: Vec<(u64, Part)>,
}

impl Descriptor {
    /// Reads the text, which zeros may follow.
    pub(super) fn parse(bytes: &[u8]) -> Result<Descriptor> {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let text = String::from_utf8_lossy(&bytes[..end]);
        let mut descriptor = Descriptor::default();
        for line in text.lines().map(str::trim) {
            let first = line.split_whitespace().next().unwrap_or("");
            if ["RW", "RDONLY", "NOACCESS"].contains(&first) {
                if descriptor.parts.len() == PARTS_MAX {
                    return Err(Fault::damaged(format!(
                        "its descriptor has more than {PARTS_MAX} parts"
                    )));
                }
                descriptor.parts.push(part(line)?);
            } else if let Some((name, value)) = line.split_once('=') {
                let value = value.trim().trim_matches('"').to_owned();
                match name.trim() {
                    "createType" => descriptor.create_type = value,
                    "parentFileNameHint" => descriptor.parent = Some(value),
                    _ => {}
                }
            }
        }
        Ok(descriptor)
    }

    pub(super) fn backing(&self) -> Option<BackingName> {
        self.parent.clone().map(|name| BackingName { name, format: Some("vmdk".to_owned()) })
    }
}

/// Reads a line such as `RW 4192256 SPARSE "test-s001.vmdk"` or `RW 1048576 FLAT "test-f001.vmdk" 0`.
fn part(line: &str) -> Result<(u64, Part)> {
    let wrong =
        || Fault::damaged(format!("its descriptor has the line {line:?}, which is not valid"));
    let mut words = line.split_whitespace().skip(1);
    let sectors = words.next().and_then(|word| word.parse().ok()).ok_or_else(wrong)?;
    let kind = words.next().unwrap_or("ZERO");
    if kind == "ZERO" {
        return Ok((sectors, Part::Zero));
    }
    let mut quoted = line.splitn(3, '"').skip(1);
    let name = quoted.next().ok_or_else(wrong)?.to_owned();
    let rest = quoted.next().ok_or_else(wrong)?.trim();
    match kind {
        "FLAT" | "VMFS" => {
            let start = if rest.is_empty() { 0 } else { rest.parse().map_err(|_| wrong())? };
            Ok((sectors, Part::Flat { name, start }))
        }
        "SPARSE" => Ok((sectors, Part::Sparse { name })),
        other => Err(Fault::unsupported(format!(
            "parts of type {other} are not supported; convert it with \"qemu-img convert\""
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read() {
        let text = b"# Disk DescriptorFile\nversion=1\ncreateType=\"twoGbMaxExtentSparse\"\nRW 8 SPARSE \"a b.vmdk\"\nRW 9 FLAT \"c\" 7\nRW 1 ZERO\nddb.x = \"1\"\0\0";
        let descriptor = Descriptor::parse(text).unwrap();
        assert_eq!(descriptor.create_type, "twoGbMaxExtentSparse");
        let parts = [
            (8, Part::Sparse { name: "a b.vmdk".to_owned() }),
            (9, Part::Flat { name: "c".to_owned(), start: 7 }),
            (1, Part::Zero),
        ];
        assert_eq!(descriptor.parts, parts);
        for bad in [
            "RW x FLAT \"a\"",
            "RW 1 FLAT a",
            "RW 1 SESPARSE \"a\"",
            "RW 1 FLAT \"a",
            "RW 1 FLAT \"a\" b",
        ] {
            assert!(Descriptor::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
