//! Measures reads of an nbdkit export whose disk is in memory: one after another, and by 16 threads.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ring3_block::{Format, Image, OpenOptions};

/// The number of reads that warm up.
const READS: u32 = 10_000;

/// Reads `count` pieces of `bytes` by `threads`.
fn read(image: &Image, threads: u64, bytes: usize, count: u64) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut piece = vec![0; bytes];
                for index in 0..count.div_ceil(threads) {
                    let at = (index * 61 + thread * 977) % 256 * bytes as u64;
                    image.read_at(&mut piece, at).expect("the export is read");
                }
            });
        }
    });
    start.elapsed()
}

fn main() {
    let directory = tempfile::tempdir().expect("a directory for the socket");
    let socket = directory.path().join("socket");
    let mut server = Command::new("nbdkit")
        .args(["--exit-with-parent", "-f", "-U"])
        .arg(&socket)
        .args(["memory", "64M"])
        .stdout(Stdio::null())
        .spawn()
        .expect("nbdkit runs: Debian package nbdkit");
    let address = format!("nbd+unix:///?socket={}", socket.display());
    let options = OpenOptions { format: Some(Format::Raw), writes: true, ..OpenOptions::default() };
    let image = loop {
        match Image::open(Path::new(&address), &options) {
            Ok(image) => break image,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    image.write_at(&vec![1; 64 << 20], 0).expect("the export is written");
    for bytes in [4_u32 << 10, 64 << 10] {
        for threads in [1, 16] {
            // Two seconds or so, after a warm-up.
            let warm_up = read(&image, threads, bytes as usize, READS.into());
            let count = READS * (2.0 / warm_up.as_secs_f64()).ceil() as u32;
            let took = read(&image, threads, bytes as usize, count.into()).as_secs_f64();
            let rate = f64::from(count) * f64::from(bytes) / took / f64::from(1 << 20);
            println!("reads of {} KiB by {threads} threads: {rate:.0} MiB/s", bytes >> 10);
        }
    }
    drop(image);
    // The server has no data to lose, so it may be killed.
    let _ = server.kill();
    let _ = server.wait();
}
