//! Tests of qcow2 images, in comparison with QEMU.

use crate::support::*;
use proptest::prelude::*;
use ring3_block::{Format, OpenOptions, Repair, SnapshotAct};

/// The options of images that are written.
const KINDS: [&[(&str, &str)]; 7] = [
    &[],
    &[("cluster_size", "512")],
    &[("cluster_size", "4k"), ("refcount_bits", "1")],
    &[("cluster_size", "512"), ("refcount_bits", "64")],
    &[("compat", "0.10")],
    &[("cluster_size", "2M"), ("lazy_refcounts", "on")],
    &[("preallocation", "metadata"), ("compression_type", "zstd")],
];
const SIZE: u64 = (1 << 20) + 1536;

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn operations_agree_with_a_model(kind in 0..KINDS.len(), backed in any::<bool>(), operations in operations(SIZE, 40)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let mut model = vec![0; SIZE as usize];
        let mut options = options(Format::Qcow2, SIZE, KINDS[kind]);
        if backed && kind != 6 {
            // The backing image is shorter than the image.
            let base = directory.path().join("base");
            let bytes = pattern(0, 700_000, 0x55);
            std::fs::write(&base, &bytes).unwrap();
            model[..bytes.len()].copy_from_slice(&bytes);
            options.backing = Some(backing(&base, "raw"));
        }
        make(&path, &options);
        let reopen = || open(&path, Format::Qcow2, true);
        let image = act(reopen(), &mut model, &operations, &reopen);
        prop_assert!(read_all(&image) == model);
        check_map(&image);
        image.close().unwrap();
        let report = reopen().check(Repair::Nothing).unwrap();
        prop_assert_eq!((report.corruptions, report.leaks), (0, 0), "{:?}", report.messages);
        check_with_qemu(&path, Format::Qcow2, &model, true);
    }

    #[test]
    fn snapshots_keep_the_old_data(operations in prop::collection::vec((operations(SIZE, 8), 0..5_u8), 1..8)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        make(&path, &options(Format::Qcow2, SIZE, &[("cluster_size", "4k")]));
        let mut model = vec![0; SIZE as usize];
        let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
        let reopen = || open(&path, Format::Qcow2, true);
        let mut image = reopen();
        for (index, (operations, what)) in operations.iter().enumerate() {
            image = act(image, &mut model, operations, &reopen);
            match (what, kept.len()) {
                (3, 1..) => {
                    let (name, bytes) = kept.swap_remove(index % kept.len());
                    image.snapshot(&SnapshotAct::Apply(name.clone())).unwrap();
                    model.clone_from(&bytes);
                    kept.push((name, bytes));
                }
                (4, 1..) => {
                    let (name, _) = kept.swap_remove(index % kept.len());
                    image.snapshot(&SnapshotAct::Delete(name)).unwrap();
                }
                _ => {
                    let name = format!("s{index}");
                    image.snapshot(&SnapshotAct::Create { name: name.clone(), date: (1, 2) }).unwrap();
                    kept.push((name, model.clone()));
                }
            }
            prop_assert!(read_all(&image) == model);
            let report = image.check(Repair::Nothing).unwrap();
            prop_assert_eq!((report.corruptions, report.leaks), (0, 0), "{:?}", report.messages);
        }
        image.close().unwrap();
        check_with_qemu(&path, Format::Qcow2, &model, true);
        for (name, bytes) in kept {
            let copy = directory.path().join("copy");
            qemu_img(&["convert", "-l", &name, "-O", "raw", text(&path), text(&copy)]);
            prop_assert!(std::fs::read(&copy).unwrap() == bytes, "{} has changed", name);
        }
    }
}

/// Returns bytes with data, zeros, and parts that can be compressed.
fn source(len: u64) -> Vec<u8> {
    let mut bytes = pattern(0, len as usize, 3);
    for (index, part) in bytes.chunks_mut(50_000).enumerate() {
        match index % 3 {
            0 => part.fill(0),
            1 => part.fill(index as u8),
            _ => {}
        }
    }
    bytes
}

#[test]
fn images_that_qemu_makes_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let (raw, path) = (directory.path().join("raw"), directory.path().join("image"));
    let bytes = source(3 << 20);
    std::fs::write(&raw, &bytes).unwrap();
    let kinds: [(&[&str], bool); 12] = [
        (&[], true),
        (&["-c"], true),
        (&["-c", "-o", "compression_type=zstd"], true),
        (&["-c", "-o", "cluster_size=512"], true),
        (&["-c", "-o", "cluster_size=2M"], true),
        (&["-o", "compat=0.10"], true),
        (&["-o", "cluster_size=512,refcount_bits=2"], true),
        (&["-o", "lazy_refcounts=on"], true),
        (&["-o", "preallocation=metadata"], true),
        (&["-o", "preallocation=full"], true),
        (&["-o", "extended_l2=on"], false),
        (&["-o", "extended_l2=on,cluster_size=16k", "-S", "0"], false),
    ];
    for (arguments, writes) in kinds {
        let mut all = vec!["convert", "-f", "raw", "-O", "qcow2"];
        all.extend(arguments);
        all.extend([text(&raw), text(&path)]);
        qemu_img(&all);
        let image = open_as(&path, &OpenOptions::default()).unwrap();
        assert_eq!((image.format(), image.size()), (Format::Qcow2, 3 << 20));
        assert!(read_all(&image) == bytes, "{arguments:?}");
        check_map(&image);
        let report = image.check(Repair::Nothing).unwrap();
        assert_eq!(
            (report.corruptions, report.leaks),
            (0, 0),
            "{arguments:?}: {:?}",
            report.messages
        );
        drop(image);
        let options = OpenOptions { writes: true, ..OpenOptions::default() };
        let opened = open_as(&path, &options);
        if !writes {
            let says = opened.unwrap_err().to_string();
            assert!(says.contains("extended L2 entries cannot be written"), "{says}");
            continue;
        }
        let (image, mut bytes) = (opened.unwrap(), bytes.clone());
        for offset in [0, 70_000, 1 << 20, 2_000_001] {
            image.write_at(&[0xee; 3000], offset).unwrap();
            bytes[offset as usize..][..3000].fill(0xee);
        }
        image.close().unwrap();
        check_with_qemu(&path, Format::Qcow2, &bytes, true);
    }
}

#[test]
fn compressed_images_are_read_by_qemu() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let bytes = source((3 << 20) + 512);
    for kind in [
        &[][..],
        &[("compression_type", "zstd")],
        &[("cluster_size", "4k"), ("refcount_bits", "1")],
        &[("cluster_size", "512")],
    ] {
        make(&path, &options(Format::Qcow2, bytes.len() as u64, kind));
        let image = open(&path, Format::Qcow2, true);
        let cluster = image.details().cluster_size.unwrap();
        for (index, part) in bytes.chunks(cluster as usize).enumerate() {
            if part.iter().any(|byte| *byte != 0) {
                image.write_compressed(part, index as u64 * cluster).unwrap();
            }
        }
        assert!(read_all(&image) == bytes, "{kind:?}");
        let report = image.check(Repair::Nothing).unwrap();
        assert_eq!((report.corruptions, report.leaks), (0, 0), "{:?}", report.messages);
        assert!(report.compressed_clusters > 10);
        image.close().unwrap();
        check_with_qemu(&path, Format::Qcow2, &bytes, true);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn images_with_many_refcount_tables_grow() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    make(
        &path,
        &options(Format::Qcow2, 24 << 20, &[("cluster_size", "512"), ("refcount_bits", "64")]),
    );
    let image = open(&path, Format::Qcow2, true);
    let mut model = vec![0; 24 << 20];
    for (index, offset) in (0..24 << 20).step_by(1 << 20).enumerate() {
        let bytes = pattern(offset, 1 << 20, index as u8);
        image.write_at(&bytes, offset).unwrap();
        model[offset as usize..][..1 << 20].copy_from_slice(&bytes);
    }
    image.close().unwrap();
    check_with_qemu(&path, Format::Qcow2, &model, true);
}

#[test]
fn sizes_change() {
    let directory = tempfile::tempdir().unwrap();
    let (path, base) = (directory.path().join("image"), directory.path().join("base"));
    std::fs::write(&base, pattern(0, 4 << 20, 9)).unwrap();
    let mut create = options(Format::Qcow2, 4 << 20, &[("cluster_size", "4k")]);
    create.backing = Some(backing(&base, "raw"));
    make(&path, &create);
    let image = open(&path, Format::Qcow2, true);
    let mut model = pattern(0, 4 << 20, 9);
    image.write_at(&vec![7; 100_000], 1_000_000).unwrap();
    model[1_000_000..1_100_000].fill(7);
    for size in [1_050_112, 3 << 20, 40 << 20, 512, 6 << 20] {
        image.resize(size).unwrap();
        model.resize(size as usize, 0);
        assert_eq!(image.size(), size);
        assert!(read_all(&image) == model, "{size}");
    }
    image.close().unwrap();
    check_with_qemu(&path, Format::Qcow2, &model, true);
}

#[test]
fn wrong_counts_are_found_and_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let bytes = source(2 << 20);
    let raw = directory.path().join("raw");
    std::fs::write(&raw, &bytes).unwrap();
    for (value, corruptions, leaks) in [(0_u16, true, false), (9, true, true)] {
        qemu_img(&["convert", "-f", "raw", "-O", "qcow2", text(&raw), text(&path)]);
        // The reference count of a cluster with data, in the first block of 16-bit counts.
        let mut file = std::fs::read(&path).unwrap();
        let table = u64::from_be_bytes(file[48..56].try_into().unwrap()) as usize;
        let block = u64::from_be_bytes(file[table..table + 8].try_into().unwrap()) as usize;
        file[block + 2 * 6..block + 2 * 7].copy_from_slice(&value.to_be_bytes());
        std::fs::write(&path, &file).unwrap();
        let report = open(&path, Format::Qcow2, false).check(Repair::Nothing).unwrap();
        assert_eq!(
            (report.corruptions > 0, report.leaks > 0),
            (corruptions, leaks),
            "{:?}",
            report.messages
        );
        let report = open(&path, Format::Qcow2, true).check(Repair::All).unwrap();
        assert!(report.is_sound(), "{report:?}");
        check_with_qemu(&path, Format::Qcow2, &bytes, true);
    }
}

#[test]
fn an_image_that_was_not_closed_is_repaired_when_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let (path, raw) = (directory.path().join("image"), directory.path().join("raw"));
    let bytes = source(2 << 20);
    std::fs::write(&raw, &bytes).unwrap();
    qemu_img(&[
        "convert",
        "-f",
        "raw",
        "-O",
        "qcow2",
        "-o",
        "lazy_refcounts=on",
        text(&raw),
        text(&path),
    ]);
    // Sets the dirty bit, and clears all reference counts.
    let mut file = std::fs::read(&path).unwrap();
    let table = u64::from_be_bytes(file[48..56].try_into().unwrap()) as usize;
    let block = u64::from_be_bytes(file[table..table + 8].try_into().unwrap()) as usize;
    file[79] |= 1;
    file[block..block + 65536].fill(0);
    std::fs::write(&path, &file).unwrap();
    assert!(read_all(&open(&path, Format::Qcow2, false)) == bytes);
    let image = open(&path, Format::Qcow2, true);
    assert!(!image.details().dirty);
    image.write_at(&[1; 512], 0).unwrap();
    image.close().unwrap();
    let mut expected = bytes.clone();
    expected[..512].fill(1);
    check_with_qemu(&path, Format::Qcow2, &expected, true);
}
