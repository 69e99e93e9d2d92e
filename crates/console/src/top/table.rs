//! The list of parts with their rates.

use ring3_supervisor::command::Usage;

use crate::rates::{Rates, Sample};
use crate::terminal::word;

/// The line above the list.
pub(super) const HEAD: &str =
    "name             kind     state        cpu %    mem  disk/s   net/s  restarts last end";

/// Returns the list, with a head. Rates are those since `before`.
pub(super) fn lines(before: &Sample, now: &Sample) -> Vec<String> {
    let lines = now.rates(before).map(|(part, rates)| line(part, rates));
    std::iter::once(HEAD.to_owned()).chain(lines).collect()
}

fn line(now: &Usage, rates: Rates) -> String {
    let bytes = |one: Option<u64>, other: Option<u64>| {
        let both = one.zip(other);
        both.map_or_else(|| "-".to_owned(), |(one, other)| size(one.saturating_add(other)))
    };
    let runs = now.status.pid.is_some();
    let processor = rates.processor.map_or("-".to_owned(), |nanos| {
        format!("{}.{}", nanos / 10_000_000, nanos / 1_000_000 % 10)
    });
    let memory = if runs { size(now.memory) } else { "-".to_owned() };
    let text = format!(
        "{:<16} {:<8} {:<12} {processor:>5} {memory:>6} {:>7} {:>7} {:>9} {}",
        now.status.name,
        now.status.kind,
        word(now.status.state),
        bytes(rates.read, rates.written),
        bytes(rates.received, rates.sent),
        now.status.restarts,
        now.status.ended.as_deref().unwrap_or_default(),
    );
    harmless(&text)
}

/// Returns a text without control characters. A guest that has broken out may have written a reason.
pub(super) fn harmless(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

/// Returns a number of bytes in at most five characters.
fn size(bytes: u64) -> String {
    let (mut tenths, mut units) = (u128::from(bytes) * 10, "KMGTPE".chars());
    let mut unit = None;
    while tenths >= 9995 {
        (tenths, unit) = (tenths / 1024, units.next());
    }
    match unit {
        None => format!("{}", tenths / 10),
        Some(unit) if tenths < 100 => format!("{}.{}{unit}", tenths / 10, tenths % 10),
        Some(unit) => format!("{}{unit}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ring3_supervisor::command::{State, Status};
    use ring3_supervisor::definition::Restart;

    use super::*;

    fn part(pid: i32, nanos: u64, disk: u64) -> Usage {
        Usage {
            status: Status {
                name: "web".parse().unwrap(),
                kind: "machine".to_owned(),
                state: State::Running,
                pid: Some(pid),
                restarts: 1,
                ended: Some("killed\x1b[2J".to_owned()),
                restart: Restart::Never,
                serial: Vec::new(),
                memory: None,
            },
            processor_nanos: nanos,
            memory: 3 << 20,
            disk_read: Some(disk),
            disk_written: Some(0),
            network_received: None,
            network_sent: None,
        }
    }

    #[test]
    fn rates_are_those_between_two_samples() {
        let at = Instant::now();
        let before = Sample { at, parts: vec![part(1, 5, 0)] };
        let at = at + Duration::from_secs(2);
        let now = Sample { at, parts: vec![part(1, 1_000_000_005, 4096)] };
        let shown = lines(&before, &now);
        let fields: Vec<_> = shown[1].split_whitespace().collect();
        let wanted = ["web", "machine", "running", "50.0", "3.0M", "2.0K", "-", "1", "killed?[2J"];
        assert_eq!(fields, wanted);
        // Another process has counters of its own.
        let now = Sample { at, parts: vec![part(2, 7, 0)] };
        assert!(lines(&before, &now)[1].contains(" -   3.0M       -       -"));
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, wanted) in [
            (0, "0"),
            (999, "999"),
            (1000, "0.9K"),
            (1024, "1.0K"),
            (20480, "20K"),
            (1 << 20, "1.0M"),
            (500_000_000_000, "465G"),
            (u64::MAX, "15E"),
        ] {
            assert_eq!(size(bytes), wanted, "{bytes}");
        }
    }
}
