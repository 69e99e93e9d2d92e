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

/// What `ring3 img compare` is told.
#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// The format of the first one; if not given, it is found out
    #[arg(short, long, value_name = "FORMAT")]
    format: Option<Format>,

    /// The format of the second one
    #[arg(short = 'F', long, value_name = "FORMAT")]
    second_format: Option<Format>,

    /// Sizes must be the same too; else what is behind the shorter one must be zeros
    #[arg(short, long)]
    strict: bool,

    /// Show how far it is
    #[arg(short, long)]
    progress: bool,

    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,

    /// How the host's cache is used
    #[arg(short = 'T', long, value_name = "MODE", default_value = "writeback")]
    source_cache: CacheMode,

    /// Open them even if another process writes to them
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

/// Where the first sector begins in which the images differ; behind the end of one all is zeros.
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
            // As in qemu-img, the sector that differs.
            return Ok(at.map(|at| offset + at as u64 / SECTOR * SECTOR));
        }
        offset += len as u64;
    }
    bar.finish();
    Ok(None)
}

/// How many bytes from `offset` on are known to be zeros; none where there are data.
fn zeros_at(image: &Image, offset: u64, end: u64) -> Result<Option<u64>, String> {
    if offset >= image.size() {
        return Ok(Some(end - offset));
    }
    let range = said(image.map(offset, image.size() - offset))?;
    Ok(range.is_zero().then_some(range.len))
}
