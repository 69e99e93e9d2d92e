//! Measures the cost of the operations of which a transfer consists on this host, as a [`Host`] of the model.
//!
//! The cost of a guest's operations is measured in a guest ([`guest`]). The host's operations are performed
//! here in the way of `crates/net`: bytes over a Unix socket, and a thread that sleeps until there are some.
//! Each figure is the least of several, because any other work of the host makes a figure larger. Nothing
//! here remaps pages, so this operation costs nothing.

mod guest;

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use ring3_netmodel::Host;
use ring3_vm::{Ending, VmError};
use thiserror::Error;

/// How often each measurement is repeated.
const RUNS: u32 = 5;

/// Why a host cannot be measured.
#[derive(Debug, Error)]
pub enum CalibrationError {
    /// The guest's machine cannot be made.
    #[error(transparent)]
    Machine(#[from] VmError),
    /// The guest did not switch its machine off.
    #[error("the guest that measures the host ended early ({0:?})")]
    Ended(Ending),
    /// Some of the guest's interrupts were lost.
    #[error("the guest that measures the host received only {had} of {wanted} interrupts")]
    Interrupts {
        /// How many interrupts were requested.
        wanted: u32,
        /// How many interrupts arrived.
        had: u32,
    },
    /// The host refuses a socket.
    #[error("the speed of a Unix socket cannot be measured: {0}")]
    Socket(#[from] io::Error),
}

/// Returns the seconds of the shortest of several measurements.
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
    // A message that is sent and received by a thread that sleeps.
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
/// The cycles after which the product of a 32-bit multiplication is available to the next one, on Intel's
/// processors since 2006 and on AMD's since Zen (Fog, Instruction tables).
const LATENCY: f64 = 3.0;
const CYCLES: f64 = MULTIPLICATIONS as f64 * LATENCY;

/// Measures a chain of multiplications, each of which uses the product of the one before.
fn multiplications() -> Duration {
    let start = Instant::now();
    let mut product = black_box(3u32);
    for _ in 0..MULTIPLICATIONS {
        product = product.wrapping_mul(product);
    }
    black_box(product);
    start.elapsed()
}

/// Bytes of a copy; this is more than caches hold.
const COPIED: u32 = 64 << 20;

/// Measures a copy of [`COPIED`] bytes.
fn copy() -> Duration {
    let source = vec![1u8; COPIED as usize];
    // This is written so that its pages are present.
    let mut target = vec![2u8; COPIED as usize];
    let start = Instant::now();
    target.copy_from_slice(black_box(&source));
    black_box(&target);
    start.elapsed()
}

const MESSAGES: u32 = 20_000;
/// Bytes of a message. Copies of more bytes are counted separately.
const MESSAGE: usize = 64;

/// Measures a message that nobody waits for: the system calls on both sides.
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

/// Measures a message to a thread that sleeps, and its answer.
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
    // The thread returns nothing of interest.
    let _ = echo.join();
    Ok(taken)
}

/// Returns the options of `ring3 netmodel` that describe `host`.
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
        // A cost that is a difference may be 0 on a busy host.
        for cost in [host.exit, host.interrupt, host.element, host.wake_up] {
            assert!((0.0..1e9).contains(&cost), "{host:?}");
        }
        assert!(host.message > 0.0 && host.remap == 0.0, "{host:?}");
    }
}
