//! Lets tests report that they cannot run on this host, so that they are counted and not taken for successes.
//!
//! A test that lacks something calls [`host`] or [`package`] and returns. Both print the reason and append it
//! to the file that `RING3_SKIPPED` names; `make test` prints that file at its end. Where the environment has
//! `CI=true`, a missing package makes the test fail, because a continuous integration machine can install it.
#![forbid(unsafe_code)]

use std::env;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::thread;

/// Reports that the host's kernel, processor or rights do not allow the test, for this `reason`.
pub fn host(reason: impl Display) {
    note(&reason.to_string());
}

/// Reports that the test needs something that can be installed; `reason` says what and how.
///
/// # Panics
/// Panics in continuous integration (`CI=true`).
#[track_caller]
pub fn package(reason: impl Display) {
    let reason = reason.to_string();
    assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "{reason}; CI installs it");
    note(&reason);
}

/// Prints why this thread's test is skipped, and keeps the reason for `make test`.
fn note(reason: &str) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    eprintln!("skipped: {reason}");
    let Some(path) = env::var_os("RING3_SKIPPED") else { return };
    let line = format!("{test}: {reason}\n");
    let mut file = OpenOptions::new().create(true).append(true).open(&path);
    let written = file.as_mut().map(|file| file.write_all(line.as_bytes()));
    assert!(matches!(written, Ok(Ok(()))), "{} cannot be written", path.display());
}
