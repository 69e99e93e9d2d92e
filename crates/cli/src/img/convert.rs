//! `ring3 img convert`.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use clap::Args;
use ring3_block::{
    CreateOptions, Format, Image, ImageSpec, NewImage, OpenOptions, create, remove_left,
};

use super::cache::CacheMode;
use super::{
    Common, backing, differences, options_help, parsed, print, progress, read_padded, said, size,
    specific, take,
};
use crate::qemu::properties::Properties;

/// Bytes that are copied at once: at least the largest cluster.
const CHUNK: u64 = 2 << 20;
/// Bytes that are read at a time where a larger read fails.
const SECTOR: usize = 512;

/// The options of `ring3 img convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArguments {
    /// The image, or several images that are copied one after the other, and finally the new image. An
    /// existing image of that name is replaced when the new one is complete, except with -n
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The format of the images that are copied; by default it is detected
    #[arg(short, long, value_name = "FORMAT")]
    format: Option<Format>,

    /// Open them even if another process writes to them; their parts may then date from different moments
    #[arg(short = 'U', long)]
    force_share: bool,

    /// How the host's cache is used for the new image
    #[arg(short = 't', long, value_name = "MODE", default_value = "writeback")]
    cache: CacheMode,

    /// How the host's cache is used for the images that are copied
    #[arg(short = 'T', long, value_name = "MODE", default_value = "writeback")]
    source_cache: CacheMode,

    /// Take the existing image (-n) as a list of options
    #[arg(long, requires = "no_create")]
    target_image_opts: bool,

    /// Copy at most this many bytes a second
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    rate_limit: Option<u64>,

    /// Copy zeros in place of data that cannot be read, with a warning for each place (none with -q)
    #[arg(long)]
    salvage: bool,

    /// Let the host copy; accepted without effect
    #[arg(short = 'C')]
    offload: bool,

    /// The format of the new image
    #[arg(short = 'O', long, value_name = "FORMAT", default_value = "raw")]
    output_format: Format,

    /// Options of the format: name=value,...
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// Compress the new image
    #[arg(short, long)]
    compress: bool,

    /// The backing file of the new image, by the name that the new image is to keep; only differences from it
    /// are copied
    #[arg(short = 'B', long, visible_short_alias = 'b', value_name = "FILE")]
    backing: Option<String>,

    /// The format of the backing file
    #[arg(short = 'F', long, value_name = "FORMAT", requires = "backing")]
    backing_format: Option<Format>,

    /// Leave out runs of zeros of at least this size; 0 to write all zeros
    #[arg(short = 'S', long, value_name = "SIZE", value_parser = size, default_value = "4k")]
    sparse_size: u64,

    /// Write into the existing image instead of a new one, and only what differs from its contents
    #[arg(short = 'n', long, conflicts_with_all = ["options", "backing", "compress"])]
    no_create: bool,

    /// Assume that the existing image contains only zeros, and do not read it
    #[arg(long, requires = "no_create")]
    target_is_zero: bool,

    /// Copy the disk as it was in this snapshot, by name or id
    #[arg(short = 'l', long, value_name = "SNAPSHOT")]
    snapshot: Option<String>,

    /// Write out of order: copy several parts (-m) at a time
    #[arg(short = 'W', long)]
    out_of_order: bool,

    /// The number of parts that -W copies at a time
    #[arg(short = 'm', long, value_name = "COUNT", default_value = "8")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=16))]
    coroutines: u8,

    /// Show the progress
    #[arg(short, long)]
    progress: bool,

    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn run(arguments: &ConvertArguments, common: &Common) -> Result<(), String> {
    if options_help::is_asked(&arguments.options) {
        return print(&options_help::text(arguments.output_format));
    }
    let Some((target_name, files)) =
        arguments.files.split_last().filter(|(_, files)| !files.is_empty())
    else {
        return Err("Must specify image file name: give the names of an image and of the new one"
            .to_owned());
    };
    let source = Sources::open(arguments, files, common)?;
    let (new, target) = if arguments.no_create {
        (None, present(arguments, target_name, source.size(), common)?)
    } else {
        let (new, target) = made(arguments, target_name, source.size(), common)?;
        (Some(new), target)
    };
    let shows_through =
        target.backing().is_some() || new.as_ref().is_none_or(NewImage::is_in_place);
    let copy = Copy {
        source: &source,
        target: &target,
        // Contents that exist already remain visible where nothing is written.
        compares: shows_through && !arguments.target_is_zero,
        sparse: arguments.sparse_size,
        salvages: arguments.salvage.then_some(Salvage { is_quiet: arguments.quiet }),
        cluster: if arguments.compress { target.details().cluster_size } else { None },
        rate: arguments.rate_limit.filter(|rate| *rate > 0),
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
    bar.finish();
    said(target.close())?;
    new.map_or(Ok(()), |new| said(new.finish()))
}

/// The images that are copied, one after the other.
struct Sources {
    /// Each image with the offset at which it begins.
    images: Vec<(u64, Image)>,
    size: u64,
}

impl Sources {
    fn open(
        arguments: &ConvertArguments,
        files: &[PathBuf],
        common: &Common,
    ) -> Result<Sources, String> {
        let mut sources = Sources { images: Vec::new(), size: 0 };
        for file in files {
            let (format, shares) = (arguments.format, arguments.force_share);
            let options = OpenOptions { format, shares, ..OpenOptions::default() };
            let image = common.open(file, &arguments.source_cache.apply(&options))?;
            if let Some(snapshot) = &arguments.snapshot {
                said(image.show_snapshot(snapshot_name(snapshot)))?;
            }
            let (start, size) = (sources.size, image.size());
            let end = start.checked_add(size).filter(|end| i64::try_from(*end).is_ok());
            sources.size = end.ok_or("the images together are too large")?;
            sources.images.push((start, image));
        }
        Ok(sources)
    }

    fn size(&self) -> u64 {
        self.size
    }

    /// Returns the image that contains byte `offset`, and the byte's offset in it.
    fn at(&self, offset: u64) -> (&Image, u64) {
        let index = self.images.partition_point(|(start, _)| *start <= offset);
        let (start, image) = &self.images[index.saturating_sub(1)];
        (image, offset - start)
    }

    /// Returns whether the bytes from `offset` on are known to be zeros, and how many of them.
    fn zeros(&self, offset: u64) -> Result<(bool, u64), String> {
        let (image, at) = self.at(offset);
        let range = said(image.map(at, image.size() - at))?;
        Ok((range.is_zero(), range.len))
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), String> {
        let mut done = 0;
        while done < bytes.len() {
            let (image, at) = self.at(offset + done as u64);
            let len = (image.size() - at).min((bytes.len() - done) as u64) as usize;
            said(image.read_at(&mut bytes[done..done + len], at))?;
            done += len;
        }
        Ok(())
    }
}

/// Returns the name or id of the snapshot, which may be written alone or as qemu-img does,
/// `snapshot.name=NAME`.
pub(super) fn snapshot_name(text: &str) -> &str {
    let named = text.strip_prefix("snapshot.name=").or_else(|| text.strip_prefix("snapshot.id="));
    named.unwrap_or(text)
}

/// Creates the target for `size` bytes.
fn made(
    arguments: &ConvertArguments,
    target: &Path,
    size: u64,
    common: &Common,
) -> Result<(NewImage, Image), String> {
    let mut specific = specific(&arguments.options)?;
    let base = take(&mut specific, "backing_file").or_else(|| arguments.backing.clone());
    let base_format =
        take(&mut specific, "backing_fmt").map(|format| parsed(&format)).transpose()?;
    let base_format = base_format.or(arguments.backing_format);
    let named = base.as_deref();
    let named = named.map(|base| backing(target, base, base_format, common)).transpose()?;
    if arguments.compress
        && specific.iter().any(|(name, value)| name == "preallocation" && value != "off")
    {
        return Err("Compression and preallocation not supported at the same time: leave out -c, or preallocation".to_owned());
    }
    if named.is_some() && arguments.compress {
        return Err(
            "an image with a backing file cannot be written compressed; leave out -c or -B"
                .to_owned(),
        );
    }
    let options = CreateOptions {
        format: arguments.output_format,
        size,
        backing: named.map(|(name, _)| name),
        specific,
    };
    let new = said(create(target, &options))?;
    let target = OpenOptions {
        format: Some(arguments.output_format),
        writes: true,
        ..OpenOptions::default()
    };
    let target = said(new.open(&target))?;
    Ok((new, target))
}

/// Opens the existing target, which must have room for `size` bytes.
fn present(
    arguments: &ConvertArguments,
    target: &Path,
    size: u64,
    common: &Common,
) -> Result<Image, String> {
    let format = Some(arguments.output_format);
    let options = OpenOptions { format, writes: true, ..OpenOptions::default() };
    remove_left(target);
    let options = arguments.cache.apply(&options);
    let target = if arguments.target_image_opts && !common.image_opts {
        let spec = ImageSpec::of_pairs(Properties::parse(&target.to_string_lossy(), None).iter());
        let spec = said(spec)?;
        said(Image::open(&spec.path, &spec.options(&options)))?
    } else {
        said(Image::open(target, &options))?
    };
    if target.size() < size {
        return Err(format!(
            "Output file is smaller than input file: it has {} bytes, but needs {size}; ring3 img resize makes it larger",
            target.size()
        ));
    }
    Ok(target)
}

/// Calls `work` in `count` threads, or in those that the host lets it start beside this one. Returns the first error, if
/// there is one.
fn in_threads(count: usize, work: impl Fn() -> Result<(), String> + Sync) -> Result<(), String> {
    thread::scope(|scope| {
        let start = |_| thread::Builder::new().spawn_scoped(scope, &work).ok();
        let workers: Vec<_> = (1..count).map_while(start).collect();
        let own = work();
        let died = || Err("a thread that copies has failed".to_owned());
        let ended = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| died()));
        // This waits for all of them.
        ended.fold(own, Result::and)
    })
}

/// Keeps all threads from copying more.
fn stop(next: &Mutex<u64>) {
    *next.lock().unwrap_or_else(PoisonError::into_inner) = u64::MAX;
}

/// Reads all readable sectors of damaged images.
#[derive(Clone, Copy)]
struct Salvage {
    is_quiet: bool,
}

impl Salvage {
    /// Reads all of `bytes`, sector by sector if they cannot be read together. Sectors that cannot be read
    /// become zeros.
    fn read(self, source: &Sources, bytes: &mut [u8], offset: u64) {
        if source.read(bytes, offset).is_ok() {
            return;
        }
        // The start of the present run of unreadable sectors, and the error.
        let mut lost: Option<(u64, String)> = None;
        for (sector, at) in bytes.chunks_mut(SECTOR).zip((offset..).step_by(SECTOR)) {
            match source.read(sector, at) {
                Ok(()) => self.warn(lost.take(), at),
                Err(error) => {
                    sector.fill(0);
                    lost.get_or_insert((at, error));
                }
            }
        }
        self.warn(lost, offset + bytes.len() as u64);
    }

    /// Warns about a run of unreadable bytes up to `end`.
    fn warn(self, lost: Option<(u64, String)>, end: u64) {
        if let Some((at, error)) = lost
            && !self.is_quiet
        {
            let len = end - at;
            crate::complain(&format!(
                "warning: {len} bytes at {at} cannot be read and become zeros: {error}"
            ));
        }
    }
}

struct Copy<'a> {
    source: &'a Sources,
    target: &'a Image,
    /// Whether the target has contents, so that only differences are written.
    compares: bool,
    sparse: u64,
    /// Reads zeros where data cannot be read.
    salvages: Option<Salvage>,
    /// Bytes a second.
    rate: Option<u64>,
    /// The size of clusters, if they are written compressed.
    cluster: Option<u64>,
}

impl Copy<'_> {
    /// Returns the offset and length of the next part to copy from `next` on, or None at the end.
    fn next(&self, next: &Mutex<u64>) -> Result<Option<(u64, u64)>, String> {
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        while *next < self.source.size() {
            let (offset, left) = (*next, self.source.size() - *next);
            let (is_zero, len) = self.zeros(offset, left)?;
            let is_left_out = is_zero && !self.compares && self.sparse > 0;
            // Only whole chunks are left out, so that clusters are not split.
            let zeros = if len == left { left } else { len / CHUNK * CHUNK };
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

    /// Returns whether the bytes from `offset` on are known to be zeros, and how many of them.
    fn zeros(&self, offset: u64, left: u64) -> Result<(bool, u64), String> {
        match self.source.zeros(offset) {
            // The image cannot tell, so the bytes are read.
            Err(_) if self.salvages.is_some() => Ok((false, left.min(CHUNK))),
            known => known,
        }
    }

    /// Copies `len` bytes at `offset`.
    fn copy(&self, offset: u64, len: u64) -> Result<(), String> {
        let mut bytes = vec![0; len as usize];
        match self.salvages {
            None => self.source.read(&mut bytes, offset)?,
            Some(salvage) => salvage.read(self.source, &mut bytes, offset),
        }
        if let Some(rate) = self.rate {
            thread::sleep(Duration::from_nanos(len.saturating_mul(1_000_000_000) / rate));
        }
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

    /// Compresses clusters on all processors. They may follow each other in the file in any order.
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

/// Returns the ranges with data, in pieces of `grain` bytes, without pieces of zeros.
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
