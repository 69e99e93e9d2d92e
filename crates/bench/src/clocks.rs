//! What the two calibrations of the suite say of a system's clocks: the frequency of its time-stamp counter by its own
//! clock, while a program waits busily and while it sleeps. Where they differ, cycles are no measure of time.

use super::table::Column;

/// The benchmarks that take a fixed time.
const BUSY: &str = "calibrate_busy";
const IDLE: &str = "calibrate_idle";
/// The most by which the two frequencies differ where the clocks are steady, as a share.
const STEADY: f64 = 0.02;

/// The frequencies in MHz that the calibrations have found, on the host and then in each system.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    busy: Vec<Option<f64>>,
    idle: Vec<Option<f64>>,
}

impl Clocks {
    /// Notes what `benchmark` has found, if it is a calibration.
    pub(super) fn note(&mut self, benchmark: &str, frequencies: Vec<Option<f64>>) {
        match benchmark {
            BUSY => self.busy = frequencies,
            IDLE => self.idle = frequencies,
            _ => {}
        }
    }

    /// Returns lines that describe the clocks of the host and of the systems of `columns`: none unless both
    /// calibrations were measured.
    pub(super) fn lines(&self, columns: &[Column]) -> Vec<String> {
        let name = |column: &Column| format!("{}, {}", column.guest.name(), column.kind.name());
        let names = std::iter::once("host".to_owned()).chain(columns.iter().map(name));
        let both = self.busy.iter().zip(&self.idle);
        let mut lines: Vec<_> = names
            .zip(both)
            .filter_map(|(name, (busy, idle))| Some(line(&name, (*busy)?, (*idle)?)))
            .collect();
        if !lines.is_empty() {
            let title =
                "The time-stamp counter in MHz, by the system's own clock, in a program that";
            lines.insert(0, format!("{title}\n{:28}{:>12}{:>12}", "", "waits", "sleeps"));
        }
        lines
    }
}

fn line(name: &str, busy: f64, idle: f64) -> String {
    let differs = (busy - idle).abs() > STEADY * busy.max(idle);
    let warning = if differs { "  the clocks are not steady: cycles are no time here" } else { "" };
    format!("{name:28}{busy:12.1}{idle:12.1}{warning}")
}

#[cfg(test)]
mod tests {
    use super::super::guest::Guest;
    use super::super::peer::Kind;
    use super::*;

    #[test]
    fn unsteady_clocks_are_told() {
        let columns = [Column { guest: Guest::Tern, kind: Kind::Translator }];
        let mut clocks = Clocks::default();
        clocks.note(BUSY, vec![Some(2000.0), Some(1000.0)]);
        clocks.note("loop", vec![Some(1.0), Some(1.0)]);
        assert!(clocks.lines(&columns).is_empty(), "one of two says nothing");
        clocks.note(IDLE, vec![Some(2010.0), Some(900.0)]);
        let lines = clocks.lines(&columns);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1], "host                              2000.0      2010.0");
        assert!(
            lines[2]
                .starts_with("Tern, ring3                       1000.0       900.0  the clocks")
        );
    }

    #[test]
    fn what_does_not_run_on_the_host_has_no_line() {
        let mut clocks = Clocks::default();
        clocks.note(BUSY, vec![None]);
        clocks.note(IDLE, vec![None]);
        assert!(clocks.lines(&[]).is_empty());
    }
}
