//! Tests that reading an image takes little memory, however large it claims to be.
//!
//! This is a test program of its own, since it measures the whole process. `RING3_MALFORMED` is the number of
//! images of each format.

#[path = "whole/support/mod.rs"]
mod support;

use std::path::Path;

use peak_alloc::PeakAlloc;
use ring3_block::storage::Memory;
use ring3_block::{Format, Image, OpenOptions, Repair, Secret};
use support::power::Random;
use support::*;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// A table has at most 64 MiB, and is in memory twice while it is read. The counts of a check need as much.
const BYTES_MAX: usize = 200 << 20;

/// Opens and reads an image. Returns the largest number of bytes that were in use meanwhile.
fn most_for(bytes: &[u8], format: Format) -> usize {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let storage = Box::new(Memory::new(bytes.to_vec()));
    let before_image = MEMORY.current_usage() - before;
    let options = OpenOptions {
        format: Some(format),
        secret: Some(Secret::new(PASSWORD)),
        no_external_files: true,
        ..OpenOptions::default()
    };
    if let Ok(image) = Image::in_storage(storage, Path::new("image"), &options) {
        let mut buffer = vec![0; 4096];
        let size = image.size();
        for offset in [0, size / 2, size.saturating_sub(4096)] {
            let len = size.saturating_sub(offset).min(4096) as usize;
            let _ = image.read_at(&mut buffer[..len], offset);
            let _ = image.map(offset, size);
        }
        let _ = image.check(Repair::Nothing);
        let _ = image.details();
    }
    MEMORY.peak_usage() - before - before_image
}

#[test]
fn images_that_say_they_are_large_take_little_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random(3);
    for format in Format::ALL {
        let path = directory.path().join(format.name());
        if [Format::Vhdx, Format::Parallels, Format::Luks].contains(&format) {
            of_qemu(&path, format.name(), &pattern(0, 1 << 20, 3));
        } else {
            make(&path, &options(format, 1 << 20, &[]));
            let image = open(&path, format, true);
            image.write_at(&[1; 5000], 300_000).unwrap();
            image.close().unwrap();
        }
        let good = std::fs::read(&path).unwrap();
        for _ in 0..malformed_images() {
            let mut bytes = good.clone();
            for _ in 0..=random.below(3) {
                // Replaces 32-bit words in the header, and in the structures after it.
                let at = random.below(400.min(good.len() as u64 / 4)) as usize * 4;
                let value = [0x7fff_ffff_u32, 0xffff_ffff, 0x0100_0000, 0x0080_0000, 0x40, 1]
                    [random.below(6) as usize];
                let value =
                    if random.below(2) == 0 { value.to_le_bytes() } else { value.to_be_bytes() };
                bytes[at..at + 4].copy_from_slice(&value);
            }
            let most = most_for(&bytes, format);
            assert!(most < BYTES_MAX, "{format}: {most} bytes");
        }
    }
}
