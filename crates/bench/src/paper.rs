//! The slow-downs of van der Kouwe, "Porting the QEMU virtualization software to MINIX 3" (2009), table 7, beside
//! ours. The paper's are those of QEMU 0.8.2 on Linux. A slow-down is the time in a guest as a multiple of the time
//! on the host itself.

use super::guest::Guest;
use super::statistics::{Figure, cell};
use super::table::NAME;

/// Times of a benchmark in the paper, in seconds.
struct Times {
    name: &'static str,
    /// On Linux, or on MINIX if the paper has no time on Linux.
    native: f64,
    /// In Linux in QEMU on Linux.
    linux: Option<f64>,
    /// In MINIX in QEMU on Linux.
    minix: f64,
}

const fn times(name: &'static str, native: f64, linux: f64, minix: f64) -> Times {
    Times { name, native, linux: Some(linux), minix }
}

/// The rows of table 7 that `ring3 bench cpu` measures, but for the calibrations, whose time is fixed. Our compilation
/// is another one than the paper's, of MINIX.
const TABLE: [Times; 18] = [
    times("arithmetic_int", 0.990, 3.570, 3.472),
    times("flow_call", 0.795, 8.374, 20.123),
    times("flow_conditional", 1.083, 4.646, 5.274),
    times("flow_jumptable", 0.904, 7.883, 6.095),
    times("memory_load_random", 0.351, 9.508, 6.108),
    times("memory_load_sequential", 0.787, 5.820, 6.597),
    times("memory_store_random", 0.554, 6.556, 4.069),
    times("memory_store_sequential", 0.486, 7.717, 8.368),
    times("arithmetic_float", 0.003, 0.083, 6.189),
    times("flow_syscall", 0.152, 0.883, 7.900),
    times("flow_taskswitch", 0.069, 3.159, 8.330),
    times("flow_exception", 0.017, 0.204, 2.865),
    times("io_disk_read_random", 0.003, 0.064, 1.462),
    times("io_disk_read_sequential", 0.124, 1.059, 4.685),
    times("io_disk_write_random", 0.004, 0.143, 1.621),
    times("io_disk_write_sequential", 0.169, 1.455, 2.866),
    times("io_display", 0.125, 5.043, 5.433),
    Times { name: "blended_compile", native: 7.845, linux: None, minix: 75.661 },
];

/// How many times better than the paper we want to be.
const GOAL: f64 = 10.0;

/// Returns whether the paper has the benchmark.
pub(super) fn has(benchmark: &str) -> bool {
    TABLE.iter().any(|times| times.name == benchmark)
}

impl Times {
    /// Returns the slow-down with a guest like ours: Linux, or, beside Tern, the other microkernel.
    fn slowdown(&self, guest: Guest) -> Option<f64> {
        let time = match guest {
            Guest::Linux | Guest::Amd64 => self.linux,
            Guest::Tern => Some(self.minix),
        };
        Some(time? / self.native)
    }
}

/// How a slow-down of ours compares with the paper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It is at most a tenth of it.
    Beaten,
    /// It is more than a tenth, but what it adds to the host's time is at most a tenth of what the paper's adds. No
    /// slow-down below ten can be beaten in the other way without being quicker than the host.
    Added,
    NotBeaten,
}

impl Verdict {
    fn of(paper: f64, ours: f64) -> Verdict {
        if paper >= GOAL * ours {
            Verdict::Beaten
        } else if paper - 1.0 >= GOAL * (ours - 1.0) {
            Verdict::Added
        } else {
            Verdict::NotBeaten
        }
    }

    fn text(self) -> &'static str {
        match self {
            Verdict::Beaten => "yes",
            Verdict::Added => "in added time",
            Verdict::NotBeaten => "no",
        }
    }
}

/// The columns of a ratio.
const RATIO: usize = 10;

/// Returns the lines that compare our slow-downs in `guest`, by the names of their benchmarks, with the paper's.
pub(super) fn lines(guest: Guest, ours: &[(&str, Option<Figure>)]) -> Vec<String> {
    let theirs = match guest {
        Guest::Linux | Guest::Amd64 => "Linux",
        Guest::Tern => "MINIX 3",
    };
    let mut lines = vec![
        String::new(),
        format!(
            "Slow-downs of QEMU 0.8.2 on Linux with {theirs} as guest (van der Kouwe 2009, table 7), and"
        ),
        format!("of ring3 with {}. Added time is what a slow-down has above 1.", guest.name()),
        format!(
            "{:NAME$}{:>RATIO$}{:>RATIO$}{:7}{:>12}  beaten {GOAL:.0} times?",
            "", "paper", "ring3", "", "paper/ring3"
        ),
    ];
    let mut verdicts = Vec::new();
    for (name, ours) in ours {
        let Some(times) = TABLE.iter().find(|times| times.name == *name) else { continue };
        let theirs = times.slowdown(guest);
        let both = theirs.zip(*ours);
        let verdict = both.map(|(theirs, ours)| Verdict::of(theirs, ours.median));
        verdicts.extend(verdict);
        let theirs = theirs.map_or("-".into(), |theirs| format!("{theirs:.2}x"));
        let gain = both.map_or("-".into(), |(theirs, ours)| format!("{:.2}", theirs / ours.median));
        let verdict = verdict.map_or("-", Verdict::text);
        let ours = cell(*ours, RATIO, 2, "x");
        lines.push(format!("{name:NAME$}{theirs:>RATIO$}{ours}{gain:>12}  {verdict}"));
    }
    let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    lines.push(format!(
        "{} slow-downs: {} beaten {GOAL:.0} times, {} more in added time.",
        verdicts.len(),
        count(Verdict::Beaten),
        count(Verdict::Added)
    ));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        assert_eq!(Verdict::of(20.0, 2.0), Verdict::Beaten);
        assert_eq!(Verdict::of(3.0, 1.2), Verdict::Added);
        assert_eq!(Verdict::of(3.0, 1.3), Verdict::NotBeaten);
        // Quicker than the host, but not by ten times.
        assert_eq!(Verdict::of(0.97, 0.5), Verdict::Added);
    }

    #[test]
    fn our_slow_downs_stand_beside_the_paper_s() {
        let ours = [
            ("loop", Some(Figure::single(1.0))),
            ("flow_call", Some(Figure::single(2.5))),
            ("flow_syscall", Some(Figure { median: 0.5, spread: Some(0.02) })),
            ("io_display", None),
            ("blended_compile", Some(Figure::single(3.0))),
        ];
        let lines = lines(Guest::Linux, &ours);
        let words = |at: usize| lines[at].split_whitespace().collect::<Vec<_>>();
        assert_eq!(lines.len(), 4 + 4 + 1, "{lines:#?}");
        assert_eq!(words(4), ["flow_call", "10.53x", "2.50x", "4.21", "no"]);
        assert_eq!(words(5), ["flow_syscall", "5.81x", "0.50x", "±2", "%", "11.62", "yes"]);
        assert_eq!(words(6), ["io_display", "40.34x", "-", "-", "-"]);
        assert_eq!(words(7), ["blended_compile", "-", "3.00x", "-", "-"]);
        assert!(lines[8].starts_with("2 slow-downs: 1 beaten 10 times, 0 more"), "{}", lines[8]);
        assert!(super::lines(Guest::Tern, &ours)[7].contains(" 9.64x "));
    }

    #[test]
    fn only_the_paper_s_benchmarks_are_known() {
        assert!(has("flow_call") && has("io_display") && !has("loop"));
    }
}
