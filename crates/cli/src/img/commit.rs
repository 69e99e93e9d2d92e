//! `ring3 img commit`.

use std::path::{Path, PathBuf};

use clap::Args;
use ring3_block::{Backing, Format, Image, Kind, OpenOptions, remove_left};

use super::cache::CacheMode;
use super::{Common, print, progress, said};

/// Bytes that are copied at once.
const CHUNK: u64 = 1 << 20;

/// The options of `ring3 img commit`.
#[derive(Debug, Args)]
pub(crate) struct CommitArguments {
    /// The image
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The image's format; by default it is detected
    #[arg(short, long, value_name = "FORMAT")]
    format: Option<Format>,

    /// How the host's cache is used
    #[arg(short = 't', long, value_name = "MODE", default_value = "writeback")]
    cache: CacheMode,

    /// Write into this image further down the chain, together with the images between; the image itself keeps
    /// its contents
    #[arg(short, long, value_name = "FILE")]
    base: Option<PathBuf>,

    /// Keep the contents in the image as well
    #[arg(short = 'd', long)]
    keep: bool,

    /// Show the progress
    #[arg(short, long)]
    progress: bool,

    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn run(arguments: &CommitArguments, common: &Common) -> Result<(), String> {
    remove_left(&arguments.file);
    match &arguments.base {
        Some(base) => into_base(arguments, base, common)?,
        None => into_backing(arguments, common)?,
    }
    if arguments.quiet { Ok(()) } else { print("Image committed.\n") }
}

fn into_backing(arguments: &CommitArguments, common: &Common) -> Result<(), String> {
    // The image is opened without its backing file, which is opened for writing below.
    let options = OpenOptions {
        format: arguments.format,
        writes: !arguments.keep,
        backing: Backing::Ignore,
        ..OpenOptions::default()
    };
    let image = common.open(&arguments.file, &arguments.cache.apply(&options))?;
    let Some(named) = image.backing() else {
        return Err("Image does not have a backing file".to_owned());
    };
    if common.no_external_files {
        return Err(format!(
            "{} names its backing file, {:?}, which --no-external-files forbids to open",
            arguments.file.display(),
            named.name
        ));
    }
    let path = said(named.path(image.path()))?;
    let format = said(named.known_format())?;
    let options = OpenOptions { format, writes: true, ..OpenOptions::default() };
    let base = said(Image::open(&path, &arguments.cache.apply(&options)))?;
    copy(arguments, &image, &base, |image, offset| {
        said(image.extent(offset, CHUNK)).map(|extent| (extent.kind, extent.len))
    })?;
    // The backing file has all data before the image loses them.
    said(base.close())?;
    if !arguments.keep {
        said(image.make_empty())?;
    }
    said(image.close())
}

fn into_base(arguments: &CommitArguments, base: &Path, common: &Common) -> Result<(), String> {
    // The base is opened for reading with the image, and a second time for writing.
    let options = OpenOptions { format: arguments.format, shares: true, ..OpenOptions::default() };
    let image = common.open(&arguments.file, &options)?;
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (mut below, mut depth) = (image.below(), 1);
    let found = loop {
        match below {
            Some(image) if real(image.path()) == real(base) => break image,
            Some(image) => (below, depth) = (image.below(), depth + 1),
            None => {
                return Err(format!(
                    "Did not find '{}' in the backing chain of '{}'",
                    base.display(),
                    arguments.file.display()
                ));
            }
        }
    };
    let options =
        OpenOptions { format: Some(found.format()), writes: true, ..OpenOptions::default() };
    let target = said(Image::open(found.path(), &arguments.cache.apply(&options)))?;
    copy(arguments, &image, &target, |image, offset| {
        let range = said(image.map(offset, CHUNK))?;
        let kind = if range.depth < depth { range.kind } else { Kind::Absent };
        Ok((kind, range.len))
    })?;
    said(target.close())
}

/// Writes into `base` the contents of `image` that `range` selects.
fn copy(
    arguments: &CommitArguments,
    image: &Image,
    base: &Image,
    range: impl Fn(&Image, u64) -> Result<(Kind, u64), String>,
) -> Result<(), String> {
    if base.size() < image.size() {
        said(base.resize(image.size()))?;
    }
    let bar = progress::bar(image.size(), arguments.progress && !arguments.quiet);
    let mut buffer = vec![0; CHUNK as usize];
    let mut offset = 0;
    while offset < image.size() {
        bar.set_position(offset);
        let (kind, len) = range(image, offset)?;
        let bytes = &mut buffer[..len as usize];
        match kind {
            Kind::Absent => {}
            Kind::Zero { .. } => said(base.write_zeroes(offset, len))?,
            Kind::Data { .. } => {
                said(image.read_at(bytes, offset))?;
                said(base.write_at(bytes, offset))?;
            }
        }
        offset += len;
    }
    bar.finish();
    Ok(())
}
