//! Tests of all formats except for qcow2, in comparison with QEMU.

use std::path::Path;

use crate::support::*;
use proptest::prelude::*;
use ring3_block::{BackingName, CreateOptions, Error, Fault, Format, OpenOptions, Repair};

/// The formats and options of images that are written.
const KINDS: [(Format, &[(&str, &str)]); 9] = [
    (Format::Raw, &[]),
    (Format::Vdi, &[]),
    (Format::Vdi, &[("preallocation", "metadata")]),
    (Format::Vmdk, &[]),
    (Format::Vpc, &[]),
    (Format::Vpc, &[("subformat", "fixed")]),
    (Format::Qcow, &[]),
    (Format::Bochs, &[]),
    (Format::Cow, &[]),
];
const SIZE: u64 = (5 << 20) + 1536;

/// Returns whether qemu-img can check images of this format.
fn can_check(format: Format) -> bool {
    matches!(format, Format::Vdi | Format::Vmdk)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn operations_agree_with_a_model(kind in 0..KINDS.len(), backed in any::<bool>(), operations in operations(SIZE, 30)) {
        let (format, specific) = KINDS[kind];
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let mut model = vec![0; SIZE as usize];
        let mut options = options(format, SIZE, specific);
        if backed && matches!(format, Format::Qcow | Format::Cow) {
            let base = directory.path().join("base");
            let bytes = pattern(0, 3_000_320, 0x55);
            std::fs::write(&base, &bytes).unwrap();
            model[..bytes.len()].copy_from_slice(&bytes);
            options.backing = Some(backing(&base, "raw"));
        }
        if backed && format == Format::Vpc {
            // The backing image has the subformat.
            let base = directory.path().join("base");
            make(&base, &options);
            let bytes = pattern(0, 3_000_320, 0x55);
            model[..bytes.len()].copy_from_slice(&bytes);
            let below = open(&base, format, true);
            below.write_at(&bytes, 0).unwrap();
            below.close().unwrap();
            options.backing = Some(backing(&base, "vpc"));
            options.specific.clear();
        }
        make(&path, &options);
        let reopen = || open(&path, format, true);
        let image = act(reopen(), &mut model, &operations, &reopen);
        prop_assert!(read_all(&image) == model);
        check_map(&image);
        if let Ok(report) = image.check(Repair::Nothing) {
            prop_assert_eq!(report.corruptions, 0, "{:?}", report.messages);
        }
        image.close().unwrap();
        // QEMU no longer has the cow format, and it does not support differencing VHD images.
        if format != Format::Cow && (format != Format::Vpc || options.backing.is_none()) {
            check_with_qemu(&path, format, &model, can_check(format));
        }
    }
}

/// Returns bytes with data and zeros.
fn source(len: usize) -> Vec<u8> {
    let mut bytes = pattern(0, len, 3);
    for (index, part) in bytes.chunks_mut(300_000).enumerate() {
        if index % 2 == 0 {
            part.fill(if index % 4 == 0 { 0 } else { 7 });
        }
    }
    bytes
}

#[test]
fn images_that_qemu_makes_are_read_and_written() {
    let directory = tempfile::tempdir().unwrap();
    let raw = directory.path().join("raw");
    let bytes = source(5 << 20);
    std::fs::write(&raw, &bytes).unwrap();
    let kinds = [
        (Format::Vdi, "", true),
        (Format::Vdi, "static=on", true),
        (Format::Vmdk, "subformat=monolithicSparse", true),
        (Format::Vmdk, "subformat=monolithicSparse,zeroed_grain=on", true),
        (Format::Vmdk, "subformat=monolithicFlat", true),
        (Format::Vmdk, "subformat=twoGbMaxExtentFlat", true),
        (Format::Vmdk, "subformat=twoGbMaxExtentSparse", true),
        (Format::Vmdk, "subformat=streamOptimized", false),
        (Format::Vpc, "subformat=dynamic,force_size=on", true),
        (Format::Vpc, "subformat=fixed,force_size=on", true),
        (Format::Vpc, "subformat=dynamic", true),
        (Format::Qcow, "", true),
    ];
    for (format, options, writes) in kinds {
        let path = directory.path().join(format!("{}.{format}", options.replace([',', '='], "-")));
        let mut arguments = vec!["convert", "-f", "raw", "-O", format.name()];
        if !options.is_empty() {
            arguments.extend(["-o", options]);
        }
        arguments.extend([text(&raw), text(&path)]);
        qemu_img(&arguments);
        let image = open(&path, format, false);
        let mut model = bytes.clone();
        // QEMU rounds the size up to whole cylinders for some kinds.
        assert!(image.size() >= 5 << 20, "{options}");
        model.resize(image.size() as usize, 0);
        assert!(read_all(&image) == model, "{format} {options}");
        check_map(&image);
        drop(image);
        if options != "subformat=fixed,force_size=on" {
            // A fixed VHD image cannot be recognized at its beginning.
            assert_eq!(
                open_as(&path, &OpenOptions::default()).unwrap().format(),
                format,
                "{options}"
            );
        }
        if !writes {
            let options =
                OpenOptions { format: Some(format), writes: true, ..OpenOptions::default() };
            let error = open_as(&path, &options).unwrap_err();
            assert!(matches!(error, Error::In { fault: Fault::OnlyRead(_), .. }), "{error}");
            continue;
        }
        let image = open(&path, format, true);
        for offset in [0, 70_000, 1 << 20, 4_500_001] {
            image.write_at(&[0xee; 3000], offset).unwrap();
            model[offset as usize..][..3000].fill(0xee);
        }
        image.write_zeroes(2_000_000, 1_000_000).unwrap();
        model[2_000_000..3_000_000].fill(0);
        assert!(read_all(&image) == model, "{format} {options}");
        image.close().unwrap();
        check_with_qemu(&path, format, &model, can_check(format));
    }
}

#[test]
fn compressed_qcow_images_are_read_and_written() {
    let directory = tempfile::tempdir().unwrap();
    let (raw, path) = (directory.path().join("raw"), directory.path().join("image"));
    let mut model = source(2 << 20);
    std::fs::write(&raw, &model).unwrap();
    // QEMU 7.2 writes the whole image, and then fails without a message.
    let _ = qemu_img_output(&["convert", "-c", "-O", "qcow", text(&raw), text(&path)]);
    let compressed = std::fs::metadata(&path).unwrap().len();
    assert!(compressed < 1 << 20, "{compressed} bytes are not compressed");
    let image = open(&path, Format::Qcow, true);
    assert!(read_all(&image) == model);
    image.write_at(&[9; 5000], 310_000).unwrap();
    model[310_000..315_000].fill(9);
    assert!(read_all(&image) == model);
    image.close().unwrap();
    check_with_qemu(&path, Format::Qcow, &model, false);
    // Marks the image as encrypted.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[39] = 1;
    std::fs::write(&path, bytes).unwrap();
    let error = open_as(&path, &OpenOptions::default()).unwrap_err().to_string();
    assert!(error.contains("it is encrypted"), "{error}");
}

/// Returns a header as a 64-bit or a 32-bit program writes it.
fn cow_header(size: u64, is_wide: bool, backing: &str) -> Vec<u8> {
    let mut bytes = b"OOOM\0\0\0\x02".to_vec();
    bytes.extend(backing.as_bytes());
    bytes.resize(8 + 1024 + 4, 0);
    if is_wide {
        bytes.extend([0; 4]);
    }
    bytes.extend(size.to_be_bytes());
    bytes.extend(512_u32.to_be_bytes());
    bytes.resize(if is_wide { 1056 } else { 1048 }, 0);
    bytes
}

#[test]
fn cow_images_of_old_programs_are_read_and_written() {
    let directory = tempfile::tempdir().unwrap();
    let (base, path) = (directory.path().join("base"), directory.path().join("image"));
    let below = source(64 * 512);
    std::fs::write(&base, &below).unwrap();
    for is_wide in [true, false] {
        let mut bytes = cow_header(64 * 512, is_wide, "base");
        // Only sectors 1 and 9 are in this image.
        bytes.extend([0b10, 0b10, 0, 0, 0, 0, 0, 0]);
        bytes.resize(bytes.len().next_multiple_of(512) + 64 * 512, 0xcc);
        std::fs::write(&path, bytes).unwrap();
        let mut model = below.clone();
        model[512..1024].fill(0xcc);
        model[9 * 512..10 * 512].fill(0xcc);
        let image = open(&path, Format::Cow, true);
        assert!(read_all(&image) == model, "{is_wide}");
        image.write_at(&[1; 700], 5000).unwrap();
        model[5000..5700].fill(1);
        image.close().unwrap();
        assert!(read_all(&open(&path, Format::Cow, false)) == model, "{is_wide}");
        assert_eq!(open_as(&path, &OpenOptions::default()).unwrap().format(), Format::Cow);
    }
}

#[test]
fn vmdk_images_have_backing_files() {
    let directory = tempfile::tempdir().unwrap();
    let (base, raw) = (directory.path().join("base.vmdk"), directory.path().join("raw"));
    let mut model = source(3 << 20);
    std::fs::write(&raw, &model).unwrap();
    qemu_img(&["convert", "-O", "vmdk", text(&raw), text(&base)]);
    let path = directory.path().join("above.vmdk");
    qemu_img(&["create", "-f", "vmdk", "-b", text(&base), "-F", "vmdk", text(&path)]);
    let image = open(&path, Format::Vmdk, true);
    image.write_at(&[1; 1000], 400_000).unwrap();
    model[400_000..401_000].fill(1);
    image.write_zeroes(600_000, 10).unwrap();
    model[600_000..600_010].fill(0);
    assert!(read_all(&image) == model);
    image.close().unwrap();
    check_with_qemu(&path, Format::Vmdk, &model, true);
}

/// Makes a VHD image with the contents `bytes`.
fn make_vhd(path: &Path, bytes: &[u8], specific: &[(&str, &str)]) {
    make(path, &options(Format::Vpc, bytes.len() as u64, specific));
    let image = open(path, Format::Vpc, true);
    image.write_at(bytes, 0).unwrap();
    image.close().unwrap();
}

/// Returns options for a VHD image on the backing image `below`.
fn vhd_on(below: &str, size: u64) -> CreateOptions {
    let backing = BackingName { name: below.to_owned(), format: None };
    CreateOptions { backing: Some(backing), ..options(Format::Vpc, size, &[]) }
}

/// The offsets come from the specification: "Hard Disk Footer Format", "Dynamic Disk Header Format".
#[test]
fn differencing_vhd_images_name_their_parent() {
    let directory = tempfile::tempdir().unwrap();
    let (base, path) = (directory.path().join("base.vhd"), directory.path().join("above.vhd"));
    make_vhd(&base, &source(1 << 20), &[]);
    make(&path, &vhd_on("base.vhd", 1 << 20));
    let (below, bytes) = (std::fs::read(&base).unwrap(), std::fs::read(&path).unwrap());
    assert_eq!(bytes[60..64], [0, 0, 0, 4], "the disk type is differencing");
    let header = &bytes[512..1536];
    assert_eq!(header[40..56], below[68..84], "the unique id of the one below");
    let wide = |text: &str| text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>();
    assert_eq!(header[64..80], wide("base.vhd"));
    assert_eq!(header[80..576], [0; 496]);
    let seconds = u64::from(u32::from_be_bytes(header[56..60].try_into().unwrap()));
    let modified = std::fs::metadata(&base).unwrap().modified().unwrap();
    let since_1970 = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    // The difference is the time from 1970-01-01 to 2000-01-01.
    assert_eq!(seconds, since_1970 - 946_684_800);
    let full = text(&base).replace('/', "\\");
    for (locator, code, path) in [(576, b"W2ru", ".\\base.vhd"), (600, b"W2ku", full.as_str())] {
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(&header[locator..locator + 4], code);
        let (len, at) = (number(locator + 8) as usize, number(locator + 20) as usize);
        assert_eq!(number(locator + 4) as usize, len.div_ceil(512));
        let low_first: Vec<u8> = path.encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(bytes[at..at + len], low_first);
    }
    assert_eq!(header[624..768], [0; 144]);
    for (at, sum_at, len) in [(0, 64, 512), (512, 36, 1024), (bytes.len() - 512, 64, 512)] {
        let part = &bytes[at..at + len];
        let sum: u32 = part.iter().map(|byte| u32::from(*byte)).sum();
        let own: u32 = part[sum_at..sum_at + 4].iter().map(|byte| u32::from(*byte)).sum();
        assert_eq!(part[sum_at..sum_at + 4], (!(sum - own)).to_be_bytes(), "the checksum at {at}");
    }
}

#[test]
fn differencing_vhd_images_are_read_and_written() {
    let directory = tempfile::tempdir().unwrap();
    let [base, middle, path] =
        ["base.vhd", "middle.vhd", "above.vhd"].map(|name| directory.path().join(name));
    let mut model = source(5 << 20);
    make_vhd(&base, &model, &[("subformat", "fixed")]);
    make(&middle, &vhd_on("base.vhd", 5 << 20));
    let image = open(&middle, Format::Vpc, true);
    image.write_at(&[4; 300], 4 << 20).unwrap();
    model[4 << 20..(4 << 20) + 300].fill(4);
    image.close().unwrap();
    make(&path, &vhd_on(text(&middle), 5 << 20));
    let image = open(&path, Format::Vpc, true);
    assert!(read_all(&image) == model);
    image.write_at(&[5; 700], 2_100_000).unwrap();
    model[2_100_000..2_100_700].fill(5);
    assert!(read_all(&image) == model);
    image.close().unwrap();
    // Other programs set only the bits of sectors that they have written: here those of the first 8 sectors
    // of the block.
    let mut bytes = std::fs::read(&path).unwrap();
    let number = |bytes: &[u8], at: usize| {
        u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
    };
    let table = number(&bytes, 512 + 20);
    let entry = number(&bytes, table + 4) * 512;
    bytes[entry + 1..entry + 512].fill(0);
    bytes[entry + 512..entry + 512 + 8 * 512].fill(0xab);
    std::fs::write(&path, &bytes).unwrap();
    let below = read_all(&open(&middle, Format::Vpc, false));
    model[2 << 20..4 << 20].copy_from_slice(&below[2 << 20..4 << 20]);
    model[2 << 20..(2 << 20) + 8 * 512].fill(0xab);
    let image = open(&path, Format::Vpc, true);
    assert!(read_all(&image) == model);
    check_map(&image);
    image.write_at(&[6; 1000], (2 << 20) + 4000).unwrap();
    model[(2 << 20) + 4000..][..1000].fill(6);
    assert!(read_all(&image) == model);
    image.close().unwrap();
    assert!(read_all(&open(&path, Format::Vpc, false)) == model);
}

#[test]
fn a_differencing_vhd_image_refuses_other_parents() {
    let directory = tempfile::tempdir().unwrap();
    let (base, path) = (directory.path().join("base.vhd"), directory.path().join("above.vhd"));
    let refused = |options: &CreateOptions, why: &str| {
        let error = ring3_block::create(&path, options).unwrap_err().to_string();
        assert!(error.ends_with(why), "{error}");
        assert!(!path.exists());
    };
    refused(&vhd_on("base.vhd", 1 << 20), &format!("there is no image {}", base.display()));
    std::fs::write(&base, [0; 4096]).unwrap();
    refused(&vhd_on("base.vhd", 1 << 20), "it is not a VHD image");
    make_vhd(&base, &source(1 << 20), &[]);
    let size = "a differencing VHD image must be as large as its parent, which has 1048576 bytes";
    refused(&vhd_on("base.vhd", 2 << 20), size);
    let mut raw = vhd_on("base.vhd", 1 << 20);
    raw.backing = Some(backing(&base, "raw"));
    refused(&raw, "the parent of a VHD image must be a VHD image (vpc)");
    make(&path, &vhd_on("base.vhd", 1 << 20));
    make_vhd(&base, &source(1 << 20), &[]);
    let error = open_as(&path, &OpenOptions::default()).unwrap_err().to_string();
    assert!(
        error.contains("is not the image that it was made on, or has been changed since"),
        "{error}"
    );
}

#[test]
fn unsupported_operations_are_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    make(&path, &options(Format::Vdi, 1 << 20, &[]));
    let image = open(&path, Format::Vdi, true);
    let error = image.resize(2 << 20).unwrap_err().to_string();
    assert!(error.ends_with("the size of images of this format cannot be changed"), "{error}");
    let error = image.write_compressed(&[0; 512], 0).unwrap_err().to_string();
    assert!(error.ends_with("images of this format cannot be compressed"), "{error}");
    let mut on = options(Format::Vdi, 1 << 20, &[]);
    on.backing = Some(backing(&path, "vdi"));
    let error = ring3_block::create(&directory.path().join("new"), &on).unwrap_err().to_string();
    assert!(
        error.ends_with("vdi images cannot have a backing file here; make a qcow2 image"),
        "{error}"
    );
}
