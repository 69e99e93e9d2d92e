//! Changes to the boot archive (cpio, format "newc"): a header of 110 characters, the name with a final
//! 0, the contents, each padded to a multiple of 4. Numbers are 8 hexadecimal digits.

use std::ops::Range;

const HEADER: usize = 110;
/// The digits of the size of the contents, and of the name's.
const SIZE: Range<usize> = 54..62;
const NAME_SIZE: Range<usize> = 94..102;
/// The file whose lines say what services are and may do.
const SERVICES: &str = "etc/services";

/// The name of the entry that ends an archive.
const TRAILER: &str = "TRAILER!!!";
/// The mode of a file that everybody may read.
const READABLE: u32 = 0o100_644;

/// The places of an entry in an archive.
struct Entry {
    start: usize,
    contents: Range<usize>,
    /// Where the next entry starts.
    end: usize,
}

/// Returns `archive`, the boot archive of a system, with `line` in a block of `/etc/services`: that of a service
/// (`service ata`), or that of `users`. Returns None if there is no such block.
#[must_use]
pub fn with_line(archive: &[u8], block: &str, line: &str) -> Option<Vec<u8>> {
    with_services(archive, |text| insert(text, block, line))
}

/// Returns `archive`, the boot archive of a system, with `/etc/services` as `edit` changes it. Returns None if there is
/// no such file, or if `edit` returns None.
#[must_use]
pub fn with_services(archive: &[u8], edit: impl FnOnce(&str) -> Option<String>) -> Option<Vec<u8>> {
    let Entry { start, contents, end } = find(archive, SERVICES)?;
    let text = edit(str::from_utf8(archive.get(contents.clone())?).ok()?)?;
    let digits = format!("{:08X}", text.len());
    let before = [&archive[..start + SIZE.start], digits.as_bytes()].concat();
    let head = &archive[start + SIZE.end..contents.start];
    Some([&before, head, &padded(text.into_bytes()), archive.get(end..)?].concat())
}

/// Returns `archive`, the boot archive of a system, with one more file that everybody may read, whose path from the root
/// directory is `name`. Returns None if that is no archive.
#[must_use]
pub fn with_file(archive: &[u8], name: &str, contents: &str) -> Option<Vec<u8>> {
    let end = find(archive, TRAILER)?.start;
    let fields =
        [0, READABLE, 0, 0, 1, 0, contents.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
    let numbers: Vec<_> = fields.iter().map(|field| format!("{field:08X}")).collect();
    let head = padded(format!("070701{}{name}\0", numbers.concat()).into_bytes());
    Some([&archive[..end], &head, &padded(contents.into()), &archive[end..]].concat())
}

/// Returns where the file `wanted` is in `archive`.
fn find(archive: &[u8], wanted: &str) -> Option<Entry> {
    let mut start = 0;
    loop {
        let header = archive.get(start..start + HEADER)?;
        let size = number(header.get(SIZE)?)?;
        let name_end = start + HEADER + number(header.get(NAME_SIZE)?)?;
        let name = archive.get(start + HEADER..name_end)?;
        let contents = name_end.next_multiple_of(4);
        let contents = contents..contents.checked_add(size)?;
        let end = contents.end.next_multiple_of(4);
        if name.strip_suffix(b"\0") == Some(wanted.as_bytes()) {
            return Some(Entry { start, contents, end });
        }
        start = end;
    }
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn insert(text: &str, block: &str, line: &str) -> Option<String> {
    let head = format!("\n{block}\n");
    let (before, after) = text.split_once(&head)?;
    Some(format!("{before}{head}    {line}\n{after}"))
}

fn number(digits: &[u8]) -> Option<usize> {
    usize::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, contents: &str) -> Vec<u8> {
        let mut entry = format!("070701{}", "0".repeat(48)).into_bytes();
        entry.extend(format!("{:08x}{}", contents.len(), "0".repeat(32)).bytes());
        entry.extend(format!("{:08x}{}{name}\0", name.len() + 1, "0".repeat(8)).bytes());
        for part in [&[], contents.as_bytes()] {
            entry.extend(part);
            entry.resize(entry.len().next_multiple_of(4), 0);
        }
        entry
    }

    #[test]
    fn a_line_goes_into_the_block_of_its_service() {
        let archive = |text: &str| {
            let others = [entry("etc/rc", "true\n"), entry("TRAILER!!!", "")];
            [&others[0], &entry(SERVICES, text)[..], &others[1]].concat()
        };
        let text = "# All.\n\nservice fs\n    number 2\n\nservice ata\n    major 3\n";
        let right =
            "# All.\n\nservice fs\n    number 2\n\nservice ata\n    way trap\n    major 3\n";
        let ours = with_line(&archive(text), "service ata", "way trap").unwrap();
        assert_eq!(ours.to_ascii_lowercase(), archive(right).to_ascii_lowercase());
        assert_eq!(with_line(&archive(text), "service serial", "way trap"), None);
    }

    #[test]
    fn a_file_is_the_last_one() {
        let archive = [entry("etc/rc", "true\n"), entry(TRAILER, "")].concat();
        let ours = with_file(&archive, "etc/orders", "echo 1\n").unwrap();
        let found = find(&ours, "etc/orders").unwrap();
        assert_eq!(&ours[found.contents], b"echo 1\n");
        let trailer = find(&ours, TRAILER).unwrap();
        assert_eq!((trailer.start, trailer.end), (found.end, ours.len()));
        assert_eq!(ours[..find(&archive, TRAILER).unwrap().start], archive[..found.start]);
    }

    #[test]
    fn other_bytes_have_no_services() {
        let whole = entry(SERVICES, "\nservice ata\n");
        for length in 0..whole.len() {
            assert_eq!(with_line(&whole[..length], "service ata", "x"), None, "{length}");
        }
        assert_eq!(with_line(&[0xff; 300], "service ata", "x"), None);
        assert_eq!(with_file(&whole, "etc/orders", ""), None, "without a trailer");
    }
}
