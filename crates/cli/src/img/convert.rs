//! `ring3 img convert`.

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;

use clap::Args;
use ring3_block::{CreateOptions, Format, Image, NewImage, OpenOptions, create, remove_left};

use super::{Common, Source, backing, differences, progress, read_padded, said, size, specific};

/// Bytes that are copied at once: no less than the largest cluster.
const CHUNK: u64 = 2 << 20;

/// What `ring3 img convert` is told.
#[derive(Debug, Args)]
pub(crate) struct ConvertArguments {
    #[command(flatten)]
    source: Source,

    /// The new image; an image of that name is replaced when the new one is whole, but with -n
    #[arg(value_name = "NEW")]
    target: PathBuf,

    /// The format of the new image
    #[arg(short = 'O', long, value_name = "FORMAT", default_value = "raw")]
    output_format: Format,

    /// What only this format has: name=value,...
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// Compress it
    #[arg(short, long)]
    compress: bool,

    /// The image on which the new one stands, which gets only what differs: its name as the new image is to say it
    #[arg(short = 'B', long, visible_short_alias = 'b', value_name = "FILE")]
    backing: Option<String>,

    /// The format of that
    #[arg(short = 'F', long, value_name = "FORMAT", requires = "backing")]
    backing_format: Option<Format>,

    /// Zeros take no room where so many are in a row; 0 to write all zeros
    #[arg(short = 'S', long, value_name = "SIZE", value_parser = size, default_value = "4k")]
    sparse_size: u64,

    /// Write into the image that is there, which is not made anew, and get only what differs
    #[arg(short = 'n', long, conflicts_with_all = ["options", "backing", "compress"])]
    no_create: bool,

    /// What is in that image is zeros, and needs not be looked at
    #[arg(long, requires = "no_create")]
    target_is_zero: bool,

    /// Copy the disk as it was in this snapshot; a name or an id
    #[arg(short = 'l', long, value_name = "SNAPSHOT")]
    snapshot: Option<String>,

    /// Write in any order: so many parts (-m) are copied side by side
    #[arg(short = 'W', long)]
    out_of_order: bool,

    /// How many parts are copied side by side with -W
    #[arg(short = 'm', long, value_name = "COUNT", default_value = "8")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=16))]
    coroutines: u8,

    /// Show how far it is
    #[arg(short, long)]
    progress: bool,

    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn run(arguments: &ConvertArguments, common: &Common) -> Result<(), String> {
    let source = arguments.source.open(common)?;
    if let Some(snapshot) = &arguments.snapshot {
        said(source.show_snapshot(snapshot_name(snapshot)))?;
    }
    let (new, target) = if arguments.no_create {
        (None, present(arguments, source.size(), common)?)
    } else {
        let (new, target) = made(arguments, source.size(), common)?;
        (Some(new), target)
    };
    let shows_through =
        arguments.backing.is_some() || new.as_ref().is_none_or(NewImage::is_in_place);
    let copy = Copy {
        source: &source,
        target: &target,
        // What is there already shows through where nothing is written.
        compares: shows_through && !arguments.target_is_zero,
        sparse: arguments.sparse_size,
        cluster: if arguments.compress { target.details().cluster_size } else { None },
    };
    if arguments.compress && copy.cluster.is_none() {
        return Err(format!("{} images cannot be compressed", arguments.output_format));
    }
    let bar = progress::bar(source.size(), arguments.progress && !arguments.quiet);
    let next = Mutex::new(0);
    let work = || {
        while let Some((offset, len)) = copy.next(&next)? {
            bar.set_position(offset);
            copy.copy(offset, len).inspect_err(|_| stop(&next))?;
        }
        Ok(())
    };
    // Compression has threads of its own.
    let side_by_side = arguments.out_of_order && copy.cluster.is_none();
    in_threads(if side_by_side { arguments.coroutines.into() } else { 1 }, work)?;
    bar.finish_and_clear();
    said(target.close())?;
    new.map_or(Ok(()), |new| said(new.finish()))
}

/// The snapshot that is meant: its name or id alone, or in the manner of qemu-img, `snapshot.name=NAME`.
fn snapshot_name(text: &str) -> &str {
    let named = text.strip_prefix("snapshot.name=").or_else(|| text.strip_prefix("snapshot.id="));
    named.unwrap_or(text)
}

/// Makes the target, for `size` bytes.
fn made(
    arguments: &ConvertArguments,
    size: u64,
    common: &Common,
) -> Result<(NewImage, Image), String> {
    let named = arguments.backing.as_deref();
    let named = named
        .map(|base| backing(&arguments.target, base, arguments.backing_format, common))
        .transpose()?;
    if named.is_some() && arguments.compress {
        return Err(
            "an image with a backing file is not written compressed; leave out -c or -B".to_owned()
        );
    }
    let options = CreateOptions {
        format: arguments.output_format,
        size,
        backing: named.map(|(name, _)| name),
        specific: specific(&arguments.options)?,
    };
    let new = said(create(&arguments.target, &options))?;
    let target = OpenOptions {
        format: Some(arguments.output_format),
        writes: true,
        ..OpenOptions::default()
    };
    let target = said(new.open(&target))?;
    Ok((new, target))
}

/// Opens the target, which is there and is to have room for `size` bytes.
fn present(arguments: &ConvertArguments, size: u64, common: &Common) -> Result<Image, String> {
    let format = Some(arguments.output_format);
    let options = OpenOptions { format, writes: true, ..OpenOptions::default() };
    remove_left(&arguments.target);
    let target = common.open(&arguments.target, &options)?;
    if target.size() < size {
        return Err(format!(
            "{} has {} bytes, and {size} are needed; ring3 img resize makes it larger",
            arguments.target.display(),
            target.size()
        ));
    }
    Ok(target)
}

/// Lets so many threads do `work`; the first error, if there is one.
fn in_threads(count: usize, work: impl Fn() -> Result<(), String> + Sync) -> Result<(), String> {
    thread::scope(|scope| {
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(&work)).collect();
        let died = || Err("a thread that copies has ended".to_owned());
        let ended = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| died()));
        // All of them are waited for.
        ended.fold(Ok(()), Result::and)
    })
}

/// Lets nothing be copied any more.
fn stop(next: &Mutex<u64>) {
    *next.lock().unwrap_or_else(PoisonError::into_inner) = u64::MAX;
}

struct Copy<'a> {
    source: &'a Image,
    target: &'a Image,
    /// The target has contents, and gets what differs.
    compares: bool,
    sparse: u64,
    /// Clusters are written compressed.
    cluster: Option<u64>,
}

impl Copy<'_> {
    /// What is to be copied next, from `next` on: where, and how many bytes. Nothing at the end.
    fn next(&self, next: &Mutex<u64>) -> Result<Option<(u64, u64)>, String> {
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        while *next < self.source.size() {
            let (offset, left) = (*next, self.source.size() - *next);
            let range = said(self.source.map(offset, left))?;
            let is_left_out = range.is_zero() && !self.compares && self.sparse > 0;
            // Whole chunks only, so that clusters stay together.
            let zeros = if range.len == left { left } else { range.len / CHUNK * CHUNK };
            if is_left_out && zeros > 0 {
                *next += zeros;
                continue;
            }
            let len = left.min(CHUNK);
            *next += len;
            return Ok(Some((offset, len)));
        }
        Ok(None)
    }

    /// Copies these bytes.
    fn copy(&self, offset: u64, len: u64) -> Result<(), String> {
        let mut bytes = vec![0; len as usize];
        said(self.source.read_at(&mut bytes, offset))?;
        if self.compares {
            self.write_differences(&bytes, offset)?;
        } else if let Some(cluster) = self.cluster {
            self.write_compressed(&bytes, offset, cluster)?;
        } else if self.sparse == 0 {
            said(self.target.write_at(&bytes, offset))?;
        } else {
            for (start, end) in data_runs(&bytes, self.sparse.next_multiple_of(512)) {
                said(self.target.write_at(&bytes[start..end], offset + start as u64))?;
            }
        }
        Ok(())
    }

    /// Compresses clusters on all processors; in which order they come in the file does not matter.
    fn write_compressed(&self, bytes: &[u8], offset: u64, cluster: u64) -> Result<(), String> {
        let parts = bytes.chunks(cluster as usize).zip((offset..).step_by(cluster as usize));
        let parts = Mutex::new(parts.filter(|(part, _)| self.sparse == 0 || !is_zero(part)));
        let work = || loop {
            let next = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((part, at)) = next else { return Ok(()) };
            said(self.target.write_compressed(part, at))?;
        };
        in_threads(thread::available_parallelism().map_or(1, NonZero::get), work)
    }

    fn write_differences(&self, bytes: &[u8], offset: u64) -> Result<(), String> {
        let mut there = vec![0; bytes.len()];
        read_padded(self.target, &mut there, offset)?;
        for (at, new) in differences(bytes, &there) {
            if is_zero(new) {
                said(self.target.write_zeroes(offset + at, new.len() as u64))?;
            } else {
                said(self.target.write_at(new, offset + at))?;
            }
        }
        Ok(())
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Where data begin and end, by pieces of `grain` bytes, without pieces that are zeros.
fn data_runs(bytes: &[u8], grain: u64) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let grain = grain as usize;
    for (index, piece) in bytes.chunks(grain).enumerate() {
        let (start, end) = (index * grain, index * grain + piece.len());
        if is_zero(piece) {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => runs.push((start, end)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_left_out() {
        let mut bytes = vec![0; 10_000];
        bytes[600] = 1;
        bytes[1024] = 1;
        bytes[9_999] = 1;
        assert_eq!(data_runs(&bytes, 512), [(512, 1536), (9728, 10_000)]);
        assert_eq!(data_runs(&bytes, 4096), [(0, 4096), (8192, 10_000)]);
        assert_eq!(data_runs(&[0; 100], 512), []);
    }
}
