//! Tests with differencing VHDX images. No program on this host makes them, so the test makes one according
//! to the specification ([MS-VHDX]) from an image of qemu-img. Header and log stay as they are, and the
//! metadata and the BAT get the entries that a parent needs. libvhdi reads the same contents from it.

use std::path::Path;
use std::process::Command;

use crate::support::*;
use ring3_block::{Fault, Format, Image, OpenOptions};

const MIB: usize = 1 << 20;
/// The state of a block in the BAT (2.5.1.1), and the rule that tells which of its sectors have their bits
/// set.
type Block = (u64, fn(usize) -> bool);

/// The blocks of the child, of 1 MiB each.
const BLOCKS: [Block; 6] = [
    (0, |_| false),
    (6, |_| false),
    (2, |_| false),
    (7, |sector| sector % 3 == 1 || (500..900).contains(&sector)),
    (7, |sector| sector == 2047),
    (6, |_| true),
];
const SIZE: usize = BLOCKS.len() * MIB;

fn number(bytes: &[u8], at: usize, len: usize) -> usize {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes[at..at + part.len()].copy_from_slice(part);
}

/// Returns the offset of the region whose GUID begins with `guid` (2.2.3).
fn region(bytes: &[u8], guid: u8) -> usize {
    let mut entries = (0..8).map(|index| 196_608 + 16 + index * 32);
    let at = entries.find(|at| bytes[*at] == guid).expect("the region is there");
    number(bytes, at + 16, 8)
}

fn bat(bytes: &[u8]) -> usize {
    region(bytes, 0x66)
}

/// Returns the DataWriteGuid of the current header (2.2.2) as a text.
fn identity(bytes: &[u8]) -> String {
    let header = [65536, 131_072].into_iter().max_by_key(|at| number(bytes, at + 8, 8)).unwrap();
    let guid = &bytes[header + 32..header + 48];
    let big_endian =
        |part: &[u8]| part.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    format!(
        "{{{:08x}-{:04x}-{:04x}-{:04x}-{:012x}}}",
        number(guid, 0, 4),
        number(guid, 4, 2),
        number(guid, 6, 2),
        big_endian(&guid[8..10]),
        big_endian(&guid[10..])
    )
}

/// Returns a parent locator (2.6.2.6).
fn locator(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = vec![0xb7, 0xef, 0x4a, 0xb0, 0x9e, 0xd1, 0x81, 0x4a];
    bytes.extend([0xb7, 0x89, 0x25, 0xb8, 0xe9, 0x44, 0x59, 0x13, 0, 0, entries.len() as u8, 0]);
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let (mut at, mut texts) = (bytes.len() + entries.len() * 12, Vec::new());
    for (key, value) in entries {
        let (key, value) = (utf16(key), utf16(value));
        bytes.extend((at as u32).to_le_bytes());
        bytes.extend(((at + key.len()) as u32).to_le_bytes());
        bytes.extend((key.len() as u16).to_le_bytes());
        bytes.extend((value.len() as u16).to_le_bytes());
        at += key.len() + value.len();
        texts.extend([key, value].concat());
    }
    [bytes, texts].concat()
}

/// Makes a differencing image with this locator from the dynamic image at `path`, which has all its blocks.
fn differencing(path: &Path, locator: &[u8]) {
    let mut bytes = std::fs::read(path).unwrap();
    let (table, metadata) = (bat(&bytes), region(&bytes, 0x06));
    let count = number(&bytes, metadata + 10, 2);
    // Sets HasParent in the file parameters.
    let mut entries = (0..count).map(|index| metadata + 32 + index * 32);
    let entry = entries.find(|at| bytes[*at] == 0x37).expect("there are file parameters");
    let parameters = metadata + number(&bytes, entry + 16, 4);
    bytes[parameters + 4] |= 2;
    // Adds the locator, which is marked as required.
    let mut entry = vec![
        0x2d, 0x5f, 0xd3, 0xa8, 0x0b, 0xb3, 0x4d, 0x45, 0xab, 0xf7, 0xd3, 0xd8, 0x48, 0x34, 0xab,
        0x0c,
    ];
    entry.extend(300_000_u32.to_le_bytes());
    entry.extend((locator.len() as u32).to_le_bytes());
    entry.extend([4, 0, 0, 0, 0, 0, 0, 0]);
    put(&mut bytes, metadata + 32 + count * 32, &entry);
    put(&mut bytes, metadata + 10, &(count as u16 + 1).to_le_bytes());
    put(&mut bytes, metadata + 300_000, locator);
    // Adds the bits at the end of the file (2.4), 2,048 for each block.
    let bits_at = bytes.len().next_multiple_of(MIB);
    bytes.resize(bits_at + MIB, 0);
    for (index, (state, is_here)) in BLOCKS.into_iter().enumerate() {
        let at = table + index * 8;
        let entry = number(&bytes, at, 8) as u64 & !7 | state;
        put(&mut bytes, at, &entry.to_le_bytes());
        for sector in (0..2048).filter(|sector| is_here(*sector)) {
            bytes[bits_at + index * 256 + sector / 8] |= 1 << (sector % 8);
        }
    }
    // The entry of the bits follows the entries of a chunk's 4,096 blocks.
    put(&mut bytes, table + 4096 * 8, &(bits_at as u64 | 6).to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

/// Makes a parent and a child in `directory`. Returns the contents of the parent, and those of the child.
fn images(directory: &Path, entries: &[(&str, &str)]) -> (Vec<u8>, Vec<u8>) {
    let (parent, child) = (directory.join("parent.vhdx"), directory.join("child.vhdx"));
    let (old, new) = (pattern(0, SIZE, 1), pattern(0, SIZE, 2));
    of_qemu(&parent, "vhdx block_size=1M", &old);
    of_qemu(&child, "vhdx block_size=1M", &new);
    let known = identity(&std::fs::read(&parent).unwrap());
    let entries: Vec<_> = entries
        .iter()
        .map(|(key, value)| (*key, if *value == "KNOWN" { known.as_str() } else { *value }))
        .collect();
    differencing(&child, &locator(&entries));
    let mut expected = old.clone();
    for (index, (state, is_here)) in BLOCKS.into_iter().enumerate() {
        for sector in 0..2048 {
            let range = index * MIB + sector * 512..index * MIB + (sector + 1) * 512;
            match state {
                2 => expected[range].fill(0),
                6 => expected[range.clone()].copy_from_slice(&new[range]),
                7 if is_here(sector) => expected[range.clone()].copy_from_slice(&new[range]),
                _ => {}
            }
        }
    }
    (old, expected)
}

const BESIDE: &[(&str, &str)] = &[
    ("parent_linkage", "KNOWN"),
    ("relative_path", ".\\parent.vhdx"),
    ("absolute_win32_path", "\\\\?\\C:\\machines\\parent.vhdx"),
];

#[test]
fn blocks_that_a_child_lacks_come_from_its_parent() {
    let directory = tempfile::tempdir().unwrap();
    let (old, expected) = images(directory.path(), BESIDE);
    let child = directory.path().join("child.vhdx");
    for format in [Some(Format::Vhdx), None] {
        let image = Image::open(&child, &OpenOptions { format, ..OpenOptions::default() }).unwrap();
        let bytes = read_all(&image);
        let wrong =
            (0..SIZE).step_by(512).find(|at| bytes[*at..at + 512] != expected[*at..at + 512]);
        assert_eq!(wrong, None);
        for (offset, len) in
            [(3 * MIB + 511, 3), (3 * MIB - 700, 70_001), (4 * MIB, 2 * MIB), (1, SIZE - 2)]
        {
            let mut part = vec![0; len];
            image.read_at(&mut part, offset as u64).unwrap();
            assert!(part == expected[offset..offset + len], "{offset}");
        }
    }
    assert!(read_all(&open(&directory.path().join("parent.vhdx"), Format::Vhdx, false)) == old);
    // Reading by the map of the image gives the same contents.
    let copy = directory.path().join("copy");
    let image = open(&child, Format::Vhdx, false);
    let mut at = 0;
    let mut mapped = vec![0; SIZE];
    while at < SIZE as u64 {
        let mapping = image.map(at, SIZE as u64 - at).unwrap();
        image.read_at(&mut mapped[at as usize..(at + mapping.len) as usize], at).unwrap();
        at += mapping.len;
    }
    assert!(mapped == expected);
    // Another program reads the same contents, except for blocks of zeros (state 2): it takes them for absent
    // ones, although they must read as zeros.
    let mut found_there = expected.clone();
    found_there[2 * MIB..3 * MIB].copy_from_slice(&old[2 * MIB..3 * MIB]);
    std::fs::write(&copy, &found_there).unwrap();
    let script = "import pyvhdi, sys\n\
        parent, child = pyvhdi.file(), pyvhdi.file()\n\
        parent.open(sys.argv[1]); child.open(sys.argv[2]); child.set_parent(parent)\n\
        data = child.read_buffer_at_offset(child.get_media_size(), 0)\n\
        sys.exit(0 if data == open(sys.argv[3], 'rb').read() else 1)\n";
    let has_it = Command::new("/usr/bin/python3").args(["-c", "import pyvhdi"]).output();
    if !has_it.is_ok_and(|output| output.status.success()) {
        ring3_skipped::package("pyvhdi is missing: install the package python3-libvhdi");
        return;
    }
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", script]).arg(directory.path().join("parent.vhdx")).args([&child, &copy]);
    let output = python.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_parent_is_found_by_each_of_its_paths() {
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    for (key, path) in [
        ("relative_path", "parent.vhdx"),
        ("relative_path", "..\\inside\\.\\parent.vhdx"),
        ("volume_path", "\\\\?\\Volume{26A21BDA-A627-11D7-9931-806E6F6E6963}\\parent.vhdx"),
        ("absolute_win32_path", "\\\\?\\d:\\path\\parent.vhdx"),
    ] {
        let (_, expected) = images(&inside, &[(key, path), ("parent_linkage", "KNOWN")]);
        assert!(
            read_all(&open(&inside.join("child.vhdx"), Format::Vhdx, false)) == expected,
            "{path}"
        );
    }
}

#[test]
fn another_parent_is_refused() {
    const OTHER: &str = "{83ed0ec3-24c8-49a6-a959-5e4bf1288bfb}";
    let directory = tempfile::tempdir().unwrap();
    let child = directory.path().join("child.vhdx");
    let refused = |says: &str| {
        for no_external_files in [false, true] {
            let options = OpenOptions { no_external_files, ..OpenOptions::default() };
            let error = Image::open(&child, &options).unwrap_err().to_string();
            // A damaged image is refused before it is asked which files it names.
            let says =
                if no_external_files && says != "damaged" { "--no-external-files" } else { says };
            assert!(error.contains(says), "{says}: {error}");
        }
    };
    let path = ("relative_path", "parent.vhdx");
    // While two images are merged, the parent may have either identity.
    images(directory.path(), &[path, ("parent_linkage", OTHER), ("parent_linkage2", "KNOWN")]);
    open(&child, Format::Vhdx, false);
    images(directory.path(), &[path, ("parent_linkage", OTHER)]);
    refused("is not the image that it was made on");
    // A write to the parent gives it another identity.
    images(directory.path(), &[path, ("parent_linkage", "KNOWN")]);
    open(&child, Format::Vhdx, false);
    let parent = directory.path().join("parent.vhdx");
    let write =
        Command::new("qemu-io").args(["-f", "vhdx", "-c", "write 0 512"]).arg(&parent).output();
    assert!(write.unwrap().status.success());
    refused("is not the image that it was made on");
    // A parent of another format is refused.
    std::fs::write(&parent, vec![0; SIZE]).unwrap();
    refused("not a VHDX image");
    std::fs::remove_file(&parent).unwrap();
    refused("parent.vhdx");
    // An image must not stand on itself, nor on an image that stands on it.
    images(directory.path(), &[("relative_path", "child.vhdx"), ("parent_linkage", OTHER)]);
    refused("leads back to it");
    images(directory.path(), &[path, ("parent_linkage", OTHER)]);
    differencing(&parent, &locator(&[("relative_path", "child.vhdx"), ("parent_linkage", OTHER)]));
    refused("leads back to it");
    // No path leads to an address, or to the root directory.
    for path in [
        "nbd://127.0.0.1:1/disk",
        "json:{\"file\":{\"filename\":\"parent.vhdx\"}}",
        "\\etc\\passwd",
    ] {
        images(directory.path(), &[("relative_path", path), ("parent_linkage", "KNOWN")]);
        refused("there is no image");
    }
    for entries in [
        &[("parent_linkage", "KNOWN")][..],
        &[path],
        &[path, ("parent_linkage", "{nonsense}")],
        &[("relative_path", ""), ("parent_linkage", "KNOWN")],
    ] {
        images(directory.path(), entries);
        refused("damaged");
    }
}

#[test]
fn tables_that_contradict_themselves_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    images(directory.path(), BESIDE);
    let child = directory.path().join("child.vhdx");
    let whole = std::fs::read(&child).unwrap();
    let table = bat(&whole);
    let bits = table + 4096 * 8;
    for (at, entry) in [
        // Bits that are missing, with an invalid state, or outside of all files. Blocks with an invalid
        // state, or outside of all files.
        (bits, 0_u64),
        (bits, 5),
        (bits, !1),
        (table, 4),
        (table, u64::MAX),
    ] {
        let mut bytes = whole.clone();
        put(&mut bytes, at, &entry.to_le_bytes());
        std::fs::write(&child, &bytes).unwrap();
        let error = Image::open(&child, &OpenOptions::default()).unwrap_err();
        let is_damaged = matches!(error, ring3_block::Error::In { fault: Fault::Damaged(_), .. });
        assert!(is_damaged, "{at:#x} {entry:#x}: {error}");
    }
    // Without a parent no block can be in the image in part.
    let path = directory.path().join("parent.vhdx");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bat(&bytes);
    bytes[at] |= 7;
    std::fs::write(&path, &bytes).unwrap();
    assert!(Image::open(&path, &OpenOptions::default()).is_err());
    // Bits after the end of the file read as zeros.
    let mut bytes = whole;
    put(&mut bytes, bits, &((1_u64 << 40) | 6).to_le_bytes());
    std::fs::write(&child, &bytes).unwrap();
    assert!(Image::open(&child, &OpenOptions::default()).is_err(), "the parent is damaged");
}

#[test]
fn changed_bytes_do_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    images(directory.path(), BESIDE);
    let whole = std::fs::read(directory.path().join("child.vhdx")).unwrap();
    let (table, metadata) = (bat(&whole), region(&whole, 0x06));
    let places = [(metadata, 300), (metadata + 300_000, 400), (table, 48), (table + 4096 * 8, 8)];
    let mut random = 1_u64;
    let mut below = |bound: usize| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % bound
    };
    for _ in 0..200 {
        let mut bytes = whole.clone();
        for _ in 0..=below(3) {
            let (at, len) = places[below(places.len())];
            bytes[at + below(len)] = below(256) as u8;
        }
        abuse::use_all(&bytes, Format::Vhdx);
    }
}
