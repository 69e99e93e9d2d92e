//! Limits the log to as many messages as somebody can read.
//!
//! Guests, clients and peers can cause the same message again and again, and must not fill the host's disk
//! with it. So each place in the program that logs may write [`BURST`] messages at once, and after that one
//! every [`PACE`]; the next message says how many were left out. The levels `debug` and `trace`, which
//! somebody has asked for, are not limited.
//!
//! The limit is here rather than where messages are made. So it exists once, no device model looks at the
//! host's clock for it, and it holds for new messages, too.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The number of messages that a place may write at once.
const BURST: u32 = 10;
/// The time after which a place may write one more.
const PACE: Duration = Duration::from_secs(10);

/// Formats messages by `F`, and leaves out those that are too many.
#[derive(Debug, Default)]
pub(super) struct Limited<F> {
    format: F,
    places: Mutex<HashMap<Identifier, Place>>,
}

/// A place in the program that logs messages.
#[derive(Debug)]
struct Place {
    /// The time at which all its messages would have been written at an even pace.
    used_until: Instant,
    left_out: u64,
}

impl Place {
    fn new(now: Instant) -> Place {
        Place { used_until: now, left_out: 0 }
    }

    /// Counts one more message. Returns how many were left out before it, or None if this one is left out,
    /// too.
    fn speaks(&mut self, now: Instant) -> Option<u64> {
        let next = self.used_until.max(now) + PACE;
        if next > now + PACE * BURST {
            self.left_out += 1;
            return None;
        }
        self.used_until = next;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl<F> Limited<F> {
    pub(super) fn new(format: F) -> Limited<F> {
        Limited { format, places: Mutex::default() }
    }

    fn speaks(&self, place: Identifier) -> Option<u64> {
        let now = Instant::now();
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.entry(place).or_insert_with(|| Place::new(now)).speaks(now)
    }
}

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return self.format.format_event(context, writer, event);
        }
        match self.speaks(metadata.callsite()) {
            // A message without text is not written.
            None => Ok(()),
            Some(0) => self.format.format_event(context, writer, event),
            Some(left_out) => {
                let mut line = String::new();
                self.format.format_event(context, Writer::new(&mut line), event)?;
                let line = line.trim_end_matches('\n');
                writeln!(writer, "{line} ({left_out} more like this were left out before)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_place_has_a_burst_and_then_a_pace() {
        let start = Instant::now();
        let mut place = Place::new(start);
        let mut said = |at: Duration, count: u32| {
            (0..count).filter_map(|_| place.speaks(start + at)).collect::<Vec<_>>()
        };
        assert_eq!(said(Duration::ZERO, 100_000), vec![0; BURST as usize]);
        assert!(said(PACE / 2, 5).is_empty());
        assert_eq!(said(PACE, 5), [100_000 - u64::from(BURST) + 5]);
        assert_eq!(said(PACE * 3, 2), [4, 0]);
        assert_eq!(said(PACE * 1000, 100).len(), BURST as usize);
    }

    /// A log in memory.
    #[derive(Debug, Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn one_place_does_not_silence_another() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .with_ansi(false)
            .map_event_format(Limited::new)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..1000 {
                tracing::warn!("a peer has come for the {number}th time");
                tracing::debug!("as was asked for");
            }
            tracing::error!("something else");
        });
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.matches("a peer").count(), BURST as usize);
        assert_eq!(log.matches("as was asked for").count(), 1000);
        assert_eq!(log.matches("something else").count(), 1);
        assert_eq!(log.lines().count(), 1001 + BURST as usize);
    }
}
