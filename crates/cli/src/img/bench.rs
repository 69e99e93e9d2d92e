//! `ring3 img bench`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use clap::Args;
use ring3_block::{Format, Image, OpenOptions};

use super::cache::CacheMode;
use super::{Common, print, said, size};

/// Upper bound of the requests at a time; each has a thread.
const DEPTH_MAX: u64 = 64;
/// Bytes of the largest request.
const SIZE_MAX: u64 = 64 << 20;

/// The options of `ring3 img bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// The number of requests
    #[arg(short, long, value_name = "COUNT", default_value_t = 75_000)]
    count: u64,

    /// The number of requests at a time
    #[arg(short, long, value_name = "COUNT", default_value_t = 64)]
    depth: u64,

    /// The image's format; by default it is detected
    #[arg(short, long, value_name = "FORMAT")]
    format: Option<Format>,

    /// Flush after each COUNT writes; 0 for no flushes
    #[arg(long, value_name = "COUNT", default_value_t = 0, requires = "write")]
    flush_interval: u64,

    /// The offset of the first request
    #[arg(short, long, value_name = "OFFSET", value_parser = size, default_value = "0")]
    offset: u64,

    /// The byte that is written
    #[arg(long, value_name = "BYTE", default_value_t = 0)]
    pattern: u8,

    /// Bytes of a request
    #[arg(short = 's', long, value_name = "SIZE", value_parser = size, default_value = "4k")]
    buffer_size: u64,

    /// The distance from one request to the next; by default the size of a request
    #[arg(short = 'S', long, value_name = "SIZE", value_parser = size)]
    step_size: Option<u64>,

    /// How the host's cache is used
    #[arg(short = 't', long, value_name = "MODE", default_value = "writeback")]
    cache: CacheMode,

    /// Use the host's own asynchronous requests; accepted without effect
    #[arg(short, long)]
    native: bool,

    /// How requests reach the host; accepted without effect
    #[arg(short = 'i', long, value_name = "MODE")]
    aio: Option<String>,

    /// Write instead of read: the image's contents are lost
    #[arg(short, long)]
    write: bool,

    /// Let flushes run beside requests; accepted without effect
    #[arg(long)]
    no_drain: bool,

    /// Print errors only
    #[arg(short, long)]
    quiet: bool,

    /// Open the image even if another process writes to it
    #[arg(short = 'U', long)]
    force_share: bool,

    /// The image
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(arguments: &BenchArguments, common: &Common) -> Result<(), String> {
    let (format, writes) = (arguments.format, arguments.write);
    let shares = arguments.force_share && !writes;
    let options = OpenOptions { format, writes, shares, ..OpenOptions::default() };
    let image = common.open(&arguments.file, &arguments.cache.apply(&options))?;
    let len = arguments.buffer_size;
    if len == 0 || len > SIZE_MAX || len > image.size() {
        return Err(format!("Invalid buffer size specified: 1 to {}", SIZE_MAX.min(image.size())));
    }
    let step = arguments.step_size.unwrap_or(len);
    let depth = arguments.depth.clamp(1, DEPTH_MAX);
    if !arguments.quiet {
        let kind = if writes { "write" } else { "read" };
        print(&format!(
            "Sending {} {kind} requests, {len} bytes each, {depth} in parallel (starting at offset {}, step size {step})\n",
            arguments.count, arguments.offset
        ))?;
    }
    let start = Instant::now();
    let next = AtomicU64::new(0);
    let ended: Result<(), String> = thread::scope(|scope| {
        let work = || requests(arguments, &image, &next, step);
        let start = |_| thread::Builder::new().spawn_scoped(scope, work);
        let workers: Result<Vec<_>, _> = (0..depth).map(start).collect();
        let workers = workers.map_err(|error| {
            format!("the host starts no {depth} threads: {error}; give a smaller depth (-d)")
        })?;
        let died = || Err("a thread has failed".to_owned());
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| died()))
            .fold(Ok(()), Result::and)
    });
    ended?;
    said(image.close())?;
    if arguments.quiet {
        return Ok(());
    }
    print(&format!("Run completed in {:.3} seconds.\n", start.elapsed().as_secs_f64()))
}

/// Executes requests until all are done.
fn requests(
    arguments: &BenchArguments,
    image: &Image,
    next: &AtomicU64,
    step: u64,
) -> Result<(), String> {
    let mut buffer = vec![arguments.pattern; arguments.buffer_size as usize];
    // A request that would go beyond the disk's end wraps around to its start.
    let places = image.size() - arguments.buffer_size + 1;
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= arguments.count {
            return Ok(());
        }
        let offset = arguments.offset.wrapping_add(index.wrapping_mul(step)) % places;
        if arguments.write {
            said(image.write_at(&buffer, offset))?;
            let interval = arguments.flush_interval;
            if interval > 0 && (index + 1).is_multiple_of(interval) {
                said(image.flush())?;
            }
        } else {
            said(image.read_at(&mut buffer, offset))?;
        }
    }
}
