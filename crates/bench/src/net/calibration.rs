//! What this host takes for the operations of which a transfer consists: the [`Host`] of the model, measured.
//!
//! What a guest does is measured in one ([`guest`]); what the host does is done here, as `crates/net` does it: bytes over a Unix socket, and a thread that sleeps until
//! there are some. Each figure is the least of several, for
//! whatever else the host does makes one larger. Nothing here maps pages elsewhere, so that this has no cost.

mod guest;

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use ring3_netmodel::Host;
use ring3_vm::{Ending, VmError};
use thiserror::Error;

/// How often everything is measured.
const RUNS: u32 = 5;

/// Why a host's costs are not known.
#[derive(Debug, Error)]
pub enum CalibrationError {
    /// There is no machine for the guest.
    #[error(transparent)]
    Machine(#[from] VmError),
    /// The guest did not switch its machine off.
    #[error("the guest that measures has ended by {0:?}")]
    Ended(Ending),
    /// Some of its interrupts did not come.
    #[error("of {wanted} interrupts the guest that measures has had {had}")]
    Interrupts {
        /// How many were asked for.
        wanted: u32,
        /// How many came.
        had: u32,
    },
    /// The host gives no sockets.
    #[error("a Unix socket cannot be measured: {0}")]
    Socket(#[from] io::Error),
}

/// Seconds, by the least of several measurements.
fn several(
    mut measure: impl FnMut() -> Result<Duration, CalibrationError>,
) -> Result<f64, CalibrationError> {
    let mut least = measure()?;
    for _ in 1..RUNS {
        least = least.min(measure()?);
    }
    Ok(least.as_secs_f64())
}

/// Measures this host. It takes a second or two.
pub fn calibrate() -> Result<Host, CalibrationError> {
    let frequency = several(|| Ok(multiplications()))?.recip() * CYCLES;
    let memory_bandwidth = f64::from(COPIED) / several(|| Ok(copy()))?;
    let message = several(|| Ok(messages()?))?;
    // Sent, and taken by a thread that sleeps.
    let there = several(|| Ok(round_trips()?))? / 2.0;
    let guest = guest::calibrate()?;
    Ok(Host {
        frequency,
        memory_bandwidth,
        exit: guest.exit * frequency,
        interrupt: guest.interrupt * frequency,
        message: message * frequency,
        wake_up: (there - message).max(0.0) * frequency,
        element: guest.element * frequency,
        remap: 0.0,
    })
}

const MULTIPLICATIONS: u32 = 20_000_000;
/// A multiplication of 32 bits takes so many cycles until the next one has its product, on Intel's processors since 2006 and on AMD's since Zen (Fog, Instruction tables).
const LATENCY: f64 = 3.0;
const CYCLES: f64 = MULTIPLICATIONS as f64 * LATENCY;

/// A chain of multiplications, each of the product before.
fn multiplications() -> Duration {
    let start = Instant::now();
    let mut product = black_box(3u32);
    for _ in 0..MULTIPLICATIONS {
        product = product.wrapping_mul(product);
    }
    black_box(product);
    start.elapsed()
}

/// More than caches have.
const COPIED: u32 = 64 << 20;

/// A copy of so much.
fn copy() -> Duration {
    let source = vec![1u8; COPIED as usize];
    // Written to, so that its pages are there.
    let mut target = vec![2u8; COPIED as usize];
    let start = Instant::now();
    target.copy_from_slice(black_box(&source));
    black_box(&target);
    start.elapsed()
}

const MESSAGES: u32 = 20_000;
/// Bytes of a message: copies of more are counted apart.
const MESSAGE: usize = 64;

/// A message that nobody waits for: the calls of the system on both sides.
fn messages() -> io::Result<Duration> {
    let (mut near, mut far) = UnixStream::pair()?;
    let mut bytes = [0; MESSAGE];
    let start = Instant::now();
    for _ in 0..MESSAGES {
        near.write_all(&bytes)?;
        far.read_exact(&mut bytes)?;
    }
    Ok(start.elapsed() / MESSAGES)
}

const ROUND_TRIPS: u32 = 2000;

/// A message to a thread that sleeps, and one back.
fn round_trips() -> io::Result<Duration> {
    let (mut near, mut far) = UnixStream::pair()?;
    let echo = thread::Builder::new().name("calibration".to_owned()).spawn(move || {
        let mut bytes = [0; MESSAGE];
        while far.read_exact(&mut bytes).is_ok() && far.write_all(&bytes).is_ok() {}
    })?;
    let mut bytes = [0; MESSAGE];
    let start = Instant::now();
    for _ in 0..ROUND_TRIPS {
        near.write_all(&bytes)?;
        near.read_exact(&mut bytes)?;
    }
    let taken = start.elapsed() / ROUND_TRIPS;
    drop(near);
    // It has nothing to tell.
    let _ = echo.join();
    Ok(taken)
}

/// The options of `ring3 netmodel` that say what `host` takes.
pub fn options(host: &Host) -> String {
    let Host { exit, interrupt, message, wake_up, element, remap, .. } = host;
    let (frequency, memory) = (host.frequency / 1e9, host.memory_bandwidth / 1e9);
    format!(
        "--frequency {frequency:.2} --memory {memory:.1} --exit {exit:.0} --interrupt {interrupt:.0} --message {message:.0} \
         --wake-up {wake_up:.0} --element {element:.1} --remap {remap:.0}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_all_costs_but_that_of_remapping() {
        let host = calibrate().unwrap();
        assert!((0.1e9..20e9).contains(&host.frequency), "{host:?}");
        assert!((0.01e9..1000e9).contains(&host.memory_bandwidth), "{host:?}");
        // Where a cost is a difference, a busy host can make it nothing.
        for cost in [host.exit, host.interrupt, host.element, host.wake_up] {
            assert!((0.0..1e9).contains(&cost), "{host:?}");
        }
        assert!(host.message > 0.0 && host.remap == 0.0, "{host:?}");
    }
}
