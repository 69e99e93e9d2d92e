//! The common part of the tests of images: QEMU's tools, and random operations on an image and on a model of
//! it.
#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod abuse;
pub(crate) mod power;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use ring3_block::{
    BackingName, CreateOptions, Error, Format, Image, NewImage, OpenOptions, create,
};

/// How often qemu-img is started if it finds locks, and how long to wait in between.
const ATTEMPTS: u32 = 50;
const BETWEEN: Duration = Duration::from_millis(100);

/// Runs qemu-img, which must succeed. Returns its output.
///
/// A lock that this process has given up may still be there for a moment: where another test starts a program,
/// a copy of this process has all its open files until it executes the program.
pub(crate) fn qemu_img(arguments: &[&str]) -> String {
    for attempt in 1.. {
        let output = qemu_img_output(arguments);
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        if output.status.success() {
            return said;
        }
        let is_locked = said.contains("Failed to get");
        assert!(is_locked && attempt < ATTEMPTS, "qemu-img {}: {said}", arguments.join(" "));
        thread::sleep(BETWEEN);
    }
    unreachable!("the last attempt returns or fails")
}

pub(crate) fn qemu_img_output(arguments: &[&str]) -> Output {
    Command::new("qemu-img")
        .args(arguments)
        .output()
        .expect("qemu-img runs: Debian package qemu-utils")
}

/// Returns how many images with changed bytes a test makes of each kind: `RING3_MALFORMED`, if it is set.
pub(crate) fn malformed_images() -> u64 {
    std::env::var("RING3_MALFORMED")
        .ok()
        .map_or(50, |text| text.parse().expect("RING3_MALFORMED is a number"))
}

/// The password of the encrypted images in tests.
pub(crate) const PASSWORD: &[u8] = b"correct horse";

/// Makes an image with these contents by qemu-img. `format` may be followed by the argument for `-o`. An
/// encrypted image gets the password [`PASSWORD`].
pub(crate) fn of_qemu(path: &Path, format: &str, contents: &[u8]) {
    let (format, specific) = format.split_once(' ').unwrap_or((format, ""));
    let raw = path.with_extension("contents");
    std::fs::write(&raw, contents).unwrap();
    let mut specific = specific.to_owned();
    if format == "luks" || specific.contains("encrypt.format") {
        let prefix = if format == "luks" { "" } else { "encrypt." };
        specific = format!("{prefix}key-secret=key,{specific}");
        if format == "luks" || specific.contains("format=luks") {
            specific = format!("{prefix}iter-time=10,{specific}");
        }
    }
    let mut arguments = vec!["convert", "-f", "raw", "-O", format];
    let object = format!("secret,id=key,data={}", String::from_utf8_lossy(PASSWORD));
    if specific.contains("key-secret") {
        arguments.extend(["--object", &object]);
    }
    if !specific.is_empty() {
        arguments.extend(["-o", specific.trim_end_matches(',')]);
    }
    arguments.extend([text(&raw), text(path)]);
    // qemu-img can fail to measure how fast it derives keys; see `.cargo/config.toml`.
    let output = (0..20)
        .map(|_| qemu_img_output(&arguments))
        .find(|output| !String::from_utf8_lossy(&output.stderr).contains("accurate CPU usage"));
    let output = output.expect("qemu-img measures");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is text")
}

pub(crate) fn options(format: Format, size: u64, specific: &[(&str, &str)]) -> CreateOptions {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    CreateOptions { format, size, backing: None, specific: specific.iter().map(owned).collect() }
}

pub(crate) fn backing(path: &Path, format: &str) -> BackingName {
    BackingName { name: text(path).to_owned(), format: Some(format.to_owned()) }
}

/// Makes an image at `path`, with a backing image that is not in use.
pub(crate) fn make(path: &Path, options: &CreateOptions) {
    unused(path, || create(path, options).and_then(NewImage::finish)).unwrap();
}

pub(crate) fn open(path: &Path, format: Format, writes: bool) -> Image {
    open_as(path, &OpenOptions { format: Some(format), writes, ..OpenOptions::default() }).unwrap()
}

/// Opens an image that is not in use.
pub(crate) fn open_as(path: &Path, options: &OpenOptions) -> Result<Image, Error> {
    unused(path, || Image::open(path, options))
}

/// Calls `act`, again if an image is in use for a moment.
fn unused<T>(path: &Path, act: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    // A process that another test starts holds all locks of this one until it executes its program.
    for _ in 0..200 {
        match act() {
            Err(Error::InUse { .. }) => std::thread::sleep(std::time::Duration::from_millis(10)),
            Err(error @ Error::Create { .. }) if error.to_string().contains("is in use") => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            done => return done,
        }
    }
    panic!("{} stays in use", path.display())
}

/// Returns all bytes of an image.
pub(crate) fn read_all(image: &Image) -> Vec<u8> {
    let mut bytes = vec![0; image.size() as usize];
    image.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// An operation on an image.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Write { offset: u64, len: usize, byte: u8 },
    Zero { offset: u64, len: u64 },
    Discard { offset: u64, len: u64 },
    Read { offset: u64, len: usize },
    Flush,
    Reopen,
}

/// Returns operations on an image of `size` bytes, many of them near the boundaries of clusters.
pub(crate) fn operations(size: u64, count: usize) -> impl Strategy<Value = Vec<Operation>> {
    let offset = prop_oneof![
        0..size,
        (0..size / 512).prop_map(|sector| sector * 512),
        (0..size.div_ceil(65536), 0..3_u64)
            .prop_map(move |(at, beside)| (at * 65536 + beside).saturating_sub(1).min(size - 1)),
    ];
    let len = prop_oneof![
        1..4096_u64,
        (1..400_u64).prop_map(|sectors| sectors * 512),
        Just(65536),
        1..size
    ];
    let operation = (0..12, offset, len, 1..=255_u8).prop_map(move |(kind, offset, len, byte)| {
        let len = len.min(size - offset);
        match kind {
            0..=5 => Operation::Write { offset, len: len as usize, byte },
            6 => Operation::Zero { offset, len },
            7 => Operation::Discard { offset, len },
            8 | 9 => Operation::Read { offset, len: len as usize },
            10 => Operation::Flush,
            _ => Operation::Reopen,
        }
    });
    prop::collection::vec(operation, 1..count)
}

/// Returns bytes that depend on their offset.
pub(crate) fn pattern(offset: u64, len: usize, byte: u8) -> Vec<u8> {
    (offset..offset + len as u64)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 9) as u8 ^ byte)
        .collect()
}

/// Performs the operations on the image and on the model, and compares what they read. `reopen` opens the
/// image again.
pub(crate) fn act(
    mut image: Image,
    model: &mut [u8],
    operations: &[Operation],
    reopen: &dyn Fn() -> Image,
) -> Image {
    for operation in operations {
        match *operation {
            Operation::Write { offset, len, byte } => {
                let bytes = pattern(offset, len, byte);
                image.write_at(&bytes, offset).unwrap();
                model[offset as usize..][..len].copy_from_slice(&bytes);
            }
            Operation::Zero { offset, len } => {
                image.write_zeroes(offset, len).unwrap();
                model[offset as usize..][..len as usize].fill(0);
            }
            Operation::Discard { offset, len } => {
                image.discard(offset, len).unwrap();
                let mut bytes = vec![0; len as usize];
                image.read_at(&mut bytes, offset).unwrap();
                let before = &mut model[offset as usize..][..len as usize];
                for (now, before) in bytes.iter().zip(before) {
                    assert!(
                        *now == 0 || now == before,
                        "what was discarded is neither zeros nor what was there"
                    );
                    *before = *now;
                }
            }
            Operation::Read { offset, len } => {
                let mut bytes = vec![0; len];
                image.read_at(&mut bytes, offset).unwrap();
                assert!(
                    bytes == model[offset as usize..][..len],
                    "{operation:?} reads something else"
                );
            }
            Operation::Flush => image.flush().unwrap(),
            Operation::Reopen => {
                image.close().unwrap();
                image = reopen();
            }
        }
    }
    image
}

/// Tests that the map covers the whole image, and reports zeros only for bytes that read as zeros.
pub(crate) fn check_map(image: &Image) {
    let all = read_all(image);
    let mut offset = 0;
    while offset < image.size() {
        let mapping = image.map(offset, image.size() - offset).unwrap();
        assert_eq!(mapping.start, offset);
        let bytes = &all[offset as usize..(offset + mapping.len) as usize];
        assert!(!mapping.is_zero() || bytes.iter().all(|byte| *byte == 0), "{mapping:?}");
        offset += mapping.len;
    }
    assert_eq!(offset, image.size());
}

/// Tests that QEMU finds the image sound, and reads the contents of the model from it.
pub(crate) fn check_with_qemu(path: &Path, format: Format, model: &[u8], can_check: bool) {
    if can_check {
        qemu_img(&["check", "-q", "-f", format.name(), text(path)]);
    }
    let raw: PathBuf = path.with_extension("model");
    std::fs::write(&raw, model).unwrap();
    qemu_img(&["compare", "-f", format.name(), "-F", "raw", text(path), text(&raw)]);
}
