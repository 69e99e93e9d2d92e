//! Measures how many instructions a second the interpreter executes, and how many the host's processor
//! executes of the same code in the same run.
//!
//! Criterion's `Melem/s` are million instructions a second. After each program there is a line with the
//! ratio, which means more than the rates because it depends less on the host.
//!
//! An iteration of a repeated string instruction counts as an instruction, and so does an instruction that
//! raises an exception. Programs that only a supervisor can run have no native rate.

mod guest;
mod native;
mod programs;

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};
use ring3_hostcpu::Runner;

use guest::Guest;
use native::Native;
use programs::Program;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1500))
        .configure_from_args();
    let mut runner = Runner::new();
    if let Err(reason) = &runner {
        println!("no native rates on this host: {reason}");
    }
    for program in programs::all() {
        compare(&mut criterion, &program, runner.as_mut().ok());
    }
    criterion.final_summary();
}

/// Measures `program` on both processors.
fn compare(criterion: &mut Criterion, program: &Program, runner: Option<&mut Runner>) {
    let name = program.name;
    let mut guest = Guest::new(program);
    let instructions = guest.instructions();
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(instructions.into())).sampling_mode(SamplingMode::Flat);

    let interpreted = median(&mut group, "interpreter", || guest.run());
    let natively = runner.filter(|_| program.runs_natively).and_then(|runner| {
        let mut native = Native::new(runner, program);
        let end = match native.run() {
            Ok((end, _)) => end,
            Err(reason) => {
                println!("{name}: no native rate: {reason}");
                return None;
            }
        };
        assert!(guest.ended_like(&end, native.data()), "{name}: the processors disagree");
        median(&mut group, "native", || native.run().expect("it ran before").1)
    });
    group.finish();

    let rate = |seconds: f64| f64::from(instructions) / seconds / 1e6;
    if let Some(interpreted) = interpreted {
        print!("{name}: {:.0} M instructions/s", rate(interpreted));
        if let Some(natively) = natively {
            let ratio = interpreted / natively;
            print!(", native {:.0} M/s, {ratio:.1} times as fast", rate(natively));
        }
        println!("\n");
    }
}

/// Measures `run`, which returns how long it took. Returns the median in seconds, or None if the command line
/// asks for other benchmarks.
fn median(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    mut run: impl FnMut() -> Duration,
) -> Option<f64> {
    let mut samples = Vec::new();
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let time: Duration = (0..iterations).map(|_| run()).sum();
            samples.push((time / iterations as u32).as_secs_f64());
            time
        });
    });
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied()
}
