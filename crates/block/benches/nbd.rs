//! Measures reads of an nbdkit export whose disk is in memory: one after another, and by 16 threads.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ring3_block::{Format, Image, OpenOptions};

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

fn nbd(criterion: &mut Criterion) {
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
    let mut group = criterion.benchmark_group("nbd");
    for bytes in [4 << 10, 64 << 10] {
        group.throughput(Throughput::Bytes(bytes as u64));
        for threads in [1, 16] {
            let id = BenchmarkId::new(format!("read {} KiB", bytes >> 10), threads);
            group.bench_function(id, |bencher| {
                bencher.iter_custom(|count| read(&image, threads, bytes, count));
            });
        }
    }
    group.finish();
    drop(image);
    // The server has no data to lose, so it may be killed.
    let _ = server.kill();
    let _ = server.wait();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(3));
    targets = nbd
}
criterion_main!(benches);
