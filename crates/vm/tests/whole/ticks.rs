//! The ticks of timers (`guest/exits/ticks.c`): all of them reach the guest, at their time, whatever else it and the
//! host do.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ring3_vm::EngineChoice;

use crate::exits::{machine, run};

/// What the guest has counted, in the order in which it prints it.
#[derive(Debug)]
struct Counted {
    ticks: u64,
    frequency: u64,
    divisor: u64,
    pm_ticks: u64,
    cycles_in_second: u64,
    shortest: u64,
    longest: u64,
}

impl Counted {
    fn parse(shown: &str) -> Counted {
        let value = |name: &str| {
            let line = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let value = line.and_then(|value| value.trim().parse().ok());
            value.unwrap_or_else(|| panic!("no {name} in {shown}"))
        };
        Counted {
            ticks: value("came"),
            frequency: value("frequency"),
            divisor: value("divisor"),
            pm_ticks: value("pm-ticks"),
            cycles_in_second: value("cycles-in-second"),
            shortest: value("shortest"),
            longest: value("longest"),
        }
    }

    /// Returns the number of ticks that were due between the first and the last one, by the PM timer.
    fn due(&self) -> u64 {
        let both = 3_579_545 * u128::from(self.divisor);
        let ticks = u128::from(self.pm_ticks) * u128::from(self.frequency);
        u64::try_from((ticks + both / 2) / both).unwrap()
    }

    /// Returns the nanoseconds in a period.
    fn period(&self) -> u64 {
        1_000_000_000 * self.divisor / self.frequency
    }
}

/// The frequencies and the number of ticks that are counted of each.
const FREQUENCIES: [(u32, u32); 4] = [(18, 2), (100, 4), (1024, 100), (8192, 800)];

/// Counts the ticks of `source` at all frequencies in one machine.
fn count(
    source: &str,
    work: &str,
    engine: EngineChoice,
    deterministic: bool,
) -> Option<Vec<Counted>> {
    let mut vm = machine(engine, deterministic)?;
    let command = |(hz, count)| format!("ticks {source} {hz} {count} {work} own");
    let shown = run(&mut vm, FREQUENCIES.map(command).to_vec());
    Some(shown.iter().map(|shown| Counted::parse(shown)).collect())
}

const WORK: [&str; 2] = ["idle", "busy"];
const SOURCES: [&str; 3] = ["pit", "rtc", "apic"];
const ENGINES: [EngineChoice; 2] = [EngineChoice::Interpreter, EngineChoice::Auto];

/// In a deterministic run an interrupt comes as soon as an instruction of the loop or of the handler lets it.
#[test]
fn ticks_of_deterministic_runs_are_even() {
    for engine in ENGINES {
        for (source, work) in SOURCES.into_iter().flat_map(|source| WORK.map(|work| (source, work)))
        {
            let Some(all) = count(source, work, engine, true) else { return };
            for counted in all {
                let what = format!("{source}, {work}: {counted:?}");
                assert_eq!(counted.due(), counted.ticks, "{what}");
                assert!(counted.cycles_in_second.abs_diff(1_000_000_000) < 200_000, "{what}");
                // The loop that is busy does not let interrupts in for some instructions, and accesses to devices
                // take a microsecond each.
                let slack = 10_000;
                assert!(counted.shortest + slack >= counted.period(), "{what}");
                assert!(counted.longest <= counted.period() + slack, "{what}");
            }
        }
    }
}

/// In a normal run on a host that has other things to do, ticks may be late, but all of them come, each at its own
/// virtual time.
#[test]
fn all_ticks_come_on_a_loaded_host() {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let others = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for _ in 0..others {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        // Whatever fails, the threads end.
        let checked = std::panic::catch_unwind(check_on_loaded_host);
        is_over.store(true, Ordering::Relaxed);
        if let Err(failure) = checked {
            std::panic::resume_unwind(failure);
        }
    });
}

fn check_on_loaded_host() {
    for engine in ENGINES {
        for source in SOURCES {
            for work in WORK {
                // A machine that the host has not run for a second leaves the ticks of that time out.
                let mut tries = (0..3).map_while(|_| count(source, work, engine, false));
                let all_came = |counted: &Vec<Counted>| {
                    counted.iter().all(|counted| counted.due().abs_diff(counted.ticks) <= 1)
                };
                let Some(first) = tries.next() else { return };
                let came = all_came(&first) || tries.any(|counted| all_came(&counted));
                assert!(came, "{source}, {work}: {first:?}");
            }
        }
    }
}
