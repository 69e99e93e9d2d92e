//! Series of random cases, and the environment variables that choose among them.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `RING3_FUZZ_CASES` | number of cases |
//! | `RING3_FUZZ_TIMES` | this many times as many cases as by default |
//! | `RING3_FUZZ_SEED` | another series of cases |
//! | `RING3_FUZZ_CASE` | only the case of this number |

use std::ops::Range;

use super::random::Random;

/// The seed of the default series, and of everything that is the same in all cases.
pub(crate) const SEED: u64 = 0x2026;

/// The cases to be run.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    /// The seed of all random numbers.
    pub(crate) seed: u64,
    /// The numbers of the cases.
    pub(crate) cases: Range<u64>,
}

impl Series {
    /// The series that the environment asks for, or by default `cases` cases of the default series.
    pub(crate) fn from_environment(cases: u64) -> Series {
        let seed = variable("RING3_FUZZ_SEED").unwrap_or(SEED);
        let cases = if let Some(case) = variable("RING3_FUZZ_CASE") {
            case..case + 1
        } else {
            let times = variable("RING3_FUZZ_TIMES").unwrap_or(1);
            0..variable("RING3_FUZZ_CASES").unwrap_or(cases * times)
        };
        Series { seed, cases }
    }

    /// The random numbers of case `case`.
    pub(crate) fn random(&self, case: u64) -> Random {
        Random::new(self.seed, case)
    }
}

/// The number in an environment variable.
fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is to be a number, not {text:?}")))
}
