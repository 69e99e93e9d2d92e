//! Measures what a guest that has nothing to do takes of the host's processor.

use std::thread;
use std::time::{Duration, Instant};

use super::data::Log;
use super::guest::Guest;
use super::peer::{Kind, Peer};
use super::statistics::{SPREAD, Series, cell};
use super::{BenchError, IdleArguments, show};

/// How long a guest has been at its prompt before it counts as idle.
const SETTLED: Duration = Duration::from_secs(5);

/// A guest at its prompt.
struct Idle {
    guest: Guest,
    kind: Kind,
    peer: Peer,
    /// Per cent of a processor, in each turn.
    shares: Series,
    /// Wake-ups a second, in each turn.
    wake_ups: Series,
}

/// The use of the processor up to an instant.
struct Used {
    at: Instant,
    seconds: f64,
    wake_ups: u64,
}

impl Idle {
    fn used(&self) -> Result<Used, BenchError> {
        let (seconds, wake_ups) = (self.peer.time()?, self.peer.wake_ups()?);
        Ok(Used { at: Instant::now(), seconds, wake_ups })
    }

    fn line(&self) -> String {
        let share = cell(self.shares.figure(), 10, 3, " %");
        let wake_ups = cell(self.wake_ups.figure(), 16, 2, "");
        format!("{:<6}{:<13}{share}{wake_ups}", self.guest.name(), self.kind.name())
            .trim_end()
            .into()
    }
}

/// Lets all guests be idle at the same time, and shows the medians.
pub(super) fn measure(arguments: &IdleArguments) -> Result<(), BenchError> {
    let settings = &arguments.settings;
    // This is dropped last, because the running processes have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let mut log = Log::begin(settings)?;
    let mut all = Vec::new();
    for guest in arguments.guest.all() {
        for kind in Kind::installed_with(guest.processor()) {
            let mut peer = guest.start(kind, settings, directory.path())?;
            peer.wait_for(guest.prompt())?;
            let (shares, wake_ups) = (Series::default(), Series::default());
            all.push(Idle { guest: *guest, kind, peer, shares, wake_ups });
        }
    }
    thread::sleep(SETTLED);
    let time = Duration::from_secs(arguments.time.into());
    for turn in 0..settings.runs {
        let before: Result<Vec<_>, _> = all.iter().map(Idle::used).collect();
        thread::sleep(time);
        for (idle, before) in all.iter_mut().zip(before?) {
            let after = idle.used()?;
            let elapsed = after.at.duration_since(before.at).as_secs_f64();
            let woken = u32::try_from(after.wake_ups - before.wake_ups).unwrap_or(u32::MAX);
            idle.shares.add(turn, 100.0 * (after.seconds - before.seconds) / elapsed);
            idle.wake_ups.add(turn, f64::from(woken) / elapsed);
        }
    }
    show(&format!(
        "Guests at their shells' prompts for {} seconds: processor time as a share of one",
        arguments.time
    ))?;
    show(
        "processor of the host, and how often a second a thread of the process has slept until an",
    )?;
    show("event (medians; ± half the distance between the quartiles).")?;
    show(&format!("{:19}{:>10}{:SPREAD$}{:>16}", "", "processor", "", "wake-ups"))?;
    for idle in &all {
        let (name, work) = (idle.kind.name(), format!("idle {}", idle.guest.name()));
        log.add_series(name, &work, "per_cent", &idle.shares)?;
        log.add_series(name, &work, "wake_ups_per_second", &idle.wake_ups)?;
        show(&idle.line())?;
    }
    Ok(())
}
