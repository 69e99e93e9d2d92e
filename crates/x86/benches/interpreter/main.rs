//! Measures how many instructions a second the interpreter executes, and how many the host's processor
//! executes of the same code in the same run.
//!
//! There is a line a program, with million instructions a second and their ratio, which means more than the rates
//! because it depends less on the host. A word on the command line selects the programs that have it in their names.
//!
//! An iteration of a repeated string instruction counts as an instruction, and so does an instruction that
//! raises an exception. Programs that only a supervisor can run have no native rate.

mod guest;
mod native;
mod programs;

use std::time::Duration;

use ring3_hostcpu::Runner;

use guest::Guest;
use native::Native;
use programs::Program;

/// How often each program is measured, and for how long.
const SAMPLES: usize = 20;
const SAMPLE: Duration = Duration::from_millis(75);

fn main() {
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let mut runner = Runner::new();
    if let Err(reason) = &runner {
        println!("no native rates on this host: {reason}");
    }
    for program in programs::all() {
        if wanted.as_ref().is_none_or(|wanted| program.name.contains(wanted)) {
            compare(&program, runner.as_mut().ok());
        }
    }
}

/// Measures `program` on both processors.
fn compare(program: &Program, runner: Option<&mut Runner>) {
    let name = program.name;
    let mut guest = Guest::new(program);
    let instructions = guest.instructions();

    let interpreted = median(|| guest.run());
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
        Some(median(|| native.run().expect("it ran before").1))
    });

    let rate = |seconds: f64| f64::from(instructions) / seconds / 1e6;
    print!("{name}: {:.0} M instructions/s", rate(interpreted));
    if let Some(natively) = natively {
        let ratio = interpreted / natively;
        print!(", native {:.0} M/s, {ratio:.1} times as fast", rate(natively));
    }
    println!();
}

/// Measures `run`, which returns how long it took. Returns the median in seconds.
fn median(mut run: impl FnMut() -> Duration) -> f64 {
    // The caches become warm here, too.
    let first = (0..10).map(|_| run()).min().expect("there are ten").max(Duration::from_nanos(1));
    let runs = SAMPLE.as_nanos().div_ceil(first.as_nanos()) as u32;
    let mut samples: Vec<_> =
        (0..SAMPLES).map(|_| (0..runs).map(|_| run()).sum::<Duration>() / runs).collect();
    samples.sort();
    samples[SAMPLES / 2].as_secs_f64()
}
