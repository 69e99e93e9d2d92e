//! Tests of power cuts at any moment: afterwards an image is sound, and contains all that was flushed.
//!
//! RING3_POWER_CUTS is the number of cuts for each kind of image.

use std::path::Path;
use std::sync::Arc;

use crate::support::power::{Power, Random, left_after};
use crate::support::*;
use ring3_block::storage::Memory;
use ring3_block::{Format, Image, Repair, SnapshotAct, create_in};

/// The contents at the end of a flush, and the changes since.
#[derive(Clone)]
struct Known {
    flushed: Vec<u8>,
    /// Offset and bytes of each change.
    since: Vec<(usize, Vec<u8>)>,
}

impl Known {
    /// Tests that each byte is the flushed one, or one that was written over it since.
    fn check(&self, bytes: &[u8], what: &str) {
        for (at, (byte, flushed)) in bytes.iter().zip(&self.flushed).enumerate() {
            let is_newer = |(start, written): &(usize, Vec<u8>)| {
                at.checked_sub(*start).and_then(|inside| written.get(inside)) == Some(byte)
            };
            assert!(
                byte == flushed || self.since.iter().any(is_newer),
                "{what}: byte {at} is {byte:#x}, which was flushed as {flushed:#x}"
            );
        }
    }
}

/// Cuts the power at many moments of random work.
fn cut(format: Format, specific: &[(&str, &str)], seed: u64, has_snapshots: bool) {
    cut_on(format, specific, seed, has_snapshots, &[]);
}

/// Cuts the power as [`cut`] does, for an image on a backing image with the contents `base`.
fn cut_on(format: Format, specific: &[(&str, &str)], seed: u64, has_snapshots: bool, base: &[u8]) {
    let below = (!base.is_empty()).then(|| {
        let storage = Box::new(Memory::new(base.to_vec()));
        Image::of_storage(storage, Path::new("base"), Format::Raw, false, None).unwrap()
    });
    // The disk has several blocks in each format.
    let size: usize = match format {
        Format::Vdi | Format::Vpc => 3 << 20,
        _ => 300 << 10,
    };
    let cuts: u64 = std::env::var("RING3_POWER_CUTS")
        .ok()
        .map_or(100, |text| text.parse().expect("RING3_POWER_CUTS is a number"));
    // Larger disks take longer.
    let cuts = if size > 1 << 20 { cuts / 3 } else { cuts };
    let mut random = Random(seed);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("image");
    let mut done = 0;
    while done < cuts {
        let power = Arc::new(Power::default());
        create_in(
            Box::new(Arc::clone(&power)),
            Path::new("image"),
            &options(format, size as u64, specific),
        )
        .unwrap();
        let name = Path::new("image");
        let image =
            Image::of_storage(Box::new(Arc::clone(&power)), name, format, true, below.as_ref())
                .unwrap();
        let start = power.len();
        let mut model = vec![0; size];
        model[..base.len()].copy_from_slice(base);
        // For several numbers of events of the storage: what the image must contain if the power fails after
        // these events.
        let mut known = vec![(start, Known { flushed: model.clone(), since: vec![] })];
        for step in 0..40 {
            let offset = random.below(size as u64 / 512) as usize * 512;
            let len = match random.below(3) {
                0 => 512,
                1 => 4096,
                _ => 1 + random.below(60_000) as usize,
            };
            let len = len.min(size - offset);
            let mut latest = known.last().unwrap().1.clone();
            match random.below(10) {
                0 | 1 => {
                    // The new bytes may appear from the beginning of the write on.
                    latest.since.push((offset, vec![0; len]));
                    known.push((power.len(), latest.clone()));
                    image.write_zeroes(offset as u64, len as u64).unwrap();
                    model[offset..offset + len].fill(0);
                }
                2 => {
                    latest.since.push((offset, vec![0; len]));
                    known.push((power.len(), latest.clone()));
                    image.discard(offset as u64, len as u64).unwrap();
                    image.read_at(&mut model[offset..offset + len], offset as u64).unwrap();
                }
                3 | 4 => {
                    image.flush().unwrap();
                    known.push((power.len(), Known { flushed: model.clone(), since: vec![] }));
                }
                5 if has_snapshots && step % 3 == 0 => {
                    // This flushes, but the caller was not promised that.
                    image
                        .snapshot(&SnapshotAct::Create { name: format!("s{step}"), date: (1, 1) })
                        .unwrap();
                }
                _ => {
                    let bytes = pattern(offset as u64, len, random.below(256) as u8);
                    latest.since.push((offset, bytes.clone()));
                    known.push((power.len(), latest.clone()));
                    image.write_at(&bytes, offset as u64).unwrap();
                    model[offset..offset + len].copy_from_slice(&bytes);
                }
            }
        }
        image.close().unwrap();
        let events = power.events();
        for _ in 0..50 {
            let cut = start + random.below((events.len() - start + 1) as u64) as usize;
            let left = left_after(&events, cut, &mut random);
            let at = known.iter().rposition(|(events, _)| *events <= cut).unwrap();
            let what = format!("{format} {specific:?}, cut {cut} of {}", events.len());
            let image = Image::of_storage(
                Box::new(Memory::new(left.clone())),
                name,
                format,
                false,
                below.as_ref(),
            )
            .unwrap();
            known[at].1.check(&read_all(&image), &what);
            if let Ok(report) = image.check(Repair::Nothing) {
                assert_eq!(report.corruptions, 0, "{what}: {:?}", report.messages);
            }
            drop(image);
            // The image can still be written.
            let memory = Arc::new(Memory::new(left));
            let image = Image::of_storage(
                Box::new(Arc::clone(&memory)),
                name,
                format,
                true,
                below.as_ref(),
            )
            .unwrap();
            let mut now = read_all(&image);
            let (offset, bytes) = (random.below(size as u64 - 5000), pattern(0, 5000, 0x77));
            image.write_at(&bytes, offset).unwrap();
            now[offset as usize..][..5000].copy_from_slice(&bytes);
            image.close().unwrap();
            if done % 10 == 0 {
                std::fs::write(&file, memory.bytes()).unwrap();
                if format == Format::Qcow2 {
                    // Status 0 means no errors, and 3 only leaks. After a cut in the middle of a snapshot
                    // clusters may have no owner mark, which is harmless.
                    let output = qemu_img_output(&["check", "-f", "qcow2", text(&file)]);
                    let said = String::from_utf8_lossy(&output.stdout);
                    let is_harmless = |line: &str| {
                        line.starts_with("ERROR OFLAG_COPIED") && line.ends_with("refcount=1")
                    };
                    let errors = said.lines().filter(|line| {
                        line.starts_with("ERROR") && !(has_snapshots && is_harmless(line))
                    });
                    assert_eq!(errors.count(), 0, "{what}: {said}");
                    assert!(
                        has_snapshots || matches!(output.status.code(), Some(0 | 3)),
                        "{what}: {said}"
                    );
                }
                // QEMU can compare the contents only without a backing image.
                if format != Format::Cow && base.is_empty() {
                    check_with_qemu(&file, format, &now, false);
                }
            }
            done += 1;
        }
    }
}

#[test]
fn qcow2_loses_nothing() {
    cut(Format::Qcow2, &[("cluster_size", "4k")], 1, false);
}

#[test]
fn qcow2_with_small_clusters_loses_nothing() {
    // Tables of all kinds grow often.
    cut(Format::Qcow2, &[("cluster_size", "512"), ("refcount_bits", "64")], 2, false);
}

#[test]
fn qcow2_of_version_2_loses_nothing() {
    cut(Format::Qcow2, &[("cluster_size", "64k"), ("compat", "0.10")], 3, false);
}

#[test]
fn qcow2_with_snapshots_loses_nothing() {
    cut(Format::Qcow2, &[("cluster_size", "4k")], 4, true);
}

#[test]
fn vdi_loses_nothing() {
    cut(Format::Vdi, &[], 6, false);
}

#[test]
fn vmdk_loses_nothing() {
    cut(Format::Vmdk, &[], 7, false);
}

#[test]
fn vhd_loses_nothing() {
    cut(Format::Vpc, &[], 8, false);
}

#[test]
fn qcow_loses_nothing() {
    cut(Format::Qcow, &[], 9, false);
}

#[test]
fn bochs_loses_nothing() {
    cut(Format::Bochs, &[], 10, false);
}

#[test]
fn cow_loses_nothing() {
    cut(Format::Cow, &[], 11, false);
}

#[test]
fn data_of_a_backing_file_are_not_lost() {
    let base = pattern(0, 200 << 10, 0x5a);
    cut_on(Format::Qcow2, &[], 12, false, &base);
    cut_on(Format::Qcow2, &[("cluster_size", "4k")], 13, false, &base);
    cut_on(Format::Qcow, &[], 14, false, &base);
    cut_on(Format::Cow, &[], 15, false, &base);
    cut_on(Format::Vmdk, &[], 16, false, &base);
}

#[test]
fn raw_loses_nothing() {
    cut(Format::Raw, &[], 5, false);
}
