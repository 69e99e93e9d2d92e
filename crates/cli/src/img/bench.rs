//! `ring3 img bench`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use clap::Args;
use ring3_block::{Format, Image, OpenOptions};

use super::cache::CacheMode;
use super::{Common, print, said, size};

/// The most requests side by side: each has a thread.
const DEPTH_MAX: u64 = 64;
/// Bytes of the largest request.
const SIZE_MAX: u64 = 64 << 20;

/// What `ring3 img bench` is told.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// How many requests
    #[arg(short, long, value_name = "COUNT", default_value_t = 75_000)]
    count: u64,

    /// How many of them side by side
    #[arg(short, long, value_name = "COUNT", default_value_t = 64)]
    depth: u64,

    /// The format; if not given, it is found out
    #[arg(short, long, value_name = "FORMAT")]
    format: Option<Format>,

    /// A flush after so many writes; 0 for none
    #[arg(long, value_name = "COUNT", default_value_t = 0, requires = "write")]
    flush_interval: u64,

    /// Where the first request begins
    #[arg(short, long, value_name = "OFFSET", value_parser = size, default_value = "0")]
    offset: u64,

    /// The byte that is written
    #[arg(long, value_name = "BYTE", default_value_t = 0)]
    pattern: u8,

    /// Bytes of a request
    #[arg(short = 's', long, value_name = "SIZE", value_parser = size, default_value = "4k")]
    buffer_size: u64,

    /// From one request to the next; a request if not given
    #[arg(short = 'S', long, value_name = "SIZE", value_parser = size)]
    step_size: Option<u64>,

    /// How the host's cache is used
    #[arg(short = 't', long, value_name = "MODE", default_value = "writeback")]
    cache: CacheMode,

    /// Use the host's own asynchronous requests, which makes no difference here
    #[arg(short, long)]
    native: bool,

    /// How requests reach the host, which makes no difference here
    #[arg(short = 'i', long, value_name = "MODE")]
    aio: Option<String>,

    /// Write: what was there is lost
    #[arg(short, long)]
    write: bool,

    /// Let flushes run beside requests, which makes no difference here
    #[arg(long)]
    no_drain: bool,

    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,

    /// Open it even if another process writes to it
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
        let workers: Vec<_> = (0..depth).map(|_| scope.spawn(work)).collect();
        let died = || Err("a thread has ended".to_owned());
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

/// Does requests until there are no more.
fn requests(
    arguments: &BenchArguments,
    image: &Image,
    next: &AtomicU64,
    step: u64,
) -> Result<(), String> {
    let mut buffer = vec![arguments.pattern; arguments.buffer_size as usize];
    // A request that would leave the disk begins at its start again.
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
