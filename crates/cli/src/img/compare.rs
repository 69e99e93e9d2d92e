//! `ring3 img compare`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ring3_block::{Format, Image, OpenOptions};

use super::cache::CacheMode;
use super::{Common, print, progress, read_padded, said};

/// Bytes that are compared at once.
const CHUNK: u64 = 1 << 20;
/// Bytes of a sector.
const SECTOR: u64 = 512;

/// The options of `ring3 img compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// The format of the first image; by default it is detected
    #[arg(short, long, value_name = "FORMAT")]
    format: Option<Format>,

    /// The format of the second image; by default it is detected
    #[arg(short = 'F', long, value_name = "FORMAT")]
    second_format: Option<Format>,

    /// Compare the sizes, too; without this option, zeros make up for the end of the shorter image
    #[arg(short, long)]
    strict: bool,

    /// Show the progress
    #[arg(short, long)]
    progress: bool,

    /// Print errors only
    #[arg(short, long)]
    quiet: bool,

    /// How the host's cache is used
    #[arg(short = 'T', long, value_name = "MODE", default_value = "writeback")]
    source_cache: CacheMode,

    /// Open the images even if another process writes to them
    #[arg(short = 'U', long)]
    force_share: bool,

    /// The first image
    #[arg(value_name = "FIRST")]
    first: PathBuf,

    /// The second image
    #[arg(value_name = "SECOND")]
    second: PathBuf,
}

pub(super) fn run(arguments: &CompareArguments, common: &Common) -> Result<ExitCode, String> {
    let open = |path, format| {
        let shares = arguments.force_share;
        let options = OpenOptions { format, shares, ..OpenOptions::default() };
        common.open(path, &arguments.source_cache.apply(&options))
    };
    let first = open(&arguments.first, arguments.format)?;
    let second = open(&arguments.second, arguments.second_format)?;
    let say = |text: &str| if arguments.quiet { Ok(()) } else { print(text) };
    if first.size() != second.size() {
        if arguments.strict {
            say("Strict mode: Image size mismatch!\n")?;
            return Ok(ExitCode::from(1));
        }
        say("Warning: Image size mismatch!\n")?;
    }
    match difference(&first, &second, arguments.progress)? {
        None => say("Images are identical.\n").map(|()| ExitCode::SUCCESS),
        Some(at) => say(&format!("Content mismatch at offset {at}!\n")).map(|()| ExitCode::from(1)),
    }
}

/// Returns the offset of the first sector in which the images differ. Bytes beyond the end of an image are
/// zeros.
fn difference(first: &Image, second: &Image, shown: bool) -> Result<Option<u64>, String> {
    let end = first.size().max(second.size());
    let bar = progress::bar(end, shown);
    let mut offset = 0;
    let mut buffers = [vec![0; CHUNK as usize], vec![0; CHUNK as usize]];
    while offset < end {
        bar.set_position(offset);
        let ranges = [zeros_at(first, offset, end)?, zeros_at(second, offset, end)?];
        if let [Some(one), Some(other)] = ranges {
            offset += one.min(other);
            continue;
        }
        let len = (end - offset).min(CHUNK) as usize;
        for (image, buffer) in [first, second].into_iter().zip(&mut buffers) {
            read_padded(image, &mut buffer[..len], offset)?;
        }
        let [one, other] = &buffers;
        if one[..len] != other[..len] {
            let at = one.iter().zip(other).position(|(one, other)| one != other);
            // qemu-img, too, reports the sector.
            return Ok(at.map(|at| offset + at as u64 / SECTOR * SECTOR));
        }
        offset += len as u64;
    }
    bar.finish();
    Ok(None)
}

/// Returns the number of bytes from `offset` on that are known to be zeros, or None if there are data.
fn zeros_at(image: &Image, offset: u64, end: u64) -> Result<Option<u64>, String> {
    if offset >= image.size() {
        return Ok(Some(end - offset));
    }
    let range = said(image.map(offset, image.size() - offset))?;
    Ok(range.is_zero().then_some(range.len))
}
