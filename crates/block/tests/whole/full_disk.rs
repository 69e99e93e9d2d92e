//! Tests on a full host: requests fail, but when there is space again the image works on, and no other data
//! have changed.
//!
//! `RING3_FUZZ_TIMES` is how many times as often as by default each image is filled up.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::power::Random;
use crate::support::*;
use ring3_block::storage::{Memory, Storage};
use ring3_block::{Format, Image, Repair, create_in};

/// Memory that is full at times. Then no byte after its end can be written, or no byte at all.
#[derive(Debug, Default)]
struct Full {
    memory: Memory,
    refuses: AtomicBool,
    refuses_all: AtomicBool,
}

impl Full {
    fn check(&self, end: u64) -> io::Result<()> {
        let grows = end > self.memory.size()?;
        let is_full = self.refuses.load(Ordering::Relaxed);
        if is_full && (grows || self.refuses_all.load(Ordering::Relaxed)) {
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl Storage for Full {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.memory.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check(offset + bytes.len() as u64)?;
        self.memory.write_at(bytes, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.check(0)
    }

    fn size(&self) -> io::Result<u64> {
        self.memory.size()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.check(size)?;
        self.memory.set_size(size)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset + len)?;
        self.memory.write_zeroes(offset, len)
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        self.check(0)
    }

    fn run_at(&self, _offset: u64, end: u64) -> io::Result<(bool, u64)> {
        Ok((true, end))
    }
}

const SIZE: u64 = 3 << 20;

/// Returns how often each image is filled up.
fn rounds() -> u64 {
    let times = std::env::var("RING3_FUZZ_TIMES");
    5 * times.map_or(1, |text| text.parse::<u64>().expect("RING3_FUZZ_TIMES is a number"))
}

fn fill_up(format: Format, specific: &[(&str, &str)], seed: u64) {
    let mut random = Random(seed);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("image");
    for round in 0..rounds() {
        let storage = Arc::new(Full::default());
        create_in(
            Box::new(Arc::clone(&storage)),
            Path::new("image"),
            &options(format, SIZE, specific),
        )
        .unwrap();
        let open = || {
            Image::of_storage(
                Box::new(Arc::clone(&storage)),
                Path::new("image"),
                format,
                true,
                None,
            )
            .unwrap()
        };
        let image = open();
        let mut model = vec![0; SIZE as usize];
        let mut failures = 0;
        for step in 0..120_u8 {
            storage.refuses.store(random.below(3) == 0, Ordering::Relaxed);
            storage.refuses_all.store(random.below(3) == 0, Ordering::Relaxed);
            let offset = random.below(SIZE - 70_000);
            let len = 1 + random.below(70_000);
            let range = offset as usize..(offset + len) as usize;
            let result = match random.below(8) {
                0 => image.flush(),
                1 => image.write_zeroes(offset, len).inspect(|()| model[range.clone()].fill(0)),
                2 => image
                    .discard(offset, len)
                    .inspect(|()| image.read_at(&mut model[range.clone()], offset).unwrap()),
                _ => {
                    let bytes = pattern(offset, len as usize, step);
                    image
                        .write_at(&bytes, offset)
                        .inspect(|()| model[range.clone()].copy_from_slice(&bytes))
                }
            };
            if result.is_err() {
                // The range may contain old and new bytes.
                failures += 1;
                image.read_at(&mut model[range], offset).unwrap();
            }
            assert!(
                read_all(&image) == model,
                "{format} {specific:?}: something else changed in step {step}"
            );
        }
        assert!(failures > 0, "{format} {specific:?}: no write failed");
        storage.refuses.store(false, Ordering::Relaxed);
        image.close().unwrap();
        let image = open();
        assert!(read_all(&image) == model, "{format} {specific:?}: something was lost");
        if let Ok(report) = image.check(Repair::Nothing) {
            assert_eq!(report.corruptions, 0, "{format} {specific:?}: {:?}", report.messages);
        }
        image.close().unwrap();
        if round == 0 && format != Format::Cow {
            std::fs::write(&file, storage.memory.bytes()).unwrap();
            check_with_qemu(&file, format, &model, false);
        }
    }
}

#[test]
fn qcow2_continues_when_there_is_space_again() {
    fill_up(Format::Qcow2, &[], 1);
    fill_up(Format::Qcow2, &[("cluster_size", "4k")], 2);
    fill_up(Format::Qcow2, &[("cluster_size", "512"), ("refcount_bits", "64")], 3);
}

#[test]
fn other_formats_continue_when_there_is_space_again() {
    for (seed, format) in
        [Format::Qcow, Format::Vdi, Format::Vmdk, Format::Vpc, Format::Bochs, Format::Cow]
            .into_iter()
            .enumerate()
    {
        fill_up(format, &[], 10 + seed as u64);
    }
}
