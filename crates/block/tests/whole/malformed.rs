//! Tests with images whose bytes were changed at random. Whatever is in them, nothing panics or runs for
//! ever.
//!
//! `RING3_MALFORMED` is the number of images of each kind.

use std::path::Path;

use crate::support::abuse::use_all;
use crate::support::power::Random;
use crate::support::*;
use ring3_block::storage::Memory;
use ring3_block::{Format, Image, OpenOptions, SnapshotAct};

/// Changes a valid image in a few places, mostly where the tables are, and uses it, again and again.
fn mutate(good: &[u8], format: Format, seed: u64) {
    let count = malformed_images();
    let mut random = Random(seed);
    use_all(good, format);
    for _ in 0..count {
        let mut bytes = good.to_vec();
        for _ in 0..=random.below(4) {
            let bound =
                [128, 1024, bytes.len() as u64][random.below(3) as usize].min(bytes.len() as u64);
            let at = random.below(bound) as usize;
            let value = [0, 0xff, 0x80, 1, random.below(256) as u8][random.below(5) as usize];
            let end = (at + 1 + random.below(4) as usize).min(bytes.len());
            bytes[at..end].fill(value);
        }
        if random.below(8) == 0 {
            bytes.truncate(random.below(good.len() as u64) as usize);
        }
        use_all(&bytes, format);
    }
}

/// Returns a valid image with contents of several kinds.
fn good(format: Format, specific: &[(&str, &str)], has_snapshot: bool) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    make(&path, &options(format, 1 << 20, specific));
    let image = open(&path, format, true);
    image.write_at(&pattern(0, 100_000, 1), 4096).unwrap();
    if has_snapshot {
        image.write_compressed(&[7; 4096], 512 << 10).unwrap();
        image.snapshot(&SnapshotAct::Create { name: "first".to_owned(), date: (1, 2) }).unwrap();
    }
    image.write_at(&pattern(0, 5000, 2), 50_000).unwrap();
    image.write_zeroes(8192, 8192).unwrap();
    image.close().unwrap();
    std::fs::read(&path).unwrap()
}

#[test]
fn qcow2_with_changed_bytes() {
    mutate(&good(Format::Qcow2, &[("cluster_size", "4k")], true), Format::Qcow2, 1);
    mutate(
        &good(Format::Qcow2, &[("cluster_size", "512"), ("compression_type", "zstd")], false),
        Format::Qcow2,
        2,
    );
}

#[test]
fn qcow2_of_qemu_with_changed_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let (raw, path) = (directory.path().join("raw"), directory.path().join("image"));
    std::fs::write(&raw, [pattern(0, 300_000, 1), vec![5; 300_000], vec![0; 424_000]].concat())
        .unwrap();
    for (seed, options) in
        ["compression_type=zstd", "cluster_size=4k", "extended_l2=on,cluster_size=16k"]
            .into_iter()
            .enumerate()
    {
        let mut arguments = vec!["convert", "-O", "qcow2", "-o", options, text(&raw), text(&path)];
        if seed < 2 {
            arguments.push("-c");
        }
        qemu_img(&arguments);
        mutate(&std::fs::read(&path).unwrap(), Format::Qcow2, seed as u64 + 10);
    }
}

#[test]
fn others_with_changed_bytes() {
    let formats =
        [Format::Vdi, Format::Vmdk, Format::Vpc, Format::Qcow, Format::Bochs, Format::Cow];
    for (seed, format) in formats.into_iter().enumerate() {
        mutate(&good(format, &[], false), format, seed as u64 + 20);
    }
}

#[test]
fn stream_optimized_vmdk_with_changed_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let (raw, path) = (directory.path().join("raw"), directory.path().join("image"));
    std::fs::write(&raw, [pattern(0, 300_000, 1), vec![5; 300_000], vec![0; 424_000]].concat())
        .unwrap();
    qemu_img(&[
        "convert",
        "-O",
        "vmdk",
        "-o",
        "subformat=streamOptimized",
        text(&raw),
        text(&path),
    ]);
    mutate(&std::fs::read(&path).unwrap(), Format::Vmdk, 30);
}

#[test]
fn read_only_formats_with_changed_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let contents = [pattern(0, 300_000, 1), vec![0; 724_288]].concat();
    let kinds = [
        ("vhdx", Format::Vhdx),
        ("vhdx subformat=fixed", Format::Vhdx),
        ("parallels", Format::Parallels),
        ("luks", Format::Luks),
        ("qcow2 encrypt.format=luks", Format::Qcow2),
        ("qcow2 encrypt.format=aes", Format::Qcow2),
        ("qcow encrypt.format=aes", Format::Qcow),
    ];
    for (seed, (kind, format)) in kinds.into_iter().enumerate() {
        let path = directory.path().join("image");
        of_qemu(&path, kind, &contents);
        mutate(&std::fs::read(&path).unwrap(), format, seed as u64 + 40);
    }
}

#[test]
fn any_bytes_are_opened_or_refused() {
    let mut random = Random(99);
    for _ in 0..300 {
        let mut bytes: Vec<u8> = (0..2048).map(|_| random.below(256) as u8).collect();
        for format in Format::ALL {
            use_all(&bytes, format);
        }
        bytes.truncate(random.below(100) as usize);
        for format in Format::ALL {
            use_all(&bytes, format);
        }
    }
}

#[test]
fn tables_that_are_too_large_are_refused() {
    let mut bytes = good(Format::Qcow2, &[], false);
    // The number of entries in the L1 table.
    bytes[36..40].copy_from_slice(&(5_u32 << 20).to_be_bytes());
    let image = Image::of_storage(
        Box::new(Memory::new(bytes)),
        Path::new("image"),
        Format::Qcow2,
        false,
        None,
    );
    assert_eq!(
        image.unwrap_err().to_string(),
        "image: the image is damaged: its L1 table cannot have 5242880 entries"
    );
}

#[test]
fn chains_that_do_not_end_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |index: usize| directory.path().join(format!("image{index}"));
    let on = |below: usize| {
        let mut options = options(Format::Qcow2, 1 << 16, &[]);
        options.backing = Some(ring3_block::BackingName {
            name: format!("image{below}"),
            format: Some("qcow2".to_owned()),
        });
        options
    };
    make(&path(0), &on(2));
    make(&path(1), &on(0));
    make(&path(2), &on(1));
    let error = open_as(&path(1), &OpenOptions::default()).unwrap_err().to_string();
    assert!(error.contains("leads back to it"), "{error}");
    for index in 3..80 {
        make(&path(index), &on(index + 1));
    }
    let error = open_as(&path(3), &OpenOptions::default()).unwrap_err().to_string();
    assert!(error.contains("has more than 64 images"), "{error}");
}
